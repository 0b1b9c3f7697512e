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
    written: Memo<Key, Written>,
}

/// A status as it was last written.
#[derive(Clone)]
struct Written {
    uid: String,
    resource_version: Option<u64>,
    status: ClientAppStatus,
}

impl Memory {
    /// Remembers a status that was written, and the version of the object that has it.
    pub fn status_written(&self, key: &Key, uid: &str, resource_version: Option<&str>, status: &ClientAppStatus) {
        let resource_version = resource_version.and_then(|version| version.parse().ok());
        self.written.put(key.clone(), Written { uid: uid.to_owned(), resource_version, status: status.clone() });
    }

    /// The app's status: as the watch has it, or as it was written since, while the watch is late. Without this a
    /// reconcile right after a failed helm run would not know of the failure, and run helm again at once.
    pub fn recorded_status(&self, key: &Key, meta: &ObjectMeta, app: Option<&ClientApp>) -> ClientAppStatus {
        let seen = meta.resource_version.as_ref().and_then(|version| version.parse::<u64>().ok());
        let written = self.written.get(key).filter(|written| meta.uid.as_ref() == Some(&written.uid));
        let late = |written: &Written| seen.zip(written.resource_version).is_some_and(|(seen, then)| seen < then);
        match (app, written) {
            (Some(_), Some(written)) if late(&written) => written.status,
            (Some(app), _) => app.status.clone().unwrap_or_default(),
            // What does not decode shows no status; what was said of it once need not be said again.
            (None, Some(written)) => written.status,
            (None, None) => ClientAppStatus::default(),
        }
    }

    /// Forgets an app that is gone.
    pub fn forget(&self, key: &Key) {
        self.failures.take(key);
        self.running.take(key);
        self.fetching.take(key);
        self.foreground.take(key);
        self.written.take(key);
    }
}
