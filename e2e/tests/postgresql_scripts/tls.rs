//! Encrypted connections: of clients, of standbys, and of the Jobs that dump.

use e2e::plane::certs::{Authority, Identity};

use super::*;

/// The files of an authority and of a certificate for `localhost`: the authority's, and the settings of a server.
fn certificate(node: &Node, name: &str) -> (PathBuf, String) {
    let authority = Authority::new(name).unwrap();
    let Identity { certificate, key } = authority.server("db", vec!["localhost".to_owned()]).unwrap();
    let file = |end: &str, content: &str| node.file(&format!("{name}.{end}"), content).unwrap();
    let root = file("ca.crt", &authority.pem());
    let (certificate, key) = (file("tls.crt", &certificate), file("tls.key", &key));
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let [certificate, key] = [certificate.display(), key.display()];
    (root, format!("-c ssl=on -c ssl_cert_file={certificate} -c ssl_key_file={key}"))
}

/// Returns whether the connection of a client with this `sslmode` is encrypted, or why there is none.
fn encrypted(server: &Server<'_>, mode: &str, root: &Path) -> Result<String, String> {
    let statement = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let (port, root) = (server.port, root.display());
    let connection = format!("host=localhost port={port} user=shop dbname=orders sslmode={mode} sslrootcert='{root}'");
    let script =
        "exec psql \"$CONNECTION\" --no-psqlrc --no-password --tuples-only --no-align --command=\"$STATEMENT\"";
    let mut command = server.node.command(script);
    let output = command.env("CONNECTION", connection).env("STATEMENT", statement).env("PGPASSWORD", PASSWORD).output();
    let output = output.unwrap();
    if output.status.success() {
        Ok(String::from_utf8(output.stdout).unwrap().trim().to_owned())
    } else {
        Err(said(&output))
    }
}

#[test]
fn clients_standbys_and_dumps_use_the_certificate() {
    let node = node();
    with_database(&node, "data", 0);
    for volume in ["copy", "dumps"] {
        node.volume(volume).unwrap();
    }
    let (root, tls) = certificate(&node, "right");
    let (wrong, _) = certificate(&node, "wrong");

    // Possible, and not required.
    let mut primary = Server::primary(&node, "data", "pg_hba.conf", &tls);
    assert!(primary.roles().status.success());
    for (mode, ssl) in [("disable", "f"), ("prefer", "t"), ("require", "t"), ("verify-full", "t")] {
        let root = if mode == "require" { Path::new("") } else { &root };
        assert_eq!(encrypted(&primary, mode, root).as_deref(), Ok(ssl), "{mode}");
    }
    let refused = encrypted(&primary, "verify-full", &wrong).unwrap_err();
    assert!(refused.contains("certificate verify failed"), "{refused}");

    primary.stop();
    primary.start("pg_hba-tls.conf", &tls);
    assert!(primary.roles().status.success());
    let refused = encrypted(&primary, "disable", &root).unwrap_err();
    assert!(refused.contains("no encryption"), "{refused}");
    assert_eq!(encrypted(&primary, "prefer", &root).as_deref(), Ok("t"));
    primary.sql("orders", "CREATE TABLE t AS SELECT 1 AS n");
    succeeds(primary.dump("dump-1"));

    let mut standby = Standby::of(&primary);
    standby.env = vec![
        ("PRIMARY_HOST", PathBuf::from("localhost")),
        ("PGSSLMODE", PathBuf::from("verify-full")),
        ("PGSSLROOTCERT", root),
    ];
    standby.settings = tls.leak();
    standby.start();
    standby.until_ready("it is ready");
    let replication = "SELECT ssl FROM pg_stat_replication JOIN pg_stat_ssl USING (pid) \
                       WHERE application_name = 'db-standby-0'";
    assert_eq!(primary.sql("orders", replication), "t");
    standby.stop();

    // A server that is not the primary gets no connection of a standby.
    standby.env[2].1 = wrong;
    standby.start();
    blocking_until("it does not trust the server", || standby.log().contains("certificate verify failed"));
    assert!(!standby.ready());
    // It may still be starting, and would not hear a request to stop.
    standby.pod.take().unwrap().kill().unwrap();
    primary.stop();
}
