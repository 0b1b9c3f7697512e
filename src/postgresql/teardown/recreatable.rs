//! Deletes what holds no data: it could be created again. An **effect**.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    crd::{Reason, label},
    platform::api::ignore_not_found,
    postgresql::{
        act::apply::delete,
        context::{PostgresqlContext, PostgresqlObject},
        decide::PostgresqlHold,
        error::Error,
        names,
        observed::Kind,
        uncached::{api, owned},
    },
};

/// Deletes what keeps the volumes in use: the servers, and the Jobs of other dumps. `Some`: they are not gone yet.
pub(super) async fn delete_servers(
    ctx: &PostgresqlContext,
    postgres: &PostgresqlObject<'_>,
) -> Result<Option<PostgresqlHold>, Error> {
    let key = postgres.key;
    let last = names::last_dump(&key.name);
    let mut left = None;
    // Other dump Jobs have nothing left to dump, and keep their volume in use.
    for kind in [Kind::Job, Kind::StatefulSet] {
        for object in owned(ctx, postgres, kind).await? {
            let name = object.name_any();
            // The Job of the last dump proves that it was taken, and stays until everything else is gone.
            if kind == Kind::Job && name == last {
                continue;
            }
            if object.metadata.deletion_timestamp.is_none() {
                delete(ctx, key, &(kind, name.clone()), &object.uid().unwrap_or_default()).await?;
            }
            left = Some(format!("{kind} {name}"));
        }
    }
    let api: Api<Pod> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let servers = format!(
        "{}={},{}={},{} in (primary,standby)",
        label::POSTGRESQL,
        key.name,
        label::POSTGRESQL_UID,
        postgres.uid(),
        label::ROLE
    );
    let pods = api.list_metadata(&ListParams::default().labels(&servers)).await;
    let pods = pods.map_err(Error::api(format!("list the pods of Postgresql {key}")))?;
    let left = pods.items.first().map(|pod| format!("Pod {}", pod.name_any())).or(left);
    Ok(left.map(|left| PostgresqlHold::new(Reason::Stopping, format!("waiting for {left} to be gone"))))
}

/// Deletes the objects that nothing has to wait for. The last dump's Job gets an ownerReference instead, so that the garbage
/// collector deletes it when the Postgresql is gone: it proves that the dump was taken, and a further pass needs that proof if the
/// finalizer cannot be removed in this one.
pub(super) async fn delete_rest(ctx: &PostgresqlContext, postgres: &PostgresqlObject<'_>) -> Result<(), Error> {
    let last = names::last_dump(&postgres.key.name);
    for kind in [Kind::Job, Kind::Service, Kind::ConfigMap, Kind::PodDisruptionBudget, Kind::NetworkPolicy] {
        for object in owned(ctx, postgres, kind).await? {
            let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
            if kind != Kind::Job || name != last {
                delete(ctx, postgres.key, &(kind, name), &uid).await?;
                continue;
            }
            let owner = postgres.guard.owner_ref(&());
            let patch = Patch::Merge(json!({"metadata": {"uid": uid, "ownerReferences": [owner]}}));
            let patched =
                api(ctx, postgres.key, &kind.resource()).patch_metadata(&name, &PatchParams::default(), &patch).await;
            ignore_not_found(patched)
                .map_err(Error::api(format!("give Job {}/{name} its owner", postgres.key.namespace)))?;
        }
    }
    Ok(())
}
