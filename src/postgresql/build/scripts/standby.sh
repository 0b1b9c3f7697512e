#!/bin/sh
# Runs a hot standby: it begins as a base backup of the primary, and follows it from then on.
# Environment: PGDATA, PRIMARY_HOST, PRIMARY_PORT, REPLICATION_PASSWORD_FILE, PGPASSFILE, HBA_FILE, HOSTNAME.
set -eu
umask 077
# The first process of a container ignores what it does not ask for.
trap 'exit 143' TERM INT

# libpq wants a file that nobody else can read, which a mounted Secret is not.
printf '*:*:*:replicator:%s\n' "$(cat "$REPLICATION_PASSWORD_FILE")" >"$PGPASSFILE"
export PGPASSFILE

if [ -s "$PGDATA/PG_VERSION" ] && [ ! -f "$PGDATA/standby.signal" ]; then
    echo "$PGDATA is of a server that was promoted, and follows no primary any more: it is left as it is. To make a standby" \
        "of it, delete this pod's PersistentVolumeClaim and the pod." >&2
    exit 1
fi

if [ ! -s "$PGDATA/PG_VERSION" ]; then
    # What is not complete is never in PGDATA, so that a backup that was cut off is not started from.
    until
        rm -rf "$PGDATA.new"
        pg_basebackup --host="$PRIMARY_HOST" --port="$PRIMARY_PORT" --username=replicator --no-password \
            --pgdata="$PGDATA.new" --wal-method=stream --checkpoint=fast
    do
        echo "no base backup of $PRIMARY_HOST yet; trying again" >&2
        sleep 2
    done
    touch "$PGDATA.new/standby.signal"
    mv "$PGDATA.new" "$PGDATA"
fi

exec postgres -c "hba_file=$HBA_FILE" \
    -c "primary_conninfo=host=$PRIMARY_HOST port=$PRIMARY_PORT user=replicator passfile=$PGPASSFILE application_name=$HOSTNAME" \
    "$@"
