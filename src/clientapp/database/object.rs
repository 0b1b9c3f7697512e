//! A database object, as the cache has it. **Pure.**

use jiff::Timestamp;
use kube::{Resource, ResourceExt as _};
use serde_json::Value;

use super::order::BackupTargets;
use crate::{
    crd::{BackupState, ClientApp, Guard, annotation, label},
    runtime::{
        cache::Entry,
        controller::Objects,
        key::{Key, key_of},
        watch::owner,
    },
};

/// What a database is made from, as it is stored.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DatabaseObject {
    /// The ClientApp it is labelled with.
    pub(crate) app: Option<String>,
    /// The ClientApp that left it behind.
    pub(crate) retained_from: Option<String>,
    /// Tells it from a successor of the same name.
    pub(crate) uid: String,
    /// The object that owns it. Those of earlier versions of this operator are owned by their ClientApp.
    pub(crate) owner_uid: Option<String>,
    /// uid of the ClientApp that it was made for, or adopted by.
    pub(crate) stamp: Option<String>,
    pub(crate) deleting: bool,
    /// Digest of the document last applied by this operator.
    pub(crate) digest: Option<String>,
    /// Major version that runs.
    pub(crate) postgres_version: Option<i64>,
    /// Size of the data volume, as last applied.
    pub(crate) storage_bytes: Option<f64>,
    /// Where its backups go, as far as this operator has configured it.
    pub(crate) targets: BackupTargets,
    /// What it was made from, where this operator had that said.
    pub(crate) source: Option<Value>,
    /// It says who may connect. One that was made before that could be said does not: its clients may be anywhere.
    pub(crate) isolated: bool,
    /// What it has to be before a backup can begin; `None`: one can begin now.
    pub(crate) backup_waits_for: Option<&'static str>,
    pub(crate) state: DatabaseState,
    /// The last backup, where the object itself tells of it: the word, and how far it is.
    pub(crate) last_backup: Option<(String, BackupProgress)>,
    pub(crate) created: Option<Timestamp>,
}

/// How far a backup is, and what went wrong.
pub(crate) type BackupProgress = (BackupState, Option<String>);

impl DatabaseObject {
    /// Whether an earlier ClientApp of this name has left it: as retained, or because its finalizer was edited out.
    pub(crate) fn is_left(&self, app: &str, uid: &str) -> bool {
        let another = |of: &Option<String>| of.as_ref().is_some_and(|of| of != uid);
        self.retained_from.as_deref() == Some(app) || self.app.as_deref() == Some(app) && another(&self.stamp)
    }

    /// For the cache: what is alike for all kinds, with what a provider reads of its own. An object that does not decode is there all
    /// the same.
    pub(super) fn entry<K: Resource>(
        guard: &Guard<K>,
        read: fn(&K, DatabaseObject) -> DatabaseObject,
    ) -> Entry<DatabaseObject>
    where
        Guard<K>: Resource,
    {
        let seen = DatabaseObject {
            app: guard.labels().get(label::APP).cloned(),
            retained_from: guard.labels().get(label::RETAINED_FROM).cloned(),
            uid: guard.metadata.uid.clone().unwrap_or_default(),
            owner_uid: owner(guard).map(|(_, _, uid)| uid),
            stamp: guard.annotations().get(annotation::OWNER_UID).cloned(),
            deleting: guard.metadata.deletion_timestamp.is_some(),
            digest: guard.annotations().get(annotation::SPEC_DIGEST).cloned(),
            created: guard.metadata.creation_timestamp.as_ref().map(|time| time.0),
            ..DatabaseObject::default()
        };
        let value = match &guard.object {
            Ok(object) => read(object, seen),
            Err(problem) => {
                DatabaseObject { state: DatabaseState::Stalled(format!(" does not decode: {problem}")), ..seen }
            }
        };
        Entry { key: key_of(guard), group: None, value: Some(value) }
    }
}

/// How a database is, in its provider's words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum DatabaseState {
    /// Nothing was said yet.
    #[default]
    Silent,
    /// It is on its way: what follows on its kind and name in a sentence.
    Waiting(String),
    /// It goes on only after a user or a cluster admin changes something: the same.
    Stalled(String),
    /// It is restored from a backup, which a user has asked for: the same.
    Restoring(String),
    Ready,
}

/// Asks for a reconcile of the app that a database object is for.
pub(super) fn changed(apps: &Objects<ClientApp>, database: &Key) {
    apps.trigger_in(&database.namespace, |app| key_of(app).database() == database.name);
}
