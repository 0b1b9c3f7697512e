//! `kubectl clientapp` for people and scripts: run directly and through kubectl, as administrator and as a user with
//! few rights, with and without a running operator.

mod as_kubectl;
mod plan;

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use clientapp_crd::percona::{PerconaPGBackup, PerconaPGCluster, PerconaPGRestore};
use clientapp_crd::{
    Attempt, BackupPhase, ClientApp, ClientAppBackup, ClientAppRestore, ClientAppStatus, Phase, Postgresql, conditions,
};
use e2e::charts;
use e2e::lab::{Lab, Tenant, hostname};
use e2e::objects::{ACCESS_KEY, BUCKET, Objects, SECRET_KEY, make_dump};
use e2e::operator;
use e2e::percona::Knobs;
use k8s_openapi::api::core::v1::{Namespace, PersistentVolumeClaim, Pod, Secret};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use nix::pty::{OpenptyResult, Winsize, openpty};
use serde_json::{Value, json};
use tempfile::TempDir;

const PLUGIN: &str = "kubectl-clientapp";
const COMPLETER: &str = "kubectl_complete-clientapp";

/// A directory with the binary under the plugin's names.
fn installed() -> &'static Path {
    static DIRECTORY: OnceLock<TempDir> = OnceLock::new();
    let install = || {
        let directory = tempfile::tempdir().unwrap();
        for name in [PLUGIN, COMPLETER] {
            symlink(operator::binary().unwrap(), directory.path().join(name)).unwrap();
        }
        directory
    };
    DIRECTORY.get_or_init(install).path()
}

/// The output in a terminal, and the exit code.
#[derive(Debug)]
struct Answer {
    code: i32,
    stdout: String,
    stderr: String,
}

impl From<Output> for Answer {
    fn from(output: Output) -> Answer {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Answer { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

impl Answer {
    /// Its stdout, if it succeeded.
    #[track_caller]
    fn done(self) -> String {
        assert_eq!(self.code, 0, "{self:#?}");
        self.stdout
    }

    /// Checks that it succeeded, and that its stdout has all these parts.
    #[track_caller]
    fn prints(self, parts: &[&str]) {
        let missing: Vec<_> = parts.iter().filter(|part| !self.stdout.contains(**part)).collect();
        assert!(missing.is_empty(), "{missing:?} is not in {self:#?}");
        self.done();
    }

    /// Checks that it succeeded, and that its stdout begins like this.
    #[track_caller]
    fn begins(self, sentence: &str) {
        assert!(self.stdout.starts_with(sentence), "{sentence} is not the beginning of {self:#?}");
        self.done();
    }

    /// Checks that its stderr has this part.
    #[track_caller]
    fn notes(self, sentence: &str) -> Answer {
        assert!(self.stderr.contains(sentence), "{sentence} is not in {self:#?}");
        self
    }

    #[track_caller]
    fn json(self) -> Value {
        serde_json::from_str(&self.done()).unwrap()
    }

    /// Its error, if it failed with this exit code.
    #[track_caller]
    fn failed(self, code: i32, sentence: &str) -> String {
        assert!(self.code == code && self.stderr.contains(sentence), "exit code {code} and {sentence}: {self:#?}");
        self.stderr
    }
}

/// A program with no environment except its kubeconfig.
fn command(program: &Path, kubeconfig: Option<&Path>, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("HOME", "/nonexistent").stdin(Stdio::null());
    command.env("CLIENTAPP_RESTIC", operator::restic().unwrap());
    if let Some(kubeconfig) = kubeconfig {
        command.env("KUBECONFIG", kubeconfig);
    }
    command
}

fn plugin(kubeconfig: Option<&Path>, arguments: &[&str]) -> Answer {
    command(&installed().join(PLUGIN), kubeconfig, arguments).output().unwrap().into()
}

/// Runs a command as cluster admin, in the tenant's namespace, on a thread of its own.
async fn typed(tenant: &Tenant, arguments: &[&str]) -> Answer {
    typed_as(tenant, tenant.lab.plane.kubeconfig(), arguments).await
}

async fn typed_as(tenant: &Tenant, kubeconfig: PathBuf, arguments: &[&str]) -> Answer {
    let arguments = [arguments, &["--namespace", &tenant.namespace]].concat();
    let arguments: Vec<String> = arguments.into_iter().map(str::to_owned).collect();
    let run = move || plugin(Some(&kubeconfig), &arguments.iter().map(String::as_str).collect::<Vec<_>>());
    tokio::task::spawn_blocking(run).await.unwrap()
}

/// Flags of `create` for an app that is ready quickly.
const SMALL: [&str; 2] = ["--no-redis", "--no-postgres"];

async fn make(tenant: &Tenant, name: &str, flags: &[&str]) -> Answer {
    let host = hostname(tenant, name);
    typed(tenant, &[&["create", name, "--hostname", &host][..], &SMALL, flags].concat()).await
}

/// The width of the terminal.
const COLUMNS: u16 = 80;

/// The screen of a terminal and the exit code, after a user types this line and then, if asked, this answer.
async fn on_terminal(tenant: &Tenant, arguments: &[&str], answer: &str, environment: &[(&str, &str)]) -> (i32, String) {
    let size = Winsize { ws_row: 24, ws_col: COLUMNS, ws_xpixel: 0, ws_ypixel: 0 };
    let OpenptyResult { master, slave } = openpty(Some(&size), None).unwrap();
    let stdio = || Stdio::from(slave.try_clone().unwrap());
    let arguments = [arguments, &["--namespace", &tenant.namespace]].concat();
    let mut command = command(&installed().join(PLUGIN), Some(&tenant.lab.plane.kubeconfig()), &arguments);
    command.env("TERM", "xterm-256color").envs(environment.iter().copied());
    let mut child = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
    drop((command, slave));
    let mut terminal = fs::File::from(master);
    terminal.write_all(answer.as_bytes()).unwrap();
    let read = move || {
        let mut screen = Vec::new();
        // Reading from a terminal whose writers are gone is an error.
        let _ = terminal.read_to_end(&mut screen);
        (child.wait().unwrap().code().unwrap(), String::from_utf8_lossy(&screen).into_owned())
    };
    tokio::task::spawn_blocking(read).await.unwrap()
}

/// The kubeconfig of a user with all rights on the ClientApps of the namespace, and no others.
async fn little_user(tenant: &Tenant) -> PathBuf {
    user_with(tenant, &[]).await
}

/// The same with additional rights: verbs, and a resource.
async fn user_with(tenant: &Tenant, more: &[(&str, &str)]) -> PathBuf {
    tenant.kubectl(&["create", "serviceaccount", "little"]).unwrap();
    let little = format!("--serviceaccount={}:little", tenant.namespace);
    let apps = ("*", "clientapps.apps.bnerd-operator.local");
    for (index, (verbs, resource)) in more.iter().chain([&apps]).enumerate() {
        let name = &format!("little-{index}");
        let (verbs, resource) = (format!("--verb={verbs}"), format!("--resource={resource}"));
        tenant.kubectl(&["create", "role", name, &verbs, &resource]).unwrap();
        tenant.kubectl(&["create", "rolebinding", name, &format!("--role={name}"), &little]).unwrap();
    }
    let token = tenant.kubectl(&["create", "token", "little"]).unwrap();
    let admin = fs::read_to_string(tenant.lab.plane.kubeconfig()).unwrap();
    let mut config: Value = serde_yaml::from_str(&admin).unwrap();
    config["users"][0]["user"] = json!({"token": token.trim()});
    let path = tenant.lab.plane.directory().join(format!("{}.kubeconfig", tenant.namespace));
    let mut file = fs::File::options().write(true).create_new(true).mode(0o600).open(&path).unwrap();
    file.write_all(config.to_string().as_bytes()).unwrap();
    let user = format!("system:serviceaccount:{}:little", tenant.namespace);
    tenant.until_may(&user, ["get", apps.1], true).await;
    path
}

/// A kubeconfig for a server that does not exist.
fn nowhere(directory: &Path) -> PathBuf {
    let path = directory.join("kubeconfig");
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "nowhere",
        "clusters": [{"name": "nowhere", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "nobody", "user": {}}],
        "contexts": [{"name": "nowhere", "context": {"cluster": "nowhere", "user": "nobody"}}],
    });
    fs::write(&path, config.to_string()).unwrap();
    path
}

#[test]
fn what_needs_no_cluster() {
    let words =
        ["kubectl clientapp", "create", "adopt", "password", "--namespace", "--as-group", "Examples:", "Exit codes:"];
    plugin(None, &["--help"]).prints(&words);
    plugin(None, &["--version"]).prints(&[env!("CARGO_PKG_VERSION")]);
    for shell in ["bash", "zsh", "fish", "powershell"] {
        plugin(None, &["completion", shell]).prints(&["deletion-policy"]);
    }
    plugin(None, &["create"]).failed(2, "<NAME>");
    plugin(None, &["create", "acme"]).failed(2, "--hostname");
    plugin(None, &["wait", "acme", "--for", "Ready"]).failed(2, "condition=TYPE");
    plugin(None, &["status", "acme", "-o", "xml"]).failed(2, "[possible values: table, wide, name, json, yaml]");
    // The same binary prints the same under its own name.
    let own = command(operator::binary().unwrap(), None, &["kubectl", "approve-deletions", "--help"]).output().unwrap();
    Answer::from(own).prints(&["--all-namespaces"]);
}

#[test]
fn no_cluster_to_ask() {
    let list = "approve-deletions";
    plugin(None, &[list]).failed(1, "no cluster: ");
    plugin(None, &[list, "--kubeconfig", "/nonexistent/config"]).failed(1, "/nonexistent/config: No such file");
    let directory = tempfile::tempdir().unwrap();
    let nowhere = nowhere(directory.path());
    let refused = plugin(Some(&nowhere), &[list]).failed(1, "the cluster does not respond");
    assert!(refused.starts_with("error: list the ClientApps in namespace default: "), "{refused}");
    plugin(Some(&nowhere), &["wait", "acme"]).failed(1, "the cluster does not respond");
    plugin(Some(&nowhere), &[list, "--context", "other"]).failed(1, "has no context other; it has nowhere");
    let completer = installed().join(COMPLETER);
    let completed = |words: &[&str]| Answer::from(command(&completer, Some(&nowhere), words).output().unwrap()).done();
    assert_eq!(completed(&["sus"]), "suspend\n:4\n");
    assert_eq!(completed(&["ado"]), "adopt\n:4\n");
    assert_eq!(completed(&["status", "a"]), ":4\n");
    assert_eq!(completed(&["create", "acme", "--host"]), "--hostname\n:4\n");
}

#[tokio::test]
async fn the_life_of_an_app() {
    let tenant = Lab::shared().await.tenant("plugin-life").await;
    typed(&tenant, &["status", "acme"]).await.failed(5, "there is no ClientApp acme");
    make(&tenant, "acme", &["--wait"])
        .await
        .notes("clientapp/acme created in namespace plugin-life")
        .begins("acme: revision 1 with chart version 5.5.2 is deployed");

    let stored = typed(&tenant, &["status", "acme", "-o", "json"]).await.json();
    let managers = stored["metadata"]["managedFields"].as_array().unwrap();
    assert!(managers.iter().any(|fields| fields["manager"] == PLUGIN), "{managers:?}");
    typed(&tenant, &["status", "acme", "--color", "always"]).await.prints(&["\u{1b}"]);
    let tree = typed(&tenant, &["status", "acme"]).await.done();
    assert!(!tree.contains('\u{1b}'), "colours in a pipe: {tree:?}");
    for part in ["├─ Conditions", "Release acme revision 1 deployed", "Database disabled", "Bound"] {
        assert!(tree.contains(part), "{part} is not in {tree}");
    }
    assert!(tree.contains("Deployment acme-nextcloud 1/1") && !tree.contains("waiting:"), "{tree}");
    assert_eq!(
        typed(&tenant, &["status", "acme", "-o", "yaml"]).await.done().lines().next().unwrap(),
        "apiVersion: apps.bnerd-operator.local/v1alpha1"
    );

    let secret = tenant.api::<Secret>().get("acme-admin-secret").await.unwrap().data.unwrap();
    let password = String::from_utf8(secret["nextcloud-password"].0.clone()).unwrap();
    assert_eq!(typed(&tenant, &["password", "acme"]).await.done(), format!("{password}\n"));
    assert_eq!(typed(&tenant, &["password", "acme", "--username"]).await.done(), "admin\n");
    let both = typed(&tenant, &["password", "acme", "-o", "json"]).await.json();
    assert_eq!(both, json!({"username": "admin", "password": password}));

    let same = typed(&tenant, &["upgrade", "acme", charts::DEFAULT]).await;
    assert_eq!(same.done(), "clientapp/acme unchanged: its chart version is already 5.5.2\n");
    typed(&tenant, &["upgrade", "acme", charts::PATCH, "--wait"])
        .await
        .notes("chart version 5.5.2 -> 5.5.3")
        .begins("acme: revision 2 with chart version 5.5.3 is deployed");
    assert!(tenant.helm(&["rollback", "acme", "1"]).success);
    tenant.ready("acme", 4).await;
    let suspended = typed(&tenant, &["suspend", "acme"]).await.done();
    assert!(suspended.starts_with("clientapp/acme suspended: the operator changes nothing"), "{suspended}");
    typed(&tenant, &["suspend", "acme"]).await.prints(&["unchanged: it is already suspended"]);
    typed(&tenant, &["upgrade", "acme", charts::MAJOR, "--wait"]).await.failed(4, "spec.suspend is true");
    typed(&tenant, &["status", "acme"]).await.prints(&["suspended: the operator changes nothing"]);
    typed(&tenant, &["resume", "acme"]).await.done();
    tenant.ready("acme", 5).await;

    typed(&tenant, &["delete", "acme"]).await.failed(2, "pass --yes");
    let deleted = typed(&tenant, &["delete", "acme", "--yes"]).await;
    deleted.begins("acme: deleted");
    assert_eq!(tenant.listed("acme"), None);
    typed(&tenant, &["wait", "acme", "--for", "deleted"]).await.done();
    typed(&tenant, &["wait", "acme"]).await.failed(5, "there is no ClientApp acme");
}

#[tokio::test]
async fn what_is_made_and_what_is_refused() {
    let tenant = Lab::shared().await.tenant("plugin-create").await;
    let directory = tempfile::tempdir().unwrap();
    let values = directory.path().join("values.yaml");
    fs::write(&values, "cronjob: {enabled: true, \"on\": \"no\"}\n").unwrap();
    let values_flag = ["--values", values.to_str().unwrap()];
    let flags = [&values_flag[..], &["--dry-run", "--deletion-policy", "retain"]].concat();
    let printed = make(&tenant, "acme", &flags).await.done();
    // Without quotes, kubectl would read these as true and false.
    assert!(printed.contains("'on': 'no'"), "{printed}");
    let printed: Value = serde_yaml::from_str(&printed).unwrap();
    assert_eq!(
        printed["spec"],
        json!({
            "hostname": hostname(&tenant, "acme"), "redis": {"enabled": false}, "postgres": {"enabled": false},
            "values": {"cronjob": {"enabled": true, "on": "no"}}, "deletionPolicy": "Retain",
        })
    );
    assert!(tenant.api::<ClientApp>().get_opt("acme").await.unwrap().is_none());

    let wrong = typed(&tenant, &["create", "acme", "--hostname", "Acme_", "--dry-run"]).await;
    assert!(wrong.stdout.is_empty(), "{wrong:#?}");
    wrong.failed(1, "spec.hostname: must be a DNS name in lower case");
    let wrong = typed(&tenant, &["create", "acme", "--hostname", "Acme_"]).await;
    let sentence = wrong.failed(1, "spec.hostname: must be a DNS name in lower case");
    assert!(sentence.starts_with("error: create ClientApp plugin-create/acme: spec.hostname: "), "{sentence}");
    assert_eq!(sentence.lines().count(), 1, "{sentence}");
    let wrong = make(&tenant, "acme", &["--chart-version", "latest", "--replicas", "101"]).await;
    let sentence = wrong.failed(1, "spec.chartVersion: must be one exact version");
    assert!(sentence.contains("spec.replicas") && !sentence.contains("ApiError"), "{sentence}");
    fs::write(&values, "[1, 2]").unwrap();
    make(&tenant, "acme", &values_flag).await.failed(1, "values must be a YAML mapping");
    fs::write(&values, "cronjob:\n  enabled: no\n").unwrap();
    make(&tenant, "acme", &values_flag).await.failed(1, "values.yaml: line 2: no is false to kubectl and helm");

    let elsewhere = ["create", "only", "--hostname", "only.example.com", "-n", "plugin-made"];
    let kubeconfig = tenant.lab.plane.kubeconfig();
    let flags = [&elsewhere[..], &SMALL].concat();
    plugin(Some(&kubeconfig), &flags).failed(1, "namespace plugin-made does not exist: add --create-namespace");
    let flags = [&flags[..], &["--create-namespace", "-o", "json"]].concat();
    let printed = plugin(Some(&kubeconfig), &[&flags[..], &["--dry-run"]].concat());
    assert!(printed.stderr.contains("namespace plugin-made does not exist yet"), "{printed:#?}");
    assert_eq!(printed.json()["metadata"]["namespace"], "plugin-made");
    let made = plugin(Some(&kubeconfig), &flags).json();
    assert_eq!(made["metadata"]["namespace"], "plugin-made");
    kube::Api::<Namespace>::all(tenant.client.clone()).get("plugin-made").await.unwrap();
    plugin(Some(&kubeconfig), &flags).failed(1, "already exists");
    // Refused before the namespace is made.
    for length in [38, 40, 41, 53, 54] {
        let long = "a".repeat(length);
        let flags = ["create", &long, "--hostname", "long.example.com", "-n", "plugin-long", "--create-namespace"];
        plugin(Some(&kubeconfig), &flags).failed(2, "can have at most 37 characters");
    }
    assert!(kube::Api::<Namespace>::all(tenant.client.clone()).get_opt("plugin-long").await.unwrap().is_none());
    // Found in its namespace.
    typed(&tenant, &["status", "only"]).await.failed(5, "there is one in namespace plugin-made: add -n plugin-made");
}

#[tokio::test]
async fn waiting_ends_for_a_reason() {
    let tenant = Lab::shared().await.tenant("plugin-wait").await;
    make(&tenant, "acme", &["--chart-version", charts::NEVER_READY]).await.done();
    let late = typed(&tenant, &["wait", "acme", "--timeout", "1s"]).await;
    late.failed(3, "error: timed out after 1s waiting for acme: ");
    typed(&tenant, &["wait", "acme", "--for", "condition=Released"]).await.done();
    let unready = typed(&tenant, &["wait", "acme", "--for", "condition=WorkloadsReady=False", "-o", "json"]).await;
    assert_eq!(unready.json()["metadata"]["name"], "acme");

    let other = make(&tenant, "other", &["--chart-version", charts::UNRENDERABLE, "--wait"]).await;
    other.failed(4, "error: other: ");
    // Another client deletes the awaited app.
    let namespace = tenant.namespace.clone();
    let kubeconfig = tenant.lab.plane.kubeconfig();
    let mut waiting = command(&installed().join(PLUGIN), Some(&kubeconfig), &["wait", "acme", "-n", &namespace])
        .stderr(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // Without a terminal, progress is printed line by line, and only to stderr.
    let line = first_line(&mut waiting);
    assert!(line.starts_with("acme: "), "{line}");
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    let ended = tokio::task::spawn_blocking(move || waiting.wait_with_output().unwrap()).await.unwrap();
    assert_eq!((ended.status.code(), &ended.stdout[..]), (Some(5), &b""[..]));
}

/// Waits until a child has written a line to stderr.
fn first_line(child: &mut Child) -> String {
    let (mut line, mut byte) = (Vec::new(), [0]);
    while child.stderr.as_mut().unwrap().read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        line.push(byte[0]);
    }
    String::from_utf8(line).unwrap()
}

#[tokio::test]
async fn a_way_back_is_allowed_once() {
    let tenant = Lab::shared().await.tenant("plugin-allow").await;
    make(&tenant, "acme", &["--chart-version", charts::MAJOR, "--wait"]).await.done();
    let back = ["upgrade", "acme", charts::PATCH, "--wait"];
    let allowed = [&back[..], &["--allow"]].concat();
    typed(&tenant, &back).await.failed(4, "migrated data cannot be migrated back");
    typed(&tenant, &allowed).await.done();
    tenant.ready("acme", 2).await;
    // It stays in the spec if a user changes the version by other means, and is spent; given again, it is valid.
    tenant.patch("acme", json!({"chartVersion": charts::MAJOR})).await.unwrap();
    let status = tenant.ready("acme", 3).await;
    assert_eq!(status.spent_allow.as_deref(), Some(charts::PATCH));
    typed(&tenant, &allowed).await.done();
    tenant.ready("acme", 4).await;

    typed(&tenant, &["upgrade", "acme", charts::MAJOR, "--wait"]).await.done();
    let spec = tenant.api::<ClientApp>().get("acme").await.unwrap().spec;
    assert_eq!(spec.upgrade.allow, None);
    typed(&tenant, &back).await.failed(4, "migrated data cannot be migrated back");
    assert_eq!(tenant.listed("acme").unwrap().2, "nextcloud-6.0.0");
}

#[tokio::test]
async fn what_was_left_is_adopted() {
    let tenant = Lab::shared().await.tenant("plugin-adopt").await;
    typed(&tenant, &["adopt", "acme"]).await.failed(5, "there is no ClientApp acme");
    make(&tenant, "acme", &["--deletion-policy", "retain", "--wait"]).await.done();
    typed(&tenant, &["adopt", "acme"]).await.prints(&["no data of an earlier ClientApp is blocking it"]);
    let volume = volumes(&tenant).await;
    typed(&tenant, &["delete", "acme", "--yes"]).await.done();
    assert_eq!(volumes(&tenant).await, volume);

    make(&tenant, "acme", &[]).await.done();
    tenant.condition("acme", "Released", "False", "DataRetained").await;
    typed(&tenant, &["adopt", "acme", "--wait"])
        .await
        .notes("adopts the data retained from an earlier ClientApp of its name")
        .begins("acme: revision 1 ");
    assert_eq!(volumes(&tenant).await, volume);
    typed(&tenant, &["adopt", "acme"]).await.prints(&["unchanged: spec.postgres.adopt is already true"]);
}

/// The volumes, by uid.
async fn volumes(tenant: &Tenant) -> Vec<Option<String>> {
    let claims = tenant.api::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap();
    claims.items.into_iter().map(|claim| claim.metadata.uid).collect()
}

/// Waits until an attempt later than this one has failed.
async fn failed_attempt(tenant: &Tenant, but: Option<&Attempt>) -> Attempt {
    let failed = |status: &ClientAppStatus| {
        let attempt = status.last_attempt.as_ref();
        attempt.is_some_and(|attempt| {
            attempt.retry_at.is_some() && but.is_none_or(|but| (but.failures) < attempt.failures)
        })
    };
    tenant.status("acme", "failed anew", failed).await.last_attempt.unwrap()
}

#[tokio::test]
async fn another_attempt_now() {
    let tenant = Lab::shared().await.tenant("plugin-retry").await;
    make(&tenant, "acme", &["--chart-version", charts::UNRENDERABLE]).await.done();
    let first = failed_attempt(&tenant, None).await;
    // A chart that does not render is retried after a minute, then after two, and so on.
    let wait = first.retry_at.as_ref().unwrap().0.duration_since(first.started_at.0);
    assert!(wait.as_secs() >= 48, "{first:?}");

    let asked = typed(&tenant, &["retry", "acme"]).await.done();
    assert_eq!(asked, "clientapp/acme: retry requested\n");
    let second = failed_attempt(&tenant, Some(&first)).await;
    assert_eq!(second.failures, 2);
    let generation = tenant.api::<ClientApp>().get("acme").await.unwrap().metadata.generation;
    assert_eq!(generation, Some(1), "the spec is not touched");

    // The same request does not count twice: the attempt that it named is no longer the last one.
    tenant.kubectl(&["annotate", "clientapp", "acme", "any=thing"]).unwrap();
    typed(&tenant, &["retry", "acme", "--wait", "--timeout", "2m"]).await.failed(4, "error: acme: ");
    assert_eq!(failed_attempt(&tenant, Some(&second)).await.failures, 3, "one attempt for each request");

    // Once the app is ready there is nothing to retry.
    typed(&tenant, &["upgrade", "acme", charts::DEFAULT, "--wait"]).await.done();
    typed(&tenant, &["retry", "acme"]).await.prints(&["there is nothing to retry"]);
}

#[tokio::test]
async fn a_user_who_may_do_little() {
    let tenant = Lab::shared().await.tenant("plugin-little").await;
    let little = little_user(&tenant).await;
    let host = hostname(&tenant, "acme");
    let make = [&["create", "acme", "--hostname", &host, "--wait"][..], &SMALL].concat();
    typed_as(&tenant, little.clone(), &make).await.done();
    let tree = typed_as(&tenant, little.clone(), &["status", "acme"]).await.done();
    for resource in ["deployments", "statefulsets", "persistentvolumeclaims"] {
        assert!(tree.contains(&format!("(no permission to list {resource})")), "{resource} is not in {tree}");
    }
    let refused = |answer: Answer, what: &str| {
        let sentence = answer.failed(1, what);
        assert!(sentence.contains("is forbidden") && sentence.contains("for this right"), "{sentence}");
    };
    refused(typed_as(&tenant, little.clone(), &["password", "acme"]).await, "cannot get resource \"secrets\"");
    refused(plugin(Some(&little), &["approve-deletions", "-A"]), "cannot list resource \"clientapps\"");
    refused(plugin(Some(&little), &["wait", "acme", "-n", "default"]), "clientapps");
    typed_as(&tenant, little.clone(), &["suspend", "amce"]).await.failed(5, "did you mean acme?");
    typed_as(&tenant, little.clone(), &["delete", "acme", "-y"]).await.begins("acme: deleted");
}

#[tokio::test]
async fn on_a_terminal() {
    let tenant = Lab::shared().await.tenant("plugin-terminal").await;
    let host = hostname(&tenant, "acme");
    let make = [&["create", "acme", "--hostname", &host, "--wait"][..], &SMALL].concat();
    let (code, screen) = on_terminal(&tenant, &make, "", &[]).await;
    // One line that changes, and finally only the message.
    assert!(code == 0 && screen.contains("\u{1b}[2K") && screen.contains("acme: revision 1"), "{screen:?}");

    let (_, screen) = on_terminal(&tenant, &["status", "acme"], "", &[]).await;
    assert!(screen.contains("\u{1b}[32mTrue"), "{screen:?}");
    for plain in [&["status", "acme", "--color", "never"][..], &["status", "acme", "-o", "json"]] {
        let (_, screen) = on_terminal(&tenant, plain, "", &[]).await;
        assert!(!screen.contains('\u{1b}'), "{screen:?}");
    }
    let (_, screen) = on_terminal(&tenant, &["status", "acme"], "", &[("NO_COLOR", "1")]).await;
    assert!(!screen.contains('\u{1b}'), "{screen:?}");
    // But for the first, whose URL is there to be copied.
    assert!(screen.lines().skip(1).all(|line| line.chars().count() <= COLUMNS.into()), "{screen}");
    assert!(screen.contains('…'), "{screen}");

    let (code, screen) = on_terminal(&tenant, &["delete", "acme"], "other\n", &[]).await;
    assert!(code == 2 && screen.contains("the name does not match: nothing deleted"), "{screen}");
    for part in ["the volumes of app and Redis, and all data in them", "(deletionPolicy Delete)", "acme-admin-secret"] {
        assert!(screen.contains(part), "{part} is not in {screen}");
    }
    assert!(!screen.contains("namespace plugin-terminal"), "it was not created for the app: {screen}");
    assert!(tenant.api::<ClientApp>().get("acme").await.unwrap().metadata.deletion_timestamp.is_none());
    let (code, screen) = on_terminal(&tenant, &["delete", "acme"], "acme\n", &[]).await;
    assert!(code == 0 && screen.contains("acme: deleted"), "{screen}");
    assert!(tenant.api::<ClientApp>().get_opt("acme").await.unwrap().is_none());
}

const DUMP: &str = "20260131T030000Z-x7k2p";

/// A dump replaces the database of an app in place; the app, its Secrets and its dumps stay.
#[tokio::test]
async fn an_app_gets_yesterdays_database_back() {
    let tenant = Lab::shared().await.tenant("yesterday").await;
    standalone(&tenant).await;
    typed(&tenant, &["backups", "acme"]).await.done();
    typed(&tenant, &["restore", "acme", "--yes", "--wait"]).await.failed(4, "Postgresql acme-pg has no dump");
    typed(&tenant, &["backup", "acme", "--wait"]).await.prints(&["ClientApp acme is backed up: "]);
    dumps_are_listed(&tenant).await;
    typed(&tenant, &["backups", "acme"]).await.prints(&[DUMP, "117.74 MiB", "42", "VERIFIED"]);
    assert_eq!(typed(&tenant, &["backups", "acme", "-o", "json"]).await.json()["items"][0]["name"], DUMP);
    typed(&tenant, &["restore", "acme", "--from", DUMP]).await.failed(2, "pass --yes");
    typed(&tenant, &["restore", "acme", "--from", "20250131T030000Z-x", "--yes", "--wait"])
        .await
        .failed(4, &format!("has no dump 20250131T030000Z-x, but {DUMP}"));
    typed(&tenant, &["backup", "another"]).await.failed(5, "there is no ClientApp");
    typed(&tenant, &["backup", "acme", "--reclaim", "delete"]).await.failed(4, "a dump stays as long as");
    let (code, screen) = on_terminal(&tenant, &["restore", "acme", "--from", DUMP], "another\n", &[]).await;
    assert!(
        code == 2 && screen.contains("is set aside on its volumes") && screen.contains("nothing restored"),
        "{screen}"
    );

    let app = async || tenant.api::<ClientApp>().get("acme").await.unwrap();
    let database = async || tenant.api::<Postgresql>().get("acme-pg").await.unwrap();
    let uids = async || {
        let claims =
            [uid_of(&tenant, "data-acme-pg-0").await.unwrap(), uid_of(&tenant, "acme-pg-backup").await.unwrap()];
        (database().await.metadata.uid.unwrap(), claims)
    };
    let password = async || tenant.api::<Secret>().get("acme-pg-credentials").await.unwrap().data.unwrap();
    let (before, secret, spec) = (uids().await, password().await, app().await.spec);
    typed(&tenant, &["restore", "acme", "--from", DUMP, "--yes", "--wait"])
        .await
        .notes("restores acme")
        .prints(&[&format!("the database from dump {DUMP}"), "the former one is in former."]);
    // Nothing is deleted, and the user's spec is as it was.
    assert_eq!((uids().await, password().await, app().await.spec), (before.clone(), secret, spec));
    let found = database().await;
    let status = found.status.unwrap();
    assert_eq!((status.phase, status.restored.unwrap().dump.as_str()), (Some(Phase::Up), DUMP));
    let withdrawn = |found: Option<&Postgresql>| found?.spec.restore_request.is_none().then_some(());
    tenant.wait_for("acme-pg", "without a request", withdrawn).await;
    // It can be repeated, and dumps continue.
    typed(&tenant, &["restore", "acme", "--from", DUMP, "--yes", "--wait"]).await.done();
    typed(&tenant, &["backup", "acme", "--wait"]).await.done();
    assert_eq!(uids().await, before);
}

/// A database whose volume is gone begins anew, on request only.
#[tokio::test]
async fn a_lost_database_comes_back() {
    let tenant = Lab::shared().await.tenant("plugin-lost").await;
    with_a_dump(&tenant).await;
    let before = uid_of(&tenant, "data-acme-pg-0").await;
    let claims = tenant.api::<PersistentVolumeClaim>();
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    claims.delete("data-acme-pg-0", &DeleteParams::default()).await.unwrap();
    claims.patch("data-acme-pg-0", &PatchParams::default(), &free).await.unwrap();
    let lost = |found: Option<&Postgresql>| {
        let ready = conditions::find(&found?.status.as_ref()?.conditions, "Ready")?;
        (ready.reason == "VolumeLost" && ready.message.contains("restore a dump with a ClientAppRestore")).then_some(())
    };
    tenant.wait_for("acme-pg", "lost", lost).await;
    typed(&tenant, &["restore", "acme", "--yes", "--wait"]).await.done();
    let status = tenant.api::<Postgresql>().get("acme-pg").await.unwrap().status.unwrap();
    let after = uid_of(&tenant, "data-acme-pg-0").await;
    assert!(after.is_some() && before != after && status.volume.unwrap().uid == after.unwrap());
    assert_eq!(status.phase, Some(Phase::Up));
}

const RESTORE_TO: &str = "apps.bnerd-operator.local/restore-to-uid";

/// Another app is created from a dump of the first, which stays as it is. Each has its own administrator's Secret, with
/// the same password, since the restored database knows no other.
#[tokio::test]
async fn another_app_gets_yesterdays_database() {
    let tenant = Lab::shared().await.tenant("beside").await;
    let (host, then) = (hostname(&tenant, "acme"), hostname(&tenant, "then"));
    let copy = ["restore", "acme", "--to", "then", "--hostname", &then, "--wait"];
    standalone(&tenant).await;
    typed(&tenant, &copy).await.failed(4, "Postgresql acme-pg has no dump");
    typed(&tenant, &["backup", "acme", "--wait"]).await.done();
    dumps_are_listed(&tenant).await;

    let claims = tenant.api::<PersistentVolumeClaim>();
    let labelled = async || {
        let labels = claims.get("acme-pg-backup").await.unwrap().metadata.labels.unwrap();
        labels.get(RESTORE_TO).cloned()
    };
    let uid = async |name: &str| tenant.uid::<Postgresql>(name).await;
    let of = |to: &'static str, host: &'static str| ["restore", "acme", "--to", to, "--hostname", host].to_vec();
    let with = |more: &[&'static str]| [&copy[..], more].concat();
    for (line, code, words) in [
        (vec!["restore", "acme", "--to", "then"], 2, "--hostname"),
        (vec!["restore", "acme", "--hostname", "then.example.com"], 2, "--to"),
        (with(&["--no-backup"]), 2, "cannot be used with"),
        (with(&["--time", "2026-01-01T00:00:00Z"]), 4, "spec.database.time is not for dumps"),
        (with(&["--from", "20250131T030000Z-x"]), 4, "acme-pg has no dump 20250131T030000Z-x"),
        (with(&["--store"]), 1, "are not uploaded to a bucket"),
        (of("acme", "then.example.com"), 1, "must name another app than of"),
        (vec!["restore", "acme", "--to", "then", "--hostname", &host], 4, "is the hostname of acme"),
        (of("Then", "then.example.com"), 1, "spec.into.name: must be a DNS label"),
        (of("then", "Then_"), 1, "must be a DNS name in lower case"),
    ] {
        typed(&tenant, &line).await.failed(code, words);
    }
    assert!(tenant.api::<ClientApp>().get_opt("then").await.unwrap().is_none());
    assert!(tenant.api::<Secret>().get_opt("then-admin-secret").await.unwrap().is_none());

    let first = async || {
        let app = tenant.api::<ClientApp>().get("acme").await.unwrap();
        let database = tenant.api::<Postgresql>().get("acme-pg").await.unwrap();
        (
            app.spec,
            app.metadata.generation,
            database.metadata.uid,
            database.spec,
            uid_of(&tenant, "acme-pg-backup").await,
        )
    };
    let before = first().await;
    // The operator's label for a database that is still to be restored is waited for.
    let another = json!({"metadata": {"name": "another-pg"}, "spec": {"name": "x", "restore": {"claim": "none"}}});
    let another: Postgresql = serde_json::from_value(another).unwrap();
    let another = tenant.api::<Postgresql>().create(&PostParams::default(), &another).await.unwrap();
    let label = format!("{RESTORE_TO}={}", another.uid().unwrap());
    tenant.kubectl(&["label", "pvc", "acme-pg-backup", &label]).unwrap();
    let requested = typed(&tenant, &[&copy[..6], &["--from", DUMP, "-o", "json"]].concat()).await.json();
    let name = requested["metadata"]["name"].as_str().unwrap().to_owned();
    let waits = |found: Option<&ClientAppRestore>| {
        let ready = conditions::find(&found?.status.as_ref()?.conditions, "Ready")?;
        ready.message.contains("is labelled for Postgresql another-pg").then_some(())
    };
    tenant.wait_for(&name, "waiting for the label", waits).await;
    assert_eq!(labelled().await, another.uid());
    tenant.api::<Postgresql>().delete("another-pg", &DeleteParams::default()).await.unwrap();
    let complete = |found: Option<&ClientAppRestore>| {
        let status = found?.status.clone()?;
        (status.phase == Some(BackupPhase::Completed)).then_some(status)
    };
    let status = tenant.wait_for(&name, "complete", complete).await;
    assert_eq!(status.into_uid, tenant.uid::<ClientApp>("then").await);
    let message = &conditions::find(&status.conditions, "Ready").unwrap().message;
    for part in [
        &*format!("ClientApp then has the database from {DUMP}, the administrator of acme, and no pods"),
        "set dbhost to then-pg",
        r#"`kubectl patch clientapp then -n beside --type=merge -p '{"spec": {"replicas": null}}'`"#,
    ] {
        assert!(message.contains(part), "{part}: {message}");
    }
    tenant.ready("then", 1).await;
    let spec = tenant.api::<ClientApp>().get("then").await.unwrap().spec;
    assert_eq!((spec.hostname, spec.replicas, spec.suspend), (then.clone(), Some(0), false));
    let restored = tenant.api::<Postgresql>().get("then-pg").await.unwrap().status.unwrap().restored.unwrap();
    assert_eq!((restored.dump.as_str(), restored.claim.as_deref()), (DUMP, Some("acme-pg-backup")));
    let [password, same] = [["password", "acme"], ["password", "then"]];
    assert_eq!(typed(&tenant, &same).await.done(), typed(&tenant, &password).await.done());
    assert_eq!(first().await, before);
    tenant.ready("acme", 1).await;

    // Where a first one is restored, the label is free for a second.
    typed(&tenant, &copy).await.failed(4, "ClientApp then exists already");
    assert_eq!(labelled().await, uid("then-pg").await);
    let third = hostname(&tenant, "third");
    typed(&tenant, &["restore", "acme", "--to", "third", "--hostname", &third, "--wait"]).await.done();
    assert_eq!(labelled().await, uid("third-pg").await);
    tenant.ready("third", 1).await;

    // The Secret is deleted with its own app, and with no other.
    typed(&tenant, &["delete", "then", "--yes"]).await.done();
    assert!(tenant.api::<Secret>().get_opt("then-admin-secret").await.unwrap().is_none());
    typed(&tenant, &password).await.done();
    let leave = Patch::Merge(json!({"spec": {"deletionPolicy": "Retain"}}));
    tenant.api::<ClientApp>().patch("third", &PatchParams::default(), &leave).await.unwrap();
    tenant.ready("third", 1).await;
    typed(&tenant, &["delete", "third", "--yes"]).await.done();
    let again = ["restore", "acme", "--to", "third", "--hostname", &third, "--wait"];
    typed(&tenant, &again).await.failed(4, "exists already: choose another name than third");
    assert!(tenant.api::<ClientApp>().get_opt("third").await.unwrap().is_none());
    assert_eq!(first().await, before);
}

/// The volume with the dumps is lost, too: the dumps in the bucket are listed from the user's machine, with the
/// credentials in the cluster, and nothing is deleted for a dump that does not exist or with another password.
#[tokio::test]
async fn an_app_gets_its_database_back_from_a_bucket() {
    let tenant = Lab::shared().await.tenant("from-bucket").await;
    let objects = Objects::start().unwrap();
    standalone(&tenant).await;
    typed(&tenant, &["backups", "acme", "--store"]).await.failed(1, "are not uploaded to a bucket");
    let key = format!("--from-literal=AWS_ACCESS_KEY_ID={ACCESS_KEY}");
    let secret = format!("--from-literal=AWS_SECRET_ACCESS_KEY={SECRET_KEY}");
    tenant.kubectl(&["create", "secret", "generic", "s3", &key, &secret]).unwrap();
    tenant.kubectl(&["create", "secret", "generic", "restic", "--from-literal=password=canary"]).unwrap();
    let store = |endpoint: String| {
        let store = json!({
            "endpoint": endpoint, "bucket": BUCKET, "prefix": "prod", "credentialsSecret": {"name": "s3"},
            "passwordSecret": {"name": "restic"},
        });
        json!({"spec": {"postgres": {"backup": {"schedule": "@yearly", "store": store}}}})
    };
    let set = async |spec: Value| {
        let params = PatchParams::default();
        tenant.api::<ClientApp>().patch("acme", &params, &Patch::Merge(spec)).await.unwrap();
    };
    set(store(objects.url())).await;
    let said = typed(&tenant, &["backups", "acme", "--store"]).await;
    assert!(said.stderr.contains("there is no dump of acme in bucket dumps"), "{said:#?}");
    let host = hostname(&tenant, "then");
    let copy = ["restore", "acme", "--store", "--to", "then", "--hostname", &host, "--wait"];

    // As uploaded by the operator's Job.
    let volume = tempfile::tempdir().unwrap();
    let password = volume.path().join("password");
    fs::write(&password, "canary\n").unwrap();
    let push = |dump: &str| {
        make_dump(volume.path(), dump, ("7", 12), b"data");
        let mut push = command(operator::binary().unwrap(), None, &["store", "push"]);
        push.envs([("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)])
            .envs([
                ("STORE_BUCKET", BUCKET),
                ("STORE_PREFIX", "prod/from-bucket/acme-pg"),
                ("STORE_ENDPOINT", &objects.url()),
            ])
            .envs([("DUMPS", volume.path()), ("STORE_PASSWORD_FILE", &password)]);
        let pushed = push.output().unwrap();
        assert!(pushed.status.success(), "{}", String::from_utf8_lossy(&pushed.stderr));
    };
    let (plain, later) = ("20260131T030000Z-plain", "20260201T030000Z-later");
    push(plain);
    push(later);
    let table = typed(&tenant, &["backups", "acme", "--store"]).await.done();
    assert!(table.find(later).unwrap() < table.find(plain).unwrap(), "{table}");
    let listed = typed(&tenant, &["backups", "acme", "--store", "-o", "json"]).await.json();
    assert_eq!((&listed["items"][1]["name"], &listed["items"][1]["tables"]), (&json!(plain), &json!(12)));

    set(store("http://127.0.0.1:9".to_owned())).await;
    typed(&tenant, &["backups", "acme", "--store"]).await.failed(1, "did not answer within 20 seconds");

    set(store(objects.url())).await;
    typed(&tenant, &["restore", "acme", "--store", "--from", plain, "--yes", "--wait"]).await.done();
    let found = tenant.api::<Postgresql>().get("acme-pg").await.unwrap();
    let restored = found.status.unwrap().restored.unwrap();
    let place = format!("{}/dumps/prod/from-bucket/acme-pg", objects.url());
    assert_eq!((restored.dump.as_str(), restored.store.as_ref()), (plain, Some(&place)));

    // Another app may read the first one's path in the bucket, and no more of it is changed.
    typed(&tenant, &[&copy[..], &["--from", plain]].concat()).await.done();
    let restored = tenant.api::<Postgresql>().get("then-pg").await.unwrap().status.unwrap().restored.unwrap();
    assert_eq!((restored.dump.as_str(), restored.store), (plain, Some(place)));
    let labels = tenant.api::<Secret>().get("s3").await.unwrap().metadata.labels.unwrap();
    assert_eq!(labels.get(RESTORE_TO), tenant.uid::<Postgresql>("then-pg").await.as_ref());
}

/// Percona backs up and restores a PerconaPGCluster in place.
#[tokio::test]
async fn a_cluster_gets_yesterdays_data_back() {
    let tenant = Lab::shared().await.tenant("yesterday-there").await;
    tenant.create("acme", json!({"hostname": hostname(&tenant, "acme")})).await.unwrap();
    tenant.ready("acme", 1).await;
    typed(&tenant, &["status", "acme"]).await.prints(&[
        "PerconaPGCluster acme-pg ready, PostgreSQL 15",
        "instances 1/1",
        "PgBouncer 1/1",
        "1Gi Bound",
        "Deployment acme-nextcloud 1/1",
        "StatefulSet acme-redis-master 1/1",
        "acme-nextcloud-nextcloud 8Gi Bound",
    ]);
    typed(&tenant, &["backup", "acme"]).await.failed(4, "keeps no backups: set spec.postgres.percona.schedules");
    typed(&tenant, &["restore", "acme", "--no-backup", "--yes", "--wait"]).await.failed(4, "keeps no backups");
    typed(&tenant, &["backups", "acme"]).await.done();
    tenant.patch("acme", json!({"postgres": {"percona": {"keep": 3}}})).await.unwrap();
    let ready = |found: Option<&PerconaPGCluster>| {
        let conditions = &found?.status.as_ref()?.conditions;
        conditions.iter().any(|it| it.kind == "ReadyForBackup" && it.status == "True").then_some(())
    };
    tenant.wait_for("acme-pg", "ready for a backup", ready).await;
    tenant.ready("acme", 1).await;

    let backup = typed(&tenant, &["backup", "acme", "--wait", "-o", "json"]).await.json();
    let name = backup["status"]["database"]["name"].as_str().unwrap().to_owned();
    let backup = json!(tenant.api::<PerconaPGBackup>().get(&name).await.unwrap());
    assert_eq!((&backup["spec"]["repoName"], &backup["status"]["state"]), (&json!("repo1"), &json!("Succeeded")));
    typed(&tenant, &["backups", "acme"]).await.prints(&[&name, "Succeeded", "volume"]);
    assert_eq!(typed(&tenant, &["backups", "acme", "-o", "json"]).await.json()["items"].as_array().unwrap().len(), 2);

    typed(&tenant, &["restore", "acme", "--from", &name]).await.failed(2, "pass --yes");
    typed(&tenant, &["restore", "acme", "--yes", "--wait"]).await.failed(4, "the newest state is the current one");
    let theirs = ["restore", "acme", "--from", "theirs", "--yes", "--wait"];
    typed(&tenant, &theirs).await.failed(4, "has no backup theirs");
    let early = ["restore", "acme", "--time", "2026-01-01T00:00:00Z", "--yes", "--wait"];
    typed(&tenant, &early).await.failed(4, "is before the first backup of acme");
    let (code, screen) = on_terminal(&tenant, &["restore", "acme", "--from", &name], "another\n", &[]).await;
    assert!(code == 2 && screen.contains("backed up first") && screen.contains("nothing restored"), "{screen}");
    let restores = async || tenant.api::<PerconaPGRestore>().list(&ListParams::default()).await.unwrap().items;
    assert_eq!(restores().await.len(), 0);

    // The current state is backed up first, and the restore is the requested one.
    let said = typed(&tenant, &["restore", "acme", "--from", &name, "--yes", "--wait"]).await;
    assert!(said.stderr.contains("-before backs up the database"), "{said:#?}");
    assert!(said.stderr.contains("-after backs up the database"), "{said:#?}");
    said.prints(&["the former state is in PerconaPGBackup"]);
    let restore = restores().await.remove(0);
    let label = backup["status"]["backupName"].as_str().unwrap();
    assert_eq!(restore.spec.options, ["--type=immediate".to_owned(), format!("--set={label}")]);
    assert_eq!((restore.spec.pg_cluster.as_str(), restore.spec.repo_name.as_deref()), ("acme-pg", Some("repo1")));
    // The restore does not wait for the end of the backup after it.
    e2e::wait::until("the backups have ended", async || {
        let all = tenant.api::<PerconaPGBackup>().list(&ListParams::default()).await.unwrap().items;
        let ended = |backup: &PerconaPGBackup| backup.status.as_ref()?.result.completed.clone();
        all.iter().all(|backup| ended(backup).is_some()).then_some(()).ok_or("not yet".to_owned())
    })
    .await;
    let list = typed(&tenant, &["backups", "acme", "-o", "json"]).await.json();
    let items = list["items"].as_array().unwrap();
    assert_eq!(items.len(), 4, "{list}");
    // A manual backup is full; backups around a restore are not, so that they displace no other.
    let type_of = |name: &str| {
        items.iter().find(|item| item["metadata"]["name"] == name).unwrap()["status"]["backupType"].clone()
    };
    let types = items.iter().filter(|item| item["status"]["backupType"] == "incr").count();
    assert_eq!((type_of(&name), types), (json!("full"), 2), "{list}");

    // One at a time.
    tenant.percona("acme-pg", Knobs { hold_restores: true, ..Knobs::default() });
    let now = jiff::Timestamp::now().to_string();
    let at = ["restore", "acme", "--time", &now, "--no-backup", "--yes"];
    typed(&tenant, &at).await.prints(&["restores acme"]);
    tenant.condition("acme", "PostgresReady", "False", "Restoring").await;
    let second = typed(&tenant, &[&at[..], &["-o", "json"]].concat()).await.json();
    let second = second["metadata"]["name"].as_str().unwrap().to_owned();
    let later = |found: Option<&ClientAppRestore>| {
        let ready = conditions::find(&found?.status.as_ref()?.conditions, "Ready")?;
        ready.message.contains("another ClientAppRestore of the same object comes first").then_some(())
    };
    tenant.wait_for(&second, "waiting", later).await;
    tenant.kubectl(&["delete", "clientapprestore", &second]).unwrap();
    typed(&tenant, &["backup", "acme"]).await.done();
    let waits = |found: Option<&ClientAppBackup>| {
        let ready = conditions::find(&found?.status.as_ref()?.conditions, "Ready")?;
        ready.message.contains("is in progress").then_some(())
    };
    let waiting = tenant.api::<ClientAppBackup>().list(&ListParams::default()).await.unwrap().items;
    let waiting = waiting.into_iter().max_by_key(|backup| backup.creation_timestamp()).unwrap().name_any();
    tenant.wait_for(&waiting, "waiting", waits).await;
    tenant.kubectl(&["delete", "clientappbackup", &waiting]).unwrap();
    tenant.percona("acme-pg", Knobs::default());
    e2e::wait::until("the restore has succeeded", async || {
        let state = |restore: &PerconaPGRestore| restore.status.clone()?.state;
        let over = restores().await.iter().all(|restore| state(restore).as_deref() == Some("Succeeded"));
        over.then_some(()).ok_or("not yet".to_owned())
    })
    .await;
    tenant.condition("acme", "Ready", "True", "Ready").await;
    let again = ["restore", "acme", "--no-backup", "--yes", "--wait"];
    typed(&tenant, &again).await.done();
    let last = restores().await.into_iter().max_by_key(|restore| restore.creation_timestamp()).unwrap();
    assert!(last.spec.options[0].starts_with("--set="), "{last:?}");

    // A failure is reported. Percona may take it for that of the next restore, too.
    tenant.condition("acme", "Ready", "True", "Ready").await;
    tenant.percona("acme-pg", Knobs { fail_restores: true, ..Knobs::default() });
    typed(&tenant, &again).await.failed(4, "kubectl logs job/acme-pg-pgbackrest-restore");
    tenant.percona("acme-pg", Knobs::default());
    tenant.condition("acme", "Ready", "True", "Ready").await;

    // Another app is created from the same backup.
    let host = hostname(&tenant, "then");
    let copy = ["restore", "acme", "--to", "then", "--hostname", &host, "--wait"];
    typed(&tenant, &copy).await.failed(4, "acme-pg was restored before");
    typed(&tenant, &[&copy[..], &["--from", &name]].concat()).await.prints(&["set dbhost to then-pg-pgbouncer"]);
    let made = tenant.api::<PerconaPGCluster>().get("then-pg").await.unwrap();
    let options = ["--type=immediate".to_owned(), format!("--set={label}")];
    let source = json!({"clusterName": "acme-pg", "repoName": "repo1", "options": options});
    assert_eq!(made.spec.data_source, Some(json!({"postgresCluster": source})));
    tenant.delete("then").await;
    let leaving = typed(&tenant, &["delete", "acme", "--yes", "--wait=false"]).await.done();
    assert_eq!(leaving, "clientapp/acme is being deleted\n");
    typed(&tenant, &["wait", "acme", "--for", "deleted"]).await.done();
}

/// Creates a ClientApp with a Postgresql.
async fn standalone(tenant: &Tenant) {
    let host = hostname(tenant, "acme");
    typed(tenant, &["create", "acme", "--hostname", &host, "--no-redis", "--standalone", "--wait"]).await.done();
}

/// The simulated node runs no script, so the termination messages of the dump pods are written here.
async fn dumps_are_listed(tenant: &Tenant) {
    let pods = tenant.api::<Pod>();
    let selector = ListParams::default().labels("apps.bnerd-operator.local/role=backup");
    for pod in pods.list(&selector).await.unwrap() {
        let status = json!({"status": {"containerStatuses": [{
            "name": "dump", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 0, "message": format!("{DUMP} 123456789 42")}},
        }]}});
        pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
    }
    let listed = |found: Option<&Postgresql>| {
        found?.status.as_ref()?.backup.as_ref()?.dumps.iter().any(|listed| listed.name == DUMP).then_some(())
    };
    tenant.wait_for("acme-pg", "with a list of its dumps", listed).await;
}

/// Creates one with a dump.
async fn with_a_dump(tenant: &Tenant) {
    standalone(tenant).await;
    typed(tenant, &["backup", "acme", "--wait"]).await.done();
    dumps_are_listed(tenant).await;
}

async fn uid_of(tenant: &Tenant, claim: &str) -> Option<String> {
    tenant.uid::<PersistentVolumeClaim>(claim).await
}

#[tokio::test]
async fn held_deletions_are_shown_and_approved_by_their_number() {
    let (e2e::lab::Apart { tenant, proxy: _proxy, .. }, _operator) =
        e2e::scenario::operated("held", &["--deletion-brake", "0"]).await;
    typed(&tenant, &["approve-deletions"]).await.done();
    for name in ["acme", "globex", "alive"] {
        make(&tenant, name, &["--wait"]).await.done();
    }
    let said = typed(&tenant, &["delete", "acme", "globex", "--yes"]).await;
    said.failed(4, "each ClientApp with data needs an approval: to delete this one");
    typed(&tenant, &["approve-deletions"]).await.failed(2, "pass --yes to skip the confirmation");
    let (code, screen) = on_terminal(&tenant, &["approve-deletions"], "3\n", &[]).await;
    assert!(code == 2 && screen.contains("nothing approved"), "{screen}");
    for part in ["held/acme, which serves", "held/globex, which serves", "These are 2 ClientApps."] {
        assert!(screen.contains(part), "{part} is not in {screen}");
    }
    assert!(!screen.contains("alive"), "{screen}");
    assert!(tenant.api::<ClientApp>().get("acme").await.unwrap().metadata.deletion_timestamp.is_some());
    let (code, screen) = on_terminal(&tenant, &["approve-deletions"], "2\n", &[]).await;
    assert!(code == 0 && screen.contains("clientapp/globex: deletion approved"), "{screen}");
    for name in ["acme", "globex"] {
        tenant.gone(name).await;
    }
    assert!(tenant.api::<ClientApp>().get("alive").await.unwrap().metadata.deletion_timestamp.is_none());
}
