//! Decoding without the fields that nothing reads. Pure.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use serde_json::value::RawValue;

use crate::crd::guard::without_managed_fields;

/// An object of kind `K` whose managed fields were never decoded. They are trees of field names, which make up most of the text and
/// nearly all of the memory of a Secret's or Service's metadata.
#[derive(Clone, Debug)]
pub(crate) struct Lean<K>(pub K);

impl<'de, K: DeserializeOwned> Deserialize<'de> for Lean<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        let fields = without_managed_fields(raw.get()).and_then(|fields| serde_json::to_string(&fields));
        serde_json::from_str(&fields.map_err(D::Error::custom)?).map(Lean).map_err(D::Error::custom)
    }
}

impl<K: Resource> Resource for Lean<K> {
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
        self.0.meta()
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.meta_mut()
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
               "managedFields":[{{"manager":"helm","fieldsV1":{deep}}}]}},"data":{{"d":"e"}}}}"#
        );
        let event: WatchEvent<Lean<ConfigMap>> =
            serde_json::from_str(&format!(r#"{{"type":"ADDED","object":{object}}}"#)).unwrap();
        let WatchEvent::Added(Lean(map)) = event else { panic!("{event:?}") };
        assert_eq!(map.data.unwrap()["d"], "e");
        assert_eq!((map.metadata.labels.unwrap()["b"].as_str(), map.metadata.managed_fields), ("c", None));

        let list = format!(r#"{{"kind":"List","apiVersion":"v1","metadata":{{}},"items":[{object}]}}"#);
        let list: ObjectList<Lean<PartialObjectMeta<Secret>>> = serde_json::from_str(&list).unwrap();
        assert_eq!(list.items[0].meta().name.as_deref(), Some("a"));
        assert!(Lean::<PartialObjectMeta<Secret>>::metadata_api() && !Lean::<ConfigMap>::metadata_api());
    }
}
