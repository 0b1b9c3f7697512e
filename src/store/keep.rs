//! Which dumps stay in the bucket. **Pure.**
//!
//! The rules are those of `dump.sh` on the volume: a dump is removed only for newer ones of the same server, and a dump with data only
//! for others with data. Damaged dumps replace nothing, and the caller leaves them out.

use std::collections::BTreeSet;

use jiff::civil::Date;

use super::dump::Name;

/// How many are kept for each period. A day, a week or a month is represented by its newest dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keep {
    pub last: u32,
    pub daily: u32,
    pub weekly: u32,
    pub monthly: u32,
}

/// How many are kept, and the period that a date belongs to.
type Rule = (u32, fn(Date) -> String);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Candidate {
    pub name: Name,
    /// The server's system identifier.
    pub system: String,
    pub has_data: bool,
}

/// The dumps to keep.
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

/// The dumps of this server to remove.
pub(crate) fn goes(all: &[Candidate], server: &str, keep: Keep) -> Vec<Name> {
    let kept = kept(all, keep);
    let goes = |candidate: &&Candidate| candidate.system == server && !kept.contains(&candidate.name);
    all.iter().filter(goes).map(|candidate| candidate.name.clone()).collect()
}

/// The names, given newest first, that any of the rules keeps.
fn chosen<'a>(names: impl Iterator<Item = &'a Name> + Clone, keep: Keep) -> BTreeSet<&'a Name> {
    let Keep { last, daily, weekly, monthly } = keep;
    // The newest is kept, whatever the rules say.
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
