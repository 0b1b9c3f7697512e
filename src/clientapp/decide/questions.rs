//! Asks the questions, in order of precedence.

use super::{
    approval, database, dependencies, drift, helm_tests,
    plan::Step,
    question::{Answer, Case, Question},
    release::DueUpgrade,
    remediation::{self, Remediation},
    retained, secrets,
    upgrade::{self, Before},
    volumes, wait,
};
use crate::{
    clientapp::{
        helm_runs::HelmRun,
        hold::Hold,
        observed::types::{Busy, SecretView},
        spec::desired::SecretSource,
    },
    crd::{DEPLOYER, Drift, Reason, conditions::kind},
    platform::key::Key,
};

/// The database has not been looked at.
const DATABASE: &[&str] = &[kind::POSTGRES_READY];

/// All questions. Those about the release that is not as desired come before those about one that is; each asks first which it is.
pub(crate) const QUESTIONS: [Question; 23] = [
    Question::new("Is helm at work? Its end is awaited; a suspended app's helm is stopped.", helm_at_work),
    Question::new("Is the app suspended?", suspended).unjudged(DATABASE),
    Question::new("Does another ClientApp hold the hostname?", hostname).unjudged(DATABASE),
    Question::new("Is there data of an earlier ClientApp? It is adopted, or nothing is created.", adoption)
        .unjudged(DATABASE),
    Question::new("Is a volume with the app's data lost, or being deleted?", volume).unjudged(DATABASE),
    Question::new("Are the administrator's generated credentials lost?", lost_credentials).unjudged(DATABASE),
    Question::new("Is the account there that helm acts as? Missing parts are created.", account),
    Question::new("Is there a Secret for the administrator? A missing one is generated.", admin_secret)
        .unjudged(DATABASE),
    Question::new("Is there a Secret for Redis? A missing one is generated.", redis_secret).unjudged(DATABASE),
    Question::new("Is the database as desired, ready and reachable? It is applied.", database).repairs(),
    Question::new("Do Secrets of users have all keys?", given_secrets).repairs(),
    Question::new(
        "Were credentials or the account created in this pass? They are recorded before helm uses them.",
        new,
    ),
    Question::new("Are all values from other objects there?", values).repairs(),
    Question::new("Has the revision failed? It is rolled back, or not tried again.", remediation),
    Question::new("Is the release ours and unlocked, and no attempt awaited?", release),
    Question::new("Were objects of the release deleted or edited? They are put back.", drifted),
    Question::new("May helm act as its account?", account_of_upgrade),
    Question::new("Are all dependencies Ready?", awaited_dependencies).repairs(),
    Question::new("Is the chart here? It is fetched.", chart).repairs(),
    Question::new("Is the plan approved?", approved).repairs(),
    Question::new("Does the data permit this version, and is there a backup?", backed_up).repairs(),
    Question::new("Is the release as desired? helm upgrades it.", upgraded),
    Question::new(
        "Has the revision passed its tests? They are run. A revision that was rolled back to has passed them.",
        tests,
    ),
];

/// Waits for a running helm: one at a time works on a release, and its end triggers the next reconcile. Only a suspension does
/// not wait for it; a deletion is handled by the teardown.
fn helm_at_work(Case { desired, observed, .. }: &Case<'_>) -> Answer {
    let Some(Busy { digest, sentence, until }) = &observed.run.busy else { return Answer::go() };
    if desired.suspend {
        let message = "spec.suspend is true: helm is being stopped, and nothing else is changed until it is false";
        return Answer::hold(Hold::new(Reason::Suspended, message)).after([Step::CancelHelm]);
    }
    // The recorded status already says that helm runs; the watch shows its end late, or will.
    if until.is_some() {
        return Answer::go().ends().requeue_at(*until);
    }
    let is_outdated = digest.as_ref().is_some_and(|digest| *digest != desired.target().digest);
    let then = if is_outdated { "; the spec has changed since, and helm runs again after that" } else { "" };
    Answer::hold(Hold::new(Reason::Upgrading, format!("{sentence}{then}")))
}

fn suspended(Case { desired, .. }: &Case<'_>) -> Answer {
    let message = "spec.suspend is true: nothing is changed until it is false";
    desired.suspend.then(|| Hold::new(Reason::Suspended, message)).into()
}

fn hostname(Case { desired, observed, .. }: &Case<'_>) -> Answer {
    let hold = observed.prerequisites.hostname_holder.as_ref().map(|holder| {
        let message = format!(
            "hostname {} belongs to ClientApp {holder}: choose another, or delete that ClientApp, and this one takes over",
            desired.hostname
        );
        Hold::new(Reason::HostnameConflict, message)
    });
    hold.into()
}

fn adoption(Case { desired, observed, database, now, .. }: &Case<'_>) -> Answer {
    if observed.prerequisites.retained.is_empty() {
        return Answer::go();
    }
    match retained::adopt(desired, &observed.prerequisites.retained, database.hold.as_ref(), *now) {
        // The adopted objects decide what comes next.
        Ok(step) => Answer::steps([step]).ends(),
        Err(hold) => Answer::hold(hold),
    }
}

/// Holds, so that neither helm nor a repair restarts pods that still have a volume, or makes an empty one.
fn volume(Case { desired, observed, .. }: &Case<'_>) -> Answer {
    volumes::hold(desired, observed).into()
}

fn lost_credentials(Case { desired, observed, .. }: &Case<'_>) -> Answer {
    secrets::lost(desired, observed).into()
}

/// Creates the account before anything else: if the namespace rejects it, nothing is started.
fn account(Case { desired, observed, .. }: &Case<'_>) -> Answer {
    if !desired.account.is_deployer() {
        return Answer::go();
    }
    let again = observed.recorded.release.is_some() || observed.recorded.last_attempt.is_some();
    Answer::steps(
        observed.prerequisites.deployer.missing().into_iter().map(|part| Step::CreateDeployer { part, again }),
    )
}

fn admin_secret(Case { desired, observed, .. }: &Case<'_>) -> Answer {
    match secrets::generated(&desired.secrets.admin, &observed.prerequisites.admin_secret, Step::CreateAdminSecret) {
        Ok(step) => Answer::steps(step),
        Err(hold) => Answer::hold(hold),
    }
}

fn redis_secret(Case { desired, observed, .. }: &Case<'_>) -> Answer {
    let (source, view) = (SecretSource::Generated(desired.key.redis_secret()), &observed.prerequisites.redis_secret);
    let is_going = matches!(view, SecretView::NotOurs { is_being_deleted: true, .. });
    match secrets::generated(&source, view, Step::CreateRedisSecret) {
        Ok(step) => Answer::steps(step),
        Err(hold) if desired.secrets.redis.is_some() || is_going => Answer::hold(hold),
        // Without Redis, the Secret only shows how the app is deleted.
        Err(_) => Answer::go(),
    }
}

fn database(Case { desired, observed, database, .. }: &Case<'_>) -> Answer {
    let apply = database.apply.clone().map(Step::ApplyDatabase);
    let left = database::left(desired, observed, database.hold.is_none());
    Answer::from(database.hold.clone()).after(apply.into_iter().chain(left))
}

/// Checks users' Secrets after the database, which is created while a user adds what is missing.
fn given_secrets(Case { desired, observed, .. }: &Case<'_>) -> Answer {
    let redis = || secrets::given_for_redis(desired, &observed.prerequisites.redis_secret);
    secrets::given(desired, &observed.prerequisites.admin_secret).or_else(redis).into()
}

/// Stops here: new credentials must be recorded before helm uses them.
fn new(case: &Case<'_>) -> Answer {
    let ends = [account, admin_secret, redis_secret].iter().any(|ask| !ask(case).steps.is_empty());
    Answer { ends, ..Answer::go() }
}

fn values(case: &Case<'_>) -> Answer {
    let Some(hold) = &case.desired.values.awaits else { return Answer::go() };
    Answer::hold(if case.account_is_ready() { hold.clone() } else { deployer_taken(&case.desired.key) })
}

fn remediation(Case { desired, observed, now, .. }: &Case<'_>) -> Answer {
    let Remediation { step, hold, late_at } = remediation::remediate(desired, observed, *now);
    Answer::from(hold).after(step).requeue_at(late_at)
}

fn release(case: &Case<'_>) -> Answer {
    let stale_lock = case.release.upgrade().and_then(|upgrade| upgrade.unlock.clone());
    match wait::of_others(case).or_else(|| wait::hook(case)) {
        Some(hold) => Answer::hold(hold),
        None => Answer::from(wait::attempts(case)).after(stale_lock),
    }
}

/// Repairs drift unless an upgrade is due: helm recreates missing objects itself.
fn drifted(case: &Case<'_>) -> Answer {
    let Case { desired, observed, now, .. } = case;
    if case.release.upgrade().is_some() {
        return Answer::go();
    }
    let Some((repair, hold)) = drift::follows(desired, observed, *now) else { return Answer::go() };
    if desired.drift.policy == Drift::Repair && !case.account_is_ready() {
        return Answer::hold(deployer_taken(&desired.key));
    }
    Answer::hold(hold).after(repair)
}

fn account_of_upgrade(case: &Case<'_>) -> Answer {
    let is_taken = case.release.upgrade().is_some() && !case.account_is_ready();
    is_taken.then(|| deployer_taken(&case.desired.key)).into()
}

fn awaited_dependencies(Case { observed, release, now, .. }: &Case<'_>) -> Answer {
    release.upgrade().and_then(|_| dependencies::hold(&observed.prerequisites.dependencies, *now)).into()
}

fn chart(Case { desired, observed, config, release, .. }: &Case<'_>) -> Answer {
    if release.upgrade().is_none() || observed.prerequisites.chart.is_some() {
        return Answer::go();
    }
    let version = &desired.target().chart_version;
    let is_fetched = observed.run.state == HelmRun::FetchingChart(version.clone());
    let hold = Hold::new(Reason::FetchingChart, format!("fetching chart {} {version}", config.chart));
    Answer::hold(hold.begins()).after((!is_fetched).then_some(Step::FetchChart))
}

fn approved(case: &Case<'_>) -> Answer {
    let awaited = case.chart_of_upgrade().and_then(|chart| approval::awaited(case.desired, chart));
    awaited.map(|planned| approval::hold(case.desired, &planned)).into()
}

fn backed_up(case: &Case<'_>) -> Answer {
    let Case { desired, observed, now, .. } = case;
    match case.chart_of_upgrade().and_then(|chart| upgrade::before(desired, observed, chart, *now)) {
        Some(Before { back_up, hold }) => Answer::hold(hold).after(back_up.map(Step::BackUp)),
        None => Answer::go(),
    }
}

fn upgraded(Case { desired, observed, config, release, .. }: &Case<'_>) -> Answer {
    let (Some(DueUpgrade { revision, cause, .. }), Some(target)) = (release.upgrade(), &observed.prerequisites.chart)
    else {
        return Answer::go();
    };
    let (chart, version, name) = (&target.chart, &desired.target().chart_version, &desired.key.name);
    let mut message = format!("{chart} {version} is being installed as revision {revision} of release {name}");
    if !observed.run.has_slot {
        let most = config.max_concurrent;
        message += &format!(" when its turn comes: helm runs for at most {most} apps at a time");
    }
    let hold = Hold::new(Reason::Upgrading, message);
    Answer::hold(hold.begins()).after([Step::HelmUpgrade { revision: *revision, cause: cause.clone() }])
}

fn tests(Case { desired, observed, now, .. }: &Case<'_>) -> Answer {
    if let Some(hold) = remediation::rolled_back(desired) {
        return Answer::hold(hold);
    }
    match helm_tests::follows(desired, observed, remediation::retries_exhausted(desired, observed), *now) {
        Some((step, hold)) => Answer::hold(hold).after(step),
        None => Answer::go(),
    }
}

/// Returns the hold for another RoleBinding with the name of the deployer's.
pub(crate) fn deployer_taken(key: &Key) -> Hold {
    let namespace = &key.namespace;
    let message = format!(
        "RoleBinding {DEPLOYER} in namespace {namespace} is not the operator's and is not overwritten: delete it (`kubectl delete rolebinding {DEPLOYER} -n {namespace}`) to have it recreated, or set spec.serviceAccountName"
    );
    Hold::new(Reason::DeployerNotOurs, message)
}
