//! Decoding in which a single bad object does not stop the watch of all others. Pure.

use std::{borrow::Cow, collections::BTreeMap};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, core::object::HasStatus};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use serde_json::{
    Value,
    value::{RawValue, to_raw_value},
};
use serde_path_to_error::Segment;

/// An object of kind `K`, or the reason why the stored object cannot be decoded, with its metadata either way.
///
/// It differs from kube's `DeserializeGuard` in one point: the object is first read as raw text, which serde_json scans without
/// recursion. So an object nested deeper than serde_json's limit of 128 levels is a single undecodable object instead of an error of
/// the whole list or watch.
#[derive(Clone, Debug)]
pub struct Guard<K> {
    /// The object's metadata, always readable.
    pub metadata: ObjectMeta,
    /// The object, or a sentence on why it cannot be decoded.
    pub object: Result<K, String>,
    /// The status of an object that cannot be decoded. It is readable, because this operator has written it.
    pub status: Option<Value>,
}

impl<K: HasStatus> Guard<K> {
    /// The status as stored.
    pub fn status(&self) -> Option<K::Status>
    where
        K::Status: Clone + DeserializeOwned,
    {
        match &self.object {
            Ok(object) => object.status().cloned(),
            Err(_) => self.status.clone().and_then(|status| serde_json::from_value(status).ok()),
        }
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guard<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let fields = without_managed_fields(raw.get()).map_err(D::Error::custom)?;
        let metadata = fields.get("metadata").map_or("{}", |metadata| metadata.get());
        let metadata = serde_json::from_str(metadata).map_err(D::Error::custom)?;
        let object = decode(&serde_json::to_string(&fields).map_err(D::Error::custom)?, |_| {});
        // The rest of the object may be nested too deeply.
        let status = || serde_json::from_str(fields.get("status")?.get()).ok();
        let status = if object.is_err() { status() } else { None };
        Ok(Guard { metadata, object, status })
    }
}

/// The fields of an object, undecoded.
pub type Fields = BTreeMap<String, Box<RawValue>>;

/// An object's fields, with metadata that lacks the managed fields. They are not used, take more than half of a small object's space
/// in the cache, and nest as deeply as the object.
pub fn without_managed_fields(json: &str) -> serde_json::Result<Fields> {
    Ok(split_managed_fields(json)?.0)
}

/// The same, with the text of the managed fields.
pub fn split_managed_fields(json: &str) -> serde_json::Result<(Fields, Option<Box<RawValue>>)> {
    let mut object: Fields = serde_json::from_str(json)?;
    let metadata = object.get("metadata").map(|metadata| serde_json::from_str::<Fields>(metadata.get())).transpose()?;
    let mut metadata = metadata.unwrap_or_default();
    let managed = metadata.remove("managedFields");
    object.insert("metadata".to_owned(), to_raw_value(&metadata)?);
    Ok((object, managed))
}

/// Decodes an object, and returns the fields that its kind does not have. An error names the field at fault.
pub fn decode_strictly<K: DeserializeOwned>(json: &str) -> Result<(K, Vec<String>), String> {
    let mut unknown = Vec::new();
    let object = decode(json, |field| unknown.push(field))?;
    // The type implies these two; it has no fields for them.
    unknown.retain(|field| !matches!(field.as_str(), "apiVersion" | "kind"));
    Ok((object, unknown))
}

/// Decodes an object of a user's file, as strictly as `kubectl apply` does.
pub fn read<K: Resource<DynamicType = ()> + DeserializeOwned>(document: &Value) -> Result<K, String> {
    let (kind, version) = (K::kind(&()), K::api_version(&()));
    if document["kind"] != *kind || document["apiVersion"] != *version {
        return Err(format!(
            "a {kind} of {version} is expected, but kind is {} and apiVersion is {}",
            document["kind"], document["apiVersion"]
        ));
    }
    let (object, unknown) =
        decode_strictly(&document.to_string()).map_err(|problem| format!("not a {kind}: {problem}"))?;
    match unknown.as_slice() {
        [] => Ok(object),
        unknown => Err(format!("unknown field {}", unknown.join(", "))),
    }
}

fn decode<K: DeserializeOwned>(json: &str, mut unknown: impl FnMut(String)) -> Result<K, String> {
    let mut json = serde_json::Deserializer::from_str(json);
    let mut unknown = |path: serde_ignored::Path<'_>| unknown(path.to_string());
    let json = serde_ignored::Deserializer::new(&mut json, &mut unknown);
    serde_path_to_error::deserialize(json).map_err(|error| sentence(&error))
}

/// Users never see the stored text, so its line and column do not help them, but the path of the field does.
fn sentence(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    /// No field of a schema is deeper; anything deeper belongs to a user's own tree.
    const SEGMENTS: usize = 6;
    let problem = error.inner().to_string();
    let problem = problem.rsplit_once(" at line ").map_or(problem.as_str(), |(problem, _)| problem);
    let problem = match problem {
        "recursion limit exceeded" => "nests deeper than 128 levels, which the operator does not support",
        problem => problem,
    };
    let mut path = String::new();
    for (index, segment) in error.path().iter().enumerate().take(SEGMENTS) {
        match segment {
            Segment::Seq { .. } => {}
            _ if index > 0 => path.push('.'),
            _ => {}
        }
        path += &segment.to_string();
    }
    if path.is_empty() { problem.to_owned() } else { format!("{path}: {problem}") }
}

impl<K: Resource> Resource for Guard<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }
    fn group(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }
    fn version(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }
    fn plural(dt: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use kube::core::{ObjectList, WatchEvent};

    use super::Guard;
    use crate::ClientApp;

    fn object(name: &str, values: &str) -> String {
        format!(
            r#"{{"apiVersion":"apps.bnerd-operator.local/v1alpha1","kind":"ClientApp","metadata":{{"name":"{name}",
               "managedFields":[{{"manager":"kubectl","fieldsV1":{{"f:spec":{{"f:values":{values}}}}}}}]}},
               "spec":{{"hostname":"a.example","values":{values}}}}}"#
        )
    }

    fn deep() -> String {
        format!("{}1{}", "{\"a\":".repeat(2000), "}".repeat(2000))
    }

    #[test]
    fn one_bad_object_leaves_list_and_watch_readable() {
        let list = format!(
            r#"{{"apiVersion":"v1","kind":"List","metadata":{{"resourceVersion":"1"}},"items":[{},{},{}]}}"#,
            object("good", "{}"),
            object("deep", &deep()),
            object("not-a-map", "7"),
        );
        let list: ObjectList<Guard<ClientApp>> = serde_json::from_str(&list).unwrap();
        let decodes: Vec<_> =
            list.items.iter().map(|guard| (guard.metadata.name.as_deref().unwrap(), guard.object.is_ok())).collect();
        assert_eq!(decodes, [("good", true), ("deep", false), ("not-a-map", false)]);

        let event = format!(r#"{{"type":"ADDED","object":{}}}"#, object("deep", &deep()));
        let event: WatchEvent<Guard<ClientApp>> = serde_json::from_str(&event).unwrap();
        let WatchEvent::Added(guard) = event else { panic!("{event:?}") };
        assert_eq!(guard.metadata.name.as_deref(), Some("deep"));
        let problem = guard.object.unwrap_err();
        assert!(problem.starts_with("spec.values.a.a.a.a: nests deeper than 128 levels"), "{problem}");
    }

    /// A deletion relies on the recorded status.
    #[test]
    fn what_is_on_record_of_a_bad_object_is_readable() {
        let status = r#""status":{"url":"https://a.example","orphaned":true}"#;
        for values in ["{}".to_owned(), deep(), "7".to_owned()] {
            let object = object("acme", &values);
            let object = format!("{},{status}}}", object.strip_suffix('}').unwrap());
            let guard: Guard<ClientApp> = serde_json::from_str(&object).unwrap();
            let status = guard.status().unwrap();
            assert_eq!(
                (status.url.as_deref(), status.orphaned),
                (Some("https://a.example"), Some(true)),
                "{values:.20}"
            );
        }
    }

    #[test]
    fn the_problem_begins_with_the_field() {
        for (object, problem) in [
            (r#"{"metadata":{},"spec":{"hostname":7}}"#, "spec.hostname: invalid type: integer `7`, expected a string"),
            (r#"{"metadata":{},"spec":{}}"#, "spec: missing field `hostname`"),
            (
                r#"{"metadata":{},"spec":{"hostname":"a","postgres":{"instances":"x"}}}"#,
                "spec.postgres.instances: invalid type: string \"x\", expected i32",
            ),
            (
                r#"{"metadata":{},"spec":{"hostname":"a"},"status":{"conditions":[{"type":7}]}}"#,
                "status.conditions[0].type: invalid type: integer `7`, expected a string",
            ),
        ] {
            assert_eq!(super::decode::<ClientApp>(object, |_| {}).unwrap_err(), problem);
        }
        let (_, unknown) =
            super::decode_strictly::<ClientApp>(r#"{"metadata":{},"spec":{"hostname":"a","redis":{"enabld":true}}}"#)
                .unwrap();
        assert_eq!(unknown, ["spec.redis.enabld"]);
    }
}
