#!/bin/sh
# Dumps the whole server, roles and each database, into a directory of its own, and takes older dumps away. The schedule, a
# request and a deletion may each have one at work on the same volume at the same time.
#
# A dump has globals.sql, a file for each database by its oid, which MANIFEST names, SIZES and SHA256SUMS. It has its name only when all
# of it is written to the disk and was read back.
# Environment: DUMPS (a directory), KEEP, HOSTNAME, REPORT (the file with the pod's last words: name, bytes and tables of each
# dump that is complete, the newest first), and libpq's PGHOST, PGPORT, PGUSER, PGPASSWORD.
set -eu
umask 077
scripts=${0%/*}
export PGDATABASE=postgres

# What was left half done: whoever is still at it has it locked.
for left in "$DUMPS"/*.partial; do
    [ ! -e "$left" ] || flock -n "$left" rm -rf "$left" || echo "another dump is at work on $left"
done

# Two may begin within a second, but not in one pod.
dump=$DUMPS/$(date -u +%Y%m%dT%H%M%SZ)-${HOSTNAME##*-}
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
# Not those that a DROP DATABASE has left half done, nor template0, which is in every server.
ask --command='SELECT oid FROM pg_database WHERE datconnlimit <> -2 AND (datallowconn OR NOT datistemplate) ORDER BY oid' \
    >"$new/databases"
while read -r oid; do
    PGDATABASE=postgres
    name=$(ask --command="SELECT datname FROM pg_database WHERE oid = $oid")
    PGDATABASE=$name
    run pg_dump --format=custom --create --no-password --file="$new/$oid.dump"
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
for old in $(ls -d ./*Z-* 2>/dev/null | sort -r); do
    case $old in *.partial) continue ;; esac
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
    if [ "$rank" -gt "$KEEP" ]; then
        # Half of it is no dump.
        mv "$old" "$old.partial"
        rm -rf "$old.partial"
        echo "removed $old: $KEEP are kept"
    fi
done

# As much as a pod can say.
for name in $(ls -d ./*Z-* 2>/dev/null | sort -r | head -n 50); do
    case $name in *.partial) continue ;; esac
    whole "$name" || continue
    bytes=$(($(cut -d ' ' -f 1 "$name/SIZES" | tr '\n' '+')0))
    echo "${name#./} $bytes $(sed -n 's/^tables //p' "$name/MANIFEST")"
done >"${REPORT:-/dev/null}"
