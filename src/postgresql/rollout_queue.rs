//! Lets one database at a time restart when another version of the operator has changed what the servers run, so that a new image
//! that does not start takes down one database, and not all of them. Users know the slot as the turn.
//!
//! Only a slot that has just been taken is in memory alone: a rollout is on record in the status before it begins. So a restarted
//! operator waits for it, too.

use std::{
    collections::BTreeSet,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::platform::key::Key;

#[derive(Debug, Default)]
pub(crate) struct RolloutQueue(Mutex<QueueState>);

#[derive(Debug, Default)]
struct QueueState {
    holder: Option<Key>,
    waiting: BTreeSet<Key>,
}

impl RolloutQueue {
    /// Returns the holder of the slot: a database whose rollout has begun, as `restarting` says, or else this one. Another holds it
    /// until [`RolloutQueue::release`], and this one waits for that.
    ///
    /// `restarting` reads the statuses and watches under the lock: what ends the restart triggers a reconcile, and that comes to `release`
    /// afterwards.
    pub(crate) fn take(&self, key: &Key, restarting: impl FnOnce() -> Option<Key>) -> Key {
        let mut state = self.state();
        let holder = state.holder.get_or_insert_with(|| restarting().unwrap_or_else(|| key.clone())).clone();
        if holder != *key {
            state.waiting.insert(key.clone());
        }
        holder
    }

    /// Releases the slot of a database that does not need it. Returns those that have waited for it: all of them, since each says who
    /// holds it.
    pub(crate) fn release(&self, key: &Key) -> BTreeSet<Key> {
        let mut state = self.state();
        state.waiting.remove(key);
        if state.holder.as_ref() != Some(key) {
            return BTreeSet::new();
        }
        state.holder = None;
        mem::take(&mut state.waiting)
    }

    fn state(&self) -> MutexGuard<'_, QueueState> {
        // Changes are atomic, so a panic leaves the state consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys<const N: usize>(names: [&str; N]) -> [Key; N] {
        names.map(|name| Key::new("ns", name))
    }

    #[test]
    fn one_rollout_at_a_time() {
        let queue = RolloutQueue::default();
        let [a, b, c, d] = keys(["a", "b", "c", "d"]);
        let take = |key: &Key| queue.take(key, || None);
        assert_eq!([&a, &b, &c, &b, &d, &a].map(take), [(); 6].map(|()| a.clone()), "its turn lasts");
        assert_eq!(queue.release(&c), BTreeSet::new(), "it waits no longer");
        assert_eq!(queue.release(&a), BTreeSet::from([b.clone(), d.clone()]), "all see whose turn it is now");
        assert_eq!([&d, &b, &a].map(take), [(); 3].map(|()| d.clone()));
        assert_eq!(queue.release(&d), BTreeSet::from([a.clone(), b.clone()]));
        assert_eq!(queue.release(&d), BTreeSet::new());
        assert_eq!(take(&c), c);
        assert_eq!(queue.release(&c), BTreeSet::new());
    }

    #[test]
    fn a_running_rollout_holds_the_slot() {
        let queue = RolloutQueue::default();
        let [a, b] = keys(["a", "b"]);
        assert_eq!(queue.take(&b, || Some(a.clone())), a, "as after a restart of the operator");
        assert_eq!(queue.take(&b, || None), a, "until its own reconcile ends it");
        assert_eq!(queue.release(&a), BTreeSet::from([b.clone()]));
        assert_eq!(queue.take(&b, || Some(b.clone())), b, "its own goes on");
    }
}
