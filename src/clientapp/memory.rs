//! What the operator remembers between reconciles. All of it can be lost at any time: it saves work, never decides.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{cache::Memo, names::Key};
use crate::crd::{ClientApp, ClientAppStatus};

/// Per app or Secret, for the life of the process.
#[derive(Default)]
pub struct Memory {
    /// Which keys of a Secret have a value, for one version of it.
    pub secret_keys: Memo<Key, (String, BTreeSet<String>)>,
    /// Failures in a row of the reconcile itself, helm's not included.
    pub failures: Memo<Key, u32>,
    /// How to stop the helm that runs for an app.
    pub running: Memo<Key, tokio_util::sync::CancellationToken>,
    /// How to stop the fetch of a chart for an app, and the generation that it is for.
    pub fetching: Memo<Key, (Option<i64>, tokio_util::sync::CancellationToken)>,
    /// Apps, by uid, whose foreground deletion has begun.
    pub foreground: Memo<Key, String>,
    /// Apps, by uid, to which no earlier one has left a volume.
    pub unburdened: Memo<Key, String>,
    /// What was last said of each app.
    pub statuses: Statuses<ClientAppStatus>,
}

/// The statuses of objects as they were last written, for as long as the watch is late: a reconcile right after a write
/// would not know of it, and do the same again at once.
pub struct Statuses<S>(Memo<Key, Written<S>>);

#[derive(Clone)]
struct Written<S> {
    uid: String,
    resource_version: Option<u64>,
    status: S,
}

impl<S> Default for Statuses<S> {
    fn default() -> Self {
        Statuses(Memo::default())
    }
}

impl<S: Clone + Default> Statuses<S> {
    /// Remembers a status that was written, and the version of the object that has it.
    pub fn put(&self, key: &Key, uid: &str, resource_version: Option<&str>, status: &S) {
        let resource_version = resource_version.and_then(|version| version.parse().ok());
        self.0.put(key.clone(), Written { uid: uid.to_owned(), resource_version, status: status.clone() });
    }

    /// The object's status: as the watch has it, or as it was written since. `None`: the object does not decode.
    pub fn get(&self, key: &Key, meta: &ObjectMeta, seen: Option<&Option<S>>) -> S {
        let version = meta.resource_version.as_ref().and_then(|version| version.parse::<u64>().ok());
        let written = self.0.get(key).filter(|written| meta.uid.as_ref() == Some(&written.uid));
        let late = |written: &Written<S>| version.zip(written.resource_version).is_some_and(|(seen, then)| seen < then);
        match (seen, written) {
            (Some(_), Some(written)) if late(&written) => written.status,
            (Some(status), _) => status.clone().unwrap_or_default(),
            // What does not decode shows no status; what was said of it once need not be said again.
            (None, Some(written)) => written.status,
            (None, None) => S::default(),
        }
    }

    /// Forgets an object that is gone.
    pub fn forget(&self, key: &Key) {
        self.0.take(key);
    }
}

impl Memory {
    /// The app's status, as it was last written.
    pub fn recorded_status(&self, key: &Key, meta: &ObjectMeta, app: Option<&ClientApp>) -> ClientAppStatus {
        self.statuses.get(key, meta, app.map(|app| &app.status))
    }

    /// Forgets an app that is gone.
    pub fn forget(&self, key: &Key) {
        self.failures.take(key);
        self.running.take(key);
        self.fetching.take(key);
        self.foreground.take(key);
        self.unburdened.take(key);
        self.statuses.forget(key);
    }
}
