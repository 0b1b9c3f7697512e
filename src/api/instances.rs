//! The API's view of all ClientApps, from a watch of its own, so reads cost no request on any replica.

use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use kube::{
    Api, Client,
    core::{Selector, SelectorExt as _},
    runtime::watcher,
};
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    dto::Instance,
    idempotency::{Match, RequestStamp},
    problem::Problem,
    query,
    refusal::SOON,
};
use crate::{
    crd::{ClientApp, Guard},
    platform::{
        cache::{Cache, CacheEntry},
        key::{Key, key_of},
        watch::{feed_cache, in_pages},
    },
};

#[derive(Debug)]
pub(crate) struct Shown {
    /// Distinguishes it from a later ClientApp of the same name.
    pub(crate) uid: String,
    pub(crate) instance: Instance,
    pub(crate) stamp: Option<RequestStamp>,
}

/// All instances, grouped by hostname.
#[derive(Default)]
pub(crate) struct Instances(Cache<Arc<Shown>>);

impl Instances {
    /// Starts the watch, which ends with `stop`.
    pub(crate) fn start(client: &Client, tasks: &TaskTracker, stop: &CancellationToken) -> Arc<Instances> {
        let instances = Arc::new(Instances::default());
        let events = watcher(Api::<Guard<ClientApp>>::all(client.clone()), in_pages(watcher::Config::default()));
        let kept = instances.clone();
        let feed = async move { feed_cache("clientapps", events, &kept.0, entry, |_| {}).await };
        tasks.spawn(stop.clone().run_until_cancelled_owned(feed));
        instances
    }

    #[cfg(test)]
    pub(crate) fn apply(&self, event: watcher::Event<Guard<ClientApp>>) {
        self.0.apply(event, entry);
    }

    /// The view may lag behind the cluster by moments.
    /// 503 until the first list is complete.
    pub(crate) fn synced(&self) -> Result<(), Problem> {
        if self.0.is_synced() {
            return Ok(());
        }
        let detail = "the operator has just started and does not know the instances yet; try again";
        Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Syncing", detail).retry_after(SOON))
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Shown>> {
        self.0.get(key)
    }

    /// The instances of this name, sorted by namespace.
    pub(crate) fn named(&self, name: &str) -> Vec<(Key, Arc<Shown>)> {
        let mut all = self.0.all();
        all.retain(|(key, _)| key.name == name);
        all
    }

    /// The instances that have or request a hostname.
    pub(crate) fn with_hostname(&self, hostname: &str) -> Vec<(Key, Arc<Shown>)> {
        self.0.group(&under(hostname))
    }

    /// The instance that was created with the key of this stamp.
    pub(crate) fn stamped(&self, stamp: &RequestStamp) -> Option<Arc<Shown>> {
        let mut all = self.0.all().into_iter().map(|(_, shown)| shown);
        all.find(|shown| stamp.compare(shown.stamp.as_ref()) != Match::Other)
    }

    /// A page of instances, sorted by namespace and name, and the last one's key if there are more.
    pub(crate) fn page(
        &self,
        namespace: Option<&str>,
        selector: &Selector,
        after: Option<&Key>,
        limit: usize,
    ) -> (Vec<Arc<Shown>>, Option<Key>) {
        let mut matching = self.0.all().into_iter().filter(|(key, shown)| {
            namespace.is_none_or(|namespace| key.namespace == namespace)
                && after.is_none_or(|after| key > after)
                && selector.matches(&shown.instance.labels)
        });
        let page: Vec<_> = matching.by_ref().take(limit).collect();
        let next = matching.next().and_then(|_| page.last()).map(|(key, _)| key.clone());
        (page.into_iter().map(|(_, shown)| shown).collect(), next)
    }

    pub(crate) async fn wait_for(&self, key: &Key, uid: &str, timeout: Duration) -> bool {
        let seen = |cache: &Cache<Arc<Shown>>| cache.get(key).filter(|shown| shown.uid == uid).map(|_| ());
        self.0.wait_for(timeout, seen).await.is_some()
    }

    pub(crate) async fn wait_gone(&self, key: &Key, uid: &str, timeout: Duration) -> bool {
        let gone = |cache: &Cache<Arc<Shown>>| cache.get(key).is_none_or(|shown| shown.uid != uid).then_some(());
        self.0.wait_for(timeout, gone).await.is_some()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes()
    }
}

fn under(hostname: &str) -> Key {
    Key::new("", hostname)
}

fn entry(guard: Guard<ClientApp>) -> CacheEntry<Arc<Shown>> {
    let group = guard.object.as_ref().ok().map(|app| under(&app.spec.hostname));
    let shown = Shown {
        uid: guard.metadata.uid.clone().unwrap_or_default(),
        instance: Instance::of(&guard),
        stamp: RequestStamp::on(guard.metadata.annotations.as_ref()),
    };
    CacheEntry { key: key_of(&guard), group, value: Some(Arc::new(shown)) }
}

/// The token with which the next request continues a list.
pub(crate) fn token(last: &Key) -> String {
    last.to_string()
}

/// Parses [`token`].
/// 400 if it is not one.
pub(crate) fn after(token: &str) -> Result<Key, Problem> {
    let part = |part: &str| {
        !part.is_empty() && part.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-.".contains(&c))
    };
    match token.split_once('/') {
        Some((namespace, name)) if part(namespace) && part(name) => Ok(Key::new(namespace, name)),
        _ => Err(query::refused("continue", "must be the unchanged `continue` of a previous list".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;

    fn app(namespace: &str, name: &str, tier: &str) -> Guard<ClientApp> {
        serde_json::from_value(json!({
            "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp",
            "metadata": {"name": name, "namespace": namespace, "labels": {"tier": tier}},
            "spec": {"hostname": format!("{name}.{namespace}.example")},
        }))
        .unwrap()
    }

    fn keys(page: &[Arc<Shown>]) -> Vec<String> {
        page.iter().map(|shown| format!("{}/{}", shown.instance.namespace, shown.instance.name)).collect()
    }

    #[test]
    fn pages() {
        let instances = Instances::default();
        assert_eq!(instances.synced().unwrap_err().reason, "Syncing");
        for event in [Event::Init, Event::InitDone] {
            instances.apply(event);
        }
        for (namespace, name, tier) in [("b", "x", "gold"), ("a", "y", "gold"), ("a", "x", "tin"), ("a-b", "z", "gold")]
        {
            instances.apply(Event::Apply(app(namespace, name, tier)));
        }
        instances.synced().unwrap();
        let all = Selector::default();
        let (page, next) = instances.page(None, &all, None, 3);
        assert_eq!(keys(&page), ["a/x", "a/y", "a-b/z"]);
        let after = after(&token(&next.unwrap())).unwrap();
        let (page, next) = instances.page(None, &all, Some(&after), 3);
        assert_eq!((keys(&page), next), (vec!["b/x".to_owned()], None));
        assert_eq!(keys(&instances.page(Some("a"), &all, None, 2).0), ["a/x", "a/y"]);
        assert_eq!(instances.page(Some("a"), &all, None, 2).1, None);
        let gold = crate::api::selector::parse("tier=gold").unwrap();
        assert_eq!(keys(&instances.page(None, &gold, None, 9).0), ["a/y", "a-b/z", "b/x"]);
        let named: Vec<_> = instances.named("x").into_iter().map(|(key, _)| key.namespace).collect();
        assert_eq!(named, ["a", "b"]);
        assert_eq!(instances.with_hostname("z.a-b.example").len(), 1);
    }

    #[test]
    fn a_token_is_what_a_list_gave() {
        for bad in ["", "a", "/", "a/", "/b", "a/b/c", "A/b", "a/b c", "%"] {
            assert_eq!(after(bad).unwrap_err().status(), StatusCode::BAD_REQUEST, "{bad}");
        }
    }
}
