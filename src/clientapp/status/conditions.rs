//! Computes the status, **pure**: which facts are recorded when, and the conditions of [`verdicts`](super::verdicts).

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::{
    attempt,
    verdicts::{self, Verdicts},
};
use crate::{
    clientapp::{
        context::{Invalid, TakenProfile},
        decide::{
            approval, file_backup,
            plan::{Plan, Step},
            remediation, tls, upgrade,
        },
        error::Error,
        hold::Hold,
        observed::{
            installed_chart, owned,
            release::ReleasePhase,
            types::{DatabaseView, Observed},
            upgrade_backup,
        },
        spec::{database::DesiredObject, desired::Desired, values::TlsSource},
    },
    crd::{
        BackupRecord, BoundRevision, ClientAppStatus, InstalledChart, Reason, Release,
        conditions::{Verdict, find, kind},
    },
    helm::Redactor,
    platform::{controller::ReconcileError as _, key::Key},
    profile::ProfileRevision,
};

/// The results of a reconcile before it acts.
pub(crate) struct Pass<'a> {
    pub key: &'a Key,
    pub generation: Option<i64>,
    /// The validated spec, or why there is none.
    pub desired: Result<&'a Desired, &'a Invalid>,
    pub observed: &'a Observed,
    pub plan: &'a Plan,
    pub profile: &'a TakenProfile,
}

/// Returns the status after observing and deciding, including what the reconcile is about to do.
pub(crate) fn build_status(pass: &Pass<'_>, now: Timestamp) -> ClientAppStatus {
    let mut status = before_profile(pass, now);
    status.profile_revision = match pass.profile {
        TakenProfile::Revision(revision) => Some(bound(pass, revision, &status, now)),
        TakenProfile::None => None,
        // It may come back.
        TakenProfile::Missing | TakenProfile::Undecodable(_) => pass.observed.recorded.profile_revision.clone(),
    };
    status
}

/// Returns the record of the Profile's revision that the app has. It is Ready with it once that is what is deployed.
fn bound(
    Pass { desired, observed, .. }: &Pass<'_>,
    revision: &ProfileRevision,
    status: &ClientAppStatus,
    now: Timestamp,
) -> BoundRevision {
    let is_installed =
        desired.is_ok_and(|desired| desired.rolled_back().is_none() && observed.deployed_as(desired).is_some());
    let is_ready = find(&status.conditions, kind::READY).is_some_and(|ready| ready.status == "True");
    let before = observed.recorded.profile_revision.as_ref().filter(|before| before.name == revision.name);
    let ready_since = before.and_then(|before| before.ready_since.clone());
    BoundRevision {
        profile: revision.profile.clone(),
        revision: revision.number,
        name: revision.name.clone(),
        // Those of earlier versions of the operator do not say.
        since: before.map_or(Some(Time(now)), |before| before.since.clone()),
        // None is ahead, or a rollout would wait for it.
        ready_since: (is_installed && is_ready && observed.run.busy.is_none())
            .then(|| Time(ready_since.map_or(now, |since| since.0.min(now)))),
    }
}

fn before_profile(pass: &Pass<'_>, now: Timestamp) -> ClientAppStatus {
    let Pass { key, generation: _, desired, observed, plan, profile: _ } = *pass;
    if observed.run.busy.is_some() {
        return while_helm_runs(pass, now);
    }
    let mut status = ClientAppStatus {
        release: release(key, observed),
        inventory: observed.objects.inventory.clone(),
        plan: None,
        ..observed.recorded.clone()
    };
    if let Ok(desired) = desired {
        record_spec(&mut status, desired, observed, plan);
        if let Some(hold) = plan.hold.as_ref().filter(|hold| hold.begins) {
            return before_a_run(status, pass, (desired, hold), now);
        }
    }
    settled(status, pass, now)
}

/// Records what follows from a valid spec, whatever this pass does next.
fn record_spec(status: &mut ClientAppStatus, desired: &Desired, observed: &Observed, plan: &Plan) {
    let previous = &observed.recorded;
    status.plan = match plan.hold.as_ref().map(|hold| hold.reason) {
        Some(Reason::AwaitingApproval) => {
            observed.prerequisites.chart.as_ref().and_then(|target| approval::awaited(desired, target))
        }
        // The chart is fetched again after each start of an operator.
        Some(Reason::FetchingChart) => previous.plan.clone(),
        _ => None,
    };
    if desired.upgrade.test.is_none() {
        status.test = None;
    }
    // The chart of a rollback is not the one that the spec allows.
    if desired.rolled_back().is_none() {
        status.spent_allow = upgrade::spent(desired, previous.installed.as_ref(), previous);
    }
    // Values that are awaited say nothing about what failed.
    if desired.values.awaits.is_none() {
        status.rolled_back = desired.rolled_back().cloned();
        status.values_from.clone_from(&desired.values.sources);
        status.secret_values = secret_values(desired, observed);
    }
    status.admin_secret_name = Some(desired.secrets.admin.name().to_owned());
    status.redis_secret_name.clone_from(&desired.secrets.redis);
    status.tls_secret_name = match &desired.tls {
        Some(TlsSource::Secret { name, .. }) => Some(name.clone()),
        Some(TlsSource::Elsewhere) | None => None,
    };
    status.credentials.clone_from(&desired.secrets.in_use);
    let in_use = database_in_use(desired, observed, plan);
    if observed.prerequisites.database.replaces.is_some() && in_use != previous.postgres_cluster_name {
        // An earlier revision uses the former database.
        status.last_ready = None;
    }
    status.postgres_cluster_name = in_use;
}

/// Returns the name of the database that the app uses: before the first revision that uses another one may exist, that is recorded.
fn database_in_use(desired: &Desired, observed: &Observed, plan: &Plan) -> Option<String> {
    let DesiredObject { name, .. } = desired.database_object()?;
    let DatabaseView { replaces, object, .. } = &observed.prerequisites.database;
    let moves = plan.runs_helm() || object.is_some() && observed.deployed_as(desired).is_some();
    let stays = replaces.clone().filter(|_| !moves || desired.rolled_back().is_some());
    stays.or_else(|| Some(name.clone()))
}

/// Returns the status that is recorded before a helm run begins: the attempt, and why the app is not Ready meanwhile.
fn before_a_run(
    mut status: ClientAppStatus,
    Pass { generation, observed, plan, .. }: &Pass<'_>,
    (desired, hold): (&Desired, &Hold),
    now: Timestamp,
) -> ClientAppStatus {
    let previous = &observed.recorded;
    if plan.runs_helm() {
        status.owned.clone_from(&observed.owned);
        let left_its_lock = plan.steps.iter().any(|step| matches!(step, Step::UnlockRelease { .. }));
        let target = observed.prerequisites.chart.as_ref();
        status.last_attempt = Some(attempt::start(desired, previous, target, left_its_lock, now));
    }
    // The first status of an app reports everything; a later one what it waited for before: a run may take long.
    let has_failed = status.last_attempt.as_ref().is_some_and(|attempt| attempt.failures > 0);
    let awaited = [kind::POSTGRES_READY, kind::RELEASED, kind::CERTIFICATE_READY];
    let is_new = |(type_, _): &(&'static str, Verdict)| match find(&previous.conditions, type_) {
        // After a failure, it says why.
        Some(_) if *type_ == kind::RELEASED && has_failed => false,
        Some(before) => awaited.contains(type_) && before.status != "True",
        None => previous.conditions.is_empty(),
    };
    let verdicts = verdicts::valid(desired, observed, plan, now).into_iter().filter(is_new).collect();
    status = amended(&status, verdicts, *generation, now);
    // Ready is about the revision that serves, not about the one after it that was cut off.
    let serves = find(&previous.conditions, kind::READY).is_some_and(|ready| ready.status == "True");
    if serves && observed.release.as_ref().is_some_and(|release| release.phase != ReleasePhase::Deployed) {
        status.release.clone_from(&previous.release);
    }
    let intent = progress(&status, *generation, hold.reason, &hold.message, now);
    if is_on_record(&intent, previous, observed.run.has_slot) { previous.clone() } else { intent }
}

/// Returns the status of a pass that begins no run: everything that it observed, and the steps that count once recorded.
fn settled(mut status: ClientAppStatus, pass: &Pass<'_>, now: Timestamp) -> ClientAppStatus {
    let Pass { generation, desired, observed, plan, .. } = *pass;
    status.observed_generation = generation;
    status.owned.clone_from(&observed.owned);
    status.orphaned = None;
    if let Ok(desired) = desired {
        status.files = file_backup::summary(desired, observed, now);
        status.repository_password = file_backup::password(desired, observed);
        status.backup = backup(desired, observed, status.installed.as_ref(), now);
        if observed.deployed_as(desired).is_some() && desired.rolled_back().is_none() {
            status.url = Some(tls::url(desired, observed, now));
        }
    }
    for step in &plan.steps {
        match step {
            // Recorded before adoption removes the labels: which objects are deleted with the app, and which upgrades it may
            // make, depend on it.
            Step::Adopt(found) => status = owned::adopted(&status, found),
            // Recorded before the backup is requested: its age is measured from this time.
            Step::BackUp(record) => status.backup = Some(record.clone()),
            Step::RollBack(record) => status.rolled_back = Some(record.clone()),
            _ => {}
        }
    }
    status.conditions = verdicts::all(desired, observed, plan, status.files.as_ref(), now)
        .into_iter()
        .map(|(type_, verdict)| verdict.into_condition(type_, &observed.recorded.conditions, generation, now))
        .collect();
    if let Ok(desired) = desired {
        remediation::record(&mut status, desired, observed.release.as_ref());
    }
    status
}

/// Returns true if the deployed revision may have values from Secrets: until the spec is installed, it has those of an earlier one.
fn secret_values(desired: &Desired, observed: &Observed) -> Option<bool> {
    let is_installed = observed.release.is_none() || observed.deployed_as(desired).is_some();
    let now = desired.values.redactor != Redactor::default();
    if now || is_installed && desired.rolled_back().is_none() { Some(now) } else { observed.recorded.secret_values }
}

/// Returns true if a recorded status already says everything of an intent except its start time. That the app now has a slot is
/// reported only if helm then takes long: most runs end before a status would be read.
fn is_on_record(intent: &ClientAppStatus, recorded: &ClientAppStatus, has_slot: bool) -> bool {
    let mut same = intent.clone();
    if let (Some(attempt), Some(before)) = (&mut same.last_attempt, &recorded.last_attempt) {
        attempt.started_at = before.started_at.clone();
    }
    for condition in same.conditions.iter_mut().filter(|condition| has_slot && condition.reason == Reason::Upgrading) {
        if let Some(before) =
            find(&recorded.conditions, &condition.type_).filter(|before| before.reason == condition.reason)
        {
            condition.message.clone_from(&before.message);
        }
    }
    same == *recorded
}

/// The status while helm runs: what was reported before, and what is new about the run. For a long run, it also reports what its
/// workloads wait for.
fn while_helm_runs(Pass { generation, desired, observed, plan, .. }: &Pass<'_>, now: Timestamp) -> ClientAppStatus {
    let previous = &observed.recorded;
    if let Err(Invalid { reason, message }) = desired {
        let verdicts =
            vec![(kind::READY, Verdict::no(*reason, message)), (kind::STALLED, Verdict::yes(*reason, message))];
        return amended(previous, verdicts, *generation, now);
    }
    let Some(hold) = &plan.hold else { return previous.clone() };
    let mut status = progress(previous, *generation, hold.reason, &hold.message, now);
    // It may have waited for its turn.
    if find(&previous.conditions, kind::RELEASED).is_some_and(|before| before.reason == hold.reason.as_str()) {
        status = amended(&status, vec![(kind::RELEASED, Verdict::no(hold.reason, &hold.message))], *generation, now);
    }
    if observed.workloads_are_ready() {
        return status;
    }
    let waits = verdicts::workloads(observed);
    amended(&status, vec![(kind::WORKLOADS_READY, waits.clone()), (kind::READY, waits)], *generation, now)
}

/// Returns the status while something takes time.
pub(crate) fn progress(
    recorded: &ClientAppStatus,
    generation: Option<i64>,
    reason: Reason,
    sentence: &str,
    now: Timestamp,
) -> ClientAppStatus {
    let mut verdicts =
        vec![(kind::RECONCILING, Verdict::yes(reason, sentence)), (kind::STALLED, Verdict::no(reason, sentence))];
    // The app keeps serving during an upgrade; during a first installation nothing is ready yet.
    if find(&recorded.conditions, kind::READY).is_none_or(|ready| ready.status != "True") {
        verdicts.push((kind::READY, Verdict::no(reason, sentence)));
    }
    amended(recorded, verdicts, generation, now)
}

/// Returns the status after a pass that failed: conditions that it did not get to keep their last report, and
/// `observedGeneration` does not move.
pub(crate) fn failed(
    recorded: &ClientAppStatus,
    generation: Option<i64>,
    error: &Error,
    now: Timestamp,
) -> ClientAppStatus {
    let disposition = error.disposition();
    let Some(condition) = disposition.condition else { return recorded.clone() };
    let verdict = disposition.verdict(error);
    let verdicts = vec![
        (kind::READY, verdict.clone()),
        (condition, verdict.clone()),
        (kind::RECONCILING, verdict.that(!disposition.stalled)),
        (kind::STALLED, verdict.that(disposition.stalled)),
    ];
    let mut status = amended(recorded, verdicts, generation, now);
    // It has to be Ready for the whole soak again.
    if let Some(has) = status.profile_revision.as_mut().filter(|_| verdict.reason != Reason::ApiUnavailable.as_str()) {
        has.ready_since = None;
    }
    status
}

pub(crate) fn deleting(
    recorded: &ClientAppStatus,
    generation: Option<i64>,
    hold: &Hold,
    now: Timestamp,
) -> ClientAppStatus {
    let verdict = |holds| Verdict::yes(hold.reason, &hold.message).that(holds);
    let waits = hold.stalled || hold.reason == Reason::Suspended;
    let verdicts = vec![
        (kind::READY, verdict(false)),
        (kind::RECONCILING, verdict(!waits)),
        (kind::STALLED, verdict(hold.stalled)),
    ];
    amended(recorded, verdicts, generation, now)
}

/// Returns a status with some conditions replaced.
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

fn release(key: &Key, observed: &Observed) -> Option<Release> {
    let seen = observed.release.as_ref()?;
    // A release that was never ours is not recorded: a recorded release counts as ours from then on.
    if !seen.ever_managed && observed.recorded.release.is_none() {
        return None;
    }
    let mut release = observed.recorded.release.clone().unwrap_or_default();
    if let Some(InstalledChart { name, version, app_version, digest }) = installed_chart::installed(&observed.recorded)
    {
        release.chart = Some(name);
        release.chart_version = Some(version);
        release.app_version = app_version;
        release.chart_digest = Some(digest);
    }
    release.name.clone_from(&key.name);
    release.namespace.clone_from(&key.namespace);
    release.revision = seen.revision;
    release.status.clone_from(&seen.status);
    release.digest = seen.managed_digest.clone();
    release.deployed_at = seen.created_at.map(Time);
    Some(release)
}

/// Returns the backup for the pending upgrade, otherwise the last one. It is complete, and does not count for another upgrade,
/// once its chart is installed or is not desired any more.
fn backup(
    desired: &Desired,
    observed: &Observed,
    installed: Option<&InstalledChart>,
    now: Timestamp,
) -> Option<BackupRecord> {
    let looked_at = observed
        .prerequisites
        .backup
        .as_ref()
        .and_then(|view| upgrade_backup::looked_at(view, &observed.recorded, now));
    let mut record = looked_at.or_else(|| observed.recorded.backup.clone())?;
    let over = installed.is_some_and(|chart| chart.version == record.to)
        || desired.target().chart_version.to_string() != record.to;
    if over && record.revision.is_none() {
        record.revision = Some(observed.release.as_ref().map_or(0, |release| release.revision));
    }
    Some(record)
}
