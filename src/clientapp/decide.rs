//! Stage 3, **pure**: from what shall exist and what does, the steps to take now, and what to wait for.
//!
//! Reads as a list of questions in order of precedence; the first hold ends the plan.

use jiff::{SignedDuration, Timestamp};

use super::{
    build::secrets,
    desired::{Desired, SecretSource},
    names::Key,
    world::{ClusterView, Fate, Phase, ReleaseView, SecretView, Stamp, World},
};
use crate::crd::{Attempt, annotation, conditions::kind};

/// How long a PerconaPGCluster may stay without any status before that itself is reported.
pub const SILENT_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// A hold is ended by a watch; this is the net under it.
pub const SAFETY_NET: SignedDuration = SignedDuration::from_secs(60);

/// After this time a release that shows no workloads is believed to have none. Helm's times are whole seconds.
pub const UNSEEN_FOR: SignedDuration = SignedDuration::from_secs(5);

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Create the Secret with generated administrator credentials, unless it exists.
    CreateAdminSecret,
    /// Create the Secret with a generated Redis password, unless it exists.
    CreateRedisSecret,
    /// Apply the PerconaPGCluster.
    ApplyPostgres,
    /// Mark a revision that a dead helm left pending as failed.
    UnlockRelease {
        /// Helm's storage Secret.
        secret: String,
        /// Its revision.
        revision: i64,
    },
    /// `helm upgrade --install`.
    HelmUpgrade {
        /// The revision it will make.
        revision: i64,
        /// Why, where the reason is not the spec: told in an event.
        because: Option<Because>,
    },
}

/// Why a release is upgraded though the spec did not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Because {
    /// Somebody else wrote the newest revision.
    ChangedByOthers {
        /// That revision.
        revision: i64,
    },
    /// Somebody else uninstalled it.
    Uninstalled {
        /// The last revision of ours.
        revision: i64,
    },
}

/// Why the plan ends before the app is as desired.
#[derive(Clone, Debug, PartialEq)]
pub struct Hold {
    /// The condition that says it.
    pub condition: &'static str,
    /// Its reason.
    pub reason: &'static str,
    /// One sentence: what is missing, on which object, what to do.
    pub message: String,
    /// Nothing goes on until somebody changes something.
    pub stalled: bool,
    /// When to look again, were no watch to say so earlier.
    pub until: Option<Timestamp>,
}

/// What to do now, and what to wait for after it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Steps, in order; the first failure ends them.
    pub steps: Vec<Step>,
    /// What the rest waits for.
    pub hold: Option<Hold>,
}

impl Plan {
    /// The plan runs helm.
    #[must_use]
    pub fn runs_helm(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::HelmUpgrade { .. }))
    }

    fn hold(mut self, hold: Hold) -> Plan {
        self.hold = Some(hold);
        self
    }
}

/// Decides. `helm_deadline` is how long one helm process may live at most, and therefore how long a lock whose
/// holder cannot be seen is believed.
#[must_use]
pub fn decide(desired: &Desired, world: &World, now: Timestamp, helm_deadline: SignedDuration) -> Plan {
    // A field that is added to the world has to be thought about here.
    let World { hostname_holder, admin_secret, redis_secret, database: _, release, workloads, retry, recorded } = world;
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
    let Gate { apply, hold } = database(desired, world, now);
    plan.steps.extend(apply.then_some(Step::ApplyPostgres));
    if let Some(hold) = hold {
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
    if plan.hold.is_none() && !plan.runs_helm() && workloads.is_empty() {
        plan.hold = release.as_ref().and_then(|release| unseen(release, now));
    }
    plan
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

struct Gate {
    apply: bool,
    hold: Option<Hold>,
}

/// Percona's gate (contracts, section 4): the Secret has the keys, the state is ready, PgBouncer runs, its Service
/// has an address. The Secret is written before PostgreSQL runs, so that alone proves nothing.
fn database(desired: &Desired, world: &World, now: Timestamp) -> Gate {
    let Some(database) = &desired.database else { return Gate { apply: false, hold: None } };
    let view = &world.database;
    let cluster = &database.name;
    let hold = |reason, message: String, stalled, until| {
        Some(Hold { condition: kind::POSTGRES_READY, reason, message, stalled, until })
    };
    if !view.installed {
        let message = format!(
            "this cluster has no kind PerconaPGCluster: install the Percona Operator for PostgreSQL, and {cluster} is made at once"
        );
        return Gate { apply: false, hold: hold("DependencyMissing", message, true, None) };
    }
    let Some(ClusterView {
        app,
        owner_uid,
        deleting,
        digest,
        postgres_version,
        storage_bytes,
        state,
        pgbouncer_ready,
        created,
    }) = &view.cluster
    else {
        let message = format!("PerconaPGCluster {cluster} is being made");
        return Gate { apply: true, hold: hold("Provisioning", message, false, Some(now + SAFETY_NET)) };
    };
    let ours = app.as_ref() == Some(&desired.key.name) && owner_uid.as_ref().is_none_or(|uid| *uid == view.app_uid);
    if !ours {
        let message = format!(
            "PerconaPGCluster {cluster} exists and is not this ClientApp's: it is not taken over; rename the ClientApp or remove the cluster"
        );
        return Gate { apply: false, hold: hold("DatabaseNotOurs", message, true, None) };
    }
    if *deleting {
        let message = format!("PerconaPGCluster {cluster} is being deleted; it is made anew once it is gone");
        return Gate { apply: false, hold: hold("Deleting", message, false, Some(now + SAFETY_NET)) };
    }
    if let Some(running) = postgres_version.filter(|running| *running != database.postgres_version) {
        let message = format!(
            "PerconaPGCluster {cluster} runs PostgreSQL {running} and spec.postgres.version asks for {}: upgrade it with a PerconaPGUpgrade, or set the field back",
            database.postgres_version
        );
        return Gate { apply: false, hold: hold("VersionMismatch", message, true, None) };
    }
    if storage_bytes.is_some_and(|applied| database.storage_bytes < applied) {
        let message = format!(
            "spec.postgres.storageSize is smaller than the volume of PerconaPGCluster {cluster}: a volume never shrinks; set the field back"
        );
        return Gate { apply: false, hold: hold("StorageShrink", message, true, None) };
    }
    let apply = digest.as_ref() != Some(&database.digest);
    let silent_at = created.map(|created| created + SILENT_AFTER);
    let waiting = match (state.as_deref(), &view.secret) {
        (None, _) if silent_at.is_some_and(|at| at <= now) => (
            "NotReporting",
            format!(
                "PerconaPGCluster {cluster} has no status: see that the Percona operator runs and watches namespace {} (watchAllNamespaces)",
                desired.key.namespace
            ),
        ),
        (None, _) => ("Provisioning", format!("PerconaPGCluster {cluster} was made and has no status yet")),
        (Some("ready"), SecretView::Absent) => (
            "SecretMissing",
            format!("PerconaPGCluster {cluster} is ready, but Secret {} does not exist", desired.key.database_secret()),
        ),
        (Some("ready"), SecretView::NotOurs { owner }) => {
            ("SecretNotOurs", format!("Secret {} belongs to {owner}: it is not used", desired.key.database_secret()))
        }
        (Some("ready"), SecretView::Present { keys: Some(keys) })
            if !(keys.contains("user") && keys.contains("password")) =>
        {
            let missing = if keys.contains("user") { "password" } else { "user" };
            ("SecretKeyMissing", format!("Secret {} has no value under {missing}", desired.key.database_secret()))
        }
        (Some("ready"), SecretView::Present { .. }) if *pgbouncer_ready < 1 => {
            ("Provisioning", format!("PerconaPGCluster {cluster} has no ready PgBouncer"))
        }
        (Some("ready"), SecretView::Present { .. }) if !view.reachable => {
            ("Provisioning", format!("Service {} has no ready address", desired.key.pgbouncer_service()))
        }
        (Some("ready"), SecretView::Present { .. }) => return Gate { apply, hold: None },
        (Some(state), _) => ("Provisioning", format!("PerconaPGCluster {cluster} is {state}")),
    };
    let until = match silent_at {
        Some(at) if state.is_none() && at > now => at,
        _ => now + SAFETY_NET,
    };
    Gate { apply, hold: hold(waiting.0, waiting.1, false, Some(until)) }
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
