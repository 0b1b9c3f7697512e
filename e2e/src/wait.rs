//! Waiting for what comes about and no watch tells of: one loop for all that tests look at again and again.

use std::fmt::Display;
use std::time::{Duration, Instant};

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
pub async fn until<L: Look>(what: &str, mut look: impl AsyncFnMut() -> L) -> L::Found {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match look().await.found() {
            Ok(found) => return found,
            Err(instead) => go_on(deadline, what, &instead),
        }
        tokio::time::sleep(POLL).await;
    }
}

/// [`until`] for tests that are not asynchronous.
///
/// # Panics
/// When that takes longer than [`TIMEOUT`], with what the last look has shown.
pub fn blocking_until<L: Look>(what: &str, mut look: impl FnMut() -> L) -> L::Found {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match look().found() {
            Ok(found) => return found,
            Err(instead) => go_on(deadline, what, &instead),
        }
        std::thread::sleep(POLL);
    }
}

fn go_on(deadline: Instant, what: &str, instead: &str) {
    assert!(Instant::now() < deadline, "waited in vain until {what}; {instead}");
}
