//! What is different from one kind of databases to another when one is deleted. **Pure.**

use std::hash::{Hash, Hasher};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject};
use serde_json::Value;

/// A kind of objects from which databases are made. The provider of them says all of it, and carries out none.
#[derive(derive_more::Debug)]
#[debug("{name}")]
pub(crate) struct DatabaseKind {
    pub(crate) name: &'static str,
    pub(crate) resource: fn() -> ApiResource,
    /// The patch that has a database take its volumes and Secrets along, where it leaves them unless asked: a later database of its
    /// name would get them. That is asked for just before the deletion, so that a database which is deleted by mistake keeps its data.
    pub(crate) takes_along: fn(&ObjectMeta) -> Option<Value>,
    /// Has a patch of a database ask for the opposite: a deletion that had asked for them may have been cut off.
    pub(crate) leaves_behind: fn(&ObjectMeta, &mut Value),
    pub(crate) unowned: Option<Unowned>,
}

/// Objects that are to go with a database and are not owned by it.
pub(crate) struct Unowned {
    pub(crate) resource: fn() -> ApiResource,
    /// Whether it goes with this database, on no other proof.
    pub(crate) goes_with: fn(&DynamicObject, &ObjectMeta) -> bool,
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
