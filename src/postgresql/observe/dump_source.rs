//! Looks for the dumps that `spec.restore` names, in the API server, as no watch covers them. An **effect** that only reads.

use std::fmt::Debug;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use kube::{Api, Resource, api::ObjectMeta, core::NamespaceResourceScope};
use serde::de::DeserializeOwned;

use crate::{
    crd::{Restore, label},
    platform::key::Key,
    postgresql::{context::Ctx, error::Error, names, observed::DumpSource},
};

/// A label says which Postgresql may be restored from a volume or Secret: a user who may create Postgresqls in a namespace may not
/// necessarily read all of its volumes, or what its Secrets give access to.
pub(super) async fn dump_source(ctx: &Ctx, key: &Key, restore: &Restore) -> Result<DumpSource, Error> {
    let found = match (&restore.claim, &restore.store) {
        (Some(claim), _) => metadata::<PersistentVolumeClaim>(ctx, key, claim).await?,
        (None, Some(store)) => metadata::<Secret>(ctx, key, &store.bucket.credentials_secret.name).await?,
        (None, None) => None,
    };
    let Some(found) = found else { return Ok(DumpSource::Missing) };
    let labels = found.labels.unwrap_or_default();
    let says = |label: &str| labels.get(label) == Some(&key.name);
    let own = match (&restore.claim, &restore.store) {
        (Some(claim), _) => {
            let left = says(label::RETAINED_FROM) && labels.contains_key(label::RETAINED_KIND);
            *claim == names::backup(&key.name) && (left || says(label::POSTGRESQL))
        }
        (None, Some(store)) => format!("/{}", store.path).ends_with(&format!("/{}/{}", key.namespace, key.name)),
        (None, None) => false,
    };
    Ok(match found.deletion_timestamp {
        Some(_) => DumpSource::Going,
        None if own || says(label::RESTORE_TO) => DumpSource::Usable,
        None => DumpSource::NotAllowed,
    })
}

async fn metadata<K>(ctx: &Ctx, key: &Key, name: &str) -> Result<Option<ObjectMeta>, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let found = api.get_metadata_opt(name).await;
    let found = found.map_err(Error::api(format!("look for {} {}/{name}", K::kind(&()), key.namespace)))?;
    Ok(found.map(|found| found.metadata))
}
