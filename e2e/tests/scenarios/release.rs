//! The release, when another Helm client changes it; its workloads; its chart.

use clientapp_crd::{ClientApp, ClientAppStatus};
use e2e::charts;
use e2e::lab::{Lab, Tenant, has};
use e2e::scenario::{small, with};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::api::networking::v1::Ingress;
use kube::api::PostParams;
use serde_json::{Value, json};

/// Revision, status and chart of every kept revision, oldest first.
pub(crate) fn history(tenant: &Tenant, release: &str) -> Vec<(i64, String, String)> {
    let ran = tenant.helm(&["history", release, "-o", "json"]);
    assert!(ran.success, "{}", ran.stderr);
    let revisions: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    let word = |revision: &Value, key: &str| revision[key].as_str().unwrap().to_owned();
    revisions
        .iter()
        .map(|revision| (revision["revision"].as_i64().unwrap(), word(revision, "status"), word(revision, "chart")))
        .collect()
}

/// An entry of [`history`] for a version of the chart.
pub(crate) fn revision(number: i64, status: &str, version: &str) -> (i64, String, String) {
    (number, status.to_owned(), format!("nextcloud-{version}"))
}

/// Runs helm, which has to succeed, and returns what it printed.
pub(crate) fn helm(tenant: &Tenant, arguments: &[&str]) -> String {
    let ran = tenant.helm(arguments);
    assert!(ran.success, "helm {arguments:?}: {}", ran.stderr);
    ran.stdout
}

/// The messages of the events about a corrected release.
async fn drifted(tenant: &Tenant, name: &str) -> Vec<String> {
    let events = tenant.events(name).await;
    events.into_iter().filter(|(reason, _)| reason == "ReleaseDrifted").map(|(_, sentence)| sentence).collect()
}

/// helm counts what it can read, and the operator what has the name and labels of a revision.
#[tokio::test]
async fn a_forged_revision_is_told_of_and_makes_no_storm() {
    let tenant = Lab::shared().await.tenant("forged-revision").await;
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.ready("acme", 1).await;
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

#[tokio::test]
async fn another_helm_clients_upgrade_and_rollback_are_put_right_once_each() {
    upgraded_and_rolled_back(&Lab::shared().await.tenant("helm-by-hand").await).await;
}

/// The cluster admin upgrades the release with the helm of the tenant, and rolls it back.
pub(crate) async fn upgraded_and_rolled_back(tenant: &Tenant) {
    // With an Ingress: the gateway reads what helm writes of it.
    tenant.create("acme", with(small(tenant, "acme"), json!({"ingressClassName": "traefik"}))).await.unwrap();
    tenant.ready("acme", 1).await;

    let repository = tenant.lab.repository.url();
    let by_hand = ["upgrade", "acme", "nextcloud", "--repo", &repository, "--version", charts::PATCH];
    helm(tenant, &[&by_hand[..], &["--reuse-values", "--set", "replicaCount=3"]].concat());
    tenant.ready("acme", 3).await;
    assert_eq!(
        history(tenant, "acme"),
        [
            revision(1, "superseded", charts::DEFAULT),
            revision(2, "superseded", charts::PATCH),
            revision(3, "deployed", charts::DEFAULT)
        ]
    );
    let app = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap();
    assert_eq!(app.spec.unwrap().replicas, Some(1));
    let told = drifted(tenant, "acme").await;
    assert!(
        told.len() == 1 && told[0].contains("revision 2 of release acme was made by another Helm client"),
        "{told:?}"
    );

    let managers = tenant.api::<Ingress>().get("acme-nextcloud").await.unwrap().metadata.managed_fields.unwrap();
    let operations: Vec<_> = managers.iter().filter_map(|entry| entry.operation.as_deref()).collect();
    assert_eq!(operations, ["Apply"], "helm manages by server-side apply again what another client has written");

    // If it had been corrected more than once, this would not be the next revision.
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 4).await;

    helm(tenant, &["rollback", "acme", "3"]);
    tenant.ready("acme", 6).await;
    let last: Vec<_> = history(tenant, "acme").into_iter().rev().take(2).collect();
    assert_eq!(last, [revision(6, "deployed", charts::PATCH), revision(5, "superseded", charts::DEFAULT)]);
    let told = drifted(tenant, "acme").await;
    assert!(told.len() == 2 && told[1].contains("revision 5"), "{told:?}");

    tenant.patch("acme", json!({"replicas": 2})).await.unwrap();
    tenant.ready("acme", 7).await;
    // --history-max
    assert_eq!(history(tenant, "acme").len(), 3);
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
    for words in ["before Job migrate was complete", "failed pre-install", "`helm uninstall acme -n install-hooks"] {
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

#[tokio::test]
async fn another_helm_clients_uninstall_is_put_right_once() {
    uninstalled(&Lab::shared().await.tenant("uninstalled-by-hand").await).await;
}

/// The cluster admin uninstalls the release with the helm of the tenant.
pub(crate) async fn uninstalled(tenant: &Tenant) {
    tenant.create("acme", small(tenant, "acme")).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;

    helm(tenant, &["uninstall", "acme"]);
    tenant.ready("acme", 1).await;
    let told = drifted(tenant, "acme").await;
    assert!(told.len() == 1 && told[0].contains("was uninstalled by another Helm client"), "{told:?}");

    helm(tenant, &["uninstall", "acme", "--keep-history"]);
    tenant.ready("acme", 2).await;
    assert_eq!(drifted(tenant, "acme").await.len(), 2);

    tenant.patch("acme", json!({"replicas": 2})).await.unwrap();
    tenant.ready("acme", 3).await;
}

#[tokio::test]
async fn a_release_that_was_never_ours_is_not_taken_over() {
    never_ours(&Lab::shared().await.tenant("not-ours").await).await;
}

/// The cluster admin has installed a release with the helm of the tenant.
pub(crate) async fn never_ours(tenant: &Tenant) {
    let repository = tenant.lab.repository.url();
    helm(tenant, &["install", "acme", "nextcloud", "--repo", &repository, "--version", charts::DEFAULT]);
    tenant.create("acme", small(tenant, "acme")).await.unwrap();
    let told = tenant.condition("acme", "Ready", "False", "ReleaseNotOurs").await;
    assert!(told.contains("release acme") && told.contains("uninstall it or rename the ClientApp"), "{told}");

    // Neither a later reconcile nor a later revision by the other client makes it the operator's.
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    let upgrade = ["upgrade", "acme", "nextcloud", "--repo", &repository, "--version", charts::DEFAULT];
    helm(tenant, &upgrade);
    let mut generation = 0;
    for replicas in [2, 3] {
        generation = tenant.patch("acme", json!({"replicas": replicas})).await.unwrap().metadata.generation.unwrap();
        tenant
            .status("acme", "looked at again", |status| {
                status.observed_generation == Some(generation) && has(status, "Stalled", "True", "ReleaseNotOurs")
            })
            .await;
    }
    assert!(generation >= 4);
    let revisions = history(tenant, "acme");
    assert_eq!(revisions.len(), 2, "{revisions:?}");
    let requests = tenant.requests().await;
    assert!(!requests.iter().any(|request| request.starts_with("helm")), "{requests:?}");

    // A deletion leaves it alone as well.
    tenant.delete("acme").await;
    assert_eq!(history(tenant, "acme").len(), 2);
    assert!(tenant.api::<Deployment>().get_opt("acme-nextcloud").await.unwrap().is_some());

    tenant.create("acme", with(small(tenant, "acme"), json!({"chartVersion": charts::PATCH}))).await.unwrap();
    tenant.condition("acme", "Ready", "False", "ReleaseNotOurs").await;
    helm(tenant, &["uninstall", "acme"]);
    tenant.ready("acme", 1).await;
    assert_eq!(tenant.listed("acme").unwrap().2, format!("nextcloud-{}", charts::PATCH));
    assert_eq!(drifted(tenant, "acme").await, [""; 0]);
}

/// A label that no node has.
const NO_SUCH_NODE: &str = "clientapp.test/no-such-node";

#[tokio::test]
async fn readiness_follows_the_workloads_without_helm() {
    let tenant = Lab::shared().await.tenant("readiness").await;
    let spec = with(small(&tenant, "acme"), json!({"redis": {"enabled": true}}));
    tenant.create("acme", spec).await.unwrap();
    tenant.ready("acme", 1).await;
    let helms = |requests: Vec<String>| requests.iter().filter(|request| request.starts_with("helm")).count();
    let before = helms(tenant.requests().await);

    let place = |workload: &str, node_selector: Value| {
        let patch = json!({"spec": {"template": {"spec": {"nodeSelector": node_selector}}}});
        tenant.kubectl(&["patch", workload, "--type=merge", "-p", &patch.to_string()]).unwrap();
    };
    for (workload, name) in [
        ("deployment/acme-nextcloud", "Deployment acme-nextcloud: "),
        ("statefulset/acme-redis-master", "StatefulSet acme-redis-master: "),
    ] {
        place(workload, json!({NO_SUCH_NODE: "true"}));
        let status = tenant
            .status("acme", "not ready", |status| {
                let ready = status.conditions.iter().find(|condition| condition.type_ == "Ready");
                ready.is_some_and(|ready| ready.reason == "NotReady" && ready.message.contains(name))
            })
            .await;
        assert!(has(&status, "Released", "True", "Deployed") && has(&status, "Reconciling", "False", "Settled"));
        if workload.starts_with("statefulset") {
            let is_placed = |pod: Option<&Pod>| {
                let pod = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none())?;
                pod.spec.as_ref()?.node_selector.as_ref()?.get(NO_SUCH_NODE).map(|_| ())
            };
            tenant.wait_for("acme-redis-master-0", "waiting for a node", is_placed).await;
        }
        place(workload, Value::Null);
        if workload.starts_with("statefulset") {
            // A StatefulSet never replaces a pod that waits for a node by itself.
            tenant.kubectl(&["delete", "pod", "acme-redis-master-0"]).unwrap();
        }
        tenant.ready("acme", 1).await;
    }
    assert_eq!(helms(tenant.requests().await), before);
}

/// A user changed a field of the chart: this blocks no upgrade, and the upgrade resets the field.
#[tokio::test]
async fn a_field_that_another_client_has_taken_holds_up_no_upgrade() {
    let tenant = Lab::shared().await.tenant("taken-fields").await;
    tenant.create("acme", with(small(&tenant, "acme"), json!({"drift": "Ignore"}))).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.kubectl(&["scale", "deployment", "acme-nextcloud", "--replicas=0"]).unwrap();
    tenant
        .condition_with("acme", ("Ready", "NotReady"), &["acme-nextcloud: scaled to 0 replicas", "the chart has 1"])
        .await;
    tenant.kubectl(&["scale", "deployment", "acme-nextcloud", "--replicas=2"]).unwrap();
    tenant.ready("acme", 1).await;
    tenant.kubectl(&["set", "image", "deployment/acme-nextcloud", "*=nextcloud:0"]).unwrap();
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;
    let spec = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap().spec.unwrap();
    let images: Vec<_> = spec.template.spec.unwrap().containers.into_iter().filter_map(|it| it.image).collect();
    assert!(spec.replicas == Some(1) && !images.contains(&"nextcloud:0".to_owned()), "{images:?}");
}

/// The reason comes from the pod itself, since no workload shows it; and it costs nothing once all is well.
#[tokio::test]
async fn why_pods_are_not_ready_is_told() {
    let tenant = Lab::shared().await.tenant("why-not-ready").await;
    tenant
        .create("acme", with(small(&tenant, "acme"), json!({"values": {"nodeSelector": {"disk": "none"}}})))
        .await
        .unwrap();
    let told = |status: &ClientAppStatus| {
        status.conditions.iter().any(|condition| {
            condition.type_ == "WorkloadsReady"
                && condition
                    .message
                    .contains("Deployment acme-nextcloud: 0 of 1 replicas are available: pod acme-nextcloud-")
                && condition.message.contains("is not scheduled: 0/")
                && condition.message.contains("didn't match Pod's node affinity/selector")
        })
    };
    tenant.status("acme", "told why", told).await;
    let asked =
        || async { tenant.requests().await.into_iter().filter(|request| request.ends_with("list pods/")).count() };
    assert!(asked().await > 0);
    tenant.patch("acme", json!({"values": {"nodeSelector": null}})).await.unwrap();
    tenant.ready("acme", 2).await;
    let before = asked().await;
    tenant.patch("acme", json!({"upgrade": {"backup": true}})).await.unwrap();
    tenant.status("acme", "seen", |status| status.observed_generation == Some(3)).await;
    assert_eq!(asked().await, before);
}

#[tokio::test]
async fn an_app_that_never_becomes_ready_holds_up_no_other() {
    let tenant = Lab::shared().await.tenant("never-ready").await;
    // More of them than the number of helms that may run at the same time.
    for name in ["a", "b", "c", "d"] {
        let spec = with(small(&tenant, name), json!({"chartVersion": charts::NEVER_READY}));
        tenant.create(name, spec).await.unwrap();
    }
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.ready("acme", 1).await;
    for name in ["a", "b", "c", "d"] {
        let told = tenant.condition(name, "WorkloadsReady", "False", "NotReady").await;
        assert!(told.contains(&format!("Deployment {name}-nextcloud")), "{told}");
    }
}

#[tokio::test]
async fn a_chart_that_cannot_work_is_refused_in_helms_own_words() {
    let tenant = Lab::shared().await.tenant("broken-charts").await;
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.ready("acme", 1).await;
    for (version, reason, words) in [
        // The API server's strict validation finds this, not helm's own validation against the OpenAPI document.
        (charts::MISSPELT, "ChartInvalid", "nodeSelectr"),
        (charts::UNRENDERABLE, "ChartInvalid", "this version refuses to render"),
        (charts::UNSATISFIABLE, "ChartInvalid", "licenseKey"),
        (charts::UNKNOWN_KIND, "ChartInvalid", "ServiceMonitor"),
        (charts::HOOK_FAILS, "UpgradeFailed", "acme-nextcloud-prepare"),
    ] {
        let generation = tenant.patch("acme", json!({"chartVersion": version})).await.unwrap().metadata.generation;
        let status = tenant
            .status("acme", &format!("refused for {version}"), |status| {
                status.observed_generation == generation && has(status, "Released", "False", reason)
            })
            .await;
        let released = status.conditions.iter().find(|condition| condition.type_ == "Released").unwrap();
        assert!(released.message.contains(words), "{version}: {}", released.message);
    }
    // The old revision still serves, and a version that works resolves everything.
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant
        .status("acme", "Ready again", |status| {
            let version = status.release.as_ref().and_then(|release| release.chart_version.as_deref());
            has(status, "Ready", "True", "Ready") && version == Some(charts::PATCH)
        })
        .await;
}
