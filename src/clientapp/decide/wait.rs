//! Waits for what keeps helm from the release: other Helm clients, hooks, and earlier attempts.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use super::{plan::LATEST_RETRY, question::Case, release::ReleaseState};
use crate::{
    clientapp::{
        error::{Refusal, recorded_reason},
        hold::Hold,
        observed::{
            installed_chart, lock,
            release::{ReleasePhase, ReleaseView},
        },
        spec::deployer::{Deployer, RIGHTS_SETTLE},
    },
    crd::{Attempt, Reason, annotation, conditions::kind},
    platform::{clock::is_awaited, key::Key},
};

/// Returns the hold for another Helm client's release, or its lock.
pub(super) fn of_others(Case { desired, observed, release, .. }: &Case<'_>) -> Option<Hold> {
    let (name, namespace) = (&desired.key.name, &desired.key.namespace);
    match release {
        ReleaseState::Unmanaged => {
            let message = format!(
                "Helm release {name} in namespace {namespace} was not created by this operator: it is not taken over; uninstall it or rename the ClientApp"
            );
            Some(Hold::new(Reason::ReleaseNotOurs, message))
        }
        ReleaseState::Locked(until) => {
            let message = lock::held(observed.release.as_ref()?, name);
            Some(Hold::new(Reason::ExternalOperationInProgress, message).until(*until))
        }
        ReleaseState::Absent(_) | ReleaseState::StaleLock(_) | ReleaseState::OutOfSync(_) | ReleaseState::InSync => {
            None
        }
    }
}

/// Returns the wait for a Job that a dead helm process left running with its lock: the next helm run would delete it and start it
/// again.
pub(super) fn hook(Case { observed, config, release, now, .. }: &Case<'_>) -> Option<Hold> {
    const LOOK: SignedDuration = SignedDuration::from_secs(5);
    let ReleaseState::StaleLock(_) = release else { return None };
    let release = observed.release.as_ref()?;
    let until = release.created_at? + config.helm_deadline;
    let message = format!(
        "Job {}, a hook of the chart, is still running, without the helm process that started it for revision {}: the operator waits as long as helm would have",
        observed.objects.hook.as_ref()?,
        release.revision
    );
    (*now < until).then(|| Hold::new(Reason::ExternalOperationInProgress, message).until(until.min(*now + LOOK)))
}

/// Returns what an upgrade that is due waits for because of earlier attempts. A failed attempt is not repeated before its time,
/// however many events trigger a reconcile; a changed digest is tried at once, and so is what a user asks to repeat.
pub(super) fn attempts(case: &Case<'_>) -> Option<Hold> {
    case.release.upgrade()?;
    let Case { desired, observed, now, .. } = case;
    let is_repeated = |attempt: &&Attempt| observed.retry.as_ref() == Some(&annotation::retry_after(attempt));
    let attempt = observed.recorded.last_attempt.as_ref().filter(|attempt| !is_repeated(attempt));
    let deployer = desired.account.is_deployer().then_some(&observed.prerequisites.deployer);
    owed(case, attempt).or_else(|| {
        let same = attempt.filter(|attempt| attempt.digest == desired.target().digest)?;
        refused(same, &desired.data.without_volumes)
            .or_else(|| backoff(same, deployer, *now))
            .or_else(|| cut_off(same, observed.release.as_ref(), *now))
    })
}

/// Returns why the attempt is not repeated: the revision that helm would make has no place for a volume in use. Only the spec,
/// which changes the digest, or another confirmation by a user changes that.
fn refused(attempt: &Attempt, confirmed: &BTreeSet<String>) -> Option<Hold> {
    if !attempt.without_volumes.iter().eq(confirmed) {
        return None;
    }
    let reason = attempt.reason.as_deref().and_then(Reason::parse).filter(|reason| *reason == Reason::VolumeDropped)?;
    Some(Hold::new(reason, attempt.message.clone().unwrap_or_default()))
}

/// Returns the wait until a failed attempt is repeated.
fn backoff(attempt: &Attempt, deployer: Option<&Deployer>, now: Timestamp) -> Option<Hold> {
    let mut until = attempt.retry_at.as_ref()?.0;
    // A refusal from before the account existed, or before every API server knew it, says nothing about the account's rights.
    if let Some(settled) = deployer.and_then(Deployer::ready_since).map(|since| since + RIGHTS_SETTLE)
        && attempt.reason.as_deref().and_then(Reason::parse) == Some(Reason::AccessDenied)
        && attempt.started_at.0 < settled
    {
        until = until.min(settled);
    }
    if !is_awaited(until, now, LATEST_RETRY) {
        return None;
    }
    let (reason, stalled) = recorded_reason(attempt.reason.as_deref(), attempt.failures);
    let message = attempt.message.clone().unwrap_or_default();
    Some(Hold { stalled, condition: kind::RELEASED, ..Hold::new(reason, message).until(until) })
}

/// Returns the wait after an attempt that was killed together with its operator, and not for the first time: helm may be the
/// cause, for example by using too much memory.
fn cut_off(attempt: &Attempt, release: Option<&ReleaseView>, now: Timestamp) -> Option<Hold> {
    let left = release.is_some_and(ReleaseView::is_stale_lock);
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

/// Returns the hold for hooks that helm runs only with an installation, and that had not completed when it failed: an upgrade
/// would skip them for ever, and the app would be reported Ready. The installation is not repeated either, since helm would
/// first delete the existing hook objects, such as a claim or a Secret.
fn owed(Case { desired, observed, .. }: &Case<'_>, attempt: Option<&Attempt>) -> Option<Hold> {
    let Key { namespace, name } = &desired.key;
    let failed = |release: &&ReleaseView| matches!(release.phase, ReleasePhase::Failed | ReleasePhase::Pending);
    let release = observed.release.as_ref().filter(failed)?;
    let inventory = observed.objects.inventory.as_ref().filter(|inventory| inventory.secret == release.secret_uid)?;
    // A release that was deployed before has completed its installation, whatever an uninstall of it left.
    if inventory.install_hooks.is_empty() || installed_chart::installed(&observed.recorded).is_some() {
        return None;
    }
    let why = attempt.and_then(|attempt| attempt.message.as_deref()).unwrap_or("it was cut off");
    let message = format!(
        "revision {} of release {name}, an installation, failed before its hook {} was complete, which no upgrade repeats: {why}; `helm uninstall {name} -n {namespace}` lets the operator install it again",
        release.revision,
        inventory.install_hooks.join(", "),
    );
    Some(Hold { stalled: true, ..Hold::new(Reason::UpgradeFailed, message) })
}
