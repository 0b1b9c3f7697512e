# Part of initialize.sh: puts a dump into the database that is being made, before any client or server of the Postgresql sees it.
# The dumps are only read.
# Environment: RESTORE (latest, or the name of a dump), RESTORE_ID (tells this restore from any other), DUMPS (the directory with
# dumps), and that of initialize.sh.

refuse_dump() {
    echo "$1" | tee "$REPORT" >&2
    exit 75
}

# Names of the dumps that are complete, the newest first: by name is by time.
dumps() {
    for dump in $(ls -r "$DUMPS" 2>/dev/null); do
        case $dump in *.partial) continue ;; esac
        [ -s "$DUMPS/$dump/MANIFEST" ] && [ -s "$DUMPS/$dump/SHA256SUMS" ] && echo "$dump"
    done
}

of_manifest() { sed -n "s/^$1 //p" "$dump/MANIFEST"; }

# Looks at the dump before anything is made for it.
check_dump() {
    found=$(dumps)
    [ -n "$found" ] || refuse_dump "there is no dump on the volume"
    if [ "$RESTORE" = latest ]; then
        # One of a server that was empty stands for none with data.
        RESTORE=$(for name in $found; do
            grep -qx 'tables 0' "$DUMPS/$name/MANIFEST" || { echo "$name"; break; }
        done)
        [ -n "$RESTORE" ] || RESTORE=$(echo "$found" | head -n 1)
    elif ! echo "$found" | grep -qxF -- "$RESTORE"; then
        refuse_dump "there is no complete dump $RESTORE on the volume, but $(echo "$found" | head -n 20 | tr '\n' ' ')"
    fi
    dump=$DUMPS/$RESTORE
    (cd "$dump" && sha256sum --check --quiet --strict SHA256SUMS >&2) ||
        refuse_dump "dump $RESTORE is damaged: name another in spec.restore.from, of $(echo "$found" | head -n 20 | tr '\n' ' ')"
    theirs=$(of_manifest version | sed 's/[^0-9].*//')
    [ "$theirs" -le "$(major)" ] ||
        refuse_dump "dump $RESTORE is of PostgreSQL $theirs, which $(major) cannot read: set spec.version to $theirs or later"
    of_manifest database | sed 's/^[0-9]* //' | grep -qxF -- "$POSTGRES_DB" ||
        refuse_dump "there is no database $POSTGRES_DB in dump $RESTORE, but $(of_manifest database | sed 's/^[0-9]* //' | tr '\n' ' '): name one of them in spec.name"
    echo "restoring dump $RESTORE"
}

# Runs beside the server that initialize.sh has started, and fails as a whole: what was made is thrown away then.
restore_dump() {
    # Who runs this is there already. A statement that fails is not printed: it may have the hash of a password in it.
    sed '/^CREATE ROLE postgres;$/d' "$dump/globals.sql" |
        psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --set=VERBOSITY=terse --dbname=postgres >/dev/null ||
        refuse_dump "the roles of dump $RESTORE cannot be restored"
    of_manifest database >"$run/databases"
    while read -r oid name; do
        case $name in
            # They are in every server.
            postgres | template1) set -- --dbname="$name" ;;
            *) set -- --dbname=postgres --create ;;
        esac
        echo "restoring database $name"
        # The rest of the list is not pg_restore's to read.
        pg_restore --exit-on-error --no-password --jobs="$JOBS" "$@" "$dump/$oid.dump" </dev/null ||
            refuse_dump "database $name of dump $RESTORE cannot be restored: the log says which statement fails"
    done <"$run/databases"
    owner=$(psql --no-psqlrc --quiet --tuples-only --no-align --dbname=postgres --set=name="$POSTGRES_DB" <<'SQL'
SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = :'name'
SQL
    )
    [ "$owner" = "$POSTGRES_USER" ] ||
        refuse_dump "database $POSTGRES_DB of dump $RESTORE belongs to the user $owner: set spec.defaultUser to that"
    # Plans of queries are as good as before; a dump of an older version has no statistics.
    vacuumdb --all --analyze-only --quiet --no-password --jobs="$JOBS"
    tables=0
    while read -r oid name; do
        filled=$(PGDATABASE=$name psql --no-psqlrc --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 \
            --file="$scripts/tables.sql" </dev/null)
        tables=$((tables + filled))
    done <"$run/databases"
    [ "$tables" -gt 0 ] || [ "$(of_manifest tables)" = 0 ] ||
        refuse_dump "dump $RESTORE was restored, and nothing is in it, where $(of_manifest tables) tables had something in them"
    echo "$RESTORE_ID $RESTORE $tables" >"$new/restored"
}
