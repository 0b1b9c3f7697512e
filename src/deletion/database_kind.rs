//! Describes how kinds of databases differ when one is deleted. **Pure.**

use std::hash::{Hash, Hasher};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject};
use serde_json::Value;

/// A kind of object that stands for a database. Its provider only describes the deletion here; `deletion` carries it out.
#[derive(derive_more::Debug)]
#[debug("{name}")]
pub(crate) struct DatabaseKind {
    pub(crate) name: &'static str,
    pub(crate) resource: fn() -> ApiResource,
    /// Returns the patch that makes the deletion of a database include its volumes and Secrets, unless that is the default: a later
    /// database of its name would get them. It is sent just before the deletion, so that a database which a user deletes by mistake
    /// keeps its data.
    pub(crate) delete_with_data: fn(&ObjectMeta) -> Option<Value>,
    /// Makes a patch of a database ask for the opposite, because an interrupted deletion may have sent the patch above.
    pub(crate) retain_data: fn(&ObjectMeta, &mut Value),
    pub(crate) unowned_dependents: Option<UnownedDependents>,
}

/// Objects that the operator must delete with a database, because the database does not own them.
pub(crate) struct UnownedDependents {
    pub(crate) resource: fn() -> ApiResource,
    /// Returns true if an object is deleted with this database. There is no other proof.
    pub(crate) is_deleted_with: fn(&DynamicObject, &ObjectMeta) -> bool,
}

impl PartialEq for DatabaseKind {
    fn eq(&self, other: &DatabaseKind) -> bool {
        self.name == other.name
    }
}

impl Eq for DatabaseKind {}

impl Hash for DatabaseKind {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}
