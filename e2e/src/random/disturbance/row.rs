//! The rows of the matrix, and the moments that each of them can hit: they are found in the writes of the undisturbed run.
//! Pure.

use std::fmt;
use std::time::Duration;

use axum::http::StatusCode;
use derive_more::Display;

use super::blow::{Blow, Side};
use crate::proxy::{self, By, Rule, Snap, Trap, Write};

/// Says what is wrong all the time.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
pub enum Standing {
    /// Each watch is cut after this time.
    #[display("each watch is cut after {} s", _0.as_secs_f32())]
    WatchesCut(Duration),
    /// Each request is answered so much later.
    #[display("each answer is {} s late", _0.as_secs_f32())]
    Slow(Duration),
    /// Each event on the watch of a resource, in a Role's terms, arrives so much later.
    #[display("the watch of {_0} is {} s late", _1.as_secs_f32())]
    LateWatch(&'static str, Duration),
}

impl Standing {
    /// The rule for it.
    pub fn rule(self) -> Rule {
        match self {
            Standing::WatchesCut(after) => Rule::new("watch", "*", proxy::Fault::Cut(after)),
            Standing::Slow(by) => Rule::new("*", "*", proxy::Fault::Late(by)),
            Standing::LateWatch(resource, by) => Rule::new("watch", resource, proxy::Fault::Late(by)),
        }
    }
}

/// A blow at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// At the nth write.
    At { by: By, nth: usize, blow: Blow },
    /// All the time.
    Throughout(Standing),
}

impl Fault {
    /// The trap for it.
    pub fn trap(self) -> Option<Trap> {
        let Fault::At { by, nth, blow } = self else { return None };
        Some(Trap { by, nth, snap: blow.snap() })
    }

    /// Returns what happens at its moment.
    pub fn blow(self) -> Option<Blow> {
        match self {
            Fault::At { blow, .. } => Some(blow),
            Fault::Throughout(_) => None,
        }
    }

    /// Returns whether it disturbs every operator of the plane.
    pub fn is_for_all(self) -> bool {
        matches!(self.blow(), Some(Blow::Outage(_)))
    }

    /// Returns whether it ends the scenario before its time.
    pub fn cuts_short(self) -> bool {
        matches!(self.blow(), Some(Blow::Delete(_)))
    }

    /// Returns whether the API server's log may lack a write that was applied, or call it cancelled.
    pub fn leaves_gaps(self) -> bool {
        let under_way = matches!(self.blow(), Some(Blow::Kill(Side::Meanwhile) | Blow::KillTree(Side::Meanwhile)));
        under_way || self.is_for_all()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::Throughout(standing) => write!(f, "{standing}"),
            Fault::At { by: By::Helm, nth, blow } => f.write_str(&blow.at(&format!("helm's write {nth}"))),
            Fault::At { nth, blow, .. } => f.write_str(&blow.at(&format!("the operator's write {nth}"))),
        }
    }
}

/// A row: its number in the list of faults, and its title.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub number: u8,
    pub title: &'static str,
}

/// All rows, in order.
pub const ROWS: [Row; 21] = [
    Row { number: 1, title: "operator killed at each of its own writes" },
    Row { number: 2, title: "operator and helm killed at each write of helm" },
    Row { number: 3, title: "operator killed at each write of helm, helm orphaned" },
    Row { number: 4, title: "operator asked to stop at each write of helm" },
    Row { number: 5, title: "helm alone killed at each of its writes" },
    Row { number: 12, title: "API server killed and started again at each write" },
    Row { number: 13, title: "API server slow, and without an answer at each write" },
    Row { number: 14, title: "each watch cut after a second" },
    Row { number: 15, title: "all watches expired at each write" },
    Row { number: 19, title: "409 to each write" },
    Row { number: 20, title: "429 for a second, for a minute, to each write" },
    Row { number: 21, title: "500, 503, a web page, half an answer to each write" },
    Row { number: 22, title: "answer lost of each write" },
    Row { number: 24, title: "Lease stolen at each write of helm" },
    Row { number: 26, title: "clock set by five minutes at each write" },
    Row { number: 39, title: "app deleted at each write until it is Ready, and at each of its deletion" },
    Row { number: 48, title: "403 to each write" },
    Row { number: 51, title: "leader frozen at each write, thawed after its successor has finished" },
    Row { number: 52, title: "watch of one kind twelve seconds late" },
    Row { number: 53, title: "Lease refused, hung, deleted at each write of helm" },
    Row { number: 60, title: "operator killed while each write is under way" },
];

/// The resources of row 52.
const WATCHED: [&str; 7] = [
    "clientapps",
    "deployments",
    "perconapgclusters",
    "persistentvolumeclaims",
    "postgresqls",
    "secrets",
    "statefulsets",
];

impl Row {
    /// The faults of the row for a scenario with these writes.
    pub fn faults(self, writes: &[Write]) -> Vec<Fault> {
        use By::{Helm, Operator};
        let both = |blow: fn(Side) -> Blow| Side::BOTH.map(blow).to_vec();
        let answers = |statuses: &[StatusCode]| {
            statuses.iter().map(|status| Blow::Snap(Snap::Answer(*status))).collect::<Vec<_>>()
        };
        let throughout = |standings: Vec<Standing>| standings.into_iter().map(Fault::Throughout).collect::<Vec<_>>();
        let of = |blows: Vec<Blow>| vec![(Operator, blows.clone()), (Helm, blows)];
        let (blows, mut faults) = match self.number {
            1 => (vec![(Operator, both(Blow::Kill))], Vec::new()),
            2 => (vec![(Helm, both(Blow::KillTree))], Vec::new()),
            3 => (vec![(Helm, both(Blow::Kill))], Vec::new()),
            4 => (vec![(Helm, both(Blow::Terminate))], Vec::new()),
            5 => (vec![(Helm, both(Blow::KillHelm))], Vec::new()),
            12 => (of(both(Blow::Outage)), Vec::new()),
            13 => {
                (of(vec![Blow::Stall]), throughout([100, 1000].map(Duration::from_millis).map(Standing::Slow).to_vec()))
            }
            14 => (Vec::new(), throughout(vec![Standing::WatchesCut(Duration::from_secs(1))])),
            15 => (of(vec![Blow::Expire]), Vec::new()),
            19 => (of(answers(&[StatusCode::CONFLICT])), Vec::new()),
            20 => (of([1, 60].map(Snap::TooMany).map(Blow::Snap).to_vec()), Vec::new()),
            21 => {
                let statuses = answers(&[StatusCode::INTERNAL_SERVER_ERROR, StatusCode::SERVICE_UNAVAILABLE]);
                (of([statuses, [Snap::Page, Snap::Halve].map(Blow::Snap).to_vec()].concat()), Vec::new())
            }
            22 => (of(vec![Blow::Snap(Snap::Lose)]), Vec::new()),
            24 => (vec![(Helm, vec![Blow::Usurp])], Vec::new()),
            26 => (of([-5, 5].map(Blow::Jump).to_vec()), Vec::new()),
            39 => (of(both(Blow::Delete)), Vec::new()),
            48 => (of(answers(&[StatusCode::FORBIDDEN])), Vec::new()),
            51 => (of(vec![Blow::Freeze]), Vec::new()),
            52 => {
                let late = |resource| Standing::LateWatch(resource, Duration::from_secs(12));
                (Vec::new(), throughout(WATCHED.map(late).to_vec()))
            }
            53 => (vec![(Helm, vec![Blow::RefuseLease, Blow::HangLease, Blow::DeleteLease])], Vec::new()),
            60 => {
                let (kill, tree) = (Blow::Kill(Side::Meanwhile), Blow::KillTree(Side::Meanwhile));
                (vec![(Operator, vec![kill]), (Helm, vec![tree])], Vec::new())
            }
            _ => return Vec::new(),
        };
        for (by, blows) in blows {
            let count = writes.iter().filter(|write| write.by == by).count();
            for nth in 1..=count {
                faults.extend(blows.iter().map(|blow| Fault::At { by, nth, blow: *blow }));
            }
        }
        faults
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_write_is_a_moment() {
        let writes = Write::of_each(&[By::Operator, By::Operator, By::Helm, By::Operator, By::Helm]);
        // At the operator's writes, at helm's, and throughout.
        for (number, of_operator, of_helm, throughout) in [
            (1, 6, 0, 0),
            (2, 0, 4, 0),
            (3, 0, 4, 0),
            (4, 0, 4, 0),
            (5, 0, 4, 0),
            (12, 6, 4, 0),
            (13, 3, 2, 2),
            (14, 0, 0, 1),
            (15, 3, 2, 0),
            (19, 3, 2, 0),
            (20, 6, 4, 0),
            (21, 12, 8, 0),
            (22, 3, 2, 0),
            (24, 0, 2, 0),
            (26, 6, 4, 0),
            (39, 6, 4, 0),
            (48, 3, 2, 0),
            (51, 3, 2, 0),
            (52, 0, 0, 7),
            (53, 0, 6, 0),
            (60, 3, 2, 0),
        ] {
            let row = ROWS.iter().find(|row| row.number == number).unwrap();
            let faults = row.faults(&writes);
            let by = |by| faults.iter().filter(|fault| fault.trap().map(|trap| trap.by) == by).count();
            let counts = (by(Some(By::Operator)), by(Some(By::Helm)), by(None));
            assert_eq!(counts, (of_operator, of_helm, throughout), "row {number}: {faults:?}");
            assert!(faults.iter().all(|fault| fault.is_for_all() == (number == 12)), "row {number}");
            assert!(faults.iter().all(|fault| fault.cuts_short() == (number == 39)), "row {number}");
            assert!(faults.iter().all(|fault| fault.leaves_gaps() == [12, 60].contains(&number)), "row {number}");
        }
        // A row without its moments would hold always.
        assert_eq!(ROWS.iter().filter(|row| row.faults(&writes).is_empty()).count(), 0);
    }

    #[test]
    fn a_fault_is_told_in_a_sentence() {
        let at = |by, blow| Fault::At { by, nth: 3, blow }.to_string();
        for (told, expected) in [
            (at(By::Operator, Blow::Kill(Side::Before)), "the operator is killed before the operator's write 3"),
            (at(By::Helm, Blow::KillTree(Side::After)), "the operator and its helms are killed after helm's write 3"),
            (at(By::Helm, Blow::KillHelm(Side::Before)), "helm is killed, and helm's write 3 arrives late"),
            (at(By::Helm, Blow::Snap(Snap::Answer(StatusCode::CONFLICT))), "helm's write 3 is answered 409"),
            (at(By::Helm, Blow::Kill(Side::Meanwhile)), "the operator is killed during helm's write 3"),
            (at(By::Operator, Blow::Jump(-5)), "the clock jumps by -5 min before the operator's write 3"),
            (
                Fault::Throughout(Standing::LateWatch("secrets", Duration::from_secs(12))).to_string(),
                "the watch of secrets is 12 s late",
            ),
        ] {
            assert_eq!(told, expected);
        }
    }
}
