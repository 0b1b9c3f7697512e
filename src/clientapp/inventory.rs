//! What a release consists of, **pure**: read from the manifest that Helm stored, so that what is missing is noticed, and a
//! deletion can be proven and finished object by object.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

use super::observed::Workload;
use crate::{
    crd::{Inventory, ReleaseObject, label},
    helm::{
        ingress,
        storage::{Hook, RESOURCE_POLICY, Stored},
    },
    runtime::key::Key,
    yaml,
};

/// The policy that leaves it.
pub(crate) const KEEP: &str = "keep";

/// Bytes of a document; the API server takes no request that is larger (k8s.io/apiserver, `MaxRequestBodyBytes`).
const MAX_OBJECT: usize = 3 << 20;

/// The inventory of a stored revision. `secret` is the uid of the Secret that stores it.
///
/// # Errors
/// The manifest is no YAML, or an object in it has no kind or name.
pub(crate) fn read(secret: &str, stored: &Stored) -> Result<Inventory, String> {
    let (mut objects, mut hosts) = (Vec::new(), BTreeSet::new());
    each(stored, |document| {
        if ingress::is_ingress(document) {
            hosts.extend(ingress::hosts(document));
        }
        object(document).map(|object| objects.push(object))
    })?;
    let hook_jobs: BTreeSet<_> =
        stored.hooks.iter().filter(|hook| hook.kind == "Job").map(|hook| hook.name.clone()).collect();
    let is_owed = |hook: &&Hook| stored.info.is_installation() && hook.is_left_out();
    let install_hooks = stored.hooks.iter().filter(is_owed).map(|hook| format!("{} {}", hook.kind, hook.name));
    Ok(Inventory {
        secret: secret.to_owned(),
        install_hooks: install_hooks.collect(),
        objects,
        hook_jobs: hook_jobs.into_iter().collect(),
        hosts: hosts.into_iter().collect(),
    })
}

/// What Helm has stored of each of these objects, as helm reads it; or why that cannot be said.
pub(crate) fn stored(stored: &Stored, objects: &[ReleaseObject]) -> Vec<Result<Value, String>> {
    let missing = |object: &ReleaseObject| Err(format!("what Helm stored has no {} {}", object.kind, object.name));
    let mut found: Vec<_> = objects.iter().map(missing).collect();
    let place = |document: &Value| {
        let of = object(document).ok()?;
        let is_same = |one: &ReleaseObject| {
            (&one.api_version, &one.kind, &one.name) == (&of.api_version, &of.kind, &of.name)
                && one.namespace == of.namespace
        };
        objects.iter().position(is_same)
    };
    for text in documents(&stored.manifest) {
        let mut wanted = Vec::new();
        // One that is not read here is none of the inventory's.
        let _ = each_of(text, &mut |document| {
            wanted.extend(place(document));
            Ok(())
        });
        // Most documents are none of them.
        if wanted.is_empty() {
            continue;
        }
        let read = yaml::as_helm_reads(text).and_then(|text| {
            each_of(&text, &mut |document| {
                if let Some(place) = place(document) {
                    found[place] = Ok(document.clone());
                }
                Ok(())
            })
        });
        if let Err(problem) = read {
            wanted.into_iter().for_each(|place| found[place] = Err(problem.clone()));
        }
    }
    found
}

/// Takes each object of a stored revision.
fn each(stored: &Stored, mut take: impl FnMut(&Value) -> Result<(), String>) -> Result<(), String> {
    documents(&stored.manifest).try_for_each(|text| each_of(text, &mut take))
}

/// Takes each object of a document.
fn each_of(text: &str, take: &mut impl FnMut(&Value) -> Result<(), String>) -> Result<(), String> {
    // A tree of YAML takes many times the memory of its text.
    if text.len() > MAX_OBJECT {
        return Err(format!("its manifest has a document of {} bytes, more than any object has", text.len()));
    }
    for document in serde_yaml::Deserializer::from_str(text) {
        let document = Value::deserialize(document).map_err(|error| format!("its manifest is not YAML: {error}"))?;
        match document["kind"].as_str() {
            _ if document.is_null() => {}
            // A list counts as what is in it.
            Some(kind) if kind.ends_with("List") && document["items"].is_array() => {
                for item in document["items"].as_array().into_iter().flatten() {
                    take(item)?;
                }
            }
            _ => take(&document)?,
        }
    }
    Ok(())
}

/// The documents of a stream of YAML; a line that begins with `---` is in none of them.
fn documents(manifest: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(manifest);
    std::iter::from_fn(move || {
        let text = rest?;
        let end = if text.starts_with("---") { Some(0) } else { text.find("\n---").map(|end| end + 1) };
        let (document, after) = text.split_at(end.unwrap_or(text.len()));
        // What follows the marker in its line belongs to the next document.
        rest = (!after.is_empty()).then(|| &after[3..]);
        Some(document)
    })
}

fn object(document: &Value) -> Result<ReleaseObject, String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let (metadata, spec) = (&document["metadata"], &document["spec"]);
    let named = text(&document["apiVersion"]).zip(text(&document["kind"])).zip(text(&metadata["name"]));
    let ((api_version, kind), name) = named.ok_or("its manifest has an object without apiVersion, kind or name")?;
    let policy = metadata["annotations"][RESOURCE_POLICY].as_str().unwrap_or_default();
    let templates = spec["volumeClaimTemplates"].as_array().into_iter().flatten();
    let of_set = kind == "StatefulSet";
    Ok(ReleaseObject {
        api_version,
        name,
        namespace: text(&metadata["namespace"]),
        // As Helm compares it: helm.sh/helm/v4/pkg/action, `filterManifestsToKeep`.
        kept: policy.trim().eq_ignore_ascii_case(KEEP),
        claim_templates: templates
            .filter(|_| of_set)
            .filter_map(|template| text(&template["metadata"]["name"]))
            .collect(),
        takes_claims: of_set && spec["persistentVolumeClaimRetentionPolicy"]["whenDeleted"] == "Delete",
        kind,
    })
}

/// What of a release is in the app's own namespace.
pub(crate) fn own<'a>(inventory: &'a Inventory, namespace: &'a str) -> impl Iterator<Item = &'a ReleaseObject> {
    inventory.objects.iter().filter(move |object| object.namespace.as_deref().is_none_or(|own| own == namespace))
}

/// The part of an inventory that makes this claim: the claim itself, or the StatefulSet with a template for it.
pub(crate) fn maker<'a>(inventory: &'a Inventory, namespace: &'a str, claim: &str) -> Option<&'a ReleaseObject> {
    own(inventory, namespace).find(|object| match object.kind.as_str() {
        "PersistentVolumeClaim" => object.name == claim,
        // k8s.io/kubernetes/pkg/controller/statefulset, `getPersistentVolumeClaimName`.
        "StatefulSet" => object.claim_templates.iter().any(|template| {
            let ordinal = claim.strip_prefix(&format!("{template}-{}-", object.name));
            ordinal.is_some_and(|ordinal| ordinal.parse::<u32>().is_ok())
        }),
        _ => false,
    })
}

/// Why `helm uninstall` would take a claim along that shall stay, with this object; `None`: it takes none.
pub(crate) fn danger(object: &ReleaseObject) -> Option<String> {
    let ReleaseObject { kind, name, .. } = object;
    match kind.as_str() {
        "StatefulSet" if object.takes_claims && !object.claim_templates.is_empty() => Some(format!(
            "StatefulSet {name} has persistentVolumeClaimRetentionPolicy.whenDeleted: Delete, and its claims would go with it"
        )),
        "PersistentVolumeClaim" if !object.kept => Some(format!(
            "the chart does not mark {kind} {name} with {RESOURCE_POLICY}: {KEEP}, and helm uninstall would delete it"
        )),
        _ => None,
    }
}

/// The release's own claims that the chart does not ask Helm to keep.
pub(crate) fn unkept_claims<'a>(inventory: &'a Inventory, namespace: &'a str) -> impl Iterator<Item = &'a str> {
    let unkept = |object: &&ReleaseObject| object.kind == "PersistentVolumeClaim" && !object.kept;
    own(inventory, namespace).filter(unkept).map(|object| object.name.as_str())
}

/// What a workload waits for that is not there.
pub(crate) const MISSING: &str = "is not there";

/// The release's workloads: those that are seen, and those that are not there, although the release has them.
pub(crate) fn with_missing(inventory: Option<&Inventory>, app: &Key, mut seen: Vec<Workload>) -> Vec<Workload> {
    for object in inventory.into_iter().flat_map(|inventory| own(inventory, &app.namespace)) {
        let kind = match object.kind.as_str() {
            "Deployment" => "Deployment",
            "StatefulSet" => "StatefulSet",
            _ => continue,
        };
        if seen.iter().any(|workload| workload.kind == kind && workload.name == object.name) {
            continue;
        }
        let (name, waiting) = (object.name.clone(), Some(MISSING.to_owned()));
        seen.push(Workload { kind, name, waiting, ..Workload::default() });
    }
    seen.sort();
    seen
}

/// Label and annotations by which Helm marks what belongs to a release (helm.sh/helm/v4/pkg/action/validate.go).
pub(crate) const MANAGED_BY: (&str, &str) = (label::MANAGED_BY, "Helm");
/// The name of that release.
pub(crate) const RELEASE_NAME: &str = "meta.helm.sh/release-name";
/// The namespace of that release.
pub(crate) const RELEASE_NAMESPACE: &str = "meta.helm.sh/release-namespace";

/// The release that an object says it is of. It speaks for its own namespace only: annotations are whatever a user writes.
pub(crate) fn release_of(meta: &ObjectMeta) -> Option<Key> {
    let annotation = |key: &str| meta.annotations.as_ref()?.get(key);
    let own = meta.namespace.as_ref()?;
    let says = annotation(RELEASE_NAMESPACE)? == own;
    says.then(|| annotation(RELEASE_NAME).map(|name| Key::new(own, name))).flatten()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::helm::storage::{Info, Run};

    const MANIFEST: &str = r"---
# Source: chart/templates/claim.yaml
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: acme-files, annotations: {helm.sh/resource-policy: keep}}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: acme-scratch}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: acme-redis-master}
spec: {volumeClaimTemplates: [{metadata: {name: redis-data}}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: acme-cache}
spec: {volumeClaimTemplates: [{metadata: {name: c}}], persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete}}
---
---
apiVersion: v1
kind: List
items: [{apiVersion: apps/v1, kind: Deployment, metadata: {name: acme}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: far, namespace: elsewhere}
";

    fn inventory() -> Inventory {
        let hook = |kind: &str, name: &str| Hook { kind: kind.to_owned(), name: name.to_owned(), ..Hook::default() };
        let hooks = vec![hook("Job", "prepare"), hook("Pod", "check"), hook("Job", "prepare")];
        read("uid", &Stored { manifest: MANIFEST.to_owned(), hooks, ..Stored::default() }).unwrap()
    }

    #[test]
    fn what_no_object_can_be_is_not_read() {
        let manifest = |manifest: &str| Stored { manifest: manifest.to_owned(), ..Stored::default() };
        let bomb = format!("---\n---\n- {}", "[],".repeat(1 << 20));
        let error = read("uid", &manifest(&bomb)).unwrap_err();
        assert_eq!(error, "its manifest has a document of 3145731 bytes, more than any object has");
        for (text, expected) in [
            ("", &[""][..]),
            ("a: 1", &["a: 1"]),
            ("---\na: 1\n--- # b\nb: |\n  ---\n---", &["", "\na: 1\n", " # b\nb: |\n  ---\n", ""]),
        ] {
            assert_eq!(documents(text).collect::<Vec<_>>(), expected, "{text}");
        }
    }

    #[test]
    fn what_a_release_consists_of() {
        let inventory = inventory();
        let names: Vec<_> = inventory.objects.iter().map(|object| object.name.as_str()).collect();
        assert_eq!(names, ["acme-files", "acme-scratch", "acme-redis-master", "acme-cache", "acme", "far"]);
        assert_eq!(inventory.hook_jobs, ["prepare"]);
        for bad in ["kind: A\n", "apiVersion: v1\nkind: A\n", "a: [", "- 1\n"] {
            assert!(read("uid", &Stored { manifest: bad.to_owned(), ..Stored::default() }).is_err(), "{bad}");
        }
    }

    #[test]
    fn hooks_that_only_an_installation_runs() {
        for (events, phase, last, expected) in [
            (&["pre-install"][..], "Failed", "now", true),
            (&["pre-install"], "Running", "now", true),
            (&["pre-install"], "Succeeded", "now", false),
            (&["post-install", "pre-upgrade"], "", "now", true),
            (&["pre-install", "pre-upgrade"], "", "now", false),
            (&["post-install", "post-upgrade"], "", "now", false),
            (&["test"], "", "now", false),
            // As of an upgrade.
            (&["pre-install"], "Failed", "later", false),
        ] {
            let events = events.iter().map(|event| (*event).to_owned()).collect();
            let last_run = Run { phase: phase.to_owned() };
            let hook = Hook { kind: "Job".to_owned(), name: "migrate".to_owned(), events, last_run };
            let info = Info { first_deployed: Some("now".to_owned()), last_deployed: Some(last.to_owned()) };
            let inventory = read("uid", &Stored { hooks: vec![hook], info, ..Stored::default() }).unwrap();
            assert_eq!(inventory.install_hooks, ["Job migrate"][..usize::from(expected)], "{inventory:?}");
        }
    }

    #[test]
    fn whose_a_claim_is_and_what_becomes_of_it() {
        let inventory = inventory();
        for (claim, made_by, dangerous) in [
            ("acme-files", Some("acme-files"), false),
            ("acme-scratch", Some("acme-scratch"), true),
            ("redis-data-acme-redis-master-0", Some("acme-redis-master"), false),
            ("redis-data-acme-redis-master-12", Some("acme-redis-master"), false),
            ("c-acme-cache-0", Some("acme-cache"), true),
            ("redis-data-acme-redis-master-x", None, false),
            ("redis-data-acme-redis-master-", None, false),
            ("other", None, false),
        ] {
            let found = maker(&inventory, "tenants", claim);
            assert_eq!(found.map(|object| object.name.as_str()), made_by, "{claim}");
            assert_eq!(found.is_some_and(|maker| danger(maker).is_some()), dangerous, "{claim}");
        }
    }

    #[test]
    fn a_workload_that_is_missing_is_not_ready() {
        let seen = vec![Workload { kind: "Deployment", name: "acme".to_owned(), ..Workload::default() }];
        let all = with_missing(Some(&inventory()), &Key::new("tenants", "acme"), seen.clone());
        let waiting: Vec<_> = all.iter().map(|workload| (workload.name.as_str(), workload.waiting.is_some())).collect();
        assert_eq!(waiting, [("acme", false), ("acme-cache", true), ("acme-redis-master", true)]);
        assert_eq!(with_missing(None, &Key::new("tenants", "acme"), seen.clone()), seen);
    }

    #[test]
    fn an_object_speaks_for_its_own_namespace() {
        for (release_namespace, found) in [("tenants", true), ("other", false)] {
            let meta = serde_json::from_value(json!({"name": "x", "namespace": "tenants", "annotations": {
                RELEASE_NAME: "acme", RELEASE_NAMESPACE: release_namespace,
            }}));
            assert_eq!(release_of(&meta.unwrap()).is_some(), found, "{release_namespace}");
        }
    }
}
