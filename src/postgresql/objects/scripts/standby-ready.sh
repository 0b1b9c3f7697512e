#!/bin/sh
# Whether clients may read from this standby: it receives the primary's WAL, and its replay is not far behind.
# Environment: LAG, in bytes.
set -eu
. "${0%/*}/session.sh"
# If the primary has sent nothing since this standby connected, there was nothing to send.
ready=$(psql --no-psqlrc --quiet --tuples-only --no-align --username=replicator --dbname=postgres --set=ON_ERROR_STOP=1 \
    --set=lag="$LAG" <<'SQL'
SELECT status = 'streaming' AND coalesce(pg_wal_lsn_diff(latest_end_lsn, pg_last_wal_replay_lsn()), 0) <= :lag
FROM pg_stat_wal_receiver
SQL
)
[ "$ready" = t ] || { echo "it does not follow the primary, or is more than $LAG bytes behind"; exit 1; }
