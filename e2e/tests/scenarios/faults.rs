//! What happens around a release and a deletion at the wrong moment: a late watch, a look that fails, a leader that is frozen.

use std::time::Duration;

use axum::http::StatusCode;
use clientapp_operator::crd::{ClientApp, Postgresql};
use e2e::charts;
use e2e::operator::Operator;
use e2e::proxy::{Fault, Rule};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::deletion::nothing_is_left;
use crate::{apart, secret, small, with};

#[tokio::test]
async fn the_wrong_moment() {
    let (lab, proxy) = apart(true, &[]).await;

    // A watch that is late with what helm wrote: no further revision, and nothing is told as another Helm client's.
    let tenant = lab.tenant("late-watch").await;
    proxy.set([Rule::new("watch", "secrets", Fault::Late(Duration::from_secs(12)))]);
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;
    proxy.set([]);
    tenant.patch("acme", json!({"values": {"podAnnotations": {"a": "b"}}})).await.unwrap();
    tenant.ready("acme", 3).await;
    assert_eq!(tenant.listed("acme").unwrap().0, "3");
    let told = tenant.events("acme").await;
    assert!(told.iter().all(|(reason, _)| reason != "ReleaseDrifted"), "{told:#?}");

    // helm exits with 0 although it could not look at an object: the deletion finishes what it has left.
    let met = proxy.met();
    proxy.set([Rule::new("get", "services", Fault::Answer(StatusCode::INTERNAL_SERVER_ERROR))]);
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    proxy.met_more_than(met).await;
    tenant
        .wait_for("acme", "told of", |app: Option<&ClientApp>| {
            let ready = app?.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == "Ready")?;
            ready.message.contains("Service").then_some(())
        })
        .await;
    proxy.set([]);
    tenant.wait_for("acme", "gone", |app: Option<&ClientApp>| app.is_none().then_some(())).await;
    nothing_is_left(&tenant).await;

    // A request fails in the middle of handing over what is kept: all of it is told nevertheless, by name.
    let tenant = lab.tenant("hand-over").await;
    for (kind, name) in [("persistentvolumeclaims", "one"), ("secrets", "two")] {
        let database = json!({"metadata": {"name": name}, "spec": {"deletionPolicy": "Retain"}});
        let databases = tenant.api::<Postgresql>();
        databases.create(&PostParams::default(), &serde_json::from_value(database).unwrap()).await.unwrap();
        let holdings = [format!("data-{name}-0"), format!("{name}-app"), format!("{name}-credentials")];
        let on_record = |found: Option<&Postgresql>| {
            let owned = &found?.status.as_ref()?.owned;
            holdings.iter().all(|name| owned.iter().any(|entry| entry.name == *name)).then_some(())
        };
        tenant.wait_for(name, "on record with what is its own", on_record).await;
        let met = proxy.met();
        proxy.set([Rule::new("patch", kind, Fault::Answer(StatusCode::INTERNAL_SERVER_ERROR))]);
        databases.delete(name, &DeleteParams::default()).await.unwrap();
        proxy.met_more_than(met).await;
        proxy.set([]);
        tenant.wait_for(name, "gone", |found: Option<&Postgresql>| found.is_none().then_some(())).await;
        let told = tenant.events(name).await;
        for holding in holdings {
            let about = |(reason, note): &(String, String)| reason == "Retained" && note.contains(&holding);
            assert!(told.iter().any(about), "{holding}: {told:#?}");
        }
    }

    // A leader that is frozen in the middle of a deletion, and wakes up after its successor has finished it and the app was
    // made anew: nothing of the new one is touched.
    let tenant = lab.tenant("frozen").await;
    let spec = with(small(&tenant, "acme"), json!({"persistence": {"enabled": true}}));
    tenant.create("acme", spec.clone()).await.unwrap();
    tenant.ready("acme", 1).await;
    let files = "acme-nextcloud-nextcloud";
    let old = tenant.api::<PersistentVolumeClaim>().get(files).await.unwrap().uid();
    let met = proxy.met();
    proxy.set([Rule::new("delete", "persistentvolumeclaims", Fault::Hang)]);
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    proxy.met_more_than(met).await;
    lab.operator().as_ref().unwrap().signal(Signal::SIGSTOP);
    let successor = tokio::task::spawn_blocking(|| Operator::leading(&lab.options()).unwrap()).await.unwrap();
    tenant.wait_for("acme", "gone", |app: Option<&ClientApp>| app.is_none().then_some(())).await;
    tenant.create("acme", spec).await.unwrap();
    tenant.ready("acme", 1).await;
    let before = (
        tenant.api::<PersistentVolumeClaim>().get(files).await.unwrap().uid(),
        tenant.api::<Secret>().get("acme-admin-secret").await.unwrap().uid(),
        secret(&tenant, "acme-admin-secret", "nextcloud-password").await,
    );
    assert_ne!(before.0, old);
    // What it had sent arrives only now, and it goes on where it was.
    proxy.set([]);
    let frozen = lab.operator().take().unwrap();
    frozen.signal(Signal::SIGCONT);
    let woken = move || {
        let mut frozen = frozen;
        // What was under way when it was frozen is refused: it was about the claim of before.
        frozen.wait_for_log("does not match the UID in record").and_then(|()| frozen.wait_for_log("the lease is lost"))
    };
    tokio::task::spawn_blocking(woken).await.unwrap().unwrap();
    let claim = tenant.api::<PersistentVolumeClaim>().get(files).await.unwrap();
    assert_eq!(claim.metadata.deletion_timestamp, None);
    let after = (
        claim.uid(),
        tenant.api::<Secret>().get("acme-admin-secret").await.unwrap().uid(),
        secret(&tenant, "acme-admin-secret", "nextcloud-password").await,
    );
    assert_eq!(after, before);
    tenant.ready("acme", 1).await;
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
    drop(successor);
}
