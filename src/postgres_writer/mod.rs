//! The controller of `PostgresWriter`: **look → decide → write → report**.
//!
//! | stage | module | |
//! |---|---|---|
//! | what shall be, and where it may be | [`row`], [`table`] | pure |
//! | what to do now | [`mod@decide`] | pure |
//! | do it, if the ledger says that it is ours | [`database`] | effect |
//! | say so | [`report`] | pure, then one write |
//! | what others did to the rows | [`resync`] | effect, reads only |
//!
//! At rest an object costs nothing but its part of one query for each table, every `PSQL_RESYNC`. Without [`settings`] that
//! name a database, each object is told that there is none. This module is the driver: it runs the stages in order.

mod act;
mod context;
mod database;
mod decide;
mod error;
mod report;
mod resync;
mod row;
mod settings;
mod table;
mod tls;

use kube::runtime::{controller::Action, watcher::Event};

use self::{
    act::{Done, act},
    context::Ctx,
    decide::{Look, decide},
    error::Error,
};
pub(crate) use self::{context::run, settings::Settings};
use crate::{
    crd::{Guard, PostgresWriter, ROW_FINALIZER},
    runtime::{
        controller::{Kind, WRONGLY_GONE},
        key::{Key, key_of},
        panic::caught,
    },
};

impl Kind for Ctx {
    type Object = PostgresWriter;
    type Error = Error;

    fn seen(&self, event: &Event<Guard<PostgresWriter>>) {
        if let Event::Delete(object) = event {
            self.forget(&key_of(object));
        }
    }

    fn wrote(&self, object: &Guard<PostgresWriter>) -> bool {
        let observed = object.status(|writer| &writer.status).and_then(|status| status.observed_generation);
        observed == object.metadata.generation && self.statuses.wrote(&object.metadata, &key_of(object))
    }

    async fn beside(&self) {
        resync::run(self).await;
    }

    async fn reconcile(&self, key: &Key, guard: &Guard<PostgresWriter>) -> Result<Action, Error> {
        let of = &self.statuses.subject(key, guard, guard.status(|writer| &writer.status));
        let wanted = self
            .database()
            .and_then(|to| row::wanted(key, &of.decoded().map_err(Error::invalid)?.spec, &to.settings.tables));
        let look = Look {
            deleting: of.is_deleted(),
            sealed: of.carries(ROW_FINALIZER),
            written: of.before.row.as_ref(),
            drifted: self.drifted.get(key).is_some(),
        };
        let done = caught(act(self, of, look.sealed, decide(&look, wanted)), Error::Panicked).await;
        if let Ok(Done::Gone) = done {
            self.forget(key);
            return Ok(Action::requeue(WRONGLY_GONE));
        }
        report::report(self, of, look.drifted, done.as_ref()).await?;
        done.map(|_| Action::await_change())
    }
}
