//! The metadata of every Secret, watched once for the controllers of all kinds. An **effect**, reads only.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt as _, api::PartialObjectMeta, runtime::watcher};

use crate::{
    crd::{annotation, label},
    helm::command::{DIGEST_LABEL, REVISION_LABEL},
    runtime::{
        cache::{Cache, Change, Entry},
        controller::{Object, Objects},
        feeder::{Changed, told},
        key::{Key, key_of},
        lean::Lean,
        watch::{in_pages, keep, owner},
    },
};

/// Of any Secret: whose it is, and which version of it this is. Never its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecretMeta {
    /// Tells it from a successor of the same name.
    pub uid: String,
    /// Changes with every write.
    pub resource_version: String,
    pub created: Option<Timestamp>,
    /// Kind, name and uid of the controlling or first owner.
    pub owner: Option<(String, String, String)>,
    /// uid of the ClientApp that it was made for, or adopted by.
    pub stamp: Option<String>,
    pub deleting: bool,
    /// The app that left it behind.
    pub retained_from: Option<String>,
    /// It has the label of what a Postgresql has left.
    pub is_left: bool,
    /// uid of the Postgresql that it belongs to, by its label.
    pub postgresql: Option<String>,
    /// Where it stores a revision of a Helm release.
    pub revision: Option<RevisionMeta>,
}

/// One stored revision of a Helm release, by its labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RevisionMeta {
    pub uid: String,
    pub revision: i64,
    /// Helm's `status`.
    pub status: String,
    /// Our digest, be it inherited.
    pub digest: Option<String>,
    /// The revision for which our labels were stamped.
    pub stamped: Option<i64>,
    /// When it was begun. Helm's own time labels come and go with the revision's updates.
    pub written: Option<Timestamp>,
}

type Listener = Box<dyn Fn(&Change) + Send + Sync>;

/// Those of Helm are filed under their release.
#[derive(Clone, Default)]
pub(crate) struct Secrets {
    cache: Arc<Cache<SecretMeta>>,
    /// By the kind that is reconciled.
    listeners: Arc<Mutex<HashMap<String, Listener>>>,
}

impl Secrets {
    /// The Secrets, for the controller of a kind: it is told of each change from now on, and no other of its kind.
    pub(crate) fn told<K: Object>(&self, objects: &Objects<K>, changed: Changed<K>) -> Arc<Cache<SecretMeta>> {
        let objects = objects.clone();
        let listener: Listener = Box::new(move |change| told(&objects, change, changed));
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.insert(K::kind(&()).into_owned(), listener);
        self.cache.clone()
    }

    /// Watches, for good.
    pub(crate) async fn feed(&self, client: Client) {
        let stream = watcher(Api::<Lean<PartialObjectMeta<Secret>>>::all(client), in_pages(watcher::Config::default()));
        let changed = |change| {
            let listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
            listeners.values().for_each(|listener| listener(&change));
        };
        keep("secrets", stream, &self.cache, |Lean(secret)| entry(secret), changed).await;
    }
}

pub(crate) fn meta(secret: &PartialObjectMeta<Secret>) -> SecretMeta {
    SecretMeta {
        uid: secret.uid().unwrap_or_default(),
        resource_version: secret.resource_version().unwrap_or_default(),
        created: secret.creation_timestamp().map(|time| time.0),
        owner: owner(secret),
        stamp: secret.annotations().get(annotation::OWNER_UID).cloned(),
        deleting: secret.metadata.deletion_timestamp.is_some(),
        retained_from: secret.labels().get(label::RETAINED_FROM).cloned(),
        is_left: secret.labels().contains_key(label::RETAINED_KIND),
        postgresql: secret.labels().get(label::POSTGRESQL_UID).cloned(),
        revision: revision(secret),
    }
}

fn entry(secret: PartialObjectMeta<Secret>) -> Entry<SecretMeta> {
    let (key, meta) = (key_of(&secret), meta(&secret));
    let release = meta.revision.is_some().then(|| secret.labels().get("name").cloned()).flatten();
    Entry { group: release.map(|release| Key::new(&key.namespace, release)), value: Some(meta), key }
}

/// A revision of a release by the labels of its Secret (helm.sh/helm/v4/pkg/storage/driver/secrets.go).
pub(crate) fn revision(secret: &PartialObjectMeta<Secret>) -> Option<RevisionMeta> {
    let labels = secret.labels();
    if labels.get("owner").map(String::as_str) != Some("helm") {
        return None;
    }
    Some(RevisionMeta {
        uid: secret.uid().unwrap_or_default(),
        // What is no number of Helm's is no revision of it, whatever the label says.
        revision: labels.get("version")?.parse::<i32>().ok().filter(|revision| *revision > 0)?.into(),
        status: labels.get("status")?.clone(),
        digest: labels.get(DIGEST_LABEL).cloned(),
        stamped: labels.get(REVISION_LABEL).and_then(|revision| revision.parse().ok()),
        written: secret.creation_timestamp().map(|time| time.0),
    })
}
