//! `spec.approval`: what helm installs, and whether a user has approved it. **Pure.**
//!
//! What is approved is a digest of everything that decides what helm does: the chart's archive, its version, the values, the
//! credentials, and the account that helm acts as. So what runs is what was approved; whatever changes afterwards is another plan.

use crate::{
    clientapp::{
        hold::Hold,
        observed::types::CachedChart,
        spec::{desired::Desired, names::digest},
    },
    crd::{Approval, Planned, Reason},
};

/// Returns what waits for approval, if it is not approved; a rollback needs no approval.
pub(crate) fn awaited(desired: &Desired, target: &CachedChart) -> Option<Planned> {
    if desired.upgrade.approval == Approval::Automatic || desired.rolled_back().is_some() {
        return None;
    }
    let planned = planned(desired, target);
    (desired.upgrade.approved.as_ref() != Some(&planned.digest)).then_some(planned)
}

/// Returns the plan for the desired state with this chart.
pub(crate) fn planned(desired: &Desired, target: &CachedChart) -> Planned {
    let digest = digest(&["plan", &desired.target().digest, &target.digest, &desired.account.to_string()]);
    Planned { digest, chart_version: desired.target().chart_version.to_string() }
}

/// Returns the hold of an app that waits for approval.
pub(crate) fn hold(desired: &Desired, planned: &Planned) -> Hold {
    let key = &desired.key;
    let overtaken = desired.upgrade.approved.as_ref().map_or("", |_| "; what was approved before is another plan");
    let message = format!(
        "plan {} of chart version {} waits for approval{overtaken}: `kubectl clientapp plan {} -n {}` shows what it changes, and `kubectl clientapp approve {} {} -n {}` lets helm run",
        planned.digest, planned.chart_version, key.name, key.namespace, key.name, planned.digest, key.namespace
    );
    Hold::new(Reason::AwaitingApproval, message)
}
