//! `spec.test`: each revision is tested with `helm test` once its workloads are ready, and Ready waits for that. **Pure.**

use jiff::{SignedDuration, Timestamp};

use super::plan::{LATEST_RETRY, Step};
use crate::{
    clientapp::{
        helm_runs::HelmRun,
        hold::Hold,
        observed::{release::ReleaseView, types::Observed},
        spec::{desired::Desired, names},
    },
    crd::{
        Reason, Tested,
        conditions::{State, Verdict, kind},
    },
    platform::clock::is_awaited,
};

/// Returns what is tested, and how: tests of another digest are outdated.
pub(crate) fn digest(desired: &Desired) -> String {
    names::digest(&["test", &desired.target().digest, &format!("{:?}", desired.upgrade.test)])
}

/// Returns what follows once the release is as desired: it is tested, or the last tests hold up Ready. `ends` says why failed tests are not
/// repeated.
pub(crate) fn follows(
    desired: &Desired,
    observed: &Observed,
    ends: Option<String>,
    now: Timestamp,
) -> Option<(Option<Step>, Hold)> {
    let release = observed.release.as_ref().filter(|_| desired.upgrade.test.is_some())?;
    let revision = release.revision;
    if let HelmRun::Testing(testing) = &observed.run.state {
        return Some((None, Hold::new(Reason::Testing, testing.sentence.clone())));
    }
    match observed.tested() {
        Some(tested) if tested.passed => return None,
        Some(tested) => {
            let hold = Hold::new(Reason::TestFailed, sentence(tested));
            if let Some(ends) = ends {
                return Some((None, Hold { stalled: true, message: format!("{}; {ends}", hold.message), ..hold }));
            }
            let asked = observed.asks_for(tested);
            let until =
                tested.retry_at.as_ref().map(|at| at.0).filter(|at| !asked && is_awaited(*at, now, LATEST_RETRY));
            if until.is_some() {
                return Some((None, hold.until(until)));
            }
        }
        None => {}
    }
    if !observed.workloads_are_ready() {
        return None;
    }
    let name = &desired.key.name;
    let message = match observed.run.has_test_slot {
        true => format!("revision {revision} of release {name} is being tested"),
        false => format!("revision {revision} of release {name} is tested when its turn comes"),
    };
    Some((Some(Step::Test), Hold::new(Reason::Testing, message)))
}

/// For how long an app has waited for its tests: since the revision exists, or its tests are due again.
pub(crate) fn queued_for(observed: &Observed, now: Timestamp) -> SignedDuration {
    let due = observed.tested().and_then(|tested| tested.retry_at.as_ref().or(tested.ended_at.as_ref())).map(|at| at.0);
    let written = observed.release.as_ref().and_then(|release| release.created_at);
    now.duration_since(due.max(written).unwrap_or(now))
}

/// The condition; `None`: nothing is tested.
pub(crate) fn verdict(desired: &Desired, observed: &Observed, hold: Option<&Hold>) -> Option<Verdict> {
    // A rollback target has already passed its tests.
    desired.upgrade.test.filter(|_| desired.rolled_back().is_none())?;
    if let Some(hold) = hold.filter(|hold| hold.condition == kind::TESTED) {
        return Some(Verdict { state: State::False, reason: hold.reason.into(), message: hold.message.clone() });
    }
    Some(match (observed.deployed_as(desired), observed.tested()) {
        (Some(_), Some(tested)) if tested.passed => Verdict::yes(Reason::TestsPassed, sentence(tested)),
        (Some(_), Some(tested)) => Verdict::no(Reason::TestFailed, sentence(tested)),
        (Some(ReleaseView { revision, .. }), None) => {
            Verdict::no(Reason::Testing, format!("revision {revision} is tested once its workloads are ready"))
        }
        (None, _) => Verdict::no(Reason::Testing, "the next revision is tested once its workloads are ready"),
    })
}

fn sentence(tested: &Tested) -> String {
    format!("revision {}: {}", tested.revision, tested.message)
}

#[cfg(test)]
mod tests;
