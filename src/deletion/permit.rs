//! Decides, **pure**, if an object that holds or opens data may be destroyed because its owner is deleted.
//!
//! Both sides have to agree. The owner, just read from the API server, has the object's uid in its status, and the object
//! itself shows that it was made for this owner. Neither alone is enough: any user of the namespace can write labels and
//! annotations, and any user with the right to it can write a status.

use std::{fmt, marker::PhantomData};

use jiff::Timestamp;
use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::Resource;
use serde::de::DeserializeOwned;

use super::database_kind::DatabaseKind;
use crate::crd::{Guard, Owned, label};

/// The finalizer of an object that is deleted with `--cascade=orphan` (k8s.io/apimachinery, `FinalizerOrphanDependents`).
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// A kind of object that holds data, or opens them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum DataKind {
    Volume,
    Secret,
    /// A database object.
    Database(&'static DatabaseKind),
}

impl DataKind {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            DataKind::Volume => "PersistentVolumeClaim",
            DataKind::Secret => "Secret",
            DataKind::Database(kind) => kind.name,
        }
    }

    pub(crate) fn is_database(self) -> bool {
        matches!(self, DataKind::Database(_))
    }

    /// Returns the entry of such an object in its owner's status.
    pub(crate) fn owned(self, target: &ObjectMeta) -> Owned {
        Owned {
            kind: self.as_str().to_owned(),
            name: target.name.clone().unwrap_or_default(),
            uid: target.uid.clone().unwrap_or_default(),
        }
    }
}

/// Says what an owner's spec asks for when it is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeletionIntent {
    Delete,
    Retain,
    Suspended,
}

/// An object with data of its own.
pub(crate) trait DataOwner:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + fmt::Debug + DeserializeOwned
{
    fn deletion_intent(&self) -> DeletionIntent;

    fn owned(&self) -> &[Owned];

    /// Returns true if its status says that it is deleted with `--cascade=orphan`.
    fn orphaned(&self) -> bool;

    /// Returns true if the target itself shows that this owner made or adopted it.
    fn is_marked_as_owned(owner: &ObjectMeta, target: &ObjectMeta) -> bool;
}

/// Says why nothing may be destroyed for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum GrantDenied {
    /// Or another object has its name.
    #[error("it is gone")]
    Gone,
    #[error("it is not being deleted")]
    Alive,
    #[error("it is deleted with --cascade=orphan")]
    Orphaned,
    #[error("the stored object does not decode, and so its deletionPolicy is not known")]
    Unreadable,
    #[error("spec.suspend is true")]
    Suspended,
    #[error("spec.deletionPolicy is Retain")]
    Retained,
}

/// Proof that an object's data are deleted with it. Only [`grant`] makes one.
pub(crate) struct DeletionGrant<K> {
    meta: ObjectMeta,
    owned: Vec<Owned>,
    kind: PhantomData<fn() -> K>,
}

/// Permission to destroy one object. Only [`Mandate::permit`] and [`dependent`] make one.
#[derive(Debug)]
pub(crate) struct Permit {
    pub(super) kind: DataKind,
    pub(super) namespace: String,
    pub(super) target: ObjectMeta,
}

/// An object that the operator retains, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} {name} {because}", kind.as_str())]
pub(crate) struct RetainedObject {
    pub kind: DataKind,
    pub name: String,
    /// The rest of a sentence that begins with kind and name.
    pub because: String,
}

/// Returns an object that is being deleted with what belongs to it. `found` is what the API server has now.
fn deleted<'a, K: DataOwner>(found: Option<&'a Guard<K>>, uid: &str) -> Result<(&'a ObjectMeta, &'a K), GrantDenied> {
    let found = found.filter(|found| found.metadata.uid.as_deref() == Some(uid)).ok_or(GrantDenied::Gone)?;
    if found.metadata.deletion_timestamp.is_none() {
        return Err(GrantDenied::Alive);
    }
    if is_orphaned(&found.metadata) {
        return Err(GrantDenied::Orphaned);
    }
    let object = found.object.as_ref().map_err(|_| GrantDenied::Unreadable)?;
    if object.orphaned() {
        return Err(GrantDenied::Orphaned);
    }
    match object.deletion_intent() {
        DeletionIntent::Suspended => Err(GrantDenied::Suspended),
        DeletionIntent::Delete | DeletionIntent::Retain => Ok((&found.metadata, object)),
    }
}

/// Returns the grant to delete the data of the object with this uid, if they are deleted with it.
pub(crate) fn grant<K: DataOwner>(found: Option<&Guard<K>>, uid: &str) -> Result<DeletionGrant<K>, GrantDenied> {
    let (meta, object) = deleted(found, uid)?;
    if object.deletion_intent() != DeletionIntent::Delete {
        return Err(GrantDenied::Retained);
    }
    Ok(DeletionGrant { meta: meta.clone(), owned: object.owned().to_vec(), kind: PhantomData })
}

/// Returns permission to destroy a Secret under either policy: the deleted object has it on record and is its only owner, so that
/// the garbage collector would delete it next.
pub(crate) fn dependent<K: DataOwner>(
    found: Option<&Guard<K>>,
    uid: &str,
    secret: ObjectMeta,
) -> Result<Option<Permit>, GrantDenied> {
    let (meta, object) = deleted(found, uid)?;
    let owners = secret.owner_references.as_deref().unwrap_or_default();
    let is_its = !owners.is_empty() && owners.iter().all(|owner| owner.uid == uid);
    let namespace = meta.namespace.clone().unwrap_or_default();
    let permit = is_its && object.owned().contains(&DataKind::Secret.owned(&secret));
    Ok(permit.then_some(Permit { kind: DataKind::Secret, namespace, target: secret }))
}

/// Returns true if an object is deleted with `--cascade=orphan` and the garbage collector has not processed it yet.
pub(crate) fn is_orphaned(meta: &ObjectMeta) -> bool {
    meta.finalizers.iter().flatten().any(|finalizer| finalizer == ORPHAN)
}

/// Returns true if an object is deleted with `--cascade=foreground` and the garbage collector is still deleting its dependents.
pub(crate) fn takes_dependents(meta: &ObjectMeta) -> bool {
    meta.finalizers.iter().flatten().any(|finalizer| finalizer == FOREGROUND)
}

impl<K: DataOwner> DeletionGrant<K> {
    /// Returns the permit to destroy this object, if it may be destroyed.
    pub(crate) fn permit(&self, kind: DataKind, target: ObjectMeta) -> Result<Permit, RetainedObject> {
        let name = target.name.clone().unwrap_or_default();
        let uid = target.uid.clone().unwrap_or_default();
        let owner = || format!("{} {}", K::kind(&()), self.meta.name.as_deref().unwrap_or_default());
        let kept = |because: String| Err(RetainedObject { kind, name: name.clone(), because });
        if uid.is_empty() || !self.owned.contains(&kind.owned(&target)) {
            return kept(format!("stays: it is not on record in the status of {} with its uid {uid}", owner()));
        }
        if !K::is_marked_as_owned(&self.meta, &target) {
            return kept(format!("stays: it does not show that it was made for {}", owner()));
        }
        match claim(&self.meta, &target) {
            Some(claim) => kept(format!("stays: {claim}")),
            None => Ok(Permit { kind, namespace: self.meta.namespace.clone().unwrap_or_default(), target }),
        }
    }
}

/// Returns who else has a claim to an object.
fn claim(owner: &ObjectMeta, target: &ObjectMeta) -> Option<String> {
    let label = |key: &str| target.labels.as_ref().and_then(|labels| labels.get(key));
    if let Some(other) = target.owner_references.iter().flatten().find(|other| Some(&other.uid) != owner.uid.as_ref()) {
        return Some(format!("{} {} owns it", other.kind, other.name));
    }
    if let Some(from) = label(label::RETAINED_FROM) {
        return Some(format!("its label {} says that {from} has left it behind", label::RETAINED_FROM));
    }
    let manager = label(label::MANAGED_BY).filter(|by| ![label::OPERATOR, "Helm"].contains(&by.as_str()));
    manager.map(|manager| format!("its label {} says that {manager} manages it", label::MANAGED_BY))
}

/// Returns true if the object with this uid is among the owners of another.
pub(crate) fn is_owned_by(object: &ObjectMeta, uid: &str) -> bool {
    object.owner_references.iter().flatten().any(|owner| owner.uid == uid)
}

/// Returns true if an object is no older than its owner. Both times are the API server's.
pub(crate) fn is_younger(owner: &ObjectMeta, target: &ObjectMeta) -> bool {
    let created = |meta: &ObjectMeta| -> Option<Timestamp> { Some(meta.creation_timestamp.as_ref()?.0) };
    created(owner).zip(created(target)).is_some_and(|(owner, target)| target >= owner)
}

#[cfg(test)]
mod tests;
