//! Runs one case: a scenario with an operator of its own in a namespace of its own, and at most one fault. An **effect**.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use axum::http::StatusCode;
use clientapp_crd::{ClientApp, PostgresWriter, Postgresql};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::discovery::{Discovery, Scope, verbs};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, block_in_place};

use super::scenario::Scenario;
use crate::lab::{Apart, Lab, Object};
use crate::plane::ControlPlane;
use crate::proxy::{self, Proxy, Rule, Write};
use crate::random::disturbance::operators::{Operators, Remains};
use crate::random::disturbance::row::{Blow, Fault};
use crate::random::oracle::audit::{Audit, Entry, MARKER};
use crate::random::oracle::evidence::Evidence;
use crate::random::oracle::state::{Present, State, differences, is_compared, state};
use crate::random::requests::{APP, ask_to_delete};
use crate::wait::within;

/// How long after its scenario a case has to reach the end state.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
/// How long the first run of a scenario has to be without a change before that counts as its end state.
const STILL: Duration = Duration::from_secs(3);
/// How late a write arrives whose sender is dead.
const LATE: Duration = Duration::from_secs(1);
/// How long the API server does not answer: longer than a Lease is valid.
const STALL: Duration = Duration::from_secs(20);
/// How long watches expire: time for each of them to be told.
const EXPIRY: Duration = Duration::from_secs(1);
/// The name of the one that steals a Lease.
const THIEF: &str = "thief";

/// Shared by all cases.
pub struct Stage {
    pub lab: &'static Lab,
    client: Client,
    audit: Mutex<Audit>,
    /// All namespaced kinds that are compared.
    kinds: Vec<ApiResource>,
}

/// How a case went.
#[derive(Debug)]
pub struct Ran {
    /// The writes of the disturbed part.
    pub writes: Vec<Write>,
    /// The write that was hit; `None` if there were not so many.
    pub hit: Option<Write>,
    /// From the fault to the end state; `None` if that was not reached.
    pub recovery: Option<Duration>,
    pub evidence: Evidence,
}

impl Stage {
    pub async fn start() -> Result<Stage> {
        // Another part of this process may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let plane = ControlPlane::builder().audit_bodies(true);
        // For the lifetime of this process: the lab's watchdog ends it.
        let lab: &'static Lab = Box::leak(Box::new(block_in_place(|| Lab::start_on(plane, true))?));
        let client = lab.plane.client().await?;
        let discovery = Discovery::new(client.clone()).run().await?;
        let groups = discovery.groups().flat_map(|group| group.recommended_resources());
        let kinds = groups.filter(|(kind, able)| {
            able.scope == Scope::Namespaced && able.supports_operation(verbs::LIST) && is_compared(&kind.kind)
        });
        let audit = Mutex::new(Audit::new(lab.plane.audit_log().context("the plane keeps no audit log")?));
        Ok(Stage { lab, client, audit, kinds: kinds.map(|(kind, _)| kind).collect() })
    }

    /// The objects of a namespace, and what is compared beside them.
    pub(crate) async fn state(&self, namespace: &str, beside: Vec<Value>) -> Result<State> {
        let (mut objects, mut present) = (beside, Vec::new());
        for kind in &self.kinds {
            let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, kind);
            for object in api.list(&ListParams::default()).await? {
                let [resource, name, uid] = [kind.plural.clone(), object.name_any(), object.uid().unwrap_or_default()];
                present.push(Present { resource, name, uid });
                let mut object = serde_json::to_value(object)?;
                object["kind"] = json!(kind.kind);
                objects.push(object);
            }
        }
        Ok(State { present, ..state(namespace, &objects) })
    }

    /// All writes to the namespace that were answered before this call.
    pub(crate) async fn trace(&self, namespace: &str) -> Result<Vec<Entry>> {
        let marker = format!("{MARKER}{namespace}");
        let api: Api<ConfigMap> = Api::default_namespaced(self.client.clone());
        // It does not exist; the log is in order, and has this request after all that were answered before.
        let _ = api.delete(&marker, &DeleteParams::default()).await;
        within(SETTLED_WITHIN, "the audit log has the marker", async || {
            let mut audit = self.audit.lock().unwrap_or_else(PoisonError::into_inner);
            match audit.until(&marker, namespace) {
                Ok(None) => Err("it has not".to_owned()),
                Ok(Some(entries)) => Ok(entries),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await
    }

    /// Deletes everything of a case that is over, and does not wait for that.
    pub(crate) async fn clean_up(&self, namespaces: [&str; 2]) -> Result<()> {
        self.release::<ClientApp>(namespaces[0]).await?;
        self.release::<Postgresql>(namespaces[0]).await?;
        self.release::<PostgresWriter>(namespaces[0]).await?;
        for namespace in namespaces {
            Api::<Namespace>::all(self.client.clone()).delete(namespace, &DeleteParams::default()).await?;
        }
        Ok(())
    }

    /// Removes the finalizers of an operator that has stopped.
    pub(crate) async fn release<K: Object>(&self, namespace: &str) -> Result<()> {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        for object in api.list(&ListParams::default()).await? {
            let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            api.patch(&object.name_any(), &PatchParams::default(), &free).await?;
        }
        Ok(())
    }
}

/// A fault that has hit.
struct Struck {
    at: Instant,
    write: Write,
    usurped: Option<(Timestamp, Timestamp)>,
}

/// Runs a future on its own thread of this runtime, where it may block.
pub fn on_a_thread<T: Send + 'static>(run: impl AsyncFnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || runtime.block_on(run()))
}

/// Runs a scenario in a new namespace, with a fault or without. The end state is `expected`, or where everything comes to rest.
pub async fn run(
    stage: &Stage,
    namespace: &str,
    scenario: Scenario,
    fault: Option<Fault>,
    expected: Option<&State>,
) -> Result<Ran> {
    let mut apart = stage.lab.try_apart(namespace).await?;
    apart.options.environment = scenario.environment(namespace).await?;
    let apart = Arc::new(apart);
    let blow = fault.and_then(Fault::blow);
    let mut operators = Operators::start(stage.lab, &apart.options, matches!(blow, Some(Blow::Jump(_))))?;
    scenario.prepare(&apart).await?;
    if let Some(Fault::Throughout(standing)) = fault {
        apart.proxy.set([standing.rule()]);
    }
    let (began, api) = (Instant::now(), operators.api());
    apart.proxy.count_writes(fault.and_then(Fault::trap));
    let disturbed = on_a_thread({
        let (apart, lab) = (apart.clone(), stage.lab);
        async move || {
            let struck = disturb(lab, &apart, &mut operators, fault).await;
            (operators, struck)
        }
    });
    let acted = scenario.act(&apart, &api).await;
    // The request of a frozen leader stays under way.
    if blow != Some(Blow::Freeze) || !apart.proxy.has_sprung() {
        apart.proxy.lift();
    }
    let (mut operators, struck) = disturbed.await?;
    let struck = struck?;
    // That it was not done is told together with what the operator has logged.
    if let Err(error) = acted {
        let Remains { log, .. } = operators.stop()?;
        return Err(error.context(format!("the operator's log:\n{}", last(&log))));
    }
    let writes = apart.proxy.writes();

    let is_settled = settled(stage, (scenario, namespace), expected).await?;
    let since = struck.as_ref().map_or(began, |struck| struck.at);
    let recovery = is_settled.then(|| since.elapsed());
    if let Some(Fault::Throughout(_)) = fault {
        // What is late is still under way, and the operator acts on it.
        apart.proxy.set([]);
        apart.proxy.delivered().await;
        settled(stage, (scenario, namespace), None).await?;
    }
    let late = thawed(&apart.proxy, &mut operators)?;
    // A new leader has looked at everything, and has left it as it was.
    operators.has_reconciled(observed(stage, scenario, namespace).await?.reconciled)?;
    let Remains { log, arguments, overlaps, leftovers } = operators.stop()?;
    let evidence = Evidence {
        state: observed(stage, scenario, namespace).await?,
        trace: stage.trace(namespace).await?,
        log,
        arguments,
        overlaps: [overlaps, late].concat(),
        leftovers,
        usurped: struck.as_ref().and_then(|struck| struck.usurped),
        has_gaps: fault.is_some_and(Fault::leaves_gaps),
        is_cut_short: fault.is_some_and(Fault::cuts_short),
    };
    scenario.clean_up(&apart.tenant).await?;
    stage.clean_up([namespace, &apart.options.lease_namespace]).await?;
    Ok(Ran { writes, hit: struck.map(|struck| struck.write), recovery, evidence })
}

/// What is compared.
async fn observed(stage: &Stage, scenario: Scenario, namespace: &str) -> Result<State> {
    stage.state(namespace, scenario.beside(namespace).await?).await
}

/// Thaws the leader that was frozen, if one was: its request arrives, and it goes on where it was. Returns what it has written since.
fn thawed(proxy: &Proxy, operators: &mut Operators) -> Result<Vec<String>> {
    // Everything is at rest.
    let before = proxy.writes().len();
    proxy.lift();
    operators.thaw()?;
    Ok(proxy.writes().drain(before..).map(|write| format!("the frozen leader, thawed, sent {write}")).collect())
}

/// Waits for the write, and strikes.
async fn disturb(
    lab: &'static Lab,
    apart: &Apart,
    operators: &mut Operators,
    fault: Option<Fault>,
) -> Result<Option<Struck>> {
    let Some(Fault::At { blow, .. }) = fault else { return Ok(None) };
    let Some(write) = apart.proxy.sprung().await else { return Ok(None) };
    let at = Instant::now();
    let mut usurped = None;
    let leases: Api<Lease> = Api::namespaced(apart.tenant.client.clone(), &apart.options.lease_namespace);
    match blow {
        // The write stays held: nothing may reach the API server for a process that is dead.
        Blow::Kill(_) | Blow::KillTree(_) => {
            operators.kill(matches!(blow, Blow::KillTree(_)))?;
            operators.lead()?;
        }
        Blow::Terminate(_) => {
            operators.terminate(|| apart.proxy.lift())?;
            operators.lead()?;
        }
        Blow::KillHelm(_) => {
            operators.kill_helms()?;
            // How late the write is, if helm was killed before it arrived: time for an operator that would not wait.
            tokio::time::sleep(LATE).await;
            apart.proxy.lift();
        }
        Blow::Outage(_) => {
            lab.outage(|| apart.proxy.lift())?;
        }
        Blow::Stall | Blow::Expire => {
            let (rule, time) = match blow {
                Blow::Stall => (Rule::new("*", "*", proxy::Fault::Hang), STALL),
                _ => (Rule::new("watch", "*", proxy::Fault::Expire), EXPIRY),
            };
            let over = async || {
                tokio::time::sleep(time).await;
                Ok(())
            };
            disturbed_for(&apart.proxy, rule, over).await?;
        }
        Blow::Jump(minutes) => {
            operators.set_clock(minutes)?;
            // The old time is kept for a second.
            tokio::time::sleep(LATE).await;
            apart.proxy.lift();
        }
        Blow::Delete(_) => {
            ask_to_delete::<ClientApp>(&apart.tenant, APP, &DeleteParams::default()).await?;
            apart.proxy.lift();
        }
        // The write stays held until the leader is thawed.
        Blow::Freeze => {
            operators.freeze()?;
            operators.lead()?;
        }
        Blow::Usurp => {
            let taken = Timestamp::now();
            steal(&leases, taken).await?;
            apart.proxy.lift();
            usurped = Some((taken, led_again(&leases, taken).await?));
        }
        Blow::RefuseLease | Blow::HangLease => {
            let fault = match blow {
                Blow::HangLease => proxy::Fault::Hang,
                _ => proxy::Fault::Answer(StatusCode::SERVICE_UNAVAILABLE),
            };
            let taken = Timestamp::now();
            let over = async || {
                operators.has_lost()?;
                // No operator can have it before.
                usurped = Some((taken, Timestamp::now()));
                Ok(())
            };
            disturbed_for(&apart.proxy, Rule::new("*", "leases", fault), over).await?;
        }
        Blow::DeleteLease => {
            let taken = Timestamp::now();
            leases.delete(clientapp_crd::LEASE, &DeleteParams::default()).await?;
            apart.proxy.lift();
            usurped = Some((taken, led_again(&leases, taken).await?));
        }
        Blow::Snap(_) => {}
    }
    Ok(Some(Struck { at, write, usurped }))
}

/// Lets the held write go on under a rule, until `over`.
async fn disturbed_for(proxy: &Proxy, rule: Rule, over: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
    proxy.set([rule]);
    proxy.lift();
    let is_over = over().await;
    proxy.set([]);
    is_over
}

pub(crate) async fn steal(leases: &Api<Lease>, now: Timestamp) -> Result<()> {
    let spec = json!({"holderIdentity": THIEF, "renewTime": format!("{now:.6}"), "acquireTime": format!("{now:.6}")});
    let patch = Patch::Merge(json!({"spec": spec}));
    leases.patch(clientapp_crd::LEASE, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Waits until an operator has taken the Lease after this time, and returns when.
pub(crate) async fn led_again(leases: &Api<Lease>, after: Timestamp) -> Result<Timestamp> {
    within(SETTLED_WITHIN, "an operator has the Lease again", async || {
        let lease = leases.get(clientapp_crd::LEASE).await.map_err(|error| error.to_string())?;
        let spec = lease.spec.unwrap_or_default();
        let acquired = spec.acquire_time.as_ref().map(|time| time.0);
        let of_operator = spec.holder_identity.as_deref().is_some_and(|holder| holder != THIEF);
        acquired.filter(|time| of_operator && *time > after).ok_or_else(|| format!("it is {spec:?}"))
    })
    .await
}

/// Waits for the end state. Whether it is not reached in time is for the oracle to say.
async fn settled(stage: &Stage, (scenario, namespace): (Scenario, &str), expected: Option<&State>) -> Result<bool> {
    let reached = match expected {
        Some(expected) => {
            within(SETTLED_WITHIN, "the end state is reached", async || {
                let state = observed(stage, scenario, namespace).await.map_err(|error| format!("{error:#}"))?;
                let differences = differences(expected, &state);
                if differences.is_empty() { Ok(()) } else { Err(differences.join("\n")) }
            })
            .await
        }
        None => {
            let mut last = (Instant::now(), observed(stage, scenario, namespace).await?);
            within(SETTLED_WITHIN, "nothing changes any more", async || {
                let state = observed(stage, scenario, namespace).await.map_err(|error| format!("{error:#}"))?;
                let changed = differences(&last.1, &state);
                if !changed.is_empty() {
                    last = (Instant::now(), state);
                }
                if last.0.elapsed() >= STILL { Ok(()) } else { Err(changed.join("\n")) }
            })
            .await
        }
    };
    Ok(reached.is_ok())
}

/// The end of a log.
fn last(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
