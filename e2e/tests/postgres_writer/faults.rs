//! Faults of the operator, the database, and the connection between them.

use super::*;

#[tokio::test]
async fn without_the_database_nothing_is_lost_and_nothing_stays_behind() {
    let mut scene = Scene::with("writer-down", Lab::unattended().await, Server::own().await).await.served().await;
    for name in ["ada", "bob"] {
        scene.write(name, ada(36)).await;
    }
    scene.postgres.disturbed().stop();
    scene.apply("ada", ada(37)).await.unwrap();
    scene.apply("eve", ada(1)).await.unwrap();
    scene.delete("bob").await;
    for name in ["ada", "eve", "bob"] {
        let sentence = scene.not_ready(name, "DatabaseUnavailable").await;
        assert!(sentence.contains(&format!("127.0.0.1:{}", scene.postgres.port())), "{sentence}");
    }
    scene.postgres.disturbed().resume().unwrap();
    scene.sql = scene.postgres.connect(&scene.database).await.unwrap();
    scene.ready("ada").await;
    scene.gone("bob").await;
    scene.ready("eve").await;
    assert_eq!(scene.rows().await, [scene.ada(37), scene.row("eve", 1)]);
}

#[tokio::test]
async fn a_lock_holds_up_and_a_broken_connection_is_replaced() {
    let scene = Scene::new("writer-slow").await;
    for name in ["ada", "bob"] {
        scene.write(name, ada(36)).await;
    }
    let bob = scene.row("bob", 36);
    scene.run("BEGIN; LOCK TABLE people").await;
    scene.apply("ada", ada(37)).await.unwrap();
    scene.not_ready_with("ada", "DatabaseBusy", "statement timeout").await;
    let told = "cannot compare the rows with the PostgresWriters";
    scene.until(told, async || scene.log().contains(told)).await;
    scene.run("COMMIT").await;
    scene.ready("ada").await;
    assert_eq!(scene.rows().await, [scene.ada(37), bob.clone()]);

    for age in 38..41 {
        let end = format!("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS}");
        // An operator that has just lost its lease has none.
        scene.until("its connections are ended", async || !scene.sql.query(&end, &[]).await.unwrap().is_empty()).await;
        scene.write("ada", ada(age)).await;
        assert_eq!(scene.rows().await, [scene.ada(age), bob.clone()]);
    }
}

#[tokio::test]
async fn what_happens_while_a_row_is_written_is_taken_into_account() {
    let mut scene = Scene::new("writer-moment").await;
    // Its object is deleted: no row is left.
    scene.held_up("ada").await;
    scene.delete("ada").await;
    scene.run("COMMIT").await;
    scene.gone("ada").await;
    assert_eq!((scene.rows().await, scene.ledger().await), (vec![], vec![]));

    // Another user's row of the same id comes first: it is left alone.
    scene.run("BEGIN; INSERT INTO people VALUES ('writer-moment/ada', 'Eva', 1, 'UK')").await;
    scene.apply("ada", ada(36)).await.unwrap();
    scene.waits_for_lock("INSERT").await;
    scene.run("COMMIT").await;
    scene.not_ready("ada", "RowNotOurs").await;
    assert_eq!(scene.rows().await, [(scene.id("ada"), "Eva".into(), 1, "UK".into())]);
    scene.remove("ada").await;
    scene.run("DELETE FROM people").await;

    // The operator is killed, so that the transaction is rolled back, and the spec changes, or the object is deleted.
    scene.held_up("bob").await;
    scene.kill().await;
    scene.run("COMMIT").await;
    scene.apply("bob", ada(37)).await.unwrap();
    scene.start(&[]).await;
    scene.ready("bob").await;
    assert_eq!(scene.rows().await, [scene.row("bob", 37)]);
    scene.held_up("eve").await;
    scene.kill().await;
    scene.run("COMMIT").await;
    scene.delete("eve").await;
    scene.start(&[]).await;
    scene.gone("eve").await;
    assert_eq!(scene.rows().await, [scene.row("bob", 37)]);
}

#[tokio::test]
async fn many_objects_are_as_many_rows_wherever_the_operator_is_killed() {
    const OBJECTS: usize = 120;
    let mut scene = Scene::bare("writer-chaos").await;
    scene.run(PEOPLE).await;
    scene.run("INSERT INTO people VALUES ('zoe', 'Zoe', 3, 'FR')").await;
    let name = |number: usize| format!("p{number:03}");
    for (round, numbers) in [0..OBJECTS, OBJECTS / 2..OBJECTS, 0..OBJECTS / 3].into_iter().enumerate() {
        let before = scene.statements("COMMIT");
        let chosen = numbers.clone().map(|number| {
            let (scene, name) = (&scene, name(number));
            async move {
                match round {
                    0 => _ = scene.apply(&name, ada(1)).await.unwrap(),
                    1 => _ = scene.apply(&name, ada(2)).await.unwrap(),
                    _ => scene.delete(&name).await,
                }
            }
        });
        join_all(chosen).await;
        // At any point: after a few rows, and after many.
        for rows in [rand::random_range(1..20), rand::random_range(20..numbers.len() - 10)] {
            scene.start(&[]).await;
            scene.until("the operator is working", async || scene.statements("COMMIT") >= before + rows).await;
            scene.kill().await;
        }
    }
    scene.start(&[]).await;
    let expected: Vec<Row> = (OBJECTS / 3..OBJECTS)
        .map(|number| scene.row(&name(number), if number < OBJECTS / 2 { 1 } else { 2 }))
        .chain([("zoe".into(), "Zoe".into(), 3, "FR".into())])
        .collect();
    scene.until_rows(&expected).await;
    for number in 0..OBJECTS {
        match number {
            gone if gone < OBJECTS / 3 => scene.gone(&name(gone)).await,
            there => _ = scene.ready(&name(there)).await,
        }
    }
    assert_eq!(scene.rows().await, expected);
    let objects = scene.tenant.api::<PostgresWriter>().list(&ListParams::default()).await.unwrap();
    let owners: Vec<_> = objects.iter().map(|object| (scene.id(&object.name_any()), object.uid().unwrap())).collect();
    let entries: Vec<_> = scene.ledger().await.into_iter().map(|(id, _, uid)| (id, uid)).collect();
    assert_eq!(entries, owners);
}

#[tokio::test]
async fn a_leader_that_was_deposed_meanwhile_writes_no_row() {
    let mut scene = Scene::new("writer-deposed").await;
    scene.write("bob", ada(1)).await;
    // It has started, and waits for a client that locks the same object.
    let cluster: String = scene.sql.query_one("SELECT cluster FROM clientapp_operator_rows", &[]).await.unwrap().get(0);
    let lock = format!("hashtextextended('clientapp_operator_rows {cluster} {}', 0)", scene.id("ada"));
    scene.run(&format!("BEGIN; SELECT pg_advisory_xact_lock({lock})")).await;
    scene.apply("ada", ada(36)).await.unwrap();
    scene.waits_for_lock("SELECT pg_advisory_xact_lock").await;
    let deposed = scene.operator.take().unwrap();
    deposed.signal(Signal::SIGSTOP);
    scene.free_lease().await;
    // Before there is another leader, which would write it.
    scene.force("ada").await;
    scene.start(&[]).await;
    deposed.signal(Signal::SIGCONT);
    // A busy machine may have made it lose the lease before.
    let times = |word: &str| deposed.log().matches(word).count();
    until("the lease is lost", async || times("the lease is lost") >= times("\"leading\"")).await;
    scene.run("COMMIT").await;
    let log = deposed.log();
    assert!(tokio::task::spawn_blocking(|| deposed.stop()).await.unwrap().unwrap());
    scene.stop().await;
    assert_eq!(scene.rows().await, [scene.row("bob", 1)], "{log}");
}

#[tokio::test]
async fn a_password_a_right_or_a_writable_database_that_is_wanting_is_named() {
    let mut scene = Scene::bare("writer-refused").await;
    scene.run(PEOPLE).await;
    scene.start(&[("PSQL_PASSWORD", "hunter2")]).await;
    let sentence = scene.fail("ada", ada(36), "CredentialsRefused").await;
    assert!(sentence.contains("PSQL_PASSWORD"), "{sentence}");
    // The password itself appears nowhere.
    let object = scene.tenant.kubectl(&["get", "postgreswriter", "ada", "-o", "yaml"]).unwrap();
    let events = format!("{:?}", scene.tenant.events("ada").await);
    for text in [&object, &events, &scene.log()] {
        assert!(!text.contains("hunter2"), "{text}");
    }

    scene.run("CREATE TABLE clientapp_operator_rows (cluster text, id text, relation text, uid text, PRIMARY KEY (cluster, id)); \
             CREATE ROLE reader LOGIN PASSWORD 'r'; GRANT SELECT ON people, clientapp_operator_rows TO reader").await;
    scene.start(&[("PSQL_USER", "reader"), ("PSQL_PASSWORD", "r")]).await;
    let sentence = scene.not_ready("ada", "AccessDenied").await;
    assert!(sentence.contains("grant"), "{sentence}");

    scene.run("ALTER DATABASE writer_refused SET default_transaction_read_only = on").await;
    scene.start(&[]).await;
    let sentence = scene.not_ready("ada", "ReadOnly").await;
    assert!(sentence.contains("read-only") && sentence.contains("PSQL_HOST"), "{sentence}");
    scene.start(&[("PSQL_DBNAME", "nowhere")]).await;
    scene.not_ready("ada", "DatabaseMissing").await;

    scene.run("SET default_transaction_read_only = off; ALTER DATABASE writer_refused RESET ALL").await;
    scene.start(&[]).await;
    scene.ready("ada").await;
    assert_eq!(scene.rows().await, [scene.ada(36)]);
}

#[tokio::test]
async fn settings_that_cannot_work_end_the_operator_with_a_sentence() {
    let scene = Scene::bare("writer-settings").await;
    for (variable, value, sentence) in [
        ("PSQL_PORT", "0", "PSQL_PORT=0: a port from 1 to 65535 is expected"),
        ("PSQL_PORT", "70000", "PSQL_PORT=70000: a port"),
        ("PSQL_PORT", "x", "PSQL_PORT=x: a port"),
        ("PSQL_POOL_SIZE", "0", "PSQL_POOL_SIZE=0: a number of connections from 1 to 100 is expected"),
        ("PSQL_POOL_SIZE", "101", "PSQL_POOL_SIZE=101: a number"),
        ("PSQL_RESYNC", "-1", "PSQL_RESYNC=-1: seconds up to 86400 are expected, or 0 for never"),
        ("PSQL_RESYNC", "86401", "PSQL_RESYNC=86401: seconds"),
        ("PSQL_TABLES", "people,", "PSQL_TABLES=people,: tables with commas between them are expected"),
        ("PSQL_TABLES", "people;", "PSQL_TABLES=people;: tables with commas"),
        ("PSQL_SSLMODE", "on", "PSQL_SSLMODE=on: disable, prefer, require, verify-ca or"),
        ("PSQL_SSLMODE", "verify-ca", "PSQL_SSLMODE=verify-… is set, but PSQL_SSLROOTCERT is not"),
        ("PSQL_SSLMODE", "verify-full", "PSQL_SSLMODE=verify-… is set, but PSQL_SSLROOTCERT is not"),
        ("PSQL_SSLROOTCERT", "/does/not/exist", "PSQL_SSLROOTCERT /does/not/exist: "),
        ("PSQL_HOST", "", "PSQL_DBNAME is set, but PSQL_HOST is not: PostgresWriters need PSQL_HOST, PSQL_DBNAME, "),
        ("PSQL_DBNAME", "", "PSQL_HOST is set, but PSQL_DBNAME is not"),
        ("PSQL_USER", "", "PSQL_DBNAME is set, but PSQL_USER is not"),
        ("PSQL_PASSWORD", "", "PSQL_DBNAME is set, but PSQL_PASSWORD is not"),
        ("PSQL_TABLES", "", "PSQL_DBNAME is set, but PSQL_TABLES is not"),
    ] {
        let options = scene.options(&[(variable, value)]);
        let log = tokio::task::spawn_blocking(move || {
            let mut operator = Operator::start(&options).unwrap();
            assert!(!operator.wait().unwrap());
            operator.log()
        });
        let log = log.await.unwrap();
        assert!(log.contains(sentence) && !log.contains(PASSWORD), "{log}");
    }
}

#[tokio::test]
async fn without_settings_it_is_told_and_without_the_kind_there_is_nothing_of_it() {
    let (lab, _turn) = Lab::to_change().await;
    let mut scene = Scene::with("writer-off", lab, Server::shared().await).await;
    scene.run(PEOPLE).await;
    scene.start_with(scene.bare.clone()).await;
    let sentence = scene.fail("ada", ada(36), "DatabaseNotConfigured").await;
    assert!(sentence.contains("PSQL_HOST"), "{sentence}");
    assert!(scene.log().contains("no PSQL_ variables are set"), "{}", scene.log());
    // It has no row, so nothing holds it up.
    scene.remove("ada").await;
    assert_eq!(scene.rows().await, []);

    // Nor does the log complain that an operator without a database has no rights on the kind.
    let kubectl = |arguments: &[&str]| manifests::kubectl(&lab.plane, &lab.tools, arguments).unwrap();
    kubectl(&["delete", "clusterrole", "clientapp-operator-postgres-writer"]);
    let mut ask = vec!["auth", "can-i", "watch", "postgreswriters.apps.bnerd-operator.local", "--as"];
    let user = manifests::user();
    ask.push(&user);
    let refused = async || manifests::kubectl(&lab.plane, &lab.tools, &ask).is_err();
    scene.until("the right is revoked", refused).await;
    scene.start_with(scene.bare.clone()).await;
    scene.operator.as_mut().unwrap().wait_for_log("PostgresWriters are not watched").unwrap();
    let role = manifests::directory().join("role-postgres-writer.yaml");
    kubectl(&["apply", "-f", role.to_str().unwrap()]);
    scene.until("the right is granted again", async || !refused().await).await;

    scene.start(&[]).await;
    scene.write("ada", ada(36)).await;
    // An object with a row waits for the database, and says so.
    scene.stop().await;
    scene.delete("ada").await;
    scene.start_with(scene.bare.clone()).await;
    scene.not_ready("ada", "DatabaseNotConfigured").await;

    // The kind is removed together with its objects, which have rows, and installed again.
    scene.start(&[]).await;
    scene.gone("ada").await;
    scene.write("ada", ada(36)).await;
    kubectl(&["delete", "crd", "postgreswriters.apps.bnerd-operator.local"]);
    scene.until_rows(&[]).await;
    let crds = manifests::directory().with_file_name("crds");
    kubectl(&["apply", "-k", crds.to_str().unwrap()]);
    scene.until("the kind is back", async || scene.apply("bob", ada(36)).await.ok()).await;
    scene.ready("bob").await;
    scene.operator.as_ref().unwrap().signal(Signal::SIGTERM);
    assert!(scene.operator.as_mut().unwrap().wait().unwrap());
}

#[tokio::test]
async fn connections_are_encrypted_as_sslmode_says() {
    let mut scene = Scene::with("writer-tls", Lab::unattended().await, Server::own().await).await;
    scene.run(PEOPLE).await;
    let (root, other) = (authority("authority"), authority("another"));
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["localhost".to_owned()]).unwrap().signed_by(&key, &root).unwrap();
    let give = |name: &str, content: &str| scene.postgres.give(name, content).unwrap().display().to_string();
    let (certificate, key) = (give("server.crt", &certificate.pem()), give("server.key", &key.serialize_pem()));
    let (root, other) = (give("root.crt", &root.pem()), give("other.crt", &other.pem()));
    for setting in
        [format!("ssl_cert_file = '{certificate}'"), format!("ssl_key_file = '{key}'"), "ssl = on".to_owned()]
    {
        scene.run(&format!("ALTER SYSTEM SET {setting}")).await;
    }
    let rules = scene.postgres.data().join("pg_hba.conf");
    let before = std::fs::read_to_string(&rules).unwrap();
    std::fs::write(&rules, format!("hostnossl writer_tls all all reject\n{before}")).unwrap();
    scene.run("SELECT pg_reload_conf()").await;

    let mut age = 0;
    for (host, mode, root, refusal) in [
        ("127.0.0.1", "disable", None, Some("CredentialsRefused")),
        ("127.0.0.1", "prefer", None, None),
        ("127.0.0.1", "require", None, None),
        ("127.0.0.1", "require", Some(&other), Some("DatabaseUnavailable")),
        ("127.0.0.1", "verify-ca", Some(&root), None),
        ("127.0.0.1", "verify-ca", Some(&other), Some("DatabaseUnavailable")),
        ("127.0.0.1", "verify-full", Some(&root), Some("DatabaseUnavailable")),
        ("localhost", "verify-full", Some(&root), None),
    ] {
        let mut variables = vec![("PSQL_HOST", host), ("PSQL_SSLMODE", mode)];
        variables.extend(root.map(|root| ("PSQL_SSLROOTCERT", root.as_str())));
        scene.start(&variables).await;
        age += 1;
        scene.apply("ada", ada(age)).await.unwrap();
        match refusal {
            Some(reason) => _ = scene.not_ready("ada", reason).await,
            None => {
                scene.ready("ada").await;
                let plain =
                    format!("SELECT 1 FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE {OURS} AND NOT ssl");
                assert!(scene.sql.query(&plain, &[]).await.unwrap().is_empty(), "{mode}");
            }
        }
    }
}

fn authority(name: &str) -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}
