#!/bin/sh
# Runs after each start of the primary: gives the role by which standbys follow and dumps are taken the password of its Secret.
# It ends in any case, since the container does not count as started before; what failed shows in who needs the role.
# Environment: POSTGRES_USER, REPLICATION_PASSWORD_FILE.
set -u
. "${0%/*}/session.sh"
# Its start may take long, after a crash; a standby that answers no query never gets further.
for _ in $(seq 600); do
    if pg_isready --quiet; then break; fi
    sleep 0.5
done
# Where the server only reads, nothing can be written, and what is there came with the data.
statements() {
    cat <<'SQL'
\set password `cat "$REPLICATION_PASSWORD_FILE"`
SET default_transaction_read_only = off;
SET log_statement = 'none';
SET log_min_error_statement = 'panic';
SELECT pg_is_in_recovery() AS standby \gset
\if :standby
\q
\endif
SELECT 'CREATE ROLE replicator' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'replicator') \gexec
ALTER ROLE replicator WITH LOGIN SUPERUSER REPLICATION PASSWORD :'password';
SQL
}
# The password reaches psql by a file, not by its arguments, and no log if a statement fails. Databases of an earlier version have
# no superuser but their own user at first.
for user in replicator "$POSTGRES_USER" postgres; do
    if statements | psql --no-psqlrc --quiet --username="$user" --dbname=postgres --set=ON_ERROR_STOP=1 >/dev/null; then
        exit 0
    fi
done
echo "the role replicator has not got its password: standbys and dumps may be refused" >&2
