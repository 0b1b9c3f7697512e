//! Stage 3, **pure**: from what shall exist and what does, the steps to take now, and what to wait for.
//!
//! Reads as a list of questions in order of precedence; the first hold ends the plan.

use jiff::{SignedDuration, Timestamp};

use super::{
    build::secrets,
    desired::{Desired, SecretSource},
    gate::{Gate, gate},
    owned,
    plan::{Because, Hold, Plan, SAFETY_NET, Step},
    upgrade::{self, Before},
    world::{Fate, Phase, ReleaseView, Retained, RetainedKind, SecretView, Stamp, World},
};
use crate::{
    controller::key::Key,
    crd::{Attempt, ClientAppStatus, annotation, conditions::kind, label},
    destroy::permit::Kind,
};

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
        workloads: _,
        inventory: _,
        owned: _,
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

    if let Some(hold) = admin_secret_lost(desired, admin_secret, recorded, release.as_ref()) {
        return plan.hold(hold);
    }
    match secret_step(&desired.admin, admin_secret, Step::CreateAdminSecret) {
        Ok(step) => plan.steps.extend(step),
        Err(hold) => return plan.hold(hold),
    }
    let source = SecretSource::Generated(desired.key.redis_secret());
    match secret_step(&source, redis_secret, Step::CreateRedisSecret) {
        Ok(step) => plan.steps.extend(step),
        Err(hold) if desired.redis_secret.is_some() => return plan.hold(hold),
        // Without Redis it is but the witness of how the app is deleted.
        Err(_) => {}
    }
    if let Some(name) = &desired.redis_secret {
        plan.steps.extend(restart(name, redis_secret, recorded));
    }
    plan.steps.extend(apply.map(Step::ApplyDatabase));
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
    let wanted = desired.database.as_ref().and_then(|database| Some(database.server.as_ref()?.maker));
    let other = retained.iter().find(|left| matches!(left.kind, RetainedKind::Server(maker) if Some(maker) != wanted));
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

/// The generated credentials of the administrator, once made, are what the app's data know: no new ones are made up.
fn admin_secret_lost(
    desired: &Desired,
    view: &SecretView,
    recorded: &ClientAppStatus,
    release: Option<&ReleaseView>,
) -> Option<Hold> {
    let SecretSource::Generated(name) = &desired.admin else { return None };
    let in_use = owned::uid(&recorded.owned, Kind::Secret, name).is_some()
        || recorded.last_attempt.is_some()
        || recorded.installed.is_some()
        || release.is_some_and(|release| release.known);
    (in_use && *view == SecretView::Absent).then(|| Hold {
        condition: kind::RELEASED,
        reason: "AdminSecretLost",
        message: format!(
            "Secret {name} is gone, and the app knows no other administrator's password than the one in it: nothing is changed until it is back; restore it, or, with the credentials that the app has or is given by its own command, `kubectl create secret generic {name} -n {} --from-literal={}=… --from-literal={}=…`",
            desired.key.namespace,
            secrets::ADMIN_USERNAME,
            secrets::ADMIN_PASSWORD,
        ),
        stalled: true,
        until: None,
    })
}

/// Redis starts with its password: a new one has to reach the pods that hold the old one.
fn restart(name: &str, view: &SecretView, recorded: &ClientAppStatus) -> Option<Step> {
    let SecretView::Own { uid } = view else { return None };
    let before = owned::uid(&recorded.owned, Kind::Secret, name)?;
    (before != uid && recorded.release.is_some()).then(|| Step::Restart { secret: name.to_owned(), uid: uid.clone() })
}

/// Create a generated Secret that is absent; wait for one that is still being taken away with its old owner, since
/// a Secret used now would vanish from under the app.
fn secret_step(source: &SecretSource, view: &SecretView, create: Step) -> Result<Option<Step>, Hold> {
    match (source, view) {
        (SecretSource::Generated(_), SecretView::Absent) => Ok(Some(create)),
        (SecretSource::Generated(name), SecretView::NotOurs { owner }) => Err(Hold {
            condition: kind::RELEASED,
            reason: "SecretNotOurs",
            message: format!(
                "Secret {name} belongs to {owner}: it is not used, and made anew once it is gone; if it opens data that this ClientApp shall have, set spec.postgres.adopt to true"
            ),
            stalled: false,
            until: None,
        }),
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
        (SecretView::Absent, SecretSource::Given(_)) => ("AdminSecretMissing", "does not exist".to_owned()),
        (SecretView::Absent | SecretView::NotOurs { .. } | SecretView::Own { .. }, _) => return None,
        (SecretView::Present { keys }, _) => {
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
            "Secret {name}, {named}, {problem}: it needs the keys {} and {}",
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

    let Some(ReleaseView { revision, secret, secret_uid: _, phase, status, stamp, known, written }) = release else {
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
