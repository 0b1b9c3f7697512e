//! Polling for conditions that no watch reports: one loop for all of them.

use std::fmt::Display;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

/// Allows for a busy machine; no test needs this long.
pub const TIMEOUT: Duration = Duration::from_secs(120);
pub(crate) const POLL: Duration = Duration::from_millis(50);
const SLOW_POLL: Duration = Duration::from_millis(250);

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

/// [`until`] that always looks as often, for what may hold for a moment only.
///
/// # Panics
/// After [`TIMEOUT`], with the result of the last look.
pub async fn until_closely<L: Look>(what: &str, look: impl AsyncFnMut() -> L) -> L::Found {
    looked(TIMEOUT, what, look, |_| POLL).await.unwrap_or_else(|error| panic!("{error}"))
}

/// [`until`] outside tests. A look ends the wait early by finding a failure that is final.
///
/// # Errors
/// After `most`, with the result of the last look.
pub async fn within<L: Look>(most: Duration, what: &str, look: impl AsyncFnMut() -> L) -> Result<L::Found> {
    looked(most, what, look, pause).await
}

async fn looked<L: Look>(
    most: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> L,
    pause: fn(Instant) -> Duration,
) -> Result<L::Found> {
    let began = Instant::now();
    let deadline = began + most;
    let mut instead = String::new();
    loop {
        match tokio::time::timeout_at(deadline.into(), look()).await.map(Look::found) {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(shown)) => instead = shown,
            Err(_) => {}
        }
        ensure!(Instant::now() < deadline, "timed out waiting until {what}: {instead}");
        tokio::time::sleep(pause(began)).await;
    }
}

/// [`within`] for synchronous code.
///
/// # Errors
/// After `most`, with the result of the last look.
pub fn blocking_within<L: Look>(most: Duration, what: &str, mut look: impl FnMut() -> L) -> Result<L::Found> {
    let began = Instant::now();
    let deadline = began + most;
    loop {
        match look().found() {
            Ok(found) => return Ok(found),
            Err(instead) => ensure!(Instant::now() < deadline, "timed out waiting until {what}: {instead}"),
        }
        std::thread::sleep(pause(began));
    }
}

/// Returns how long to wait for the next look: the longer a wait already takes, the less its end depends on it.
fn pause(began: Instant) -> Duration {
    (began.elapsed() / 16).clamp(POLL, SLOW_POLL)
}

/// Runs a future on its own runtime and thread, wherever the caller is: inside a runtime, tokio refuses to block on
/// another.
pub fn block_on<T: Send>(run: impl AsyncFnOnce() -> T + Send) -> T {
    let run = || tokio::runtime::Runtime::new().expect("a runtime").block_on(run());
    std::thread::scope(|scope| scope.spawn(run).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
