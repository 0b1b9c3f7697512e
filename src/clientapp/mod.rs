//! The controller of `ClientApp`: **observe → desired → decide → act → report**, and teardown.
//!
//! | stage | module | |
//! |---|---|---|
//! | what is there | [`observe`] → [`world`] | effect, reads only |
//! | what shall be | [`mod@desired`], with [`build`] and [`names`] | pure |
//! | what to do now | [`decide`], with [`mod@gate`] and [`upgrade`], into [`plan`] | pure |
//! | do it | [`act`] | effect |
//! | say so | [`report`] | pure, then one write |
//! | deletion | `teardown` | effect |
//! | what becomes of what | [`fate`] | pure |
//!
//! This module is the driver: it runs the stages in order and knows nothing of what they decide.

pub mod act;
pub mod build;
pub mod decide;
pub mod desired;
pub mod error;
pub mod fate;
pub mod finalizer;
pub mod gate;
pub mod inventory;
pub mod memory;
pub mod names;
pub mod namespace;
pub mod observe;
pub mod owned;
pub mod plan;
pub mod report;
pub mod retained;
mod teardown;
pub mod upgrade;
pub mod watches;
pub mod world;

use std::{sync::Arc, time::Duration};

use futures::StreamExt as _;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{
    Api, Client, Resource as _,
    runtime::{
        Config as ControllerConfig, Controller, WatchStreamExt as _,
        controller::Action,
        events::Recorder,
        reflector::{self, ObjectRef},
        watcher,
    },
};
use rand::RngExt as _;
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit, SetOnce};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::Instrument as _;

use self::{
    act::{Means, Subject},
    desired::{InvalidReason, desired},
    error::Error,
    memory::Memory,
    plan::Plan,
    report::Pass,
    teardown::Progress,
    watches::Watches,
    world::World,
};
use crate::{
    config::Config,
    controller::{
        error::jitter,
        key::{Key, key_of},
        panic::caught,
        watch::{driven, interrupted, stored_objects},
    },
    crd::{ClientApp, ClientAppStatus, Guard},
    destroy::permit::is_orphaned,
    helm::{ChartCache, HelmApi},
    holder::Holder,
    lease::Lead,
    metrics::Metrics,
};

/// What every reconcile shares.
pub struct Ctx {
    /// The operator's way to the API server.
    pub client: Client,
    /// Settings.
    pub config: Arc<Config>,
    /// The caches.
    pub watches: Arc<Watches>,
    /// The helm CLI.
    pub helm: Arc<dyn HelmApi>,
    /// Chart archives.
    pub charts: Arc<ChartCache>,
    /// Publishes events.
    pub recorder: Recorder,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// This process, as stamped on releases.
    pub holder: Holder,
    /// Whether it still leads.
    pub lead: Lead,
    /// Ends with the operator, or with its leadership.
    pub stop: CancellationToken,
    memory: Memory,
    /// Bounds the helm processes. Waiting here costs a parked future and holds up nobody else.
    slots: Semaphore,
    synced: OnceCell<()>,
    /// Set with the first complete list of ClientApps. Only one task can wait for kube's own store to be ready (the waker
    /// of the last one to ask is kept), and the controller does.
    listed: SetOnce<()>,
}

impl Ctx {
    /// The clock of the effects; the pure stages get their time from here.
    #[expect(clippy::disallowed_methods, reason = "the one clock")]
    #[must_use]
    pub fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    async fn slot(&self) -> Result<SemaphorePermit<'_>, Error> {
        tokio::select! {
            slot = self.slots.acquire() => slot.map_err(|_| Error::Shutdown),
            () = self.stop.cancelled() => Err(Error::Shutdown),
        }
    }
}

/// What the controller is made of.
pub struct Parts {
    /// The operator's way to the API server.
    pub client: Client,
    /// The same for watches, which are silent for long.
    pub watch_client: Client,
    /// Settings.
    pub config: Arc<Config>,
    /// The helm CLI.
    pub helm: Arc<dyn HelmApi>,
    /// Chart archives.
    pub charts: Arc<ChartCache>,
    /// Publishes events.
    pub recorder: Recorder,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// This process, as stamped on releases.
    pub holder: Holder,
    /// Whether this process still leads.
    pub lead: Lead,
}

/// Runs the controller until `stop`, and returns when its last reconcile, and so its last helm, has ended.
pub async fn run(parts: Parts, stop: CancellationToken) {
    let Parts { client, watch_client, config, helm, charts, recorder, metrics, holder, lead } = parts;
    let (apps, writer) = reflector::store();
    let tasks = TaskTracker::new();
    let (watches, triggers) = Watches::start(&watch_client, apps.clone(), &tasks, &stop);
    let ctx = Arc::new(Ctx {
        slots: Semaphore::new(config.max_concurrent),
        client,
        config,
        watches,
        helm,
        charts,
        recorder,
        metrics,
        holder,
        lead,
        stop: stop.clone(),
        memory: Memory::default(),
        synced: OnceCell::new(),
        listed: SetOnce::new(),
    });

    tasks.spawn({
        let ctx = ctx.clone();
        stop.clone().run_until_cancelled_owned(async move { namespace::sweep(&ctx).await })
    });
    let changed = {
        let ctx = ctx.clone();
        move |event: watcher::Result<watcher::Event<Guard<ClientApp>>>| {
            match &event {
                Ok(watcher::Event::Apply(app) | watcher::Event::Delete(app)) => app_changed(&ctx, app),
                Ok(watcher::Event::InitDone) => {
                    // Again after each interruption.
                    let _ = ctx.listed.set(());
                }
                Err(error) => interrupted("clientapps", error),
                Ok(_) => {}
            }
            event
        }
    };
    let stream = watcher(Api::<Guard<ClientApp>>::all(watch_client), watcher::Config::default())
        .default_backoff()
        .reflect(writer)
        .map(changed);
    let controller = Controller::for_stream(stored_objects(stream), apps)
        // Unbounded on purpose: what is scarce is bounded where it is used, helm by its slots; a reconcile that waits
        // for a slot must not keep another from telling the truth about its app.
        .with_config(ControllerConfig::default().concurrency(0))
        .reconcile_on(triggers)
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(reconcile, error_policy, ctx.clone())
        .for_each(|_| std::future::ready(()));
    driven(controller, &ctx.watches.apps, &stop).await;
    tasks.close();
    tasks.wait().await;
}

/// A ClientApp on its way out stops its own helm; one that changes may free a hostname that others wait for.
fn app_changed(ctx: &Ctx, app: &Guard<ClientApp>) {
    let key = key_of(app);
    if app.metadata.deletion_timestamp.is_some()
        && let Some(running) = ctx.memory.running.get(&key)
    {
        running.cancel();
    }
    if app.metadata.deletion_timestamp.is_some() && is_orphaned(&app.metadata) {
        ctx.memory.orphaned.put(key.clone(), app.metadata.uid.clone().unwrap_or_default());
    }
    // What is fetched may be just what somebody has put right.
    if let Some((generation, fetch)) = ctx.memory.fetching.get(&key)
        && (generation != app.metadata.generation || app.metadata.deletion_timestamp.is_some())
    {
        fetch.cancel();
    }
    ctx.watches.trigger_hostname_waiters(&key);
}

async fn reconcile(guard: Arc<Guard<ClientApp>>, ctx: Arc<Ctx>) -> Result<Action, Error> {
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
    let span = tracing::info_span!("reconcile", clientapp = %key, generation = guard.metadata.generation);
    let _timer = ctx.metrics.reconcile();
    let result = caught(drive(&ctx, &key, &guard), Error::Panicked).instrument(span.clone()).await;
    let result = match result {
        Err(Error::Gone(_)) => teardown::abandoned(&ctx, &key, &guard).await.map(|()| Action::await_change()),
        other => other,
    };
    match &result {
        Ok(_) => {
            ctx.memory.failures.take(&key);
        }
        Err(error) => span.in_scope(|| tracing::warn!(%error, "reconcile failed")),
    }
    result
}

async fn drive(ctx: &Ctx, key: &Key, guard: &Guard<ClientApp>) -> Result<Action, Error> {
    let meta = &guard.metadata;
    let subject = Subject {
        uid: meta.uid.as_deref().unwrap_or_default(),
        owner: &owner_reference(meta),
        reference: &guard.object_ref(&()),
    };
    let before = ctx.memory.recorded_status(key, guard);
    let result = match (meta.deletion_timestamp.is_some(), finalizer::present(meta)) {
        (true, false) => {
            ctx.memory.forget(key);
            return Ok(Action::await_change());
        }
        (true, true) => caught(take_down(ctx, key, guard, &subject, &before), Error::Panicked).await,
        // What does not decode is not acted for, and needs no teardown.
        (false, false) if guard.object.is_ok() => {
            // The change itself brings the next reconcile.
            finalizer::add(ctx, key, meta).await.map(|()| Action::await_change())
        }
        (false, _) => caught(bring_up(ctx, key, guard, &subject, &before), Error::Panicked).await,
    };
    if let Err(error) = &result {
        let recorded = ctx.memory.recorded_status(key, guard);
        let status = report::failed(&recorded, meta.generation, error, ctx.now());
        say(ctx, key, &subject, &before, &recorded, &status).await?;
    }
    result
}

/// The way up, and all that keeps an app there.
async fn bring_up(
    ctx: &Ctx,
    key: &Key,
    guard: &Guard<ClientApp>,
    subject: &Subject<'_>,
    before: &ClientAppStatus,
) -> Result<Action, Error> {
    let mut slot = None;
    let mut latest = None;
    let mut fetched: Option<act::Fetched> = None;
    loop {
        let guard = latest.as_deref().unwrap_or(guard);
        let generation = guard.metadata.generation;
        let recorded = ctx.memory.recorded_status(key, guard);
        let wanted = match &guard.object {
            Ok(app) => {
                let profile = app.spec.profile.as_deref().and_then(|name| ctx.watches.profile(name));
                desired(app, profile.as_deref(), &ctx.config).map_err(|error| (error.reason, error.to_string()))
            }
            Err(problem) => Err((InvalidReason::InvalidSpec, format!("the stored object does not decode: {problem}"))),
        };
        let desired = match wanted {
            Ok(desired) => desired,
            Err((reason, problem)) => {
                let world = observe::observe_without_spec(ctx, key, recorded.clone()).await?;
                let plan = Plan::default();
                let desired = Err((reason, problem.as_str()));
                let pass = Pass { key, generation, desired, world: &world, plan: &plan };
                let status = report::build_status(&pass, ctx.now());
                let said = say(ctx, key, subject, before, &recorded, &status).await;
                if said.is_err() {
                    // The API server may refuse any write to what it would not accept now, but never an event.
                    report::publish(ctx, subject.reference, &report::transitions(before, &status)).await;
                }
                return said.map(|()| Action::await_change());
            }
        };
        let target =
            fetched.as_ref().filter(|fetched| fetched.version == desired.chart_version).and_then(act::Fetched::target);
        let see = async |recorded: ClientAppStatus| -> Result<World, Error> {
            let world = observe::observe(ctx, &desired, &guard.metadata, recorded).await?;
            Ok(World { target: target.clone(), ..world })
        };
        let decide = |world: &World| decide::decide(&desired, world, ctx.now(), ctx.config.helm_deadline);
        let mut world = see(recorded).await?;
        let mut plan = decide(&world);

        if plan.runs_helm() && fetched.as_ref().is_none_or(|fetched| fetched.version != desired.chart_version) {
            // Without a slot: nobody else's helm shall wait for a slow repository.
            slot = None;
            fetched = act::fetch(ctx, subject, generation, &desired, &world).await?;
            if fetched.is_none() {
                return Ok(Action::await_change());
            }
            // What it is decides whether helm may install it.
            continue;
        }
        if plan.runs_helm() && slot.is_none() {
            slot = ctx.slots.try_acquire().ok();
        }
        if !plan.steps.is_empty() {
            let means = Means { fetched: fetched.as_ref(), slot: slot.take() };
            let Some(outcome) = act::act(ctx, subject, generation, &desired, &world, &plan, means).await? else {
                slot = Some(ctx.slot().await?);
                // The queue may have been long: what is true now decides, not what was true when it began.
                latest = ctx.watches.apps.get(&ObjectRef::new(&key.name).within(&key.namespace));
                match &latest {
                    Some(app)
                        if app.metadata.deletion_timestamp.is_none()
                            && app.metadata.uid.as_deref() == Some(subject.uid) =>
                    {
                        continue;
                    }
                    _ => return Ok(Action::await_change()),
                }
            };
            let recorded = ctx.memory.recorded_status(key, guard);
            world = see(act::with_attempt(recorded, &outcome)).await?;
            plan = decide(&world);
        }
        drop(slot);
        let pass = Pass { key, generation, desired: Ok(&desired), world: &world, plan: &plan };
        let recorded = ctx.memory.recorded_status(key, guard);
        say(ctx, key, subject, before, &recorded, &report::build_status(&pass, ctx.now())).await?;
        return Ok(next(plan.hold.and_then(|hold| hold.until), ctx.now()));
    }
}

/// The way down.
async fn take_down(
    ctx: &Ctx,
    key: &Key,
    guard: &Guard<ClientApp>,
    subject: &Subject<'_>,
    before: &ClientAppStatus,
) -> Result<Action, Error> {
    let status = match teardown::teardown(ctx, key, guard, before).await? {
        Progress::Done(kept) => {
            report::publish(ctx, subject.reference, report::data_kept(key, &kept).as_slice()).await;
            let fate = namespace::release(ctx, key, subject.uid).await?;
            report::publish(ctx, subject.reference, fate.note(&key.namespace).as_slice()).await;
            finalizer::remove(ctx, key, &guard.metadata).await?;
            ctx.memory.forget(key);
            return Ok(Action::await_change());
        }
        Progress::Record(status) => {
            let sentence = "what the deletion is about is on record";
            report::progress(&status, guard.metadata.generation, "Deleting", sentence, ctx.now())
        }
        Progress::Hold(hold) => {
            let status = report::deleting(before, guard.metadata.generation, &hold, ctx.now());
            say(ctx, key, subject, before, before, &status).await?;
            return Ok(next(hold.until, ctx.now()));
        }
    };
    say(ctx, key, subject, before, before, &status).await?;
    Ok(Action::requeue(Duration::ZERO))
}

/// Writes the status, and publishes what in it is new since the pass began.
async fn say(
    ctx: &Ctx,
    key: &Key,
    subject: &Subject<'_>,
    before: &ClientAppStatus,
    recorded: &ClientAppStatus,
    status: &ClientAppStatus,
) -> Result<(), Error> {
    report::write(ctx, key, subject.uid, recorded, status).await?;
    report::publish(ctx, subject.reference, &report::transitions(before, status)).await;
    Ok(())
}

fn next(until: Option<Timestamp>, now: Timestamp) -> Action {
    match until {
        None => Action::await_change(),
        Some(until) => {
            let wait = until.duration_since(now).max(SignedDuration::from_millis(100));
            Action::requeue(Duration::try_from(wait).unwrap_or(Duration::from_secs(60)))
        }
    }
}

/// What a generated object says of the ClientApp it belongs to.
#[must_use]
pub fn owner_reference(app: &ObjectMeta) -> OwnerReference {
    OwnerReference {
        api_version: ClientApp::api_version(&()).into_owned(),
        kind: ClientApp::kind(&()).into_owned(),
        name: app.name.clone().unwrap_or_default(),
        uid: app.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn error_policy(guard: Arc<Guard<ClientApp>>, error: &Error, ctx: Arc<Ctx>) -> Action {
    let key = key_of(guard.as_ref());
    let failures = ctx.memory.failures.get(&key).unwrap_or(0) + 1;
    ctx.memory.failures.put(key, failures);
    ctx.metrics.reconcile_failed(error.disposition().reason);
    match error.disposition().retry.delay(failures) {
        None => Action::await_change(),
        Some(delay) => Action::requeue(jitter(delay, rand::rng().random())),
    }
}
