//! The finalizer that keeps a deleted object until what was made for it is gone. An **effect**.
//!
//! kube's own `finalizer()` keeps a finalizer only while the cleanup fails; here a cleanup also waits, which is no
//! failure.

use super::{
    context::{App, Ctx},
    error::Error,
};
use crate::{
    crd::{ClientApp, FINALIZER},
    runtime::finalizer,
};

/// Puts the finalizer on; or takes it off, and the object is gone after that.
pub async fn write(ctx: &Ctx, app: &App<'_>, on: bool) -> Result<(), Error> {
    let what = if on { "add the finalizer to" } else { "take the finalizer off" };
    let written = finalizer::write::<ClientApp>(&ctx.client, app.key, app.meta(), FINALIZER, on).await;
    written.map(|_| ()).map_err(Error::api(format!("{what} ClientApp {}", app.key)))
}
