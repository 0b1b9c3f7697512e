//! Reads past the caches: an object may have no label by which a watch shows it, and a cache may be outdated. An **effect** that only
//! reads.

use kube::{
    Api,
    api::{ApiResource, DynamicObject, ListParams, PartialObjectMeta},
};

use super::{
    context::{PostgresqlContext, PostgresqlObject},
    error::Error,
    observed::Kind,
    watches::whose,
};
use crate::{crd::label, platform::key::Key};

/// Returns the API for a kind in the namespace of this Postgresql.
pub(crate) fn api(ctx: &PostgresqlContext, key: &Key, resource: &ApiResource) -> Api<DynamicObject> {
    Api::namespaced_with(ctx.client.clone(), &key.namespace, resource)
}

/// Returns the metadata of an object in the namespace of this Postgresql; `None`: there is none.
pub(crate) async fn metadata(
    ctx: &PostgresqlContext,
    key: &Key,
    resource: &ApiResource,
    name: &str,
) -> Result<Option<PartialObjectMeta<DynamicObject>>, Error> {
    let found = api(ctx, key, resource).get_metadata_opt(name).await;
    found.map_err(Error::api(format!("look for {} {}/{name}", resource.kind, key.namespace)))
}

/// Lists the objects with this Postgresql's name as label that belong to its uid.
pub(crate) async fn owned(
    ctx: &PostgresqlContext,
    postgres: &PostgresqlObject<'_>,
    kind: Kind,
) -> Result<Vec<PartialObjectMeta<DynamicObject>>, Error> {
    let params = ListParams::default().labels(&format!("{}={}", label::POSTGRESQL, postgres.key.name));
    let listed = api(ctx, postgres.key, &kind.resource()).list_metadata(&params).await;
    let listed = listed.map_err(Error::api(format!("list each {kind} of Postgresql {}", postgres.key)))?;
    Ok(listed.items.into_iter().filter(|object| whose(object).is_ok_and(|owner| owner == postgres.uid())).collect())
}
