#!/bin/sh
# Dumps the whole server, roles and all databases, into a new directory, and removes older dumps. A scheduled dump, a requested dump
# and the last dump before a deletion may run on the same volume at the same time.
#
# A dump has globals.sql, a file for each database, named by its oid, which MANIFEST maps to the database's name, SIZES and SHA256SUMS.
# It gets its name only once all of it is written to disk and was read back.
# Environment: DUMPS (a directory), KEEP, HOSTNAME, POSTGRES_DB (the database that must be in the dump), REPORT (the file of the pod's
# termination message: name, bytes and tables of each complete dump, newest first), PATIENCE (seconds), and libpq's PGHOST, PGPORT,
# PGUSER, PGPASSWORD.
set -eu
umask 077
scripts=${0%/*}
. "$scripts/session.sh"
. "$scripts/names.sh"
export PGDATABASE=postgres

# Removes unfinished dumps. A dump that is still running holds a lock on its directory.
for left in "$DUMPS"/*.partial; do
    [ ! -e "$left" ] || flock -n "$left" rm -rf "$left" || echo "another dump is at work on $left"
done

# Two dumps may begin within the same second, but not in the same pod.
name=$(date -u +%Y%m%dT%H%M%SZ)-${HOSTNAME##*-}
newest=$(names | head -n 1)
# The order by name must be the order by time, since newer dumps replace older ones, even if a node's clock is or was wrong.
if [ -n "$newest" ] && [ "$(printf '%s\n' "$newest" "$name" | LC_ALL=C sort | tail -n 1)" = "$newest" ]; then
    after=$(echo "$newest" | sed 's/^\(....\)\(..\)\(..\)T\(..\)\(..\)\(..\)Z.*/\1-\2-\3 \4:\5:\6/')
    echo "there is a dump $newest, and by this node's clock it is not later than that: the new dump is named as if it had begun one second after it"
    name=$(date -u -d "$after UTC + 1 second" +%Y%m%dT%H%M%SZ)-${HOSTNAME##*-}
fi
echo "$name" | is_name >/dev/null || { echo "a dump cannot be named $name: look at the clock of the node and at the names on the volume" >&2; exit 1; }
dump=$DUMPS/$name
new=$dump.partial
mkdir "$new"
exec 9<"$new"
flock -n 9
# A full volume has no room for an unfinished dump.
trap 'rm -rf "$new"' EXIT
# The first process of a container ignores signals without a trap, and the shell runs a trap during `wait`, not while it runs a program.
trap 'kill $! 2>/dev/null; exit 143' TERM INT
run() {
    "$@" &
    wait $!
}
ask() { psql --no-psqlrc --no-password --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 "$@"; }

# A Job of an earlier version of the operator has no PATIENCE.
PATIENCE=${PATIENCE:-60}
await_server "$PATIENCE" || echo "$PGHOST does not accept connections after $PATIENCE seconds" >&2
system=$(ask --command='SELECT system_identifier FROM pg_control_system()')
# The servers whose database this one has replaced.
former=$(ask --command="SELECT pg_read_file('former', 0, 65536, true)")
run pg_dumpall --globals-only --no-password --file="$new/globals.sql"
# Checks the closing comment, since pg_dumpall does not report all write errors.
tail -n 5 "$new/globals.sql" | grep -q '^-- PostgreSQL database cluster dump complete'

echo "system $system" >"$new/MANIFEST"
echo "version $(ask --command='SHOW server_version')" >>"$new/MANIFEST"
tables=0
# Without databases that an interrupted DROP DATABASE has left invalid, and without template0, which every server has. The owner of a
# database can make it a template that accepts no connections.
dumped="datconnlimit <> -2 AND (datallowconn OR NOT datistemplate)"
ask --set=own="$POSTGRES_DB" >"$new/databases" <<SQL
SELECT oid FROM pg_database WHERE $dumped OR datconnlimit <> -2 AND datname = :'own' ORDER BY oid
SQL
own=$(ask --set=own="$POSTGRES_DB" <<'SQL'
SELECT oid FROM pg_database WHERE datname = :'own'
SQL
)
[ -n "$own" ] && grep -qx "$own" "$new/databases" || {
    echo "there is no database $POSTGRES_DB, which every dump of this server must contain: a user of the server has renamed or dropped it" >&2
    exit 1
}
ask --set=own="$POSTGRES_DB" <<SQL
SELECT 'database ' || datname || ' is a template that takes no connections, or is half dropped: it is not in the dump' FROM pg_database
WHERE NOT ($dumped) AND datname NOT IN ('template0', :'own') ORDER BY datname
SQL
while read -r oid; do
    PGDATABASE=postgres
    name=$(ask --command="SELECT datname FROM pg_database WHERE oid = $oid")
    encoding=$(ask --command="SELECT pg_encoding_to_char(encoding) FROM pg_database WHERE oid = $oid")
    PGDATABASE=$name
    # Twice as fast as the default of 6, and text takes a tenth more space: the time saved pays for reading the dump back.
    run env "PGCLIENTENCODING=$encoding" pg_dump --format=custom --compress=3 --create --no-password --file="$new/$oid.dump"
    # Reads the whole file: an incomplete file can also have a complete table of contents.
    run pg_restore --file=/dev/null "$new/$oid.dump"
    tables=$((tables + $(ask --file="$scripts/tables.sql")))
    echo "database $oid $name" >>"$new/MANIFEST"
done <"$new/databases"
rm "$new/databases"
# Non-empty tables.
echo "tables $tables" >>"$new/MANIFEST"
cd "$new"
sizes=$(for file in *; do echo "$(wc -c <"$file") $file"; done)
echo "$sizes" >SIZES
sums=$(sha256sum -- *)
echo "$sums" >SHA256SUMS
sync -f .
sha256sum --check --quiet SHA256SUMS
cd "$DUMPS"
mv "$new" "$dump"
sync -f .
trap - EXIT
echo "dumped server $system into $dump: $tables tables are not empty"

# Whether a dump is complete, as far as file sizes show it.
whole() {
    [ -s "$1/SHA256SUMS" ] || return 1
    while read -r size file; do
        [ "$(wc -c <"$1/$file")" = "$size" ] || return 1
    done <"$1/SIZES"
}

# The order by name is the order by time. A dump is removed only if enough newer dumps of the same server, or of one whose database it
# has replaced, replace it. A damaged dump, or one of another server, does not count, and a dump without data does not replace one with data.
all=0
full=0
for old in $(names); do
    printf 'system %s\n' $system $former | grep -qxF -f - "$old/MANIFEST" 2>/dev/null || continue
    if ! whole "$old"; then
        echo "$old is damaged, and is kept for inspection"
        continue
    fi
    all=$((all + 1))
    rank=$all
    if ! grep -qx 'tables 0' "$old/MANIFEST"; then
        full=$((full + 1))
        rank=$full
    fi
    # A dump that began later may have ended before this one.
    if [ "$rank" -gt "$KEEP" ] && [ "$DUMPS/$old" != "$dump" ]; then
        # A partly deleted directory must not have the name of a dump.
        mv "$old" "$old.partial"
        rm -rf "$old.partial"
        echo "removed $old: $KEEP are kept"
    fi
done

# As much as fits into a termination message.
for name in $(names | head -n 50); do
    whole "$name" || continue
    bytes=$(($(cut -d ' ' -f 1 "$name/SIZES" | tr '\n' '+')0))
    echo "$name $bytes $(sed -n 's/^tables //p' "$name/MANIFEST")"
done >"${REPORT:-/dev/null}"
