//! The kinds, and objects of them. Pure.

use clientapp_crd::{self as crd, GROUP};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use super::schema::Schema;

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

    pub fn name(self) -> String {
        format!("{self:?}")
    }

    pub fn definition(self) -> CustomResourceDefinition {
        let mut all = crd::all().into_iter();
        all.find(|definition| definition.spec.names.kind == self.name()).expect("the kind is the operator's")
    }

    pub fn schema(self) -> Schema {
        Schema::of(&self.definition())
    }

    /// The path of all objects of the kind: those in a namespace, except for Profiles.
    pub fn url(self, namespace: &str) -> String {
        let namespaced = if self == Kind::Profile { String::new() } else { format!("/namespaces/{namespace}") };
        format!("/apis/{GROUP}/{VERSION}{namespaced}/{}s", self.name().to_lowercase())
    }

    /// An object to create.
    pub fn object(self, name: &str, spec: &Value) -> Value {
        let version = format!("{GROUP}/{VERSION}");
        json!({"apiVersion": version, "kind": self.name(), "metadata": {"name": name}, "spec": spec})
    }

    /// Valid specs with little in them, which become Ready.
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
pub fn app(profile: Option<&str>) -> Value {
    let off = json!({"enabled": false});
    match profile {
        None => json!({"hostname": HOSTNAME, "postgres": off, "redis": off, "persistence": off}),
        // Which sets the persistence.
        Some(profile) => json!({"hostname": HOSTNAME, "postgres": off, "redis": off, "profile": profile}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_path() {
        for kind in Kind::ALL {
            let names = kind.definition().spec.names;
            assert_eq!(kind.name(), names.kind);
            assert!(kind.url("a").ends_with(&format!("/{}", names.plural)), "{kind:?}");
            assert_eq!(kind.url("a").contains("/namespaces/a/"), kind.definition().spec.scope == "Namespaced");
        }
    }
}
