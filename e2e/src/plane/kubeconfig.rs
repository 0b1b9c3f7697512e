//! Self-contained kubeconfig files.

use std::path::Path;

use anyhow::Result;
use k8s_openapi::ByteString;
use kube::Config;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;

use super::certs::Identity;

/// Returns the client configuration of a kubeconfig file.
pub(crate) async fn config(path: &Path) -> Result<Config> {
    Ok(Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &KubeConfigOptions::default()).await?)
}

/// A kubeconfig for one user of the plane.
pub(crate) fn kubeconfig(server: &str, authority: &str, user: &Identity) -> Result<String> {
    let base64 = |pem: &str| ByteString(pem.as_bytes().to_vec());
    Ok(serde_yaml::to_string(&json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{
            "name": "plane",
            "cluster": {"server": server, "certificate-authority-data": base64(authority)},
        }],
        "users": [{
            "name": "plane",
            "user": {
                "client-certificate-data": base64(&user.certificate),
                "client-key-data": base64(&user.key),
            },
        }],
        "contexts": [{
            "name": "plane",
            "context": {"cluster": "plane", "user": "plane", "namespace": "default"},
        }],
        "current-context": "plane",
    }))?)
}
