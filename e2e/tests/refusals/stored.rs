//! Objects that were stored under an earlier schema.

use clientapp_crd::Guard;
use clientapp_operator::runtime::key::Key;
use clientapp_operator::runtime::status::Statuses;
use e2e::scenario::{admin_secret, with};

use super::*;

#[tokio::test]
async fn a_stored_object_that_does_not_decode_is_told_and_can_be_deleted() {
    let (lab, _turn) = rough().await;
    let tenant = lab.tenant("undecodable").await;
    let definitions: Api<CustomResourceDefinition> = Api::all(tenant.client.clone());
    let strict = serde_json::to_value(ClientApp::crd()).unwrap();
    let mut loose = strict.clone();
    loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let define = async |definition: &Value| {
        let patch = Patch::Merge(json!({"spec": {"versions": definition["spec"]["versions"]}}));
        definitions.patch(&ClientApp::crd().metadata.name.unwrap(), &PatchParams::default(), &patch).await.unwrap();
    };

    tenant.create("turned", small(&tenant, "turned", charts::DEFAULT)).await.unwrap();
    tenant.ready("turned", 1).await;
    define(&loose).await;
    for (name, spec) in [
        ("number", json!({"hostname": 7})),
        ("word", json!({"hostname": "word.example.com", "suspend": "yes"})),
        ("list", json!({"hostname": "list.example.com", "redis": ["on"]})),
        ("nothing", json!({})),
    ] {
        until("the loose schema applies", async || tenant.create(name, spec.clone()).await.ok()).await;
    }
    let patch = Patch::Merge(json!({"spec": {"suspend": "yes"}}));
    raw(&tenant).patch("turned", &PatchParams::default(), &patch).await.unwrap();
    define(&strict).await;
    until("the strict schema applies", async || {
        // Until then it is refused for another reason.
        let refused = refusal(tenant.create("never", json!({"hostname": 8, "suspend": "no"})).await);
        refused.contains("must be of type string").then_some(())
    })
    .await;

    for (name, words) in [
        ("word", "the stored object does not decode: spec.suspend: invalid type: string \"yes\", expected a boolean"),
        ("turned", "spec.suspend: invalid type: string \"yes\", expected a boolean"),
        ("list", "spec.redis[0]: invalid type: string \"on\", expected a boolean"),
        ("nothing", "spec: missing field `hostname`"),
    ] {
        let sentence = invalid(&tenant, name).await;
        assert!(sentence.contains(words), "{name}: {sentence}");
    }
    // The API server lets no client write a status to this one, since it cannot evaluate the rule for the field.
    let words = "the stored object does not decode: spec.hostname: invalid type: integer `7`, expected a string";
    tenant.events_with("number", "InvalidSpec", words).await;
    // The others keep working, even if an operator starts while the invalid ones exist.
    restart(lab).await;
    tenant.create("good", small(&tenant, "good", charts::DEFAULT)).await.unwrap();
    tenant.ready("good", 1).await;
    let others = |name: &String| !name.contains("good") && !name.contains("turned");
    assert_eq!(made(&tenant).into_iter().filter(others).collect::<Vec<_>>(), Vec::<String>::new());

    // Each is corrected or deleted.
    for name in ["number", "word"] {
        let mut repaired = small(&tenant, name, charts::DEFAULT);
        repaired["suspend"] = json!(false);
        raw(&tenant).patch(name, &PatchParams::default(), &Patch::Merge(json!({"spec": repaired}))).await.unwrap();
        tenant.ready(name, 1).await;
    }
    for name in ["list", "nothing", "turned", "number", "word", "good"] {
        delete(&tenant, name).await;
    }
    assert_eq!(tenant.listed("turned"), None);
}

#[tokio::test]
async fn an_app_with_a_longer_name_than_new_ones_may_have_lives_on() {
    let (lab, _turn) = rough().await;
    let tenant = lab.tenant("long-ago").await;
    let definitions: Api<CustomResourceDefinition> = Api::all(tenant.client.clone());
    let strict = serde_json::to_value(ClientApp::crd()).unwrap();
    let mut former = strict.clone();
    let rules = former["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["x-kubernetes-validations"].as_array_mut();
    let before = rules.as_ref().map_or(0, |rules| rules.len());
    let rules = rules.unwrap();
    rules.retain(|rule| !rule["rule"].as_str().unwrap().contains("metadata.name.size()"));
    assert_eq!(rules.len(), before - 1);
    let define = async |definition: &Value| {
        let patch = Patch::Merge(json!({"spec": {"versions": definition["spec"]["versions"]}}));
        definitions.patch(&ClientApp::crd().metadata.name.unwrap(), &PatchParams::default(), &patch).await.unwrap();
    };
    let (installed, new) = (&"a".repeat(53), &"b".repeat(41));
    define(&former).await;
    admin_secret(&tenant, "given", "given-password").await;
    for name in [installed, new] {
        // One that the operator made would have to be there.
        let spec = with(small(&tenant, name, charts::DEFAULT), json!({"adminSecret": "given"}));
        until("the former schema applies", async || tenant.create(name, spec.clone()).await.ok()).await;
        let refused = invalid(&tenant, name).await;
        assert!(refused.contains("at most 37 characters"), "{refused}");
    }
    // As if an operator of that time had installed it. None runs meanwhile: it would begin to install it at once, and the next one
    // would go on from there with a revision more.
    tokio::task::spawn_blocking(|| drop(lab.operator().take())).await.unwrap();
    let digest = charts::digest(&charts::archive(charts::DEFAULT, charts::Content::Genuine).unwrap());
    let chart = json!({"name": charts::NAME, "version": charts::DEFAULT, "digest": digest});
    let status = Patch::Merge(json!({"status": {"installed": chart}}));
    raw(&tenant).patch_status(installed, &PatchParams::default(), &status).await.unwrap();
    define(&strict).await;
    until("the present schema applies", async || {
        let refused = refusal(tenant.create(&"c".repeat(41), json!({"hostname": "c.example.com"})).await);
        refused.contains("at most 37 characters").then_some(())
    })
    .await;
    restart(lab).await;
    tenant.ready(installed, 1).await;
    tenant.patch(installed, json!({"values": {"nextcloud": {"update": 1}}})).await.unwrap();
    tenant.ready(installed, 2).await;
    for name in [installed, new] {
        delete(&tenant, name).await;
    }
    assert_eq!(tenant.listed(installed), None);
}

#[tokio::test]
async fn a_status_is_not_written_to_an_object_of_the_same_name_that_came_after() {
    let tenant = Lab::shared().await.tenant("successor").await;
    tenant.create("acme", small(&tenant, "acme", charts::DEFAULT)).await.unwrap();
    tenant.ready("acme", 1).await;
    let key = Key::new(&tenant.namespace, "acme");
    let status = ClientAppStatus { admin_secret_name: Some("its".into()), ..ClientAppStatus::default() };
    let write = async |app: &Guard<ClientApp>| {
        let statuses = Statuses::default();
        statuses.write(&tenant.client, &statuses.subject(&key, app), &status).await
    };
    let guards: Api<Guard<ClientApp>> = Api::namespaced(tenant.client.clone(), &tenant.namespace);
    let mut other = guards.get("acme").await.unwrap();
    other.metadata.uid = Some("7e1a0c5e-0000-0000-0000-000000000000".to_owned());
    let refused = write(&other).await;
    let Err(kube::Error::Api(refused)) = refused else { panic!("{refused:?}") };
    assert_eq!((refused.code, refused.reason.as_str()), (410, "Gone"), "{refused:?}");
    let stored = tenant.api::<ClientApp>().get("acme").await.unwrap().status.unwrap();
    assert_eq!(stored.release.map(|release| release.revision), Some(1), "the status is the operator's");
    // With its own uid the status is written as a whole: what it lacks is gone, until the operator reports it again. The operator may
    // have written one in between.
    until("written", async || write(&guards.get("acme").await.unwrap()).await.ok()).await;
    tenant.ready("acme", 1).await;
}
