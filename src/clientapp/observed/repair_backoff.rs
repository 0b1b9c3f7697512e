//! Decides when an object that another client deletes is recreated: at once, and less and less often if that continues. **Pure.**

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};

use crate::{
    crd::ReleaseObject,
    platform::{clock::is_awaited, error::RetryPolicy},
};

/// How long a watch may take to show what helm created.
pub(crate) const WATCH_LAG: SignedDuration = SignedDuration::from_secs(5);
/// The longest pause between two tries.
const SELDOM: SignedDuration = SignedDuration::from_mins(5);
/// The pause between two tries, if another client undoes the repair or the API server rejects it.
const RETRY: RetryPolicy = RetryPolicy::Doubling(Duration::from_secs(5), SELDOM.unsigned_abs());
/// After this long without a repair, the next one counts as the first.
const FORGOTTEN: SignedDuration = SignedDuration::from_mins(15);

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Repairs {
    /// Until then a watch may not yet show what helm created.
    shown: Option<Timestamp>,
    /// By kind and name of the object.
    objects: BTreeMap<(String, String), Repaired>,
}

/// An object that was recreated, or that the operator failed to recreate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repaired {
    /// How often in a row it was tried.
    pub times: u32,
    /// It is not tried again before this time.
    pub not_before: Timestamp,
    pub refused: Option<Refused>,
}

/// Says why an object cannot be recreated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub sentence: String,
    /// Nothing continues until a user or a cluster admin changes something.
    pub stalled: bool,
}

impl Repairs {
    /// Records that helm ended at this time.
    pub(crate) fn after_helm(self, at: Timestamp) -> Repairs {
        Repairs { shown: Some(at + WATCH_LAG), ..self }
    }

    pub(crate) fn tried(&mut self, object: &ReleaseObject, refused: Option<Refused>, now: Timestamp) {
        self.objects.retain(|_, repaired| now < repaired.not_before + FORGOTTEN);
        let times = self.of(object).map_or(0, |repaired| repaired.times) + 1;
        let pause = RETRY.delay(times).unwrap_or_default();
        self.objects.insert(kind_and_name(object), Repaired { times, not_before: now + pause, refused });
    }

    pub(crate) fn of(&self, object: &ReleaseObject) -> Option<&Repaired> {
        self.objects.get(&kind_and_name(object))
    }

    /// Returns its last tries, if it is too early for another.
    pub(crate) fn waits(&self, object: &ReleaseObject, now: Timestamp) -> Option<&Repaired> {
        self.of(object).filter(|repaired| is_awaited(repaired.not_before, now, SELDOM))
    }

    /// Returns when a watch will have shown whether an object is really missing.
    pub(crate) fn shown(&self, now: Timestamp) -> Option<Timestamp> {
        self.shown.filter(|shown| is_awaited(*shown, now, SELDOM))
    }
}

fn kind_and_name(object: &ReleaseObject) -> (String, String) {
    (object.kind.clone(), object.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clientapp::fixtures::now;

    #[test]
    fn repairs_that_are_undone_back_off() {
        let (mut now, mut repairs, mut pauses) = (now(), Repairs::default(), Vec::new());
        let [fought, other] =
            ["fought", "other"].map(|name| ReleaseObject { name: name.to_owned(), ..ReleaseObject::default() });
        for _ in 0..8 {
            repairs.tried(&fought, None, now);
            let not_before = repairs.waits(&fought, now).unwrap().not_before;
            assert_eq!((repairs.waits(&fought, not_before), repairs.waits(&other, now)), (None, None));
            pauses.push(not_before.duration_since(now).as_secs());
            now = not_before;
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300]);
        let later = now + FORGOTTEN;
        repairs.tried(&fought, None, later);
        assert_eq!(repairs.of(&fought).unwrap().times, 1);
    }
}
