//! Revisions of a Profile: what it gives its ClientApps, as immutable ControllerRevisions. **Pure.**

use std::sync::Arc;

use k8s_openapi::{
    api::apps::v1::ControllerRevision,
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, runtime::RawExtension},
};
use kube::Resource as _;
use serde_json::{Value, json};

use crate::{
    crd::{Guard, Profile, ProfileSpec, label},
    platform::{key::digest, watch::owner},
};

/// This many of the newest revisions are kept, and those that are in use.
const KEPT: usize = 10;

/// Holds what a revision of a Profile gives the ClientApps that have it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProfileRevision {
    /// Name of the ControllerRevision.
    pub(crate) name: String,
    pub(crate) profile: String,
    pub(super) profile_uid: String,
    /// Its number, ascending.
    pub(crate) number: i64,
    /// The Profile's spec, or why it does not decode.
    pub(crate) spec: Result<ProfileSpec, String>,
    /// The operator's values below it.
    pub(crate) base_values: Value,
}

/// Returns what a Profile gives its ClientApps, as a document.
pub(super) fn content(spec: &ProfileSpec, base_values: &Value) -> Value {
    let given = ProfileSpec { description: String::new(), rollout: None, ..spec.clone() };
    json!({"spec": given, "baseValues": base_values})
}

/// Returns the name of the ControllerRevision with this number and content.
pub(super) fn name(profile: &Guard<Profile>, number: i64, content: &Value) -> String {
    let name = profile.metadata.name.as_deref().unwrap_or_default();
    let uid = profile.metadata.uid.as_deref().unwrap_or_default();
    let hash = digest(&[uid.as_bytes(), &number.to_be_bytes(), content.to_string().as_bytes()]);
    // Names have at most 253 characters, here of one byte each.
    let beginning = name.get(..200).unwrap_or(name).trim_end_matches(['.', '-']);
    format!("{beginning}-{number}-{}", &hash[..8])
}

pub(super) fn object(profile: &Guard<Profile>, namespace: &str, number: i64, content: &Value) -> ControllerRevision {
    let uid = profile.metadata.uid.clone().unwrap_or_default();
    let (key, word) = (label::MANAGED_BY.to_owned(), label::OPERATOR.to_owned());
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(name(profile, number, content)),
            namespace: Some(namespace.to_owned()),
            labels: Some([(key, word), (label::PROFILE_UID.to_owned(), uid)].into()),
            // It blocks no deletion, which would need a right to the Profile's finalizers.
            owner_references: profile.controller_owner_ref(&()).map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        revision: number,
        data: Some(RawExtension(content.clone())),
    }
}

/// Reads a ControllerRevision; `None`: it is not one of a Profile.
pub(super) fn read(object: &ControllerRevision) -> Option<ProfileRevision> {
    let RawExtension(data) = object.data.as_ref()?;
    let (_, profile, profile_uid) = owner(object)?;
    let spec = serde_json::from_value(data["spec"].clone()).map_err(|error| error.to_string());
    Some(ProfileRevision {
        name: object.metadata.name.clone()?,
        profile,
        profile_uid,
        number: object.revision,
        spec,
        base_values: data["baseValues"].clone(),
    })
}

/// Returns the names of revisions, in ascending order of number, that are neither among the newest nor in use.
pub(super) fn outdated(revisions: &[Arc<ProfileRevision>], is_used: impl Fn(i64) -> bool) -> Vec<&str> {
    let old = revisions.iter().take(revisions.len().saturating_sub(KEPT));
    old.filter(|revision| !is_used(revision.number)).map(|revision| revision.name.as_str()).collect()
}
