//! Volumes and replicas that helm would change, or lose, without knowing it.

use clientapp_crd::conditions;
use e2e::charts;
use e2e::lab::{Lab, has};
use e2e::scenario::{names, nothing_is_left, small};
use e2e::wait::until;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::Pod;

use super::*;

const APP: &str = "acme-nextcloud";

/// Changes the administrator's password, so that helm runs.
fn rotate(tenant: &Tenant, password: &str) {
    let patch = json!({"stringData": {"nextcloud-password": password}}).to_string();
    tenant.kubectl(&["patch", "secret", "acme-admin-secret", "-p", &patch]).unwrap();
}

async fn requested(tenant: &Tenant) -> String {
    let claim = tenant.api::<PersistentVolumeClaim>().get(FILES).await.unwrap();
    claim.spec.unwrap().resources.unwrap().requests.unwrap()["storage"].0.clone()
}

async fn grow(tenant: &Tenant, size: &str) {
    let patch = json!({"spec": {"resources": {"requests": {"storage": size}}}});
    tenant.api::<PersistentVolumeClaim>().patch(FILES, &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
}

#[tokio::test]
async fn a_volume_that_has_grown_keeps_its_size() {
    let tenant = Lab::shared().await.tenant("grown").await;
    install(&tenant, "acme", with(small(&tenant, "acme"), json!({"persistence": {"enabled": true}}))).await;
    grow(&tenant, "20Gi").await;
    rotate(&tenant, "two");
    let status = tenant.ready("acme", 2).await;
    assert_eq!(requested(&tenant).await, "20Gi");
    for type_ in ["Released", "Ready"] {
        let told = &conditions::find(&status.conditions, type_).unwrap().message;
        assert!(told.contains(&format!("{FILES} (20Gi, asked 8Gi)")), "{told}");
        assert!(told.contains("raise spec.persistence.size"), "{told}");
    }
    tenant.event("acme", "Ready", "raise spec.persistence.size").await;
    tenant.patch("acme", json!({"persistence": {"size": "20Gi"}})).await.unwrap();
    let status = tenant.ready("acme", 3).await;
    let told = &conditions::find(&status.conditions, "Released").unwrap().message;
    assert!(!told.contains("asked"), "{told}");
    assert_eq!(requested(&tenant).await, "20Gi");
}

async fn replicas(tenant: &Tenant) -> i32 {
    tenant.api::<Deployment>().get(APP).await.unwrap().spec.unwrap().replicas.unwrap()
}

/// Sets the replicas as the controller of autoscalers does.
async fn autoscale(tenant: &Tenant, replicas: i32) {
    let by = PatchParams { field_manager: Some("kube-controller-manager".to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    tenant.api::<Deployment>().patch_scale(APP, &by, &patch).await.unwrap();
}

#[tokio::test]
async fn an_autoscaler_keeps_its_replicas() {
    let tenant = Lab::shared().await.tenant("autoscaled").await;
    install(&tenant, "acme", small(&tenant, "acme")).await;
    let autoscaler: HorizontalPodAutoscaler = serde_json::from_value(json!({
        "metadata": {"name": "beside"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": APP},
            "minReplicas": 1, "maxReplicas": 9,
        },
    }))
    .unwrap();
    let autoscalers = tenant.api::<HorizontalPodAutoscaler>();
    autoscalers.create(&PostParams::default(), &autoscaler).await.unwrap();
    autoscale(&tenant, 4).await;
    rotate(&tenant, "two");
    tenant.ready("acme", 2).await;
    assert_eq!(replicas(&tenant).await, 4);

    // Zero stops the app and its autoscaler, and another number starts both again.
    tenant.patch("acme", json!({"replicas": 0})).await.unwrap();
    tenant.ready("acme", 3).await;
    assert_eq!(replicas(&tenant).await, 0);
    tenant.patch("acme", json!({"replicas": 2})).await.unwrap();
    tenant.ready("acme", 4).await;
    assert_eq!(replicas(&tenant).await, 2);

    // Once it is gone, the spec counts again.
    autoscale(&tenant, 4).await;
    autoscalers.delete("beside", &DeleteParams::default()).await.unwrap();
    rotate(&tenant, "three");
    tenant.ready("acme", 5).await;
    assert_eq!(replicas(&tenant).await, 2);
}

/// With its own autoscaler, the reference chart has no number of replicas.
#[tokio::test]
async fn the_charts_autoscaler_gives_way_to_zero_replicas() {
    let tenant = Lab::shared().await.tenant("own-autoscaler").await;
    let verbs = "--verb=get,list,create,patch,delete";
    tenant.kubectl(&["create", "role", "autoscalers", verbs, "--resource=horizontalpodautoscalers"]).unwrap();
    let account = format!("--serviceaccount={}:clientapp-deployer", tenant.namespace);
    tenant.kubectl(&["create", "rolebinding", "autoscalers", "--role=autoscalers", &account]).unwrap();
    install(&tenant, "acme", with(small(&tenant, "acme"), json!({"replicas": 3}))).await;
    tenant.patch("acme", json!({"values": {"hpa": {"enabled": true}}})).await.unwrap();
    tenant.ready("acme", 2).await;
    assert_eq!(replicas(&tenant).await, 3);
    tenant.patch("acme", json!({"replicas": 0})).await.unwrap();
    tenant.ready("acme", 3).await;
    assert_eq!(replicas(&tenant).await, 0);
    let autoscalers = tenant.api::<HorizontalPodAutoscaler>();
    assert!(autoscalers.get_opt(APP).await.unwrap().is_none());
    tenant.patch("acme", json!({"replicas": null})).await.unwrap();
    tenant.ready("acme", 4).await;
    assert!(autoscalers.get_opt(APP).await.unwrap().is_some());
    until("it has pods again", async || replicas(&tenant).await > 0).await;
}

async fn with_files(tenant: &Tenant, more: Value) -> String {
    let spec = with(small(tenant, "acme"), json!({"persistence": {"enabled": true}}));
    install(tenant, "acme", with(spec, more)).await;
    tenant.uid::<PersistentVolumeClaim>(FILES).await.unwrap()
}

/// Waits until helm has refused what the spec asks for, because this claim would no longer be in the release, and confirms that the app
/// goes on without the volumes of these uids.
async fn confirmed(tenant: &Tenant, claim: &str, uids: &str) {
    let message = tenant.condition_with("acme", ("Released", "VolumeDropped"), &[claim]).await;
    confirm(tenant, &message, uids);
}

/// Confirms, as the message says, that the app goes on without the volumes of these uids.
#[track_caller]
fn confirm(tenant: &Tenant, message: &str, uids: &str) {
    let command = format!("kubectl annotate clientapp acme -n {} --overwrite ", tenant.namespace);
    let (_, rest) = message.split_once(&command).unwrap_or_else(|| panic!("{message}"));
    let mark = rest.split('`').next().unwrap();
    assert_eq!(mark, format!("{}={uids}", annotation::WITHOUT_VOLUME));
    tenant.kubectl(&["annotate", "clientapp", "acme", "--overwrite", mark]).unwrap();
}

/// Helm deletes objects that a revision no longer has, but volumes among them hold data.
#[tokio::test]
async fn no_revision_leaves_a_volume_behind_unasked() {
    let tenant = Lab::shared().await.tenant("dropped").await;
    let uid = with_files(&tenant, unkept()).await;
    // The app serves as before.
    let renamed = json!({"persistence": {"keep": false}, "nameOverride": "files"});
    for (spec, instead) in [
        (json!({"values": renamed}), "acme-files-nextcloud"),
        (json!({"values": null, "chartVersion": charts::RENAMES_CLAIM}), "acme-nextcloud-files"),
    ] {
        tenant.patch("acme", spec).await.unwrap();
        let words = [FILES, "with the app's data is not in the next revision", instead];
        tenant.condition_with("acme", ("Released", "VolumeDropped"), &words).await;
        let status = tenant.status("acme", "stalled", |status| has(status, "Stalled", "True", "VolumeDropped")).await;
        assert_eq!(status.release.unwrap().revision, 1);
        assert_eq!(tenant.listed("acme").unwrap().0, "1");
        assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, [FILES]);
    }
    // helm is not asked again until something changes.
    let attempts = |app: ClientApp| app.status.unwrap().last_attempt.unwrap();
    let before = attempts(tenant.api::<ClientApp>().get("acme").await.unwrap());
    assert!(before.retry_at.is_none() && before.failures == 1, "{before:?}");
    // A chart that cannot be rendered without its values changes nothing either.
    tenant.patch("acme", json!({"chartVersion": charts::WITHOUT_VALUES})).await.unwrap();
    tenant.held("acme", "ChartInvalid", &["nil pointer evaluating"]).await;
    tenant.condition("acme", "WorkloadsReady", "True", "Ready").await;
    assert_eq!(tenant.uid::<PersistentVolumeClaim>(FILES).await.unwrap(), uid);
    let values = json!({"persistence": {"keep": false}});
    tenant.patch("acme", json!({"chartVersion": charts::PATCH, "values": values})).await.unwrap();
    tenant.ready("acme", 2).await;
    assert_eq!(tenant.uid::<PersistentVolumeClaim>(FILES).await.unwrap(), uid);

    // Confirmed, it is left behind, although helm would delete it. It can be used again, and is then as safe as before.
    tenant.patch("acme", json!({"persistence": {"enabled": false}})).await.unwrap();
    confirmed(&tenant, FILES, &uid).await;
    tenant.ready("acme", 3).await;
    assert_eq!(tenant.uid::<PersistentVolumeClaim>(FILES).await.unwrap(), uid);
    tenant.patch("acme", json!({"persistence": {"enabled": true}})).await.unwrap();
    tenant.ready("acme", 4).await;
    tenant.kubectl(&["annotate", "clientapp", "acme", &format!("{}-", annotation::WITHOUT_VOLUME)]).unwrap();
    tenant.patch("acme", json!({"persistence": {"enabled": false}})).await.unwrap();
    tenant.condition_with("acme", ("Released", "VolumeDropped"), &[FILES]).await;
    assert_eq!(tenant.uid::<PersistentVolumeClaim>(FILES).await.unwrap(), uid);

    // Another one takes its place, and is left behind as well.
    tenant.patch("acme", json!({"persistence": {"enabled": true}, "values": renamed})).await.unwrap();
    confirmed(&tenant, FILES, &uid).await;
    tenant.ready("acme", 5).await;
    let second = tenant.uid::<PersistentVolumeClaim>("acme-files-nextcloud").await.unwrap();
    tenant.patch("acme", json!({"persistence": {"enabled": false}})).await.unwrap();
    let mut both = [uid.as_str(), &second];
    both.sort_unstable();
    confirmed(&tenant, "acme-files-nextcloud", &both.join(",")).await;
    tenant.ready("acme", 6).await;
    assert_eq!(names::<PersistentVolumeClaim>(&tenant).await, ["acme-files-nextcloud", FILES]);
    assert_eq!(tenant.uid::<PersistentVolumeClaim>(FILES).await.unwrap(), uid);
    // They are recorded, and deleted with the app.
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
}

#[tokio::test]
async fn a_volume_that_is_deleted_under_its_pod_is_not_replaced_unasked() {
    let tenant = Lab::shared().await.tenant("lost").await;
    let uid = with_files(&tenant, json!({})).await;
    let claims = tenant.api::<PersistentVolumeClaim>();
    claims.delete(FILES, &DeleteParams::default()).await.unwrap();
    tenant.held("acme", "VolumeGoing", &[FILES, "copy the data elsewhere before its pod ends"]).await;
    // Neither helm nor a repair restarts the pod that still has it.
    let pods = ListParams::default().labels("app.kubernetes.io/name=nextcloud");
    let pod = tenant.api::<Pod>().list(&pods).await.unwrap().items.remove(0);
    rotate(&tenant, "two");
    // After this, the operator has handled everything before it.
    install(&tenant, "later", small(&tenant, "later")).await;
    tenant.held("acme", "VolumeGoing", &[]).await;
    assert_eq!(tenant.listed("acme").unwrap().0, "1");
    assert!(tenant.api::<Pod>().get(&pod.name_any()).await.unwrap().metadata.deletion_timestamp.is_none());

    tenant.kubectl(&["scale", "deployment", APP, "--replicas=0"]).unwrap();
    let message = tenant.condition_with("acme", ("Ready", "VolumeLost"), &[FILES, "is gone"]).await;
    assert_eq!(tenant.uid::<PersistentVolumeClaim>(FILES).await, None);
    // Another one of the name, whatever marks it has, is not taken for it.
    let (labels, annotations) = of_release("acme", &tenant.namespace);
    let another = foreign_claim(&tenant, FILES, labels, annotations).await;
    let words = [another.metadata.uid.as_deref().unwrap(), &uid];
    tenant.held("acme", "VolumeLost", &words).await;
    claims.delete(FILES, &DeleteParams::default()).await.unwrap();
    let gone = |found: Option<&PersistentVolumeClaim>| found.is_none().then_some(());
    tenant.wait_for(FILES, "gone", gone).await;
    confirm(&tenant, &message, &uid);
    tenant.ready("acme", 2).await;
    let new = tenant.uid::<PersistentVolumeClaim>(FILES).await.unwrap();
    assert_ne!(new, uid);
    // It is the app's from then on.
    tenant.delete("acme").await;
    tenant.wait_for(FILES, "gone", gone).await;
}
