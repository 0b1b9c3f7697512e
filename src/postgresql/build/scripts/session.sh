# Part of every script that connects as a superuser. A user who owns a database, or may create objects in one, decides by them what
# names and operators mean there, and by ALTER DATABASE or ALTER ROLE ... SET what a session is like. Nothing of that is for a
# superuser's session: what is set here takes its place.
PGOPTIONS="-c search_path=pg_catalog -c role=none -c local_preload_libraries= -c default_transaction_read_only=off"
PGOPTIONS="$PGOPTIONS -c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0 -c array_nulls=on"
case $(postgres --version) in
    *') 14'* | *') 15'* | *') 16'*) ;;
    *) PGOPTIONS="$PGOPTIONS -c transaction_timeout=0" ;;
esac
export PGOPTIONS PGCLIENTENCODING=UTF8
