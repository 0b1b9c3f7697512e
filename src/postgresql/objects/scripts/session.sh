# Included by every script that connects as a superuser. A user who owns a database, or may create objects in one, can change what
# names and operators mean there, and the settings of a session with ALTER DATABASE or ALTER ROLE ... SET. The settings here keep a
# superuser's session free of that.
PGOPTIONS="-c search_path=pg_catalog -c role=none -c local_preload_libraries= -c default_transaction_read_only=off"
PGOPTIONS="$PGOPTIONS -c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0 -c array_nulls=on"
case $(postgres --version) in
    *') 14'* | *') 15'* | *') 16'*) ;;
    *) PGOPTIONS="$PGOPTIONS -c transaction_timeout=0" ;;
esac
# Where packets are dropped, a connection would otherwise take minutes to fail.
export PGOPTIONS PGCLIENTENCODING=UTF8 PGCONNECT_TIMEOUT=10

# Waits until the server accepts connections: up to $1 seconds for any answer, since the network of a new pod and the endpoint of a new
# server need a moment, then up to five minutes while a server answers that it is starting. Further arguments are those of pg_isready.
# It sends no password, so it does not need to know the server by its certificate.
await_server() {
    patience=$1
    shift
    answers='until PGSSLMODE=prefer pg_isready --quiet "$@"; [ $? -lt 2 ]; do sleep 0.5; done'
    accepts='until PGSSLMODE=prefer pg_isready --quiet "$@"; do sleep 0.5; done'
    # In the background, so that a trap runs meanwhile.
    timeout "$patience" sh -c "$answers" sh "$@" &
    wait $! || return
    timeout 300 sh -c "$accepts" sh "$@" &
    wait $!
}
