//! Decides when servers restart, **pure**. What only another version of the operator asks for comes to one database after the other,
//! so that a new image that does not start takes down one of them; and to standbys first, as a standby can follow a primary of an
//! older minor version.
//!
//! All else comes at once, and to all servers: what a user asks for, since with another password or certificate a standby cannot
//! follow a primary that has the former one; and what changes servers that are not running.
//!
//! A StatefulSet that is applied in its database's rollout shows it, by an annotation, until its pods are ready. So the next rollout
//! does not begin before, whatever else is wrong, and also after a restart of the operator; and a database that is down for another
//! reason stops no other.

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
pub(super) enum Timing {
    Now {
        /// It restarts in the rollout of its database, or has begun to.
        in_rollout: bool,
    },
    /// Not yet, and why.
    Later(String),
}

/// Returns when an object is applied: anything but a StatefulSet at once. `requested`: what users ask for now.
pub(super) fn timing(
    desired: &Desired,
    observed: &ObservedPostgresql,
    requested: &UserRequest,
    object: &Object,
    wanted: &[Object],
) -> Timing {
    let pods = &observed.pods;
    let Some(set) = observed.objects.get(&object.id).and_then(set) else { return Timing::Now { in_rollout: false } };
    let serves = observed.primary_serves(desired);
    let restarts = |object: &Object, set: &SetView| {
        serves && is_operators_change(observed, requested, object, set) && is_ready(&object.id.1, set, pods)
    };
    if !restarts(object, set) {
        return Timing::Now { in_rollout: is_in_progress(&object.id.1, set, pods) };
    }
    let name = &object.id.1;
    if observed.slot_holder.as_ref() != Some(&desired.key) {
        let holder = observed.slot_holder.as_ref().map(|holder| format!("; now it is the turn of Postgresql {holder}"));
        return Timing::Later(format!(
            "StatefulSet {name} is changed as this version of the operator asks, which restarts its servers, when its turn comes: one database after the other{}",
            holder.unwrap_or_default()
        ));
    }
    let standbys = names::standby(&desired.key.name);
    let mut before =
        wanted.iter().filter(|other| *name != standbys && other.id == (Kind::StatefulSet, standbys.clone()));
    let waits = before.any(|other| {
        let found = observed.objects.get(&other.id).and_then(self::set);
        found.is_some_and(|set| restarts(other, set) || is_in_progress(&standbys, set, pods))
    });
    match waits {
        true => Timing::Later(format!("StatefulSet {name} is changed once the standbys have restarted and are ready")),
        false => Timing::Now { in_rollout: true },
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
    let mut sets = objects.iter().filter_map(|((_, name), view)| Some((name, set(view)?)));
    has_volume && sets.any(|(name, set)| is_in_progress(name, set, pods))
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
    let digest = observed.objects.get(&object.id).and_then(|view| view.digest.as_ref());
    digest != Some(&object.digest)
        && set.requested.is_same(requested)
        && object.document["spec"]["replicas"] == set.replicas
}

fn is_in_progress(name: &str, set: &SetView, pods: &[PodView]) -> bool {
    set.in_rollout && !(set.is_rolled && is_ready(name, set, pods))
}

/// Returns true if all its pods are ready. One without pods serves no client, whatever it was scaled to.
fn is_ready(name: &str, set: &SetView, pods: &[PodView]) -> bool {
    let its = |pod: &&PodView| pod.name.rsplit_once('-').is_some_and(|(set, _)| set == name);
    let ready = pods.iter().filter(its).filter(|pod| pod.waiting.is_none()).count();
    ready >= usize::try_from(set.replicas).unwrap_or_default().max(1)
}

#[cfg(test)]
mod tests;
