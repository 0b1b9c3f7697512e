//! Elects one leader at a time, by Lease, with the rules of client-go's `leaderelection.go`.
//!
//! [`rules`] decides, pure; this module reads and writes, an **effect**. Clocks of different machines are never compared: a standby
//! takes the lock once its record has not *changed* for the lock's duration, by the standby's own clock, and a leader's term counts
//! from when it *sent* the last renewal that was confirmed. All [`Times`] follow from the lock's duration.

pub(crate) mod rules;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1 as coordination;
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio::{
    runtime::{Builder, Handle, Runtime},
    sync::Mutex,
    time::{sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use self::rules::Observation;
use crate::{
    crd::LEASE,
    leadership::{Leadership, since_boot},
    platform::error::api_sentence,
};
/// Interval at which a standby checks the lock.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Delay after a failed request.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// Timeout of each request that releases the lock: the pod has little time to end.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);
const FIELD_MANAGER: &str = "clientapp-operator/lease";
/// Status of the response if another operator was faster.
const CONFLICT: u16 = 409;
const NOT_FOUND: u16 = 404;
const DELETED: &str = "it was deleted";

/// Holds the times of a leader.
#[derive(Clone, Copy)]
struct Times {
    /// How long the lock lasts: no other operator may lead earlier.
    duration: Duration,
    /// After this long without a confirmed renewal, leadership is over: neither the operator nor its helm processes send anything, and
    /// requests in flight are cut off. Such a request may still take effect, or may not even have been read by the API server; the rest of
    /// `duration` leaves time for that.
    term: Duration,
    /// Interval of renewals.
    renewal: Duration,
    /// Timeout of a request: if one hangs, there is time for another within the term.
    request: Duration,
}

impl Times {
    /// Derives them from the duration of the lock, [`rules::MIN_DURATION`] or longer.
    fn of(duration: Duration) -> Times {
        let (term, renewal) = (duration - Duration::from_secs(2), duration / 7);
        Times { duration, term, renewal, request: (term - renewal) / 2 }
    }
}

/// Reads the clock for the record, which users read, and which operators of older versions compared.
#[expect(clippy::disallowed_methods, reason = "written into the record; no decision depends on it")]
fn wall_clock() -> Timestamp {
    Timestamp::now()
}

/// Starts the runtime whose only thread makes the requests. Tenants' requests may keep all other threads busy for seconds, which must
/// not end leadership.
///
/// # Errors
/// The system can start no further thread.
pub(crate) fn thread() -> std::io::Result<Runtime> {
    Builder::new_multi_thread().worker_threads(1).thread_name("lease").enable_all().build()
}

#[derive(derive_more::Display)]
#[display("{requests}")]
pub(crate) struct Lease {
    requests: Arc<Requests>,
    thread: Handle,
}

#[derive(derive_more::Display)]
#[display("{lease_name}")]
struct Requests {
    api: Api<coordination::Lease>,
    /// `namespace/name`.
    lease_name: String,
    identity: String,
    times: Times,
}

pub(crate) struct Held {
    pub lead: Leadership,
    lease: Arc<Mutex<coordination::Lease>>,
}

enum Renewal {
    Confirmed,
    /// The Lease has changed, but is still ours.
    Again,
    /// With the reason.
    Lost(String),
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("{verb} Lease {place}: {}", api_sentence(source))]
    Api { verb: &'static str, place: String, source: Box<kube::Error> },
    #[error("{verb} Lease {place}: no response within {} ms", after.as_millis())]
    Timeout { verb: &'static str, place: String, after: Duration },
}

impl Error {
    fn has_status(&self, code: u16) -> bool {
        matches!(self, Error::Api { source, .. } if matches!(&**source, kube::Error::Api(status) if status.code == code))
    }
}

impl Lease {
    /// Prepares the Lease in this namespace, with its [`thread`]. `client` is called on that, since a client lives where it was made. It
    /// must not retry: hidden failures would use up the term.
    ///
    /// # Errors
    /// Those of `client`.
    pub(crate) fn new(
        client: impl FnOnce() -> kube::Result<Client>,
        thread: &Handle,
        namespace: &str,
        identity: String,
        duration: Duration,
    ) -> kube::Result<Lease> {
        let place = format!("{namespace}/{LEASE}");
        let entered = thread.enter();
        let api = Api::namespaced(client()?, namespace);
        drop(entered);
        let requests = Requests { api, lease_name: place, identity, times: Times::of(duration) };
        Ok(Lease { requests: Arc::new(requests), thread: thread.clone() })
    }

    /// Runs work on the thread until nobody awaits the result.
    async fn run_on_thread<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        match AbortOnDropHandle::new(self.thread.spawn(work)).await {
            Ok(result) => result,
            Err(error) => match error.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // Its runtime has ended, and with it this process.
                Err(_) => std::future::pending().await,
            },
        }
    }

    /// Checks that the Lease can be read.
    pub(crate) async fn check_readable(&self) -> Result<(), Error> {
        let requests = self.requests.clone();
        self.run_on_thread(async move { requests.get(requests.times.request).await.map(|_| ()) }).await
    }

    pub(crate) async fn acquire(&self) -> Held {
        let requests = self.requests.clone();
        self.run_on_thread(async move { requests.acquire().await }).await
    }

    /// Keeps the lock until it is lost, which ends leadership, and returns the reason. Can be dropped at any moment and called again.
    pub(crate) async fn keep(&self, held: &Held) -> String {
        let (requests, lead, lease) = (self.requests.clone(), held.lead.clone(), held.lease.clone());
        let keep = async move {
            // A former call may still be ending.
            let lost = requests.renew_until_lost(&lead, &mut *lease.lock().await).await;
            lead.end();
            lost
        };
        self.run_on_thread(keep).await
    }

    /// Ends leadership, and releases the lock.
    pub(crate) async fn release(&self, held: Held) {
        held.lead.end();
        let requests = self.requests.clone();
        self.run_on_thread(async move { requests.release(&mut *held.lease.lock().await).await }).await;
    }
}

impl Requests {
    async fn acquire(&self) -> Held {
        let mut observation = Observation::default();
        let mut failures = FailureLog::default();
        loop {
            match self.attempt(&mut observation).await {
                Ok(Some(held)) => return held,
                Ok(None) => failures.succeeded(),
                Err(error) => failures.failed(&error),
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    async fn attempt(&self, observation: &mut Observation) -> Result<Option<Held>, Error> {
        let Times { duration, term, request, .. } = self.times;
        let lease = self.get(request).await?;
        let record = lease.as_ref().map(|lease| lease.spec.clone().unwrap_or_default());
        let now = since_boot();
        *observation = std::mem::take(observation).observe(record, now);
        if !observation.is_free(&self.identity, now) {
            return Ok(None);
        }
        let record = lease.as_ref().and_then(|lease| lease.spec.as_ref());
        let spec = rules::acquired_record(record, &self.identity, duration, wall_clock());
        let sent = since_boot();
        let acquired = match lease {
            Some(lease) => self.write(&lease, spec, request).await,
            None => self.create(spec).await,
        };
        match acquired {
            Ok(lease) => Ok(Some(Held { lead: Leadership::until(sent + term), lease: Arc::new(Mutex::new(lease)) })),
            Err(error) if error.has_status(CONFLICT) || error.has_status(NOT_FOUND) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Renews it until it is lost, and returns the reason.
    async fn renew_until_lost(&self, lead: &Leadership, held: &mut coordination::Lease) -> String {
        let mut failures = FailureLog::default();
        let Times { term, renewal, request, .. } = self.times;
        let mut pause = renewal;
        loop {
            sleep(pause.min(lead.remaining())).await;
            let left = lead.remaining();
            if left.is_zero() {
                let problem = failures.last.as_deref().unwrap_or("this process was suspended");
                return format!("it could not be renewed for {} s: {problem}", term.as_secs());
            }
            let sent = since_boot();
            pause = match self.renew(held, left.min(request)).await {
                // If the term is already over, the next iteration notices.
                Ok(Renewal::Confirmed) if lead.extend(sent + term) => {
                    failures.succeeded();
                    renewal.saturating_sub(since_boot().saturating_sub(sent))
                }
                Ok(Renewal::Confirmed | Renewal::Again) => RETRY_DELAY,
                Ok(Renewal::Lost(lost)) => return lost,
                Err(error) => {
                    failures.failed(&error);
                    RETRY_DELAY
                }
            };
        }
    }

    async fn renew(&self, held: &mut coordination::Lease, limit: Duration) -> Result<Renewal, Error> {
        let spec = rules::acquired_record(held.spec.as_ref(), &self.identity, self.times.duration, wall_clock());
        match self.write(held, spec, limit).await {
            Ok(lease) => {
                *held = lease;
                return Ok(Renewal::Confirmed);
            }
            Err(error) if error.has_status(NOT_FOUND) => return Ok(Renewal::Lost(DELETED.to_owned())),
            Err(error) if error.has_status(CONFLICT) => {}
            Err(error) => return Err(error),
        }
        Ok(match self.get(limit).await? {
            Some(lease) if lease.metadata.uid == held.metadata.uid => {
                match rules::holder(lease.spec.as_ref()) {
                    // Changed by a user in another field, or by our own request whose response was lost.
                    Some(holder) if holder == self.identity => {
                        *held = lease;
                        Renewal::Again
                    }
                    Some(holder) => Renewal::Lost(format!("{holder} holds it")),
                    None => Renewal::Lost("its holder was removed".to_owned()),
                }
            }
            _ => Renewal::Lost(DELETED.to_owned()),
        })
    }

    async fn release(&self, held: &mut coordination::Lease) {
        let written = async {
            let free = |lease: &coordination::Lease| rules::released_record(lease.spec.as_ref(), wall_clock());
            match self.write(held, free(held), RELEASE_TIMEOUT).await {
                // The last renewal may have been dropped before its response arrived.
                Err(error) if error.has_status(CONFLICT) => match self.get(RELEASE_TIMEOUT).await? {
                    Some(lease) if rules::holder(lease.spec.as_ref()) == Some(&self.identity) => {
                        *held = lease;
                        self.write(held, free(held), RELEASE_TIMEOUT).await.map(|_| ())
                    }
                    _ => Ok(()),
                },
                written => written.map(|_| ()),
            }
        };
        if let Err(error) = written.await {
            tracing::warn!(%error, "cannot release the lease; it is valid for {} s more", self.times.duration.as_secs());
        }
    }

    async fn get(&self, limit: Duration) -> Result<Option<coordination::Lease>, Error> {
        self.within(limit, "get", self.api.get_opt(LEASE)).await
    }

    async fn create(&self, spec: coordination::LeaseSpec) -> Result<coordination::Lease, Error> {
        let mut lease = coordination::Lease { spec: Some(spec), ..coordination::Lease::default() };
        lease.metadata.name = Some(LEASE.to_owned());
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        self.within(self.times.request, "create", self.api.create(&params, &lease)).await
    }

    /// Writes the record, provided that the Lease has not changed since `seen`.
    async fn write(
        &self,
        seen: &coordination::Lease,
        spec: coordination::LeaseSpec,
        limit: Duration,
    ) -> Result<coordination::Lease, Error> {
        let patch = Patch::Merge(json!({
            "metadata": {"uid": seen.metadata.uid, "resourceVersion": seen.metadata.resource_version},
            "spec": {
                "holderIdentity": spec.holder_identity,
                "leaseDurationSeconds": spec.lease_duration_seconds,
                "acquireTime": spec.acquire_time,
                "renewTime": spec.renew_time,
                "leaseTransitions": spec.lease_transitions,
            },
        }));
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        self.within(limit, "patch", self.api.patch(LEASE, &params, &patch)).await
    }

    async fn within<T>(
        &self,
        limit: Duration,
        verb: &'static str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, Error> {
        let place = self.lease_name.clone();
        match timeout(limit, request).await {
            Ok(answer) => answer.map_err(|source| Error::Api { verb, place, source: Box::new(source) }),
            Err(_) => Err(Error::Timeout { verb, place, after: limit }),
        }
    }
}

/// Logs consecutive failures only once.
#[derive(Default)]
struct FailureLog {
    last: Option<String>,
}

impl FailureLog {
    fn failed(&mut self, error: &Error) {
        if self.last.is_none() {
            tracing::warn!(%error, "requests for the Lease fail; retrying");
        }
        self.last = Some(error.to_string());
    }

    fn succeeded(&mut self) {
        if self.last.take().is_some() {
            tracing::info!("requests for the Lease succeed again");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, sync::mpsc};

    use super::*;
    use crate::platform::fake;

    #[test]
    fn a_term_has_time_for_a_renewal_that_hangs_and_ends_before_the_lock() {
        for (duration, expected) in [(7, (5000, 1000, 2000)), (15, (13000, 2142, 5428)), (60, (58000, 8571, 24714))] {
            let times = Times::of(Duration::from_secs(duration));
            let in_ms = [times.term, times.renewal, times.request].map(|time| time.as_millis());
            assert_eq!((in_ms[0], in_ms[1], in_ms[2]), expected, "{duration} s");
            assert!(times.renewal + 2 * times.request <= times.term, "{duration} s");
        }
    }

    /// The only thread of this test is blocked, as those of the operator may be by what a tenant asks for.
    #[tokio::test]
    async fn it_is_kept_while_all_other_threads_are_busy() {
        let (thread, (renewed, renewals)) = (thread().unwrap(), mpsc::channel());
        let client = || {
            Ok(fake::client(move |_, _, _| {
                let _ = renewed.send(std::thread::current().name().map(str::to_owned));
                (200, json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE}}))
            }))
        };
        let lease = Lease::new(client, thread.handle(), "operator", "one".to_owned(), rules::MIN_DURATION).unwrap();
        let record = Arc::new(Mutex::new(coordination::Lease::default()));
        let held = Held { lead: Leadership::until(since_boot() + lease.requests.times.term), lease: record };
        let mut kept = pin!(lease.keep(&held));
        assert!(futures::poll!(kept.as_mut()).is_pending());
        for _ in 0..2 {
            let by = renewals.recv_timeout(Duration::from_secs(60)).unwrap();
            assert_eq!(by.as_deref(), Some("lease"));
        }
        thread.shutdown_background();
    }
}
