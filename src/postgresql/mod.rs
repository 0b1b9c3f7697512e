//! The controller of `Postgresql`: **observe → desired → decide → act → report**, and teardown, as for a `ClientApp`.
//!
//! | stage | module | |
//! |---|---|---|
//! | what is there | [`observe`] → [`world`] | effect, reads only |
//! | what shall be | [`mod@desired`], with [`build`] and [`names`] | pure |
//! | what to do now | [`mod@decide`] | pure |
//! | do it | [`act`] | effect |
//! | say so | [`report`] | pure, then one write |
//! | deletion | [`teardown`] | effect |

pub mod act;
pub mod build;
pub mod decide;
pub mod desired;
pub mod error;
pub mod names;
pub mod observe;
pub mod report;
pub mod teardown;
pub mod watches;
pub mod world;

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Client, Resource as _,
    runtime::{
        Config as ControllerConfig, Controller, WatchStreamExt as _, controller::Action, events::Recorder, reflector,
        watcher,
    },
};
use rand::RngExt as _;
use tokio::sync::OnceCell;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use self::{
    decide::{Hold, decide},
    desired::desired,
    error::Error,
    observe::Basis,
    teardown::Leaving,
    watches::Watches,
    world::CredentialsView,
};
use crate::{
    controller::{
        cache::Memo,
        definition::Definition,
        error::jitter,
        events::publish_by,
        finalizer,
        key::{Key, key_of},
        panic::caught,
        status::Statuses,
        watch::{driven, interrupted, stored_objects},
    },
    crd::{Guard, POSTGRESQL_FINALIZER, Postgresql, PostgresqlStatus},
    lease::Lead,
    metrics::Metrics,
};

/// Name of the definition.
const DEFINITION: &str = "postgresqls.apps.bnerd-operator.local";
/// A deletion is carried on by a watch; this is the net under it.
const SAFETY_NET: Duration = Duration::from_secs(60);

/// What the controller is made of.
#[derive(Clone)]
pub struct Parts {
    /// The operator's way to the API server.
    pub client: Client,
    /// The same for watches, which are silent for long.
    pub watch_client: Client,
    /// Publishes events.
    pub recorder: Recorder,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Whether this process still leads.
    pub lead: Lead,
}

/// What every reconcile shares.
pub struct Ctx {
    /// The operator's way to the API server.
    pub client: Client,
    /// Publishes events.
    pub recorder: Recorder,
    /// The caches.
    pub watches: Arc<Watches>,
    /// Whether this process still leads.
    pub lead: Lead,
    metrics: Arc<Metrics>,
    statuses: Statuses<PostgresqlStatus>,
    failures: Memo<Key, u32>,
    credentials: Memo<Key, (Basis, CredentialsView)>,
    synced: OnceCell<()>,
    stop: CancellationToken,
}

impl Ctx {
    #[expect(clippy::disallowed_methods, reason = "the one clock of this controller")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn forget(&self, key: &Key) {
        self.statuses.forget(key);
        self.failures.take(key);
        self.credentials.take(key);
    }
}

/// Runs the controller while the cluster knows the kind, until `stop`. Returns when its last reconcile has ended.
pub async fn run(parts: Parts, stop: CancellationToken) {
    // While the kind is on its way out its objects still are, and have to be let go.
    let definition = Definition::until_gone(DEFINITION);
    let controller = |stop| control(parts.clone(), stop);
    definition.control(parts.watch_client.clone(), &stop, controller).await;
}

async fn control(Parts { client, watch_client, recorder, metrics, lead }: Parts, stop: CancellationToken) {
    let (postgresqls, writer) = reflector::store();
    let tasks = TaskTracker::new();
    let (watches, triggers) = Watches::start(&watch_client, postgresqls.clone(), &tasks, &stop);
    let ctx = Arc::new(Ctx {
        client,
        recorder,
        watches,
        lead,
        metrics,
        statuses: Statuses::default(),
        failures: Memo::default(),
        credentials: Memo::default(),
        synced: OnceCell::new(),
        stop: stop.clone(),
    });
    let stream = watcher(Api::<Guard<Postgresql>>::all(watch_client), watcher::Config::default())
        .default_backoff()
        .reflect(writer)
        .inspect(|event| {
            if let Err(error) = event {
                interrupted("postgresqls", error);
            }
        });
    let controller = Controller::for_stream(stored_objects(stream), postgresqls)
        .with_config(ControllerConfig::default().concurrency(0))
        .reconcile_on(triggers)
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(reconcile, error_policy, ctx.clone())
        .for_each(|_| std::future::ready(()));
    driven(controller, &ctx.watches.postgresqls, &stop).await;
    tasks.close();
    tasks.wait().await;
}

async fn reconcile(guard: Arc<Guard<Postgresql>>, ctx: Arc<Ctx>) -> Result<Action, Error> {
    tokio::select! {
        _ = ctx.synced.get_or_init(|| ctx.watches.synced()) => {}
        // The watches end with the operator; one that had not begun by then never will.
        () = ctx.stop.cancelled() => return Ok(Action::await_change()),
    }
    // Before the token does, the clock tells a process that was frozen.
    if !ctx.lead.holds() {
        return Ok(Action::await_change());
    }
    let key = key_of(guard.as_ref());
    let span = tracing::info_span!("reconcile", postgresql = %key, generation = guard.metadata.generation);
    let _timer = ctx.metrics.reconcile();
    let result = caught(drive(&ctx, &key, &guard), Error::Panicked).instrument(span.clone()).await;
    match &result {
        Ok(_) => {
            ctx.failures.take(&key);
        }
        Err(error) => span.in_scope(|| tracing::warn!(%error, "reconcile failed")),
    }
    result
}

async fn drive(ctx: &Ctx, key: &Key, guard: &Guard<Postgresql>) -> Result<Action, Error> {
    let meta = &guard.metadata;
    let pass = Pass {
        ctx,
        key,
        guard,
        uid: meta.uid.as_deref().unwrap_or_default(),
        reference: guard.object_ref(&()),
        before: ctx.statuses.get(key, meta, guard.status(|object| &object.status)),
    };
    let result = match (meta.deletion_timestamp.is_some(), finalizer::carries(meta, POSTGRESQL_FINALIZER)) {
        (true, false) => {
            ctx.forget(key);
            return Ok(Action::await_change());
        }
        (true, true) => caught(pass.take_down(), Error::Panicked).await,
        // The change itself brings the next reconcile. What does not decode is not acted for, and needs no teardown.
        (false, false) if guard.object.is_ok() => pass.finalizer(true).await,
        (false, _) => caught(pass.bring_up(), Error::Panicked).await,
    };
    if let Err(error) = &result {
        // As it was put on record since.
        let before = ctx.statuses.get(key, meta, guard.status(|object| &object.status));
        let said = pass.say(&report::failed(&before, meta.generation, error, ctx.now())).await;
        if matches!((error, &said), (Error::Gone(_), _) | (_, Err(Error::Gone(_)))) {
            teardown::abandoned(ctx, &pass.leaving()).await?;
            return Ok(Action::await_change());
        }
        said?;
    }
    result
}

/// One reconcile.
struct Pass<'a> {
    ctx: &'a Ctx,
    key: &'a Key,
    guard: &'a Guard<Postgresql>,
    uid: &'a str,
    reference: ObjectReference,
    before: PostgresqlStatus,
}

impl Pass<'_> {
    async fn finalizer(&self, there: bool) -> Result<Action, Error> {
        let Pass { ctx, key, guard, .. } = self;
        finalizer::write::<Postgresql>(&ctx.client, key, &guard.metadata, POSTGRESQL_FINALIZER, there)
            .await
            .map_err(Error::api(format!("write the finalizer of Postgresql {key}")))?;
        Ok(Action::await_change())
    }

    async fn bring_up(&self) -> Result<Action, Error> {
        let Pass { ctx, guard, reference, before, .. } = self;
        let generation = guard.metadata.generation;
        let desired = guard
            .object
            .as_ref()
            .map_err(|problem| format!("the stored object does not decode: {problem}"))
            .and_then(desired);
        let desired = match desired {
            Ok(desired) => desired,
            Err(message) => {
                let hold = Hold { reason: "InvalidSpec", message, stalled: true };
                self.say(&report::only_said(before, generation, &hold, ctx.now())).await?;
                return Ok(Action::await_change());
            }
        };
        let world = observe::observe(ctx, &desired, before.clone()).await?;
        let recorded = report::recorded(&desired, &world);
        if recorded != world.recorded {
            // The write itself brings the next reconcile: nothing is done on what is not on record.
            self.say(&recorded).await?;
            return Ok(Action::await_change());
        }
        let plan = decide(&desired, &world);
        act::act(ctx, reference, &desired, &world, &plan).await?;
        // What was done shows in the watches, and brings the next reconcile.
        self.say(&report::build_status(generation, &desired, &world, &plan, ctx.now())).await?;
        Ok(Action::await_change())
    }

    async fn take_down(&self) -> Result<Action, Error> {
        let Pass { ctx, key, guard, before, .. } = self;
        if let Some(hold) = teardown::teardown(ctx, &self.leaving()).await? {
            self.say(&report::only_said(before, guard.metadata.generation, &hold, ctx.now())).await?;
            return Ok(if hold.stalled { Action::await_change() } else { Action::requeue(SAFETY_NET) });
        }
        self.finalizer(false).await?;
        ctx.forget(key);
        Ok(Action::await_change())
    }

    fn leaving(&self) -> Leaving<'_> {
        let Pass { key, guard, uid, before, reference, .. } = self;
        let object = guard.object.as_ref().map_err(String::as_str);
        Leaving { key, meta: &guard.metadata, uid, object, before, reference }
    }

    /// Writes the status, and publishes what in it is new.
    async fn say(&self, status: &PostgresqlStatus) -> Result<(), Error> {
        let Pass { ctx, key, guard, uid, reference, .. } = self;
        let before = ctx.statuses.get(key, &guard.metadata, guard.status(|object| &object.status));
        report::write(ctx, key, uid, &before, status).await?;
        publish_by(&ctx.recorder, reference, &report::transitions(&before, status)).await;
        Ok(())
    }
}

fn error_policy(guard: Arc<Guard<Postgresql>>, error: &Error, ctx: Arc<Ctx>) -> Action {
    let key = key_of(guard.as_ref());
    let failures = ctx.failures.get(&key).unwrap_or(0) + 1;
    ctx.failures.put(key, failures);
    ctx.metrics.reconcile_failed(error.disposition().reason);
    match error.disposition().retry.delay(failures) {
        None => Action::await_change(),
        Some(delay) => Action::requeue(jitter(delay, rand::rng().random())),
    }
}
