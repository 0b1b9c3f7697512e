//! Whether an app's database may be recreated from a dump, and where an interrupted restore resumes. **Pure.**
//!
//! An annotation of the ClientApp records the restore in progress: which Postgresql and which volumes it deletes, by uid.
//! `spec.postgres.restore` does not tell, because it stays set once the restore is complete.

use std::collections::BTreeMap;

use kube::ResourceExt as _;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::crd::{Backup, BackupState, ClientApp, Phase, Postgresql, Restore, annotation};

/// A restore that has begun and is not complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Begun {
    pub(super) wanted: Restore,
    /// uid of the Postgresql to delete; empty if none had a database.
    pub(super) postgresql: String,
    /// The volumes of its servers, deleted as well: name and uid.
    pub(super) claims: BTreeMap<String, String>,
    /// uid of the new Postgresql, once it has the dumps and the Secrets.
    #[serde(default)]
    pub(super) made: Option<String>,
}

impl Begun {
    pub(super) fn read(app: &ClientApp) -> Option<Begun> {
        serde_json::from_str(app.annotations().get(annotation::RESTORING)?).ok()
    }

    /// The patch that records it, and declares what the next database is made from.
    pub(super) fn patch(&self, suspend: bool) -> Value {
        json!({
            "metadata": {"annotations": {annotation::RESTORING: json!(self).to_string()}},
            "spec": {"suspend": suspend, "postgres": {"restore": in_place_of_any(&self.wanted)}},
        })
    }
}

/// For a merge patch: absent fields would keep their old values, so they are set to null.
fn in_place_of_any(wanted: &Restore) -> Value {
    let mut merged = json!({"claim": null, "store": null});
    for (field, value) in json!(wanted).as_object().into_iter().flatten() {
        merged[field] = value.clone();
    }
    if let Some(store) = merged["store"].as_object_mut() {
        for field in ["region", "caSecret", "passwordSecret", "size"] {
            store.entry(field).or_insert(Value::Null);
        }
    }
    merged
}

/// Where a restore starts or resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// There is a database to delete.
    Replace,
    /// A restore was interrupted after the deletion of the database had begun.
    GoOn,
    /// There is no database that could be lost.
    Make,
    /// The restore is complete.
    Done,
}

/// Where the restore starts or resumes, or why it is refused.
pub(super) fn way(
    app: &ClientApp,
    database: Option<&Postgresql>,
    begun: Option<&Begun>,
    wanted: &Restore,
    no_backup: bool,
) -> Result<Way, String> {
    let name = app.name_any();
    if app.metadata.deletion_timestamp.is_some() {
        return Err(format!("{name} is being deleted: nothing is restored"));
    }
    let backup = app.status.as_ref().and_then(|status| status.backup.as_ref());
    if backup.is_some_and(|backup| backup.state == BackupState::Running) {
        return Err(format!("{name} is being backed up before an upgrade: wait until that backup is complete"));
    }
    let suspended = || match app.spec.suspend && begun.is_none() {
        true => Err(format!("{name} is suspended, so nothing changes: run `kubectl clientapp resume {name}` first")),
        false => Ok(()),
    };
    let Some(database) = database else {
        return begun.map(|_| Way::GoOn).ok_or_else(|| {
            format!(
                                "{name} has no Postgresql, so the available dumps are unknown: set spec.postgres.restore yourself, to dumps of {}",
                wanted.place()
            )
        });
    };
    let goes = begun.is_some_and(|begun| database.metadata.uid.as_ref() == Some(&begun.postgresql));
    let is_deleted = database.metadata.deletion_timestamp.is_some();
    let is_done = begun.is_some_and(|begun| {
        let made = begun.made.as_ref().is_none_or(|made| database.metadata.uid.as_ref() == Some(made));
        begun.wanted == *wanted && !goes && made && is_from(database, wanted).is_ok()
    });
    if is_done && !is_deleted && has_database(database) {
        return Ok(Way::Done);
    }
    match (is_deleted, goes, has_database(database)) {
        (true, true, _) => Ok(Way::GoOn),
        (true, false, _) => Err(format!("the Postgresql of {name} is being deleted: nothing is restored")),
        (false, false, false) if begun.is_some() => Ok(Way::GoOn),
        (false, _, false) => suspended().map(|()| Way::Make),
        (false, _, true) => {
            suspended()?;
            replaces(&name, database, wanted, no_backup).map(|()| Way::Replace)
        }
    }
}

/// Whether it was created: then a dump is no longer restored into it.
pub(crate) fn has_database(database: &Postgresql) -> bool {
    let volume = database.status.as_ref().and_then(|status| status.volume.as_ref());
    volume.is_some_and(|volume| volume.initialized)
}

/// Whether an existing database may be deleted for a dump.
fn replaces(name: &str, database: &Postgresql, wanted: &Restore, no_backup: bool) -> Result<(), String> {
    const OF_NOW: &str =
        "the latest dump would be one of the current content: name a dump with --from, or add --no-backup";
    let status = database.status.clone().unwrap_or_default();
    if !no_backup && status.phase != Some(Phase::Up) {
        return Err(format!(
            "the database of {name} does not serve, so its content cannot be dumped first: with --no-backup it is lost"
        ));
    }
    let is_latest = wanted.from == "latest";
    if is_latest && !no_backup && (wanted.store.is_some() || status.backup.is_some()) {
        return Err(OF_NOW.to_owned());
    }
    // The caller checks the bucket itself.
    if wanted.store.is_some() {
        return Ok(());
    }
    match listed(name, database, wanted)? {
        // The dump made now, and the last one before the Postgresql is deleted.
        Some(newer) if !no_backup => stays(database, wanted, newer + 2),
        _ => Ok(()),
    }
}

/// How many dumps on the volume are newer than the wanted one, if that is listed by its name; an error if there is none.
pub(crate) fn listed(name: &str, database: &Postgresql, wanted: &Restore) -> Result<Option<usize>, String> {
    let status = database.status.clone().unwrap_or_default();
    let dumps = status.backup.unwrap_or_default().dumps;
    // A restored database lists dumps only after its own first one.
    let was_there =
        status.restored.is_some_and(|restored| restored.claim == wanted.claim && restored.dump == wanted.from);
    let position = dumps.iter().position(|dump| dump.name == wanted.from);
    match (position, wanted.from.as_str(), dumps.is_empty()) {
        (Some(_), ..) | (None, "latest", false) => Ok(position),
        (None, "latest", true) => Err(format!("{name} has no dump: `kubectl clientapp backup {name}` makes one")),
        (None, _, true) if was_there => Ok(None),
        (None, from, _) => Err(format!("{name} has no dump {from}: `kubectl clientapp backups {name}` lists them")),
    }
}

/// Whether a dump is still kept once it is followed by so many newer ones.
fn stays(database: &Postgresql, wanted: &Restore, newer: usize) -> Result<(), String> {
    let keep = database.spec.backup.as_ref().map_or(Backup::KEPT, |backup| backup.keep);
    (newer < usize::try_from(keep).unwrap_or_default()).then_some(()).ok_or_else(|| {
        format!(
                        "{keep} dumps are kept, and dumping the current content would remove dump {}: raise spec.postgres.backup.keep first",
            wanted.from
        )
    })
}

/// The same, after the current content was dumped: others may have been made in the meantime, and one more follows.
pub(super) fn still_stays(database: &Postgresql, wanted: &Restore) -> Result<(), String> {
    let status = database.status.clone().unwrap_or_default();
    let (backup, dump) = (status.backup.unwrap_or_default(), status.dump);
    if wanted.store.is_some() || backup.dumps.is_empty() {
        return Ok(());
    }
    let Some(position) = backup.dumps.iter().position(|dump| dump.name == wanted.from) else {
        return Err(format!(
            "dump {} no longer exists: newer ones have replaced it, and nothing was deleted",
            wanted.from
        ));
    };
    // The list of dumps comes from a pod, and may lag behind the state of its Job.
    let began = dump.and_then(|dump| dump.started_at).map(|began| began.0.strftime("%Y%m%dT%H%M%SZ").to_string());
    let is_listed = began.is_none_or(|began| backup.dumps[0].name >= began);
    stays(database, wanted, position + 1 + usize::from(!is_listed))
}

/// Whether the restore may continue: another user may have changed the app between two steps.
pub(super) fn still_ours(app: &ClientApp, begun: &Begun) -> Result<(), String> {
    let name = app.name_any();
    if app.metadata.deletion_timestamp.is_some() {
        return Err(format!("{name} is being deleted: the restore does not continue"));
    }
    match app.spec.postgres.restore.as_ref() == Some(&begun.wanted) && Begun::read(app).as_ref() == Some(begun) {
        true => Ok(()),
        false => Err(format!(
            "another user or another restore has changed {name} in the meantime: check `kubectl get clientapp {name} -o yaml`, and restore again"
        )),
    }
}

/// Whether this Postgresql is the one to be made from the dump.
pub(super) fn is_made_for(database: &Postgresql, begun: &Begun) -> bool {
    database.metadata.deletion_timestamp.is_none()
        && database.metadata.uid.as_ref() != Some(&begun.postgresql)
        && database.spec.restore.as_ref() == Some(&begun.wanted)
}

/// Whether the database that serves was made from the dump.
pub(super) fn is_from(database: &Postgresql, wanted: &Restore) -> Result<(), String> {
    let restored = database.status.as_ref().and_then(|status| status.restored.as_ref());
    let is_it = restored.is_some_and(|restored| {
        let place = wanted.store.as_ref().map(|_| wanted.place());
        [restored.dump.as_str(), "latest"].contains(&wanted.from.as_str())
            && restored.claim == wanted.claim
            && restored.store == place
    });
    is_it.then_some(()).ok_or_else(|| {
        format!(
            "postgresql/{} serves, but was not made from dump {} of {}: check its status.restored",
            database.name_any(),
            wanted.from,
            wanted.place()
        )
    })
}

/// What is lost and what is kept.
pub(super) fn consequence(
    name: &str,
    wanted: &Restore,
    (way, begun): (Way, Option<&Begun>),
    no_backup: bool,
    with_files: bool,
) -> String {
    let dump = format!("dump {} of {}", wanted.from, wanted.place());
    let now = match no_backup {
        true => "The current content of the database is LOST: it is not dumped first.",
        false => "The current content of the database is dumped first.",
    };
    match way {
        Way::Replace => {
            let files = match with_files {
                true => "",
                false => {
                    "The app's files stay as they are: if the app was upgraded since that dump, they are newer than the database. "
                }
            };
            format!(
                "This replaces the database of {name} with {dump}. {now}\n{files}During the restore the app has no database."
            )
        }
        Way::GoOn => {
            let claims: Vec<_> = begun.iter().flat_map(|begun| begun.claims.keys().map(String::as_str)).collect();
            format!(
                "A restore of {name} was interrupted: this resumes it, with {dump}. The old volumes are deleted: {}.",
                claims.join(", ")
            )
        }
        Way::Done => String::new(),
        Way::Make => format!("{name} has no database yet: this creates it from {dump}."),
    }
}

#[cfg(test)]
mod tests;
