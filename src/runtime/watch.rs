//! What becomes of a watch: events into caches, stores and controllers, and a word when it is interrupted. An **effect**,
//! reads only.

use std::time::{Duration, Instant};

use futures::{FutureExt as _, Stream, StreamExt as _};
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
    cache::{Cache, Change, Entry},
    panic::survived,
};

/// Objects of a list that are decoded at a time. With its managed fields, which are trees, an object takes some fifty KiB for that
/// moment, and at the start a dozen kinds are listed at once.
const PAGE: u32 = 100;

/// What every watch is begun with.
pub(crate) fn in_pages(config: watcher::Config) -> watcher::Config {
    config.page_size(PAGE)
}

/// Takes one watch into a cache for good, and tells of each change.
pub(crate) async fn keep<K, V: Clone>(
    resource: &str,
    stream: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send,
    cache: &Cache<V>,
    entry: impl Fn(K) -> Entry<V>,
    changed: impl Fn(Change),
) {
    let mut stream = std::pin::pin!(stream.default_backoff());
    let mut log = WatchLog::new(resource);
    while let Some(event) = stream.next().await {
        log.see(&event, Instant::now());
        if let Ok(event) = event {
            survived(resource, || changed(cache.apply(event, &entry)));
        }
    }
}

/// Drives a controller of these objects until it ends, which it does after `stop`.
pub(crate) async fn driven<K>(controller: impl Future<Output = ()>, objects: &Store<K>, stop: &CancellationToken)
where
    K: Lookup + Clone + 'static,
    K::DynamicType: Eq + std::hash::Hash + Clone,
{
    // A controller that is stopped before its first list waits for that list for ever, and reconciles nothing meanwhile.
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

/// The objects that are or were changed, each once the store behind this stream has it: the objects of a list come when
/// the list is complete. Asked for earlier, as with kube's `applied_objects`, an object of the first page of a new list would be
/// reconciled as it was before, or not at all. A change that was `wrote` by this operator comes not at all; but a list brings all,
/// since what was between its versions and those of the watch before is not known.
pub(crate) fn stored_objects<K>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>>,
    store: Store<K>,
    wrote: impl Fn(&K) -> bool,
) -> impl Stream<Item = watcher::Result<K>>
where
    K: Lookup<DynamicType = ()> + Clone + 'static,
{
    // By name: the store has the objects of a list, and a second copy of all of them would be as large.
    let mut listed = Vec::new();
    events.flat_map(move |event| {
        let (mut complete, mut other) = (Vec::new(), None);
        match event {
            Ok(watcher::Event::Init) => listed.clear(),
            Ok(watcher::Event::InitApply(object)) => listed.push(ObjectRef::from_obj(&object)),
            Ok(watcher::Event::InitDone) => complete = std::mem::take(&mut listed),
            Ok(watcher::Event::Apply(object)) => other = (!wrote(&object)).then_some(Ok(object)),
            Ok(watcher::Event::Delete(_)) => {}
            Err(error) => other = Some(Err(error)),
        }
        let store = store.clone();
        let complete =
            complete.into_iter().filter_map(move |name| store.get(&name)).map(|object| Ok(K::clone(&object)));
        futures::stream::iter(complete.chain(other))
    })
}

/// What the log says of a watch: that it is interrupted, and why, once until it runs again, and once more if it then is refused for
/// good. A watch is resumed by itself, with backoff. An API server that stops or starts says one thing after the other, refusals among
/// them, and may complete a list before it can serve the watch that follows.
pub(crate) struct WatchLog {
    resource: String,
    state: WatchState,
    /// The code of the last failure, if that says why, and how often in a row it came.
    refused: (Option<u16>, u32),
}

enum WatchState {
    Runs,
    Interrupted,
    /// The list after an interruption was complete at this time.
    Resumed(Instant),
}

impl WatchLog {
    /// So many refusals in a row are no start of an API server: by the watch's backoff, half a minute of them.
    const FOR_GOOD: u32 = 6;
    /// A watch that fails sooner after its list is still interrupted.
    const SETTLES: Duration = Duration::from_secs(10);

    pub(crate) fn new(resource: &str) -> WatchLog {
        WatchLog { resource: resource.to_owned(), state: WatchState::Runs, refused: (None, 0) }
    }

    /// Takes note of what the watch brings, and returns whether that was worth a line.
    pub(crate) fn see<K>(&mut self, event: &watcher::Result<watcher::Event<K>>, now: Instant) -> bool {
        let error = match event {
            // A list may still fail.
            Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => return false,
            Ok(watcher::Event::InitDone) => {
                if let WatchState::Interrupted = self.state {
                    self.state = WatchState::Resumed(now);
                }
                self.refused = (None, 0);
                return false;
            }
            Ok(watcher::Event::Apply(_) | watcher::Event::Delete(_)) => {
                (self.state, self.refused) = (WatchState::Runs, (None, 0));
                return false;
            }
            Err(error) => error,
        };
        let code = answer(error).map(|status| status.code).filter(|code| [403, 404].contains(code));
        let times = if self.refused.0 == code { self.refused.1 + 1 } else { 1 };
        let ran = match self.state {
            WatchState::Runs => true,
            WatchState::Interrupted => false,
            WatchState::Resumed(at) => now.duration_since(at) >= Self::SETTLES,
        };
        // The code of the first line is not told again.
        self.refused = (code, if ran { Self::FOR_GOOD } else { times });
        self.state = WatchState::Interrupted;
        let is_new = ran || code.is_some() && times == Self::FOR_GOOD;
        if is_new {
            tracing::warn!(resource = self.resource, error = %watch_sentence(error), "watch interrupted; it is resumed");
        }
        is_new
    }
}

fn answer(error: &watcher::Error) -> Option<&Status> {
    use watcher::Error::{InitialListFailed, WatchError, WatchFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status))
        | WatchStartFailed(kube::Error::Api(status))
        | WatchFailed(kube::Error::Api(status))
        | WatchError(status) => Some(status),
        _ => None,
    }
}

/// The API server's sentence, if it is RBAC that refuses the watch.
pub(crate) fn forbidden(error: &watcher::Error) -> Option<String> {
    answer(error).filter(|status| status.code == 403).map(|status| status.message.clone())
}

/// The API server's own sentence where there is one: it names verb and resource of what RBAC refuses.
fn watch_sentence(error: &watcher::Error) -> String {
    match answer(error) {
        None => error.to_string(),
        Some(status) if status.code == 404 => {
            "this cluster does not know the kind: apply its CustomResourceDefinition".to_owned()
        }
        Some(status) => status.message.clone(),
    }
}

/// Kind, name and uid of the controlling or first owner.
pub(crate) fn owner<K: Resource>(object: &K) -> Option<(String, String, String)> {
    let owners = object.owner_references();
    let owner = owners.iter().find(|owner| owner.controller == Some(true)).or_else(|| owners.first())?;
    Some((owner.kind.clone(), owner.name.clone(), owner.uid.clone()))
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
    use crate::runtime::key::{Key, key_of};

    #[test]
    fn an_interruption_is_told_once() {
        let failed = |code| -> watcher::Result<watcher::Event<ConfigMap>> {
            let status = serde_json::from_value(json!({"code": code, "message": "m"})).unwrap();
            Err(watcher::Error::WatchStartFailed(kube::Error::Api(status)))
        };
        let mut log = WatchLog::new("configmaps");
        let began = Instant::now();
        let object = ConfigMap::default;
        for (seconds, event, is_told) in [
            (0, Ok(InitDone), false),
            (1, failed(503), true),
            (2, failed(500), false),
            // A list that fails, too.
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
            (28, Ok(InitDone), false),
            (28, Ok(Apply(object())), false),
            (28, failed(503), true),
        ] {
            assert_eq!(log.see(&event, began + Duration::from_secs(seconds)), is_told, "{seconds}: {event:?}");
        }
    }

    #[test]
    fn an_object_that_makes_the_operator_panic_stops_no_watch() {
        let object = |name: &str| -> ConfigMap {
            serde_json::from_value(json!({"metadata": {"name": name, "namespace": "ns"}})).unwrap()
        };
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
        let (cache, told) = (Cache::default(), RefCell::new(Vec::new()));
        let entry = |object: ConfigMap| {
            assert_ne!(object.metadata.name.as_deref(), Some("panics"));
            Entry { key: key_of(&object), group: None, value: Some(()) }
        };
        let changed = |change| match change {
            Change::One(key, _) if key.name == "panics-later" => panic!("{key}"),
            Change::One(key, _) => told.borrow_mut().push(key.name),
            Change::Everything => told.borrow_mut().push("all".to_owned()),
            Change::Nothing => {}
        };
        block_on(keep("configmaps", futures::stream::iter(events.map(Ok)), &cache, entry, changed));
        assert_eq!(*told.borrow(), ["all", "came"]);
        let keys = ["came", "listed", "panics-later"].map(|name| (Key::new("ns", name), ()));
        assert_eq!(cache.all(), keys);
    }

    #[test]
    fn an_object_comes_when_the_store_has_it() {
        let object = |name: &str, data: &str| -> ConfigMap {
            serde_json::from_value(json!({"metadata": {"name": name, "namespace": "ns"}, "data": {"is": data}}))
                .unwrap()
        };
        let (store, writer) = reflector::store();
        let events = [
            Init,
            InitApply(object("a", "first")),
            InitDone,
            Apply(object("b", "first")),
            Apply(object("b", "own")),
            // A new list that breaks off, and one that does not.
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
        let came = stored_objects(events, store.clone(), wrote).map(|object| {
            let object = object.unwrap();
            let stored = store.get(&ObjectRef::from_obj(&object)).expect("it is in the store");
            assert_eq!(*stored, object);
            object.metadata.name.unwrap()
        });
        assert_eq!(block_on(came.collect::<Vec<_>>()), ["a", "b", "a", "new"]);
    }
}
