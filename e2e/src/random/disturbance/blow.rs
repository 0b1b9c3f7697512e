//! Blows: events that a fault causes at a moment. An **effect**.

use std::time::Duration;

use anyhow::Result;
use axum::http::StatusCode;
use derive_more::Display;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;
use tokio::task::block_in_place;

use super::operators::Operators;
use crate::lab::Lab;
use crate::proxy::{Fault, Proxy, Rule, Snap};
use crate::wait::within;

/// How late a write arrives whose sender is dead.
const LATE: Duration = Duration::from_secs(1);
/// How long the API server does not answer: longer than a Lease is valid.
const STALL: Duration = Duration::from_secs(20);
/// How long watches expire: time for each of them to be told.
const EXPIRY: Duration = Duration::from_secs(1);
/// For an operator to lead again.
const LEADS: Duration = Duration::from_secs(60);
/// The name of the one that steals a Lease.
const THIEF: &str = "thief";

/// Which side of the API server's work on a write.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
pub enum Side {
    /// Before the write is forwarded.
    #[display("before")]
    Before,
    /// While the API server works on it: whether it is applied is open.
    #[display("during")]
    Meanwhile,
    /// After it was applied, and before its answer is passed back.
    #[display("after")]
    After,
}

impl Side {
    pub const BOTH: [Side; 2] = [Side::Before, Side::After];
}

/// Says what happens at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// The operator is killed, and started again.
    Kill(Side),
    /// The operator is killed with its helms, and started again.
    KillTree(Side),
    /// The operator is asked to stop, as by a rollout, and another is started.
    Terminate(Side),
    /// helm alone is killed. A write that it has sent arrives late.
    KillHelm(Side),
    /// The API server is killed, and started again.
    Outage(Side),
    /// The API server answers nothing, for longer than a Lease is valid.
    Stall,
    /// Each watch is told that its resource version has expired.
    Expire,
    /// The clock of the operator is set, by so many minutes.
    Jump(i8),
    /// The operator is frozen with its helms, and thawed when its successor has finished.
    Freeze,
    /// Another holder takes the Lease, and never renews it.
    Usurp,
    /// Requests for the Lease are refused until the operator has stopped leading.
    RefuseLease,
    /// They are not answered until then.
    HangLease,
    /// The Lease is deleted.
    DeleteLease,
    /// The user deletes the app.
    Delete(Side),
    /// Another Helm client upgrades or uninstalls a release.
    OtherHelm,
    /// The proxy does it.
    Snap(Snap),
}

impl Blow {
    /// Returns when the write is held for it.
    pub fn snap(self) -> Snap {
        match self {
            Blow::Kill(side)
            | Blow::KillTree(side)
            | Blow::Terminate(side)
            | Blow::KillHelm(side)
            | Blow::Outage(side)
            | Blow::Delete(side) => match side {
                Side::Before => Snap::Before,
                Side::Meanwhile => Snap::Meanwhile,
                Side::After => Snap::After,
            },
            Blow::Snap(snap) => snap,
            _ => Snap::Before,
        }
    }

    /// Returns a sentence about it at a write.
    pub fn at(self, write: &str) -> String {
        match self {
            Blow::Kill(side) => format!("the operator is killed {side} {write}"),
            Blow::KillTree(side) => format!("the operator and its helms are killed {side} {write}"),
            Blow::Terminate(side) => format!("the operator is asked to stop {side} {write}"),
            Blow::KillHelm(Side::Before) => format!("helm is killed, and {write} arrives late"),
            Blow::KillHelm(side) => format!("helm is killed {side} {write}"),
            Blow::Outage(side) => format!("the API server is killed {side} {write}"),
            Blow::Stall => format!("the API server does not answer from {write} on, for a while"),
            Blow::Expire => format!("all watches expire before {write}"),
            Blow::Jump(minutes) => format!("the clock jumps by {minutes} min before {write}"),
            Blow::Freeze => format!("the leader is frozen before {write}"),
            Blow::Usurp => format!("the Lease is stolen before {write}"),
            Blow::RefuseLease => format!("requests for the Lease are refused from {write} on"),
            Blow::HangLease => format!("requests for the Lease hang from {write} on"),
            Blow::DeleteLease => format!("the Lease is deleted before {write}"),
            Blow::Delete(side) => format!("the app is deleted {side} {write}"),
            Blow::OtherHelm => format!("another Helm client changes the release before {write}"),
            Blow::Snap(Snap::Answer(status)) => format!("{write} is answered {}", status.as_u16()),
            Blow::Snap(Snap::TooMany(seconds)) => format!("{write} is answered 429, for {seconds} s"),
            Blow::Snap(Snap::Page) => format!("{write} is answered with a web page"),
            Blow::Snap(Snap::Lose) => format!("the answer to {write} is lost"),
            Blow::Snap(Snap::Halve) => format!("half of the answer to {write} is lost"),
            Blow::Snap(Snap::Before | Snap::Meanwhile | Snap::After) => format!("{write} is held"),
        }
    }
}

/// When nobody had the Lease: since when, and until when.
pub type Vacancy = Option<(Timestamp, Timestamp)>;

/// The target of a blow.
pub struct Target<'a> {
    pub lab: &'static Lab,
    pub operators: &'a mut Operators,
    pub proxy: &'a Proxy,
    pub leases: Api<Lease>,
    /// Says whether the Lease of a killed operator is deleted, so that it need not expire before another leads.
    pub leads_at_once: bool,
}

impl Target<'_> {
    /// Strikes, and lets the write go on that is held. `by_user` does what is left to users. It blocks its thread.
    ///
    /// # Errors
    /// If no operator leads again, or the API server does not come back.
    pub async fn strike(&mut self, blow: Blow, by_user: impl AsyncFnOnce() -> Result<()>) -> Result<Vacancy> {
        let Target { lab, operators, proxy, leases, leads_at_once } = self;
        let taken = Timestamp::now();
        match blow {
            // The write stays held: nothing may reach the API server for a process that is dead.
            Blow::Kill(_) | Blow::KillTree(_) => {
                block_in_place(|| operators.kill(matches!(blow, Blow::KillTree(_))))?;
                if *leads_at_once {
                    leases.delete(clientapp_crd::LEASE, &DeleteParams::default()).await?;
                }
                block_in_place(|| operators.lead())?;
            }
            Blow::Terminate(_) => {
                operators.terminate(|| proxy.lift())?;
                operators.lead()?;
            }
            Blow::KillHelm(_) => {
                operators.kill_helms()?;
                // How late the write is, if helm was killed before it arrived: time for an operator that would not wait.
                tokio::time::sleep(LATE).await;
                proxy.lift();
            }
            Blow::Outage(_) => lab.outage(|| proxy.lift())?,
            Blow::Stall => under(proxy, Rule::new("*", "*", Fault::Hang), async || pause(STALL).await).await?,
            Blow::Expire => under(proxy, Rule::new("watch", "*", Fault::Expire), async || pause(EXPIRY).await).await?,
            Blow::Jump(minutes) => {
                operators.set_clock(minutes)?;
                // The old time is kept for a second.
                tokio::time::sleep(LATE).await;
                proxy.lift();
            }
            Blow::Delete(_) | Blow::OtherHelm => {
                by_user().await?;
                proxy.lift();
            }
            // The write stays held until the leader is thawed.
            Blow::Freeze => {
                block_in_place(|| operators.freeze().and_then(|()| operators.lead()))?;
            }
            Blow::Usurp => {
                let times = json!({"holderIdentity": THIEF, "renewTime": format!("{taken:.6}"), "acquireTime": format!("{taken:.6}")});
                let patch = Patch::Merge(json!({"spec": times}));
                let stolen =
                    async || leases.patch(clientapp_crd::LEASE, &PatchParams::default(), &patch).await.map(drop);
                within(LEADS, "the Lease is stolen", stolen).await?;
                proxy.lift();
                return led_again(leases, taken).await;
            }
            Blow::RefuseLease | Blow::HangLease => {
                let fault = match blow {
                    Blow::HangLease => Fault::Hang,
                    _ => Fault::Answer(StatusCode::SERVICE_UNAVAILABLE),
                };
                under(proxy, Rule::new("*", "leases", fault), async || operators.has_lost()).await?;
                // No operator can have it before.
                return Ok(Some((taken, Timestamp::now())));
            }
            Blow::DeleteLease => {
                leases.delete(clientapp_crd::LEASE, &DeleteParams::default()).await?;
                proxy.lift();
                return led_again(leases, taken).await;
            }
            Blow::Snap(_) => {}
        }
        Ok(None)
    }
}

async fn pause(time: Duration) -> Result<()> {
    tokio::time::sleep(time).await;
    Ok(())
}

/// Lets the held write go on under a rule, until `over`.
async fn under(proxy: &Proxy, rule: Rule, over: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
    proxy.set([rule]);
    proxy.lift();
    let is_over = over().await;
    proxy.set([]);
    is_over
}

/// Waits until an operator has taken the Lease after this time, and returns both times.
async fn led_again(leases: &Api<Lease>, after: Timestamp) -> Result<Vacancy> {
    let again = within(LEADS, "an operator has the Lease again", async || {
        let lease = leases.get(clientapp_crd::LEASE).await.map_err(|error| error.to_string())?;
        let spec = lease.spec.unwrap_or_default();
        let acquired = spec.acquire_time.as_ref().map(|time| time.0);
        let of_operator = spec.holder_identity.as_deref().is_some_and(|holder| holder != THIEF);
        acquired.filter(|time| of_operator && *time > after).ok_or_else(|| format!("it is {spec:?}"))
    });
    Ok(Some((after, again.await?)))
}
