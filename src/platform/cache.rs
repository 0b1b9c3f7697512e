//! Caches watched objects, reduced to what decisions need.
//!
//! kube's reflector store keeps whole objects, by name only. This cache also files each object under what it belongs to (a
//! release, a cluster), so that a reconcile reads a few entries and needs no request.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::Hash,
    time::Duration,
};

use kube::runtime::watcher;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::key::Key;

pub(crate) struct CacheEntry<V> {
    pub key: Key,
    pub group: Option<Key>,
    /// Holds what decisions need of the object; `None`: it counts as absent.
    pub value: Option<V>,
}

/// Holds the objects of one kind.
pub(crate) struct Cache<V> {
    contents: Mutex<CacheContents<V>>,
    /// Counts changes; the first `InitDone` makes it greater than zero.
    version: watch::Sender<u64>,
}

struct CacheContents<V> {
    /// Limits the objects of a namespace, if users can write any number of them at no cost.
    max_per_namespace: usize,
    live: Index<V>,
    /// A relist in progress: it replaces `live` when it is complete, so that no reader sees half a list.
    staged: Option<Index<V>>,
}

struct Index<V> {
    /// Boxed, because many slots of a map are empty.
    objects: BTreeMap<Key, Box<(Option<Key>, V)>>,
    /// The same names, each preceded by its group.
    grouped: BTreeSet<(Key, Key)>,
}

impl<V> Default for Index<V> {
    fn default() -> Self {
        Index { objects: BTreeMap::new(), grouped: BTreeSet::new() }
    }
}

impl<V: Clone> Index<V> {
    fn insert(&mut self, CacheEntry { key, group, value }: CacheEntry<V>, max_per_namespace: usize) {
        self.remove(&key);
        let Some(value) = value else { return };
        if max_per_namespace < usize::MAX && self.count(&key.namespace, max_per_namespace) >= max_per_namespace {
            return;
        }
        if let Some(group) = &group {
            self.grouped.insert((group.clone(), key.clone()));
        }
        self.objects.insert(key, Box::new((group, value)));
    }

    /// Counts the objects of a namespace, up to this limit.
    fn count(&self, namespace: &str, limit: usize) -> usize {
        let of_namespace =
            self.objects.range(Key::new(namespace, "")..).take_while(|(key, _)| key.namespace == namespace);
        of_namespace.take(limit).count()
    }

    /// Returns the change that adding or removing this entry makes.
    fn change(&self, CacheEntry { key, group, value: _ }: &CacheEntry<V>) -> Change {
        let before = self.objects.get(key).and_then(|object| object.0.clone());
        Change::One(key.clone(), [group.clone(), before.filter(|before| Some(before) != group.as_ref())])
    }

    fn remove(&mut self, key: &Key) {
        if let Some((Some(group), _)) = self.objects.remove(key).map(|object| *object) {
            self.grouped.remove(&(group, key.clone()));
        }
    }
}

impl<V> Default for Cache<V> {
    fn default() -> Self {
        Cache::with_limit(usize::MAX)
    }
}

impl<V> Cache<V> {
    /// Creates a cache that keeps this many objects of a namespace, and ignores the others.
    pub(crate) fn with_limit(max_per_namespace: usize) -> Self {
        Cache {
            contents: Mutex::new(CacheContents { max_per_namespace, live: Index::default(), staged: None }),
            version: watch::Sender::new(0),
        }
    }
}

/// Says what an event changes for the readers of a cache.
pub(crate) enum Change {
    /// A (re)list is complete: anything may have changed.
    Everything,
    /// This object changed. It belongs to the first group; the second is the group it belonged to before, if different.
    One(Key, [Option<Key>; 2]),
    Nothing,
}

impl<V: Clone> Cache<V> {
    /// Applies one event of a watch. `entry` reduces the object.
    pub(crate) fn apply<K>(&self, event: watcher::Event<K>, entry: impl Fn(K) -> CacheEntry<V>) -> Change {
        let change = {
            let mut contents = self.contents.lock();
            let max_per_namespace = contents.max_per_namespace;
            match event {
                watcher::Event::Init => {
                    contents.staged = Some(Index::default());
                    Change::Nothing
                }
                watcher::Event::InitApply(object) => {
                    contents.staged.get_or_insert_default().insert(entry(object), max_per_namespace);
                    Change::Nothing
                }
                watcher::Event::InitDone => {
                    contents.live = contents.staged.take().unwrap_or_default();
                    Change::Everything
                }
                watcher::Event::Apply(object) => {
                    let entry = entry(object);
                    let change = contents.live.change(&entry);
                    contents.live.insert(entry, max_per_namespace);
                    change
                }
                watcher::Event::Delete(object) => {
                    let entry = entry(object);
                    let change = contents.live.change(&entry);
                    contents.live.remove(&entry.key);
                    change
                }
            }
        };
        if !matches!(change, Change::Nothing) {
            self.version.send_modify(|version| *version += 1);
        }
        change
    }

    /// Forgets everything, for example when the kind is removed from the cluster.
    pub(crate) fn clear(&self) {
        let mut contents = self.contents.lock();
        *contents =
            CacheContents { max_per_namespace: contents.max_per_namespace, live: Index::default(), staged: None };
        drop(contents);
        self.version.send_modify(|version| *version += 1);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.contents.lock().live.objects.is_empty()
    }

    pub(crate) fn get(&self, key: &Key) -> Option<V> {
        self.contents.lock().live.objects.get(key).map(|object| object.1.clone())
    }

    /// Returns true if an object exists and is filed under this group.
    pub(crate) fn is_of(&self, key: &Key, group: &Key) -> bool {
        self.contents.lock().live.objects.get(key).is_some_and(|object| object.0.as_ref() == Some(group))
    }

    /// Returns all objects, ordered by name.
    pub(crate) fn all(&self) -> Vec<(Key, V)> {
        self.contents.lock().live.objects.iter().map(|(key, object)| (key.clone(), object.1.clone())).collect()
    }

    /// Returns the objects in a namespace, ordered by name.
    pub(crate) fn in_namespace(&self, namespace: &str) -> Vec<V> {
        let contents = self.contents.lock();
        let members = contents.live.objects.range(Key::new(namespace, "")..);
        let members = members.take_while(|(key, _)| key.namespace == namespace);
        members.map(|(_, object)| object.1.clone()).collect()
    }

    /// Returns the objects of a group, ordered by name.
    pub(crate) fn group(&self, group: &Key) -> Vec<(Key, V)> {
        let contents = self.contents.lock();
        let first = (group.clone(), Key::new("", ""));
        let members = contents.live.grouped.range(first..).take_while(|(filed_under, _)| filed_under == group);
        members.filter_map(|(_, key)| Some((key.clone(), contents.live.objects.get(key)?.1.clone()))).collect()
    }

    /// Returns the objects of all groups of a namespace whose names begin like this, each with its group's name.
    pub(crate) fn groups(&self, beginning: &Key) -> Vec<(String, V)> {
        let contents = self.contents.lock();
        let first = (beginning.clone(), Key::new("", ""));
        let begins = |(group, _): &&(Key, Key)| {
            group.namespace == beginning.namespace && group.name.starts_with(&beginning.name)
        };
        let members = contents.live.grouped.range(first..).take_while(begins);
        members
            .filter_map(|(group, key)| Some((group.name.clone(), contents.live.objects.get(key)?.1.clone())))
            .collect()
    }

    /// Signals every change, without saying which.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    pub(crate) fn is_synced(&self) -> bool {
        *self.version.borrow() > 0
    }

    pub(crate) async fn synced(&self) {
        // The sender lives in self, so this cannot fail.
        let _ = self.version.subscribe().wait_for(|version| *version > 0).await;
    }

    /// Waits until `seen` returns a value, for at most `timeout`.
    pub(crate) async fn wait_for<T>(&self, timeout: Duration, seen: impl Fn(&Self) -> Option<T>) -> Option<T> {
        let mut changes = self.version.subscribe();
        let search = async {
            loop {
                changes.mark_unchanged();
                if let Some(found) = seen(self) {
                    return Some(found);
                }
                changes.changed().await.ok()?;
            }
        };
        tokio::time::timeout(timeout, search).await.ok().flatten()
    }
}

/// Remembers a value per key for as long as the process lives, such as what was last written.
pub(crate) struct Memo<K, V>(Mutex<HashMap<K, V>>);

impl<K, V> Default for Memo<K, V> {
    fn default() -> Self {
        Memo(Mutex::new(HashMap::new()))
    }
}

impl<K: Eq + Hash, V: Clone> Memo<K, V> {
    pub(crate) fn get(&self, key: &K) -> Option<V> {
        self.0.lock().get(key).cloned()
    }
    pub(crate) fn put(&self, key: K, value: V) {
        self.0.lock().insert(key, value);
    }
    pub(crate) fn take(&self, key: &K) -> Option<V> {
        self.0.lock().remove(key)
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;

    use super::*;

    fn entry(name: &'static str) -> CacheEntry<&'static str> {
        CacheEntry { key: Key::new("ns", name), group: Some(Key::new("ns", &name[..1])), value: Some(name) }
    }

    fn group(cache: &Cache<&'static str>, name: &str) -> Vec<&'static str> {
        cache.group(&Key::new("ns", name)).into_iter().map(|(_, value)| value).collect()
    }

    #[test]
    fn a_relist_is_seen_whole_or_not_at_all() {
        let cache = Cache::default();
        for event in [Event::Init, Event::InitApply("a1"), Event::InitApply("a2"), Event::InitDone] {
            cache.apply(event, entry);
        }
        cache.apply(Event::Apply("b1"), entry);
        assert_eq!((group(&cache, "a"), group(&cache, "b")), (vec!["a1", "a2"], vec!["b1"]));

        cache.apply(Event::Init, entry);
        cache.apply(Event::InitApply("a2"), entry);
        assert_eq!(group(&cache, "a"), ["a1", "a2"]);
        cache.apply(Event::InitDone, entry);
        assert_eq!((group(&cache, "a"), group(&cache, "b")), (vec!["a2"], vec![]));

        cache.apply(Event::Delete("a2"), entry);
        assert_eq!(cache.get(&Key::new("ns", "a2")), None);
    }

    #[tokio::test]
    async fn waiting_ends_with_the_change() {
        let cache = std::sync::Arc::new(Cache::default());
        let waiter = tokio::spawn({
            let cache = cache.clone();
            async move { cache.wait_for(Duration::from_secs(60), |cache| cache.get(&Key::new("ns", "a1"))).await }
        });
        tokio::task::yield_now().await;
        cache.apply(Event::Apply("a1"), entry);
        assert_eq!(waiter.await.unwrap(), Some("a1"));
        assert_eq!(cache.wait_for(Duration::ZERO, |_| None::<()>).await, None);
    }
}
