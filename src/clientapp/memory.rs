//! What the operator remembers between reconciles. All of it can be lost at any time: it saves work,
//! and what it alone knows errs on the side of keeping.

use std::collections::BTreeSet;

use kube::api::ApiResource;

use crate::{
    controller::{cache::Memo, key::Key, status::Statuses},
    crd::{ClientApp, ClientAppStatus, Guard},
};

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
    /// The revision that helm has written, until the watch shows it.
    pub written: Memo<Key, i64>,
    /// uid of the storage Secret of a revision that cannot be read.
    pub unreadable: Memo<Key, String>,
    /// Where the objects of a kind are, by `apiVersion kind`; `None`: in no namespace.
    pub kinds: Memo<String, Option<ApiResource>>,
    /// Apps, by uid, that are deleted with `--cascade=orphan`: the garbage collector takes its mark off them.
    pub orphaned: Memo<Key, String>,
    /// Apps, by uid, to which no earlier one has left a volume.
    pub unburdened: Memo<Key, String>,
    /// What was last said of each app.
    pub statuses: Statuses<ClientAppStatus>,
}

impl Memory {
    /// The app's status, as it was last written.
    pub fn recorded_status(&self, key: &Key, app: &Guard<ClientApp>) -> ClientAppStatus {
        self.statuses.get(key, &app.metadata, app.status(|app| &app.status))
    }

    /// Forgets an app that is gone.
    pub fn forget(&self, key: &Key) {
        self.failures.take(key);
        self.running.take(key);
        self.fetching.take(key);
        self.written.take(key);
        self.unreadable.take(key);
        self.orphaned.take(key);
        self.unburdened.take(key);
        self.statuses.forget(key);
    }
}
