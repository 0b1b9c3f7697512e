//! The objects of a case in a form in which those of two cases can be compared. Pure.
//!
//! Two runs differ in what is random or a time: uids, the namespace's name, passwords, names with a random end, clock times. All
//! of that is replaced by what it stands for, and what is left has to be the same.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde_json::{Map, Value, json};

/// The type of the Secrets in which Helm stores its releases.
pub const RELEASE: &str = "helm.sh/release.v1";

/// Kinds that controllers of Kubernetes derive from other objects, under random names, or that only tell of them.
const DERIVED: [&str; 8] =
    ["ControllerRevision", "Endpoints", "EndpointSlice", "Event", "Lease", "Pod", "PodMetrics", "ReplicaSet"];

/// Assigned by Kubernetes, in its own time.
const ASSIGNED: [&str; 6] =
    ["clusterIP", "clusterIPs", "nodePort", "healthCheckNodePort", "resourceVersion", "volumeName"];
/// Prefixes of the annotations and finalizers with which controllers of Kubernetes keep books, in their own time: on claims, and
/// on how many templates a Deployment has had.
const BOOKS: [&str; 5] = [
    "deployment.kubernetes.io/revision",
    "kubernetes.io/pvc-",
    "pv.kubernetes.io/",
    "volume.beta.kubernetes.io/",
    "volume.kubernetes.io/",
];

/// The parts of a status that count attempts.
const ATTEMPTS: [&str; 6] = ["lastAttempt", "revision", "atRevision", "observedGeneration", "inventory", "failures"];

/// The objects of a namespace.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// By kind and name, where objects with random names share one.
    pub objects: BTreeMap<String, Vec<Value>>,
    /// By name, the newest revision of each release.
    pub revisions: BTreeMap<String, i64>,
    /// By name, the status of that revision, as Helm spells it.
    pub releases: BTreeMap<String, String>,
    /// The ClientApps as they are.
    pub apps: Vec<Value>,
    /// The uids of all objects that are compared.
    pub uids: BTreeSet<String>,
    /// The objects of the namespace as the API server listed them; those beside it are not among them.
    pub present: Vec<Present>,
    /// How many objects the operator reconciles.
    pub reconciled: usize,
}

/// An object that is there.
#[derive(Clone, Debug)]
pub struct Present {
    /// Plural of its kind.
    pub resource: String,
    pub name: String,
    pub uid: String,
}

/// Returns whether objects of this kind are compared.
pub fn is_compared(kind: &str) -> bool {
    !DERIVED.contains(&kind)
}

/// The state that these objects of a namespace are.
pub fn state(namespace: &str, objects: &[Value]) -> State {
    let mut state = State::default();
    let words = Words::of(namespace, objects);
    for object in objects.iter().filter(|object| is_compared(kind(object))) {
        state.uids.extend(object["metadata"]["uid"].as_str().map(str::to_owned));
        if object["type"] == RELEASE {
            let labels = &object["metadata"]["labels"];
            let revision = labels["version"].as_str().and_then(|version| version.parse().ok()).unwrap_or_default();
            let word = |label: &str| labels[label].as_str().unwrap_or_default().to_owned();
            let newest = state.revisions.entry(word("name")).or_default();
            if revision >= *newest {
                *newest = revision;
                state.releases.insert(word("name"), word("status"));
            }
            continue;
        }
        if kind(object) == "ClientApp" {
            state.apps.push(object.clone());
        }
        state.reconciled += usize::from(
            ["ClientApp", "ClientAppBackup", "ClientAppRestore", "Postgresql", "PostgresWriter"]
                .contains(&kind(object)),
        );
        state.objects.entry(key(object)).or_default().push(words.settled(&content(object)));
    }
    // In no order that means anything.
    state.objects.values_mut().for_each(|values| values.sort_by_key(Value::to_string));
    state
}

fn kind(object: &Value) -> &str {
    object["kind"].as_str().unwrap_or_default()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

fn key(object: &Value) -> String {
    format!("{} {}", kind(object), named(name(object)))
}

/// A name whose random parts are stars: hexadecimal digests, the five letters with which the API server makes a name unique, and
/// the four that Percona gives each instance.
pub fn named(name: &str) -> String {
    let mut before = "";
    let parts = name.split('-').map(|part| {
        let after_instance = std::mem::replace(&mut before, part).starts_with("instance");
        let hex = part.len() >= 8 && part.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c));
        // The alphabet of apimachinery's `SafeEncodeString`: no vowel, nothing that looks like another.
        let letters = part.len() == 5 && part.bytes().all(|c| b"bcdfghjklmnpqrstvwxz2456789".contains(&c));
        if hex || letters || (after_instance && part.len() == 4) { "*" } else { part }
    });
    parts.collect::<Vec<_>>().join("-")
}

/// Returns what counts of an object.
fn content(object: &Value) -> Value {
    let metadata = &object["metadata"];
    let mut kept = Map::new();
    let is_book = |key: &str| BOOKS.iter().any(|prefix| key.starts_with(prefix));
    for part in ["labels", "annotations"] {
        let words = metadata[part].as_object().into_iter().flatten().filter(|(key, _)| !is_book(key));
        kept.insert(part.to_owned(), words.map(|(key, value)| (key.clone(), value.clone())).collect());
    }
    let finalizers = metadata["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str);
    kept.insert("finalizers".to_owned(), finalizers.filter(|finalizer| !is_book(finalizer)).collect());
    let owners = metadata["ownerReferences"].as_array().map(Vec::as_slice).unwrap_or_default();
    let of_owner = |owner: &Value| json!([owner["kind"], named(owner["name"].as_str().unwrap_or_default())]);
    kept.insert("owners".to_owned(), owners.iter().map(of_owner).collect());
    kept.insert("is being deleted".to_owned(), metadata["deletionTimestamp"].is_string().into());
    for (part, value) in object.as_object().into_iter().flatten() {
        match part.as_str() {
            "metadata" | "kind" | "apiVersion" => {}
            // What is in it is judged by the log: it may not change within a case, and is random in each.
            "data" if kind(object) == "Secret" => {
                kept.insert(part.clone(), value.as_object().into_iter().flatten().map(|(key, _)| json!(key)).collect());
            }
            "status" if kind(object) == "ClientApp" => _ = kept.insert(part.clone(), told(value)),
            "status" => {}
            _ => _ = kept.insert(part.clone(), value.clone()),
        }
    }
    Value::Object(kept)
}

/// Returns what counts of the status of a ClientApp.
fn told(status: &Value) -> Value {
    let mut told = status.clone();
    for condition in told["conditions"].as_array_mut().into_iter().flatten() {
        if let Some(condition) = condition.as_object_mut() {
            condition.retain(|key, _| ["type", "status", "reason", "message"].contains(&key.as_str()));
        }
    }
    if let Some(owned) = told["owned"].as_array_mut() {
        owned.sort_by_key(|owned| {
            [&owned["kind"], &owned["name"]].map(|word| word.as_str().unwrap_or_default().to_owned())
        });
    }
    without(&mut told, &ATTEMPTS);
    why(&mut told);
    told
}

/// Replaces the reason of a rollback, which depends on the fault.
fn why(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let (Some((failed, _)), Some((_, back))) =
                (text.split_once(" has failed: "), text.split_once("; rolled back to"))
            {
                *text = format!("{failed} has failed: WHY; rolled back to{back}");
            }
        }
        Value::Object(map) => map.values_mut().for_each(why),
        Value::Array(values) => values.iter_mut().for_each(why),
        _ => {}
    }
}

fn without(value: &mut Value, keys: &[&str]) {
    match value {
        Value::Object(map) => {
            map.retain(|key, _| !keys.contains(&key.as_str()));
            map.values_mut().for_each(|value| without(value, keys));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| without(value, keys)),
        _ => {}
    }
}

/// The meanings of random words.
struct Words(Vec<(String, String)>);

impl Words {
    fn of(namespace: &str, objects: &[Value]) -> Words {
        let mut words = Vec::new();
        for object in objects {
            if let Some(uid) = object["metadata"]["uid"].as_str() {
                words.push((uid.to_owned(), format!("the uid of {}", key(object))));
            }
            let (name, named) = (name(object), named(name(object)));
            if name != named {
                words.push((name.to_owned(), named));
            }
        }
        // A name may be part of a longer one.
        words.sort_by_key(|(word, _)| std::cmp::Reverse(word.len()));
        words.push((namespace.to_owned(), "NAMESPACE".to_owned()));
        Words(words)
    }

    fn settled(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => Value::String(self.text(text)),
            Value::Array(values) => values.iter().map(|value| self.settled(value)).collect(),
            Value::Object(map) => {
                let kept = map.iter().filter(|(key, _)| !ASSIGNED.contains(&key.as_str()));
                Value::Object(kept.map(|(key, value)| (self.text(key), self.settled(value))).collect())
            }
            other => other.clone(),
        }
    }

    fn text(&self, text: &str) -> String {
        let text = text.split_inclusive(char::is_whitespace).map(without_time).collect::<String>();
        let text = self.0.iter().fold(text, |text, (word, means)| text.replace(word, means));
        let text = without_uids(&text);
        let mut settled = String::new();
        let mut before = "";
        for part in text.split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
            let word = part.trim_end_matches(|c: char| !c.is_ascii_alphanumeric());
            let end = &part[word.len()..];
            let is_digest = word.len() >= 8
                && word.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c))
                && word.bytes().any(|c| c.is_ascii_digit());
            let is_number = !word.is_empty() && word.bytes().all(|c| c.is_ascii_digit());
            settled += match (is_digest, is_number && before == "revision") {
                (true, _) => "DIGEST",
                (_, true) => "NUMBER",
                _ => word,
            };
            settled += end;
            before = word;
        }
        settled
    }
}

/// A word that is a time, perhaps at the end of a sentence, is `TIME`.
fn without_time(word: &str) -> String {
    let time = word.trim_end_matches(|c: char| c.is_whitespace() || ".,;:".contains(c));
    match time.parse::<Timestamp>() {
        Ok(_) => word.replace(time, "TIME"),
        Err(_) => word.to_owned(),
    }
}

/// The uids of objects that are gone are `UID`.
fn without_uids(text: &str) -> String {
    const LENGTH: usize = 36;
    let is_uid = |part: &[u8]| {
        part.iter().enumerate().all(|(at, c)| match at {
            8 | 13 | 18 | 23 => *c == b'-',
            _ => c.is_ascii_digit() || (b'a'..=b'f').contains(c),
        })
    };
    let at = text.as_bytes().windows(LENGTH).position(is_uid);
    match at {
        Some(at) => format!("{}UID{}", &text[..at], without_uids(&text[at + LENGTH..])),
        None => text.to_owned(),
    }
}

/// Returns what differs between two states, a sentence each; revisions are not compared.
pub fn differences(undisturbed: &State, state: &State) -> Vec<String> {
    let mut found = Vec::new();
    if undisturbed.releases != state.releases {
        found.push(format!("the releases are {:?}, and not {:?}", state.releases, undisturbed.releases));
    }
    let keys: BTreeSet<_> = undisturbed.objects.keys().chain(state.objects.keys()).collect();
    for key in keys {
        let of = |state: &State| state.objects.get(key).cloned().unwrap_or_default();
        let (before, after) = (of(undisturbed), of(state));
        if before.len() != after.len() {
            found.push(format!("{key}: there are {}, and not {}", after.len(), before.len()));
            continue;
        }
        for (before, after) in before.iter().zip(&after) {
            differ(key, before, after, &mut found);
        }
    }
    found
}

/// The innermost parts that differ.
fn differ(place: &str, before: &Value, after: &Value, found: &mut Vec<String>) {
    match (before, after) {
        (Value::Object(old), Value::Object(new)) => {
            let keys: BTreeSet<_> = old.keys().chain(new.keys()).collect();
            for key in keys {
                let of = |map: &Map<String, Value>| map.get(key).cloned().unwrap_or_default();
                differ(&format!("{place}.{key}"), &of(old), &of(new), found);
            }
        }
        (Value::Array(old), Value::Array(new)) if old.len() == new.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                differ(&format!("{place}[{index}]"), old, new, found);
            }
        }
        _ if before != after => found.push(format!("{place} is {after}, and not {before}")),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(namespace: &str, uid: &str, password: &str, of: &str) -> Value {
        json!({
            "kind": "Secret", "type": "Opaque",
            "metadata": {
                "name": "acme-admin-secret", "namespace": namespace, "uid": uid, "resourceVersion": "7",
                "creationTimestamp": "2026-01-02T03:04:05Z", "annotations": {"owner": of},
            },
            "data": {"password": password},
        })
    }

    fn app(namespace: &str, uid: &str, at: &str, revision: i64) -> Value {
        json!({
            "kind": "ClientApp", "metadata": {"name": "acme", "namespace": namespace, "uid": uid},
            "spec": {"hostname": format!("acme.{namespace}.example.com")},
            "status": {
                "conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "lastTransitionTime": at,
                    "message": format!("revision {revision} is up since {at}, and 1 of 1 replicas")}],
                "release": {"revision": revision, "deployedAt": at, "digest": format!("{uid}{uid}{uid}{uid}")},
                "lastAttempt": {"failures": revision}, "installed": {"version": "5.5.2"},
            },
        })
    }

    fn release(revision: &str, status: &str) -> Value {
        json!({"kind": "Secret", "type": RELEASE, "metadata": {"name": format!("r.v{revision}"),
            "labels": {"name": "acme", "version": revision, "status": status}}})
    }

    fn case(namespace: &str, uid: &str, password: &str, revision: i64) -> Vec<Value> {
        let app_uid = format!("{uid}-app");
        vec![
            // The uid of an object that is not there any more is in the volume's name.
            secret(namespace, &format!("{uid}-secret"), password, &app_uid),
            app(namespace, &app_uid, &format!("2026-01-02T03:04:0{revision}Z"), revision),
            release(&revision.to_string(), "deployed"),
            json!({"kind": "Pod", "metadata": {"name": "acme-x7k2p"}}),
            json!({
                "kind": "Job",
                "metadata": {"name": if revision == 1 { "acme-init-0123456789" } else { "acme-init-abcdef0123" }},
                "spec": {"volume": format!("pvc-{uid}0000-4444-4444-4444-cccccccccccc"), "app": app_uid},
            }),
        ]
    }

    #[test]
    fn what_is_random_makes_no_difference() {
        let first = state("fault-1", &case("fault-1", "0a1b", "eA==", 1));
        let second = state("fault-22", &case("fault-22", "2c3d", "eQ==", 2));
        assert_eq!(differences(&first, &second), [""; 0]);
        assert_eq!((first.revisions["acme"], second.revisions["acme"], second.reconciled), (1, 2, 1));
        assert_eq!(second.releases["acme"], "deployed");
        assert_eq!(
            first.objects.keys().collect::<Vec<_>>(),
            ["ClientApp acme", "Job acme-init-*", "Secret acme-admin-secret"]
        );
    }

    #[test]
    fn everything_else_does() {
        let objects = case("fault-1", "0a1b", "eA==", 1);
        let before = state("fault-1", &objects);
        type Change = fn(&mut Vec<Value>);
        let table: [(&str, Change); 9] = [
            ("Secret acme-admin-secret: there are 0, and not 1", |objects| _ = objects.remove(0)),
            ("Secret acme-admin-secret: there are 2, and not 1", |objects| objects.push(objects[0].clone())),
            ("Secret acme-admin-secret.data[0] is \"other\", and not \"password\"", |objects| {
                objects[0]["data"] = json!({"other": "eA=="});
            }),
            ("Secret acme-admin-secret.is being deleted is true, and not false", |objects| {
                objects[0]["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
            }),
            (
                "Secret acme-admin-secret.annotations.owner is \"DIGEST\", and not \"the uid of ClientApp acme\"",
                |objects| {
                    objects[0]["metadata"]["annotations"]["owner"] = json!("99999999");
                },
            ),
            ("ClientApp acme.status.conditions[0].reason is \"Waiting\", and not \"Ready\"", |objects| {
                objects[1]["status"]["conditions"][0]["reason"] = json!("Waiting");
            }),
            ("ClientApp acme.status.installed.version is \"5.5.3\", and not \"5.5.2\"", |objects| {
                objects[1]["status"]["installed"]["version"] = json!("5.5.3");
            }),
            ("ClientApp acme.finalizers is [\"x\"], and not []", |objects| {
                objects[1]["metadata"]["finalizers"] = json!(["x"]);
            }),
            (r#"the releases are {"acme": "failed"}, and not {"acme": "deployed"}"#, |objects| {
                objects.push(release("2", "failed"))
            }),
        ];
        for (expected, change) in table {
            let mut objects = objects.clone();
            change(&mut objects);
            assert_eq!(differences(&before, &state("fault-1", &objects)), [expected]);
        }
    }

    #[test]
    fn a_random_part_of_a_name_is_a_star() {
        for (name, expected) in [
            ("acme-pg-init-0123456789", "acme-pg-init-*"),
            ("acme-upgrade-r1-7692c3ad", "acme-upgrade-r1-*"),
            ("acme-pg-repo1-full-x7k2p", "acme-pg-repo1-full-*"),
            ("acme-pg-instance1-hijc-pgdata", "acme-pg-instance1-*-pgdata"),
            ("acme-redis-secret", "acme-redis-secret"),
            ("acme-nextcloud-nextcloud", "acme-nextcloud-nextcloud"),
            ("data-acme-pg-0", "data-acme-pg-0"),
        ] {
            assert_eq!(named(name), expected);
        }
    }
}
