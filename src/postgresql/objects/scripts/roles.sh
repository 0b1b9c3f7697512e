#!/bin/sh
# Runs after each start of the primary: sets the password of the role for standbys and dumps to the one in its Secret. It always ends,
# since the container does not count as started before; a failure shows in the standbys and dumps that need the role.
# Environment: POSTGRES_USER, REPLICATION_PASSWORD_FILE.
set -u
. "${0%/*}/session.sh"
# The start may take long after a crash, and never ends on a standby that answers no queries.
await_server 60
# A server in recovery is read-only; its role and password come with the data.
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
# psql reads the password from a file, not from its arguments, and no log contains it if a statement fails. A database that an earlier
# version of the operator created has no superuser at first except its own user.
for user in replicator "$POSTGRES_USER" postgres; do
    if statements | psql --no-psqlrc --quiet --username="$user" --dbname=postgres --set=ON_ERROR_STOP=1 >/dev/null; then
        exit 0
    fi
done
echo "the password of role replicator could not be set: the primary may refuse standbys and dumps" >&2
