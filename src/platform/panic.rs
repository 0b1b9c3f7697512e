//! Catches panics: one in a reconcile fails only that object, and one over an event does not stop the watch. An **effect**.

use std::{any::Any, panic::AssertUnwindSafe};

use futures::FutureExt as _;
use tokio::task::JoinHandle;

/// Limits the characters of a panic's message that go into a status.
const LENGTH: usize = 300;

/// A reconcile has panicked: a bug in the operator.
#[derive(Debug, thiserror::Error)]
#[error(
    "internal error of the operator: {message}; it is tried again, and other objects are not affected: report it with the operator's log"
)]
pub(crate) struct Panic {
    message: String,
}

pub(crate) fn message(payload: &(dyn Any + Send)) -> &str {
    let literal = payload.downcast_ref::<&str>().copied();
    literal.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a message")
}

/// Runs one reconcile, and returns a panic in it as an error.
pub(crate) async fn caught<T, E>(
    reconcile: impl Future<Output = Result<T, E>>,
    failure: impl FnOnce(Panic) -> E,
) -> Result<T, E> {
    // Unwind safe: reconciles share only caches and counters, and each change of them is one step under a lock, which a panic
    // elsewhere does not break. Only the reconcile itself was interrupted, and it ends here.
    match AssertUnwindSafe(reconcile).catch_unwind().await {
        Ok(result) => result,
        Err(payload) => {
            let line = message(payload.as_ref()).lines().next().unwrap_or_default();
            Err(failure(Panic { message: line.chars().take(LENGTH).collect() }))
        }
    }
}

/// Processes an event of a watch of this resource. `None`: a panic, which is logged; the event was not processed, or not completely.
/// The watch goes on, because it feeds all objects of its kind and the next event may not panic.
pub(crate) fn survived<T>(resource: &str, take_in: impl FnOnce() -> T) -> Option<T> {
    // Unwind safe as above. The panic itself and its location are in the log already.
    let taken_in = std::panic::catch_unwind(AssertUnwindSafe(take_in));
    taken_in
        .inspect_err(|_| {
            tracing::error!(
                resource,
                "internal error of the operator: a change was not processed; report it with the panic before"
            )
        })
        .ok()
}

/// Returns the result of a thread for blocking work; if the thread panicked, so does this.
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
            (async { std::panic::panic_any(1) }.boxed(), "a panic without a message"),
            // After an await point.
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
