//! An app with its user, who goes on for as long as everything is disturbed, and knows what has to become of the app. An **effect**.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::watch;

use super::Life;
use super::script::App;
use super::step::{Cascade, Policy, Step};
use crate::random::oracle::ownership::history::{Kind, Record};
use crate::random::oracle::rest::{Key, as_expected};
use crate::random::oracle::{Oracle, Violation};
use crate::random::report::Ran;
use crate::random::world::World;

/// For a deletion among many.
pub const GONE: Duration = Duration::from_secs(600);
/// Longer than any run.
const FOR_EVER: Duration = Duration::from_secs(1 << 20);

pub struct Lasting {
    pub app: App,
    life: Life,
    random: StdRng,
}

impl Lasting {
    /// The number chooses the kind of the app, and is in its name.
    pub async fn new(world: &Arc<World>, namespace: &str, number: usize, seed: u64) -> Result<Lasting> {
        // For the lifetime of this process, like its lab.
        let name = Box::leak(format!("app-{number}").into_boxed_str());
        let life = Life::new(world.clone(), namespace.to_owned(), false).await?;
        Ok(Lasting { app: App::numbered(name, number), life, random: StdRng::seed_from_u64(seed) })
    }

    pub fn key(&self) -> Key {
        (self.life.namespace.clone(), self.app.name.to_owned())
    }

    /// Returns whether the app is as its user expects, at rest, or what it is instead.
    pub fn judged(&self, record: &Record) -> Result<(), String> {
        let found = record.present(&self.life.namespace, Kind::App, self.app.name);
        as_expected(self.app.expected(), self.life.generation, found.map(|seen| seen.last()))
    }

    /// Returns what is wrong with the app, with its life.
    pub fn story(&self, why: String) -> Ran<super::step::Move> {
        let (namespace, name) = self.key();
        let violations = vec![Violation { oracle: Oracle::Rest, what: format!("{namespace}/{name}"), why }];
        Ran { head: format!("{namespace}/{name}"), done: self.life.done.clone(), violations, ..Ran::default() }
    }

    /// Takes one step after the other, until it is told to stop: the next once the last has come to rest, or after a random number of
    /// steps of others, at most this many.
    pub async fn live(&mut self, mut stop: watch::Receiver<bool>, others: u64) -> Result<()> {
        let world = self.life.world.clone();
        while !*stop.borrow() {
            let step = self.app.next(&mut self.random);
            self.take(step).await?;
            let mut steps = world.steps.subscribe();
            let last = *steps.borrow() + self.random.random_range(1..=others.max(1));
            let rested = tokio::select! {
                rested = self.rests(FOR_EVER) => rested,
                _ = steps.wait_for(|steps| *steps >= last) => false,
                _ = stop.wait_for(|stop| *stop) => false,
            };
            if rested {
                self.app = self.app.rested();
            }
        }
        Ok(())
    }

    /// Takes a step; one that deletes the app is over when that is gone.
    pub async fn take(&mut self, step: Step) -> Result<()> {
        let world = self.life.world.clone();
        world.steps.send_modify(|steps| *steps += 1);
        self.app = self.app.after(&step);
        let _deletion = match self.app.exists {
            true => None,
            false => Some(world.deletions.read().await),
        };
        self.life.insist(step).await?;
        if !self.app.exists && !self.rests(GONE).await {
            let judged = self.judged(&self.life.world.recorder.record());
            return judged.map_err(|why| anyhow!(why)).context("its deletion does not finish");
        }
        Ok(())
    }

    pub async fn create(&mut self) -> Result<()> {
        self.take(Step::Create(self.app.name, self.app.spec(Policy::Delete))).await
    }

    pub async fn delete(&mut self) -> Result<()> {
        self.take(Step::Delete(self.app.name, Cascade::Background)).await
    }

    /// Waits until the app is as its user expects. Returns whether it is in time.
    pub async fn rests(&self, within: Duration) -> bool {
        let judged = |world: &World| self.judged(&world.recorder.record()).is_ok().then_some(());
        self.life.world.until(within, judged).await.is_some()
    }
}
