//! Watches everything that holds data or gives access to data, and keeps all versions. An **effect**.

use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::Result;
use clientapp_crd::percona::{PerconaPGBackup, PerconaPGCluster};
use clientapp_crd::{ClientApp, Guard, Postgresql};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Api, Client, Config};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::history::{Kind, Record, Time};
use crate::background::Background;

/// Kubernetes writes this for each object. It is the larger half of a small object, and irrelevant here.
const MANAGED_FIELDS: &str = "managedFields";
/// The type of the Secrets in which Helm stores its releases.
pub const RELEASE: &str = "helm.sh/release.v1";

/// Runs on its own thread until it is dropped.
pub struct Recorder {
    record: Arc<Mutex<Record>>,
    changes: watch::Receiver<Time>,
    _service: Background,
}

impl Recorder {
    /// Watches these kinds. A brief record has the last version of each object.
    pub fn start(config: Config, kinds: &'static [Kind], is_brief: bool) -> Result<Recorder> {
        let record = Arc::new(Mutex::new(Record::new(is_brief)));
        let (changed, changes) = watch::channel(0);
        let kept = record.clone();
        let service = Background::spawn("recorder", move || run(config, kinds, kept, changed))?;
        Ok(Recorder { record, changes, _service: service })
    }

    /// The record so far.
    pub fn record(&self) -> MutexGuard<'_, Record> {
        // A panic elsewhere leaves the record intact.
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The latest resource version seen, and every later one.
    pub fn changes(&self) -> watch::Receiver<Time> {
        self.changes.clone()
    }
}

pub fn resource(kind: Kind) -> ApiResource {
    match kind {
        Kind::App => ApiResource::erase::<ClientApp>(&()),
        Kind::Postgresql => ApiResource::erase::<Postgresql>(&()),
        Kind::Cluster => ApiResource::erase::<PerconaPGCluster>(&()),
        Kind::Backup => ApiResource::erase::<PerconaPGBackup>(&()),
        Kind::Volume => ApiResource::erase::<PersistentVolumeClaim>(&()),
        Kind::Secret => ApiResource::erase::<Secret>(&()),
        Kind::StatefulSet => ApiResource::erase::<StatefulSet>(&()),
        Kind::Event => ApiResource::erase::<Event>(&()),
        Kind::EndpointSlice => ApiResource::erase::<EndpointSlice>(&()),
        Kind::Snapshot => {
            ApiResource::from_gvk(&GroupVersionKind::gvk("snapshot.storage.k8s.io", "v1", "VolumeSnapshot"))
        }
    }
}

async fn run(config: Config, kinds: &[Kind], record: Arc<Mutex<Record>>, changed: watch::Sender<Time>) {
    // Created here, since a client belongs to the runtime on which it was created.
    let client = Client::try_from(config).expect("the configuration makes a client");
    let watches = kinds.iter().map(|kind| -> BoxFuture<'_, ()> {
        let kind = *kind;
        match kind {
            // The only kind whose stored objects may be nested more deeply than serde_json reads.
            Kind::App => follow(kind, Api::<Guard<ClientApp>>::all(client.clone()), app, &record, &changed).boxed(),
            _ => {
                let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(kind));
                follow(kind, api, any, &record, &changed).boxed()
            }
        }
    });
    futures::future::join_all(watches).await;
}

async fn follow<K>(
    kind: Kind,
    api: Api<K>,
    value: fn(K) -> Value,
    record: &Mutex<Record>,
    changed: &watch::Sender<Time>,
) where
    K: kube::Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut listed: Option<Vec<String>> = None;
    let mut events = Box::pin(watcher(api, watcher::Config::default()).default_backoff());
    while let Some(event) = events.next().await {
        // The watcher retries.
        let Ok(event) = event else { continue };
        let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
        let time = match event {
            watcher::Event::Init => {
                listed = Some(Vec::new());
                continue;
            }
            watcher::Event::InitDone => {
                let now = *changed.borrow();
                record.relisted(kind, &listed.take().unwrap_or_default(), now);
                now
            }
            watcher::Event::InitApply(object) | watcher::Event::Apply(object) => {
                let object = value(object);
                if let (Some(listed), Some(uid)) = (&mut listed, object["metadata"]["uid"].as_str()) {
                    listed.push(uid.to_owned());
                }
                let time = version(&object);
                record.apply(kind, object);
                time
            }
            watcher::Event::Delete(object) => {
                let object = value(object);
                let time = version(&object);
                record.delete(kind, object);
                time
            }
        };
        drop(record);
        changed.send_modify(|newest| *newest = time.max(*newest));
    }
}

fn version(object: &Value) -> Time {
    object["metadata"]["resourceVersion"].as_str().and_then(|version| version.parse().ok()).unwrap_or_default()
}

fn app(app: Guard<ClientApp>) -> Value {
    let mut metadata = app.metadata;
    metadata.managed_fields = None;
    match app.object {
        Ok(object) => json!({"metadata": metadata, "spec": object.spec, "status": object.status}),
        Err(problem) => json!({"metadata": metadata, "undecodable": problem}),
    }
}

fn any(object: DynamicObject) -> Value {
    let mut object = serde_json::to_value(object).unwrap_or_default();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove(MANAGED_FIELDS);
    }
    // Compressed, large, and never compared.
    if object["type"] == RELEASE {
        object["data"] = Value::Null;
    }
    object
}
