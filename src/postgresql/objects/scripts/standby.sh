#!/bin/sh
# Runs a hot standby: it starts from a base backup of the primary, and follows the primary with a replication slot of its own.
# Environment: PGDATA, PRIMARY_HOST, PRIMARY_PORT, REPLICATION_PASSWORD_FILE, PGPASSFILE, HBA_FILE, HOSTNAME. Arguments: additional
# settings of the server.
# Exit codes: 73 it was promoted; 74 the primary is another server; 75 the volume has no room for a copy.
set -eu
umask 077
. "${0%/*}/session.sh"
# The first process of a container ignores signals without a trap.
trap 'exit 143' TERM INT

# libpq requires a file that only its owner can read, unlike a mounted Secret.
printf '*:*:*:replicator:%s\n' "$(cat "$REPLICATION_PASSWORD_FILE")" >"$PGPASSFILE"
export PGPASSFILE
primary="host=$PRIMARY_HOST port=$PRIMARY_PORT user=replicator"
slot=$(echo "$HOSTNAME" | tr - _)
new=$PGDATA.new

ask() {
    psql --no-psqlrc --no-password --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 --set=slot="$slot" "$@" \
        "$primary dbname=postgres"
}
control() { LC_ALL=C pg_controldata "$PGDATA" | sed -n "s/^$1: *//p"; }

# The slot for which the primary keeps WAL. A lost slot is useless and is created again.
take_slot() {
    ask >/dev/null <<'SQL'
SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
WHERE slot_name = :'slot' AND wal_status = 'lost' AND NOT active;
SELECT pg_create_physical_replication_slot(:'slot', true)
WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = :'slot');
SQL
}

# Ends before the primary is read for nothing, again and again.
has_room() {
    needs=$(echo 'SELECT sum(pg_database_size(oid))::bigint / 1048576 + 1 FROM pg_database' | ask) || return 1
    free=$(($(df -Pk "$new" | { read -r _ && read -r _ _ _ free _ && echo "$free"; }) / 1024))
    [ "$free" -lt "$needs" ] || return 0
    beside=
    [ ! -e "$PGDATA" ] || beside=", beside the former copy, which stays until then"
    echo "the volume has $free MiB free, and a copy of the primary needs $needs MiB$beside: raise spec.storageSize, or delete this pod's" \
        "PersistentVolumeClaim and the pod" >&2
    exit 75
}

begin() {
    # An incomplete backup is never in PGDATA, so no server starts from it. The old contents of PGDATA stay until the new backup is
    # complete: if the primary is lost meanwhile, they are the only copy.
    until
        rm -rf "$new"
        # From here on the slot belongs to the new copy, and no longer protects the WAL of the old one: see below.
        mkdir "$new"
        has_room && take_slot && pg_basebackup --dbname="$primary" --no-password --pgdata="$new" --wal-method=stream --slot="$slot" \
            --checkpoint=fast
    do
        echo "no base backup of $PRIMARY_HOST yet; trying again" >&2
        sleep 2
    done
    touch "$new/standby.signal"
    sync -f "$new"
    if [ -e "$PGDATA" ]; then mv "$PGDATA" "$PGDATA.old"; fi
    mv "$new" "$PGDATA"
    rm -rf "$PGDATA.old"
}

# Whether the primary still has the WAL since this standby's last checkpoint. Also true if the primary does not answer.
can_follow() {
    status=$(echo "SELECT wal_status FROM pg_replication_slots WHERE slot_name = :'slot'" | ask) || return 0
    case $status in
        reserved | extended | unreserved) return 0 ;;
    esac
    from=$(control "Latest checkpoint's REDO WAL file" | cut -c 9-)
    has=$(echo "SELECT count(*) > 0 FROM pg_ls_waldir() WHERE substr(name, 9) = :'from'" | ask --set=from="$from") || return 0
    [ "$has" = t ] || return 1
    take_slot || echo "no replication slot on $PRIMARY_HOST yet" >&2
}

# Completes an interrupted rename.
if [ ! -e "$PGDATA" ] && [ -e "$PGDATA.old" ]; then mv "$PGDATA.old" "$PGDATA"; fi
rm -rf "$PGDATA.old"

if [ -s "$PGDATA/PG_VERSION" ] && [ ! -f "$PGDATA/standby.signal" ]; then
    echo "$PGDATA is of a server that was promoted, and follows no primary any more: it is left as it is. To make a standby" \
        "of it, delete this pod's PersistentVolumeClaim and the pod." >&2
    exit 73
fi
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    begin
elif await_server 60 --dbname="$primary" && theirs=$(echo 'SELECT system_identifier FROM pg_control_system()' | ask); then
    if [ "$theirs" != "$(control 'Database system identifier')" ]; then
        # A restore has replaced the one that this is a copy of.
        former=$(echo "SELECT pg_read_file('former', 0, 65536, true)" | ask) || former=
        if echo "$former" | grep -qxF "$(control 'Database system identifier')"; then
            echo "the database was replaced by a restored one: this standby starts over from a new base backup" >&2
            begin
        fi
    fi
    if [ "$theirs" != "$(control 'Database system identifier')" ]; then
        echo "the primary is another server than the one that $PGDATA is a copy of: the copy is left as it is. To make a standby" \
            "of that one, delete this pod's PersistentVolumeClaim and the pod." >&2
        exit 74
    fi
    if [ -e "$new" ] || ! can_follow; then
        echo "the primary has not kept what this standby has missed: it starts over from a new base backup" >&2
        begin
    fi
fi

# A standby needs at least the values that the primary had when it wrote the WAL that is replayed next, and exits with less. So after
# a setting was lowered, the standby would never replay that change. It uses the lower value from its next start on.
while read -r setting named; do
    had=$(control "$named setting")
    has=$(postgres -C "$setting" "$@" </dev/null)
    [ -z "$had" ] || [ "$has" -ge "$had" ] || set -- "$@" -c "$setting=$had"
done <<'SETTINGS'
max_connections max_connections
max_worker_processes max_worker_processes
max_wal_senders max_wal_senders
max_prepared_transactions max_prepared_xacts
max_locks_per_transaction max_locks_per_xact
SETTINGS

# The server's own connections must not inherit these settings.
unset PGOPTIONS PGCLIENTENCODING PGCONNECT_TIMEOUT
exec postgres "$@" -c "hba_file=$HBA_FILE" -c "listen_addresses=*" -c "primary_slot_name=$slot" \
    -c "primary_conninfo=$primary passfile=$PGPASSFILE application_name=$HOSTNAME"
