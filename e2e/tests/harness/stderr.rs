//! What the pinned helm says, above all its errors on stderr, matches the files in `fixtures/helm-<version>`, with which
//! the operator's understanding of helm is tested.
//!
//! With `UPDATE_FIXTURES=1` in the environment, outdated files are rewritten.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use e2e::background::Background;
use e2e::charts::{self, Content, Key};
use e2e::front::Front;
use e2e::helm::{Helm, Ran};
use e2e::lab::{self, Lab};
use e2e::plane::certs::Authority;
use e2e::registry::Registry;
use e2e::repository::{Fault, Repository};
use e2e::wait::{block_on, blocking_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::tools;

/// The files for the pinned version of helm.
fn fixtures() -> PathBuf {
    static VERSION: OnceLock<String> = OnceLock::new();
    let version = VERSION.get_or_init(|| {
        let ran = Helm::new(&tools().helm).unwrap().run(&["version", "--template", "{{ .Version }}"]).unwrap();
        ran.stdout.trim_start_matches('v').to_owned()
    });
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(format!("helm-{version}"))
}

/// Checks that a run has failed with this text.
fn says(name: &str, ran: &Ran) {
    assert!(!ran.success, "{name}: helm succeeded: {}", ran.stdout);
    is_known(&format!("{name}.txt"), &ran.stderr);
}

/// Checks that a run has succeeded, and printed this text.
fn prints(name: &str, ran: &Ran) {
    assert!(ran.success, "{name}: {}", ran.stderr);
    is_known(&format!("{name}.out"), &ran.stdout);
}

fn is_known(file: &str, text: &str) {
    let file = fixtures().join(file);
    let known = fs::read_to_string(&file).unwrap_or_default();
    if steady(&known) == steady(text) {
        return;
    }
    if env::var_os("UPDATE_FIXTURES").is_none() {
        assert_eq!(steady(text), steady(&known), "{} is not what helm says", file.display());
    }
    fs::create_dir_all(fixtures()).unwrap();
    fs::write(&file, apart_from_here(text)).unwrap();
}

/// Replaces the path of helm's temporary home.
fn apart_from_here(text: &str) -> String {
    let home = env::temp_dir().join(".tmp");
    let mut parts = text.split(home.to_str().unwrap());
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        text.push_str("/home/helm");
        text.push_str(part.trim_start_matches(|letter: char| letter.is_ascii_alphanumeric()));
    }
    text
}

/// The text's lines without the parts that differ from run to run: the home, ports and other numbers, and the order,
/// since helm applies objects of a kind at the same time and reports them as they finish.
fn steady(text: &str) -> Vec<String> {
    let line = |line: &str| {
        let mut steady = String::new();
        for letter in line.trim_start_matches("Error: ").chars() {
            let digit = letter.is_ascii_digit();
            if !(digit && steady.ends_with('#')) {
                steady.push(if digit { '#' } else { letter });
            }
        }
        steady
    };
    let mut lines: Vec<_> = apart_from_here(text).lines().map(line).collect();
    lines.sort();
    lines
}

fn pull(arguments: &[&str]) -> Ran {
    Helm::new(&tools().helm).unwrap().run(&[&["pull"], arguments].concat()).unwrap()
}

/// Pulls from a repository in two steps, as the operator does.
fn pull_from(repository: &str, chart: &str, version: &str) -> Ran {
    let helm = Helm::new(&tools().helm).unwrap();
    let added = helm.run(&["repo", "add", "charts", repository]).unwrap();
    if !added.success {
        return added;
    }
    helm.run(&["pull", &format!("charts/{chart}"), "--version", version]).unwrap()
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn pulling_from_a_repository() {
    let repository = Repository::start().unwrap();
    let url = repository.url();
    says("pull-missing-version", &pull_from(&url, "nextcloud", "5.5.9"));
    says("pull-missing-chart", &pull_from(&url, "nextclood", "5.5.2"));
    says("pull-index-404", &pull_from(&format!("{url}/nowhere"), "nextcloud", "5.5.2"));
    for (name, fault) in [
        ("pull-refused", Fault::Refused),
        ("pull-503", Fault::Unavailable),
        ("pull-index-html", Fault::Html),
        ("pull-archive-404", Fault::Missing),
    ] {
        repository.set(fault).unwrap();
        says(name, &pull_from(&url, charts::NAME, charts::DEFAULT));
    }
}

/// Helm's own timeout is two minutes, so this runs on demand only: `cargo test -- --ignored`.
#[test]
#[ignore = "takes two minutes"]
fn pulling_from_a_slow_repository() {
    let repository = Repository::start().unwrap();
    repository.set(Fault::Slow).unwrap();
    says("pull-slow", &pull_from(&repository.url(), charts::NAME, charts::DEFAULT));
}

#[test]
#[ignore = "depends on what the machine's resolver says to a name that does not exist"]
fn pulling_from_nowhere() {
    says("pull-no-such-host", &pull_from("http://nowhere.invalid", charts::NAME, charts::DEFAULT));
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn pulling_from_a_registry() {
    let registry = Registry::start().unwrap();
    let chart = registry.chart();
    says("oci-missing-chart", &pull(&[&chart, "--plain-http", "--version", "5.5.2"]));
    registry.push_all(&tools().helm).unwrap();
    says("oci-missing-version", &pull(&[&chart, "--plain-http", "--version", "5.5.9"]));
    says("oci-not-https", &pull(&[&chart, "--version", "5.5.2"]));
    drop(registry);
    says("oci-refused", &pull(&[&chart, "--plain-http", "--version", "5.5.2"]));
}

/// Pulls from a repository as the operator does, with these arguments about the server and the client, and about the signature.
fn pull_with(helm: &Helm, repository: &str, access: &[&str], signature: &[&str]) -> Ran {
    let added = helm.run(&[&["repo", "add", "charts", repository], access].concat()).unwrap();
    if !added.success {
        return added;
    }
    helm.run(&[&["pull", "charts/nextcloud", "--version", charts::DEFAULT], signature].concat()).unwrap()
}

/// The same from a registry.
fn pull_from_registry(helm: &Helm, url: &str, arguments: &[&str]) -> Ran {
    helm.run(&[&["pull", url, "--version", charts::DEFAULT], arguments].concat()).unwrap()
}

/// A proxy that answers every request with this status, until it is dropped.
fn proxy(status: &'static str) -> (Background, String) {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    listener.set_nonblocking(true).unwrap();
    let serve = Background::spawn("proxy", move || async move {
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut head = BufReader::new(&mut connection).lines();
            while head.next_line().await.is_ok_and(|line| line.is_some_and(|line| !line.is_empty())) {}
            let _ = connection.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).await;
        }
    });
    (serve.unwrap(), url)
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn sources_that_are_not_open_to_everybody() {
    let helm = || Helm::new(&tools().helm).unwrap();
    let repository = Repository::start().unwrap();
    let url = repository.url();
    repository.set(Fault::Forbidden).unwrap();
    says("pull-403", &pull_with(&helm(), &url, &[], &[]));
    let registry_of = |address: &str| format!("oci://{address}/charts/nextcloud");
    says("oci-403", &pull_from_registry(&helm(), &registry_of(url.trim_start_matches("http://")), &["--plain-http"]));
    repository.set(Fault::None).unwrap();
    repository.demand("tenant", "right");
    says("pull-wrong-password", &pull_with(&helm(), &url, &["--username=tenant", "--password=wrong"], &[]));
    let registry = Registry::with_login().unwrap();
    for (name, login) in
        [("oci-without-login", &[][..]), ("oci-wrong-password", &["--username=tenant", "--password=wrong"])]
    {
        says(name, &pull_from_registry(&helm(), &registry.chart(), &[&["--plain-http"], login].concat()));
    }

    for (status, code) in [("403 Forbidden", "403"), ("407 Proxy Authentication Required", "407")] {
        let (_serving, proxy) = proxy(status);
        let helm = || Helm::behind(&tools().helm, &proxy).unwrap();
        says(&format!("pull-proxy-{code}"), &pull_with(&helm(), "https://charts.example.com", &[], &[]));
        says(&format!("oci-proxy-{code}"), &pull_from_registry(&helm(), &registry_of("charts.example.com"), &[]));
    }
    let helm_without = || Helm::behind(&tools().helm, "http://127.0.0.1:1").unwrap();
    says("pull-proxy-away", &pull_with(&helm_without(), "https://charts.example.com", &[], &[]));
    says("oci-proxy-away", &pull_from_registry(&helm_without(), &registry_of("charts.example.com"), &[]));
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn certificates_that_are_not_accepted() {
    let files = tempfile::tempdir().unwrap();
    let file = |name: &str, content: String| {
        let path = files.path().join(name);
        fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let [authority, other] = ["authority", "other"].map(|name| Authority::new(name).unwrap());
    let client = other.client("tenant", None).unwrap();
    let (ca, key) = (file("ca.crt", authority.pem()), file("tls.key", client.key));
    let certificate = file("tls.crt", client.certificate);
    let repository = Repository::start().unwrap();
    let front = Front::start(repository.address(), &authority).unwrap();
    let registry_url = format!("{}/charts/nextcloud", front.url().replace("https", "oci"));
    let fails = |of_repository: Option<&str>, of_registry: Option<&str>, arguments: &[&str]| {
        let helm = || Helm::new(&tools().helm).unwrap();
        if let Some(name) = of_repository {
            says(name, &pull_with(&helm(), &front.url(), arguments, &[]));
        }
        if let Some(name) = of_registry {
            says(name, &pull_from_registry(&helm(), &registry_url, arguments));
        }
    };
    fails(Some("pull-unknown-authority"), Some("oci-unknown-authority"), &[]);
    fails(Some("pull-bad-authority"), None, &["--ca-file", &key]);
    fails(None, Some("oci-bad-key"), &["--cert-file", &ca, "--key-file", &key]);
    front.show_expired(&authority).unwrap();
    fails(Some("pull-expired"), Some("oci-expired"), &["--ca-file", &ca]);
    front.demand(&authority).unwrap();
    // A registry client has begun to write by the time that it is refused, so its words vary.
    fails(Some("pull-without-certificate"), None, &["--ca-file", &ca]);
    let others = ["--ca-file", &ca, "--cert-file", &certificate, "--key-file", &key];
    fails(Some("pull-other-certificate"), Some("oci-other-certificate"), &others);
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn signatures_that_are_not_valid() {
    let program = &tools().helm;
    let (repository, registry) = (Repository::start().unwrap(), Registry::start().unwrap());
    let keyring = |key: Key| key.keyring().display().to_string();
    let (ours, others) = (keyring(Key::Signer), keyring(Key::Other));
    let pull = |name: &str, keyring: &str| {
        let verify = ["--verify", "--keyring", keyring];
        says(name, &pull_with(&Helm::new(program).unwrap(), &repository.url(), &[], &verify));
    };
    let pull_from_registry = |name: &str, keyring: &str| {
        let verify = ["--plain-http", "--verify", "--keyring", keyring];
        let ran = pull_from_registry(&Helm::new(program).unwrap(), &registry.chart(), &verify);
        says(name, &ran);
    };
    registry.push_all(program).unwrap();
    pull("pull-unsigned", &ours);
    pull_from_registry("oci-unsigned", &ours);
    let helm = Helm::new(program).unwrap();
    charts::package(helm.home(), charts::DEFAULT, Content::Genuine).unwrap();
    says(
        "pull-verify-unsigned",
        &helm.run(&["verify", &charts::file_name(charts::DEFAULT), "--keyring", &ours]).unwrap(),
    );

    let signed = tempfile::tempdir().unwrap();
    let archive = charts::package_signed(program, signed.path(), charts::DEFAULT, Key::Signer).unwrap();
    registry.push(program, &archive).unwrap();
    repository.publish(signed.path()).unwrap();
    pull("pull-other-key", &others);
    pull_from_registry("oci-other-key", &others);
    pull("pull-bad-keyring", &archive.display().to_string());
}

/// A namespace of the plane, and helm for it.
struct Tenant {
    helm: Helm,
    lab: &'static Lab,
    name: &'static str,
}

impl Tenant {
    fn new(name: &'static str) -> Self {
        let lab = block_on(async || Lab::unattended().await);
        let helm = Helm::for_cluster(&lab.tools.helm, &lab.plane.kubeconfig()).unwrap();
        let tenant = Self { helm, lab, name };
        tenant.kubectl(&["create", "namespace", name]);
        tenant
    }

    fn file(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        fs::write(self.helm.home().join(name), content).unwrap();
        name.to_owned()
    }

    fn chart(&self, version: &str) -> String {
        charts::package(self.helm.home(), version, Content::Genuine).unwrap();
        charts::file_name(version)
    }

    fn helm(&self, arguments: &[&str]) -> Ran {
        self.helm.run(&[arguments, &["--namespace", self.name]].concat()).unwrap()
    }

    /// `upgrade --install`, as the operator runs it.
    fn upgrade(&self, version: &str, values: &Value, more: &[&str]) -> Ran {
        let (chart, values) = (self.chart(version), self.file("values.json", values.to_string()));
        self.helm(&[&["upgrade", "--install", "shop", &chart, "--values", &values], more].concat())
    }

    /// Checks what helm says when this installation or upgrade to the default version fails.
    fn refuses(&self, name: &str, more: &[&str]) {
        says(name, &self.upgrade(charts::DEFAULT, &values(), more));
    }

    fn install(&self) {
        let ran = self.upgrade(charts::DEFAULT, &values(), &[]);
        assert!(ran.success, "{}", ran.stderr);
    }

    fn uninstall(&self) {
        let ran = self.helm(&["uninstall", "shop", "--ignore-not-found"]);
        assert!(ran.success, "{}", ran.stderr);
    }

    fn try_kubectl(&self, arguments: &[&str]) -> anyhow::Result<String> {
        lab::kubectl(&self.lab.tools.kubectl, &self.lab.plane.kubeconfig(), Some(self.name), arguments)
    }

    fn kubectl(&self, arguments: &[&str]) {
        self.try_kubectl(arguments).unwrap();
    }

    /// `kubectl apply` of these objects.
    fn apply(&self, objects: &[Value], more: &[&str]) {
        let file = self.helm.home().join("objects.json");
        fs::write(&file, objects.iter().map(Value::to_string).collect::<String>()).unwrap();
        self.kubectl(&[&["apply", "-f", file.to_str().unwrap()], more].concat());
    }

    /// Checks what helm says once a new admission webhook or policy has taken effect, and removes it.
    fn refuses_services(&self, name: &str, objects: &[Value]) {
        self.apply(objects, &[]);
        let create = ["create", "service", "clusterip", "probe", "--tcp=1", "--dry-run=server"];
        blocking_until("services are refused", || self.try_kubectl(&create).is_err());
        self.refuses(name, &[]);
        self.kubectl(&["delete", "-f", self.helm.home().join("objects.json").to_str().unwrap()]);
        self.uninstall();
    }

    /// Grants the user `clerk` only these rights in the namespace.
    fn allow(&self, rules: &Value) {
        let object = |kind: &str, more: Value| {
            let mut object =
                json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "clerk"}});
            object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            object
        };
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "clerk"});
        let clerk = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "clerk"}]);
        let binding = object("RoleBinding", json!({"roleRef": role, "subjects": clerk}));
        self.apply(&[object("Role", json!({"rules": rules})), binding], &[]);
    }
}

fn values() -> Value {
    json!({
        "nextcloud": {"host": "shop.example.org", "existingSecret": {"enabled": true, "secretName": "shop-admin-secret"}},
        "redis": {"enabled": true, "architecture": "standalone", "master": {"persistence": {"size": "8Gi"}}},
        "internalDatabase": {"enabled": false},
        "externalDatabase": {
            "type": "postgresql", "host": "shop-pg-pgbouncer",
            "existingSecret": {"enabled": true, "secretName": "shop-pg-pguser-clientapp"},
        },
        "persistence": {"enabled": true, "size": "8Gi"},
    })
}

fn values_but(pointer: &str, to: Value) -> Value {
    let mut values = values();
    *values.pointer_mut(pointer).unwrap() = to;
    values
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn broken_charts() {
    let tenant = Tenant::new("broken");
    let whole = charts::archive(charts::DEFAULT, Content::Genuine).unwrap();
    let page = tenant.file("page.tgz", e2e::repository::PAGE);
    let half = tenant.file("half.tgz", &whole[..whole.len() / 2]);
    for (name, archive) in
        [("archive-html", page.as_str()), ("archive-truncated", &half), ("archive-missing", "./none.tgz")]
    {
        says(name, &tenant.helm(&["upgrade", "--install", "shop", archive]));
    }
    let null_map = values_but("/nextcloud/existingSecret", Value::Null);
    let no_host = values_but("/nextcloud/host", json!("Not A Host"));
    for (name, version, values, more) in [
        ("render-fail", charts::UNRENDERABLE, &values(), &[][..]),
        ("render-null-map", charts::DEFAULT, &null_map, &[]),
        ("schema", charts::UNSATISFIABLE, &values(), &[]),
        ("unknown-kind", charts::UNKNOWN_KIND, &values(), &[]),
        ("misspelt", charts::MISSPELT, &values(), &[]),
        ("misspelt-unchecked-by-helm", charts::MISSPELT, &values(), &["--disable-openapi-validation"]),
        ("invalid-value", charts::DEFAULT, &no_host, &["--set", "ingress.enabled=true"]),
    ] {
        says(name, &tenant.upgrade(version, values, more));
        tenant.uninstall();
    }
    tenant.install();
    says("misspelt-upgrade", &tenant.upgrade(charts::MISSPELT, &values(), &[]));
    says("render-fail-upgrade", &tenant.upgrade(charts::UNRENDERABLE, &values(), &[]));
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn hooks_and_waits() {
    let tenant = Tenant::new("impatient");
    // All other objects of the release are ready by then, and helm has seen it.
    says("wait-timeout", &tenant.upgrade(charts::NEVER_READY, &values(), &["--wait", "--timeout", "20s"]));
    let tenant = Tenant::new("hooks");
    // Too short for the hook to fail, and long enough for helm to see it start.
    let long = ["--set", "hookSeconds=3600", "--timeout", "10s"];
    says("hook-timeout", &tenant.upgrade(charts::HOOK_FAILS, &values(), &long));
    tenant.uninstall();
    says("hook-failed-install", &tenant.upgrade(charts::HOOK_FAILS, &values(), &[]));
    tenant.install();
    says("hook-failed-upgrade", &tenant.upgrade(charts::HOOK_FAILS, &values(), &[]));
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn releases_that_are_absent_or_in_the_way() {
    let tenant = Tenant::new("taken");
    let chart = tenant.chart(charts::DEFAULT);
    for (name, arguments) in [
        ("uninstall-not-found", &["uninstall", "shop"][..]),
        ("rollback-not-found", &["rollback", "shop"]),
        ("get-metadata-not-found", &["get", "metadata", "shop"]),
        ("upgrade-not-found", &["upgrade", "shop", &chart]),
    ] {
        says(name, &tenant.helm(arguments));
    }
    let elsewhere = ["upgrade", "--install", "shop", &chart, "--namespace", "nowhere"];
    says("namespace-not-found", &tenant.helm.run(&elsewhere).unwrap());
    tenant.install();
    says("name-in-use", &tenant.helm(&["install", "shop", &chart]));
    let same_objects = ["upgrade", "--install", "other", &chart, "--set", "fullnameOverride=shop-nextcloud"];
    says("not-owned", &tenant.helm(&same_objects));
    assert!(tenant.helm(&["uninstall", "shop", "--keep-history"]).success);
    says("no-deployed-releases", &tenant.helm(&["upgrade", "shop", &chart]));
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn changes_that_the_api_server_refuses() {
    let tenant = Tenant::new("refused");
    tenant.install();
    let larger = values_but("/redis/master/persistence/size", json!("9Gi"));
    says("immutable-field", &tenant.upgrade(charts::DEFAULT, &larger, &[]));
    let smaller = values_but("/persistence/size", json!("4Gi"));
    says("shrunk-volume", &tenant.upgrade(charts::DEFAULT, &smaller, &[]));
    tenant.install();
    let replicas = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "shop-nextcloud"}, "spec": {"replicas": 3},
    });
    tenant.apply(&[replicas], &["--server-side", "--force-conflicts", "--field-manager=admin"]);
    tenant.refuses("conflict", &["--set", "replicaCount=2"]);
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn quotas_and_namespaces_that_end() {
    let tenant = Tenant::new("poor");
    tenant.kubectl(&["create", "quota", "none", "--hard=count/configmaps=1,services=0"]);
    // The quota refuses nothing until its usage is counted.
    tenant.kubectl(&["wait", "quota/none", "--for=jsonpath={.status.used.services}=0", "--timeout=60s"]);
    tenant.refuses("quota", &[]);
    let tenant = Tenant::new("ending");
    let metadata = json!({"name": "held", "finalizers": ["clientapp.test/held"]});
    tenant.apply(&[json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})], &[]);
    tenant.kubectl(&["delete", "namespace", "ending", "--wait=false"]);
    tenant.refuses("namespace-terminating", &[]);
    // Lets the namespace be deleted, and the plane with it, without a wait.
    tenant.kubectl(&["patch", "configmap", "held", "--type=merge", "-p", r#"{"metadata":{"finalizers":[]}}"#]);
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn admission() {
    let tenant = Tenant::new("admission");
    let here = json!({"matchLabels": {"kubernetes.io/metadata.name": "admission"}});
    let rule = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["services"], "scope": "*",
    });
    let object = |kind: &str, field: &str, content: Value| json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "admission"}, field: content});
    let webhooks = json!([{
        "name": "services.clientapp.test", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "clientConfig": {"url": "https://127.0.0.1:1/"}, "namespaceSelector": here, "rules": [rule],
    }]);
    tenant.refuses_services("webhook-down", &[object("ValidatingWebhookConfiguration", "webhooks", webhooks)]);
    let policy = json!({
        "matchConstraints": {"namespaceSelector": here, "resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "no services here"}],
    });
    let binding = json!({"policyName": "admission", "validationActions": ["Deny"]});
    let both = [
        object("ValidatingAdmissionPolicy", "spec", policy),
        object("ValidatingAdmissionPolicyBinding", "spec", binding),
    ];
    tenant.refuses_services("policy-denied", &both);
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn what_is_not_allowed() {
    let tenant = Tenant::new("forbidden");
    let clerk = ["--kube-as-user", "clerk"];
    tenant.refuses("forbidden-storage", &clerk);
    let secrets = json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]});
    tenant.allow(&json!([secrets]));
    tenant.refuses("forbidden-get", &clerk);
    let read = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["get"]});
    tenant.allow(&json!([secrets, read]));
    tenant.refuses("forbidden-write", &clerk);

    // Objects that an uninstallation leaves, and does not call a failure.
    let tenant = Tenant::new("left");
    tenant.install();
    tenant.kubectl(&["annotate", "--overwrite", "service", "shop-nextcloud", "meta.helm.sh/release-name=other"]);
    // All but the API groups of Roles and NetworkPolicies, which helm then cannot look at.
    tenant.allow(&json!([{"apiGroups": ["", "apps", "policy"], "resources": ["*"], "verbs": ["*"]}]));
    let may = ["auth", "can-i", "delete", "services", "--as", "clerk"];
    blocking_until("the new rights have taken effect", || tenant.try_kubectl(&may).is_ok());
    prints("uninstall-left-behind", &tenant.helm(&["uninstall", "shop", "--kube-as-user", "clerk"]));
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn api_servers_that_do_not_let_helm_in() {
    let tenant = Tenant::new("outside");
    let server = tenant.lab.plane.server_url();
    let kubeconfig = |name: &str, cluster: Value| {
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": {"token": "none"}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        });
        tenant.file(name, config.to_string())
    };
    let unknown = kubeconfig("unknown.json", json!({"server": server, "insecure-skip-tls-verify": true}));
    let distrustful = kubeconfig("distrustful.json", json!({"server": server}));
    for (name, more) in [
        ("apiserver-refused", ["--kube-apiserver", "http://127.0.0.1:1"]),
        ("unauthorized", ["--kubeconfig", &unknown]),
        ("untrusted-apiserver", ["--kubeconfig", &distrustful]),
        ("kubeconfig-missing", ["--kubeconfig", "none"]),
    ] {
        tenant.refuses(name, &more);
    }
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn operations_at_the_same_time() {
    let tenant = Tenant::new("busy");
    let (chart, file) = (tenant.chart(charts::NEVER_READY), tenant.file("values.json", values().to_string()));
    let upgrade = ["upgrade", "--install", "shop", &chart, "--values", &file, "--namespace", "busy"];
    let arguments = [&upgrade[..], &["--wait", "--timeout", "10m"]].concat();
    let mut first = tenant.helm.spawn(&arguments).unwrap();
    tenant.kubectl(&["wait", "--for=create", "--timeout=2m", "deployment/shop-nextcloud"]);
    tenant.refuses("in-progress-while-installing", &[]);
    // The pending release is the same whether its helm is alive or was killed.
    first.kill().unwrap();
    first.wait().unwrap();
    tenant.refuses("in-progress-after-sigkill", &[]);
    tenant.uninstall();

    tenant.install();
    let second = tenant.helm.spawn(&arguments).unwrap();
    for awaited in ["create", "jsonpath={.metadata.labels.status}=pending-upgrade"] {
        let awaited = format!("--for={awaited}");
        tenant.kubectl(&["wait", &awaited, "--timeout=2m", "secret/sh.helm.release.v1.shop.v2"]);
    }
    tenant.refuses("in-progress-while-upgrading", &[]);
    kill(Pid::from_raw(second.id().cast_signed()), Signal::SIGTERM).unwrap();
    says("sigterm", &Ran::from(second.wait_with_output().unwrap()));
}
