//! The Pooler between an app and its Cluster. **Pure.**
//!
//! It is owned by the Cluster, as what backs that up is: CloudNativePG itself leaves a Pooler without an owner, and goes on with one whose
//! Cluster is gone.

use kube::api::ApiResource;
use serde_json::json;

use super::super::{
    names::names_of,
    provider::DatabasePart,
    request::{DatabaseRequest, document},
};
use crate::{
    crd::{
        ClientApp, PoolerOptions, Postgres,
        cloudnativepg::{self, CloudNativePgPooler},
    },
    platform::{controller::Objects, key::Key},
};

pub(super) fn options(postgres: &Postgres) -> Option<&PoolerOptions> {
    postgres.cloudnativepg.as_ref()?.pooler.as_ref()
}

pub(super) fn part(request: &DatabaseRequest) -> Option<DatabasePart> {
    let PoolerOptions { instances, pool_mode, parameters } = options(&request.postgres)?;
    let mut pgbouncer = json!({"poolMode": pool_mode});
    if !parameters.is_empty() {
        pgbouncer["parameters"] = json!(parameters);
    }
    let spec = json!({
        "cluster": {"name": request.name},
        "type": "rw",
        "instances": instances,
        "pgbouncer": pgbouncer,
    });
    let resource = ApiResource::erase::<CloudNativePgPooler>(&());
    let document = document(&resource, &request.app, &cloudnativepg::pooler(&request.name), spec);
    Some(DatabasePart { resource, document })
}

/// Triggers a reconcile of the app that a Pooler, or the Service of its name, may be for.
pub(super) fn changed(apps: &Objects<ClientApp>, pooler: &Key) {
    if let Some(cluster) = cloudnativepg::of_pooler(&pooler.name) {
        apps.trigger_in(&pooler.namespace, |app| names_of(app).contains(cluster));
    }
}
