//! Start and end of the controller. An **effect**.

use std::sync::Arc;

use jiff::Timestamp;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    context::{Ctx, memory::Memory, salt::Salts, watches::Watches},
    decide::file_backup,
    helm_runs::HelmRuns,
    teardown::namespace,
};
use crate::{
    config::Config,
    crd::{
        ClientApp, Guard,
        conditions::{find, kind},
    },
    deletion::brake::DeletionBrake,
    helm::{ChartCache, Helm, gateway::Gateway},
    metrics::BackupTimes,
    platform::{
        controller::{ControllerContext, Feed, Objects, control},
        key::{Key, key_of},
    },
    profile::Profiles,
    secrets::Secrets,
};

/// Holds what the controller of ClientApps needs besides what every controller has.
pub(crate) struct Tools {
    pub config: Arc<Config>,
    pub helm: Helm,
    pub gateway: Gateway,
    pub charts: Arc<ChartCache>,
    pub secrets: Secrets,
    /// The name of this process, as stamped on releases.
    pub holder: String,
    /// The operator's own namespace, with its Lease.
    pub namespace: String,
    pub deletion_brake: DeletionBrake,
    pub profiles: Arc<Profiles>,
}

struct Aborted(Arc<HelmRuns>);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns status and reason of `Ready` of each app.
fn states(apps: &Objects<ClientApp>) -> Vec<(String, String)> {
    let state = |app: &Arc<Guard<ClientApp>>| {
        let status = app.status().unwrap_or_default();
        let ready = find(&status.conditions, kind::READY);
        ready
            .map_or_else(|| ("Unknown".to_owned(), String::new()), |ready| (ready.status.clone(), ready.reason.clone()))
    };
    apps.store.state().iter().map(state).collect()
}

/// Returns the times of the archives of each app with a schedule for them.
fn archives(apps: &Objects<ClientApp>) -> Vec<BackupTimes> {
    let archive = |guard: &Arc<Guard<ClientApp>>| {
        let app = guard.object.as_ref().ok()?;
        app.spec.persistence.backup.as_ref()?.schedule.as_ref()?;
        let files = app.status.as_ref().and_then(|status| status.files.as_ref());
        let success = files.and_then(|files| files.last_success.as_ref());
        let overdue = files.and_then(file_backup::late_at);
        let last = Some(success.map_or(0, |time| time.0.as_second()));
        let Key { namespace, name } = key_of(&**guard);
        Some(BackupTimes { namespace, name, last, overdue: overdue.map(Timestamp::as_second) })
    };
    apps.store.state().iter().filter_map(archive).collect()
}

/// Runs the controller until `stop`, and returns when its last reconcile and its last helm process have ended.
pub(crate) async fn run(
    parts: ControllerContext,
    Tools { config, helm, gateway, charts, secrets, holder, namespace, deletion_brake, profiles }: Tools,
    (apps, feed): (Objects<ClientApp>, Feed<ClientApp>),
    stop: CancellationToken,
) {
    let tasks = TaskTracker::new();
    let watches = Watches::start(&parts.watch_client, apps.clone(), &secrets, &tasks, &stop);
    let changed = {
        let apps = apps.clone();
        move |key: &Key| apps.trigger(key)
    };
    let ctx = Arc::new(Ctx {
        client: parts.client.clone(),
        recorder: parts.recorder.clone(),
        metrics: parts.metrics.clone(),
        lead: parts.lead.clone(),
        helm_runs: HelmRuns::new(config.max_concurrent, tasks.clone(), stop.clone(), changed),
        config,
        helm,
        gateway: Arc::new(gateway),
        charts,
        holder,
        image: parts.image.clone(),
        watches,
        profiles,
        memory: Memory::default(),
        salts: Salts::new(namespace),
        hostnames: Arc::default(),
        deletion_brake,
    });
    tasks.spawn({
        let ctx = ctx.clone();
        stop.clone().run_until_cancelled_owned(async move { namespace::sweep(&ctx).await })
    });
    // If this future is dropped, because this process lost the lead and a task hangs, no helm process outlives it.
    let _aborted = Aborted(ctx.helm_runs.clone());
    let [counted, archived] = [apps.clone(), apps.clone()];
    parts.metrics.apps(Some(Box::new(move || states(&counted))));
    parts.metrics.archives.measure(Some(Box::new(move || archives(&archived))));
    let metrics = parts.metrics.clone();
    control(ctx, parts, (apps, feed), stop).await;
    metrics.apps(None);
    metrics.archives.measure(None);
    tasks.close();
    tasks.wait().await;
}
