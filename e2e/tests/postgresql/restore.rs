//! Creating a Postgresql from a dump: the permitted volumes, and the messages during and after it; and drills.

use clientapp_crd::ClientAppBackup;

use super::*;

/// Makes the container of a Job's pod end with this termination message.
async fn end(tenant: &Tenant, job: &str, code: i32, words: &str) {
    end_of(tenant, job, ("containerStatuses", "initialize"), code, words).await;
}

async fn end_of(tenant: &Tenant, job: &str, (statuses, container): (&str, &str), code: i32, words: &str) {
    // Not a pod of an earlier Job of the name.
    let uid = tenant.uid::<Job>(job).await.expect("the Job is there");
    let selector = ListParams::default().labels(&format!("batch.kubernetes.io/controller-uid={uid}"));
    let pods = tenant.api::<Pod>();
    let pod = until("the Job has a pod", async || pods.list(&selector).await.unwrap().items.into_iter().next()).await;
    let terminated = json!({"exitCode": code, "message": words});
    let status = json!({"status": {
        "phase": if code == 0 { "Succeeded" } else { "Failed" },
        statuses: [{
            "name": container, "image": "x", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": terminated},
        }],
    }});
    pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
}

/// The watch of pods, and with it the cause, may be later than that of Jobs.
async fn fails(tenant: &Tenant, why: &str) {
    let is_told = |ready: &Condition| ready.reason == "RestoreFailed" && ready.message.starts_with(why);
    says(tenant, "db", &format!("told {why}"), is_told).await;
}

#[tokio::test]
async fn a_database_is_made_from_a_dump_that_is_meant_for_it() {
    let tenant = tenant("pg-restore").await;
    let restore = json!({"claim": "dumps"});
    create(&tenant, "db", json!({"restore": restore})).await.unwrap();
    held(&tenant, "db", "DumpsMissing", &["does not exist"]).await;
    // A volume of another Postgresql: a user who may create this one may not read the other's data. No pod ever mounts
    // it.
    let others = json!({label::POSTGRESQL: "other", label::RETAINED_FROM: "other"});
    claim(&tenant, "dumps", others, json!({"storageClassName": "none"})).await;
    patch(&tenant, "db", json!({"port": 5433})).await.unwrap();
    let command = "kubectl label pvc dumps -n pg-restore apps.bnerd-operator.local/restore-to=db";
    says(&tenant, "db", "told how it is allowed", |ready| ready.message.contains(command)).await;
    assert_eq!(names::<Job>(&tenant).await, Vec::<String>::new());
    assert_eq!(names::<StatefulSet>(&tenant).await, Vec::<String>::new());
    tenant.kubectl(&["label", "pvc", "dumps", "apps.bnerd-operator.local/restore-to=db"]).unwrap();
    patch(&tenant, "db", json!({"port": 5434})).await.unwrap();
    held(&tenant, "db", "Restoring", &["restores dump latest of PersistentVolumeClaim dumps"]).await;
    let [job] = names::<Job>(&tenant).await.try_into().unwrap();
    let made = tenant.api::<Job>().get(&job).await.unwrap();
    let pod = made.spec.unwrap().template.spec.unwrap();
    let mounts = pod.containers[0].volume_mounts.clone().unwrap();
    assert!(mounts.iter().any(|mount| mount.mount_path == "/dumps" && mount.read_only == Some(true)), "{mounts:?}");

    // The restore fails: the script's message is reported, and no database is created.
    end(&tenant, &job, 75, "dump 20260131T030000Z-x is damaged").await;
    let what_to_do = format!("; change spec.restore, or delete Job {job} for another try; see `kubectl logs");
    fails(&tenant, &format!("dump 20260131T030000Z-x is damaged{what_to_do}")).await;
    assert_eq!(names::<StatefulSet>(&tenant).await, Vec::<String>::new());

    // Another dump means another Job.
    let before = tenant.api::<Job>().get(&job).await.unwrap().uid();
    let other = json!({"from": "20260130T030000Z-a", "claim": "dumps"});
    patch(&tenant, "db", json!({"restore": other})).await.unwrap();
    let again = |found: Option<&Job>| found.filter(|found| found.uid() != before).map(|_| ());
    tenant.wait_for(&job, "recreated", again).await;
    held(&tenant, "db", "Restoring", &["dump 20260130T030000Z-a"]).await;
    end(&tenant, &job, 0, "20260130T030000Z-a 12\n").await;
    up(&tenant, "db").await;
    // The watch of pods may be later than that of Jobs.
    let told = |status: &PostgresqlStatus| status.restored.as_ref()?.tables.and(status.restored.clone());
    let restored = tenant.wait_for("db", "restored", |db: Option<&Postgresql>| told(db?.status.as_ref()?)).await;
    assert_eq!((restored.claim.as_deref(), restored.completed_at.is_some()), (Some("dumps"), true));
    assert_eq!((restored.dump.as_str(), restored.tables), ("20260130T030000Z-a", Some(12)));
    let sentence =
        "the database was made from dump 20260130T030000Z-a of PersistentVolumeClaim dumps; 12 tables are not empty";
    tenant.events_with("db", "Restored", sentence).await;

    // The database exists: no dump overwrites it. The finished restore can be removed from the spec.
    let refused = |result: kube::Result<Postgresql>| result.unwrap_err().to_string();
    let message = refused(patch(&tenant, "db", json!({"restore": {"from": "latest"}})).await);
    assert!(message.contains("only be restored into a new database"), "{message}");
    patch(&tenant, "db", json!({"restore": null})).await.unwrap();
    let message = refused(patch(&tenant, "db", json!({"restore": other})).await);
    assert!(message.contains("only be restored into a new database"), "{message}");
}

/// From a bucket: with credentials meant for it; a failed fetch is reported. What the Job is like, and that no container with the
/// tenant's image has the credentials, is in the snapshots of src/postgresql/objects.
#[tokio::test]
async fn a_database_is_made_from_a_dump_in_a_bucket() {
    let tenant = tenant("pg-bucket").await;
    let store = |path: &str| {
        json!({"restore": {"store": {
            "endpoint": "http://127.0.0.1:9", "bucket": "dumps", "path": path, "credentialsSecret": {"name": "s3"},
            "passwordSecret": {"name": "restic"},
        }}})
    };
    create(&tenant, "db", store("prod/other/db")).await.unwrap();
    // Otherwise the simulated node ends the Job's pod before this test does.
    patch(&tenant, "db", json!({"scheduling": {"nodeSelector": {"kubernetes.io/hostname": "none"}}})).await.unwrap();
    held(&tenant, "db", "DumpsMissing", &["Secret s3, which spec.restore names, does not exist"]).await;
    // A user who may create a Postgresql here cannot read anything else with the credentials.
    tenant.kubectl(&["create", "secret", "generic", "s3", "--from-literal=AWS_ACCESS_KEY_ID=x"]).unwrap();
    patch(&tenant, "db", json!({"port": 5433})).await.unwrap();
    let command = "kubectl label secret s3 -n pg-bucket apps.bnerd-operator.local/restore-to=db";
    says(&tenant, "db", "told how it is allowed", |ready| ready.message.contains(command)).await;
    assert_eq!(names::<Job>(&tenant).await, Vec::<String>::new());
    // Its own path, of an earlier Postgresql of this name.
    patch(&tenant, "db", store("prod/pg-bucket/db")).await.unwrap();
    held(&tenant, "db", "Restoring", &["restores dump latest of http://127.0.0.1:9/dumps/prod/pg-bucket/db"]).await;
    let [job] = names::<Job>(&tenant).await.try_into().unwrap();
    end_of(&tenant, &job, ("initContainerStatuses", "fetch"), 1, "error: there is no complete dump at all in s3://x\n")
        .await;
    fails(&tenant, "there is no complete dump at all in s3://x; change spec.restore, or delete").await;
    assert_eq!(names::<StatefulSet>(&tenant).await, Vec::<String>::new());
    patch(&tenant, "db", json!({"scheduling": null})).await.unwrap();
    patch(&tenant, "db", store("eu/pg-bucket/db")).await.unwrap();
    let restored = up(&tenant, "db").await.restored.unwrap();
    assert_eq!((restored.claim, restored.store.as_deref()), (None, Some("http://127.0.0.1:9/dumps/eu/pg-bucket/db")));
}

#[tokio::test]
async fn a_drill_restores_the_latest_dump_and_says_so() {
    const ONE: &str = "db-drill-202601250500";
    let tenant = tenant("pg-drill").await;
    make(&tenant, "db", json!({"backup": {"schedule": "@daily", "drill": "0 5 * * 0"}})).await;
    let drill = |job: &'static str, due: &'static str, condition: &'static str| {
        let tenant = &tenant;
        async move {
            becomes_due(tenant, "db", true, due).await;
            tenant.wait_for(job, "made", |found: Option<&Job>| found.map(drop)).await;
            let ended = |found: Option<&Job>| {
                let conditions = found?.status.as_ref()?.conditions.as_ref()?;
                conditions.iter().any(|found| found.type_ == condition && found.status == "True").then_some(())
            };
            if condition == "Failed" {
                end(tenant, job, 75, "dump 20260131T030000Z-x is damaged").await;
            }
            tenant.wait_for(job, condition, ended).await;
        }
    };
    for (name, dump) in [("restored", "20260130T030000Z-a"), ("other", "20260129T030000Z-b")] {
        let spec = json!({"of": {"kind": "Postgresql", "name": "db"}});
        let backup = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        let backups = tenant.api::<ClientAppBackup>();
        backups.create(&PostParams::default(), &backup).await.unwrap();
        let ended = |found: Option<&ClientAppBackup>| found?.status.as_ref()?.completed_at.as_ref().map(drop);
        tenant.wait_for(name, "complete", ended).await;
        // No program has dumped anything.
        let dumped = Patch::Merge(json!({"status": {"database": {"dump": dump}}}));
        backups.patch_status(name, &PatchParams::default(), &dumped).await.unwrap();
    }
    drill(ONE, "2026-01-25T05:00:00Z", "Complete").await;
    end(&tenant, ONE, 0, "20260130T030000Z-a 12").await;
    let proven = |status: &PostgresqlStatus| {
        let drill = status.backup.as_ref().and_then(|backup| backup.drill.as_ref());
        drill.is_some_and(|drill| drill.last_success.is_some() && drill.tables == Some(12))
    };
    let proven = status(&tenant, "db", "proven", proven).await;
    let proven = proven.backup.unwrap().drill.unwrap();
    assert_eq!(proven.dump.as_deref(), Some("20260130T030000Z-a"));
    let verified = |found: Option<&ClientAppBackup>| found?.status.as_ref()?.verified_at.clone();
    assert_eq!(Some(tenant.wait_for("restored", "verified", verified).await), proven.last_success);
    assert_eq!(verified(Some(&tenant.api::<ClientAppBackup>().get("other").await.unwrap())), None);
    // Its scratch volume is deleted with its pod.
    delete::<Job>(&tenant, ONE).await;
    let gone = async || names::<PersistentVolumeClaim>(&tenant).await == ["data-db-0", "db-backup"];
    until("the scratch volume is gone", gone).await;

    // A failed drill casts doubt on the dumps, but the database keeps serving. There is no pod while the quota exists.
    tenant.quota("full", json!({"hard": {"requests.storage": "1"}})).await;
    drill("db-drill-202602010500", "2026-02-01T05:00:00Z", "Failed").await;
    let why = "dump 20260131T030000Z-x is damaged; see `kubectl logs job/db-drill-202602010500 -n pg-drill`";
    let doubted = |status: &PostgresqlStatus| {
        has(status, "BackedUp", "False", "DrillFailed")
            && conditions::find(&status.conditions, "BackedUp").is_some_and(|told| told.message.contains(why))
    };
    let status = status(&tenant, "db", "in doubt", doubted).await;
    assert_eq!(status.phase, Some(Phase::Up));
    let sentence = "the latest dump was not restored: dump 20260131T030000Z-x is damaged; see `kubectl logs job/db-drill-202602010500 -n pg-drill`";
    tenant.events_with("db", "DrillFailed", sentence).await;
}
