//! What the pure stages come to: steps, and what is waited for. Plain data.

use jiff::{SignedDuration, Timestamp};

use super::{gate::Apply, world::Retained};
use crate::crd::BackupRecord;

/// How long a PerconaPGCluster or Postgresql may stay without any status before that itself is reported.
pub const SILENT_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// A hold is ended by a watch; this is the net under it.
pub const SAFETY_NET: SignedDuration = SignedDuration::from_secs(60);

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Create the Secret with generated administrator credentials, unless it exists.
    CreateAdminSecret,
    /// Create the Secret with a generated Redis password, unless it exists.
    CreateRedisSecret,
    /// Take over what an earlier ClientApp of this name has left.
    Adopt(Vec<Retained>),
    /// Restart the release's workloads, as `kubectl rollout restart` does: they hold what a Secret said before.
    Restart {
        /// That Secret.
        secret: String,
        /// uid of the one that is there now.
        uid: String,
    },
    /// Apply the PerconaPGCluster or Postgresql.
    ApplyDatabase(Apply),
    /// Ask for a backup of the database.
    BackUp(BackupRecord),
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

    /// The same, waiting for this.
    #[must_use]
    pub fn hold(mut self, hold: Hold) -> Plan {
        self.hold = Some(hold);
        self
    }
}
