#!/bin/sh
# Dumps the database into a file of its own, and keeps the newest dumps. The schedule, a request and a deletion may each have
# one at work on the same volume at the same time.
# Environment: DUMPS (a directory), KEEP, HOSTNAME, and libpq's PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE.
set -eu
umask 077
# The first process of a container ignores what it does not ask for.
trap 'exit 143' TERM INT

# What was left half done: whoever is still at it has it locked.
for left in "$DUMPS"/*.partial; do
    [ ! -e "$left" ] || flock -n "$left" rm -f "$left" || echo "another dump is at work on $left"
done

# Two may begin within a second, but not in one pod.
file="$DUMPS/$PGDATABASE-$(date -u +%Y%m%dT%H%M%SZ)-${HOSTNAME##*-}.dump"
exec 9>"$file.partial"
flock -n 9
# A signal is heard while the shell waits, not while it runs something.
pg_dump --format=custom --no-password --file="$file.partial" &
wait $!
# A dump that cannot be read back is none.
pg_restore --list "$file.partial" >/dev/null
sync
mv "$file.partial" "$file"
echo "dumped $PGDATABASE into $file"

# By name is by time. Only after a dump has succeeded: a server that is down costs no old dump.
ls "$DUMPS" | grep "^$PGDATABASE-[0-9]\{8\}T[0-9]\{6\}Z[-a-z0-9]*\.dump$" | sort -r | tail -n "+$((KEEP + 1))" |
    while read -r old; do
        rm -f "$DUMPS/$old"
        echo "removed $old: $KEEP are kept"
    done
