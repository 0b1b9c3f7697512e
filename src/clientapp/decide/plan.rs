//! The result of the pure stages: steps, and what the plan waits for. Plain data.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use kube::runtime::controller::Action;
use serde_json::Value;

use crate::{
    clientapp::{
        hold::Hold,
        observed::types::{DriftedObject, FormerDatabase, Retained},
        spec::{database::BackupTargets, deployer},
    },
    crd::{BackupRecord, RolledBack, StorePasswordSecret},
    platform::pods::StuckPod,
};

/// How long a database object may have no status before the operator reports that.
pub(crate) const SILENT_AFTER: SignedDuration = SignedDuration::from_secs(30);
/// How long a database may make no progress before the operator reports that.
pub(crate) const NO_PROGRESS_AFTER: SignedDuration = SignedDuration::from_secs(300);
/// Longer than the longest wait between two attempts.
pub(crate) const LATEST_RETRY: SignedDuration = SignedDuration::from_hours(1);

/// How a database object is applied.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Apply {
    pub(crate) targets: BackupTargets,
    /// The data source of the database. It is applied again unchanged later, since Percona may still be restoring from it.
    pub source: Option<Value>,
    /// True if pods of other namespaces cannot reach it, where its kind supports that. An existing database keeps its setting.
    pub isolated: bool,
    /// uid of the existing object; `None`: it is created.
    pub uid: Option<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Step {
    /// Create a missing part of the account that helm acts as.
    CreateDeployer {
        part: deployer::DeployerPart,
        /// As far as this app knows, it existed before; an event reports that.
        again: bool,
    },
    /// Create the Secret with generated administrator credentials, unless it exists.
    CreateAdminSecret,
    /// Create the Secret with a generated Redis password, unless it exists.
    CreateRedisSecret,
    /// Take over what an earlier ClientApp of this name left.
    Adopt(Vec<Retained>),
    ApplyDatabase(Apply),
    /// Label a database that the app has left as retained.
    RetainDatabase(FormerDatabase),
    /// Delete an object beside the database that the spec no longer asks for.
    DeletePart {
        kind: &'static str,
        uid: String,
    },
    /// Create the ClientAppBackup that an upgrade waits for, unless it exists.
    BackUp(BackupRecord),
    /// Mark a revision that a dead helm process left pending as failed.
    UnlockRelease {
        secret: String,
        /// uid of that Secret.
        uid: String,
        revision: i64,
    },
    FetchChart,
    /// Stop the helm process that works on the release.
    CancelHelm,
    /// Recreate missing objects of the release.
    Repair(Vec<DriftedObject>),
    /// Delete a pod that keeps its StatefulSet from replacing it.
    DeleteStuckPod(StuckPod),
    /// Go back to a revision that was ready; the next pass begins with it.
    RollBack(RolledBack),
    /// Create this Secret with the password of the repository of the app's files, unless it exists.
    CreateRepositoryPassword(StorePasswordSecret),
    /// Create the ClientAppBackup of the app's files that is due, unless one of its name exists.
    CreateBackup {
        name: String,
    },
    /// Delete an old ClientAppBackup that the operator has made. What it has made stays.
    DeleteBackup {
        name: String,
        uid: String,
    },
    /// Delete the ClientAppBackup of an upgrade that was withdrawn, unless it has begun.
    WithdrawBackup {
        name: String,
        uid: String,
    },
    /// `helm test`.
    Test,
    /// `helm upgrade --install`.
    HelmUpgrade {
        revision: i64,
        /// The cause, if it is not the spec; an event reports it.
        cause: Option<UpgradeCause>,
    },
}

impl Step {
    /// Returns true if it creates credentials or the account that helm acts as.
    pub(crate) fn makes_credentials(&self) -> bool {
        matches!(self, Step::CreateDeployer { .. } | Step::CreateAdminSecret | Step::CreateRedisSecret)
    }

    /// Returns true if it begins a run that replaces the one under way.
    pub(crate) fn begins_a_run(&self) -> bool {
        matches!(self, Step::FetchChart | Step::HelmUpgrade { .. } | Step::Test)
    }
}

/// Says why a release is upgraded although the spec did not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UpgradeCause {
    /// Another Helm client wrote the newest revision.
    ChangedByOthers { revision: i64 },
    /// Another Helm client uninstalled it.
    Uninstalled {
        /// The last revision that the operator created.
        revision: i64,
    },
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Plan {
    /// Steps, in order; the first failure stops the plan.
    pub steps: Vec<Step>,
    /// Holds what the remaining steps wait for.
    pub hold: Option<Hold>,
    /// When to reconcile again for what is not watched, such as the pods of workloads that are not ready.
    pub requeue_at: Option<Timestamp>,
}

impl Plan {
    /// Returns when to reconcile again if no watch triggers a reconcile earlier.
    pub(crate) fn requeue(&self, now: Timestamp) -> Action {
        // Adopted volumes are not watched.
        let adopted =
            self.steps.iter().any(|step| matches!(step, Step::Adopt(_))).then_some(SignedDuration::from_secs(1));
        let held = self.hold.as_ref().and_then(|hold| hold.until).map(|until| until.duration_since(now));
        let unwatched = self.requeue_at.map(|at| at.duration_since(now));
        match [adopted, held, unwatched].into_iter().flatten().min() {
            None => Action::await_change(),
            Some(wait) => {
                let wait = wait.max(SignedDuration::from_millis(100));
                Action::requeue(Duration::try_from(wait).unwrap_or(Duration::from_secs(60)))
            }
        }
    }

    /// Returns true if it only creates credentials and the deployer; the status then waits for the next pass, which reports
    /// what they are for.
    pub(crate) fn only_makes_credentials(&self) -> bool {
        self.hold.is_none() && !self.steps.is_empty() && self.steps.iter().all(Step::makes_credentials)
    }

    /// Returns what the conditions say while helm runs.
    pub(crate) fn sentence(&self) -> String {
        self.hold.as_ref().map(|hold| hold.message.clone()).unwrap_or_default()
    }

    /// Reconciles again at this time, too.
    pub(crate) fn also_requeue_at(&mut self, at: Option<Timestamp>) {
        self.requeue_at = self.requeue_at.into_iter().chain(at).min();
    }

    pub(crate) fn runs_helm(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::HelmUpgrade { .. }))
    }
}
