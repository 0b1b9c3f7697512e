//! Decides when the apps that have a Profile's revision are asked for their health, and how each of them does. **Pure.**

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;

use super::answer::Outcome;
use crate::{
    crd::HealthCheck,
    platform::key::Key,
    profile::waves::{AppView, Health, PROGRESS_DEADLINE},
};

/// Default of `periodSeconds`.
const PERIOD: i32 = 10;
/// Default of `failureThreshold`.
const THRESHOLD: i32 = 12;
/// Limits how long one that has failed is not asked, unless its period is longer.
const LONGEST_PAUSE: SignedDuration = SignedDuration::from_mins(1);

/// Tells what an answer is about: it says nothing about another revision, another time of being Ready, or another question.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::profile) struct Subject {
    /// Name of the revision.
    revision: String,
    /// Since when the app is Ready with it.
    ready_since: Timestamp,
    pub(in crate::profile) check: Arc<HealthCheck>,
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
    /// When it was first Ready with the revision, as far as this process knows.
    begun: Timestamp,
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
    pub(in crate::profile) check: &'a Arc<HealthCheck>,
    pub(in crate::profile) soak: SignedDuration,
}

impl Checks {
    /// Judges the apps that are Ready with the revision by their answers. Returns those that are to be asked now, and when another one is.
    ///
    /// An app that was not asked yet waits. It is asked once it is Ready and once the soak of all of them has ended, and while its answers
    /// are wrong.
    pub(in crate::profile) fn judge(
        &self,
        profile: (&str, &str),
        Judged { revision: (number, name), check, soak }: Judged<'_>,
        apps: &mut [AppView],
        now: Timestamp,
    ) -> (Vec<Question>, Option<Timestamp>) {
        let mut all = self.0.lock();
        let mut former = all.remove(profile.1).unwrap_or_default();
        let mut known = BTreeMap::new();
        for app in apps.iter().filter(|app| app.revision == Some(number) && !app.is_out) {
            let subject = |ready_since| Subject { revision: name.to_owned(), ready_since, check: check.clone() };
            let before = former.remove(&app.uid);
            let before = before.filter(|before| before.subject.revision == name && before.subject.check == *check);
            let checked = match (app.health, before) {
                (Health::Ready(since), Some(before)) if before.subject.ready_since == since => before,
                (Health::Ready(since), before) => Checked::new(subject(since), before.as_ref(), now),
                // What it has answered counts once it is Ready again.
                (Health::Waits | Health::Failed, Some(before)) => before,
                (Health::Waits | Health::Failed, None) => continue,
            };
            known.insert(app.uid.clone(), checked);
        }
        let is_ready = |app: &AppView| matches!(app.health, Health::Ready(_)) && known.contains_key(&app.uid);
        let ready: Vec<usize> = (0..apps.len()).filter(|index| is_ready(&apps[*index])).collect();
        let right = ready.iter().map(|index| &known[&apps[*index].uid]).filter(|checked| checked.problem.is_none());
        let opens = right.map(Checked::since).max().map_or(now, |last| last + soak);
        let (mut due, mut next) = (Vec::new(), None);
        for app in ready {
            let app = &mut apps[app];
            let Some(checked) = known.get_mut(&app.uid) else { continue };
            let (health, again) = checked.verdict(soak, opens, now);
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
        }
        all.insert(profile.1.to_owned(), known);
        (due, next)
    }

    /// Returns true if an answer to this question is still of use.
    pub(in crate::profile) fn awaits(&self, Question { profile, uid, subject, .. }: &Question) -> bool {
        let all = self.0.lock();
        let checked = all.get(&profile.1).and_then(|known| known.get(uid));
        checked.is_some_and(|checked| checked.is_asked && checked.subject == *subject)
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
    /// Begins anew with an app that is Ready again, or for the first time. Its failures count on.
    fn new(subject: Subject, before: Option<&Checked>, now: Timestamp) -> Checked {
        let (begun, failures) = before.map_or((now, 0), |before| (before.begun, before.failures));
        Checked { subject, begun, is_asked: false, at: None, problem: None, failures, right_since: None }
    }

    /// Returns since when it is healthy, if its last answer is right.
    fn since(&self) -> Timestamp {
        let ready_since = self.subject.ready_since;
        self.right_since.map_or(ready_since, |since| since.max(ready_since))
    }

    /// Returns how the app does, and when it is to be asked again. `opens`: when the soak of all apps ends.
    fn verdict(&self, soak: SignedDuration, opens: Timestamp, now: Timestamp) -> (Health, Option<Timestamp>) {
        let check = &self.subject.check;
        let Some(at) = self.at else { return (Health::Waits, Some(now)) };
        // One whose answers are right and wrong in turn holds nothing up for ever.
        let is_late = now.duration_since(self.begun) >= soak + PROGRESS_DEADLINE;
        if self.problem.is_some() {
            let threshold = check.failure_threshold.unwrap_or(THRESHOLD);
            let has_failed = self.failures >= if is_late { 1 } else { threshold };
            let period = SignedDuration::from_secs(check.period_seconds.unwrap_or(PERIOD).into());
            // The rollout may stand still for weeks.
            let period = if has_failed { (period * threshold).min(period.max(LONGEST_PAUSE)) } else { period };
            // Of a clock that was set back, the time may be far ahead.
            let again = if at > now { now } else { at + period };
            return (if has_failed { Health::Failed } else { Health::Waits }, Some(again));
        }
        let since = self.since();
        match () {
            () if is_late && self.right_since.is_some() && now < since + soak => (Health::Failed, Some(since + soak)),
            () if at >= opens => (Health::Ready(since), None),
            () if now < opens => (Health::Ready(since), Some(opens)),
            () => (Health::Waits, Some(now)),
        }
    }
}

#[cfg(test)]
mod tests;
