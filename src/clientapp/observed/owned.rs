//! Tells which objects with data or credentials an app owns, **pure**: recorded by uid while the app lives, since nothing that could be
//! read at its deletion proves it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{inventory, release::ReleaseView, types::Retained, volumes};
use crate::{
    clientapp::spec::{database::is_database, desired::without_volumes, names},
    crd::{ClientApp, ClientAppStatus, DeletionPolicy, Inventory, Owned, annotation, label},
    deletion::{
        permit::{DataKind, DataOwner, DeletionIntent, is_younger},
        recently_created,
    },
    platform::key::Key,
};

/// The label with which charts distinguish their releases, and which a StatefulSet's claims inherit.
pub(crate) const INSTANCE: &str = "app.kubernetes.io/instance";

impl DataOwner for ClientApp {
    fn deletion_intent(&self) -> DeletionIntent {
        match (self.spec.suspend, self.spec.deletion_policy) {
            (true, _) => DeletionIntent::Suspended,
            // Credentials that were never used open nothing.
            (false, DeletionPolicy::Retain) if !has_data(self) => DeletionIntent::Delete,
            (false, DeletionPolicy::Retain) => DeletionIntent::Retain,
            (false, DeletionPolicy::Delete) => DeletionIntent::Delete,
        }
    }

    fn owned(&self) -> &[Owned] {
        self.status.as_ref().map_or(&[], |status| &status.owned)
    }

    fn orphaned(&self) -> bool {
        self.status.as_ref().is_some_and(|status| status.orphaned == Some(true))
    }

    fn is_marked_as_owned(owner: &ObjectMeta, target: &ObjectMeta) -> bool {
        is_stamped(owner, target) || is_of_release(owner, target)
    }
}

/// Returns true if there was ever anything to retain.
fn has_data(app: &ClientApp) -> bool {
    app.status.as_ref().is_some_and(|status| {
        status.installed.is_some()
            || status.last_attempt.is_some()
            || status.release.is_some()
            || status.owned.iter().any(|entry| entry.kind != DataKind::Secret.as_str())
    })
}

/// Returns true if the operator created it for this app, or adopted it: by annotation, or by the ownerReference of earlier
/// versions.
pub(crate) fn is_stamped(app: &ObjectMeta, target: &ObjectMeta) -> bool {
    let uid = app.uid.as_ref();
    let stamp = target.annotations.as_ref().and_then(|annotations| annotations.get(annotation::OWNER_UID));
    uid.is_some() && (stamp == uid || target.owner_references.iter().flatten().any(|owner| Some(&owner.uid) == uid))
}

/// Returns true if it was created after this app, by helm for the app's release or by a StatefulSet of it.
fn is_of_release(app: &ObjectMeta, target: &ObjectMeta) -> bool {
    let name = app.name.clone().unwrap_or_default();
    let key = Key::new(app.namespace.clone().unwrap_or_default(), name.clone());
    let label = |key: &str| target.labels.as_ref().and_then(|labels| labels.get(key));
    let stamped = target.annotations.iter().flatten().any(|(key, _)| key == annotation::OWNER_UID);
    let says = match target.annotations.as_ref().and_then(|found| found.get(names::RELEASE_NAME)) {
        Some(_) => names::release_of(target) == Some(key),
        None => label(INSTANCE) == Some(&name),
    };
    !stamped && says && is_younger(app, target)
}

/// The observed objects of an app with data or credentials.
pub(crate) struct OwnershipEvidence<'a> {
    pub app: &'a ObjectMeta,
    pub inventory: Option<&'a Inventory>,
    pub claims: &'a [&'a ObjectMeta],
    /// Holds what this process created for it.
    pub made: Vec<Owned>,
    /// The Secrets and databases that are looked for by name.
    pub named: &'a [(DataKind, ObjectMeta)],
}

/// Returns the new record: the old entries, and observed objects that the app owns. An entry is replaced only when another
/// object has its name, since a late cache may not show an object that exists; that of a volume with the app's data only if a
/// user has confirmed it.
pub(crate) fn merge_owned(recorded: &[Owned], evidence: &OwnershipEvidence<'_>) -> Vec<Owned> {
    let OwnershipEvidence { app, inventory, claims, made, named } = evidence;
    let namespace = app.namespace.as_deref().unwrap_or_default();
    let of_release = claims.iter().copied().filter(|claim| {
        let name = claim.name.as_deref().unwrap_or_default();
        inventory.is_some_and(|inventory| inventory::maker(inventory, namespace, name).is_some())
            && is_of_release(app, claim)
    });
    let stamped = named.iter().filter(|(_, meta)| is_stamped(app, meta) && is_younger(app, meta));
    let found = of_release.map(|claim| (DataKind::Volume, claim)).chain(stamped.map(|(kind, meta)| (*kind, meta)));
    let confirmed = without_volumes(app);
    let mut owned = volumes::without_gone(recorded.to_vec(), *inventory, namespace, claims);
    recently_created::add_missing(&mut owned, made);
    for (kind, meta) in found {
        let retained = meta.labels.iter().flatten().any(|(key, _)| key == label::RETAINED_FROM);
        let is_another = kind == DataKind::Volume
            && volumes::is_another(meta, app.name.as_deref().unwrap_or_default(), recorded, &confirmed);
        if meta.deletion_timestamp.is_none() && !retained && !is_another {
            recently_created::upsert(&mut owned, kind.owned(meta));
        }
    }
    owned
}

/// Returns true if a claim of this name is of the app's release, or on record.
pub(crate) fn has_claim(app: &ClientApp, claim: &str) -> bool {
    let Some(status) = &app.status else { return false };
    let namespace = app.metadata.namespace.as_deref().unwrap_or_default();
    let inventory = status.inventory.as_ref();
    inventory.is_some_and(|inventory| inventory::maker(inventory, namespace, claim).is_some())
        || uid(&status.owned, DataKind::Volume, claim).is_some()
}

pub(crate) fn uid<'a>(owned: &'a [Owned], kind: DataKind, name: &str) -> Option<&'a str> {
    owned.iter().find(|entry| entry.kind == kind.as_str() && entry.name == name).map(|entry| entry.uid.as_str())
}

/// Returns the name of the database on record that the app uses, if its spec names another one.
pub(crate) fn replaced<'a>(recorded: &'a ClientAppStatus, kind: DataKind, name: &str) -> Option<&'a str> {
    let in_use = recorded.postgres_cluster_name.as_deref().filter(|in_use| *in_use != name)?;
    uid(&recorded.owned, kind, in_use).map(|_| in_use)
}

/// Returns those of these databases that the app has left: it neither uses them, nor does its spec name them.
pub(crate) fn former<'a>(
    owned: &'a [Owned],
    recorded: &'a ClientAppStatus,
    name: &'a str,
) -> impl Iterator<Item = &'a Owned> {
    let is_used =
        move |entry: &Owned| entry.name == name || recorded.postgres_cluster_name.as_ref() == Some(&entry.name);
    owned.iter().filter(move |entry| is_database(entry) && !is_used(entry))
}

/// Returns true if the app, or an attempt to install it, may already use the credentials in the Secret of this name.
pub(crate) fn is_in_use(secret: &str, recorded: &ClientAppStatus, release: Option<&ReleaseView>) -> bool {
    uid(&recorded.owned, DataKind::Secret, secret).is_some()
        || recorded.last_attempt.is_some()
        || recorded.installed.is_some()
        || release.is_some_and(|release| release.ever_managed)
}

/// Returns the record once an adoption has started: all objects that the app owns from then on, and the chart that last ran
/// with its data.
pub(crate) fn adopted(recorded: &ClientAppStatus, found: &[Retained]) -> ClientAppStatus {
    let mut status = recorded.clone();
    if let Some(installed) = found.iter().find_map(|left| left.installed.clone()) {
        status.installed = Some(installed);
    }
    for Retained { kind, name, uid, of_database, .. } in found {
        // The database's own objects are deleted with it.
        if !of_database {
            let owned = Owned { kind: kind.as_str().to_owned(), name: name.clone(), uid: uid.clone() };
            recently_created::upsert(&mut status.owned, owned);
        }
    }
    status
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::clientapp::{
        fixtures::{self, object, owned, stateful_set},
        spec::database,
    };

    fn meta(value: Value) -> ObjectMeta {
        serde_json::from_value(value).unwrap()
    }

    fn app() -> ObjectMeta {
        meta(json!({"name": "acme", "namespace": "tenants", "uid": "1", "creationTimestamp": "2026-01-01T12:00:00Z"}))
    }

    fn claim(change: Value) -> ObjectMeta {
        let mut claim = json!({
            "name": "acme-files", "namespace": "tenants", "uid": "2", "creationTimestamp": "2026-01-01T12:00:01Z",
            "annotations": {names::RELEASE_NAME: "acme", names::RELEASE_NAMESPACE: "tenants"},
            "labels": {INSTANCE: "acme"},
        });
        for (key, value) in change.as_object().unwrap() {
            claim[key] = value.clone();
        }
        meta(claim)
    }

    #[test]
    fn evidence_of_creation_for_an_app() {
        for (change, made) in [
            (json!({}), true),
            (json!({"annotations": null}), true),
            (json!({"annotations": null, "labels": null}), false),
            (json!({"annotations": null, "labels": {INSTANCE: "other"}}), false),
            (json!({"annotations": {names::RELEASE_NAME: "other", names::RELEASE_NAMESPACE: "tenants"}}), false),
            (json!({"annotations": {names::RELEASE_NAME: "acme", names::RELEASE_NAMESPACE: "other"}}), false),
            (json!({"creationTimestamp": "2026-01-01T11:59:59Z"}), false),
            (json!({"annotations": {annotation::OWNER_UID: "1"}, "creationTimestamp": "2020-01-01T00:00:00Z"}), true),
            (json!({"annotations": {annotation::OWNER_UID: "9"}}), false),
            (
                json!({"annotations": null, "labels": null, "ownerReferences": [
                    {"apiVersion": "v1", "kind": "ClientApp", "name": "acme", "uid": "1"},
                ]}),
                true,
            ),
        ] {
            assert_eq!(ClientApp::is_marked_as_owned(&app(), &claim(change.clone())), made, "{change}");
        }
    }

    #[test]
    fn owned_objects_are_recorded() {
        let set = stateful_set("acme-redis", "data");
        let objects = vec![object("PersistentVolumeClaim", "acme-files"), set];
        let inventory = Inventory { objects, ..Inventory::default() };
        let claims = [
            claim(json!({})),
            claim(json!({"name": "data-acme-redis-0", "uid": "3", "annotations": null})),
            // In no manifest, older, retained from another app, being deleted.
            claim(json!({"name": "look-alike", "uid": "4"})),
            claim(json!({"name": "data-acme-redis-1", "uid": "5", "creationTimestamp": "2025-01-01T12:00:01Z"})),
            claim(
                json!({"name": "data-acme-redis-2", "uid": "6", "labels": {INSTANCE: "acme", label::RETAINED_FROM: "acme"}, "annotations": null}),
            ),
            claim(json!({"name": "data-acme-redis-3", "uid": "7", "deletionTimestamp": "2026-01-01T12:00:02Z"})),
        ];
        let claims = claims.each_ref();
        let secret = |uid: &str, stamp: &str| {
            meta(json!({
                "name": "acme-admin-secret", "uid": uid, "creationTimestamp": "2026-01-01T12:00:00Z",
                "annotations": {annotation::OWNER_UID: stamp},
            }))
        };
        let named = [(DataKind::Secret, secret("8", "1"))];
        let app = app();
        let evidence = OwnershipEvidence {
            app: &app,
            inventory: Some(&inventory),
            claims: &claims,
            made: Vec::new(),
            named: &named,
        };
        let record = merge_owned(&[], &evidence);
        let uids = |record: &[Owned]| record.iter().map(|owned| owned.uid.clone()).collect::<Vec<_>>();
        assert_eq!(uids(&record), ["2", "3", "8"]);
        // An object that is not observed keeps its entry; a successor replaces it; another app's object does not.
        let nothing = OwnershipEvidence { app: &app, inventory: None, claims: &[], made: Vec::new(), named: &[] };
        assert_eq!(merge_owned(&record, &nothing), record);
        // An object that was just created counts before a cache shows it, but does not replace another entry.
        let made = vec![owned("Secret", "acme-admin-secret", "10"), owned("Secret", "acme-redis-secret", "11")];
        let just_made = OwnershipEvidence { app: &app, inventory: None, claims: &[], made, named: &[] };
        assert_eq!(uids(&merge_owned(&record, &just_made)), ["2", "3", "8", "11"]);
        let named = [(DataKind::Secret, secret("9", "1"))];
        assert_eq!(uids(&merge_owned(&record, &OwnershipEvidence { named: &named, ..nothing })), ["2", "3", "9"]);
        let named = [(DataKind::Secret, secret("9", "another"))];
        let nothing = OwnershipEvidence { app: &app, inventory: None, claims: &[], made: Vec::new(), named: &named };
        assert_eq!(merge_owned(&record, &nothing), record);
    }

    #[test]
    fn databases_that_an_app_uses_and_has_left() {
        let cluster = database::all().map(|provider| provider.kind()).find(|kind| kind.as_str() == "Cluster").unwrap();
        let entry = |kind: DataKind, name: &str| kind.owned(&meta(json!({"name": name, "uid": name})));
        let recorded = |in_use: &str| ClientAppStatus {
            postgres_cluster_name: Some(in_use.to_owned()),
            owned: vec![
                entry(cluster, "acme-pg"),
                entry(cluster, "acme-pg-2"),
                entry(DataKind::Volume, "acme-pg-3"),
                entry(DataKind::Secret, "acme-pg-4"),
            ],
            ..ClientAppStatus::default()
        };
        for (in_use, asked, before, left) in [
            ("acme-pg", "acme-pg", None, vec!["acme-pg-2"]),
            // The app moves.
            ("acme-pg", "acme-pg-2", Some("acme-pg"), vec![]),
            ("acme-pg-2", "acme-pg-2", None, vec!["acme-pg"]),
            // And back, or on.
            ("acme-pg-2", "acme-pg", Some("acme-pg-2"), vec![]),
            ("acme-pg-2", "acme-pg-5", Some("acme-pg-2"), vec!["acme-pg"]),
            // What is not on record as owned is used by no revision.
            ("other", "acme-pg", None, vec!["acme-pg-2"]),
            ("acme-pg-4", "acme-pg", None, vec!["acme-pg-2"]),
        ] {
            let recorded = recorded(in_use);
            let names: Vec<_> = former(&recorded.owned, &recorded, asked).map(|entry| entry.name.as_str()).collect();
            assert_eq!((replaced(&recorded, cluster, asked), names), (before, left), "{in_use} {asked}");
        }
    }

    #[test]
    fn claims_of_an_app() {
        let set = stateful_set("acme-redis", "data");
        let objects = vec![object("PersistentVolumeClaim", "acme-files"), object("Service", "acme"), set];
        let left = ObjectMeta { name: Some("left".to_owned()), ..ObjectMeta::default() };
        let mut app = fixtures::app(&json!({"chartVersion": "1.2.3"}));
        assert!(!has_claim(&app, "acme-files"), "it was not installed yet");
        app.status = Some(ClientAppStatus {
            inventory: Some(Inventory { objects, ..Inventory::default() }),
            owned: vec![DataKind::Volume.owned(&left)],
            ..ClientAppStatus::default()
        });
        for (claim, expected) in
            [("acme-files", true), ("data-acme-redis-7", true), ("left", true), ("acme", false), ("other", false)]
        {
            assert_eq!(has_claim(&app, claim), expected, "{claim}");
        }
    }
}
