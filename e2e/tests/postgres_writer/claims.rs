//! Many objects at once: their claims are staked together before their finalizers follow.

use clientapp_operator::crd::{ROW_FINALIZER, label};
use k8s_openapi::api::core::v1::ConfigMap;

use super::*;

/// More than claim their rows one by one.
const CROWD: usize = 40;

/// A transaction that lets rows be read, and none be written. It ends with it.
struct Hold(tokio_postgres::Client);

impl Scene {
    /// With a table of people, and no operator yet.
    async fn idle(name: &str) -> Scene {
        let scene = Scene::bare(name).await;
        scene.run(PEOPLE).await;
        scene
    }

    /// A crowd of objects that all have claimed their rows, none of which is written before the hold ends.
    async fn crowd(&mut self) -> Hold {
        let api = self.tenant.api::<PostgresWriter>();
        let create = |name: String| {
            let object = PostgresWriter::new(&name, serde_json::from_value(ada(1)).unwrap());
            let api = api.clone();
            async move { api.create(&PostParams::default(), &object).await.map(|_| ()) }
        };
        futures::future::try_join_all(names().into_iter().map(create)).await.unwrap();

        // They all want to look at once.
        let hold = self.turn.postgres.connect(&self.database).await.unwrap();
        self.run("BEGIN; LOCK TABLE people").await;
        self.start(&[]).await;
        self.waits_for_lock("SELECT (name").await;
        // Behind those that wait to look is who will not let them write.
        let (held, freed) = tokio::join!(hold.batch_execute("BEGIN; LOCK TABLE people IN SHARE MODE"), async {
            self.until_locks("NOT granted AND mode = 'ShareLock'").await;
            self.run("COMMIT").await;
        });
        held.unwrap();
        let () = freed;

        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let (staked, sealed) = (self.staked().await, self.sealed().await);
            if staked.iter().filter(|name| !sealed.contains(name)).count() + sealed.len() == CROWD {
                assert!(!staked.is_empty(), "all were claimed one by one{}", self.log());
                return Hold(hold);
            }
            assert!(tokio::time::Instant::now() < deadline, "{staked:?} and {sealed:?} are not all{}", self.log());
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    fn claims(&self) -> Api<ConfigMap> {
        Api::namespaced(self.tenant.client.clone(), e2e::manifests::NAMESPACE)
    }

    /// Who has a claim in a ConfigMap.
    async fn staked(&self) -> Vec<String> {
        let maps = self.claims().list(&ListParams::default().labels(label::CLAIMS)).await.unwrap();
        let texts = maps.into_iter().flat_map(|map| map.data.unwrap_or_default().into_values());
        let prefix = format!("people {}/", self.tenant.namespace);
        texts.map(|text| text.strip_prefix(&prefix).expect("a claim of this scene").to_owned()).collect()
    }

    /// Who has the finalizer.
    async fn sealed(&self) -> Vec<String> {
        let objects = self.tenant.api::<PostgresWriter>().list(&ListParams::default()).await.unwrap();
        let sealed = |object: &&PostgresWriter| object.finalizers().iter().any(|name| name == ROW_FINALIZER);
        objects.iter().filter(sealed).map(PostgresWriter::name_any).collect()
    }

    async fn until_nothing_is_staked(&self) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let ours = ListParams::default().labels(label::CLAIMS);
        while !self.claims().list(&ours).await.unwrap().items.is_empty() {
            assert!(tokio::time::Instant::now() < deadline, "there are still claims{}", self.log());
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    fn row(&self, name: &str, age: i32) -> Row {
        (self.id(name), "Ada".into(), age, "UK".into())
    }

    /// Kills the operator while claims are staked, and returns whose have no finalizer.
    async fn kill(&mut self) -> Vec<String> {
        self.operator.take().unwrap().kill().unwrap();
        let (staked, sealed) = (self.staked().await, self.sealed().await);
        let bare: Vec<_> = names().into_iter().filter(|name| !sealed.contains(name)).collect();
        assert!(bare.len() > 3, "{bare:?}");
        assert!(bare.iter().all(|name| staked.contains(name)), "{bare:?} are not all staked: {staked:?}");
        bare
    }
}

impl Hold {
    async fn end(self) {
        self.0.batch_execute("COMMIT").await.unwrap();
    }
}

/// The operator's rights, without those to ConfigMaps that only the chart and other kinds need.
struct Rights(&'static Lab);

impl Rights {
    fn without_configmaps(lab: &'static Lab) -> Rights {
        for part in ["", "-api", "-chart", "-postgresql"] {
            let role = &format!("clientapp-operator{part}");
            let role = e2e::manifests::kubectl(&lab.plane, &lab.tools, &["get", "clusterrole", role, "-o", "json"]);
            let mut role: Value = serde_json::from_str(&role.unwrap()).unwrap();
            let rules = role["rules"].as_array_mut().unwrap().iter_mut();
            for resource in rules.flat_map(|rule| rule["resources"].as_array_mut()).flatten() {
                // A right to every resource is one to this, too.
                if resource == "configmaps" || resource == "*" {
                    *resource = json!("none");
                }
            }
            let file = lab.plane.directory().join("role.json");
            std::fs::write(&file, role.to_string()).unwrap();
            e2e::manifests::kubectl(&lab.plane, &lab.tools, &["replace", "-f", file.to_str().unwrap()]).unwrap();
        }
        Rights(lab)
    }
}

/// Whatever came of the test: the others need them.
impl Drop for Rights {
    fn drop(&mut self) {
        let parts =
            ["role-operator", "role-chart", "role-postgresql", "role-postgres-writer", "components/api/role-api"];
        for part in parts {
            let file = e2e::manifests::directory().join(format!("{part}.yaml"));
            let apply = ["apply", "-f", file.to_str().unwrap()];
            e2e::manifests::kubectl(&self.0.plane, &self.0.tools, &apply).unwrap();
        }
    }
}

fn names() -> Vec<String> {
    (0..CROWD).map(|number| format!("p{number:02}")).collect()
}

#[tokio::test]
async fn a_crowd_stakes_its_claims_together_and_all_get_their_finalizers() {
    let mut scene = Scene::idle("writer-crowd").await;
    // The role of PostgresWriters is enough by itself.
    let rights = Rights::without_configmaps(scene.turn.lab);
    let hold = scene.crowd().await;
    // One of them goes before it has its finalizer, and takes its row with it.
    let sealed = scene.sealed().await;
    let staked = scene.staked().await;
    let fleeting = staked.iter().find(|name| !sealed.contains(name)).expect("one without a finalizer");
    scene.delete(fleeting).await;
    scene.gone(fleeting).await;
    hold.end().await;

    let others: Vec<_> = names().into_iter().filter(|name| name != fleeting).collect();
    for name in &others {
        scene.ready(name).await;
    }
    scene.until_rows(&others.iter().map(|name| scene.row(name, 1)).collect::<Vec<_>>()).await;
    scene.until_nothing_is_staked().await;
    assert_eq!(scene.sealed().await, others);

    for name in &others {
        scene.delete(name).await;
    }
    for name in &others {
        scene.gone(name).await;
    }
    assert_eq!(scene.rows().await, []);
    drop(rights);
}

#[tokio::test]
async fn an_operator_that_is_killed_while_claims_are_staked_leaves_no_row_of_an_object_that_is_gone() {
    let mut scene = Scene::idle("writer-crowd-killed").await;
    let hold = scene.crowd().await;
    let bare = scene.kill().await;
    // Some go while nobody is there to see it, and one of them comes again as another.
    let (gone, heir) = (&bare[1..], &bare[1]);
    hold.end().await;
    for name in gone {
        scene.delete(name).await;
        scene.gone(name).await;
        // As far as the operator may have come.
        let row = format!("INSERT INTO people VALUES ('{}', 'Ada', 1, 'UK') ON CONFLICT DO NOTHING", scene.id(name));
        scene.run(&row).await;
    }
    scene.apply(heir, ada(2)).await.unwrap();
    scene.run("INSERT INTO people VALUES ('zoe', 'Zoe', 3, 'FR')").await;

    scene.start(&[]).await;
    let mut rows: Vec<_> = names().iter().filter(|name| !gone.contains(name)).map(|name| scene.row(name, 1)).collect();
    rows.extend([scene.row(heir, 2), ("zoe".into(), "Zoe".into(), 3, "FR".into())]);
    rows.sort();
    scene.until_rows(&rows).await;
    scene.ready(heir).await;
    scene.until_nothing_is_staked().await;

    // What was swept is anybody's from now on.
    let row = format!("INSERT INTO people VALUES ('{}', 'Eve', 9, 'NO')", scene.id(&gone[1]));
    scene.run(&row).await;
    scene.start(&[]).await;
    scene.apply("last", ada(1)).await.unwrap();
    scene.ready("last").await;
    rows.extend([(scene.id(&gone[1]), "Eve".into(), 9, "NO".into()), scene.row("last", 1)]);
    rows.sort();
    assert_eq!(scene.rows().await, rows);
}

#[tokio::test]
async fn what_is_staked_gets_its_finalizer_though_the_database_is_gone() {
    let mut scene = Scene::idle("writer-crowd-down").await;
    let hold = scene.crowd().await;
    let sealed = scene.sealed().await;
    let gone = names().into_iter().find(|name| !sealed.contains(name)).expect("one without a finalizer");
    let others: Vec<_> = names().into_iter().filter(|name| *name != gone).collect();
    scene.delete(&gone).await;
    scene.gone(&gone).await;
    scene.turn.postgres.stop();
    drop(hold);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while scene.sealed().await != others {
        assert!(tokio::time::Instant::now() < deadline, "not all have their finalizer{}", scene.log());
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    for name in &others {
        scene.not_ready(name, "DatabaseUnavailable").await;
    }
    // The row of the one that is gone may be there; that is not asked all the time.
    let asked = scene.log().matches("cannot delete the row of an object that is gone").count();
    assert!((1..20).contains(&asked), "{asked} times{}", scene.log());

    scene.turn.postgres.resume().unwrap();
    scene.sql = scene.turn.postgres.connect(&scene.database).await.unwrap();
    scene.until_rows(&others.iter().map(|name| scene.row(name, 1)).collect::<Vec<_>>()).await;
    scene.until_nothing_is_staked().await;
}

#[tokio::test]
async fn without_the_right_to_stake_all_are_claimed_one_by_one() {
    let mut scene = Scene::idle("writer-crowd-refused").await;
    let lab = scene.turn.lab;
    let kubectl = |arguments: &[&str]| e2e::manifests::kubectl(&lab.plane, &lab.tools, arguments).unwrap();
    let rights = Rights::without_configmaps(lab);
    let place = ["-n", e2e::manifests::NAMESPACE];
    for (verbs, sentence) in [("get", "apply the Role"), ("list", "rows are claimed one by one")] {
        kubectl(&[&["delete", "--ignore-not-found", "role", "clientapp-operator-claims"], &place[..]].concat());
        let role = ["create", "role", "clientapp-operator-claims", "--resource=configmaps", "--verb", verbs];
        kubectl(&[&role[..], &place[..]].concat());
        let hold = scene.turn.postgres.connect(&scene.database).await.unwrap();
        hold.batch_execute("BEGIN; LOCK TABLE people").await.unwrap();
        let before = scene.operator.take();
        tokio::task::spawn_blocking(move || drop(before)).await.unwrap();
        for name in names() {
            scene.apply(&format!("{verbs}-{name}"), ada(1)).await.unwrap();
        }
        scene.start(&[]).await;
        scene.waits_for_lock("SELECT (name").await;
        Hold(hold).end().await;
        for name in names() {
            scene.ready(&format!("{verbs}-{name}")).await;
        }
        assert!(scene.log().contains(sentence), "{}", scene.log());
    }
    drop(rights);
}
