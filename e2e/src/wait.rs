//! Polling for conditions that no watch reports: one loop for all of them.

use std::fmt::Display;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// Allows for a busy machine; no test needs this long.
pub const TIMEOUT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(50);

/// The result of a look: the awaited value, or a description of the current state.
pub trait Look {
    type Found;
    /// The awaited value, or while it is not there, a description of the current state.
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

/// Looks repeatedly until the condition holds, and returns what was found.
///
/// # Panics
/// After [`TIMEOUT`], with the result of the last look.
pub async fn until<L: Look>(what: &str, look: impl AsyncFnMut() -> L) -> L::Found {
    within(TIMEOUT, what, look).await.unwrap_or_else(|error| panic!("{error}"))
}

/// [`until`] for synchronous tests.
///
/// # Panics
/// After [`TIMEOUT`], with the result of the last look.
pub fn blocking_until<L: Look>(what: &str, look: impl FnMut() -> L) -> L::Found {
    blocking_within(TIMEOUT, what, look).unwrap_or_else(|error| panic!("{error}"))
}

/// [`until`] outside tests. A look ends the wait early by finding a failure that is final.
///
/// # Errors
/// After `most`, with the result of the last look.
pub async fn within<L: Look>(most: Duration, what: &str, mut look: impl AsyncFnMut() -> L) -> Result<L::Found> {
    let deadline = Instant::now() + most;
    let mut instead = String::new();
    loop {
        match tokio::time::timeout_at(deadline.into(), look()).await.map(Look::found) {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(shown)) => instead = shown,
            Err(_) => {}
        }
        ensure!(Instant::now() < deadline, "timed out waiting until {what}: {instead}");
        tokio::time::sleep(POLL).await;
    }
}

/// [`within`] for synchronous code.
///
/// # Errors
/// After `most`, with the result of the last look.
pub fn blocking_within<L: Look>(most: Duration, what: &str, mut look: impl FnMut() -> L) -> Result<L::Found> {
    let deadline = Instant::now() + most;
    loop {
        match look().found() {
            Ok(found) => return Ok(found),
            Err(instead) => ensure!(Instant::now() < deadline, "timed out waiting until {what}: {instead}"),
        }
        std::thread::sleep(POLL);
    }
}

/// Runs a future on its own runtime and thread, wherever the caller is: inside a runtime, tokio refuses to block on
/// another.
pub fn block_on<T: Send>(run: impl AsyncFnOnce() -> T + Send) -> T {
    let run = || tokio::runtime::Runtime::new().expect("a runtime").block_on(run());
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
