use serde_json::json;

use super::history::Record;
use super::model::Asked;
use super::*;
use crate::random::oracle::audit::Entry;

/// A life written by hand: each line is one observed event, in order.
#[derive(Default)]
struct Tale {
    record: Record,
    trace: Vec<Entry>,
    asked: Asked,
    rest: Vec<Found>,
    now: Time,
}

const POLICY: &str = "deletionPolicy";

impl Tale {
    fn tick(&mut self) -> String {
        self.now += 1;
        self.now.to_string()
    }

    fn request(&mut self, verb: &str, actor: Actor, name: &str, uid: String) {
        let (at, created) = (jiff::Timestamp::UNIX_EPOCH, verb == "create");
        let [verb, resource, name] = [verb, "", name].map(str::to_owned);
        self.trace.push(Entry { at, actor, verb, resource, name, uid, created, object: Value::Null, line: None });
    }

    /// Creates an object.
    fn made(mut self, actor: Actor, kind: Kind, name: &str, object: Value) -> Self {
        let version = self.tick();
        self.write(kind, name, &version, object);
        let uid = self.uid(kind, name);
        self.request("create", actor, name, uid);
        self
    }

    fn planted(mut self, kind: Kind, name: &str, object: Value) -> Self {
        self = self.made(Actor::User, kind, name, object);
        let uid = self.uid(kind, name);
        self.asked.planted.insert(uid, self.now);
        self
    }

    fn write(&mut self, kind: Kind, name: &str, version: &str, mut object: Value) {
        let uid = self.record.present("life", kind, name).map_or(format!("uid-{version}"), |seen| seen.uid.clone());
        for (key, value) in [("name", name), ("namespace", "life"), ("uid", &uid), ("resourceVersion", version)] {
            object["metadata"][key] = json!(value);
        }
        self.record.apply(kind, object);
    }

    /// Merges a patch into an object.
    fn changed(mut self, kind: Kind, name: &str, patch: &Value) -> Self {
        let version = self.tick();
        let mut object = self.record.present("life", kind, name).unwrap().last().clone();
        merge(&mut object, patch);
        self.write(kind, name, &version, object);
        self
    }

    fn uid(&self, kind: Kind, name: &str) -> String {
        self.record.present("life", kind, name).unwrap().uid.clone()
    }

    /// Requests the deletion of an object, which begins.
    fn deleted(mut self, actor: Actor, kind: Kind, name: &str) -> Self {
        let uid = self.uid(kind, name);
        self.request("delete", actor.clone(), name, uid.clone());
        if actor == Actor::User {
            match kind {
                Kind::App => self.asked.ended.insert(uid),
                _ => self.asked.deleted.insert(uid),
            };
        }
        self.changed(kind, name, &json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}))
    }

    fn gone(mut self, kind: Kind, name: &str) -> Self {
        let version = self.tick();
        let mut object = self.record.present("life", kind, name).unwrap().last().clone();
        object["metadata"]["resourceVersion"] = json!(version);
        self.record.delete(kind, object);
        self
    }

    fn destroyed(self, actor: Actor, kind: Kind, name: &str) -> Self {
        self.deleted(actor, kind, name).gone(kind, name)
    }

    /// The objects of an installed app.
    fn installed(self, spec: &Value) -> Self {
        let release = json!({"metadata": {"labels": {"owner": "helm", "name": "acme"}}, "type": RELEASE});
        let of_release = json!({"metadata": {"annotations": {"meta.helm.sh/release-name": "acme"}}});
        self.made(Actor::User, Kind::App, "acme", json!({"spec": spec}))
            .made(Actor::Operator, Kind::Secret, "acme-admin-secret", secret("nextcloud-password", "one"))
            .made(Actor::OperatorHelm, Kind::Secret, "sh.helm.release.v1.acme.v1", release)
            .made(Actor::OperatorHelm, Kind::Volume, "acme-nextcloud-nextcloud", of_release)
    }

    fn told(self, sentence: &str) -> Self {
        let condition = json!({"type": "Ready", "status": "False", "reason": "Why", "message": sentence});
        self.changed(Kind::App, "acme", &json!({"status": {"conditions": [condition]}}))
    }

    /// The oracle's violations, and their objects.
    fn wrong(&self) -> Vec<(Oracle, &'static str)> {
        let facts = Facts::new(&self.record, "life", &self.trace, &self.asked);
        judge(&facts, &self.rest).into_iter().map(|found| (found.oracle, &*found.what.leak())).collect()
    }
}

fn merge(object: &mut Value, patch: &Value) {
    match (object, patch) {
        (Value::Object(object), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(object.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (object, patch) => *object = patch.clone(),
    }
}

fn secret(key: &str, password: &str) -> Value {
    json!({"data": {key: password}})
}

const VOLUME: &str = "PersistentVolumeClaim acme-nextcloud-nextcloud";
const ADMIN: &str = "Secret acme-admin-secret";
const FILES: &str = "acme-nextcloud-nextcloud";
const CREDENTIALS: &str = "acme-admin-secret";
const RELEASE_SECRET: &str = "sh.helm.release.v1.acme.v1";

#[test]
fn what_a_deletion_takes_and_what_it_leaves() {
    let delete = || Tale::default().installed(&json!({POLICY: "Delete"}));
    let retain = || Tale::default().installed(&json!({POLICY: "Retain"}));
    // A deletion deletes everything, whichever client requested it.
    let taken = |tale: Tale| {
        tale.destroyed(Actor::OperatorHelm, Kind::Secret, RELEASE_SECRET)
            .destroyed(Actor::Operator, Kind::Volume, FILES)
            .destroyed(Actor::Operator, Kind::Secret, CREDENTIALS)
            .gone(Kind::App, "acme")
    };
    let left = |tale: Tale| tale.destroyed(Actor::OperatorHelm, Kind::Secret, RELEASE_SECRET).gone(Kind::App, "acme");
    let app = |tale: Tale| tale.deleted(Actor::User, Kind::App, "acme");
    let both = |wrong| vec![(wrong, VOLUME), (wrong, ADMIN)];
    let of_cluster = json!({"metadata": {"labels": {"postgres-operator.crunchydata.com/cluster": "acme-pg"}}});
    for (what, tale, expected) in [
        ("deleted with it", taken(app(delete())), vec![]),
        ("retained", left(app(retain())), vec![]),
        ("retained, and lost", taken(app(retain())), both(Oracle::Lost)),
        ("left and not reported", left(app(delete())), both(Oracle::Left)),
        (
            "left, but reported",
            left(
                app(delete()).told("PersistentVolumeClaim acme-nextcloud-nextcloud and Secret acme-admin-secret stay"),
            ),
            vec![],
        ),
        (
            "of a database that stays, left with it",
            app(delete())
                .made(Actor::Operator, Kind::Cluster, "acme-pg", json!({}))
                .made(Actor::Percona, Kind::Secret, "acme-pg-pguser-clientapp", of_cluster.clone())
                .told("PerconaPGCluster acme-pg, PersistentVolumeClaim acme-nextcloud-nextcloud and Secret acme-admin-secret stay")
                .destroyed(Actor::OperatorHelm, Kind::Secret, RELEASE_SECRET)
                .gone(Kind::App, "acme"),
            vec![],
        ),
        (
            "orphaned, and lost",
            taken(app(delete().changed(Kind::App, "acme", &json!({"metadata": {"finalizers": ["orphan"]}})))),
            both(Oracle::Lost),
        ),
        (
            "suspended, and lost",
            taken(app(delete().changed(Kind::App, "acme", &json!({"spec": {"suspend": true}})))),
            both(Oracle::Lost),
        ),
        (
            "not decodable, and lost",
            taken(app(delete().changed(Kind::App, "acme", &json!({"undecodable": "too deep"})))),
            both(Oracle::Lost),
        ),
        (
            "the policy changed in time",
            taken(app(retain().changed(Kind::App, "acme", &json!({"spec": {POLICY: "Delete"}})))),
            vec![],
        ),
        (
            "lost while the app lives",
            delete().destroyed(Actor::OperatorHelm, Kind::Volume, FILES),
            vec![(Oracle::Lost, VOLUME)],
        ),
        ("deleted by hand", delete().destroyed(Actor::User, Kind::Volume, FILES), vec![]),
        (
            "by the rollback of a request",
            {
                let mut tale = taken(app(delete()));
                tale.asked.ended.clear();
                tale
            },
            vec![],
        ),
        (
            "with the namespace",
            {
                let mut tale = delete();
                tale.tick();
                tale.asked.namespaces.push(tale.now);
                tale.destroyed(Actor::Other("namespace-controller".into()), Kind::Volume, FILES)
            },
            vec![],
        ),
        (
            "before the namespace",
            {
                let mut tale = delete().destroyed(Actor::Operator, Kind::Volume, FILES);
                tale.tick();
                tale.asked.namespaces.push(tale.now);
                tale
            },
            vec![(Oracle::Lost, VOLUME)],
        ),
    ] {
        assert_eq!(tale.wrong(), expected, "{what}");
    }
}

#[test]
fn a_later_app_of_the_name_has_only_what_it_has_adopted() {
    let first = || {
        Tale::default()
            .installed(&json!({POLICY: "Retain"}))
            .deleted(Actor::User, Kind::App, "acme")
            .destroyed(Actor::OperatorHelm, Kind::Secret, RELEASE_SECRET)
            .gone(Kind::App, "acme")
    };
    let release = json!({"metadata": {"labels": {"owner": "helm", "name": "acme"}}, "type": RELEASE});
    let next = |tale: Tale, adopt: bool, released: bool| {
        let spec = json!({POLICY: "Delete", "postgres": {"adopt": adopt}});
        let tale = tale.made(Actor::User, Kind::App, "acme", json!({"spec": spec}));
        match released {
            true => tale.made(Actor::OperatorHelm, Kind::Secret, RELEASE_SECRET, release.clone()),
            false => tale,
        }
    };
    let end = |tale: Tale| {
        let tale = tale.deleted(Actor::User, Kind::App, "acme").destroyed(Actor::Operator, Kind::Volume, FILES);
        tale.destroyed(Actor::Operator, Kind::Secret, CREDENTIALS)
    };
    let both = vec![(Oracle::Lost, VOLUME), (Oracle::Lost, ADMIN)];
    let over = |tale: Tale| tale.gone(Kind::App, "acme");
    assert_eq!(over(end(next(first(), false, false))).wrong(), both);
    assert_eq!(over(end(next(first(), true, false))).wrong(), []);
    let adopted = end(next(first(), true, true)).destroyed(Actor::OperatorHelm, Kind::Secret, RELEASE_SECRET);
    assert_eq!(over(adopted).wrong(), []);
    // A failed request of the HTTP API deletes nothing that existed before.
    let mut refused = over(end(next(first(), true, false)));
    let second =
        refused.record.objects.values().filter(|seen| seen.kind == Kind::App).max_by_key(|seen| seen.created());
    let second = second.unwrap().uid.clone();
    refused.asked.ended.remove(&second);
    assert_eq!(refused.wrong(), both);
}

#[test]
fn a_password_is_not_replaced_in_silence() {
    let lost = || {
        let tale = Tale::default().installed(&json!({POLICY: "Delete"}));
        tale.destroyed(Actor::User, Kind::Secret, CREDENTIALS)
    };
    let anew = |tale: Tale, password: &str| {
        tale.made(Actor::Operator, Kind::Secret, CREDENTIALS, secret("nextcloud-password", password))
    };
    let told = |tale: Tale| tale.told("Secret acme-admin-secret is gone");
    let untold = vec![(Oracle::Untold, ADMIN)];
    assert_eq!(lost().wrong(), untold);
    assert_eq!(told(lost()).wrong(), []);
    assert_eq!(anew(lost(), "two").wrong(), untold);
    assert_eq!(anew(told(lost()), "two").wrong(), []);
    assert_eq!(anew(lost(), "one").wrong(), []);
    assert_eq!(lost().told("Secret acme-admin-secret-2 is gone").wrong(), untold);
    let rewritten = Tale::default().installed(&json!({POLICY: "Delete"}));
    let rewritten = rewritten.changed(Kind::Secret, CREDENTIALS, &secret("nextcloud-password", "two"));
    assert_eq!(rewritten.wrong(), [(Oracle::Lost, ADMIN)]);
}

#[test]
fn what_is_foreign_is_not_touched() {
    let labels = json!({"metadata": {"labels": {"app.kubernetes.io/instance": "acme"}}, "spec": {"a": 1}});
    let theirs =
        || Tale::default().installed(&json!({POLICY: "Delete"})).planted(Kind::Volume, "theirs", labels.clone());
    let what = "PersistentVolumeClaim theirs";
    assert_eq!(theirs().wrong(), []);
    assert_eq!(theirs().destroyed(Actor::Operator, Kind::Volume, "theirs").wrong(), [(Oracle::Lost, what)]);
    let ended = theirs().deleted(Actor::User, Kind::App, "acme").deleted(Actor::Percona, Kind::Volume, "theirs");
    assert!(ended.wrong().contains(&(Oracle::Lost, what)));
    let marked = theirs().changed(Kind::Volume, "theirs", &json!({"metadata": {"labels": {"ours": "now"}}}));
    assert_eq!(marked.wrong(), [(Oracle::Touched, what)]);
    let bound = theirs().changed(Kind::Volume, "theirs", &json!({"spec": {"volumeName": "pv"}}));
    assert_eq!(bound.wrong(), []);
}

#[test]
fn a_deletion_ends_or_says_what_holds_it() {
    let deleted = || Tale::default().installed(&json!({POLICY: "Delete"})).deleted(Actor::User, Kind::App, "acme");
    let with = |kind: &str, status: &str, reason: &str| {
        let condition = json!({"type": kind, "status": status, "reason": reason, "message": "…"});
        deleted().changed(Kind::App, "acme", &json!({"status": {"conditions": [condition]}}))
    };
    let hangs = vec![(Oracle::Hangs, "ClientApp acme")];
    assert_eq!(deleted().wrong(), hangs);
    assert_eq!(with("Ready", "False", "Uninstalling").wrong(), hangs);
    assert_eq!(with("Stalled", "True", "ReleaseUnreadable").wrong(), []);
    assert_eq!(with("Ready", "False", "Suspended").wrong(), []);
}

#[test]
fn nothing_is_left_without_what_it_belongs_to() {
    let rest = |release: Option<&str>, postgresql: Option<&str>| {
        let annotations = release.map(|release| json!({"meta.helm.sh/release-name": release}));
        let labels = postgresql.map(|name| json!({POSTGRESQL: name}));
        let metadata = json!({"name": "acme", "uid": "s", "annotations": annotations, "labels": labels});
        let [kind, resource] = ["Service", "services"].map(str::to_owned);
        Found { kind, resource, metadata: serde_json::from_value(metadata).unwrap() }
    };
    let ended = |maker: Actor, rest: Found| {
        let tale = Tale::default().installed(&json!({POLICY: "Retain"})).deleted(Actor::User, Kind::App, "acme");
        let tale = tale.destroyed(Actor::OperatorHelm, Kind::Secret, RELEASE_SECRET).gone(Kind::App, "acme");
        let mut tale = Tale { rest: vec![rest], ..tale };
        tale.request("create", maker, "acme", "s".to_owned());
        tale
    };
    assert_eq!(ended(Actor::OperatorHelm, rest(Some("acme"), None)).wrong(), [(Oracle::Orphaned, "Service acme")]);
    assert_eq!(ended(Actor::Operator, rest(None, Some("acme-pg"))).wrong(), [(Oracle::Orphaned, "Service acme")]);
    assert_eq!(ended(Actor::OperatorHelm, rest(None, None)).wrong(), []);
    assert_eq!(ended(Actor::OperatorHelm, rest(Some("another"), None)).wrong(), []);
    assert_eq!(ended(Actor::OtherHelm, rest(Some("acme"), None)).wrong(), []);
    let release = Tale::default().installed(&json!({POLICY: "Retain"}));
    let release = release.deleted(Actor::User, Kind::App, "acme").gone(Kind::App, "acme");
    assert_eq!(release.wrong(), [(Oracle::Orphaned, "Secret sh.helm.release.v1.acme.v1")]);
}

#[test]
fn what_is_left_of_an_unclear_deletion_is_named() {
    let kept = |finalizer: &str, note: &str, about: &str| {
        let finalizers = json!({"metadata": {"finalizers": [finalizer]}});
        let tale = Tale::default().installed(&json!({POLICY: "Retain"})).changed(Kind::App, "acme", &finalizers);
        let event = json!({"note": note, "regarding": {"name": about}});
        tale.deleted(Actor::User, Kind::App, "acme")
            .made(Actor::Operator, Kind::Event, "e", event)
            .gone(Kind::App, "acme")
    };
    let unclear = "it is not known whether it was orphaned";
    let left = [(Oracle::Orphaned, "Secret sh.helm.release.v1.acme.v1")];
    assert_eq!(kept("orphan", "nothing", "acme").wrong(), []);
    assert_eq!(kept("foregroundDeletion", unclear, "acme").wrong(), []);
    assert_eq!(kept("foregroundDeletion", "nothing", "acme").wrong(), left);
    assert_eq!(kept("foregroundDeletion", unclear, "another").wrong(), left);
    assert_eq!(kept("another", unclear, "acme").wrong(), left);
}
