//! What the operator remembers between reconciles. All of it can be lost at any time: it saves work,
//! and what it alone knows errs on the side of keeping.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use kube::api::ApiResource;
use tokio::sync::Mutex;

use super::{owned, pods::Look, repairs::Repairs};
use crate::{
    crd::{ClientAppStatus, Owned},
    runtime::{cache::Memo, key::Key, status::Statuses},
};

/// Per app or Secret, for the life of the process.
#[derive(Default)]
pub(crate) struct Memory {
    /// Which keys of a Secret have a value, for one version of it.
    pub secret_keys: Memo<Key, (String, BTreeSet<String>)>,
    /// uid of the storage Secret of a revision that cannot be read.
    pub unreadable: Memo<Key, String>,
    /// Held while a revision is unpacked.
    pub unpacking: Mutex<()>,
    /// Where the objects of a kind are, by `apiVersion kind`; `None`: in no namespace.
    pub kinds: Memo<String, Option<ApiResource>>,
    /// Apps, by uid, that are deleted with `--cascade=orphan`: the garbage collector takes its mark off them.
    pub orphaned: Memo<Key, String>,
    /// Apps, by uid, to which no earlier one has left a volume.
    pub unburdened: Memo<Key, String>,
    /// What was made for an app of this uid, until a cache shows it: an app may be deleted before that.
    made: Memo<Key, (String, Vec<Owned>)>,
    /// Of the newest revision that this process has seen helm make, by the uid of its Secret: the generation of each of its
    /// workloads by uid, which a late watch may not have yet.
    pub generations: Memo<Key, (String, Arc<HashMap<String, i64>>)>,
    /// What was recreated for an app of late, and until when a watch may be late with what helm has made.
    pub repairs: Memo<Key, Repairs>,
    /// What was last seen of the pods of an app that is not ready.
    pub pods: Memo<Key, Look>,
    /// What was last said of each app.
    pub statuses: Statuses<ClientAppStatus>,
}

impl Memory {
    /// Remembers an object that was just made for an app.
    pub(crate) fn put_made(&self, key: &Key, uid: &str, object: Owned) {
        let mut made = self.made(key, uid);
        owned::put(&mut made, object);
        self.made.put(key.clone(), (uid.to_owned(), made));
    }

    /// What this process has made for an app.
    pub(crate) fn made(&self, key: &Key, uid: &str) -> Vec<Owned> {
        self.made.get(key).filter(|(of, _)| of == uid).map(|(_, made)| made).unwrap_or_default()
    }

    pub(crate) fn forget(&self, key: &Key) {
        self.unreadable.take(key);
        self.orphaned.take(key);
        self.unburdened.take(key);
        self.made.take(key);
        self.generations.take(key);
        self.repairs.take(key);
        self.pods.take(key);
        self.statuses.forget(key);
    }
}
