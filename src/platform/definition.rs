//! Watches the definition of another operator's kind, which tells if the cluster has that kind: a watch of a kind that is not installed
//! would be polling. The operator's own kinds are required when it starts.

use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{Api, Client, runtime::watcher};

use super::{
    cache::{Cache, CacheEntry, Change},
    key::key_of,
    watch::{feed_cache, outcome},
};

pub(crate) struct Definition {
    name: &'static str,
    established: Cache<()>,
}

impl Definition {
    /// Returns the definition of this name. The watch selects only this one, so a right to this name is enough.
    pub(crate) fn new(name: &'static str) -> Self {
        Definition { name, established: Cache::default() }
    }

    pub(crate) fn resource(&self) -> &'static str {
        self.name.split('.').next().unwrap_or(self.name)
    }

    pub(crate) fn installed(&self) -> bool {
        !self.established.is_empty()
    }

    /// Returns once it is known whether the kind is installed.
    pub(crate) async fn synced(&self) {
        self.established.synced().await;
    }

    /// Waits until the kind is installed, or until it is gone.
    pub(crate) async fn until(&self, installed: bool) {
        const FOREVER: Duration = Duration::from_secs(u32::MAX as u64);
        self.established.wait_for(FOREVER, |_| (self.installed() == installed).then_some(())).await;
    }

    /// Watches forever. Calls `changed` for each change, and `failed` with each failure, or with `None` after a success.
    pub(crate) async fn watch(
        &self,
        client: Client,
        changed: impl Fn(),
        failed: impl Fn(Option<&watcher::Error>) + Send,
    ) {
        let only = watcher::Config::default().fields(&format!("metadata.name={}", self.name));
        let definitions = watcher(Api::<CustomResourceDefinition>::all(client), only);
        let definitions = definitions.inspect(move |event| {
            if let Some(failure) = outcome(event) {
                failed(failure);
            }
        });
        let on_change = |change| match change {
            Change::Everything | Change::One(..) => changed(),
            Change::Nothing => {}
        };
        feed_cache("customresourcedefinitions", definitions, &self.established, entry, on_change).await;
    }
}

fn entry(definition: CustomResourceDefinition) -> CacheEntry<()> {
    let established = definition
        .status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|condition| condition.type_ == "Established" && condition.status == "True");
    let stays = definition.metadata.deletion_timestamp.is_none();
    CacheEntry { key: key_of(&definition), group: None, value: (established && stays).then_some(()) }
}
