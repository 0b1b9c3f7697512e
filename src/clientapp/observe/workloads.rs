//! Observes the workloads of the release, and why they are not ready.

use std::{collections::BTreeMap, sync::Arc};

use jiff::Timestamp;
use kube::api::ListParams;

use super::uncached;
use crate::{
    clientapp::{
        context::Ctx,
        helm_runs::HelmRun,
        hold::NAMED,
        observed::{
            inventory,
            pods::{self, PodsView},
            release::ReleaseView,
            types::{Observed, Workload},
        },
        spec::desired::Desired,
    },
    crd::Inventory,
    helm::gateway::record::WrittenObject,
    platform::key::Key,
};

/// Returns the release's workloads. After helm has run, it is known what it wrote, whether or not it succeeded, so that a late
/// watch does not report the revision ready because of a workload's former state, or because of the workloads of a former app
/// of this name.
pub(super) fn workloads(
    ctx: &Ctx,
    key: &Key,
    (release, inventory): (Option<&ReleaseView>, Option<&Inventory>),
    run: &HelmRun,
) -> Vec<Workload> {
    let mut workloads = inventory::with_missing(inventory, key, ctx.watches.workloads(key));
    let mut known = ctx.memory.read(key, |app| app.last_applied.clone());
    if let (HelmRun::Upgraded(upgraded), Some(release)) = (run, release)
        && known.as_ref().is_none_or(|(secret, _)| *secret != release.secret_uid)
    {
        let newest = (release.secret_uid.clone(), Arc::from(upgraded.wrote.workloads()));
        ctx.memory.put(key, |app| app.last_applied = Some(newest.clone()));
        known = Some(newest);
    }
    // Of another revision, this says nothing: the history may even have been set back.
    let of_release = |(secret, _): &(String, _)| release.is_some_and(|release| release.secret_uid == *secret);
    let Some((_, wrote)) = known.filter(of_release) else { return workloads };
    for workload in &mut workloads {
        if wrote.iter().any(|written| predates_write(workload, written)) {
            workload.waiting = Some("its newest version is not seen yet".to_owned());
            workload.stuck = false;
            workload.refused = None;
        }
    }
    workloads
}

/// Returns true if a workload is seen as it was before helm wrote it, or is the former object of its name. **Pure.**
fn predates_write(seen: &Workload, WrittenObject { kind, metadata, .. }: &WrittenObject) -> bool {
    let wrote = metadata.resource_version.parse().ok();
    (seen.kind, &seen.name) == (kind.as_str(), &metadata.name)
        && seen.version.zip(wrote).is_some_and(|(seen, wrote): (u64, u64)| seen < wrote)
}

/// Adds why the pods of workloads are not ready, which the workloads themselves do not say. The API server is asked only about
/// workloads that have waited for a while, and not in each pass; if it cannot answer, the reason is left out.
pub(super) async fn with_reasons(ctx: &Ctx, desired: &Desired, observed: &mut Observed, now: Timestamp) {
    for workload in &mut observed.objects.workloads {
        if let (Some(waiting), Some(why)) = (&mut workload.waiting, workload.refused.take()) {
            waiting.push_str(": ");
            waiting.push_str(&why);
        }
    }
    let key = &desired.key;
    let since = pods::not_ready_since(&observed.recorded);
    let asks = observed.asks_for_pods();
    let Some(since) = since.filter(|since| asks && now.duration_since(*since) >= pods::GRACE) else {
        ctx.memory.drop(key, |app| app.pods = None);
        return;
    };
    let mut look = ctx
        .memory
        .read(key, |app| app.pods.clone())
        .filter(|look| now < look.until)
        .unwrap_or_else(|| pods::PodReasons { until: pods::next_check(since, now), reasons: BTreeMap::new() });
    let waiting = observed.objects.workloads.iter_mut().filter(|workload| workload.waiting.is_some());
    for workload in waiting.take(NAMED) {
        let Some(selector) = &workload.selector else { continue };
        // Each generation has its own pods.
        let template = (workload.uid.clone(), workload.generation);
        if !look.reasons.contains_key(&template) {
            let found = uncached::pods(ctx, key, &desired.account, ListParams::default().labels(selector)).await;
            let found = found.inspect_err(|error| tracing::debug!(app = %key, "{error}")).unwrap_or_default();
            look.reasons.insert(template.clone(), PodsView::of(workload, &found, &key.namespace));
        }
        let PodsView { there, why, stuck } = look.reasons.get(&template).cloned().unwrap_or_default();
        observed.objects.stuck_pods.extend(stuck);
        // A Deployment has a condition that says so. What was refused before the pods were there says nothing.
        let refusal = || {
            let wants = usize::try_from(workload.replicas).is_ok_and(|replicas| there < replicas);
            let refusal = ctx.watches.refusal(&key.namespace, (workload.kind, &workload.name), Some(since));
            refusal.filter(|_| wants)
        };
        if let (Some(waiting), Some(why)) = (&mut workload.waiting, why.or_else(refusal)) {
            waiting.push_str(": ");
            waiting.push_str(&why);
        }
    }
    ctx.memory.put(key, |app| app.pods = Some(look));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::helm::gateway::record::Meta;

    #[test]
    fn workloads_older_than_the_write_are_detected() {
        let metadata = Meta { name: "acme".to_owned(), resource_version: "20".to_owned(), ..Meta::default() };
        let written = WrittenObject { kind: "Deployment".to_owned(), metadata, ..WrittenObject::default() };
        for (what, kind, name, version, former) in [
            ("as it was written", "Deployment", "acme", Some(20), false),
            ("later, or made anew by another client", "Deployment", "acme", Some(100), false),
            ("before, or that of a former app", "Deployment", "acme", Some(9), true),
            ("missing", "Deployment", "acme", None, false),
            ("another", "Deployment", "other", Some(9), false),
            ("of another kind", "StatefulSet", "acme", Some(9), false),
        ] {
            let seen = Workload { kind, name: name.to_owned(), version, ..Workload::default() };
            assert_eq!(predates_write(&seen, &written), former, "{what}");
        }
        let unversioned =
            WrittenObject { metadata: Meta { resource_version: String::new(), ..written.metadata }, ..written };
        let seen = Workload { kind: "Deployment", name: "acme".to_owned(), version: Some(1), ..Workload::default() };
        assert!(!predates_write(&seen, &unversioned));
    }
}
