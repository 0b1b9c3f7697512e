//! Reads off a ClientApp how it does with its Profile's revision. **Pure.**

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{
    ResourceExt as _,
    core::{Selector, SelectorExt as _},
};

use super::{
    revision::ProfileRevision,
    waves::{AppView, Health, PROGRESS_DEADLINE},
};
use crate::{
    crd::{
        Approval, ClientApp, ClientAppStatus, Guard, Reason,
        conditions::{find, kind},
        reason::Class,
    },
    platform::key::key_of,
};

/// Returns how a ClientApp does with these revisions; `None`: it has another Profile, is being deleted, or does not decode.
pub(super) fn view(
    app: &Guard<ClientApp>,
    (profile, revisions): (&str, &[Arc<ProfileRevision>]),
    canary: Option<&Selector>,
    now: Timestamp,
) -> Option<AppView> {
    let object = app.object.as_ref().ok()?;
    let spec = &object.spec;
    if spec.profile.as_deref() != Some(profile) || app.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let status = object.status.as_ref();
    // By name: a Profile that was deleted and created again counts from one.
    let has = status.and_then(|status| status.profile_revision.as_ref());
    let has = has.and_then(|has| revisions.iter().find(|revision| revision.name == has.name));
    Some(AppView {
        key: key_of(app),
        uid: app.metadata.uid.clone().unwrap_or_default(),
        revision: has.map(|has| has.number),
        is_canary: canary.is_some_and(|canary| canary.matches(app.labels())),
        is_out: spec.suspend || spec.approval == Approval::Manual,
        health: status.map_or(Health::Waits, |status| health(status, now)),
        unhealthy: None,
    })
}

/// Returns the names of the revisions that ClientApps have of this Profile, and that are gone.
pub(super) fn lost(apps: &[Arc<Guard<ClientApp>>], profile: &str, revisions: &[Arc<ProfileRevision>]) -> Vec<String> {
    let of_profile = |app: &Arc<Guard<ClientApp>>| {
        let object = app.object.as_ref().ok().filter(|object| object.spec.profile.as_deref() == Some(profile))?;
        let has = object.status.as_ref()?.profile_revision.as_ref().filter(|has| has.profile == profile)?;
        (!revisions.iter().any(|revision| revision.name == has.name)).then(|| has.name.clone())
    };
    apps.iter().filter_map(of_profile).collect()
}

/// Returns the selector of the canaries.
///
/// # Errors
/// It is not valid.
pub(super) fn canaries(selector: Option<&LabelSelector>) -> Result<Option<Selector>, String> {
    selector.cloned().map(Selector::try_from).transpose().map_err(|error| format!("spec.rollout.canary: {error}"))
}

fn health(status: &ClientAppStatus, now: Timestamp) -> Health {
    let holds = |type_: &str| find(&status.conditions, type_).filter(|found| found.status == "True");
    let has = status.profile_revision.as_ref();
    match (holds(kind::READY), has.and_then(|has| has.ready_since.as_ref())) {
        _ if holds(kind::STALLED).is_some() => Health::Failed,
        // The clock of another operator may have been ahead.
        (Some(_), Some(since)) => Health::Ready(since.0.min(now)),
        (Some(_), None) => Health::Waits,
        (None, _) => {
            let Some(ready) = find(&status.conditions, kind::READY) else { return Health::Waits };
            // That the API server does not answer says nothing about the revision.
            let is_trouble = Reason::parse(&ready.reason)
                .is_some_and(|reason| reason.class() == Class::Trouble && reason != Reason::ApiUnavailable);
            // An app that was not Ready before has as long as any other.
            let taken = has.and_then(|has| has.since.as_ref()).map(|taken| taken.0).filter(|taken| *taken <= now);
            let since = ready.last_transition_time.0.max(taken.unwrap_or(Timestamp::MIN));
            if is_trouble || now.duration_since(since) >= PROGRESS_DEADLINE { Health::Failed } else { Health::Waits }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::platform::fake::merged;

    fn revision(number: i64) -> Arc<ProfileRevision> {
        let (profile, profile_uid) = ("team".to_owned(), "uid".to_owned());
        let (name, spec) = (format!("team-{number}"), Ok(serde_json::from_value(json!({})).unwrap()));
        Arc::new(ProfileRevision { name, profile, profile_uid, number, spec, base_values: Value::Null })
    }

    fn seen(more: &Value, status: &Value) -> Option<AppView> {
        let mut object = json!({
            "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp",
            "metadata": {"name": "acme", "namespace": "ns", "uid": "u", "labels": {"ring": "canary"}},
            "spec": {"hostname": "acme.example.com", "profile": "team"},
            "status": status,
        });
        for (field, value) in more.as_object().unwrap() {
            object[field] = value.clone();
        }
        let app = serde_json::from_value(object).unwrap();
        let selector = serde_json::from_value(json!({"matchLabels": {"ring": "canary"}})).unwrap();
        let canary = canaries(Some(&selector)).unwrap();
        let now = "2026-01-31T03:29:00Z".parse().unwrap();
        view(&app, ("team", &[revision(1), revision(2)]), canary.as_ref(), now)
    }

    fn conditions(ready: (&str, &str), stalled: &str) -> Value {
        let at = if ready.1 == "Late" { "2026-01-31T02:59:00Z" } else { "2026-01-31T03:00:00Z" };
        let condition = |type_: &str, status: &str, reason: &str| json!({"type": type_, "status": status, "reason": reason, "message": "", "lastTransitionTime": at});
        json!([condition("Ready", ready.0, ready.1), condition("Stalled", stalled, "Any")])
    }

    #[test]
    fn an_app_is_ready_with_a_revision_once_it_says_so_and_fails_in_trouble() {
        let since: Timestamp = "2026-01-31T03:00:00Z".parse().unwrap();
        for (ready, stalled, ready_since, expected) in [
            (("True", "Ready"), "False", true, Health::Ready(since)),
            // What it has is not installed, for example because a dependency is awaited.
            (("True", "Ready"), "False", false, Health::Waits),
            (("True", "Ready"), "True", true, Health::Failed),
            (("False", "Upgrading"), "False", false, Health::Waits),
            (("False", "WorkloadsNotReady"), "False", false, Health::Waits),
            (("False", "Late"), "False", false, Health::Failed),
            (("True", "Late"), "False", false, Health::Waits),
            (("False", "UpgradeFailed"), "False", false, Health::Failed),
            (("False", "ChartInvalid"), "True", false, Health::Failed),
            (("Unknown", "ApiUnavailable"), "False", false, Health::Waits),
        ] {
            let mut has = json!({"profile": "team", "revision": 2, "name": "team-2"});
            if ready_since {
                has["readySince"] = json!(since.to_string());
            }
            let status = json!({"conditions": conditions(ready, stalled), "profileRevision": has});
            let found = seen(&json!({}), &status).unwrap();
            assert_eq!(
                (found.health, found.revision, found.is_canary),
                (expected, Some(2), true),
                "{ready:?} {stalled}"
            );
        }
    }

    #[test]
    fn an_app_has_half_an_hour_from_when_it_took_the_revision_and_no_clock_is_ahead() {
        let now: Timestamp = "2026-01-31T03:29:00Z".parse().unwrap();
        for (ready, more, expected) in [
            (("False", "Late"), json!({"since": "2026-01-31T03:28:00Z"}), Health::Waits),
            (("False", "Late"), json!({"since": "2026-01-31T02:59:00Z"}), Health::Failed),
            (("False", "Late"), json!({"since": "2026-01-30T02:59:00Z"}), Health::Failed),
            (("False", "Upgrading"), json!({"since": "2026-01-30T02:59:00Z"}), Health::Waits),
            (("False", "Late"), json!({"since": "2999-01-31T02:59:00Z"}), Health::Failed),
            (("True", "Ready"), json!({"readySince": "2999-01-31T02:59:00Z"}), Health::Ready(now)),
        ] {
            let has = merged(json!({"profile": "team", "revision": 2, "name": "team-2"}), more.clone());
            let status = json!({"conditions": conditions(ready, "False"), "profileRevision": has});
            assert_eq!(seen(&json!({}), &status).unwrap().health, expected, "{ready:?} {more}");
        }
    }

    #[test]
    fn an_app_counts_if_it_has_the_profile_and_is_the_operators() {
        let of_former = json!({"profileRevision": {"profile": "team", "revision": 7, "name": "team-of-that-time-7"}});
        let spec = |more| json!({"spec": merged(json!({"hostname": "acme.example.com", "profile": "team"}), more)});
        for (more, status, expected) in [
            (json!({}), json!({}), Some((None, false))),
            // A Profile of this name was deleted and created again.
            (json!({}), of_former, Some((None, false))),
            (spec(json!({"suspend": true})), json!({}), Some((None, true))),
            (spec(json!({"approval": "Manual"})), json!({}), Some((None, true))),
            (spec(json!({"profile": "other"})), json!({}), None),
            (json!({"spec": {"hostname": 7}}), json!({}), None),
            (json!({"metadata": {"name": "acme", "deletionTimestamp": "2026-01-31T03:00:00Z"}}), json!({}), None),
        ] {
            let found = seen(&more, &status).map(|found| (found.revision, found.is_out));
            assert_eq!(found, expected, "{more}");
        }
    }
}
