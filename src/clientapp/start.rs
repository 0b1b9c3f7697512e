//! Start and end of the controller. An **effect**.

use std::sync::Arc;

use tokio::sync::SetOnce;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{context::Ctx, helm_runs::HelmRuns, memory::Memory, namespace, salt::Salts, watches::Watches};
use crate::{
    config::Config,
    crd::{
        ClientApp, Guard,
        conditions::{find, kind},
    },
    helm::{ChartCache, Helm, gateway::Gateway},
    runtime::{
        controller::{Objects, Parts, control},
        key::Key,
    },
    secrets::Secrets,
};

/// What the controller of ClientApps needs besides what every controller has.
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
}

struct Aborted(Arc<HelmRuns>);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Status and reason of `Ready` of each app.
fn states(apps: &Objects<ClientApp>) -> Vec<(String, String)> {
    let state = |app: &Arc<Guard<ClientApp>>| {
        let status = app.status().unwrap_or_default();
        let ready = find(&status.conditions, kind::READY);
        ready
            .map_or_else(|| ("Unknown".to_owned(), String::new()), |ready| (ready.status.clone(), ready.reason.clone()))
    };
    apps.store.state().iter().map(state).collect()
}

/// Runs the controller until `stop`, and returns when its last reconcile and its last helm process have ended.
pub(crate) async fn run(
    parts: Parts,
    Tools { config, helm, gateway, charts, secrets, holder, namespace }: Tools,
    stop: CancellationToken,
) {
    let (apps, feed) = Objects::new();
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
        watches,
        memory: Memory::default(),
        salts: Salts::new(namespace),
        hostnames: Arc::default(),
        listed: SetOnce::new(),
    });
    tasks.spawn({
        let ctx = ctx.clone();
        stop.clone().run_until_cancelled_owned(async move { namespace::sweep(&ctx).await })
    });
    // If this future is dropped, because this process lost the lead and a task hangs, no helm process outlives it.
    let _aborted = Aborted(ctx.helm_runs.clone());
    let counted = apps.clone();
    parts.metrics.apps(Some(Box::new(move || states(&counted))));
    let metrics = parts.metrics.clone();
    control(ctx, parts, (apps, feed), stop).await;
    metrics.apps(None);
    tasks.close();
    tasks.wait().await;
}
