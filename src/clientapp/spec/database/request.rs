//! Computes what a spec asks for in a database object, and where its backups go. **Pure.**

use std::fmt;

use kube::api::ApiResource;
use serde_json::{Value, json};

use crate::{
    crd::{DeletionPolicy, Postgres, label},
    platform::key::Key,
};

/// Name of the app's user and database.
pub(super) const USER: &str = "clientapp";

/// Holds what a spec asks for in a database object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DatabaseRequest {
    pub(super) app: Key,
    /// Name of the database object.
    pub(super) name: String,
    /// uid of the ClientApp; none if it is not in a cluster.
    pub(super) uid: Option<String>,
    pub(super) postgres: Postgres,
    pub(super) deletion_policy: DeletionPolicy,
    /// True if upgrades need a backup first.
    pub(super) before_upgrades: bool,
    pub(super) percona_cr_version: String,
}

/// Where the backups of a database go, as far as this operator configured it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BackupTargets {
    /// To a volume of the database itself.
    pub(crate) volume: bool,
    pub(crate) repository: Option<BackupLocation>,
}

/// A directory in object storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackupLocation {
    /// Bucket or container as a URL.
    pub(crate) store: String,
    /// Its endpoint, if the kind of storage has no fixed one.
    pub(crate) endpoint: Option<String>,
    pub(crate) path: String,
}

impl fmt::Display for BackupLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BackupLocation { store, endpoint, path } = self;
        write!(f, "{store}{path}")?;
        endpoint.iter().try_for_each(|endpoint| write!(f, " at {endpoint}"))
    }
}

/// Returns a document for server-side apply.
pub(super) fn document(resource: &ApiResource, app: &Key, name: &str, spec: Value) -> Value {
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
