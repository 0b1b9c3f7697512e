use std::cell::RefCell;

use serde_json::json;

use super::*;
use crate::{
    crd::ClientApp,
    platform::error::{Disposition, INTERNAL_ERROR, ReconcileFailure, RetryPolicy},
};

/// The calls of a kind, in order.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Told {
    fn note(&self, note: String) {
        self.0.lock().push(note);
    }
}

impl Reconciler for Told {
    type Object = ClientApp;
    type Error = ReconcileFailure;

    fn on_deleted(&self, key: &Key) {
        self.note(format!("gone {key}"));
        assert_ne!(key.name, "panics");
    }
    fn on_event(&self, event: &Event<Guard<ClientApp>>) {
        self.note(match event {
            Event::Apply(object) => format!("apply {}", key_of(object)),
            Event::Delete(object) => format!("delete {}", key_of(object)),
            Event::InitDone => "listed".to_owned(),
            Event::Init | Event::InitApply(_) => return,
        });
        if let Event::Apply(object) | Event::Delete(object) = event {
            assert_ne!(key_of(object).name, "panics");
        }
    }
    fn is_own_write(&self, object: &Guard<ClientApp>) -> bool {
        assert_ne!(key_of(object).name, "panics");
        true
    }
    fn has_background_work(&self, key: &Key, _: &Guard<ClientApp>) -> bool {
        key.name == "begins"
    }
    async fn reconcile(&self, key: &Key, _: &Guard<ClientApp>) -> Result<Action, ReconcileFailure> {
        self.note(format!("reconcile {key}"));
        assert_ne!(key.name, "panics");
        Ok(Action::await_change())
    }
}

fn driver(objects: &Objects<ClientApp>) -> Driver<Told> {
    Driver {
        kind: Arc::new(Told::default()),
        objects: objects.clone(),
        backoff: Backoff::default(),
        synced: OnceCell::new(),
        metrics: Arc::default(),
        lead: Leadership::unconditional(),
        stop: CancellationToken::new(),
    }
}

#[tokio::test]
async fn a_reconcile_that_panics_holds_up_no_other_and_waits_for_its_time() {
    let (objects, _feed) = Objects::<ClientApp>::new();
    let driver = driver(&objects);
    let object = |name: &str, generation: i64| -> Guard<ClientApp> {
        let metadata = json!({"namespace": "a", "name": name, "uid": name, "generation": generation});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"hostname": "x.example"}})).unwrap()
    };
    let never = Action::await_change();
    assert_ne!(driver.reconcile(&object("panics", 1)).await, never);
    // It waits, whatever asks for a reconcile, until its spec changes.
    assert_ne!(driver.reconcile(&object("panics", 1)).await, never);
    assert_eq!(driver.reconcile(&object("other", 1)).await, never);
    assert_ne!(driver.reconcile(&object("panics", 2)).await, never);
    let reconciled = ["reconcile a/panics", "reconcile a/other", "reconcile a/panics"];
    assert_eq!(*driver.kind.0.lock(), reconciled);
}

#[tokio::test]
async fn failures_are_counted_until_what_was_begun_has_succeeded() {
    let (objects, _feed) = Objects::<ClientApp>::new();
    let driver = driver(&objects);
    for (name, counted) in [("begins", true), ("succeeds", false)] {
        let metadata = json!({"namespace": "a", "name": name, "uid": name, "generation": 2});
        let object = json!({"metadata": metadata, "spec": {"hostname": "x.example"}});
        let (key, attempt) = (Key::new("a", name), (Some(name.to_owned()), Some(2)));
        // It does not have to wait.
        let failed = Disposition { retry: RetryPolicy::OnChange, ..INTERNAL_ERROR };
        driver.backoff.failed(&key, attempt.clone(), &failed, Instant::now(), 0.5);
        driver.reconcile(&serde_json::from_value(object).unwrap()).await;
        assert_eq!(driver.backoff.has_failed(&key, &attempt), counted, "{name}");
    }
    assert_eq!(*driver.kind.0.lock(), ["reconcile a/begins", "reconcile a/succeeds"]);
}

#[test]
fn what_is_gone_is_told_before_the_list_that_tells_it_and_a_list_that_breaks_off_tells_nothing() {
    let (objects, Feed { mut writer, .. }) = Objects::<ClientApp>::new();
    let driver = driver(&objects);
    let object = |name: &str, uid: &str| -> Guard<ClientApp> {
        let object =
            json!({"metadata": {"namespace": "a", "name": name, "uid": uid}, "spec": {"hostname": "x.example"}});
        serde_json::from_value(object).unwrap()
    };
    let mut before = Vec::new();
    for event in [
        Event::Init,
        Event::InitApply(object("stays", "1")),
        Event::InitApply(object("anew", "2")),
        Event::InitDone,
        Event::Init,
        Event::InitApply(object("never-listed-whole", "4")),
        Event::Init,
        Event::InitApply(object("stays", "1")),
        Event::InitApply(object("anew", "5")),
        Event::InitDone,
        Event::Apply(object("new", "6")),
        Event::Delete(object("stays", "1")),
    ] {
        writer.apply_watcher_event(&event);
        driver.handle_event(&event, &mut before);
    }
    let relisted = ["listed", "gone a/anew", "delete a/anew", "listed"];
    let changed = ["apply a/new", "gone a/stays", "delete a/stays"];
    assert_eq!(*driver.kind.0.lock(), [&relisted[..], &changed].concat());
    assert_eq!(*objects.names.lock(), [Key::new("a", "anew"), Key::new("a", "new")].into());
}

#[test]
fn what_panics_when_it_is_told_of_an_object_is_told_of_the_next() {
    let (objects, Feed { mut writer, .. }) = Objects::<ClientApp>::new();
    let driver = driver(&objects);
    let object = |name: &str| -> Guard<ClientApp> {
        let metadata = json!({"namespace": "a", "name": name, "uid": name});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"hostname": "x.example"}})).unwrap()
    };
    let relisted = [Event::Init, Event::InitApply(object("panics")), Event::InitDone, Event::Init, Event::InitDone];
    let changed = [Event::Apply(object("panics")), Event::Delete(object("panics")), Event::Apply(object("other"))];
    let mut before = Vec::new();
    for event in relisted.into_iter().chain(changed) {
        writer.apply_watcher_event(&event);
        driver.handle_event(&event, &mut before);
    }
    let gone = ["gone a/panics", "delete a/panics"];
    let expected = [&["listed"], &gone[..], &["listed", "apply a/panics"], &gone, &["apply a/other"]].concat();
    assert_eq!(*driver.kind.0.lock(), expected);
    assert_eq!(*objects.names.lock(), [Key::new("a", "other")].into());
    // If it is unclear whether the operator wrote a change, the object is reconciled.
    assert_eq!((driver.is_own_write(&object("panics")), driver.is_own_write(&object("other"))), (false, true));
}

#[test]
fn a_change_in_a_namespace_asks_only_what_is_there() {
    let (objects, Feed { mut writer, mut triggered }) = Objects::<ClientApp>::new();
    for (namespace, name) in [("a", "x"), ("b", "x"), ("b", "y"), ("b-c", "x")] {
        let object = json!({"metadata": {"namespace": namespace, "name": name}, "spec": {"hostname": "x.example"}});
        let object: Guard<ClientApp> = serde_json::from_value(object).unwrap();
        objects.names.lock().insert(key_of(&object));
        writer.apply_watcher_event(&Event::Apply(object));
    }
    let asked = RefCell::new(Vec::new());
    objects.trigger_in("b", |object| {
        asked.borrow_mut().push(key_of(object));
        object.metadata.name.as_deref() == Some("y")
    });
    assert_eq!(asked.into_inner(), [Key::new("b", "x"), Key::new("b", "y")]);
    assert_eq!(triggered.try_recv().unwrap(), reference(&Key::new("b", "y")));
    assert!(triggered.try_recv().is_err());
}
