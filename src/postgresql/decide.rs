//! Decides, **pure**: compares desired and observed state, and returns the steps to take now and what to wait for.
//!
//! The first hold is reported. Most holds do not end the plan: a deleted Service is recreated even while the spec and the database
//! disagree about the password.

pub(crate) mod dumps;
mod plan;
mod rollout;
pub(crate) mod volume;

pub(crate) use self::{
    plan::{Hold, Origin, Plan, Step, Turn},
    rollout::is_restarting,
};
use self::{rollout::When, volume::Volume};
use super::{
    desired::{Desired, PasswordSource, Size},
    names,
    objects::{
        self, Mounted, Object,
        servers::{GENERATION_ANNOTATION, TURN_ANNOTATION, in_turn},
    },
    observed::{Asked, ClientSecret, Detail, Given, Kind, ObjectView, Observed, Owner, PodView, Role, SecretView},
};
use crate::crd::{Reason, label, quantity};

pub(crate) fn decide(desired: &Desired, observed: &Observed) -> Plan {
    // Without `..`, so that a new field of Observed is considered here.
    let Observed {
        recorded,
        credentials: _,
        replication,
        certificate,
        secrets,
        objects,
        pods: _,
        refusals: _,
        dump_source: _,
        turn_of: _,
    } = observed;
    let name = &desired.key.name;
    let mut plan = Plan::default();

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
    let is_witnessed = objects.contains_key(&witness.id);
    if !is_witnessed {
        apply(&mut plan, &witness, None);
    }
    // Before the Secret for clients, which contains the certificate of its authority.
    let certificate = match (desired.tls, certificate) {
        (None, _) => None,
        (Some(_), SecretView::Ours { uid }) => Some(uid.as_str()),
        (Some(_), SecretView::Absent) => {
            plan.steps.push(Step::CreateCertificate);
            return plan;
        }
        (Some(_), SecretView::NotOurs(owner)) => {
            let message = format!(
                "Secret {} belongs to {owner} and is not touched: rename this Postgresql or that Secret, or hand over all that an earlier one has left with {}",
                names::certificate(name),
                hand_all_over(desired),
            );
            plan.hold(Reason::NotOurs, message);
            return plan;
        }
    };
    if !password(&mut plan, desired, observed) {
        return plan;
    }
    let replication = match replication {
        SecretView::Ours { uid } => uid,
        SecretView::Absent => {
            plan.steps.push(Step::CreateReplication);
            return plan;
        }
        SecretView::NotOurs(owner) => {
            plan.not_ours(&format!("Secret {}", names::replication(name)), owner);
            return plan;
        }
    };
    for (secret, _) in secrets.iter().filter(|(_, secret)| secret.unsettled) {
        plan.steps.push(Step::Settle { secret: secret.clone() });
    }
    let mounted = Mounted { replication, certificate };
    let wanted = objects::all(desired, observed, mounted);
    let asked = Asked::of(desired.generation, [Some(mounted.replication), mounted.certificate]);
    let volume = volume::judge(desired, observed);
    // A server on another volume would serve another database.
    let serves = volume == Volume::Initialized;
    let (mut awaited, mut restarts) = (None, false);
    let is_next =
        |object: &&Object| (serves || object.id.0 != Kind::StatefulSet) && (is_witnessed || object.id != witness.id);
    for object in wanted.iter().filter(is_next) {
        let found = objects.get(&object.id);
        match rollout::when(desired, observed, &asked, object, &wanted) {
            When::Later(why) => _ = awaited.get_or_insert(why),
            When::Now { in_turn: false } => apply(&mut plan, object, found),
            When::Now { in_turn: true } => {
                restarts = true;
                apply(&mut plan, &in_turn(object), found);
            }
        }
    }
    for (id, view) in objects {
        let removable = matches!(
            id.0,
            Kind::Service | Kind::StatefulSet | Kind::CronJob | Kind::PodDisruptionBudget | Kind::NetworkPolicy
        );
        let superfluous = removable && view.owner == Owner::Ours && !view.deleting;
        if superfluous && wanted.iter().all(|object| object.id != *id) {
            plan.steps.push(Step::Delete { id: id.clone(), uid: view.uid.clone() });
        }
    }
    volume::steps(&mut plan, desired, observed, &volume);
    volumes(&mut plan, desired, observed);
    if serves {
        servers(&mut plan, desired, observed);
        dumps::steps(&mut plan, desired, observed);
        dumps::uploads(&mut plan, desired);
    }
    plan.turn = match &awaited {
        Some(_) => Turn::Awaited,
        None if restarts => Turn::Lasts,
        None => Turn::Over,
    };
    // Whatever else is the matter is more important.
    if let Some(why) = awaited {
        plan.hold(Reason::AwaitingTurn, why);
    }
    plan
}

/// The password is stored once and copied to the Secret for clients. Returns whether servers can be started with it.
fn password(plan: &mut Plan, desired: &Desired, observed: &Observed) -> bool {
    let name = &desired.key.name;
    let credentials = &observed.credentials;
    match &credentials.kept {
        SecretView::NotOurs(owner) => {
            let message = format!(
                "Secret {secret} belongs to {owner} and is not touched: rename this Postgresql, or hand it over with {}; to hand over all that an earlier one has left at once, use {}",
                label_command(desired, "secret", &names::credentials(name)),
                hand_all_over(desired),
                secret = names::credentials(name),
            );
            plan.hold(Reason::NotOurs, message);
            false
        }
        SecretView::Absent => forgotten(plan, desired, observed),
        SecretView::Ours { .. } if credentials.broken.is_some() => {
            let problem = credentials.broken.unwrap_or_default();
            let message = format!(
                "the value under password in Secret {} {problem}: {}",
                names::credentials(name),
                hand_over(desired)
            );
            plan.hold(Reason::CredentialsInvalid, message);
            false
        }
        SecretView::Ours { .. } => {
            match &credentials.client {
                ClientSecret::Absent | ClientSecret::Stale { .. } => plan.steps.push(Step::ApplyClientSecret),
                ClientSecret::NotOurs(owner) => {
                    plan.not_ours(&format!("Secret {}", names::client_secret(name)), owner);
                }
                ClientSecret::Current => {}
            }
            if credentials.given == Given::Differs {
                let message = format!(
                    "{} does not give the password in use: set it back; to change it, do so in the database ({}), delete the Secrets {} and {}, and follow the next message",
                    desired.password.field(),
                    change_password(desired),
                    names::credentials(name),
                    names::client_secret(name),
                );
                plan.hold(Reason::PasswordChanged, message);
            }
            true
        }
    }
}

/// The Secret with the password in use is missing. A new password is generated only if no database exists with another one.
fn forgotten(plan: &mut Plan, desired: &Desired, observed: &Observed) -> bool {
    let name = &desired.key.name;
    let credentials = &observed.credentials;
    let volume = (Kind::PersistentVolumeClaim, names::data(name));
    let in_use = observed.recorded.secret.is_some()
        || observed.objects.get(&volume).is_some_and(|volume| volume.owner == Owner::Ours);
    let from_spec = match (&desired.password, &credentials.given) {
        (PasswordSource::Generated, _) => Some(Origin::Generated).filter(|_| !in_use),
        (_, Given::Usable(version)) => {
            // Unchanged since it was last seen to be the password in use.
            let unchanged = observed
                .recorded
                .secret
                .as_ref()
                .is_some_and(|recorded| recorded.from == desired.password.field() && recorded.version == *version);
            Some(Origin::Spec).filter(|_| !in_use || unchanged)
        }
        _ => None,
    };
    let client = in_use && credentials.client == ClientSecret::Stale { password: true };
    if let Some(origin) = client.then_some(Origin::ClientSecret).or(from_spec) {
        plan.steps.push(Step::KeepPassword(origin));
        // Running servers do not need the Secret, and new servers wait for it.
        return in_use;
    }
    if in_use {
        let message = format!(
            "the Secrets {} and {} are gone, and no other Secret has the password of user {}: {}, then make it the database's ({})",
            names::credentials(name),
            names::client_secret(name),
            desired.user,
            hand_over(desired),
            change_password(desired),
        );
        plan.hold(Reason::SecretLost, message);
    } else if let Given::Unusable(reason, message) = &credentials.given {
        plan.hold(*reason, message.clone());
    }
    in_use
}

fn hand_over(desired: &Desired) -> String {
    let (key, secret) = (&desired.key, names::credentials(&desired.key.name));
    format!(
        "hand one over with `kubectl create secret generic {secret} -n {} --from-literal=password=…` and {}",
        key.namespace,
        label_command(desired, "secret", &secret)
    )
}

/// Returns the command with which a cluster admin hands one object over to this Postgresql.
fn label_command(desired: &Desired, resource: &str, name: &str) -> String {
    let Desired { key, uid, .. } = desired;
    format!("`kubectl label {resource} {name} -n {} --overwrite {}={uid}`", key.namespace, label::POSTGRESQL_UID)
}

fn hand_all_over(desired: &Desired) -> String {
    let key = &desired.key;
    format!(
        "`kubectl label pvc,secret -n {} -l {}={},{}=Postgresql --overwrite {}={}`",
        key.namespace,
        label::RETAINED_FROM,
        key.name,
        label::RETAINED_KIND,
        label::POSTGRESQL_UID,
        desired.uid
    )
}

fn change_password(desired: &Desired) -> String {
    let (key, pod) = (&desired.key, names::primary_pod(&desired.key.name));
    format!(
        "`kubectl exec -it {pod} -n {} -- psql --username={} --dbname={} --command='\\password'`",
        key.namespace, desired.user, desired.database
    )
}

fn apply(plan: &mut Plan, object: &Object, found: Option<&ObjectView>) {
    let what = format!("{} {}", object.id.0, object.id.1);
    match found {
        Some(ObjectView { owner: Owner::Other(owner), .. }) => plan.not_ours(&what, owner),
        Some(ObjectView { deleting: true, .. }) => {
            plan.hold(Reason::Replacing, format!("waiting for {what} to be gone, to create it again"));
        }
        Some(view) if view.digest.as_ref() == Some(&object.digest) && !edited(object, &view.detail) => {}
        _ => plan.steps.push(Step::Apply(object.clone())),
    }
}

/// Returns true if a user has edited what the operator puts back: the replicas of a StatefulSet, as a second pod of the primary's would be
/// a database of its own; who may connect; or what a drain may evict. Or whether a StatefulSet no longer shows
/// why it was applied.
fn edited(object: &Object, detail: &Detail) -> bool {
    let annotation = |name: &str| object.document["metadata"]["annotations"][name].as_str();
    match detail {
        Detail::StatefulSet(set) => {
            object.document["spec"]["replicas"] != set.replicas
                || annotation(GENERATION_ANNOTATION) != set.asked.generation.as_deref()
                || annotation(TURN_ANNOTATION).is_some() != set.in_turn
        }
        Detail::Spec(spec) => object.document["spec"] != *spec,
        Detail::None | Detail::Claim { .. } | Detail::Job(_) => false,
    }
}

/// Sizes of volumes that differ by less than this are equal: bytes are whole.
const BYTE: f64 = 1.0;

fn volumes(plan: &mut Plan, desired: &Desired, observed: &Observed) {
    for ((_, name), view) in observed.objects.iter().filter(|((_, name), _)| names::is_claim(&desired.key.name, name)) {
        if let Owner::Other(owner) = &view.owner {
            let message = format!(
                "PersistentVolumeClaim {name} belongs to {owner} and is not touched: delete it, or hand it over with {}",
                label_command(desired, "pvc", name)
            );
            plan.hold(Reason::NotOurs, message);
        }
        if view.owner != Owner::Ours || view.deleting {
            continue;
        }
        let Detail::Claim { requested: Some(requested), capacity, made_for: _ } = &view.detail else { continue };
        let Some((_, size)) = size(desired, name) else { continue };
        let bound = capacity.is_some();
        if size.bytes - requested >= BYTE && !bound {
            plan.hold(
                Reason::Growing,
                format!("PersistentVolumeClaim {name} has to be bound before it grows to {}", size.text),
            );
        } else if size.bytes - requested >= BYTE {
            plan.steps.push(Step::Grow { claim: name.clone(), to: size.text.clone() });
        } else if capacity.as_deref().and_then(quantity::parse_positive).is_some_and(|has| requested - has >= BYTE) {
            let has = capacity.as_deref().unwrap_or_default();
            let message = format!("PersistentVolumeClaim {name} has {has} and grows to {}", quantity::text(*requested));
            plan.hold(Reason::Growing, message);
        }
    }
}

/// The size that the spec asks for a claim of this name, and the field; `None`: it asks for no dumps any more.
fn size<'a>(desired: &'a Desired, claim: &str) -> Option<(&'static str, &'a Size)> {
    match &desired.backup {
        wanted if claim == names::backup(&desired.key.name) => Some(("spec.backup.size", &wanted.as_ref()?.size)),
        _ => Some(("spec.storageSize", &desired.storage)),
    }
}

/// The note about a volume that is larger than the spec asks, as one that was enlarged by hand: no volume shrinks, so it stays.
pub(crate) fn larger(desired: &Desired, observed: &Observed) -> Option<String> {
    observed.objects.iter().filter(|(_, view)| view.owner == Owner::Ours).find_map(|((_, name), view)| {
        let Detail::Claim { requested: Some(requested), .. } = &view.detail else { return None };
        let (field, size) = size(desired, name)?;
        (requested - size.bytes >= BYTE).then(|| {
            format!(
                "PersistentVolumeClaim {name} has {} and keeps its size, larger than {field} {}: raise the field",
                quantity::text(*requested),
                size.text
            )
        })
    })
}

fn servers(plan: &mut Plan, desired: &Desired, observed: &Observed) {
    let pod = names::primary_pod(&desired.key.name);
    match observed.primary(desired) {
        None => {
            let refusal = observed.refusal(&names::primary(&desired.key.name));
            plan.hold(Reason::Provisioning, format!("waiting for pod {pod}{}", refusal.unwrap_or_default()));
        }
        // Its container has failed and left a message.
        Some(PodView { waiting: Some(why), failed: Some(_), .. }) => {
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
