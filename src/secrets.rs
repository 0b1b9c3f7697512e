//! The metadata of every Secret, watched once for the controllers of all kinds. An **effect**, reads only.

use std::{collections::HashMap, sync::Arc};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, ResourceExt as _, api::PartialObjectMeta, runtime::watcher};
use parking_lot::Mutex;

use crate::{
    crd::{annotation, label},
    helm::{
        cli::command::{DIGEST_LABEL, REVISION_LABEL},
        storage,
    },
    platform::{
        cache::{Cache, CacheEntry, Change},
        controller::{Objects, ReconciledObject},
        key::{Key, key_of},
        managed_fields::WithoutManagedFields,
        watch::{feed_cache, in_pages, owner},
        watch_builder::{OnChange, enqueue_for},
    },
};

/// Metadata of a Secret: its owner and version, never its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SecretMeta {
    /// Distinguishes it from a later Secret of the same name.
    pub uid: String,
    /// Changes with every write.
    pub resource_version: String,
    pub created: Option<Timestamp>,
    /// Kind, name and uid of the controlling owner, or else of the first.
    pub owner: Option<(String, String, String)>,
    /// uid of the ClientApp that it was created for, or adopted by.
    pub stamp: Option<String>,
    pub deleting: bool,
    /// The app that has left it.
    pub retained_from: Option<String>,
    /// True if it has the label of objects that a Postgresql has left.
    pub is_left: bool,
    /// uid of the Postgresql that it belongs to, from its label.
    pub postgresql: Option<String>,
    /// Set if it stores a revision of a Helm release.
    pub revision: Option<RevisionMeta>,
}

/// A stored revision of a Helm release, from its labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RevisionMeta {
    pub uid: String,
    pub revision: i64,
    /// Helm's `status`.
    pub status: String,
    /// The operator's digest, possibly inherited from an earlier revision.
    pub digest: Option<String>,
    /// The revision that the operator's labels were set for.
    pub stamped: Option<i64>,
    /// When it was begun. Helm's own time labels change with updates of the revision.
    pub written: Option<Timestamp>,
}

type Listener = Box<dyn Fn(&Change) + Send + Sync>;

/// Helm's Secrets are grouped by release.
///
/// Revisions and generated Secrets come through **one** watch, in order. A ClientApp that was recreated relies on that: as long as its
/// predecessor's Redis Secret is shown, it waits, and afterwards no revision of the predecessor is shown that is gone.
#[derive(Clone, Default)]
pub(crate) struct Secrets {
    cache: Arc<Cache<SecretMeta>>,
    /// By the reconciled kind.
    listeners: Arc<Mutex<HashMap<String, Listener>>>,
}

impl Secrets {
    /// The Secrets for a kind's controller. It is notified of each change from now on, in place of an earlier controller of that kind.
    pub(crate) fn told<K: ReconciledObject>(
        &self,
        objects: &Objects<K>,
        changed: OnChange<K>,
    ) -> Arc<Cache<SecretMeta>> {
        let objects = objects.clone();
        let listener: Listener = Box::new(move |change| enqueue_for(&objects, change, changed));
        let mut listeners = self.listeners.lock();
        listeners.insert(K::kind(&()).into_owned(), listener);
        self.cache.clone()
    }

    /// Watches until dropped.
    pub(crate) async fn feed(&self, client: Client) {
        let stream = watcher(
            Api::<WithoutManagedFields<PartialObjectMeta<Secret>>>::all(client),
            in_pages(watcher::Config::default()),
        );
        let changed = |change| {
            let listeners = self.listeners.lock();
            listeners.values().for_each(|listener| listener(&change));
        };
        feed_cache(
            "secrets",
            stream,
            &self.cache,
            |WithoutManagedFields { object, helm_fields_digest: _ }| entry(object),
            changed,
        )
        .await;
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

fn entry(secret: PartialObjectMeta<Secret>) -> CacheEntry<SecretMeta> {
    let (key, meta) = (key_of(&secret), meta(&secret));
    let release = meta.revision.is_some().then(|| secret.labels().get("name").cloned()).flatten();
    CacheEntry { group: release.map(|release| Key::new(&key.namespace, release)), value: Some(meta), key }
}

/// Parses a revision from the labels of its Secret (helm.sh/helm/v4/pkg/storage/driver/secrets.go).
pub(crate) fn revision(secret: &PartialObjectMeta<Secret>) -> Option<RevisionMeta> {
    let labels = secret.labels();
    let (release, version) = (labels.get("name")?, labels.get("version")?);
    // By its name as well: any object of a chart can have the labels.
    let stores = labels.get("owner").is_some_and(|owner| owner == "helm")
        && secret.name_any() == storage::secret(release, version);
    if !stores {
        return None;
    }
    Some(RevisionMeta {
        uid: secret.uid().unwrap_or_default(),
        // Helm's revisions are positive 32-bit integers; any other label value is ignored.
        revision: version.parse::<i32>().ok().filter(|revision| *revision > 0)?.into(),
        status: labels.get("status")?.clone(),
        digest: labels.get(DIGEST_LABEL).cloned(),
        stamped: labels.get(REVISION_LABEL).and_then(|revision| revision.parse().ok()),
        written: secret.creation_timestamp().map(|time| time.0),
    })
}
