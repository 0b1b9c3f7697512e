//! How helm reaches the API server (effect); nothing else in the crate knows.
//!
//! A helm process gets a kubeconfig of its own in the operator's private directory, holding one cluster and one identity,
//! and loses it when its [`Grant`] is dropped. Today that file says what the operator itself uses. The seam is such that
//! it can name a gateway inside the operator instead, with a token per run, without anybody noticing.

use std::{
    env,
    ffi::OsString,
    io::{self, Write},
    net::IpAddr,
    path::{Path, PathBuf},
};

use kube::config::{
    AuthInfo, Cluster, Context, Kubeconfig, KubeconfigError, NamedAuthInfo, NamedCluster, NamedContext,
};
use tempfile::NamedTempFile;

/// Where Kubernetes mounts a pod's service account.
const SERVICE_ACCOUNT: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// The one name in the kubeconfigs written here.
const NAME: &str = "clientapp-operator";

/// The operator's own access to the cluster, which helm shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// A context of a kubeconfig.
    Kubeconfig {
        /// The file; `None` is what `$KUBECONFIG` names, or else `~/.kube/config`.
        path: Option<PathBuf>,
        /// The context; `None` is the current one.
        context: Option<String>,
    },
    /// The service account of the pod we run in.
    InCluster,
}

/// Access to the cluster could not be handed to helm.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The kubeconfig cannot be read.
    #[error("cannot read the kubeconfig")]
    Read {
        /// Why.
        source: KubeconfigError,
    },
    /// The kubeconfig does not define what it refers to.
    #[error("the kubeconfig has no {what} {name:?}")]
    Undefined {
        /// `context`, `cluster` or `user`.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// `KUBERNETES_SERVICE_HOST` or `KUBERNETES_SERVICE_PORT` is not set.
    #[error("not in a cluster: {variable} is not set")]
    NotInCluster {
        /// The variable.
        variable: &'static str,
    },
    /// The private copy cannot be written.
    #[error("cannot write helm's kubeconfig")]
    Write {
        /// Why.
        source: io::Error,
    },
}

/// One helm process's access to the cluster, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Grant {
    kubeconfig: NamedTempFile,
    plugin: bool,
}

impl Grant {
    /// What to add to the process's environment.
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
    /// the original is used from the next run on.
    pub(super) fn grant(&self, dir: &Path) -> Result<Grant, AccessError> {
        let kubeconfig = match self {
            Self::Kubeconfig { path, context } => minified(read(path.as_deref())?, context.as_deref())?,
            Self::InCluster => in_cluster(Path::new(SERVICE_ACCOUNT), |variable| env::var(variable).ok())?,
        };
        let write = |source| AccessError::Write { source };
        // tempfile makes files of mode 0600. JSON is YAML without its surprises.
        let mut file = tempfile::Builder::new().prefix("kubeconfig-").tempfile_in(dir).map_err(write)?;
        file.write_all(&serde_json::to_vec(&kubeconfig).map_err(|error| write(error.into()))?).map_err(write)?;
        Ok(Grant { kubeconfig: file, plugin: has_plugin(&kubeconfig) })
    }
}

fn read(path: Option<&Path>) -> Result<Kubeconfig, AccessError> {
    match path {
        // kube resolves the files a kubeconfig names against its path: an absolute one makes them absolute.
        Some(path) => std::path::absolute(path)
            .map_err(|source| KubeconfigError::ReadConfig(source, path.to_owned()))
            .and_then(Kubeconfig::read_from),
        None => Kubeconfig::read(),
    }
    .map_err(|source| AccessError::Read { source })
}

/// The kubeconfig with nothing but one context and what it refers to.
fn minified(kubeconfig: Kubeconfig, context: Option<&str>) -> Result<Kubeconfig, AccessError> {
    let undefined = |what, name: &str| AccessError::Undefined { what, name: name.to_owned() };
    let wanted = context.or(kubeconfig.current_context.as_deref()).unwrap_or_default();
    let context = kubeconfig.contexts.iter().find(|named| named.name == wanted).and_then(|named| named.context.clone());
    let context = context.ok_or_else(|| undefined("context", wanted))?;
    let cluster = kubeconfig.clusters.into_iter().find(|named| named.name == context.cluster);
    let cluster = cluster.and_then(|named| named.cluster).ok_or_else(|| undefined("cluster", &context.cluster))?;
    let user = match &context.user {
        Some(wanted) => {
            let user = kubeconfig.auth_infos.into_iter().find(|named| named.name == *wanted);
            user.and_then(|named| named.auth_info).ok_or_else(|| undefined("user", wanted))?
        }
        None => AuthInfo::default(),
    };
    Ok(only(absolute_cluster(cluster), absolute_user(user)))
}

/// The pod's service account. CA and token are named, not copied: both are rotated while we run.
fn in_cluster(account: &Path, variable: impl Fn(&str) -> Option<String>) -> Result<Kubeconfig, AccessError> {
    let variable = |name| variable(name).ok_or(AccessError::NotInCluster { variable: name });
    let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
    let host = if host.parse::<IpAddr>().is_ok_and(|address| address.is_ipv6()) { format!("[{host}]") } else { host };
    let file = |name| Some(account.join(name).to_string_lossy().into_owned());
    Ok(only(
        Cluster {
            server: Some(format!("https://{host}:{port}")),
            certificate_authority: file("ca.crt"),
            ..Cluster::default()
        },
        AuthInfo { token_file: file("token"), ..AuthInfo::default() },
    ))
}

fn only(cluster: Cluster, user: AuthInfo) -> Kubeconfig {
    let name = || NAME.to_owned();
    Kubeconfig {
        api_version: Some("v1".to_owned()),
        kind: Some("Config".to_owned()),
        clusters: vec![NamedCluster { name: name(), cluster: Some(cluster), ..NamedCluster::default() }],
        auth_infos: vec![NamedAuthInfo { name: name(), auth_info: Some(user), ..NamedAuthInfo::default() }],
        contexts: vec![NamedContext {
            name: name(),
            // No namespace: every helm run names its own.
            context: Some(Context { cluster: name(), user: Some(name()), ..Context::default() }),
            ..NamedContext::default()
        }],
        current_context: Some(name()),
        ..Kubeconfig::default()
    }
}

/// Helm runs in a directory of its own, where a relative path would mean something else.
fn absolute(path: &mut Option<String>) {
    if let Some(path) = path
        && let Ok(absolute) = std::path::absolute(&*path)
    {
        *path = absolute.to_string_lossy().into_owned();
    }
}

fn absolute_cluster(mut cluster: Cluster) -> Cluster {
    absolute(&mut cluster.certificate_authority);
    cluster
}

fn absolute_user(mut user: AuthInfo) -> AuthInfo {
    absolute(&mut user.client_certificate);
    absolute(&mut user.client_key);
    absolute(&mut user.token_file);
    user
}

fn has_plugin(kubeconfig: &Kubeconfig) -> bool {
    kubeconfig.auth_infos.iter().filter_map(|named| named.auth_info.as_ref()).any(|user| user.exec.is_some())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use serde_json::{Value, json};

    use super::*;

    const KUBECONFIG: &str = r"
apiVersion: v1
kind: Config
current-context: one
contexts:
- {name: one, context: {cluster: c1, user: u1, namespace: elsewhere}}
- {name: two, context: {cluster: c2, user: u2}}
- {name: broken, context: {cluster: absent, user: u1}}
- {name: nobody, context: {cluster: c1, user: absent}}
clusters:
- {name: c1, cluster: {server: 'https://one.example.com', certificate-authority: pki/ca.crt}}
- {name: c2, cluster: {server: 'https://two.example.com', insecure-skip-tls-verify: true}}
users:
- {name: u1, user: {client-certificate: pki/one.crt, client-key: pki/one.key}}
- {name: u2, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: login, interactiveMode: Never}, token: canary}}
";

    fn granted(dir: &Path, context: Option<&str>) -> Result<Grant, AccessError> {
        fs::write(dir.join("original"), KUBECONFIG).unwrap();
        Access::Kubeconfig { path: Some(dir.join("original")), context: context.map(str::to_owned) }.grant(dir)
    }

    fn content(grant: &Grant) -> Value {
        serde_json::from_slice(&fs::read(grant.kubeconfig.path()).unwrap()).unwrap()
    }

    #[test]
    fn one_context_is_left_with_absolute_paths() {
        let dir = tempfile::tempdir().unwrap();
        let grant = granted(dir.path(), None).unwrap();
        let file = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        assert_eq!(
            content(&grant),
            json!({
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": NAME,
                "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
                "clusters": [{"name": NAME, "cluster": {
                    "server": "https://one.example.com", "certificate-authority": file("pki/ca.crt")}}],
                "users": [{"name": NAME, "user": {
                    "client-certificate": file("pki/one.crt"), "client-key": file("pki/one.key")}}],
            })
        );
        assert_eq!(grant.env(), [("KUBECONFIG".into(), grant.kubeconfig.path().as_os_str().to_owned())]);
    }

    #[test]
    fn it_is_private_and_ends_with_the_grant() {
        let dir = tempfile::tempdir().unwrap();
        let grant = granted(dir.path(), None).unwrap();
        let path = grant.kubeconfig.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        drop(grant);
        assert!(!path.exists());
    }

    #[test]
    fn a_credential_plugin_is_kept_and_finds_its_way() {
        let dir = tempfile::tempdir().unwrap();
        let grant = granted(dir.path(), Some("two")).unwrap();
        assert_eq!(content(&grant)["users"][0]["user"]["exec"]["command"], "login");
        assert!(grant.env().iter().any(|(name, value)| name == "PATH" && Some(value) == env::var_os("PATH").as_ref()));
        assert!(!format!("{grant:?}").contains("canary"));
    }

    #[test]
    fn what_is_undefined_is_named() {
        let dir = tempfile::tempdir().unwrap();
        for (context, missing) in [("absent", "context"), ("broken", "cluster"), ("nobody", "user")] {
            let error = granted(dir.path(), Some(context)).unwrap_err();
            assert_eq!(error.to_string(), format!("the kubeconfig has no {missing} \"absent\""));
        }
        let absent = Access::Kubeconfig { path: Some(dir.path().join("absent")), context: None };
        assert!(matches!(absent.grant(dir.path()), Err(AccessError::Read { .. })));
    }

    #[test]
    fn in_a_cluster_ca_and_token_are_named_and_not_copied() {
        let variables = |host: &'static str| {
            move |name: &str| match name {
                "KUBERNETES_SERVICE_HOST" => Some(host.to_owned()),
                "KUBERNETES_SERVICE_PORT" => Some("443".to_owned()),
                _ => None,
            }
        };
        let kubeconfig =
            serde_json::to_value(in_cluster(Path::new("/account"), variables("10.0.0.1")).unwrap()).unwrap();
        assert_eq!(
            kubeconfig["clusters"][0]["cluster"],
            json!({"server": "https://10.0.0.1:443", "certificate-authority": "/account/ca.crt"})
        );
        assert_eq!(kubeconfig["users"][0]["user"], json!({"tokenFile": "/account/token"}));
        let kubeconfig =
            serde_json::to_value(in_cluster(Path::new("/account"), variables("fd00::1")).unwrap()).unwrap();
        assert_eq!(kubeconfig["clusters"][0]["cluster"]["server"], "https://[fd00::1]:443");
        assert_eq!(
            in_cluster(Path::new("/account"), |_| None).unwrap_err().to_string(),
            "not in a cluster: KUBERNETES_SERVICE_HOST is not set"
        );
    }
}
