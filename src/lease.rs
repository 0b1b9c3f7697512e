//! One leader at a time, by Lease.
//!
//! kube-lease-manager keeps the lock; this module adds what it leaves out: a leader that cannot renew must stop before
//! its lock can be another's, also when the API server does not answer at all.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use kube::Client;
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder, LeaseManagerError};
use nix::time::{ClockId, clock_gettime};
use tokio_util::sync::CancellationToken;

/// Name of the Lease.
pub const NAME: &str = "clientapp-operator";
/// For how long a lock is valid after its last renewal, in seconds.
const DURATION: u64 = 25;
/// How long before its end it is renewed, in seconds.
const GRACE: u64 = 16;
/// For how long a renewal may fail. What is left of [`GRACE`] after it is for helm, which gets 10 s to end politely: no
/// helm of ours runs any more when another operator may lead.
const PATIENCE: Duration = Duration::from_secs(4);
/// Between two attempts to reach the API server.
const PAUSE: Duration = Duration::from_secs(1);
/// A request for the Lease is worth no more than this: after it, the next attempt is the better one. The client that
/// the Lease is made with has to keep to it.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// Whether this process still leads, by its own clock. Asked before each step that cannot be taken back: a process that was
/// frozen (a stopped process, a paused machine) may wake up after its term, and has to see that with its first
/// instruction, before any of its timers or requests tell it.
#[derive(Clone, Debug)]
pub struct Lead {
    /// When the term is over, in milliseconds of [`since_boot`].
    ends: Arc<AtomicU64>,
}

impl Lead {
    /// A lead without end, for tests.
    #[must_use]
    pub fn assured() -> Lead {
        Lead { ends: Arc::new(AtomicU64::new(u64::MAX)) }
    }

    /// Whether no other process leads at this moment.
    #[must_use]
    pub fn holds(&self) -> bool {
        millis(since_boot()) < self.ends.load(Ordering::SeqCst)
    }

    /// Ends the lead at once, and for good.
    pub(crate) fn end(&self) {
        self.ends.store(0, Ordering::SeqCst);
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The clock of the lead: it is never set, and goes on while the process is stopped and while the machine is suspended.
/// `CLOCK_MONOTONIC`, which is `Instant` and the clock of every timer, stands still with the machine: after it, a term
/// that is long over would seem to have just begun.
fn since_boot() -> Duration {
    clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every Linux since 2.6.39 has this clock").into()
}

/// The lock.
pub struct Lease(LeaseManager);

/// Why the lead ended.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The operator stops; the lock is free for the next.
    Stopped,
    /// Another operator has the lock, or may have it any moment.
    Lost,
}

impl Lease {
    /// Finds or makes the Lease.
    ///
    /// # Errors
    /// The API server's refusal.
    pub async fn new(client: Client, namespace: &str, identity: &str) -> Result<Lease, LeaseManagerError> {
        let manager = LeaseManagerBuilder::new(client, NAME)
            .with_namespace(namespace)
            .with_identity(identity)
            .with_duration(DURATION)
            .with_grace(GRACE)
            .build()
            .await?;
        Ok(Lease(manager))
    }

    /// Waits for the lock. Returns `None` when `stop` came first.
    pub async fn acquire(&self, stop: &CancellationToken) -> Option<Lead> {
        loop {
            tokio::select! {
                () = stop.cancelled() => return None,
                change = self.0.changed() => match change {
                    Ok(true) => return Some(Lead::assured()),
                    Ok(false) => {}
                    Err(error) => {
                        tracing::warn!(%error, lease = NAME, "cannot ask for the lease; trying again");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        }
    }

    /// Keeps the lock until `stop` or until it is lost.
    pub async fn keep(&self, stop: &CancellationToken) -> End {
        let mut failing: Option<Instant> = None;
        loop {
            // An attempt that fails does so within the timeout of its request; one that lasts longer has succeeded
            // and waits for the next renewal.
            let recovered = tokio::time::sleep(2 * REQUEST_TIMEOUT);
            tokio::select! {
                () = stop.cancelled() => return End::Stopped,
                () = recovered, if failing.is_some() => failing = None,
                change = self.0.changed() => match change {
                    Ok(true) => failing = None,
                    Ok(false) => return End::Lost,
                    Err(error) => {
                        tracing::warn!(%error, lease = NAME, "cannot renew the lease");
                        let since = failing.get_or_insert_with(Instant::now);
                        if since.elapsed() >= PATIENCE {
                            return End::Lost;
                        }
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        }
    }

    /// Frees the lock for the next.
    pub async fn release(&self) {
        if let Err(error) = self.0.release().await {
            tracing::warn!(%error, lease = NAME, "cannot release the lease; it expires in {DURATION} s");
        }
    }
}
