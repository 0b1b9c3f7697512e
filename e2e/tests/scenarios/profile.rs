//! Profiles: the defaults that instances take from them, and later changes.

use std::collections::BTreeSet;

use clientapp_crd::{ClientApp, Profile, conditions::find};
use e2e::lab::{Lab, Tenant};
use e2e::manifests;
use e2e::scenario::{small, with};
use e2e::wait::until;
use k8s_openapi::api::apps::v1::{ControllerRevision, Deployment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

pub(super) async fn create(tenant: &Tenant, name: &str, spec: Value) {
    let profile = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
    Api::<Profile>::all(tenant.client.clone()).create(&PostParams::default(), &profile).await.unwrap();
}

pub(super) async fn patch(tenant: &Tenant, name: &str, spec: Value) {
    let patch = Patch::Merge(json!({"spec": spec}));
    Api::<Profile>::all(tenant.client.clone()).patch(name, &PatchParams::default(), &patch).await.unwrap();
}

/// Requested CPU and replicas of the app's Deployment.
async fn deployed(tenant: &Tenant, name: &str) -> (Option<String>, Option<i32>) {
    let deployment = tenant.api::<Deployment>().get(&format!("{name}-nextcloud")).await.unwrap().spec.unwrap();
    let container = deployment.template.spec.unwrap().containers.remove(0);
    let requests = container.resources.and_then(|resources| resources.requests).unwrap_or_default();
    (requests.get("cpu").map(|cpu| cpu.0.clone()), deployment.replicas)
}

#[tokio::test]
async fn instances_wait_for_their_profile_and_follow_it() {
    let tenant = Lab::shared().await.tenant("profile").await;
    let of_class = |name: &str| with(small(&tenant, name), json!({"profile": "class"}));
    tenant.create("follows", of_class("follows")).await.unwrap();
    let told = tenant.condition("follows", "Stalled", "True", "ProfileMissing").await;
    assert_eq!(told, "spec.profile: there is no Profile class: create it, or name another");
    assert_eq!(tenant.listed("follows"), None);
    let defaults = json!({"replicaCount": 2, "resources": {"requests": {"cpu": "200m"}}});
    create(&tenant, "class", json!({"defaults": defaults, "rollout": {"soak": "0s"}})).await;
    tenant.create("decides", with(of_class("decides"), json!({"replicas": 1}))).await.unwrap();
    tenant.create("without", small(&tenant, "without")).await.unwrap();
    for name in ["follows", "decides", "without"] {
        tenant.ready(name, 1).await;
    }
    let cpu = |amount: &str| Some(amount.to_owned());
    assert_eq!(deployed(&tenant, "follows").await, (cpu("200m"), Some(2)));
    assert_eq!(deployed(&tenant, "decides").await, (cpu("200m"), Some(1)));
    assert_eq!(deployed(&tenant, "without").await, (None, Some(1)));

    patch(&tenant, "class", json!({"defaults": {"resources": {"requests": {"cpu": "300m"}}}})).await;
    tenant.ready("follows", 2).await;
    tenant.ready("decides", 2).await;
    assert_eq!(deployed(&tenant, "follows").await, (cpu("300m"), Some(2)));
    assert_eq!(tenant.listed("without").unwrap().0, "1");

    // A changed description changes nothing.
    patch(&tenant, "class", json!({"description": "for trying things out"})).await;
    // An invalid Profile stops no instance.
    patch(&tenant, "class", json!({"helm": {"values": {"nextcloud": {"host": "elsewhere"}}}})).await;
    tenant.held("decides", "ProfileInvalid", &["Profile class", "nextcloud.host"]).await;
    reported(&tenant, "class", "False", "RolloutStopped", &format!("{}/decides", tenant.namespace)).await;
    assert_eq!(revision(&tenant, "follows").await, Some(2));
    patch(&tenant, "class", json!({"helm": {"values": null}})).await;
    tenant.ready("decides", 2).await;
    reported(&tenant, "class", "True", "RolledOut", "revision 4").await;
    tenant.ready("follows", 2).await;

    // Deleting a Profile leaves the release as it is.
    let profiles = Api::<Profile>::all(tenant.client.clone());
    profiles.delete("class", &DeleteParams::default()).await.unwrap();
    tenant.condition("follows", "Ready", "False", "ProfileMissing").await;
    assert_eq!(deployed(&tenant, "follows").await, (cpu("300m"), Some(2)));
    assert_eq!(tenant.listed("follows").unwrap().0, "2");
    tenant.delete("follows").await;
}

/// Waits for what a Profile's `Ready` says.
pub(super) async fn reported(tenant: &Tenant, name: &str, status: &str, reason: &str, part: &str) {
    let profiles = Api::<Profile>::all(tenant.client.clone());
    until("the Profile says so", async || {
        let found = profiles.get(name).await.unwrap().status.unwrap_or_default();
        let ready = find(&found.conditions, "Ready").cloned();
        let says = |ready: &Condition| ready.status == status && ready.reason == reason && ready.message.contains(part);
        if ready.as_ref().is_some_and(says) { Ok(()) } else { Err(format!("{ready:?}")) }
    })
    .await;
}

/// Returns the Profile's revision that an instance has.
pub(super) async fn revision(tenant: &Tenant, name: &str) -> Option<i64> {
    let app = tenant.api::<ClientApp>().get(name).await.unwrap();
    app.status?.profile_revision.map(|has| has.revision)
}

#[tokio::test]
async fn a_change_goes_from_wave_to_wave_stops_and_is_undone() {
    let tenant = Lab::shared().await.tenant("waves").await;
    let cpu = |amount: &str| json!({"defaults": {"resources": {"requests": {"cpu": amount}}}});
    let rollout = json!({"waves": [1, 2], "soak": "0s", "canary": {"matchLabels": {"ring": "first"}}});
    create(&tenant, "waves", with(cpu("100m"), json!({"rollout": rollout}))).await;
    let names = ["a", "b", "c", "d"];
    for name in names {
        tenant.create(name, with(small(&tenant, name), json!({"profile": "waves"}))).await.unwrap();
    }
    let label = Patch::Merge(json!({"metadata": {"labels": {"ring": "first"}}}));
    tenant.api::<ClientApp>().patch("d", &PatchParams::default(), &label).await.unwrap();
    for name in names {
        tenant.ready(name, 1).await;
        assert_eq!(revision(&tenant, name).await, Some(1), "{name}");
    }
    reported(&tenant, "waves", "True", "RolledOut", "revision 1").await;

    // The canary gets a chart that the API server refuses, and nobody else does.
    patch(&tenant, "waves", json!({"helm": {"values": {"service": {"type": "Nonsense"}}}})).await;
    reported(&tenant, "waves", "False", "RolloutStopped", &format!("{}/d", tenant.namespace)).await;
    for name in ["a", "b", "c"] {
        assert_eq!((revision(&tenant, name).await, tenant.listed(name).unwrap().0.as_str()), (Some(1), "1"), "{name}");
    }
    // A new instance begins with what the others have, and what a user changes meanwhile is installed with that.
    tenant.create("e", with(small(&tenant, "e"), json!({"profile": "waves"}))).await.unwrap();
    tenant.patch("a", json!({"replicas": 2})).await.unwrap();
    tenant.ready("e", 1).await;
    tenant.ready("a", 2).await;
    assert_eq!([revision(&tenant, "e").await, revision(&tenant, "a").await], [Some(1); 2]);

    // Back to the first revision, with the mistake still in the Profile.
    patch(&tenant, "waves", json!({"rollout": {"revision": 1}})).await;
    reported(&tenant, "waves", "True", "RolledOut", "revision 1 is").await;
    tenant.condition("d", "Ready", "True", "Ready").await;
    assert_eq!(revision(&tenant, "d").await, Some(1));

    // Corrected, and paused after the canary has it.
    patch(
        &tenant,
        "waves",
        with(cpu("200m"), json!({"helm": {"values": null}, "rollout": {"paused": true, "revision": null}})),
    )
    .await;
    reported(&tenant, "waves", "False", "RolloutPaused", "revision 3 has reached 0 of 5").await;
    let leap_day = json!({"schedule": "0 0 29 2 *", "duration": "1m", "timeZone": "Europe/Berlin"});
    patch(&tenant, "waves", json!({"rollout": {"paused": false, "window": leap_day}})).await;
    reported(&tenant, "waves", "False", "RollingOut", "reached 0 of 5").await;
    reported(&tenant, "waves", "False", "RollingOut", "spec.rollout.window opens at 20").await;
    patch(&tenant, "waves", json!({"rollout": {"window": {"schedule": "0 0 31 2 *"}}})).await;
    reported(&tenant, "waves", "False", "ProfileInvalid", "so it never opens").await;
    patch(&tenant, "waves", json!({"rollout": {"window": {"schedule": "* * * * *"}}})).await;
    reported(&tenant, "waves", "True", "RolledOut", "revision 3").await;
    for name in ["a", "b", "c", "d", "e"] {
        assert_eq!(revision(&tenant, name).await, Some(3), "{name}");
        // The last wave has no gate behind it.
        until("it is installed", async || deployed(&tenant, name).await.0.as_deref() == Some("200m")).await;
        tenant.condition(name, "Ready", "True", "Ready").await;
    }
}

#[tokio::test]
async fn old_revisions_go_and_those_in_use_stay() {
    let tenant = Lab::shared().await.tenant("revisions").await;
    create(&tenant, "revised", json!({"rollout": {"paused": true}})).await;
    tenant.create("stays", with(small(&tenant, "stays"), json!({"profile": "revised"}))).await.unwrap();
    tenant.ready("stays", 1).await;
    for number in 2..=13 {
        patch(&tenant, "revised", json!({"helm": {"values": {"podAnnotations": {"n": number.to_string()}}}})).await;
        reported(&tenant, "revised", "False", "RolloutPaused", &format!("revision {number} has")).await;
    }
    let uid = Api::<Profile>::all(tenant.client.clone()).get("revised").await.unwrap().uid().unwrap();
    let revisions = Api::<ControllerRevision>::namespaced(tenant.client.clone(), manifests::NAMESPACE);
    let of_profile = ListParams::default().labels(&format!("apps.bnerd-operator.local/profile-uid={uid}"));
    until("the first and the ten newest are left", async || {
        let found = revisions.list(&of_profile).await.unwrap();
        let numbers: BTreeSet<_> = found.iter().map(|revision| revision.revision).collect();
        if numbers == [1].into_iter().chain(4..=13).collect() { Ok(()) } else { Err(format!("{numbers:?}")) }
    })
    .await;
    assert_eq!(revision(&tenant, "stays").await, Some(1));
}

/// Mistakes in `spec.rollout.window`, and what is said about them.
fn of_window() -> Vec<(Value, &'static str)> {
    const ZONE: &str = "must be the name of a time zone such as Europe/Berlin";
    const DURATION: &str = "must be a duration such as 4h, from 1m to 168h";
    let zones = ["Europe/Berlim", "Local", "", "+01:00", "../UTC"].map(|zone| (json!({"timeZone": zone}), ZONE));
    let durations = ["59s", "169h", "4 hours"].map(|duration| (json!({"duration": duration}), DURATION));
    let schedules = ["0 99 * * *", "soon"];
    let schedules = schedules.map(|schedule| (json!({"schedule": schedule}), "must be five fields in cron's notation"));
    let window = |change| json!({"rollout": {"window": with(json!({"schedule": "@daily", "duration": "4h"}), change)}});
    let rows = zones.into_iter().chain(durations).chain(schedules);
    rows.map(|(change, sentence)| (window(change), sentence)).collect()
}

/// Mistakes in `spec.rollout.health`, and what is said about them.
fn of_health() -> Vec<(Value, &'static str)> {
    const PATH: &str = "must be a path such as /status.php, without scheme, host and fragment";
    let paths =
        ["", "status.php", "http://169.254.169.254/", "@169.254.169.254/", "/a b", "/a\r\nHost: b", "/a#b", "/ä"];
    let rows = paths.map(|path| (json!({"path": path}), PATH)).into_iter().chain([
        (json!({"path": format!("/{}", "a".repeat(256))}), "spec.rollout.health.path: Too long"),
        (json!({"port": 0}), "should be greater than or equal to 1"),
        (json!({"port": 65536}), "should be less than or equal to 65535"),
        (json!({"port": "HTTP"}), "should match '^[-a-z0-9]*[a-z]"),
        (json!({"port": "80"}), "should match '^[-a-z0-9]*[a-z]"),
        (json!({"port": "a".repeat(16)}), "spec.rollout.health.port: Too long"),
        (json!({"json": [{"pointer": "maintenance", "value": false}]}), "must be a JSON pointer such as /maintenance"),
        (json!({"json": [{"pointer": "/a~2", "value": false}]}), "must be a JSON pointer such as /maintenance"),
        (json!({"json": [{"pointer": "/a", "value": {"b": 1}}]}), "spec.rollout.health.json[0].value"),
        (json!({"json": [{"pointer": "/a", "value": [1]}]}), "must have at most 0 items"),
        (json!({"json": [{"pointer": "/a", "value": []}]}), "should have at least 1 items"),
        (json!({"json": [{"pointer": "/a", "value": {}}]}), "should have at least 1 properties"),
        (json!({"json": [{"pointer": "/a", "value": "a".repeat(65)}]}), "spec.rollout.health.json[0].value: Too long"),
        (json!({"json": vec![json!({"pointer": "/a", "value": 1}); 2]}), "Duplicate value"),
        (json!({"json": vec![json!({"pointer": "/a", "value": 1}); 17]}), "must have at most 16 items"),
        (json!({"periodSeconds": 0}), "spec.rollout.health.periodSeconds"),
        (json!({"failureThreshold": 101}), "spec.rollout.health.failureThreshold"),
    ]);
    rows.map(|(health, sentence)| (json!({"rollout": {"health": with(json!({"path": "/"}), health)}}), sentence))
        .collect()
}

#[tokio::test]
async fn kubectl_is_told_what_a_profile_may_not_say() {
    let tenant = Lab::shared().await.tenant("profile-schema").await;
    let profiles = Api::<Profile>::all(tenant.client.clone());
    let rows = [
        (json!({"defaults": {"persistence": {"size": "10GB"}}}), "must be a quantity above zero"),
        (json!({"defaults": {"resources": {"limits": {"cpu": "much"}}}}), "must be quantities such as 200m"),
        (json!({"namespace": {"quota": {"pods": "many"}}}), "must be quantities such as 20"),
        (json!({"namespace": {"quota": {"pods": "20", "limits.memory": "8Gi"}}}), "must not limit cpu or memory"),
        (json!({"defaults": {"replicaCount": -1}}), "spec.defaults.replicaCount"),
        (json!({"rollout": {"waves": []}}), "spec.rollout.waves"),
        (json!({"rollout": {"waves": [0]}}), "should be greater than or equal to 1"),
        (json!({"rollout": {"waves": [1, "150%"]}}), "should match '^([1-9][0-9]?|100)%$'"),
        (json!({"rollout": {"maxUnavailable": "0%"}}), "must be a number from 1"),
        (json!({"rollout": {"canary": {}}}), "an empty selector would select all"),
        (json!({"rollout": {"soak": "a while"}}), "must be a duration such as 10m"),
        (json!({"rollout": {"stopAtFailures": 0}}), "spec.rollout.stopAtFailures"),
    ];
    for (spec, sentence) in rows.into_iter().chain(of_health()).chain(of_window()) {
        let profile = serde_json::from_value(json!({"metadata": {"name": "wrong"}, "spec": spec})).unwrap();
        let refusal = profiles.create(&PostParams::default(), &profile).await.unwrap_err().to_string();
        assert!(refusal.contains(sentence), "{spec}: {refusal}");
    }
    create(&tenant, "sized", json!({"defaults": {"persistence": {"size": "10Gi"}}})).await;
    for smaller in [json!("9Gi"), json!(null)] {
        let patch = Patch::Merge(json!({"spec": {"defaults": {"persistence": {"size": smaller}}}}));
        let refusal = profiles.patch("sized", &PatchParams::default(), &patch).await.unwrap_err().to_string();
        assert!(refusal.contains("size can only grow") && refusal.contains("create another Profile"), "{refusal}");
    }
}
