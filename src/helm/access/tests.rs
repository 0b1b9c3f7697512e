use std::{fs, os::unix::fs::PermissionsExt};

use super::*;

const KUBECONFIG: &str = r"
apiVersion: v1
kind: Config
current-context: one
contexts:
- {name: one, context: {cluster: c1, user: u1, namespace: elsewhere}}
- {name: two, context: {cluster: c2, user: u2}}
- {name: broken, context: {cluster: absent, user: u1}}
- {name: no-user, context: {cluster: c1, user: absent}}
clusters:
- {name: c1, cluster: {server: 'https://one.example.com', certificate-authority: pki/ca.crt}}
- {name: c2, cluster: {server: 'https://two.example.com', insecure-skip-tls-verify: true}}
users:
- {name: u1, user: {client-certificate: pki/one.crt, client-key: pki/one.key, as: admin, as-uid: '1', as-groups: ['system:masters'], as-user-extra: {a: [b]}}}
- {name: u2, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: login, interactiveMode: Never}, token: canary}}
";

const USER: &str = "system:serviceaccount:acme:deployer";

fn granted(dir: &Path, context: Option<&str>) -> Result<Grant, AccessError> {
    fs::write(dir.join("original"), KUBECONFIG).unwrap();
    Access::Kubeconfig { path: Some(dir.join("original")), context: context.map(str::to_owned) }.grant(dir, USER)
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
                "client-certificate": file("pki/one.crt"), "client-key": file("pki/one.key"), "as": USER}}],
        })
    );
    let path = grant.kubeconfig.path().to_owned();
    assert_eq!(grant.env(), [("KUBECONFIG".into(), path.as_os_str().to_owned())]);
    // It is private, and ends with the grant.
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
    for (context, missing) in [("absent", "context"), ("broken", "cluster"), ("no-user", "user")] {
        let error = granted(dir.path(), Some(context)).unwrap_err();
        assert_eq!(error.to_string(), format!("the kubeconfig has no {missing} \"absent\""));
    }
    let absent = Access::Kubeconfig { path: Some(dir.path().join("absent")), context: None };
    assert!(matches!(absent.grant(dir.path(), USER), Err(AccessError::Read { .. })));
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
    let kubeconfig = in_cluster(Path::new("/account"), variables("10.0.0.1")).unwrap();
    assert_eq!(
        kubeconfig["clusters"][0]["cluster"],
        json!({"server": "https://10.0.0.1:443", "certificate-authority": "/account/ca.crt"})
    );
    assert_eq!(kubeconfig["users"][0]["user"], json!({"tokenFile": "/account/token"}));
    let kubeconfig = in_cluster(Path::new("/account"), variables("fd00::1")).unwrap();
    assert_eq!(kubeconfig["clusters"][0]["cluster"]["server"], "https://[fd00::1]:443");
    assert_eq!(
        in_cluster(Path::new("/account"), |_| None).unwrap_err().to_string(),
        "not in a cluster: KUBERNETES_SERVICE_HOST is not set"
    );
}
