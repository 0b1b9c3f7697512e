//! Shows what Argo CD and Flux make of the operator's objects: the scripts of `manifests/gitops`, run by the Lua that Argo CD has, and Flux's rules.

use clientapp_crd::conditions::find;
use clientapp_crd::{ClientApp, ClientAppBackup, ClientAppStatus};
use e2e::lab::has;
use e2e::{charts, manifests};
use kube::api::PostParams;
use mlua::serde::SerializeOptions;
use mlua::{Lua, LuaOptions, LuaSerdeExt as _, StdLib};
use serde_json::{Value, json};

use super::installed;
use super::remedy::refused;

/// The entries of Argo CD's ConfigMap, by key.
fn entry(key: &str) -> Value {
    let text = std::fs::read_to_string(manifests::directory().join("gitops/argocd-cm.yaml")).unwrap();
    let map: Value = serde_yaml::from_str(&text).unwrap();
    serde_yaml::from_str(map["data"][key].as_str().unwrap()).unwrap()
}

/// Runs a script as Argo CD does: `obj` is the object, and there is hardly a library (argo-cd, util/lua).
fn run(script: &Value, object: &Value) -> Value {
    let lua = Lua::new_with(StdLib::TABLE, LuaOptions::default()).unwrap();
    let without_null = SerializeOptions::new().serialize_none_to_null(false).serialize_unit_to_null(false);
    lua.globals().set("obj", lua.to_value_with(object, without_null).unwrap()).unwrap();
    let returned: mlua::Value = lua.load(script.as_str().unwrap()).eval().unwrap();
    lua.from_value(returned).unwrap()
}

/// Returns the health that Argo CD shows, and its message.
fn health(object: &Value) -> [String; 2] {
    let script = &entry("resource.customizations")["apps.bnerd-operator.local/*"]["health.lua"];
    let health = run(script, object);
    ["status", "message"].map(|field| health[field].as_str().unwrap().to_owned())
}

/// Returns what Flux waits for (kstatus, of sigs.k8s.io/cli-utils), for an object that its controller has seen.
fn kstatus(object: &Value) -> &'static str {
    let holds = |type_: &str, status: &str| {
        let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["type"] == type_ && condition["status"] == status)
    };
    match () {
        () if object["status"]["observedGeneration"] != object["metadata"]["generation"] => "InProgress",
        () if holds("Stalled", "True") => "Failed",
        () if holds("Reconciling", "True") || !holds("Ready", "True") => "InProgress",
        () => "Current",
    }
}

#[test]
fn health_follows_the_conditions() {
    let object = |observed: i64, conditions: &[(&str, &str)], suspend: bool| {
        let conditions = conditions.iter().map(|(type_, status)| {
            json!({"type": type_, "status": status, "reason": "Any", "message": format!("{type_} {status}")})
        });
        json!({
            "metadata": {"generation": 2}, "spec": {"suspend": suspend},
            "status": {"observedGeneration": observed, "conditions": conditions.collect::<Vec<_>>()},
        })
    };
    let (ready, waits) = (("Ready", "True"), ("Ready", "False"));
    for (object, expected, said, flux) in [
        (json!({"metadata": {"generation": 1}, "spec": {}}), "Progressing", "not reported", "InProgress"),
        (object(1, &[ready], false), "Progressing", "not reported", "InProgress"),
        (object(2, &[], false), "Progressing", "not reported", "InProgress"),
        (object(2, &[ready], false), "Healthy", "Ready True", "Current"),
        (
            object(2, &[ready, ("Stalled", "False"), ("Reconciling", "False")], false),
            "Healthy",
            "Ready True",
            "Current",
        ),
        (object(2, &[ready, ("Reconciling", "True")], false), "Progressing", "Ready True", "InProgress"),
        (
            object(2, &[waits, ("Stalled", "False"), ("Reconciling", "True")], false),
            "Progressing",
            "Ready False",
            "InProgress",
        ),
        (object(2, &[("Ready", "Unknown")], false), "Progressing", "Ready Unknown", "InProgress"),
        (object(2, &[waits, ("Stalled", "True")], false), "Degraded", "Stalled True", "Failed"),
        // It serves, and what the spec asks for is refused.
        (object(2, &[ready, ("Stalled", "True")], false), "Degraded", "Stalled True", "Failed"),
        (object(2, &[ready], true), "Suspended", "Ready True", "Current"),
    ] {
        let [status, message] = health(&object);
        assert_eq!((status.as_str(), kstatus(&object)), (expected, flux), "{object}");
        assert!(message.contains(said), "{object}: {message}");
    }
}

#[tokio::test]
async fn argo_cd_and_flux_tell_how_objects_are_and_argo_cd_repeats_and_approves() {
    let tenant = installed("gitops", json!({"upgrade": {"onFailure": "Stop", "retries": 0}})).await;
    let apps = tenant.api::<ClientApp>();
    let app = async || json!(apps.get("acme").await.unwrap());
    let actions = entry("resource.customizations.actions.apps.bnerd-operator.local_ClientApp");
    let disabled = |app: &Value, action: &str| run(&actions["discovery.lua"], app)[action]["disabled"] == true;
    let act = async |name: &str| {
        let mut definitions = actions["definitions"].as_array().unwrap().iter();
        let script = &definitions.find(|definition| definition["name"] == name).unwrap()["action.lua"];
        let before = app().await;
        assert!(!disabled(&before, name), "{before}");
        let changed = serde_json::from_value(run(script, &before)).unwrap();
        apps.replace("acme", &PostParams::default(), &changed).await.unwrap();
    };
    let shown = |object: &Value| (health(object)[0].clone(), kstatus(object));
    let is = |health: &str, flux: &'static str| (health.to_owned(), flux);

    let serving = app().await;
    assert_eq!(shown(&serving), is("Healthy", "Current"), "{serving}");
    assert!(disabled(&serving, "retry") && disabled(&serving, "approve"), "{serving}");

    tenant.patch("acme", json!({"suspend": true})).await.unwrap();
    tenant.condition("acme", "Reconciling", "False", "Suspended").await;
    let suspended = app().await;
    assert_eq!(shown(&suspended), is("Suspended", "Current"), "{suspended}");

    tenant.patch("acme", json!({"suspend": false, "values": refused()})).await.unwrap();
    let failed = |failures: u32| {
        move |status: &ClientAppStatus| {
            let attempt = status.last_attempt.as_ref().is_some_and(|attempt| attempt.failures == failures);
            attempt && find(&status.conditions, "Stalled").is_some_and(|stalled| stalled.status == "True")
        }
    };
    tenant.status("acme", "stopped", failed(1)).await;
    let stopped = app().await;
    assert_eq!(shown(&stopped), is("Degraded", "Failed"), "{stopped}");
    act("retry").await;
    tenant.status("acme", "stopped again", failed(2)).await;

    let manual = json!({"approval": "Manual", "values": null, "chartVersion": charts::PATCH});
    tenant.patch("acme", manual).await.unwrap();
    tenant.status("acme", "waiting for approval", |status| status.plan.is_some()).await;
    act("approve").await;
    tenant.status("acme", "upgraded", |status| status.plan.is_none() && has(status, "Ready", "True", "Ready")).await;
    let upgraded = app().await;
    assert_eq!(shown(&upgraded), is("Healthy", "Current"), "{upgraded}");

    let backup = json!({"metadata": {"name": "nothing"}, "spec": {"of": {"kind": "ClientApp", "name": "acme"}}});
    let backup = serde_json::from_value(backup).unwrap();
    tenant.api::<ClientAppBackup>().create(&PostParams::default(), &backup).await.unwrap();
    let ended = |found: Option<&ClientAppBackup>| {
        let phase = found?.status.as_ref()?.phase?;
        phase.is_final().then(|| json!(found))
    };
    let ended = tenant.wait_for("nothing", "at its end", ended).await;
    assert_eq!(shown(&ended), is("Degraded", "Failed"), "the app has nothing to back up: {ended}");
}
