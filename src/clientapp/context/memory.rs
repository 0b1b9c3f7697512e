//! Holds what the operator remembers between reconciles. All of it may be lost at any time: it only saves work, and decisions that
//! depend on it alone keep data.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use kube::api::ApiResource;
use parking_lot::Mutex;

use crate::{
    clientapp::{
        observed::{
            certificate, field_edits::EditTracker, file_backup::RefusedBackup, pods::PodReasons,
            repair_backoff::Repairs,
        },
        spec::{
            credentials::KnownSecret,
            values_from::{SourceVersions, Sources},
        },
    },
    crd::ClientAppStatus,
    deletion::recently_created::RecentlyCreated,
    helm::{Redactor, gateway::record::WrittenObject},
    platform::{cache::Memo, fair_lock::FairLock, key::Key, status::Statuses},
};

/// Holds what is remembered of one app. What is said of a revision, a Secret or a uid names it, so that a successor does not use it.
#[derive(Default)]
pub(crate) struct PerApp {
    /// Holds what was read of the Secrets with its credentials, by name.
    pub secrets: BTreeMap<String, KnownSecret>,
    /// The certificate in one version of the app's Secret.
    pub certificate: Option<(String, certificate::Read)>,
    /// The apps that it waits for.
    pub dependencies: Vec<Key>,
    /// The values in `spec.valuesFrom`, and what they were read from.
    pub sources: Option<(SourceVersions, Sources)>,
    /// Holds what no message may contain while it is rolled back to the revision with this digest.
    pub rolled_back: Option<(String, Redactor)>,
    /// uid of the storage Secret of an unreadable revision.
    pub unreadable: Option<String>,
    /// Says why a ClientAppBackup that was due was refused.
    pub refused_backup: Option<RefusedBackup>,
    /// uid, if it is deleted with `--cascade=orphan`: the garbage collector removes its finalizer from it.
    pub orphaned: Option<String>,
    /// uid, if it is deleted with `--cascade=foreground`, likewise.
    pub foreground: Option<String>,
    /// uid, if no earlier app left a volume for it.
    pub no_retained_volumes: Option<String>,
    /// For the newest revision that this process has seen helm create, by the uid of its Secret: its workloads as helm last_applied
    /// them, which a late watch may not show yet.
    pub last_applied: Option<(String, Arc<[WrittenObject]>)>,
    /// Holds what was recreated recently, and until when a watch may not show what helm created.
    pub repairs: Repairs,
    /// Which edits of the objects of its release are known.
    pub edits: Option<EditTracker>,
    /// Holds what was last observed of its pods while it is not ready.
    pub pods: Option<PodReasons>,
    /// Likewise of the pods of its database.
    pub database_pods: Option<PodReasons>,
}

/// Remembers for the life of the process.
#[derive(Default)]
pub(crate) struct Memory {
    apps: Mutex<HashMap<Key, PerApp>>,
    /// Held while a revision is unpacked.
    pub decode_lock: FairLock,
    /// The resource of a kind, by `apiVersion kind`; `None`: not namespaced.
    pub kinds: Memo<String, Option<ApiResource>>,
    /// Holds what was created for an app of this uid, until a cache shows it: the app may be deleted before that.
    pub recently_created: RecentlyCreated,
    /// The last status written for each app.
    pub statuses: Statuses<ClientAppStatus>,
}

impl Memory {
    /// Returns what is remembered of an app; nothing, if it is not known.
    pub(crate) fn read<T: Default>(&self, app: &Key, read: impl FnOnce(&PerApp) -> T) -> T {
        self.apps.lock().get(app).map(read).unwrap_or_default()
    }

    pub(crate) fn put(&self, app: &Key, change: impl FnOnce(&mut PerApp)) {
        change(self.apps.lock().entry(app.clone()).or_default());
    }

    /// Drops something, if the app is known.
    pub(crate) fn drop(&self, app: &Key, change: impl FnOnce(&mut PerApp)) {
        if let Some(known) = self.apps.lock().get_mut(app) {
            change(known);
        }
    }

    /// Returns the apps of which this is true.
    pub(crate) fn having(&self, is_meant: impl Fn(&PerApp) -> bool) -> Vec<Key> {
        self.apps.lock().iter().filter(|(_, app)| is_meant(app)).map(|(key, _)| key.clone()).collect()
    }

    pub(crate) fn forget(&self, app: &Key) {
        self.apps.lock().remove(app);
        self.recently_created.forget(app);
        self.statuses.forget(app);
    }
}
