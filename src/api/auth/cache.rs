//! Answers of the cluster, kept for a short time. Only a yes is kept: a no is asked for again, and who asks the same at
//! the same time waits for one answer.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use futures::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};

use crate::api::problem::Problem;

type Answer<V> = Shared<BoxFuture<'static, Result<V, Problem>>>;

/// Answers by question.
pub struct Cache<K, V> {
    keep: Duration,
    capacity: usize,
    entries: Mutex<HashMap<K, (Instant, Answer<V>)>>,
}

impl<K: Eq + Hash + Clone, V: Clone> Cache<K, V> {
    /// Keeps each answer for this long, and so many of them at most.
    pub fn new(keep: Duration, capacity: usize) -> Self {
        Cache { keep, capacity, entries: Mutex::default() }
    }

    /// The answer to a question: one that is known or on its way, or else the one that `ask` goes for.
    ///
    /// # Errors
    /// The refusal of `ask`, now or when it comes; none is kept.
    pub async fn get<F>(&self, key: K, now: Instant, ask: impl FnOnce() -> Result<F, Problem>) -> Result<V, Problem>
    where
        F: Future<Output = Result<V, Problem>> + Send + 'static,
    {
        let answer = self.known(&key, now, ask)?;
        let result = answer.clone().await;
        if result.is_err() {
            let mut entries = self.entries();
            // It may be somebody else's newer question by now.
            if entries.get(&key).is_some_and(|(_, other)| other.ptr_eq(&answer)) {
                entries.remove(&key);
            }
        }
        result
    }

    fn known<F>(&self, key: &K, now: Instant, ask: impl FnOnce() -> Result<F, Problem>) -> Result<Answer<V>, Problem>
    where
        F: Future<Output = Result<V, Problem>> + Send + 'static,
    {
        let fresh = |asked: Instant| now.saturating_duration_since(asked) < self.keep;
        let mut entries = self.entries();
        if let Some((_, answer)) = entries.get(key).filter(|(asked, _)| fresh(*asked)) {
            return Ok(answer.clone());
        }
        let answer = ask()?.boxed().shared();
        if entries.len() >= self.capacity {
            entries.retain(|_, (asked, _)| fresh(*asked));
        }
        // Full of fresh ones: then this one is asked for each time.
        if entries.len() < self.capacity {
            entries.insert(key.clone(), (now, answer.clone()));
        }
        Ok(answer)
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<K, (Instant, Answer<V>)>> {
        // Nothing panics while it is held; if it did, the map would still be one.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    };

    use axum::http::StatusCode;
    use tokio::sync::Semaphore;

    use super::*;

    const KEEP: Duration = Duration::from_secs(10);

    /// Counts how often it is asked.
    #[derive(Clone, Default)]
    struct Cluster(Arc<AtomicU32>);

    impl Cluster {
        fn says(
            &self,
            yes: bool,
        ) -> impl FnOnce() -> Result<BoxFuture<'static, Result<u32, Problem>>, Problem> + use<> {
            let asked = self.0.clone();
            move || {
                let times = asked.fetch_add(1, Ordering::Relaxed) + 1;
                let no = || Problem::new(StatusCode::FORBIDDEN, "Forbidden", "no");
                let answer = async move { if yes { Ok(times) } else { Err(no()) } };
                Ok(answer.boxed())
            }
        }

        fn asked(&self) -> u32 {
            self.0.load(Ordering::Relaxed)
        }
    }

    #[tokio::test]
    async fn a_yes_is_kept_until_its_time_is_over() {
        let (cluster, cache) = (Cluster::default(), Cache::new(KEEP, 10));
        let start = Instant::now();
        let just_before = start + KEEP - Duration::from_nanos(1);
        for (now, answer) in [(start, 1), (just_before, 1), (start + KEEP, 2), (start + KEEP + KEEP / 2, 2)] {
            assert_eq!(cache.get("a", now, cluster.says(true)).await, Ok(answer));
        }
        assert_eq!(cache.get("b", start, cluster.says(true)).await, Ok(3));
    }

    #[tokio::test]
    async fn a_no_is_asked_for_again() {
        let (cluster, cache) = (Cluster::default(), Cache::new(KEEP, 10));
        let start = Instant::now();
        for _ in 0..2 {
            assert!(cache.get("a", start, cluster.says(false)).await.is_err());
        }
        assert_eq!(cache.get("a", start, cluster.says(true)).await, Ok(3));
        assert!(cache.get("a", start + KEEP, cluster.says(false)).await.is_err());
        assert_eq!(cache.entries().len(), 0);
    }

    #[tokio::test]
    async fn who_asks_at_the_same_time_gets_one_answer() {
        let (cluster, cache) = (Cluster::default(), Cache::new(KEEP, 10));
        let start = Instant::now();
        for yes in [false, true] {
            let (before, all_ask) = (cluster.asked(), Arc::new(Semaphore::new(0)));
            let ask = || {
                let (answer, all_ask) = (cluster.says(yes)(), all_ask.clone());
                Ok(async move {
                    let _permit = all_ask.acquire().await;
                    answer?.await
                })
            };
            // In this order: each is asked before the first is answered.
            let (answers, ()) = tokio::join!(
                biased;
                futures::future::join_all((0..20).map(|_| cache.get("a", start, ask))),
                async { all_ask.add_permits(1) }
            );
            assert!(answers.iter().all(|answer| answer.is_ok() == yes));
            assert_eq!(cluster.asked(), before + 1);
        }
    }

    #[tokio::test]
    async fn it_does_not_grow_beyond_its_size() {
        let (cluster, cache) = (Cluster::default(), Cache::new(KEEP, 10));
        let start = Instant::now();
        for key in 0..100 {
            assert!(cache.get(key, start, cluster.says(true)).await.is_ok());
        }
        assert_eq!(cache.entries().len(), 10);
        // Those that are over make room.
        assert!(cache.get(100, start + KEEP, cluster.says(true)).await.is_ok());
        assert_eq!(cache.entries().len(), 1);
    }

    #[tokio::test]
    async fn a_question_that_may_not_be_asked_leaves_nothing() {
        let cache = Cache::<_, u32>::new(KEEP, 10);
        let refuse = || Err::<BoxFuture<'static, _>, _>(Problem::new(StatusCode::TOO_MANY_REQUESTS, "Slow", "down"));
        assert!(cache.get("a", Instant::now(), refuse).await.is_err());
        assert_eq!(cache.entries().len(), 0);
    }
}
