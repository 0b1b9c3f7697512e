//! Runs one case: a scenario with operators of its own in a namespace of its own, and at most one fault. An **effect**.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use clientapp_crd::ClientApp;
use kube::api::DeleteParams;

use super::scenario::Scenario;
use crate::lab::{Apart, Lab};
use crate::proxy::{Proxy, Write};
use crate::random::disturbance::blow::{Blow, Target, Vacancy};
use crate::random::disturbance::operators::{Operators, Remains};
use crate::random::disturbance::row::Fault;
use crate::random::oracle::evidence::Evidence;
use crate::random::oracle::state::{State, differences};
use crate::random::requests::{APP, ask_to_delete};
use crate::random::stage::{Stage, at_rest, on_a_thread};
use crate::wait::within;

/// How long after its scenario a case has to reach the end state.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);
/// How long the first run of a scenario has to be without a change before that counts as its end state.
const STILL: Duration = Duration::from_secs(3);

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

/// A fault that has hit.
struct Struck {
    at: Instant,
    write: Write,
    usurped: Vacancy,
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
            let struck = disturb(lab, &apart, &mut operators, blow).await;
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

/// Returns what is compared.
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
    blow: Option<Blow>,
) -> Result<Option<Struck>> {
    let Some(blow) = blow else { return Ok(None) };
    let Some(write) = apart.proxy.sprung().await else { return Ok(None) };
    let at = Instant::now();
    let leases = kube::Api::namespaced(apart.tenant.client.clone(), &apart.options.lease_namespace);
    let mut target = Target { lab, operators, proxy: &apart.proxy, leases, leads_at_once: false };
    let delete = async || ask_to_delete::<ClientApp>(&apart.tenant, APP, &DeleteParams::default()).await;
    Ok(Some(Struck { at, write, usurped: target.strike(blow, delete).await? }))
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
            let look = async || observed(stage, scenario, namespace).await;
            let still = |_: &State, since| since >= STILL;
            at_rest(SETTLED_WITHIN, "nothing changes any more", look, differences, still).await.map(drop)
        }
    };
    Ok(reached.is_ok())
}

/// The end of a log.
fn last(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
