//! Decides what follows when another client has deleted or edited objects of the release.

use jiff::{SignedDuration, Timestamp};

use super::plan::Step;
use crate::{
    clientapp::{
        hold::{Hold, NAMED, SAFETY_NET, join_limited},
        observed::{
            inventory,
            repair_backoff::Refused,
            types::{DriftedObject, Edit, LiveState, Observed, ObservedObjects},
        },
        spec::desired::Desired,
    },
    crd::{Drift, Reason},
};

/// How soon to check a recreated object: no watch shows that the API server rejected it.
const SOON: SignedDuration = SignedDuration::from_secs(1);

/// Returns what follows if the release is as desired except for missing objects.
pub(super) fn follows(desired: &Desired, observed: &Observed, now: Timestamp) -> Option<(Option<Step>, Hold)> {
    let ObservedObjects { drifted: missing, repairs, .. } = &observed.objects;
    let hold = |objects: &[&DriftedObject], says: &str| {
        let message = format!("{} of release {}{says}", names(objects.iter().copied()), desired.key.name);
        Hold::new(Reason::Drifted, message).until(now + SAFETY_NET)
    };
    let repairable: Vec<_> = missing.iter().filter(|missing| blocked(missing).is_none()).collect();
    // One sentence about objects to which the same has happened; the others are next.
    let repairable = match repairable.first() {
        Some(first) => {
            let happened = happened(first);
            repairable.into_iter().filter(|missing| self::happened(missing) == happened).collect()
        }
        None => repairable,
    };
    let (happened, remedy) = repairable.first().map(|first| happened(first)).unwrap_or_default();
    if desired.drift.policy == Drift::Report && !repairable.is_empty() {
        let says = format!(": {happened}, and spec.drift is Report; set it to Repair, and it is {remedy}");
        return Some((None, Hold { stalled: true, until: None, ..hold(&repairable, &says) }));
    }
    let (waiting, due): (Vec<_>, Vec<_>) =
        repairable.into_iter().partition(|missing| repairs.waits(&missing.object, now).is_some());
    // The message stays the same as long as the API server rejects the object.
    let refused = |tried: &[&DriftedObject]| {
        tried.iter().find_map(|missing| {
            let Refused { sentence, stalled } = repairs.of(&missing.object)?.refused.as_ref()?;
            let is_there = matches!(missing.state, LiveState::Edited(_));
            let state =
                if is_there { "was edited, and cannot be put back" } else { "is missing, and cannot be recreated" };
            let says = format!(" {state}: {sentence}; tried again");
            Some(Hold { stalled: *stalled, ..hold(&[missing], &says) })
        })
    };
    if !due.is_empty() {
        let says = format!(": {happened}; it is {remedy}");
        let hold = refused(&due).unwrap_or_else(|| hold(&due, &says));
        // Look again soon at the outcome.
        return Some((Some(Step::Repair(due.into_iter().cloned().collect())), hold.until(now + SOON)));
    }
    let blocked = || {
        missing.iter().find_map(|missing| {
            let (why, stalled) = blocked(missing)?;
            Some(Hold { stalled, ..hold(&[missing], &format!(" {why}")) })
        })
    };
    let undone = || {
        let missing = waiting.first()?;
        let times = match repairs.of(&missing.object)?.times {
            1 => "once".to_owned(),
            times => format!("{times} times in a row"),
        };
        let says = format!(
            " was {remedy} {times}, and {happened} again: stop that client; retries continue, at most every 5 minutes"
        );
        Some(hold(&[missing], &says))
    };
    let hold = refused(&waiting).or_else(blocked).or_else(undone)?;
    let again = waiting.iter().filter_map(|missing| Some(repairs.waits(&missing.object, now)?.not_before));
    Some((None, hold.until(again.chain([now + SAFETY_NET]).min())))
}

/// Returns what another client has done, and what the operator does about it.
fn happened(missing: &DriftedObject) -> (String, &'static str) {
    match &missing.state {
        LiveState::Edited(Edit { fields, by, ignored: _ }) => {
            let by = by.as_ref().map(|by| format!(" ({by})")).unwrap_or_default();
            (format!("another client{by} has changed {}", join_limited(fields.iter().cloned(), NAMED)), "put back")
        }
        _ => ("another client has deleted it, or removed Helm's marks from it".to_owned(), "recreated"),
    }
}

/// Returns why it cannot be recreated, and whether a user has to act.
fn blocked(missing: &DriftedObject) -> Option<(String, bool)> {
    Some(match &missing.state {
        LiveState::Foreign => (
            "is missing, and another object has its name, without Helm's marks of this release: delete or rename that, and it is recreated, or set spec.drift to Ignore".to_owned(),
            true,
        ),
        LiveState::Deleting => ("is being deleted; it is recreated when it is gone".to_owned(), false),
        LiveState::Unknown(problem) => (format!("was not found by the watch, and cannot be looked up: {problem}"), false),
        LiveState::Absent => (
            format!("was deleted, and is not recreated: {}; check whether they are there, then change the spec so that helm runs", inventory::danger(&missing.object)?),
            true,
        ),
        LiveState::Uncompared(problem) => (
            format!("may have been edited, and cannot be compared with what helm created: {problem}; change the spec so that helm runs, or set spec.drift to Ignore"),
            false,
        ),
        LiveState::Unmarked | LiveState::Edited(_) => return None,
    })
}

pub(super) fn names<'a>(missing: impl IntoIterator<Item = &'a DriftedObject>) -> String {
    join_limited(
        missing.into_iter().map(|DriftedObject { object, .. }| format!("{} {}", object.kind, object.name)),
        NAMED,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clientapp::fixtures::object;

    #[test]
    fn many_are_counted() {
        let many = ["a", "b", "c", "d", "e"]
            .map(|name| DriftedObject { object: object("Secret", name), state: LiveState::Absent });
        assert_eq!(names(&many), "Secret a, Secret b, Secret c and 2 more");
    }
}
