# Included by every script that connects as a superuser. A user who owns a database, or may create objects in one, can change what
# names and operators mean there, and the settings of a session with ALTER DATABASE or ALTER ROLE ... SET. The settings here keep a
# superuser's session free of that.
PGOPTIONS="-c search_path=pg_catalog -c role=none -c local_preload_libraries= -c default_transaction_read_only=off"
PGOPTIONS="$PGOPTIONS -c statement_timeout=0 -c lock_timeout=0 -c idle_in_transaction_session_timeout=0 -c array_nulls=on"
case $(postgres --version) in
    *') 14'* | *') 15'* | *') 16'*) ;;
    *) PGOPTIONS="$PGOPTIONS -c transaction_timeout=0" ;;
esac
export PGOPTIONS PGCLIENTENCODING=UTF8
