//! Builds watches that each fill a cache of their own, and triggers the reconciles that a change requires. An **effect**, reads only.

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::StreamExt as _;
use k8s_openapi::api::events::v1::Event;
use kube::{Api, Client, Resource, runtime::watcher};
use serde::de::DeserializeOwned;
use tokio::sync;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    cache::{Cache, CacheEntry, Change},
    controller::{Objects, ReconciledObject},
    definition::Definition,
    key::Key,
    managed_fields::WithoutManagedFields,
    warnings::{self, Warning},
    watch::{feed_cache, forbidden, in_pages, outcome},
};
use crate::crd::guard::Guard;

/// Triggers a reconcile of the objects that a change concerns. The key is the group that the changed object is filed under, or else
/// the object itself.
pub(crate) type OnChange<K> = fn(&Objects<K>, &Key);

/// An object that a watch can deliver.
pub(crate) trait Watchable:
    Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static
{
}

impl<S: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static> Watchable for S {}

/// Starts the watches of a kind's controller, which run until `stop`.
pub(crate) struct WatchBuilder<'a, K: ReconciledObject> {
    pub client: &'a Client,
    /// The objects that are reconciled.
    pub objects: &'a Objects<K>,
    pub tasks: &'a TaskTracker,
    pub stop: &'a CancellationToken,
}

impl<K: ReconciledObject> WatchBuilder<'_, K> {
    fn spawn(&self, feed: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(feed));
    }

    /// Watches a kind that every cluster has.
    pub(crate) fn all<S: Watchable, V: Clone + Send + 'static>(
        &self,
        resource: &'static str,
        config: watcher::Config,
        entry: fn(S) -> CacheEntry<V>,
        changed: OnChange<K>,
    ) -> Arc<Cache<V>> {
        self.with_helm_fields(
            resource,
            config,
            move |WithoutManagedFields { object, helm_fields_digest: _ }| entry(object),
            changed,
        )
    }

    /// Watches a kind that every cluster has, for entries that show which fields helm manages.
    pub(crate) fn with_helm_fields<S: Watchable, V: Clone + Send + 'static>(
        &self,
        resource: &'static str,
        config: watcher::Config,
        entry: impl Fn(WithoutManagedFields<S>) -> CacheEntry<V> + Send + 'static,
        changed: OnChange<K>,
    ) -> Arc<Cache<V>> {
        let objects = self.objects.clone();
        self.fill(Cache::default(), resource, config, entry, move |change| enqueue_for(&objects, &change, changed))
    }

    /// Starts a watch that fills a cache, and calls `changed` for its changes.
    fn fill<S: Watchable, V: Clone + Send + 'static>(
        &self,
        cache: Cache<V>,
        resource: &'static str,
        config: watcher::Config,
        entry: impl Fn(S) -> CacheEntry<V> + Send + 'static,
        changed: impl Fn(Change) + Send + 'static,
    ) -> Arc<Cache<V>> {
        let cache = Arc::new(cache);
        let fed = cache.clone();
        let stream = watcher(Api::<S>::all(self.client.clone()), in_pages(config));
        self.spawn(async move { feed_cache(resource, stream, &fed, entry, changed).await });
        cache
    }

    /// Watches warnings of other controllers. Users can write such events too, so the cache keeps a limited number of each namespace.
    pub(crate) fn warnings(&self, config: watcher::Config, changed: OnChange<K>) -> Arc<Cache<Warning>> {
        let objects = self.objects.clone();
        let begun = AtomicBool::new(false);
        let changed = move |change: Change| {
            // The API server has no bookmarks for events, so a quiet watch is listed anew every few minutes, and nothing has changed.
            let is_relist = matches!(change, Change::Everything) && begun.swap(true, Ordering::Relaxed);
            if !is_relist {
                enqueue_for(&objects, &change, changed);
            }
        };
        self.fill::<Guard<Event>, _>(
            Cache::with_limit(warnings::MAX_EVENTS),
            "events",
            config,
            warnings::entry,
            changed,
        )
    }

    /// Watches a kind that a cluster may lack.
    pub(crate) fn optional<S: Watchable, V: Clone + Send + 'static>(
        &self,
        definition: &'static str,
        entry: fn(S) -> CacheEntry<V>,
        changed: OnChange<K>,
    ) -> Arc<Optional<V>> {
        let optional = Arc::new(Optional::new(definition));
        let (fed, client, objects) = (optional.clone(), self.client.clone(), self.objects.clone());
        self.spawn(async move { fed.feed(client, &objects, entry, changed).await });
        optional
    }
}

/// Triggers the reconciles that a change of a cache requires.
pub(crate) fn enqueue_for<K: ReconciledObject>(objects: &Objects<K>, change: &Change, changed: OnChange<K>) {
    match change {
        Change::Everything => objects.trigger_where(|_| true),
        Change::One(key, [None, None]) => changed(objects, key),
        // An object that leaves a group concerns that group, too.
        Change::One(_, groups) => groups.iter().flatten().for_each(|group| changed(objects, group)),
        Change::Nothing => {}
    }
}

/// Says whether the objects of a kind can be seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Availability {
    /// The cluster does not know the kind.
    #[default]
    Missing,
    Installed,
    /// RBAC refuses it, in the API server's words.
    Refused(String),
}

/// Watches a kind that a cluster may lack: its definition and, while that is installed, its objects.
pub(crate) struct Optional<V> {
    definition: Definition,
    pub objects: Cache<V>,
    /// Says why the objects cannot be seen, while RBAC refuses that. Only what needs them has to wait.
    refused: sync::watch::Sender<Option<String>>,
}

impl<V: Clone + Send> Optional<V> {
    fn new(definition: &'static str) -> Self {
        Optional {
            definition: Definition::new(definition),
            objects: Cache::default(),
            refused: sync::watch::Sender::new(None),
        }
    }

    pub(crate) fn availability(&self) -> Availability {
        match &*self.refused.borrow() {
            Some(sentence) => Availability::Refused(sentence.clone()),
            None if self.definition.installed() => Availability::Installed,
            None => Availability::Missing,
        }
    }

    /// Returns once it is known that the kind is not installed, what its objects are, or that they cannot be seen.
    pub(crate) async fn synced(&self) {
        let known = async {
            self.definition.synced().await;
            if self.definition.installed() {
                self.objects.synced().await;
            }
        };
        let mut refused = self.refused.subscribe();
        tokio::select! {
            () = known => {}
            // The sender lives in self, so this cannot fail.
            _ = refused.wait_for(Option::is_some) => {}
        }
    }

    /// Records the outcome of a watch, and returns whether it changes anything.
    fn note(&self, failure: Option<&watcher::Error>) -> bool {
        let sentence = failure.and_then(forbidden);
        if failure.is_some() && sentence.is_none() {
            // This failure says nothing about rights.
            return false;
        }
        self.refused.send_if_modified(|refused| std::mem::replace(refused, sentence.clone()) != sentence)
    }

    /// Watches the objects of the kind while it exists.
    async fn feed<S: Watchable, K: ReconciledObject>(
        &self,
        client: Client,
        reconciled: &Objects<K>,
        entry: fn(S) -> CacheEntry<V>,
        changed: OnChange<K>,
    ) {
        let Optional { definition, objects, refused: _ } = self;
        let everything = || reconciled.trigger_where(|_| true);
        let note = |failure: Option<&watcher::Error>| {
            if self.note(failure) {
                everything();
            }
        };
        let definitions = definition.watch(client.clone(), everything, note);
        let fed = async {
            loop {
                definition.until(true).await;
                let stream =
                    watcher(Api::<WithoutManagedFields<S>>::all(client.clone()), in_pages(watcher::Config::default()));
                let stream = stream.inspect(|event| {
                    if let Some(failure) = outcome(event) {
                        note(failure);
                    }
                });
                let enqueue = |change| enqueue_for(reconciled, &change, changed);
                tokio::select! {
                    () = feed_cache(definition.resource(), stream, objects, |WithoutManagedFields { object, helm_fields_digest: _ }| entry(object), enqueue) => {}
                    () = definition.until(false) => objects.clear(),
                }
            }
        };
        tokio::join!(definitions, fed);
    }
}
