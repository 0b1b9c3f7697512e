//! Addresses behind a Service. **Pure.**

use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::ResourceExt as _;

use crate::platform::{
    cache::CacheEntry,
    key::{Key, key_of},
};

/// Label of an EndpointSlice: its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Returns whether an EndpointSlice has a ready address, filed under its Service.
pub(super) fn slice(slice: EndpointSlice) -> CacheEntry<bool> {
    let key = key_of(&slice);
    let service = slice.labels().get(SERVICE_NAME).cloned();
    // No condition means ready (k8s.io/api/discovery/v1, EndpointConditions).
    let ready = slice
        .endpoints
        .iter()
        .any(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true));
    CacheEntry { group: service.map(|service| Key::new(&key.namespace, service)), value: Some(ready), key }
}
