//! Stage 3, **pure**: from what shall exist and what does, the steps to take now, and what to wait for.
//!
//! Reads as a list of questions in order of precedence; the first hold ends the plan.

use jiff::{SignedDuration, Timestamp};

use super::{
    build::secrets,
    deployer::Deployer,
    desired::{Desired, SecretSource},
    drift,
    error::Refusal,
    gate::{Gate, gate},
    helm_runs::HelmRun,
    inventory,
    lock::{self, Lock},
    observed::{AtWork, Observed, Phase, ReleaseView, Retained, SecretView, Workload},
    owned,
    plan::{Because, Hold, Plan, SAFETY_NET, Step, few},
    pods,
    upgrade::{self, Before},
};
use crate::{
    config::Config,
    crd::{Attempt, ClientAppStatus, Drift, Reason, annotation, conditions::kind, label},
    destroy::permit::Kind,
    runtime::{account::DEPLOYER, clock::is_awaited, key::Key},
};

/// Longer than the longest wait for another attempt.
const LATEST_RETRY: SignedDuration = SignedDuration::from_hours(1);
/// By then every API server goes by a RoleBinding that was made.
const RIGHTS_SETTLE: SignedDuration = SignedDuration::from_secs(5);

pub(crate) fn decide(desired: &Desired, observed: &Observed, config: &Config, now: Timestamp) -> Plan {
    // A field that is added to the observed has to be thought about here.
    let Observed {
        hostname_holder,
        hook: _,
        admin_secret,
        redis_secret,
        database: _,
        deployer,
        retained,
        backup: _,
        target: _,
        run: _,
        at_work,
        has_slot: _,
        run_is_shown: _,
        release,
        workloads,
        missing: _,
        look_again,
        repairs: _,
        inventory: _,
        owned: _,
        retry,
        recorded,
    } = observed;
    let mut plan = Plan::default();

    if let Some(at_work) = at_work {
        return while_helm_runs(desired, at_work, observed, now);
    }
    if desired.suspend {
        let message = "spec.suspend is true: nothing is changed until it is false";
        return plan.hold(Hold::new(Reason::Suspended, message));
    }
    if let Some(holder) = hostname_holder {
        let message = format!(
            "hostname {} belongs to ClientApp {holder}: choose another, or delete that one and this one takes over",
            desired.hostname
        );
        return plan.hold(Hold::new(Reason::HostnameConflict, message));
    }

    let Gate { apply, hold: closed } = gate(desired, observed, now);
    if !retained.is_empty() {
        match adopt(desired, retained, closed.as_ref(), now) {
            // What it brings with it decides what comes next.
            Ok(step) => return Plan { steps: vec![step], ..Plan::default() },
            Err(hold) => return plan.hold(hold),
        }
    }

    if let Some(hold) = admin_secret_lost(desired, admin_secret, recorded, release.as_ref()) {
        return plan.hold(hold);
    }
    // Before all else that is made: where the namespace refuses it, nothing is begun.
    let again = recorded.release.is_some() || recorded.last_attempt.is_some();
    let account_is_there = !desired.account.is_deployer() || deployer.is_there();
    if desired.account.is_deployer() {
        plan.steps.extend(deployer.missing().into_iter().map(|part| Step::CreateDeployer { part, again }));
    }
    match secret_step(&desired.admin, admin_secret, Step::CreateAdminSecret) {
        Ok(step) => plan.steps.extend(step),
        Err(hold) => return plan.hold(hold),
    }
    let source = SecretSource::Generated(desired.key.redis_secret());
    match secret_step(&source, redis_secret, Step::CreateRedisSecret) {
        Ok(step) => plan.steps.extend(step),
        Err(hold)
            if desired.redis_secret.is_some() || matches!(redis_secret, SecretView::NotOurs { goes: true, .. }) =>
        {
            return plan.hold(hold);
        }
        // Without Redis it is but the witness of how the app is deleted.
        Err(_) => {}
    }
    if let Some(name) = desired.redis_secret.as_ref().filter(|_| account_is_there) {
        plan.steps.extend(restart(name, redis_secret, recorded, workloads));
    }
    plan.steps.extend(apply.map(Step::ApplyDatabase));
    // The Secrets after the database, which is made while a user makes what is missing.
    let incomplete =
        || given_secret(&desired.admin, admin_secret).or_else(|| given_redis_secret(desired, redis_secret));
    if let Some(hold) = closed.or_else(incomplete) {
        // What keeps helm waiting keeps no object of the release missing.
        let drift = drift::follows(desired, observed, now).filter(|_| account_is_there);
        if let Some((Some(repair), Hold { until, .. })) = drift {
            plan.steps.push(repair);
            plan.look_again = until;
        }
        return plan.hold(hold);
    }
    // An attempt that a user asks to be repeated holds nothing up.
    let repeated = |attempt: &&Attempt| retry.as_ref() == Some(&annotation::retry_after(attempt));
    let attempt = recorded.last_attempt.as_ref().filter(|attempt| !repeated(attempt));
    // What is made here is on record as this app's own, or seen, before helm uses it.
    if plan.steps.iter().any(Step::makes_credentials) {
        return plan;
    }
    plan = release_steps(plan, desired, observed, attempt, now, config.helm_deadline);
    plan.look_again = look_at_pods(observed, now).into_iter().chain(*look_again).min();
    // helm makes it again, too.
    if plan.hold.is_none()
        && !plan.runs_helm()
        && let Some((repair, hold)) = drift::follows(desired, observed, now)
    {
        if desired.drift == Drift::Repair && !account_is_there {
            return plan.hold(deployer_taken(&desired.key));
        }
        plan.steps.extend(repair);
        return plan.hold(hold);
    }
    match plan.steps.pop_if(|step| matches!(step, Step::HelmUpgrade { .. })) {
        Some(_) if !account_is_there => plan.hold(deployer_taken(&desired.key)),
        Some(helm) => before_helm(plan, helm, desired, observed, config, now),
        None => plan,
    }
}

/// When to look at the pods of workloads that are not ready, which no watch tells of.
fn look_at_pods(observed: &Observed, now: Timestamp) -> Option<Timestamp> {
    let is_waiting = observed.workloads.iter().any(|workload| workload.waiting.is_some());
    is_waiting.then(|| pods::next_look(pods::not_ready_since(&observed.recorded).unwrap_or(now), now))
}

/// One helm at a time works on a release: its end triggers the next reconcile. A suspension is the only change that does not wait
/// for it; a deletion is the teardown's.
fn while_helm_runs(desired: &Desired, at_work: &AtWork, observed: &Observed, now: Timestamp) -> Plan {
    let AtWork { digest, sentence, until } = at_work;
    if desired.suspend {
        let message = "spec.suspend is true: helm is being stopped, and nothing else is changed until it is false";
        let plan = Plan { steps: vec![Step::CancelHelm], ..Plan::default() };
        return plan.hold(Hold::new(Reason::Suspended, message));
    }
    // What is on record says that helm runs; the watch is late with its end, or will be.
    if let Some(until) = until {
        return Plan { look_again: Some(*until), ..Plan::default() };
    }
    let is_outdated = digest.as_ref().is_some_and(|digest| *digest != desired.digest);
    let then = if is_outdated { "; the spec has changed since, and helm runs again after that" } else { "" };
    let plan = Plan { look_again: look_at_pods(observed, now), ..Plan::default() };
    plan.hold(Hold::new(Reason::Upgrading, format!("{sentence}{then}")))
}

/// A RoleBinding is where that of the deployer has to be.
pub(crate) fn deployer_taken(key: &Key) -> Hold {
    let namespace = &key.namespace;
    let message = format!(
        "RoleBinding {DEPLOYER} in namespace {namespace} was changed or made by another client: it has to bind ClusterRole {DEPLOYER} to ServiceAccount {DEPLOYER} and to nothing else, and is not overwritten; `kubectl delete rolebinding {DEPLOYER} -n {namespace}`, and it is recreated, or name an account of your own in spec.serviceAccountName"
    );
    Hold::new(Reason::DeployerNotOurs, message)
}

/// What stands before a helm run: its chart, and what that asks for.
fn before_helm(
    mut plan: Plan,
    helm: Step,
    desired: &Desired,
    observed: &Observed,
    config: &Config,
    now: Timestamp,
) -> Plan {
    let Desired { key, chart_version: version, .. } = desired;
    let Some(target) = &observed.target else {
        if observed.run != HelmRun::FetchingChart(version.clone()) {
            plan.steps.push(Step::FetchChart);
        }
        let message = format!("fetching chart {} {version}", config.chart);
        return plan.hold(Hold::new(Reason::FetchingChart, message));
    };
    if let Some(Before { back_up, hold }) = upgrade::before(desired, observed, target, now) {
        plan.steps.extend(back_up.map(Step::BackUp));
        return plan.hold(hold);
    }
    let Step::HelmUpgrade { revision, .. } = helm else { return plan };
    plan.steps.push(helm);
    let begins =
        format!("{} {version} is being installed as revision {revision} of release {}", target.chart, key.name);
    let message = match observed.has_slot {
        true => begins,
        false => format!(
            "{begins} as soon as it is its turn: helm runs for at most {} apps at a time",
            config.max_concurrent
        ),
    };
    plan.hold(Hold::new(Reason::Upgrading, message))
}

/// Takes over what was left, where that is asked for and nothing stands against it.
fn adopt(desired: &Desired, retained: &[Retained], closed: Option<&Hold>, now: Timestamp) -> Result<Step, Hold> {
    // Volumes are not watched.
    let hold = |message: String| Hold::new(Reason::DataRetained, message).until(now + SAFETY_NET);
    let left =
        format!("an earlier ClientApp {}, or a database of its name, has left {}", desired.key.name, summary(retained));
    if !desired.adopt {
        return Err(hold(format!(
            "{left}: nothing is made while that is there; to go on with these data, set spec.postgres.adopt to true; else rename this ClientApp, or delete what `kubectl get pvc,secret -n {} -l {}={}` and the like show",
            desired.key.namespace,
            label::RETAINED_FROM,
            desired.key.name,
        )));
    }
    let wanted = desired.database_object().map(|object| object.provider.kind());
    let other = retained.iter().find(|left| left.kind.is_database() && Some(left.kind) != wanted);
    if let Some(Retained { kind, name, .. }) = other {
        return Err(hold(format!(
            "{left}: {} {name} is adopted by a ClientApp with another spec.postgres.provider, or spec.postgres.enabled, only",
            kind.as_str()
        )));
    }
    match closed.filter(|hold| hold.stalled) {
        Some(hold) => Err(hold.clone()),
        None => Ok(Step::Adopt(retained.to_vec())),
    }
}

/// The database and a volume by name, and how many more there are.
fn summary(retained: &[Retained]) -> String {
    const NAMED: usize = 2;
    let mut sorted: Vec<_> = retained.iter().collect();
    sorted.sort_by_key(|left| match left.kind {
        Kind::Volume => 1,
        Kind::Secret => 2,
        Kind::Database(_) => 0,
    });
    few(sorted.iter().map(|left| format!("{} {}", left.kind.as_str(), left.name)), NAMED)
}

/// The generated credentials of the administrator, once made, are what the app's data know: no new ones are made up.
fn admin_secret_lost(
    desired: &Desired,
    view: &SecretView,
    recorded: &ClientAppStatus,
    release: Option<&ReleaseView>,
) -> Option<Hold> {
    let SecretSource::Generated(name) = &desired.admin else { return None };
    (*view == SecretView::Absent && owned::is_in_use(name, recorded, release)).then(|| {
        let message = format!(
            "Secret {name} is gone, and the app knows no other administrator's password than the one in it: nothing is changed until it is back; restore it, or, with the credentials that the app has or is given by its own command, `kubectl create secret generic {name} -n {} --from-literal={}=… --from-literal={}=…`",
            desired.key.namespace,
            secrets::ADMIN_USERNAME,
            secrets::ADMIN_PASSWORD,
        );
        Hold::new(Reason::AdminSecretLost, message)
    })
}

/// Redis starts with its password: a new one has to reach the pods that hold the old one.
fn restart(name: &str, view: &SecretView, recorded: &ClientAppStatus, workloads: &[Workload]) -> Option<Step> {
    let SecretView::Own { uid } = view else { return None };
    let before = owned::uid(&recorded.owned, Kind::Secret, name)?;
    let holds_old = |workload: &Workload| {
        workload.restarted_for.as_ref() != Some(uid) && workload.waiting.as_deref() != Some(inventory::MISSING)
    };
    (before != uid && recorded.release.is_some() && workloads.iter().any(holds_old))
        .then(|| Step::Restart { secret: name.to_owned(), uid: uid.clone() })
}

/// Create a generated Secret that is absent; wait for one that is still being taken away with its old owner, since
/// a Secret used now would vanish from under the app.
fn secret_step(source: &SecretSource, view: &SecretView, create: Step) -> Result<Option<Step>, Hold> {
    match (source, view) {
        (SecretSource::Generated(_), SecretView::Absent) => Ok(Some(create)),
        (SecretSource::Generated(name), SecretView::NotOurs { owner, .. }) => Err(Hold::new(
            Reason::SecretNotOurs,
            format!(
                "Secret {name} belongs to {owner}: it is not used, and a new one is created once it is gone; if it has the password of data that this ClientApp is to adopt, set spec.postgres.adopt to true"
            ),
        )),
        _ => Ok(None),
    }
}

/// A Secret that a user made: the one that the spec names, or one of the name that is generated.
fn given_secret(source: &SecretSource, view: &SecretView) -> Option<Hold> {
    let (name, named) = match source {
        SecretSource::Given(name) => (name, "named in spec.adminSecret"),
        SecretSource::Generated(name) => (name, "which this operator did not make"),
    };
    let (reason, problem) = match (view, source) {
        (SecretView::Absent, SecretSource::Given(_)) => (Reason::AdminSecretMissing, "does not exist".to_owned()),
        _ => (Reason::AdminSecretKeyMissing, view.lacks(&[secrets::ADMIN_USERNAME, secrets::ADMIN_PASSWORD])?),
    };
    let message = format!(
        "Secret {name}, {named}, {problem}: it needs the keys {} and {}",
        secrets::ADMIN_USERNAME,
        secrets::ADMIN_PASSWORD
    );
    Some(Hold::new(reason, message))
}

/// A Secret that a user made in place of the generated one for Redis.
fn given_redis_secret(desired: &Desired, view: &SecretView) -> Option<Hold> {
    let name = desired.redis_secret.as_ref()?;
    let problem = view.lacks(&[secrets::REDIS_PASSWORD])?;
    let message = format!(
        "Secret {name}, which this operator did not make, {problem}: complete it, or delete it, and one is generated"
    );
    Some(Hold::new(Reason::RedisSecretKeyMissing, message))
}

/// The release's own table.
fn release_steps(
    mut plan: Plan,
    desired: &Desired,
    observed: &Observed,
    attempt: Option<&Attempt>,
    now: Timestamp,
    helm_deadline: SignedDuration,
) -> Plan {
    let name = &desired.key.name;
    let recorded_revision = observed.recorded.release.as_ref().map(|release| release.revision);
    // What failed is not tried again before its time, however many events ask for it; a change of what is asked is.
    let same = attempt.filter(|attempt| attempt.digest == desired.digest);
    let deployer = desired.account.is_deployer().then_some(&observed.deployer);
    let waits = owed(observed, attempt, &desired.key).or_else(|| {
        same.and_then(|attempt| {
            backoff(attempt, deployer, now).or_else(|| cut_off(attempt, observed.release.as_ref(), now))
        })
    });
    let mut upgrade = |first: Option<Step>, revision: i64, because: Option<Because>| {
        plan.steps.extend(first);
        if waits.is_none() {
            plan.steps.push(Step::HelmUpgrade { revision, because });
        }
        waits.clone()
    };

    let Some(release @ ReleaseView { revision, secret, phase, stamp, known, .. }) = &observed.release else {
        let because = recorded_revision.map(|revision| Because::Uninstalled { revision });
        let hold = upgrade(None, 1, because);
        return Plan { hold, ..plan };
    };
    let next = revision + 1;
    let ours_before = *known || recorded_revision.is_some();
    let changed = || Some(Because::ChangedByOthers { revision: *revision });
    let not_ours = || {
        let message = format!(
            "a Helm release {name} that this operator did not make is in namespace {}: it is not taken over; uninstall it or rename the ClientApp",
            desired.key.namespace
        );
        Hold::new(Reason::ReleaseNotOurs, message)
    };
    let hold = match (phase, stamp) {
        (Phase::Deployed, Some(stamp)) if stamp.digest == desired.digest => None,
        (Phase::Deployed | Phase::Failed, Some(_)) => upgrade(None, next, None),
        (Phase::Deployed | Phase::Failed, None) if ours_before => upgrade(None, next, changed()),
        (Phase::Deployed | Phase::Failed, None) => Some(not_ours()),
        (Phase::Uninstalled, _) => {
            upgrade(None, next, recorded_revision.map(|revision| Because::Uninstalled { revision }))
        }
        (Phase::Pending | Phase::Uninstalling, _) => {
            match lock::lock(release, desired.upgrade.foreign_lock_timeout, now) {
                Lock::Foreign(until) => {
                    let message = lock::held(release, name);
                    Some(Hold::new(Reason::ExternalOperationInProgress, message).until(until))
                }
                Lock::Free | Lock::Left if stamp.is_none() && !ours_before => Some(not_ours()),
                Lock::Free | Lock::Left => hook(observed.hook.as_ref(), release, helm_deadline, now).or_else(|| {
                    upgrade(Some(Step::UnlockRelease { secret: secret.clone(), revision: *revision }), next, None)
                }),
            }
        }
    };
    Plan { hold, ..plan }
}

fn backoff(attempt: &Attempt, deployer: Option<&Deployer>, now: Timestamp) -> Option<Hold> {
    let mut until = attempt.retry_at.as_ref()?.0;
    // A refusal from before its account was there, or known to every API server, says nothing of what the account may do.
    if let Some(settled) = deployer.and_then(Deployer::since).map(|since| since + RIGHTS_SETTLE)
        && attempt.reason.as_deref().and_then(Reason::parse) == Some(Reason::AccessDenied)
        && attempt.started_at.0 < settled
    {
        until = until.min(settled);
    }
    if !is_awaited(until, now, LATEST_RETRY) {
        return None;
    }
    let (reason, stalled) = super::error::recorded_reason(attempt.reason.as_deref(), attempt.failures);
    let message = attempt.message.clone().unwrap_or_default();
    Some(Hold { stalled, condition: kind::RELEASED, ..Hold::new(reason, message).until(until) })
}

/// The wait for a Job that helm has left running with its lock: the next helm would delete it, and begin it anew.
fn hook(job: Option<&String>, release: &ReleaseView, helm_deadline: SignedDuration, now: Timestamp) -> Option<Hold> {
    const LOOK: SignedDuration = SignedDuration::from_secs(5);
    let until = release.written? + helm_deadline;
    let message = format!(
        "Job {}, a hook of the chart, is still running, and the helm process that started it for revision {} is gone: the operator waits for its end as long as helm would have",
        job?, release.revision
    );
    (now < until).then(|| Hold::new(Reason::ExternalOperationInProgress, message).until(until.min(now + LOOK)))
}

/// The wait for an attempt that ended together with its operator, and not for the first time: helm may be what ends it.
fn cut_off(attempt: &Attempt, release: Option<&ReleaseView>, now: Timestamp) -> Option<Hold> {
    let left = release.is_some_and(ReleaseView::is_left_locked);
    if !left || attempt.retry_at.is_some() || attempt.failures == 0 {
        return None;
    }
    let after = Refusal::UpgradeFailed.disposition(attempt.failures);
    let until = attempt.started_at.0 + after.retry.delay(attempt.failures)?;
    let message = format!(
        "helm and the operator were killed together, {} times in a row: look at why the operator's pod ended, such as out of memory",
        attempt.failures + 1
    );
    let hold = Hold::new(Reason::UpgradeFailed, message).until(until);
    is_awaited(until, now, LATEST_RETRY).then_some(Hold { stalled: after.stalled, ..hold })
}

/// The hold for hooks that helm runs with an installation only, and that were not through when it failed: an upgrade over it would
/// leave them out for ever, and be told Ready. It is not repeated as an installation either, since helm would begin with deleting
/// the hooks that are there, such as a claim or a Secret.
fn owed(observed: &Observed, attempt: Option<&Attempt>, Key { namespace, name }: &Key) -> Option<Hold> {
    let failed = |release: &&ReleaseView| matches!(release.phase, Phase::Failed | Phase::Pending);
    let release = observed.release.as_ref().filter(failed)?;
    let inventory = observed.inventory.as_ref().filter(|inventory| inventory.secret == release.secret_uid)?;
    // What was deployed before has had its installation, however an uninstall of it has ended.
    if inventory.install_hooks.is_empty() || upgrade::installed(&observed.recorded).is_some() {
        return None;
    }
    let why = attempt.and_then(|attempt| attempt.message.as_deref()).unwrap_or("it was cut off");
    let message = format!(
        "the installation, revision {} of release {name}, failed before {} was complete, and Helm does not run this with an upgrade: {why}; nothing is tried again before `helm uninstall {name} -n {namespace}`, after which the chart is installed again, hooks included",
        release.revision,
        inventory.install_hooks.join(", "),
    );
    Some(Hold { stalled: true, ..Hold::new(Reason::UpgradeFailed, message) })
}

#[cfg(test)]
mod tests;
