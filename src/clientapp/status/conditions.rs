//! Computes the status. **Pure**, and with its neighbours the only code that creates conditions.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::attempt;
use crate::{
    clientapp::{
        context::Invalid,
        decide::{
            approval, file_backup, helm_tests,
            plan::{Plan, Step},
            remediation, tls, upgrade,
        },
        error::Error,
        hold::Hold,
        observed::{installed_chart, owned, pods::NAMED_WORKLOADS, release::Phase, types::Observed, upgrade_backup},
        spec::{desired::Desired, values::Tls},
    },
    crd::{
        BackupRecord, ClientAppStatus, InstalledChart, Reason, Release,
        conditions::{State, Verdict, find, kind},
        reason,
    },
    helm::Redactor,
    platform::{controller::ReconcileError as _, key::Key},
};

/// The results of a reconcile before it acts.
pub(crate) struct Pass<'a> {
    pub key: &'a Key,
    pub generation: Option<i64>,
    /// The validated spec, or why there is none.
    pub desired: Result<&'a Desired, &'a Invalid>,
    pub observed: &'a Observed,
    pub plan: &'a Plan,
}

/// Returns the status after observing and deciding, including what the reconcile is about to do.
pub(crate) fn build_status(pass: &Pass<'_>, now: Timestamp) -> ClientAppStatus {
    let Pass { key, generation, desired, observed, plan } = *pass;
    let previous = &observed.recorded;
    if observed.run.busy.is_some() {
        return while_helm_runs(pass, now);
    }
    let mut status = ClientAppStatus {
        release: release(key, observed),
        inventory: observed.objects.inventory.clone(),
        ..previous.clone()
    };
    status.plan = None;
    if let Ok(desired) = desired {
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
            Some(Tls::Secret { name, .. }) => Some(name.clone()),
            Some(Tls::Elsewhere) | None => None,
        };
        status.credentials.clone_from(&desired.secrets.in_use);
        status.postgres_cluster_name = desired.database_object().map(|object| object.name.clone());
        if let Some(hold) = plan.hold.as_ref().filter(|hold| hold.begins) {
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
            let verdicts = valid(desired, observed, plan, now).into_iter().filter(is_new).collect();
            status = amended(&status, verdicts, generation, now);
            // Ready is about the revision that serves, not about the one after it that was cut off.
            let serves = find(&previous.conditions, kind::READY).is_some_and(|ready| ready.status == "True");
            if serves && observed.release.as_ref().is_some_and(|release| release.phase != Phase::Deployed) {
                status.release.clone_from(&previous.release);
            }
            let intent = progress(&status, generation, hold.reason, &hold.message, now);
            return if is_on_record(&intent, previous, observed.run.has_slot) { previous.clone() } else { intent };
        }
    }
    status.observed_generation = generation;
    status.owned.clone_from(&observed.owned);
    status.orphaned = None;
    let verdicts = match desired {
        Err(Invalid { reason, message }) => invalid(*reason, message, observed),
        Ok(desired) => {
            status.files = file_backup::summary(desired, observed);
            status.backup = backup(desired, observed, status.installed.as_ref(), now);
            let is_deployed =
                observed.release.as_ref().is_some_and(|release| release.is_deployed_as(&desired.target().digest));
            if is_deployed && desired.rolled_back().is_none() {
                status.url = Some(tls::url(desired, observed, now));
            }
            valid(desired, observed, plan, now)
        }
    };
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
    // Neither the database nor the archives nor the certificate are observed without a valid spec.
    let kept = |type_| {
        let condition = desired.is_err().then(|| find(&previous.conditions, type_)).flatten()?;
        Some((type_, Verdict::of(condition)))
    };
    let archived = desired.ok().and_then(|desired| file_backup::verdict(desired, observed, status.files.as_ref()));
    let archived = archived.map(|verdict| (reason::FILES_BACKED_UP, verdict));
    status.conditions = verdicts
        .into_iter()
        .chain(backed_up(observed).or_else(|| kept(reason::BACKED_UP)))
        .chain(archived.or_else(|| kept(reason::FILES_BACKED_UP)))
        .chain(kept(kind::CERTIFICATE_READY))
        .map(|(type_, verdict)| verdict.into_condition(type_, &previous.conditions, generation, now))
        .collect();
    if let Ok(desired) = desired {
        remediation::record(&mut status, desired, observed.release.as_ref());
    }
    status
}

/// Returns true if the deployed revision may have values from Secrets: until the spec is installed, it has those of an earlier one.
fn secret_values(desired: &Desired, observed: &Observed) -> Option<bool> {
    let is_installed = observed.release.as_ref().is_none_or(|release| release.is_deployed_as(&desired.target().digest));
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
    let waits = workloads(observed);
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
    amended(recorded, verdicts, generation, now)
}

/// Returns the status during a teardown.
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

type Verdicts = Vec<(&'static str, Verdict)>;

fn invalid(reason: Reason, problem: &str, observed: &Observed) -> Verdicts {
    vec![
        (kind::READY, Verdict::no(reason, problem)),
        (kind::POSTGRES_READY, kept(observed, kind::POSTGRES_READY)),
        (kind::RELEASED, kept(observed, kind::RELEASED)),
        (kind::WORKLOADS_READY, workloads(observed)),
        (kind::RECONCILING, Verdict::no(reason, problem)),
        (kind::STALLED, Verdict::yes(reason, problem)),
    ]
}

fn valid(desired: &Desired, observed: &Observed, plan: &Plan, now: Timestamp) -> Verdicts {
    let hold = plan.hold.as_ref();
    let about = |type_: &str| {
        hold.filter(|hold| hold.condition == type_).map(|hold| {
            let state = if hold.reason == Reason::ExternalOperationInProgress { State::Unknown } else { State::False };
            Verdict { state, reason: hold.reason.into(), message: hold.message.clone() }
        })
    };

    let postgres = match &desired.database {
        None => Verdict::yes(Reason::Disabled, "no database is asked for"),
        Some(database) => about(kind::POSTGRES_READY).unwrap_or_else(|| match hold {
            Some(hold) if hold.unjudged.contains(&kind::POSTGRES_READY) => kept(observed, kind::POSTGRES_READY),
            _ => Verdict::yes(
                Reason::Ready,
                match &database.object {
                    Some(object) => format!("{} is ready", object.described()),
                    None => format!(
                        "Secret {} has the credentials of a database that exists already",
                        database.address.secret
                    ),
                },
            ),
        }),
    };
    let released_verdict = about(kind::RELEASED).unwrap_or_else(|| release_verdict(desired, observed, hold));
    let workloads = about(kind::WORKLOADS_READY).unwrap_or_else(|| workloads(observed));

    let tested = helm_tests::verdict(desired, observed, hold);
    let certified = tls::verdict(desired, observed, now);

    let stalled = hold.filter(|hold| hold.stalled);
    let reconciling = match hold {
        None if !plan.steps.is_empty() => Verdict::yes(Reason::Pending, "there are steps left to take"),
        None if workloads.state == State::False => Verdict::no(
            Reason::Settled,
            "helm has nothing left to do; see WorkloadsReady for what the workloads wait for",
        ),
        None => Verdict::no(Reason::Settled, "the operator has nothing left to do"),
        Some(hold) if hold.stalled || hold.reason == Reason::Suspended => Verdict::no(hold.reason, &hold.message),
        Some(hold) => Verdict::yes(hold.reason, &hold.message),
    };
    let without_credentials =
        |step: &Step| matches!(step, Step::CreateAdminSecret | Step::CreateRedisSecret | Step::Adopt(_));
    let ready = match stalled {
        Some(hold) => Verdict::no(hold.reason, &hold.message),
        None if hold.is_none() && plan.steps.iter().any(without_credentials) => {
            Verdict::no(Reason::Pending, "credentials and data are being made or adopted")
        }
        None => [&postgres, &released_verdict, &workloads]
            .into_iter()
            .chain(&tested)
            .find(|verdict| verdict.state != State::True)
            .or_else(|| certified.as_ref().filter(|certified| !tls::serves(certified)))
            .map(|verdict| match hold {
                // Whatever is missing, this is why it is not created.
                Some(hold) if hold.reason == Reason::Suspended => Verdict::no(hold.reason, &hold.message),
                _ => verdict.clone(),
            })
            .unwrap_or_else(|| {
                let url = tls::url(desired, observed, now);
                Verdict::yes(Reason::Ready, format!("{}, serving {url}", released_verdict.message))
            }),
    };
    let stalled = match stalled {
        Some(hold) => Verdict::yes(hold.reason, &hold.message),
        // The workload's controller has reported no progress within its deadline. Later progress is still noticed.
        None if hold.is_none_or(|hold| hold.reason == Reason::Drifted) && is_stuck(observed) => {
            Verdict::yes(Reason::ProgressDeadlineExceeded, &workloads.message)
        }
        None => Verdict::no(Reason::NotStalled, "no manual action is required"),
    };
    let mut verdicts = vec![
        (kind::READY, ready),
        (kind::POSTGRES_READY, postgres),
        (kind::RELEASED, released_verdict),
        (kind::WORKLOADS_READY, workloads),
    ];
    verdicts.extend(tested.map(|tested| (kind::TESTED, tested)));
    verdicts.extend(certified.map(|certified| (kind::CERTIFICATE_READY, certified)));
    verdicts.extend([(kind::RECONCILING, reconciling), (kind::STALLED, stalled)]);
    verdicts
}

fn release_verdict(desired: &Desired, observed: &Observed, hold: Option<&Hold>) -> Verdict {
    let chart = format!("chart version {}", desired.target().chart_version);
    if let Some(release) = observed.release.as_ref().filter(|release| release.is_deployed_as(&desired.target().digest))
    {
        let attempt =
            observed.recorded.last_attempt.as_ref().filter(|attempt| attempt.digest == desired.target().digest);
        // What helm left as it was, although the spec asks for something else.
        let note = attempt.filter(|attempt| attempt.failures == 0).and_then(|attempt| attempt.message.as_ref());
        let note = note.map(|note| format!("; {note}")).unwrap_or_default();
        return Verdict::yes(Reason::Deployed, format!("revision {} with {chart} is deployed{note}", release.revision));
    }
    let waits = hold.map_or_else(|| "helm has to run".to_owned(), |hold| hold.message.clone());
    let reason = hold.map_or(Reason::Pending, |hold| {
        if hold.reason == Reason::Suspended { Reason::Suspended } else { Reason::Waiting }
    });
    match &observed.release {
        Some(release) if release.phase == Phase::Deployed => Verdict::no(
            reason,
            format!("revision {} is deployed, but not yet as the spec asks: {waits}", release.revision),
        ),
        _ => Verdict::no(reason, format!("nothing is released yet: {waits}")),
    }
}

fn workloads(observed: &Observed) -> Verdict {
    if observed.release.is_none() {
        return Verdict::no(Reason::NoRelease, "there is no release yet");
    }
    let waiting: Vec<_> = observed
        .objects
        .workloads
        .iter()
        .filter_map(|workload| {
            let why = workload.waiting.as_ref()?;
            Some(format!("{} {}: {why}", workload.kind, workload.name))
        })
        .collect();
    if waiting.is_empty() && observed.objects.inventory.is_none() {
        return Verdict::unknown(
            Reason::InventoryUnknown,
            "the objects of the release cannot be read from Helm's storage",
        );
    }
    if waiting.is_empty() {
        return Verdict::yes(Reason::Ready, format!("{} workloads are ready", observed.objects.workloads.len()));
    }
    let mut message = waiting[..waiting.len().min(NAMED_WORKLOADS)].join("; ");
    if waiting.len() > NAMED_WORKLOADS {
        message.push_str(&format!("; and {} more", waiting.len() - NAMED_WORKLOADS));
    }
    Verdict::no(if is_stuck(observed) { Reason::ProgressDeadlineExceeded } else { Reason::NotReady }, message)
}

fn is_stuck(observed: &Observed) -> bool {
    observed.objects.workloads.iter().any(|workload| workload.stuck)
}

/// Returns the last verdict of a condition that this pass did not check.
fn kept(observed: &Observed, type_: &str) -> Verdict {
    let condition = find(&observed.recorded.conditions, type_);
    condition.map_or_else(|| Verdict::unknown(Reason::NotChecked, "not checked yet"), Verdict::of)
}

/// Returns what the database itself reports of its dumps.
fn backed_up(observed: &Observed) -> Option<(&'static str, Verdict)> {
    let verdict = observed.prerequisites.database.object.as_ref()?.backed_up.clone()?;
    Some((reason::BACKED_UP, verdict))
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
