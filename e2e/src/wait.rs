//! Waiting for what comes about and no watch tells of: one loop for all that is looked at again and again.

use std::fmt::Display;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// For a machine that is busy with something else; no test waits for so long.
pub const TIMEOUT: Duration = Duration::from_secs(120);
/// From one look to the next.
const POLL: Duration = Duration::from_millis(50);

/// What a look shows: what is waited for, or how things are instead.
pub trait Look {
    /// What is waited for.
    type Found;
    /// It, or how things are instead.
    ///
    /// # Errors
    /// While it has not come about.
    fn found(self) -> Result<Self::Found, String>;
}

impl Look for bool {
    type Found = ();
    fn found(self) -> Result<(), String> {
        if self { Ok(()) } else { Err(String::new()) }
    }
}

impl<T> Look for Option<T> {
    type Found = T;
    fn found(self) -> Result<T, String> {
        self.ok_or_else(String::new)
    }
}

impl<T, E: Display> Look for Result<T, E> {
    type Found = T;
    fn found(self) -> Result<T, String> {
        self.map_err(|instead| instead.to_string())
    }
}

/// Looks again and again until this is so, and returns what was found.
///
/// # Panics
/// When that takes longer than [`TIMEOUT`], with what the last look has shown.
pub async fn until<L: Look>(what: &str, look: impl AsyncFnMut() -> L) -> L::Found {
    within(TIMEOUT, what, look).await.unwrap_or_else(|error| panic!("{error}"))
}

/// [`until`] for tests that are not asynchronous.
///
/// # Panics
/// When that takes longer than [`TIMEOUT`], with what the last look has shown.
pub fn blocking_until<L: Look>(what: &str, look: impl FnMut() -> L) -> L::Found {
    blocking_within(TIMEOUT, what, look).unwrap_or_else(|error| panic!("{error}"))
}

/// [`until`] for what is no test. A look that shows that it never will be so finds that.
///
/// # Errors
/// When it takes longer, with what the last look has shown.
pub async fn within<L: Look>(most: Duration, what: &str, mut look: impl AsyncFnMut() -> L) -> Result<L::Found> {
    let deadline = Instant::now() + most;
    let mut instead = String::new();
    loop {
        match tokio::time::timeout_at(deadline.into(), look()).await.map(Look::found) {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(shown)) => instead = shown,
            Err(_) => {}
        }
        ensure!(Instant::now() < deadline, "waited in vain until {what}; {instead}");
        tokio::time::sleep(POLL).await;
    }
}

/// [`within`] for what is not asynchronous.
///
/// # Errors
/// When it takes longer, with what the last look has shown.
pub fn blocking_within<L: Look>(most: Duration, what: &str, mut look: impl FnMut() -> L) -> Result<L::Found> {
    let deadline = Instant::now() + most;
    loop {
        match look().found() {
            Ok(found) => return Ok(found),
            Err(instead) => ensure!(Instant::now() < deadline, "waited in vain until {what}; {instead}"),
        }
        std::thread::sleep(POLL);
    }
}

/// Runs a future on a runtime and a thread of its own, wherever the caller is: inside a runtime, blocking on another is refused.
///
/// # Panics
/// When the future does.
pub fn block_on<T: Send>(run: impl AsyncFnOnce() -> T + Send) -> T {
    let run = || tokio::runtime::Runtime::new().expect("a runtime").block_on(run());
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
