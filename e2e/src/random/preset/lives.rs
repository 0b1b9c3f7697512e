//! Random lives of apps and databases, many side by side, while the operator is killed and frozen at random moments. After each life,
//! every object that held data or gave access to data still exists, unless a step requested its deletion or a message says why it is
//! gone.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::block_in_place;

use crate::progress::Progress;
use crate::random::disturbance::moments;
use crate::random::oracle::evidence::{exposed, passwords_in};
use crate::random::oracle::ownership::history::Kind;
use crate::random::oracle::ownership::judge;
use crate::random::oracle::ownership::model::Facts;
use crate::random::oracle::{Oracle, Violation};
use crate::random::report::Ran;
use crate::random::stage::{Found, on_a_thread};
use crate::random::workload::life::Life;
use crate::random::workload::life::script::script;
use crate::random::workload::life::step::Move;
use crate::random::world::World;
use crate::random::{Outcome, Sequences, Workload, failures, of_the_run, sequences};

/// How long after its last step a life has for everything that takes time: a deletion in progress, a message not
/// written yet.
const TIMEOUT: Duration = Duration::from_secs(90);
/// How long to wait for a change before judging again.
const LOOK: Duration = Duration::from_secs(1);

#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    pub sequences: Sequences,
    /// Leave the operator alone
    #[arg(long)]
    pub calm: bool,
    /// Print every life, not only those that fail
    #[arg(long)]
    pub tell: bool,
}

struct Lives {
    world: Arc<World>,
}

pub(crate) async fn run(options: &Options, seed: u64, progress: &Progress) -> Result<Outcome> {
    let Options { sequences: Sequences { common, count, .. }, calm, tell } = options;
    let parallel = common.parallel.unwrap_or(20);
    let world = Arc::new(World::start(true).await?);
    let lives = Arc::new(Lives { world: world.clone() });
    let (stop, mut stopped) = watch::channel(*calm);
    let mut trouble = on_a_thread({
        let world = world.clone();
        async move || {
            tokio::select! {
                ended = moments::trouble(&world, seed) => ended,
                _ = stopped.wait_for(|stopped| *stopped) => Ok(()),
            }
        }
    });
    let lived = sequences(&lives, seed, *count, parallel, progress);
    let lived = if *calm {
        lived.await
    } else {
        tokio::select! {
            lived = lived => lived,
            ended = &mut trouble => bail!("no operator leads: {:#}", ended?.expect_err("trouble has no end")),
        }
    };
    stop.send_replace(true);
    // It may be starting an operator.
    trouble.await??;
    if *tell {
        lived.iter().for_each(|lived| progress.note(&lived.told()));
    }
    let mut outcome = Outcome { cases: lived.len(), ..Outcome::default() };
    outcome.count("steps", lived.iter().map(|lived| lived.done.len()).sum::<usize>());
    if options.sequences.shrink {
        let mut operators = world.operators().await;
        block_in_place(|| operators.resume())?;
    }
    outcome.failures = failures(&lives, lived, &options.sequences, parallel, progress).await;
    let mut operators = world.operators().await;
    let remains = block_in_place(|| operators.thaw().and_then(|()| operators.stop()))?;
    outcome.count("helm runs", remains.arguments.len());
    let record = world.recorder.record();
    let secrets = record.of_kind(Kind::Secret).flat_map(|secret| &secret.versions);
    let canaries: BTreeSet<_> = secrets.flat_map(|(_, secret)| passwords_in(secret)).collect();
    let exposed = Violation::all(Oracle::Secrecy, exposed(&canaries, &remains.log, &remains.arguments));
    let violations = exposed.chain(Violation::all(Oracle::Orphans, remains.leftovers)).collect();
    outcome.failures.extend(of_the_run(violations));
    Ok(outcome)
}

impl Workload for Lives {
    type Step = Move;

    async fn run(&self, seed: u64, steps: Option<Vec<Move>>) -> Result<Ran<Move>> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let namespace = format!("life-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        let (began, script) = (Timestamp::now(), script(seed));
        let made = if script.made_namespace { ", marked as created for acme" } else { "" };
        let head = format!("in namespace {namespace}{made}");
        let mut life = Life::new(self.world.clone(), namespace, script.made_namespace).await?;
        life.listen().await?;
        for moved in &steps.unwrap_or(script.moves) {
            life.take(moved).await;
        }
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            life.settled(left).await?;
            life.audit().await?;
            let (violations, mut details) = verdict(&life, &life.rest().await?);
            if Instant::now() > deadline || !violations.iter().any(Violation::may_pass) {
                let notes = self.world.noted(began);
                details.extend(self.world.logged(&life.namespace).await);
                let again = format!("lives --seed {seed} --count 1");
                return Ok(Ran { seed, head, done: life.done, notes, violations, details, again });
            }
            let seen = self.world.now();
            self.world.until(LOOK, |world| (world.now() > seen).then_some(())).await;
        }
    }
}

/// The violations, and which client deleted each lost object.
fn verdict(life: &Life, rest: &[Found]) -> (Vec<Violation>, Vec<String>) {
    let record = life.world.recorder.record();
    let facts = Facts::new(&record, &life.namespace, &life.trace, &life.asked);
    let violations = judge(&facts, rest);
    let lost = facts.objects.iter().filter(|seen| violations.iter().any(|violation| violation.what == seen.what()));
    let details = lost.map(|seen| {
        let maker = facts.maker(seen).map_or("an unknown client".to_owned(), ToString::to_string);
        let mut text = format!("{} uid {} was made by {maker}", seen.what(), seen.uid);
        if let Some(request) = facts.deleter(seen) {
            let _ = write!(text, "; {} by {} at {}", request.verb, request.actor, request.at.strftime("%H:%M:%S%.3f"));
        } else if seen.gone.is_some() {
            text += "; no request for its deletion is on record";
        }
        text
    });
    let details = details.collect();
    (violations, details)
}
