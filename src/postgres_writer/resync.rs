//! What finds rows that others changed or deleted, and rows without an object: a query for each table and a thousand
//! objects, every now and then. An **effect**, reads only.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::MissedTickBehavior;

use super::{
    context::Ctx,
    database::Database,
    error::Error,
    row::{Wanted, wanted},
    table::Table,
};
use crate::{
    crd::Reason,
    runtime::key::{Key, key_of},
};

/// So many rows are looked up well within a statement's time.
const BATCH: usize = 1000;

/// Compares for good, where that is asked for.
pub(super) async fn run(ctx: &Ctx) {
    let Ok(database) = ctx.database() else { return };
    let Some(every) = database.settings.resync else { return };
    // An object that is not listed yet looks like one that is gone. The writer ends with the controller.
    let _ = ctx.objects.store.wait_until_ready().await;
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut told = Vec::new();
    loop {
        ticks.tick().await;
        for (table, objects) in settled(ctx, database) {
            let mut compared = Ok(());
            for batch in objects.chunks(BATCH) {
                if compared.is_ok() {
                    compared = compare(ctx, database, &table, batch).await;
                }
            }
            failed(ctx, compared);
        }
        match orphans(ctx, database).await {
            Ok(orphans) if orphans == told => {}
            Ok(orphans) => {
                if !orphans.is_empty() {
                    let some = orphans.iter().take(10).cloned().collect::<Vec<_>>().join(", ");
                    tracing::warn!(
                        rows = orphans.len(),
                        "rows whose PostgresWriter went without its finalizer are kept: create and delete an object of the \
                         same name for each that may go, such as {some}"
                    );
                }
                told = orphans;
            }
            Err(error) => failed(ctx, Err(error)),
        }
    }
}

fn failed(ctx: &Ctx, compared: Result<(), Error>) {
    if let Err(error) = compared {
        ctx.parts.metrics.reconcile_failed(error.reason());
        tracing::warn!(%error, "cannot compare the rows with the PostgresWriters");
    }
}

/// An object, its version, and its row.
type Settled = (Key, Option<String>, Wanted);

/// The objects whose row is said to be as their spec says, by table. All others are worked on anyway.
fn settled(ctx: &Ctx, database: &Database) -> BTreeMap<Table, Vec<Settled>> {
    let mut tables = BTreeMap::<_, Vec<_>>::new();
    for object in ctx.objects.store.state() {
        let key = key_of(object.as_ref());
        let Ok(writer) = &object.object else { continue };
        let Ok(wanted) = wanted(&key, &writer.spec, &database.settings.tables) else { continue };
        let written = writer.status.as_ref().and_then(|status| status.row.as_ref());
        if object.metadata.deletion_timestamp.is_none() && written.is_some_and(|written| wanted.is(written)) {
            let version = object.metadata.resource_version.clone();
            tables.entry(wanted.table.clone()).or_default().push((key, version, wanted));
        }
    }
    tables
}

async fn compare(ctx: &Ctx, database: &Database, table: &Table, batch: &[Settled]) -> Result<(), Error> {
    let rows: Vec<_> = batch.iter().map(|(.., wanted)| &wanted.row).collect();
    let compared = database.differing(ctx.cluster().await?, table, &rows).await;
    let differing: Option<BTreeSet<_>> = match compared {
        Ok(ids) => Some(ids.into_iter().collect()),
        Err(error) if [Reason::DatabaseUnavailable, Reason::DatabaseBusy].contains(&error.reason()) => {
            return Err(error);
        }
        // The table is gone, or not what it was: each object says so when it tries to write.
        Err(error) => {
            failed(ctx, Err(error));
            None
        }
    };
    for (key, version, wanted) in batch {
        // An object that was changed while the rows were compared has been, or is being, written.
        let same = ctx.objects.get(key).is_some_and(|now| now.metadata.resource_version == *version);
        if same && differing.as_ref().is_none_or(|differing| differing.contains(&wanted.row.id)) {
            ctx.drifted.put(key.clone(), ());
            ctx.objects.trigger(key);
        }
    }
    Ok(())
}

/// The ids of the cluster's rows without an object. An API server that was restored from a backup, or copied, does not know
/// of objects that are there: so nothing is deleted for want of an object.
async fn orphans(ctx: &Ctx, database: &Database) -> Result<Vec<String>, Error> {
    let there =
        || ctx.objects.store.state().iter().map(|object| key_of(object.as_ref()).to_string()).collect::<BTreeSet<_>>();
    let before = there();
    let (mut orphans, mut after) = (Vec::new(), String::new());
    loop {
        let entries = match database.entries(ctx.cluster().await?, &after, BATCH).await {
            Err(error) if error.reason() == Reason::LedgerMissing => Vec::new(),
            entries => entries?,
        };
        let Some(last) = entries.last() else { break };
        after.clone_from(last);
        orphans.extend(entries.into_iter().filter(|id| !before.contains(id)));
    }
    // Those that came meanwhile have theirs.
    let now = there();
    orphans.retain(|id| !now.contains(id));
    Ok(orphans)
}
