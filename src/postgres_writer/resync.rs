//! Finds rows that other database users changed or deleted, and rows without an object, with a periodic query for each
//! table and thousand objects. An **effect**, reads only.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::MissedTickBehavior;

use super::{
    context::WriterContext,
    error::Error,
    row::{self, Row},
    table::Table,
};
use crate::{
    crd::Reason,
    platform::{error::ReconcileError as _, key::key_of, panic::caught},
};

/// Compares forever, if `PSQL_RESYNC` asks for it.
pub(super) async fn run(ctx: &WriterContext) {
    let Some(every) = ctx.settings().ok().and_then(|settings| settings.resync) else { return };
    // An object that is not listed yet looks like one that is gone. The writer ends with the controller.
    let _ = ctx.objects.store.wait_until_ready().await;
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reported = Vec::new();
    loop {
        ticks.tick().await;
        if let Err(error) = caught(compare(ctx, &mut reported), Error::panicked).await {
            failed(ctx, &error);
        }
    }
}

async fn compare(ctx: &WriterContext, reported: &mut Vec<String>) -> Result<(), Error> {
    let database = ctx.database().await?;
    let mut differing = BTreeSet::new();
    for (table, rows) in settled(ctx) {
        let Err(error) = database.differing(&table, &rows, &mut differing).await else { continue };
        failed(ctx, &error);
        if !matches!(error.reason(), Reason::DatabaseUnavailable | Reason::DatabaseBusy) {
            // The table is gone or altered: each object reports that when it tries to write.
            differing.extend(rows.into_iter().map(|row| row.id));
        }
    }
    differing.iter().for_each(|id| ctx.drifted.put(id.clone(), ()));
    ctx.objects.trigger_where(|object| differing.contains(&key_of(object).to_string()));

    let listed =
        || ctx.objects.store.state().iter().map(|object| key_of(&**object).to_string()).collect::<BTreeSet<_>>();
    let mut orphans = database.others(&listed()).await?;
    // Rows of objects created meanwhile are not orphans.
    let now = listed();
    orphans.retain(|id| !now.contains(id));
    // An API server that was restored from a backup, or copied, may not know objects whose rows exist: so no row is deleted
    // because it lacks an object.
    if orphans != *reported && !orphans.is_empty() {
        tracing::warn!(
            rows = orphans.len(),
            "rows whose PostgresWriter was deleted without its finalizer are kept: create and delete an object of the same name \
             for each that may go, such as {}",
            orphans[..orphans.len().min(10)].join(", ")
        );
    }
    *reported = orphans;
    Ok(())
}

fn failed(ctx: &WriterContext, error: &Error) {
    ctx.parts.metrics.reconcile_failed("PostgresWriter", error.reason());
    tracing::warn!(%error, "cannot compare the rows with the PostgresWriters");
}

/// Returns the rows that match their objects' specs according to the status, by table. All others are being worked on.
fn settled(ctx: &WriterContext) -> BTreeMap<Table, Vec<Row>> {
    let mut tables = BTreeMap::<_, Vec<_>>::new();
    for object in ctx.objects.store.state().iter().filter(|object| object.metadata.deletion_timestamp.is_none()) {
        let (Ok(writer), Ok(settings)) = (&object.object, ctx.settings()) else { continue };
        let row = Row::wanted(&key_of(&**object), &writer.spec, &settings.tables);
        if let (Ok(row), Some(_)) = (row, row::written(&object.metadata, writer.status.as_ref())) {
            tables.entry(row.table.clone()).or_default().push(row);
        }
    }
    tables
}
