#!/bin/sh
# Dumps the whole server, roles and each database, into a directory of its own, and takes older dumps away. The schedule, a
# request and a deletion may each have one at work on the same volume at the same time.
#
# A dump has globals.sql, a file for each database by its oid, which MANIFEST names, SIZES and SHA256SUMS. It has its name only when all
# of it is written to the disk and was read back.
# Environment: DUMPS (a directory), KEEP, HOSTNAME, POSTGRES_DB (the database that has to be in it), REPORT (the file with the pod's last
# words: name, bytes and tables of each dump that is complete, the newest first), and libpq's PGHOST, PGPORT, PGUSER, PGPASSWORD.
set -eu
umask 077
scripts=${0%/*}
. "$scripts/session.sh"
. "$scripts/names.sh"
export PGDATABASE=postgres

# What was left half done: whoever is still at it has it locked.
for left in "$DUMPS"/*.partial; do
    [ ! -e "$left" ] || flock -n "$left" rm -rf "$left" || echo "another dump is at work on $left"
done

# Two may begin within a second, but not in one pod.
name=$(date -u +%Y%m%dT%H%M%SZ)-${HOSTNAME##*-}
newest=$(names | head -n 1)
# By name is by time, and what is newest stands for the others. Where a clock is wrong, or was, the order is right nevertheless.
if [ -n "$newest" ] && [ "$(printf '%s\n' "$newest" "$name" | LC_ALL=C sort | tail -n 1)" = "$newest" ]; then
    after=$(echo "$newest" | sed 's/^\(....\)\(..\)\(..\)T\(..\)\(..\)\(..\)Z.*/\1-\2-\3 \4:\5:\6/')
    echo "there is a dump $newest, and by this node's clock it is not later: this one is named as if it began a second after that"
    name=$(date -u -d "$after UTC + 1 second" +%Y%m%dT%H%M%SZ)-${HOSTNAME##*-}
fi
echo "$name" | is_name >/dev/null || { echo "a dump cannot be named $name: look at the clock of the node and at the names on the volume" >&2; exit 1; }
dump=$DUMPS/$name
new=$dump.partial
mkdir "$new"
exec 9<"$new"
flock -n 9
# A volume that is full has no room for half a dump.
trap 'rm -rf "$new"' EXIT
# The first process of a container ignores what it does not ask for, and hears a signal while it waits, not while it runs something.
trap 'kill $! 2>/dev/null; exit 143' TERM INT
run() {
    "$@" &
    wait $!
}
ask() { psql --no-psqlrc --no-password --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 "$@"; }

system=$(ask --command='SELECT system_identifier FROM pg_control_system()')
run pg_dumpall --globals-only --no-password --file="$new/globals.sql"
# Its last line but one; it says nothing of what it could not write.
tail -n 5 "$new/globals.sql" | grep -q '^-- PostgreSQL database cluster dump complete'

echo "system $system" >"$new/MANIFEST"
echo "version $(ask --command='SHOW server_version')" >>"$new/MANIFEST"
tables=0
# Not those that a DROP DATABASE has left half done, nor template0, which is in every server. The owner of a database can make it a
# template that takes no connections.
dumped="datconnlimit <> -2 AND (datallowconn OR NOT datistemplate)"
ask --set=own="$POSTGRES_DB" >"$new/databases" <<SQL
SELECT oid FROM pg_database WHERE $dumped OR datconnlimit <> -2 AND datname = :'own' ORDER BY oid
SQL
own=$(ask --set=own="$POSTGRES_DB" <<'SQL'
SELECT oid FROM pg_database WHERE datname = :'own'
SQL
)
[ -n "$own" ] && grep -qx "$own" "$new/databases" || {
    echo "there is no database $POSTGRES_DB, which a dump of this server has to have: a user of the server has renamed or dropped it" >&2
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
    # Twice as fast as the default of 6, for a tenth more of text: that is what reading it back takes.
    run env "PGCLIENTENCODING=$encoding" pg_dump --format=custom --compress=3 --create --no-password --file="$new/$oid.dump"
    # All of it: the list of its contents alone is in half a file, too.
    run pg_restore --file=/dev/null "$new/$oid.dump"
    tables=$((tables + $(ask --file="$scripts/tables.sql")))
    echo "database $oid $name" >>"$new/MANIFEST"
done <"$new/databases"
rm "$new/databases"
# Those with something in them.
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
echo "dumped server $system into $dump: $tables tables with something in them"

# Whether a dump is all there, as far as that costs nothing.
whole() {
    [ -s "$1/SHA256SUMS" ] || return 1
    while read -r size file; do
        [ "$(wc -c <"$1/$file")" = "$size" ] || return 1
    done <"$1/SIZES"
}

# By name is by time. A dump takes away only what newer ones of the same server stand for: what is damaged or of another server
# stands for nothing, and what is empty for nothing that has data.
all=0
full=0
for old in $(names); do
    grep -qx "system $system" "$old/MANIFEST" 2>/dev/null || continue
    if ! whole "$old"; then
        echo "$old is damaged, and left for you to look at"
        continue
    fi
    all=$((all + 1))
    rank=$all
    if ! grep -qx 'tables 0' "$old/MANIFEST"; then
        full=$((full + 1))
        rank=$full
    fi
    # Another that began later may have ended before this one.
    if [ "$rank" -gt "$KEEP" ] && [ "$DUMPS/$old" != "$dump" ]; then
        # Half of it is no dump.
        mv "$old" "$old.partial"
        rm -rf "$old.partial"
        echo "removed $old: $KEEP are kept"
    fi
done

# As much as a pod can say.
for name in $(names | head -n 50); do
    whole "$name" || continue
    bytes=$(($(cut -d ' ' -f 1 "$name/SIZES" | tr '\n' '+')0))
    echo "$name $bytes $(sed -n 's/^tables //p' "$name/MANIFEST")"
done >"${REPORT:-/dev/null}"
