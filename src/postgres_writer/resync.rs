//! What finds rows that somebody else changed or deleted: one query for each table, every now and then. An **effect**.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kube::runtime::reflector::ObjectRef;
use tokio::time::MissedTickBehavior;

use super::{Ctx, Object, decide, error::UNAVAILABLE, row, row::Table};
use crate::controller::key::key_of;

/// Compares for good.
pub async fn run(ctx: &Ctx, every: Duration) {
    let mut ticks = tokio::time::interval(every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for (table, objects) in settled(ctx) {
            compare(ctx, &table, &objects).await;
        }
    }
}

/// The objects whose row is said to be as their spec says, by table. All others are worked on anyway.
fn settled(ctx: &Ctx) -> BTreeMap<Table, Vec<(Arc<Object>, row::Row)>> {
    let mut tables = BTreeMap::<_, Vec<_>>::new();
    for object in ctx.objects.state() {
        let Ok(writer) = &object.object else { continue };
        let Ok(wanted) = row::wanted(&key_of(object.as_ref()), &writer.spec) else { continue };
        let written = writer.status.as_ref().and_then(|status| status.row.as_ref());
        if object.metadata.deletion_timestamp.is_none() && written.is_some_and(|written| decide::is(written, &wanted)) {
            tables.entry(wanted.table).or_default().push((object.clone(), wanted.row));
        }
    }
    tables
}

async fn compare(ctx: &Ctx, table: &Table, objects: &[(Arc<Object>, row::Row)]) {
    let rows: Vec<_> = objects.iter().map(|(_, row)| row.clone()).collect();
    let differing = match ctx.database.differing(table, &rows).await {
        Ok(ids) => ids,
        Err(error) => {
            tracing::warn!(%table, %error, "cannot compare the rows with the PostgresWriters");
            if error.disposition().reason == UNAVAILABLE.reason {
                return;
            }
            // The table is gone, or not what it was: each object says so when it tries to write.
            rows.into_iter().map(|row| row.id).collect()
        }
    };
    for (object, row) in objects {
        let reference = ObjectRef::from_obj(object.as_ref());
        // One that was changed while the rows were compared has been, or is being, written.
        let same = ctx
            .objects
            .get(&reference)
            .is_some_and(|now| now.metadata.resource_version == object.metadata.resource_version);
        if same && differing.contains(&row.id) {
            ctx.drifted.put(key_of(object.as_ref()), ());
            ctx.trigger(reference);
        }
    }
}
