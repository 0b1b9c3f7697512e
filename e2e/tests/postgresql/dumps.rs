//! Dumps: by schedule, by request, into a bucket, and the last one before a deletion.

use super::*;

/// The storage of dumps, with these fields instead.
pub fn store(more: Value) -> Value {
    let store = json!({"endpoint": "https://s3.example.com", "bucket": "dumps", "credentialsSecret": {"name": "s3"}});
    with(store, more)
}

/// Waits until the record of this request is in this state.
pub async fn dump(tenant: &Tenant, request: &str, state: DumpState) -> DumpRecord {
    let wanted = |dump: &DumpRecord| dump.request == request && dump.state == state;
    let what = format!("{state:?} {request}");
    status(tenant, "db", &what, |status| status.dump.as_ref().is_some_and(wanted)).await.dump.unwrap()
}

/// Requests another dump.
async fn ask(tenant: &Tenant, request: &str) {
    patch(tenant, "db", json!({"backup": {"request": request}})).await.unwrap();
}

#[tokio::test]
async fn the_operators_own_image_uploads_dumps_and_what_it_says_is_told() {
    let Apart { tenant, proxy: _proxy, mut options } = apart("pg-store").await;
    // Its pod, with the image that kustomize has set.
    let itself = json!({
        "metadata": {"name": "itself"},
        "spec": {
            "containers": [{
                "name": "operator", "image": "registry.example.com/operator:7",
                "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            }],
            "securityContext": {"runAsNonRoot": true, "runAsUser": 1, "seccompProfile": {"type": "RuntimeDefault"}},
        },
    });
    let itself: Pod = serde_json::from_value(itself).unwrap();
    let own: Api<Pod> = Api::namespaced(tenant.client.clone(), e2e::manifests::NAMESPACE);
    own.create(&PostParams::default(), &itself).await.unwrap();

    // An operator that does not know its image says so, and dumps onto the volume.
    let operator = leading(&options).await;
    create(&tenant, "db", json!({"backup": {"request": "one", "store": store(json!({}))}})).await.unwrap();
    held(&tenant, "db", "OperatorImageUnknown", &["CLIENTAPP_POD_NAME"]).await;
    let one = dump(&tenant, "one", DumpState::Succeeded).await;
    let pod = async |job: &str| tenant.api::<Job>().get(job).await.unwrap().spec.unwrap().template.spec.unwrap();
    assert_eq!(pod(&one.job).await.containers[0].name, "dump");
    stop(operator).await;

    options.environment.push(("CLIENTAPP_POD_NAME".to_owned(), "itself".to_owned()));
    let mut operator = leading(&options).await;
    up(&tenant, "db").await;
    patch(&tenant, "db", json!({"backup": {"request": "two", "schedule": "@yearly"}})).await.unwrap();
    let two = dump(&tenant, "two", DumpState::Succeeded).await;
    let made = pod(&two.job).await;
    assert_eq!(made.containers[0].image.as_deref(), Some("registry.example.com/operator:7"));
    assert_eq!(made.containers[0].args, Some(vec!["store".to_owned(), "push".to_owned()]));
    assert!(made.init_containers.unwrap()[0].image.as_ref().unwrap().contains("postgres"));

    let success =
        status(&tenant, "db", "dumped", |status| has(status, "BackedUp", "True", "Dumped")).await.backup.unwrap();
    let metric =
        "clientapp_operator_postgresql_last_successful_backup_timestamp_seconds{namespace=\"pg-store\",name=\"db\"}";
    let time = success.last_success.unwrap().0.as_second() as f64;
    until("it is counted", async || operator.counted(metric).is_ok_and(|counted| counted >= time)).await;

    // A failed upload: there is no second pod, and its termination message is reported.
    let pods = tenant.api::<Pod>().list(&ListParams::default()).await.unwrap();
    for done in pods.iter().filter(|pod| pod.labels().contains_key("batch.kubernetes.io/job-name")) {
        match tenant.api::<Pod>().delete(&done.name_any(), &DeleteParams::background()).await {
            // The garbage collector was faster.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            deleted => _ = deleted.unwrap(),
        }
        gone::<Pod>(&tenant, &done.name_any()).await;
    }
    let job = tenant.api::<Job>().get(&two.job).await.unwrap();
    let failed = |name: &str| -> Pod {
        let mut labels = job.spec.clone().unwrap().template.metadata.unwrap().labels.unwrap();
        labels.insert("batch.kubernetes.io/job-name".to_owned(), name.to_owned());
        let spec = json!({"containers": [{"name": "store", "image": "x"}], "nodeSelector": {"none": "such"}});
        serde_json::from_value(json!({"metadata": {"name": "failed", "labels": labels}, "spec": spec})).unwrap()
    };
    tenant.api::<Pod>().create(&PostParams::default(), &failed("not-yet")).await.unwrap();
    no_job_pods(&tenant).await;
    ask(&tenant, "three").await;
    let three = dump(&tenant, "three", DumpState::Running).await;
    let labels = json!({"metadata": {"labels": {"batch.kubernetes.io/job-name": three.job}}});
    tenant.api::<Pod>().patch("failed", &PatchParams::default(), &Patch::Merge(&labels)).await.unwrap();
    let words = "stored dump a\nerror: cannot write s3://dumps/x: the storage fails (507 Insufficient Storage)\n";
    let ended = json!({"status": {"phase": "Failed", "containerStatuses": [{
        "name": "store", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"terminated": {"exitCode": 1, "message": words}},
    }]}});
    tenant.api::<Pod>().patch_status("failed", &PatchParams::default(), &Patch::Merge(&ended)).await.unwrap();
    fail(&tenant, &three.job).await;
    let why = "cannot write s3://dumps/x: the storage fails (507 Insufficient Storage)";
    dump(&tenant, "three", DumpState::Failed).await;
    // Meanwhile the database serves.
    up(&tenant, "db").await;
    // The watch of pods may be later than that of Jobs.
    let told = |status: &PostgresqlStatus| {
        status.dump.as_ref().and_then(|dump| dump.message.as_ref()).is_some_and(|message| message.contains(why))
            && status.backup.as_ref().and_then(|backup| backup.failure.as_deref()) == Some(why)
    };
    status(&tenant, "db", "said why", told).await;
    let events = async || -> Vec<_> {
        tenant.events("db").await.into_iter().filter(|(reason, _)| reason == "DumpFailed").collect()
    };
    // An event is published after the status is written.
    until("the event", async || !events().await.is_empty()).await;
    let events = events().await;
    assert_eq!(events.len(), 1, "{events:?}");
    stop(operator).await;
}

/// Even if the garbage collector starts at once with the objects that the Postgresql owns.
#[tokio::test]
async fn dumps_are_scheduled_and_a_last_one_is_waited_for_and_restored() {
    let tenant = tenant("pg-dumps").await;
    let spec = json!({"backup": {"schedule": "0 3 * * *", "keep": 2}, "replicas": 2, "resources": requests()});
    make(&tenant, "db", spec).await;
    becomes_due(&tenant, "db", false, "2026-01-31T03:00:00Z").await;
    let dumped = status(&tenant, "db", "dumped", |status| has(status, "BackedUp", "True", "Dumped")).await;
    let (backup, now) = (dumped.backup.unwrap(), dumped.conditions[0].last_transition_time.0);
    let next = backup.scheduled.unwrap().next.0;
    assert!(next > now && next.strftime("%H:%M:%S").to_string() == "03:00:00", "{next}");
    // A dump that is missed is made up for once.
    assert_eq!(names::<Job>(&tenant).await.last().map(String::as_str), Some("db-dump-202601310300"));
    let job = tenant.api::<Job>().get("db-dump-202601310300").await.unwrap();
    assert_eq!(job.spec.unwrap().ttl_seconds_after_finished, Some(86_400));
    // A Job that is refused is told, and made once it can be; the database is no less ready.
    tenant.quota("no-jobs", json!({"hard": {"count/jobs.batch": "0"}})).await;
    becomes_due(&tenant, "db", false, "2026-02-01T03:00:00Z").await;
    let refused = status(&tenant, "db", "refused", |status| has(status, "BackedUp", "False", "Refused")).await;
    assert!(has(&refused, "Ready", "True", "Ready"), "{refused:?}");
    delete::<ResourceQuota>(&tenant, "no-jobs").await;
    patch(&tenant, "db", json!({"backup": {"keep": 3}})).await.unwrap();
    tenant.wait_for("db-dump-202602010300", "made", |found: Option<&Job>| found.map(drop)).await;
    status(&tenant, "db", "dumped", |status| has(status, "BackedUp", "True", "Dumped")).await;
    // None for two days.
    let old = json!({"status": {"backup": {"lastSuccess": "2026-01-29T03:01:00Z", "scheduled": {"since": "2026-01-01T00:00:00Z"}}}});
    for job in ["db-dump-202601310300", "db-dump-202602010300"] {
        delete::<Job>(&tenant, job).await;
        gone::<Job>(&tenant, job).await;
    }
    let params = PatchParams::default();
    // As often as an operator writes it back whose watch still shows a Job.
    let late = until("overdue", async || {
        let patched = tenant.api::<Postgresql>().patch_status("db", &params, &Patch::Merge(&old)).await.unwrap();
        patched.status.filter(|status| has(status, "BackedUp", "False", "Overdue"))
    })
    .await;
    assert_eq!(late.phase, Some(Phase::Up));
    patch(&tenant, "db", json!({"backup": null})).await.unwrap();
    let claims = tenant.api::<PersistentVolumeClaim>();
    let forgotten = |status: &PostgresqlStatus| status.backup.as_ref().is_none_or(|it| it.scheduled.is_none());
    status(&tenant, "db", "without a schedule", forgotten).await;
    assert!(claims.get_opt("db-backup").await.unwrap().is_some(), "dumps stay");
    patch(&tenant, "db", json!({"backup": {"schedule": "0 3 * foo *"}})).await.unwrap();
    held(&tenant, "db", "InvalidSpec", &["spec.backup.schedule: 0 3 * foo * is no schedule"]).await;
    patch(&tenant, "db", json!({"backup": {"schedule": null, "onDelete": true}})).await.unwrap();
    up(&tenant, "db").await;

    let (before, witness) = (kept::data(&tenant).await, tenant.uid::<ConfigMap>("db-witness").await);
    no_job_pods(&tenant).await;
    tenant.api::<Postgresql>().delete("db", &DeleteParams::foreground()).await.unwrap();
    // Clients are disconnected first.
    let closed = |pod: Option<&Pod>| {
        let pod = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none())?;
        let file = pod.spec.as_ref()?.containers[0].env.as_ref()?.iter().find(|env| env.name == "HBA_FILE")?;
        (file.value.as_deref() == Some("/scripts/closed.conf")).then(|| pod.uid())
    };
    tenant.wait_for("db-0", "closed", closed).await;
    held(&tenant, "db", "Dumping", &["Job db-last-dump", "spec.backup.onDelete"]).await;
    let made = tenant.api::<Job>().get("db-last-dump").await.unwrap();
    let stamp = tenant.api::<Postgresql>().get("db").await.unwrap().metadata.deletion_timestamp.unwrap().0.to_string();
    assert!(made.annotations().values().any(|value| *value == stamp), "{made:?}");
    // The garbage collector has deleted everything that it may. The operator made another witness if it saw this before the deletion.
    let collected = |found: Option<&ConfigMap>| (found.and_then(|found| found.uid()) != witness).then_some(());
    tenant.wait_for("db-witness", "collected", collected).await;
    assert_eq!(kept::data(&tenant).await, before);
    for set in ["db", "db-standby"] {
        assert!(tenant.api::<StatefulSet>().get(set).await.unwrap().metadata.deletion_timestamp.is_none());
    }

    // It fails: nothing is deleted, and the message says what to do.
    fail(&tenant, "db-last-dump").await;
    held(&tenant, "db", "LastDumpFailed", &["delete the Job to try again"]).await;
    assert_eq!(kept::data(&tenant).await, before);
    assert!(claims.get("data-db-0").await.unwrap().metadata.deletion_timestamp.is_none());
    delete::<ResourceQuota>(&tenant, "no-job-pods").await;
    delete::<Job>(&tenant, "db-last-dump").await;
    gone::<Postgresql>(&tenant, "db").await;
    gone::<Pod>(&tenant, "db-0").await;
    let kept = "Postgresql db is deleted; PersistentVolumeClaim db-backup stays: the last dump is on it";
    tenant.events_with("db", "Retained", kept).await;
    assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, ["db-backup"]);
    assert_eq!(claims.get("db-backup").await.unwrap().labels()[label::RETAINED_FROM], "db");
    assert_eq!(names::<Secret>(&tenant).await, Vec::<String>::new());

    // The dumps left behind are for the next Postgresql of the name, and another needs permission. They are only read:
    // they do not belong to it, and outlive it.
    create(&tenant, "db2", json!({"restore": {"claim": "db-backup"}})).await.unwrap();
    held(&tenant, "db2", "DumpsMissing", &[]).await;
    remove(&tenant, "db2").await;
    let status = make(&tenant, "db", json!({"restore": {"claim": "db-backup"}})).await;
    assert_eq!(status.restored.unwrap().claim.as_deref(), Some("db-backup"));
    remove(&tenant, "db").await;
    assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, ["db-backup"]);
}

#[tokio::test]
async fn a_request_gets_one_dump_whatever_happens_to_its_job() {
    let Apart { tenant, proxy: _proxy, options } = apart("pg-requests").await;
    let operator = leading(&options).await;
    let jobs = async || names::<Job>(&tenant).await;

    create(&tenant, "db", json!({"backup": {"request": "one"}, "resources": requests()})).await.unwrap();
    let one = dump(&tenant, "one", DumpState::Succeeded).await;
    let job = tenant.api::<Job>().get(&one.job).await.unwrap();
    let progress = job.status.clone().unwrap();
    assert_eq!((&one.started_at, &one.completed_at), (&progress.start_time, &progress.completion_time));
    assert!(one.started_at.is_some() && one.completed_at.is_some() && one.message.is_none(), "{one:?}");
    assert!(job.annotations().values().any(|value| value == "one"), "{job:?}");
    assert_eq!(job.owner_references(), []);
    tenant.events_with("db", "Dumped", &format!("Job {} has dumped the database for request one", one.job)).await;

    // The same request, without its Job, and without the operator's memory.
    looked_at_again(&tenant, "db", 5433).await;
    assert_eq!(jobs().await, [one.job.as_str()]);
    delete::<Job>(&tenant, &one.job).await;
    gone::<Job>(&tenant, &one.job).await;
    looked_at_again(&tenant, "db", 5434).await;
    stop(operator).await;
    let operator = leading(&options).await;
    let status = looked_at_again(&tenant, "db", 5435).await;
    assert_eq!((jobs().await, status.dump.as_ref()), (Vec::<String>::new(), Some(&one)));

    // A new word requests another dump, and deletes the Job of the previous one.
    ask(&tenant, "two").await;
    dump(&tenant, "two", DumpState::Succeeded).await;
    ask(&tenant, "three").await;
    let three = dump(&tenant, "three", DumpState::Succeeded).await;
    until("its Job is the only one", async || jobs().await == [three.job.as_str()]).await;

    // A running dump does not delay a deletion.
    no_job_pods(&tenant).await;
    ask(&tenant, "four").await;
    let four = dump(&tenant, "four", DumpState::Running).await;
    up(&tenant, "db").await;
    remove(&tenant, "db").await;
    gone::<Job>(&tenant, &four.job).await;
    assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, Vec::<String>::new());
    // Each result was reported, and only once.
    let told: Vec<_> = tenant.events("db").await.into_iter().map(|(reason, _)| reason).collect();
    assert_eq!(told.iter().filter(|told| *told == "Dumped").count(), 3, "{told:?}");
    stop(operator).await;
}
