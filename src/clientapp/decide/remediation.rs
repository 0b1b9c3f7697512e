//! Decides what follows when a revision fails, or is not ready in time: `spec.upgrade.onFailure`. **Pure.**
//!
//! After a rollback the app is reconciled to the revision that it went back to, until its spec changes or a user asks for another
//! attempt. It is an upgrade to that revision's chart and values, so that gates, locks and stamps are those of every other upgrade.

use jiff::Timestamp;

use super::plan::Step;
use crate::{
    clientapp::{
        hold::Hold,
        observed::{
            pods,
            release::{ReleasePhase, ReleaseView, is_stored, release_view},
            types::Observed,
        },
        spec::desired::{Desired, Intent, ReleaseTarget},
    },
    crd::{
        Attempt, ClientAppStatus, OnFailure, ReadyRevision, Reason, RolledBack, Tested, annotation,
        conditions::{find, kind},
    },
    platform::key::Key,
    secrets::RevisionMeta,
};

/// Holds what the spec asks for after a failure.
#[derive(Debug, Default)]
pub(crate) struct Remediation {
    /// To go back to another revision.
    pub step: Option<Step>,
    /// With it, nothing else is decided about the release.
    pub hold: Option<Hold>,
    /// When a revision that is not ready yet is late.
    pub late_at: Option<Timestamp>,
}

pub(crate) fn remediate(desired: &Desired, observed: &Observed, now: Timestamp) -> Remediation {
    let (key, policy) = (&desired.key, desired.upgrade.on_failure);
    let none = Remediation::default();
    if desired.rolled_back().is_some() || policy == OnFailure::Retry {
        return none;
    }
    let Some((release, failure)) = failure(desired, observed, now) else { return none };
    let problem = match &failure {
        Failure::Late(until) if now < *until => return Remediation { late_at: Some(*until), ..none },
        Failure::Late(_) => format!("it was not ready within {:#}", desired.upgrade.timeout),
        Failure::Attempts(message) | Failure::Tests(message) => (*message).to_owned(),
    };
    let failed = format!("revision {} of release {} has failed: {problem}", release.revision, key.name);
    if policy == OnFailure::Rollback
        && let Ok(to) = rollback_target(desired, observed)
    {
        let ReadyRevision { revision, chart_version, .. } = to;
        let message = format!(
            "{failed}; rolled back to what revision {revision} was, with chart version {chart_version}, the last that was Ready: {}",
            how_to_retry(key)
        );
        let hold = Hold::new(Reason::RollingBack, format!("{failed}; rolling back to revision {revision}"));
        let step = Step::RollBack(RolledBack { digest: desired.target().digest.clone(), message, to: to.clone() });
        // The next pass begins with what this one records.
        return Remediation { step: Some(step), hold: Some(hold.until(now)), late_at: None };
    }
    match (failure, why_kept(desired, observed)) {
        (Failure::Attempts(_), Some(ends)) => {
            let stopped = Hold::new(Reason::UpgradeFailed, format!("{failed}; {ends}"));
            Remediation { hold: Some(Hold { stalled: true, ..stopped }), ..none }
        }
        // It may still become ready, and serves meanwhile.
        _ => none,
    }
}

/// Returns why the release stays as it is after a failure, and how it goes on; `None`: it is tried again, or rolled back.
fn why_kept(desired: &Desired, observed: &Observed) -> Option<String> {
    let why = match (desired.upgrade.on_failure, rollback_target(desired, observed)) {
        (OnFailure::Retry, _) | (OnFailure::Rollback, Ok(_) | Err(None)) => return None,
        (OnFailure::Rollback, Err(Some(why))) => format!("it is not rolled back, since {why}"),
        (OnFailure::Stop, _) => "nothing is tried again, since spec.upgrade.onFailure is Stop".to_owned(),
    };
    Some(format!("{why}: {}", how_to_retry(&desired.key)))
}

fn how_to_retry(key: &Key) -> String {
    format!("change the spec, or `kubectl clientapp retry {} -n {}`", key.name, key.namespace)
}

/// Returns why failed tests are not repeated.
pub(crate) fn retries_exhausted(desired: &Desired, observed: &Observed) -> Option<String> {
    failed_tests(desired, observed).and_then(|_| why_kept(desired, observed))
}

/// Returns the tests that have failed more often than the spec allows, unless a user asks for another run.
fn failed_tests<'a>(desired: &Desired, observed: &'a Observed) -> Option<&'a Tested> {
    observed.tested().filter(|tested| {
        let is_failed = desired.upgrade.test.is_some() && !tested.passed && !observed.asks_for(tested);
        is_failed && tested.failures > desired.upgrade.retries
    })
}

pub(crate) fn rolled_back(desired: &Desired) -> Option<Hold> {
    desired.rolled_back().map(|back| Hold::new(Reason::RolledBack, back.message.clone()))
}

enum Failure<'a> {
    /// helm failed more often than the spec allows; its last message.
    Attempts(&'a str),
    /// So did its tests.
    Tests(&'a str),
    /// It is deployed, was never ready, and has until then.
    Late(Timestamp),
}

/// Returns the revision that has failed, or may be about to, and how.
fn failure<'a>(desired: &Desired, observed: &'a Observed, now: Timestamp) -> Option<(&'a ReleaseView, Failure<'a>)> {
    let Observed { release, recorded, retry, .. } = observed;
    let release = release.as_ref()?;
    if *release.managed_digest.as_ref()? != desired.target().digest {
        return None;
    }
    match release.phase {
        ReleasePhase::Failed => {
            let attempt = desired.attempt(recorded)?;
            let asked = retry.as_ref() == Some(&annotation::retry_after(attempt));
            // An attempt without a message has begun, or waits for its turn. What kept helm from running says nothing about the
            // revision.
            let reason = attempt.reason.as_deref().and_then(Reason::parse);
            let ran = attempt.message.is_some()
                && !matches!(
                    reason,
                    Some(
                        Reason::ChartUnavailable
                            | Reason::ChartDigestChanged
                            | Reason::ChartSignatureInvalid
                            | Reason::HelmUnavailable
                    )
                );
            (!asked && ran && attempt.failures > desired.upgrade.retries)
                .then_some((release, Failure::Attempts(attempt.message.as_deref().unwrap_or_default())))
        }
        ReleasePhase::Deployed if desired.upgrade.on_failure == OnFailure::Rollback => {
            if let Some(tested) = failed_tests(desired, observed) {
                return Some((release, Failure::Tests(&tested.message)));
            }
            let was_ready = recorded.last_ready.as_ref().is_some_and(|ready| ready.digest == desired.target().digest);
            (!was_ready && !observed.workloads_are_ready())
                .then(|| (release, Failure::Late(timeout_start(release, recorded, now) + desired.upgrade.timeout)))
        }
        _ => None,
    }
}

/// Returns since when a deployed revision could have become ready: not while the database was away, or while nothing was on record.
fn timeout_start(release: &ReleaseView, recorded: &ClientAppStatus, now: Timestamp) -> Timestamp {
    let postgres = find(&recorded.conditions, kind::POSTGRES_READY).filter(|postgres| postgres.status == "True");
    let parts = [
        Some(pods::not_ready_since(recorded).unwrap_or(now)),
        release.created_at,
        recorded.last_attempt.as_ref().map(|attempt| attempt.started_at.0),
        postgres.map(|postgres| postgres.last_transition_time.0),
    ];
    // A clock that was ahead must not delay it for ever.
    parts.into_iter().flatten().max().unwrap_or(now).min(now)
}

/// Returns the revision to go back to, or why not to it; `None`: there is none, and an installation is tried again. An older
/// app does not understand data that a newer one has migrated, and the newer one may be migrating them right now.
fn rollback_target<'a>(desired: &Desired, observed: &'a Observed) -> Result<&'a ReadyRevision, Option<String>> {
    let recorded = &observed.recorded;
    // What failed may be what was ready before, over another client's change.
    let ready = recorded.last_ready.as_ref().filter(|ready| ready.digest != desired.target().digest).ok_or(None)?;
    if !observed.last_ready_is_stored {
        return Err(Some(format!(
            "revision {}, the last that was Ready, is not in Helm's history any more",
            ready.revision
        )));
    }
    let attempt = desired.attempt(recorded);
    let chart = attempt.and_then(|attempt| attempt.chart.as_ref());
    let same = chart.is_some_and(|chart| chart.app_version.is_some() && chart.app_version == ready.app_version);
    let app = |version: Option<&String>| version.cloned().unwrap_or_else(|| "of an unknown version".to_owned());
    if same {
        return Ok(ready);
    }
    Err(Some(format!(
        "revision {} has app {}, and the data may be migrated to {} by now",
        ready.revision,
        app(ready.app_version.as_ref()),
        app(chart.and_then(|chart| chart.app_version.as_ref()))
    )))
}

/// Returns what the app is reconciled to: the spec, or the revision that it was rolled back to, as long as that is in Helm's
/// history.
pub(crate) fn in_effect(
    desired: Desired,
    retry: Option<&String>,
    recorded: &ClientAppStatus,
    revisions: &[(String, RevisionMeta)],
) -> Desired {
    let holds = |back: &RolledBack| {
        // A request for the revision that failed may have been made before it was rolled back.
        let of_rollback = |last: &&Attempt| last.failures > 0 || last.digest == back.to.digest;
        let last = recorded.last_attempt.as_ref().filter(of_rollback);
        let asked = last.is_some_and(|last| retry == Some(&annotation::retry_after(last)));
        desired.upgrade.on_failure == OnFailure::Rollback && back.digest == desired.target().digest && !asked
    };
    let Some(mut back) = recorded.rolled_back.clone().filter(holds) else { return desired };
    // The revision that takes its place has its values, too.
    if let Some(newest) = release_view(revisions).filter(|release| release.is_deployed_as(&back.to.digest)) {
        back.to.revision = newest.revision;
    }
    match back.to.chart_version.parse() {
        Ok(chart_version) if is_stored(&back.to, revisions) => {
            let to = ReleaseTarget { chart_version, digest: back.to.digest.clone() };
            Desired { intent: Intent::RolledBack { to, record: back }, ..desired }
        }
        _ => desired,
    }
}

/// Records it in a status: the revision that is ready, or that takes the place of the one that the release was rolled back to.
pub(crate) fn record(status: &mut ClientAppStatus, desired: &Desired, release: Option<&ReleaseView>) {
    let Some(release) = release.filter(|release| release.is_deployed_as(&desired.target().digest)) else { return };
    if let (Some(_), Some(back)) = (desired.rolled_back(), &mut status.rolled_back) {
        // Helm may soon drop the older revision from its history.
        back.to.revision = release.revision;
        status.last_ready = Some(back.to.clone());
    } else if find(&status.conditions, kind::READY).is_some_and(|ready| ready.status == "True") {
        status.last_ready = Some(ReadyRevision {
            revision: release.revision,
            digest: desired.target().digest.clone(),
            chart_version: desired.target().chart_version.to_string(),
            app_version: status.release.as_ref().and_then(|release| release.app_version.clone()),
        });
    }
}
