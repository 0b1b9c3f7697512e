//! Looks for objects of the release that other clients have deleted or edited.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::uncached;
use crate::{
    clientapp::{
        context::Ctx,
        helm_runs::HelmRun,
        hold::SAFETY_NET,
        observed::{
            drift,
            field_edits::{self, EditCheck, EditTracker},
            types::{DriftedObject, LiveState, Observed},
        },
        spec::desired::Desired,
    },
    crd::{
        Drift, Reason,
        conditions::{find, kind::READY},
    },
};

/// Adds missing objects of the release, if nothing else is to be done about the release. The API server is asked about each
/// object that no watch shows: a watch may be late, and a missing object makes the app not ready.
pub(super) async fn with_drift(ctx: &Ctx, desired: &Desired, observed: &mut Observed, now: Timestamp) {
    let (key, release, inventory) = (&desired.key, &observed.release, &observed.objects.inventory);
    let is_asked_for = desired.drift.policy != Drift::Ignore && !desired.suspend;
    // Whatever the spec asks by now: helm may have to wait for long, for approval or for a dependency.
    let release = release.as_ref().filter(|release| is_asked_for && release.deployed().is_some());
    let (Some(release), Some(inventory)) = (release, inventory) else { return };
    let unseen = drift::unseen(inventory, release, key, |kind, name| ctx.watches.has(key, kind, name));
    if let Some(shown) = observed.objects.repairs.shown(now).filter(|_| !unseen.is_empty()) {
        observed.requeue_at = Some(shown);
        return;
    }
    for object in unseen {
        match uncached::found(ctx, key, &desired.account, &object).await {
            Some(found) => observed.objects.drifted.push(DriftedObject { object, state: found }),
            None => observed.requeue_at = Some(now + SAFETY_NET),
        }
    }
    with_edits(ctx, desired, observed, now).await;
}

/// Adds objects of the release that another client has edited.
async fn with_edits(ctx: &Ctx, desired: &Desired, observed: &mut Observed, now: Timestamp) {
    let key = &desired.key;
    let (Some(release), Some(inventory)) = (&observed.release, &observed.objects.inventory) else { return };
    if inventory.secret != release.secret_uid {
        return;
    }
    let (managed, ignored) = (ctx.watches.managed(key), &desired.drift.ignore);
    let shown = observed.objects.repairs.shown(now);
    let known = match &observed.run.state {
        // Exactly what helm wrote, so that an edit right after it is noticed as well.
        HelmRun::Upgraded(upgraded) if upgraded.revision == Some(release.revision) => {
            let wrote = upgraded.wrote.managed();
            let known = managed.keys().filter_map(|id| Some((id.clone(), *wrote.get(&(id.0, id.1.as_str()))?)));
            Some(EditTracker::of(inventory, known.collect()).with(ignored))
        }
        // An operator that has just started looks at everything if the one before it had found edits.
        _ => ctx.memory.read(key, |app| app.edits.clone()).map(|known| known.ignoring(ignored)).or_else(|| {
            let ready =
                find(&observed.recorded.conditions, READY).filter(|ready| ready.reason == Reason::Drifted.as_str());
            ready.map(|_| EditTracker::of(inventory, BTreeMap::new()).with(ignored))
        }),
    };
    if let Some(known) = &known {
        ctx.memory.put(key, |app| app.edits = Some(known.clone()));
    }
    let found = match field_edits::check(known, inventory, &managed, shown, now) {
        EditCheck::Unchanged(edits) => return ctx.memory.put(key, |app| app.edits = Some(edits.with(ignored))),
        EditCheck::StillEdited(found, until) => {
            observed.requeue_at = observed.requeue_at.into_iter().chain([until]).min();
            found
        }
        EditCheck::Compare(edits, objects) => {
            match uncached::edited(ctx, key, (desired, &release.secret), objects).await {
                Some(found) => {
                    ctx.memory.put(key, |app| app.edits = Some(edits.after(managed, &found, now)));
                    found
                }
                None => {
                    observed.requeue_at = Some(now + SAFETY_NET);
                    return;
                }
            }
        }
    };
    observed.objects.drifted.extend(found.into_iter().map(|mut missing| {
        if let LiveState::Uncompared(problem) = &mut missing.state {
            *problem = desired.values.redactor.redact(problem);
        }
        missing
    }));
}
