//! Stage 3, **pure**: from what shall exist and what does, the steps to take now, and what to wait for.
//!
//! Reads as a list of questions in order of precedence; the first hold ends the plan.

use jiff::{SignedDuration, Timestamp};

use super::{
    build::secrets,
    desired::{Desired, SecretSource},
    gate::{Gate, gate},
    plan::{Because, Hold, Plan, SAFETY_NET, Step},
    upgrade::{self, Before},
    world::{Fate, Phase, ReleaseView, Retained, RetainedKind, SecretView, Stamp, World},
};
use crate::{
    controller::key::Key,
    crd::{Attempt, annotation, conditions::kind, label},
};

/// After this time a release that shows no workloads is believed to have none. Helm's times are whole seconds.
pub const UNSEEN_FOR: SignedDuration = SignedDuration::from_secs(5);

/// Decides. `helm_deadline` is how long one helm process may live at most, and therefore how long a lock whose
/// holder cannot be seen is believed.
#[must_use]
pub fn decide(desired: &Desired, world: &World, now: Timestamp, helm_deadline: SignedDuration) -> Plan {
    // A field that is added to the world has to be thought about here.
    let World {
        hostname_holder,
        admin_secret,
        redis_secret,
        database: _,
        retained,
        backup: _,
        target,
        release,
        workloads,
        retry,
        recorded,
    } = world;
    let mut plan = Plan::default();

    if desired.suspend {
        return plan.hold(Hold {
            condition: kind::RECONCILING,
            reason: "Suspended",
            message: "spec.suspend is true: nothing is changed until it is false".to_owned(),
            stalled: false,
            until: None,
        });
    }
    if let Some(holder) = hostname_holder {
        return plan.hold(hostname_conflict(desired, holder));
    }

    let Gate { apply, hold: closed } = gate(desired, world, now);
    if !retained.is_empty() {
        match adopt(desired, retained, closed.as_ref(), now) {
            // What it brings with it decides what comes next.
            Ok(step) => return Plan { steps: vec![step], hold: None },
            Err(hold) => return plan.hold(hold),
        }
    }

    match secret_step(&desired.admin, admin_secret, Step::CreateAdminSecret) {
        Ok(step) => plan.steps.extend(step),
        Err(hold) => return plan.hold(hold),
    }
    if let Some(name) = &desired.redis_secret {
        let source = SecretSource::Generated(name.clone());
        match secret_step(&source, redis_secret, Step::CreateRedisSecret) {
            Ok(step) => plan.steps.extend(step),
            Err(hold) => return plan.hold(hold),
        }
    }
    plan.steps.extend(apply.map(|backups| Step::ApplyDatabase { backups }));
    if let Some(hold) = closed {
        return plan.hold(hold);
    }
    // After the database, so that it is already on its way while somebody makes the missing Secret.
    if let Some(hold) = given_secret(&desired.admin, admin_secret) {
        return plan.hold(hold);
    }
    let recorded_revision = recorded.release.as_ref().map(|release| release.revision);
    // One that somebody asks to be repeated holds nothing up.
    let repeated = |attempt: &&Attempt| retry.as_ref() == Some(&annotation::retry_after(attempt));
    let attempt = recorded.last_attempt.as_ref().filter(|attempt| !repeated(attempt));
    plan = release_steps(plan, desired, release.as_ref(), recorded_revision, attempt, now, helm_deadline);
    if plan.runs_helm()
        && let Some(before) = target.as_ref().and_then(|target| upgrade::before(desired, world, target, now))
    {
        let Before { back_up, hold } = before;
        plan.steps.retain(|step| !matches!(step, Step::HelmUpgrade { .. }));
        plan.steps.extend(back_up.map(Step::BackUp));
        plan.hold = Some(hold);
    }
    if plan.hold.is_none() && !plan.runs_helm() && workloads.is_empty() {
        plan.hold = release.as_ref().and_then(|release| unseen(release, now));
    }
    plan
}

/// Takes over what was left, where that is asked for and nothing stands against it.
fn adopt(desired: &Desired, retained: &[Retained], closed: Option<&Hold>, now: Timestamp) -> Result<Step, Hold> {
    let hold = |message: String| Hold {
        condition: kind::RELEASED,
        reason: "DataRetained",
        message,
        stalled: true,
        // Volumes are not watched.
        until: Some(now + SAFETY_NET),
    };
    let left = format!("an earlier ClientApp {} has left {}", desired.key.name, summary(retained));
    if !desired.adopt {
        return Err(hold(format!(
            "{left}: nothing is made while that is there; to go on with these data, set spec.postgres.adopt to true; else rename this ClientApp, or delete what `kubectl get pvc,secret -n {} -l {}={}` and the like show",
            desired.key.namespace,
            label::RETAINED_FROM,
            desired.key.name,
        )));
    }
    let wanted = desired.database.as_ref().and_then(|database| Some(database.server.as_ref()?.maker));
    let other = retained.iter().find(|left| matches!(left.kind, RetainedKind::Server(maker) if Some(maker) != wanted));
    if let Some(Retained { kind, name, installed: _ }) = other {
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
        RetainedKind::Server(_) => 0,
        RetainedKind::Volume => 1,
        RetainedKind::Secret => 2,
    });
    let named = sorted.iter().take(NAMED).map(|left| format!("{} {}", left.kind.as_str(), left.name));
    let mut summary = named.collect::<Vec<_>>().join(", ");
    if sorted.len() > NAMED {
        summary += &format!(" and {} more", sorted.len() - NAMED);
    }
    summary
}

/// A release without any workload right after helm wrote it is one whose workloads the watch has yet to show.
fn unseen(release: &ReleaseView, now: Timestamp) -> Option<Hold> {
    let until = release.written? + UNSEEN_FOR;
    (until > now).then(|| Hold {
        condition: kind::WORKLOADS_READY,
        reason: "Progressing",
        message: format!("waiting to see the workloads of revision {}", release.revision),
        stalled: false,
        until: Some(until),
    })
}

fn hostname_conflict(desired: &Desired, holder: &Key) -> Hold {
    Hold {
        condition: kind::RELEASED,
        reason: "HostnameConflict",
        message: format!(
            "hostname {} belongs to ClientApp {holder}: choose another, or delete that one and this one takes over",
            desired.hostname
        ),
        stalled: true,
        until: None,
    }
}

/// Create a generated Secret that is absent; wait for one that is still being taken away with its old owner, since
/// a Secret used now would vanish from under the app.
fn secret_step(source: &SecretSource, view: &SecretView, create: Step) -> Result<Option<Step>, Hold> {
    match (source, view) {
        (SecretSource::Generated(_), SecretView::Absent) => Ok(Some(create)),
        (SecretSource::Generated(name), SecretView::NotOurs { owner }) => Err(Hold {
            condition: kind::RELEASED,
            reason: "SecretNotOurs",
            message: format!("Secret {name} belongs to {owner}: it is not used, and made anew once it is gone"),
            stalled: false,
            until: None,
        }),
        _ => Ok(None),
    }
}

fn given_secret(source: &SecretSource, view: &SecretView) -> Option<Hold> {
    let SecretSource::Given(name) = source else { return None };
    let (reason, problem) = match view {
        SecretView::Absent => ("AdminSecretMissing", "does not exist".to_owned()),
        SecretView::NotOurs { .. } | SecretView::Present { keys: None } => return None,
        SecretView::Present { keys: Some(keys) } => {
            let missing: Vec<_> = [secrets::ADMIN_USERNAME, secrets::ADMIN_PASSWORD]
                .into_iter()
                .filter(|key| !keys.contains(*key))
                .collect();
            if missing.is_empty() {
                return None;
            }
            ("AdminSecretKeyMissing", format!("has no value under {}", missing.join(" and ")))
        }
    };
    Some(Hold {
        condition: kind::RELEASED,
        reason,
        message: format!(
            "Secret {name}, named in spec.adminSecret, {problem}: it needs the keys {} and {}",
            secrets::ADMIN_USERNAME,
            secrets::ADMIN_PASSWORD
        ),
        stalled: true,
        until: None,
    })
}

/// The release's own table.
fn release_steps(
    mut plan: Plan,
    desired: &Desired,
    release: Option<&ReleaseView>,
    recorded_revision: Option<i64>,
    attempt: Option<&Attempt>,
    now: Timestamp,
    helm_deadline: SignedDuration,
) -> Plan {
    let name = &desired.key.name;
    let external = |message: String, until| Hold {
        condition: kind::RELEASED,
        reason: "ExternalOperationInProgress",
        message,
        stalled: false,
        until,
    };
    let mut upgrade = |revision: i64, because: Option<Because>| {
        // What failed is not tried again before its time, however many events ask for it; a change of what is asked is.
        if let Some(hold) = attempt.filter(|attempt| attempt.digest == desired.digest).and_then(|a| backoff(a, now)) {
            return Some(hold);
        }
        plan.steps.push(Step::HelmUpgrade { revision, because });
        None
    };

    let Some(ReleaseView { revision, secret, phase, status, stamp, known, written }) = release else {
        let because = recorded_revision.map(|revision| Because::Uninstalled { revision });
        let hold = upgrade(1, because);
        return Plan { hold, ..plan };
    };
    let next = revision + 1;
    let ours_before = *known || recorded_revision.is_some();
    let changed = || Some(Because::ChangedByOthers { revision: *revision });
    let hold = match (phase, stamp) {
        (Phase::Deployed, Some(stamp)) if stamp.digest == desired.digest => None,
        (Phase::Deployed | Phase::Failed, Some(_)) => upgrade(next, None),
        (Phase::Deployed | Phase::Failed, None) if ours_before => upgrade(next, changed()),
        (Phase::Deployed | Phase::Failed, None) => Some(Hold {
            condition: kind::RELEASED,
            reason: "ReleaseNotOurs",
            message: format!(
                "a Helm release {name} that this operator did not make is in namespace {}: it is not taken over; uninstall it or rename the ClientApp",
                desired.key.namespace
            ),
            stalled: true,
            until: None,
        }),
        (Phase::Uninstalled, _) => upgrade(next, recorded_revision.map(|revision| Because::Uninstalled { revision })),
        (Phase::Pending, Some(Stamp { holder, .. })) => {
            let deadline = written.map(|written| written + helm_deadline);
            if *holder == Fate::Dead || deadline.is_some_and(|deadline| deadline <= now) {
                plan.steps.push(Step::UnlockRelease { secret: secret.clone(), revision: *revision });
                plan.steps.push(Step::HelmUpgrade { revision: next, because: None });
                None
            } else {
                Some(external(
                    format!(
                        "revision {revision} of release {name} is {status}, begun by another process of this operator: taken over when its time is up"
                    ),
                    deadline.or(Some(now + SAFETY_NET)),
                ))
            }
        }
        (Phase::Pending | Phase::Uninstalling, _) => Some(external(
            format!(
                "revision {revision} of release {name} is {status}, begun by somebody else: waiting for `helm history {name}` to show its end"
            ),
            None,
        )),
    };
    Plan { hold, ..plan }
}

fn backoff(attempt: &Attempt, now: Timestamp) -> Option<Hold> {
    let until = attempt.retry_at.as_ref()?.0;
    if until <= now {
        return None;
    }
    let (reason, stalled) = super::error::recorded_reason(attempt.reason.as_deref(), attempt.failures);
    Some(Hold {
        condition: kind::RELEASED,
        reason,
        message: attempt.message.clone().unwrap_or_default(),
        stalled,
        until: Some(until),
    })
}

#[cfg(test)]
mod tests;
