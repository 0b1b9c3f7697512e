//! What changes from one revision of a release to the next, object by object, with secrets hidden. **Pure.**

use std::collections::BTreeMap;

use serde_json::Value;
use similar::TextDiff;

use crate::{
    clientapp::inventory,
    helm::{
        Hidden,
        sentence::MASK,
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
    /// A unified diff of the two YAML documents; empty for an object that is removed.
    pub diff: String,
}

/// The objects that differ.
///
/// # Errors
/// A manifest is not YAML.
pub(super) fn changes(before: &Stored, after: &Stored, hidden: &Hidden) -> Result<Vec<Change>, String> {
    let (mut before, after) = (objects(before)?, objects(after)?);
    let mut found = Vec::new();
    for (id, mut new) in after {
        let old = before.remove(&id);
        let is_there = old.is_some();
        let mut old = old.unwrap_or(Value::Null);
        if old == new {
            continue;
        }
        hide(&id, &mut old, &mut new);
        let [old, new] = [text(&old, hidden)?, text(&new, hidden)?];
        let diff = TextDiff::from_lines(&old, &new).unified_diff().context_radius(3).to_string();
        let what = if is_there { What::Changed } else { What::Added };
        found.push(Change { what, object: id.to_string(), diff });
    }
    found.extend(before.into_iter().filter(|(id, _)| !id.is_hook).map(|(id, object)| {
        // The operator keeps all volumes.
        let kept = id.kind == "PersistentVolumeClaim"
            || object["metadata"]["annotations"][RESOURCE_POLICY].as_str() == Some(inventory::KEEP);
        let what = if kept { What::Left } else { What::Removed };
        Change { what, object: id.to_string(), diff: String::new() }
    }));
    found.sort_by(|one, other| one.object.cmp(&other.object));
    Ok(found)
}

/// What makes an object the same in two revisions: not its version of the API.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
#[display("{}{kind} {name}", if *is_hook { "hook " } else { "" })]
struct Id {
    is_hook: bool,
    group: String,
    kind: String,
    namespace: String,
    name: String,
}

fn objects(stored: &Stored) -> Result<BTreeMap<Id, Value>, String> {
    let mut found = BTreeMap::new();
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
            found.insert(id, object.clone());
            Ok(())
        })
    };
    take(&stored.manifest, false)?;
    for Hook { manifest, .. } in &stored.hooks {
        take(manifest, true)?;
    }
    Ok(found)
}

/// Hides what is in a Secret, and shows which keys change.
fn hide(id: &Id, old: &mut Value, new: &mut Value) {
    if !(id.group.is_empty() && id.kind == "Secret") {
        return;
    }
    for part in ["data", "stringData"] {
        let before = old[part].as_object().cloned().unwrap_or_default();
        for value in old.get_mut(part).and_then(Value::as_object_mut).into_iter().flat_map(|map| map.values_mut()) {
            *value = MASK.into();
        }
        for (key, value) in new.get_mut(part).and_then(Value::as_object_mut).into_iter().flatten() {
            let differs = before.get(key).is_some_and(|before| before != value);
            *value = if differs { format!("{MASK} (another value)").into() } else { MASK.into() };
        }
    }
}

fn text(object: &Value, hidden: &Hidden) -> Result<String, String> {
    match object {
        Value::Null => Ok(String::new()),
        object => Ok(hidden.masked(&yaml::print(object)?)),
    }
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
        let hidden = Hidden::of([&json!(["the old token", "the new token"])]).unwrap();
        let found = changes(&before, &after, &hidden).unwrap();
        let told: String =
            found.iter().map(|Change { what, object, diff }| format!("{what:?} {object}\n{diff}")).collect();
        assert!(!told.contains("canary") && !told.contains("Y2Fu") && !told.contains("token: the"), "{told}");
        insta::assert_snapshot!(told);
        assert_eq!(changes(&after, &after, &hidden), Ok(vec![]));
        assert!(changes(&before, &stored("{", ""), &hidden).is_err());
    }
}
