//! Locks work of which one piece runs at a time. The namespaces take turns: a tenant with much work delays each other tenant by one piece.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use tokio::sync::{Mutex, MutexGuard, OwnedMutexGuard};

#[derive(Default)]
pub(crate) struct FairLock {
    /// Its queue has at most one waiter of each namespace.
    all: Mutex<()>,
    /// Holds the lock of each namespace, as long as there is work.
    namespaces: parking_lot::Mutex<HashMap<String, Weak<Mutex<()>>>>,
}

/// Holds the lock until it is dropped.
pub(crate) struct FairLockGuard<'a> {
    _all: MutexGuard<'a, ()>,
    _namespace: OwnedMutexGuard<()>,
}

impl FairLock {
    pub(crate) async fn lock(&self, namespace: &str) -> FairLockGuard<'_> {
        let namespace_guard = self.namespace_lock(namespace).lock_owned().await;
        FairLockGuard { _all: self.all.lock().await, _namespace: namespace_guard }
    }

    fn namespace_lock(&self, namespace: &str) -> Arc<Mutex<()>> {
        let mut namespaces = self.namespaces.lock();
        namespaces.retain(|_, lock| lock.strong_count() > 0);
        let existing = namespaces.get(namespace).and_then(Weak::upgrade);
        existing.unwrap_or_else(|| {
            let lock = Arc::default();
            namespaces.insert(namespace.to_owned(), Arc::downgrade(&lock));
            lock
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn namespaces_take_turns() {
        let lock = &FairLock::default();
        let asked = ["busy", "busy", "busy", "one", "busy", "two"];
        // The other four of its namespace wait for it before they wait with the others.
        let order = parking_lot::Mutex::new(Vec::new());
        let first = lock.lock("busy").await;
        let work = asked.map(async |namespace| {
            let _guard = lock.lock(namespace).await;
            order.lock().push(namespace);
        });
        let all = futures::future::join_all(work);
        tokio::join!(all, async { drop(first) });
        assert_eq!(order.into_inner(), ["one", "two", "busy", "busy", "busy", "busy"]);
        lock.namespace_lock("other");
        assert_eq!(lock.namespaces.lock().len(), 1, "only that of the last call, which is dropped by the next");
    }
}
