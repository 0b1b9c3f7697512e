use std::collections::BTreeSet;

use super::{
    Mechanism::{
        AppVersion, Clock, Conflict, DataUid, Lead, Lock, LockReadAgain, LockVersion, Margin, Number, OneRun, OneWatch,
        Pass, Prompt, Proof,
    },
    check::{LOCK, NOT_MIXED, NOT_STALE, ONE_WRITER, OURS, PROOF, SETTLES, properties},
    *,
};

const CALM: Bounds = Bounds { edits: 0, deletions: 0, recreations: 0, faults: 0, late: 0, others: 0 };
const RECREATED: Bounds = Bounds { deletions: 1, recreations: 1, ..CALM };

#[test]
fn the_protocol_holds() {
    let mut unreached: BTreeSet<_> = properties().iter().map(|property| property.name).collect();
    for bounds in [
        Bounds { edits: 1, faults: 2, ..RECREATED },
        Bounds { edits: 1, faults: 1, others: 1, ..RECREATED },
        Bounds { edits: 1, faults: 2, late: 1, ..CALM },
        Bounds { deletions: 2, faults: 1, late: 1, ..RECREATED },
    ] {
        let outcome = Protocol { without: Vec::new(), bounds }.check(&[]);
        assert!(outcome.broken.is_empty(), "{bounds:?}: {:#?}", outcome.broken);
        unreached.retain(|name| outcome.unreached.contains(name));
        println!("{bounds:?}: {} states", outcome.states);
    }
    assert!(unreached.is_empty(), "{unreached:?}");
}

#[test]
fn each_mechanism_is_needed() {
    let killed = Bounds { faults: 1, ..CALM };
    let deleted = Bounds { deletions: 1, ..killed };
    let late = Bounds { late: 1, ..killed };
    let another = Bounds { others: 1, ..CALM };
    for (mechanism, bounds, property) in [
        (Pass, killed, ONE_WRITER),
        (Pass, killed, LOCK),
        (Pass, deleted, NOT_STALE),
        (Lead, killed, ONE_WRITER),
        (Lead, killed, LOCK),
        (Lead, deleted, NOT_STALE),
        (Clock, killed, ONE_WRITER),
        (Clock, deleted, NOT_STALE),
        (Margin, late, LOCK),
        (Margin, Bounds { late: 1, ..deleted }, NOT_STALE),
        (Prompt, late, LOCK),
        (Prompt, Bounds { late: 1, ..deleted }, NOT_STALE),
        (Conflict, another, NOT_MIXED),
        (Conflict, another, OURS),
        (Number, another, OURS),
        (Number, Bounds { edits: 1, others: 1, ..killed }, SETTLES),
        (Lock, another, LOCK),
        (LockReadAgain, Bounds { others: 1, ..killed }, LOCK),
        (LockVersion, Bounds { others: 1, ..late }, LOCK),
        (OneRun, CALM, ONE_WRITER),
        (OneWatch, Bounds { edits: 1, others: 1, ..RECREATED }, OURS),
        (AppVersion, Bounds { deletions: 2, late: 1, ..RECREATED }, SETTLES),
        (DataUid, Bounds { late: 1, ..RECREATED }, PROOF),
        (Proof, Bounds { deletions: 2, late: 1, ..RECREATED }, PROOF),
    ] {
        let holds = Protocol { without: Vec::new(), bounds }.check(&[]);
        assert!(holds.broken.is_empty(), "{bounds:?}: {:#?}", holds.broken);
        let Outcome { states, broken, .. } = Protocol { without: vec![mechanism], bounds }.check(&[property]);
        let found = broken.into_iter().find(|(name, _)| *name == property);
        let (_, after) = found.unwrap_or_else(|| panic!("even without {mechanism:?}, {property}"));
        println!("without {mechanism:?}, {states} states: not so that {property}\n    {after:?}");
    }
}
