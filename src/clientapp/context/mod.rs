//! Holds what all reconciles of ClientApps share.

pub(crate) mod hostnames;
pub(crate) mod memory;
pub(crate) mod salt;
pub(crate) mod watches;

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Client,
    runtime::{controller::Action, watcher::Event},
};
use tokio::sync::SetOnce;

use self::{hostnames::Hostnames, memory::Memory, salt::Salts, watches::Watches};
use super::{
    error::Error,
    helm_runs::HelmRuns,
    spec::{
        desired::{Desired, desired},
        values_from::Sources,
    },
};
use crate::{
    config::Config,
    crd::{ClientApp, ClientAppStatus, Credentials, FINALIZER, Guard, Reason, annotation},
    deletion::{
        brake::DeletionBrake,
        permit::{is_orphaned, takes_dependents},
    },
    helm::{
        ChartCache, Helm,
        gateway::{Claim, Gateway},
    },
    leadership::Leadership,
    metrics::Metrics,
    platform::{
        controller::after_finalizer,
        events::Recorder,
        key::{Key, key_of},
        operator_image::OperatorImage,
        reconciled::Reconciled,
        watch,
    },
};

/// The ClientApp of one reconcile.
pub(crate) type App<'a> = Reconciled<'a, ClientApp, ClientAppStatus>;

pub(crate) struct Ctx {
    pub client: Client,
    pub recorder: Recorder,
    pub metrics: Arc<Metrics>,
    pub lead: Leadership,
    pub config: Arc<Config>,
    pub helm: Helm,
    pub gateway: Arc<Gateway>,
    pub charts: Arc<ChartCache>,
    pub holder: String,
    /// The operator's own image, which archives files; `None` if the operator does not know it.
    pub image: Option<Arc<OperatorImage>>,
    pub watches: Arc<Watches>,
    pub helm_runs: Arc<HelmRuns>,
    pub memory: Memory,
    pub salts: Salts,
    pub hostnames: Arc<Hostnames>,
    pub deletion_brake: DeletionBrake,
    /// Set once the first complete list of ClientApps is there. Only one task can wait for kube's own store to be ready (it keeps
    /// only the last waker), and the controller already does.
    pub listed: SetOnce<()>,
}

impl Ctx {
    pub(crate) fn app<'a>(&self, key: &'a Key, guard: &'a Guard<ClientApp>) -> App<'a> {
        self.memory.statuses.reconciled(key, guard)
    }

    /// Returns the desired state of an app with these values and credentials, or why the spec is invalid.
    pub(crate) fn desired(
        &self,
        app: &App<'_>,
        sources: &Sources,
        credentials: &[Credentials],
    ) -> Result<Desired, Invalid> {
        let stopped = app.annotation(annotation::STOPPED_FOR).is_some();
        let app = app.decoded().map_err(|message| Invalid { reason: Reason::InvalidSpec, message })?;
        // Its volumes are backed up or restored.
        let without_pods = stopped.then(|| {
            let mut app = app.clone();
            app.spec.replicas = Some(0);
            app
        });
        let app = without_pods.as_ref().unwrap_or(app);
        let profile = app.spec.profile.as_deref().and_then(|name| self.watches.profile(name));
        desired(app, profile.as_deref(), (sources, credentials), &self.config)
            .map_err(|error| Invalid { reason: error.reason, message: error.to_string() })
    }

    /// Records a change of an app before the app is reconciled: the change may free a hostname that other apps wait for.
    pub(crate) fn app_changed(&self, event: &Event<Guard<ClientApp>>) {
        let (app, waiters) = match event {
            Event::Apply(app) => (app, self.hostnames.seen(app)),
            Event::Delete(app) => (app, self.hostnames.waiters()),
            Event::InitDone => {
                self.watches.apps.store.state().iter().for_each(|app| drop(self.hostnames.seen(app)));
                self.hostnames.listed();
                // Fires again after each interruption of the watch.
                let _ = self.listed.set(());
                return;
            }
            Event::Init | Event::InitApply(_) => return,
        };
        let key = key_of(app);
        if app.metadata.deletion_timestamp.is_some() {
            let uid = || app.metadata.uid.clone().unwrap_or_default();
            if is_orphaned(&app.metadata) {
                self.memory.put(&key, |app| app.orphaned = Some(uid()));
            }
            if takes_dependents(&app.metadata) {
                self.memory.put(&key, |app| app.foreground = Some(uid()));
            }
        }
        for dependant in self.memory.having(|app| app.dependencies.contains(&key)) {
            self.watches.apps.trigger(&dependant);
        }
        for waiter in waiters {
            self.watches.apps.trigger(&waiter);
        }
    }

    /// Claims hosts for the Ingresses and routes of an app's release.
    pub(crate) fn claim(&self, app: &App<'_>) -> Claim {
        let (hostnames, key, uid) = (self.hostnames.clone(), app.key.clone(), app.uid().to_owned());
        Box::new(move |host| {
            let taken = |holder| format!("host {host} belongs to ClientApp {holder}: remove it from the values");
            hostnames.claim(host, &uid, &key).map_err(taken)
        })
    }

    /// Adds the finalizer. kube's own `finalizer()` keeps it only while the cleanup fails; here a cleanup also waits, which is not a
    /// failure.
    pub(crate) async fn add_finalizer(&self, app: &App<'_>) -> Result<Action, Error> {
        let written = app.add_finalizer(&self.client, FINALIZER).await;
        written.map(after_finalizer).map_err(Error::api(format!("add the finalizer to ClientApp {}", app.key)))
    }

    pub(crate) async fn remove_finalizer(&self, app: &App<'_>) -> Result<Action, Error> {
        let written = app.remove_finalizer(&self.client, FINALIZER).await;
        written.map(after_finalizer).map_err(Error::api(format!("remove the finalizer from ClientApp {}", app.key)))
    }

    pub(crate) fn forget(&self, key: &Key) {
        self.helm_runs.forget(key);
        self.memory.forget(key);
    }
}

/// Says why there is no desired state.
pub(crate) struct Invalid {
    pub reason: Reason,
    pub message: String,
}

/// Returns the ownerReference of a generated object to its ClientApp.
pub(crate) fn owner_reference(app: &App<'_>) -> OwnerReference {
    watch::owner_reference(app.guard)
}
