//! Postgresqls on a real control plane: creation, recovery, refusals, deletion; and their dumps in S3.

mod dumps;
mod kept;
mod life;
mod production;
mod refused;
mod restore;
mod store;

use std::collections::BTreeMap;
use std::path::Path;

use clientapp_crd::{DumpRecord, DumpState, Phase, Postgresql, PostgresqlStatus, conditions, label};
use e2e::lab::{Apart, Lab, Object, Tenant, leading};
use e2e::operator::Operator;
use e2e::scenario::with;
use e2e::wait::until;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, PersistentVolume, PersistentVolumeClaim, Pod, ResourceQuota, Secret, Service,
};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

/// A new namespace on the control plane whose operator is shared.
async fn tenant(namespace: &str) -> Tenant {
    Lab::shared().await.tenant(namespace).await
}

/// A new namespace on a control plane without an operator of all.
async fn apart(namespace: &str) -> Apart {
    Lab::unattended().await.apart(namespace).await
}

async fn stop(operator: Operator) {
    assert!(tokio::task::spawn_blocking(move || operator.stop().unwrap()).await.unwrap());
}

async fn create(tenant: &Tenant, name: &str, spec: Value) -> kube::Result<()> {
    tenant.create_one::<Postgresql>(name, spec).await
}

async fn patch(tenant: &Tenant, name: &str, spec: Value) -> kube::Result<Postgresql> {
    let patch = Patch::Merge(json!({"spec": spec}));
    tenant.api::<Postgresql>().patch(name, &PatchParams::default(), &patch).await
}

/// Waits until the check accepts its status for its latest spec.
async fn status(
    tenant: &Tenant,
    name: &str,
    what: &str,
    check: impl Fn(&PostgresqlStatus) -> bool,
) -> PostgresqlStatus {
    let current = |object: Option<&Postgresql>| {
        let object = object?;
        let status = object.status.as_ref()?;
        let current = status.observed_generation == object.metadata.generation;
        (current && check(status)).then(|| status.clone())
    };
    tenant.wait_for(name, what, current).await
}

async fn up(tenant: &Tenant, name: &str) -> PostgresqlStatus {
    status(tenant, name, "up", is_settled).await
}

/// Creates a Postgresql, and waits until it is up.
async fn make(tenant: &Tenant, name: &str, spec: Value) -> PostgresqlStatus {
    create(tenant, name, spec).await.unwrap();
    up(tenant, name).await
}

fn is_settled(status: &PostgresqlStatus) -> bool {
    status.phase == Some(Phase::Up)
        && has(status, "Ready", "True", "Ready")
        && has(status, "Reconciling", "False", "Settled")
}

/// Waits until it is up with the pod of the StatefulSet's current revision.
async fn settled(tenant: &Tenant, name: &str) {
    // The simulated node deletes pods by name, and at times a pod's successor with it: no pod's uid stays.
    until(&format!("Postgresql {name} is up with the newest pod of its StatefulSet"), async || {
        let replication = tenant.uid::<Secret>(&format!("{name}-replication")).await;
        let set = tenant.api::<StatefulSet>().get_opt(name).await.unwrap();
        let pod = tenant.api::<Pod>().get_opt(&format!("{name}-0")).await.unwrap();
        let told = tenant.api::<Postgresql>().get(name).await.unwrap().status;
        let is_up = || {
            let set = set.as_ref().filter(|set| set.metadata.deletion_timestamp.is_none())?;
            let (template, of_set) = (&set.spec.as_ref()?.template, set.status.as_ref()?);
            let annotations = template.metadata.as_ref()?.annotations.as_ref()?;
            let mounts = annotations.values().any(|value| Some(value) == replication.as_ref());
            let is_seen = of_set.observed_generation == set.metadata.generation;
            let pod = pod.as_ref().filter(|pod| pod.metadata.deletion_timestamp.is_none())?;
            let is_owned = pod.owner_references().iter().any(|owner| Some(&owner.uid) == set.metadata.uid.as_ref());
            let is_newest = pod.labels().get("controller-revision-hash") == of_set.update_revision.as_ref();
            let is_active = told.as_ref()?.active.as_ref().map(|active| &active.uid) == pod.metadata.uid.as_ref();
            (mounts && is_seen && is_owned && is_newest && is_active && is_settled(told.as_ref()?)).then_some(())
        };
        is_up().ok_or_else(|| format!("{:?}\n{:?}\n{told:?}", set.map(|set| set.metadata), pod.map(|pod| pod.metadata)))
    })
    .await;
}

fn has(status: &PostgresqlStatus, type_: &str, state: &str, reason: &str) -> bool {
    conditions::find(&status.conditions, type_)
        .is_some_and(|condition| condition.status == state && condition.reason == reason)
}

/// Waits until it is not Ready for this reason, with these words in the message, and returns the message.
async fn held(tenant: &Tenant, name: &str, reason: &str, words: &[&str]) -> String {
    says(tenant, name, &format!("{reason} with {words:?}"), |ready| {
        let told = words.iter().all(|part| ready.message.contains(part));
        ready.status == "False" && ready.reason == reason && told
    })
    .await
}

/// Waits until the check accepts the condition Ready, and returns its message.
async fn says(tenant: &Tenant, name: &str, what: &str, is: impl Fn(&Condition) -> bool) -> String {
    let told = |object: Option<&Postgresql>| {
        let ready = conditions::find(&object?.status.as_ref()?.conditions, "Ready")?;
        is(ready).then(|| ready.message.clone())
    };
    tenant.wait_for(name, what, told).await
}

/// Waits until the record of a schedule is there, and lets it be due at this time.
async fn becomes_due(tenant: &Tenant, name: &str, drill: bool, at: &str) {
    let is_known = |status: &PostgresqlStatus| {
        let backup = status.backup.as_ref();
        match drill {
            true => backup.and_then(|backup| backup.drill.as_ref()?.scheduled.as_ref()).is_some(),
            false => backup.and_then(|backup| backup.scheduled.as_ref()).is_some(),
        }
    };
    status(tenant, name, "scheduled", is_known).await;
    let scheduled = json!({"scheduled": {"next": at}});
    let backup = if drill { json!({"drill": scheduled}) } else { scheduled };
    let patch = Patch::Merge(json!({"status": {"backup": backup}}));
    tenant.api::<Postgresql>().patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

/// Requests for the servers of a Postgresql, but not for its Jobs.
fn requests() -> Value {
    json!({"requests": {"cpu": "1m"}})
}

/// No pod for a Job while this quota exists. A server that is recreated meanwhile needs [`requests`]. A quota for all
/// pods would admit a Job's pod while a server's pod is recreated, since usage is counted late.
async fn no_job_pods(tenant: &Tenant) {
    tenant.quota("no-job-pods", json!({"scopes": ["BestEffort"], "hard": {"pods": "0"}})).await;
}

/// Makes a Job fail as its controller does.
async fn fail(tenant: &Tenant, job: &str) {
    let begun = |job: Option<&Job>| job?.status.as_ref()?.start_time.clone();
    tenant.wait_for(job, "begun", begun).await;
    let failed = ["FailureTarget", "Failed"].map(|type_| {
        json!({
            "type": type_, "status": "True", "reason": "PodFailurePolicy", "message": "x",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    });
    let failed = Patch::Merge(json!({"status": {"conditions": failed}}));
    tenant.api::<Job>().patch_status(job, &PatchParams::default(), &failed).await.unwrap();
}

/// Makes a server that runs exit again and again, with this code and this end of its log.
async fn crash(tenant: &Tenant, pod: &str, code: i32, words: &str) {
    let runs = |pod: Option<&Pod>| (pod?.status.as_ref()?.phase.as_deref() == Some("Running")).then_some(());
    tenant.wait_for(pod, "running", runs).await;
    let container = json!({
        "name": "postgres", "image": "x", "imageID": "", "ready": false, "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}},
        "lastState": {"terminated": {"exitCode": code, "reason": "Error", "message": words}},
    });
    let status = json!({"status": {
        "conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [container],
    }});
    tenant.api::<Pod>().patch_status(pod, &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
}

/// Creates a claim with these labels, and more in its spec.
async fn claim(tenant: &Tenant, name: &str, labels: Value, more: Value) -> PersistentVolumeClaim {
    let spec = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    let claim = json!({"metadata": {"name": name, "labels": labels}, "spec": with(spec, more)});
    tenant.api().create(&PostParams::default(), &serde_json::from_value(claim).unwrap()).await.unwrap()
}

/// The labels of the volumes and Secrets of a Postgresql.
async fn labels(tenant: &Tenant, name: &str) -> Value {
    let uid = tenant.uid::<Postgresql>(name).await;
    json!({label::POSTGRESQL: name, label::POSTGRESQL_UID: uid})
}

/// Once the status for a newer spec is written, everything before it is done.
async fn looked_at_again(tenant: &Tenant, name: &str, port: i32) -> PostgresqlStatus {
    patch(tenant, name, json!({"port": port})).await.unwrap();
    up(tenant, name).await
}

async fn delete<K: Object>(tenant: &Tenant, name: &str) {
    tenant.api::<K>().delete(name, &DeleteParams::background()).await.unwrap();
}

async fn gone<K: Object>(tenant: &Tenant, name: &str) {
    tenant.wait_for(name, "gone", |object: Option<&K>| object.is_none().then_some(())).await;
}

/// Deletes a Postgresql, and waits until it is gone.
async fn remove(tenant: &Tenant, name: &str) {
    delete::<Postgresql>(tenant, name).await;
    gone::<Postgresql>(tenant, name).await;
}

async fn names<K: Object>(tenant: &Tenant) -> Vec<String> {
    let objects = tenant.api::<K>().list(&ListParams::default()).await.unwrap();
    objects.iter().map(|object| object.name_any()).filter(|name| name != "kube-root-ca.crt").collect()
}

/// The names of the Secrets that give access to the data of Postgresql `db`.
const SECRETS: [&str; 3] = ["db-app", "db-credentials", "db-replication"];

fn text(secret: &Secret, key: &str) -> Option<String> {
    Some(String::from_utf8(secret.data.as_ref()?.get(key)?.0.clone()).unwrap())
}

async fn secret(tenant: &Tenant, name: &str) -> BTreeMap<String, String> {
    let secret = tenant.api::<Secret>().get(name).await.unwrap();
    let data = secret.data.unwrap().into_iter();
    data.map(|(key, value)| (key, String::from_utf8(value.0).unwrap())).collect()
}

/// Waits until a Secret has this value.
async fn told(tenant: &Tenant, name: &str, key: &str, value: &str) {
    let same = |secret: Option<&Secret>| (text(secret?, key).as_deref() == Some(value)).then_some(());
    tenant.wait_for(name, &format!("with the {key} in use"), same).await;
}
