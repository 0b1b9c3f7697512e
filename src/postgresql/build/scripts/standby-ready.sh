#!/bin/sh
# Whether this standby can be read from: it gets what the primary writes, and is not far behind with replaying it.
# Environment: LAG, in bytes.
set -eu
. "${0%/*}/session.sh"
# Where the primary has sent nothing since this one connected, there was nothing to be sent.
ready=$(psql --no-psqlrc --quiet --tuples-only --no-align --username=replicator --dbname=postgres --set=ON_ERROR_STOP=1 \
    --set=lag="$LAG" <<'SQL'
SELECT status = 'streaming' AND coalesce(pg_wal_lsn_diff(latest_end_lsn, pg_last_wal_replay_lsn()), 0) <= :lag
FROM pg_stat_wal_receiver
SQL
)
[ "$ready" = t ] || { echo "it does not follow the primary, or is more than $LAG bytes behind"; exit 1; }
