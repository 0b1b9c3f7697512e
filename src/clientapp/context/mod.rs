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

use self::{hostnames::Hostnames, memory::Memory, salt::Salts, watches::Watches};
use super::{
    error::Error,
    helm_runs::HelmRuns,
    spec::{
        desired::{Desired, StoredProfile, desired},
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
        controller::after_write,
        events::Recorder,
        key::{Key, key_of},
        operator_image::OperatorImage,
        reconciled::Reconciled,
        watch,
    },
    profile::{Found, ProfileRevision, Profiles},
};

/// The ClientApp of one reconcile.
pub(crate) type App<'a> = Reconciled<'a, ClientApp, ClientAppStatus>;

pub(crate) enum TakenProfile {
    /// The spec names none.
    None,
    /// It does not exist, or the app does not decode.
    Missing,
    Undecodable(Box<StoredProfile>),
    Revision(Arc<ProfileRevision>),
}

impl TakenProfile {
    /// Returns true if the app has another revision until its status is written.
    pub(crate) fn is_taken_by(&self, app: &App<'_>) -> bool {
        let recorded = app.recorded_status.profile_revision.as_ref().map(|has| has.name.as_str());
        matches!(self, TakenProfile::Revision(revision) if recorded != Some(&revision.name))
    }

    /// Returns true if both are the same revision.
    pub(crate) fn is_same(&self, other: &TakenProfile) -> bool {
        matches!((self, other), (TakenProfile::Revision(one), TakenProfile::Revision(other)) if one.name == other.name)
    }

    fn stored(&self) -> Option<&StoredProfile> {
        match self {
            TakenProfile::None | TakenProfile::Missing => None,
            TakenProfile::Undecodable(stored) => Some(stored),
            TakenProfile::Revision(revision) => Some(&revision.spec),
        }
    }

    pub(crate) fn revision(&self) -> Option<&ProfileRevision> {
        match self {
            TakenProfile::Revision(revision) => Some(revision),
            TakenProfile::None | TakenProfile::Missing | TakenProfile::Undecodable(_) => None,
        }
    }
}

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
    pub profiles: Arc<Profiles>,
    pub helm_runs: Arc<HelmRuns>,
    pub memory: Memory,
    pub salts: Salts,
    pub hostnames: Arc<Hostnames>,
    pub deletion_brake: DeletionBrake,
}

impl Ctx {
    pub(crate) fn app<'a>(&self, key: &'a Key, guard: &'a Guard<ClientApp>) -> App<'a> {
        self.memory.statuses.reconciled(key, guard)
    }

    /// Returns the desired state of an app with these values and credentials, or why the spec is invalid.
    pub(crate) fn desired(
        &self,
        app: &App<'_>,
        profile: &TakenProfile,
        (sources, credentials): (&Sources, &[Credentials]),
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
        let of_revision = profile.revision().filter(|revision| revision.base_values != self.config.base_values);
        let config = of_revision
            .map(|revision| Config { base_values: revision.base_values.clone(), ..Config::clone(&self.config) });
        desired(app, profile.stored(), (sources, credentials), config.as_ref().unwrap_or(&self.config))
            .map_err(|error| Invalid { reason: error.reason, message: error.to_string() })
    }

    /// Returns what an app takes from its Profile; `None`: the Profile has no revision yet.
    pub(crate) fn profile(&self, app: &App<'_>) -> Option<TakenProfile> {
        let Ok(object) = app.object() else { return Some(TakenProfile::Missing) };
        let Some(name) = object.spec.profile.as_deref() else { return Some(TakenProfile::None) };
        match self.profiles.revision_for(name, app.uid(), app.recorded_status.profile_revision.as_ref()) {
            Found::Missing => Some(TakenProfile::Missing),
            Found::Unknown(None) => None,
            Found::Unknown(Some(problem)) => Some(TakenProfile::Undecodable(Box::new(Err(problem)))),
            Found::Revision(revision) => Some(TakenProfile::Revision(revision)),
        }
    }

    /// Records a change of an app before the app is reconciled: the change may free a hostname that other apps wait for.
    pub(crate) fn app_changed(&self, event: &Event<Guard<ClientApp>>) {
        let (app, waiters) = match event {
            Event::Apply(app) => (app, self.hostnames.seen(app)),
            Event::Delete(app) => (app, self.hostnames.waiters()),
            Event::InitDone => {
                self.watches.apps.store.state().iter().for_each(|app| drop(self.hostnames.seen(app)));
                self.hostnames.listed();
                self.profiles.trigger_all();
                return;
            }
            Event::Init | Event::InitApply(_) => return,
        };
        let key = key_of(app);
        self.profile_concerned(app);
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

    /// Triggers the Profile of an app that has changed, and the one that it had.
    fn profile_concerned(&self, app: &Guard<ClientApp>) {
        let Ok(app) = &app.object else { return };
        let had = app.status.as_ref().and_then(|status| status.profile_revision.as_ref()).map(|had| &had.profile);
        let has = app.spec.profile.as_ref();
        for profile in has.into_iter().chain(had.filter(|had| Some(*had) != has)) {
            self.profiles.trigger(profile);
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
        Ok(after_write(app.add_finalizer(&self.client, FINALIZER).await?))
    }

    pub(crate) async fn remove_finalizer(&self, app: &App<'_>) -> Result<Action, Error> {
        Ok(after_write(app.remove_finalizer(&self.client, FINALIZER).await?))
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
