//! The app's database: what every provider does alike, and [`Provider`] for what each does in its own way.
//!
//! **Pure**, but for the watches that a provider starts. A database that exists already has no provider ([`external`]).

mod external;
mod percona;
mod standalone;

use std::{fmt, sync::Arc};

use jiff::Timestamp;
use kube::{
    Resource, ResourceExt as _,
    api::{ApiResource, DynamicObject, Patch},
};
use serde_json::{Value, json};

use super::{
    build::values,
    error::{InvalidSpec, invalid},
    names::digest,
};
use crate::{
    config::Config,
    crd::{
        BackupRecord, BackupState, ClientApp, DeletionPolicy, Guard, Postgres, PostgresProvider, Resources, annotation,
        label, parameters, quantity,
    },
    destroy::permit::Kind,
    runtime::{
        cache::{Cache, Entry},
        controller::Objects,
        feeder::{Feeder, Optional},
        key::{Key, key_of},
        watch::owner,
    },
};

/// User and database of the app.
const USER: &str = "clientapp";

pub(crate) static ALL: [&dyn Provider; 2] = [&percona::Percona, &standalone::Standalone];

/// `None`: the database exists already.
pub(crate) fn provider(name: PostgresProvider) -> Option<&'static dyn Provider> {
    match name {
        PostgresProvider::Percona => Some(&percona::Percona),
        PostgresProvider::Standalone => Some(&standalone::Standalone),
        PostgresProvider::External => None,
    }
}

/// Whether a database is made from objects of this kind.
pub(crate) fn is_database(kind: Kind) -> bool {
    ALL.iter().any(|provider| provider.kind() == kind)
}

/// Has a database made for an app, from one object that is named [`Key::database`].
pub(crate) trait Provider: Sync {
    fn facts(&self) -> &'static Facts;

    /// Of the database object.
    fn kind(&self) -> Kind {
        self.facts().kind
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
    pub(crate) kind: Kind,
    pub(crate) resource: fn() -> ApiResource,
    /// The kinds of objects that own what a database consists of.
    pub(crate) owners: &'static [&'static str],
    /// The kind of the objects that backups are; `None`: the database object tells of the last backup.
    pub(crate) backup_kind: Option<&'static str>,
    /// On each volume of a database, with the name of the database object.
    pub(crate) volume_label: &'static str,
    pub(crate) names_volume: Names,
    /// What is deleted with a database by that label alone, or that and this selector, and so has to have names of this provider's.
    pub(crate) deletes_by_label: &'static [(Kind, Option<&'static str>, Names)],
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

/// The database that the app uses.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredDatabase {
    /// How the app reaches it.
    pub(crate) address: values::Database,
    /// What it is made from; `None`: it exists already.
    pub(crate) object: Option<DesiredObject>,
}

/// A database object that shall exist.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredObject {
    pub(crate) provider: &'static dyn Provider,
    pub(crate) name: String,
    pub(crate) postgres_version: i64,
    pub(crate) storage_bytes: f64,
    /// Closed for pods of other namespaces from the beginning, where its kind can be.
    pub(crate) isolated: bool,
    order: Order,
}

/// What a spec asks of a database object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Order {
    app: Key,
    /// Of the ClientApp; none where that is not in a cluster.
    uid: Option<String>,
    postgres: Postgres,
    deletion_policy: DeletionPolicy,
    /// Backups are made before an upgrade.
    before_upgrades: bool,
    percona_cr_version: String,
}

/// Where the backups of a database go, as far as this operator has configured it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BackupTargets {
    /// A volume of the database's own.
    pub(crate) volume: bool,
    pub(crate) repository: Option<Place>,
}

/// A directory in object storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Bucket or container as a URL.
    pub(crate) store: String,
    /// Where that is served, where it may be anywhere.
    pub(crate) endpoint: Option<String>,
    pub(crate) path: String,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Place { store, endpoint, path } = self;
        write!(f, "{store}{path}")?;
        endpoint.iter().try_for_each(|endpoint| write!(f, " at {endpoint}"))
    }
}

impl DesiredObject {
    /// Kind and name.
    pub(crate) fn described(&self) -> String {
        format!("{} {}", self.provider.kind().as_str(), self.name)
    }

    pub(crate) fn document(&self, targets: &BackupTargets) -> Document {
        let object = self.provider.document(&self.order, targets);
        let digest = digest(&[&object.to_string(), &format!("{:?}", self.order.deletion_policy)]);
        Document { object, digest }
    }

    /// A target of backups, once there, is never taken away: the backups would go with it.
    ///
    /// # Errors
    /// It would be another than there is.
    pub(crate) fn targets(&self, found: Option<&BackupTargets>) -> Result<BackupTargets, String> {
        self.provider.targets(&self.order, found)
    }

    /// What a new one is made from. Never again: where there was a database, its volumes may be there still.
    pub(crate) fn source(&self) -> Option<Value> {
        self.provider.source(&self.order.postgres)
    }
}

/// A document for server-side apply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    pub(crate) object: Value,
    /// Of the object, and of what [`Document::applied`] adds to it.
    pub(crate) digest: String,
}

impl Document {
    /// With its digest, and stamped with the uid of its app. It has no ownerReference, by which the garbage collector would delete
    /// the database; and it says which object it is meant for, if one was seen.
    pub(crate) fn applied(&self, app_uid: &str, uid: Option<&str>) -> Value {
        let mut document = self.object.clone();
        document["metadata"]["annotations"][annotation::SPEC_DIGEST] = json!(self.digest);
        document["metadata"]["annotations"][annotation::OWNER_UID] = json!(app_uid);
        if let Some(uid) = uid {
            document["metadata"]["uid"] = json!(uid);
        }
        document
    }
}

/// The database that a spec asks for; open for pods of other namespaces where those that the Profile is for are.
pub(super) fn desired(key: &Key, app: &ClientApp, config: &Config, open: bool) -> Result<DesiredDatabase, InvalidSpec> {
    let postgres = &app.spec.postgres;
    let Some(provider) = provider(postgres.provider) else { return external::desired(postgres) };
    if let Some(unsupported) = provider.unsupported(&postgres.version, config) {
        return Err(invalid("spec.postgres.version", format!("{unsupported}, not {:?}", postgres.version)));
    }
    if let Some(problem) = postgres.resources.as_ref().and_then(Resources::problem) {
        return Err(invalid("spec.postgres.resources", problem));
    }
    if let Some(problem) = parameters::problem(&postgres.parameters) {
        return Err(invalid("spec.postgres.parameters", problem));
    }
    let storage_bytes = quantity::parse_positive(&postgres.storage_size)
        .ok_or_else(|| invalid("spec.postgres.storageSize", "must be a quantity above zero such as 1Gi"))?;
    let host = format!("{}.{}.svc.{}", provider.service(key), key.namespace, config.cluster_domain);
    Ok(DesiredDatabase {
        address: values::Database {
            host: values::From::Value(host),
            name: values::From::Value(USER.to_owned()),
            user: Some(USER.to_owned()),
            secret: provider.secret(key),
            user_key: "user".to_owned(),
            password_key: "password".to_owned(),
        },
        object: Some(DesiredObject {
            provider,
            name: key.database(),
            postgres_version: postgres.version.parse().unwrap_or_default(),
            storage_bytes,
            isolated: !open,
            order: Order {
                app: key.clone(),
                uid: app.metadata.uid.clone(),
                postgres: postgres.clone(),
                deletion_policy: app.spec.deletion_policy,
                before_upgrades: app.spec.upgrade.backup,
                percona_cr_version: config.percona_cr_version.clone(),
            },
        }),
    })
}

/// For server-side apply.
fn document(resource: &ApiResource, app: &Key, name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {
            "name": name,
            "namespace": app.namespace,
            "labels": {label::MANAGED_BY: label::OPERATOR, label::APP: app.name},
        },
        "spec": spec,
    })
}

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
    fn entry<K: Resource>(guard: &Guard<K>, read: fn(&K, DatabaseObject) -> DatabaseObject) -> Entry<DatabaseObject>
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
fn changed(apps: &Objects<ClientApp>, database: &Key) {
    apps.trigger_in(&database.namespace, |app| key_of(app).database() == database.name);
}
