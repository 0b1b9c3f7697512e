//! Finds the backup that an upgrade needs, and reads its record. **Pure.**

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::Resource as _;
use sha2::{Digest as _, Sha256};

use super::{
    file_backup::AppBackup,
    installed_chart::installed,
    release::{ReleasePhase, ReleaseView},
    types::BackupView,
};
use crate::{
    clientapp::spec::{database::BackupProgress, desired::Desired},
    crd::{BackupPart, BackupPhase, BackupRecord, BackupState, ClientAppBackup, ClientAppStatus},
    platform::key::hex,
};

/// Follows the app's name in the name of a backup.
pub(crate) const NAMED: &str = "-upgrade-";
/// How long after a backup helm may start. After more time, the backup would lack too many writes.
const FRESH_FOR: SignedDuration = SignedDuration::from_mins(30);
/// How much the clocks of two successive operator processes may differ.
const SKEW: SignedDuration = SignedDuration::from_mins(1);
/// How often a running backup is recorded as still running.
const HEARTBEAT: SignedDuration = SignedDuration::from_mins(1);

/// Returns the backup that has to succeed before helm may install another chart version: the recorded one, if it counts for
/// this very upgrade, otherwise a new one. Its name is derived from the uid and generation of the ClientApp and the name of the
/// previous backup. So it is requested only once, whichever process is killed, and cannot be mistaken for another app's backup
/// or an earlier one.
pub(crate) fn backup(
    desired: &Desired,
    meta: &ObjectMeta,
    release: Option<&ReleaseView>,
    recorded: &ClientAppStatus,
    now: Timestamp,
) -> Option<BackupRecord> {
    desired.database_object()?;
    let (from, to) = (installed(recorded)?.version, desired.target().chart_version.to_string());
    // A rollback goes back to the same version of the app, and a backup of what failed could push the good one out.
    if !desired.upgrade.backup || from == to || desired.rolled_back().is_some() {
        return None;
    }
    if let Some(record) = of_this_upgrade(desired, recorded).filter(|record| counts(record, release, now)) {
        return Some(record.clone());
    }
    let revision = release.map_or(0, |release| release.revision);
    let (uid, generation) = (meta.uid.as_deref().unwrap_or_default(), meta.generation.unwrap_or_default());
    let earlier = recorded.backup.as_ref().map_or("", |record| &record.name);
    let asked = format!("{uid}/{generation}/{to}/{earlier}");
    let digest = hex(&Sha256::digest(asked.as_bytes()));
    Some(BackupRecord {
        kind: ClientAppBackup::kind(&()).into_owned(),
        name: format!("{}{NAMED}r{revision}-{}", desired.key.name, &digest[..8]),
        from,
        to,
        state: BackupState::Running,
        at_revision: Some(revision),
        as_of: Some(Time(now)),
        revision: None,
    })
}

/// Returns the recorded backup, if it was requested between the same versions and that upgrade is not complete.
pub(crate) fn of_this_upgrade<'a>(desired: &Desired, recorded: &'a ClientAppStatus) -> Option<&'a BackupRecord> {
    let record = recorded.backup.as_ref()?;
    let same = installed(recorded)?.version == record.from && desired.target().chart_version.to_string() == record.to;
    (same && record.revision.is_none()).then_some(record)
}

/// Returns true if a backup holds the state that helm would upgrade now: since it was requested, only this upgrade's own
/// attempts have changed the release, and it is fresh. Only the operator's times are compared: the clock of the backup program
/// may differ.
fn counts(record: &BackupRecord, release: Option<&ReleaseView>, now: Timestamp) -> bool {
    let BackupRecord { kind, state, at_revision, as_of, name: _, from: _, to: _, revision: _ } = record;
    // An earlier version of the operator requested it, and nothing reports its end any more.
    let is_observed = *kind == ClientAppBackup::kind(&());
    let unchanged = *at_revision == Some(release.map_or(0, |release| release.revision));
    let fresh = as_of.as_ref().is_some_and(|as_of| {
        let age = now.duration_since(as_of.0);
        -SKEW <= age && age <= FRESH_FOR
    });
    is_observed && (unchanged || release.is_some_and(is_failed_try)) && (*state != BackupState::Succeeded || fresh)
}

/// Returns a revision that the operator's helm started and did not complete.
pub(crate) fn is_failed_try(release: &ReleaseView) -> bool {
    release.managed_digest.is_some() && matches!(release.phase, ReleasePhase::Failed | ReleasePhase::Pending)
}

/// Returns the backup of a record as it is observed. It is as old as what it has made: a late watch shows its end late.
pub(crate) fn view(record: BackupRecord, app_uid: &str, backups: &[AppBackup]) -> BackupView {
    let seen = seen(&record, app_uid, backups);
    let state = seen.as_ref().map_or(record.state, |(state, _)| *state);
    let made = backups.iter().find(|backup| backup.name == record.name).and_then(|backup| backup.database_at.clone());
    let as_of = match made.filter(|_| state == BackupState::Succeeded) {
        Some(made) => record.as_of.map(|as_of| as_of.min(made)),
        None => record.as_of,
    };
    BackupView { record: BackupRecord { state, as_of, ..record }, seen }
}

/// Returns how far the ClientAppBackup of a record is; `None`: it is not there, or is being deleted.
fn seen(record: &BackupRecord, app_uid: &str, backups: &[AppBackup]) -> Option<BackupProgress> {
    let found = backups.iter().find(|backup| backup.name == record.name && !backup.deleting)?;
    let failed = |why: &str| Some((BackupState::Failed, Some(why.to_owned())));
    let is_of_database = found.parts.as_deref() == Some(&[BackupPart::Database]);
    if found.controller.as_deref() != Some(app_uid) || !is_of_database {
        return failed("it is not the operator's");
    }
    match found.phase {
        Some(BackupPhase::Completed) => {
            // It may have been created before it was needed. A late watch shows a success late, and the record then is newer.
            let earliest = record.as_of.as_ref().map_or(Timestamp::MAX, |as_of| as_of.0 - FRESH_FOR - SKEW);
            match &found.database_at {
                Some(at) if at.0 >= earliest => Some((BackupState::Succeeded, None)),
                _ => failed("it is older than this upgrade"),
            }
        }
        Some(BackupPhase::Failed) => {
            Some((BackupState::Failed, found.failure.as_ref().map(|(_, message)| message.clone())))
        }
        Some(BackupPhase::Pending | BackupPhase::Running) | None => Some((BackupState::Running, None)),
    }
}

/// Returns the record of a backup after it was observed.
pub(crate) fn looked_at(view: &BackupView, recorded: &ClientAppStatus, now: Timestamp) -> Option<BackupRecord> {
    let BackupView { record, seen } = view;
    let before = recorded.backup.as_ref().filter(|before| before.name == record.name)?;
    let (state, _) = seen.as_ref()?;
    let running = *state == BackupState::Running;
    let beat = before.as_of.as_ref().is_none_or(|as_of| now.duration_since(as_of.0) >= HEARTBEAT);
    let as_of = if running && beat { Some(Time(now)) } else { record.as_of.clone() };
    Some(BackupRecord { state: *state, as_of, ..before.clone() })
}

#[cfg(test)]
pub(in crate::clientapp) mod tests;
