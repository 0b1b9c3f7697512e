//! What the pure stages come to: steps, and what is waited for. Plain data.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::runtime::controller::Action;
use serde_json::Value;

use super::{
    database::BackupTargets,
    deployer,
    observed::{Missing, Retained},
};
use crate::crd::{BackupRecord, Reason};

/// How long a database object may stay without any status before that itself is reported.
pub(crate) const SILENT_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// A hold is ended by a watch; this is the net under it.
pub(crate) const SAFETY_NET: SignedDuration = SignedDuration::from_secs(60);

/// How a database object is applied.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Apply {
    /// With these targets of its backups.
    pub(crate) targets: BackupTargets,
    /// What it is made from, or was: said again in the same words, since Percona may be at it still.
    pub source: Option<Value>,
    /// Closed for pods of other namespaces, where its kind can be: as it is, and from the beginning.
    pub isolated: bool,
    /// Of the object that is there; `None`: it is made.
    pub uid: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Create what is missing of the account that helm acts as.
    CreateDeployer {
        part: deployer::Part,
        /// It was there before, as far as this app knows: told in an event.
        again: bool,
    },
    /// Create the Secret with generated administrator credentials, unless it exists.
    CreateAdminSecret,
    /// Create the Secret with a generated Redis password, unless it exists.
    CreateRedisSecret,
    /// Take over what an earlier ClientApp of this name has left.
    Adopt(Vec<Retained>),
    /// Restart the release's workloads, as `kubectl rollout restart` does: they hold what a Secret said before.
    Restart {
        secret: String,
        /// uid of the one that is there now.
        uid: String,
    },
    ApplyDatabase(Apply),
    BackUp(BackupRecord),
    /// Mark a revision that a dead helm left pending as failed.
    UnlockRelease {
        secret: String,
        revision: i64,
    },
    FetchChart,
    /// Stop the helm that is at work on the release.
    CancelHelm,
    /// Make again what of the release is missing.
    Repair(Vec<Missing>),
    /// `helm upgrade --install`.
    HelmUpgrade {
        /// The revision it will make.
        revision: i64,
        /// Why, where the reason is not the spec: told in an event.
        because: Option<Because>,
    },
}

impl Step {
    /// Whether it makes credentials, or the account that helm acts as.
    pub(crate) fn makes_credentials(&self) -> bool {
        matches!(self, Step::CreateDeployer { .. } | Step::CreateAdminSecret | Step::CreateRedisSecret)
    }
}

/// Why a release is upgraded though the spec did not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Because {
    /// Another Helm client wrote the newest revision.
    ChangedByOthers { revision: i64 },
    /// Another Helm client uninstalled it.
    Uninstalled {
        /// The last revision of ours.
        revision: i64,
    },
}

/// The first of many for a sentence, at most so many, and how many more there are.
pub(crate) fn few(words: impl IntoIterator<Item = String>, most: usize) -> String {
    let mut words: Vec<_> = words.into_iter().collect();
    let more = words.len().saturating_sub(most);
    words.truncate(most);
    let named = words.join(", ");
    if more > 0 { format!("{named} and {more} more") } else { named }
}

/// Why the plan ends before the app is as desired.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hold {
    /// The condition that says it.
    pub condition: &'static str,
    pub reason: Reason,
    /// One sentence: what is missing, on which object, what to do.
    pub message: String,
    /// Nothing goes on until a user or cluster admin changes something.
    pub stalled: bool,
    /// When to look again, were no watch to say so earlier.
    pub until: Option<Timestamp>,
}

impl Hold {
    /// A hold as its reason has it, without a time.
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Hold {
        let message = message.into();
        Hold { condition: reason.condition(), reason, message, stalled: reason.stalled(), until: None }
    }

    /// The same, looked at again at this time.
    pub(crate) fn until(self, until: impl Into<Option<Timestamp>>) -> Hold {
        Hold { until: until.into(), ..self }
    }
}

/// What to do now, and what to wait for after it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// Steps, in order; the first failure ends them.
    pub steps: Vec<Step>,
    /// What the rest waits for.
    pub hold: Option<Hold>,
    /// When to look again at what no watch tells of, such as the pods of workloads that are not ready.
    pub look_again: Option<Timestamp>,
}

impl Plan {
    /// When to look again, were no watch to say so earlier.
    pub(crate) fn requeue(&self, now: Timestamp) -> Action {
        // No watch tells of an adopted volume.
        let adopted =
            self.steps.iter().any(|step| matches!(step, Step::Adopt(_))).then_some(SignedDuration::from_secs(1));
        let held = self.hold.as_ref().and_then(|hold| hold.until).map(|until| until.duration_since(now));
        let unwatched = self.look_again.map(|at| at.duration_since(now));
        match [adopted, held, unwatched].into_iter().flatten().min() {
            None => Action::await_change(),
            Some(wait) => {
                let wait = wait.max(SignedDuration::from_millis(100));
                Action::requeue(Duration::try_from(wait).unwrap_or(Duration::from_secs(60)))
            }
        }
    }

    /// Whether it only makes credentials and the deployer, which is told together with what they are made for.
    pub(crate) fn only_makes_credentials(&self) -> bool {
        self.hold.is_none() && !self.steps.is_empty() && self.steps.iter().all(Step::makes_credentials)
    }

    pub(crate) fn runs_helm(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::HelmUpgrade { .. }))
    }

    pub(crate) fn hold(mut self, hold: Hold) -> Plan {
        self.hold = Some(hold);
        self
    }
}
