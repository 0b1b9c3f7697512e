//! How long a user's change waits when the leader is killed while another operator stands by.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clientapp_crd::ClientApp;
use futures::StreamExt as _;
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client};
use rand::RngExt as _;
use serde_json::json;

use crate::charts;
use crate::operator::{Operator, Options};

const APP: &str = "taken-over";

/// Kills the leader this many times, each time at a different moment between two renewals of its Lease.
pub async fn run(client: &Client, options: &Options, mut leader: Operator, kills: usize) -> Result<()> {
    super::namespace(client, APP).await?;
    super::apply(client, APP, charts::DEFAULT).await?;
    let api = Api::<ClientApp>::namespaced(client.clone(), APP);
    let mut apps = Box::pin(watcher::watch_object(api.clone(), APP));
    let mut observed = async |generation: Option<i64>| -> Result<()> {
        loop {
            let app = apps.next().await.context("the watch ended")?;
            let status = app.ok().flatten().and_then(|app| app.status);
            if status.is_some_and(|status| status.observed_generation >= generation) {
                return Ok(());
            }
        }
    };
    observed(Some(1)).await?;
    let mut times = Vec::new();
    for kill in 0..kills {
        let mut next = tokio::task::block_in_place(|| Operator::start(options))?;
        tokio::task::block_in_place(|| next.wait_for_log("waiting for the lease"))?;
        let moment = Duration::from_millis(rand::rng().random_range(0..5000));
        tokio::time::sleep(moment).await;
        tokio::task::block_in_place(|| leader.kill())?;
        let killed = Instant::now();
        let patch = Patch::Merge(json!({"spec": {"hostname": format!("{APP}-{kill}.example.com")}}));
        observed(api.patch(APP, &PatchParams::default(), &patch).await?.metadata.generation).await?;
        times.push(killed.elapsed().as_secs_f64());
        leader = next;
    }
    let (median, worst) = super::median_and_worst(&mut times);
    println!("{kills} kills, to the first status by another operator: median {median:.1} s, worst {worst:.1} s");
    Ok(())
}
