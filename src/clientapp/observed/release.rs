//! The release as Helm's storage shows it. **Pure.**

use crate::{crd::ReadyRevision, secrets::RevisionMeta};
use jiff::Timestamp;

/// The newest revision of a release, from the labels of Helm's storage Secret. The payload is never decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReleaseView {
    pub revision: i64,
    pub secret: String,
    pub secret_uid: String,
    pub phase: ReleasePhase,
    /// Helm's own word for the status.
    pub status: String,
    /// The operator's stamp on this very revision; `None`: another Helm client wrote it.
    pub managed_digest: Option<String>,
    /// True if any stored revision has a stamp of ours, even an inherited one.
    pub ever_managed: bool,
    pub created_at: Option<Timestamp>,
}

impl ReleaseView {
    /// Returns the stamp of a revision that is deployed, and that an operator made.
    pub(crate) fn deployed(&self) -> Option<&String> {
        self.managed_digest.as_ref().filter(|_| self.phase == ReleasePhase::Deployed)
    }

    /// Returns true if it is deployed with exactly this digest.
    pub(crate) fn is_deployed_as(&self, digest: &str) -> bool {
        self.deployed().is_some_and(|managed| managed == digest)
    }

    /// Returns true if an operator's helm left its lock: asked only while no helm of this process runs for the release.
    pub(crate) fn is_stale_lock(&self) -> bool {
        self.phase == ReleasePhase::Pending && self.managed_digest.is_some()
    }
}

/// Says what a release's status means for a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleasePhase {
    /// `deployed`
    Deployed,
    /// `failed`, and every other status that permits an upgrade
    Failed,
    /// `pending-install`, `pending-upgrade`, `pending-rollback`: Helm's lock
    Pending,
    /// `uninstalling`
    Uninstalling,
    /// `uninstalled`: history that was kept
    Uninstalled,
}

impl ReleasePhase {
    /// Reads Helm's `status` label (helm.sh/helm/v4/pkg/release/common, `Status`).
    pub(crate) fn parse(status: &str) -> ReleasePhase {
        match status {
            "deployed" => ReleasePhase::Deployed,
            "uninstalling" => ReleasePhase::Uninstalling,
            "uninstalled" => ReleasePhase::Uninstalled,
            pending if pending.starts_with("pending-") => ReleasePhase::Pending,
            _ => ReleasePhase::Failed,
        }
    }
}

/// Returns the newest of the stored revisions. **Pure.**
pub(crate) fn release_view(revisions: &[(String, RevisionMeta)]) -> Option<ReleaseView> {
    let (secret, newest) = revisions.iter().max_by_key(|(_, revision)| revision.revision)?;
    // Helm copies labels to later revisions: after another client's upgrade or rollback the newest revision has our digest too,
    // but not the revision number that was stamped with it.
    let managed_digest = match (&newest.digest, newest.stamped) {
        (Some(digest), Some(stamped)) if stamped == newest.revision => Some(digest.clone()),
        _ => None,
    };
    Some(ReleaseView {
        revision: newest.revision,
        secret: secret.clone(),
        secret_uid: newest.uid.clone(),
        phase: ReleasePhase::parse(&newest.status),
        status: newest.status.clone(),
        managed_digest,
        ever_managed: revisions.iter().any(|(_, revision)| revision.digest.is_some()),
        created_at: newest.written,
    })
}

/// Returns true if Helm's history has this very revision.
pub(crate) fn is_stored(ready: &ReadyRevision, revisions: &[(String, RevisionMeta)]) -> bool {
    revisions.iter().any(|(_, found)| {
        found.revision == ready.revision
            && found.stamped == Some(ready.revision)
            && found.digest.as_ref() == Some(&ready.digest)
    })
}
