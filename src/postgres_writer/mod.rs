//! The controller of `PostgresWriter`: **look → decide → write → report**.
//!
//! | stage | module | |
//! |---|---|---|
//! | what shall be, and where it may be | [`row`] | pure |
//! | what to do now | [`mod@decide`] | pure |
//! | do it, if the ledger says that it is ours | [`database`] | effect |
//! | say so | [`report`] | pure, then one write |
//! | what others did to the rows | [`resync`] | effect, reads only |
//!
//! At rest an object costs nothing but its part of one query for each table, every `PSQL_RESYNC`. Without [`settings`] that
//! name a database, each object is told that there is none.

mod database;
mod decide;
mod error;
mod report;
mod resync;
mod row;
mod settings;
mod tls;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, Resource as _,
    api::WatchParams,
    runtime::{controller::Action, events::Recorder, watcher::Event},
};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

pub(crate) use self::settings::Settings;
use self::{
    database::{Database, Owner},
    decide::{Look, Plan, decide},
    error::Error,
    row::{Allowed, Wanted},
};
use crate::{
    crd::{Guard, PostgresWriter, PostgresWriterStatus, ROW_FINALIZER, Reason},
    lease::Lead,
    metrics::Metrics,
    runtime::{
        cache::Memo,
        controller::{Kind, Objects, Parts, control},
        definition::Definition,
        events::{Note, publish_by},
        finalizer,
        key::{Key, key_of},
        panic::caught,
        status::{Statuses, write_status},
    },
};

/// Name of the kind's definition.
const DEFINITION: &str = "postgreswriters.apps.bnerd-operator.local";

type Object = Guard<PostgresWriter>;

/// The database, and what of it may be written.
struct Served {
    database: Database,
    tables: Allowed,
}

/// What every reconcile shares.
struct Ctx {
    client: Client,
    served: Option<Arc<Served>>,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    lead: Lead,
    objects: Objects<PostgresWriter>,
    statuses: Statuses<PostgresWriterStatus>,
    /// Objects whose row was seen to differ.
    drifted: Memo<Key, ()>,
    cluster: OnceCell<String>,
}

impl Ctx {
    #[expect(clippy::disallowed_methods, reason = "the clock of this controller's effects")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn forget(&self, key: &Key) {
        self.statuses.forget(key);
        self.drifted.take(key);
    }

    fn served(&self) -> Result<&Served, Error> {
        self.served.as_deref().ok_or(Error::NotConfigured)
    }

    /// What the ledger calls this cluster: the one uid that is as old as it is.
    async fn cluster(&self) -> Result<&str, Error> {
        let ask = async || {
            let found = Api::<Namespace>::all(self.client.clone()).get("kube-system").await;
            let found = found.map_err(Error::api("look up the uid of namespace kube-system"))?;
            Ok(found.metadata.uid.unwrap_or_default())
        };
        self.cluster.get_or_try_init(ask).await.map(String::as_str)
    }

    /// Before each write: a leader that was frozen may have a successor since.
    fn leading(&self) -> Result<(), Error> {
        if self.lead.holds() { Ok(()) } else { Err(Error::NotLeading) }
    }

    /// Puts the finalizer on, or takes it off. `false`: the object is gone.
    async fn seal(&self, key: &Key, meta: &ObjectMeta, on: bool) -> Result<bool, Error> {
        self.leading()?;
        let sealed = finalizer::write::<PostgresWriter>(&self.client, key, meta, ROW_FINALIZER, on).await;
        let what = if on { "add the finalizer to" } else { "take the finalizer off" };
        sealed.map_err(Error::api(format!("{what} PostgresWriter {key}")))
    }
}

/// Runs the controller until `stop`, and returns when its last reconcile has ended.
pub(crate) async fn run(parts: Parts, settings: Option<Settings>, stop: CancellationToken) {
    match &settings {
        Some(settings) => tracing::info!(database = %settings.place, "serving PostgresWriters"),
        None => {
            tracing::info!("no PSQL_ variables are set: PostgresWriters get no rows, and are told so");
            // An operator without a database does well without this right.
            let (objects, brief) = (Api::<Object>::all(parts.client.clone()), WatchParams::default().timeout(1));
            if let Some(Err(kube::Error::Api(status))) = stop.run_until_cancelled(objects.watch(&brief, "0")).await
                && status.code == 403
            {
                tracing::info!("PostgresWriters are not even told so: {}", status.message);
                return;
            }
        }
    }
    let served =
        |settings: &Settings| Arc::new(Served { database: Database::new(settings), tables: settings.tables.clone() });
    let served = settings.as_ref().map(served);
    // While the kind is on its way out its objects still are, and have to be let go.
    let definition = Definition::until_gone(DEFINITION);
    let controller = async |stop: CancellationToken| {
        let (objects, feed) = Objects::new();
        let ctx = Arc::new(Ctx {
            client: parts.client.clone(),
            served: served.clone(),
            recorder: parts.recorder.clone(),
            metrics: parts.metrics.clone(),
            lead: parts.lead.clone(),
            objects: objects.clone(),
            statuses: Statuses::default(),
            drifted: Memo::default(),
            cluster: OnceCell::new(),
        });
        let every = settings.as_ref().and_then(|settings| settings.resync);
        let compared = async {
            if let (Ok(served), Some(every)) = (ctx.served(), every) {
                stop.run_until_cancelled(resync::run(&ctx, served, every)).await;
            }
        };
        tokio::join!(control(ctx.clone(), parts.clone(), (objects, feed), stop.clone()), compared);
    };
    definition.control(parts.watch_client.clone(), &stop, controller).await;
}

impl Kind for Ctx {
    type Object = PostgresWriter;
    type Error = Error;

    fn seen(&self, event: &Event<Object>) {
        if let Event::Delete(object) = event {
            self.forget(&key_of(object));
        }
    }

    fn wrote(&self, object: &Object) -> bool {
        let observed = object.status(|writer| &writer.status).and_then(|status| status.observed_generation);
        observed == object.metadata.generation && self.statuses.wrote(&object.metadata, &key_of(object))
    }

    async fn reconcile(&self, key: &Key, guard: &Object) -> Result<Action, Error> {
        drive(self, key, guard).await.map(|()| Action::await_change())
    }
}

async fn drive(ctx: &Ctx, key: &Key, guard: &Object) -> Result<(), Error> {
    let meta = &guard.metadata;
    let recorded = ctx.statuses.get(key, meta, guard.status(|writer| &writer.status));
    let wanted = ctx.served().and_then(|served| match &guard.object {
        Ok(writer) => row::wanted(key, &writer.spec, &served.tables),
        Err(problem) => Err(Error::invalid(format!("the stored object does not decode: {problem}"))),
    });
    let look = Look {
        deleting: meta.deletion_timestamp.is_some(),
        sealed: finalizer::carries(meta, ROW_FINALIZER),
        written: recorded.row.as_ref(),
        drifted: ctx.drifted.get(key).is_some(),
    };
    let plan = decide(&look, wanted);
    let done = caught(async { act(ctx, key, meta, look.sealed, plan).await }, Error::Panicked).await;
    let mut notes = Vec::new();
    let outcome = match &done {
        Ok(Done::Gone) => {
            ctx.forget(key);
            return Ok(());
        }
        Ok(Done::Settled { wanted, written }) => {
            // A row that was compared in the very moment that it was written is looked at once more, and found to be right.
            if look.drifted {
                ctx.drifted.take(key);
                notes.extend(written.then(|| report::put_back(wanted)));
            }
            let row = recorded.row.clone().filter(|row| !written && wanted.is(row));
            Ok((wanted, row.unwrap_or_else(|| wanted.written(ctx.now()))))
        }
        Err(error) => Err(error),
    };
    let status = report::status(&recorded, meta.generation, outcome, ctx.now());
    notes.extend(report::transitions(&recorded, &status));
    say(ctx, key, guard, (&recorded, &status), &notes).await?;
    done.map(|_| ())
}

/// What was done.
enum Done {
    /// The object is let go.
    Gone,
    /// The row is as it should be, and was written for that or not.
    Settled { wanted: Wanted, written: bool },
}

async fn act(ctx: &Ctx, key: &Key, meta: &ObjectMeta, sealed: bool, plan: Plan) -> Result<Done, Error> {
    let id = key.to_string();
    let uid = meta.uid.as_deref().unwrap_or_default();
    match plan {
        Plan::Forget => Ok(Done::Gone),
        Plan::Refuse(error) => Err(error),
        Plan::Settled(wanted) => Ok(Done::Settled { wanted, written: false }),
        Plan::Erase => {
            let database = &ctx.served()?.database;
            database.erase(Owner { cluster: ctx.cluster().await?, id: &id, uid }, &ctx.lead).await?;
            ctx.seal(key, meta, false).await?;
            Ok(Done::Gone)
        }
        Plan::Write(wanted) => {
            let database = &ctx.served()?.database;
            let owner = Owner { cluster: ctx.cluster().await?, id: &id, uid };
            if !sealed && !ctx.seal(key, meta, true).await? {
                return Ok(Done::Gone);
            }
            let written = database.put(owner, &wanted, &ctx.lead).await?;
            Ok(Done::Settled { wanted, written })
        }
    }
}

/// Writes the status unless it is what the object has already, and publishes what is new.
async fn say(
    ctx: &Ctx,
    key: &Key,
    guard: &Object,
    (recorded, status): (&PostgresWriterStatus, &PostgresWriterStatus),
    notes: &[Note],
) -> Result<(), Error> {
    if recorded == status && notes.is_empty() {
        return Ok(());
    }
    ctx.leading()?;
    let mut said = Ok(());
    if recorded != status {
        let uid = guard.metadata.uid.as_deref().unwrap_or_default();
        let written = write_status::<PostgresWriter, _>(&ctx.client, key, uid, status).await;
        match written.map_err(Error::api(format!("write the status of PostgresWriter {key}"))) {
            Ok(version) => ctx.statuses.put(key, uid, version.as_deref(), status),
            // An event is all there is, where the API server cannot evaluate the schema's rules on the object.
            Err(error) if error.reason() == Reason::Refused => said = Err(error),
            Err(error) => return Err(error),
        }
    }
    publish_by(&ctx.recorder, &guard.object_ref(&()), notes).await;
    said
}
