#!/bin/sh
# Fails when the primary no longer keeps the WAL that this standby needs: the kubelet then restarts it, and it starts over from a new
# base backup. It does not fail while the primary does not answer, nor on a promoted standby, which needs no primary.
# Environment: PRIMARY_HOST, PRIMARY_PORT, PGPASSFILE, HOSTNAME.
. "${0%/*}/session.sh"
ask() { psql --no-psqlrc --no-password --quiet --tuples-only --no-align "$@" 2>/dev/null; }
follows=$(ask --username=replicator --dbname=postgres --command='SELECT pg_is_in_recovery()')
[ "$follows" != f ] || exit 0
slot=$(echo "$HOSTNAME" | tr - _)
kept=$(echo "SELECT count(*) > 0 FROM pg_replication_slots WHERE slot_name = :'slot' AND wal_status <> 'lost'" |
    ask --set=slot="$slot" "host=$PRIMARY_HOST port=$PRIMARY_PORT user=replicator dbname=postgres connect_timeout=5") || exit 0
[ "$kept" != f ] || { echo "the primary has not kept what this standby has missed"; exit 1; }
