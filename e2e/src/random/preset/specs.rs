//! Random specs, from the kinds' own schemas, in sequences on a real control plane, and random strings for every string
//! field.
//!
//! An object is created with little in its spec. Then its spec is changed several times, to what the schema permits and
//! to what it does not. In the end it has to be as its last spec alone makes it, and as at first once its first spec is
//! back. So Acto tests operators (SOSP '23).
//!
//! | | module | |
//! |---|---|---|
//! | the changes | schema | pure |
//! | the kinds, and requests | kind | effect |
//! | runs a sequence | sequence | effect |
//! | what may differ from the last spec alone | history | pure |
//! | the strings | text | pure |
//! | sends them | strings | effect |

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use futures::{StreamExt as _, stream};
use http::Method;
use jiff::Timestamp;
use serde_json::json;
use tokio::task::block_in_place;

use crate::postgres::Postgres;
use crate::progress::Progress;
use crate::random::workload::case::{self, on_a_thread};
use crate::random::workload::specs::kind::{Kind, WHOLE, ask};
use crate::random::workload::specs::{Ran, Step};
use crate::random::workload::strings::Strings;

#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Seed of the first sequence; the others count up from it, and so do the kinds. Default: the current time
    #[arg(long, env = "SPECS_SEED")]
    pub seed: Option<u64>,
    /// Number of sequences
    #[arg(long, value_name = "SEQUENCES", default_value_t = 40)]
    pub count: u64,
    /// Number of sequences at the same time
    #[arg(long, default_value_t = 4)]
    pub parallel: usize,
    /// Number of strings for each string field
    #[arg(long, default_value_t = 20)]
    pub strings: usize,
    /// Look for the fewest changes that still lead to each failure
    #[arg(long)]
    pub shrink: bool,
}

/// Shared by all sequences.
pub struct Stage {
    pub cases: case::Stage,
    /// For PostgresWriters: each operator has a database of its own there.
    pub postgres: Postgres,
}

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The seed of the first sequence.
    pub seed: u64,
    /// Changes that the API server has accepted, and refused.
    pub accepted: usize,
    pub refused: usize,
    /// Strings that were sent, and accepted.
    pub sent: usize,
    pub taken: usize,
    /// A story for each sequence that failed, and for each string.
    pub failures: Vec<String>,
}

impl Outcome {
    /// In a line.
    #[must_use]
    pub fn told(&self) -> String {
        let Outcome { seed, accepted, refused, sent, taken, failures } = self;
        let failures = failures.len();
        format!("{failures} failures, starting at seed {seed}; {accepted} changes were accepted and {refused} refused")
            + &format!("; {taken} of {sent} strings were accepted")
    }
}

/// Runs the strings, and then the sequences.
///
/// # Errors
/// If the lab cannot be started.
pub fn run(options: &Options, progress: &Progress) -> Result<Outcome> {
    tokio::runtime::Runtime::new()?.block_on(specs(options, progress))
}

async fn specs(options: &Options, progress: &Progress) -> Result<Outcome> {
    let seed = options.seed.unwrap_or_else(|| Timestamp::now().as_millisecond().unsigned_abs());
    progress.note(&format!("specs: {} sequences, starting at seed {seed}", options.count));
    let stage = Arc::new(Stage::start().await?);
    let mut outcome = Outcome { seed, accepted: 0, refused: 0, sent: 0, taken: 0, failures: Vec::new() };
    if options.strings > 0 {
        // First, since its operator sees all namespaces.
        let task = progress.task("strings");
        let Strings { sent, accepted, failures } =
            crate::random::workload::strings::run(&stage, seed, options.strings, &task).await?;
        task.done();
        let again = format!("\n  again: cargo e2e specs --seed {seed} --count 0 --strings {}", options.strings);
        failures.iter().for_each(|failure| progress.note(failure));
        outcome.failures.extend(failures.into_iter().map(|failure| failure + &again));
        (outcome.sent, outcome.taken) = (sent, accepted);
    }
    let task = progress.task("sequences");
    task.steps(usize::try_from(options.count)?);
    let seeds = (0..options.count).map(|nth| seed.wrapping_add(nth));
    let mut sequences = stream::iter(seeds)
        .map(async |seed| (seed, attempt(&stage, seed, None).await))
        .buffer_unordered(options.parallel.max(1));
    let mut failed = Vec::new();
    while let Some((seed, ran)) = sequences.next().await {
        task.step();
        if let Ok(ran) = &ran {
            let refused = ran.steps.iter().filter(|(_, refused)| refused.is_some()).count();
            outcome.refused += refused;
            outcome.accepted += ran.steps.len() - refused;
        }
        if let Some(story) = story(seed, &ran) {
            progress.note(&story);
            failed.push((seed, ran, story));
        }
    }
    drop(sequences);
    task.done();
    failed.sort_by_key(|(seed, ..)| *seed);
    for (seed, ran, told) in failed {
        let shorter = match ran {
            Ok(ran) if options.shrink => story(seed, &Ok(shrink(&stage, seed, ran, progress).await)),
            _ => None,
        };
        outcome.failures.push(shorter.unwrap_or(told));
    }
    Ok(outcome)
}

impl Stage {
    async fn start() -> Result<Stage> {
        let cases = case::Stage::start().await?;
        let postgres = block_in_place(Postgres::start)?;
        // The Profile that ClientApps may name.
        let class = Kind::Profile.object("class", &json!({"description": "plain"}));
        let client = cases.lab.plane.client().await?;
        ask(&client, Method::POST, &Kind::Profile.url(""), WHOLE, &class).await?.accepted()?;
        Ok(Stage { cases, postgres })
    }
}

/// The kind of a sequence: so a seed is all of it.
fn kind_of(seed: u64) -> Kind {
    match seed % 4 {
        0 => Kind::ClientApp,
        1 => Kind::Postgresql,
        2 => Kind::PostgresWriter,
        _ => Kind::Profile,
    }
}

/// One sequence on its own thread, in namespaces that no other has.
async fn attempt(stage: &Arc<Stage>, seed: u64, steps: Option<Vec<Step>>) -> Result<Ran> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let namespace = format!("specs-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let stage = stage.clone();
    on_a_thread(async move || {
        crate::random::workload::specs::run(&stage, &namespace, kind_of(seed), seed, steps.as_deref()).await
    })
    .await?
}

/// Leaves out changes without which a sequence still fails, one after the other.
async fn shrink(stage: &Arc<Stage>, seed: u64, ran: Ran, progress: &Progress) -> Ran {
    let mut least = ran;
    let mut at = 0;
    while at < least.steps.len() {
        progress.note(&format!("shrinking seed {seed}: {} changes", least.steps.len()));
        let mut steps: Vec<Step> = least.steps.iter().map(|(step, _)| step.clone()).collect();
        steps.remove(at);
        match attempt(stage, seed, Some(steps)).await {
            Ok(ran) if !ran.wrong.is_empty() => least = ran,
            _ => at += 1,
        }
    }
    least
}

/// A failure for people.
fn story(seed: u64, ran: &Result<Ran>) -> Option<String> {
    let mut text = format!("seed {seed}, {}:", kind_of(seed).name());
    match ran {
        Ok(ran) if ran.wrong.is_empty() => return None,
        Ok(Ran { first, steps, wrong }) => {
            _ = write!(text, "\n  created with {first}");
            for (step, refused) in steps {
                let refused = refused.as_ref().map(|why| format!("\n    -> {why}")).unwrap_or_default();
                _ = write!(text, "\n  {step}{refused}");
            }
            wrong.iter().for_each(|why| _ = write!(text, "\n  {why}"));
        }
        Err(error) => _ = write!(text, "\n  it cannot be run: {error:#}"),
    }
    _ = write!(text, "\n  again: cargo e2e specs --seed {seed} --count 1 --strings 0");
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::workload::specs::schema::Mutation;

    #[test]
    fn a_story_repeats_itself() {
        let step = |patch| Step { mutation: Mutation { patch, refused: false }, rests: true };
        let refused = Some("422 small".to_owned());
        let steps = vec![(step(json!({"replicas": 2})), None), (step(json!({"port": 0})), refused)];
        let ran = |wrong| Ok(Ran { first: json!({}), steps: steps.clone(), wrong });
        assert_eq!(story(5, &ran(Vec::new())), None);
        let expected = "seed 5, Postgresql:
  created with {}
  {\"replicas\":2}, until it is at rest
  {\"port\":0}, until it is at rest
    -> 422 small
  it is not at rest
  again: cargo e2e specs --seed 5 --count 1 --strings 0";
        assert_eq!(story(5, &ran(vec!["it is not at rest".to_owned()])).as_deref(), Some(expected));
    }

    #[test]
    fn the_kinds_take_turns_and_have_their_paths() {
        let kinds: Vec<_> = (0..4).map(kind_of).collect();
        assert_eq!(kinds, Kind::ALL);
        for kind in Kind::ALL {
            let plural = kind.definition().spec.names.plural;
            assert!(kind.url("a").ends_with(&format!("/{plural}")), "{kind:?}");
            assert_eq!(kind.url("a").contains("/namespaces/a/"), kind.definition().spec.scope == "Namespaced");
        }
    }
}
