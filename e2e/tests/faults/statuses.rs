//! A status, and what it was computed from.

use clientapp_crd::{ClientAppStatus, Guard};
use clientapp_operator::platform::key::Key;
use clientapp_operator::platform::status::Statuses;
use kube::Api;
use kube::api::{Patch, PatchParams};

use super::*;

/// A process that is no longer the leader, or was restarted, may have computed a status from one that is no longer there.
#[tokio::test]
async fn a_status_is_written_only_over_the_one_that_it_was_computed_from() {
    let Apart { tenant, .. } = Lab::unattended().await.apart("computed-from").await;
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    let key = Key::new(&tenant.namespace, "acme");
    let guards: Api<Guard<ClientApp>> = Api::namespaced(tenant.client.clone(), &tenant.namespace);
    let old = guards.get("acme").await.unwrap();
    let status = async || tenant.api::<ClientApp>().get("acme").await.unwrap().status;
    let stored = async || status().await.unwrap();
    let write = async |guard: &Guard<ClientApp>, statuses: &Statuses<ClientAppStatus>, words: &str| {
        let of = statuses.reconciled(&key, guard);
        // A time of the operator's clock is more exact than a stored one.
        let ready = json!({
            "type": "Ready", "status": "True", "reason": "Ready", "message": words, "lastTransitionTime": "2026-01-01T00:00:00.5Z",
        });
        let conditions = vec![serde_json::from_value(ready).unwrap()];
        let status = ClientAppStatus { url: Some(words.to_owned()), conditions, ..of.recorded_status.clone() };
        statuses.write(&tenant.client, &of, &status).await.map_err(|error| match error {
            kube::Error::Api(status) => (status.code, status.reason.clone(), status.message.clone()),
            error => panic!("{error}"),
        })
    };

    // An object of the same name that came after.
    let mut other = old.clone();
    other.metadata.uid = Some("7e1a0c5e-0000-0000-0000-000000000000".to_owned());
    let (code, reason, words) = write(&other, &Statuses::default(), "https://other").await.unwrap_err();
    assert_eq!((code, reason.as_str()), (410, "Gone"), "{words}");
    assert!(words.contains("was deleted and recreated"), "{words}");
    assert!(status().await.is_none(), "nothing is written to the object that is there");

    // A label that another client has put on it since is no reason to refuse it.
    let labels = json!({"metadata": {"labels": {"a": "b"}}});
    tenant.api::<ClientApp>().patch("acme", &PatchParams::default(), &Patch::Merge(labels)).await.unwrap();
    let statuses = Statuses::default();
    write(&old, &statuses, "https://first").await.unwrap();
    assert_eq!(stored().await.url.as_deref(), Some("https://first"));
    // The same process goes on from what it has written, although its watch still has the old object.
    write(&old, &statuses, "https://second").await.unwrap();
    assert_eq!(stored().await.url.as_deref(), Some("https://second"));

    // A pass that has written does not write again what it computed from the status before.
    let of = statuses.reconciled(&key, &old);
    let only = |words: &str| ClientAppStatus { url: Some(words.to_owned()), ..ClientAppStatus::default() };
    assert!(!of.recorded_status.conditions.is_empty());
    statuses.write(&tenant.client, &of, &only("https://third")).await.unwrap();
    statuses.write(&tenant.client, &of, &only("https://fourth")).await.unwrap_err();
    // A status is written as a whole: what it lacks is gone.
    assert_eq!(stored().await, only("https://third"));

    // Another process that began before does not put its older view in place of that.
    let (code, reason, words) = write(&old, &Statuses::default(), "https://late").await.unwrap_err();
    assert_eq!((code, reason.as_str()), (409, "Conflict"), "{words}");
    assert!(words.contains("has another status"), "{words}");
    assert_eq!(stored().await.url.as_deref(), Some("https://third"));
}
