//! Random specs, from the kinds' own schemas, in sequences, and random strings for every string field.
//!
//! An object is created with little in its spec. Then its spec is changed several times, to what the schema permits and
//! to what it does not. In the end it has to be as its last spec alone makes it, and as at first once its first spec is
//! back. So Acto tests operators (SOSP '23).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use http::Method;
use serde_json::json;

use crate::progress::Progress;
use crate::random::report::Ran;
use crate::random::requests::{WHOLE, ask};
use crate::random::stage::Stage;
use crate::random::workload::specs::kind::Kind;
use crate::random::workload::specs::{self, Step};
use crate::random::workload::strings::{self, Strings};
use crate::random::{Outcome, Sequences, Workload, failures, sequences};

#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    pub sequences: Sequences,
    /// Number of strings for each string field
    #[arg(long, default_value_t = 20)]
    pub strings: usize,
}

struct Specs {
    stage: Stage,
}

/// Runs the strings, and then the sequences.
pub(crate) async fn run(options: &Options, seed: u64, progress: &Progress) -> Result<Outcome> {
    let Options { sequences: Sequences { common, count, .. }, strings } = options;
    let parallel = common.parallel.unwrap_or(4);
    let stage = Stage::start(true).await?;
    // The Profile that ClientApps may name.
    let class = Kind::Profile.object("class", &json!({"description": "plain"}));
    ask(&stage.client, Method::POST, &Kind::Profile.url(""), WHOLE, &class).await?.accepted()?;
    let mut outcome = Outcome::default();
    if *strings > 0 {
        // First, since its operator sees all namespaces.
        let task = progress.task("strings");
        let Strings { sent, accepted, failures } = strings::run(&stage, seed, *strings, &task).await?;
        task.done();
        failures.iter().for_each(|failure| progress.note(failure));
        let again = format!("\n  again: cargo e2e specs --seed {seed} --count 0 --strings {strings}");
        outcome.failures.extend(failures.into_iter().map(|failure| failure + &again));
        outcome.count("strings sent", sent);
        outcome.count("strings accepted", accepted);
    }
    let specs = Arc::new(Specs { stage });
    let ran = sequences(&specs, seed, *count, parallel, progress).await;
    outcome.cases = ran.len();
    let changes = || ran.iter().flat_map(|ran| &ran.done);
    let refused = changes().filter(|done| !done.outcome.is_empty()).count();
    outcome.count("changes accepted", changes().count() - refused);
    outcome.count("changes refused", refused);
    outcome.failures.extend(failures(&specs, ran, &options.sequences, parallel, progress).await);
    Ok(outcome)
}

impl Workload for Specs {
    type Step = Step;

    async fn run(&self, seed: u64, steps: Option<Vec<Step>>) -> Result<Ran<Step>> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let namespace = format!("specs-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        // So a seed is all of a sequence, and the kinds take turns.
        let kind = Kind::ALL[(seed % 4) as usize];
        specs::run(&self.stage, &namespace, kind, seed, steps.as_deref()).await
    }
}
