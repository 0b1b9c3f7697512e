//! Whose write to the API server is next. An **effect**.
//!
//! A row waits for its object's finalizer, and nothing waits for a status. When a thousand objects come at once, the
//! finalizers of the last ones therefore go before the statuses of the first ones. And only a few go at the same time:
//! each costs the API server some milliseconds of a processor however many there are, and a connection on top. Where there
//! is a crowd of objects whose rows would wait, their claims are staked together instead (`claims`).

use tokio::sync::{Mutex, Semaphore, SemaphorePermit, watch};

/// Writes at the same time: 1600 in a second where each takes 10 ms, which is more than most API servers store.
const WRITES: usize = 16;

/// The order of writes.
pub struct Turns {
    free: Semaphore,
    /// How many urgent ones wait.
    urgent: watch::Sender<usize>,
    /// How many claim a row.
    claiming: watch::Sender<usize>,
    /// Only the first of the others looks out for the end of the urgent ones.
    others: Mutex<()>,
}

/// Held while writing.
pub type Turn<'a> = SemaphorePermit<'a>;

impl Default for Turns {
    fn default() -> Self {
        Turns {
            free: Semaphore::new(WRITES),
            urgent: watch::Sender::new(0),
            claiming: watch::Sender::new(0),
            others: Mutex::default(),
        }
    }
}

/// Held while claiming a row.
pub struct Claiming<'a> {
    /// More claim a row than write at the same time.
    pub crowded: bool,
    _counted: Waiting<'a>,
}

impl Turns {
    /// For the time from the look at a row to its claim.
    pub fn claiming(&self) -> Claiming<'_> {
        let counted = Waiting::begin(&self.claiming);
        Claiming { crowded: *self.claiming.borrow() > WRITES, _counted: counted }
    }

    /// For what a row waits for.
    pub async fn urgent(&self) -> Turn<'_> {
        let _waiting = Waiting::begin(&self.urgent);
        self.turn().await
    }

    /// For all else: when nothing urgent waits.
    pub async fn other(&self) -> Turn<'_> {
        let _first = self.others.lock().await;
        loop {
            // The sender is here, so that there is an answer.
            let _ = self.urgent.subscribe().wait_for(|urgent| *urgent == 0).await;
            let turn = self.turn().await;
            if *self.urgent.borrow() == 0 {
                return turn;
            }
        }
    }

    async fn turn(&self) -> Turn<'_> {
        self.free.acquire().await.expect("nobody closes it")
    }
}

/// Counts for as long as it is there, even if whoever waits is dropped.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl<'a> Waiting<'a> {
    fn begin(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Waiting(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt as _, poll};

    use super::*;

    #[tokio::test]
    async fn the_urgent_go_first_and_nobody_is_forgotten() {
        let turns = Turns::default();
        let mut taken: Vec<_> = (0..WRITES).map(|_| turns.other().now_or_never().expect("nobody waits")).collect();
        let (mut status, mut later) = (Box::pin(turns.other()), Box::pin(turns.other()));
        assert!(poll!(&mut status).is_pending());
        assert!(poll!(&mut later).is_pending());
        let (mut claim, mut given_up) = (Box::pin(turns.urgent()), Box::pin(turns.urgent()));
        assert!(poll!(&mut claim).is_pending());
        assert!(poll!(&mut given_up).is_pending());

        // The status was there before, and lets the claims pass.
        taken.pop();
        assert!(poll!(&mut status).is_pending());
        let claimed = claim.await;
        assert!(poll!(&mut status).is_pending());
        drop(given_up);
        assert!(poll!(&mut status).is_pending());
        drop(claimed);
        let said = status.await;
        assert!(poll!(&mut later).is_pending());
        drop(said);
        drop(later.await);
    }
}
