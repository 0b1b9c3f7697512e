//! What of a release another client has deleted, or taken off it, and what follows. **Pure.**

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::{
    desired::Desired,
    inventory::{self, MANAGED_BY, RELEASE_NAME, RELEASE_NAMESPACE},
    observed::{Observed, ReleaseView},
    plan::{Hold, SAFETY_NET, Step},
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
pub struct Repaired {
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
    pub fn waits(&self, object: &ReleaseObject, now: Timestamp) -> Option<&Repaired> {
        self.of(object).filter(|repaired| is_awaited(repaired.not_before, now))
    }

    /// When it is known whether what seems to be missing is so.
    pub fn shown(&self, now: Timestamp) -> Option<Timestamp> {
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

/// An object of the release that no watch shows.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    pub object: ReleaseObject,
    pub found: Found,
}

/// What the API server has under its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    Nothing,
    /// It is being deleted.
    Going,
    /// It lacks some of Helm's marks.
    Unmarked,
    /// It has none of them, or those of another release.
    Foreign,
    /// That cannot be asked, and why.
    Unknown(String),
}

/// See [`Found`]; `None`: it is as it shall be, and the watch was late.
pub fn found(object: Option<&ObjectMeta>, release: &Key) -> Option<Found> {
    let Some(meta) = object else { return Some(Found::Nothing) };
    let word = |words: &Option<BTreeMap<String, String>>, key: &str| words.as_ref()?.get(key).cloned();
    let (label, manager) = MANAGED_BY;
    let marks = [
        (word(&meta.labels, label), manager),
        (word(&meta.annotations, RELEASE_NAME), &release.name),
        (word(&meta.annotations, RELEASE_NAMESPACE), &release.namespace),
    ];
    let of_another = |(mark, ours): &(Option<String>, &str)| mark.as_ref().is_some_and(|mark| mark != ours);
    match () {
        () if meta.deletion_timestamp.is_some() => Some(Found::Going),
        () if marks.iter().all(|(mark, ours)| mark.as_deref() == Some(*ours)) => None,
        () if marks[1..].iter().any(of_another) => Some(Found::Foreign),
        () if marks.iter().all(|(mark, _)| mark.is_none()) => Some(Found::Foreign),
        () => Some(Found::Unmarked),
    }
}

/// What no watch shows of what the release has, by its inventory, of the kinds that are watched.
pub fn unseen(
    inventory: Option<&Inventory>,
    release: Option<&ReleaseView>,
    app: &Key,
    has: impl Fn(&'static str, &str) -> bool,
) -> Vec<ReleaseObject> {
    // That of an earlier revision has what this one may not have any more.
    let is_its = |inventory: &&Inventory| release.is_some_and(|release| release.secret_uid == inventory.secret);
    let objects = inventory.filter(is_its).into_iter().flat_map(|inventory| inventory::own(inventory, &app.namespace));
    objects.filter(|object| watched(object).is_some_and(|kind| !has(kind, &object.name))).cloned().collect()
}

fn watched(ReleaseObject { api_version, kind, .. }: &ReleaseObject) -> Option<&'static str> {
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    WATCHED.into_iter().find(|watched| *watched == (group, kind)).map(|(_, kind)| kind)
}

/// What follows, where the release is as it shall be but for what is missing.
pub fn follows(desired: &Desired, observed: &Observed, now: Timestamp) -> Option<(Option<Step>, Hold)> {
    let Observed { missing, repairs, .. } = observed;
    let first = missing.first()?;
    let hold = |message: String| Hold::new(Reason::Drifted, message).until(now + SAFETY_NET);
    let objects = |missing: &[&Missing]| names(&missing.iter().map(|missing| &missing.object).collect::<Vec<_>>());
    let release = &desired.key.name;
    if desired.drift == Drift::Report {
        let message = format!(
            "{} of release {release}: another client has deleted it, or taken it off the release, and spec.drift is Report; set it to Repair, and it is made again",
            objects(&missing.iter().collect::<Vec<_>>())
        );
        return Some((None, Hold { stalled: true, ..Hold::new(Reason::Drifted, message) }));
    }
    let can_be = |missing: &&Missing| {
        matches!(missing.found, Found::Nothing | Found::Unmarked)
            && (missing.found == Found::Unmarked || inventory::danger(&missing.object).is_none())
    };
    let due: Vec<_> =
        missing.iter().filter(can_be).filter(|missing| repairs.waits(&missing.object, now).is_none()).collect();
    if !due.is_empty() {
        let message = format!(
            "{} of release {release}: another client has deleted it, or taken it off the release; it is made again",
            objects(&due)
        );
        return Some((Some(Step::Repair(due.into_iter().cloned().collect())), hold(message)));
    }
    if let Some((blocked, why, stalled)) = missing.iter().find_map(blocked) {
        let message = format!("{} of release {release} {why}", objects(&[blocked]));
        return Some((None, Hold { stalled, ..hold(message) }));
    }
    let repaired = repairs.waits(&first.object, now)?;
    let times = if repaired.times == 1 { "once".to_owned() } else { format!("{} times in a row", repaired.times) };
    let message = format!(
        "{} of release {release} was made again {times}, and another client has deleted it, or taken it off the release, again: find that client; it is made again ever more seldom, down to every 5 minutes",
        objects(&[first])
    );
    Some((None, hold(message).until(repaired.not_before)))
}

/// Why it cannot be made again, and whether that is for a user to change.
fn blocked(missing: &Missing) -> Option<(&Missing, String, bool)> {
    let (why, stalled) = match &missing.found {
        Found::Foreign => (
            "is missing, and another object has its name, without Helm's marks of this release: delete or rename that, and it is made again, or set spec.drift to Ignore".to_owned(),
            true,
        ),
        Found::Going => ("is being deleted; it is made again when it is gone".to_owned(), false),
        Found::Unknown(problem) => (format!("is not seen, and cannot be asked for: {problem}"), false),
        Found::Nothing => (
            format!("was deleted, and is not made again: {}; see whether they are there, then run helm with another change of the spec", inventory::danger(&missing.object)?),
            true,
        ),
        Found::Unmarked => return None,
    };
    Some((missing, why, stalled))
}

/// Objects in a sentence.
pub fn names(objects: &[&ReleaseObject]) -> String {
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
    let Value::Object(marks) = marks(release)["metadata"].take() else { return document };
    if !document["metadata"].is_object() {
        return document;
    }
    for (field, marks) in marks {
        match (&mut document["metadata"][field.as_str()], marks) {
            (Value::Object(own), Value::Object(marks)) => own.extend(marks),
            (own, marks) => *own = marks,
        }
    }
    document["metadata"]["namespace"] = json!(release.namespace);
    document
}

/// The marks alone, for an object that is there.
pub fn marks(release: &Key) -> Value {
    let (label, manager) = MANAGED_BY;
    let annotations = json!({RELEASE_NAME: release.name, RELEASE_NAMESPACE: release.namespace});
    json!({"metadata": {"labels": {label: manager}, "annotations": annotations}})
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::clientapp::fixtures::{now, release};

    fn object(api_version: &str, kind: &str, name: &str) -> ReleaseObject {
        let [api_version, kind, name] = [api_version, kind, name].map(str::to_owned);
        ReleaseObject { api_version, kind, name, ..ReleaseObject::default() }
    }

    #[test]
    fn what_no_watch_shows() {
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
        let release = release("d");
        let mut inventory = Inventory { secret: release.secret_uid.clone(), objects, ..Inventory::default() };
        let app = Key::new("tenants", "acme");
        let of = |inventory: &Inventory| {
            let unseen = unseen(Some(inventory), Some(&release), &app, |_, name| name == "there");
            names(&unseen.iter().collect::<Vec<_>>())
        };
        assert_eq!(of(&inventory), "Service gone, StatefulSet gone");
        inventory.secret = "of the revision before".to_owned();
        assert_eq!(of(&inventory), "");
        assert!(unseen(None, Some(&release), &app, |_, _| false).is_empty());
    }

    #[test]
    fn many_are_counted() {
        let many = ["a", "b", "c", "d", "e"].map(|name| object("v1", "Secret", name));
        assert_eq!(names(&many.each_ref()), "Secret a, Secret b, Secret c and 2 more");
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
        let release = Key::new("tenants", "acme");
        let stored = json!({"kind": "Service", "metadata": {"name": "acme", "labels": {"a": "b"}}});
        assert_eq!(
            applied(stored, &release),
            json!({"kind": "Service", "metadata": {
                "name": "acme", "namespace": "tenants",
                "labels": {"a": "b", "app.kubernetes.io/managed-by": "Helm"},
                "annotations": {"meta.helm.sh/release-name": "acme", "meta.helm.sh/release-namespace": "tenants"},
            }})
        );
        for odd in [json!([]), json!({"metadata": 1}), json!({"metadata": {"labels": "x", "annotations": null}})] {
            applied(odd, &release);
        }
    }

    #[test]
    fn whose_is_what_has_the_name() {
        let release = Key::new("tenants", "acme");
        let meta = |manager: Option<&str>, name: Option<&str>, namespace: Option<&str>| {
            let annotations = json!({RELEASE_NAME: name, RELEASE_NAMESPACE: namespace});
            let mut meta = json!({"name": "x", "labels": {MANAGED_BY.0: manager}, "annotations": annotations});
            for words in ["labels", "annotations"] {
                meta[words].as_object_mut().unwrap().retain(|_, word| !word.is_null());
            }
            serde_json::from_value::<ObjectMeta>(meta).unwrap()
        };
        const OURS: Option<&str> = Some("acme");
        const HERE: Option<&str> = Some("tenants");
        assert_eq!(found(None, &release), Some(Found::Nothing));
        for (manager, name, namespace, expected) in [
            (Some("Helm"), OURS, HERE, None),
            (None, OURS, HERE, Some(Found::Unmarked)),
            (Some("kubectl"), OURS, HERE, Some(Found::Unmarked)),
            (Some("Helm"), None, HERE, Some(Found::Unmarked)),
            (Some("Helm"), None, None, Some(Found::Unmarked)),
            (Some("Helm"), Some("other"), HERE, Some(Found::Foreign)),
            (None, OURS, Some("other"), Some(Found::Foreign)),
            (None, None, None, Some(Found::Foreign)),
        ] {
            let meta = meta(manager, name, namespace);
            assert_eq!(found(Some(&meta), &release), expected, "{meta:?}");
            let going = ObjectMeta { deletion_timestamp: Some(Time(now())), ..meta };
            assert_eq!(found(Some(&going), &release), Some(Found::Going));
        }
    }
}
