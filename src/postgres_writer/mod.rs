//! The controller of `PostgresWriter`: **look → write → report**.
//!
//! | stage | module | |
//! |---|---|---|
//! | the row that is wanted, and the tables that are allowed | [`row`], [`table`] | pure |
//! | write it, if the ledger says that it is ours | [`database`] | effect |
//! | report it | [`status`] | pure, then one write |
//! | what other database users did to the rows | [`resync`] | effect, reads only |
//!
//! An idle object costs only its share of one query for each table, every `PSQL_RESYNC`. If [`settings`] name no database,
//! each object's status says so. This module is the driver: it runs the stages in order.

mod context;
mod database;
mod error;
mod resync;
mod row;
mod settings;
mod status;
mod table;
mod tls;

use kube::runtime::controller::Action;

pub(crate) use self::{context::run, settings::Settings};
use self::{
    context::{Writer, WriterContext},
    error::Error,
    row::Row,
};
use crate::{
    crd::{
        Guard, PostgresWriter, ROW_FINALIZER, WrittenRow,
        conditions::{find, kind},
    },
    platform::{
        clock,
        controller::{RECHECK_GONE, ReconcileError as _, Reconciler},
        key::{Key, key_of},
        panic::caught,
    },
};

impl Reconciler for WriterContext {
    type Object = PostgresWriter;
    type Error = Error;

    fn on_deleted(&self, key: &Key) {
        self.statuses.forget(key);
        self.drifted.take(&key.to_string());
    }

    fn is_own_write(&self, object: &Guard<PostgresWriter>) -> bool {
        let observed = object.status().and_then(|status| status.observed_generation);
        observed == object.metadata.generation && self.statuses.is_own_write(&object.metadata, &key_of(object))
    }

    async fn background(&self) {
        resync::run(self).await;
    }

    async fn reconcile(&self, key: &Key, guard: &Guard<PostgresWriter>) -> Result<Action, Error> {
        let writer = &self.statuses.reconciled(key, guard);
        let done = caught(act(self, writer), Error::panicked).await.transpose();
        let exists = match &done {
            Some(done) => status::write(self, writer, done.as_ref()).await?,
            None => false,
        };
        match done.filter(|_| exists) {
            Some(done) => done.map(|_| Action::await_change()),
            None => {
                self.on_deleted(key);
                Ok(Action::requeue(RECHECK_GONE))
            }
        }
    }
}

/// Writes the row as the object says, and returns it with the time of its last change. `None`: the object is gone, or may go.
async fn act(ctx: &WriterContext, writer: &Writer<'_>) -> Result<Option<WrittenRow>, Error> {
    let carried = writer.has_finalizer(ROW_FINALIZER);
    if writer.is_deleted() {
        if carried {
            // Whatever the spec says: the ledger has the row's table.
            ctx.database().await?.erase(&writer.key.to_string()).await?;
            writer.remove_finalizer(&ctx.parts.client, ROW_FINALIZER).await?;
        }
        return Ok(None);
    }
    let settings = ctx.settings()?;
    let row = Row::wanted(writer.key, &writer.decoded().map_err(Error::invalid)?.spec, &settings.tables)?;
    let before = row::written(writer.meta(), Some(&writer.recorded_status));
    // A row that the status calls ready counts as such until the comparison finds a difference.
    let well =
        carried && find(&writer.recorded_status.conditions, kind::READY).is_some_and(|ready| ready.status == "True");
    if ctx.drifted.take(&row.id).is_none() && well && before.is_some() {
        return Ok(before.cloned());
    }
    let database = ctx.database().await?;
    // Before the row, so that no row outlives its object unnoticed. The finalizer proves nothing else, and neither does a
    // status: only the ledger says who owns a row, in the transaction that writes.
    if !carried && !writer.add_finalizer(&ctx.parts.client, ROW_FINALIZER).await? {
        return Ok(None);
    }
    let wrote = database.put(&row, writer.uid()).await?;
    let (generation, written_at) = (writer.meta().generation.unwrap_or_default(), clock::now().into());
    let now = WrittenRow { table: row.table.0, id: row.id, generation, written_at };
    Ok(Some(before.filter(|_| !wrote).cloned().unwrap_or(now)))
}
