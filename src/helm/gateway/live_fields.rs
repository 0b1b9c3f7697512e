//! Preserves fields that only the cluster knows (effect): the size of a claim that has grown since, and the replicas that an
//! autoscaler has set.
//!
//! The chart knows of neither. The API server refuses a smaller size, and with it the whole run; and with the chart's replicas, an
//! autoscaled app would start over with each run.

use axum::{body::Bytes, http::StatusCode, response::Response};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use kube::{Client, api::DynamicObject};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    answer::{get, response},
    record::KeptSize,
    rules::ObjectRequest,
    run::Run,
};
use crate::{
    crd::quantity,
    platform::managed_fields::{is_scaled, replicas_are_helms},
};

/// A field that is preserved.
#[derive(Clone, Copy)]
enum Field {
    Size,
    Replicas,
}

impl Field {
    fn of(
        ObjectRequest { verb, group, resource, subresource: _, namespace: _, name: _ }: &ObjectRequest,
    ) -> Option<Field> {
        match (*verb, group.as_str(), resource.as_str()) {
            ("patch" | "update", "", "persistentvolumeclaims") => Some(Field::Size),
            ("patch" | "update", "apps", "deployments" | "statefulsets") => Some(Field::Replicas),
            _ => None,
        }
    }

    fn path(self) -> &'static str {
        match self {
            Field::Size => "/spec/resources/requests/storage",
            Field::Replicas => "/spec/replicas",
        }
    }
}

/// Returns the body of a write with the fields that are preserved.
///
/// # Errors
/// The response to helm instead: the object that is there cannot be read.
pub(super) async fn preserve(
    client: &Client,
    run: &Run,
    (object, path): (&ObjectRequest, &str),
    body: Bytes,
) -> Result<Bytes, Response> {
    let Some(field) = Field::of(object) else { return Ok(body) };
    // Other patches, such as those of managed fields, are no objects.
    let Ok(mut requested) = serde_json::from_slice::<Value>(&body) else { return Ok(body) };
    if !requested["spec"].is_object() {
        return Ok(body);
    }
    let Some(live) = read::<DynamicObject>(client, run, path).await? else { return Ok(body) };
    let Some(there) = live.data.pointer(field.path()) else { return Ok(body) };
    let wanted = requested.pointer(field.path());
    match field {
        Field::Size => {
            let Some((wanted, has)) = wanted.and_then(|wanted| smaller(wanted, there)) else { return Ok(body) };
            run.record.lock().keeps(KeptSize { claim: object.name.clone(), requested: wanted, has });
            requested["spec"]["resources"]["requests"]["storage"].clone_from(there);
        }
        Field::Replicas => {
            let is_autoscalers = match wanted {
                // Zero stops the app, and its autoscaler with it.
                Some(wanted) if *wanted == 0 || wanted == there => false,
                Some(_) => is_scaled(&live.metadata) && is_targeted(client, run, object).await?,
                // The chart leaves the field to an autoscaler from now on. What nobody manages any more would become one.
                None => *there != 0 && replicas_are_helms(&live.metadata),
            };
            if !is_autoscalers {
                return Ok(body);
            }
            requested["spec"]["replicas"].clone_from(there);
        }
    }
    Ok(requested.to_string().into())
}

/// Returns both sizes, if the first is the smaller one. **Pure.**
fn smaller(requested: &Value, there: &Value) -> Option<(String, String)> {
    let [requested, there] =
        [requested, there].map(|size| size.as_str().map_or_else(|| size.to_string(), str::to_owned));
    (quantity::parse(&requested)? < quantity::parse(&there)?).then_some((requested, there))
}

/// Returns true if an autoscaler is there that targets this object. If helm's account may not list them, what has set the replicas counts.
async fn is_targeted(client: &Client, run: &Run, object: &ObjectRequest) -> Result<bool, Response> {
    #[derive(serde::Deserialize)]
    struct Autoscalers {
        items: Vec<HorizontalPodAutoscaler>,
    }
    let kind = if object.resource == "deployments" { "Deployment" } else { "StatefulSet" };
    let path = format!("/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers", object.namespace);
    let targets = |autoscaler: &HorizontalPodAutoscaler| {
        let target = autoscaler.spec.as_ref().map(|spec| &spec.scale_target_ref);
        target.is_some_and(|target| (target.kind.as_str(), &target.name) == (kind, &object.name))
    };
    match read::<Autoscalers>(client, run, &path).await {
        Ok(list) => Ok(list.is_some_and(|list| list.items.iter().any(targets))),
        Err(answer) if answer.status() == StatusCode::FORBIDDEN => Ok(true),
        Err(answer) => Err(answer),
    }
}

/// Reads and decodes what is at a path, with the rights of the run's account. Returns `None` if it does not exist or does not decode.
async fn read<T: DeserializeOwned>(client: &Client, run: &Run, path: &str) -> Result<Option<T>, Response> {
    let document = get(client, run, path, "application/json").await?;
    match document.0 {
        StatusCode::NOT_FOUND => Ok(None),
        status if status.is_success() => Ok(serde_json::from_slice(&document.2).ok()),
        _ => Err(response(document)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_size_is_preserved_if_it_is_larger() {
        for (asked, there, expected) in [
            (json!("8Gi"), json!("20Gi"), true),
            (json!("8Gi"), json!("8589934592"), false),
            (json!(1000), json!("1Ki"), true),
            (json!("20Gi"), json!("8Gi"), false),
            (json!("8GB"), json!("20Gi"), false),
            (Value::Null, json!("20Gi"), false),
        ] {
            assert_eq!(smaller(&asked, &there).is_some(), expected, "{asked} {there}");
        }
    }
}
