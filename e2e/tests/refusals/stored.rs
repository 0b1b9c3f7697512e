//! Objects that were stored under an earlier schema.

use e2e::scenario::{admin_secret, with};

use super::*;

/// Replaces the schema of ClientApps. The caller waits until it applies.
async fn define(tenant: &Tenant, definition: &Value) {
    let patch = Patch::Merge(json!({"spec": {"versions": definition["spec"]["versions"]}}));
    let definitions: Api<CustomResourceDefinition> = Api::all(tenant.client.clone());
    definitions.patch(&ClientApp::crd().metadata.name.unwrap(), &PatchParams::default(), &patch).await.unwrap();
}

/// And an app with a longer name than new ones may have lives on.
#[tokio::test]
async fn a_stored_object_that_does_not_decode_is_told_and_can_be_deleted() {
    let (lab, _turn) = rough().await;
    let tenant = lab.tenant("undecodable").await;
    let strict = serde_json::to_value(ClientApp::crd()).unwrap();
    let mut loose = strict.clone();
    loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});

    tenant.create("turned", small(&tenant, "turned", charts::DEFAULT)).await.unwrap();
    tenant.ready("turned", 1).await;
    define(&tenant, &loose).await;
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
    admin_secret(&tenant, "given", "given-password").await;
    let (installed, new) = (&"a".repeat(53), &"b".repeat(41));
    for name in [installed, new] {
        // An administrator's Secret that the operator made would have to be there.
        let spec = with(small(&tenant, name, charts::DEFAULT), json!({"adminSecret": "given"}));
        tenant.create(name, spec).await.unwrap();
        let refused = invalid(&tenant, name).await;
        assert!(refused.contains("at most 37 characters"), "{refused}");
    }
    // As if an operator of that time had installed one. None runs meanwhile: it would begin to install it at once, and the next one
    // would go on from there with a revision more.
    tokio::task::spawn_blocking(|| drop(lab.operator().take())).await.unwrap();
    let digest = e2e::digest::sha256(charts::archive(charts::DEFAULT, charts::Content::Genuine).unwrap());
    let chart = json!({"name": charts::NAME, "version": charts::DEFAULT, "digest": digest});
    let status = Patch::Merge(json!({"status": {"installed": chart}}));
    raw(&tenant).patch_status(installed, &PatchParams::default(), &status).await.unwrap();
    define(&tenant, &strict).await;
    until("the strict schema applies", async || {
        // Until then it is refused for another reason.
        let refused = refusal(tenant.create("never", json!({"hostname": 8, "suspend": "no"})).await);
        refused.contains("must be of type string").then_some(())
    })
    .await;

    restart(lab).await;
    for (name, words) in [
        ("word", "the stored object does not decode: spec.suspend: invalid type: string \"yes\", expected a boolean"),
        ("turned", "spec.suspend: invalid type: string \"yes\", expected a boolean"),
        ("list", "spec.redis[0]: invalid type: string \"on\", expected a boolean"),
        ("nothing", "spec: missing field `hostname`"),
        (new, "at most 37 characters"),
    ] {
        let sentence = invalid(&tenant, name).await;
        assert!(sentence.contains(words), "{name}: {sentence}");
    }
    // The API server lets no client write a status to this one, since it cannot evaluate the rule for the field.
    let words = "the stored object does not decode: spec.hostname: invalid type: integer `7`, expected a string";
    tenant.events_with("number", "InvalidSpec", words).await;
    // The others keep working.
    tenant.create("good", small(&tenant, "good", charts::DEFAULT)).await.unwrap();
    tenant.ready("good", 1).await;
    tenant.ready(installed, 1).await;
    tenant.patch(installed, json!({"values": {"nextcloud": {"update": 1}}})).await.unwrap();
    tenant.ready(installed, 2).await;
    let of_invalid = |name: &String| ["number", "word", "list", "nothing", "bbb"].iter().any(|app| name.contains(app));
    assert_eq!(made(&tenant).into_iter().filter(of_invalid).collect::<Vec<_>>(), Vec::<String>::new());

    // Each is corrected or deleted.
    for name in ["number", "word"] {
        let repaired = with(small(&tenant, name, charts::DEFAULT), json!({"suspend": false}));
        raw(&tenant).patch(name, &PatchParams::default(), &Patch::Merge(json!({"spec": repaired}))).await.unwrap();
        tenant.ready(name, 1).await;
    }
    delete(&tenant, &["list", "nothing", "turned", "number", "word", "good", installed, new]);
    for name in ["turned", installed] {
        assert_eq!(tenant.listed(name), None);
    }
}
