//! The controller of `PostgresWriter`: **look → decide → write → report**.
//!
//! | stage | module | |
//! |---|---|---|
//! | what shall be | [`row`] | pure |
//! | what to do now | [`mod@decide`] | pure |
//! | do it | [`database`], [`claims`] | effect |
//! | say so | [`report`] | pure, then one write |
//! | what others did to the rows | `resync` | effect, reads only |
//! | rows of objects that went too early | `sweep` | effect |
//!
//! At rest an object costs nothing but its part of one query for each table, every [`Settings::resync`]. It is on only
//! where [`settings`] name a database and the cluster knows the kind.

pub mod claims;
pub mod database;
pub mod decide;
pub mod error;
pub mod report;
mod resync;
pub mod row;
pub mod settings;
mod sweep;
pub mod tls;
mod turns;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use futures::{StreamExt as _, channel::mpsc};
use jiff::Timestamp;
use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client, Resource as _,
    runtime::{
        Config as ControllerConfig, Controller, WatchStreamExt as _,
        controller::Action,
        events::Recorder,
        reflector::{self, ObjectRef, Store},
        watcher,
    },
};
use rand::RngExt as _;
use tokio::sync::SetOnce;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

pub use self::settings::Settings;
use self::{
    claims::{Claim, Claims},
    database::{Database, Found},
    decide::{Plan, World, decide},
    error::{Error, UNAVAILABLE},
    row::Wanted,
    turns::{Turn, Turns},
};
use crate::{
    controller::{
        cache::Memo,
        definition::Definition,
        error::jitter,
        events::{Note, publish_by},
        finalizer,
        key::{Key, key_of},
        panic::caught,
        status::{Statuses, write_status},
        watch::{driven, interrupted, stored_objects},
    },
    crd::{Guard, PostgresWriter, PostgresWriterStatus, ROW_FINALIZER},
    lease::Lead,
    metrics::Metrics,
};

/// Name of the kind's definition.
const DEFINITION: &str = "postgreswriters.apps.bnerd-operator.local";

type Object = Guard<PostgresWriter>;

/// What the controller is made of.
pub struct Parts {
    /// The operator's way to the API server.
    pub client: Client,
    /// The same for watches, which are silent for long.
    pub watch_client: Client,
    /// How the database is reached.
    pub settings: Settings,
    /// The operator's own namespace.
    pub namespace: String,
    /// Publishes events.
    pub recorder: Recorder,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Whether this process still leads.
    pub lead: Lead,
}

/// What every reconcile shares.
struct Ctx {
    client: Client,
    database: Arc<Database>,
    turns: Turns,
    claims: Claims,
    recorder: Recorder,
    metrics: Arc<Metrics>,
    lead: Lead,
    objects: Store<Object>,
    /// All objects are known.
    listed: SetOnce<()>,
    triggers: mpsc::UnboundedSender<ObjectRef<Object>>,
    statuses: Statuses<PostgresWriterStatus>,
    /// Objects whose last reconcile failed.
    failing: Memo<Key, Failing>,
    /// Objects whose row was seen to differ.
    drifted: Memo<Key, ()>,
    /// The last statement found no database.
    unavailable: AtomicBool,
}

/// What is remembered of a failure.
#[derive(Clone)]
struct Failing {
    /// In a row.
    failures: u32,
    /// What failed.
    attempt: Attempt,
    /// Not tried again before: the very status that tells of the failure is a change that leads here.
    until: Option<Instant>,
}

/// An object of this uid, with this generation. A deletion is a new generation.
type Attempt = (Option<String>, Option<i64>);

fn attempt(meta: &ObjectMeta) -> Attempt {
    (meta.uid.clone(), meta.generation)
}

impl Ctx {
    #[expect(clippy::disallowed_methods, reason = "the clock of this controller's effects")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn trigger(&self, object: ObjectRef<Object>) {
        // The receiver ends with the controller; then nothing is reconciled any more.
        let _ = self.triggers.unbounded_send(object);
    }
}

/// Runs the controller until `stop`, and returns when its last reconcile has ended.
pub async fn run(parts: Parts, stop: CancellationToken) {
    tracing::info!(database = %parts.settings.place(), "serving PostgresWriters");
    let database = Arc::new(Database::new(&parts.settings));
    // While the kind is on its way out its objects still are, and have to be let go.
    let definition = Definition::until_gone(DEFINITION);
    let controller = |stop| control(&parts, database.clone(), stop);
    definition.control(parts.watch_client.clone(), &stop, controller).await;
}

/// Runs the controller while the kind is there.
async fn control(parts: &Parts, database: Arc<Database>, stop: CancellationToken) {
    let Parts { client, watch_client, settings, namespace, recorder, metrics, lead } = parts;
    let (objects, writer) = reflector::store();
    let (triggers, triggered) = mpsc::unbounded();
    let (claims, staked) = Claims::new(client.clone(), namespace, &stop);
    // Before the first reconcile: an object whose claim is staked has its row.
    if stop.run_until_cancelled(sweep::take_over(&claims)).await.is_none() {
        return;
    }
    let ctx = Arc::new(Ctx {
        client: client.clone(),
        database,
        turns: Turns::default(),
        claims,
        recorder: recorder.clone(),
        metrics: metrics.clone(),
        lead: lead.clone(),
        objects: objects.clone(),
        listed: SetOnce::new(),
        triggers,
        statuses: Statuses::default(),
        failing: Memo::default(),
        drifted: Memo::default(),
        unavailable: AtomicBool::new(false),
    });
    let stream = watcher(Api::<Object>::all(watch_client.clone()), watcher::Config::default())
        .default_backoff()
        .reflect(writer)
        .inspect({
            let ctx = ctx.clone();
            move |event| match event {
                // Objects that are gone now may have been without a finalizer.
                Ok(watcher::Event::InitDone) => {
                    let _ = ctx.listed.set(());
                    ctx.claims.look_again();
                }
                Ok(watcher::Event::Delete(_)) => ctx.claims.look_again(),
                Ok(_) => {}
                Err(error) => interrupted("postgreswriters", error),
            }
        });
    let controller = Controller::for_stream(stored_objects(stream), objects.clone())
        // Unbounded, as what is scarce is bounded where it is used: statements by the pool, writes to the API server by
        // the turns. An object whose status is being written holds no connection.
        .with_config(ControllerConfig::default().concurrency(0))
        .reconcile_on(triggered)
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(reconcile, error_policy, ctx.clone())
        .for_each(|_| std::future::ready(()));
    let resynced = async {
        if let Some(every) = settings.resync {
            stop.run_until_cancelled(resync::run(&ctx, every)).await;
        }
    };
    let all = async {
        tokio::select! {
            // The last reconciles may still stake their claims.
            _ = async { tokio::join!(controller, resynced) } => {}
            () = ctx.claims.write(staked) => {}
            () = sweep::run(&ctx) => {}
        }
    };
    driven(all, &objects, &stop).await;
}

async fn reconcile(guard: Arc<Object>, ctx: Arc<Ctx>) -> Result<Action, Error> {
    // Before the token does, the clock tells a process that was frozen.
    if !ctx.lead.holds() {
        return Ok(Action::await_change());
    }
    let key = key_of(guard.as_ref());
    let failing = ctx.failing.get(&key).filter(|failing| failing.attempt == attempt(&guard.metadata));
    let left = failing.and_then(|failing| failing.until?.checked_duration_since(Instant::now()));
    if let Some(left) = left {
        return Ok(Action::requeue(left));
    }
    let span = tracing::info_span!("reconcile", postgreswriter = %key, generation = guard.metadata.generation);
    let _timer = ctx.metrics.reconcile();
    let result = caught(drive(&ctx, &key, &guard), Error::Panicked).instrument(span.clone()).await;
    match &result {
        Ok(()) => {
            ctx.failing.take(&key);
        }
        Err(error) => span.in_scope(|| tracing::warn!(%error, "reconcile failed")),
    }
    result.map(|()| Action::await_change())
}

async fn drive(ctx: &Ctx, key: &Key, guard: &Object) -> Result<(), Error> {
    let meta = &guard.metadata;
    let recorded = ctx.statuses.get(key, meta, guard.status(|writer| &writer.status));
    let wanted = match &guard.object {
        Ok(writer) => row::wanted(key, &writer.spec),
        Err(problem) => Err(format!("the stored object does not decode: {problem}")),
    };
    let mut claim = ctx.claims.take(key).await;
    let sealed = finalizer::carries(meta, ROW_FINALIZER);
    if sealed {
        claim.take().into_iter().for_each(Claim::settle);
    }
    let world = World {
        deleting: meta.deletion_timestamp.is_some(),
        claimed: sealed || claim.is_some(),
        inherited: claim.as_ref().is_some_and(|claim| meta.uid.as_ref() != Some(&claim.uid)),
        wanted: wanted.as_ref().map_err(String::as_str),
        written: recorded.row.as_ref(),
        drifted: ctx.drifted.get(key).is_some(),
    };
    let done = caught(async { act(ctx, key, guard, &decide(&world), claim).await }, Error::Panicked).await;
    let status = match &done {
        Ok(Done::Gone) => {
            ctx.statuses.forget(key);
            ctx.failing.take(key);
            ctx.drifted.take(key);
            return Ok(());
        }
        Ok(Done::Swept) => {
            ctx.trigger(ObjectRef::from_obj(guard));
            return Ok(());
        }
        Ok(Done::Settled(wanted)) => {
            let Some(row) = recorded.row.clone() else { return Ok(()) };
            report::settled(&recorded, meta.generation, wanted, row, ctx.now())
        }
        Ok(Done::Written(wanted)) => {
            let row = report::written(wanted, ctx.now());
            report::settled(&recorded, meta.generation, wanted, row, ctx.now())
        }
        Err(error) => report::failed(&recorded, meta.generation, error, ctx.now()),
    };
    let mut notes = report::transitions(&recorded, &status);
    if let Ok(Done::Written(wanted)) = &done
        && world.drifted
    {
        ctx.drifted.take(key);
        notes.insert(0, report::put_back(wanted));
    }
    say(ctx, key, guard, &recorded, &status, &notes).await?;
    done.map(|_| ())
}

/// What was done.
enum Done<'a> {
    /// The object is let go.
    Gone,
    /// The way is free for what the object asks for.
    Swept,
    /// Nothing was to be done.
    Settled(&'a Wanted),
    /// The row was written.
    Written(&'a Wanted),
}

async fn act<'a>(
    ctx: &Ctx,
    key: &Key,
    guard: &Object,
    plan: &Plan<'a>,
    claim: Option<Claim<'_>>,
) -> Result<Done<'a>, Error> {
    match (*plan, claim) {
        (Plan::Forget, _) => Ok(Done::Gone),
        (Plan::Sweep, claim) => {
            if let Some(claim) = claim {
                sweep::sweep(ctx, claim).await?;
            }
            Ok(Done::Swept)
        }
        (Plan::Refuse(problem), _) => Err(Error::Invalid(problem.to_owned())),
        (Plan::Settled(wanted), None) => Ok(Done::Settled(wanted)),
        (Plan::Claim(wanted), _) => {
            let claiming = ctx.turns.claiming();
            if answered(ctx, ctx.database.look(wanted).await)? == Found::Other {
                let (table, id) = (wanted.table.to_string(), wanted.row.id.clone());
                return Err(Error::NotOurs { table, id });
            }
            if claiming.crowded {
                let uid = guard.metadata.uid.as_deref().unwrap_or_default();
                if let Some(claim) = ctx.claims.stake(key, uid, wanted).await {
                    return write(ctx, key, guard, wanted, Some(claim)).await;
                }
            }
            if !seal(ctx, key, guard, ctx.turns.urgent().await).await? {
                // It went while the operator looked. Nobody would delete its row.
                return Ok(Done::Gone);
            }
            write(ctx, key, guard, wanted, None).await
        }
        // What is written may yet be without its finalizer.
        (Plan::Settled(wanted) | Plan::Write(wanted), claim) => write(ctx, key, guard, wanted, claim).await,
        (Plan::Delete(wanted), claim) => {
            sweep::delete(ctx, &wanted.table, &wanted.row.id).await?;
            ctx.claims
                .strike(key)
                .await
                .map_err(Error::api(format!("strike out the claim of PostgresWriter {key}")))?;
            if claim.is_none() {
                let _turn = ctx.turns.urgent().await;
                let off = finalizer::write::<PostgresWriter>(&ctx.client, key, &guard.metadata, ROW_FINALIZER, false);
                off.await.map_err(Error::api(format!("take the finalizer off PostgresWriter {key}")))?;
            }
            Ok(Done::Gone)
        }
    }
}

/// Writes the row. After a claim that is staked comes the finalizer, whatever has become of the row.
async fn write<'a>(
    ctx: &Ctx,
    key: &Key,
    guard: &Object,
    wanted: &'a Wanted,
    claim: Option<Claim<'_>>,
) -> Result<Done<'a>, Error> {
    let written = answered(ctx, ctx.database.write(wanted).await);
    if let Some(claim) = claim {
        if !seal(ctx, key, guard, ctx.turns.other().await).await? {
            sweep::sweep(ctx, claim).await?;
            return Ok(Done::Gone);
        }
        claim.settle();
    }
    written.map(|()| Done::Written(wanted))
}

/// Puts the finalizer on. `false`: the object is gone.
async fn seal(ctx: &Ctx, key: &Key, guard: &Object, _turn: Turn<'_>) -> Result<bool, Error> {
    let on = finalizer::write::<PostgresWriter>(&ctx.client, key, &guard.metadata, ROW_FINALIZER, true);
    on.await.map_err(Error::api(format!("add the finalizer to PostgresWriter {key}")))
}

/// Takes notice of the database's being there or not. When it is back, nobody has to wait for the end of its pause.
fn answered<T>(ctx: &Ctx, result: Result<T, Error>) -> Result<T, Error> {
    match &result {
        Err(Error::Database { class, .. }) if *class == UNAVAILABLE => {
            ctx.unavailable.store(true, Ordering::Relaxed);
        }
        Err(_) => {}
        Ok(_) => {
            if ctx.unavailable.swap(false, Ordering::Relaxed) {
                ctx.claims.look_again();
                let objects = ctx.objects.state();
                let waiting = objects.iter().filter(|object| ctx.failing.take(&key_of(object.as_ref())).is_some());
                waiting.for_each(|object| ctx.trigger(ObjectRef::from_obj(object.as_ref())));
            }
        }
    }
    result
}

/// Writes the status unless it is what the object has already, and publishes what is new.
async fn say(
    ctx: &Ctx,
    key: &Key,
    guard: &Object,
    recorded: &PostgresWriterStatus,
    status: &PostgresWriterStatus,
    notes: &[Note],
) -> Result<(), Error> {
    if recorded == status && notes.is_empty() {
        return Ok(());
    }
    let _turn = ctx.turns.other().await;
    if recorded != status {
        let uid = guard.metadata.uid.as_deref().unwrap_or_default();
        let written = write_status::<PostgresWriter, _>(&ctx.client, key, uid, status).await;
        let version = written.map_err(Error::api(format!("write the status of PostgresWriter {key}")))?;
        ctx.statuses.put(key, uid, version.as_deref(), status);
    }
    let reference: ObjectReference = guard.object_ref(&());
    publish_by(&ctx.recorder, &reference, notes).await;
    Ok(())
}

fn error_policy(guard: Arc<Object>, error: &Error, ctx: Arc<Ctx>) -> Action {
    let key = key_of(guard.as_ref());
    let attempt = attempt(&guard.metadata);
    let before = ctx.failing.get(&key).filter(|failing| failing.attempt == attempt);
    let failures = before.map_or(0, |failing| failing.failures) + 1;
    let disposition = error.disposition();
    ctx.metrics.reconcile_failed(disposition.reason);
    let delay = disposition.retry.delay(failures).map(|delay| jitter(delay, rand::rng().random()));
    ctx.failing.put(key, Failing { failures, attempt, until: delay.map(|delay| Instant::now() + delay) });
    delay.map_or_else(Action::await_change, Action::requeue)
}
