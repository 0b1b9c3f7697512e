//! A database that shall be. **Pure.**

use serde_json::{Value, json};

use super::{
    order::{BackupTargets, Order},
    provider::Provider,
};
use crate::{
    clientapp::{build::values, names::digest},
    crd::annotation,
};

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
    pub(super) order: Order,
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
