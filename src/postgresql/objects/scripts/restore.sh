# Included by initialize.sh: restores a dump into the new database, before any client or server of the Postgresql can use it. The
# dumps are only read.
# Environment: RESTORE (latest, or the name of a dump), RESTORE_ID (tells this restore from any other), DUMPS (the directory with
# dumps), and the environment of initialize.sh.

refuse_dump() {
    echo "$1" | tee "$REPORT" >&2
    exit 75
}

no_space() {
    refuse_dump "the volume has not enough space for a second database beside the present one: raise spec.storageSize, or delete directories former.* and restored.* of earlier restores from it"
}

# Names of the complete dumps, newest first.
dumps() {
    for dump in $(names); do
        [ -s "$DUMPS/$dump/MANIFEST" ] && [ -s "$DUMPS/$dump/SHA256SUMS" ] && echo "$dump"
    done
}

of_manifest() { sed -n "s/^$1 //p" "$dump/MANIFEST"; }

# Checks the dump before anything is created for it.
check_dump() {
    found=$(dumps)
    [ -n "$found" ] || refuse_dump "there is no dump on the volume"
    if [ "$RESTORE" = latest ]; then
        # The dump of an empty server does not replace one with data.
        RESTORE=$(for name in $found; do
            grep -qx 'tables 0' "$DUMPS/$name/MANIFEST" || { echo "$name"; break; }
        done)
        [ -n "$RESTORE" ] || RESTORE=$(echo "$found" | head -n 1)
    elif ! echo "$found" | grep -qxF -- "$RESTORE"; then
        refuse_dump "there is no complete dump $RESTORE on the volume, but $(echo "$found" | head -n 20 | tr '\n' ' ')"
    fi
    dump=$DUMPS/$RESTORE
    (cd "$dump" && sha256sum --check --quiet --strict SHA256SUMS >&2) ||
        refuse_dump "dump $RESTORE is damaged: name another, of $(echo "$found" | head -n 20 | tr '\n' ' ')"
    theirs=$(of_manifest version | sed 's/[^0-9].*//')
    [ "$theirs" -le "$(major)" ] ||
        refuse_dump "dump $RESTORE is of PostgreSQL $theirs, which $(major) cannot read: set spec.version to $theirs or later"
    of_manifest database | sed 's/^[0-9]* //' | grep -qxF -- "$POSTGRES_DB" ||
        refuse_dump "there is no database $POSTGRES_DB in dump $RESTORE, but $(of_manifest database | sed 's/^[0-9]* //' | tr '\n' ' '): name one of them in spec.name"
    echo "restoring dump $RESTORE"
}

# A restore runs code that users of the dumped server have put into a database: a constraint when a row is inserted, or a constant
# when a table is created. This code must not run as a superuser. So a role does the restore that may be any of the dump's users,
# except superusers and roles that could make themselves superusers. The rest is left to a superuser and runs no code of the dump.
restorer=clientapp_restore
# All users who own something are members of this role during the restore: each had the right to create its objects when it created
# them, but may have lost it since.
owners=clientapp_restore_owners
as_superuser() { psql --no-psqlrc --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 --set=VERBOSITY=terse "$@"; }

# A connection string with the name of a database, which libpq cannot mistake for anything else.
database() { printf "dbname='%s'" "$(printf %s "$1" | sed "s/[\\\\']/\\\\&/g")"; }

take_over() {
    as_superuser --dbname=postgres --set=restorer=$restorer --set=owners=$owners >"$run/powerful" <<'SQL'
CREATE ROLE :restorer LOGIN;
CREATE ROLE :owners;
CREATE TEMPORARY VIEW powerful AS
    SELECT oid, rolname FROM pg_roles AS own WHERE rolname !~ '^pg_' AND EXISTS (
        SELECT FROM pg_roles AS other WHERE pg_has_role(own.oid, other.oid, 'MEMBER') AND (rolsuper OR rolcreaterole
            OR rolname IN ('pg_execute_server_program', 'pg_read_server_files', 'pg_write_server_files')));
SELECT format('GRANT %I TO %I', :'owners', rolname), format('GRANT %I TO %I', rolname, :'restorer') FROM pg_roles
WHERE rolname !~ '^pg_' AND rolname NOT IN (:'restorer', :'owners') AND oid NOT IN (SELECT oid FROM pg_temp.powerful) \gexec
SELECT rolname FROM pg_temp.powerful;
SQL
}

# Patterns for lines of a dump's table of contents: entries that run no code of a user, and data.
by_superuser="^[0-9]+; [0-9]+ [0-9]+ (DATABASE|SCHEMA|EXTENSION|ACL|DEFAULT ACL|COMMENT - (DATABASE|SCHEMA|EXTENSION)) "
data="^[0-9]+; [0-9]+ [0-9]+ (TABLE DATA|SEQUENCE SET) "
of_powerful() { sed 's/^/ /' "$run/powerful" | awk 'NR == FNR { role[$0]; next }
    { for (name in role) if (substr($0, length($0) - length(name) + 1) == name) { print; next } }' - "$1"; }

# Restores the entries of a list. pg_restore must not be called with an empty list.
restore_list() {
    list=$1
    shift
    [ ! -s "$list" ] || pg_restore --exit-on-error --no-password --use-list="$list" "$@"
}

restore_database() {
    pg_restore --list --create "$2" | grep -v '^;' >"$run/list" || true
    grep -Ev "$by_superuser" "$run/list" >"$run/code" || true
    of_powerful "$run/code" >"$run/theirs"
    if grep -Ev "$data" "$run/theirs" >/dev/null; then
        # No ordinary user has created these.
        echo "database $1 has objects of a superuser: all of it is restored as a superuser, including the code in it"
        case $1 in
            # These databases exist in every server.
            postgres | template1) set -- "$1" "$2" --dbname="$1" ;;
            *) set -- "$1" "$2" --dbname=postgres --create ;;
        esac
        shift
        file=$1
        shift
        pg_restore --exit-on-error --no-password --jobs="$JOBS" "$@" "$file"
        return
    fi
    into=$(database "$1")
    of() { grep -E "^[0-9]+; [0-9]+ [0-9]+ ($1) " "$run/$2" >"$run/part" || true; }
    case $1 in
        postgres | template1) ;;
        *)
            of 'DATABASE|DATABASE PROPERTIES|COMMENT - DATABASE|ACL - DATABASE' list
            restore_list "$run/part" --dbname=postgres --create "$2" || return
            ;;
    esac
    of 'SCHEMA|EXTENSION|COMMENT - SCHEMA|COMMENT - EXTENSION' list
    restore_list "$run/part" --dbname="$into" "$2" || return
    as_superuser --dbname="$into" --set=owners=$owners --set=name="$1" <<'SQL' || return
GRANT ALL ON DATABASE :"name" TO :owners;
SELECT format('GRANT ALL ON SCHEMA %I TO %I', nspname, :'owners') FROM pg_namespace
WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' \gexec
SELECT format('GRANT USAGE ON FOREIGN DATA WRAPPER %I TO %I', fdwname, :'owners') FROM pg_foreign_data_wrapper \gexec
SQL
    # The entries of superusers that are left here are the data of extensions' tables.
    grep -vxF -f "$run/theirs" "$run/code" >"$run/ours" || true
    grep -Ev '^[0-9]+; [0-9]+ [0-9]+ MATERIALIZED VIEW DATA ' "$run/ours" >"$run/part" || true
    restore_list "$run/part" --username=$restorer --jobs="$JOBS" --dbname="$into" "$2" || return
    restore_list "$run/theirs" --dbname="$into" "$2" || return
    of 'ACL|DEFAULT ACL' list
    restore_list "$run/part" --dbname="$into" "$2" || return
    # A materialized view is filled with what its owner may see, and no more.
    of 'MATERIALIZED VIEW DATA' ours
    restore_list "$run/part" --enable-row-security --username=$restorer --dbname="$into" "$2"
}

# Removes the roles of the restore.
hand_over() {
    while read -r oid name; do
        as_superuser --dbname="$(database "$name")" --set=restorer=$restorer --set=owners=$owners <<'SQL'
SELECT format('REASSIGN OWNED BY %I TO %I', :'restorer', pg_get_userbyid(datdba)) FROM pg_database
WHERE datname = current_database() \gexec
DROP OWNED BY :restorer, :owners;
SQL
    done <"$run/databases"
    as_superuser --dbname=postgres --command="DROP ROLE $restorer, $owners"
}

# Runs against the server that initialize.sh has started. It fails as a whole: on an error, everything it created is deleted.
restore_dump() {
    # The role postgres, which runs this, exists already. A failed statement is not printed: it may contain the hash of a password.
    sed '/^CREATE ROLE postgres;$/d' "$dump/globals.sql" |
        psql --no-psqlrc --quiet --set=ON_ERROR_STOP=1 --set=VERBOSITY=terse --dbname=postgres >/dev/null ||
        refuse_dump "the roles of dump $RESTORE cannot be restored"
    of_manifest database >"$run/databases"
    take_over
    while read -r oid name; do
        echo "restoring database $name"
        restore_database "$name" "$dump/$oid.dump" </dev/null ||
            refuse_dump "database $name of dump $RESTORE cannot be restored: the log says which statement fails"
    done <"$run/databases"
    owner=$(psql --no-psqlrc --quiet --tuples-only --no-align --dbname=postgres --set=name="$POSTGRES_DB" <<'SQL'
SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = :'name'
SQL
    )
    [ "$owner" = "$POSTGRES_USER" ] ||
        refuse_dump "database $POSTGRES_DB of dump $RESTORE belongs to the user $owner: set spec.defaultUser to that"
    # Query plans need statistics, which a dump of an older version does not have.
    vacuumdb --all --analyze-only --quiet --no-password --jobs="$JOBS"
    hand_over
    tables=0
    while read -r oid name; do
        filled=$(PGDATABASE=$name psql --no-psqlrc --quiet --tuples-only --no-align --set=ON_ERROR_STOP=1 \
            --file="$scripts/tables.sql" </dev/null)
        tables=$((tables + filled))
    done <"$run/databases"
    [ "$tables" -gt 0 ] || [ "$(of_manifest tables)" = 0 ] ||
        refuse_dump "dump $RESTORE was restored, but all tables are empty, while $(of_manifest tables) tables were not when the dump was taken"
    echo "$RESTORE_ID $RESTORE $tables" >"$new/restored"
}
