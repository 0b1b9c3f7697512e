//! A database object, as the cache stores it. **Pure.**

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, ResourceExt as _};
use serde_json::Value;

use super::{names::names_of, request::BackupTargets};
use crate::{
    crd::{BackupState, ClientApp, Guard, annotation, conditions::Verdict, label},
    platform::{
        cache::CacheEntry,
        controller::Objects,
        key::{Key, key_of},
        watch::owner,
    },
};

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct DatabaseObject {
    /// The ClientApp it is labelled with.
    pub(crate) app: Option<String>,
    /// The ClientApp that left it behind.
    pub(crate) retained_from: Option<String>,
    /// Distinguishes it from a successor of the same name.
    pub(crate) uid: String,
    /// uid of the object that owns it. Databases created by earlier versions of this operator are owned by their ClientApp.
    pub(crate) owner_uid: Option<String>,
    /// uid of the ClientApp that it was created for, or that adopted it.
    pub(crate) stamp: Option<String>,
    pub(crate) deleting: bool,
    /// Digest of the document last applied by this operator.
    pub(crate) digest: Option<String>,
    pub(crate) postgres_version: Option<i64>,
    /// Size of the data volume, as last applied.
    pub(crate) storage_bytes: Option<f64>,
    /// StorageClass that it asks for; `None`: the cluster's default class.
    pub(crate) storage_class: Option<String>,
    /// Where its backups go, as far as this operator configured it.
    pub(crate) targets: BackupTargets,
    /// Its data source, if this operator set it.
    pub(crate) source: Option<Value>,
    /// It restricts who may connect. Databases that were created before that was possible do not: their clients may be anywhere.
    pub(crate) isolated: bool,
    pub(crate) state: DatabaseState,
    /// The state of its dumps, if it has any.
    pub(crate) backed_up: Option<Verdict>,
    pub(crate) created: Option<Timestamp>,
    /// When it last made progress towards its spec; `None`: it says itself if it makes none.
    pub(crate) progressed: Option<Timestamp>,
}

/// The state of a backup, and what failed.
pub(crate) type BackupProgress = (BackupState, Option<String>);

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SeenBackup {
    pub(crate) progress: BackupProgress,
    pub(crate) created: Option<Timestamp>,
    pub(crate) completed: Option<Timestamp>,
    /// uid of the database object that it was made of; `None`: it does not say.
    pub(crate) database_uid: Option<String>,
}

impl SeenBackup {
    /// Returns true if it is of this database, and not of a former one of its name.
    pub(crate) fn is_of(&self, database: &DatabaseObject) -> bool {
        // One that does not say is at least not older.
        self.database_uid.as_ref().map_or_else(|| self.created >= database.created, |uid| *uid == database.uid)
    }
}

/// An object beside a database.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SeenPart {
    pub(crate) uid: String,
    /// The ClientApp it is labelled with.
    pub(crate) app: Option<String>,
    pub(crate) owner_uid: Option<String>,
    /// Digest of the document of the database that it was last applied with.
    pub(crate) digest: Option<String>,
}

impl SeenPart {
    pub(crate) fn read(meta: &ObjectMeta) -> SeenPart {
        let entry = |entries: &Option<BTreeMap<String, String>>, key: &str| entries.as_ref()?.get(key).cloned();
        SeenPart {
            uid: meta.uid.clone().unwrap_or_default(),
            app: entry(&meta.labels, label::APP),
            owner_uid: meta.owner_references.iter().flatten().next().map(|owner| owner.uid.clone()),
            digest: entry(&meta.annotations, annotation::SPEC_DIGEST),
        }
    }

    /// Returns true if the database with this uid owns it, or if it has lost its owner and was made for the same app.
    pub(crate) fn is_of(&self, app: &str, uid: &str) -> bool {
        self.owner_uid.as_deref().map_or_else(|| self.app.as_deref() == Some(app), |owner| owner == uid)
    }
}

impl DatabaseObject {
    /// Returns true if an earlier ClientApp of this name left it: retained, or because that app's finalizer was edited out.
    pub(crate) fn is_leftover_of(&self, app: &str, uid: &str) -> bool {
        let is_other = |stamp: &Option<String>| stamp.as_ref().is_some_and(|stamp| stamp != uid);
        self.retained_from.as_deref() == Some(app) || self.app.as_deref() == Some(app) && is_other(&self.stamp)
    }

    /// Returns the cache entry: the fields that all kinds share, and those that a provider reads. An object that does not
    /// decode still exists.
    pub(super) fn entry<K: Resource>(
        guard: &Guard<K>,
        read: fn(&K, DatabaseObject) -> DatabaseObject,
    ) -> CacheEntry<DatabaseObject>
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
        CacheEntry { key: key_of(guard), group: None, value: Some(value) }
    }
}

/// The state of a database, in its provider's words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum DatabaseState {
    /// It has no status yet.
    #[default]
    NotReported,
    /// It is not ready yet: the end of a sentence that begins with its kind and name.
    Waiting(String),
    /// It continues only after a user or a cluster admin changes something: the end of such a sentence.
    Stalled(String),
    /// It is being restored from a backup at a user's request: the end of such a sentence.
    Restoring(String),
    Ready,
}

/// Triggers a reconcile of the apps that a database object may be for.
pub(super) fn changed(apps: &Objects<ClientApp>, database: &Key) {
    apps.trigger_in(&database.namespace, |app| names_of(app).contains(&database.name));
}
