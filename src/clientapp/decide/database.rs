//! Decides whether the app can use its database, whatever the provider.
//!
//! A database created for the app has to be this app's, as its spec asks, and ready; its Secret has to have the keys that the app
//! reads, and its Service an address (Percona writes the Secret before PostgreSQL runs, so the Secret alone proves nothing). For
//! a database that exists already, only the Secret is checked.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::plan::{Apply, NO_PROGRESS_AFTER, SILENT_AFTER, Step};
use crate::{
    clientapp::{
        hold::{Hold, SAFETY_NET},
        observed::{
            types::{DatabaseView, Observed, PartView, SecretView},
            volumes::confirm,
        },
        spec::{
            database::{
                DatabaseObject, DatabasePart, DatabaseState, DesiredDatabase, DesiredObject, PartUse, ProviderInfo,
                SeenPart,
            },
            desired::Desired,
            values::DatabaseAddress,
        },
    },
    crd::{Owned, Reason, conditions, label},
    platform::watch_builder::Availability,
};

#[derive(Default)]
pub(crate) struct DatabaseReadiness {
    pub(crate) apply: Option<Apply>,
    /// Says why the app cannot use it.
    pub(crate) hold: Option<Hold>,
}

fn not_ready(reason: Reason, message: String) -> Hold {
    Hold { condition: conditions::kind::POSTGRES_READY, ..Hold::new(reason, message) }
}

fn stalled(reason: Reason, message: String) -> DatabaseReadiness {
    DatabaseReadiness { apply: None, hold: Some(Hold { stalled: true, ..not_ready(reason, message) }) }
}

pub(crate) fn readiness(desired: &Desired, observed: &Observed, now: Timestamp) -> DatabaseReadiness {
    let mut readiness = judged(desired, observed, now);
    let former = observed.prerequisites.database.replaces.as_ref().filter(|_| observed.release.is_some());
    if let (Some(hold), Some(former)) = (&mut readiness.hold, former) {
        hold.message += &format!("; the app stays with {former} until then");
    }
    readiness
}

fn judged(desired: &Desired, observed: &Observed, now: Timestamp) -> DatabaseReadiness {
    let Some(DesiredDatabase { address, object }) = &desired.database else { return DatabaseReadiness::default() };
    let view = &observed.prerequisites.database;
    let Some(object) = object else { return external(address, &view.secret) };
    let what = object.described();
    if let Some(readiness) = unserved(&view.kind, object, &what).or_else(|| unserved_part(&view.parts, &what)) {
        return readiness;
    }
    let recorded_uid = view.recorded_uid.as_deref();
    let targets = object.targets(view.object.as_ref());
    let Some(existing) = &view.object else {
        let is_move = view.replaces.is_some();
        let prevented = if is_move { not_moved(observed, object, now) } else { lost(desired, observed, object, now) };
        if let Some(hold) = prevented {
            return DatabaseReadiness { apply: None, hold: Some(hold) };
        }
        if let Some(readiness) = others_part(desired, object, view, now) {
            return readiness;
        }
        let hold = not_ready(Reason::Provisioning, format!("{what} is being created")).until(now + SAFETY_NET);
        // An earlier database has left volumes, and no backup may be restored over them.
        let source = object.source().filter(|_| recorded_uid.is_none() || is_move);
        let apply = Apply { targets: targets.unwrap_or_default(), source, isolated: object.isolated, uid: None };
        return DatabaseReadiness { apply: Some(apply), hold: Some(hold) };
    };
    if let Some(readiness) = blocked(desired, object, existing, &what, (&view.app_uid, recorded_uid), now) {
        return readiness;
    }
    let targets = match targets {
        Ok(targets) => targets,
        Err(problem) => return stalled(Reason::RepositoryMismatch, format!("{what}{problem}")),
    };
    if let Some(readiness) = others_part(desired, object, view, now) {
        return readiness;
    }
    let is_restoring = matches!(existing.state, DatabaseState::Restoring(_));
    let digest = object.document(&targets).digest;
    let has_part = |part: &DatabasePart| {
        let view = view.parts.iter().find(|view| view.kind == part.resource.kind);
        view.and_then(|view| view.object.as_ref()?.digest.as_ref()) == Some(&digest)
    };
    let is_applied =
        existing.digest.as_ref() == Some(&digest) && object.parts(&targets, &existing.uid).iter().all(has_part);
    let apply = (!is_restoring && !is_applied).then(|| Apply {
        targets,
        source: existing.source.clone(),
        isolated: existing.isolated,
        uid: Some(existing.uid.clone()),
    });
    DatabaseReadiness { apply, hold: unusable(desired, observed, (address, object, existing), now) }
}

/// Judges a database that exists already, of which only the Secret is known.
fn external(address: &DatabaseAddress, secret: &SecretView) -> DatabaseReadiness {
    let (name, keys) = (&address.secret, address.keys());
    let Some((reason, problem)) = secret_problem(secret, &keys) else { return DatabaseReadiness::default() };
    stalled(
        reason,
        format!("Secret {name}, named in spec.postgres.external, {problem}: it needs the keys {}", keys.join(", ")),
    )
}

/// Returns why objects of the database's kind cannot be read at all.
fn unserved(kind: &Availability, object: &DesiredObject, what: &str) -> Option<DatabaseReadiness> {
    let DesiredObject { provider, name, .. } = object;
    match kind {
        Availability::Installed => None,
        Availability::Missing => {
            let (kind, install) = (provider.kind().as_str(), provider.info().to_install);
            let message = format!("this cluster has no kind {kind}: {install}, and {name} is created at once");
            Some(stalled(Reason::DependencyMissing, message))
        }
        Availability::Refused(sentence) => {
            Some(stalled(Reason::AccessDenied, format!("{what} cannot be looked for: {sentence}")))
        }
    }
}

/// Returns why what the spec needs beside it cannot be made. The database is not even created or changed: CloudNativePG does nothing more
/// for a Cluster with a plugin that it does not know.
fn unserved_part(parts: &[PartView], what: &str) -> Option<DatabaseReadiness> {
    parts.iter().find_map(|PartView { kind, part_use, availability, to_install, .. }| match availability {
        _ if *part_use == PartUse::None => None,
        Availability::Installed => None,
        Availability::Missing => {
            let message = format!(
                "this cluster has no kind {kind}: {to_install}; {what} is neither created nor changed until then"
            );
            Some(stalled(Reason::DependencyMissing, message))
        }
        Availability::Refused(sentence) => {
            Some(stalled(Reason::AccessDenied, format!("{kind} of {what} cannot be looked for: {sentence}")))
        }
    })
}

/// Returns why what the spec needs beside the database cannot be made: an object of its name is another's. One that is only read may be
/// anyone's.
fn others_part(
    desired: &Desired,
    object: &DesiredObject,
    view: &DatabaseView,
    now: Timestamp,
) -> Option<DatabaseReadiness> {
    let app = &desired.key.name;
    let uid = view.object.as_ref().map(|existing| existing.uid.as_str());
    let is_others = |found: &SeenPart| match uid {
        Some(uid) => !found.is_of(app, uid),
        None => found.owner_uid.is_some() || found.app.as_ref() != Some(app),
    };
    let found = |part: &'_ PartView| Some((part.kind, part.name.clone(), part.object.clone().filter(is_others)?));
    let (kind, name, found) = view.parts.iter().filter(|part| part.part_use == PartUse::Made).find_map(found)?;
    let what = object.described();
    if found.app.as_ref() == Some(app) {
        let message =
            format!("{kind} {name} of a former {what} is still there: it goes with that; if it stays, delete it");
        let hold = Some(not_ready(Reason::Deleting, message).until(now + SAFETY_NET));
        return Some(DatabaseReadiness { apply: None, hold });
    }
    let message = format!(
        "{kind} {name} exists and is not of {what}: it is not taken over; name the ClientApp otherwise, or delete that if nothing uses it"
    );
    Some(stalled(Reason::DatabaseNotOurs, message))
}

/// Returns why no database is created in the place of one that was in use and is gone with its data: the app would go on with an empty
/// one. Volumes that have lost their owner are taken over.
fn lost(desired: &Desired, observed: &Observed, object: &DesiredObject, now: Timestamp) -> Option<Hold> {
    let DesiredObject { provider, name, .. } = object;
    let names_data = provider.info().data_goes_with_object.as_ref()?;
    let uid = observed.prerequisites.database.recorded_uid.as_ref()?;
    // One that was to be made from backups has never been empty.
    if !(was_in_use(observed) || object.source().is_some()) || desired.data.without_volumes.contains(uid) {
        return None;
    }
    if let Some(hold) = volumes_going(observed, object, now) {
        return Some(hold);
    }
    if claims(observed, object).any(|claim| claim.name.as_ref().is_some_and(|claim| names_data(name, claim))) {
        return None;
    }
    let what = object.described();
    let gone = Owned { kind: provider.kind().as_str().to_owned(), name: name.clone(), uid: uid.clone() };
    let confirm = confirm(desired, &observed.owned)(&[&gone]);
    let message = format!(
        "{what} was deleted, and its data with it: {}, or confirm that the app begins with an empty one, with {confirm}",
        provider.info().to_restore
    );
    Some(not_ready(Reason::DatabaseLost, message).until(now + SAFETY_NET))
}

/// Returns why no database is created that the app would move to: it would be empty, or CloudNativePG would use volumes that another one
/// of its name has left.
fn not_moved(observed: &Observed, object: &DesiredObject, now: Timestamp) -> Option<Hold> {
    if let Some(hold) = volumes_going(observed, object, now) {
        return Some(hold);
    }
    let what = object.described();
    if let Some(claim) = claims(observed, object).next() {
        let claim = claim.name.as_deref().unwrap_or_default();
        let message = format!(
            "{what} would use PersistentVolumeClaim {claim}, which another of its name has left: delete that, or name another in spec.postgres.cloudnativepg.cluster"
        );
        return Some(not_ready(Reason::DataRetained, message).until(now + SAFETY_NET));
    }
    (was_in_use(observed) && object.source().is_none()).then(|| {
        let message = format!(
            "{what} does not exist, and would be empty: name another in spec.postgres.cloudnativepg.cluster, together with dataSource, or set the field back"
        );
        not_ready(Reason::DataSourceMissing, message)
    })
}

fn was_in_use(Observed { recorded, release, .. }: &Observed) -> bool {
    release.is_some() || recorded.installed.is_some() || recorded.last_attempt.is_some()
}

/// Returns the volumes with the name and label of a database's.
fn claims<'a>(observed: &'a Observed, object: &DesiredObject) -> impl Iterator<Item = &'a Arc<ObjectMeta>> {
    let (name, ProviderInfo { names_volume, volume_label, .. }) = (&object.name, object.provider.info());
    observed.objects.claims.iter().filter(move |claim| {
        let label = claim.labels.as_ref().and_then(|labels| labels.get(*volume_label));
        label == Some(name) && claim.name.as_ref().is_some_and(|claim| names_volume(name, claim))
    })
}

/// Returns a hold while a volume of a database that is gone is being deleted. The garbage collector deletes what had an owner, be it
/// another database of that name; only what has none would be taken over.
fn volumes_going(observed: &Observed, object: &DesiredObject, now: Timestamp) -> Option<Hold> {
    let is_going = |claim: &&Arc<ObjectMeta>| {
        claim.deletion_timestamp.is_some() || claim.owner_references.as_ref().is_some_and(|owners| !owners.is_empty())
    };
    let claim = claims(observed, object).find(is_going)?.name.as_deref().unwrap_or_default();
    let message = format!("{} is gone, and its PersistentVolumeClaim {claim} is being deleted", object.described());
    Some(not_ready(Reason::Deleting, message).until(now + SAFETY_NET))
}

/// Returns the steps for what pods of the app have used, once they run as its spec asks: former databases are labelled as retained, and
/// what the spec no longer asks for beside its database is deleted, if the app can use that.
pub(super) fn left(desired: &Desired, observed: &Observed, is_usable: bool) -> impl Iterator<Item = Step> {
    let is_settled = (observed.release.is_none() || observed.deployed_as(desired).is_some())
        && observed.workloads_are_ready()
        && observed.prerequisites.database.replaces.is_none();
    let obsolete = obsolete(desired, observed).filter(move |_| is_usable);
    former(observed).chain(obsolete).filter(move |_| is_settled)
}

fn former(observed: &Observed) -> impl Iterator<Item = Step> {
    let former = observed.prerequisites.database.former.iter().filter(|former| !former.is_retained);
    former.map(|former| Step::RetainDatabase(former.clone()))
}

fn obsolete(desired: &Desired, observed: &Observed) -> impl Iterator<Item = Step> {
    let view = &observed.prerequisites.database;
    let database = view.object.as_ref().filter(|database| !database.deleting);
    let is_obsolete = move |part: &SeenPart| {
        database.is_some_and(|database| {
            part.owner_uid.as_ref() == Some(&database.uid) && part.app.as_ref() == Some(&desired.key.name)
        })
    };
    let parts = view.parts.iter().filter(|part| part.part_use == PartUse::None && part.is_recreatable);
    parts.filter_map(move |PartView { kind, object, .. }| {
        let SeenPart { uid, .. } = object.as_ref().filter(|part| is_obsolete(part))?;
        Some(Step::DeletePart { kind, uid: uid.clone() })
    })
}

/// Returns why the app cannot use its database, which exists as the spec asks.
fn unusable(
    desired: &Desired,
    observed: &Observed,
    (address, object, existing): (&DatabaseAddress, &DesiredObject, &DatabaseObject),
    now: Timestamp,
) -> Option<Hold> {
    // Without `..`, so that a new field of DatabaseView is considered here.
    let DatabaseView {
        kind: _,
        app_uid: _,
        recorded_uid: _,
        object: _,
        secret,
        reachable,
        warnings,
        pods,
        scheduled: _,
        parts: _,
        replaces: _,
        former: _,
    } = &observed.prerequisites.database;
    let (what, provider, name) = (object.described(), object.provider, &address.secret);
    let why_pods = pods.as_ref().and_then(|pods| pods.why.as_ref());
    let look_at = pods.as_ref().map(|pods| pods.until);
    let silent_at = existing.created.map(|created| created + SILENT_AFTER);
    let (reason, message) = match &existing.state {
        DatabaseState::Stalled(why) => {
            let why_pods = why_pods.map_or_else(String::new, |why| format!("; {why}"));
            return Some(not_ready(Reason::DatabaseStalled, format!("{what}{why}{why_pods}")).until(look_at));
        }
        DatabaseState::NotReported if silent_at.is_some_and(|at| at <= now) => {
            (Reason::NotReporting, format!("{what} has no status: {}", (provider.info().to_report)(&desired.key)))
        }
        DatabaseState::NotReported => (Reason::Provisioning, format!("{what} was created and has no status yet")),
        DatabaseState::Restoring(why) => {
            return Some(not_ready(Reason::Restoring, format!("{what}{why}")).until(now + SAFETY_NET));
        }
        DatabaseState::Waiting(why) => (Reason::Provisioning, format!("{what}{why}")),
        DatabaseState::Ready => match secret_problem(secret, &address.keys()) {
            Some((Reason::SecretMissing, problem)) => {
                (Reason::SecretMissing, format!("{what} is ready, but Secret {name} {problem}"))
            }
            Some((reason, problem)) => (reason, format!("Secret {name} {problem}")),
            None if !reachable => (Reason::Provisioning, format!("Service {} has no ready address", object.service())),
            None => return None,
        },
    };
    let (reason, mut message) = match no_progress_since(existing, observed, now) {
        Some(since) if reason == Reason::Provisioning && existing.state != DatabaseState::NotReported => {
            let advice = why_pods.cloned().unwrap_or_else(|| format!("see {}", provider.info().log));
            (Reason::DatabaseNotProgressing, format!("{message}; it has made no progress since {since}: {advice}"))
        }
        _ => (reason, why_pods.map_or(message.clone(), |why| format!("{message}; {why}"))),
    };
    if let Some(warnings) = warnings {
        message.push_str(&format!("; its operator warns: {warnings}"));
    }
    let until = match silent_at {
        Some(at) if existing.state == DatabaseState::NotReported && at > now => at,
        _ => now + SAFETY_NET,
    };
    let until = look_at.map_or(until, |look_at| until.min(look_at));
    Some(Hold { stalled: false, ..not_ready(reason, message).until(until) })
}

/// Returns since when a database that is not ready makes no progress, if that is long ago.
fn no_progress_since(existing: &DatabaseObject, observed: &Observed, now: Timestamp) -> Option<Timestamp> {
    let condition = conditions::find(&observed.recorded.conditions, conditions::kind::POSTGRES_READY);
    // Before it failed, it had nothing to do.
    let failed =
        condition.filter(|condition| condition.status == "False").map(|condition| condition.last_transition_time.0);
    let since = failed.into_iter().chain([existing.progressed?]).max()?;
    (now.duration_since(since) >= NO_PROGRESS_AFTER).then_some(since)
}

/// Returns why the object is not even applied: it is not this app's, or the spec asks for something impossible.
fn blocked(
    desired: &Desired,
    object: &DesiredObject,
    existing: &DatabaseObject,
    what: &str,
    (app_uid, recorded_uid): (&str, Option<&str>),
    now: Timestamp,
) -> Option<DatabaseReadiness> {
    let app = Some(&desired.key.name);
    // Its uid is recorded, or will be, since it was created for this very app a moment ago. A label alone proves nothing.
    let made = |uid: &Option<String>| uid.as_deref() == Some(app_uid);
    let ours = existing.app.as_ref() == app
        && (recorded_uid == Some(&existing.uid) || made(&existing.stamp) || made(&existing.owner_uid))
        && existing.retained_from.is_none();
    // Then adoption is the first step.
    let is_leftover = desired.data.adopt && existing.is_leftover_of(&desired.key.name, app_uid);
    if !(ours || is_leftover) {
        let other = existing.app.as_ref().or(existing.retained_from.as_ref()).filter(|other| Some(*other) != app);
        let whose = other.map_or_else(|| "not this ClientApp's".to_owned(), |other| format!("ClientApp {other}'s"));
        let message = format!(
            "{what} exists and is {whose}: it is not taken over; rename the ClientApp, or remove that, or hand it over with the label {}={} and spec.postgres.adopt",
            label::RETAINED_FROM,
            desired.key.name
        );
        return Some(stalled(Reason::DatabaseNotOurs, message));
    }
    if existing.deleting {
        let message = format!("{what} is being deleted; it is recreated once it is gone");
        return Some(DatabaseReadiness {
            apply: None,
            hold: Some(not_ready(Reason::Deleting, message).until(now + SAFETY_NET)),
        });
    }
    let wanted = object.postgres_version;
    if let Some(running) = existing.postgres_version.filter(|running| *running != wanted) {
        let instead = object.provider.info().to_change_version;
        let message =
            format!("{what} runs PostgreSQL {running} and spec.postgres.version asks for {wanted}: {instead}");
        return Some(stalled(Reason::VersionMismatch, message));
    }
    // Without an adoption the API server keeps the field as it is, and a class that another client has set is left alone.
    if desired.data.adopt
        && let Some(message) = another_class(object.storage_class(), existing.storage_class.as_deref(), what)
    {
        return Some(stalled(Reason::StorageClassMismatch, message));
    }
    existing.storage_bytes.is_some_and(|applied| object.storage_bytes < applied).then(|| {
        let message = format!(
            "spec.postgres.storageSize is smaller than the volume of {what}: a volume never shrinks; set the field back"
        );
        stalled(Reason::StorageShrink, message)
    })
}

/// Returns why a database cannot have the StorageClass that the spec asks for: one that is adopted keeps its own.
fn another_class(asked: Option<&str>, existing: Option<&str>, what: &str) -> Option<String> {
    if asked == existing {
        return None;
    }
    Some(match existing {
        Some(existing) => {
            format!(
                "{what} has StorageClass {existing}, and data is not moved: set spec.postgres.storageClassName to {existing}"
            )
        }
        None => {
            format!("{what} has the default StorageClass, and data is not moved: remove spec.postgres.storageClassName")
        }
    })
}

/// Returns the reason, and the end of a sentence that begins with the Secret's name.
fn secret_problem(secret: &SecretView, keys: &[&str]) -> Option<(Reason, String)> {
    match secret {
        SecretView::Absent => Some((Reason::SecretMissing, "does not exist".to_owned())),
        SecretView::NotOurs { owner, .. } => {
            Some((Reason::SecretNotOurs, format!("belongs to {owner}: it is not used")))
        }
        SecretView::Own { .. } => None,
        SecretView::Present { .. } => secret.lacks(keys).map(|problem| (Reason::SecretKeyMissing, problem)),
    }
}
