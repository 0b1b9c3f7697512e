//! Whose turn it is to restart, when another version of the operator has changed what the servers run: one database after the other, so
//! that a new image that does not start takes down one database, and not all of them.
//!
//! The turn is in memory: a restarted operator begins again with those that are left.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::runtime::key::Key;

#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Whose turn it is.
    of: Option<Key>,
    waiting: VecDeque<Key>,
}

impl Turns {
    /// Whether it is this database's turn; otherwise it joins the queue. Its turn lasts until [`Turns::end`].
    pub(crate) fn take(&self, key: &Key) -> bool {
        let mut state = self.state();
        let is_turn = *state.of.get_or_insert_with(|| key.clone()) == *key;
        if !is_turn && !state.waiting.contains(key) {
            state.waiting.push_back(key.clone());
        }
        is_turn
    }

    /// Ends the turn of a database that needs none, or none any more. Returns the one whose turn it is then, if that has changed.
    pub(crate) fn end(&self, key: &Key) -> Option<Key> {
        let mut state = self.state();
        state.waiting.retain(|waiting| waiting != key);
        if state.of.as_ref() != Some(key) {
            return None;
        }
        state.of = state.waiting.pop_front();
        state.of.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Changes are atomic, so a panic leaves the state consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_after_the_other() {
        let turns = Turns::default();
        let [a, b, c, d] = ["a", "b", "c", "d"].map(|name| Key::new("ns", name));
        assert!(turns.take(&a) && !turns.take(&b) && !turns.take(&c) && !turns.take(&b) && !turns.take(&d));
        assert!(turns.take(&a), "its turn lasts");
        assert_eq!(turns.end(&c), None, "it is gone");
        assert_eq!(turns.end(&a), Some(b.clone()));
        assert!(turns.take(&b) && !turns.take(&a), "to the end of the queue");
        assert_eq!(turns.end(&b), Some(d.clone()));
        assert_eq!(turns.end(&d), Some(a.clone()));
        assert_eq!(turns.end(&a), None);
        assert!(turns.take(&c));
    }
}
