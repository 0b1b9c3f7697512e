//! Writes the status, and publishes what is new in it. An **effect**.

use super::{
    conditions::{failed, held, without_primary},
    events::transitions,
    verified,
};
use crate::{
    crd::PostgresqlStatus,
    platform::{clock, events::publish_by},
    postgresql::{
        context::{PostgresqlContext, PostgresqlObject},
        decide::PostgresqlHold,
        error::Error,
    },
};

/// Writes the status, and publishes what is new in it.
pub(crate) async fn write(
    ctx: &PostgresqlContext,
    postgres: &PostgresqlObject<'_>,
    status: &PostgresqlStatus,
) -> Result<(), Error> {
    if !ctx.statuses.record(&ctx.client, postgres, status).await? {
        return Err(Error::Gone(postgres.key.clone()));
    }
    let notes = transitions(&postgres.key.namespace, &postgres.recorded_status, status);
    publish_by(&ctx.recorder, &postgres.reference(), &notes).await;
    verified::record(&ctx.client, postgres.key, &postgres.recorded_status, status).await;
    Ok(())
}

/// Writes why a pass does nothing.
pub(crate) async fn write_hold(
    ctx: &PostgresqlContext,
    postgres: &PostgresqlObject<'_>,
    hold: &PostgresqlHold,
) -> Result<(), Error> {
    write_amended(ctx, postgres, |recorded, generation| held(recorded, generation, hold, clock::now())).await
}

/// Writes why a pass has failed.
pub(crate) async fn write_failure(
    ctx: &PostgresqlContext,
    postgres: &PostgresqlObject<'_>,
    error: &Error,
) -> Result<(), Error> {
    write_amended(ctx, postgres, |recorded, generation| failed(recorded, generation, error, clock::now())).await
}

/// Writes the status that this reconcile has already recorded, with what a pass that fails or only reports changes in it.
async fn write_amended(
    ctx: &PostgresqlContext,
    postgres: &PostgresqlObject<'_>,
    amend: impl FnOnce(&PostgresqlStatus, Option<i64>) -> PostgresqlStatus,
) -> Result<(), Error> {
    let postgres = ctx.postgres(postgres.key, postgres.guard);
    let serving = ctx.watches.pods(postgres.key).into_iter().filter(|pod| pod.waiting.is_none());
    let recorded = without_primary(postgres.recorded_status.clone(), &serving.map(|pod| pod.uid).collect::<Vec<_>>());
    write(ctx, &postgres, &amend(&recorded, postgres.meta().generation)).await
}
