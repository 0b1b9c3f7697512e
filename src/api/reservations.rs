//! Names that requests of this process are claiming, so that two concurrent requests do not both find one free.

use std::{collections::HashSet, sync::Arc};

use parking_lot::Mutex;

#[derive(Default)]
pub(crate) struct Reservations(Mutex<HashSet<String>>);

/// Released when dropped.
pub(crate) struct Reservation {
    taken: Arc<Reservations>,
    what: String,
}

impl Reservations {
    pub(crate) fn take(self: &Arc<Self>, what: String) -> Option<Reservation> {
        let free = self.0.lock().insert(what.clone());
        free.then(|| Reservation { taken: self.clone(), what })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.taken.0.lock().remove(&self.what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_free_again_when_dropped() {
        let reservations = Arc::new(Reservations::default());
        let first = reservations.take("a".to_owned());
        assert!(first.is_some() && reservations.take("b".to_owned()).is_some());
        assert!(reservations.take("a".to_owned()).is_none());
        drop(first);
        assert!(reservations.take("a".to_owned()).is_some());
    }
}
