//! The operator's place in a cluster, as `manifests/` makes it: applied to a plane, and seen through the eyes of the
//! operator's own service account. A scenario that runs the operator with the kubeconfig of [`install`] runs it under
//! exactly the permissions it will have.

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

/// The operator's namespace; the Lease is there too.
pub const NAMESPACE: &str = "clientapp-operator";
/// The operator's service account.
pub const SERVICE_ACCOUNT: &str = "clientapp-operator";
/// The Role by which the operator has its Lease, and its binding.
pub const LEASE_ROLE: &str = "clientapp-operator-lease";
/// Longer than any test or demonstration.
const TOKEN_SECONDS: i64 = 24 * 60 * 60;

/// The directory with the kustomization of the operator.
pub fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("manifests")
}

/// The directory with the kustomization of the operator and all of its components.
pub fn complete() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests")
}

/// The directory with the kustomization of the samples.
pub fn samples() -> PathBuf {
    directory().join("samples")
}

/// The ClusterRole whose rights helm has.
///
/// # Errors
/// When its file cannot be read.
pub fn role_deployer() -> Result<ClusterRole> {
    let path = directory().join("role-deployer.yaml");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(serde_yaml::from_str(&text)?)
}

/// The service account's name as the API server has it in audit logs and refusals.
pub fn user() -> String {
    format!("system:serviceaccount:{NAMESPACE}:{SERVICE_ACCOUNT}")
}

/// Makes the plane a place for an operator that runs outside it: applies the manifests with all components, and returns
/// the path of a [`kubeconfig`] for it.
///
/// # Errors
/// When kubectl or the API server refuse.
pub async fn install(plane: &ControlPlane, tools: &Tools) -> Result<PathBuf> {
    apply(plane, tools, &complete())?;
    // On fake nodes its pods would only pretend to be the operator.
    kubectl(plane, tools, &["delete", "deployment", "clientapp-operator", "--namespace", NAMESPACE])?;
    kubeconfig(plane).await
}

/// Applies the kustomization in a directory, with the API server's strict validation, and returns what kubectl prints:
/// one line for each object, `… created`, `… configured` or `… unchanged`.
///
/// # Errors
/// kubectl's own words.
pub fn apply(plane: &ControlPlane, tools: &Tools, directory: &Path) -> Result<String> {
    let directory = directory.to_str().context("the path is not UTF-8")?;
    kubectl(plane, tools, &["apply", "--kustomize", directory])
}

/// Runs kubectl as the plane's administrator and returns its standard output.
///
/// # Errors
/// Its own words.
pub fn kubectl(plane: &ControlPlane, tools: &Tools, arguments: &[&str]) -> Result<String> {
    lab::kubectl(&tools.kubectl, &plane.kubeconfig(), None, arguments)
}

/// Writes a kubeconfig file whose user is the operator's service account, by a token of its own, and whose namespace is
/// the operator's. It lies in the plane's directory and is written anew each time. The account has to be there.
///
/// # Errors
/// When the API server gives no token, or the file cannot be written.
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

/// The kubeconfig of the same cluster for who has this token.
fn with_token(kubeconfig: &str, token: &str) -> std::io::Result<String> {
    let mut config: Value = serde_yaml::from_str(kubeconfig).map_err(std::io::Error::other)?;
    let context = &mut config["contexts"][0]["context"];
    context["namespace"] = json!(NAMESPACE);
    context["user"] = json!(SERVICE_ACCOUNT);
    config["users"] = json!([{"name": SERVICE_ACCOUNT, "user": {"token": token}}]);
    serde_yaml::to_string(&config).map_err(std::io::Error::other)
}
