//! Which ClientApp claims which host: by its spec, by the Ingresses and routes of its release, or by those that helm is about to
//! write. Kept in memory, after the watch.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use parking_lot::Mutex;

use crate::{
    crd::{
        ClientApp, Guard, Reason,
        conditions::{find, kind},
    },
    helm::hosts::overlap,
    platform::key::{Key, key_of},
};

#[derive(Default)]
pub(crate) struct Hostnames(Mutex<AllClaims>);

#[derive(Default)]
struct AllClaims {
    apps: BTreeMap<Key, Claims>,
    /// True if all apps were listed.
    is_listed: bool,
    /// Of the last change since then.
    number: u64,
}

/// When an app claimed a host: by the number of the change, so that a user who may write a status, or has an old app, cannot take
/// what another app claimed before. The apps of the first list come before all changes.
type Since = (u64, Standing);

/// Orders the claims of the first list, whose order before is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Serves,
    Claims,
    /// It is suspended, and so was not told whether another app has the host.
    Suspended,
    /// Its status says that another app has it.
    Waits,
}

#[derive(Clone, Default)]
struct Claims {
    uid: String,
    created: Option<Timestamp>,
    /// True if its status says that another app has its host.
    waits: bool,
    is_suspended: bool,
    /// The host in the spec.
    spec: Option<String>,
    /// The same, if the app serves it according to its status.
    served: Option<String>,
    /// The hosts of the release, as recorded.
    carried: BTreeSet<String>,
    /// The hosts that helm is about to write.
    written: BTreeSet<String>,
    /// Of each of these hosts.
    since: BTreeMap<String, Since>,
}

impl Claims {
    fn hosts(&self) -> impl Iterator<Item = &String> {
        self.spec.iter().chain(&self.carried).chain(&self.written)
    }

    /// Returns true if a host is claimed, by name or under a wildcard.
    fn has(&self, host: &str) -> bool {
        let covers = |claimed: &String| claimed == host || claimed.starts_with("*.") && overlap(claimed, host);
        self.hosts().any(covers)
    }

    /// The app that claimed the host first comes first, then the oldest.
    fn rank(&self, host: &str) -> (Option<Since>, Option<Timestamp>, &str) {
        let claimed = self.since.iter().filter(|(claimed, _)| overlap(claimed, host)).map(|(_, since)| *since);
        (claimed.min(), self.created, &self.uid)
    }

    fn standing(&self, host: &str) -> Standing {
        match self {
            _ if self.serves(host) => Standing::Serves,
            Claims { waits: true, .. } => Standing::Waits,
            Claims { is_suspended: true, .. } => Standing::Suspended,
            _ => Standing::Claims,
        }
    }

    fn serves(&self, host: &str) -> bool {
        self.served.iter().chain(&self.carried).chain(&self.written).any(|served| overlap(served, host))
    }
}

impl AllClaims {
    fn put(&mut self, key: &Key, claims: Option<Claims>) {
        let before = self.apps.remove(key);
        let Some(mut claims) = claims else { return };
        self.number += u64::from(self.is_listed);
        let before = before.filter(|before| self.is_listed && before.uid == claims.uid);
        let since = |host: &String| match before.as_ref().and_then(|before| before.since.get(host)) {
            Some(since) => *since,
            None => (self.number, if self.is_listed { Standing::Claims } else { claims.standing(host) }),
        };
        claims.since = claims.hosts().map(|host| (host.clone(), since(host))).collect();
        self.apps.insert(key.clone(), claims);
    }

    /// Returns the apps other than this one whose claims overlap with a host.
    fn others<'a>(&'a self, host: &'a str, uid: &'a str) -> impl Iterator<Item = (&'a Key, &'a Claims)> {
        let others = self.apps.iter().filter(move |(_, claims)| claims.uid != uid);
        others.filter(move |(_, claims)| claims.hosts().any(|claimed| overlap(claimed, host)))
    }

    /// Returns the apps that wait for a host that another app holds.
    fn waiters(&self) -> impl Iterator<Item = (&Key, &Claims)> {
        self.apps.iter().filter(|(_, claims)| claims.waits)
    }

    /// Returns the other app that holds a host. An app that does not claim it comes after all that do.
    fn holder(&self, host: &str, uid: &str, key: &Key) -> Option<Key> {
        let own = self.apps.get(key).filter(|claims| claims.uid == uid && claims.has(host));
        let (holder, first) = self.others(host, uid).min_by(|(_, a), (_, b)| a.rank(host).cmp(&b.rank(host)))?;
        own.is_none_or(|own| first.rank(host) < own.rank(host)).then(|| holder.clone())
    }
}

impl Hostnames {
    /// Updates what an app claims. Returns the apps that wait for one of its hosts, and the app itself when it begins to wait:
    /// a host that was freed before its status told so has woken no app.
    pub(crate) fn seen(&self, app: &Guard<ClientApp>) -> Vec<Key> {
        let status = app.status().unwrap_or_default();
        let spec = app.object.as_ref().ok().map(|app| app.spec.hostname.clone());
        let is_suspended = app.object.as_ref().is_ok_and(|app| app.spec.suspend);
        let url = status.url.as_deref().and_then(|url| url.split_once("://"));
        let served = spec.clone().filter(|host| url.is_some_and(|(_, served)| served == host));
        let waits = find(&status.conditions, kind::READY).is_some_and(|ready| ready.reason == Reason::HostnameConflict);
        let carried = status.inventory.into_iter().flat_map(|inventory| inventory.hosts).collect();
        let uid = app.metadata.uid.clone().unwrap_or_default();
        let created = app.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let key = key_of(app);
        let mut all = self.0.lock();
        let former = all.apps.get(&key).cloned().unwrap_or_default();
        let before = Some(&former).filter(|before| before.uid == uid);
        let written = before.map(|before| before.written.clone()).unwrap_or_default();
        let begins = waits && !before.is_some_and(|before| before.waits);
        let claims =
            Claims { uid, created, waits, is_suspended, spec, served, carried, written, since: BTreeMap::new() };
        all.put(&key, Some(claims.clone()));
        let is_changed = |host: &String| former.hosts().chain(claims.hosts()).any(|changed| overlap(changed, host));
        let waiters = all.waiters().filter(|(waiter, claims)| **waiter != key && claims.spec.iter().any(is_changed));
        waiters.map(|(waiter, _)| waiter.clone()).chain(begins.then(|| key.clone())).collect()
    }

    /// Records that all existing apps were [`seen`](Hostnames::seen).
    pub(crate) fn listed(&self) {
        self.0.lock().is_listed = true;
    }

    pub(crate) fn gone(&self, key: &Key) {
        self.0.lock().put(key, None);
    }

    /// Returns the apps that wait for a host that another app holds.
    pub(crate) fn waiters(&self) -> Vec<Key> {
        self.0.lock().waiters().map(|(waiter, _)| waiter.clone()).collect()
    }

    /// Returns the other ClientApp that holds a host: the first that claimed it.
    pub(crate) fn holder(&self, host: &str, uid: &str, key: &Key) -> Option<Key> {
        self.0.lock().holder(host, uid, key)
    }

    /// Claims a host that helm is about to write into an Ingress or route of this app's release. An app that only claims a host
    /// does not take it from the app that holds it, by its spec or its release.
    ///
    /// # Errors
    /// The ClientApp that holds it.
    pub(crate) fn claim(&self, host: &str, uid: &str, key: &Key) -> Result<(), Key> {
        let mut all = self.0.lock();
        if let Some(holder) = all.holder(host, uid, key) {
            return Err(holder);
        }
        if let Some(mut claims) = all.apps.get(key).filter(|claims| claims.uid == uid).cloned() {
            claims.written.insert(host.to_owned());
            all.put(key, Some(claims));
        }
        Ok(())
    }

    /// Records what helm wrote: the release has these hosts, whether or not the watch shows that yet.
    pub(crate) fn settled(&self, key: &Key, hosts: &[String]) {
        let mut all = self.0.lock();
        if let Some(mut claims) = all.apps.get(key).filter(|claims| !claims.written.is_empty()).cloned() {
            claims.written.clear();
            claims.carried = hosts.iter().cloned().collect();
            all.put(key, Some(claims));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn app(name: &str, hostname: &str, created: &str, status: serde_json::Value) -> Guard<ClientApp> {
        serde_json::from_value(json!({
            "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp",
            "metadata": {"namespace": "tenants", "name": name, "uid": name, "creationTimestamp": created},
            "spec": {"hostname": hostname}, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn waiters_for_a_host_are_tracked() {
        let hostnames = Hostnames::default();
        let waiters = || hostnames.waiters().into_iter().map(|key| key.name).collect::<Vec<_>>();
        let ready = |reason: &str| {
            json!({"conditions": [{
                "type": "Ready", "status": "False", "reason": reason, "message": "", "lastTransitionTime": EARLY,
            }]})
        };
        let woken = |name: &str, hostname: &str, reason: &str| {
            let woken = hostnames.seen(&app(name, hostname, EARLY, ready(reason)));
            woken.into_iter().map(|key| key.name).collect::<Vec<_>>()
        };
        // Once for itself.
        for expected in [&["one"][..], &[]] {
            assert_eq!(woken("one", "a.example.com", "HostnameConflict"), expected);
        }
        assert_eq!(woken("two", "a.example.com", "HostnameConflict"), ["one", "two"]);
        assert_eq!(woken("three", "*.example.com", "Upgrading"), ["one", "two"]);
        assert_eq!(waiters(), ["one", "two"]);
        assert_eq!(woken("other", "a.example.org", "Upgrading"), [""; 0]);
        // It has given up the host.
        assert_eq!(woken("three", "a.example.org", "Upgrading"), ["one", "two"]);
        assert_eq!(woken("one", "b.example.com", "Upgrading"), ["two"]);
        assert_eq!(waiters(), ["two"]);
        hostnames.gone(&Key::new("tenants", "two"));
        assert!(waiters().is_empty());
    }

    const EARLY: &str = "2026-01-01T00:00:00Z";
    const LATE: &str = "2026-02-01T00:00:00Z";

    #[test]
    fn host_belongs_to_its_server_or_the_oldest_app() {
        let hostnames = Hostnames::default();
        let holder =
            |name: &str, host: &str| hostnames.holder(host, name, &Key::new("tenants", name)).map(|key| key.name);
        hostnames.seen(&app("old", "a.example.com", EARLY, json!({})));
        hostnames.seen(&app("new", "a.example.com", LATE, json!({})));
        assert_eq!((holder("old", "a.example.com"), holder("new", "a.example.com")), (None, Some("old".to_owned())));
        hostnames.seen(&app("new", "a.example.com", LATE, json!({"url": "https://a.example.com"})));
        assert_eq!((holder("old", "a.example.com"), holder("new", "a.example.com")), (Some("new".to_owned()), None));
        hostnames.gone(&Key::new("tenants", "new"));
        assert_eq!(holder("old", "a.example.com"), None);

        // By an Ingress of the release, also under a wildcard.
        for carried in ["a.example.com", "*.example.com"] {
            let status = json!({"inventory": {"secret": "s", "hosts": [carried]}});
            hostnames.seen(&app("new", "b.example.org", LATE, status));
            assert_eq!(holder("old", "a.example.com"), Some("new".to_owned()), "{carried}");
            hostnames.seen(&app("new", "b.example.org", LATE, json!({})));
            assert_eq!(holder("old", "a.example.com"), None);
        }
    }

    #[test]
    fn first_claim_outranks_age_and_status() {
        let hostnames = Hostnames::default();
        let holder =
            |name: &str, host: &str| hostnames.holder(host, name, &Key::new("tenants", name)).map(|key| key.name);
        hostnames.seen(&app("old", "old.example.com", EARLY, json!({})));
        hostnames.listed();
        hostnames.seen(&app("new", "a.example.com", LATE, json!({})));
        let forged = [
            json!({}),
            json!({"url": "https://a.example.com"}),
            json!({"inventory": {"secret": "s", "hosts": ["a.example.com", "*.example.com"]}}),
        ];
        for status in forged {
            hostnames.seen(&app("old", "a.example.com", EARLY, status.clone()));
            assert_eq!(holder("new", "a.example.com"), None, "{status}");
            assert_eq!(holder("old", "a.example.com"), Some("new".to_owned()), "{status}");
        }
        let claim = |name: &str, host: &str| hostnames.claim(host, name, &Key::new("tenants", name)).is_ok();
        assert!(claim("new", "a.example.com") && !claim("old", "a.example.com"));
        // What it changes beside the host does not cost it its place, and the same name with another uid has none.
        hostnames.seen(&app("new", "a.example.com", LATE, json!({"url": "https://a.example.com"})));
        assert_eq!(holder("new", "a.example.com"), None);
        hostnames.gone(&Key::new("tenants", "new"));
        hostnames.seen(&app("new", "a.example.com", LATE, json!({"url": "https://a.example.com"})));
        assert_eq!(holder("new", "a.example.com"), Some("old".to_owned()));
    }

    #[test]
    fn what_the_first_list_shows_outranks_age() {
        let conflict = |reason: &str| json!({"conditions": [{"type": "Ready", "status": "False", "reason": reason, "message": "", "lastTransitionTime": EARLY}]});
        for (what, status, suspended) in [
            ("it was told that another has the host", conflict("HostnameConflict"), false),
            ("it is suspended, and was told nothing", json!({}), true),
        ] {
            let hostnames = Hostnames::default();
            let mut old = app("old", "a.example.com", EARLY, status);
            old.object.as_mut().unwrap().spec.suspend = suspended;
            hostnames.seen(&old);
            hostnames.seen(&app("new", "a.example.com", LATE, conflict("DatabaseNotReady")));
            hostnames.listed();
            let holder =
                |name: &str| hostnames.holder("a.example.com", name, &Key::new("tenants", name)).map(|key| key.name);
            assert_eq!((holder("old"), holder("new")), (Some("new".to_owned()), None), "{what}");
        }
    }

    #[test]
    fn hosts_of_a_helm_write_are_claimed() {
        let hostnames = Hostnames::default();
        let key = |name: &str| Key::new("tenants", name);
        let claim = |name: &str, host: &str| hostnames.claim(host, name, &key(name)).map_err(|holder| holder.name);
        for (name, hostname) in [("one", "one.example.com"), ("two", "two.example.com")] {
            hostnames.seen(&app(name, hostname, EARLY, json!({})));
        }
        assert_eq!(claim("one", "one.example.com"), Ok(()));
        assert_eq!(claim("one", "two.example.com"), Err("two".to_owned()));
        assert_eq!(claim("one", "*.example.com"), Err("two".to_owned()));
        assert_eq!(claim("one", "extra.example.com"), Ok(()));
        // An app that only claims another app's host does not block that app's upgrade.
        hostnames.seen(&app("three", "one.example.com", LATE, json!({})));
        assert_eq!(claim("one", "one.example.com"), Ok(()));
        assert_eq!(claim("three", "one.example.com"), Err("one".to_owned()));
        hostnames.gone(&key("three"));
        // Even before the watch shows it.
        hostnames.seen(&app("one", "one.example.com", EARLY, json!({})));
        assert_eq!(claim("two", "extra.example.com"), Err("one".to_owned()));
        hostnames.settled(&key("one"), &["extra.example.com".to_owned()]);
        assert_eq!(claim("two", "extra.example.com"), Err("one".to_owned()));
        assert_eq!(claim("one", "failed.example.com"), Ok(()));
        hostnames.settled(&key("one"), &[]);
        assert_eq!(claim("two", "extra.example.com"), Ok(()));
        assert_eq!(claim("one", "extra.example.com"), Err("two".to_owned()));
    }
}
