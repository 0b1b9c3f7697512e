//! When an object that another client deletes is recreated: at once, and less and less often where that goes on. **Pure.**

use std::{collections::BTreeMap, time::Duration};

use jiff::{SignedDuration, Timestamp};

use crate::{
    crd::ReleaseObject,
    runtime::{clock::is_awaited, error::Retry},
};

/// So long a watch may take to show what helm has made.
pub(super) const WATCH_LAG: SignedDuration = SignedDuration::from_secs(5);
/// Between two tries at most.
const SELDOM: SignedDuration = SignedDuration::from_mins(5);
/// From one try to the next, where another client undoes it, or it is refused.
const RETRY: Retry = Retry::Doubling(Duration::from_secs(5), SELDOM.unsigned_abs());
/// After so long without a repair the next one is the first.
const FORGOTTEN: SignedDuration = SignedDuration::from_mins(15);

/// What was done for an app of late.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Repairs {
    /// Until then a watch may not show yet what helm has made.
    shown: Option<Timestamp>,
    /// By kind and name of the object.
    objects: BTreeMap<(String, String), Repaired>,
}

/// An object that was recreated, or could not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Repaired {
    /// So often in a row it was tried.
    pub times: u32,
    /// It is not tried again before.
    pub not_before: Timestamp,
    /// Why it could not be made.
    pub refused: Option<Refused>,
}

/// Why an object cannot be recreated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub sentence: String,
    /// Nothing goes on until a user or a cluster admin changes something.
    pub stalled: bool,
}

impl Repairs {
    /// helm has ended at this time.
    pub(crate) fn after_helm(self, at: Timestamp) -> Repairs {
        Repairs { shown: Some(at + WATCH_LAG), ..self }
    }

    /// This was tried now.
    pub(crate) fn tried(&mut self, object: &ReleaseObject, refused: Option<Refused>, now: Timestamp) {
        self.objects.retain(|_, repaired| now < repaired.not_before + FORGOTTEN);
        let times = self.of(object).map_or(0, |repaired| repaired.times) + 1;
        let pause = RETRY.delay(times).unwrap_or_default();
        self.objects.insert(kind_and_name(object), Repaired { times, not_before: now + pause, refused });
    }

    /// When it was tried last.
    pub(crate) fn of(&self, object: &ReleaseObject) -> Option<&Repaired> {
        self.objects.get(&kind_and_name(object))
    }

    /// Why it is not made again now, if it is not.
    pub(crate) fn waits(&self, object: &ReleaseObject, now: Timestamp) -> Option<&Repaired> {
        self.of(object).filter(|repaired| is_awaited(repaired.not_before, now, SELDOM))
    }

    /// When it is known whether what seems to be missing is so.
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
    fn repairs_that_are_undone_get_ever_more_rare() {
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
