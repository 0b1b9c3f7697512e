//! Decides when servers restart, **pure**. What only another version of the operator asks for comes to one database after the other,
//! so that a new image that does not start takes down one of them; and to standbys first, as a standby can follow a primary of an
//! older minor version.
//!
//! All else comes at once, and to all servers: what a user asks for, since with another password or certificate a standby cannot
//! follow a primary that has the former one; and what changes servers that are not running.
//!
//! The StatefulSets of a database's rollout are on record before they are applied, until their pods are ready. So the next rollout does
//! not begin before, whatever else is wrong, and also after a restart of the operator; and a database that is down for another reason
//! stops no other. A user's change of what they run ends it: whether they come back is then no longer the operator's doing.

use std::collections::BTreeMap;

use crate::{
    crd::PostgresqlStatus,
    postgresql::{
        desired::Desired,
        names,
        objects::Object,
        observed::{Detail, Kind, ObjectId, ObjectView, ObservedPostgresql, Ownership, PodView, SetView, UserRequest},
    },
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Timing {
    /// It restarts in the rollout of its database, or has begun to.
    pub in_rollout: bool,
    /// Says why it is not applied yet.
    pub later: Option<String>,
}

/// Returns when an object is applied: anything but a StatefulSet at once. `requested`: what users ask for now.
pub(super) fn timing(
    desired: &Desired,
    observed: &ObservedPostgresql,
    requested: &UserRequest,
    object: &Object,
    wanted: &[Object],
) -> Timing {
    let ObservedPostgresql { objects, pods, recorded, slot_holder, .. } = observed;
    let name = &object.id.1;
    let found = |object: &Object| objects.get(&object.id).and_then(set);
    let is_users = is_changed(observed, object) && found(object).is_some_and(|set| !set.requested.is_same(requested));
    let in_rollout = object.id.0 == Kind::StatefulSet && !is_users && is_in_progress(name, recorded, objects, pods);
    let serves = observed.primary_serves(desired);
    let restarts = |object: &Object| {
        found(object).is_some_and(|set| {
            serves && is_operators_change(observed, requested, object, set) && is_ready(&object.id.1, set, pods)
        })
    };
    if !restarts(object) {
        return Timing { in_rollout, later: None };
    }
    if slot_holder.as_ref() != Some(&desired.key) {
        let holder = slot_holder.as_ref().map(|holder| format!("; now it is the turn of Postgresql {holder}"));
        let why = format!(
            "StatefulSet {name} is changed as this version of the operator asks, which restarts its servers, when its turn comes: one database after the other{}",
            holder.unwrap_or_default()
        );
        return Timing { in_rollout, later: Some(why) };
    }
    let standbys = names::standby(&desired.key.name);
    let mut before =
        wanted.iter().filter(|other| *name != standbys && other.id == (Kind::StatefulSet, standbys.clone()));
    match before.any(|other| restarts(other) || is_in_progress(&standbys, recorded, objects, pods)) {
        true => {
            let why = format!("StatefulSet {name} is changed once the standbys have restarted and are ready");
            Timing { in_rollout, later: Some(why) }
        }
        false => Timing { in_rollout: true, later: None },
    }
}

/// Returns true if a rollout of a database's servers has begun and has not ended. Without its volume, a server does not
/// come back whatever it runs.
pub(crate) fn is_restarting(
    recorded: &PostgresqlStatus,
    objects: &BTreeMap<ObjectId, ObjectView>,
    pods: &[PodView],
) -> bool {
    let has_volume = recorded.volume.as_ref().is_some_and(|volume| {
        let claim = objects.get(&(Kind::PersistentVolumeClaim, volume.name.clone()));
        claim.is_some_and(|claim| claim.uid == volume.uid)
    });
    let mut sets = recorded.rollout.iter().flat_map(|rollout| &rollout.stateful_sets);
    has_volume && sets.any(|name| is_in_progress(name, recorded, objects, pods))
}

/// Returns the view of a StatefulSet that is this database's.
fn set(view: &ObjectView) -> Option<&SetView> {
    match &view.detail {
        Detail::StatefulSet(set) if view.owner == Ownership::Ours && !view.deleting => Some(set),
        _ => None,
    }
}

/// Returns true if it is this version of the operator that asks for other pods, and no user. What a user has scaled is put back at once.
fn is_operators_change(observed: &ObservedPostgresql, requested: &UserRequest, object: &Object, set: &SetView) -> bool {
    is_changed(observed, object)
        && set.requested.is_same(requested)
        && object.document["spec"]["replicas"] == set.replicas
}

fn is_changed(observed: &ObservedPostgresql, object: &Object) -> bool {
    observed.objects.get(&object.id).and_then(|view| view.digest.as_ref()) != Some(&object.digest)
}

/// Returns true if a StatefulSet is on record, and its pods have not been replaced or are not ready. One that a user has deleted is
/// created again.
fn is_in_progress(
    name: &str,
    recorded: &PostgresqlStatus,
    objects: &BTreeMap<ObjectId, ObjectView>,
    pods: &[PodView],
) -> bool {
    let mut sets = recorded.rollout.iter().flat_map(|rollout| &rollout.stateful_sets);
    sets.any(|set| set == name)
        && objects.get(&(Kind::StatefulSet, name.to_owned())).is_none_or(|view| {
            view.deleting || set(view).is_some_and(|set| !(set.is_rolled && is_ready(name, set, pods)))
        })
}

/// Returns true if all its pods are ready. One without pods serves no client, whatever it was scaled to.
fn is_ready(name: &str, set: &SetView, pods: &[PodView]) -> bool {
    let its = |pod: &&PodView| pod.name.rsplit_once('-').is_some_and(|(set, _)| set == name);
    let ready = pods.iter().filter(its).filter(|pod| pod.waiting.is_none()).count();
    ready >= usize::try_from(set.replicas).unwrap_or_default().max(1)
}

#[cfg(test)]
mod tests;
