//! Holds what the operator remembers between reconciles. All of it may be lost at any time: it only saves work, and decisions that
//! depend on it alone keep data.

use std::sync::Arc;

use kube::api::ApiResource;

use crate::{
    clientapp::{
        observed::{certificate, field_edits::EditTracker, pods::PodReasons, repair_backoff::Repairs},
        spec::{
            credentials::Contents,
            file_backup::RefusedArchives,
            values_from::{SourceVersions, Sources},
        },
    },
    crd::ClientAppStatus,
    deletion::made::Made,
    helm::{Hidden, gateway::record::Written},
    platform::{cache::Memo, key::Key, status::Statuses, turns::Turns},
};

/// For each app or Secret, for the life of the process.
#[derive(Default)]
pub(crate) struct Memory {
    /// Holds what one version of a Secret contains.
    pub contents: Memo<Key, (String, Contents)>,
    /// The certificate in one version of an app's Secret.
    pub certificates: Memo<Key, (String, certificate::Read)>,
    /// The apps that an app waits for.
    pub dependencies: Memo<Key, Vec<Key>>,
    /// The values in `spec.valuesFrom` of an app, and what they were read from.
    pub sources: Memo<Key, (SourceVersions, Sources)>,
    /// Holds what no message about an app may contain that was rolled back to the revision with this digest.
    pub rolled_back: Memo<Key, (String, Hidden)>,
    /// uid of the storage Secret of an unreadable revision.
    pub unreadable: Memo<Key, String>,
    /// Held while a revision is unpacked.
    pub decode_lock: Turns,
    /// The resource of a kind, by `apiVersion kind`; `None`: not namespaced.
    pub kinds: Memo<String, Option<ApiResource>>,
    /// Says why the CronJob for archives of an app's files was refused.
    pub archives: Memo<Key, RefusedArchives>,
    /// Apps, by uid, that are deleted with `--cascade=orphan`: the garbage collector removes its finalizer from them.
    pub orphaned: Memo<Key, String>,
    /// Apps, by uid, that are deleted with `--cascade=foreground`.
    pub foreground: Memo<Key, String>,
    /// Apps, by uid, for which no earlier app left a volume.
    pub no_retained_volumes: Memo<Key, String>,
    /// Holds what was created for an app of this uid, until a cache shows it: the app may be deleted before that.
    pub made: Made,
    /// For the newest revision that this process has seen helm create, by the uid of its Secret: its workloads as helm wrote
    /// them, which a late watch may not show yet.
    pub last_applied: Memo<Key, (String, Arc<[Written]>)>,
    /// Holds what was recreated for an app recently, and until when a watch may not show what helm created.
    pub repairs: Memo<Key, Repairs>,
    /// Which edits of the objects of an app's release are known.
    pub edits: Memo<Key, EditTracker>,
    /// Holds what was last observed of the pods of an app that is not ready.
    pub pods: Memo<Key, PodReasons>,
    /// The last status written for each app.
    pub statuses: Statuses<ClientAppStatus>,
}

impl Memory {
    pub(crate) fn forget(&self, key: &Key) {
        self.certificates.take(key);
        self.dependencies.take(key);
        self.sources.take(key);
        self.rolled_back.take(key);
        self.unreadable.take(key);
        self.archives.take(key);
        self.orphaned.take(key);
        self.foreground.take(key);
        self.no_retained_volumes.take(key);
        self.made.forget(key);
        self.last_applied.take(key);
        self.repairs.take(key);
        self.edits.take(key);
        self.pods.take(key);
        self.statuses.forget(key);
    }
}
