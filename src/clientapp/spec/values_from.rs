//! Values from Secrets and ConfigMaps, **pure**: what the objects in `spec.valuesFrom` amount to.

use std::{collections::BTreeMap, sync::Arc};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use serde_json::{Value, json};

use super::{deployer::RIGHTS_SETTLE, names::release_of, values::MAX_BYTES};
use crate::{
    clientapp::hold::{Hold, SAFETY_NET},
    crd::{Reason, ValuesKind, ValuesReference, conditions::kind},
    helm::{Redactor, cli::redact::MASK},
    platform::{account::AccountName, key::Key},
    yaml,
};

/// Types of Secrets that give access to something rather than configure it. A chart could look them up as well: this prevents
/// accidents.
const NO_CONFIGURATION: [&str; 3] =
    ["kubernetes.io/service-account-token", "bootstrap.kubernetes.io/token", "helm.sh/release.v1"];

/// How soon to try again while a new account may not have its rights yet.
const SOON: SignedDuration = SignedDuration::from_millis(250);

/// Says what `spec.valuesFrom` amounts to.
#[derive(Clone, Debug)]
pub(crate) enum Sources {
    Resolved {
        /// One layer of values for each object that exists.
        layers: Arc<[Layer]>,
        /// Makes it impossible to guess values from a digest.
        salt: Salt,
        /// Holds what no message may contain.
        hidden: Redactor,
    },
    Pending(Hold),
    Invalid(String),
}

impl Sources {
    /// Returns the same, without the values of Secrets.
    pub(crate) fn masked(self) -> Sources {
        match self {
            Sources::Resolved { layers, salt, hidden } => {
                Sources::Resolved { layers: layers.iter().map(Layer::masked).collect(), salt, hidden }
            }
            other => other,
        }
    }
}

impl Default for Sources {
    fn default() -> Self {
        Sources::Resolved { layers: Arc::default(), salt: Salt::default(), hidden: Redactor::default() }
    }
}

/// A secret text that goes into digests. It does not print.
#[derive(Clone, derive_more::Debug, Default)]
#[debug("…")]
pub(crate) struct Salt(pub Arc<str>);

/// Holds what was read: another account, other references, or another version of an object may give other values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceVersions {
    pub account: AccountName,
    pub references: Vec<ValuesReference>,
    /// The version of each object; `None`: it does not exist.
    pub versions: Vec<Option<String>>,
}

/// The values from one object. Those of a Secret do not print.
#[derive(Clone, derive_more::Debug, PartialEq)]
#[debug("{origin}")]
pub(crate) struct Layer {
    /// Object and key, for messages.
    pub origin: String,
    /// A map.
    pub values: Value,
    pub is_secret: bool,
}

impl Layer {
    /// Returns the same keys, without the values of a Secret.
    fn masked(&self) -> Layer {
        fn mask(value: &mut Value) {
            match value {
                Value::Object(map) => map.values_mut().for_each(mask),
                Value::Array(list) => list.iter_mut().for_each(mask),
                // As good as no value, also to the checks.
                Value::Null => {}
                Value::String(text) if text.is_empty() => {}
                scalar => *scalar = MASK.into(),
            }
        }
        let mut layer = self.clone();
        if self.is_secret {
            mask(&mut layer.values);
        }
        layer
    }
}

/// A Secret or ConfigMap. It does not print.
pub(crate) struct ValuesSource {
    type_: String,
    /// The Helm release that it is part of.
    release: Option<Key>,
    data: BTreeMap<String, Vec<u8>>,
}

impl From<Secret> for ValuesSource {
    fn from(Secret { data, string_data, metadata, type_, .. }: Secret) -> ValuesSource {
        let release = release_of(&metadata);
        let written = string_data.into_iter().flatten().map(|(key, text)| (key, text.into_bytes()));
        let data = data.into_iter().flatten().map(|(key, value)| (key, value.0)).chain(written).collect();
        ValuesSource { type_: type_.unwrap_or_default(), release, data }
    }
}

impl From<ConfigMap> for ValuesSource {
    fn from(ConfigMap { data, binary_data, metadata, .. }: ConfigMap) -> ValuesSource {
        let release = release_of(&metadata);
        let binary = binary_data.into_iter().flatten().map(|(key, value)| (key, value.0));
        let data = data.into_iter().flatten().map(|(key, text)| (key, text.into_bytes())).chain(binary).collect();
        ValuesSource { type_: String::new(), release, data }
    }
}

/// Combines the objects of an app, in the order of its references; the first one that is missing or unfit decides.
pub(crate) fn merge<'a>(
    app: &Key,
    found: impl IntoIterator<Item = (&'a ValuesReference, Option<&'a ValuesSource>)>,
    salt: Salt,
) -> Sources {
    let found: Vec<_> = found.into_iter().collect();
    // Before any is parsed: parsed YAML takes many times the memory of its text, and one text can be named many times.
    let length = |(reference, source): &(&ValuesReference, Option<&ValuesSource>)| {
        Some(source.as_ref()?.data.get(&reference.values_key)?.len())
    };
    let bytes: usize = found.iter().filter_map(length).sum();
    if found.len() > 1 && bytes > MAX_BYTES {
        return Sources::Invalid(format!(
            "the texts have {bytes} bytes together; at most {MAX_BYTES} fit beside the chart in Helm's release Secret"
        ));
    }
    let layers = found.into_iter().filter_map(|(reference, source)| layer(app, reference, source).transpose());
    let layers = match layers.collect::<Result<Arc<[Layer]>, _>>() {
        Ok(layers) => layers,
        Err(other) => return other,
    };
    match Redactor::from_values(layers.iter().filter(|layer| layer.is_secret).map(|layer| &layer.values)) {
        Some(hidden) => Sources::Resolved { layers, salt, hidden },
        None => Sources::Invalid(format!(
            "the Secrets have more than {} texts and lines, too many to keep out of messages: move what is not secret into a ConfigMap",
            Redactor::MAX_TEXTS
        )),
    }
}

/// Returns the hold if the account may not read an object. `since`: when the operator created the account, if it did.
pub(crate) fn denied(reference: &ValuesReference, sentence: &str, since: Option<Timestamp>, now: Timestamp) -> Hold {
    let ValuesReference { kind, name, .. } = reference;
    if since.is_some_and(|since| now < since + RIGHTS_SETTLE) {
        let message = format!("{kind} {name} is read as soon as every API server knows the account that helm acts as");
        return Hold::new(Reason::Pending, message).until(now + SOON);
    }
    let message = format!("{kind} {name}, named in spec.valuesFrom, cannot be read: {sentence}");
    // Rights are not watched.
    Hold { condition: kind::RELEASED, ..Hold::new(Reason::AccessDenied, message) }.until(now + SAFETY_NET)
}

fn awaited(message: String) -> Sources {
    Sources::Pending(Hold::new(Reason::ValuesMissing, message))
}

/// Returns the values of one object; none of an optional one that is missing.
fn layer(app: &Key, reference: &ValuesReference, source: Option<&ValuesSource>) -> Result<Option<Layer>, Sources> {
    let ValuesReference { kind, name, values_key: key, target_path, optional } = reference;
    let Some(source) = source else {
        let message =
            || format!("{kind} {name}, named in spec.valuesFrom, does not exist: create it, or set optional to true");
        return if *optional { Ok(None) } else { Err(awaited(message())) };
    };
    let origin = format!("{kind} {name}, key {key}");
    let unfit = |problem: &str| Err(Sources::Invalid(format!("{origin}: {problem}")));
    if source.release.as_ref() == Some(app) {
        return unfit(
            "this object is part of this ClientApp's own release, which could change it with each revision: name another",
        );
    }
    if NO_CONFIGURATION.contains(&&*source.type_) {
        let problem = format!("a Secret of type {} is not for values: copy what is needed into another", source.type_);
        return unfit(&problem);
    }
    let Some(data) = source.data.get(key) else {
        let message =
            format!("{kind} {name}, named in spec.valuesFrom, has no key {key}: add it, or name another in valuesKey");
        return Err(awaited(message));
    };
    // Before it is parsed: parsed YAML takes many times the memory of its text.
    if data.len() > MAX_BYTES {
        return unfit(&format!(
            "its text has {} bytes; at most {MAX_BYTES} fit beside the chart in Helm's release Secret",
            data.len()
        ));
    }
    let Ok(text) = std::str::from_utf8(data) else { return unfit("it is not text in UTF-8") };
    let is_secret = *kind == ValuesKind::Secret;
    let values = match target_path {
        Some(path) => path.rsplit('.').fold(json!(text), |inner, key| json!({key: inner})),
        None => match yaml::read_without_aliases(text) {
            Ok(Value::Null) => json!({}),
            Ok(values @ Value::Object(_)) => values,
            Ok(_) => return unfit("it is not a YAML map of values; to set its text as one value, add targetPath"),
            Err(unread) if is_secret => return unfit(&unread.discreet()),
            Err(unread) => return unfit(&unread.to_string()),
        },
    };
    Ok(Some(Layer { origin, values, is_secret }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference(more: Value) -> ValuesReference {
        let mut reference = json!({"kind": "Secret", "name": "smtp"});
        reference.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(reference).unwrap()
    }

    fn secret(more: Value) -> ValuesSource {
        let mut object = json!({"metadata": {"name": "smtp"}});
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value::<Secret>(object).unwrap().into()
    }

    fn map(data: Value) -> ValuesSource {
        serde_json::from_value::<ConfigMap>(data).unwrap().into()
    }

    fn of(reference: ValuesReference, source: Option<ValuesSource>) -> Sources {
        merge(&Key::new("tenants", "acme"), [(&reference, source.as_ref())], Salt::default())
    }

    /// The values of the only layer.
    fn values(sources: Sources) -> Value {
        match sources {
            Sources::Resolved { layers, .. } => layers[0].values.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn values_of_one_key() {
        let text = |text: &str| Some(secret(json!({"stringData": {"values.yaml": text, "other": "0123\n"}})));
        for (more, source, expected) in [
            (json!({}), text("a: {b: 1}\nc: \"no\""), json!({"a": {"b": 1}, "c": "no"})),
            (json!({}), text("# nothing\n"), json!({})),
            (
                json!({"valuesKey": "other", "targetPath": "a.b-c.d_e"}),
                text(""),
                json!({"a": {"b-c": {"d_e": "0123\n"}}}),
            ),
            (json!({"targetPath": "a"}), text("a: [unread"), json!({"a": "a: [unread"})),
            (
                json!({}),
                Some(secret(json!({"data": {"values.yaml": "YTogMQ=="}, "type": "kubernetes.io/tls"}))),
                json!({"a": 1}),
            ),
            (json!({"kind": "ConfigMap"}), Some(map(json!({"data": {"values.yaml": "a: 1"}}))), json!({"a": 1})),
            (
                json!({"kind": "ConfigMap"}),
                Some(map(json!({"binaryData": {"values.yaml": "YTogMQ=="}}))),
                json!({"a": 1}),
            ),
        ] {
            assert_eq!(values(of(reference(more.clone()), source)), expected, "{more}");
        }
        let optional = of(reference(json!({"optional": true})), None);
        assert!(matches!(optional, Sources::Resolved { layers, .. } if layers.is_empty()));
    }

    #[test]
    fn missing_sources_are_pending_and_named() {
        let empty = || Some(secret(json!({})));
        for (more, source, expected) in [
            (json!({}), None, "Secret smtp, named in spec.valuesFrom, does not exist: "),
            (json!({"kind": "ConfigMap"}), None, "ConfigMap smtp, named in spec.valuesFrom, does not exist: "),
            (json!({}), empty(), "Secret smtp, named in spec.valuesFrom, has no key values.yaml: "),
            (
                json!({"valuesKey": "k", "optional": true}),
                empty(),
                "Secret smtp, named in spec.valuesFrom, has no key k: ",
            ),
        ] {
            match of(reference(more.clone()), source) {
                Sources::Pending(Hold {
                    reason: Reason::ValuesMissing, stalled: true, until: None, message, ..
                }) => {
                    assert!(message.starts_with(expected), "{message}");
                }
                other => panic!("{more}: {other:?}"),
            }
        }
    }

    #[test]
    fn invalid_sources_are_rejected_without_secret_text() {
        let text = |text: &str| secret(json!({"stringData": {"values.yaml": text}}));
        let marked = json!({
            "namespace": "tenants",
            "annotations": {"meta.helm.sh/release-name": "acme", "meta.helm.sh/release-namespace": "tenants"},
        });
        for (source, expected) in [
            (text("a: 1\npin: 0123456"), "line 2: a word has another meaning"),
            (text("canary: b: c"), "line 1: not YAML"),
            (text("a: &x [canary]\nb: *x"), "line 2: an alias"),
            (text("canary"), "it is not a YAML map of values"),
            (text("- canary"), "it is not a YAML map of values"),
            (text(&"a".repeat(MAX_BYTES + 1)), "its text has 262145 bytes; at most 262144 fit"),
            (secret(json!({"data": {"values.yaml": "/w=="}})), "it is not text in UTF-8"),
            (secret(json!({"type": "helm.sh/release.v1"})), "a Secret of type helm.sh/release.v1 is not for values"),
            (
                secret(json!({"type": "kubernetes.io/service-account-token", "stringData": {"values.yaml": "a: 1"}})),
                "a Secret of type kubernetes.io/service-account-token is not for values",
            ),
            (secret(json!({"metadata": marked})), "this object is part of this ClientApp's own release"),
        ] {
            let Sources::Invalid(problem) = of(reference(json!({})), Some(source)) else { panic!("{expected}") };
            let problem = problem.strip_prefix("Secret smtp, key values.yaml: ").expect("it begins with the object");
            assert!(problem.starts_with(expected), "{problem}");
            assert!(!problem.contains("canary") && !problem.contains("0123456"), "{problem}");
        }
        let ambiguous = map(json!({"data": {"values.yaml": "a: no"}}));
        let Sources::Invalid(problem) = of(reference(json!({"kind": "ConfigMap"})), Some(ambiguous)) else { panic!() };
        assert!(problem.starts_with("ConfigMap smtp, key values.yaml: line 1: no is false"), "{problem}");
    }

    #[test]
    fn repeated_references_are_limited_in_size() {
        let large = secret(json!({"stringData": {"values.yaml": format!("a: {}", "x".repeat(MAX_BYTES / 3))}}));
        let (reference, app) = (reference(json!({})), Key::new("tenants", "acme"));
        for (times, expected) in [(2, ""), (4, "the texts have 349536 bytes together")] {
            let sources = merge(&app, vec![(&reference, Some(&large)); times], Salt::default());
            let problem = if let Sources::Invalid(problem) = sources { problem } else { String::new() };
            assert!(problem.starts_with(expected) && problem.is_empty() == expected.is_empty(), "{problem}");
        }
        let many =
            secret(json!({"stringData": {"values.yaml": format!("a: {:?}", vec!["text"; Redactor::MAX_TEXTS + 1])}}));
        let Sources::Invalid(problem) = merge(&app, [(&reference, Some(&many))], Salt::default()) else { panic!() };
        assert!(problem.starts_with("the Secrets have more than 4000 texts"), "{problem}");
    }

    #[test]
    fn a_denial_is_final_once_the_account_is_known() {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(60);
        let ago = |seconds| Some(now - SignedDuration::from_secs(seconds));
        for (since, reason, stalled) in [
            (ago(1), Reason::Pending, false),
            (ago(5), Reason::AccessDenied, true),
            // An account of the user's own.
            (None, Reason::AccessDenied, true),
        ] {
            let hold = denied(&reference(json!({})), "cannot get", since, now);
            assert_eq!((hold.reason, hold.stalled, hold.condition), (reason, stalled, kind::RELEASED), "{since:?}");
            assert!(hold.until.is_some_and(|until| until > now) && hold.message.starts_with("Secret smtp"), "{hold:?}");
        }
    }

    #[test]
    fn secret_values_are_masked() {
        let values =
            json!({"a": {"b": "canary", "n": 1, "t": true, "x": null, "e": ""}, "l": ["canary", {"c": "canary"}]});
        let layer = |is_secret| Layer { origin: "Secret smtp, key k".to_owned(), values: values.clone(), is_secret };
        let shown = json!({"a": {"b": "***", "n": "***", "t": "***", "x": null, "e": ""}, "l": ["***", {"c": "***"}]});
        assert_eq!((layer(true).masked().values, layer(false).masked().values), (shown, values.clone()));
        let printed = format!(
            "{:?}",
            Sources::Resolved {
                layers: [layer(true)].into(),
                salt: Salt("canary".into()),
                hidden: Redactor::default()
            }
        );
        assert!(!printed.contains("canary"), "{printed}");
    }
}
