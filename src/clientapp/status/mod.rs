//! The status. [`build_status`] is **pure**, and it and its neighbours are the only code that creates conditions; [`report()`],
//! [`tell`] and [`publish`] are the effects. Once the status is written, [`report()`] also ends the helm run and settles the hostnames
//! that are recorded in it.

pub(crate) mod attempt;

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::Time};

use super::{
    context::{App, Ctx, Invalid},
    decide::{
        approval, file_backup, helm_tests,
        plan::{Plan, Step, UpgradeCause},
        remediation, tls, upgrade,
    },
    error::Error,
    helm_runs::HelmRun,
    hold::Hold,
    observed::{installed_chart, owned, pods::NAMED_WORKLOADS, release::Phase, types::Observed, upgrade_backup},
    spec::{deployer::DeployerPart, desired::Desired, values::Tls},
};
use crate::{
    crd::{
        BackupRecord, ClientAppStatus, Credentials, DEPLOYER, InstalledChart, Owned, Reason, Release, ValuesDigest,
        conditions::{State, Verdict, find, kind},
        reason,
    },
    deletion::permit::Kept,
    helm::Hidden,
    platform::{
        clock,
        controller::Failure as _,
        events::{Note, publish_by},
        key::Key,
        status::is_gone,
    },
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
    let now = desired.values.hidden != Hidden::default();
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

/// Writes a status, and publishes events for what is new in it.
pub(crate) async fn report(ctx: &Ctx, app: &App<'_>, pass: &Pass<'_>, status: &ClientAppStatus) -> Result<(), Error> {
    let Pass { desired, observed, plan, .. } = pass;
    if *status != app.before {
        let written = write(ctx, app, status).await;
        // The API server may reject any write to an object that it would not accept today, but never an event.
        let conflicts = |error: &Error| error.disposition().reason == Reason::Conflict;
        if written.as_ref().err().is_none_or(|error| desired.is_err() && !conflicts(error)) {
            let because = plan.steps.iter().find_map(|step| match step {
                Step::HelmUpgrade { cause: Some(why), .. } => Some(because(why, app.key)),
                _ => None,
            });
            let changed = about(transitions(&app.before, status), observed, app.key);
            let notes =
                rotated(&app.before, status, app.key).into_iter().chain(other_values(&app.before, status, app.key));
            let notes = notes.chain(because).chain(changed).chain(archive_failed(&app.before, status));
            let notes = notes.chain(tls::expires(&app.before, status));
            publish(ctx, app, &notes.collect::<Vec<_>>()).await;
        }
        written?;
    }
    if let HelmRun::Upgraded(upgraded) = &observed.run.state
        && observed.run.is_in_cache
        && status.last_attempt.as_ref() == Some(&upgraded.attempt)
    {
        ctx.helm_runs.settle(app.key);
        let hosts = status.inventory.as_ref().map_or(&[][..], |inventory| &inventory.hosts);
        ctx.hostnames.settled(app.key, hosts);
    }
    if let HelmRun::Tested(_) = &observed.run.state {
        ctx.helm_runs.settle(app.key);
    }
    Ok(())
}

/// Adds to an event about drift the object that it is about. **Pure.**
fn about(mut notes: Vec<Note>, observed: &Observed, key: &Key) -> Vec<Note> {
    let drifted = observed.objects.drifted.first().map(|missing| ObjectReference {
        api_version: Some(missing.object.api_version.clone()),
        kind: Some(missing.object.kind.clone()),
        name: Some(missing.object.name.clone()),
        namespace: Some(key.namespace.clone()),
        ..ObjectReference::default()
    });
    for note in notes.iter_mut().filter(|note| note.reason == Reason::Drifted) {
        note.related.clone_from(&drifted);
    }
    notes
}

pub(crate) async fn failure(ctx: &Ctx, app: &App<'_>, error: &Error) -> Result<(), Error> {
    // With the status that was written since the reconcile began.
    let app = ctx.app(app.key, app.guard);
    tell(ctx, &app, &failed(&app.before, app.meta().generation, error, clock::now())).await
}

/// Writes a status, if it changed, and publishes events for what is new in it.
pub(crate) async fn tell(ctx: &Ctx, app: &App<'_>, status: &ClientAppStatus) -> Result<(), Error> {
    write(ctx, app, status).await?;
    publish(ctx, app, &transitions(&app.before, status)).await;
    Ok(())
}

async fn write(ctx: &Ctx, app: &App<'_>, status: &ClientAppStatus) -> Result<(), Error> {
    let written = ctx.memory.statuses.write(&ctx.client, app, status).await;
    written.map_err(|error| match is_gone(&error) {
        true => Error::Gone(app.key.clone()),
        false => Error::api(format!("write the status of ClientApp {}", app.key))(error),
    })
}

/// Returns the events for a change of status: transitions only. **Pure.**
pub(crate) fn transitions(before: &ClientAppStatus, after: &ClientAppStatus) -> Vec<Note> {
    let Some(now) = find(&after.conditions, kind::READY) else { return Vec::new() };
    let then = find(&before.conditions, kind::READY);
    let same = then.is_some_and(|then| then.status == now.status && then.reason == now.reason);
    let same_words = then.is_some_and(|then| then.message == now.message);
    let upgraded = after.release.as_ref().map(|release| release.revision)
        > before.release.as_ref().map(|release| release.revision);
    // A new revision is reported even if Ready stayed True.
    if same && (same_words || !upgraded || now.status != "True") {
        return Vec::new();
    }
    let revision = after.release.as_ref().map_or(0, |release| release.revision);
    let note = Note::normal(format!("ReconcileRevision{revision}"), &now.reason, now.message.clone());
    vec![Note { warning: reason::is_trouble(now), ..note }]
}

/// Returns the event that says why a release is upgraded although its spec did not change. **Pure.**
pub(crate) fn because(because: &UpgradeCause, key: &Key) -> Note {
    let name = &key.name;
    let (UpgradeCause::ChangedByOthers { revision } | UpgradeCause::Uninstalled { revision }) = because;
    let message = match because {
        UpgradeCause::ChangedByOthers { .. } => {
            format!(
                "revision {revision} of release {name} was made by another Helm client: upgrading the release to the spec"
            )
        }
        UpgradeCause::Uninstalled { .. } => format!(
            "release {name}, last at revision {revision}, was uninstalled by another Helm client: installing it again"
        ),
    };
    Note::warning(format!("PutRightRevision{revision}"), Reason::ReleaseDrifted, message)
}

/// Returns the event that says which credentials were changed, and that the release is upgraded because of it. **Pure.**
fn rotated(before: &ClientAppStatus, after: &ClientAppStatus, key: &Key) -> Option<Note> {
    let is_new = |now: &&Credentials| {
        let same = |then: &Credentials| then.secret == now.secret && then.keys == now.keys;
        before.credentials.iter().any(|then| same(then) && then.digest != now.digest)
    };
    let changed: Vec<_> = after.credentials.iter().filter(is_new).map(|known| known.secret.as_str()).collect();
    let (secrets, name) = (changed.join(" and "), &key.name);
    let message = format!(
        "other credentials in Secret {secrets}: the pods that use them restart with the next revision of release {name}"
    );
    // Events with the same action are counted, and only the first message is kept.
    let revision = before.release.as_ref()?.revision;
    (!changed.is_empty())
        .then(|| Note::normal(format!("RestartAfterRevision{revision}"), Reason::CredentialsChanged, message))
}

/// Returns the event about a failed archive: no user waits for a scheduled one and sees that it failed. **Pure.**
fn archive_failed(before: &ClientAppStatus, after: &ClientAppStatus) -> Option<Note> {
    let job = |status: &ClientAppStatus| status.files.as_ref().and_then(|files| files.failed_job.clone());
    let failed = job(after).filter(|failed| job(before).as_ref() != Some(failed))?;
    let message = find(&after.conditions, reason::FILES_BACKED_UP).map(|condition| condition.message.clone())?;
    Some(Note::warning(format!("Archive {failed}"), Reason::ArchiveFailed, message))
}

/// Returns the event that says which values from elsewhere have changed. **Pure.**
fn other_values(before: &ClientAppStatus, after: &ClientAppStatus, key: &Key) -> Option<Note> {
    let is_new =
        |now: &&ValuesDigest| before.values_from.iter().any(|then| then.of == now.of && then.digest != now.digest);
    let changed: Vec<_> = after.values_from.iter().filter(is_new).map(|now| now.of.as_str()).collect();
    let message =
        format!("other values in {}: the next revision of release {} has them", changed.join(" and "), key.name);
    let revision = before.release.as_ref()?.revision;
    (!changed.is_empty())
        .then(|| Note::normal(format!("UpgradeAfterRevision{revision}"), Reason::ValuesChanged, message))
}

/// Returns the event about recreating the account that helm acts as. **Pure.**
pub(crate) fn deployer_replaced(part: DeployerPart, namespace: &str) -> Note {
    let message =
        format!("{} {DEPLOYER}, which helm needs in namespace {namespace}, was missing and is recreated", part.kind());
    Note::warning(format!("Creating{}", part.kind()), Reason::DeployerReplaced, message)
}

/// Returns the event that names what a deletion kept. **Pure.**
pub(crate) fn data_kept(key: &Key, kept: &[Kept]) -> Option<Note> {
    const NAMED: usize = 4;
    let first = kept.iter().take(NAMED).map(ToString::to_string).collect::<Vec<_>>().join("; ");
    let more = kept.len().checked_sub(NAMED).filter(|more| *more > 0);
    let more = more.map(|more| format!("; and {more} more")).unwrap_or_default();
    let message = format!("ClientApp {} is deleted, but these objects are kept: {first}{more}", key.name);
    (!kept.is_empty()).then(|| Note::warning("Deleting", Reason::DataKept, message))
}

/// Returns the event about an app that was deleted with `--cascade=orphan`; `None`: possibly. **Pure.**
pub(crate) fn orphaned(key: &Key, orphaned: Option<bool>, owned: &[Owned]) -> Option<Note> {
    let how = match orphaned {
        Some(false) => return None,
        Some(true) => "with --cascade=orphan".to_owned(),
        None => format!(
            "and it is not known whether with --cascade=orphan, since Secret {}, which would show it, is gone or is not on record as its own",
            key.redis_secret()
        ),
    };
    // A Secret that is gone does not stay.
    let stays = |entry: &&Owned| orphaned.is_some() || entry.kind != "Secret" || entry.name != key.redis_secret();
    let owned: Vec<_> = owned.iter().filter(stays).map(|entry| format!("{} {}", entry.kind, entry.name)).collect();
    let (name, owned) = (&key.name, owned.join(", "));
    let message = format!("ClientApp {name} is deleted, {how}: Helm release {name} and all data stay ({owned})");
    let note = Note::normal("Deleting", Reason::DataKept, message);
    Some(Note { warning: orphaned.is_none(), ..note })
}

/// Publishes events; a failure to publish is logged and never stops a reconcile.
pub(crate) async fn publish(ctx: &Ctx, app: &App<'_>, notes: &[Note]) {
    publish_by(&ctx.recorder, &app.reference(), notes).await;
}

#[cfg(test)]
mod tests;
