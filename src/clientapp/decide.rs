//! The stage `decide`, **pure**: from desired and observed state, the steps to take now, and what to wait for.
//!
//! The questions are in order of precedence; the first hold ends the plan.

use jiff::{SignedDuration, Timestamp};

use super::{
    approval, archives,
    build::secrets,
    dependencies,
    deployer::{Deployer, RIGHTS_SETTLE},
    desired::{Desired, SecretSource},
    drift,
    error::Refusal,
    gate::{Gate, gate},
    helm_runs::HelmRun,
    lock::{self, Lock},
    observed::{AtWork, Observed, Phase, ReleaseView, Retained, SecretView},
    owned,
    plan::{Because, Hold, LATEST_RETRY, Plan, SAFETY_NET, Step, few},
    pods,
    remedy::{self, Remedy},
    tls, trial,
    upgrade::{self, Before},
    volumes,
};
use crate::{
    config::Config,
    crd::{Attempt, ClientAppStatus, DEPLOYER, Drift, Reason, annotation, conditions::kind, label},
    destroy::permit::Kind,
    runtime::{clock::is_awaited, key::Key},
};

/// Without a valid spec nothing is done; but if the watch is late with the end of a helm run, the app is looked at again.
pub(crate) fn plan_of(desired: Option<&Desired>, observed: &Observed, config: &Config, now: Timestamp) -> Plan {
    match desired {
        Some(desired) => {
            let mut plan = decide(desired, observed, config, now);
            plan.steps.extend(archives::step(desired, observed, now));
            let retry = observed.files.refused.as_ref().map(|refused| refused.until).filter(|until| now < *until);
            let certificate = tls::next_look(desired, observed, now).filter(|_| observed.at_work.is_none());
            plan.look_again = plan.look_again.into_iter().chain(retry).chain(certificate).min();
            plan
        }
        None => Plan { look_again: observed.at_work.as_ref().and_then(|at_work| at_work.until), ..Plan::default() },
    }
}

pub(crate) fn decide(desired: &Desired, observed: &Observed, config: &Config, now: Timestamp) -> Plan {
    let mut plan = steps(desired, observed, config, now);
    plan.steps.extend(stuck_pods(desired, observed, &plan));
    let HelmRun::Testing(testing) = &observed.run else { return plan };
    // A test changes nothing, so nothing waits for its end.
    let stop = |reason, why| stopping(reason, format!("the tests are being stopped: {why}"));
    match () {
        () if desired.suspend => {
            stop(Reason::Suspended, "spec.suspend is true, and nothing else is changed until it is false")
        }
        () if testing.digest != trial::digest(desired) => stop(Reason::Testing, "the spec has changed"),
        () if plan.steps.iter().any(Step::begins_a_run) => stop(Reason::Testing, "helm has to run"),
        () => plan,
    }
}

/// helm is stopped, and nothing else is done before its end.
fn stopping(reason: Reason, message: impl Into<String>) -> Plan {
    Plan { steps: vec![Step::CancelHelm], ..Plan::default() }.hold(Hold::new(reason, message))
}

fn steps(desired: &Desired, observed: &Observed, config: &Config, now: Timestamp) -> Plan {
    // Without `..`: whoever adds a field has to say whether it matters for this order of steps.
    let Observed {
        hostname_holder,
        hook: _,
        admin_secret,
        redis_secret,
        database: _,
        deployer,
        retained,
        dependencies: _,
        backup: _,
        target: _,
        run: _,
        at_work,
        has_slot: _,
        has_test_slot: _,
        run_is_shown: _,
        release,
        workloads: _,
        stuck_pods: _,
        missing: _,
        look_again,
        last_ready_is_stored: _,
        repairs: _,
        claims: _,
        files: _,
        inventory: _,
        owned: _,
        certificate: _,
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
            "hostname {} belongs to ClientApp {holder}: choose another, or delete that ClientApp, and this one takes over",
            desired.hostname
        );
        return plan.hold(Hold::new(Reason::HostnameConflict, message));
    }

    let Gate { apply, hold: closed } = gate(desired, observed, now);
    if !retained.is_empty() {
        match adopt(desired, retained, closed.as_ref(), now) {
            // The adopted objects decide what comes next.
            Ok(step) => return Plan { steps: vec![step], ..Plan::default() },
            Err(hold) => return plan.hold(hold),
        }
    }

    // Neither helm nor a repair restarts the pods that still have it, nor makes an empty one.
    if let Some(hold) = volumes::hold(desired, observed) {
        return plan.hold(hold);
    }
    if let Some(hold) = admin_secret_lost(desired, admin_secret, recorded, release.as_ref()) {
        return plan.hold(hold);
    }
    // Before anything else is created: if the namespace rejects it, nothing is started.
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
        // Without Redis, the Secret only shows how the app is deleted.
        Err(_) => {}
    }
    plan.steps.extend(apply.map(Step::ApplyDatabase));
    // The Secrets after the database: it is created while the user adds what is missing.
    let incomplete = || given_secret(desired, admin_secret).or_else(|| given_redis_secret(desired, redis_secret));
    if let Some(hold) = closed.or_else(incomplete) {
        return repairing(plan.hold(hold), desired, observed, account_is_there, now);
    }
    // An attempt that a user asks to repeat does not delay anything.
    let repeated = |attempt: &&Attempt| retry.as_ref() == Some(&annotation::retry_after(attempt));
    let attempt = recorded.last_attempt.as_ref().filter(|attempt| !repeated(attempt));
    // What is created here is recorded as the app's own, or observed, before helm uses it.
    if plan.steps.iter().any(Step::makes_credentials) {
        return plan;
    }
    if let Some(hold) = &desired.awaits {
        let plan = plan.hold(if account_is_there { hold.clone() } else { deployer_taken(&desired.key) });
        return repairing(plan, desired, observed, account_is_there, now);
    }
    let Remedy { step, hold, late } = remedy::remedy(desired, observed, now);
    if let Some(hold) = hold {
        plan.steps.extend(step);
        return plan.hold(hold);
    }
    plan = release_steps(plan, desired, observed, attempt, now, config.helm_deadline);
    plan.look_again = look_at_pods(observed, now).into_iter().chain(*look_again).chain(late).min();
    // Not if helm runs: it recreates missing objects itself.
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
        Some(helm) => {
            let plan = before_helm(plan, helm, desired, observed, config, now);
            repairing(plan, desired, observed, account_is_there, now)
        }
        None if plan.hold.is_none() => match remedy::rolled_back(desired) {
            Some(hold) => plan.hold(hold),
            // It passed them before.
            None => match trial::follows(desired, observed, remedy::ends_tests(desired, observed), now) {
                Some((step, hold)) => {
                    plan.steps.extend(step);
                    plan.hold(hold)
                }
                None => plan,
            },
        },
        None => plan,
    }
}

/// While helm has to wait, perhaps for a user's approval, the revision that is deployed is kept as it is.
fn repairing(mut plan: Plan, desired: &Desired, observed: &Observed, account_is_there: bool, now: Timestamp) -> Plan {
    if account_is_there
        && !plan.runs_helm()
        && let Some((Some(repair), Hold { until, .. })) = drift::follows(desired, observed, now)
    {
        plan.steps.push(repair);
        plan.look_again = plan.look_again.into_iter().chain(until).min();
    }
    plan
}

/// Deletes pods of former revisions that their StatefulSets wait for in vain, unless helm changes the StatefulSets now, or a volume
/// with data is going or lost.
fn stuck_pods(desired: &Desired, observed: &Observed, plan: &Plan) -> Vec<Step> {
    let is_settled = observed.release.as_ref().is_some_and(|release| release.deployed().is_some());
    if desired.suspend || observed.at_work.is_some() || !is_settled || plan.runs_helm() {
        return Vec::new();
    }
    // A volume that is being deleted goes with the last pod that uses it.
    if volumes::hold(desired, observed).is_some() {
        return Vec::new();
    }
    let idle = observed.stuck_pods.iter().filter(|pod| pod.is_idle);
    idle.map(|pod| Step::DeleteStuckPod(pod.clone())).collect()
}

/// When to look at the pods of workloads that are not ready. Pods are not watched.
fn look_at_pods(observed: &Observed, now: Timestamp) -> Option<Timestamp> {
    (!observed.workloads_are_ready())
        .then(|| pods::next_look(pods::not_ready_since(&observed.recorded).unwrap_or(now), now))
}

/// One helm at a time works on a release: its end triggers the next reconcile. Only a suspension does not wait for it; a deletion
/// is handled by the teardown.
fn while_helm_runs(desired: &Desired, at_work: &AtWork, observed: &Observed, now: Timestamp) -> Plan {
    let AtWork { digest, sentence, until } = at_work;
    if desired.suspend {
        let message = "spec.suspend is true: helm is being stopped, and nothing else is changed until it is false";
        return stopping(Reason::Suspended, message);
    }
    let is_outdated = digest.as_ref().is_some_and(|digest| *digest != desired.digest);
    // The recorded status already says that helm runs; the watch shows its end late, or will.
    if let Some(until) = until {
        return Plan { look_again: Some(*until), ..Plan::default() };
    }
    let then = if is_outdated { "; the spec has changed since, and helm runs again after that" } else { "" };
    let plan = Plan { look_again: look_at_pods(observed, now), ..Plan::default() };
    plan.hold(Hold::new(Reason::Upgrading, format!("{sentence}{then}")))
}

/// Another RoleBinding has the name of the deployer's.
pub(crate) fn deployer_taken(key: &Key) -> Hold {
    let namespace = &key.namespace;
    let message = format!(
        "RoleBinding {DEPLOYER} in namespace {namespace} was changed or made by another client: it has to bind ClusterRole {DEPLOYER} to ServiceAccount {DEPLOYER} and to nothing else, and is not overwritten; `kubectl delete rolebinding {DEPLOYER} -n {namespace}`, and it is recreated, or name an account of your own in spec.serviceAccountName"
    );
    Hold::new(Reason::DeployerNotOurs, message)
}

/// Returns what a helm run needs first: its chart, and what the chart requires.
fn before_helm(
    mut plan: Plan,
    helm: Step,
    desired: &Desired,
    observed: &Observed,
    config: &Config,
    now: Timestamp,
) -> Plan {
    let Desired { key, chart_version: version, .. } = desired;
    if let Some(hold) = dependencies::hold(&observed.dependencies, now) {
        return plan.hold(hold);
    }
    let Some(target) = &observed.target else {
        if observed.run != HelmRun::FetchingChart(version.clone()) {
            plan.steps.push(Step::FetchChart);
        }
        let message = format!("fetching chart {} {version}", config.chart);
        return plan.hold(Hold::new(Reason::FetchingChart, message));
    };
    if let Some(planned) = approval::awaited(desired, target) {
        return plan.hold(approval::hold(desired, &planned));
    }
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
        false => {
            format!("{begins} when its turn comes: helm runs for at most {} apps at a time", config.max_concurrent)
        }
    };
    plan.hold(Hold::new(Reason::Upgrading, message))
}

/// Takes over retained data, if the user asks for it and nothing prevents it.
fn adopt(desired: &Desired, retained: &[Retained], closed: Option<&Hold>, now: Timestamp) -> Result<Step, Hold> {
    // Volumes are not watched, so look again.
    let hold = |message: String| Hold::new(Reason::DataRetained, message).until(now + SAFETY_NET);
    let left =
        format!("an earlier ClientApp {}, or a database of its name, has left {}", desired.key.name, summary(retained));
    if !desired.adopt {
        return Err(hold(format!(
            "{left}: nothing is created while that exists; to continue with these data, set spec.postgres.adopt to true; otherwise rename this ClientApp, or delete what `kubectl get pvc,secret -n {} -l {}={}` and similar commands show",
            desired.key.namespace,
            label::RETAINED_FROM,
            desired.key.name,
        )));
    }
    let wanted = desired.database_object().map(|object| object.provider.kind());
    let other = retained.iter().find(|left| left.kind.is_database() && Some(left.kind) != wanted);
    if let Some(Retained { kind, name, .. }) = other {
        return Err(hold(format!(
            "{left}: {} {name} can only be adopted by a ClientApp with another spec.postgres.provider or spec.postgres.enabled",
            kind.as_str()
        )));
    }
    match closed.filter(|hold| hold.stalled) {
        Some(hold) => Err(hold.clone()),
        None => Ok(Step::Adopt(retained.to_vec())),
    }
}

/// Names the database and one volume, and counts the rest.
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

/// The app's data know the generated administrator credentials once they are in use, so no new ones are generated.
fn admin_secret_lost(
    desired: &Desired,
    view: &SecretView,
    recorded: &ClientAppStatus,
    release: Option<&ReleaseView>,
) -> Option<Hold> {
    let SecretSource::Generated(name) = &desired.admin else { return None };
    (*view == SecretView::Absent && owned::is_in_use(name, recorded, release)).then(|| {
        let message = format!(
            "Secret {name} is gone, and the app knows only the administrator password that was in it: nothing is changed until it is back; restore it, or recreate it with the app's present credentials, or with new ones set by the app's own command: `kubectl create secret generic {name} -n {} --from-literal={}=… --from-literal={}=…`",
            desired.key.namespace,
            secrets::ADMIN_USERNAME,
            secrets::ADMIN_PASSWORD,
        );
        Hold::new(Reason::AdminSecretLost, message)
    })
}

/// Create a generated Secret that is absent. Wait for one that is still being deleted with its former owner: if the app used it
/// now, it would vanish while in use.
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

/// The Secret with the administrator's credentials, and what else the chart reads of it: the one that the spec names, one that a user
/// created under the generated name, or the generated one.
fn given_secret(Desired { admin, more_admin_keys, .. }: &Desired, view: &SecretView) -> Option<Hold> {
    let (name, named) = match (admin, view) {
        (SecretSource::Given(name), _) => (name, "named in spec.adminSecret"),
        (SecretSource::Generated(name), SecretView::Own { .. }) => (name, "which this operator generated"),
        (SecretSource::Generated(name), _) => (name, "which this operator did not create"),
    };
    let of_administrator: &[&str] = match view {
        SecretView::Own { .. } => &[],
        _ => &[secrets::ADMIN_USERNAME, secrets::ADMIN_PASSWORD],
    };
    let keys = [of_administrator, more_admin_keys.as_slice()].concat();
    let (reason, problem) = match (view, admin) {
        (SecretView::Absent, SecretSource::Given(_)) => (Reason::AdminSecretMissing, "does not exist".to_owned()),
        _ => (Reason::AdminSecretKeyMissing, view.lacks(&keys)?),
    };
    let or = match admin {
        SecretSource::Generated(_) if more_admin_keys.contains(&secrets::SMTP[0]) => {
            ", or set nextcloud.mail.smtp.host, name and password in the values"
        }
        _ => "",
    };
    let message = format!("Secret {name}, {named}, {problem}: it needs the keys {}{or}", keys.join(" and "));
    Some(Hold::new(reason, message))
}

/// A Secret that a user created in place of the generated one for Redis.
fn given_redis_secret(desired: &Desired, view: &SecretView) -> Option<Hold> {
    let name = desired.redis_secret.as_ref().filter(|_| !matches!(view, SecretView::Own { .. }))?;
    let problem = view.lacks(&[secrets::REDIS_PASSWORD])?;
    let message = format!(
        "Secret {name}, which this operator did not create, {problem}: complete it, or delete it to have one generated"
    );
    Some(Hold::new(Reason::RedisSecretKeyMissing, message))
}

/// Decides by the state of the release.
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
    // A failed attempt is not repeated before its time, however many events trigger a reconcile; a changed digest is tried at
    // once.
    let same = attempt.filter(|attempt| attempt.digest == desired.digest);
    let deployer = desired.account.is_deployer().then_some(&observed.deployer);
    let waits = owed(observed, attempt, &desired.key).or_else(|| {
        same.and_then(|attempt| {
            refused(attempt)
                .or_else(|| backoff(attempt, deployer, now))
                .or_else(|| cut_off(attempt, observed.release.as_ref(), now))
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
            "Helm release {name} in namespace {} was not created by this operator: it is not taken over; uninstall it or rename the ClientApp",
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
                    let (secret, uid) = (secret.clone(), release.secret_uid.clone());
                    upgrade(Some(Step::UnlockRelease { secret, uid, revision: *revision }), next, None)
                }),
            }
        }
    };
    Plan { hold, ..plan }
}

/// Returns why the attempt is not repeated: the revision that helm would make has no place for a volume in use. Only the spec, or a user's
/// confirmation, changes that, and both change the digest.
fn refused(attempt: &Attempt) -> Option<Hold> {
    let reason = attempt.reason.as_deref().and_then(Reason::parse).filter(|reason| *reason == Reason::VolumeDropped)?;
    Some(Hold::new(reason, attempt.message.clone().unwrap_or_default()))
}

fn backoff(attempt: &Attempt, deployer: Option<&Deployer>, now: Timestamp) -> Option<Hold> {
    let mut until = attempt.retry_at.as_ref()?.0;
    // A refusal from before the account existed, or before every API server knew it, says nothing about the account's rights.
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

/// The wait for a Job that a dead helm process left running with its lock: the next helm run would delete it and start it again.
fn hook(job: Option<&String>, release: &ReleaseView, helm_deadline: SignedDuration, now: Timestamp) -> Option<Hold> {
    const LOOK: SignedDuration = SignedDuration::from_secs(5);
    let until = release.written? + helm_deadline;
    let message = format!(
        "Job {}, a hook of the chart, is still running, and the helm process that started it for revision {} is gone: the operator waits for its end as long as helm would have",
        job?, release.revision
    );
    (now < until).then(|| Hold::new(Reason::ExternalOperationInProgress, message).until(until.min(now + LOOK)))
}

/// The wait after an attempt that was killed together with its operator, and not for the first time: helm may be the cause, for
/// example by using too much memory.
fn cut_off(attempt: &Attempt, release: Option<&ReleaseView>, now: Timestamp) -> Option<Hold> {
    let left = release.is_some_and(ReleaseView::is_left_locked);
    if !left || attempt.retry_at.is_some() || attempt.failures == 0 {
        return None;
    }
    let after = Refusal::UpgradeFailed.disposition(attempt.failures);
    let until = attempt.started_at.0 + after.retry.delay(attempt.failures)?;
    let message = format!(
        "helm and the operator were killed together, {} times in a row: find out why the operator's pod ended, for example for lack of memory",
        attempt.failures + 1
    );
    let hold = Hold::new(Reason::UpgradeFailed, message).until(until);
    is_awaited(until, now, LATEST_RETRY).then_some(Hold { stalled: after.stalled, ..hold })
}

/// The hold for hooks that helm runs only with an installation, and that had not completed when it failed: an upgrade would skip
/// them for ever, and the app would be reported Ready. The installation is not repeated either, since helm would first delete the
/// existing hook objects, such as a claim or a Secret.
fn owed(observed: &Observed, attempt: Option<&Attempt>, Key { namespace, name }: &Key) -> Option<Hold> {
    let failed = |release: &&ReleaseView| matches!(release.phase, Phase::Failed | Phase::Pending);
    let release = observed.release.as_ref().filter(failed)?;
    let inventory = observed.inventory.as_ref().filter(|inventory| inventory.secret == release.secret_uid)?;
    // A release that was deployed before has completed its installation, whatever an uninstall of it left.
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
