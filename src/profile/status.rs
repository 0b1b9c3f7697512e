//! The status of a Profile. **Pure.**

use jiff::Timestamp;

use super::waves::{Decision, Wait};
use crate::{
    crd::{
        Guard, Profile, ProfileStatus, Reason, RolloutStatus,
        conditions::{State, Verdict, kind},
    },
    metrics::{Measure, Sample, ready_labels},
};

/// Returns the status of a Profile with these revisions, current and wanted, whose `apps` are as decided.
pub(super) fn status(
    recorded: &ProfileStatus,
    generation: Option<i64>,
    (current, target, apps): (i64, i64, usize),
    decision: &Decision,
    now: Timestamp,
) -> ProfileStatus {
    let number = |count: usize| Some(i32::try_from(count).unwrap_or(i32::MAX));
    let ready = ready(target, apps, decision);
    let status = ProfileStatus {
        observed_generation: generation,
        current_revision: Some(current),
        update_revision: Some(target),
        apps: number(apps),
        updated_apps: number(decision.updated),
        rollout: decision.rollout.clone(),
        conditions: Vec::new(),
    };
    with_conditions(status, recorded, ready, now)
}

/// Returns the status of a Profile that cannot be used: what is known stays.
pub(super) fn failed(
    recorded: &ProfileStatus,
    generation: Option<i64>,
    ready: Verdict,
    now: Timestamp,
) -> ProfileStatus {
    let status = ProfileStatus { observed_generation: generation, ..recorded.clone() };
    with_conditions(status, recorded, ready, now)
}

fn with_conditions(status: ProfileStatus, recorded: &ProfileStatus, ready: Verdict, now: Timestamp) -> ProfileStatus {
    let is_stalled = Reason::parse(&ready.reason).is_some_and(Reason::stalled);
    let stalled = if is_stalled { ready.that(true) } else { Verdict::not_stalled(&ready) };
    let reconciling = ready.that(ready.state != State::True && !is_stalled);
    let conditions = [(kind::READY, ready), (kind::RECONCILING, reconciling), (kind::STALLED, stalled)];
    let conditions = conditions
        .into_iter()
        .map(|(type_, verdict)| verdict.into_condition(type_, &recorded.conditions, status.observed_generation, now))
        .collect();
    ProfileStatus { conditions, ..status }
}

/// Returns what `/metrics` says of a Profile.
pub(super) fn samples(profile: &Guard<Profile>) -> Vec<Sample> {
    let status = profile.status().unwrap_or_default();
    let label = vec![("profile", profile.metadata.name.clone().unwrap_or_default())];
    let mut samples = vec![(Measure::Profiles, [label.clone(), ready_labels(&status.conditions)].concat(), 1)];
    if let Some(rollout) = status.rollout {
        let waves = i64::try_from(rollout.waves.len()).unwrap_or(i64::MAX);
        samples.push((Measure::RolloutWave, label.clone(), rollout.wave.into()));
        samples.push((Measure::RolloutWaves, label, waves));
    }
    samples
}

fn ready(target: i64, apps: usize, decision: &Decision) -> Verdict {
    let Decision { updated, rollout, wait, .. } = decision;
    let Some(rollout) = rollout else {
        let others = if *updated < apps { ": the others are suspended or wait for approvals" } else { "" };
        let message = format!("revision {target} is that of {updated} of {apps} ClientApps{others}");
        return Verdict::yes(Reason::RolledOut, message);
    };
    let progress = format!(
        "revision {target} has reached {updated} of {apps} ClientApps, wave {} of {}",
        rollout.wave,
        rollout.waves.len()
    );
    let at = |time: &Timestamp| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    match wait {
        Wait::Nothing => Verdict::no(Reason::RollingOut, progress),
        Wait::NotReady(count) => {
            let such = rollout.awaited.first().map_or(String::new(), |first| match wrong(rollout, first) {
                Some(wrong) => format!(": {wrong}"),
                None => format!(", such as {first}"),
            });
            Verdict::no(Reason::RollingOut, format!("{progress}: {count} are not Ready with it yet{such}"))
        }
        Wait::Soak(until) => {
            Verdict::no(Reason::RollingOut, format!("{progress}: the next wave begins at {}", at(until)))
        }
        Wait::Closed(until) => {
            Verdict::no(Reason::RollingOut, format!("{progress}: spec.rollout.window opens at {}", at(until)))
        }
        Wait::Unavailable(count) => Verdict::no(
            Reason::RollingOut,
            format!("{progress}: {count} are not Ready, as many as spec.rollout.maxUnavailable allows"),
        ),
        Wait::Paused => Verdict::no(Reason::RolloutPaused, format!("{progress}: spec.rollout.paused is true")),
        Wait::Stopped(count) => {
            let first = rollout.failed.first().map_or("one that is gone", String::as_str);
            let message = match wrong(rollout, first) {
                Some(wrong) => {
                    format!(
                        "{progress}: {count} have failed with it: {wrong}: correct it, or go back by spec.rollout.revision"
                    )
                }
                None => format!(
                    "{progress}: {count} have failed with it, such as {first}: correct the Profile, or go back by spec.rollout.revision"
                ),
            };
            Verdict::no(Reason::RolloutStopped, message)
        }
    }
}

/// Returns what an app's answer lacks, as a sentence.
fn wrong(rollout: &RolloutStatus, app: &str) -> Option<String> {
    let unhealthy = rollout.unhealthy.iter().find(|unhealthy| unhealthy.app == app)?;
    Some(format!("ClientApp {app}: {}", unhealthy.message))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{
        crd::{UnhealthyApp, conditions::find},
        profile::waves::Passed,
    };

    #[test]
    fn what_a_rollout_waits_for_is_said() {
        let rollout = RolloutStatus {
            wave: 2,
            waves: vec![1, 4, 40],
            failed: vec!["ns/acme".to_owned()],
            awaited: vec!["ns/beta".to_owned()],
            ..Default::default()
        };
        let wrong = |app: &str| {
            let message = "/status.php says /maintenance true, expected false".to_owned();
            let unhealthy = vec![UnhealthyApp { app: app.to_owned(), message }];
            RolloutStatus { unhealthy, ..rollout.clone() }
        };
        let [failed, awaited] = ["ns/acme", "ns/beta"].map(wrong);
        let now = Timestamp::UNIX_EPOCH;
        let (goes_on, stops) = (["True", "False"], ["False", "True"]);
        let first = Some(&rollout);
        let all = "revision 3 is that of 4 of 40 ClientApps: the others are suspended or wait for approvals";
        let says = "/status.php says /maintenance true, expected false";
        let fails = format!(
            "wave 2 of 3: 1 have failed with it: ClientApp ns/acme: {says}: correct it, or go back by spec.rollout.revision"
        );
        let waits = format!(": 1 are not Ready with it yet: ClientApp ns/beta: {says}");
        let (opens, begins) = ("spec.rollout.window opens at 1970-01-01T00:00:00Z", "begins at 1970-01-01T00:00:00Z");
        for (rollout, wait, ready, [reconciling, stalled], message) in [
            (None, Wait::Nothing, "RolledOut", ["False", "False"], all),
            (first, Wait::Nothing, "RollingOut", goes_on, "wave 2 of 3"),
            (first, Wait::NotReady(2), "RollingOut", goes_on, ": 2 are not Ready with it yet, such as ns/beta"),
            (first, Wait::Soak(now), "RollingOut", goes_on, begins),
            (first, Wait::Closed(now), "RollingOut", goes_on, opens),
            (first, Wait::Unavailable(3), "RollingOut", goes_on, "spec.rollout.maxUnavailable"),
            (first, Wait::Paused, "RolloutPaused", goes_on, "spec.rollout.paused is true"),
            (first, Wait::Stopped(1), "RolloutStopped", stops, "1 have failed with it, such as ns/acme"),
            (Some(&failed), Wait::Stopped(1), "RolloutStopped", stops, &fails),
            (Some(&awaited), Wait::NotReady(1), "RollingOut", goes_on, &waits),
        ] {
            let decision = Decision {
                permitted: BTreeSet::new(),
                passed: Passed::default(),
                updated: 4,
                rollout: rollout.cloned(),
                wait: wait.clone(),
            };
            let status = status(&ProfileStatus::default(), Some(7), (2, 3, 40), &decision, now);
            let of = |type_: &str| find(&status.conditions, type_).unwrap();
            assert_eq!(of(kind::READY).reason, ready, "{wait:?}");
            assert_eq!(
                [of(kind::RECONCILING), of(kind::STALLED)].map(|found| found.status.as_str()),
                [reconciling, stalled],
                "{wait:?}"
            );
            assert!(of(kind::READY).message.contains(message), "{}", of(kind::READY).message);
            assert_eq!(
                (status.current_revision, status.update_revision, status.updated_apps),
                (Some(2), Some(3), Some(4))
            );
        }
    }
}
