//! Decides, **pure**: compares desired and observed state, and returns the steps to take now and what to wait for.
//!
//! The first hold is reported. Most holds do not end the plan: a deleted Service is recreated even while the spec and the database
//! disagree about the password.

mod commands;
pub(crate) mod dumps;
mod plan;
pub(crate) mod restore;
mod rollout;
mod secrets;
pub(crate) mod volume;
pub(crate) mod volume_size;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub(crate) use self::{
    plan::{PasswordOrigin, PostgresqlHold, PostgresqlPlan, PostgresqlStep},
    rollout::is_restarting,
};
use self::{
    rollout::{Timing, timing},
    volume::VolumeState,
};
use super::{
    desired::Desired,
    names,
    objects::{self, Mounted, Object, servers::GENERATION_ANNOTATION},
    observed::{Detail, Kind, ObjectView, ObservedPostgresql, Ownership, PodView, Role, UserRequest},
};
use crate::crd::{PostgresqlRollout, Reason};

pub(crate) fn decide(desired: &Desired, observed: &ObservedPostgresql) -> PostgresqlPlan {
    // Without `..`, so that a new field of ObservedPostgresql is considered here.
    let ObservedPostgresql {
        now: _,
        recorded,
        credentials: _,
        replication: _,
        certificate: _,
        secrets,
        objects,
        pods,
        refusals: _,
        dump_source: _,
        repository_password: _,
        slot_holder: _,
    } = observed;
    let rollout = recorded.rollout.clone().filter(|_| is_restarting(recorded, objects, pods));
    let mut plan = PostgresqlPlan { rollout, ..PostgresqlPlan::default() };
    if let Some(version) = recorded.version.as_ref().filter(|version| **version != desired.version) {
        let message = format!(
            "the volume has files of PostgreSQL {version}, which {} cannot read: set spec.version back, dump the database, and restore the dump into a new Postgresql",
            desired.version
        );
        plan.hold(Reason::VersionMismatch, message);
        return plan;
    }
    // Before everything that may stay: without it, a deletion does not know whether it was an orphaning one, and keeps all.
    let witness = objects::network::witness(desired);
    if !observed.objects.contains_key(&witness.id) {
        apply(&mut plan, &witness, None);
    }
    let Some(mounted) = secrets::mounted(&mut plan, desired, observed) else { return plan };
    for (secret, _) in secrets.iter().filter(|(_, secret)| secret.unsettled) {
        plan.steps.push(PostgresqlStep::Settle { secret: secret.clone() });
    }
    let wanted = objects::all(desired, observed, mounted);
    let volume = volume::state(desired, observed);
    // A server on another volume would serve another database.
    let serves = volume == VolumeState::Initialized;
    let awaited = apply_all(&mut plan, desired, observed, mounted, &wanted, serves);
    delete_superfluous(&mut plan, observed, &wanted);
    if serves {
        restore::steps(&mut plan, desired, observed);
    }
    volume::steps(&mut plan, desired, observed, &volume);
    volume_size::steps(&mut plan, desired, observed);
    if serves {
        dumps::password(&mut plan, desired, observed);
        servers(&mut plan, desired, observed);
        dumps::steps(&mut plan, desired, observed);
        dumps::due_steps(&mut plan, desired, observed);
        dumps::uploads(&mut plan, desired);
    }
    // Whatever else is the matter is more important.
    if let Some(why) = awaited {
        plan.hold(Reason::AwaitingTurn, why);
    }
    if let Some((hold, rollout)) = plan.hold.as_mut().zip(plan.rollout.as_ref()) {
        hold.message += &format!(
            "; this Postgresql has had the turn since {}: others wait until its servers are ready",
            rollout.started_at.0
        );
    }
    plan
}

/// Applies the objects whose turn it is, StatefulSets only if the volume serves. Returns what the others wait for.
fn apply_all(
    plan: &mut PostgresqlPlan,
    desired: &Desired,
    observed: &ObservedPostgresql,
    mounted: Mounted<'_>,
    wanted: &[Object],
    serves: bool,
) -> Option<String> {
    let requested = UserRequest::new(desired.generation, mounted.all());
    let witness = objects::network::witness(desired).id;
    let is_witnessed = observed.objects.contains_key(&witness);
    let is_next =
        |object: &&Object| (serves || object.id.0 != Kind::StatefulSet) && (is_witnessed || object.id != witness);
    let (mut awaited, mut stateful_sets) = (None, vec![]);
    for object in wanted.iter().filter(is_next) {
        let Timing { in_rollout, later } = timing(desired, observed, &requested, object, wanted);
        if in_rollout {
            stateful_sets.push(object.id.1.clone());
        }
        match later {
            Some(why) => _ = awaited.get_or_insert(why),
            None => apply(plan, object, observed.objects.get(&object.id)),
        }
    }
    plan.awaits_turn = awaited.is_some();
    let recorded = observed.recorded.rollout.as_ref();
    let started_at = recorded.map_or(Time(observed.now), |rollout| rollout.started_at.clone());
    plan.rollout = (!stateful_sets.is_empty()).then_some(PostgresqlRollout { stateful_sets, started_at });
    awaited
}

/// Deletes this Postgresql's own objects that its spec no longer asks for, except those with data or credentials.
fn delete_superfluous(plan: &mut PostgresqlPlan, observed: &ObservedPostgresql, wanted: &[Object]) {
    for (id, view) in &observed.objects {
        let removable =
            matches!(id.0, Kind::Service | Kind::StatefulSet | Kind::PodDisruptionBudget | Kind::NetworkPolicy);
        let superfluous = removable && view.owner == Ownership::Ours && !view.deleting;
        if superfluous && wanted.iter().all(|object| object.id != *id) {
            plan.steps.push(PostgresqlStep::Delete { id: id.clone(), uid: view.uid.clone() });
        }
    }
}

fn apply(plan: &mut PostgresqlPlan, object: &Object, found: Option<&ObjectView>) {
    let what = format!("{} {}", object.id.0, object.id.1);
    match found {
        Some(ObjectView { owner: Ownership::Other(owner), .. }) => plan.not_ours(&what, owner),
        Some(ObjectView { deleting: true, .. }) => {
            plan.hold(Reason::Replacing, format!("waiting for {what} to be gone, to create it again"));
        }
        Some(view) if view.digest.as_ref() == Some(&object.digest) && !edited(object, &view.detail) => {}
        _ => plan.steps.push(PostgresqlStep::Apply(object.clone())),
    }
}

/// Returns true if a user has edited what the operator puts back: the replicas of a StatefulSet, as a second pod of the primary's would be
/// a database of its own; who may connect; or what a drain may evict. Or whether a StatefulSet no longer shows
/// for which generation it was applied.
fn edited(object: &Object, detail: &Detail) -> bool {
    match detail {
        Detail::StatefulSet(set) => {
            object.document["spec"]["replicas"] != set.replicas
                || object.document["metadata"]["annotations"][GENERATION_ANNOTATION].as_str()
                    != set.requested.generation.as_deref()
        }
        Detail::Spec(spec) => object.document["spec"] != *spec,
        Detail::None | Detail::Claim { .. } | Detail::Job(_) => false,
    }
}

fn servers(plan: &mut PostgresqlPlan, desired: &Desired, observed: &ObservedPostgresql) {
    let pod = names::primary_pod(&desired.key.name);
    match observed.primary(desired) {
        None => {
            let refusal = observed.refusal(&names::primary(&desired.key.name));
            plan.hold(Reason::Provisioning, format!("waiting for pod {pod}{}", refusal.unwrap_or_default()));
        }
        // Its container has failed and left a message.
        Some(PodView { waiting: Some(why), failure_line: Some(_), .. }) => {
            plan.hold(Reason::ServerFails, format!("pod {pod}: {why}"));
        }
        Some(PodView { waiting: Some(why), .. }) => plan.hold(Reason::NotReady, format!("pod {pod}: {why}")),
        Some(_) => {}
    }
    let standbys: Vec<_> = observed.pods.iter().filter(|pod| pod.role == Some(Role::Standby)).collect();
    let ready = standbys.iter().filter(|pod| pod.waiting.is_none()).count();
    if ready < usize::try_from(desired.standbys).unwrap_or_default() {
        let why = standbys.iter().find_map(|pod| Some(format!("; pod {}: {}", pod.name, pod.waiting.as_ref()?)));
        let why = why.or_else(|| observed.refusal(&names::standby(&desired.key.name)));
        let message = format!("{ready} of {} standbys are ready{}", desired.standbys, why.unwrap_or_default());
        plan.hold(Reason::StandbysNotReady, message);
    }
}

#[cfg(test)]
pub(super) mod tests;
