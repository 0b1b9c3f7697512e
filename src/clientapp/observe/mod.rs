//! The stage `observe`, an **effect**: reads the caches, and from the API server only what no cache may hold (the keys of a Secret that
//! another client wrote) or where a cache seems late (a revision this operator has seen). It writes nothing but `memory`, which spares
//! the next pass the same reads.
//!
//! There is a module for each thing that is observed, named as its type in `observed` where there is one.

mod database;
mod dependencies;
mod drift;
mod file_backup;
pub(crate) mod owned;
pub(crate) mod release;
pub(crate) mod retained;
mod run;
mod secrets;
pub(crate) mod sources;
pub(crate) mod uncached;
pub(crate) mod values_in_effect;
mod workloads;

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{
    context::{App, Ctx},
    error::Error,
    helm_runs::{HelmRun, Work},
    observed::{
        installed_chart,
        release::{ReleaseView, is_stored, release_view},
        repair_backoff::Repairs,
        types::{Busy, CachedChart, Observed, ObservedObjects, ObservedRun, Prerequisites, SecretView},
        upgrade_backup,
    },
    spec::{database::DatabaseState, desired::Desired, values::TlsSource},
};
use crate::{
    crd::{ClientAppStatus, annotation},
    platform::key::Key,
};

/// Observes everything that decisions about this app depend on; without a valid spec, only what needs no spec.
pub(crate) async fn observe(
    ctx: &Ctx,
    app: &App<'_>,
    desired: Option<&Desired>,
    now: Timestamp,
) -> Result<Observed, Error> {
    let key = app.key;
    let run = ctx.helm_runs.state(key, app.uid());
    let mut recorded = app.recorded_status.clone();
    let revisions = ctx.watches.revisions(key);
    let cached = release_view(&revisions);
    if let Some(busy) = run::busy(&run, cached.as_ref(), now) {
        return Ok(while_helm_runs(ctx, (key, desired), (run, busy), cached, recorded, now).await);
    }
    let (release, is_in_cache) = release::newest(ctx, key, cached, &recorded, &run).await?;
    if let HelmRun::Upgraded(upgraded) = &run {
        recorded.last_attempt = Some(upgraded.attempt.clone());
    }
    if let HelmRun::Tested(test_run) = &run {
        recorded.test = Some(run::test_record(ctx, (key, desired), test_run, recorded.test.as_ref()).await?);
    }
    recorded.installed = installed_chart::installed_now(release.as_ref(), &recorded);
    let inventory = release::inventory(ctx, key, release.as_ref(), &recorded).await?;
    let workloads = workloads::workloads(ctx, key, (release.as_ref(), inventory.as_ref()), &run);
    let repairs = repairs(ctx, key, &run);
    let observed = Observed {
        last_ready_is_stored: recorded.last_ready.as_ref().is_some_and(|ready| is_stored(ready, &revisions)),
        run: ObservedRun { state: run, is_in_cache, ..ObservedRun::default() },
        release,
        objects: ObservedObjects { inventory, workloads, repairs, ..ObservedObjects::default() },
        owned: recorded.owned.clone(),
        recorded,
        ..Observed::default()
    };
    let Some(desired) = desired else { return Ok(observed) };
    let mut observed = with_spec(ctx, app, desired, observed, now).await?;
    workloads::with_reasons(ctx, desired, &mut observed, now).await;
    drift::with_drift(ctx, desired, &mut observed, now).await;
    redact(desired, &mut observed);
    Ok(observed)
}

/// Observes a long run's workloads, and nothing else: helm may be changing everything right now.
async fn while_helm_runs(
    ctx: &Ctx,
    (key, desired): (&Key, Option<&Desired>),
    (run, busy): (HelmRun, Busy),
    release: Option<ReleaseView>,
    recorded: ClientAppStatus,
    now: Timestamp,
) -> Observed {
    let is_long = busy.until.is_none() && busy.digest.is_some();
    let workloads = if is_long { ctx.watches.workloads(key) } else { Vec::new() };
    let mut observed = Observed {
        run: ObservedRun { state: run, busy: Some(busy), ..ObservedRun::default() },
        release,
        objects: ObservedObjects { workloads, ..ObservedObjects::default() },
        recorded,
        ..Observed::default()
    };
    if let Some(desired) = desired.filter(|_| is_long) {
        workloads::with_reasons(ctx, desired, &mut observed, now).await;
        run::with_refused_hook(ctx, key, &mut observed);
        redact(desired, &mut observed);
    }
    observed
}

/// Returns the objects that were recreated recently; helm has written them anew.
fn repairs(ctx: &Ctx, key: &Key, run: &HelmRun) -> Repairs {
    let repairs = ctx.memory.read(key, |app| app.repairs.clone());
    let HelmRun::Upgraded(upgraded) = run else { return repairs };
    let repairs = repairs.after_helm(upgraded.at);
    ctx.memory.put(key, |app| app.repairs = repairs.clone());
    repairs
}

/// Redacts what kubelet, webhooks and the database's operator say: they may quote values from Secrets.
fn redact(desired: &Desired, observed: &mut Observed) {
    let database = &mut observed.prerequisites.database;
    let state = database.object.as_mut().and_then(|object| match &mut object.state {
        DatabaseState::Waiting(words) | DatabaseState::Stalled(words) => Some(words),
        DatabaseState::NotReported | DatabaseState::Restoring(_) | DatabaseState::Ready => None,
    });
    let pods = database.pods.as_mut().and_then(|pods| pods.why.as_mut());
    for words in database.warnings.iter_mut().chain(state).chain(pods) {
        *words = desired.values.redactor.redact(words);
    }
    let sentence = observed.run.busy.iter_mut().map(|at_work| &mut at_work.sentence);
    let waiting = observed.objects.workloads.iter_mut().filter_map(|workload| workload.waiting.as_mut());
    for waiting in sentence.chain(waiting) {
        *waiting = desired.values.redactor.redact(waiting);
    }
}

async fn with_spec(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    observed: Observed,
    now: Timestamp,
) -> Result<Observed, Error> {
    let key = app.key;
    let admin_secret = secrets::admin(ctx, app, desired, &observed).await?;
    let claims: Vec<Arc<ObjectMeta>> = ctx.watches.claims(&key.namespace);
    let owned = owned::owned(ctx, app, observed.objects.inventory.as_ref(), &claims);
    let prerequisites = prerequisites(ctx, app, desired, (&observed, admin_secret), now).await?;
    let hook = release::hook(ctx, app, desired, &observed).await?;
    let files =
        file_backup::files(ctx, app, desired.data.files.as_ref(), (observed.objects.inventory.as_ref(), &claims));
    let [has_slot, has_test_slot] = [Work::Change, Work::Test].map(|work| ctx.helm_runs.may_run(work, key));
    let Observed { run, objects, .. } = observed;
    Ok(Observed {
        run: ObservedRun { has_slot, has_test_slot, ..run },
        objects: ObservedObjects { hook, claims, ..objects },
        prerequisites,
        files,
        owned,
        retry: app.annotation(annotation::RETRY).cloned(),
        ..observed
    })
}

async fn prerequisites(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    (Observed { release, recorded, .. }, admin_secret): (&Observed, SecretView),
    now: Timestamp,
) -> Result<Prerequisites, Error> {
    let (key, uid) = (app.key, app.uid());
    let redis_secret = secrets::redis(ctx, app, desired).await?;
    let chart = ctx.charts.cached(&desired.target().chart_version).await.map(|chart| CachedChart::from(chart.as_ref()));
    let installed = installed_chart::installed(recorded);
    Ok(Prerequisites {
        hostname_holder: ctx.hostnames.holder(&desired.hostname, uid, key),
        certificate: match &desired.tls {
            Some(TlsSource::Secret { name, .. }) => {
                sources::certificate(ctx, key, &Key::new(&key.namespace, name)).await?
            }
            Some(TlsSource::Elsewhere) | None => None,
        },
        admin_secret,
        redis_secret,
        database: database::view(ctx, app, desired, recorded, now).await?,
        deployer: ctx.watches.deployer(&key.namespace),
        retained: retained::find(ctx, desired, uid, recorded).await?,
        dependencies: dependencies::unready(ctx, desired, release.as_ref()).await,
        chart: chart.filter(|chart| installed_chart::digest_changed(installed.as_ref(), chart).is_none()),
        backup: upgrade_backup::backup(desired, app.meta(), release.as_ref(), recorded, now)
            .map(|record| upgrade_backup::view(record, uid, &ctx.watches.backups(key))),
    })
}
