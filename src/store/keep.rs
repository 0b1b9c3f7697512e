//! Which dumps stay in the bucket. **Pure.**
//!
//! As `dump.sh` does on the volume: a dump goes only for newer ones of the same server, and one with data only for others with
//! data. What is damaged stands for nothing, and does not come here.

use std::collections::BTreeSet;

use jiff::civil::Date;

use super::dump::Name;

/// How many are kept of each age. The newest of a day, a week or a month stands for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keep {
    pub last: u32,
    pub daily: u32,
    pub weekly: u32,
    pub monthly: u32,
}

/// How many are kept, each of another period.
type Rule = (u32, fn(Date) -> String);

/// What is decided on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    pub name: Name,
    /// The server's identifier.
    pub system: String,
    pub has_data: bool,
}

/// Those that stay.
pub(crate) fn kept(all: &[Candidate], keep: Keep) -> BTreeSet<Name> {
    let servers: BTreeSet<_> = all.iter().map(|candidate| &candidate.system).collect();
    let of_each = servers.into_iter().flat_map(|server| {
        let mut its: Vec<_> = all.iter().filter(|candidate| candidate.system == *server).collect();
        its.sort();
        its.reverse();
        let with_data =
            chosen(its.iter().filter(|candidate| candidate.has_data).map(|candidate| &candidate.name), keep);
        let any = chosen(its.iter().map(|candidate| &candidate.name), keep);
        let stays = |candidate: &&&Candidate| {
            let among = if candidate.has_data { &with_data } else { &any };
            among.contains(&candidate.name)
        };
        its.iter().filter(stays).map(|candidate| candidate.name.clone()).collect::<Vec<_>>()
    });
    of_each.collect()
}

/// Of the server of these dumps, those that go.
pub(crate) fn goes(all: &[Candidate], server: &str, keep: Keep) -> Vec<Name> {
    let kept = kept(all, keep);
    let goes = |candidate: &&Candidate| candidate.system == server && !kept.contains(&candidate.name);
    all.iter().filter(goes).map(|candidate| candidate.name.clone()).collect()
}

/// Of names from the newest to the oldest, those that one rule or another keeps.
fn chosen<'a>(names: impl Iterator<Item = &'a Name> + Clone, keep: Keep) -> BTreeSet<&'a Name> {
    let Keep { last, daily, weekly, monthly } = keep;
    // Whatever is asked for, the newest one stays.
    let mut chosen: BTreeSet<_> = names.clone().take(last.max(1) as usize).collect();
    let rules: [Rule; 3] = [
        (daily, |date| date.to_string()),
        (weekly, |date| format!("{}-{}", date.iso_week_date().year(), date.iso_week_date().week())),
        (monthly, |date| format!("{}-{}", date.year(), date.month())),
    ];
    for (count, period) in rules {
        let mut seen = BTreeSet::new();
        for name in names.clone() {
            if seen.len() < count as usize && seen.insert(period(name.date())) {
                chosen.insert(name);
            }
        }
    }
    chosen
}

#[cfg(test)]
mod tests;
