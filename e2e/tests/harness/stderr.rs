//! What the pinned helm says, above all its errors on stderr, matches the files in `fixtures/helm-<version>`, with which
//! the operator's understanding of helm is tested.
//!
//! With `UPDATE_FIXTURES=1` in the environment, outdated files are rewritten.

use std::env;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use e2e::charts::{self, Content};
use e2e::helm::{Helm, Ran};
use e2e::plane::ControlPlane;
use e2e::progress::Progress;
use e2e::registry::Registry;
use e2e::repository::{Fault, Repository};
use e2e::tools::Tools;
use serde_json::{Value, json};

fn tools() -> &'static Tools {
    static TOOLS: OnceLock<Tools> = OnceLock::new();
    TOOLS.get_or_init(|| Tools::ensure(&Progress::stderr()).unwrap())
}

fn plane() -> &'static ControlPlane {
    static PLANE: OnceLock<ControlPlane> = OnceLock::new();
    PLANE.get_or_init(|| ControlPlane::builder().start(tools()).unwrap())
}

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

/// A namespace of the plane, and helm for it.
struct Tenant {
    helm: Helm,
    name: &'static str,
}

impl Tenant {
    fn new(name: &'static str) -> Self {
        let helm = Helm::for_cluster(&tools().helm, &plane().kubeconfig()).unwrap();
        let tenant = Self { helm, name };
        tenant.kubectl(&["create", "namespace", name], "");
        tenant
    }

    fn file(&self, name: &str, content: &str) -> String {
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
        let (chart, values) = (self.chart(version), self.file("values.json", &values.to_string()));
        self.helm(&[&["upgrade", "--install", "shop", &chart, "--values", &values], more].concat())
    }

    fn install(&self) {
        let ran = self.upgrade(charts::DEFAULT, &values(), &[]);
        assert!(ran.success, "{}", ran.stderr);
    }

    fn uninstall(&self) {
        let ran = self.helm(&["uninstall", "shop", "--ignore-not-found"]);
        assert!(ran.success, "{}", ran.stderr);
    }

    fn kubectl(&self, arguments: &[&str], manifest: &str) {
        assert!(self.start_kubectl(arguments, manifest).wait().unwrap().success(), "kubectl {arguments:?}");
    }

    fn start_kubectl(&self, arguments: &[&str], manifest: &str) -> Child {
        let mut command = Command::new(&tools().kubectl);
        command.arg("--kubeconfig").arg(plane().kubeconfig()).args(["--namespace", self.name]).args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(manifest.as_bytes()).unwrap();
        child
    }

    /// A new admission policy takes effect after some time.
    fn until_services_are_refused(&self) {
        let create = ["create", "service", "clusterip", "probe", "--tcp=1", "--dry-run=server"];
        while self.start_kubectl(&create, "").wait().unwrap().success() {}
    }

    /// Grants the user `clerk` only these rights in the namespace.
    fn allow(&self, rules: Value) {
        let meta = |kind: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "clerk"}});
        let (mut role, mut binding) = (meta("Role"), meta("RoleBinding"));
        role["rules"] = rules;
        binding["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "clerk"});
        binding["subjects"] = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "clerk"}]);
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [role, binding]});
        self.kubectl(&["apply", "-f", "-"], &list.to_string());
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
    let file = |name: &str, content: &[u8]| fs::write(tenant.helm.home().join(name), content).unwrap();
    file("page.tgz", e2e::repository::PAGE.as_bytes());
    let whole = charts::archive(charts::DEFAULT, Content::Genuine).unwrap();
    file("half.tgz", &whole[..whole.len() / 2]);
    for (name, archive) in
        [("archive-html", "page.tgz"), ("archive-truncated", "half.tgz"), ("archive-missing", "./none.tgz")]
    {
        says(name, &tenant.helm(&["upgrade", "--install", "shop", archive]));
    }
    let null_map = values_but("/nextcloud/existingSecret", Value::Null);
    let no_host = values_but("/nextcloud/host", json!("Not A Host"));
    let unchecked = ["--disable-openapi-validation"];
    let ingress = ["--set", "ingress.enabled=true"];
    let cases: [(&str, &str, &Value, &[&str]); 7] = [
        ("render-fail", charts::UNRENDERABLE, &values(), &[]),
        ("render-null-map", charts::DEFAULT, &null_map, &[]),
        ("schema", charts::UNSATISFIABLE, &values(), &[]),
        ("unknown-kind", charts::UNKNOWN_KIND, &values(), &[]),
        ("misspelt", charts::MISSPELT, &values(), &[]),
        ("misspelt-unchecked-by-helm", charts::MISSPELT, &values(), &unchecked),
        ("invalid-value", charts::DEFAULT, &no_host, &ingress),
    ];
    for (name, version, values, more) in cases {
        says(name, &tenant.upgrade(version, values, more));
        tenant.uninstall();
    }
    tenant.install();
    says("misspelt-upgrade", &tenant.upgrade(charts::MISSPELT, &values(), &[]));
    says("render-fail-upgrade", &tenant.upgrade(charts::UNRENDERABLE, &values(), &[]));
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn hooks() {
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
fn absent_releases() {
    let tenant = Tenant::new("absent");
    says("uninstall-not-found", &tenant.helm(&["uninstall", "shop"]));
    says("rollback-not-found", &tenant.helm(&["rollback", "shop"]));
    says("get-metadata-not-found", &tenant.helm(&["get", "metadata", "shop"]));
    says("upgrade-not-found", &tenant.helm(&["upgrade", "shop", &tenant.chart(charts::DEFAULT)]));
    let elsewhere = ["upgrade", "--install", "shop", &tenant.chart(charts::DEFAULT), "--namespace", "nowhere"];
    says("namespace-not-found", &tenant.helm.run(&elsewhere).unwrap());
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn releases_in_the_way() {
    let tenant = Tenant::new("taken");
    tenant.install();
    let chart = tenant.chart(charts::DEFAULT);
    says("name-in-use", &tenant.helm(&["install", "shop", &chart]));
    let same_objects = ["upgrade", "--install", "other", &chart, "--set", "fullnameOverride=shop-nextcloud"];
    says("not-owned", &tenant.helm(&same_objects));
    assert!(tenant.helm(&["uninstall", "shop", "--keep-history"]).success);
    says("no-deployed-releases", &tenant.helm(&["upgrade", "shop", &chart]));
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn objects_that_uninstall_leaves() {
    let tenant = Tenant::new("left");
    tenant.install();
    tenant.kubectl(&["annotate", "--overwrite", "service", "shop-nextcloud", "meta.helm.sh/release-name=other"], "");
    // All but the API groups of Roles and NetworkPolicies, which helm then cannot look at.
    tenant.allow(json!([{"apiGroups": ["", "apps", "policy"], "resources": ["*"], "verbs": ["*"]}]));
    // New rights take effect after some time.
    let may = ["auth", "can-i", "delete", "services", "--as", "clerk"];
    while !tenant.start_kubectl(&may, "").wait().unwrap().success() {}
    prints("uninstall-left-behind", &tenant.helm(&["uninstall", "shop", "--kube-as-user", "clerk"]));
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
    let apply = ["apply", "--server-side", "--force-conflicts", "--field-manager=admin", "-f", "-"];
    tenant.kubectl(&apply, &replicas.to_string());
    says("conflict", &tenant.upgrade(charts::DEFAULT, &values(), &["--set", "replicaCount=2"]));
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn quotas_and_namespaces_that_end() {
    let tenant = Tenant::new("poor");
    tenant.kubectl(&["create", "quota", "none", "--hard=count/configmaps=1,services=0"], "");
    // The quota refuses nothing until its usage is counted.
    tenant.kubectl(&["wait", "quota/none", "--for=jsonpath={.status.used.services}=0", "--timeout=60s"], "");
    says("quota", &tenant.upgrade(charts::DEFAULT, &values(), &[]));
    let tenant = Tenant::new("ending");
    let held = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "held", "finalizers": ["clientapp.test/held"]}});
    tenant.kubectl(&["apply", "-f", "-"], &held.to_string());
    tenant.kubectl(&["delete", "namespace", "ending", "--wait=false"], "");
    says("namespace-terminating", &tenant.upgrade(charts::DEFAULT, &values(), &[]));
    // Lets the namespace be deleted, and the plane with it, without a wait.
    tenant.kubectl(&["patch", "configmap", "held", "--type=merge", "-p", r#"{"metadata":{"finalizers":[]}}"#], "");
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn admission() {
    let tenant = Tenant::new("admission");
    let here = json!({"matchLabels": {"kubernetes.io/metadata.name": "admission"}});
    let rule = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["services"], "scope": "*",
    });
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "admission"},
        "webhooks": [{
            "name": "services.clientapp.test", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": {"url": "https://127.0.0.1:1/"}, "namespaceSelector": here, "rules": [rule],
        }],
    });
    tenant.kubectl(&["create", "-f", "-"], &webhook.to_string());
    tenant.until_services_are_refused();
    says("webhook-down", &tenant.upgrade(charts::DEFAULT, &values(), &[]));
    tenant.kubectl(&["delete", "validatingwebhookconfiguration", "admission"], "");
    tenant.uninstall();

    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "admission"},
        "spec": {
            "matchConstraints": {"namespaceSelector": here, "resourceRules": [rule]},
            "validations": [{"expression": "false", "message": "no services here"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "admission"},
        "spec": {"policyName": "admission", "validationActions": ["Deny"]},
    });
    let both = json!({"apiVersion": "v1", "kind": "List", "items": [policy, binding]});
    tenant.kubectl(&["create", "-f", "-"], &both.to_string());
    tenant.until_services_are_refused();
    says("policy-denied", &tenant.upgrade(charts::DEFAULT, &values(), &[]));
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn what_is_not_allowed() {
    let tenant = Tenant::new("forbidden");
    let clerk = ["--kube-as-user", "clerk"];
    says("forbidden-storage", &tenant.upgrade(charts::DEFAULT, &values(), &clerk));
    let secrets = json!({"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]});
    tenant.allow(json!([secrets]));
    says("forbidden-get", &tenant.upgrade(charts::DEFAULT, &values(), &clerk));
    let read = json!({"apiGroups": ["*"], "resources": ["*"], "verbs": ["get"]});
    tenant.allow(json!([secrets, read]));
    says("forbidden-write", &tenant.upgrade(charts::DEFAULT, &values(), &clerk));
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn api_servers_that_do_not_let_helm_in() {
    let tenant = Tenant::new("outside");
    let refused = ["--kube-apiserver", "http://127.0.0.1:1"];
    says("apiserver-refused", &tenant.upgrade(charts::DEFAULT, &values(), &refused));
    let unknown =
        kubeconfig(json!({"server": plane().server_url(), "insecure-skip-tls-verify": true}), json!({"token": "none"}));
    let unknown = tenant.file("unknown.json", &unknown.to_string());
    says("unauthorized", &tenant.upgrade(charts::DEFAULT, &values(), &["--kubeconfig", &unknown]));
    let distrustful = kubeconfig(json!({"server": plane().server_url()}), json!({"token": "none"}));
    let distrustful = tenant.file("distrustful.json", &distrustful.to_string());
    says("untrusted-apiserver", &tenant.upgrade(charts::DEFAULT, &values(), &["--kubeconfig", &distrustful]));
    says("kubeconfig-missing", &tenant.upgrade(charts::DEFAULT, &values(), &["--kubeconfig", "none"]));
}

fn kubeconfig(cluster: Value, user: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": cluster}],
        "users": [{"name": "it", "user": user}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    })
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn waits_that_end_too_early() {
    let tenant = Tenant::new("impatient");
    // All other objects of the release are ready by then, and helm has seen it.
    says("wait-timeout", &tenant.upgrade(charts::NEVER_READY, &values(), &["--wait", "--timeout", "20s"]));
}

#[test]
#[ignore = "only a change of helm's version breaks it: cargo e2e nightly"]
fn operations_at_the_same_time() {
    let tenant = Tenant::new("busy");
    let (chart, file) = (tenant.chart(charts::NEVER_READY), tenant.file("values.json", &values().to_string()));
    let arguments = [
        "upgrade",
        "--install",
        "shop",
        &chart,
        "--values",
        &file,
        "--namespace",
        "busy",
        "--wait",
        "--timeout",
        "10m",
    ];
    let mut first = tenant.helm.spawn(&arguments).unwrap();
    tenant.kubectl(&["wait", "--for=create", "--timeout=2m", "deployment/shop-nextcloud"], "");
    says("in-progress-while-installing", &tenant.upgrade(charts::DEFAULT, &values(), &[]));
    // The pending release is the same whether its helm is alive or was killed.
    first.kill().unwrap();
    first.wait().unwrap();
    says("in-progress-after-sigkill", &tenant.upgrade(charts::DEFAULT, &values(), &[]));
    let ran = tenant.helm(&["uninstall", "shop"]);
    assert!(ran.success, "{}", ran.stderr);

    tenant.install();
    let second = tenant.helm.spawn(&arguments).unwrap();
    let pending = "jsonpath={.metadata.labels.status}=pending-upgrade";
    tenant.kubectl(&["wait", "--for=create", "--timeout=2m", "secret/sh.helm.release.v1.shop.v2"], "");
    tenant.kubectl(&["wait", &format!("--for={pending}"), "--timeout=2m", "secret/sh.helm.release.v1.shop.v2"], "");
    says("in-progress-while-upgrading", &tenant.upgrade(charts::DEFAULT, &values(), &[]));
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(second.id().try_into().unwrap()),
        nix::sys::signal::Signal::SIGTERM,
    )
    .unwrap();
    let ran = Ran::from(second.wait_with_output().unwrap());
    says("sigterm", &ran);
}
