//! The namespace that was made for an app, and goes with it. An **effect**, with a pure rule.
//!
//! A namespace takes everything in it along, so it is deleted only where it carries the mark of having been made for an
//! app ([`label::INSTANCE`]) and nothing is in it that could be anybody's.

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment, StatefulSet},
    batch::v1::{CronJob, Job},
    core::v1::{ConfigMap, Namespace, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount},
    networking::v1::Ingress,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Preconditions},
};
use serde::de::DeserializeOwned;
use std::{collections::BTreeSet, time::Duration};

use super::{Ctx, error::Error};
use crate::{
    controller::{
        events::Note,
        key::{Key, key_of},
    },
    crd::{
        ClientApp, Guard, Postgresql, label,
        percona::{CLUSTER_LABEL, PerconaPGBackup, PerconaPGCluster},
    },
};

/// In every namespace, made by Kubernetes itself.
const OF_KUBERNETES: &[(&str, &str)] = &[("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")];
/// A namespace without an app may belong to one that is just being made.
const YOUNG: jiff::SignedDuration = jiff::SignedDuration::from_mins(10);

/// What has become of a namespace.
#[derive(Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was not made for an app, or is gone already.
    NotOurs,
    /// It is being deleted.
    Deleting,
    /// It stays, because this is in it.
    Kept(String),
}

impl Fate {
    /// What to tell about the app that was deleted.
    #[must_use]
    pub fn note(self, namespace: &str) -> Option<Note> {
        let Fate::Kept(object) = self else { return None };
        Some(Note {
            action: "Deleting".to_owned(),
            warning: false,
            reason: "NamespaceKept".to_owned(),
            message: format!("namespace {namespace} was made for this ClientApp and stays, since {object} is in it"),
        })
    }
}

/// Deletes the namespace of an app that is taken down but for its finalizer. The app keeps the namespace until the
/// finalizer goes, so that a crash between the two loses neither.
///
/// # Errors
/// A request failed.
pub async fn release(ctx: &Ctx, app: &Key, uid: &str) -> Result<Fate, Error> {
    let namespaces: Api<Namespace> = Api::all(ctx.client.clone());
    let name = &app.namespace;
    match namespaces.get_opt(name).await.map_err(Error::api(format!("look at namespace {name}")))? {
        Some(namespace) => delete_if_empty(ctx, &namespace, Some((app, uid))).await,
        None => Ok(Fate::NotOurs),
    }
}

/// Deletes the namespaces whose app never came to be, since an operator ended while it made it. At the start, and again
/// when those that are young then have had their time.
pub async fn sweep(ctx: &Ctx) {
    ctx.listed.wait().await;
    ctx.watches.synced().await;
    loop {
        match sweep_once(ctx).await {
            Ok(None) => return,
            Ok(Some(wait)) => tokio::time::sleep(wait).await,
            Err(error) => {
                tracing::warn!(%error, "namespaces whose ClientApp never came to be are not looked for until the next start");
                return;
            }
        }
    }
}

/// How long until the last of those that are too young will not be.
async fn sweep_once(ctx: &Ctx) -> Result<Option<Duration>, Error> {
    let namespaces: Api<Namespace> = Api::all(ctx.client.clone());
    let made = ListParams::default().labels(&format!("{},{}={}", label::INSTANCE, label::MANAGED_BY, label::OPERATOR));
    let made = namespaces.list(&made).await.map_err(Error::api("list the namespaces made for ClientApps"))?;
    let apps = ctx.watches.apps.state();
    let with_app = apps.iter().filter_map(|app| app.metadata.namespace.as_deref()).collect();
    let (forsaken, wait) = forsaken(&made.items, &with_app, ctx.now());
    for namespace in forsaken {
        if delete_if_empty(ctx, namespace, None).await? == Fate::Deleting {
            tracing::warn!(namespace = namespace.name_any(), "was made for a ClientApp that never came to be: deleted");
        }
    }
    Ok(wait)
}

/// Of the namespaces that were made for apps those that have none and are old enough, and how long until the youngest
/// without one is. **Pure.**
fn forsaken<'a>(
    made: &'a [Namespace],
    with_app: &BTreeSet<&str>,
    now: Timestamp,
) -> (Vec<&'a Namespace>, Option<Duration>) {
    let (mut old, mut wait) = (Vec::new(), None);
    for namespace in made {
        if with_app.contains(namespace.name_any().as_str()) {
            continue;
        }
        let created = namespace.creation_timestamp().map_or(now, |created| created.0);
        match Duration::try_from((created + YOUNG).duration_since(now)) {
            Ok(young) if !young.is_zero() => wait = wait.max(Some(young)),
            _ => old.push(namespace),
        }
    }
    (old, wait)
}

async fn delete_if_empty(ctx: &Ctx, namespace: &Namespace, app: Option<(&Key, &str)>) -> Result<Fate, Error> {
    let labels = namespace.labels();
    let ours = labels.contains_key(label::INSTANCE)
        && labels.get(label::MANAGED_BY).map(String::as_str) == Some(label::OPERATOR);
    if !ours {
        return Ok(Fate::NotOurs);
    }
    if namespace.metadata.deletion_timestamp.is_some() {
        return Ok(Fate::Deleting);
    }
    let name = namespace.name_any();
    if let Some(object) = content(ctx, &name, app).await? {
        return Ok(Fate::Kept(object));
    }
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: namespace.metadata.uid.clone(),
            // Whoever has changed the namespace meanwhile may have made it their own.
            resource_version: namespace.metadata.resource_version.clone(),
        }),
        ..DeleteParams::default()
    };
    match Api::<Namespace>::all(ctx.client.clone()).delete(&name, &params).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(Fate::NotOurs),
        Err(error) => Err(Error::api(format!("delete namespace {name}"))(error)),
        Ok(_) => Ok(Fate::Deleting),
    }
}

/// The first object found that is not the app's own.
async fn content(ctx: &Ctx, namespace: &str, app: Option<(&Key, &str)>) -> Result<Option<String>, Error> {
    macro_rules! first_of {
        ($($kind:ty),*) => {
            $(
                if let Some(found) = first::<$kind>(ctx, namespace, app).await? {
                    return Ok(Some(found));
                }
            )*
        };
    }
    if let Some(other) = ctx
        .watches
        .apps
        .state()
        .iter()
        .map(|app| key_of(app.as_ref()))
        .find(|other| other.namespace == namespace && app.is_none_or(|(app, _)| app != other))
    {
        return Ok(Some(format!("ClientApp {}", other.name)));
    }
    // What is data or holds some, what runs, and what leads to it. Objects of kinds that are not known here hold their
    // data in one of these.
    first_of!(PersistentVolumeClaim, Secret, ConfigMap, Deployment, StatefulSet, DaemonSet, CronJob, Job, Pod, Service);
    first_of!(Ingress, ServiceAccount, Guard<ClientApp>);
    if ctx.watches.clusters.installed() {
        first_of!(PerconaPGCluster);
    }
    if ctx.watches.backups.installed() {
        first_of!(PerconaPGBackup);
    }
    if ctx.watches.postgresqls.installed() {
        first_of!(Postgresql);
    }
    Ok(None)
}

async fn first<K>(ctx: &Ctx, namespace: &str, app: Option<(&Key, &str)>) -> Result<Option<String>, Error>
where
    K: Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>
        + Clone
        + DeserializeOwned
        + std::fmt::Debug,
{
    let kind = K::kind(&());
    let api: Api<K> = Api::namespaced(ctx.client.clone(), namespace);
    let objects = api
        .list_metadata(&ListParams::default())
        .await
        .map_err(Error::api(format!("list each {kind} in namespace {namespace}")))?;
    let other = objects.items.iter().find(|object| is_anybodys(&kind, &object.metadata, app));
    Ok(other.map(|object| format!("{kind} {}", object.name_any())))
}

/// Whether an object in an app's namespace could be missed by somebody once that app is gone. **Pure.**
fn is_anybodys(kind: &str, meta: &ObjectMeta, app: Option<(&Key, &str)>) -> bool {
    let name = meta.name.as_deref().unwrap_or_default();
    if meta.deletion_timestamp.is_some() || OF_KUBERNETES.contains(&(kind, name)) {
        return false;
    }
    let label = |key: &str| meta.labels.as_ref().and_then(|labels| labels.get(key)).map(String::as_str);
    let Some((app, uid)) = app else { return true };
    let owned = meta.owner_references.iter().flatten().any(|owner| owner.uid == uid);
    let itself = kind == "ClientApp" && name == app.name && meta.uid.as_deref() == Some(uid);
    // The garbage collector is on its way to the pods of the workloads that are gone.
    let leftover = kind == "Pod"
        && (label("app.kubernetes.io/instance") == Some(&app.name) || label(CLUSTER_LABEL) == Some(&app.cluster()));
    !(owned || itself || leftover)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_keeps_a_namespace() {
        let app = Key::new("acme", "acme");
        let own = json!([{"apiVersion": "v1", "kind": "ClientApp", "name": "acme", "uid": "1"}]);
        let other = json!([{"apiVersion": "v1", "kind": "ClientApp", "name": "acme", "uid": "2"}]);
        for (kind, meta, keeps) in [
            ("ConfigMap", json!({"name": "kube-root-ca.crt"}), false),
            ("ConfigMap", json!({"name": "notes"}), true),
            ("ServiceAccount", json!({"name": "default"}), false),
            ("Secret", json!({"name": "default"}), true),
            ("Secret", json!({"name": "acme-admin-secret", "ownerReferences": own}), false),
            ("Secret", json!({"name": "acme-admin-secret", "ownerReferences": other}), true),
            ("Secret", json!({"name": "x", "deletionTimestamp": "2026-01-01T00:00:00Z"}), false),
            ("ClientApp", json!({"name": "acme", "uid": "1"}), false),
            ("ClientApp", json!({"name": "acme", "uid": "2"}), true),
            ("ClientApp", json!({"name": "other", "uid": "1"}), true),
            ("Pod", json!({"name": "p", "labels": {"app.kubernetes.io/instance": "acme"}}), false),
            ("Pod", json!({"name": "p"}), true),
            ("Pod", json!({"name": "p", "labels": {"postgres-operator.crunchydata.com/cluster": "acme-pg"}}), false),
            // A volume that is kept is data, whatever it says.
            ("PersistentVolumeClaim", json!({"name": "v", "labels": {"app.kubernetes.io/instance": "acme"}}), true),
        ] {
            let decoded: ObjectMeta = serde_json::from_value(meta.clone()).unwrap();
            assert_eq!(is_anybodys(kind, &decoded, Some((&app, "1"))), keeps, "{kind} {meta}");
        }
        let orphan: ObjectMeta =
            serde_json::from_value::<ObjectMeta>(json!({"name": "p", "ownerReferences": Value::Null})).unwrap();
        assert!(is_anybodys("Pod", &orphan, None));
    }

    #[test]
    fn namespaces_whose_app_never_came_to_be() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let made = |name: &str, created: &str| -> Namespace {
            serde_json::from_value(json!({"metadata": {"name": name, "creationTimestamp": created}})).unwrap()
        };
        let namespaces = [
            made("old", "2026-01-01T11:49:00Z"),
            made("just-old-enough", "2026-01-01T11:50:00Z"),
            made("young", "2026-01-01T11:52:00Z"),
            made("younger", "2026-01-01T11:59:00Z"),
            made("used", "2026-01-01T11:00:00Z"),
        ];
        let (old, wait) = forsaken(&namespaces, &BTreeSet::from(["used"]), now);
        assert_eq!(old.iter().map(|namespace| namespace.name_any()).collect::<Vec<_>>(), ["old", "just-old-enough"]);
        assert_eq!(wait, Some(Duration::from_secs(9 * 60)));
        assert_eq!(forsaken(&namespaces[..2], &BTreeSet::new(), now).1, None);
    }

    #[test]
    fn only_what_stays_is_told() {
        assert!(Fate::Deleting.note("acme").is_none());
        let note = Fate::Kept("Secret keys".to_owned()).note("acme").unwrap();
        assert_eq!(note.message, "namespace acme was made for this ClientApp and stays, since Secret keys is in it");
    }
}
