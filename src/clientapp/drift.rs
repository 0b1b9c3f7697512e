//! What of a release another client has deleted, or taken off it, and what follows. **Pure.**

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::{
    desired::Desired,
    inventory::{self, MANAGED_BY, RELEASE_NAME, RELEASE_NAMESPACE},
    observed::Observed,
    plan::{Hold, Step},
};
use crate::{
    crd::{Drift, Inventory, Reason, ReleaseObject},
    runtime::key::Key,
};

/// The kinds that are watched, by group. A volume is none of them: made again it would be an empty one. Nor is what ends by itself,
/// such as a Job.
pub const WATCHED: [(&str, &str); 8] = [
    ("", "ConfigMap"),
    ("", "Secret"),
    ("", "Service"),
    ("apps", "Deployment"),
    ("apps", "StatefulSet"),
    ("networking.k8s.io", "Ingress"),
    ("networking.k8s.io", "NetworkPolicy"),
    ("policy", "PodDisruptionBudget"),
];

/// So long a watch may take to show what helm has made.
pub const WATCH_PATIENCE: SignedDuration = SignedDuration::from_secs(5);
/// Between two repairs of an app that another client undoes, at first and at most.
const SOON: SignedDuration = SignedDuration::from_secs(5);
const SELDOM: SignedDuration = SignedDuration::from_mins(5);
/// After so long without a repair the next one is the first.
const FORGOTTEN: SignedDuration = SignedDuration::from_mins(15);
/// So many objects are named; the rest is counted.
const NAMED: usize = 3;

/// What was done for an app of late.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repairs {
    /// Until then a watch may not show yet what helm has made.
    shown: Option<Timestamp>,
    /// By kind and name of the object.
    objects: BTreeMap<(String, String), Repaired>,
}

/// An object that was made again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Repaired {
    /// So often in a row.
    times: u32,
    /// It is not made again before.
    not_before: Timestamp,
}

impl Repairs {
    /// helm has ended at this time.
    pub fn after_helm(self, at: Timestamp) -> Repairs {
        Repairs { shown: Some(at + WATCH_PATIENCE), ..self }
    }

    /// These are made again now.
    pub fn with(mut self, objects: &[ReleaseObject], now: Timestamp) -> Repairs {
        self.objects.retain(|_, repaired| now < repaired.not_before + FORGOTTEN);
        for object in objects {
            let times = self.of(object).map_or(0, |repaired| repaired.times) + 1;
            let pause = (SOON * (1 << (times - 1).min(6))).min(SELDOM);
            self.objects.insert(named(object), Repaired { times, not_before: now + pause });
        }
        self
    }

    fn of(&self, object: &ReleaseObject) -> Option<&Repaired> {
        self.objects.get(&named(object))
    }

    /// Why it is not made again now, if it is not.
    fn waits(&self, object: &ReleaseObject, now: Timestamp) -> Option<&Repaired> {
        self.of(object).filter(|repaired| is_awaited(repaired.not_before, now))
    }

    /// When it is known whether what seems to be missing is so.
    fn shown(&self, now: Timestamp) -> Option<Timestamp> {
        self.shown.filter(|shown| is_awaited(*shown, now))
    }
}

fn named(object: &ReleaseObject) -> (String, String) {
    (object.kind.clone(), object.name.clone())
}

/// Whether a time is yet to come. One that is later than any that is ever set is of another clock.
fn is_awaited(until: Timestamp, now: Timestamp) -> bool {
    now < until && until <= now + SELDOM
}

/// What the release has, by its inventory, and does not have, of the kinds that are watched: by kind and name.
pub fn missing(
    inventory: Option<&Inventory>,
    app: &Key,
    has: impl Fn(&'static str, &str) -> bool,
) -> Vec<ReleaseObject> {
    let objects = inventory.into_iter().flat_map(|inventory| inventory::own(inventory, &app.namespace));
    objects.filter(|object| watched(object).is_some_and(|kind| !has(kind, &object.name))).cloned().collect()
}

fn watched(ReleaseObject { api_version, kind, .. }: &ReleaseObject) -> Option<&'static str> {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    WATCHED.into_iter().find(|watched| *watched == (group, kind)).map(|(_, kind)| kind)
}

/// What follows, where the release is as it shall be but for what is missing.
pub fn follows(desired: &Desired, observed: &Observed, now: Timestamp) -> Option<(Option<Step>, Hold)> {
    let Observed { missing, repairs, .. } = observed;
    if missing.is_empty() || desired.drift == Drift::Ignore || repairs.shown(now).is_some() {
        return None;
    }
    let hold = |objects: &[ReleaseObject], rest: &str| {
        Hold::new(Reason::Drifted, format!("{} of release {}, {rest}", names(objects), desired.key.name))
    };
    if desired.drift == Drift::Report {
        let told = hold(
            missing,
            "which another client has deleted or taken off it, is not there, and spec.drift is Report: make it again, or set spec.drift to Repair",
        );
        return Some((None, Hold { stalled: true, ..told }));
    }
    let due: Vec<_> = missing.iter().filter(|object| repairs.waits(object, now).is_none()).cloned().collect();
    if due.is_empty() {
        let waiting = || missing.iter().filter_map(|object| repairs.waits(object, now));
        let times = waiting().map(|repaired| repaired.times).max().unwrap_or_default();
        let times = if times == 1 { "once".to_owned() } else { format!("{times} times in a row") };
        let rest = format!(
            "made again {times}, is not there again: find the client that deletes it or takes it off; it is made again ever more seldom, down to every 5 minutes"
        );
        return Some((None, hold(missing, &rest).until(waiting().map(|repaired| repaired.not_before).min())));
    }
    let told = hold(&due, "which another client has deleted or taken off it, is not there: it is made again");
    Some((Some(Step::Repair(due)), told))
}

/// When it is known whether what seems to be missing is so.
pub fn look_again(observed: &Observed, now: Timestamp) -> Option<Timestamp> {
    observed.repairs.shown(now).filter(|_| !observed.missing.is_empty())
}

/// Objects in a sentence.
pub fn names(objects: &[ReleaseObject]) -> String {
    let named = objects.iter().take(NAMED).map(|object| format!("{} {}", object.kind, object.name));
    let mut names = named.collect::<Vec<_>>().join(", ");
    if objects.len() > NAMED {
        names += &format!(" and {} more", objects.len() - NAMED);
    }
    names
}

/// A document of the manifest as helm applies it: with the marks of its release (helm.sh/helm/v4/pkg/action/validate.go,
/// `setMetadataVisitor`).
pub fn applied(mut document: Value, release: &Key) -> Value {
    octal_modes(&mut document);
    document["metadata"]["namespace"] = json!(release.namespace);
    let (label, word) = MANAGED_BY;
    document["metadata"]["labels"][label] = json!(word);
    document["metadata"]["annotations"][RELEASE_NAME] = json!(release.name);
    document["metadata"]["annotations"][RELEASE_NAMESPACE] = json!(release.namespace);
    document
}

/// Helm reads YAML 1.1, in which `0755` is an octal number; here it is a text. What is written so is the mode of a file.
fn octal_modes(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let mode = value.as_str().filter(|_| ["defaultMode", "mode"].contains(&field.as_str()));
                match mode.and_then(|text| i32::from_str_radix(text, 8).ok()) {
                    Some(mode) => *value = json!(mode),
                    None => octal_modes(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(octal_modes),
        _ => {}
    }
}

/// What is to be done about an object that seems to be missing, and is this by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// It is to be made, or to get its marks back.
    Apply,
    /// The watch was late.
    There,
    /// It is another's, as helm would say of it.
    Foreign,
}

/// See [`Found`]. `object` is what has its name, if anything has.
pub fn found(object: Option<&ObjectMeta>, release: &Key) -> Found {
    let Some(meta) = object else { return Found::Apply };
    let (label, word) = MANAGED_BY;
    let is_managed = meta.labels.as_ref().and_then(|labels| labels.get(label)).is_some_and(|found| found == word);
    match inventory::release_of(meta) {
        // It is on its way out, and its end is seen.
        _ if meta.deletion_timestamp.is_some() => Found::There,
        Some(of) if of == *release && is_managed => Found::There,
        Some(of) if of == *release => Found::Apply,
        _ => Found::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::clientapp::fixtures::now;

    fn object(api_version: &str, kind: &str, name: &str) -> ReleaseObject {
        let [api_version, kind, name] = [api_version, kind, name].map(str::to_owned);
        ReleaseObject { api_version, kind, name, ..ReleaseObject::default() }
    }

    #[test]
    fn what_is_missing() {
        let far = ReleaseObject { namespace: Some("far".to_owned()), ..object("v1", "Service", "far") };
        let objects = vec![
            object("v1", "Service", "there"),
            object("v1", "Service", "gone"),
            object("apps/v1", "StatefulSet", "gone"),
            object("v1", "PersistentVolumeClaim", "gone"),
            object("batch/v1", "Job", "gone"),
            object("serving.knative.dev/v1", "Service", "of-others"),
            far,
        ];
        let inventory = Inventory { objects, ..Inventory::default() };
        let app = Key::new("tenants", "acme");
        let missing = missing(Some(&inventory), &app, |_, name| name == "there");
        assert_eq!(names(&missing), "Service gone, StatefulSet gone");
        assert!(super::missing(None, &app, |_, _| false).is_empty());
    }

    #[test]
    fn many_are_counted() {
        let many: Vec<_> = ["a", "b", "c", "d", "e"].map(|name| object("v1", "Secret", name)).into();
        assert_eq!(names(&many), "Secret a, Secret b, Secret c and 2 more");
    }

    #[test]
    fn repairs_that_are_undone_get_ever_more_rare() {
        let (mut now, mut repairs, mut pauses) = (now(), Repairs::default(), Vec::new());
        let [fought, other] = ["fought", "other"].map(|name| object("v1", "Service", name));
        for _ in 0..8 {
            repairs = repairs.with(std::slice::from_ref(&fought), now);
            let Repaired { not_before, .. } = *repairs.waits(&fought, now).unwrap();
            assert_eq!((repairs.waits(&fought, not_before), repairs.waits(&other, now)), (None, None));
            pauses.push(not_before.duration_since(now).as_secs());
            now = not_before;
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300]);
        let later = now + FORGOTTEN;
        assert_eq!(repairs.with(std::slice::from_ref(&fought), later).of(&fought).unwrap().times, 1);
    }

    #[test]
    fn it_is_applied_as_helm_does() {
        let stored = "{apiVersion: v1, kind: Service, metadata: {name: acme, labels: {a: b}}, spec: {volumes: [{configMap: {defaultMode: 0755}}], mode: on}}";
        let document = applied(serde_yaml::from_str(stored).unwrap(), &Key::new("tenants", "acme"));
        assert_eq!(
            document,
            json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": {
                    "name": "acme", "namespace": "tenants",
                    "labels": {"a": "b", "app.kubernetes.io/managed-by": "Helm"},
                    "annotations": {"meta.helm.sh/release-name": "acme", "meta.helm.sh/release-namespace": "tenants"},
                },
                "spec": {"volumes": [{"configMap": {"defaultMode": 493}}], "mode": "on"},
            })
        );
    }

    #[test]
    fn whose_is_what_has_the_name() {
        let release = Key::new("tenants", "acme");
        let meta = |managed: &str, name: &str| {
            let annotations = json!({RELEASE_NAME: name, RELEASE_NAMESPACE: "tenants"});
            let labels = json!({MANAGED_BY.0: managed});
            let meta = json!({"name": "x", "namespace": "tenants", "labels": labels, "annotations": annotations});
            serde_json::from_value::<ObjectMeta>(meta).unwrap()
        };
        assert_eq!(found(None, &release), Found::Apply);
        for (managed, name, expected) in [
            ("Helm", "acme", Found::There),
            ("", "acme", Found::Apply),
            ("Helm", "other", Found::Foreign),
            ("Helm", "", Found::Foreign),
        ] {
            assert_eq!(found(Some(&meta(managed, name)), &release), expected, "{managed} {name}");
        }
        assert_eq!(found(Some(&ObjectMeta::default()), &release), Found::Foreign);
        let going = ObjectMeta { deletion_timestamp: Some(Time(now())), ..meta("Helm", "acme") };
        assert_eq!(found(Some(&going), &release), Found::There);
    }
}
