//! Looks for the dumps that `spec.restore` names, in the API server, as no watch covers them. An **effect** that only reads.

use kube::ResourceExt as _;

use crate::{
    crd::{Restore, label},
    platform::key::Key,
    postgresql::{context::PostgresqlContext, error::Error, names, observed::DumpSource, uncached::metadata},
};

/// Looks for the dumps. A label says which Postgresql may be restored from a volume or Secret: a user who may create Postgresqls in a namespace may not
/// necessarily read all of its volumes, or what its Secrets give access to.
pub(super) async fn dump_source(
    ctx: &PostgresqlContext,
    (key, uid): (&Key, &str),
    restore: &Restore,
) -> Result<DumpSource, Error> {
    let Some((resource, name)) = restore.holder() else { return Ok(DumpSource::Missing) };
    let Some(source) = metadata(ctx, key, &resource, name).await? else { return Ok(DumpSource::Missing) };
    let labels = source.labels();
    let says = |label: &str| labels.get(label) == Some(&key.name);
    // The operator's own permission, for a copy: for one object, and only for what this namespace has.
    let copies =
        labels.get(label::RESTORE_TO_UID).is_some_and(|to| to == uid) && is_of_namespace(restore, &key.namespace);
    let own = match (&restore.claim, &restore.store) {
        (Some(claim), _) => {
            let left = says(label::RETAINED_FROM) && labels.contains_key(label::RETAINED_KIND);
            *claim == names::backup(&key.name) && (left || says(label::POSTGRESQL))
        }
        (None, Some(store)) => format!("/{}", store.path).ends_with(&format!("/{}/{}", key.namespace, key.name)),
        (None, None) => false,
    };
    Ok(match source.metadata.deletion_timestamp {
        Some(_) => DumpSource::Deleting,
        None if own || copies || says(label::RESTORE_TO) => DumpSource::Usable,
        None => DumpSource::NotAllowed,
    })
}

/// Returns true for dumps on a volume, or in the repository of a Postgresql of this namespace.
fn is_of_namespace(restore: &Restore, namespace: &str) -> bool {
    restore.store.as_ref().is_none_or(|store| {
        let mut words = store.path.rsplit('/');
        words.next().is_some() && words.next() == Some(namespace)
    })
}
