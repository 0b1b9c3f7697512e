//! What every reconcile of a ClientApp shares, and the controller's start. An **effect**.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::ObjectReference,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Client, Resource as _, runtime::events::Recorder};
use tokio::sync::SetOnce;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    desired::{Desired, desired},
    helm_runs::HelmRuns,
    memory::Memory,
    namespace,
    watches::Watches,
};
use crate::{
    config::Config,
    crd::{
        ClientApp, ClientAppStatus, Guard, Reason,
        conditions::{find, kind},
    },
    helm::{ChartCache, Helm},
    lease::Lead,
    lock_owner::LockOwner,
    metrics::Metrics,
    runtime::{
        controller::{Objects, Parts, control},
        key::Key,
    },
};

/// What the controller of ClientApps has besides what every controller has.
pub struct Tools {
    pub config: Arc<Config>,
    pub helm: Helm,
    pub charts: Arc<ChartCache>,
    /// This process, as stamped on releases.
    pub holder: LockOwner,
}

/// What every reconcile shares.
pub struct Ctx {
    pub client: Client,
    pub recorder: Recorder,
    pub metrics: Arc<Metrics>,
    pub lead: Lead,
    pub config: Arc<Config>,
    pub helm: Helm,
    pub charts: Arc<ChartCache>,
    pub holder: LockOwner,
    pub watches: Arc<Watches>,
    pub helm_runs: Arc<HelmRuns>,
    pub memory: Memory,
    /// Set with the first complete list of ClientApps. Only one task can wait for kube's own store to be ready (the waker
    /// of the last one to ask is kept), and the controller does.
    pub listed: SetOnce<()>,
}

impl Ctx {
    /// The clock of the effects; the pure stages get their time from here.
    pub fn now(&self) -> Timestamp {
        now()
    }

    /// What shall exist for an app, or why that cannot be told.
    pub fn desired(&self, guard: &Guard<ClientApp>) -> Result<Desired, Invalid> {
        let app = guard.object.as_ref().map_err(|problem| Invalid {
            reason: Reason::InvalidSpec,
            message: format!("the stored object does not decode: {problem}"),
        })?;
        let profile = app.spec.profile.as_deref().and_then(|name| self.watches.profile(name));
        desired(app, profile.as_deref(), &self.config)
            .map_err(|error| Invalid { reason: error.reason, message: error.to_string() })
    }

    pub fn forget(&self, key: &Key) {
        self.helm_runs.forget(key);
        self.memory.forget(key);
    }
}

/// Why there is nothing that shall be.
pub struct Invalid {
    pub reason: Reason,
    pub message: String,
}

/// The clock of the effects.
#[expect(clippy::disallowed_methods, reason = "the one clock")]
pub fn now() -> Timestamp {
    Timestamp::now()
}

pub struct App<'a> {
    pub key: &'a Key,
    pub guard: &'a Guard<ClientApp>,
    pub uid: &'a str,
    /// Where events about it go.
    pub reference: ObjectReference,
    /// Its status as it is on record.
    pub before: ClientAppStatus,
}

impl<'a> App<'a> {
    pub fn new(ctx: &Ctx, key: &'a Key, guard: &'a Guard<ClientApp>) -> App<'a> {
        let uid = guard.metadata.uid.as_deref().unwrap_or_default();
        let before = ctx.memory.statuses.get(key, &guard.metadata, guard.status(|app| &app.status));
        App { key, guard, uid, reference: guard.object_ref(&()), before }
    }

    pub fn meta(&self) -> &'a ObjectMeta {
        &self.guard.metadata
    }

    pub fn generation(&self) -> Option<i64> {
        self.guard.metadata.generation
    }

    /// What a generated object says of the ClientApp it belongs to.
    pub fn owner_reference(&self) -> OwnerReference {
        OwnerReference {
            api_version: ClientApp::api_version(&()).into_owned(),
            kind: ClientApp::kind(&()).into_owned(),
            name: self.key.name.clone(),
            uid: self.uid.to_owned(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }
}

struct Aborted(Arc<HelmRuns>);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// State and reason of `Ready` of each app.
fn states(apps: &Objects<ClientApp>) -> Vec<(String, String)> {
    let state = |app: &Arc<Guard<ClientApp>>| {
        let status = app.status(|app| &app.status).unwrap_or_default();
        let ready = find(&status.conditions, kind::READY);
        ready
            .map_or_else(|| ("Unknown".to_owned(), String::new()), |ready| (ready.status.clone(), ready.reason.clone()))
    };
    apps.store.state().iter().map(state).collect()
}

/// Runs the controller until `stop`, and returns when its last reconcile and its last helm have ended.
pub async fn run(parts: Parts, Tools { config, helm, charts, holder }: Tools, stop: CancellationToken) {
    let (apps, feed) = Objects::new();
    let tasks = TaskTracker::new();
    let watches = Watches::start(&parts.watch_client, apps.clone(), &tasks, &stop);
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
        charts,
        holder,
        watches,
        memory: Memory::default(),
        listed: SetOnce::new(),
    });
    tasks.spawn({
        let ctx = ctx.clone();
        stop.clone().run_until_cancelled_owned(async move { namespace::sweep(&ctx).await })
    });
    // If this future is dropped, since the lead was lost and something hangs, no helm outlives it.
    let _aborted = Aborted(ctx.helm_runs.clone());
    let counted = apps.clone();
    parts.metrics.apps(Some(Box::new(move || states(&counted))));
    let metrics = parts.metrics.clone();
    control(ctx, parts, (apps, feed), stop).await;
    metrics.apps(None);
    tasks.close();
    tasks.wait().await;
}
