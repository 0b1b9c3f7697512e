//! Runs the controller that all kinds share: watch → store → reconcile → backoff, with span, metrics and log. An **effect**.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    fmt::Debug,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, channel::mpsc};
use k8s_openapi::{ClusterResourceScope, NamespaceResourceScope};
use kube::{
    Api, Client, Resource,
    runtime::{
        Config, Controller, WatchStreamExt as _,
        controller::Action,
        reflector::{self, ObjectRef, Store, store::Writer},
        watcher::{self, Event},
    },
};
use parking_lot::Mutex;
use rand::RngExt as _;
use serde::de::DeserializeOwned;
use tokio::sync::{OnceCell, SetOnce};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

pub(crate) use super::error::ReconcileError;
use super::{
    backoff::Backoff,
    events::Recorder,
    key::{Key, key_of},
    operator_image::OperatorImage,
    panic::{caught, survived},
    watch::{WatchLog, after_store, in_pages, run_until_stopped},
};
use crate::{
    crd::{Guard, Reason},
    leadership::Leadership,
    metrics::Metrics,
};

/// Concurrent reconciles of one kind. Each of them waits only for answers to its requests.
const CONCURRENT: u16 = 32;
/// Delay before an object that the API server calls gone is read again. The answer may be wrong, for example while the API server
/// starts; if it is right, no reconcile follows.
pub(crate) const RECHECK_GONE: Duration = Duration::from_secs(3);

/// Returns what follows a write to the object of a reconcile: unless that is gone, the next change, such as that of its finalizers, triggers
/// the next reconcile.
pub(crate) fn after_write(exists: bool) -> Action {
    if exists { Action::await_change() } else { Action::requeue(RECHECK_GONE) }
}

/// Where objects of a kind live: in namespaces, or in the cluster.
pub trait ApiScope: Sized {
    /// Returns the API of the objects of a namespace; of a kind of the cluster, that of all objects.
    fn api<K: Resource<DynamicType = (), Scope = Self>>(client: Client, namespace: &str) -> Api<K>;
}

impl ApiScope for NamespaceResourceScope {
    fn api<K: Resource<DynamicType = (), Scope = Self>>(client: Client, namespace: &str) -> Api<K> {
        Api::namespaced(client, namespace)
    }
}

impl ApiScope for ClusterResourceScope {
    fn api<K: Resource<DynamicType = (), Scope = Self>>(client: Client, _: &str) -> Api<K> {
        Api::all(client)
    }
}

pub trait ReconciledObject:
    Resource<DynamicType = (), Scope: ApiScope> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
}

impl<K> ReconciledObject for K where
    K: Resource<DynamicType = (), Scope: ApiScope> + Clone + Debug + DeserializeOwned + Send + Sync + 'static
{
}

pub(crate) trait Reconciler: Send + Sync + 'static {
    type Object: ReconciledObject;
    type Error: ReconcileError;

    /// Forgets an object that is gone, for whatever reason; a new object of its name may exist already. The controller calls
    /// [`on_event`](Reconciler::on_event) afterwards with the event that reported it.
    fn on_deleted(&self, _key: &Key) {}

    /// Processes an event before its object is reconciled. The objects of a list count when it is complete.
    fn on_event(&self, _event: &Event<Guard<Self::Object>>) {}

    /// Returns true if the only change of an object is the status that this operator wrote.
    fn is_own_write(&self, _object: &Guard<Self::Object>) -> bool {
        false
    }

    /// Returns true while background work that a reconcile started still runs: then a clean reconcile does not reset the backoff.
    fn has_background_work(&self, _key: &Key, _object: &Guard<Self::Object>) -> bool {
        false
    }

    /// Processes a request for a reconcile while the object still has to wait after a failure.
    fn on_throttled(&self, _key: &Key) {}

    /// Returns once everything that reconciles read is available.
    fn synced(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// Runs concurrently with the reconciles until the controller stops.
    fn background(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    fn reconcile(
        &self,
        key: &Key,
        object: &Guard<Self::Object>,
    ) -> impl Future<Output = Result<Action, Self::Error>> + Send;
}

#[derive(Clone)]
pub(crate) struct ControllerContext {
    pub client: Client,
    /// The client for watches, which may be silent for a long time.
    pub watch_client: Client,
    pub recorder: Recorder,
    pub metrics: Arc<Metrics>,
    pub lead: Leadership,
    /// The operator's own image, which dumps and archives are uploaded with; `None` if the operator does not know it.
    pub image: Option<Arc<OperatorImage>>,
}

/// Holds the objects of a kind, decodable or not, and triggers reconciles of them.
pub(crate) struct Objects<K: ReconciledObject> {
    pub store: Store<Guard<K>>,
    /// Their names, sorted by namespace, because most changes concern objects of one namespace.
    names: Arc<Mutex<BTreeSet<Key>>>,
    /// Set once the first complete list is there. Only one task can wait for kube's own store to be ready (it keeps only the last
    /// waker).
    listed: Arc<SetOnce<()>>,
    triggers: mpsc::UnboundedSender<ObjectRef<Guard<K>>>,
}

/// Holds what [`control`] fills [`Objects`] from.
pub(crate) struct Feed<K: ReconciledObject> {
    writer: Writer<Guard<K>>,
    triggered: mpsc::UnboundedReceiver<ObjectRef<Guard<K>>>,
}

impl<K: ReconciledObject> Clone for Objects<K> {
    fn clone(&self) -> Self {
        let Objects { store, names, listed, triggers } = self;
        Objects { store: store.clone(), names: names.clone(), listed: listed.clone(), triggers: triggers.clone() }
    }
}

fn reference<K: ReconciledObject>(key: &Key) -> ObjectRef<Guard<K>> {
    let reference = ObjectRef::new(&key.name);
    // A kind of the cluster has none.
    if key.namespace.is_empty() { reference } else { reference.within(&key.namespace) }
}

impl<K: ReconciledObject> Objects<K> {
    pub(crate) fn new() -> (Objects<K>, Feed<K>) {
        let (store, writer) = reflector::store();
        let (triggers, triggered) = mpsc::unbounded();
        (Objects { store, names: Arc::default(), listed: Arc::default(), triggers }, Feed { writer, triggered })
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Guard<K>>> {
        self.store.get(&reference(key))
    }

    pub(crate) fn trigger(&self, key: &Key) {
        // The receiver ends with the controller; after that nothing is reconciled.
        let _ = self.triggers.unbounded_send(reference(key));
    }

    /// Returns once the first complete list is there.
    pub(crate) async fn listed(&self) {
        self.listed.wait().await;
    }

    /// Triggers a reconcile of the objects in a namespace for which `is_concerned` is true.
    pub(crate) fn trigger_in(&self, namespace: &str, is_concerned: impl Fn(&Guard<K>) -> bool) {
        let (names, first) = (self.names.lock(), Key::new(namespace, ""));
        for key in names.range(first..).take_while(|key| key.namespace == namespace) {
            if self.get(key).is_some_and(|object| is_concerned(&object)) {
                self.trigger(key);
            }
        }
    }

    /// Triggers a reconcile of the objects for which `is_concerned` is true. The store is locked while it is evaluated for each.
    pub(crate) fn trigger_where(&self, is_concerned: impl Fn(&Guard<K>) -> bool) {
        for object in self.store.state_filter(is_concerned) {
            self.trigger(&key_of(object.as_ref()));
        }
    }
}

struct Driver<K: Reconciler> {
    kind: Arc<K>,
    objects: Objects<K::Object>,
    backoff: Backoff,
    synced: OnceCell<()>,
    metrics: Arc<Metrics>,
    lead: Leadership,
    stop: CancellationToken,
}

/// Controls the objects of a kind until `stop`, and returns when the last reconcile has ended.
pub(crate) async fn control<K: Reconciler>(
    kind: Arc<K>,
    ControllerContext { watch_client, metrics, lead, .. }: ControllerContext,
    (objects, Feed { writer, triggered }): (Objects<K::Object>, Feed<K::Object>),
    stop: CancellationToken,
) {
    let store = objects.store.clone();
    let driver = Arc::new(Driver {
        kind: kind.clone(),
        objects,
        backoff: Backoff::default(),
        synced: OnceCell::new(),
        metrics,
        lead,
        stop: stop.clone(),
    });
    let (event_driver, write_driver) = (driver.clone(), driver.clone());
    let mut log = WatchLog::new(&K::Object::plural(&()));
    // During a relist: the objects known before it.
    let mut before_relist = Vec::new();
    let stream = watcher::watcher(Api::<Guard<K::Object>>::all(watch_client), in_pages(watcher::Config::default()))
        .default_backoff()
        .reflect(writer)
        .inspect(move |event| {
            log.record(event, Instant::now());
            if let Ok(event) = event {
                event_driver.handle_event(event, &mut before_relist);
            }
        });
    let changed = after_store(stream, store.clone(), move |object| write_driver.is_own_write(object));
    let controller = Controller::for_stream(changed, store.clone())
        .with_config(Config::default().concurrency(CONCURRENT))
        .reconcile_on(triggered)
        .graceful_shutdown_on(stop.clone().cancelled_owned())
        .run(reconcile, |_, never: &Infallible, _| match *never {}, driver)
        .for_each(|_| std::future::ready(()));
    tokio::join!(run_until_stopped(controller, &store, &stop), stop.run_until_cancelled(kind.background()));
}

async fn reconcile<K: Reconciler>(object: Arc<Guard<K::Object>>, driver: Arc<Driver<K>>) -> Result<Action, Infallible> {
    Ok(driver.reconcile(&object).await)
}

impl<K: Reconciler> Driver<K> {
    fn handle_event(&self, event: &Event<Guard<K::Object>>, before_relist: &mut Vec<Arc<Guard<K::Object>>>) {
        match event {
            Event::Delete(object) => self.handle_deletion(object),
            Event::Init => *before_relist = self.objects.store.state(),
            Event::InitDone => {
                for object in before_relist.drain(..) {
                    let stored = self.objects.get(&key_of(&*object));
                    if stored.is_none_or(|stored| stored.metadata.uid != object.metadata.uid) {
                        // No event reports a deletion that happened while the watch was interrupted.
                        self.handle_deletion(&object);
                        self.call(|kind| kind.on_event(&Event::Delete(Guard::clone(&object))));
                    }
                }
                *self.objects.names.lock() =
                    self.objects.store.state().iter().map(|object| key_of(&**object)).collect();
            }
            Event::Apply(object) => _ = self.objects.names.lock().insert(key_of(object)),
            // The list may be interrupted, and the next list may lack this object.
            Event::InitApply(_) => {}
        }
        self.call(|kind| kind.on_event(event));
        if matches!(event, Event::InitDone) {
            // Fires again after each interruption of the watch.
            let _ = self.objects.listed.set(());
        }
    }

    /// Calls the kind, and survives a panic in it.
    fn call<T>(&self, callback: impl FnOnce(&K) -> T) -> Option<T> {
        survived(&K::Object::plural(&()), || callback(&self.kind))
    }

    fn is_own_write(&self, object: &Guard<K::Object>) -> bool {
        self.call(|kind| kind.is_own_write(object)).unwrap_or(false)
    }

    fn handle_deletion(&self, object: &Guard<K::Object>) {
        let key = key_of(object);
        // Otherwise it was recreated.
        if self.objects.get(&key).is_none() {
            self.objects.names.lock().remove(&key);
        }
        self.call(|kind| kind.on_deleted(&key));
        self.backoff.succeeded(&key);
    }

    async fn reconcile(&self, object: &Guard<K::Object>) -> Action {
        tokio::select! {
            _ = self.synced.get_or_init(|| self.kind.synced()) => {}
            // The watches end with the operator, so a watch that has not begun by then never begins.
            () = self.stop.cancelled() => return Action::await_change(),
        }
        // In a process that was frozen, the clock shows the end of the lead before the token does.
        if !self.lead.is_held() {
            return Action::await_change();
        }
        let key = key_of(object);
        let attempt = (object.metadata.uid.clone(), object.metadata.generation);
        if let Some(left) = self.backoff.remaining(&key, &attempt, Instant::now()) {
            self.call(|kind| kind.on_throttled(&key));
            return Action::requeue(left);
        }
        let span = tracing::info_span!("reconcile", kind = %K::Object::kind(&()), object = %key, generation = object.metadata.generation);
        let _timer = self.metrics.reconcile(&K::Object::kind(&()));
        let reconciled = caught(self.kind.reconcile(&key, object), K::Error::panicked);
        match reconciled.instrument(span.clone()).await {
            Ok(action) => {
                if self.call(|kind| kind.has_background_work(&key, object)) != Some(true) {
                    self.backoff.succeeded(&key);
                }
                action
            }
            Err(error) => {
                let disposition = error.disposition();
                // As long as a watch does not show a change, a write meets a conflict. That is no failure unless it goes on.
                let is_late = disposition.reason == Reason::Conflict && !self.backoff.has_failed(&key, &attempt);
                span.in_scope(|| match is_late {
                    true => tracing::debug!(%error, "reconciled again"),
                    false => tracing::warn!(%error, "reconcile failed"),
                });
                self.metrics.reconcile_failed(&K::Object::kind(&()), disposition.reason);
                let unit = rand::rng().random();
                let delay = self.backoff.failed(&key, attempt, &disposition, Instant::now(), unit);
                delay.map_or_else(Action::await_change, Action::requeue)
            }
        }
    }
}

#[cfg(test)]
mod tests;
