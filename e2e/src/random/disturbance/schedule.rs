//! When what is disturbed. Pure.

use std::time::Duration;

use super::blow::{Blow, Side};

/// A blow that is struck again and again.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    pub blow: Blow,
    /// As it is counted.
    pub title: &'static str,
    /// How often, in seconds.
    seconds: u64,
    /// How many times at least.
    at_least: u32,
}

pub const PACES: [Pace; 4] = [
    Pace { blow: Blow::Kill(Side::Meanwhile), title: "operator killed", seconds: 60, at_least: 3 },
    Pace { blow: Blow::Outage(Side::Meanwhile), title: "API server killed", seconds: 300, at_least: 1 },
    Pace { blow: Blow::Usurp, title: "Lease stolen", seconds: 420, at_least: 1 },
    Pace { blow: Blow::OtherHelm, title: "release changed by another Helm client", seconds: 90, at_least: 1 },
];

/// All blows of a run of this length, in order, each with its time since the start.
pub fn schedule(total: Duration) -> Vec<(Duration, Pace)> {
    let times = |pace: Pace| {
        let each = Duration::from_secs(pace.seconds).min(total / (pace.at_least + 1));
        (1u32..).map(move |nth| (each * nth, pace)).take_while(move |(at, _)| *at < total)
    };
    let mut blows: Vec<_> = PACES.into_iter().flat_map(times).collect();
    blows.sort_by_key(|(at, _)| *at);
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
            let count = |pace: Pace| blows.iter().filter(|(_, blow)| blow.title == pace.title).count();
            let found = PACES.map(count);
            assert_eq!(found, [kills, outages, thefts, helms], "{minutes} minutes");
            assert!(blows.is_sorted_by_key(|(at, _)| *at), "{blows:?}");
        }
    }
}
