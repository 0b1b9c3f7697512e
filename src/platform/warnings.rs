//! Quotes warning events of other controllers, as a watch delivers them. **Pure.**
//!
//! They are only quoted. Whoever may write events in a namespace can write any of these, so nothing else follows from one.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::events::v1::Event;
use kube::runtime::watcher;

use super::{
    cache::{Cache, CacheEntry},
    key::{Key, key_of},
    pods::tidy,
};
use crate::crd::guard::Guard;

/// Limits the events of a namespace that are cached.
pub(crate) const MAX_EVENTS: usize = 64;
/// Limits the reasons that are quoted.
const QUOTED: usize = 2;
/// Allows an event, and what a condition says of the time after it, to come in either order.
const SLACK: SignedDuration = SignedDuration::from_secs(60);

/// A warning about an object, filed under the object's kind and name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Warning {
    reason: String,
    message: String,
    /// When it was last repeated.
    at: Timestamp,
}

/// Selects the event of the controllers of StatefulSets and Jobs, which have no condition that says so: a quota, an admission policy or a
/// webhook refuses their pods or claims (k8s.io/kubernetes/pkg/controller, `FailedCreatePodReason`; pkg/controller/statefulset,
/// `recordPodEvent`).
pub(crate) fn of_refused_pods() -> watcher::Config {
    watcher::Config::default().fields("type=Warning,reason=FailedCreate")
}

/// Selects the warnings about objects of one kind.
pub(crate) fn about(kind: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("type=Warning,regarding.kind={kind}"))
}

/// Reduces an event to a warning. One that cannot be decoded, such as one with a time of null or of the year 10000, says nothing,
/// because it must not stop the watch.
pub(crate) fn entry(event: Guard<Event>) -> CacheEntry<Warning> {
    let key = key_of(&event);
    let Ok(event) = event.object else { return CacheEntry { key, group: None, value: None } };
    let regarding = event.regarding.clone().unwrap_or_default();
    let (kind, name) = (regarding.kind.unwrap_or_default(), regarding.name.unwrap_or_default());
    let repeated = event.series.as_ref().map(|series| series.last_observed_time.0);
    let times = [
        repeated,
        event.deprecated_last_timestamp.as_ref().map(|time| time.0),
        event.event_time.as_ref().map(|time| time.0),
        event.metadata.creation_timestamp.as_ref().map(|time| time.0),
    ];
    let note = without_generated_name(&event.note.unwrap_or_default(), &name);
    let (reason, message) = (tidy(&event.reason.unwrap_or_default()), tidy(&note));
    let is_kept = ["StatefulSet", "Job", "Pod", "PostgresCluster"].contains(&kind.as_str()) && !message.is_empty();
    let latest = times.into_iter().flatten().max().filter(|_| is_kept);
    let warning = |at| Warning { reason, message, at };
    CacheEntry { group: Some(group(&key.namespace, &kind, &name)), value: latest.map(warning), key }
}

/// Returns the group under which the warnings about an object are filed.
pub(crate) fn group(namespace: &str, kind: &str, name: &str) -> Key {
    Key::new(namespace, format!("{kind}/{name}"))
}

/// Returns why the pods of a workload were last refused, unless that was before `since`.
pub(crate) fn refusal(warnings: &Cache<Warning>, workload: &Key, since: Option<Timestamp>) -> Option<String> {
    let newest = warnings.group(workload).into_iter().map(|(_, warning)| warning).max_by_key(|warning| warning.at)?;
    counts(&newest, since).then_some(newest.message)
}

/// Returns the newest of the warnings about one object.
pub(crate) fn newest(events: Vec<Guard<Event>>) -> Option<String> {
    let warnings = events.into_iter().filter_map(|event| entry(event).value);
    Some(warnings.max_by_key(|warning| warning.at)?.message)
}

/// Returns which Job with such a name was last refused its pods since then, and why. No event says to which release a Job belongs.
pub(crate) fn refused_job(warnings: &Cache<Warning>, release: &Key, since: Timestamp) -> Option<String> {
    let grouped = warnings.groups(&group(&release.namespace, "Job", &release.name)).into_iter();
    let named = grouped.filter_map(|(group, warning)| Some((group.strip_prefix("Job/")?.to_owned(), warning)));
    let its = named.filter(|(job, warning)| seems_of(job, &release.name) && counts(warning, Some(since)));
    let (job, warning) = its.max_by_key(|(_, warning)| warning.at)?;
    Some(format!("Job {job}: {}", warning.message))
}

/// Returns true if a Job is named as those of this release are.
pub(crate) fn seems_of(job: &str, release: &str) -> bool {
    job.strip_prefix(release).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
}

/// Removes the generated end of a pod's name from a message (k8s.io/apiserver/pkg/storage/names, `GenerateName`): each try has another,
/// and the message would change with it.
fn without_generated_name(message: &str, owner: &str) -> String {
    const RANDOM: usize = 5;
    const LONGEST: usize = 63 - RANDOM;
    let base = format!("{owner}-");
    let begin = format!("\"{}", base.get(..LONGEST).unwrap_or(&base));
    let found = message.find(&begin).map(|at| at + begin.len());
    let is_generated = |at: &usize| {
        let end = message.as_bytes().get(*at..at + RANDOM + 1);
        end.is_some_and(|end| {
            end[RANDOM] == b'"' && end[..RANDOM].iter().all(|byte| b"bcdfghjklmnpqrstvwxz2456789".contains(byte))
        })
    };
    match found.filter(is_generated) {
        Some(at) => format!("{}…{}", &message[..at], &message[at + RANDOM..]),
        None => message.to_owned(),
    }
}

/// Quotes the warnings about an object, in an order that does not change while they are repeated, unless they were before `since`.
pub(crate) fn quoted(warnings: &Cache<Warning>, object: &Key, since: Option<Timestamp>) -> Option<String> {
    let mut events: Vec<_> = warnings.group(object).into_iter().map(|(_, warning)| warning).collect();
    events.retain(|warning| counts(warning, since));
    events.sort_by(|a, b| (&a.reason, b.at).cmp(&(&b.reason, a.at)));
    events.dedup_by(|later, first| later.reason == first.reason);
    let quoted: Vec<_> =
        events.iter().take(QUOTED).map(|Warning { reason, message, .. }| format!("{reason}: {message}")).collect();
    (!quoted.is_empty()).then(|| quoted.join("; "))
}

fn counts(warning: &Warning, since: Option<Timestamp>) -> bool {
    since.is_none_or(|since| warning.at.duration_since(since) >= -SLACK)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};

    use super::*;
    use crate::platform::fake::of;

    fn event(name: &str, (kind, regarding): (&str, &str), (reason, note): (&str, &str), at: i64) -> Guard<Event> {
        let time = format!("2026-01-01T00:{:02}:{:02}Z", at / 60, at % 60);
        of(json!({
            "metadata": {"name": name, "namespace": "ns"}, "eventTime": null, "type": "Warning",
            "reason": reason, "note": note, "deprecatedLastTimestamp": time,
            "regarding": {"kind": kind, "name": regarding, "namespace": "ns"},
        }))
    }

    fn cache(events: impl IntoIterator<Item = Guard<Event>>) -> Cache<Warning> {
        let cache = Cache::with_limit(MAX_EVENTS);
        cache.apply(Init, entry);
        events.into_iter().for_each(|event| _ = cache.apply(InitApply(event), entry));
        cache.apply(InitDone, entry);
        cache
    }

    fn at(seconds: i64) -> Option<Timestamp> {
        Some("2026-01-01T00:00:00Z".parse::<Timestamp>().unwrap() + SignedDuration::from_secs(seconds))
    }

    const SET: (&str, &str) = ("StatefulSet", "db");

    #[test]
    fn why_pods_are_refused() {
        let quota =
            "create Pod db-0 in StatefulSet db failed error: pods \"db-0\" is forbidden:\n  exceeded quota: small.";
        let tidied =
            "create Pod db-0 in StatefulSet db failed error: pods \"db-0\" is forbidden: exceeded quota: small";
        let cache = cache([
            event("a", SET, ("FailedCreate", "an earlier reason"), 10),
            event("b", SET, ("FailedCreate", quota), 100),
            event("c", ("StatefulSet", "other"), ("FailedCreate", "another's"), 200),
            event("d", ("Job", "db"), ("FailedCreate", "a Job's"), 300),
            event(
                "f",
                ("Job", "app-hook"),
                ("FailedCreate", "Error creating: pods \"app-hook-7xk2p\" is forbidden"),
                400,
            ),
            event("g", ("Job", "app2-hook"), ("FailedCreate", "another app's"), 500),
            event("e", ("ReplicaSet", "db"), ("FailedCreate", "its Deployment has a condition"), 300),
        ]);
        let refused = |kind: &str, since: Option<Timestamp>| refusal(&cache, &group("ns", kind, "db"), since);
        assert_eq!(refused("StatefulSet", None).as_deref(), Some(tidied));
        assert_eq!(refused("StatefulSet", at(160)).as_deref(), Some(tidied));
        assert_eq!(refused("StatefulSet", at(161)), None, "of an earlier time when its pods were not ready");
        assert_eq!(refused("Job", None).as_deref(), Some("a Job's"));
        assert_eq!(refused("ReplicaSet", None), None);
        let hook = |release: &str, since: i64| refused_job(&cache, &Key::new("ns", release), at(since).unwrap());
        assert_eq!(hook("db", 300).as_deref(), Some("Job db: a Job's"));
        assert_eq!([hook("db-x", 300), hook("d", 300), hook("db", 361)], [None, None, None]);
        assert_eq!(hook("app", 300).as_deref(), Some("Job app-hook: Error creating: pods \"app-hook-…\" is forbidden"));
        assert_eq!(refused_job(&cache, &Key::new("other", "d"), Timestamp::UNIX_EPOCH), None);
        // It is repeated, and expires.
        cache.apply(Apply(event("a", SET, ("FailedCreate", "an earlier reason"), 400)), entry);
        assert_eq!(refused("StatefulSet", None).as_deref(), Some("an earlier reason"));
        cache.apply(Delete(event("a", SET, ("FailedCreate", ""), 0)), entry);
        assert_eq!(refused("StatefulSet", None).as_deref(), Some(tidied));
    }

    #[test]
    fn what_percona_says() {
        let cluster = ("PostgresCluster", "acme-pg");
        let cache = cache([
            event("a", cluster, ("MissingRequiredImage", "Missing image(s): [crunchy-pgbackrest]"), 100),
            event("b", cluster, ("MissingRequiredImage", "Missing image(s): [crunchy-postgres]"), 10),
            event("c", cluster, ("EndOfLifePostgresVersion", "The last minor version"), 200),
            event("d", cluster, ("pgAuditDisabled", "Unable to install pgAudit"), 300),
        ]);
        let quoted_since = |since: Option<Timestamp>| quoted(&cache, &group("ns", "PostgresCluster", "acme-pg"), since);
        let [old, missing] = [
            "EndOfLifePostgresVersion: The last minor version",
            "MissingRequiredImage: Missing image(s): [crunchy-pgbackrest]",
        ];
        assert_eq!(quoted_since(None), Some(format!("{old}; {missing}")));
        assert_eq!(quoted_since(at(200)), Some(format!("{old}; pgAuditDisabled: Unable to install pgAudit")));
        assert_eq!(quoted_since(at(1000)), None);
        // Repeated in turn, they are quoted in the same words.
        for (name, reason, time) in [("a", "MissingRequiredImage", 400), ("c", "EndOfLifePostgresVersion", 500)] {
            let note = if name == "a" { "Missing image(s): [crunchy-pgbackrest]" } else { "The last minor version" };
            cache.apply(Apply(event(name, cluster, (reason, note), time)), entry);
            assert_eq!(quoted_since(None), Some(format!("{old}; {missing}")));
        }
    }

    #[test]
    fn what_a_tenant_may_write() {
        let long = "x\n".repeat(5000);
        let cache = cache((0..1000).map(|n| event(&format!("e{n:03}"), SET, ("FailedCreate", &long), n)));
        assert_eq!(cache.all().len(), MAX_EVENTS);
        assert!(
            refusal(&cache, &group("ns", "StatefulSet", "db"), None)
                .is_some_and(|message| message.chars().count() <= 302 && !message.contains('\n'))
        );
        // Events that are kept change, and others take the place of those that are gone.
        cache.apply(Apply(event("e000", SET, ("FailedCreate", "changed"), 2000)), entry);
        assert_eq!(refusal(&cache, &group("ns", "StatefulSet", "db"), None).as_deref(), Some("changed"));
        cache.apply(Apply(event("late", SET, ("FailedCreate", "late"), 3000)), entry);
        assert_eq!(refusal(&cache, &group("ns", "StatefulSet", "db"), None).as_deref(), Some("changed"));
        cache.apply(Delete(event("e000", SET, ("FailedCreate", ""), 0)), entry);
        cache.apply(Apply(event("late", SET, ("FailedCreate", "late"), 3000)), entry);
        assert_eq!(refusal(&cache, &group("ns", "StatefulSet", "db"), None).as_deref(), Some("late"));
        // Without a time, without words, or with a time that no clock shows.
        let far = "9999-12-30T22:00:00.000000Z";
        let series = json!({"count": 2, "lastObservedTime": null});
        let odd = [
            json!({"metadata": {"name": "a", "namespace": "ns"}, "eventTime": null}),
            json!({"metadata": {"name": "b", "namespace": "ns"}, "eventTime": far, "regarding": {"kind": "Job"}}),
            json!({"metadata": {"name": "c", "namespace": "ns"}, "eventTime": far, "regarding": {"kind": "Job"}, "note": "far"}),
            json!({"metadata": {"name": "d", "namespace": "ns"}, "regarding": {"kind": "Job"}, "note": "no", "series": series}),
            json!({"metadata": {"name": "e", "namespace": "ns"}, "eventTime": "9999-12-31T23:59:59.999999Z", "note": "no"}),
        ];
        let cache = self::cache(odd.map(|event| serde_json::from_value(event).unwrap()));
        assert_eq!(cache.all().len(), 1);
        assert_eq!(refusal(&cache, &group("ns", "Job", ""), at(10)).as_deref(), Some("far"));
    }
}
