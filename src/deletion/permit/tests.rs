use serde_json::{Value, json};

use super::*;
use crate::crd::{ClientApp, annotation};

fn app(change: &dyn Fn(&mut Value)) -> Guard<ClientApp> {
    let mut app = json!({
        "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp",
        "metadata": {
            "name": "acme", "namespace": "tenants", "uid": "1",
            "creationTimestamp": "2026-01-01T12:00:00Z", "deletionTimestamp": "2026-01-02T12:00:00Z",
            "finalizers": ["apps.bnerd-operator.local/teardown"],
        },
        "spec": {"hostname": "acme.example"},
        "status": {"owned": [
            {"kind": "PersistentVolumeClaim", "name": "files", "uid": "2"},
            {"kind": "Secret", "name": "acme-admin-secret", "uid": "3"},
        ]},
    });
    change(&mut app);
    serde_json::from_value(app).unwrap()
}

fn target(change: &dyn Fn(&mut Value)) -> ObjectMeta {
    let mut meta = json!({
        "name": "files", "namespace": "tenants", "uid": "2", "creationTimestamp": "2026-01-01T12:00:01Z",
        "resourceVersion": "7", "annotations": {annotation::OWNER_UID: "1"},
    });
    change(&mut meta);
    serde_json::from_value(meta).unwrap()
}

#[test]
fn whose_data_go_with_it() {
    let denied = |change: &dyn Fn(&mut Value), uid: &str| grant(Some(&app(change)), uid).err();
    for (change, expected) in [
        (&(|_: &mut Value| {}) as &dyn Fn(&mut Value), None),
        (&|app| app["metadata"]["deletionTimestamp"] = Value::Null, Some(GrantDenied::Alive)),
        (&|app| app["metadata"]["finalizers"] = json!(["orphan"]), Some(GrantDenied::Orphaned)),
        (&|app| app["spec"]["hostname"] = json!(1), Some(GrantDenied::Unreadable)),
        (&|app| app["spec"]["suspend"] = json!(true), Some(GrantDenied::Suspended)),
        (&|app| app["status"]["orphaned"] = json!(true), Some(GrantDenied::Orphaned)),
        (
            &|app| {
                app["spec"]["deletionPolicy"] = json!("Retain");
                app["status"]["owned"][0]["kind"] = json!("PerconaPGCluster");
            },
            Some(GrantDenied::Retained),
        ),
        // Credentials alone, of an app that was never installed, open nothing.
        (
            &|app| {
                app["spec"]["deletionPolicy"] = json!("Retain");
                app["status"]["owned"][0]["kind"] = json!("Secret");
            },
            None,
        ),
    ] {
        assert_eq!(denied(change, "1"), expected, "{:?}", app(change));
    }
    assert_eq!(denied(&|_| {}, "another"), Some(GrantDenied::Gone));
    assert_eq!(grant::<ClientApp>(None, "1").err(), Some(GrantDenied::Gone));
}

#[test]
fn what_may_be_destroyed() {
    let grant = grant(Some(&app(&|_| {})), "1").unwrap();
    assert_eq!((grant.meta.namespace.as_deref(), grant.meta.name.as_deref()), (Some("tenants"), Some("acme")));
    let permit = grant.permit(DataKind::Volume, target(&|_| {})).unwrap();
    assert_eq!((permit.kind, permit.namespace.as_str()), (DataKind::Volume, "tenants"));
    for (kind, change, because) in [
        // On one side only.
        (DataKind::Volume, &(|meta: &mut Value| meta["uid"] = json!("9")) as &dyn Fn(&mut Value), "not on record"),
        (DataKind::Volume, &|meta| meta["uid"] = Value::Null, "not on record"),
        (DataKind::Volume, &|meta| meta["name"] = json!("other"), "not on record"),
        (DataKind::Secret, &|_| {}, "not on record"),
        (DataKind::Volume, &|meta| meta["annotations"] = Value::Null, "does not show"),
        (DataKind::Volume, &|meta| meta["annotations"][annotation::OWNER_UID] = json!("9"), "does not show"),
        // Claimed by another owner or manager.
        (
            DataKind::Volume,
            &|meta| {
                meta["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Backup", "name": "x", "uid": "9"}]);
            },
            "Backup x owns it",
        ),
        (DataKind::Volume, &|meta| meta["labels"] = json!({label::RETAINED_FROM: "acme"}), "has left it"),
        (DataKind::Volume, &|meta| meta["labels"] = json!({label::MANAGED_BY: "argocd"}), "argocd manages it"),
    ] {
        let kept = grant.permit(kind, target(change)).unwrap_err();
        assert!(kept.because.contains(because), "{kept}");
    }
    for by in [label::OPERATOR, "Helm"] {
        assert!(
            grant.permit(DataKind::Volume, target(&|meta| meta["labels"] = json!({label::MANAGED_BY: by}))).is_ok()
        );
    }
}

#[test]
fn what_the_garbage_collector_would_delete_may_be_destroyed_under_either_policy() {
    let owned_by = |uids: &[&str]| {
        let owner = |uid: &&str| json!({"apiVersion": "v1", "kind": "ClientApp", "name": "x", "uid": uid});
        json!(uids.iter().map(owner).collect::<Vec<_>>())
    };
    let secret = |uid: &str, owners: Value| {
        target(&|meta| {
            meta["name"] = json!("acme-admin-secret");
            meta["uid"] = json!(uid);
            meta["ownerReferences"] = owners.clone();
        })
    };
    for policy in ["Delete", "Retain"] {
        let change = |app: &mut Value| app["spec"]["deletionPolicy"] = json!(policy);
        for (uid, owners, expected) in [
            ("3", owned_by(&["1"]), true),
            ("3", owned_by(&["1", "2"]), false),
            ("3", owned_by(&["2"]), false),
            // Retained, or orphaned.
            ("3", owned_by(&[]), false),
            // Another one of its name.
            ("9", owned_by(&["1"]), false),
        ] {
            let permit = dependent(Some(&app(&change)), "1", secret(uid, owners.clone())).unwrap();
            assert_eq!(permit.is_some(), expected, "{policy}: {uid}, {owners}");
        }
    }
    for (change, expected) in [
        (
            &(|app: &mut Value| app["metadata"]["deletionTimestamp"] = Value::Null) as &dyn Fn(&mut Value),
            GrantDenied::Alive,
        ),
        (&|app| app["metadata"]["finalizers"] = json!(["orphan"]), GrantDenied::Orphaned),
        (&|app| app["status"]["orphaned"] = json!(true), GrantDenied::Orphaned),
        (&|app| app["spec"]["suspend"] = json!(true), GrantDenied::Suspended),
        (&|app| app["spec"]["hostname"] = json!(1), GrantDenied::Unreadable),
    ] {
        let denied = dependent(Some(&app(change)), "1", secret("3", owned_by(&["1"]))).err();
        assert_eq!(denied, Some(expected));
    }
}
