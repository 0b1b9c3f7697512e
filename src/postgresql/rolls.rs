//! Whose turn it is to be restarted with another image. **Pure** state, shared by all reconciles.
//!
//! A new version of the operator pins newer images. Were all databases restarted at once, every app would be down at the same time,
//! and an image that does not work would take down all of them instead of the first.

use std::{
    collections::BTreeSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::runtime::key::Key;

#[derive(Default)]
pub(crate) struct Rolls(Mutex<State>);

#[derive(Default)]
struct State {
    turn: Option<Key>,
    waiting: BTreeSet<Key>,
}

impl Rolls {
    /// Whether it is this Postgresql's turn.
    pub(crate) fn is_turn_of(&self, key: &Key) -> bool {
        self.state().turn.as_ref() == Some(key)
    }

    /// Asks for a turn, which begins at once if there is no other. Returns whether it has begun.
    pub(crate) fn ask(&self, key: &Key) -> bool {
        let mut state = self.state();
        match &state.turn {
            None => state.turn = Some(key.clone()),
            Some(turn) if turn != key => _ = state.waiting.insert(key.clone()),
            Some(_) => {}
        }
        state.turn.as_ref() == Some(key)
    }

    /// Ends this Postgresql's turn, or its wait for one. Returns the Postgresql whose turn begins.
    pub(crate) fn end(&self, key: &Key) -> Option<Key> {
        let mut state = self.state();
        state.waiting.remove(key);
        if state.turn.as_ref() != Some(key) {
            return None;
        }
        state.turn = state.waiting.pop_first();
        state.turn.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_at_a_time() {
        let [a, b, c] = ["a", "b", "c"].map(|name| Key::new("ns", name));
        let rolls = Rolls::default();
        assert_eq!([&a, &b, &c, &a, &b].map(|key| rolls.ask(key)), [true, false, false, true, false]);
        assert!(rolls.is_turn_of(&a) && !rolls.is_turn_of(&b));
        // One that does not have its turn ends none.
        assert_eq!(rolls.end(&b), None);
        assert_eq!(rolls.end(&a), Some(c.clone()));
        assert_eq!(rolls.end(&a), None);
        assert_eq!(rolls.end(&c), None);
        assert!(rolls.ask(&b));
    }
}
