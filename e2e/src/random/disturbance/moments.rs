//! Kills and freezes the operator during the lives. An **effect**.
//!
//! Moments are not times but observed events: a deletion has begun, helm has written a revision, a volume is being
//! deleted.

use std::time::Duration;

use anyhow::Result;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tokio::task::block_in_place;

use super::blow::{Blow, Side, Target};
use crate::manifests;
use crate::random::oracle::ownership::history::{Kind, Record, Seen, Time, is_terminating};
use crate::random::oracle::ownership::recorder::RELEASE;
use crate::random::workload::life::ECHO;
use crate::random::world::World;

/// How long to wait for a moment before assuming that it will not come.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The event to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    /// The deletion of a ClientApp or Postgresql has begun.
    Deletion,
    /// helm has written a revision, or has started to uninstall one.
    Revision,
    /// A volume or a database is being deleted.
    Destruction,
    /// A ClientApp was created.
    Creation,
}

const MOMENTS: [Moment; 4] = [Moment::Deletion, Moment::Revision, Moment::Destruction, Moment::Creation];

/// Kills the operator, or freezes it while another takes over, at random moments, until it is dropped. Returns only if
/// no operator becomes the leader.
pub async fn trouble(world: &World, seed: u64) -> Result<()> {
    let mut random = StdRng::seed_from_u64(seed);
    loop {
        let moment = *MOMENTS.choose(&mut random).expect("there is a moment");
        // Not at the first moment: lives have to make some progress.
        let mut since = world.now();
        for _ in 0..random.random_range(3..12) {
            since = world.until(TIMEOUT, |world| came(&world.recorder.record(), moment, since)).await.unwrap_or(since);
        }
        let (blow, word) =
            if random.random_bool(0.6) { (Blow::Kill(Side::Meanwhile), "killed") } else { (Blow::Freeze, "frozen") };
        let struck_at = world.now();
        world.note(format!("the operator is {word} ({moment:?})"));
        let (lab, proxy, leases) = (world.stage.lab, &world.proxy, world.stage.leases(manifests::NAMESPACE));
        let mut operators = world.operators().await;
        let mut target = Target { lab, operators: &mut operators, proxy, leases, leads_at_once: true };
        target.strike(blow, async || Ok(())).await?;
        drop(operators);
        if blow == Blow::Freeze {
            // Thawed when its successor has finished a deletion that it was in the middle of, and that app was
            // recreated.
            let overtaken = |world: &World| overtaken(&world.recorder.record(), struck_at).then_some(());
            let overtaken = if world.until(TIMEOUT, overtaken).await.is_some() { "overtaken" } else { "not overtaken" };
            world.note(format!("the frozen operator is thawed, {overtaken}"));
            let mut operators = world.operators().await;
            block_in_place(|| operators.thaw())?;
        }
    }
}

/// When a moment came, after a time.
fn came(record: &Record, moment: Moment, since: Time) -> Option<Time> {
    let of_lives = record.objects.values().filter(|seen| seen.namespace != ECHO);
    let deletion = |seen: &Seen| seen.versions.iter().find(|(_, object)| is_terminating(object)).map(|(time, _)| *time);
    let times = of_lives.filter_map(|seen| match (moment, seen.kind) {
        (Moment::Deletion, Kind::App | Kind::Postgresql) => deletion(seen),
        (Moment::Destruction, Kind::Volume | Kind::Cluster) => seen.doomed(),
        (Moment::Revision, Kind::Secret) if seen.first()["type"] == RELEASE => {
            seen.versions.last().map(|(time, _)| *time)
        }
        (Moment::Creation, Kind::App) => Some(seen.created()),
        _ => None,
    });
    times.filter(|time| *time > since).min()
}

/// Returns whether a ClientApp that was being deleted at a time is gone, and another of its name has since got a volume.
fn overtaken(record: &Record, at: Time) -> bool {
    let apps = || record.objects.values().filter(|seen| seen.kind == Kind::App);
    let deleted =
        apps().filter(|app| app.gone.is_some_and(|gone| gone > at) && app.doomed().is_some_and(|time| time <= at));
    let has_volume = |app: &Seen| {
        record.objects.values().any(|seen| {
            seen.kind == Kind::Volume
                && seen.namespace == app.namespace
                && seen.created() > app.created()
                && seen.name.starts_with(&app.name)
        })
    };
    deleted.into_iter().any(|app| {
        apps().any(|next| {
            next.namespace == app.namespace && next.name == app.name && next.created() > at && has_volume(next)
        })
    })
}
