//! Finds objects of a release that another client has deleted, or taken from it by removing Helm's marks. **Pure.**

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use super::{inventory, release::ReleaseView, types::LiveState};
use crate::{
    clientapp::spec::names::{MANAGED_BY, RELEASE_NAME, RELEASE_NAMESPACE},
    crd::{Inventory, ReleaseObject},
    platform::key::Key,
};

/// The watched kinds, by group. Volumes are not among them: a recreated volume would be empty. Nor are kinds that end by
/// themselves, such as Jobs.
pub(crate) const WATCHED: [(&str, &str); 8] = [
    ("", "ConfigMap"),
    ("", "Secret"),
    ("", "Service"),
    ("apps", "Deployment"),
    ("apps", "StatefulSet"),
    ("networking.k8s.io", "Ingress"),
    ("networking.k8s.io", "NetworkPolicy"),
    ("policy", "PodDisruptionBudget"),
];

/// Returns the state of an object; `None`: it is as desired, and the watch was late.
pub(crate) fn found(object: Option<&ObjectMeta>, release: &Key) -> Option<LiveState> {
    let Some(meta) = object else { return Some(LiveState::Absent) };
    let word = |words: &Option<BTreeMap<String, String>>, key: &str| words.as_ref()?.get(key).cloned();
    let (label, manager) = MANAGED_BY;
    let marks = [
        (word(&meta.labels, label), manager),
        (word(&meta.annotations, RELEASE_NAME), &release.name),
        (word(&meta.annotations, RELEASE_NAMESPACE), &release.namespace),
    ];
    let of_another = |(mark, ours): &(Option<String>, &str)| mark.as_ref().is_some_and(|mark| mark != ours);
    match () {
        () if meta.deletion_timestamp.is_some() => Some(LiveState::Deleting),
        () if marks.iter().all(|(mark, ours)| mark.as_deref() == Some(*ours)) => None,
        () if marks[1..].iter().any(of_another) => Some(LiveState::Foreign),
        // The label alone is on the objects of every release.
        () if marks[1..].iter().all(|(mark, _)| mark.is_none()) => Some(LiveState::Foreign),
        () => Some(LiveState::Unmarked),
    }
}

/// Returns the objects in the release's inventory, of the watched kinds, that no watch shows.
pub(crate) fn unseen(
    inventory: &Inventory,
    release: &ReleaseView,
    app: &Key,
    has: impl Fn(&'static str, &str) -> bool,
) -> Vec<ReleaseObject> {
    // An earlier revision's inventory may list objects that this revision no longer has.
    if inventory.secret != release.secret_uid {
        return Vec::new();
    }
    let is_unseen = |object: &&ReleaseObject| watched(object).is_some_and(|kind| !has(kind, &object.name));
    inventory::own(inventory, &app.namespace).filter(is_unseen).cloned().collect()
}

pub(crate) fn watched(object: &ReleaseObject) -> Option<&'static str> {
    let (group, _) = object.group_version();
    WATCHED.into_iter().find(|watched| *watched == (group, &object.kind)).map(|(_, kind)| kind)
}

/// Returns a document of the manifest as helm applies it: with the release's marks (helm.sh/helm/v4/pkg/action/validate.go,
/// `setMetadataVisitor`).
pub(crate) fn applied(mut document: Value, release: &Key) -> Value {
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

/// Returns the marks alone, for an existing object.
pub(crate) fn marks(release: &Key) -> Value {
    let (label, manager) = MANAGED_BY;
    let annotations = json!({RELEASE_NAME: release.name, RELEASE_NAMESPACE: release.namespace});
    json!({"metadata": {"labels": {label: manager}, "annotations": annotations}})
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;
    use crate::clientapp::fixtures::{now, object, release};

    #[test]
    fn objects_that_no_watch_shows() {
        let far = ReleaseObject { namespace: Some("far".to_owned()), ..object("Service", "far") };
        let api_version = "serving.knative.dev/v1".to_owned();
        let of_others = ReleaseObject { api_version, ..object("Service", "of-others") };
        let objects = vec![
            object("Service", "there"),
            object("Service", "gone"),
            object("StatefulSet", "gone"),
            object("PersistentVolumeClaim", "gone"),
            object("Job", "gone"),
            of_others,
            far,
        ];
        let release = release("d");
        let mut inventory = Inventory { secret: release.secret_uid.clone(), objects, ..Inventory::default() };
        let app = Key::new("tenants", "acme");
        let of = |inventory: &Inventory| {
            let unseen = unseen(inventory, &release, &app, |_, name| name == "there");
            unseen.into_iter().map(|object| format!("{} {}", object.kind, object.name)).collect::<Vec<_>>()
        };
        assert_eq!(of(&inventory), ["Service gone", "StatefulSet gone"]);
        inventory.secret = "of the revision before".to_owned();
        assert!(of(&inventory).is_empty());
    }

    #[test]
    fn documents_are_applied_as_helm_does() {
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
    fn ownership_by_helm_marks() {
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
        assert_eq!(found(None, &release), Some(LiveState::Absent));
        for (manager, name, namespace, expected) in [
            (Some("Helm"), OURS, HERE, None),
            (None, OURS, HERE, Some(LiveState::Unmarked)),
            (Some("kubectl"), OURS, HERE, Some(LiveState::Unmarked)),
            (Some("Helm"), None, HERE, Some(LiveState::Unmarked)),
            (Some("Helm"), None, None, Some(LiveState::Foreign)),
            (Some("kubectl"), None, None, Some(LiveState::Foreign)),
            (Some("Helm"), Some("other"), HERE, Some(LiveState::Foreign)),
            (None, OURS, Some("other"), Some(LiveState::Foreign)),
            (None, None, None, Some(LiveState::Foreign)),
        ] {
            let meta = meta(manager, name, namespace);
            assert_eq!(found(Some(&meta), &release), expected, "{meta:?}");
            let going = ObjectMeta { deletion_timestamp: Some(Time(now())), ..meta };
            assert_eq!(found(Some(&going), &release), Some(LiveState::Deleting));
        }
    }
}
