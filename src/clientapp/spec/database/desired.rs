//! The desired database. **Pure.**

use serde_json::{Value, json};

use super::{
    object::DatabaseObject,
    provider::{DatabasePart, PartUse, Provider},
    request::{BackupTargets, DatabaseRequest},
};
use crate::{
    clientapp::spec::{names::digest, values},
    crd::annotation,
};

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredDatabase {
    pub(crate) address: values::DatabaseAddress,
    /// The database object; `None`: the database exists already.
    pub(crate) object: Option<DesiredObject>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredObject {
    pub(crate) provider: &'static dyn Provider,
    pub(crate) name: String,
    pub(crate) postgres_version: i64,
    pub(crate) storage_bytes: f64,
    /// True if pods of other namespaces cannot reach it from the beginning, where its kind supports that.
    pub(crate) isolated: bool,
    pub(super) request: DatabaseRequest,
}

impl DesiredObject {
    /// Returns kind and name.
    pub(crate) fn described(&self) -> String {
        format!("{} {}", self.provider.kind().as_str(), self.name)
    }

    pub(crate) fn document(&self, targets: &BackupTargets) -> DatabaseDocument {
        let object = self.provider.document(&self.request, targets);
        let parts = self.provider.parts(&self.request, targets, "");
        let mut texts = vec![object.to_string(), format!("{:?}", self.request.deletion_policy)];
        texts.extend(parts.iter().map(|part| part.document.to_string()));
        let digest = digest(&texts.iter().map(String::as_str).collect::<Vec<_>>());
        DatabaseDocument { object, digest }
    }

    /// Returns the Service through which the app reaches the database.
    pub(crate) fn service(&self) -> String {
        self.provider.service(&self.request.postgres, &self.name)
    }

    /// Returns true if an address of that Service proves what the database object does not say.
    pub(crate) fn needs_address(&self) -> bool {
        self.provider.needs_address(&self.request.postgres)
    }

    /// Returns the objects beside the database with this uid, with the digest of its document.
    pub(crate) fn parts(&self, targets: &BackupTargets, uid: &str) -> Vec<DatabasePart> {
        let mut parts = self.provider.parts(&self.request, targets, uid);
        let digest = self.document(targets).digest;
        for part in &mut parts {
            part.document["metadata"]["annotations"][annotation::SPEC_DIGEST] = json!(digest);
        }
        parts
    }

    /// Returns what objects of this kind are needed for.
    pub(crate) fn part_use(&self, kind: &str) -> PartUse {
        self.provider.part_use(kind, &self.request.postgres)
    }

    /// Returns when the database's own operator makes backups.
    pub(crate) fn backup_schedules(&self) -> Vec<String> {
        self.provider.backup_schedules(&self.request)
    }

    /// Returns the targets of its backups. One is never removed: the backups would be deleted with it.
    ///
    /// # Errors
    /// The target would differ from the existing one.
    pub(crate) fn targets(&self, found: Option<&DatabaseObject>) -> Result<BackupTargets, String> {
        self.provider.targets(&self.request, found)
    }

    pub(crate) fn storage_class(&self) -> Option<&str> {
        self.request.postgres.storage_class_name.as_deref()
    }

    /// Returns the data source of a new database. It is used only once: if there ever was a database, its volumes may still exist.
    pub(crate) fn source(&self) -> Option<Value> {
        self.provider.source(&self.request)
    }
}

/// A document for server-side apply.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DatabaseDocument {
    pub(crate) object: Value,
    /// Digest of the object, and of what [`DatabaseDocument::applied`] adds to it.
    pub(crate) digest: String,
}

impl DatabaseDocument {
    /// Returns the document with its digest, and stamped with the uid of its app. It has no ownerReference, so that the garbage
    /// collector does not delete the database. It names the uid of the object that it is meant for, if one was observed.
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
