//! What every reconcile of a ClientApp shares.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::{
    api::core::v1::ObjectReference,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{
    Client, Resource as _,
    runtime::{events::Recorder, watcher::Event},
};
use tokio::sync::SetOnce;

use super::{
    desired::{Desired, desired},
    helm_runs::HelmRuns,
    memory::Memory,
    watches::Watches,
};
use crate::{
    config::Config,
    crd::{ClientApp, ClientAppStatus, Guard, Reason},
    destroy::permit::is_orphaned,
    helm::{ChartCache, Helm},
    lead::Lead,
    lock_owner::LockOwner,
    metrics::Metrics,
    runtime::key::{Key, key_of},
};

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

    /// Takes notice of a change of an app, before it is reconciled: the change may free a hostname that other apps wait for.
    pub fn app_changed(&self, event: &Event<Guard<ClientApp>>) {
        let app = match event {
            Event::Apply(app) => app,
            Event::Delete(app) => {
                // No reconcile follows.
                self.helm_runs.forget(&key_of(app));
                app
            }
            Event::InitDone => {
                // Again after each interruption.
                let _ = self.listed.set(());
                return;
            }
            Event::Init | Event::InitApply(_) => return,
        };
        let key = key_of(app);
        if app.metadata.deletion_timestamp.is_some() && is_orphaned(&app.metadata) {
            self.memory.orphaned.put(key.clone(), app.metadata.uid.clone().unwrap_or_default());
        }
        self.watches.trigger_hostname_waiters(&key);
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
