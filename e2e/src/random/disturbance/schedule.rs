//! When what is disturbed. Pure.

use std::time::Duration;

/// What is disturbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Blow {
    /// The operator is killed, and started again.
    Kill,
    /// The API server is killed, and started again.
    Outage,
    /// Another holder takes the Lease, and never renews it.
    Theft,
    /// Another Helm client upgrades or uninstalls a release.
    OtherHelm,
}

/// How often, in seconds, and how many times at least.
const PACE: [(Blow, u64, u32); 4] =
    [(Blow::Kill, 60, 3), (Blow::Outage, 300, 1), (Blow::Theft, 420, 1), (Blow::OtherHelm, 90, 1)];

/// All blows of a run of this length, in order, each with its time since the start.
#[must_use]
pub fn schedule(total: Duration) -> Vec<(Duration, Blow)> {
    let mut blows = Vec::new();
    for (blow, seconds, at_least) in PACE {
        let pace = Duration::from_secs(seconds).min(total / (at_least + 1));
        let times = (1u32..).map(|nth| pace * nth);
        blows.extend(times.take_while(|at| *at < total).map(|at| (at, blow)));
    }
    blows.sort();
    blows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_many_blows_there_are() {
        for (minutes, [kills, outages, thefts, helms]) in
            [(1, [3, 1, 1, 1]), (3, [3, 1, 1, 1]), (5, [4, 1, 1, 3]), (8, [7, 1, 1, 5]), (60, [59, 11, 8, 39])]
        {
            let blows = schedule(Duration::from_secs(60 * minutes));
            let count = |which: Blow| blows.iter().filter(|(_, blow)| *blow == which).count();
            let found = [count(Blow::Kill), count(Blow::Outage), count(Blow::Theft), count(Blow::OtherHelm)];
            assert_eq!(found, [kills, outages, thefts, helms], "{minutes} minutes");
            assert!(blows.is_sorted(), "{blows:?}");
        }
    }
}
