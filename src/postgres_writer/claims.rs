//! Claims that many objects stake together, by one write to the API server. An **effect**.
//!
//! The finalizer is the claim to a row, and costs a write for each object. Where many objects come at once, their claims
//! are staked before their rows are written, in a ConfigMap of the operator's own namespace, and the finalizers follow:
//! when the last one is on, the ConfigMap goes. An object that goes before it has its finalizer cannot say that there is a
//! row to delete; the ConfigMap does, to whichever operator comes next.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, ObjectMeta, Patch, PatchParams, PostParams, TypeMeta},
};
use rand::distr::{Alphanumeric, SampleString as _};
use serde_json::json;
use tokio::sync::{Mutex as AsyncMutex, Notify, OwnedMutexGuard, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::row::{Table, Wanted, id};
use crate::{controller::key::Key, crd::label, destroy::harmless};

/// What a ConfigMap is called, before characters that are its own.
const PREFIX: &str = "clientapp-operator-claims-";
/// What its label [`label::CLAIMS`] says.
const KIND: &str = "PostgresWriter";
/// Between two attempts to write a ConfigMap, and how many there are.
const PAUSE: Duration = Duration::from_secs(1);
const ATTEMPTS: usize = 5;
/// In one ConfigMap, which may have 1 MiB: names of objects and tables make at most 0.5 KiB each.
const MOST: usize = 1000;

/// The claims that are staked.
pub struct Claims {
    api: Api<ConfigMap>,
    namespace: String,
    waiting: mpsc::UnboundedSender<Waiting>,
    staked: Mutex<Staked>,
    changed: Notify,
    /// Nothing is staked any more: by whom does not lead, the next leader might not see it.
    closed: CancellationToken,
}

/// Who waits for a claim of theirs to be staked.
pub struct Waiting {
    key: Key,
    uid: String,
    table: Table,
    answer: oneshot::Sender<bool>,
}

#[derive(Default)]
struct Staked {
    claims: HashMap<Key, Entry>,
    /// ConfigMaps, and how many of their claims are open.
    open: BTreeMap<String, usize>,
}

struct Entry {
    uid: String,
    table: Table,
    /// The ConfigMap it is in.
    place: String,
    /// Nothing stands for the claim but this.
    open: bool,
    holder: Arc<AsyncMutex<()>>,
}

/// A claim that is open, and nobody else's to act on meanwhile.
pub struct Claim<'a> {
    claims: &'a Claims,
    key: Key,
    /// The object's uid.
    pub uid: String,
    /// The table with the row.
    pub table: Table,
    _held: OwnedMutexGuard<()>,
}

impl Claims {
    /// None yet, to be kept in this namespace until `stop`; and what [`Claims::write`] takes.
    #[must_use]
    pub fn new(
        client: Client,
        namespace: &str,
        stop: &CancellationToken,
    ) -> (Claims, mpsc::UnboundedReceiver<Waiting>) {
        let (waiting, written) = mpsc::unbounded_channel();
        let claims = Claims {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            waiting,
            staked: Mutex::default(),
            changed: Notify::new(),
            closed: stop.child_token(),
        };
        (claims, written)
    }

    /// Takes over what an operator before has left.
    ///
    /// # Errors
    /// The API server's refusal.
    pub async fn load(&self) -> kube::Result<()> {
        let ours = ListParams::default().labels(&format!("{}={KIND}", label::CLAIMS));
        for map in self.api.list(&ours).await? {
            let place = map.name_any();
            let mut staked = self.lock();
            staked.open.insert(place.clone(), 0);
            for (uid, text) in map.data.into_iter().flatten() {
                if let Some((table, key)) = parse(&text) {
                    staked.insert(key, uid, table, &place);
                } else {
                    // It counts as open for good, so that the ConfigMap stays.
                    *staked.open.entry(place.clone()).or_default() += 1;
                    tracing::warn!(
                        "ConfigMap {}/{place} has an entry {uid:?} that is none of the operator's, and is kept: delete it",
                        self.namespace
                    );
                }
            }
        }
        Ok(())
    }

    /// Writes what is staked, for good: all that came while the last ConfigMap was written, in one.
    pub async fn write(&self, mut waiting: mpsc::UnboundedReceiver<Waiting>) {
        let mut batch = Vec::new();
        while waiting.recv_many(&mut batch, MOST).await > 0 {
            let written = self.write_batch(&batch).await;
            for Waiting { answer, .. } in batch.drain(..) {
                // Whoever does not wait any more leaves it to `sweep`.
                let _ = answer.send(written);
            }
        }
    }

    async fn write_batch(&self, batch: &[Waiting]) -> bool {
        let place = format!("{PREFIX}{}", Alphanumeric.sample_string(&mut rand::rng(), 10).to_lowercase());
        let entry = |Waiting { key, uid, table, .. }: &Waiting| (uid.clone(), text(table, key));
        let labels = [(label::MANAGED_BY, label::OPERATOR), (label::CLAIMS, KIND)];
        let map = ConfigMap {
            metadata: ObjectMeta {
                name: Some(place.clone()),
                labels: Some(labels.map(|(name, value)| (name.to_owned(), value.to_owned())).into()),
                ..ObjectMeta::default()
            },
            data: Some(batch.iter().map(entry).collect()),
            ..ConfigMap::default()
        };
        let created = self.create(&map).await;
        let mut staked = self.lock();
        match &created {
            Ok(()) => {
                staked.open.insert(place.clone(), 0);
                for Waiting { key, uid, table, .. } in batch {
                    staked.insert(key.clone(), uid.clone(), table.clone(), &place);
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot create ConfigMap {}/{place}: rows are claimed one by one", self.namespace);
                if !is_refusal(error) {
                    // It may be there all the same.
                    staked.open.insert(place, 0);
                }
            }
        }
        // Objects that went meanwhile are not seen to go any more.
        self.changed.notify_one();
        created.is_ok()
    }

    /// Creates a ConfigMap. One that may be there or not is a claim that nobody knows of, so that it is tried until it is
    /// known, if need be and if that does not take too long.
    async fn create(&self, map: &ConfigMap) -> kube::Result<()> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.api.create(&PostParams::default(), map).await {
                Ok(_) => return Ok(()),
                // The name is nobody else's: an attempt before has got through.
                Err(kube::Error::Api(status)) if attempts > 1 && status.reason == "AlreadyExists" => return Ok(()),
                Err(error) if attempts == ATTEMPTS || is_refusal(&error) => return Err(error),
                Err(error) => tracing::warn!(%error, "cannot create a ConfigMap with claims; trying again"),
            }
            if self.closed.run_until_cancelled(tokio::time::sleep(PAUSE)).await.is_none() {
                attempts = ATTEMPTS - 1;
            }
        }
    }

    /// Stakes none from now on.
    pub fn close(&self) {
        self.closed.cancel();
    }

    /// Stakes the object's claim to its row. `None`: it could not be.
    pub async fn stake(&self, key: &Key, uid: &str, wanted: &Wanted) -> Option<Claim<'_>> {
        if self.closed.is_cancelled() {
            return None;
        }
        let (answer, answered) = oneshot::channel();
        let (uid, table) = (uid.to_owned(), wanted.table.clone());
        self.waiting.send(Waiting { key: key.clone(), uid, table, answer }).ok()?;
        answered.await.ok().filter(|written| *written)?;
        self.take(key).await
    }

    /// The claim that is open for an object of this name, once nobody else acts on it.
    pub async fn take(&self, key: &Key) -> Option<Claim<'_>> {
        let holder = self.lock().claims.get(key).filter(|entry| entry.open)?.holder.clone();
        let held = holder.lock_owned().await;
        let staked = self.lock();
        let Entry { uid, table, .. } = staked.claims.get(key).filter(|entry| entry.open)?;
        Some(Claim { claims: self, key: key.clone(), uid: uid.clone(), table: table.clone(), _held: held })
    }

    /// Whose claims are open.
    #[must_use]
    pub fn open(&self) -> Vec<Key> {
        self.lock().claims.iter().filter(|(_, entry)| entry.open).map(|(key, _)| key.clone()).collect()
    }

    /// Strikes out the claim of an object of this name, as there is no row any more: one that somebody else writes later
    /// must not be taken for ours.
    ///
    /// # Errors
    /// The API server's refusal.
    pub async fn strike(&self, key: &Key) -> kube::Result<()> {
        let found = self.lock().claims.get(key).map(|entry| (entry.place.clone(), entry.uid.clone()));
        let Some((place, uid)) = found else { return Ok(()) };
        let without = Patch::Merge(json!({"data": {uid: null}}));
        match self.api.patch(&place, &PatchParams::default(), &without).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            written => _ = written?,
        }
        self.settle(key);
        self.lock().claims.remove(key);
        Ok(())
    }

    /// Deletes the ConfigMaps in which no claim is open any more.
    ///
    /// # Errors
    /// The API server's refusal.
    pub async fn discard(&self) -> kube::Result<()> {
        let done: Vec<_> = {
            let staked = self.lock();
            staked.open.iter().filter(|(_, open)| **open == 0).map(|(place, _)| place.clone()).collect()
        };
        let mut result = Ok(());
        for place in done {
            let of = TypeMeta::resource::<ConfigMap>();
            let meta = ObjectMeta { name: Some(place.clone()), ..ObjectMeta::default() };
            match harmless::delete(&self.api, &of, &meta).await {
                Ok(_) => {}
                // The others need not wait for this one.
                Err(error) => {
                    result = Err(error);
                    continue;
                }
            }
            let mut staked = self.lock();
            staked.open.remove(&place);
            staked.claims.retain(|_, entry| entry.place != place);
        }
        result
    }

    /// Returns when there may be something to sweep or to discard.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Says that there may be something to sweep.
    pub fn look_again(&self) {
        self.changed.notify_one();
    }

    /// Something else stands for the claim from now on.
    fn settle(&self, key: &Key) {
        if self.lock().settle(key) {
            self.changed.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Staked> {
        // Every change is complete or not begun, whatever panicked.
        self.staked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Staked {
    fn insert(&mut self, key: Key, uid: String, table: Table, place: &str) {
        // An operator that was killed may have left the same claim twice.
        self.settle(&key);
        *self.open.entry(place.to_owned()).or_default() += 1;
        self.claims.insert(key, Entry { uid, table, place: place.to_owned(), open: true, holder: Arc::default() });
    }

    /// Returns whether it was the last one of its ConfigMap.
    fn settle(&mut self, key: &Key) -> bool {
        let Some(entry) = self.claims.get_mut(key).filter(|entry| entry.open) else { return false };
        entry.open = false;
        let Some(open) = self.open.get_mut(&entry.place) else { return false };
        *open -= 1;
        *open == 0
    }
}

impl Claim<'_> {
    /// Primary key of the row.
    #[must_use]
    pub fn id(&self) -> String {
        id(&self.key)
    }

    /// The finalizer stands for the claim from now on.
    pub fn settle(self) {
        self.claims.settle(&self.key);
    }

    /// There is no row any more.
    ///
    /// # Errors
    /// The API server's refusal.
    pub async fn strike(self) -> kube::Result<()> {
        self.claims.strike(&self.key).await
    }
}

/// Whether the API server has refused for good, so that nothing was stored.
fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code) && ![408, 429].contains(&status.code))
}

/// A claim in a ConfigMap, under the object's uid.
fn text(table: &Table, Key { namespace, name }: &Key) -> String {
    format!("{table} {namespace}/{name}")
}

fn parse(text: &str) -> Option<(Table, Key)> {
    let (table, key) = text.split_once(' ')?;
    let (namespace, name) = key.split_once('/')?;
    Some((table.parse().ok()?, Key::new(namespace, name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ada() -> (Key, Table) {
        (Key::new("people", "ada"), "sales.people".parse().unwrap())
    }

    #[test]
    fn a_claim_is_read_as_it_was_written() {
        let (key, table) = ada();
        assert_eq!(text(&table, &key), "sales.people people/ada");
        assert_eq!(parse("sales.people people/ada"), Some((table, key)));
        for text in ["", "people", "people ada", "people; people/ada", "a.b.c people/ada"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_configmap_is_done_with_its_last_claim() {
        let (key, table) = ada();
        let other = Key::new("people", "bob");
        let mut staked = Staked::default();
        staked.insert(key.clone(), "1".into(), table.clone(), "first");
        staked.insert(other.clone(), "2".into(), table.clone(), "first");
        assert!(!staked.settle(&key));
        // Once is enough.
        assert!(!staked.settle(&key));
        assert_eq!(staked.open["first"], 1);
        // The same claim in another ConfigMap, which was thought not to have been written.
        staked.insert(other.clone(), "2".into(), table, "second");
        assert_eq!((staked.open["first"], staked.open["second"]), (0, 1));
        assert!(staked.settle(&other));
    }
}
