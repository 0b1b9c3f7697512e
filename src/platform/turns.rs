//! Work of which one piece runs at a time. The namespaces take turns: a tenant with much of it delays each other tenant by one piece.

use std::{
    collections::HashMap,
    sync::{self, Arc, PoisonError, Weak},
};

use tokio::sync::{Mutex, MutexGuard, OwnedMutexGuard};

#[derive(Default)]
pub(crate) struct Turns {
    /// Its queue has at most one of each namespace.
    all: Mutex<()>,
    /// By namespace, as long as there is work.
    of: sync::Mutex<HashMap<String, Weak<Mutex<()>>>>,
}

/// Lasts until it is dropped.
pub(crate) struct Turn<'a> {
    _all: MutexGuard<'a, ()>,
    _of_namespace: OwnedMutexGuard<()>,
}

impl Turns {
    pub(crate) async fn take(&self, namespace: &str) -> Turn<'_> {
        let of_namespace = self.of(namespace).lock_owned().await;
        Turn { _all: self.all.lock().await, _of_namespace: of_namespace }
    }

    fn of(&self, namespace: &str) -> Arc<Mutex<()>> {
        let mut of = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        of.retain(|_, lock| lock.strong_count() > 0);
        let known = of.get(namespace).and_then(Weak::upgrade);
        known.unwrap_or_else(|| {
            let lock = Arc::default();
            of.insert(namespace.to_owned(), Arc::downgrade(&lock));
            lock
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn namespaces_take_turns() {
        let turns = &Turns::default();
        let asked = ["busy", "busy", "busy", "one", "busy", "two"];
        // The other four of its namespace wait for it before they wait with the others.
        let order = sync::Mutex::new(Vec::new());
        let first = turns.take("busy").await;
        let work = asked.map(async |namespace| {
            let _turn = turns.take(namespace).await;
            order.lock().unwrap().push(namespace);
        });
        let all = futures::future::join_all(work);
        tokio::join!(all, async { drop(first) });
        assert_eq!(order.into_inner().unwrap(), ["one", "two", "busy", "busy", "busy", "busy"]);
        turns.of("other");
        assert_eq!(turns.of.lock().unwrap().len(), 1, "only that of the last call, which is dropped by the next");
    }
}
