//! What finds rows that others changed or deleted, and rows without an object: a query for each table and a thousand
//! objects, every now and then. An **effect**, reads only.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::MissedTickBehavior;

use super::{
    context::Ctx,
    error::Error,
    row::{self, Row, Table},
};
use crate::{
    crd::Reason,
    runtime::{key::key_of, panic::caught},
};

/// Compares for good, where that is asked for.
pub(super) async fn run(ctx: &Ctx) {
    let Some(every) = ctx.settings().ok().and_then(|settings| settings.resync) else { return };
    // An object that is not listed yet looks like one that is gone. The writer ends with the controller.
    let _ = ctx.objects.store.wait_until_ready().await;
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = Vec::new();
    loop {
        ticks.tick().await;
        if let Err(error) = caught(compare(ctx, &mut told), Error::Panicked).await {
            failed(ctx, &error);
        }
    }
}

async fn compare(ctx: &Ctx, told: &mut Vec<String>) -> Result<(), Error> {
    let database = ctx.database().await?;
    let mut differing = BTreeSet::new();
    for (table, rows) in settled(ctx) {
        let Err(error) = database.differing(&table, &rows, &mut differing).await else { continue };
        failed(ctx, &error);
        if !matches!(error.reason(), Reason::DatabaseUnavailable | Reason::DatabaseBusy) {
            // The table is gone, or not what it was: each object says so when it tries to write.
            differing.extend(rows.into_iter().map(|row| row.id));
        }
    }
    differing.iter().for_each(|id| ctx.drifted.put(id.clone(), ()));
    ctx.objects.trigger_where(|object| differing.contains(&key_of(object).to_string()));

    let there =
        || ctx.objects.store.state().iter().map(|object| key_of(&**object).to_string()).collect::<BTreeSet<_>>();
    let mut orphans = database.others(&there()).await?;
    // Those that came meanwhile have theirs.
    let now = there();
    orphans.retain(|id| !now.contains(id));
    // An API server that was restored from a backup, or copied, does not know of objects that are there: so nothing is
    // deleted for lack of an object.
    if orphans != *told && !orphans.is_empty() {
        tracing::warn!(
            rows = orphans.len(),
            "rows whose PostgresWriter went without its finalizer are kept: create and delete an object of the same name \
             for each that may go, such as {}",
            orphans[..orphans.len().min(10)].join(", ")
        );
    }
    *told = orphans;
    Ok(())
}

fn failed(ctx: &Ctx, error: &Error) {
    ctx.parts.metrics.reconcile_failed(error.reason());
    tracing::warn!(%error, "cannot compare the rows with the PostgresWriters");
}

/// The rows that are said to be as their objects' specs say, by table. All others are worked on anyway.
fn settled(ctx: &Ctx) -> BTreeMap<Table, Vec<Row>> {
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
