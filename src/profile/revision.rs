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

/// Returns the number of the revision with what a Profile gives now, whose name depends on the number: that of the newest, or a new one.
///
/// `lost` are the names of the revisions that ClientApps have and that are gone. None of their numbers is used for anything else, or these
/// ClientApps would be taken to have that; so the `recorded` number, the last that the Profile has told, is used again only for what it was.
pub(super) fn number(
    newest: Option<&ProfileRevision>,
    recorded: Option<i64>,
    lost: &[String],
    name: impl Fn(i64) -> String,
) -> i64 {
    let last = newest.map(|newest| newest.number).max(recorded).unwrap_or_default();
    let is_it = match newest.filter(|newest| newest.number == last) {
        Some(newest) => newest.name == name(last),
        None => last > 0 && (lost.is_empty() || lost.contains(&name(last))),
    };
    if is_it { last } else { last + 1 }
}

/// Returns the names of revisions, in ascending order of number, that are neither among the newest nor in use.
pub(super) fn outdated(revisions: &[Arc<ProfileRevision>], is_used: impl Fn(i64) -> bool) -> Vec<&str> {
    let old = revisions.iter().take(revisions.len().saturating_sub(KEPT));
    old.filter(|revision| !is_used(revision.number)).map(|revision| revision.name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_never_used_for_something_else() {
        let revision = |(number, content): (i64, &str)| ProfileRevision {
            name: format!("team-{number}-{content}"),
            profile: "team".to_owned(),
            profile_uid: "uid".to_owned(),
            number,
            spec: Err(String::new()),
            base_values: Value::Null,
        };
        for (newest, recorded, lost, expected) in [
            (None, None, vec![], 1),
            (Some((1, "now")), None, vec![], 1),
            (Some((1, "now")), Some(1), vec![], 1),
            (Some((1, "before")), Some(1), vec![], 2),
            // Another revision is wanted.
            (Some((3, "now")), Some(1), vec![], 3),
            // All are gone, and nothing has changed; or it has.
            (None, Some(1), vec!["team-1-now"], 1),
            (None, Some(1), vec!["team-1-before"], 2),
            (None, Some(1), vec![], 1),
            // The newest is gone, which some have.
            (Some((1, "before")), Some(2), vec!["team-2-now"], 2),
            (Some((1, "now")), Some(2), vec!["team-2-before"], 3),
            (Some((1, "before")), Some(2), vec!["team-2-before", "team-2-now"], 2),
        ] {
            let lost: Vec<_> = lost.into_iter().map(str::to_owned).collect();
            let newest = newest.map(revision);
            let found = number(newest.as_ref(), recorded, &lost, |number| format!("team-{number}-now"));
            assert_eq!(found, expected, "{newest:?} {recorded:?} {lost:?}");
        }
    }
}
