//! What of a release another client has deleted, or taken off it, and what follows. **Pure.**

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::{
    desired::Desired,
    inventory::{self, MANAGED_BY, RELEASE_NAME, RELEASE_NAMESPACE},
    observed::{Found, Missing, Observed, ReleaseView},
    plan::{Hold, SAFETY_NET, Step},
    repairs::Refused,
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

/// So soon what was to be made again is looked at: no watch tells of a refusal.
const SOON: SignedDuration = SignedDuration::from_secs(1);
/// So many objects are named; the rest is counted.
const NAMED: usize = 3;

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
        // The label alone is on all that any release has.
        () if marks[1..].iter().all(|(mark, _)| mark.is_none()) => Some(Found::Foreign),
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
    if missing.is_empty() {
        return None;
    }
    let hold = |message: String| Hold::new(Reason::Drifted, message).until(now + SAFETY_NET);
    let objects = |missing: &[&Missing]| names(&missing.iter().map(|missing| &missing.object).collect::<Vec<_>>());
    let release = &desired.key.name;
    let hold_refused = |missing: &Missing, refused: &Refused| {
        let what = objects(&[missing]);
        let sentence = &refused.sentence;
        let message =
            format!("{what} of release {release} is missing, and cannot be made again: {sentence}; tried again");
        Hold { stalled: refused.stalled, ..hold(message) }
    };
    let can_be: Vec<_> = missing.iter().filter(|missing| blocked(missing).is_none()).collect();
    if desired.drift == Drift::Report && !can_be.is_empty() {
        let message = format!(
            "{} of release {release}: another client has deleted it, or taken it off the release, and spec.drift is Report; set it to Repair, and it is made again",
            objects(&can_be)
        );
        return Some((None, Hold { stalled: true, ..Hold::new(Reason::Drifted, message) }));
    }
    let waiting: Vec<_> =
        can_be.iter().filter_map(|missing| Some((*missing, repairs.waits(&missing.object, now)?))).collect();
    let due: Vec<_> = can_be.iter().copied().filter(|missing| repairs.waits(&missing.object, now).is_none()).collect();
    if !due.is_empty() {
        let message = format!(
            "{} of release {release}: another client has deleted it, or taken it off the release; it is made again",
            objects(&due)
        );
        let before = due.iter().find_map(|missing| Some((*missing, repairs.of(&missing.object)?.refused.as_ref()?)));
        let told = match before {
            // As long as it is refused, the same is told.
            Some((missing, refused)) => hold_refused(missing, refused),
            None => hold(message),
        };
        // What has come of it.
        return Some((Some(Step::Repair(due.into_iter().cloned().collect())), told.until(now + SOON)));
    }
    let again = waiting.iter().map(|(_, repaired)| repaired.not_before).chain([now + SAFETY_NET]).min();
    let refused = waiting.iter().find_map(|(missing, repaired)| Some((*missing, repaired.refused.as_ref()?)));
    let told = match (refused, missing.iter().find_map(blocked), waiting.first()) {
        (Some((missing, refused)), ..) => hold_refused(missing, refused),
        (None, Some((missing, why, stalled)), _) => {
            Hold { stalled, ..hold(format!("{} of release {release} {why}", objects(&[missing]))) }
        }
        (None, None, Some((missing, repaired))) => {
            let times =
                if repaired.times == 1 { "once".to_owned() } else { format!("{} times in a row", repaired.times) };
            hold(format!(
                "{} of release {release} was made again {times}, and another client has deleted it, or taken it off the release, again: find that client; it is made again ever more seldom, down to every 5 minutes",
                objects(&[missing])
            ))
        }
        (None, None, None) => return None,
    };
    Some((None, told.until(again)))
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
            (Some("Helm"), None, None, Some(Found::Foreign)),
            (Some("kubectl"), None, None, Some(Found::Foreign)),
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
