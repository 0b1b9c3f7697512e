//! The kinds, and requests for their objects. The requests are an **effect**.

use anyhow::{Result, bail};
use clientapp_crd::{self as crd, GROUP};
use http::{Method, Request, header};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Client;
use serde_json::{Value, json};

use super::schema::Schema;

/// Of a merge patch, and of a whole object.
pub const MERGE: &str = "application/merge-patch+json";
pub const WHOLE: &str = "application/json";
/// The version of all kinds.
const VERSION: &str = "v1alpha1";
/// The hostname of the apps of all sequences: no operator sees another's.
const HOSTNAME: &str = "acme.example.com";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    ClientApp,
    Postgresql,
    PostgresWriter,
    Profile,
}

impl Kind {
    pub const ALL: [Kind; 4] = [Kind::ClientApp, Kind::Postgresql, Kind::PostgresWriter, Kind::Profile];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::ClientApp => "ClientApp",
            Kind::Postgresql => "Postgresql",
            Kind::PostgresWriter => "PostgresWriter",
            Kind::Profile => "Profile",
        }
    }

    #[must_use]
    pub fn definition(self) -> CustomResourceDefinition {
        let mut all = crd::all().into_iter();
        all.find(|definition| definition.spec.names.kind == self.name()).expect("the kind is the operator's")
    }

    #[must_use]
    pub fn schema(self) -> Schema {
        Schema::of(&self.definition())
    }

    /// The path of all objects of the kind: those in a namespace, except for Profiles.
    #[must_use]
    pub fn url(self, namespace: &str) -> String {
        let namespaced = if self == Kind::Profile { String::new() } else { format!("/namespaces/{namespace}") };
        format!("/apis/{GROUP}/{VERSION}{namespaced}/{}s", self.name().to_lowercase())
    }

    /// An object to create.
    #[must_use]
    pub fn object(self, name: &str, spec: &Value) -> Value {
        let version = format!("{GROUP}/{VERSION}");
        json!({"apiVersion": version, "kind": self.name(), "metadata": {"name": name}, "spec": spec})
    }

    /// Valid specs with little in them, which become Ready.
    #[must_use]
    pub fn least(self) -> Vec<Value> {
        match self {
            Kind::ClientApp => vec![
                app(None),
                json!({"hostname": HOSTNAME, "postgres": {"enabled": false}}),
                json!({"hostname": HOSTNAME, "postgres": {"provider": "standalone"}, "redis": {"enabled": false}}),
                json!({"hostname": HOSTNAME, "redis": {"enabled": false}}),
            ],
            Kind::Postgresql | Kind::Profile => vec![json!({})],
            Kind::PostgresWriter => vec![json!({"table": "people", "name": "Ada", "age": 36, "country": "UK"})],
        }
    }
}

/// The spec of an app that is ready within moments.
#[must_use]
pub fn app(profile: Option<&str>) -> Value {
    let off = json!({"enabled": false});
    match profile {
        None => json!({"hostname": HOSTNAME, "postgres": off, "redis": off, "persistence": off}),
        // Which sets the persistence.
        Some(profile) => json!({"hostname": HOSTNAME, "postgres": off, "redis": off, "profile": profile}),
    }
}

/// What the API server says to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    Accepted(Value),
    Refused { code: u16, message: String },
}

impl Answer {
    /// What is wrong with it: a refusal says why, and is the client's fault.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        match self {
            Answer::Refused { code, message } if !(400..500).contains(code) || message.is_empty() => {
                Some(format!("the API server answers {code} {message:.300}"))
            }
            _ => None,
        }
    }

    /// The object.
    ///
    /// # Errors
    /// The refusal.
    pub fn accepted(self) -> Result<Value> {
        match self {
            Answer::Accepted(object) => Ok(object),
            Answer::Refused { code, message } => bail!("the API server answers {code} {message:.1000}"),
        }
    }
}

/// Sends a request as cluster admin, without a type that could not be invalid.
///
/// # Errors
/// If there is no answer.
pub async fn ask(client: &Client, method: Method, url: &str, content: &str, body: &Value) -> Result<Answer> {
    let request = Request::builder().method(method).uri(url).header(header::CONTENT_TYPE, content);
    let body = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
    match client.request_text(request.body(body)?).await {
        Ok(text) => Ok(Answer::Accepted(serde_json::from_str(&text)?)),
        Err(kube::Error::Api(status)) => Ok(Answer::Refused { code: status.code, message: status.message }),
        Err(error) => Err(error.into()),
    }
}

/// The Ready condition of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    pub status: String,
    pub reason: String,
    pub message: String,
}

impl Ready {
    #[must_use]
    pub fn of(object: &Value) -> Ready {
        let found = condition(object, "Ready");
        let word = |name: &str| found[name].as_str().unwrap_or_default().to_owned();
        Ready { status: word("status"), reason: word("reason"), message: word("message") }
    }

    /// Whether another says the same, perhaps in other words.
    #[must_use]
    pub fn is(&self, other: &Ready) -> bool {
        (&self.status, &self.reason) == (&other.status, &other.reason)
    }
}

/// A condition of an object, or `null`.
#[must_use]
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

/// Whether the status is of the current spec, and has a Ready condition with a reason.
#[must_use]
pub fn is_current(object: &Value) -> bool {
    object["status"]["observedGeneration"] == object["metadata"]["generation"] && !Ready::of(object).reason.is_empty()
}
