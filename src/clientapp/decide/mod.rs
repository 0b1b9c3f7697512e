//! The stage `decide`, **pure**: from desired and observed state, the steps to take now, and what to wait for.
//!
//! [`QUESTIONS`] are asked in order; the first hold ends the plan.

pub(crate) mod approval;
mod database;
pub(crate) mod database_backups;
mod dependencies;
mod drift;
pub(crate) mod file_backup;
pub(crate) mod helm_tests;
pub(crate) mod plan;
mod question;
mod questions;
mod release;
pub(crate) mod remediation;
mod retained;
mod secrets;
pub(crate) mod tls;
pub(crate) mod upgrade;
mod volumes;
mod wait;

use jiff::Timestamp;

use self::{
    database::readiness,
    plan::{Plan, Step},
};
use super::{helm_runs::HelmRun, hold::Hold, observed::types::Observed, spec::desired::Desired};
use crate::{config::Config, crd::Reason, platform::schedule::look_at};
use question::{Answer, Case, Question};
pub(crate) use questions::{QUESTIONS, deployer_taken};

/// Returns the plan. Without a valid spec nothing is done; but if the watch is late with the end of a helm run, the app is
/// reconciled again.
pub(crate) fn plan_of(desired: Option<&Desired>, observed: &Observed, config: &Config, now: Timestamp) -> Plan {
    match desired {
        Some(desired) => {
            let mut plan = decide(desired, observed, config, now);
            // First: another step that fails must not hold them up.
            let archives = file_backup::summary(desired, observed, now);
            plan.steps.splice(0..0, file_backup::steps(desired, observed, archives.as_ref(), now));
            let certificate = tls::requeue_at(desired, observed, now).filter(|_| observed.run.busy.is_none());
            let times = file_backup::times(observed, archives.as_ref());
            plan.also_requeue_at(look_at(times.chain(database_backups::overdue_at(observed, now)), now));
            plan.also_requeue_at(certificate);
            plan
        }
        None => {
            let until = observed.run.busy.as_ref().and_then(|at_work| at_work.until);
            let mut plan = Plan { requeue_at: until, ..Plan::default() };
            plan.also_requeue_at(look_at(observed.recorded.files.as_ref().and_then(file_backup::late_at), now));
            plan
        }
    }
}

pub(crate) fn decide(desired: &Desired, observed: &Observed, config: &Config, now: Timestamp) -> Plan {
    let case = Case {
        desired,
        observed,
        config,
        now,
        database: readiness(desired, observed, now),
        release: release::state(desired, observed, now),
    };
    let mut plan = answered(&case);
    let is_about_to_end = observed.run.busy.as_ref().is_some_and(|busy| busy.until.is_some());
    if !desired.suspend && !is_about_to_end {
        // Not watched, whatever the plan waits for.
        plan.also_requeue_at(observed.requeue_at);
        plan.also_requeue_at(release::next_pod_check(observed, now));
    }
    plan.steps.extend(stuck_pods(&case, &plan));
    while_testing(&case, plan)
}

/// Asks the questions until one ends the plan.
fn answered(case: &Case<'_>) -> Plan {
    let mut plan = Plan::default();
    for Question { text: _, ask, unjudged, repairs } in &QUESTIONS {
        let Answer { steps, hold, ends, requeue_at } = ask(case);
        plan.steps.extend(steps);
        plan.also_requeue_at(requeue_at);
        if let Some(hold) = hold {
            plan.hold = Some(Hold { unjudged, ..hold });
            return if *repairs { repairing(case, plan) } else { plan };
        }
        if ends {
            break;
        }
    }
    plan
}

/// Adds repairs of the deployed revision while helm has to wait, perhaps for a user's approval.
fn repairing(case: &Case<'_>, mut plan: Plan) -> Plan {
    if case.account_is_ready()
        && !plan.runs_helm()
        && let Some((Some(repair), Hold { until, .. })) = drift::follows(case.desired, case.observed, case.now)
    {
        plan.steps.push(repair);
        plan.also_requeue_at(until);
    }
    plan
}

/// Deletes pods of former revisions that their StatefulSets wait for in vain, unless helm changes the StatefulSets now, or a volume
/// with data is going or lost.
fn stuck_pods(Case { desired, observed, .. }: &Case<'_>, plan: &Plan) -> Vec<Step> {
    let is_settled = observed.release.as_ref().is_some_and(|release| release.deployed().is_some());
    if desired.suspend || observed.run.busy.is_some() || !is_settled || plan.runs_helm() {
        return Vec::new();
    }
    // A volume that is being deleted goes with the last pod that uses it.
    if volumes::hold(desired, observed).is_some() {
        return Vec::new();
    }
    let idle = observed.objects.stuck_pods.iter().filter(|pod| pod.is_idle);
    idle.map(|pod| Step::DeleteStuckPod(pod.clone())).collect()
}

/// Stops a test whose revision is not the one to test any more; a test changes nothing, so nothing waits for its end.
fn while_testing(Case { desired, observed, .. }: &Case<'_>, plan: Plan) -> Plan {
    let HelmRun::Testing(testing) = &observed.run.state else { return plan };
    let stop = |reason, why| {
        let hold = Hold::new(reason, format!("the tests are being stopped: {why}"));
        Plan { steps: vec![Step::CancelHelm], hold: Some(hold), ..Plan::default() }
    };
    match () {
        () if desired.suspend => {
            stop(Reason::Suspended, "spec.suspend is true, and nothing else is changed until it is false")
        }
        () if testing.digest != helm_tests::digest(desired) => stop(Reason::Testing, "the spec has changed"),
        () if plan.steps.iter().any(Step::begins_a_run) => stop(Reason::Testing, "helm has to run"),
        () => plan,
    }
}

#[cfg(test)]
mod tests;
