//! The objects of a release, **pure**: read from the manifest in Helm's storage, so that missing objects are noticed, and a
//! teardown can be verified and completed object by object.

use std::collections::BTreeSet;

use serde_json::Value;

use super::types::Workload;
use crate::{
    crd::{Inventory, ReleaseObject},
    helm::{
        hosts,
        storage::{Hook, RESOURCE_POLICY, Stored},
    },
    platform::key::Key,
    yaml,
};

/// The resource policy with which Helm leaves an object in place.
pub(crate) const KEEP: &str = "keep";

/// Limit for a document in bytes; the API server accepts no larger request (k8s.io/apiserver, `MaxRequestBodyBytes`).
const MAX_OBJECT: usize = 3 << 20;
/// Limit for the objects of a release, and limit in bytes for an inventory, which is kept in the status: a tenant can write a
/// revision that has any number. No chart comes near.
const MOST_OBJECTS: usize = 5000;
const MOST_BYTES: usize = 1 << 20;
/// How many Jobs or pods of hooks are remembered: names may be different in each revision.
const MOST_HOOKS: usize = 50;

/// Returns the inventory of a stored revision. `secret` is the uid of the Secret that stores it.
///
/// # Errors
/// The manifest is not YAML, or an object in it has no kind or name, or it is larger than any release.
pub(crate) fn read(secret: &str, stored: &Stored) -> Result<Inventory, String> {
    let (mut objects, mut hosts) = (Vec::new(), BTreeSet::new());
    each(stored, |document| {
        if hosts::is_named_by_kind(document) {
            hosts.extend(hosts::hosts(document));
        }
        objects.push(object(document)?);
        if objects.len() > MOST_OBJECTS { Err(format!("more than {MOST_OBJECTS} objects")) } else { Ok(()) }
    })?;
    let hooks = |kind: &str| {
        let named = stored.hooks.iter().filter(|hook| hook.kind == kind).map(|hook| hook.name.clone());
        named.collect::<BTreeSet<_>>().into_iter().collect()
    };
    let is_owed = |hook: &&Hook| stored.info.is_installation() && hook.is_left_out();
    let install_hooks = stored.hooks.iter().filter(is_owed).map(|hook| format!("{} {}", hook.kind, hook.name));
    let inventory = Inventory {
        secret: secret.to_owned(),
        install_hooks: install_hooks.collect(),
        objects,
        hook_jobs: hooks("Job"),
        hook_pods: hooks("Pod"),
        hosts: hosts.into_iter().collect(),
    };
    let bytes = serde_json::to_vec(&inventory).map_err(|error| error.to_string())?.len();
    if bytes > MOST_BYTES {
        return Err(format!("the names of its objects, hooks and hosts have {bytes} bytes, more than {MOST_BYTES}"));
    }
    Ok(inventory)
}

/// Adds the Jobs and pods of hooks that former revisions had: Helm leaves them, and does not name them any more.
pub(crate) fn with_former_hooks(mut inventory: Inventory, former: Option<&Inventory>) -> Inventory {
    let Some(former) = former else { return inventory };
    let of_hooks = [(&mut inventory.hook_jobs, &former.hook_jobs), (&mut inventory.hook_pods, &former.hook_pods)];
    for (names, former) in of_hooks {
        let more: Vec<_> = former.iter().filter(|name| !names.contains(name)).cloned().collect();
        names.extend(more);
        names.truncate(MOST_HOOKS);
    }
    inventory
}

/// Returns each of these objects as Helm stored it and helm reads it; or why it cannot be read.
pub(crate) fn stored(stored: &Stored, objects: &[ReleaseObject]) -> Vec<Result<Value, String>> {
    let missing = |object: &ReleaseObject| Err(format!("what Helm stored has no {} {}", object.kind, object.name));
    let mut found: Vec<_> = objects.iter().map(missing).collect();
    let place = |document: &Value| {
        let listed = object(document).ok()?;
        let is_same = |one: &ReleaseObject| {
            (&one.api_version, &one.kind, &one.name) == (&listed.api_version, &listed.kind, &listed.name)
                && one.namespace == listed.namespace
        };
        objects.iter().position(is_same)
    };
    for text in documents(&stored.manifest) {
        let mut wanted = Vec::new();
        // A document that cannot be read here is not in the inventory.
        let _ = each_of(text, &mut |document| {
            wanted.extend(place(document));
            Ok(())
        });
        // Most documents contain none of these objects.
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

/// Calls `take` for each object of a stored revision.
fn each(stored: &Stored, mut take: impl FnMut(&Value) -> Result<(), String>) -> Result<(), String> {
    documents(&stored.manifest).try_for_each(|text| each_of(text, &mut take))
}

/// Calls `take` for each object of a manifest, as helm reads it.
pub(crate) fn each_object(manifest: &str, mut take: impl FnMut(&Value) -> Result<(), String>) -> Result<(), String> {
    documents(manifest).try_for_each(|text| each_of(&yaml::as_helm_reads(text)?, &mut take))
}

/// Calls `take` for each object of a document.
fn each_of(text: &str, take: &mut impl FnMut(&Value) -> Result<(), String>) -> Result<(), String> {
    // Parsed YAML takes many times the memory of its text.
    if text.len() > MAX_OBJECT {
        return Err(format!("its manifest has a document of {} bytes, more than any object has", text.len()));
    }
    let read = yaml::each(text, |document| match document["kind"].as_str() {
        _ if document.is_null() => Ok(()),
        // A list counts as its items.
        Some(kind) if kind.ends_with("List") && document["items"].is_array() => {
            document["items"].as_array().into_iter().flatten().try_for_each(&mut *take)
        }
        _ => take(&document),
    });
    read.map_err(|problem| format!("its manifest: {problem}"))
}

/// Returns the documents of a YAML stream, without the lines that begin with `---`.
fn documents(manifest: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(manifest);
    std::iter::from_fn(move || {
        let text = rest?;
        let end = if text.starts_with("---") { Some(0) } else { text.find("\n---").map(|end| end + 1) };
        let (document, after) = text.split_at(end.unwrap_or(text.len()));
        // Text after the marker on its line belongs to the next document.
        rest = (!after.is_empty()).then(|| &after[3..]);
        Some(document)
    })
}

fn object(document: &Value) -> Result<ReleaseObject, String> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let (metadata, spec) = (&document["metadata"], &document["spec"]);
    let named = text(&document["apiVersion"]).zip(text(&document["kind"])).zip(text(&metadata["name"]));
    let ((api_version, kind), name) = named.ok_or("an object without apiVersion, kind or name")?;
    let policy = metadata["annotations"][RESOURCE_POLICY].as_str().unwrap_or_default();
    let templates = spec["volumeClaimTemplates"].as_array().into_iter().flatten();
    let of_set = kind == "StatefulSet";
    let is_workload = ["Deployment", "StatefulSet"].contains(&kind.as_str());
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
        replicas: is_workload.then(|| spec["replicas"].as_i64().unwrap_or(1)),
        kind,
    })
}

/// Returns the objects of a release in the app's own namespace.
pub(crate) fn own<'a>(inventory: &'a Inventory, namespace: &'a str) -> impl Iterator<Item = &'a ReleaseObject> {
    inventory.objects.iter().filter(move |object| object.namespace.as_deref().is_none_or(|own| own == namespace))
}

/// Returns the object in an inventory that creates this claim: the claim itself, or the StatefulSet with a template for it.
pub(crate) fn maker<'a>(inventory: &'a Inventory, namespace: &'a str, claim: &str) -> Option<&'a ReleaseObject> {
    own(inventory, namespace).find(|object| match object.kind.as_str() {
        "PersistentVolumeClaim" => object.name == claim,
        "StatefulSet" => ordinal(object, claim).is_some(),
        _ => false,
    })
}

/// Returns the ordinal in the name of a StatefulSet's claim (k8s.io/kubernetes/pkg/controller/statefulset,
/// `getPersistentVolumeClaimName`).
fn ordinal(set: &ReleaseObject, claim: &str) -> Option<u32> {
    let ordinal = |template: &String| claim.strip_prefix(&format!("{template}-{}-", set.name))?.parse().ok();
    set.claim_templates.iter().find_map(ordinal)
}

/// Returns true if the release and its StatefulSets create this claim, at the number of replicas in the chart.
pub(crate) fn expects(inventory: &Inventory, namespace: &str, claim: &str) -> bool {
    let is_asked_for = |object: &ReleaseObject| {
        ordinal(object, claim).is_none_or(|ordinal| i64::from(ordinal) < object.replicas.unwrap_or(1))
    };
    maker(inventory, namespace, claim).is_some_and(is_asked_for)
}

/// Returns the names of the claims that the release and its StatefulSets create: of a StatefulSet, which may ask for any number of
/// replicas, those of the first one.
pub(crate) fn first_claims<'a>(inventory: &'a Inventory, namespace: &'a str) -> impl Iterator<Item = String> {
    own(inventory, namespace).flat_map(|object| {
        let first = move |template: &String| format!("{template}-{}-0", object.name);
        let of_set = object.claim_templates.iter().filter(|_| object.replicas != Some(0)).map(first);
        let itself = (object.kind == "PersistentVolumeClaim").then(|| object.name.clone());
        of_set.chain(itself)
    })
}

/// Returns why `helm uninstall` would delete, with this object, a claim that is to be kept; `None`: it would not.
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

/// Returns the release's claims, without those of its StatefulSets.
pub(crate) fn claims<'a>(inventory: &'a Inventory, namespace: &'a str) -> impl Iterator<Item = &'a str> {
    let claims = own(inventory, namespace).filter(|object| object.kind == "PersistentVolumeClaim");
    claims.map(|object| object.name.as_str())
}

/// Returns the release's claims that the chart does not ask Helm to keep.
pub(crate) fn unkept_claims<'a>(inventory: &'a Inventory, namespace: &'a str) -> impl Iterator<Item = &'a str> {
    let unkept = |object: &&ReleaseObject| object.kind == "PersistentVolumeClaim" && !object.kept;
    own(inventory, namespace).filter(unkept).map(|object| object.name.as_str())
}

/// Says what a missing workload waits for.
pub(crate) const MISSING: &str = "is not there";

/// Returns the release's workloads: those that are observed, and those that the inventory has but are missing. A workload that
/// another client scaled to zero is complete by its own status, but serves nothing.
pub(crate) fn with_missing(inventory: Option<&Inventory>, app: &Key, mut seen: Vec<Workload>) -> Vec<Workload> {
    for object in inventory.into_iter().flat_map(|inventory| own(inventory, &app.namespace)) {
        let kind = match object.kind.as_str() {
            "Deployment" => "Deployment",
            "StatefulSet" => "StatefulSet",
            _ => continue,
        };
        match seen.iter_mut().find(|workload| workload.kind == kind && workload.name == object.name) {
            Some(workload) if workload.waiting.is_none() && workload.replicas == 0 => {
                workload.refused = None;
                let asked = object.replicas.filter(|asked| *asked > 0);
                workload.waiting =
                    asked.map(|asked| format!("scaled to 0 replicas by another client; the chart has {asked}"));
            }
            Some(_) => {}
            None => {
                let (name, waiting) = (object.name.clone(), Some(MISSING.to_owned()));
                seen.push(Workload { kind, name, waiting, ..Workload::default() });
            }
        }
    }
    seen.sort();
    seen
}

#[cfg(test)]
mod tests;
