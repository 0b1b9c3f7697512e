//! The release, its workloads and its chart.

use clientapp_crd::{ClientApp, ClientAppStatus};
use e2e::charts;
use e2e::lab::{Lab, has};
use e2e::scenario::{small, with};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::other_helm::{helm, history};
use super::{helms, installed};

/// helm counts what it can read, and the operator what has the name and labels of a revision.
#[tokio::test]
async fn a_forged_revision_is_told_of_and_makes_no_storm() {
    let tenant = installed("forged-revision", json!({})).await;
    let forge = async |name: &str, version: &str| {
        let labels = json!({"owner": "helm", "name": "acme", "status": "deployed", "version": version});
        let secret = json!({"metadata": {"name": name, "labels": labels}, "type": "helm.sh/release.v1"});
        let secret = serde_json::from_value(secret).unwrap();
        tenant.api::<Secret>().create(&PostParams::default(), &secret).await.unwrap();
    };
    // Another name is none of a revision.
    forge("bomb", "2147483646").await;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;
    forge("sh.helm.release.v1.acme.v50", "50").await;
    let sentence = tenant.condition("acme", "Released", "False", "UpgradeFailed").await;
    assert!(sentence.contains("helm would make revision 3 of release acme"), "{sentence}");
    assert!(sentence.contains("delete Secret sh.helm.release.v1.acme.v50"), "{sentence}");
    assert_eq!(history(&tenant, "acme").last().unwrap().0, 2, "nothing is installed");
    tenant.kubectl(&["delete", "secret", "sh.helm.release.v1.acme.v50"]).unwrap();
    tenant.patch("acme", json!({"replicas": 2})).await.unwrap();
    tenant.ready("acme", 3).await;
}

/// A chart that runs a Job with its installation, but with no upgrade.
fn migrating(job: Value) -> Value {
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "migrate", "annotations": {"helm.sh/hook": "pre-install"}},
        "spec": job,
    });
    json!({"values": {"extraManifests": [job]}})
}

#[tokio::test]
async fn an_installation_whose_hooks_were_not_through_is_no_upgrade() {
    let tenant = Lab::shared().await.tenant("install-hooks").await;
    let pod = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "x", "image": "x"}]}});
    let mut nowhere = pod.clone();
    nowhere["spec"]["nodeSelector"] = json!({"no": "node"});
    let fails = migrating(json!({"activeDeadlineSeconds": 1, "template": nowhere}));
    tenant.create("acme", with(small(&tenant, "acme"), fails)).await.unwrap();
    let told = |status: &ClientAppStatus| has(status, "Stalled", "True", "UpgradeFailed");
    let status = tenant.status("acme", "stalled", told).await;
    let released = status.conditions.iter().find(|condition| condition.type_ == "Released").unwrap();
    for words in
        ["before its hook Job migrate was complete", "failed pre-install", "`helm uninstall acme -n install-hooks"]
    {
        assert!(released.message.contains(words), "{words}: {}", released.message);
    }
    // A corrected chart is no reason to skip the hook. With no pods at all, it is complete at once.
    tenant.patch("acme", migrating(json!({"completions": 0, "template": pod}))).await.unwrap();
    let generation = tenant.api::<ClientApp>().get("acme").await.unwrap().metadata.generation;
    let held = |status: &ClientAppStatus| status.observed_generation == generation && told(status);
    tenant.status("acme", "held", held).await;
    helm(&tenant, &["uninstall", "acme"]);
    tenant.ready("acme", 1).await;
    let migrated = tenant.api::<Job>().get("migrate").await.unwrap().status.unwrap();
    assert!(migrated.completion_time.is_some(), "{migrated:?}");
    // An installed release is upgraded.
    tenant.patch("acme", json!({"replicas": 2})).await.unwrap();
    tenant.ready("acme", 2).await;
}

/// And says why, with a reason that comes from the pod itself, since no workload shows it. It costs nothing once all is well.
#[tokio::test]
async fn readiness_follows_the_workloads_without_helm() {
    const NO_SUCH_NODE: &str = "clientapp.test/no-such-node";
    let tenant = installed("readiness", json!({"redis": {"enabled": true}})).await;
    let before = helms(&tenant).await;

    let place = |workload: &str, node_selector: Value| {
        let patch = json!({"spec": {"template": {"spec": {"nodeSelector": node_selector}}}});
        tenant.kubectl(&["patch", workload, "--type=merge", "-p", &patch.to_string()]).unwrap();
    };
    for (workload, words) in [
        ("deployment/acme-nextcloud", "Deployment acme-nextcloud: 0 of 1 replicas are available: pod acme-nextcloud-"),
        ("statefulset/acme-redis-master", "StatefulSet acme-redis-master: "),
    ] {
        place(workload, json!({NO_SUCH_NODE: "true"}));
        let nowhere = ["is not scheduled: 0/", "didn't match Pod's node affinity/selector"];
        tenant.held("acme", "NotReady", &[&[words][..], &nowhere].concat()).await;
        let status = tenant.api::<ClientApp>().get("acme").await.unwrap().status.unwrap();
        assert!(has(&status, "Released", "True", "Deployed") && has(&status, "Reconciling", "False", "Settled"));
        place(workload, Value::Null);
        if workload.starts_with("statefulset") {
            // A StatefulSet never replaces a pod that waits for a node by itself.
            tenant.kubectl(&["delete", "pod", "acme-redis-master-0"]).unwrap();
        }
        tenant.ready("acme", 1).await;
    }
    assert_eq!(helms(&tenant).await, before);
    let looks = async || tenant.requests().await.iter().filter(|asked| asked.ends_with("list pods/")).count();
    let before = looks().await;
    assert!(before > 0);
    tenant.patch("acme", json!({"upgrade": {"foreignLockTimeout": "1h"}})).await.unwrap();
    tenant.status("acme", "seen", |status| status.observed_generation == Some(2)).await;
    assert_eq!(looks().await, before);
}
