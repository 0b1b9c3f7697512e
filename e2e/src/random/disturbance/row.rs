//! The rows of the matrix, and the moments that each of them can hit: they are found in the writes of the undisturbed run.
//! Pure.

use std::fmt;
use std::time::Duration;

use axum::http::StatusCode;

use crate::proxy::{self, By, Rule, Snap, Trap, Write};

/// Which side of the API server's work on a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Before the write is forwarded.
    Before,
    /// While the API server works on it: whether it is applied is open.
    Meanwhile,
    /// After it was applied, and before its answer is passed back.
    After,
}

impl Side {
    const BOTH: [Side; 2] = [Side::Before, Side::After];

    fn snap(self) -> Snap {
        match self {
            Side::Before => Snap::Before,
            Side::Meanwhile => Snap::Meanwhile,
            Side::After => Snap::After,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Before => "before",
            Side::Meanwhile => "during",
            Side::After => "after",
        })
    }
}

/// What happens at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blow {
    /// The operator is killed, and started again.
    Kill(Side),
    /// The operator is killed with its helms, and started again.
    KillTree(Side),
    /// The operator is asked to stop, as by a rollout, and another is started.
    Terminate(Side),
    /// helm alone is killed. A write that it has sent arrives late.
    KillHelm(Side),
    /// The API server is killed, and started again.
    Outage(Side),
    /// The API server answers nothing, for longer than a Lease is valid.
    Stall,
    /// Each watch is told that its resource version has expired.
    Expire,
    /// The clock of the operator is set, by so many minutes.
    Jump(i8),
    /// The operator is frozen with its helms, and thawed when its successor has finished.
    Freeze,
    /// Another holder takes the Lease, and never renews it.
    Usurp,
    /// Requests for the Lease are refused until the operator has stopped leading.
    RefuseLease,
    /// They are not answered until then.
    HangLease,
    /// The Lease is deleted.
    DeleteLease,
    /// The user deletes the app.
    Delete(Side),
    /// The proxy does it.
    Snap(Snap),
}

/// What is wrong all the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Each watch is cut after this time.
    WatchesCut(Duration),
    /// Each request is answered so much later.
    Slow(Duration),
    /// Each event on the watch of a resource, in a Role's terms, arrives so much later.
    LateWatch(&'static str, Duration),
}

impl Standing {
    /// The rule for it.
    #[must_use]
    pub fn rule(self) -> Rule {
        match self {
            Standing::WatchesCut(after) => Rule::new("watch", "*", proxy::Fault::Cut(after)),
            Standing::Slow(by) => Rule::new("*", "*", proxy::Fault::Late(by)),
            Standing::LateWatch(resource, by) => Rule::new("watch", resource, proxy::Fault::Late(by)),
        }
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Standing::WatchesCut(after) => write!(f, "each watch is cut after {} s", after.as_secs_f32()),
            Standing::Slow(by) => write!(f, "each answer is {} s late", by.as_secs_f32()),
            Standing::LateWatch(resource, by) => write!(f, "the watch of {resource} is {} s late", by.as_secs_f32()),
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
    #[must_use]
    pub fn trap(self) -> Option<Trap> {
        let Fault::At { by, nth, blow } = self else { return None };
        let snap = match blow {
            Blow::Kill(side)
            | Blow::KillTree(side)
            | Blow::Terminate(side)
            | Blow::KillHelm(side)
            | Blow::Outage(side)
            | Blow::Delete(side) => side.snap(),
            Blow::Stall
            | Blow::Expire
            | Blow::Jump(_)
            | Blow::Freeze
            | Blow::Usurp
            | Blow::RefuseLease
            | Blow::HangLease
            | Blow::DeleteLease => Snap::Before,
            Blow::Snap(snap) => snap,
        };
        Some(Trap { by, nth, snap })
    }

    /// What happens at its moment.
    #[must_use]
    pub fn blow(self) -> Option<Blow> {
        match self {
            Fault::At { blow, .. } => Some(blow),
            Fault::Throughout(_) => None,
        }
    }

    /// Whether it disturbs every operator of the plane.
    #[must_use]
    pub fn is_for_all(self) -> bool {
        matches!(self.blow(), Some(Blow::Outage(_)))
    }

    /// Whether it ends the scenario before its time.
    #[must_use]
    pub fn cuts_short(self) -> bool {
        matches!(self.blow(), Some(Blow::Delete(_)))
    }

    /// Whether the API server's log may lack a write that was applied, or call it cancelled.
    #[must_use]
    pub fn leaves_gaps(self) -> bool {
        let under_way = matches!(self.blow(), Some(Blow::Kill(Side::Meanwhile) | Blow::KillTree(Side::Meanwhile)));
        under_way || self.is_for_all()
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (by, nth, blow) = match self {
            Fault::Throughout(standing) => return write!(f, "{standing}"),
            Fault::At { by, nth, blow } => (if *by == By::Helm { "helm's" } else { "the operator's" }, nth, blow),
        };
        match blow {
            Blow::Kill(side) => write!(f, "the operator is killed {side} {by} write {nth}"),
            Blow::KillTree(side) => write!(f, "the operator and its helms are killed {side} {by} write {nth}"),
            Blow::Terminate(side) => write!(f, "the operator is asked to stop {side} {by} write {nth}"),
            Blow::KillHelm(Side::Before) => write!(f, "helm is killed, and {by} write {nth} arrives late"),
            Blow::KillHelm(side) => write!(f, "helm is killed {side} {by} write {nth}"),
            Blow::Outage(side) => write!(f, "the API server is killed {side} {by} write {nth}"),
            Blow::Stall => write!(f, "the API server does not answer from {by} write {nth} on, for a while"),
            Blow::Expire => write!(f, "all watches expire before {by} write {nth}"),
            Blow::Jump(minutes) => write!(f, "the clock jumps by {minutes} min before {by} write {nth}"),
            Blow::Freeze => write!(f, "the leader is frozen before {by} write {nth}"),
            Blow::Usurp => write!(f, "the Lease is stolen before {by} write {nth}"),
            Blow::RefuseLease => write!(f, "requests for the Lease are refused from {by} write {nth} on"),
            Blow::HangLease => write!(f, "requests for the Lease hang from {by} write {nth} on"),
            Blow::Delete(side) => write!(f, "the app is deleted {side} {by} write {nth}"),
            Blow::DeleteLease => write!(f, "the Lease is deleted before {by} write {nth}"),
            Blow::Snap(Snap::Answer(status)) => write!(f, "{by} write {nth} is answered {}", status.as_u16()),
            Blow::Snap(Snap::TooMany(seconds)) => write!(f, "{by} write {nth} is answered 429, for {seconds} s"),
            Blow::Snap(Snap::Page) => write!(f, "{by} write {nth} is answered with a web page"),
            Blow::Snap(Snap::Lose) => write!(f, "the answer to {by} write {nth} is lost"),
            Blow::Snap(Snap::Halve) => write!(f, "half of the answer to {by} write {nth} is lost"),
            Blow::Snap(Snap::Before | Snap::Meanwhile | Snap::After) => write!(f, "{by} write {nth} is held"),
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
    #[must_use]
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
