//! Finds the address of an app's Service, and reads what its answer says. **Pure.**

use std::net::{IpAddr, SocketAddr};

use k8s_openapi::{
    api::core::v1::{Service, ServicePort},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::ResourceExt as _;
use serde_json::Value;

use crate::crd::{ClientApp, HealthCheck};

/// A text of an answer that is longer is not quoted.
const QUOTED: usize = 32;
/// Limit for the name of an object that a chart makes of its release's, as in `helm create`.
const NAME: usize = 63;

/// Says what came of asking an app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::profile) enum Outcome {
    /// The answer is as it should be.
    Right,
    /// It is not, for this reason.
    Wrong(String),
    /// The app could not be asked, for a reason that is not its own.
    Unknown(String),
}

/// Returns the name of the Service that the chart makes for the app itself, by Helm's convention. No values change it, except for
/// `nameOverride`.
///
/// # Errors
/// The release has no such Service.
pub(in crate::profile) fn service(app: &ClientApp, chart: &str) -> Result<String, String> {
    let release = app.name_any();
    let full = if release.contains(chart) { release } else { format!("{release}-{chart}") };
    let name = full.get(..NAME).unwrap_or(&full).trim_end_matches('-');
    let inventory = app.status.as_ref().and_then(|status| status.inventory.as_ref());
    let mut objects = inventory.into_iter().flat_map(|inventory| &inventory.objects);
    let is_it = objects.any(|object| {
        let is_here = object.namespace.is_none() || object.namespace == app.metadata.namespace;
        (object.api_version.as_str(), object.kind.as_str(), object.name.as_str()) == ("v1", "Service", name) && is_here
    });
    let missing = || format!("its release has no Service {name} (nameOverride?)");
    is_it.then(|| name.to_owned()).ok_or_else(missing)
}

/// Returns the address of a Service inside the cluster. Only one that Kubernetes itself sends on to pods of the Service's namespace is
/// asked: with another, a user who may write Services could let the operator ask any host.
///
/// # Errors
/// It has none.
pub(super) fn address(service: &Service, wanted: Option<&IntOrString>) -> Result<SocketAddr, String> {
    let name = service.name_any();
    let spec = service.spec.clone().unwrap_or_default();
    let type_ = spec.type_.as_deref().unwrap_or("ClusterIP");
    if !["ClusterIP", "NodePort", "LoadBalancer"].contains(&type_) {
        return Err(format!("Service {name} is of type {type_}"));
    }
    if spec.selector.unwrap_or_default().is_empty() {
        return Err(format!("Service {name} selects no pods"));
    }
    let address = spec.cluster_ip.as_deref().and_then(|address| address.parse::<IpAddr>().ok());
    let address = address.ok_or_else(|| format!("Service {name} has no address inside the cluster"))?;
    let ports: Vec<_> =
        spec.ports.iter().flatten().filter(|port| port.protocol.as_deref().is_none_or(|it| it == "TCP")).collect();
    let named = |name: &str| ports.iter().find(|port| port.name.as_deref() == Some(name));
    let port: Option<&&ServicePort> = match wanted {
        None => named("http").or(ports.first()),
        Some(IntOrString::Int(number)) => ports.iter().find(|port| port.port == *number),
        Some(IntOrString::String(name)) => named(name),
    };
    let port = port.and_then(|port| u16::try_from(port.port).ok());
    let missing = || match wanted {
        None => format!("Service {name} has no port"),
        Some(IntOrString::Int(number)) => format!("Service {name} has no port {number}"),
        Some(IntOrString::String(wanted)) => format!("Service {name} has no port {wanted}"),
    };
    Ok(SocketAddr::new(address, port.ok_or_else(missing)?))
}

/// Judges the status of an answer.
///
/// # Errors
/// It is another than it should be.
pub(super) fn status_is_right(check: &HealthCheck, status: u16) -> Result<(), String> {
    let path = &check.path;
    match status {
        200..300 => Ok(()),
        300..400 => Err(format!("{path} answers {status}, a redirect, which is not followed")),
        _ => Err(format!("{path} answers {status}, expected 200 to 299")),
    }
}

/// Judges what an answer says. Of that, only a short value at a pointer is quoted.
///
/// # Errors
/// It says something else than it should.
pub(super) fn content_is_right(check: &HealthCheck, content: &[u8]) -> Result<(), String> {
    let path = &check.path;
    let document: Value = serde_json::from_slice(content).map_err(|_| format!("{path} does not answer JSON"))?;
    check.json.iter().try_for_each(|expected| {
        let (pointer, value) = (&expected.pointer, shown(&expected.value));
        match document.pointer(pointer) {
            Some(found) if is_same(found, &expected.value) => Ok(()),
            Some(found) => Err(format!("{path} says {pointer} {}, expected {value}", shown(found))),
            None => Err(format!("{path} says nothing about {pointer}, expected {value}")),
        }
    })
}

/// Returns true for equal values, and for numbers that are written otherwise, such as 1 and 1.0.
fn is_same(found: &Value, expected: &Value) -> bool {
    found == expected || expected.as_f64().is_some_and(|expected| found.as_f64() == Some(expected))
}

fn shown(value: &Value) -> String {
    let is_short = |text: &str| text.len() <= QUOTED && text.chars().all(|c| c == ' ' || c.is_ascii_graphic());
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) if is_short(text) => value.to_string(),
        Value::String(_) => "a long text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

#[cfg(test)]
mod tests;
