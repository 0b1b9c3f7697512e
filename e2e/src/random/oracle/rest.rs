//! Rules that hold once everything is at rest. Pure.

use std::collections::{BTreeMap, BTreeSet};

use clientapp_crd::label;
use clientapp_crd::percona::CLUSTER_LABEL;
use serde_json::{Value, json};

use super::ownership::history::{Kind, Record, Seen, is_terminating, label as label_of};
use super::state::RELEASE;
use super::{Condition, is_observed, told};
use crate::random::stage::Found;

/// Namespace and name of an app.
pub type Key = (String, String);

/// Kinds whose objects only tell of others.
const TELLING: [&str; 5] = ["Endpoints", "EndpointSlice", "Event", "Lease", "PodMetrics"];
/// In every namespace: its defaults, and what helm acts as, which stays behind the apps.
const PERMANENT: [(&str, &str); 4] = [
    ("ConfigMap", "kube-root-ca.crt"),
    ("ServiceAccount", "default"),
    ("ServiceAccount", "clientapp-deployer"),
    ("RoleBinding", "clientapp-deployer"),
];

/// Returns whether an app is as expected, with a status of this generation of the spec or a later one, or what it is instead.
pub fn as_expected(reasons: Option<&[&str]>, generation: Option<i64>, found: Option<&Value>) -> Result<(), String> {
    match (reasons, found) {
        (None, None) => Ok(()),
        (None, Some(app)) => Err(format!("it is not gone: {}", told(app))),
        (Some(_), None) => Err("it does not exist".to_owned()),
        (Some(reasons), Some(app)) => {
            let now = app["metadata"]["generation"].as_i64();
            let fits = reasons.contains(&Condition::ready(app).reason.as_str());
            if fits && is_observed(app) && now >= generation && !is_terminating(app) {
                return Ok(());
            }
            let observed = &app["status"]["observedGeneration"];
            Err(format!("it is not {} at generation {now:?}, but {observed}: {}", reasons.join(" or "), told(app)))
        }
    }
}

/// The ClientApps that exist.
pub fn apps(record: &Record) -> impl Iterator<Item = &Seen> {
    record.of_kind(Kind::App).filter(|app| app.gone.is_none())
}

/// The newest revision of each release, and Helm's word for its state.
pub type Releases = BTreeMap<Key, (i64, String)>;

/// The releases in Helm's storage.
pub fn releases(record: &Record) -> Releases {
    let mut releases = Releases::new();
    let secrets = record.of_kind(Kind::Secret).filter(|secret| secret.gone.is_none());
    for secret in secrets.filter(|secret| secret.last()["type"] == RELEASE) {
        let word = |key: &str| label_of(secret.last(), key).unwrap_or_default().to_owned();
        let revision: i64 = word("version").parse().unwrap_or_default();
        let newest = releases.entry((secret.namespace.clone(), word("name"))).or_default();
        if revision >= newest.0 {
            *newest = (revision, word("status"));
        }
    }
    releases
}

/// The apps whose status tells another revision than Helm's storage, a sentence each.
pub fn untrue(record: &Record) -> Vec<String> {
    let releases = releases(record);
    let wrong = apps(record).filter_map(|app| {
        let release = &app.last()["status"]["release"];
        let told = (&release["revision"], &release["status"]);
        let key = (app.namespace.clone(), app.name.clone());
        let is = releases.get(&key).map(|(revision, status)| (json!(revision), json!(status)));
        let is_true = is.as_ref().is_some_and(|is| (&is.0, &is.1) == told && is.1 == "deployed");
        (!is_true).then(|| format!("{}/{}: the status tells release {told:?}, and Helm has {is:?}", key.0, key.1))
    });
    wrong.collect()
}

/// The samples at `/metrics` that count the apps; always the one of those that are Ready.
pub fn samples(record: &Record) -> BTreeMap<String, usize> {
    let sample =
        |state: &str, reason: &str| format!("clientapp_operator_apps{{state=\"{state}\",reason=\"{reason}\"}}");
    let mut samples = BTreeMap::from([(sample("True", "Ready"), 0)]);
    for app in apps(record) {
        let ready = Condition::ready(app.last());
        if !ready.status.is_empty() {
            *samples.entry(sample(&ready.status, &ready.reason)).or_default() += 1;
        }
    }
    samples
}

/// Returns whether objects of this kind are looked for.
pub fn is_looked_for(kind: &str) -> bool {
    !TELLING.contains(&kind)
}

/// The objects that should be gone with their apps, all of which are deleted; a sentence each, in order. What may be
/// there: what every namespace has; what `Retain` has kept of the apps that are named here, with the databases, which
/// go on running; and what that owns.
pub fn orphans(objects: &[Found], kept: &BTreeSet<Key>) -> Vec<String> {
    let mut uids = BTreeSet::new();
    let is_kept = |Found { kind, metadata, .. }: &Found, uids: &BTreeSet<String>| {
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
    let mut left: Vec<_> = left.map(|object| format!("{} is left", object.place())).collect();
    left.sort();
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn app(name: &str, generation: i64, observed: i64, (ready, reason): (&str, &str), revision: i64) -> Value {
        let conditions = json!([{"type": "Ready", "status": ready, "reason": reason, "message": "words"}]);
        let release = json!({"revision": revision, "status": "deployed"});
        json!({
            "metadata": {"name": name, "namespace": "n", "uid": name, "generation": generation, "resourceVersion": "1"},
            "status": {"observedGeneration": observed, "conditions": conditions, "release": release},
        })
    }

    fn record(objects: impl IntoIterator<Item = (Kind, Value)>) -> Record {
        let mut record = Record::default();
        objects.into_iter().for_each(|(kind, object)| _ = record.apply(kind, object));
        record
    }

    fn key(name: &str) -> Key {
        ("n".to_owned(), name.to_owned())
    }

    #[test]
    fn what_is_as_expected() {
        let ready = app("a", 3, 3, ("True", "Ready"), 1);
        let mut going = ready.clone();
        going["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
        for (expected, generation, found, holds) in [
            (None, 0, None, true),
            (None, 0, Some(&ready), false),
            (Some("Ready"), 1, None, false),
            (Some("Ready"), 3, Some(&ready), true),
            // A watch is late.
            (Some("Ready"), 4, Some(&ready), false),
            (Some("ChartInvalid"), 3, Some(&ready), false),
            (Some("Ready"), 3, Some(&app("a", 3, 2, ("True", "Ready"), 1)), false),
            (Some("ChartInvalid"), 3, Some(&app("a", 3, 3, ("False", "ChartInvalid"), 1)), true),
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
            let (uid, version) = (format!("{name}{version}"), "1");
            let metadata =
                json!({"namespace": "n", "name": uid, "uid": uid, "resourceVersion": version, "labels": labels});
            (Kind::Secret, json!({"type": RELEASE, "metadata": metadata}))
        };
        let secrets = [
            secret("a", "10", "deployed"),
            secret("a", "9", "superseded"),
            secret("b", "2", "deployed"),
            secret("c", "1", "failed"),
        ];
        let apps = [("a", 10), ("b", 1), ("c", 1), ("d", 1)];
        let apps = apps.map(|(name, revision)| (Kind::App, app(name, 1, 1, ("True", "Ready"), revision)));
        let untrue = untrue(&record(apps.into_iter().chain(secrets)));
        let about: Vec<_> = untrue.iter().map(|sentence| &sentence[..3]).collect();
        assert_eq!(about, ["n/b", "n/c", "n/d"], "{untrue:?}");
    }

    #[test]
    fn apps_are_counted_by_status_and_reason() {
        let states = [("a", ("True", "Ready")), ("b", ("False", "ChartInvalid")), ("c", ("True", "Ready"))];
        let apps = record(states.map(|(name, ready)| (Kind::App, app(name, 1, 1, ready, 1))));
        let told =
            |apps: &Record| samples(apps).iter().map(|(sample, count)| format!("{sample} {count}")).collect::<Vec<_>>();
        assert_eq!(
            told(&apps),
            [
                r#"clientapp_operator_apps{state="False",reason="ChartInvalid"} 1"#,
                r#"clientapp_operator_apps{state="True",reason="Ready"} 2"#,
            ]
        );
        assert_eq!(told(&Record::default()), [r#"clientapp_operator_apps{state="True",reason="Ready"} 0"#]);
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
            Found {
                kind: kind.to_owned(),
                resource: String::new(),
                metadata: serde_json::from_value(metadata).unwrap(),
            }
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
