//! Finds what changes from one revision of a release to the next, object by object, with secrets hidden. **Pure.**

use std::collections::BTreeMap;

use serde_json::{Map, Value};
use similar::TextDiff;

use crate::{
    clientapp::observed::inventory,
    helm::{
        Redactor,
        cli::redact::MASK,
        storage::{Hook, RESOURCE_POLICY, Stored},
    },
    yaml,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Added,
    Changed,
    Removed,
    /// The next revision does not have it, and it is kept in the cluster.
    Left,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub what: What,
    /// Kind and name.
    pub object: String,
    /// A unified diff of its YAML documents; empty for an object that is removed.
    pub diff: String,
}

/// The objects that differ.
///
/// # Errors
/// A manifest is not YAML.
pub(super) fn changes(before: &Stored, after: &Stored, hidden: &Redactor) -> Result<Vec<Change>, String> {
    let (mut before, after) = (objects(before)?, objects(after)?);
    let mut found = Vec::new();
    for (id, new) in after {
        let old = before.remove(&id).unwrap_or_default();
        if old == new {
            continue;
        }
        let what = if old.is_empty() { What::Added } else { What::Changed };
        let [old, new] = [text(&id, &old, &[], hidden)?, text(&id, &new, &old, hidden)?];
        let diff = TextDiff::from_lines(&old, &new).unified_diff().context_radius(3).to_string();
        found.push(Change { what, object: hidden.redact(&id.to_string()), diff });
    }
    found.extend(before.into_iter().filter(|(id, _)| !id.is_hook).map(|(id, documents)| {
        // The operator keeps all volumes.
        let is_kept = |document: &Value| {
            id.kind == "PersistentVolumeClaim"
                || document["metadata"]["annotations"][RESOURCE_POLICY].as_str() == Some(inventory::KEEP)
        };
        let what = if documents.iter().all(is_kept) { What::Left } else { What::Removed };
        Change { what, object: hidden.redact(&id.to_string()), diff: String::new() }
    }));
    found.sort_by(|one, other| one.object.cmp(&other.object));
    Ok(found)
}

/// The hooks that helm runs for the next revision, whether they change or not.
pub(super) fn hooks(after: &Stored, is_tested: bool, hidden: &Redactor) -> Vec<String> {
    let running = after.hooks_that_run(is_tested).into_iter();
    let named = running.map(|(Hook { kind, name, .. }, events)| format!("{kind} {name} ({})", events.join(", ")));
    named.map(|hook| hidden.redact(&hook)).collect()
}

/// Identifies an object in two revisions: not its version of the API.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
#[display("{}{kind} {name}", if *is_hook { "hook " } else { "" })]
struct Id {
    is_hook: bool,
    group: String,
    kind: String,
    namespace: String,
    name: String,
}

/// The documents of each object, in order: helm applies each of them, and runs each hook, also if several have one name.
fn objects(stored: &Stored) -> Result<BTreeMap<Id, Vec<Value>>, String> {
    let mut found = BTreeMap::<_, Vec<_>>::new();
    let mut take = |text: &str, is_hook: bool| {
        inventory::each_object(text, |object| {
            let word = |field: &Value| field.as_str().unwrap_or_default().to_owned();
            let api_version = word(&object["apiVersion"]);
            let id = Id {
                is_hook,
                group: api_version.split_once('/').map_or_else(String::new, |(group, _)| group.to_owned()),
                kind: word(&object["kind"]),
                namespace: word(&object["metadata"]["namespace"]),
                name: word(&object["metadata"]["name"]),
            };
            found.entry(id).or_default().push(object.clone());
            Ok(())
        })
    };
    take(&stored.manifest, false)?;
    for Hook { manifest, .. } in &stored.hooks {
        take(manifest, true)?;
    }
    Ok(found)
}

/// The documents of an object as they are shown, next to those before.
fn text(id: &Id, documents: &[Value], before: &[Value], hidden: &Redactor) -> Result<String, String> {
    let part = if id.group.is_empty() && id.kind == "Secret" { Part::Secret } else { Part::Other };
    let shown = documents.iter().enumerate().map(|(at, document)| {
        // Before it is YAML, which writes texts in many ways.
        yaml::print(&shown(document, before.get(at), part, hidden))
    });
    Ok(shown.collect::<Result<Vec<_>, _>>()?.join("---\n"))
}

/// Names what a value is part of.
#[derive(Clone, Copy)]
enum Part {
    Secret,
    /// Of a Secret: only keys are shown.
    Data,
    Other,
}

/// A value as it is shown: without what is hidden in its texts and keys. A text that differs from the one before only in that says so.
fn shown(value: &Value, before: Option<&Value>, part: Part, hidden: &Redactor) -> Value {
    let masked = |value: &Value| match part {
        Part::Data => MASK.to_owned(),
        Part::Secret | Part::Other => hidden.redact_lines(&plain(value)),
    };
    match value {
        Value::Array(list) => {
            let before = |at: usize| before.and_then(|before| before.get(at));
            list.iter().enumerate().map(|(at, value)| shown(value, before(at), part, hidden)).collect()
        }
        Value::Object(fields) => {
            let mut found = Map::new();
            for (key, value) in fields {
                let part = match (part, key.as_str()) {
                    (Part::Secret, "data" | "stringData") | (Part::Data, _) => Part::Data,
                    (Part::Secret | Part::Other, _) => Part::Other,
                };
                let mut name = hidden.redact_lines(key);
                // Another key may look like it now.
                while found.contains_key(&name) {
                    name.push('*');
                }
                found.insert(name, shown(value, before.and_then(|before| before.get(key)), part, hidden));
            }
            Value::Object(found)
        }
        scalar => match (masked(scalar), before) {
            (text, _) if text == plain(scalar) => scalar.clone(),
            (text, Some(before)) if before != scalar && masked(before) == text => {
                format!("{text} (another value)").into()
            }
            (text, _) => text.into(),
        },
    }
}

/// A scalar without quotes.
fn plain(scalar: &Value) -> String {
    scalar.as_str().map_or_else(|| scalar.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stored(manifest: &str, hook: &str) -> Stored {
        let hooks = if hook.is_empty() { vec![] } else { vec![json!({"manifest": hook})] };
        serde_json::from_value(json!({"manifest": manifest, "hooks": hooks})).unwrap()
    }

    #[test]
    fn what_is_shown_of_each_change() {
        let before = stored(
            "---
# Source: app/config.yaml
apiVersion: v1
kind: ConfigMap
metadata: {name: config}
data: {level: debug, note: before, token: the old token}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
data: {same: YQ==, other: Yg==, gone: Yw==}
---
apiVersion: v1
kind: Service
metadata: {name: same}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: former}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: files}
---
apiVersion: policy/v1beta1
kind: PodDisruptionBudget
metadata: {name: app}
",
            "{apiVersion: batch/v1, kind: Job, metadata: {name: prepare}, spec: {parallelism: 1}}",
        );
        let after = stored(
            "---
apiVersion: v1
kind: ConfigMap
metadata: {name: config}
data: {note: before, level: info, token: the new token}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
data: {same: YQ==, other: Y2FuYXJ5, new: Y2FuYXJ5}
---
apiVersion: v1
kind: Secret
metadata: {name: more}
stringData: {password: canary}
---
apiVersion: v1
kind: Service
metadata: {name: same}
spec:
  ports:
  # Another way to write it.
  - port: 80
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: app}
",
            "{apiVersion: batch/v1, kind: Job, metadata: {name: prepare}, spec: {parallelism: 2}}",
        );
        let hidden = Redactor::from_values([&json!(["the old token", "the new token"])]).unwrap();
        let found = changes(&before, &after, &hidden).unwrap();
        let told: String =
            found.iter().map(|Change { what, object, diff }| format!("{what:?} {object}\n{diff}")).collect();
        assert!(!told.contains("canary") && !told.contains("Y2Fu") && !told.contains("token: the"), "{told}");
        insta::assert_snapshot!(told);
        assert_eq!(changes(&after, &after, &hidden), Ok(vec![]));
        assert!(changes(&before, &stored("{", ""), &hidden).is_err());
    }

    /// A hook as helm stores it.
    fn hook(name: &str, event: &str, runs: &str) -> Value {
        let manifest =
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"runs": runs}});
        json!({"kind": "Job", "name": name, "manifest": manifest.to_string(), "events": [event]})
    }

    fn revision(value: Value) -> Stored {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn of_several_with_one_name_each_is_shown() {
        let job = |runs: &[&str]| {
            let hooks: Vec<_> = runs.iter().map(|runs| hook("prepare", "pre-upgrade", runs)).collect();
            revision(json!({"hooks": hooks}))
        };
        let map = |levels: &[&str]| {
            let level = |level: &&str| {
                format!("---\n{{apiVersion: v1, kind: ConfigMap, metadata: {{name: a}}, data: {{level: {level}}}}}\n")
            };
            revision(json!({"manifest": levels.iter().map(level).collect::<String>()}))
        };
        for (before, after, object, shown) in [
            (job(&["benign"]), job(&["evil", "benign"]), "hook Job prepare", "+  runs: evil\n"),
            (job(&["benign"]), job(&["benign", "evil"]), "hook Job prepare", "+  runs: evil\n"),
            (job(&["evil", "benign"]), job(&["benign"]), "hook Job prepare", "-  runs: evil\n"),
            (map(&["debug"]), map(&["none", "debug"]), "ConfigMap a", "+  level: none\n"),
        ] {
            let found = changes(&before, &after, &Redactor::default()).unwrap();
            let [Change { what: What::Changed, object: of, diff }] = &found[..] else { panic!("{found:?}") };
            assert!(of == object && diff.contains(shown), "{found:?}");
        }
        let both = map(&["none", "debug"]);
        assert_eq!(changes(&both, &both, &Redactor::default()), Ok(vec![]));
    }

    #[test]
    fn hooks_are_named_though_they_are_as_before() {
        let hooks = json!([
            hook("prepare", "pre-upgrade", "x"),
            hook("prepare", "pre-upgrade", "y"),
            hook("first", "pre-install", "x"),
            hook("check-canary", "test", "x"),
            hook("last", "post-delete", "x"),
        ]);
        let installation = json!({"first_deployed": "today", "last_deployed": "today"});
        let upgrade = json!({"first_deployed": "yesterday", "last_deployed": "today"});
        let hidden = Redactor::from_values([&json!("canary")]).unwrap();
        for (info, is_tested, expected) in [
            (&installation, false, vec!["Job first (pre-install)"]),
            (&upgrade, false, vec!["Job prepare (pre-upgrade)", "Job prepare (pre-upgrade)"]),
            (&installation, true, vec!["Job first (pre-install)", "Job check-*** (test)"]),
        ] {
            let after = revision(json!({"hooks": hooks, "info": info}));
            assert_eq!(super::hooks(&after, is_tested, &hidden), expected);
        }
    }

    #[test]
    fn no_way_to_write_a_text_shows_it() {
        let long = format!("canary {}", "that is folded ".repeat(20));
        let hidden =
            Redactor::from_values([&json!(["@it's-canary", "p@ss canary/word", "pine", 123456, long])]).unwrap();
        let object = |data: Value| {
            let manifest =
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "pine-a"}, "data": data});
            revision(json!({"manifest": manifest.to_string()}))
        };
        let before = object(json!({"changed": "the pine is old", "same": "a pine"}));
        let after = object(json!({
            "changed": "the pine is new", "same": "a pine",
            "quoted": "@it's-canary", "url": "postgres://u:p%40ss+canary%2Fword@db", "short": "dXNlcjpwaW5l",
            "folded": long, "number": 123456, "lines": "level: debug\ntoken: pine\n",
            "of pine": "shown", "to pine": "as well", "port": 12,
        }));
        let found = changes(&before, &after, &hidden).unwrap();
        let [Change { what: What::Changed, object, diff }] = &found[..] else { panic!("{found:?}") };
        assert_eq!(object, "ConfigMap ***-a");
        for secret in ["canary", "pine", "dXNlcjpwaW5l", "123456", "folded that"] {
            assert!(!diff.contains(secret), "{secret}: {diff}");
        }
        for line in [
            "-  changed: '***'",
            "+  changed: '*** (another value)'",
            "   same: '***'",
            "+  quoted: '***'",
            "+  url: '***'",
            "+  short: '***'",
            "+  folded: '***'",
            "+  number: '***'",
            "+    level: debug",
            "+    ***",
            "+  port: 12",
            "+  '***': shown",
            "+  '****': as well",
        ] {
            assert!(diff.lines().any(|shown| shown == line), "{line}: {diff}");
        }
    }
}
