//! Finds objects of a release that another client has edited. **Pure.**
//!
//! The API server records which fields of an object each client manages. An edit takes a field from helm, so that helm's share shows
//! in the watch that something has changed; what has changed is found by applying the object as Helm stored it, as a dry run.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use kube::api::DynamicObject;
use serde_json::{Map, Value, json};

use super::{
    drift,
    types::{DriftedObject, Edit, IgnoredField},
};
use crate::{
    clientapp::hold::SAFETY_NET,
    crd::{DriftIgnore, Inventory, ReleaseObject},
    platform::{
        key::Key,
        managed_fields::{HELM, is_scaled},
    },
};

/// The pause between two looks at a release that another client edits again and again.
const PAUSE: SignedDuration = SignedDuration::from_secs(1);

/// Which fields helm manages, of each object of a release.
pub(crate) type Managed = BTreeMap<(&'static str, String), u64>;

/// Holds what was last known of the edits of a release.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct EditTracker {
    /// uid of the Secret of the revision.
    revision: String,
    /// Holds what helm managed while all was as it should be.
    baseline: Managed,
    /// The last look.
    last_compared: Option<(Timestamp, Managed, Vec<DriftedObject>)>,
    ignored: Vec<DriftIgnore>,
}

/// Says what to do about what helm manages now.
#[derive(Debug, PartialEq)]
pub(crate) enum EditCheck {
    /// Nothing has been edited.
    Unchanged(EditTracker),
    /// As in the last comparison; compare again at this time.
    StillEdited(Vec<DriftedObject>, Timestamp),
    /// Look at the objects that have changed since this was known.
    Compare(EditTracker, Vec<ReleaseObject>),
}

/// Compares what helm manages now with the baseline. `shown`: until then a watch may not show what helm has just written.
pub(crate) fn check(
    tracker: Option<EditTracker>,
    inventory: &Inventory,
    managed: &Managed,
    shown: Option<Timestamp>,
    now: Timestamp,
) -> EditCheck {
    let Some(tracker) = tracker.filter(|tracker| tracker.revision == inventory.secret) else {
        // The first observation after a restart is the baseline.
        return EditCheck::Unchanged(EditTracker::of(inventory, managed.clone()));
    };
    let is_changed = |object: &&ReleaseObject| {
        let id = drift::watched(object).map(|kind| (kind, object.name.clone()));
        id.is_some_and(|id| managed.get(&id).is_some_and(|helms| tracker.baseline.get(&id) != Some(helms)))
    };
    let changed: Vec<_> = inventory.objects.iter().filter(is_changed).cloned().collect();
    if changed.is_empty() {
        let last_compared = tracker.last_compared.filter(|(at, ..)| now < *at + PAUSE);
        return EditCheck::Unchanged(EditTracker { last_compared, ..tracker });
    }
    if let Some(shown) = shown {
        return EditCheck::StillEdited(Vec::new(), shown);
    }
    if let Some((at, seen, found)) = &tracker.last_compared {
        let until = *at + if seen == managed { SAFETY_NET } else { PAUSE };
        if now < until {
            return EditCheck::StillEdited(found.clone(), until);
        }
    }
    EditCheck::Compare(tracker, changed)
}

impl EditTracker {
    /// Starts to track a revision. `baseline`: what helm manages of each object.
    pub(crate) fn of(inventory: &Inventory, baseline: Managed) -> EditTracker {
        EditTracker { revision: inventory.secret.clone(), baseline, ..EditTracker::default() }
    }

    pub(crate) fn with(self, ignored: &[DriftIgnore]) -> EditTracker {
        EditTracker { ignored: ignored.to_vec(), ..self }
    }

    /// Returns what of it still counts if these fields are ignored: nothing, if others were before.
    pub(crate) fn ignoring(self, ignored: &[DriftIgnore]) -> EditTracker {
        match self.ignored == ignored {
            true => self,
            false => EditTracker { revision: self.revision, ..EditTracker::default() }.with(ignored),
        }
    }

    /// Records a comparison that found these objects edited. An object that changed without being edited is right as it is.
    pub(crate) fn after(mut self, managed: Managed, found: &[DriftedObject], now: Timestamp) -> EditTracker {
        for (id, helms) in &managed {
            if found.iter().all(|edited| (edited.object.kind.as_str(), &edited.object.name) != (id.0, &id.1)) {
                self.baseline.insert(id.clone(), *helms);
            }
        }
        self.last_compared = Some((now, managed, found.to_vec()));
        self
    }
}

/// Returns a document of the manifest as it is applied to an object that is there, except for fields that are left to other
/// clients.
pub(crate) fn document_of(mut document: Value, release: &Key, ignored: &[IgnoredField]) -> Value {
    for IgnoredField { path, value } in ignored {
        let Some((parent, name)) = path.rsplit_once('/') else { continue };
        match (document.pointer_mut(parent), value) {
            (Some(Value::Object(fields)), Some(value)) => drop(fields.insert(unescaped(name), value.clone())),
            (Some(Value::Object(fields)), None) => drop(fields.remove(&unescaped(name))),
            (Some(Value::Array(items)), Some(value)) => {
                let item = name.parse().ok().and_then(|index: usize| items.get_mut(index));
                item.into_iter().for_each(|item| item.clone_from(value));
            }
            _ => {}
        }
    }
    // Helm's ownership metadata is always restored.
    drift::applied(document, release)
}

fn unescaped(name: &str) -> String {
    name.replace("~1", "/").replace("~0", "~")
}

/// Returns the replicas, if a controller sets them: without them in the document, helm does not manage them.
pub(crate) fn scaled_replicas(live: &DynamicObject) -> Option<IgnoredField> {
    is_scaled(&live.metadata).then(|| IgnoredField { path: "/spec/replicas".to_owned(), value: None })
}

/// The ignored fields of an object that another client has changed, as it has them. `applied`: the object as it would be if the
/// document were applied, so that defaults and spellings of the API server's are no changes.
pub(crate) fn ignored_fields(
    ReleaseObject { kind, name, .. }: &ReleaseObject,
    (live, applied): (&DynamicObject, &DynamicObject),
    document: &Value,
    ignored: &[DriftIgnore],
) -> Vec<IgnoredField> {
    let [live, applied] = [live, applied].map(|object| serde_json::to_value(object).unwrap_or_default());
    let applies = |rule: &&DriftIgnore| rule.kind == *kind && rule.name.as_ref().is_none_or(|meant| meant == name);
    let paths = ignored.iter().filter(applies).flat_map(|rule| &rule.paths);
    let fields = paths.filter_map(|path| {
        let [live, applied] = [&live, &applied].map(|object| resolved(object, document, path));
        (live != applied).then(|| IgnoredField { path: path.clone(), value: live.cloned() })
    });
    fields.collect()
}

/// Returns what a JSON pointer into the document means in another version of the object, where named items of lists may have other
/// places.
fn resolved<'a>(object: &'a Value, document: &Value, path: &str) -> Option<&'a Value> {
    let (mut here, mut there) = (Some(document), object);
    for name in path.split('/').skip(1) {
        let next = here.and_then(|here| here.pointer(&format!("/{name}")));
        there = match (there, next.and_then(|item| item["name"].as_str())) {
            (Value::Array(items), Some(name)) => items.iter().find(|item| item["name"] == name)?,
            _ => there.pointer(&format!("/{name}"))?,
        };
        here = next;
    }
    Some(there)
}

/// Returns what another client has changed in this object, which applying it would undo; `None`: nothing.
pub(crate) fn edit(live: &DynamicObject, applied: &DynamicObject, ignored: Vec<IgnoredField>) -> Option<Edit> {
    let fields = differences(live, applied);
    (!fields.is_empty()).then(|| Edit { fields, by: editor(live), ignored })
}

/// Returns the field manager that changed the object last, besides helm and those that report its status.
fn editor(object: &DynamicObject) -> Option<String> {
    let managed = object.metadata.managed_fields.iter().flatten();
    let others = managed
        .filter(|managed| managed.manager.as_deref() != Some(HELM) && managed.subresource.as_deref() != Some("status"));
    others.max_by_key(|managed| managed.time.as_ref().map(|time| time.0))?.manager.clone()
}

/// Returns the fields that applying the object would change, without those that the API server itself sets.
fn differences(live: &DynamicObject, applied: &DynamicObject) -> Vec<String> {
    let mut found = Vec::new();
    let words = |object: &DynamicObject| {
        let metadata = &object.metadata;
        json!({"labels": metadata.labels, "annotations": metadata.annotations})
    };
    differ(&words(live), &words(applied), "metadata", &mut found);
    let fields = |object: &DynamicObject| {
        let mut data = object.data.clone();
        data.as_object_mut().map(|fields| fields.remove("status"));
        data
    };
    differ(&fields(live), &fields(applied), "", &mut found);
    found
}

fn differ(one: &Value, other: &Value, path: &str, found: &mut Vec<String>) {
    match (one, other) {
        (Value::Object(one), Value::Object(other)) => {
            let names: BTreeSet<_> = one.keys().chain(other.keys()).collect();
            for name in names {
                let value = |fields: &Map<String, Value>| fields.get(name).cloned().unwrap_or_default();
                let dot = if path.is_empty() { "" } else { "." };
                differ(&value(one), &value(other), &format!("{path}{dot}{name}"), found);
            }
        }
        (Value::Array(one), Value::Array(other)) if one.len() == other.len() => {
            for (index, (one, other)) in one.iter().zip(other).enumerate() {
                let name = one["name"].as_str().map_or_else(|| index.to_string(), str::to_owned);
                differ(one, other, &format!("{path}[{name}]"), found);
            }
        }
        _ if one == other => {}
        _ => found.push(path.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clientapp::{
        fixtures::{self, now},
        observed::types::LiveState,
    };

    fn inventory() -> Inventory {
        let objects = ["Deployment", "Service", "Secret"].map(|kind| fixtures::object(kind, "acme")).into();
        Inventory { secret: "one".to_owned(), objects, ..Inventory::default() }
    }

    fn managed(deployment: u64, service: u64) -> Managed {
        [("Deployment", deployment), ("Service", service)]
            .map(|(kind, helms)| ((kind, "acme".to_owned()), helms))
            .into()
    }

    #[test]
    fn changed_objects_are_compared_once_and_rate_limited() {
        let (inventory, start) = (inventory(), now());
        let at = |seconds: i64| start + SignedDuration::from_secs(seconds);
        let tracker = EditTracker::of(&inventory, managed(1, 1));
        assert_eq!(check(None, &inventory, &managed(1, 1), None, start), EditCheck::Unchanged(tracker.clone()));
        let of = |tracker: &EditTracker, managed: Managed, seconds: i64| {
            check(Some(tracker.clone()), &inventory, &managed, None, at(seconds))
        };
        assert_eq!(of(&tracker, managed(1, 1), 9), EditCheck::Unchanged(tracker.clone()));

        let deployment = inventory.objects[0].clone();
        assert_eq!(of(&tracker, managed(2, 1), 9), EditCheck::Compare(tracker.clone(), vec![deployment.clone()]));
        // A late watch shows it as it was before helm ran.
        let late = check(Some(tracker.clone()), &inventory, &managed(2, 1), Some(at(14)), at(9));
        assert_eq!(late, EditCheck::StillEdited(vec![], at(14)));
        // It is no edit: this is right from now on.
        let settled = tracker.clone().after(managed(2, 1), &[], at(9));
        assert_eq!(of(&settled, managed(2, 1), 9), EditCheck::Unchanged(settled.clone()));

        let edit = Edit { fields: vec!["spec.replicas".to_owned()], by: None, ignored: vec![] };
        let found = vec![DriftedObject { object: deployment.clone(), state: LiveState::Edited(edit) }];
        let edited = tracker.after(managed(2, 1), &found, at(9));
        assert_eq!(of(&edited, managed(2, 1), 10), EditCheck::StillEdited(found.clone(), at(69)));
        assert_eq!(of(&edited, managed(2, 1), 69), EditCheck::Compare(edited.clone(), vec![deployment.clone()]));
        // Another edit.
        assert_eq!(of(&edited, managed(3, 1), 9), EditCheck::StillEdited(found, at(10)));
        assert_eq!(of(&edited, managed(3, 1), 10), EditCheck::Compare(edited.clone(), vec![deployment]));
        // It is put back.
        assert_eq!(of(&edited, managed(1, 1), 10), EditCheck::Unchanged(EditTracker::of(&inventory, managed(1, 1))));
        let later = Inventory { secret: "two".to_owned(), ..inventory.clone() };
        let expected = EditCheck::Unchanged(EditTracker::of(&later, managed(5, 5)));
        assert_eq!(check(Some(edited), &later, &managed(5, 5), None, at(9)), expected);
    }

    fn object(more: Value) -> DynamicObject {
        let mut object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "acme"}});
        for (name, value) in more.as_object().unwrap() {
            match (name.as_str(), value) {
                ("metadata", Value::Object(fields)) => {
                    object["metadata"].as_object_mut().unwrap().extend(fields.clone())
                }
                _ => object[name] = value.clone(),
            }
        }
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn fields_are_named_without_their_values() {
        let container = |image: &str| json!([{"name": "app", "image": image}]);
        let live = object(json!({
            "metadata": {"labels": {"a": "b"}, "resourceVersion": "1", "generation": 2, "annotations": {"own": "x"}},
            "spec": {"replicas": 3, "containers": container("evil"), "list": [1, 2]}, "status": {"replicas": 3},
            "data": {"password": "canary"},
        }));
        let applied = object(json!({
            "metadata": {"labels": {"a": "c"}, "resourceVersion": "2", "generation": 3, "annotations": {"own": "x"}},
            "spec": {"replicas": 1, "containers": container("good"), "list": [1]}, "data": {"password": "other"},
        }));
        let fields = differences(&live, &applied);
        let expected =
            ["metadata.labels.a", "data.password", "spec.containers[app].image", "spec.list", "spec.replicas"];
        assert_eq!(fields, expected);
        assert!(differences(&live, &live).is_empty());
    }

    #[test]
    fn replicas_of_a_controller_are_left_to_it() {
        let by = |manager: &str, subresource: Option<&str>, fields: Value, time: &str| {
            json!({"manager": manager, "operation": "Update", "subresource": subresource, "fieldsV1": fields,
                "time": format!("2026-01-01T00:00:0{time}Z")})
        };
        let replicas = || json!({"f:spec": {"f:replicas": {}}});
        let helm = || by("helm", None, json!({}), "9");
        let status = || by("kube-controller-manager", Some("status"), json!({"f:status": {}}), "8");
        for (entry, scaled) in [
            (by("kube-controller-manager", Some("scale"), replicas(), "1"), true),
            (by("keda", Some("scale"), replicas(), "1"), true),
            (by("kubectl", Some("scale"), replicas(), "1"), false),
            (by("kubectl-edit", None, replicas(), "1"), false),
        ] {
            let object = object(json!({"metadata": {"managedFields": [helm(), status(), entry]}}));
            assert_eq!(is_scaled(&object.metadata), scaled, "{entry}");
            assert_eq!(editor(&object).as_deref(), entry["manager"].as_str());
        }
        let release = Key::new("tenants", "acme");
        let document = || json!({"kind": "Deployment", "metadata": {"name": "acme"}, "spec": {"replicas": 1, "a": 1}});
        let replicas = IgnoredField { path: "/spec/replicas".to_owned(), value: None };
        assert_eq!(document_of(document(), &release, &[replicas])["spec"], json!({"a": 1}));
        assert_eq!(document_of(document(), &release, &[])["spec"], document()["spec"]);
    }

    #[test]
    fn ignored_fields_are_left_as_another_client_has_set_them() {
        let of = |more: Value| {
            let mut ignored = json!({"kind": "Deployment"});
            ignored.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            vec![serde_json::from_value::<DriftIgnore>(ignored).unwrap()]
        };
        let container =
            |limits: Value| json!([{"name": "app", "resources": {"limits": limits, "requests": {"cpu": "1"}}}]);
        let document = || {
            json!({"kind": "Deployment", "metadata": {"name": "acme", "annotations": {"a/b": "1"}},
                "spec": {"memory": "1024Mi", "containers": container(json!({"cpu": "1"}))}})
        };
        // As the API server spells it, and with its defaults.
        let applied = object(json!({
            "metadata": {"annotations": {"a/b": "1"}},
            "spec": {"memory": "1Gi", "default": true, "containers": container(json!({"cpu": "1"}))},
        }));
        let sidecar = json!({"name": "sidecar", "resources": {}});
        let mut containers = container(json!({"cpu": "2"}));
        containers.as_array_mut().unwrap().insert(0, sidecar);
        let live = object(json!({
            "metadata": {"annotations": {"a/b": "2", "c": "d"}},
            "spec": {"memory": "1Gi", "default": true, "containers": containers},
        }));
        let one = fixtures::object("Deployment", "acme");
        let resources = "/spec/containers/0/resources";
        for (what, ignored, expected) in [
            ("nothing", vec![], json!([])),
            ("not changed", of(json!({"paths": ["/spec/memory", "/spec/default"]})), json!([])),
            ("nothing there", of(json!({"paths": ["/spec/none/x", "/spec/containers/7"]})), json!([])),
            ("of another kind", of(json!({"kind": "Service", "paths": ["/metadata/annotations/a~1b"]})), json!([])),
            ("of another name", of(json!({"name": "other", "paths": ["/metadata/annotations/a~1b"]})), json!([])),
            (
                "changed",
                of(json!({"name": "acme", "paths": ["/metadata/annotations/a~1b"]})),
                json!([["/metadata/annotations/a~1b", "2"]]),
            ),
            (
                "of a container that has another place now, and with what the other client left",
                of(json!({"paths": [resources]})),
                json!([[resources, {"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}]]),
            ),
        ] {
            let fields = ignored_fields(&one, (&live, &applied), &document(), &ignored);
            let found: Vec<_> = fields.iter().map(|field| json!([field.path, field.value])).collect();
            assert_eq!(json!(found), expected, "{what}");
            let made = document_of(document(), &Key::new("tenants", "acme"), &fields);
            for IgnoredField { path, value } in &fields {
                assert_eq!(made.pointer(path), value.as_ref(), "{what}");
            }
        }
        // A client that removed everything has not removed Helm's marks.
        let all = [IgnoredField { path: "/metadata/annotations".to_owned(), value: None }];
        let made = document_of(document(), &Key::new("tenants", "acme"), &all);
        assert_eq!(made["metadata"]["annotations"]["meta.helm.sh/release-name"], "acme");
        let inventory = inventory();
        let tracker = EditTracker::of(&inventory, managed(1, 1));
        assert_eq!(tracker.clone().ignoring(&[]), tracker);
        let other = tracker.ignoring(&of(json!({"paths": ["/spec/paused"]})));
        let objects = inventory.objects[..2].to_vec();
        assert_eq!(
            check(Some(other.clone()), &inventory, &managed(1, 1), None, now()),
            EditCheck::Compare(other, objects)
        );
    }
}
