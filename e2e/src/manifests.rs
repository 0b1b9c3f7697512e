//! Installs `manifests/` on a plane, and accesses it as the operator's own service account. An operator with the
//! kubeconfig from [`install`] has exactly the permissions that it has in production.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use crate::lab;
use crate::plane::ControlPlane;
use crate::tools::Tools;

/// The operator's namespace, which also has the Lease.
pub const NAMESPACE: &str = "clientapp-operator";
pub const SERVICE_ACCOUNT: &str = "clientapp-operator";
/// The Role for the Lease, and its binding.
pub const LEASE_ROLE: &str = "clientapp-operator-lease";
/// Longer than any test or demonstration.
const TOKEN_SECONDS: i64 = 24 * 60 * 60;

/// The operator's kustomization.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("manifests")
}

/// The operator's kustomization with all components.
pub fn complete() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests")
}

pub fn samples() -> PathBuf {
    directory().join("samples")
}

/// The ClusterRole of the account that helm acts as.
pub fn role_deployer() -> Result<ClusterRole> {
    let path = directory().join("role-deployer.yaml");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(serde_yaml::from_str(&text)?)
}

/// The service account's name in audit logs and refusals of the API server.
pub fn user() -> String {
    format!("system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}")
}

/// Prepares the plane for an operator that runs outside it: applies the manifests with all components, and returns the
/// path of a [`kubeconfig`] for it.
pub async fn install(plane: &ControlPlane, tools: &Tools) -> Result<PathBuf> {
    apply(plane, tools, &complete())?;
    // On fake nodes its pods would only pretend to be the operator.
    kubectl(plane, tools, &["delete", "deployment", "clientapp-operator", "--namespace", NAMESPACE])?;
    kubeconfig(plane).await
}

/// Applies the kustomization in a directory, with the API server's strict validation, and returns kubectl's output: one
/// line for each object, `… created`, `… configured` or `… unchanged`.
pub fn apply(plane: &ControlPlane, tools: &Tools, directory: &Path) -> Result<String> {
    let directory = directory.to_str().context("the path is not UTF-8")?;
    kubectl(plane, tools, &["apply", "--kustomize", directory])
}

/// Runs kubectl as the plane's administrator and returns its standard output; an error contains its standard error.
pub fn kubectl(plane: &ControlPlane, tools: &Tools, arguments: &[&str]) -> Result<String> {
    lab::kubectl(&tools.kubectl, &plane.kubeconfig(), None, arguments)
}

/// Writes a kubeconfig file for the operator's service account, with a new token and the operator's namespace, into the
/// plane's directory, replacing an earlier one. The account must exist.
pub async fn kubeconfig(plane: &ControlPlane) -> Result<PathBuf> {
    let accounts: Api<ServiceAccount> = Api::namespaced(plane.client().await?, NAMESPACE);
    let request = TokenRequest {
        spec: TokenRequestSpec { expiration_seconds: Some(TOKEN_SECONDS), ..TokenRequestSpec::default() },
        ..TokenRequest::default()
    };
    let answer = accounts.create_token_request(SERVICE_ACCOUNT, &PostParams::default(), &request).await;
    let answer = answer.with_context(|| format!("cannot get a token for {SERVICE_ACCOUNT}"))?;
    let token = answer.status.context("the TokenRequest has no status")?.token;

    let admin = plane.kubeconfig();
    let admin = fs::read_to_string(&admin).with_context(|| format!("cannot read {}", admin.display()))?;
    let path = plane.directory().join("operator.kubeconfig");
    // Helm complains about a kubeconfig that others may read.
    let file = fs::File::options().write(true).create(true).truncate(true).mode(0o600).open(&path);
    file.and_then(|mut file| file.write_all(with_token(&admin, &token)?.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// The same cluster's kubeconfig with this token.
fn with_token(kubeconfig: &str, token: &str) -> std::io::Result<String> {
    let mut config: Value = serde_yaml::from_str(kubeconfig).map_err(std::io::Error::other)?;
    let context = &mut config["contexts"][0]["context"];
    context["namespace"] = json!(NAMESPACE);
    context["user"] = json!(SERVICE_ACCOUNT);
    config["users"] = json!([{"name": SERVICE_ACCOUNT, "user": {"token": token}}]);
    serde_yaml::to_string(&config).map_err(std::io::Error::other)
}
