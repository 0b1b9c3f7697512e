//! The owner of a row is recorded in the ledger alone, whatever an object says about itself.

use super::*;

impl Scene {
    /// Creates an object with a status that says that its row has been written already.
    async fn forge(&self, name: &str, spec: Value, status: &PostgresWriterStatus) {
        let object = json!({"metadata": {"name": name, "finalizers": [ROW_FINALIZER]}, "spec": spec});
        let api = self.tenant.api::<PostgresWriter>();
        api.create(&PostParams::default(), &serde_json::from_value(object).unwrap()).await.unwrap();
        let status = Patch::Merge(json!({"status": status}));
        api.patch_status(name, &PatchParams::default(), &status).await.unwrap();
    }
}

#[tokio::test]
async fn a_row_that_the_ledger_does_not_have_is_left_alone_whatever_the_object_brings_along() {
    let mut scene = Scene::new("writer-not-ours").await;
    let status = scene.write("ada", ada(36)).await;
    scene.remove("ada").await;

    // A row of another database user or cluster: with other values, and with the same.
    for age in [99, 36] {
        scene.run(&format!("INSERT INTO people VALUES ('writer-not-ours/ada', 'Ada', {age}, 'UK')")).await;
        scene.run("INSERT INTO clientapp_operator_rows VALUES ('another', 'writer-not-ours/ada', 'people', '')").await;
        for forged in [false, true] {
            if forged {
                scene.stop().await;
                scene.forge("ada", ada(36), &status).await;
                scene.start(&[]).await;
            } else {
                scene.apply("ada", ada(36)).await.unwrap();
            }
            let sentence = scene.not_ready("ada", "RowNotOurs").await;
            assert!(
                sentence.starts_with("row writer-not-ours/ada of table people is not this cluster's"),
                "{sentence}"
            );
            // The finalizer is there before the row would be.
            let object = scene.tenant.api::<PostgresWriter>().get("ada").await.unwrap();
            assert_eq!(object.finalizers(), [ROW_FINALIZER]);
            scene.remove("ada").await;
            assert_eq!(scene.rows().await, [scene.ada(age)]);
        }
        scene.run("DELETE FROM people; DELETE FROM clientapp_operator_rows").await;
    }

    // With only an entry left, the other cluster would restore its row over another's.
    scene.run("INSERT INTO clientapp_operator_rows VALUES ('another', 'writer-not-ours/ada', 'people', '')").await;
    scene.fail("ada", ada(36), "RowNotOurs").await;
    assert_eq!(scene.rows().await, []);

    // Free again: the object gets its row without being changed.
    scene.run("INSERT INTO people VALUES ('writer-not-ours/ada', 'Eva', 1, 'UK')").await;
    scene.run("DELETE FROM clientapp_operator_rows").await;
    scene.not_ready("ada", "RowNotOurs").await;
    scene.run("DELETE FROM people").await;
    scene.ready("ada").await;
    assert_eq!(scene.rows().await, [scene.ada(36)]);
}

#[tokio::test]
async fn a_row_moves_with_the_table_of_its_object_and_goes_wherever_it_is() {
    let mut scene = Scene::new("writer-moves").await;
    scene.run(&PEOPLE.replace("people", "others")).await;
    scene.run(&PEOPLE.replace("people", "writer_moves_people")).await;
    let others = async || {
        let rows = scene.sql.query("SELECT age FROM others ORDER BY id", &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect::<Vec<i32>>()
    };
    let at = |table: &str, age: i32| json!({"table": table, "name": "Ada", "age": age, "country": "UK"});
    scene.write("ada", at("people", 36)).await;
    scene.write("ada", at("others", 37)).await;
    assert_eq!((scene.rows().await, others().await), (vec![], vec![37]));
    assert_eq!(scene.ledger().await, [scene.entry("ada", "others").await]);

    // Not over another user's row, nor to a table that the cluster admin has not listed; the row stays in its table.
    scene.run("INSERT INTO people VALUES ('writer-moves/ada', 'Eva', 1, 'UK')").await;
    scene.fail("ada", at("people", 38), "RowNotOurs").await;
    let sentence = scene.fail("ada", at("secrets", 38), "TableNotAllowed").await;
    assert!(sentence.contains("people, others") && sentence.contains("writer_moves_people"), "{sentence}");
    assert_eq!(others().await, [37]);
    // From a dropped table to the namespace's own.
    scene.run("DROP TABLE others").await;
    scene.write("ada", at("writer_moves_people", 38)).await;

    // Deleted while its spec names another table, which does not have its row.
    scene.fail("ada", at("secrets", 39), "TableNotAllowed").await;
    scene.remove("ada").await;
    assert!(scene.sql.query("SELECT 1 FROM writer_moves_people", &[]).await.unwrap().is_empty());
    assert_eq!(scene.rows().await, [(scene.id("ada"), "Eva".into(), 1, "UK".into())]);

    // A table that is no longer listed is not written to, and its rows are deleted with their objects.
    scene.write("bob", at("people", 1)).await;
    scene.start(&[("PSQL_TABLES", "others")]).await;
    scene.run("UPDATE people SET age = 2").await;
    scene.fail("bob", at("people", 3), "TableNotAllowed").await;
    assert_eq!(scene.rows().await.iter().map(|row| row.2).collect::<Vec<_>>(), [2, 2]);
    scene.remove("bob").await;
    assert_eq!(scene.rows().await.len(), 1);
}

#[tokio::test]
async fn a_successor_inherits_the_row_and_a_row_without_an_object_is_told() {
    let mut scene = Scene::new("writer-heirs").await;
    for name in ["ada", "bob"] {
        scene.write(name, ada(36)).await;
    }
    scene.stop().await;
    scene.force("ada").await;
    scene.force("bob").await;
    scene.apply("ada", ada(37)).await.unwrap();
    scene.start(&[]).await;
    scene.ready("ada").await;
    assert_eq!(scene.rows().await, [scene.ada(37), scene.row("bob", 36)]);
    assert_eq!(scene.ledger().await[0], scene.entry("ada", "people").await);

    let told = "was deleted without its finalizer are kept";
    scene.until(told, async || scene.log().contains(told) && scene.log().contains("writer-heirs/bob")).await;
    // As the message says.
    scene.write("bob", ada(1)).await;
    scene.remove("bob").await;
    assert_eq!(scene.rows().await, [scene.ada(37)]);
    let log = scene.log();
    assert!(log.matches(told).count() <= log.matches("\"leading\"").count(), "each leader reports it once{log}");
}

#[tokio::test]
async fn an_object_that_does_not_decode_is_told_and_takes_its_row_with_it() {
    let (lab, _turn) = Lab::to_change().await;
    let scene = Scene::with("writer-undecodable", lab, Server::shared().await).await.served().await;
    for name in ["ada", "bob", "eve"] {
        scene.write(name, ada(36)).await;
    }
    let definitions: Api<CustomResourceDefinition> = Api::all(scene.tenant.client.clone());
    let strict = serde_json::to_value(PostgresWriter::crd()).unwrap();
    let mut loose = strict.clone();
    loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let define = async |definition: &Value| {
        let patch = Patch::Merge(json!({"spec": {"versions": definition["spec"]["versions"]}}));
        definitions.patch(PostgresWriter::crd_name(), &PatchParams::default(), &patch).await.unwrap();
    };
    define(&loose).await;
    let raw = ApiResource::erase::<PostgresWriter>(&());
    let raw = Api::<DynamicObject>::namespaced_with(scene.tenant.client.clone(), &scene.tenant.namespace, &raw);
    for (name, age, value) in [("ada", "36", json!("Ada")), ("eve", "37", json!(7))] {
        let turn = Patch::Merge(json!({"spec": {"age": age, "name": value}}));
        scene
            .until("the loose schema applies", async || raw.patch(name, &PatchParams::default(), &turn).await.ok())
            .await;
    }
    define(&strict).await;
    let refused = async || scene.apply("never", json!({"table": "people"})).await.is_err();
    scene.until("the strict schema applies", refused).await;
    for (name, age) in [("ada", "36"), ("eve", "37")] {
        let sentence =
            format!("the stored object does not decode: spec.age: invalid type: string \"{age}\", expected i32");
        scene.tenant.events_with(name, "InvalidSpec", &sentence).await;
    }
    // The others continue.
    scene.apply("bob", ada(37)).await.unwrap();
    for name in ["ada", "eve", "never"] {
        // It was created under the loose schema, or not at all.
        let _ = raw.delete(name, &DeleteParams::default()).await;
    }
    for name in ["ada", "eve"] {
        scene.until("it is gone", async || raw.get_opt(name).await.unwrap().is_none()).await;
    }
    scene.until_rows(&[scene.row("bob", 37)]).await;
    // The definition goes with another scene, and its objects with it.
    scene.remove("bob").await;
}

#[tokio::test]
async fn without_a_ledger_nothing_is_written_and_the_database_admin_is_told_how_to_make_it() {
    let mut scene = Scene::bare("writer-ledger").await;
    scene.run(PEOPLE).await;
    let poor = "CREATE ROLE poor LOGIN PASSWORD 'p'; GRANT SELECT, INSERT, UPDATE, DELETE ON people TO poor; \
                REVOKE CREATE ON SCHEMA public FROM public";
    scene.run(poor).await;
    scene.start(&[("PSQL_USER", "poor"), ("PSQL_PASSWORD", "p")]).await;
    let sentence = scene.fail("ada", ada(36), "LedgerMissing").await;
    assert_eq!(scene.rows().await, []);
    // Without a row it can be deleted.
    scene.fail("bob", ada(36), "LedgerMissing").await;
    scene.remove("bob").await;

    let (_, sql) = sentence.split_once("run: ").unwrap();
    scene.run(sql).await;
    scene.ready("ada").await;
    assert_eq!(scene.ledger().await, [scene.entry("ada", "people").await]);

    // A ledger that cannot be read is named.
    scene.run("REVOKE SELECT ON clientapp_operator_rows FROM poor").await;
    let sentence = scene.fail("ada", ada(35), "AccessDenied").await;
    assert!(
        sentence.starts_with("table clientapp_operator_rows, which records the owner of each row, in"),
        "{sentence}"
    );
    scene.run("GRANT SELECT ON clientapp_operator_rows TO poor").await;
    scene.write("ada", ada(36)).await;

    // Another table of its name is not mistaken for it.
    scene.run("ALTER TABLE clientapp_operator_rows RENAME uid TO other").await;
    scene.fail("ada", ada(37), "LedgerUnfit").await;
    scene.delete("ada").await;
    scene.not_ready("ada", "LedgerUnfit").await;
    assert_eq!(scene.rows().await, [scene.ada(36)]);
    scene.run("ALTER TABLE clientapp_operator_rows RENAME other TO uid").await;
    scene.gone("ada").await;
    assert_eq!((scene.rows().await, scene.ledger().await), (vec![], vec![]));
}
