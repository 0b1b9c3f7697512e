#!/bin/sh
# Creates the database, once, empty or from a dump: roles, databases and all in a directory beside PGDATA, which is renamed to PGDATA
# when it is complete. An interrupted run starts over; an existing database is never touched.
# Environment: PGDATA, INITIALIZE (yes; otherwise the script only checks what is there), POSTGRES_USER, POSTGRES_DB, PASSWORD_FILE and
# REPLICATION_PASSWORD_FILE (without them, the script generates passwords that it does not reveal), REPORT (the file of the pod's
# termination message); for a restore, also the environment of restore.sh, and BESIDE if a server may run on the same volume: the
# directory of its database.
# Exit codes: 71 there is no database, and none may be created; 72 there is a database of another major version; 75 the dump cannot
# be restored.
set -eu
umask 077
# The first process of a container ignores signals without a trap.
trap 'exit 143' TERM INT
major() { postgres --version | sed 's/[^0-9]*\([0-9]*\).*/\1/'; }
scripts=${0%/*}
. "$scripts/session.sh"
RESTORE=${RESTORE:-}
REPORT=${REPORT:-/dev/null}
# Name of the dump, and the number of non-empty tables.
restored() { sed -n "s/^$RESTORE_ID //p" "$PGDATA/restored" 2>/dev/null; }
JOBS=${JOBS:-2}

# An unreachable node may still run an earlier pod on the same volume.
exec 9>"${PGDATA%/*}/initialize.lock"
# The pod of a request before may still be ending.
patience=0
[ -z "${BESIDE:-}" ] || patience=120
flock -w "$patience" 9 || { echo "another pod is at work on this volume" >&2; exit 1; }

if [ -s "$PGDATA/PG_VERSION" ]; then
    found=$(cat "$PGDATA/PG_VERSION")
    if [ "$found" != "$(major)" ]; then
        echo "the volume has a database of PostgreSQL $found, and this is $(major): it is left as it is" >&2
        exit 72
    fi
    # An earlier pod of this Job may have restored it.
    if [ -n "$RESTORE" ]; then
        if [ -z "$(restored)" ]; then
            echo "the volume has a database already: it is left as it is, and no dump is restored over it" | tee "$REPORT" >&2
            exit 75
        fi
        restored >"$REPORT"
    fi
    echo "the volume has a database of PostgreSQL $found already"
    exit 0
fi
if [ "$INITIALIZE" != yes ] || { [ -e "$PGDATA" ] && ! rmdir "$PGDATA" 2>/dev/null; }; then
    echo "there is no database in $PGDATA, and none is made, since this volume should have one already: the volume is left as it is" >&2
    exit 71
fi

if [ -n "$RESTORE" ]; then
    . "$scripts/names.sh"
    . "$scripts/restore.sh"
    check_dump
    # Everything is synced to disk at the end, before the directory gets its name.
    unsafe="-c fsync=off -c full_page_writes=off -c wal_level=minimal -c max_wal_senders=0"
fi

new=$PGDATA.new
volume=${PGDATA%/*}
# A server stops, and cannot start again, on a volume without space: a tenth stays free, whatever is restored beside its database.
has_space() {
    set -- $(df -Pk "$volume" | tail -n 1)
    [ "$(($4 * 10))" -gt "$(($3 + $4))" ]
}
if [ -n "${BESIDE:-}" ]; then
    # Left by a restore that was interrupted.
    rm -rf "$volume"/restored.*.new
    has_space || no_space
fi
run=$(mktemp -d)
if [ -z "${PASSWORD_FILE:-}" ]; then
    head -c 32 /dev/urandom | base64 >"$run/password"
    export PASSWORD_FILE="$run/password" REPLICATION_PASSWORD_FILE="$run/password"
fi
rm -rf "$new"
# Code point order does not depend on the version of a library.
if [ "$(major)" -ge 17 ]; then provider=--locale-provider=builtin; else provider=; fi
initdb --pgdata="$new" --username=postgres --encoding=UTF8 $provider --locale=C.UTF-8 --data-checksums \
    --auth-local=trust --auth-host=scram-sha-256 --no-instructions
# Only this script can connect to it.
postgres -D "$new" -c listen_addresses= -c unix_socket_directories="$run" ${unsafe:-} \
    -c log_statement=none -c log_min_error_statement=panic &
server=$!
trap 'kill -INT $server; wait $server; exit 143' TERM INT
export PGHOST="$run" PGUSER=postgres
until pg_isready --quiet; do
    kill -0 $server
    sleep 0.1
done
# In a subshell, so that the server is stopped however the restore ends.
if [ -n "$RESTORE" ]; then
    (restore_dump) &
    restoring=$!
    while [ -n "${BESIDE:-}" ] && kill -0 $restoring 2>/dev/null; do
        has_space || { full=yes; kill -QUIT $server; break; }
        sleep 0.2
    done
    wait $restoring || {
        failed=$?
        kill -INT $server 2>/dev/null || true
        wait $server || true
        rm -rf "$new"
        [ -z "${full:-}" ] || no_space
        exit "$failed"
    }
fi
# psql reads the passwords from files, not from its arguments, and no log contains them if a statement fails.
if ! psql --no-psqlrc --quiet --dbname=postgres --set=ON_ERROR_STOP=1 \
    --set=user="$POSTGRES_USER" --set=database="$POSTGRES_DB" >/dev/null <<'SQL'
\set password `cat "$PASSWORD_FILE"`
\set replication `cat "$REPLICATION_PASSWORD_FILE"`
SELECT format('CREATE ROLE %I', name) FROM (VALUES ('replicator'), (:'user')) AS wanted (name)
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec
ALTER ROLE replicator WITH LOGIN SUPERUSER REPLICATION PASSWORD :'replication';
ALTER ROLE :"user" WITH LOGIN PASSWORD :'password';
SELECT format('CREATE DATABASE %I', :'database')
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = :'database') \gexec
ALTER DATABASE :"database" OWNER TO :"user";
SQL
then
    kill -INT $server
    wait $server || true
    exit 1
fi
kill -INT $server
wait $server
# The directory gets its name last.
sync -f "$new"
mv "$new" "$PGDATA"
sync -f "${PGDATA%/*}"
rm -rf "$run"
echo "made database $POSTGRES_DB of user $POSTGRES_USER${RESTORE:+ from dump $RESTORE}"
[ -z "$RESTORE" ] || restored >"$REPORT"
