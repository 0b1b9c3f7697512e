//! Settings by users: whatever they are and in whatever order servers get them, primary and standby serve, or say why
//! not.

use super::*;

const FEW: &str = "-c max_connections=20";
const MANY: &str = "-c max_connections=40";

/// The standby's current setting.
fn has(standby: &Standby<'_>) -> String {
    standby.says("SHOW max_connections").unwrap()
}

/// Waits until the standby can be read from, and has the latest write.
fn follows(primary: &Server<'_>, standby: &Standby<'_>) {
    standby.until_ready("the standby is ready");
    primary.sql("orders", "INSERT INTO t SELECT coalesce(max(n), 0) + 1 FROM t");
    let newest = primary.sql("orders", "SELECT max(n) FROM t");
    blocking_until("it replicates", || standby.says("SELECT max(n) FROM t").as_ref() == Ok(&newest));
}

#[test]
fn max_connections_is_raised_and_lowered_in_any_order() {
    let node = node();
    with_database(&node, "data", 0);
    node.volume("copy").unwrap();
    let mut primary = Server::primary(&node, "data", "pg_hba.conf", MANY);
    primary.sql("orders", "CREATE TABLE t AS SELECT 0 AS n");
    let mut standby = Standby::of(&primary);
    let restart_standby = |standby: &mut Standby<'_>, settings: &'static str| {
        if standby.pod.is_some() {
            standby.stop();
        }
        standby.settings = settings;
        standby.start();
        standby.until_ready("it is ready");
    };
    let restart_primary = |primary: &mut Server<'_>, settings: &str| {
        primary.stop();
        primary.start("pg_hba.conf", settings);
    };
    restart_standby(&mut standby, MANY);
    follows(&primary, &standby);

    // Lowered on the standby first: a plain PostgreSQL would stop, and could not continue until it is restarted.
    restart_standby(&mut standby, FEW);
    assert_eq!(has(&standby), "40");
    follows(&primary, &standby);
    restart_primary(&mut primary, FEW);
    follows(&primary, &standby);
    restart_standby(&mut standby, FEW);
    assert_eq!(has(&standby), "20", "it gets the requested value as soon as possible");

    // Raised on the primary first: the standby replays nothing more until it is restarted.
    restart_primary(&mut primary, MANY);
    primary.sql("orders", "INSERT INTO t VALUES (1000)");
    blocking_until("it waits for a restart", || {
        standby.says("SELECT pg_get_wal_replay_pause_state()").as_deref() == Ok("paused")
    });
    restart_standby(&mut standby, MANY);
    follows(&primary, &standby);
    assert_eq!(has(&standby), "40");

    // Lowered on the primary first; and raised on the standby first.
    restart_primary(&mut primary, FEW);
    follows(&primary, &standby);
    restart_standby(&mut standby, FEW);
    follows(&primary, &standby);
    restart_standby(&mut standby, MANY);
    restart_primary(&mut primary, MANY);
    follows(&primary, &standby);

    // Both at once, while the standby has not seen the change.
    standby.stop();
    restart_primary(&mut primary, FEW);
    restart_standby(&mut standby, FEW);
    follows(&primary, &standby);
    assert!(!standby.log().contains("starts over"), "{}", standby.log());
    standby.stop();
    primary.stop();
}

#[test]
fn a_setting_says_what_it_says_and_opens_nothing() {
    let node = node();
    with_database(&node, "data", 0);
    let value = r#"%m 'a' "b" $(id) `id` \ ; -c fsync=off "#;
    let port = free_port().unwrap();
    let start = |settings: &str| {
        let script = format!(
            "exec sh $SCRIPTS/primary.sh -c port={port} -c unix_socket_directories=$HOME -c \"log_line_prefix=$VALUE\" {settings}"
        );
        let mut command = node.command(&script);
        command.env("VALUE", value).env("PGDATA", node.path("data/data"));
        command.env("HBA_FILE", node.path("scripts/pg_hba.conf"));
        command
    };
    // The operator's own settings come last, and take precedence.
    let pod = node.start(start("-c hba_file=/nowhere -c listen_addresses= -c wal_keep_size=0"), "data.log").unwrap();
    let says = |statement: &str| within(&node, port, "orders", statement);
    blocking_until("it answers", || says("SELECT").is_ok());
    assert_eq!(says("SELECT current_setting('log_line_prefix')").unwrap(), value);
    let settings = "SELECT current_setting('fsync') || ' ' || current_setting('wal_keep_size')";
    assert_eq!(says(settings).unwrap(), "on 0");
    assert_eq!(query("127.0.0.1", port, ("shop", PASSWORD), "orders", "SELECT 1").unwrap(), "1");
    pod.stop().unwrap();

    // The error is at the end of the log, which becomes the termination message.
    node.volume("copy").unwrap();
    let mut primary = Server::primary(&node, "data", "pg_hba.conf", "");
    let mut standby = Standby::of(&primary);
    standby.start();
    standby.until_ready("it is ready");
    standby.stop();
    standby.settings = "-c max_connections=lots";
    let of_standby = fails(standby.serve());
    primary.stop();
    let of_primary = fails(start("-c max_connections=lots"));
    for (code, words) in [of_standby, of_primary] {
        let wrong = r#"FATAL:  invalid value for parameter "max_connections": "lots""#;
        assert!(code == Some(1) && words.trim_end().lines().last().unwrap().contains(wrong), "{words}");
    }
    // After a correction it works as before.
    standby.settings = "";
    primary.start("pg_hba.conf", "");
    standby.start();
    standby.until_ready("it is ready again");
    standby.stop();
    primary.stop();
}
