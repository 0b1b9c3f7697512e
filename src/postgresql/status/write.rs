//! Writes the status, and publishes what is new in it. An **effect**.

use super::{
    conditions::{failed, held, without_primary},
    events::transitions,
};
use crate::{
    crd::PostgresqlStatus,
    platform::{clock, events::publish_by, status::is_gone},
    postgresql::{
        context::{Ctx, Database},
        decide::Hold,
        error::Error,
    },
};

/// Writes the status, and publishes what is new in it.
pub(crate) async fn write(ctx: &Ctx, of: &Database<'_>, status: &PostgresqlStatus) -> Result<(), Error> {
    ctx.statuses.write(&ctx.client, of, status).await.map_err(|error| match is_gone(&error) {
        true => Error::Gone(of.key.clone()),
        false => Error::api(format!("write the status of Postgresql {}", of.key))(error),
    })?;
    publish_by(&ctx.recorder, &of.reference(), &transitions(&of.before, status)).await;
    Ok(())
}

/// Writes why a pass does nothing.
pub(crate) async fn write_hold(ctx: &Ctx, of: &Database<'_>, hold: &Hold) -> Result<(), Error> {
    write_amended(ctx, of, |recorded, generation| held(recorded, generation, hold, clock::now())).await
}

pub(crate) async fn write_failure(ctx: &Ctx, of: &Database<'_>, error: &Error) -> Result<(), Error> {
    write_amended(ctx, of, |recorded, generation| failed(recorded, generation, error, clock::now())).await
}

/// Writes the status that this reconcile has already recorded, with what a pass that fails or only reports changes in it.
async fn write_amended(
    ctx: &Ctx,
    of: &Database<'_>,
    amend: impl FnOnce(&PostgresqlStatus, Option<i64>) -> PostgresqlStatus,
) -> Result<(), Error> {
    let of = ctx.database(of.key, of.guard);
    let serving = ctx.watches.pods(of.key).into_iter().filter(|pod| pod.waiting.is_none());
    let recorded = without_primary(of.before.clone(), &serving.map(|pod| pod.uid).collect::<Vec<_>>());
    write(ctx, &of, &amend(&recorded, of.meta().generation)).await
}
