//! Decides which ClientApps get a Profile's revision next. **Pure.**

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::window::Window;
use crate::{
    crd::{ProfileRollout, RolloutStatus, UnhealthyApp, duration},
    platform::key::Key,
};

/// Default of `waves`.
const WAVES: [IntOrString; 1] = [IntOrString::Int(1)];
/// Percentage of the second wave by default.
const SECOND: &str = "10%";
/// Default of `soak`.
const SOAK: SignedDuration = SignedDuration::from_mins(1);
/// Longest `soak`, one week.
const LONGEST_SOAK: SignedDuration = SignedDuration::from_hours(168);
/// Limits how long an app that is not Ready with a revision is waited for. As Helm's and Kubernetes' own deadlines, it is longer than a
/// slow start.
pub(super) const PROGRESS_DEADLINE: SignedDuration = SignedDuration::from_mins(30);
/// This many names are listed.
const NAMED: usize = 10;

/// The state of a ClientApp with regard to its Profile's revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AppView {
    pub(super) key: Key,
    pub(super) uid: String,
    /// The revision that it has; `None`: it has none yet and takes the current one.
    pub(super) revision: Option<i64>,
    pub(super) is_canary: bool,
    /// True if it is suspended or waits for approvals: what it does says nothing about a revision.
    pub(super) is_out: bool,
    pub(super) health: Health,
    /// Says what its answer lacked when it was last asked for its health.
    pub(super) unhealthy: Option<String>,
}

/// Says how a ClientApp does with the revision that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    /// The revision is installed, and the app is Ready with it, and healthy, since then.
    Ready(Timestamp),
    /// It is getting there.
    Waits,
    /// It is in trouble, or has been getting there for longer than [`PROGRESS_DEADLINE`], or has not been healthy too often.
    Failed,
}

/// Holds what a rollout is decided from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rollout<'a> {
    /// The revision that all apps had last.
    pub(super) current: i64,
    /// The revision that they are to have.
    pub(super) target: i64,
    pub(super) spec: &'a ProfileRollout,
    pub(super) apps: &'a [AppView],
    /// uids of the apps that may take the target and have not yet.
    pub(super) permitted: &'a BTreeSet<String>,
    pub(super) passed: Passed,
    pub(super) window: Window,
}

/// Says how far the gates of a rollout have opened. An operator that has just begun to lead does not know it, and looks at the gate first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Passed {
    /// So many apps may have the target. A wave that has become smaller since does not let apps of the next one go.
    pub(super) opened: usize,
    /// True once the last wave is through: what is left were not Ready before.
    pub(super) is_through: bool,
}

/// Says why no further app gets the revision now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Nothing prevents it.
    Nothing,
    Paused,
    /// This many have failed.
    Stopped(usize),
    /// Apps of the wave are not Ready yet.
    NotReady(usize),
    /// The wave is Ready, but not for long enough.
    Soak(Timestamp),
    /// As many apps as may be are not Ready.
    Unavailable(usize),
    /// The window opens then.
    Closed(Timestamp),
}

/// Tells what follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Decision {
    /// uids of the apps that may take the target, and have not yet.
    pub(super) permitted: BTreeSet<String>,
    pub(super) passed: Passed,
    /// How many apps have the target.
    pub(super) updated: usize,
    /// The waves; `None`: all apps have the target.
    pub(super) rollout: Option<RolloutStatus>,
    pub(super) wait: Wait,
}

/// Decides which apps get the target next.
///
/// A wave opens once all apps that have the target are Ready, and have been for the soak; those that have failed are not waited for, since
/// enough of them stop the rollout. First come the canaries, then apps that an
/// earlier rollout has moved, then those that are Ready, by name. Apps that were not Ready before come after the last wave has passed its
/// gate as well, because they say nothing about the revision, and those that do not count after them. The way back to the current
/// revision, or an earlier one, is a single wave, and waits for no window.
pub(super) fn decide(rollout: &Rollout<'_>, now: Timestamp) -> Decision {
    let Rollout { current, target, spec, apps, permitted, passed, window } = *rollout;
    let has = |app: &AppView| app.revision.unwrap_or(current) == target;
    let is_back = target <= current;
    let (out, counted): (Vec<_>, Vec<_>) = apps.iter().partition(|app| app.is_out);
    let (moved, mut rest): (Vec<_>, Vec<_>) = counted.iter().copied().partition(|app| has(app));
    let updated = apps.iter().filter(|app| has(app)).count();
    let waiting_out: Vec<_> = out.into_iter().filter(|app| !has(app)).collect();
    let held = match window {
        _ if spec.paused => Some(Wait::Paused),
        Window::Closed(until) if !is_back => Some(Wait::Closed(until)),
        Window::Closed(_) | Window::Open(_) => None,
    };
    let done = || {
        let permitted = waiting_out.iter().map(|app| app.uid.clone()).collect();
        Decision { permitted, passed: Passed::default(), updated, rollout: None, wait: Wait::Nothing }
    };
    let is_everywhere = updated == apps.len() && !apps.is_empty();
    if rest.is_empty() && (is_everywhere || target == current || is_back && held.is_none()) {
        return done();
    }
    rest.sort_by_key(|app| (place(app, current, is_back), app.key.clone()));
    let may = |app: &&&AppView| permitted.contains(&app.uid);
    let is_early = |app: &AppView| place(app, current, is_back) < AFTER_THE_WAVES;
    // If none is Ready, one of them has to show that the revision is not the next problem.
    let are_all_late = moved.is_empty() && !rest.iter().any(|app| is_early(app));
    // One whose turn has come counts in its wave, also when it is not Ready any more.
    let is_in_waves =
        |app: &AppView| is_early(app) || !passed.is_through && (are_all_late || permitted.contains(&app.uid));
    let in_waves: Vec<_> = rest.iter().copied().filter(|app| is_in_waves(app)).collect();
    let sizes = match is_back {
        true => vec![moved.len() + in_waves.len()],
        false => sizes(spec, moved.len() + in_waves.len()),
    };
    let under_way = in_waves.iter().filter(may).count();
    let reached = moved.len() + under_way;
    let wave = sizes.iter().position(|size| *size >= reached.max(1)).unwrap_or_default();
    let failed: Vec<_> = moved.iter().copied().filter(|app| app.health == Health::Failed).collect();
    let awaited: Vec<_> = moved
        .iter()
        .copied()
        .filter(|app| app.health == Health::Waits)
        .chain(in_waves.iter().copied().filter(|app| may(&app)))
        .collect();
    let progress = |wave| RolloutStatus {
        unhealthy: unhealthy(&moved),
        ..progress((wave, &sizes), [&failed, &awaited, &waiting_out])
    };
    let stops_at = usize::try_from(spec.stop_at_failures.unwrap_or(1)).unwrap_or(1).max(1);
    // Apps that were not Ready before may fail with it as well.
    let is_stopped = failed.len() >= stops_at && !is_back && !passed.is_through;
    if let Some(wait) = is_stopped.then_some(Wait::Stopped(failed.len())).or(held) {
        return Decision { permitted: BTreeSet::new(), passed, updated, rollout: Some(progress(wave)), wait };
    }
    let opened = if is_back { usize::MAX } else { passed.opened.max(sizes[0]) };
    let (wave, opened, gate) = match gate(&moved, awaited.len(), soak(spec), now) {
        _ if reached < sizes[wave].min(opened) => (wave, opened, Wait::Nothing),
        Wait::Nothing => {
            let next = if reached < sizes[wave] { wave } else { (wave + 1).min(sizes.len() - 1) };
            (next, sizes[next], Wait::Nothing)
        }
        wait => (wave, opened, wait),
    };
    let is_through = passed.is_through || in_waves.is_empty() && gate == Wait::Nothing;
    // All others are suspended: they get it as if they had come last, or all would take it as soon as the last one is suspended that counts.
    if rest.is_empty() && is_through {
        return done();
    }
    // What is in the waves, and once they are through, the others.
    let (line, turns) = match (&gate, is_through) {
        (_, true) => (&rest, rest.len()),
        (Wait::Nothing, false) => (&in_waves, sizes[wave].min(opened).saturating_sub(reached)),
        (_, false) => (&in_waves, 0),
    };
    let unavailable = counted.iter().filter(|app| !is_ready(app) || permitted.contains(&app.uid)).count();
    let mut room = spec.max_unavailable.as_ref().map(|most| share(most, counted.len()).saturating_sub(unavailable));
    // One that is not Ready does not become less so.
    let mut has_room = |app: &&&AppView| match &mut room {
        Some(room) if is_ready(app) => room.checked_sub(1).map(|left| *room = left).is_some(),
        _ => true,
    };
    let next: Vec<_> = line.iter().filter(|app| !may(app)).take(turns).filter(|app| has_room(app)).collect();
    let wait = match gate {
        Wait::Nothing if turns > 0 && next.is_empty() && !line.iter().all(|app| may(&app)) => {
            Wait::Unavailable(unavailable)
        }
        wait => wait,
    };
    Decision {
        permitted: rest.iter().filter(may).chain(next).map(|app| app.uid.clone()).collect(),
        passed: Passed { opened, is_through },
        updated,
        rollout: Some(progress(wave)),
        wait,
    }
}

fn progress((wave, sizes): (usize, &[usize]), apps: [&Vec<&AppView>; 3]) -> RolloutStatus {
    let number = |count: usize| i32::try_from(count).unwrap_or(i32::MAX);
    let [failed, awaited, not_counted] =
        apps.map(|apps| apps.iter().take(NAMED).map(|app| app.key.to_string()).collect());
    RolloutStatus {
        wave: number(wave + 1),
        waves: sizes.iter().map(|size| number(*size)).collect(),
        failed,
        awaited,
        not_counted,
        unhealthy: Vec::new(),
    }
}

fn unhealthy(moved: &[&AppView]) -> Vec<UnhealthyApp> {
    let unhealthy = moved.iter().filter_map(|app| {
        let message = app.unhealthy.clone()?;
        Some(UnhealthyApp { app: app.key.to_string(), message })
    });
    unhealthy.take(NAMED).collect()
}

/// The place of those that say nothing about the revision.
const AFTER_THE_WAVES: u8 = 3;

/// Returns the place of an app in the line.
fn place(app: &AppView, current: i64, is_back: bool) -> u8 {
    // One that an earlier rollout has moved comes before the others, also when that has broken it; on the way back, any that is broken.
    let is_at_current = app.revision.unwrap_or(current) == current;
    match (app.is_canary, is_at_current, is_ready(app)) {
        (_, _, false) if is_back => 0,
        (true, false, _) | (true, _, true) => 0,
        (_, false, _) => 1,
        (_, true, true) => 2,
        (_, true, false) => AFTER_THE_WAVES,
    }
}

fn is_ready(app: &AppView) -> bool {
    matches!(app.health, Health::Ready(_))
}

/// Returns what the next wave waits for: those that have the revision are Ready for the soak, at least one is, and others have failed, which
/// are fewer than stop the rollout. If all have failed, nothing would ever go on.
fn gate(moved: &[&AppView], awaited: usize, soak: SignedDuration, now: Timestamp) -> Wait {
    if awaited > 0 {
        return Wait::NotReady(awaited);
    }
    let ready = moved.iter().filter_map(|app| match app.health {
        Health::Ready(since) => Some(since),
        Health::Waits | Health::Failed => None,
    });
    match ready.max().map(|last| last + soak) {
        // A clock that was set back delays a wave by no more than the soak.
        Some(end) if end > now => Wait::Soak(end.min(now + soak)),
        None if !moved.is_empty() => Wait::Stopped(moved.len()),
        _ => Wait::Nothing,
    }
}

pub(super) fn soak(spec: &ProfileRollout) -> SignedDuration {
    let given = spec.soak.as_deref().and_then(|text| duration::parse(text, SignedDuration::ZERO..=LONGEST_SOAK));
    given.unwrap_or(SOAK)
}

/// Returns how many apps have the revision after each wave: ascending, and all of them after the last.
fn sizes(spec: &ProfileRollout, apps: usize) -> Vec<usize> {
    let second = IntOrString::String(SECOND.to_owned());
    let waves: Vec<_> = match &spec.waves {
        Some(waves) => waves.iter().collect(),
        None => WAVES.iter().chain([&second]).collect(),
    };
    let mut sizes = Vec::new();
    for size in waves.into_iter().map(|wave| share(wave, apps)).chain([apps]) {
        if sizes.last().is_none_or(|last| size > *last) {
            sizes.push(size);
        }
    }
    sizes
}

/// Returns the number of apps that a number or percentage means: at least one, at most all.
fn share(given: &IntOrString, apps: usize) -> usize {
    let count = match given {
        IntOrString::Int(count) => usize::try_from(*count).unwrap_or_default(),
        IntOrString::String(text) => {
            let percent: usize = text.trim_end_matches('%').parse().unwrap_or_default();
            (apps * percent).div_ceil(100)
        }
    };
    count.clamp(1, apps.max(1))
}

#[cfg(test)]
mod model;
#[cfg(test)]
pub(in crate::profile) mod tests;
