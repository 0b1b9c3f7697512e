//! The helm runs of all apps: chart fetches, the queue, the slots, the processes. An **effect**.
//!
//! A reconcile starts a run and never waits for it: like a Pod, a run has a state that the next reconcile observes, and each change
//! of it triggers that reconcile. A free slot is offered to the app that has waited longest; its next reconcile decides again, and
//! takes the slot or leaves it to the next app.
//!
//! For how long an app has waited is on record in the cluster: since it has to change, was deleted, or helm last ran for it. So an
//! operator that is killed again and again does not begin with the same apps each time, except that a slot that is free then goes to
//! the app that asks first. An app that has run since waits from then, so no user gets ahead by changing an app often.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    panic::AssertUnwindSafe,
    sync::Arc,
};

use futures::FutureExt as _;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use semver::Version;
use tokio::task::AbortHandle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::error::Refusal;
use crate::{
    crd::Attempt,
    helm::gateway::record::Recorded,
    leadership::since_boot,
    platform::{account::AccountName, key::Key},
};

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum HelmRun {
    /// No run, although the app may be in the queue for a slot.
    #[default]
    Idle,
    FetchingChart(Version),
    Upgrading(Box<Upgrading>),
    /// helm has ended, and its outcome is not recorded yet.
    Upgraded(Box<Upgraded>),
    Testing(Box<Upgrading>),
    /// The tests have ended, and their outcome is not recorded yet.
    Tested(Box<TestRun>),
    Uninstalling,
    /// helm has ended; or class and message of its failure.
    Uninstalled(Result<(), (Refusal, String)>),
    /// helm is still running for a deleted ClientApp of the same name, on the same release.
    OfPredecessor,
}

/// An upgrade, or a test, under way.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Upgrading {
    /// Digest that helm was asked to install, or of what it tests and how.
    pub digest: String,
    /// The message of the conditions.
    pub sentence: String,
    pub since: Timestamp,
}

/// An attempt to upgrade that has ended, even one that failed for lack of a chart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Upgraded {
    /// The attempt, as it is to be recorded.
    pub attempt: Attempt,
    /// The revision that helm was to create; `None`: it did not run. Only Helm's storage proves whether it exists.
    pub revision: Option<i64>,
    pub succeeded: bool,
    pub at: Timestamp,
    pub wrote: Recorded,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TestRun {
    /// The revision that was tested, and name and uid of the Secret in which Helm stores it.
    pub revision: i64,
    pub secret: String,
    pub secret_uid: String,
    /// The account that helm acted as.
    pub account: AccountName,
    /// Holds what helm says of its failure. Which tests have failed is in Helm's storage.
    pub failed: Option<String>,
    /// True if a failure says something about the revision: tests that could not be run do not.
    pub conclusive: bool,
    pub started_at: Timestamp,
    pub at: Timestamp,
    /// Uniform in `[0, 1)`.
    pub unit: f64,
}

pub(crate) struct HelmRuns {
    state: Mutex<RunRegistry>,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Triggers a reconcile of an app.
    changed: Box<dyn Fn(&Key) + Send + Sync>,
}

#[derive(Default)]
struct RunRegistry {
    runs: HashMap<Key, RunEntry>,
    begun: u64,
    changes: Slots,
    tests: Slots,
}

impl RunRegistry {
    fn slots(&mut self, work: Work) -> &mut Slots {
        match work {
            Work::Change => &mut self.changes,
            Work::Test => &mut self.tests,
        }
    }
}

/// Says what a slot is for. Tests have slots of their own: how long they take is for a tenant to say, and no upgrade or
/// deletion waits for them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    Change,
    Test,
}

impl Work {
    const ALL: [Work; 2] = [Work::Change, Work::Test];
}

#[derive(Default)]
struct Slots {
    free: usize,
    /// How many the apps of one namespace may have; the others wait, and are overtaken by those of other namespaces.
    per_namespace: usize,
    /// The apps that wait, by since when: a time since boot, since the clock may be set. It is negative for an app that has waited
    /// for longer.
    queue: BTreeSet<(SignedDuration, Key)>,
    /// When an app got its last slot, in the same measure.
    ran: HashMap<Key, SignedDuration>,
    /// When an app of a namespace got the last slot: a user who deletes and creates apps does not change this.
    served: HashMap<String, SignedDuration>,
    offers: HashSet<Key>,
    taken: Vec<Key>,
}

impl Slots {
    fn has_room(&self, namespace: &str) -> bool {
        let of_it = self.taken.iter().chain(&self.offers).filter(|key| key.namespace == namespace);
        of_it.count() < self.per_namespace
    }

    /// Returns true if the queue lets this app run.
    fn may_run(&self, key: &Key) -> bool {
        let is_first = || !self.queue.iter().any(|(_, queued)| self.has_room(&queued.namespace));
        self.offers.contains(key) || self.free > 0 && self.has_room(&key.namespace) && is_first()
    }

    /// A slot is given back, or an offer was not taken: the next app in the queue that is offered it.
    fn passed_on(&mut self) -> Option<Key> {
        // The namespace that helm ran for longest ago comes first, so that one with many apps holds up no other; in it, the app that has
        // waited longest.
        let queued = self.queue.iter().filter(|(_, queued)| self.has_room(&queued.namespace));
        let next = queued.min_by_key(|(_, queued)| self.served.get(&queued.namespace)).cloned();
        let Some(next) = next else {
            self.free += 1;
            return None;
        };
        self.queue.remove(&next);
        self.offers.insert(next.1.clone());
        Some(next.1)
    }

    fn is_queued(&self, key: &Key) -> bool {
        self.queue.iter().any(|(_, queued)| queued == key)
    }

    fn wait(&mut self, key: &Key, since: SignedDuration) {
        if !self.is_queued(key) {
            let since = self.ran.get(key).map_or(since, |ran| since.max(*ran));
            self.queue.insert((since, key.clone()));
        }
    }

    fn forget(&mut self, key: &Key) {
        self.queue.retain(|(_, queued)| queued != key);
        self.ran.remove(key);
    }
}

struct RunEntry {
    uid: String,
    /// Distinguishes it from the app's next run.
    number: u64,
    run: HelmRun,
    cancel: CancellationToken,
    task: AbortHandle,
    /// Its app is gone; the entry is removed once helm has ended.
    forgotten: bool,
}

impl RunEntry {
    /// Returns true if its helm process may still exist, even if it is already being stopped.
    fn is_alive(&self) -> bool {
        matches!(self.run, HelmRun::Upgrading(_) | HelmRun::Testing(_) | HelmRun::Uninstalling)
    }
}

/// Permission to run one helm process, for as long as it lives.
pub(crate) struct Slot {
    runs: Arc<HelmRuns>,
    work: Work,
    key: Key,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.runs.pass_on(self.work, |slots| {
            let taken = slots.taken.iter().position(|key| *key == self.key);
            taken.map(|at| slots.taken.remove(at)).is_some()
        });
    }
}

/// An offer is valid until this is dropped; a slot that was not taken by then is offered to the next app in the queue.
pub(crate) struct Offer {
    runs: Arc<HelmRuns>,
    key: Key,
}

impl Drop for Offer {
    fn drop(&mut self) {
        for work in Work::ALL {
            self.runs.pass_on(work, |slots| slots.offers.remove(&self.key));
        }
    }
}

impl HelmRuns {
    /// Starts without runs, with this many slots for changes, and for tests, of which a namespace may have one. The tasks end
    /// with `stop`.
    pub(crate) fn new(
        slots: usize,
        tasks: TaskTracker,
        stop: CancellationToken,
        changed: impl Fn(&Key) + Send + Sync + 'static,
    ) -> Arc<HelmRuns> {
        let changes = Slots { free: slots, per_namespace: usize::MAX, ..Slots::default() };
        let tests = Slots { free: slots, per_namespace: 1, ..Slots::default() };
        let state = Mutex::new(RunRegistry { changes, tests, ..RunRegistry::default() });
        Arc::new(HelmRuns { state, tasks, stop, changed: Box::new(changed) })
    }

    /// Returns the run of the app with this uid.
    pub(crate) fn state(&self, key: &Key, uid: &str) -> HelmRun {
        match self.state.lock().runs.get(key) {
            Some(entry) if entry.uid == uid => entry.run.clone(),
            Some(entry) if entry.is_alive() => HelmRun::OfPredecessor,
            _ => HelmRun::Idle,
        }
    }

    /// Returns a slot that is free or offered to this app; without one the app joins the queue, as one that has `waited` so long.
    pub(crate) fn slot(self: &Arc<Self>, work: Work, key: &Key, waited: SignedDuration) -> Option<Slot> {
        let now = SignedDuration::try_from(since_boot()).unwrap_or(SignedDuration::MAX);
        let mut state = self.state.lock();
        let slots = state.slots(work);
        if !slots.may_run(key) {
            slots.wait(key, now - waited.max(SignedDuration::ZERO));
            return None;
        }
        if !slots.offers.remove(key) {
            slots.free -= 1;
        }
        slots.taken.push(key.clone());
        slots.ran.insert(key.clone(), now);
        slots.served.insert(key.namespace.clone(), now);
        Some(Slot { runs: self.clone(), work, key: key.clone() })
    }

    /// Returns true if an app that asks now gets a slot.
    pub(crate) fn may_run(&self, work: Work, key: &Key) -> bool {
        self.state.lock().slots(work).may_run(key)
    }

    /// Holds the offers of slots to this app, if there are any, for a reconcile that may take them.
    pub(crate) fn offer(self: &Arc<Self>, key: &Key) -> Option<Offer> {
        let mut state = self.state.lock();
        let is_offered = Work::ALL.into_iter().any(|work| state.slots(work).offers.contains(key));
        is_offered.then(|| Offer { runs: self.clone(), key: key.clone() })
    }

    /// Returns how many apps wait for a slot, and what for.
    pub(crate) fn queued(&self) -> [(&'static str, usize); 2] {
        let RunRegistry { changes, tests, .. } = &*self.state.lock();
        [("change", changes.queue.len()), ("test", tests.queue.len())]
    }

    /// Returns true if the app waits for a slot, or for the outcome of an uninstall.
    pub(crate) fn is_under_way(&self, key: &Key) -> bool {
        let RunRegistry { runs, changes, .. } = &*self.state.lock();
        let run = runs.get(key).map(|entry| &entry.run);
        matches!(run, Some(HelmRun::Uninstalling | HelmRun::Uninstalled(Err(_))))
            || changes.offers.contains(key)
            || changes.is_queued(key)
    }

    /// Starts a run. It replaces an earlier run of the app, which is cancelled. `work` gets the token that cancels it, and
    /// returns the outcome; `panicked` is the outcome if it panics.
    pub(crate) fn begin<F>(
        self: &Arc<Self>,
        (key, uid): (&Key, &str),
        run: HelmRun,
        work: impl FnOnce(CancellationToken) -> F,
        panicked: impl FnOnce() -> HelmRun + Send + 'static,
    ) where
        F: Future<Output = HelmRun> + Send + 'static,
    {
        let cancel = self.stop.child_token();
        let work = AssertUnwindSafe(work(cancel.clone())).catch_unwind();
        // Held until the run is entered, so that a run that ends at once finds its entry.
        let mut state = self.state.lock();
        state.begun += 1;
        let number = state.begun;
        let (runs, run_key) = (self.clone(), key.clone());
        let task = self.tasks.spawn(async move {
            let ended = work.await.unwrap_or_else(|_| panicked());
            let same = {
                let mut state = runs.state.lock();
                let entry = state.runs.get_mut(&run_key).filter(|entry| entry.number == number);
                let forgotten = entry.map(|entry| {
                    entry.run = ended;
                    entry.forgotten
                });
                if forgotten == Some(true) {
                    state.runs.remove(&run_key);
                }
                forgotten.is_some()
            };
            if same {
                (runs.changed)(&run_key);
            }
        });
        let entry = RunEntry { uid: uid.to_owned(), number, run, cancel, task: task.abort_handle(), forgotten: false };
        if let Some(earlier) = state.runs.insert(key.clone(), entry) {
            earlier.cancel.cancel();
        }
    }

    /// Aborts every run at once, together with its helm process.
    pub(crate) fn abort(&self) {
        self.state.lock().runs.values().for_each(|entry| entry.task.abort());
    }

    /// Asks the app's run to stop.
    pub(crate) fn cancel(&self, key: &Key) {
        if let Some(entry) = self.state.lock().runs.get(key) {
            entry.cancel.cancel();
        }
    }

    /// Forgets a run that has ended, now that its outcome is recorded.
    pub(crate) fn settle(&self, key: &Key) {
        let mut state = self.state.lock();
        let has_ended =
            |run: &HelmRun| matches!(run, HelmRun::Upgraded(_) | HelmRun::Tested(_) | HelmRun::Uninstalled(_));
        if state.runs.get(key).is_some_and(|entry| has_ended(&entry.run)) {
            state.runs.remove(key);
        }
    }

    /// Forgets an app that is gone, with its place in the queue; a helm process that runs for it is stopped, and its entry
    /// forgotten at its end.
    pub(crate) fn forget(self: &Arc<Self>, key: &Key) {
        self.cancel(key);
        let mut state = self.state.lock();
        match state.runs.get_mut(key).filter(|entry| entry.is_alive()) {
            Some(entry) => entry.forgotten = true,
            None => _ = state.runs.remove(key),
        }
        for work in Work::ALL {
            state.slots(work).forget(key);
        }
        drop(state);
        drop(self.offer(key));
    }

    /// Offers a slot that `gives_back` gives back, or an offer of one, to the next app in the queue.
    fn pass_on(&self, work: Work, gives_back: impl FnOnce(&mut Slots) -> bool) {
        let mut state = self.state.lock();
        let slots = state.slots(work);
        let next = if gives_back(slots) { slots.passed_on() } else { None };
        drop(state);
        if let Some(next) = next {
            (self.changed)(&next);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn key(name: &str) -> Key {
        Key::new("ns", name)
    }

    fn runs(slots: usize) -> (Arc<HelmRuns>, mpsc::Receiver<Key>) {
        let (sender, receiver) = mpsc::channel();
        let changed = move |key: &Key| sender.send(key.clone()).unwrap();
        (HelmRuns::new(slots, TaskTracker::new(), CancellationToken::new(), changed), receiver)
    }

    const NOT_YET: SignedDuration = SignedDuration::ZERO;

    fn sender(receiver: &mpsc::Receiver<Key>) -> Vec<String> {
        receiver.try_iter().map(|key| key.name).collect()
    }

    #[test]
    fn slots_are_offered_in_order_and_never_lost() {
        let (runs, receiver) = runs(1);
        let first = runs.slot(Work::Change, &key("a"), NOT_YET).unwrap();
        for name in ["b", "c", "b", "d"] {
            assert!(runs.slot(Work::Change, &key(name), NOT_YET).is_none());
        }
        drop(first);
        assert_eq!(sender(&receiver), ["b"]);
        // While it is offered, it is neither free nor another app's.
        assert!(
            runs.slot(Work::Change, &key("e"), NOT_YET).is_none()
                && runs.slot(Work::Change, &key("c"), NOT_YET).is_none()
        );
        assert!(runs.may_run(Work::Change, &key("b")) && !runs.may_run(Work::Change, &key("c")));
        let second = runs.slot(Work::Change, &key("b"), NOT_YET).unwrap();
        runs.forget(&key("c"));
        drop(second);
        assert_eq!(sender(&receiver), ["d"]);
        assert!(runs.offer(&key("e")).is_none());
        let (offer, taken) = (runs.offer(&key("d")), runs.slot(Work::Change, &key("d"), NOT_YET));
        drop(offer);
        assert!(taken.is_some() && sender(&receiver).is_empty(), "a slot that was taken is not offered again");
        drop(taken);
        assert_eq!(sender(&receiver), ["e"]);
        drop(runs.offer(&key("e")));
        assert!(sender(&receiver).is_empty(), "the queue is empty");
        runs.forget(&key("e"));
        assert!(runs.slot(Work::Change, &key("d"), NOT_YET).is_some());
        assert!(runs.slot(Work::Change, &key("d"), NOT_YET).is_some(), "the slot before was dropped");
    }

    #[test]
    fn queue_is_ordered_by_waiting_time() {
        let (runs, receiver) = runs(1);
        let hours = SignedDuration::from_hours;
        let first = runs.slot(Work::Change, &key("a"), hours(3)).unwrap();
        for (name, waited) in [("b", 1), ("c", 5), ("b", 9), ("a", 9), ("d", 3)] {
            assert!(runs.slot(Work::Change, &key(name), hours(waited)).is_none());
        }
        let mut taken = first;
        assert!(["a", "b"].iter().all(|name| runs.is_under_way(&key(name))));
        for name in ["c", "d", "b", "a"] {
            drop(taken);
            assert_eq!(sender(&receiver), [name]);
            taken = runs.slot(Work::Change, &key(name), NOT_YET).unwrap();
        }
        // Its successor has not run.
        runs.forget(&key("b"));
        for (name, waited) in [("a", 9), ("b", 1), ("e", 2)] {
            assert!(runs.slot(Work::Change, &key(name), hours(waited)).is_none());
        }
        drop(taken);
        assert_eq!(sender(&receiver), ["e"]);
        drop(runs.offer(&key("e")));
        assert_eq!(sender(&receiver), ["b"]);
        drop(runs.offer(&key("b")));
        assert_eq!(sender(&receiver), ["a"]);
        assert!(!runs.is_under_way(&key("b")) && runs.is_under_way(&key("a")), "the slot is offered to the last");
    }

    #[test]
    fn a_namespace_with_many_apps_holds_up_no_other() {
        let (runs, receiver) = runs(1);
        let of = |namespace: &str, name: &str| Key::new(namespace, name);
        let wait = |key: Key, hours: i64| {
            assert!(runs.slot(Work::Change, &key, SignedDuration::from_hours(hours)).is_none());
        };
        let mut taken = runs.slot(Work::Change, &of("many", "a"), NOT_YET).unwrap();
        wait(of("many", "b"), 9);
        wait(of("many", "c"), 8);
        wait(of("one", "d"), 1);
        wait(of("two", "e"), 0);
        for (namespace, name) in [("one", "d"), ("two", "e"), ("many", "b"), ("many", "c")] {
            drop(taken);
            assert_eq!(sender(&receiver), [name]);
            taken = runs.slot(Work::Change, &of(namespace, name), NOT_YET).unwrap();
            // Not even with apps that are created again.
            runs.forget(&of("many", "a"));
        }
    }

    #[test]
    fn test_slots_are_limited_per_namespace() {
        let (runs, receiver) = runs(2);
        let of = |namespace: &str, name: &str| Key::new(namespace, name);
        let hang = runs.slot(Work::Test, &of("mine", "a"), NOT_YET).unwrap();
        for name in ["b", "c"] {
            assert!(runs.slot(Work::Test, &of("mine", name), NOT_YET).is_none(), "one test of a namespace at a time");
        }
        assert!(runs.may_run(Work::Test, &of("other", "a")), "the queue has only apps that may not run");
        let other = runs.slot(Work::Test, &of("other", "a"), NOT_YET).unwrap();
        assert!(runs.slot(Work::Test, &of("third", "a"), NOT_YET).is_none(), "all slots are taken");
        let changes =
            [runs.slot(Work::Change, &of("mine", "a"), NOT_YET), runs.slot(Work::Change, &of("mine", "b"), NOT_YET)];
        assert!(changes.iter().all(Option::is_some), "changes have slots of their own");
        drop(other);
        assert_eq!(sender(&receiver), ["a"]);
        assert!(runs.may_run(Work::Test, &of("third", "a")) && !runs.may_run(Work::Test, &of("mine", "b")));
        drop(hang);
        assert_eq!(sender(&receiver), ["b"]);
        assert!(runs.slot(Work::Test, &of("third", "a"), NOT_YET).is_some(), "and it is given back at once");
        drop(runs.offer(&of("mine", "b")));
        assert_eq!(sender(&receiver), ["c"]);
    }

    #[tokio::test]
    async fn run_states_are_reported() {
        let (runs, receiver) = runs(1);
        let failed = || HelmRun::Uninstalled(Err((Refusal::UpgradeFailed, "it has panicked".to_owned())));
        let begin = |name: &str, uid: &str, work: futures::future::BoxFuture<'static, HelmRun>| {
            runs.begin((&key(name), uid), HelmRun::Uninstalling, |_| work, failed);
        };
        begin("a", "1", async { HelmRun::Uninstalled(Ok(())) }.boxed());
        begin("b", "1", async { panic!("on purpose") }.boxed());
        assert_eq!(runs.state(&key("a"), "1"), HelmRun::Uninstalling);
        assert_eq!(runs.state(&key("a"), "2"), HelmRun::OfPredecessor);
        // A run that was replaced reports nothing.
        begin("c", "1", std::future::pending().boxed());
        runs.begin(
            (&key("c"), "1"),
            HelmRun::Uninstalling,
            |cancel| async move {
                cancel.cancelled().await;
                HelmRun::Uninstalled(Ok(()))
            },
            failed,
        );
        runs.cancel(&key("c"));
        runs.tasks.close();
        while runs.tasks.len() > 1 {
            tokio::task::yield_now().await;
        }
        assert_eq!(sender(&receiver), ["a", "b", "c"]);
        assert_eq!(runs.state(&key("a"), "1"), HelmRun::Uninstalled(Ok(())));
        assert_eq!(["a", "b", "z"].map(|name| runs.is_under_way(&key(name))), [false, true, false]);
        assert_eq!(runs.state(&key("b"), "1"), failed());
        runs.settle(&key("a"));
        runs.settle(&key("b"));
        assert!(!runs.is_under_way(&key("b")), "its failure is judged");
        assert_eq!(runs.state(&key("a"), "1"), HelmRun::Idle);
    }

    #[tokio::test]
    async fn predecessors_helm_blocks_recreated_app() {
        let (runs, receiver) = runs(2);
        let (end, ends) = tokio::sync::oneshot::channel::<()>();
        let work = |cancel: CancellationToken| async move {
            cancel.cancelled().await;
            let _ = ends.await;
            HelmRun::Uninstalled(Ok(()))
        };
        let failed = || HelmRun::Uninstalled(Err((Refusal::UpgradeFailed, String::new())));
        let upgrading = Upgrading { digest: String::new(), sentence: String::new(), since: Timestamp::UNIX_EPOCH };
        runs.begin((&key("a"), "1"), HelmRun::Upgrading(Box::new(upgrading)), work, failed);
        runs.forget(&key("a"));
        assert_eq!(runs.state(&key("a"), "2"), HelmRun::OfPredecessor);
        drop(end);
        runs.tasks.close();
        runs.tasks.wait().await;
        assert_eq!(runs.state(&key("a"), "2"), HelmRun::Idle);
        assert_eq!(sender(&receiver), ["a"], "which asks for the reconcile that waits for it");
        assert!(runs.state.lock().runs.is_empty());
    }
}
