//! Passes the events of a watch to caches, stores and controllers, and logs its interruptions. An **effect**, reads only.

use std::time::{Duration, Instant};

use futures::{FutureExt as _, Stream, StreamExt as _};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::{
    Resource, ResourceExt as _,
    core::Status,
    runtime::{
        WatchStreamExt as _,
        reflector::{Lookup, ObjectRef, Store},
        watcher,
    },
};
use tokio_util::sync::CancellationToken;

use super::{
    cache::{Cache, CacheEntry, Change},
    panic::survived,
};

/// Limits the objects of a list that are decoded at a time. Meanwhile an object with its managed fields, which are trees, takes about
/// 50 KiB, and at startup a dozen kinds are listed at once.
const PAGE: u32 = 100;

/// Makes the configuration of a watch page its lists.
pub(crate) fn in_pages(config: watcher::Config) -> watcher::Config {
    config.page_size(PAGE)
}

/// Feeds a cache from one watch forever, and calls `changed` for each change.
pub(crate) async fn feed_cache<K, V: Clone>(
    resource: &str,
    stream: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send,
    cache: &Cache<V>,
    entry: impl Fn(K) -> CacheEntry<V>,
    changed: impl Fn(Change),
) {
    let mut stream = std::pin::pin!(stream.default_backoff());
    let mut log = WatchLog::new(resource);
    while let Some(event) = stream.next().await {
        log.record(&event, Instant::now());
        if let Ok(event) = event {
            survived(resource, || changed(cache.apply(event, &entry)));
        }
    }
}

/// Drives a controller of these objects until it ends, which it does after `stop`.
pub(crate) async fn run_until_stopped<K>(
    controller: impl Future<Output = ()>,
    objects: &Store<K>,
    stop: &CancellationToken,
) where
    K: Lookup + Clone + 'static,
    K::DynamicType: Eq + std::hash::Hash + Clone,
{
    // A controller that is stopped before its first list waits for that list forever, and reconciles nothing meanwhile.
    let never_began = async {
        stop.cancelled().await;
        if objects.wait_until_ready().now_or_never().is_some() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        () = controller => {}
        () = never_began => {}
    }
}

/// Returns the changed objects, each once the store behind this stream has it: the objects of a list come when it is complete. If they
/// came earlier, as with kube's `applied_objects`, an object of the first page of a relist would be reconciled in its old state, or
/// not at all. A change for which `is_own_write` is true is left out; but a list brings all objects, because it does not show what happened
/// since the watch before it.
pub(crate) fn after_store<K>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>>,
    store: Store<K>,
    is_own_write: impl Fn(&K) -> bool,
) -> impl Stream<Item = watcher::Result<K>>
where
    K: Lookup<DynamicType = ()> + Clone + 'static,
{
    // By name: the store has the objects of a list, and a second copy would take as much memory.
    let mut listed = Vec::new();
    events.flat_map(move |event| {
        let (mut complete, mut other) = (Vec::new(), None);
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(object)) => listed.push(ObjectRef::from_obj(&object)),
            Ok(watcher::Event::InitDone) => complete = std::mem::take(&mut listed),
            Ok(watcher::Event::Apply(object)) => other = (!is_own_write(&object)).then_some(Ok(object)),
            Ok(watcher::Event::Delete(_)) => {}
            Err(error) => other = Some(Err(error)),
        }
        let store = store.clone();
        let complete =
            complete.into_iter().filter_map(move |name| store.get(&name)).map(|object| Ok(K::clone(&object)));
        futures::stream::iter(complete.chain(other))
    })
}

/// Logs the state of a watch: one line with the cause when it is interrupted, and one more if it is then refused permanently. A
/// watch resumes by itself, with backoff. An API server that stops or starts answers with changing errors, refusals among them, and
/// may complete a list, or even send events, before it can serve the watch.
pub(crate) struct WatchLog {
    resource: String,
    interrupted: Option<Interrupted>,
    /// The code of the last failure, if it is a refusal, and how often it came in a row.
    refused: (Option<u16>, u32),
}

struct Interrupted {
    /// Time of the last failure.
    failed: Instant,
    /// When the list after it was complete.
    listed: Option<Instant>,
}

impl WatchLog {
    /// This many refusals in a row are not just an API server that starts: with the watch's backoff they take half a minute.
    const PERMANENT: u32 = 6;
    /// A watch that fails sooner than this after its list counts as still interrupted.
    const SETTLES: Duration = Duration::from_secs(10);
    /// A watch that did not fail for this long has resumed, even without a list: its backoff is at most 30 s.
    const QUIET: Duration = Duration::from_secs(90);

    pub(crate) fn new(resource: &str) -> WatchLog {
        WatchLog { resource: resource.to_owned(), interrupted: None, refused: (None, 0) }
    }

    /// Records an event or error of the watch, and returns whether it was logged.
    pub(crate) fn record<K>(&mut self, event: &watcher::Result<watcher::Event<K>>, now: Instant) -> bool {
        let error = match event {
            // The list may still fail.
            Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => return false,
            Ok(watcher::Event::InitDone) => {
                if let Some(interrupted) = &mut self.interrupted {
                    interrupted.listed = Some(now);
                }
                self.refused = (None, 0);
                return false;
            }
            Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_)) => {
                self.refused = (None, 0);
                return false;
            }
            // The watch is only listed anew, as the API server asks it to: a quiet one of events every few minutes.
            Err(error) if api_status(error).is_some_and(|status| status.code == 410) => return false,
            Err(error) => error,
        };
        let code = api_status(error).map(|status| status.code).filter(|code| [403, 404].contains(code));
        let times = if self.refused.0 == code { self.refused.1 + 1 } else { 1 };
        let ran = self.interrupted.as_ref().is_none_or(|Interrupted { failed, listed }| {
            now.duration_since(*failed) >= Self::QUIET
                || listed.is_some_and(|listed| now.duration_since(listed) >= Self::SETTLES)
        });
        // The code of the first line is not logged again.
        self.refused = (code, if ran { Self::PERMANENT } else { times });
        self.interrupted = Some(Interrupted { failed: now, listed: None });
        let is_new = ran || code.is_some() && times == Self::PERMANENT;
        if is_new {
            tracing::warn!(resource = self.resource, error = %watch_sentence(error), "watch interrupted; it is resumed");
        }
        is_new
    }
}

fn api_status(error: &watcher::Error) -> Option<&Status> {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => Some(status),
        _ => None,
    }
}

/// Returns what an event of a watch tells of the right to it: its failure, or none. `None`: a list begins, and may still be refused.
pub(crate) fn outcome<K>(event: &watcher::Result<watcher::Event<K>>) -> Option<Option<&watcher::Error>> {
    match event {
        Ok(watcher::Event::Init) => None,
        event => Some(event.as_ref().err()),
    }
}

/// Returns the API server's message, if RBAC refuses the watch.
pub(crate) fn forbidden(error: &watcher::Error) -> Option<String> {
    api_status(error).filter(|status| status.code == 403).map(|status| status.message.clone())
}

/// Returns the API server's own message, if there is one: it names the verb and resource that RBAC refuses.
fn watch_sentence(error: &watcher::Error) -> String {
    match api_status(error) {
        None => error.to_string(),
        Some(status) if status.code == 404 => {
            "this cluster does not know the kind: apply its CustomResourceDefinition".to_owned()
        }
        Some(status) => status.message.clone(),
    }
}

/// Returns kind, name and uid of the controlling or first owner.
pub(crate) fn owner<K: Resource>(object: &K) -> Option<(String, String, String)> {
    let owners = object.owner_references();
    let owner = owners.iter().find(|owner| owner.controller == Some(true)).or_else(|| owners.first())?;
    Some((owner.kind.clone(), owner.name.clone(), owner.uid.clone()))
}

/// Returns the ownerReference of an object that an owner controls, and whose deletion it waits for.
pub(crate) fn owner_reference<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference { block_owner_deletion: Some(true), ..owner.controller_owner_ref(&()).unwrap_or_default() }
}

/// Returns the uid of the controlling owner.
pub(crate) fn controller_uid<K: Resource>(object: &K) -> Option<String> {
    object.owner_references().iter().find(|owner| owner.controller == Some(true)).map(|owner| owner.uid.clone())
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use futures::executor::block_on;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::runtime::reflector;
    use serde_json::json;
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};

    use super::*;
    use crate::platform::{
        fake::of,
        key::{Key, key_of},
    };

    #[test]
    fn an_interruption_is_told_once() {
        let failed = |code| -> watcher::Result<watcher::Event<ConfigMap>> {
            Err(watcher::Error::WatchStartFailed(kube::Error::Api(of(json!({"code": code, "message": "m"})))))
        };
        let mut log = WatchLog::new("configmaps");
        let began = Instant::now();
        let object = ConfigMap::default;
        for (seconds, event, is_told) in [
            (0, Ok(InitDone), false),
            (1, failed(503), true),
            (2, failed(500), false),
            // A list that fails as well.
            (3, Ok(Init), false),
            (3, Ok(InitApply(object())), false),
            (4, failed(403), false),
            (5, failed(503), false),
            // A list whose watch fails, and one whose watch lasts.
            (6, Ok(InitDone), false),
            (7, failed(403), false),
            (8, Ok(InitDone), false),
            (18, failed(403), true),
            (19, failed(403), false),
            (20, failed(503), false),
            (21, failed(403), false),
            (22, failed(403), false),
            (23, failed(403), false),
            (24, failed(403), false),
            (25, failed(403), false),
            (26, failed(403), true),
            (27, failed(403), false),
            // An event does not show that it lasts.
            (28, Ok(InitDone), false),
            (28, Ok(Apply(object())), false),
            (29, failed(503), false),
            // It resumes where it was, without a list.
            (40, Ok(Apply(object())), false),
            (118, failed(503), false),
            (208, failed(503), true),
        ] {
            assert_eq!(log.record(&event, began + Duration::from_secs(seconds)), is_told, "{seconds}: {event:?}");
        }
    }

    #[test]
    fn an_object_that_makes_the_operator_panic_stops_no_watch() {
        let object = |name: &str| of(json!({"metadata": {"name": name, "namespace": "ns"}}));
        let events = [
            Init,
            InitApply(object("listed")),
            InitApply(object("panics")),
            InitDone,
            Apply(object("panics")),
            Delete(object("panics")),
            Apply(object("panics-later")),
            Apply(object("came")),
        ];
        let (cache, changes) = (Cache::default(), RefCell::new(Vec::new()));
        let entry = |object: ConfigMap| {
            assert_ne!(object.metadata.name.as_deref(), Some("panics"));
            CacheEntry { key: key_of(&object), group: None, value: Some(()) }
        };
        let changed = |change| match change {
            Change::One(key, _) if key.name == "panics-later" => panic!("{key}"),
            Change::One(key, _) => changes.borrow_mut().push(key.name),
            Change::Everything => changes.borrow_mut().push("all".to_owned()),
            Change::Nothing => {}
        };
        block_on(feed_cache("configmaps", futures::stream::iter(events.map(Ok)), &cache, entry, changed));
        assert_eq!(*changes.borrow(), ["all", "came"]);
        let keys = ["came", "listed", "panics-later"].map(|name| (Key::new("ns", name), ()));
        assert_eq!(cache.all(), keys);
    }

    #[test]
    fn an_object_comes_when_the_store_has_it() {
        let object = |name: &str, data: &str| -> ConfigMap {
            of(json!({"metadata": {"name": name, "namespace": "ns"}, "data": {"is": data}}))
        };
        let (store, writer) = reflector::store();
        let events = [
            Init,
            InitApply(object("a", "first")),
            InitDone,
            Apply(object("b", "first")),
            Apply(object("b", "own")),
            // A relist that is interrupted, and one that is not.
            Init,
            InitApply(object("gone", "first")),
            Init,
            InitApply(object("a", "second")),
            InitApply(object("new", "own")),
            InitDone,
            Delete(object("new", "first")),
        ];
        let events = futures::stream::iter(events.map(Ok)).reflect(writer);
        let wrote = |object: &ConfigMap| object.data.as_ref().is_some_and(|data| data["is"] == "own");
        let came = after_store(events, store.clone(), wrote).map(|object| {
            let object = object.unwrap();
            let stored = store.get(&ObjectRef::from_obj(&object)).expect("it is in the store");
            assert_eq!(*stored, object);
            object.metadata.name.unwrap()
        });
        assert_eq!(block_on(came.collect::<Vec<_>>()), ["a", "b", "a", "new"]);
    }
}
