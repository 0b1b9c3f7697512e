//! TLS of a ClientApp's hostname. Pure.

use clap::ValueEnum;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

/// Where the certificate of the hostname comes from: exactly one of these fields.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.issuer), has(self.secretName), has(self.terminatedElsewhere)].filter(given, given).size() == 1").message("must have exactly one of issuer, secretName and terminatedElsewhere"))]
pub struct AppTls {
    /// An issuer of cert-manager, for a certificate of this hostname in the Secret `<name>-tls`.
    pub issuer: Option<CertificateIssuer>,

    /// Name of a Secret of the type `kubernetes.io/tls` in this namespace, such as one with a wildcard certificate.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub secret_name: Option<String>,

    /// True: a load balancer or a proxy has the certificate, and passes requests on without TLS.
    #[x_kube(validation = Rule::new("self").message("can only be true; leave tls out for an app without TLS"))]
    pub terminated_elsewhere: Option<bool>,
}

/// An issuer of cert-manager.
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct CertificateIssuer {
    /// Name of the issuer.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub name: String,

    /// `Issuer`, in this namespace, or `ClusterIssuer`.
    #[serde(default)]
    pub kind: IssuerKind,
}

/// Kind of an issuer of cert-manager.
#[derive(JsonSchema, ToSchema, ValueEnum, Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
pub enum IssuerKind {
    /// For its own namespace.
    #[default]
    Issuer,
    /// For all namespaces.
    ClusterIssuer,
}
