//! Decodes objects without their managed fields, and reads what managed fields tell of owners. **Pure.**

use std::{
    borrow::Cow,
    hash::{DefaultHasher, Hash as _, Hasher as _},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ObjectMeta};
use kube::Resource;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use serde_json::value::RawValue;

use crate::crd::guard::split_managed_fields;

/// Helm's field manager (helm.sh/helm/v4/cmd/helm/helm.go): its next upgrade then owns what is applied with it.
pub(crate) const HELM: &str = "helm";

/// An object of kind `K` whose managed fields were never decoded. They are trees of field names, which make up most of the text and
/// nearly all of the memory of a Secret's or Service's metadata. Only a digest of the fields that helm manages is kept of them.
#[derive(Clone, Debug)]
pub(crate) struct WithoutManagedFields<K> {
    pub object: K,
    /// Changes whenever another client takes a field from helm, or helm applies other fields; zero if helm manages none.
    pub helm_fields_digest: u64,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for WithoutManagedFields<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let (fields, managed) = split_managed_fields(raw.get()).map_err(D::Error::custom)?;
        let text = serde_json::to_string(&fields).map_err(D::Error::custom)?;
        let object = serde_json::from_str(&text).map_err(D::Error::custom)?;
        Ok(WithoutManagedFields { object, helm_fields_digest: managed.map_or(0, |managed| digest(&managed)) })
    }
}

/// Decodes managed fields as [`WithoutManagedFields::helm_fields_digest`].
pub(crate) fn helm_fields_digest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Ok(digest(&Box::<RawValue>::deserialize(deserializer)?))
}

/// Returns a digest of the fields that helm has applied and still manages. The API server writes equal sets of fields as equal text.
fn digest(managed: &RawValue) -> u64 {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Managed<'a> {
        #[serde(borrow)]
        manager: Option<Cow<'a, str>>,
        #[serde(borrow)]
        operation: Option<Cow<'a, str>>,
        #[serde(borrow)]
        fields_v1: Option<&'a RawValue>,
    }
    let managed: Vec<Managed<'_>> = serde_json::from_str(managed.get()).unwrap_or_default();
    let applied_by_helm = managed
        .into_iter()
        .find(|managed| managed.manager.as_deref() == Some(HELM) && managed.operation.as_deref() == Some("Apply"));
    let Some(fields) = applied_by_helm.and_then(|entry| entry.fields_v1) else { return 0 };
    let mut hasher = DefaultHasher::new();
    fields.get().hash(&mut hasher);
    hasher.finish()
}

/// Returns true if a controller sets the replicas, as a HorizontalPodAutoscaler does: through the subresource, with the field manager of
/// the controller manager or one of its own, unlike `kubectl scale`.
pub(crate) fn is_scaled(meta: &ObjectMeta) -> bool {
    replicas_are_set(meta, |manager, subresource| subresource == Some("scale") && !manager.starts_with("kubectl"))
}

/// Returns true if helm manages the replicas, however it has applied them.
pub(crate) fn replicas_are_helms(meta: &ObjectMeta) -> bool {
    replicas_are_set(meta, |manager, _| manager == HELM)
}

/// Returns true if the replicas are managed by one of the field managers for which `by` is true of their name and subresource.
fn replicas_are_set(meta: &ObjectMeta, by: impl Fn(&str, Option<&str>) -> bool) -> bool {
    meta.managed_fields.iter().flatten().any(|entry| {
        let has_replicas = |FieldsV1(fields): &FieldsV1| fields.pointer("/f:spec/f:replicas").is_some();
        by(entry.manager.as_deref().unwrap_or_default(), entry.subresource.as_deref())
            && entry.fields_v1.as_ref().is_some_and(has_replicas)
    })
}

impl<K: Resource> Resource for WithoutManagedFields<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn metadata_api() -> bool {
        K::metadata_api()
    }
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
        self.object.meta()
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.object.meta_mut()
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{ConfigMap, Secret};
    use kube::{
        api::PartialObjectMeta,
        core::{ObjectList, WatchEvent},
    };

    use super::*;

    #[test]
    fn managed_fields_are_not_decoded_however_deep_they_are() {
        let deep = format!("{}1{}", "{\"f:a\":".repeat(2000), "}".repeat(2000));
        let object = format!(
            r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"a","labels":{{"b":"c"}},
               "managedFields":[{{"manager":"helm","operation":"Update","fieldsV1":{deep}}}]}},"data":{{"d":"e"}}}}"#
        );
        let event: WatchEvent<WithoutManagedFields<ConfigMap>> =
            serde_json::from_str(&format!(r#"{{"type":"ADDED","object":{object}}}"#)).unwrap();
        let WatchEvent::Added(WithoutManagedFields { object: map, .. }) = event else { panic!("{event:?}") };
        assert_eq!(map.data.unwrap()["d"], "e");
        assert_eq!((map.metadata.labels.unwrap()["b"].as_str(), map.metadata.managed_fields), ("c", None));

        let list = format!(r#"{{"kind":"List","apiVersion":"v1","metadata":{{}},"items":[{object}]}}"#);
        let list: ObjectList<WithoutManagedFields<PartialObjectMeta<Secret>>> = serde_json::from_str(&list).unwrap();
        assert_eq!(list.items[0].meta().name.as_deref(), Some("a"));
        assert!(
            WithoutManagedFields::<PartialObjectMeta<Secret>>::metadata_api()
                && !WithoutManagedFields::<ConfigMap>::metadata_api()
        );
    }

    #[test]
    fn what_helm_manages_is_told_apart() {
        let digest = |managed: &str| {
            let object = format!(r#"{{"metadata":{{"name":"a","managedFields":{managed}}}}}"#);
            serde_json::from_str::<WithoutManagedFields<ConfigMap>>(&object).unwrap().helm_fields_digest
        };
        let helm = |fields: &str, time: &str| {
            format!(
                r#"{{"manager":"helm","operation":"Apply","apiVersion":"v1","time":"{time}","fieldsType":"FieldsV1","fieldsV1":{fields}}}"#
            )
        };
        let (all, less) = (helm(r#"{"f:data":{"f:a":{},"f:b":{}}}"#, "1"), helm(r#"{"f:data":{"f:a":{}}}"#, "2"));
        let later = helm(r#"{"f:data":{"f:a":{},"f:b":{}}}"#, "3");
        let kubectl = r#"{"manager":"kubectl-edit","operation":"Update","fieldsV1":{"f:data":{"f:b":{}}}}"#;
        assert_eq!(digest(&format!("[{all}]")), digest(&format!("[{kubectl},{later}]")));
        assert_ne!(digest(&format!("[{all}]")), digest(&format!("[{less},{kubectl}]")));
        assert_eq!([digest("[]"), digest(&format!("[{kubectl}]")), digest("\"odd\"")], [0; 3]);
    }
}
