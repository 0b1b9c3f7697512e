use serde_json::{Value, json};

use super::*;
use crate::postgresql::{
    desired::tests::acme as of,
    observed::{Detail, ObjectView},
};

fn full() -> Desired {
    of(json!({
        "defaultUser": "shop", "name": "orders", "port": 5433, "storageSize": "2Gi", "storageClassName": "fast",
        "version": "16", "replicas": 3, "backup": {"schedule": "0 3 * * *", "keep": 3, "size": "4Gi", "onDelete": true, "drill": "@weekly"},
        "restore": {"from": "20260131T030000Z-x7k2p", "claim": "old-backup"},
    }))
}

/// Whatever is made from documents.
fn everything(desired: &Desired) -> Vec<Object> {
    let backup = desired.backup.as_ref().unwrap();
    let mut all = objects(desired, &Observed::default(), "uid-2");
    all.extend([
        backup::last_dump(desired, backup, "2026-01-01T00:00:00Z"),
        backup::dump(desired, backup, "before-30"),
    ]);
    all.extend([initialize::claim(desired), initialize::job(desired, "uid-3", true)]);
    all
}

/// The digest of the primary's StatefulSet.
fn primary(spec: Value, observed: &Observed, replication: &str) -> String {
    let objects = objects(&of(spec), observed, replication);
    objects.into_iter().find(|object| object.id.0 == Kind::StatefulSet).unwrap().digest
}

#[test]
fn documents() {
    let mut documents: Vec<_> = everything(&full()).into_iter().map(|object| object.document).collect();
    // The scripts have files of their own.
    for text in documents[1]["data"].as_object_mut().unwrap().values_mut() {
        *text = json!("…");
    }
    insta::assert_yaml_snapshot!(documents);
}

/// Dumps that are uploaded, with all that can be said of it.
fn uploaded() -> Desired {
    let spec = crate::postgresql::desired::tests::stored(json!({
        "prefix": "prod", "region": "eu-central-1", "caSecret": {"name": "ca"}, "keep": {"daily": 7, "monthly": 12},
        "recipient": "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p",
    }));
    Desired { operator_image: Some("operator:1".to_owned()), ..of(spec) }
}

#[test]
fn the_job_that_uploads() {
    let desired = uploaded();
    let job = backup::dump(&desired, desired.backup.as_ref().unwrap(), "now");
    insta::assert_yaml_snapshot!(job.document["spec"]);
    // An operator that does not know its image dumps nevertheless.
    let unknown = Desired { operator_image: None, ..desired };
    let job = backup::dump(&unknown, unknown.backup.as_ref().unwrap(), "now");
    let pod = &job.document["spec"]["template"]["spec"];
    assert_eq!((&pod["containers"][0]["name"], &pod["initContainers"]), (&json!("dump"), &Value::Null));
}

#[test]
fn without_standbys_and_dumps_there_is_one_server() {
    let objects = objects(&of(json!({})), &Observed::default(), "uid-2");
    let ids: Vec<_> = objects.iter().map(|object| format!("{} {}", object.id.0, object.id.1)).collect();
    let expected =
        "ConfigMap acme-witness, ConfigMap acme-scripts, Service acme-headless, Service acme, StatefulSet acme";
    assert_eq!(ids.join(", "), expected);
}

#[test]
fn a_template_for_volumes_stays_as_it_was_made() {
    let mut observed = Observed::default();
    let detail = Detail::StatefulSet { replicas: 1, storage: Some("1Gi".to_owned()) };
    let view = ObjectView { owner: Owner::Ours, uid: "u".to_owned(), digest: None, deleting: false, detail };
    observed.objects.insert((Kind::StatefulSet, "acme".to_owned()), view);
    let larger = primary(json!({"storageSize": "5Gi"}), &observed, "uid-2");
    assert_eq!(larger, primary(json!({"storageSize": "1Gi"}), &Observed::default(), "uid-2"));
}

#[test]
fn a_port_restarts_nothing_and_a_new_replication_password_does() {
    let set = |spec: Value, replication: &str| primary(spec, &Observed::default(), replication);
    assert_eq!(set(json!({}), "a"), set(json!({"port": 5433, "replicas": 3}), "a"));
    assert_ne!(set(json!({}), "a"), set(json!({}), "b"));
}

/// The garbage collector takes only what is owned: never before the last dump, nor what a finalizer was edited out of.
#[test]
fn nothing_but_the_witness_is_owned() {
    let desired = full();
    for object in everything(&desired) {
        let owned = !object.document["metadata"]["ownerReferences"].is_null();
        assert_eq!(owned, object.id.1 == "acme-witness", "{:?}", object.id);
    }
    for secret in [secrets::credentials(&desired, "x"), secrets::client(&desired, "x"), secrets::replication(&desired)]
    {
        assert_eq!(secret.metadata.owner_references, None);
    }
}

#[test]
fn a_primary_that_is_closed_is_another() {
    let set = |closed| servers::primary(&full(), &Observed::default().objects, "r", closed);
    let (open, closed) = (set(None), set(Some("2026-01-01T00:00:00Z")));
    assert_ne!(open.digest, closed.digest);
    let file =
        |object: &Object| object.document["spec"]["template"]["spec"]["containers"][0]["env"][1]["value"].clone();
    assert_eq!((file(&open), file(&closed)), (json!("/scripts/pg_hba.conf"), json!("/scripts/closed.conf")));
}

#[test]
fn no_password_is_in_any_document() {
    let desired = of(json!({"password": "canary", "replicas": 2, "backup": {"schedule": "@daily"}}));
    let objects = objects(&desired, &Observed::default(), "uid-2");
    assert!(objects.iter().all(|object| !object.document.to_string().contains("canary")));
}

#[test]
fn secrets() {
    let desired = full();
    let kept = secrets::credentials(&desired, "p@ss");
    assert_eq!(kept.immutable, Some(true));
    let client = secrets::client(&desired, "p@ss");
    let data = client.data.unwrap();
    let text = |key: &str| String::from_utf8(data[key].0.clone()).unwrap();
    assert_eq!(text("uri"), "postgresql://shop:p%40ss@acme.ns.svc:5433/orders");
    assert_eq!((text("host"), text("password")), ("acme.ns.svc".to_owned(), "p@ss".to_owned()));
    assert_ne!(secrets::replication(&desired).data, secrets::replication(&desired).data);
}
