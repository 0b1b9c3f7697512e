//! What has to hold once everything is at rest. Pure.

use std::collections::{BTreeMap, BTreeSet};

use clientapp_crd::percona::CLUSTER_LABEL;
use clientapp_crd::{ClientApp, conditions, label};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::random::requests::told;

/// Namespace and name of an app.
pub type Key = (String, String);
/// All apps as the API server has them.
pub type Apps = BTreeMap<Key, ClientApp>;

/// Kinds whose objects only tell of others.
const TELLING: [&str; 5] = ["Endpoints", "EndpointSlice", "Event", "Lease", "PodMetrics"];
/// In every namespace: its defaults, and what helm acts as, which stays behind the apps.
const PERMANENT: [(&str, &str); 4] = [
    ("ConfigMap", "kube-root-ca.crt"),
    ("ServiceAccount", "default"),
    ("ServiceAccount", "clientapp-deployer"),
    ("RoleBinding", "clientapp-deployer"),
];

/// Whether an app is as expected, with a status of this generation of the spec or a later one.
///
/// # Errors
/// What it is instead.
pub fn as_expected(reasons: Option<&[&str]>, generation: Option<i64>, found: Option<&ClientApp>) -> Result<(), String> {
    match (reasons, found) {
        (None, None) => Ok(()),
        (None, Some(app)) => Err(format!("it is not gone: {}", told(app))),
        (Some(_), None) => Err("it does not exist".to_owned()),
        (Some(reasons), Some(app)) => {
            let status = app.status.as_ref();
            let observed = status.and_then(|status| status.observed_generation);
            let current = observed == app.metadata.generation && app.metadata.generation >= generation;
            let ready = status.and_then(|status| conditions::find(&status.conditions, "Ready"));
            let fits = ready.is_some_and(|ready| reasons.contains(&ready.reason.as_str()));
            if current && fits && app.metadata.deletion_timestamp.is_none() {
                return Ok(());
            }
            let now = app.metadata.generation;
            Err(format!("it is not {} at generation {now:?}, but {observed:?}: {}", reasons.join(" or "), told(app)))
        }
    }
}

/// The newest revision of each release, and Helm's word for its state.
pub type Releases = BTreeMap<Key, (i64, String)>;

/// The releases that these Secrets of Helm are.
#[must_use]
pub fn releases<'a>(secrets: impl IntoIterator<Item = &'a ObjectMeta>) -> Releases {
    let mut releases = Releases::new();
    for secret in secrets {
        let label = |key: &str| secret.labels.as_ref().and_then(|labels| labels.get(key)).cloned().unwrap_or_default();
        let revision: i64 = label("version").parse().unwrap_or_default();
        let key = (secret.namespace.clone().unwrap_or_default(), label("name"));
        let newest = releases.entry(key).or_default();
        if revision >= newest.0 {
            *newest = (revision, label("status"));
        }
    }
    releases
}

/// The apps whose status tells another revision than Helm's storage, a sentence each.
#[must_use]
pub fn untrue(apps: &Apps, releases: &Releases) -> Vec<String> {
    let wrong = apps.iter().filter_map(|(key, app)| {
        let release = app.status.as_ref().and_then(|status| status.release.as_ref());
        let told = release.map(|release| (release.revision, release.status.clone()));
        let (namespace, name) = key;
        let is = releases.get(key);
        let true_of_helm = is == told.as_ref() && is.is_some_and(|(_, status)| status == "deployed");
        (!true_of_helm).then(|| format!("{namespace}/{name}: the status tells release {told:?}, and Helm has {is:?}"))
    });
    wrong.collect()
}

/// The samples at `/metrics` that count these apps; always the one of those that are Ready.
#[must_use]
pub fn samples(apps: &Apps) -> BTreeMap<String, usize> {
    let sample =
        |state: &str, reason: &str| format!("clientapp_operator_apps{{state=\"{state}\",reason=\"{reason}\"}}");
    let mut samples = BTreeMap::from([(sample("True", "Ready"), 0)]);
    for app in apps.values() {
        let ready = app.status.as_ref().and_then(|status| conditions::find(&status.conditions, "Ready"));
        if let Some(ready) = ready {
            *samples.entry(sample(&ready.status, &ready.reason)).or_default() += 1;
        }
    }
    samples
}

/// An object that is there.
#[derive(Clone, Debug)]
pub struct Found {
    pub kind: String,
    pub metadata: ObjectMeta,
}

/// Whether objects of this kind are looked for.
#[must_use]
pub fn is_looked_for(kind: &str) -> bool {
    !TELLING.contains(&kind)
}

/// The objects that should be gone with their apps, all of which are deleted; a sentence each, in order. What may be
/// there: what every namespace has; what `Retain` has kept of the apps that are named here, with the databases, which
/// go on running; and what that owns.
#[must_use]
pub fn orphans(objects: &[Found], kept: &BTreeSet<Key>) -> Vec<String> {
    let mut uids = BTreeSet::new();
    let is_kept = |Found { kind, metadata }: &Found, uids: &BTreeSet<String>| {
        let name = metadata.name.as_deref().unwrap_or_default();
        let labelled = |key: &str, suffix: &str| {
            let value = metadata.labels.as_ref().and_then(|labels| labels.get(key));
            let app = value.and_then(|value| value.strip_suffix(suffix));
            let namespace = || metadata.namespace.clone().unwrap_or_default();
            app.is_some_and(|app| kept.contains(&(namespace(), app.to_owned())))
        };
        PERMANENT.contains(&(kind.as_str(), name))
            || labelled(label::RETAINED_FROM, "")
            || labelled(CLUSTER_LABEL, "-pg")
            || labelled(label::POSTGRESQL, "-pg")
            || metadata.owner_references.iter().flatten().any(|owner| uids.contains(&owner.uid))
    };
    // An owner may be listed after what it owns.
    loop {
        let more =
            objects.iter().filter(|object| is_kept(object, &uids)).filter_map(|object| object.metadata.uid.clone());
        let more: BTreeSet<_> = more.collect();
        if more.len() == uids.len() {
            break;
        }
        uids = more;
    }
    let left = objects.iter().filter(|object| !is_kept(object, &uids));
    let told = left.map(|Found { kind, metadata }| {
        let word = |word: &Option<String>| word.clone().unwrap_or_default();
        format!("{kind} {}/{} is left", word(&metadata.namespace), word(&metadata.name))
    });
    let mut told: Vec<_> = told.collect();
    told.sort();
    told
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn app(generation: i64, observed: i64, (ready, reason): (&str, &str), revision: i64) -> ClientApp {
        let app = json!({
            "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp",
            "metadata": {"name": "a", "namespace": "n", "generation": generation},
            "spec": {"hostname": "a.example.com"},
            "status": {
                "observedGeneration": observed,
                "conditions": [{
                    "type": "Ready", "status": ready, "reason": reason, "message": "words",
                    "lastTransitionTime": "2026-01-02T03:04:05Z",
                }],
                "release": {"name": "a", "namespace": "n", "revision": revision, "status": "deployed"},
            },
        });
        serde_json::from_value(app).unwrap()
    }

    fn key(name: &str) -> Key {
        ("n".to_owned(), name.to_owned())
    }

    #[test]
    fn what_is_as_expected() {
        let ready = app(3, 3, ("True", "Ready"), 1);
        let mut going = ready.clone();
        going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-02T03:04:05Z")).unwrap();
        for (expected, generation, found, holds) in [
            (None, 0, None, true),
            (None, 0, Some(&ready), false),
            (Some("Ready"), 1, None, false),
            (Some("Ready"), 3, Some(&ready), true),
            // A watch is late.
            (Some("Ready"), 4, Some(&ready), false),
            (Some("ChartInvalid"), 3, Some(&ready), false),
            (Some("Ready"), 3, Some(&app(3, 2, ("True", "Ready"), 1)), false),
            (Some("ChartInvalid"), 3, Some(&app(3, 3, ("False", "ChartInvalid"), 1)), true),
            (Some("Ready"), 3, Some(&going), false),
        ] {
            let reasons = expected.map(|reason| [reason]);
            let reasons = reasons.as_ref().map(<[&str; 1]>::as_slice);
            let judged = as_expected(reasons, Some(generation), found);
            assert_eq!(judged.is_ok(), holds, "{expected:?} {generation} {judged:?}");
        }
    }

    #[test]
    fn a_status_is_compared_with_the_storage_of_helm() {
        let secret = |name: &str, version: &str, status: &str| {
            let labels = json!({"name": name, "version": version, "status": status});
            serde_json::from_value::<ObjectMeta>(json!({"namespace": "n", "labels": labels})).unwrap()
        };
        let secrets = [
            secret("a", "10", "deployed"),
            secret("a", "9", "superseded"),
            secret("b", "2", "deployed"),
            secret("c", "1", "failed"),
        ];
        let ready = |revision| app(1, 1, ("True", "Ready"), revision);
        let apps: Apps =
            [("a", 10), ("b", 1), ("c", 1), ("d", 1)].map(|(name, revision)| (key(name), ready(revision))).into();
        let untrue = untrue(&apps, &releases(&secrets));
        let about: Vec<_> = untrue.iter().map(|sentence| &sentence[..3]).collect();
        assert_eq!(about, ["n/b", "n/c", "n/d"], "{untrue:?}");
    }

    #[test]
    fn apps_are_counted_by_status_and_reason() {
        let states = [("a", ("True", "Ready")), ("b", ("False", "ChartInvalid")), ("c", ("True", "Ready"))];
        let apps: Apps = states.map(|(name, ready)| (key(name), app(1, 1, ready, 1))).into();
        let told =
            |apps: &Apps| samples(apps).iter().map(|(sample, count)| format!("{sample} {count}")).collect::<Vec<_>>();
        assert_eq!(
            told(&apps),
            [
                r#"clientapp_operator_apps{state="False",reason="ChartInvalid"} 1"#,
                r#"clientapp_operator_apps{state="True",reason="Ready"} 2"#,
            ]
        );
        assert_eq!(told(&Apps::new()), [r#"clientapp_operator_apps{state="True",reason="Ready"} 0"#]);
    }

    #[test]
    fn what_may_be_left() {
        let object = |kind: &str, name: &str, label: Option<(&str, &str)>, owner: &str| {
            let labels: Value = label.into_iter().map(|(key, value)| (key.to_owned(), json!(value))).collect();
            let owners = json!([{"apiVersion": "v1", "kind": "K", "name": "k", "uid": owner}]);
            let metadata = json!({
                "namespace": "n", "name": name, "uid": format!("{kind}-{name}"), "labels": labels,
                "ownerReferences": if owner.is_empty() { json!([]) } else { owners },
            });
            Found { kind: kind.to_owned(), metadata: serde_json::from_value(metadata).unwrap() }
        };
        let retained = |app| Some((label::RETAINED_FROM, app));
        let objects = [
            object("ConfigMap", "kube-root-ca.crt", None, ""),
            object("RoleBinding", "clientapp-deployer", None, ""),
            // Before its owner, and its owner's owner.
            object("Pod", "kept-pg-0", None, "StatefulSet-kept-pg"),
            object("StatefulSet", "kept-pg", None, "Postgresql-kept-pg"),
            object("Postgresql", "kept-pg", retained("kept"), ""),
            object("PersistentVolumeClaim", "x", Some((CLUSTER_LABEL, "kept-pg")), ""),
            object("Secret", "y", Some((label::POSTGRESQL, "kept-pg")), ""),
            object("PersistentVolumeClaim", "files", retained("gone"), ""),
            object("Secret", "z", Some((label::POSTGRESQL, "gone-pg")), ""),
            object("Pod", "gone-1", None, "ReplicaSet-gone"),
            object("ConfigMap", "default", None, ""),
        ];
        assert_eq!(
            orphans(&objects, &BTreeSet::from([key("kept")])),
            [
                "ConfigMap n/default is left",
                "PersistentVolumeClaim n/files is left",
                "Pod n/gone-1 is left",
                "Secret n/z is left",
            ]
        );
        assert_eq!(orphans(&objects, &BTreeSet::new()).len(), 9);
        assert!(is_looked_for("Pod") && !is_looked_for("Event"));
    }
}
