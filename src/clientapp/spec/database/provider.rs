//! Defines what each provider does differently. **Pure**, except for the watches that it starts.

use std::{fmt, sync::Arc};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{ApiResource, DynamicObject};
use serde_json::Value;

use super::{
    object::{DatabaseObject, DatabaseState, SeenBackup, SeenPart},
    request::{BackupTargets, DatabaseRequest},
};
use crate::{
    config::Config,
    crd::{ClientApp, Postgres, PostgresProvider, Reason},
    deletion::{database_kind::DatabaseKind, permit::DataKind},
    platform::{
        cache::Cache,
        key::Key,
        warnings::Warning,
        watch_builder::{Optional, WatchBuilder},
    },
};

/// Provides an app's database by means of one object, named as [`super::name`] says.
pub(crate) trait Provider: Sync {
    fn info(&self) -> &'static ProviderInfo;

    fn kind(&self) -> DataKind {
        DataKind::Database(&self.info().kind)
    }

    /// Returns the Secret with the app's credentials for the database of this name.
    fn secret(&self, database: &str) -> String;

    /// Returns all Secrets without which the database cannot be opened.
    fn secrets(&self, database: &str) -> Vec<String> {
        vec![self.secret(database)]
    }

    /// Returns the key of [`Provider::secret`] with the user's name.
    fn user_key(&self) -> &'static str {
        "user"
    }

    /// Returns the Service through which an app with this spec reaches the database.
    fn service(&self, postgres: &Postgres, database: &str) -> String;

    /// Returns true if a ready address of that Service, where [`DatabaseCaches::endpoints`] tells of one, proves more than the database
    /// object says.
    fn needs_address(&self, _postgres: &Postgres) -> bool {
        true
    }

    /// Returns why the provider has no PostgreSQL of this major version; `None`: it has.
    fn version_error(&self, version: &str, config: &Config) -> Option<String>;

    /// Returns the database object with these backup targets.
    fn document(&self, request: &DatabaseRequest, targets: &BackupTargets) -> Value;

    /// Returns where the backups of a database are to go: as the spec asks, and as already configured.
    fn targets(&self, _request: &DatabaseRequest, found: Option<&DatabaseObject>) -> Result<BackupTargets, String> {
        Ok(found.map(|found| found.targets.clone()).unwrap_or_default())
    }

    /// Returns the objects beside the database with this uid. They are applied before its document names them, and owned by it.
    fn parts(&self, _request: &DatabaseRequest, _targets: &BackupTargets, _uid: &str) -> Vec<DatabasePart> {
        Vec::new()
    }

    /// Returns what a spec needs objects of this kind for, one of [`DatabaseCaches::parts`].
    fn part_use(&self, _kind: &str, _postgres: &Postgres) -> PartUse {
        PartUse::None
    }

    /// Returns true if the operator can back up a database with this spec.
    fn backs_up(&self, _postgres: &Postgres) -> bool {
        true
    }

    /// Returns when the database's own operator makes backups, if that does not report whether it has.
    fn backup_schedules(&self, _request: &DatabaseRequest) -> Vec<String> {
        Vec::new()
    }

    /// Returns the data source of a new database, unless its document always contains it.
    fn source(&self, _request: &DatabaseRequest) -> Option<Value> {
        None
    }

    /// Adds the data source to a document.
    fn set_data_source(&self, _document: &mut Value, _source: &Value) {}

    /// Closes the database in a document for pods of other namespaces, where its kind supports that.
    fn isolate(&self, _document: &mut Value) {}

    /// Starts the watches for the state of databases.
    fn watch(&self, builder: &WatchBuilder<'_, ClientApp>) -> DatabaseCaches;

    /// Returns the label selector of a database's pods, if the database object does not say why they do not run.
    fn pods(&self, _database: &str) -> Option<String> {
        None
    }

    /// Returns why the pods of the database with this uid do not run.
    fn pods_problem(&self, _database: &Key, _uid: &str, _pods: &[Pod]) -> Option<String> {
        None
    }

    /// Returns where backups are stored that outlive the database.
    fn lasting_backups(&self, _postgres: &Postgres) -> Option<String> {
        None
    }

    /// Returns how a user stops or deletes a database that its app has left, as the end of a sentence; empty: no app leaves one.
    fn left(&self, _database: &Key) -> String {
        String::new()
    }

    /// Returns what the deletion of a database in this state waits for.
    fn deleting(&self, database: &str, state: Option<DatabaseState>) -> String;

    fn summary(&self, object: &DynamicObject) -> Summary;
}

/// Tells whether a database of the first name has an object of the second.
pub(crate) type NameMatcher = fn(&str, &str) -> bool;

/// Holds the facts that all databases of a provider share.
pub(crate) struct ProviderInfo {
    pub(crate) name: PostgresProvider,
    /// Its name in sentences.
    pub(crate) title: &'static str,
    pub(crate) kind: DatabaseKind,
    /// The kinds that own the parts of a database.
    pub(crate) owners: &'static [&'static str],
    /// The backups that its controller makes by schedule; `None`: the database objects report those themselves.
    pub(crate) backups: Option<BackupWords>,
    /// The label on each volume of a database; its value is the name of the database object.
    pub(crate) volume_label: &'static str,
    pub(crate) names_volume: NameMatcher,
    /// Holds what is deleted with a database by that label alone; `None`: nothing.
    pub(crate) deletes_by_label: Option<DeletesByLabel>,
    /// True if a deleted database object leaves its volumes and Secrets without a mark, so that the next one of its name reuses
    /// them.
    pub(crate) reuses_leftovers: bool,
    /// Tells which volumes have a database's data, if the garbage collector deletes its volumes and Secrets as soon as the database
    /// object is gone; `None`: they stay.
    pub(crate) data_goes_with_object: Option<NameMatcher>,
    /// Holds how a user restores a database that was deleted with its data.
    pub(crate) to_restore: &'static str,
    /// Holds what a cluster admin has to do if the cluster does not know the kind.
    pub(crate) to_install: &'static str,
    /// Holds what to check if a database object has no status.
    pub(crate) to_report: fn(&Key) -> String,
    /// Where its controller logs what fails.
    pub(crate) log: &'static str,
    /// Holds what a user can do to get another major version.
    pub(crate) to_change_version: &'static str,
}

/// Names the backups that a provider's controller makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BackupWords {
    pub(crate) kind: &'static str,
    /// Their name for `kubectl`.
    pub(crate) resource: &'static str,
    /// Says why the controller makes none, after a colon.
    pub(crate) none: &'static str,
}

/// Tells what a spec needs objects of a kind for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartUse {
    /// Nothing: one that an earlier spec has asked for is deleted, if that loses nothing.
    None,
    /// They are read, and may be anyone's.
    Read,
    Made,
}

/// An object beside a database, which backs it up or leads to it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DatabasePart {
    pub(crate) resource: ApiResource,
    /// For server-side apply.
    pub(crate) document: Value,
}

/// The watch of one kind of such objects.
pub(crate) struct PartCache {
    pub(crate) kind: &'static str,
    pub(crate) resource: fn() -> ApiResource,
    /// Returns the name of the object that a database has.
    pub(crate) name: fn(&str) -> String,
    /// Holds what a cluster admin has to do if the cluster does not know the kind.
    pub(crate) to_install: &'static str,
    pub(crate) objects: Arc<Optional<SeenPart>>,
}

/// Holds what a provider deletes by a label, even objects that it did not create.
pub(crate) struct DeletesByLabel {
    /// The kind, a further label selector, and the names that the provider gives.
    pub(crate) objects: &'static [(DataKind, Option<&'static str>, NameMatcher)],
    /// The reason of the hold for an object with another name.
    pub(crate) reason: Reason,
}

pub(crate) struct DatabaseCaches {
    pub(crate) objects: Arc<Optional<DatabaseObject>>,
    /// `None`: the database objects themselves report whether they are backed up.
    pub(crate) backups: Option<Arc<Optional<SeenBackup>>>,
    pub(crate) parts: Vec<PartCache>,
    /// True if an EndpointSlice has a ready address, filed under its Service. `None`: a ready database object always has one.
    pub(crate) endpoints: Option<Arc<Cache<bool>>>,
    /// Warnings about objects of this kind, which have the databases' names; `None`: the database objects say everything
    /// themselves.
    pub(crate) warnings: Option<(&'static str, Arc<Cache<Warning>>)>,
}

impl fmt::Debug for dyn Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.info().name.fmt(f)
    }
}

impl PartialEq for dyn Provider {
    fn eq(&self, other: &dyn Provider) -> bool {
        self.info().name == other.info().name
    }
}

impl Eq for dyn Provider {}

/// A database object in a few words.
pub(crate) struct Summary {
    pub(crate) state: Option<String>,
    pub(crate) is_ready: bool,
    pub(crate) version: Option<String>,
    /// Each with the number of ready and of desired instances.
    pub(crate) parts: Vec<(String, Option<(i64, i64)>)>,
}
