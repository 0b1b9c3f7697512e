#!/bin/sh
# Runs after each start of the primary: makes the role by which standbys connect, or gives it the password of its Secret.
# Environment: POSTGRES_USER, REPLICATION_PASSWORD_FILE.
set -eu
# The password reaches psql by a file, not by its arguments, and no log if a statement fails. The server may be on its way
# up, or restart in between while it is made.
until psql --no-psqlrc --quiet --username="$POSTGRES_USER" --dbname=postgres --set=ON_ERROR_STOP=1 >/dev/null <<'SQL'
\set password `cat "$REPLICATION_PASSWORD_FILE"`
SET log_statement = 'none';
SET log_min_error_statement = 'panic';
SELECT 'CREATE ROLE replicator' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'replicator') \gexec
ALTER ROLE replicator WITH LOGIN REPLICATION PASSWORD :'password';
SQL
do
    sleep 1
done
