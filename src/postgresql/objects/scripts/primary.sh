#!/bin/sh
# Runs the primary on an existing database. It never creates one: initialize.sh did, once.
# Environment: PGDATA, HBA_FILE, RESTORED (the request for which initialize.sh has restored a dump beside the database). Arguments:
# additional settings of the server.
# Exit codes: those of initialize.sh.
set -eu
umask 077
volume=${PGDATA%/*}
restored=$volume/restored.${RESTORED:-}
former=$volume/former.${RESTORED:-}
system() { LC_ALL=C pg_controldata "$1" | sed -n 's/^Database system identifier: *//p'; }
# The former database is set aside, once, and never deleted. An interrupted exchange goes on.
if [ -n "${RESTORED:-}" ] && [ -s "$restored/PG_VERSION" ] && grep -q "^$RESTORED " "$restored/restored"; then
    if [ -e "$PGDATA" ]; then
        while [ -e "$former" ]; do former=$former.more; done
        # Standbys copy the new database in place of this one.
        { cat "$PGDATA/former" 2>/dev/null || true; system "$PGDATA" || true; } >"$restored/former.new"
        mv "$restored/former.new" "$restored/former"
        sync -f "$restored"
        mv "$PGDATA" "$former"
        sync -f "$volume"
    fi
    mv "$restored" "$PGDATA"
    sync -f "$volume"
    echo "the database is the one restored for $RESTORED; the former one is in $former"
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    echo "there is no database in $PGDATA, where there was one: no other is made in its place" >&2
    exit 71
fi
found=$(cat "$PGDATA/PG_VERSION")
major=$(postgres --version | sed 's/[^0-9]*\([0-9]*\).*/\1/')
if [ "$found" != "$major" ]; then
    echo "the volume has a database of PostgreSQL $found, and this is $major: it is left as it is" >&2
    exit 72
fi
# The WAL that is kept for an absent standby; if it misses more, it starts over from a new base backup. If a setting is given twice,
# the last one counts: a user can have more WAL kept, but cannot change who may connect.
exec postgres -c wal_keep_size=128MB -c max_slot_wal_keep_size=256MB "$@" -c "hba_file=$HBA_FILE" -c "listen_addresses=*"
