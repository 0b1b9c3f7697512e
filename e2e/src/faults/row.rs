//! The rows of the matrix, and the moments that each of them can hit: they are found in the writes of the undisturbed run.
//! Pure.

use std::fmt;
use std::time::Duration;

use axum::http::StatusCode;

use crate::proxy::{By, Snap, Trap, Write};

/// Which side of the API server's work on a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Before the write is forwarded.
    Before,
    /// After it was applied, and before its answer is passed back.
    After,
}

impl Side {
    const BOTH: [Side; 2] = [Side::Before, Side::After];

    fn snap(self) -> Snap {
        match self {
            Side::Before => Snap::Before,
            Side::After => Snap::After,
        }
    }
}

/// What happens at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// The operator is killed, and started again.
    Kill(Side),
    /// The operator is killed with its helms, and started again.
    KillTree(Side),
    /// helm alone is killed. A write that it has sent arrives late.
    KillHelm(Side),
    /// The API server is killed, and started again.
    Outage(Side),
    /// Another holder takes the Lease, and never renews it.
    Usurp,
    /// The proxy does it.
    Snap(Snap),
}

/// A blow at a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// At the nth write.
    At { by: By, nth: usize, blow: Blow },
    /// All the time: each watch is cut after this time.
    WatchesCut(Duration),
}

impl Fault {
    /// The trap for it.
    #[must_use]
    pub fn trap(self) -> Option<Trap> {
        let Fault::At { by, nth, blow } = self else { return None };
        let snap = match blow {
            Blow::Kill(side) | Blow::KillTree(side) | Blow::KillHelm(side) | Blow::Outage(side) => side.snap(),
            Blow::Usurp => Snap::Before,
            Blow::Snap(snap) => snap,
        };
        Some(Trap { by, nth, snap })
    }

    /// Whether it disturbs every operator of the plane.
    #[must_use]
    pub fn is_for_all(self) -> bool {
        matches!(self, Fault::At { blow: Blow::Outage(_), .. })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (by, nth, blow) = match self {
            Fault::WatchesCut(after) => return write!(f, "each watch is cut after {} s", after.as_secs_f32()),
            Fault::At { by, nth, blow } => (if *by == By::Helm { "helm's" } else { "the operator's" }, nth, blow),
        };
        let side = |side: &Side| if *side == Side::Before { "before" } else { "after" };
        match blow {
            Blow::Kill(at) => write!(f, "the operator is killed {} {by} write {nth}", side(at)),
            Blow::KillTree(at) => write!(f, "the operator and its helms are killed {} {by} write {nth}", side(at)),
            Blow::KillHelm(Side::Before) => write!(f, "helm is killed, and {by} write {nth} arrives late"),
            Blow::KillHelm(Side::After) => write!(f, "helm is killed after {by} write {nth}"),
            Blow::Outage(at) => write!(f, "the API server is killed {} {by} write {nth}", side(at)),
            Blow::Usurp => write!(f, "the Lease is stolen before {by} write {nth}"),
            Blow::Snap(Snap::Answer(status)) => write!(f, "{by} write {nth} is answered {}", status.as_u16()),
            Blow::Snap(Snap::Page) => write!(f, "{by} write {nth} is answered with a web page"),
            Blow::Snap(Snap::Lose) => write!(f, "the answer to {by} write {nth} is lost"),
            Blow::Snap(Snap::Halve) => write!(f, "half of the answer to {by} write {nth} is lost"),
            Blow::Snap(Snap::Before | Snap::After) => write!(f, "{by} write {nth} is held"),
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
pub const ROWS: [Row; 10] = [
    Row { number: 1, title: "operator killed at each of its own writes" },
    Row { number: 2, title: "operator and helm killed at each write of helm" },
    Row { number: 3, title: "operator killed at each write of helm, helm orphaned" },
    Row { number: 5, title: "helm alone killed at each of its writes" },
    Row { number: 12, title: "API server killed and started again at each write" },
    Row { number: 14, title: "each watch cut after a second" },
    Row { number: 19, title: "409 to each write" },
    Row { number: 21, title: "500, 503, a web page, half an answer to each write" },
    Row { number: 22, title: "answer lost of each write" },
    Row { number: 24, title: "Lease stolen at each write of helm" },
];

impl Row {
    /// The faults of the row for a scenario with these writes.
    #[must_use]
    pub fn faults(self, writes: &[Write]) -> Vec<Fault> {
        use By::{Helm, Operator};
        let snaps = |snaps: &[Snap]| snaps.iter().map(|snap| Blow::Snap(*snap)).collect::<Vec<_>>();
        let answers = |statuses: &[StatusCode]| statuses.iter().map(|status| Snap::Answer(*status)).collect::<Vec<_>>();
        let (whose, blows): (&[By], Vec<Blow>) = match self.number {
            1 => (&[Operator], Side::BOTH.map(Blow::Kill).to_vec()),
            2 => (&[Helm], Side::BOTH.map(Blow::KillTree).to_vec()),
            3 => (&[Helm], Side::BOTH.map(Blow::Kill).to_vec()),
            5 => (&[Helm], Side::BOTH.map(Blow::KillHelm).to_vec()),
            12 => (&[Operator, Helm], Side::BOTH.map(Blow::Outage).to_vec()),
            14 => return vec![Fault::WatchesCut(Duration::from_secs(1))],
            19 => (&[Operator, Helm], snaps(&answers(&[StatusCode::CONFLICT]))),
            21 => {
                let answers = answers(&[StatusCode::INTERNAL_SERVER_ERROR, StatusCode::SERVICE_UNAVAILABLE]);
                (&[Operator, Helm], snaps(&[&answers[..], &[Snap::Page, Snap::Halve]].concat()))
            }
            22 => (&[Operator, Helm], snaps(&[Snap::Lose])),
            24 => (&[Helm], vec![Blow::Usurp]),
            _ => return Vec::new(),
        };
        let mut faults = Vec::new();
        for by in whose {
            let count = writes.iter().filter(|write| write.by == *by).count();
            for nth in 1..=count {
                faults.extend(blows.iter().map(|blow| Fault::At { by: *by, nth, blow: *blow }));
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
        for (number, count) in [(1, 6), (2, 4), (3, 4), (5, 4), (12, 10), (14, 1), (19, 5), (21, 20), (22, 5), (24, 2)]
        {
            let row = ROWS.iter().find(|row| row.number == number).unwrap();
            let faults = row.faults(&writes);
            assert_eq!(faults.len(), count, "row {number}: {faults:?}");
            assert!(faults.iter().all(|fault| fault.trap().is_some() != (number == 14)), "row {number}");
            assert!(faults.iter().all(|fault| fault.is_for_all() == (number == 12)), "row {number}");
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
            (Fault::WatchesCut(Duration::from_secs(1)).to_string(), "each watch is cut after 1 s"),
        ] {
            assert_eq!(told, expected);
        }
    }
}
