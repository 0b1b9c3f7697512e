//! How helm reaches the API server (effect); nothing else in the crate knows.
//!
//! A helm process gets a kubeconfig of its own in the operator's private directory, holding one cluster and one identity,
//! and loses it when its [`Grant`] is dropped. Today that file says what the operator itself uses, and that each request is to
//! have the rights of a ServiceAccount of the release's namespace instead of the operator's. The seam is such that it can name a
//! gateway inside the operator instead, with a token per run, and nothing else changes.

use std::{
    env,
    ffi::OsString,
    io::{self, Write},
    net::IpAddr,
    path::{Path, PathBuf},
};

use kube::config::{AuthInfo, Cluster, Kubeconfig, KubeconfigError};
use serde_json::{Value, json};
use tempfile::NamedTempFile;

const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The one name in the kubeconfigs written here.
const NAME: &str = "clientapp-operator";

/// The operator's own access to the cluster, by which helm gets to it as well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// No `path` is what `$KUBECONFIG` names, or else `~/.kube/config`; no `context` is the current one.
    Kubeconfig {
        path: Option<PathBuf>,
        context: Option<String>,
    },
    InCluster,
}

#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    #[error("cannot read the kubeconfig")]
    Read { source: KubeconfigError },
    #[error("the kubeconfig has no {what} {name:?}")]
    Undefined { what: &'static str, name: String },
    #[error("not in a cluster: {variable} is not set")]
    NotInCluster { variable: &'static str },
    #[error("cannot write helm's kubeconfig")]
    Write { source: io::Error },
}

/// One helm process's access to the cluster, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Grant {
    kubeconfig: NamedTempFile,
    plugin: bool,
}

impl Grant {
    pub(super) fn env(&self) -> Vec<(OsString, OsString)> {
        let mut env = vec![("KUBECONFIG".into(), self.kubeconfig.path().into())];
        if self.plugin {
            // A credential plugin is looked up in PATH and keeps its state at home; they come last and so replace the
            // minimal ones that helm itself gets.
            env.extend(["PATH", "HOME"].iter().filter_map(|name| Some((OsString::from(name), env::var_os(name)?))));
        }
        env
    }
}

impl Access {
    /// Writes a kubeconfig for one process. It is made anew each time, so that a certificate or token that was renewed in
    /// the original is used from the next run on. `user` is the one whose rights the process has.
    pub(super) fn grant(&self, dir: &Path, user: &str) -> Result<Grant, AccessError> {
        let mut kubeconfig = match self {
            Self::Kubeconfig { path, context } => {
                let read = path.as_ref().map_or_else(Kubeconfig::read, Kubeconfig::read_from);
                minified(read.map_err(|source| AccessError::Read { source })?, context.as_deref())?
            }
            Self::InCluster => in_cluster(Path::new(SERVICE_ACCOUNT), |variable| env::var(variable).ok())?,
        };
        // In place of all that the original may say of another user.
        let identity = &mut kubeconfig["users"][0]["user"];
        for key in ["as-uid", "as-groups", "as-user-extra"] {
            identity.as_object_mut().and_then(|identity| identity.remove(key));
        }
        identity["as"] = user.into();
        let write = |source| AccessError::Write { source };
        // tempfile makes files of mode 0600. JSON is YAML without its surprises.
        let mut file = tempfile::Builder::new().prefix("kubeconfig-").tempfile_in(dir).map_err(write)?;
        file.write_all(kubeconfig.to_string().as_bytes()).map_err(write)?;
        Ok(Grant { kubeconfig: file, plugin: kubeconfig["users"][0]["user"]["exec"].is_object() })
    }
}

/// The kubeconfig with nothing but one context and what it refers to.
fn minified(kubeconfig: Kubeconfig, context: Option<&str>) -> Result<Value, AccessError> {
    let undefined = |what, name: &str| AccessError::Undefined { what, name: name.to_owned() };
    let wanted = context.or(kubeconfig.current_context.as_deref()).unwrap_or_default();
    let context = kubeconfig.contexts.iter().find(|named| named.name == wanted).and_then(|named| named.context.clone());
    let context = context.ok_or_else(|| undefined("context", wanted))?;
    let cluster = kubeconfig.clusters.into_iter().find(|named| named.name == context.cluster);
    let mut cluster = cluster.and_then(|named| named.cluster).ok_or_else(|| undefined("cluster", &context.cluster))?;
    let mut user = match &context.user {
        Some(wanted) => {
            let user = kubeconfig.auth_infos.into_iter().find(|named| named.name == *wanted);
            user.and_then(|named| named.auth_info).ok_or_else(|| undefined("user", wanted))?
        }
        None => AuthInfo::default(),
    };
    // Helm runs in a directory of its own, where a relative path would mean something else. A plugin without a / is in PATH.
    let plugin = user.exec.as_mut().and_then(|exec| exec.command.as_mut()).filter(|command| command.contains('/'));
    let credentials = [&mut user.client_certificate, &mut user.client_key, &mut user.token_file].into_iter().flatten();
    for path in credentials.chain(&mut cluster.certificate_authority).chain(plugin) {
        if let Ok(absolute) = std::path::absolute(&*path) {
            *path = absolute.to_string_lossy().into_owned();
        }
    }
    Ok(only(&cluster, &user))
}

/// The pod's service account. CA and token are named, not copied: both are rotated while we run.
fn in_cluster(account: &Path, variable: impl Fn(&str) -> Option<String>) -> Result<Value, AccessError> {
    let variable = |name| variable(name).ok_or(AccessError::NotInCluster { variable: name });
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    let host = if host.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()) { format!("[{host}]") } else { host };
    let file = |name| Some(account.join(name).to_string_lossy().into_owned());
    let (server, certificate_authority) = (Some(format!("https://{host}:{port}")), file("ca.crt"));
    let cluster = Cluster { server, certificate_authority, ..Cluster::default() };
    Ok(only(&cluster, &AuthInfo { token_file: file("token"), ..AuthInfo::default() }))
}

fn only(cluster: &Cluster, user: &AuthInfo) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": NAME, "cluster": cluster}],
        "users": [{"name": NAME, "user": user}],
        // No namespace: every helm run names its own.
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
        "current-context": NAME,
    })
}

#[cfg(test)]
mod tests;
