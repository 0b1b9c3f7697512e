//! Writes the values document for helm, and finds values that would not reach a chart unchanged. **Pure.**

use serde_json::{Map, Value};

/// The values of a release. Some may come from Secrets, so they do not print.
#[derive(Clone, derive_more::Debug, PartialEq)]
#[debug("…")]
pub(crate) struct Values(pub Value);

/// Longest key in the document, in characters including quotes: a YAML parser does not search further for the colon
/// (`yaml_simple_key_is_valid` in go.yaml.in/yaml/v2, scannerc.go).
const MAX_KEY: usize = 1024;

/// Writes the document for helm, which parses YAML 1.1. It is JSON, so every string and key is quoted. Characters that YAML rejects or
/// treats as line breaks are escaped.
#[must_use]
pub fn document(values: &Value) -> String {
    // These occur in strings only: outside of them, JSON contains no control character but the line break.
    let odd = |char: char| char.is_control() || "\u{2028}\u{2029}\u{feff}\u{fffe}\u{ffff}".contains(char);
    let mut document = String::new();
    for char in format!("{values:#}\n").chars() {
        match char {
            char if char != '\n' && odd(char) => document.push_str(&format!("\\u{:04x}", u32::from(char))),
            char => document.push(char),
        }
    }
    document
}

/// Returns the registry of an image, with Docker's defaults as container runtimes apply them, and its repository there.
#[must_use]
pub(crate) fn registry_of(image: &str) -> (String, String) {
    match image.split_once('/') {
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => (host.to_owned(), path.to_owned()),
        Some(_) => ("docker.io".to_owned(), image.to_owned()),
        None => ("docker.io".to_owned(), format!("library/{image}")),
    }
}

/// Returns values in the form of a chart that puts `image.registry` before `image.repository`.
#[must_use]
pub(crate) fn with_registry(mut values: Value) -> Value {
    if let Some(image) = values.get_mut("image").and_then(Value::as_object_mut)
        && image.get("registry").is_none_or(Value::is_null)
        && let Some((registry, repository)) = image.get("repository").and_then(Value::as_str).map(registry_of)
    {
        image.extend([("registry".to_owned(), registry.into()), ("repository".to_owned(), repository.into())]);
    }
    values
}

/// Returns the first value that would not reach the chart unchanged, in one sentence.
#[must_use]
pub(crate) fn unfit(values: &Map<String, Value>) -> Option<String> {
    values.iter().find_map(|(key, value)| unfit_entry(key, key, value))
}

fn unfit_entry(path: &str, key: &str, value: &Value) -> Option<String> {
    if document(&Value::from(key)).trim_end().chars().count() > MAX_KEY {
        let beginning: String = path.chars().take(60).collect();
        return Some(format!("{beginning}… has a key of {} characters, which helm cannot read", key.chars().count()));
    }
    unfit_value(path, value)
}

fn unfit_value(path: &str, value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => {
            // helm parses every number as a 64-bit float (`LoadValues` in helm.sh/helm/v4/pkg/chart/v2/loader).
            let written = number.as_i128()?;
            let read = number.as_f64()? as i128;
            (written != read).then(|| {
                // Without the number, which may come from a Secret.
                format!("{path}: the number would reach the chart changed, since helm reads numbers as 64-bit floats: write it as a text, in quotes")
            })
        }
        Value::Array(list) => {
            list.iter().enumerate().find_map(|(index, value)| unfit_value(&format!("{path}[{index}]"), value))
        }
        Value::Object(map) => map.iter().find_map(|(key, value)| unfit_entry(&format!("{path}.{key}"), key, value)),
        Value::Null | Value::Bool(_) | Value::String(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn registries_of_images() {
        for (image, registry, repository) in [
            ("nextcloud", "docker.io", "library/nextcloud"),
            ("nextcloud:30@sha256", "docker.io", "library/nextcloud:30@sha256"),
            ("team/nextcloud", "docker.io", "team/nextcloud"),
            ("docker.io/library/nextcloud", "docker.io", "library/nextcloud"),
            ("registry.example.com/platform/nextcloud", "registry.example.com", "platform/nextcloud"),
            ("registry:5000/nextcloud@sha256", "registry:5000", "nextcloud@sha256"),
            ("localhost/nextcloud", "localhost", "nextcloud"),
        ] {
            assert_eq!(registry_of(image), (registry.to_owned(), repository.to_owned()), "{image}");
        }
    }

    #[test]
    fn the_document_for_helm_has_one_meaning() {
        for value in [
            json!({"no": "NO", "y": ["yes", "1_000", "0o14", "1e3", "null", "~", "2001-01-01", ""], "1": 1, "true": true}),
            json!({"<<": {"a": 1}, "": null, "ü": "😀 \u{10ffff}", "sp": " \" \\ ' # : {{ ", "---": "\n---\n"}),
            json!({"odd": "\u{0}\u{1f}\u{7f}\u{85}\u{9f}\u{a0}\u{2028}\u{2029}\u{feff}\u{fffe}\u{ffff}\t\r\n"}),
            json!({"n": [0, -1, 1.5, -0.0, 1e21, 1e-7, i64::MIN, u64::MAX]}),
        ] {
            let document = document(&value);
            assert_eq!(serde_json::from_str::<Value>(&document).unwrap(), value);
            // Characters that YAML rejects or treats as line breaks.
            let odd = |char: &char| {
                char.is_control() && *char != '\n' || "\u{2028}\u{2029}\u{feff}\u{fffe}\u{ffff}".contains(*char)
            };
            assert_eq!(document.chars().find(odd), None, "{document}");
        }
        assert_eq!(document(&json!({"a": {"b": "no"}})), "{\n  \"a\": {\n    \"b\": \"no\"\n  }\n}\n");
    }
}
