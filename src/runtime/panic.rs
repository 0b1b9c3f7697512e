//! A panic in one reconcile fails that object, and no other; and what a watch brings stops no watch. An **effect**.

use std::{any::Any, panic::AssertUnwindSafe};

use futures::FutureExt as _;
use tokio::task::JoinHandle;

/// So much of a panic's words goes into a status.
const LENGTH: usize = 300;

/// A reconcile has panicked: a bug in the operator.
#[derive(Debug, thiserror::Error)]
#[error(
    "internal error of the operator: {words}; it is tried again, and other objects are not affected: report it with the operator's log"
)]
pub(crate) struct Panic {
    words: String,
}

pub(crate) fn words(payload: &(dyn Any + Send)) -> &str {
    let literal = payload.downcast_ref::<&str>().copied();
    literal.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without words")
}

/// Runs one reconcile, and returns a panic in it as an error.
pub(crate) async fn caught<T, E>(
    reconcile: impl Future<Output = Result<T, E>>,
    failure: impl FnOnce(Panic) -> E,
) -> Result<T, E> {
    // Unwind safe: what reconciles share are caches and counters, and each change of them is one step under a lock that a
    // panic elsewhere leaves whole. What was in the middle of something was the reconcile itself, which ends here.
    match AssertUnwindSafe(reconcile).catch_unwind().await {
        Ok(result) => result,
        Err(payload) => {
            let line = words(payload.as_ref()).lines().next().unwrap_or_default();
            Err(failure(Panic { words: line.chars().take(LENGTH).collect() }))
        }
    }
}

/// Takes in what a watch of this resource brings; `None`: it was not taken in, or not completely, which the log tells. The watch
/// goes on: it feeds all objects of its kind, and what it brings next may be taken in.
pub(crate) fn survived<T>(resource: &str, take_in: impl FnOnce() -> T) -> Option<T> {
    // Unwind safe as above. The panic itself, and where it was, is in the log already.
    let taken_in = std::panic::catch_unwind(AssertUnwindSafe(take_in));
    taken_in
        .inspect_err(|_| {
            tracing::error!(
                resource,
                "internal error of the operator: a change was not taken in; report it with the panic before"
            )
        })
        .ok()
}

/// What a thread for work that blocks has come to; if it has panicked, so does this.
pub(crate) async fn joined<T>(work: JoinHandle<T>) -> T {
    work.await.unwrap_or_else(|panicked| std::panic::resume_unwind(panicked.into_panic()))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sentence(reconcile: impl Future<Output = Result<u8, String>>) -> String {
        caught(reconcile, |panic| panic.to_string()).await.unwrap_err()
    }

    #[tokio::test]
    async fn a_panic_is_an_error_of_the_one_reconcile() {
        assert_eq!(caught(async { Ok::<_, String>(1) }, |panic| panic.to_string()).await, Ok(1));
        assert_eq!(sentence(async { Err("refused".to_owned()) }).await, "refused");
        let revision = std::hint::black_box(i64::MAX);
        for (reconcile, words) in [
            (async move { Ok((revision + 1) as u8) }.boxed(), "attempt to add with overflow"),
            (async { panic!("a sentence") }.boxed(), "a sentence;"),
            (async { panic!("{} {}", "two", "words") }.boxed(), "two words;"),
            (async { panic!("one line\nand another") }.boxed(), "one line;"),
            (async { std::panic::panic_any(1) }.boxed(), "a panic without words"),
            // Across a point at which it waits.
            (
                async {
                    tokio::task::yield_now().await;
                    panic!("later")
                }
                .boxed(),
                "later;",
            ),
        ] {
            let sentence = sentence(reconcile).await;
            assert!(sentence.starts_with("internal error of the operator: ") && sentence.contains(words), "{sentence}");
        }
        let long = sentence(async { panic!("{}", "ä".repeat(1000)) }).await;
        assert_eq!(long.matches('ä').count(), LENGTH);
    }
}
