#!/bin/sh
# Dumps the database into a file of its own, and keeps the newest dumps.
# Environment: DUMPS (a directory), KEEP, and libpq's PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE.
set -eu
umask 077

# What a run before this one has left half done.
rm -f "$DUMPS"/*.partial

file="$DUMPS/$PGDATABASE-$(date -u +%Y%m%dT%H%M%SZ).dump"
pg_dump --format=custom --no-password --file="$file.partial"
# A dump that cannot be read back is none.
pg_restore --list "$file.partial" >/dev/null
sync
mv "$file.partial" "$file"
echo "dumped $PGDATABASE into $file"

# By name is by time. Only after a dump has succeeded: a server that is down costs no old dump.
ls "$DUMPS" | grep "^$PGDATABASE-[0-9TZ]*\.dump$" | sort -r | tail -n "+$((KEEP + 1))" | while read -r old; do
    rm -f "$DUMPS/$old"
    echo "removed $old: $KEEP are kept"
done
