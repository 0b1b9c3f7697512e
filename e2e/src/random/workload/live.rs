//! Carries out the lives of apps. An **effect**.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use clientapp_crd::ClientApp;
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{Api, DeleteParams};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, ResourceExt as _};
use rand::RngExt as _;
use rand::rngs::StdRng;
use tokio::sync::watch;

use super::life::app::{Action, App};
use crate::lab::{Tenant, hostname};
use crate::random::oracle::rest::{Apps, Key, as_expected};
use crate::random::requests::told;
use crate::wait::within;

/// For a request while the API server may be away.
const ANSWERED: Duration = Duration::from_secs(120);
/// For a Deployment to be put back, if that is not in the way of something else.
const PUT_BACK: Duration = Duration::from_secs(30);
/// For a deletion among many.
pub const GONE: Duration = Duration::from_secs(600);

/// Keeps the apps as they are in the API server.
pub async fn follow(client: Client, apps: watch::Sender<Apps>) {
    let key = |app: &ClientApp| (app.namespace().unwrap_or_default(), app.name_any());
    let mut listed = Apps::new();
    let mut events = Box::pin(watcher(Api::<ClientApp>::all(client), watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        // The watcher retries.
        let Ok(event) = event else { continue };
        match event {
            watcher::Event::Init => listed.clear(),
            watcher::Event::InitApply(app) => _ = listed.insert(key(&app), app),
            watcher::Event::InitDone => _ = apps.send_replace(std::mem::take(&mut listed)),
            watcher::Event::Apply(app) => apps.send_modify(|apps| _ = apps.insert(key(&app), app)),
            watcher::Event::Delete(app) => apps.send_modify(|apps| _ = apps.remove(&key(&app))),
        }
    }
}

/// Shared by all lives.
pub struct Shared {
    pub apps: watch::Receiver<Apps>,
    /// The number of actions so far.
    pub actions: watch::Sender<u64>,
}

/// An app with its user.
pub struct Life {
    pub app: App,
    pub tenant: Arc<Tenant>,
    name: String,
    shared: Arc<Shared>,
    random: StdRng,
    /// Of the last change of its spec.
    generation: Option<i64>,
    done: Vec<String>,
}

impl Life {
    #[must_use]
    pub fn new(app: App, tenant: Arc<Tenant>, name: String, shared: Arc<Shared>, random: StdRng) -> Life {
        Life { app, tenant, name, shared, random, generation: None, done: Vec::new() }
    }

    #[must_use]
    pub fn key(&self) -> Key {
        (self.tenant.namespace.clone(), self.name.clone())
    }

    /// Whether the app is as its user expects, at rest.
    ///
    /// # Errors
    /// What it is instead.
    pub fn judged(&self, apps: &Apps) -> Result<(), String> {
        as_expected(self.app.expected(), self.generation, apps.get(&self.key()))
    }

    /// A sentence about the app, and its life.
    #[must_use]
    pub fn story(&self, why: &str) -> String {
        let mut text = format!("{}/{}: {why}", self.tenant.namespace, self.name);
        self.done.iter().for_each(|done| _ = write!(text, "\n    {done}"));
        text
    }

    /// One action after the other, until it is told to stop: the next once the last has come to rest, or after a random
    /// number of actions of others, at most this many.
    pub async fn live(&mut self, mut stop: watch::Receiver<bool>, others: u64) -> Result<()> {
        let shared = self.shared.clone();
        while !*stop.borrow() {
            let action = self.app.next(&mut self.random);
            self.act(action).await?;
            let mut actions = shared.actions.subscribe();
            let last = *actions.borrow() + self.random.random_range(1..=others.max(1));
            let mut apps = shared.apps.clone();
            let rested = tokio::select! {
                _ = apps.wait_for(|apps| self.judged(apps).is_ok()) => true,
                _ = actions.wait_for(|actions| *actions >= last) => false,
                _ = stop.wait_for(|stop| *stop) => false,
            };
            if rested {
                self.app = self.app.rested();
            }
        }
        Ok(())
    }

    /// Does it, and repeats the request while the API server is away.
    ///
    /// # Errors
    /// If it is refused to the end, or an app that is deleted is not gone in time.
    pub async fn act(&mut self, action: Action) -> Result<()> {
        self.done.push(format!("{:.3} {action:?}", Timestamp::now()));
        self.shared.actions.send_modify(|actions| *actions += 1);
        self.app = self.app.after(action);
        let (tenant, name) = (&*self.tenant, self.name.as_str());
        let what = format!("{action:?} of {}/{name} is answered", tenant.namespace);
        if let Some(patch) = self.app.patch(action) {
            let patched = within(ANSWERED, &what, async || tenant.patch(name, patch.clone()).await).await?;
            self.generation = patched.metadata.generation;
            return Ok(());
        }
        match action {
            Action::Create { .. } => {
                let spec = self.app.spec(&hostname(tenant, name));
                let created = async || match tenant.create(name, spec.clone()).await {
                    // The former app was gone, so it is this one, and an answer was lost.
                    Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
                    created => created,
                };
                self.generation = None;
                within(ANSWERED, &what, created).await
            }
            Action::Delete => {
                let apps = tenant.api::<ClientApp>();
                let deleted = async || match apps.delete(name, &DeleteParams::default()).await {
                    Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
                    deleted => deleted.map(drop),
                };
                within(ANSWERED, &what, deleted).await?;
                self.gone(&apps).await
            }
            Action::DeleteDeployment => {
                delete_deployment(tenant, &format!("{name}-nextcloud")).await;
                Ok(())
            }
            // Those that patch.
            _ => Ok(()),
        }
    }

    async fn gone(&self, api: &Api<ClientApp>) -> Result<()> {
        let (key, mut apps) = (self.key(), self.shared.apps.clone());
        within(GONE, &format!("{}/{} is gone", key.0, key.1), async || {
            _ = apps.wait_for(|apps| !apps.contains_key(&key)).await;
            // The watch may not have seen the app yet.
            match api.get_opt(&key.1).await {
                Ok(None) => Ok(()),
                Ok(Some(app)) => Err(told(&app)),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
    }
}

/// Deletes a Deployment if there is one, and waits for another, if that comes soon. That it comes at all is seen at the
/// end.
async fn delete_deployment(tenant: &Tenant, name: &str) {
    let api = tenant.api::<Deployment>();
    let Ok(Some(before)) = api.get_opt(name).await else { return };
    if api.delete(name, &DeleteParams::background()).await.is_err() {
        return;
    }
    let is_back = async || match api.get_opt(name).await {
        Ok(Some(found)) => found.metadata.uid != before.metadata.uid,
        _ => false,
    };
    _ = within(PUT_BACK, "the Deployment is back", is_back).await;
}
