//! Decides when the apps that have a Profile's revision are asked for their health, and how each of them does. **Pure.**

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::answer::Outcome;
use crate::{
    crd::HealthCheck,
    platform::key::Key,
    profile::waves::{AppView, Health},
};

/// Default of `periodSeconds`.
const PERIOD: i32 = 10;
/// Default of `failureThreshold`.
const THRESHOLD: i32 = 12;

/// Tells what an answer is about: it says nothing about another revision, another time of being Ready, or another question.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::profile) struct Subject {
    /// Name of the revision.
    revision: String,
    /// Since when the app is Ready with it.
    ready_since: Timestamp,
    pub(in crate::profile) check: HealthCheck,
}

/// An app that is to be asked.
#[derive(Clone, Debug)]
pub(in crate::profile) struct Question {
    /// Name and uid of the Profile.
    pub(in crate::profile) profile: (String, String),
    pub(in crate::profile) app: Key,
    /// uid of the app.
    uid: String,
    pub(in crate::profile) subject: Subject,
}

/// Holds what is known of an app.
#[derive(Clone, Debug)]
struct Checked {
    subject: Subject,
    /// True while it is being asked.
    is_asked: bool,
    /// When it was last asked.
    at: Option<Timestamp>,
    /// Says what was wrong then.
    problem: Option<String>,
    /// How often in a row its answer was wrong.
    failures: i32,
    /// Since when its answers are right, if they were wrong before.
    right_since: Option<Timestamp>,
}

/// Remembers the answers of apps while a rollout waits for them, by uid of the Profile and of the app. After a restart all of them are
/// asked again.
#[derive(Default)]
pub(in crate::profile) struct Checks(Mutex<BTreeMap<String, BTreeMap<String, Checked>>>);

/// The revision that is judged, how, and for how long.
#[derive(Clone, Copy, Debug)]
pub(in crate::profile) struct Judged<'a> {
    /// Number and name of the revision.
    pub(in crate::profile) revision: (i64, &'a str),
    pub(in crate::profile) check: &'a HealthCheck,
    pub(in crate::profile) soak: SignedDuration,
}

impl Checks {
    /// Judges the apps that are Ready with the revision by their answers. Returns those that are to be asked now, and when another one is.
    ///
    /// An app that was not asked yet waits. It is asked once it is Ready and once its soak has ended, and while its answers are wrong.
    pub(in crate::profile) fn judge(
        &self,
        profile: (&str, &str),
        Judged { revision: (number, name), check, soak }: Judged<'_>,
        apps: &mut [AppView],
        now: Timestamp,
    ) -> (Vec<Question>, Option<Timestamp>) {
        let mut all = self.0.lock();
        let mut former = all.remove(profile.1).unwrap_or_default();
        let (mut known, mut due, mut next) = (BTreeMap::new(), Vec::new(), None);
        for app in apps.iter_mut().filter(|app| app.revision == Some(number) && !app.is_out) {
            let Health::Ready(ready_since) = app.health else { continue };
            let subject = Subject { revision: name.to_owned(), ready_since, check: check.clone() };
            let of_it = former.remove(&app.uid).filter(|checked| checked.subject == subject);
            let mut checked = of_it.unwrap_or_else(|| Checked::new(subject));
            let (health, again) = checked.verdict(soak, now);
            (app.health, app.unhealthy) = (health, checked.problem.clone());
            match again {
                Some(_) if checked.is_asked => {}
                Some(at) if at <= now => {
                    checked.is_asked = true;
                    let profile = (profile.0.to_owned(), profile.1.to_owned());
                    let (uid, subject) = (app.uid.clone(), checked.subject.clone());
                    due.push(Question { profile, app: app.key.clone(), uid, subject });
                }
                Some(at) => next = Some(next.map_or(at, |next: Timestamp| next.min(at))),
                None => {}
            }
            known.insert(app.uid.clone(), checked);
        }
        all.insert(profile.1.to_owned(), known);
        (due, next)
    }

    /// Forgets the answers of a Profile's apps: its rollout is over.
    pub(in crate::profile) fn forget(&self, profile: &str) {
        self.0.lock().remove(profile);
    }

    /// Records what came of a question, unless the app has changed meanwhile.
    pub(in crate::profile) fn record(
        &self,
        Question { profile, uid, subject, .. }: &Question,
        outcome: Outcome,
        now: Timestamp,
    ) {
        let mut all = self.0.lock();
        let known = all.get_mut(&profile.1).and_then(|known| known.get_mut(uid));
        let Some(checked) = known.filter(|checked| checked.subject == *subject) else { return };
        (checked.is_asked, checked.at) = (false, Some(now));
        checked.problem = match outcome {
            Outcome::Right => {
                if checked.failures > 0 {
                    (checked.failures, checked.right_since) = (0, Some(now));
                }
                None
            }
            Outcome::Wrong(problem) => {
                checked.failures = checked.failures.saturating_add(1);
                Some(problem)
            }
            Outcome::Unknown(problem) => Some(problem),
        };
    }
}

impl Checked {
    fn new(subject: Subject) -> Checked {
        Checked { subject, is_asked: false, at: None, problem: None, failures: 0, right_since: None }
    }

    /// Returns how the app does, and when it is to be asked again.
    fn verdict(&self, soak: SignedDuration, now: Timestamp) -> (Health, Option<Timestamp>) {
        let Subject { check, ready_since, .. } = &self.subject;
        let Some(at) = self.at else { return (Health::Waits, Some(now)) };
        if self.problem.is_some() {
            let has_failed = self.failures >= check.failure_threshold.unwrap_or(THRESHOLD);
            let period = SignedDuration::from_secs(check.period_seconds.unwrap_or(PERIOD).into());
            // Of a clock that was set back, the time may be far ahead.
            let again = if at > now { now } else { at + period };
            return (if has_failed { Health::Failed } else { Health::Waits }, Some(again));
        }
        let since = self.right_since.map_or(*ready_since, |since| since.max(*ready_since));
        let end = since + soak;
        match () {
            () if at >= end => (Health::Ready(since), None),
            () if now < end => (Health::Ready(since), Some(end)),
            () => (Health::Waits, Some(now)),
        }
    }
}

#[cfg(test)]
mod tests;
