//! The finalizer that keeps a deleted object until what was made for it is gone. An **effect**.
//!
//! kube's own `finalizer()` keeps a finalizer only while the cleanup fails; here a cleanup also waits, which is no
//! failure.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{Ctx, error::Error};
use crate::{
    crd::{ClientApp, FINALIZER},
    runtime::{
        finalizer::{carries, write},
        key::Key,
    },
};

pub fn present(meta: &ObjectMeta) -> bool {
    carries(meta, FINALIZER)
}

pub async fn add(ctx: &Ctx, key: &Key, meta: &ObjectMeta) -> Result<(), Error> {
    let added = write::<ClientApp>(&ctx.client, key, meta, FINALIZER, true).await;
    added.map(|_| ()).map_err(Error::api(format!("add the finalizer to ClientApp {key}")))
}

/// Takes the finalizer off: the object is gone after that.
pub async fn remove(ctx: &Ctx, key: &Key, meta: &ObjectMeta) -> Result<(), Error> {
    let removed = write::<ClientApp>(&ctx.client, key, meta, FINALIZER, false).await;
    removed.map(|_| ()).map_err(Error::api(format!("take the finalizer off ClientApp {key}")))
}
