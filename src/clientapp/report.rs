//! Stage 5: the status. [`build_status`] is **pure** and the only place where conditions are made; [`write()`] and
//! [`publish`] are its effects.

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::ObjectReference,
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};

use super::{
    Ctx,
    desired::{Desired, InvalidReason},
    error::Error,
    plan::{Because, Hold, Plan, Step},
    upgrade,
    world::{Phase, ReleaseView, World},
};
use crate::{
    controller::{
        events::{Note, publish_by},
        key::Key,
        status::{is_gone, write_status},
    },
    crd::{
        Attempt, BackupRecord, ClientApp, ClientAppStatus, InstalledChart, Owned, Release,
        conditions::{State, Verdict, find, kind},
    },
    destroy::permit::Kept,
};

/// This many workloads that are not ready are named; the rest is counted.
const NAMED_WORKLOADS: usize = 3;

/// What a pass has come to, as far as the status speaks of it.
pub struct Pass<'a> {
    /// The app.
    pub key: &'a Key,
    /// The app's `metadata.generation`.
    pub generation: Option<i64>,
    /// The validated spec, or why there is none.
    pub desired: Result<&'a Desired, (InvalidReason, &'a str)>,
    /// What was seen, after acting.
    pub world: &'a World,
    /// What is still to do or to wait for, after acting.
    pub plan: &'a Plan,
}

/// The status that tells the truth about a pass.
#[must_use]
pub fn build_status(pass: &Pass<'_>, now: Timestamp) -> ClientAppStatus {
    let Pass { key, generation, desired, world, plan } = pass;
    let previous = &world.recorded;
    let mut status = ClientAppStatus {
        observed_generation: *generation,
        release: release(key, world),
        installed: installed(world),
        inventory: world.inventory.clone(),
        owned: owned(world, plan),
        orphaned: None,
        ..previous.clone()
    };
    let verdicts = match desired {
        Err((reason, problem)) => invalid(*reason, problem, world),
        Ok(desired) => {
            status.admin_secret_name = Some(desired.admin.name().to_owned());
            status.redis_secret_name.clone_from(&desired.redis_secret);
            status.backup = backup(desired, world, status.installed.as_ref(), now);
            status.spent_allow = upgrade::spent(desired, status.installed.as_ref(), previous);
            let server = desired.database.as_ref().and_then(|database| database.server.as_ref());
            status.postgres_cluster_name = server.map(|server| server.name.clone());
            if released(desired, world.release.as_ref()).is_some() {
                status.url = Some(desired.url.clone());
            }
            valid(desired, world, plan)
        }
    };
    status.conditions = verdicts
        .into_iter()
        .map(|(type_, verdict)| verdict.into_condition(type_, &previous.conditions, *generation, now))
        .collect();
    status
}

/// What is the app's own. A Secret for which workloads are still to be restarted is not on record before they are.
fn owned(world: &World, plan: &Plan) -> Vec<Owned> {
    let waits =
        |entry: &Owned| plan.steps.iter().any(|step| matches!(step, Step::Restart { uid, .. } if *uid == entry.uid));
    let before =
        |entry: &Owned| world.recorded.owned.iter().find(|old| (&old.kind, &old.name) == (&entry.kind, &entry.name));
    let entry = |entry: &Owned| if waits(entry) { before(entry) } else { Some(entry) }.cloned();
    world.owned.iter().filter_map(entry).collect()
}

/// The status just before helm starts: the intent is on record before the point of no return.
#[must_use]
pub fn intent(
    recorded: &ClientAppStatus,
    generation: Option<i64>,
    attempt: Attempt,
    sentence: &str,
    now: Timestamp,
) -> ClientAppStatus {
    let recorded = ClientAppStatus { last_attempt: Some(attempt), ..recorded.clone() };
    progress(&recorded, generation, "Upgrading", sentence, now)
}

/// Whether a status says all of an intent already, but for when it began.
#[must_use]
pub fn is_on_record(intent: &ClientAppStatus, recorded: &ClientAppStatus) -> bool {
    let mut same = intent.clone();
    if let (Some(attempt), Some(before)) = (&mut same.last_attempt, &recorded.last_attempt) {
        attempt.started_at = before.started_at.clone();
    }
    same == *recorded
}

/// The status while something takes its time.
#[must_use]
pub fn progress(
    recorded: &ClientAppStatus,
    generation: Option<i64>,
    reason: &'static str,
    sentence: &str,
    now: Timestamp,
) -> ClientAppStatus {
    let mut verdicts =
        vec![(kind::RECONCILING, Verdict::yes(reason, sentence)), (kind::STALLED, Verdict::no(reason, sentence))];
    // An upgrade leaves the app serving; a first installation has nothing to be ready yet.
    if find(&recorded.conditions, kind::READY).is_none_or(|ready| ready.status != "True") {
        verdicts.push((kind::READY, Verdict::no(reason, sentence)));
    }
    amended(recorded, verdicts, generation, now)
}

/// The status after a pass that failed half way: what it would have looked at stays as it was reported last, and
/// `observedGeneration` does not move.
#[must_use]
pub fn failed(recorded: &ClientAppStatus, generation: Option<i64>, error: &Error, now: Timestamp) -> ClientAppStatus {
    let disposition = error.disposition();
    let Some(condition) = disposition.condition else { return recorded.clone() };
    let verdict = Verdict { state: disposition.state, reason: disposition.reason.into(), message: error.to_string() };
    let (progress, stalled) = match disposition.stalled {
        true => (State::False, State::True),
        false => (State::True, State::False),
    };
    let verdicts = vec![
        (kind::READY, verdict.clone()),
        (condition, verdict.clone()),
        (kind::RECONCILING, Verdict { state: progress, ..verdict.clone() }),
        (kind::STALLED, Verdict { state: stalled, ..verdict }),
    ];
    amended(recorded, verdicts, generation, now)
}

/// The status while a ClientApp is taken down.
#[must_use]
pub fn deleting(recorded: &ClientAppStatus, generation: Option<i64>, hold: &Hold, now: Timestamp) -> ClientAppStatus {
    let verdict = |holds: bool| match holds {
        true => Verdict::yes(hold.reason, &hold.message),
        false => Verdict::no(hold.reason, &hold.message),
    };
    let waits = hold.stalled || hold.reason == "Suspended";
    let verdicts = vec![
        (kind::READY, verdict(false)),
        (kind::RECONCILING, verdict(!waits)),
        (kind::STALLED, verdict(hold.stalled)),
    ];
    amended(recorded, verdicts, generation, now)
}

/// A status in which some conditions say something new.
fn amended(recorded: &ClientAppStatus, verdicts: Verdicts, generation: Option<i64>, now: Timestamp) -> ClientAppStatus {
    let mut status = recorded.clone();
    for (type_, verdict) in verdicts {
        let condition = verdict.into_condition(type_, &recorded.conditions, generation, now);
        match status.conditions.iter_mut().find(|condition| condition.type_ == type_) {
            Some(existing) => *existing = condition,
            None => status.conditions.push(condition),
        }
    }
    status
}

type Verdicts = Vec<(&'static str, Verdict)>;

fn invalid(reason: InvalidReason, problem: &str, world: &World) -> Verdicts {
    let reason = reason.as_str();
    vec![
        (kind::READY, Verdict::no(reason, problem)),
        (kind::POSTGRES_READY, kept(world, kind::POSTGRES_READY)),
        (kind::RELEASED, kept(world, kind::RELEASED)),
        (kind::WORKLOADS_READY, workloads(world)),
        (kind::RECONCILING, Verdict::no(reason, problem)),
        (kind::STALLED, Verdict::yes(reason, problem)),
    ]
}

fn valid(desired: &Desired, world: &World, plan: &Plan) -> Verdicts {
    let hold = plan.hold.as_ref();
    let about = |type_: &str| {
        hold.filter(|hold| hold.condition == type_).map(|hold| {
            let state = if hold.reason == "ExternalOperationInProgress" { State::Unknown } else { State::False };
            Verdict { state, reason: hold.reason.into(), message: hold.message.clone() }
        })
    };

    let postgres = match &desired.database {
        None => Verdict::yes("Disabled", "no database is asked for"),
        Some(database) => about(kind::POSTGRES_READY).unwrap_or_else(|| match hold {
            // These end the plan before the database is looked at.
            Some(Hold { condition: kind::RECONCILING, .. }) => kept(world, kind::POSTGRES_READY),
            Some(Hold { reason: "HostnameConflict" | "SecretNotOurs" | "DataRetained", .. }) => {
                kept(world, kind::POSTGRES_READY)
            }
            _ => Verdict::yes(
                "Ready",
                match &database.server {
                    Some(server) => format!("{} {} is ready", server.maker.kind(), server.name),
                    None => format!("Secret {} opens a database that exists already", database.address.secret),
                },
            ),
        }),
    };
    let released_verdict = about(kind::RELEASED).unwrap_or_else(|| release_verdict(desired, world, hold));
    let workloads = about(kind::WORKLOADS_READY).unwrap_or_else(|| workloads(world));

    let stalled = hold.filter(|hold| hold.stalled);
    let reconciling = match hold {
        None if !plan.steps.is_empty() => Verdict::yes("Pending", "there are steps left to take"),
        None => Verdict::no("Settled", "the operator has nothing left to do"),
        Some(hold) if hold.stalled || hold.reason == "Suspended" => Verdict::no(hold.reason, &hold.message),
        Some(hold) => Verdict::yes(hold.reason, &hold.message),
    };
    let ready = match stalled {
        Some(hold) => Verdict::no(hold.reason, &hold.message),
        None => [&postgres, &released_verdict, &workloads]
            .into_iter()
            .find(|verdict| verdict.state != State::True)
            .map(|verdict| match hold {
                // Whatever is missing, this is why nobody makes it.
                Some(hold) if hold.reason == "Suspended" => Verdict::no(hold.reason, &hold.message),
                _ => verdict.clone(),
            })
            .unwrap_or_else(|| Verdict::yes("Ready", format!("{}, serving {}", released_verdict.message, desired.url))),
    };
    let stalled = match stalled {
        Some(hold) => Verdict::yes(hold.reason, &hold.message),
        None => Verdict::no("NotStalled", "nothing has to be changed by hand"),
    };
    vec![
        (kind::READY, ready),
        (kind::POSTGRES_READY, postgres),
        (kind::RELEASED, released_verdict),
        (kind::WORKLOADS_READY, workloads),
        (kind::RECONCILING, reconciling),
        (kind::STALLED, stalled),
    ]
}

/// The release, where it is deployed exactly as desired.
fn released<'a>(desired: &Desired, release: Option<&'a ReleaseView>) -> Option<&'a ReleaseView> {
    release.filter(|release| {
        release.phase == Phase::Deployed && release.stamp.as_ref().is_some_and(|stamp| stamp.digest == desired.digest)
    })
}

fn release_verdict(desired: &Desired, world: &World, hold: Option<&Hold>) -> Verdict {
    let chart = format!("chart version {}", desired.chart_version);
    if let Some(release) = released(desired, world.release.as_ref()) {
        return Verdict::yes("Deployed", format!("revision {} with {chart} is deployed", release.revision));
    }
    let waits = hold.map_or_else(|| "helm is to be run".to_owned(), |hold| hold.message.clone());
    let reason = hold.map_or("Pending", |hold| if hold.reason == "Suspended" { "Suspended" } else { "Waiting" });
    match &world.release {
        Some(release) if release.phase == Phase::Deployed => Verdict::no(
            reason,
            format!("revision {} is deployed, but not yet as the spec asks: {waits}", release.revision),
        ),
        _ => Verdict::no(reason, format!("nothing is released yet: {waits}")),
    }
}

fn workloads(world: &World) -> Verdict {
    if world.release.is_none() {
        return Verdict::no("NoRelease", "there is no release yet");
    }
    let waiting: Vec<_> = world
        .workloads
        .iter()
        .filter_map(|workload| {
            let why = workload.waiting.as_ref()?;
            Some(format!("{} {}: {why}", workload.kind, workload.name))
        })
        .collect();
    if waiting.is_empty() && world.inventory.is_none() {
        return Verdict::unknown(
            "InventoryUnknown",
            "what the release consists of cannot be read from what Helm stored",
        );
    }
    if waiting.is_empty() {
        return Verdict::yes("Ready", format!("{} workloads are ready", world.workloads.len()));
    }
    let mut message = waiting[..waiting.len().min(NAMED_WORKLOADS)].join("; ");
    if waiting.len() > NAMED_WORKLOADS {
        message.push_str(&format!("; and {} more", waiting.len() - NAMED_WORKLOADS));
    }
    Verdict::no("NotReady", message)
}

/// A condition that this pass did not look at stays what it was.
fn kept(world: &World, type_: &str) -> Verdict {
    let Some(condition) = find(&world.recorded.conditions, type_) else {
        return Verdict::unknown("NotChecked", "not looked at yet");
    };
    let Condition { status, reason, message, .. } = condition;
    let state = [State::True, State::False].into_iter().find(|state| state.as_str() == status);
    Verdict { state: state.unwrap_or(State::Unknown), reason: reason.clone().into(), message: message.clone() }
}

/// The chart that is installed: the one of the last attempt, where storage shows that it has succeeded; else the one on
/// record. The attempt was put down before helm began, so that nothing is forgotten by whom helm outlives.
fn installed(world: &World) -> Option<InstalledChart> {
    let World { release, recorded, .. } = world;
    let deployed = release.as_ref().filter(|release| release.phase == Phase::Deployed);
    let attempt = recorded.last_attempt.as_ref().filter(|attempt| {
        deployed.and_then(|release| release.stamp.as_ref()).is_some_and(|stamp| stamp.digest == attempt.digest)
    });
    attempt.and_then(|attempt| attempt.chart.clone()).or_else(|| upgrade::installed(recorded))
}

fn release(key: &Key, world: &World) -> Option<Release> {
    let seen = world.release.as_ref()?;
    // One that was never ours is none of this app's: what is recorded here counts as ours from then on.
    if !seen.known && world.recorded.release.is_none() {
        return None;
    }
    let mut release = world.recorded.release.clone().unwrap_or_default();
    if let Some(InstalledChart { name, version, app_version, digest }) = installed(world) {
        release.chart = Some(name);
        release.chart_version = Some(version);
        release.app_version = app_version;
        release.chart_digest = Some(digest);
    }
    release.name.clone_from(&key.name);
    release.namespace.clone_from(&key.namespace);
    release.revision = seen.revision;
    release.status.clone_from(&seen.status);
    release.digest = seen.stamp.as_ref().map(|stamp| stamp.digest.clone());
    release.deployed_at = seen.written.map(Time);
    Some(release)
}

/// The backup before the upgrade that is on its way, else the last one. It is over, and no other upgrade's, once its chart is
/// installed or not asked for any more.
fn backup(
    desired: &Desired,
    world: &World,
    installed: Option<&InstalledChart>,
    now: Timestamp,
) -> Option<BackupRecord> {
    let looked_at = world.backup.as_ref().and_then(|view| upgrade::looked_at(view, &world.recorded, now));
    let mut record = looked_at.or_else(|| world.recorded.backup.clone())?;
    let over =
        installed.is_some_and(|chart| chart.version == record.to) || desired.chart_version.to_string() != record.to;
    if over && record.revision.is_none() {
        record.revision = Some(world.release.as_ref().map_or(0, |release| release.revision));
    }
    Some(record)
}

/// Writes the status unless it is what the object has already.
///
/// # Errors
/// The API server's refusal.
pub async fn write(
    ctx: &Ctx,
    key: &Key,
    uid: &str,
    current: &ClientAppStatus,
    status: &ClientAppStatus,
) -> Result<(), Error> {
    if current == status {
        return Ok(());
    }
    let written = write_status::<ClientApp, _>(&ctx.client, key, uid, status).await;
    let version = written.map_err(|error| match is_gone(&error) {
        true => Error::Gone(key.clone()),
        false => Error::api(format!("write the status of ClientApp {key}"))(error),
    })?;
    ctx.memory.statuses.put(key, uid, version.as_deref(), status);
    Ok(())
}

/// The events that a change of status is worth: transitions only. **Pure.**
#[must_use]
pub fn transitions(before: &ClientAppStatus, after: &ClientAppStatus) -> Vec<Note> {
    let Some(now) = find(&after.conditions, kind::READY) else { return Vec::new() };
    let same = find(&before.conditions, kind::READY)
        .is_some_and(|then| then.status == now.status && then.reason == now.reason);
    let upgraded = after.release.as_ref().map(|release| release.revision)
        > before.release.as_ref().map(|release| release.revision);
    // A new revision is told of even where Ready never left True.
    if same && !(upgraded && now.status == "True") {
        return Vec::new();
    }
    let revision = after.release.as_ref().map_or(0, |release| release.revision);
    vec![Note {
        action: format!("ReconcileRevision{revision}"),
        warning: is_trouble(now),
        reason: now.reason.clone(),
        message: now.message.clone(),
    }]
}

/// Steps on the way are normal; what holds an app up is a warning.
fn is_trouble(ready: &Condition) -> bool {
    ready.status != "True"
        && !matches!(
            ready.reason.as_str(),
            "Provisioning"
                | "Waiting"
                | "FetchingChart"
                | "BackingUp"
                | "Upgrading"
                | "NotReady"
                | "Progressing"
                | "Suspended"
                | "NoRelease"
        )
}

/// The event that tells why a release is upgraded though its spec did not change. **Pure.**
#[must_use]
pub fn because(because: &Because, key: &Key) -> Note {
    let (revision, message) = match because {
        Because::ChangedByOthers { revision } => (
            revision,
            format!("revision {revision} of release {} was made by somebody else: putting the release right", key.name),
        ),
        Because::Uninstalled { revision } => (
            revision,
            format!(
                "release {}, last at revision {revision}, was uninstalled by somebody else: installing it again",
                key.name
            ),
        ),
    };
    let action = format!("PutRightRevision{revision}");
    Note { action, warning: true, reason: "ReleaseDrifted".to_owned(), message }
}

/// The event that tells why workloads were restarted. **Pure.**
#[must_use]
pub fn restarted(secret: &str) -> Note {
    Note {
        action: "Restarting".to_owned(),
        warning: true,
        reason: "SecretReplaced".to_owned(),
        message: format!(
            "Secret {secret} was deleted and made anew with another password: the workloads that hold the old one are restarted"
        ),
    }
}

/// The event that names what a deletion has kept. **Pure.**
#[must_use]
pub fn data_kept(key: &Key, kept: &[Kept]) -> Option<Note> {
    const NAMED: usize = 4;
    let first = kept.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let more = kept.len().checked_sub(NAMED).filter(|more| *more > 0);
    let more = more.map(|more| format!("; and {more} more")).unwrap_or_default();
    (!kept.is_empty()).then(|| Note {
        action: "Deleting".to_owned(),
        warning: true,
        reason: "DataKept".to_owned(),
        message: format!("ClientApp {} is deleted, and this is not: {first}{more}", key.name),
    })
}

/// The event about an app that is deleted with `--cascade=orphan`; or, `None`, may be. **Pure.**
#[must_use]
pub fn orphaned(key: &Key, orphaned: Option<bool>, owned: &[Owned]) -> Option<Note> {
    let how = match orphaned {
        Some(false) => return None,
        Some(true) => "with --cascade=orphan".to_owned(),
        None => format!(
            "and whether with --cascade=orphan is not known, since Secret {} is not on record as its own",
            key.redis_secret()
        ),
    };
    let owned: Vec<_> = owned.iter().map(|entry| format!("{} {}", entry.kind, entry.name)).collect();
    Some(Note {
        action: "Deleting".to_owned(),
        warning: orphaned.is_none(),
        reason: "DataKept".to_owned(),
        message: format!(
            "ClientApp {} is deleted, {how}: Helm release {} and all data stay ({})",
            key.name,
            key.name,
            owned.join(", ")
        ),
    })
}

/// Publishes events; one that cannot be published is logged and never stops a reconcile.
pub async fn publish(ctx: &Ctx, reference: &ObjectReference, notes: &[Note]) {
    publish_by(&ctx.recorder, reference, notes).await;
}

#[cfg(test)]
mod tests;
