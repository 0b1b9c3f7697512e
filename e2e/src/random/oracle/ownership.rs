//! The oracle: the violations at the end of a life. Pure.

pub mod history;
pub mod model;
pub mod quiet;
pub mod recorder;

use std::collections::BTreeMap;
use std::iter;

use clientapp_crd::label::POSTGRESQL;
use serde_json::{Map, Value};

use self::history::{Kind, Seen, Time, is_terminating, label};
use self::model::{Expectation, Facts, NOW, Owner};
use self::recorder::RELEASE;
use crate::random::oracle::audit::Actor;

use super::{Condition, Oracle, Violation};
use crate::random::stage::Found;

/// The keys of passwords in Secrets.
const PASSWORDS: [&str; 3] = ["nextcloud-password", "redis-password", "password"];

/// The kinds without data whose objects are looked for at the end of a life.
pub const REST: [&str; 12] = [
    "ConfigMap",
    "CronJob",
    "Deployment",
    "Ingress",
    "Job",
    "NetworkPolicy",
    "PodDisruptionBudget",
    "Role",
    "RoleBinding",
    "Service",
    "ServiceAccount",
    "StatefulSet",
];

/// All violations.
pub fn judge(facts: &Facts<'_>, rest: &[Found]) -> Vec<Violation> {
    let mut found = Vec::new();
    for seen in facts.objects.iter().copied() {
        found.extend(touched(facts, seen));
        found.extend(hangs(facts, seen));
        if facts.is_data(seen) {
            found.extend(lost(facts, seen));
            found.extend(left(facts, seen));
        }
    }
    found.extend(passwords(facts));
    found.extend(orphaned(facts, rest));
    found.sort();
    found.dedup();
    found
}

fn lost<'a>(facts: &Facts<'a>, seen: &'a Seen) -> Option<Violation> {
    let by = seen.doomed()?;
    let Expectation::Stays(why) = facts.expectation(seen, by) else { return None };
    let how = if seen.gone.is_some() { "is gone" } else { "is being deleted" };
    Some(Violation { oracle: Oracle::Lost, what: seen.what(), why: format!("it {how}, and had to stay: {why}") })
}

fn left<'a>(facts: &Facts<'a>, seen: &'a Seen) -> Option<Violation> {
    if seen.gone.is_some() {
        return None;
    }
    let Expectation::Goes(why) = facts.expectation(seen, NOW) else { return None };
    let wrong = |wrong, why| Some(Violation { oracle: wrong, what: seen.what(), why });
    if is_terminating(seen.last()) {
        return wrong(Oracle::Hangs, format!("it is being deleted, but still exists: {why}"));
    }
    // A database stands for all that it consists of.
    let database = facts.database_of(seen);
    if iter::once(seen).chain(database).any(|seen| is_told(facts, &seen.name, seen.created())) {
        return None;
    }
    wrong(Oracle::Left, format!("it is still there, and neither a condition nor an event names it: {why}"))
}

/// An existing foreign object must be as it was planted.
fn touched<'a>(facts: &Facts<'a>, seen: &'a Seen) -> Option<Violation> {
    let planted = facts.asked.planted.get(&seen.uid)?;
    // The life marked it as belonging to a ClientApp, so the operator may label it as retained.
    if facts.asked.marked.contains(&seen.uid) {
        return None;
    }
    if seen.gone.is_some() || facts.expectation(seen, NOW) == Expectation::MayGo {
        return None;
    }
    let (before, after) = (visible(seen.at(*planted)), visible(seen.last()));
    let differs = before.iter().chain(&after).find(|(key, _)| before.get(*key) != after.get(*key))?;
    let text = |of: &BTreeMap<String, Value>| of.get(differs.0).map_or("nothing".to_owned(), Value::to_string);
    let why = format!("its {} was {} and is {}", differs.0, text(&before), text(&after));
    Some(Violation { oracle: Oracle::Touched, what: seen.what(), why })
}

/// The parts of an object that its owner controls.
fn visible(object: &Value) -> BTreeMap<String, Value> {
    let empty = Map::new();
    let metadata = &object["metadata"];
    let mut found = BTreeMap::new();
    for part in ["labels", "annotations"] {
        for (key, value) in metadata[part].as_object().unwrap_or(&empty) {
            // Written by Kubernetes itself and by Percona: pv.kubernetes.io/bind-completed and the like.
            if !["volume", "pv.", "storage", "pgv2.percona.com", "endpointslice"].iter().any(|of| key.starts_with(of)) {
                found.insert(format!("{part}.{key}"), value.clone());
            }
        }
    }
    let finalizers = metadata["finalizers"].as_array().map(Vec::as_slice).unwrap_or_default();
    for finalizer in finalizers.iter().filter_map(Value::as_str) {
        // Added for the requested deletion by the API server, or by the controller of the object's kind.
        let of_kind = finalizer.starts_with("kubernetes.io/")
            || finalizer.starts_with("internal.percona.com/")
            || finalizer == clientapp_crd::POSTGRESQL_FINALIZER;
        if !of_kind {
            found.insert(format!("finalizer {finalizer}"), Value::Bool(true));
        }
    }
    found.insert("ownerReferences".to_owned(), metadata["ownerReferences"].clone());
    found.insert("data".to_owned(), object["data"].clone());
    let mut spec = object["spec"].clone();
    if let Some(spec) = spec.as_object_mut() {
        // Written when the claim is bound, and by Percona for a backup.
        spec.retain(|key, _| !["volumeName", "volumeMode", "storageClassName", "backups"].contains(&key.as_str()));
    }
    found.insert("spec".to_owned(), spec);
    found
}

fn hangs(facts: &Facts<'_>, seen: &Seen) -> Option<Violation> {
    let deletes = matches!(seen.kind, Kind::App | Kind::Postgresql) && seen.gone.is_none();
    if !deletes || !is_terminating(seen.last()) || facts.asked.planted.contains_key(&seen.uid) {
        return None;
    }
    let conditions = seen.last()["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let held = conditions.iter().any(|condition| condition["reason"] == "Suspended");
    if held || Condition::holds(seen.last(), "Stalled") {
        return None;
    }
    let Condition { reason, message, .. } = Condition::ready(seen.last());
    let why = format!("its deletion does not finish, and it is not stalled; Ready says {reason}: {message}");
    Some(Violation { oracle: Oracle::Hangs, what: seen.what(), why })
}

/// Returns whether a condition or an event has named an object since a time.
fn is_told(facts: &Facts<'_>, name: &str, since: Time) -> bool {
    let names = |text: &str| {
        let ends = |index: usize| {
            let next = text[index + name.len()..].chars().next();
            let before = text[..index].chars().next_back();
            let inside = |char: Option<char>| char.is_some_and(|char| char.is_ascii_alphanumeric() || char == '-');
            !inside(next) && !inside(before)
        };
        text.match_indices(name).any(|(index, _)| ends(index))
    };
    facts.objects.iter().any(|seen| {
        let versions = seen.versions.iter().filter(|(time, _)| *time >= since).map(|(_, object)| object);
        match seen.kind {
            Kind::Event => versions.into_iter().any(|event| event["note"].as_str().is_some_and(names)),
            Kind::App | Kind::Postgresql => versions.into_iter().any(|object| {
                let conditions = object["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
                conditions.iter().any(|condition| condition["message"].as_str().is_some_and(names))
            }),
            _ => false,
        }
    })
}

fn password(secret: &Value) -> Vec<&Value> {
    PASSWORDS.iter().map(|key| &secret["data"][*key]).filter(|value| value.is_string()).collect()
}

/// Passwords that were replaced or lost while the data that they protect exists.
fn passwords(facts: &Facts<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    let secrets: Vec<_> =
        facts.of_kind(Kind::Secret).filter(|seen| facts.is_data(seen) && !password(seen.first()).is_empty()).collect();
    for secret in &secrets {
        let untold = |why: String| Violation { oracle: Oracle::Untold, what: secret.what(), why };
        let changed = secret.versions.windows(2).find(|pair| password(&pair[0].1) != password(&pair[1].1));
        if changed.is_some() && !facts.asked.planted.contains_key(&secret.uid) {
            found.push(Violation {
                oracle: Oracle::Lost,
                what: secret.what(),
                why: "its password was replaced".into(),
            });
        }
        let (Some(doomed), Owner::App(app)) = (secret.doomed(), facts.owner(secret)) else { continue };
        // Without Redis it protects nothing, and only shows how the app is deleted.
        if secret.name.ends_with("-redis-secret") && app.last()["spec"]["redis"]["enabled"] == false {
            continue;
        }
        // Percona changes the password in the database together with the Secret.
        let by_percona = facts.maker(secret) == Some(&Actor::Percona);
        if by_percona || !facts.was_released(app, doomed) || app.doomed().is_some_and(|gone| gone <= doomed) {
            continue;
        }
        let next = secrets.iter().find(|next| next.name == secret.name && next.created() > doomed);
        let successor = next.filter(|next| app.doomed().is_none_or(|gone| next.created() < gone));
        let same = successor.is_some_and(|next| password(next.first()) == password(secret.last()));
        let alive = app.doomed().is_none() && app.last()["spec"]["suspend"] != true;
        // Recreated from another Secret with the same password.
        let derived = secret.name.ends_with("-pg-app") || secret.name.ends_with("-pg-replication");
        if same || derived || (successor.is_none() && !alive) || is_told(facts, &secret.name, doomed) {
            continue;
        }
        found.push(untold(match successor {
            Some(_) => "another password is in its place, and neither a condition nor an event reports it".to_owned(),
            None => "it is gone, and neither a condition nor an event reports it".to_owned(),
        }));
    }
    found
}

/// Returns whether an event says that the object's deletion may have been an orphaning one: a foreground deletion looks like one if the
/// garbage collector has completed it before the operator is back, and everything is kept.
fn is_unclear(facts: &Facts<'_>, owner: &Seen) -> bool {
    let events =
        facts.of_kind(Kind::Event).flat_map(|event| &event.versions).filter(|(time, _)| *time > owner.created());
    let mut about = events.map(|(_, event)| event).filter(|event| event["regarding"]["name"] == owner.name.as_str());
    about.any(|event| event["note"].as_str().is_some_and(|note| note.contains("it is not known whether")))
}

/// Objects without what they belong to.
fn orphaned(facts: &Facts<'_>, rest: &[Found]) -> Vec<Violation> {
    let orphan = |what: String, why: String| Violation { oracle: Oracle::Orphaned, what, why };
    let last_app = |name: &str| facts.of_kind(Kind::App).rfind(|app| app.name == name);
    // Whether its deletion must have deleted its objects as well.
    let is_over = |owner: &Seen| {
        let cascade = owner.deletion().unwrap_or(owner.last())["metadata"]["finalizers"].to_string();
        let unclear = cascade.contains("\"foregroundDeletion\"") && is_unclear(facts, owner);
        owner.gone.is_some() && !facts.asked.cut.contains(&owner.uid) && !cascade.contains("\"orphan\"") && !unclear
    };
    let releases: Vec<_> =
        facts.of_kind(Kind::Secret).filter(|seen| seen.gone.is_none() && seen.first()["type"] == RELEASE).collect();
    let mut found = Vec::new();
    // An unclear release is kept and named, in these words.
    let is_named = |app: &Seen| {
        let words = format!("Helm release {} ", app.name);
        let notes = facts.of_kind(Kind::Event).flat_map(|event| &event.versions);
        let mut notes = notes.filter(|(time, _)| *time > app.created()).filter_map(|(_, event)| event["note"].as_str());
        notes.any(|note| note.contains(&words))
    };
    for secret in &releases {
        let Some(app) = label(secret.first(), "name").and_then(last_app) else { continue };
        if is_over(app)
            && !is_named(app)
            && facts.maker(secret) == Some(&Actor::OperatorHelm)
            && secret.created() < app.gone.unwrap_or(0)
        {
            found.push(orphan(secret.what(), format!("ClientApp {} is gone, but its release is not", app.name)));
        }
    }
    let by_operator = |object: &&Found| {
        let maker = object.metadata.uid.as_deref().and_then(|uid| facts.maker_of(uid));
        matches!(maker, Some(Actor::Operator | Actor::OperatorHelm))
    };
    for object in rest.iter().filter(by_operator) {
        let metadata = &object.metadata;
        let what = format!("{} {}", object.kind, metadata.name.as_deref().unwrap_or_default());
        if let Some(release) = metadata.annotations.as_ref().and_then(|all| all.get("meta.helm.sh/release-name"))
            && let Some(app) = last_app(release).filter(|app| is_over(app))
            && releases.iter().all(|secret| label(secret.first(), "name") != Some(&app.name))
        {
            found.push(orphan(what.clone(), format!("neither release nor ClientApp {release} exists any more")));
        }
        if let Some(name) = metadata.labels.as_ref().and_then(|all| all.get(POSTGRESQL))
            && facts.of_kind(Kind::Postgresql).filter(|seen| seen.name == *name).all(is_over)
        {
            found.push(orphan(what, format!("Postgresql {name} does not exist any more")));
        }
    }
    found
}

#[cfg(test)]
mod tests;
