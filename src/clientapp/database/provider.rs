//! What each provider does in its own way. **Pure**, but for the watches that it starts.

use std::{fmt, sync::Arc};

use kube::api::{ApiResource, DynamicObject, Patch};
use serde_json::Value;

use super::{
    object::{BackupProgress, DatabaseObject, DatabaseState},
    order::{BackupTargets, Order},
};
use crate::{
    config::Config,
    crd::{BackupRecord, ClientApp, Postgres, PostgresProvider, Reason},
    destroy::{database_kind::DatabaseKind, permit::Kind},
    runtime::{
        cache::Cache,
        feeder::{Feeder, Optional},
        key::Key,
    },
};

/// Has a database made for an app, from one object that is named [`Key::database`].
pub(crate) trait Provider: Sync {
    fn facts(&self) -> &'static Facts;

    /// Of the database object.
    fn kind(&self) -> Kind {
        Kind::Database(&self.facts().kind)
    }

    /// The Secret that opens the database for the app.
    fn secret(&self, app: &Key) -> String;

    /// All Secrets without which the database cannot be opened.
    fn secrets(&self, app: &Key) -> Vec<String> {
        vec![self.secret(app)]
    }

    /// By which the app reaches the database.
    fn service(&self, app: &Key) -> String;

    /// Why there is no PostgreSQL of this major version; `None`: there is.
    fn unsupported(&self, version: &str, config: &Config) -> Option<String>;

    /// The database object, with these targets of its backups.
    fn document(&self, order: &Order, targets: &BackupTargets) -> Value;

    /// Where the backups of a database are to go: what the spec asks for, and what there is already.
    fn targets(&self, _order: &Order, found: Option<&BackupTargets>) -> Result<BackupTargets, String> {
        Ok(found.cloned().unwrap_or_default())
    }

    /// What a new database is made from, where its document does not say that in any case.
    fn source(&self, _postgres: &Postgres) -> Option<Value> {
        None
    }

    /// Says in a document what the database is made from, or was.
    fn made_from(&self, _document: &mut Value, _source: &Value) {}

    /// Says in a document that no pod of another namespace reaches the database, where its kind can say that.
    fn isolate(&self, _document: &mut Value) {}

    /// Starts the watches that tell how databases are.
    fn watch(&self, feeder: &Feeder<'_, ClientApp>) -> Watched;

    /// How a backup is asked for: the object to patch, and with what.
    fn back_up(&self, app: &Key, record: &BackupRecord, targets: &BackupTargets)
    -> (ApiResource, String, Patch<Value>);

    /// Where backups are that stay when a database is deleted.
    fn lasting_backups(&self, _postgres: &Postgres) -> Option<String> {
        None
    }

    /// What a deletion of a database in this state waits for.
    fn deleting(&self, database: &str, state: Option<DatabaseState>) -> String;

    fn summary(&self, object: &DynamicObject) -> Summary;
}

/// Whether the database of the first name has objects of the second.
pub(crate) type Names = fn(&str, &str) -> bool;

/// What is the same for every database of a provider.
pub(crate) struct Facts {
    pub(crate) name: PostgresProvider,
    /// The name in sentences.
    pub(crate) title: &'static str,
    pub(crate) kind: DatabaseKind,
    /// The kinds of objects that own what a database consists of.
    pub(crate) owners: &'static [&'static str],
    /// The kind of the objects that backups are; `None`: the database object tells of the last backup.
    pub(crate) backup_kind: Option<&'static str>,
    /// On each volume of a database, with the name of the database object.
    pub(crate) volume_label: &'static str,
    pub(crate) names_volume: Names,
    /// What is deleted with a database by that label alone; `None`: nothing.
    pub(crate) deletes_by_label: Option<DeletesByLabel>,
    /// A database object that is deleted leaves its volumes and Secrets without a mark, and the next of its name gets them.
    pub(crate) reuses_leftovers: bool,
    /// What a cluster admin has to do where the cluster does not know the kind.
    pub(crate) to_install: &'static str,
    /// What to look at where a database object stays without a status.
    pub(crate) to_report: fn(&Key) -> String,
    /// What a user can do to get another major version.
    pub(crate) to_change_version: &'static str,
    /// How another backup is made after a failed one.
    pub(crate) to_repeat_backup: &'static str,
}

/// What a provider deletes by a label, also where it has not made it.
pub(crate) struct DeletesByLabel {
    /// The kind, what else it selects by, and the names that it gives.
    pub(crate) objects: &'static [(Kind, Option<&'static str>, Names)],
    /// Why a deletion is held up by an object with another name.
    pub(crate) reason: Reason,
}

/// What is watched of a provider's databases.
pub(crate) struct Watched {
    pub(crate) objects: Arc<Optional<DatabaseObject>>,
    /// `None`: the database objects themselves tell of the last backup.
    pub(crate) backups: Option<Arc<Optional<BackupProgress>>>,
    /// Whether an EndpointSlice has a ready address, filed under its Service. `None`: a database object that is ready has one.
    pub(crate) endpoints: Option<Arc<Cache<bool>>>,
}

impl fmt::Debug for dyn Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.facts().name.fmt(f)
    }
}

impl PartialEq for dyn Provider {
    fn eq(&self, other: &dyn Provider) -> bool {
        self.facts().name == other.facts().name
    }
}

impl Eq for dyn Provider {}

/// A database object in a few words.
pub(crate) struct Summary {
    pub(crate) state: Option<String>,
    pub(crate) is_ready: bool,
    pub(crate) version: Option<String>,
    /// Each with how many of it are ready, and how many there are to be.
    pub(crate) parts: Vec<(String, Option<(i64, i64)>)>,
}
