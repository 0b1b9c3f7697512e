//! The facade with fake helms, which are shell scripts.

// Another process has to write the scripts.
#![allow(clippy::disallowed_methods)]

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use tempfile::TempDir;

use super::*;
use crate::{leadership::Leadership, platform::account::AccountName};

struct Bed {
    dir: TempDir,
    helm: Helm,
}

impl Bed {
    /// A helm that is this script, which finds the test's directory in `$DIR`.
    fn new(script: &str) -> Self {
        Self::with(script, |_| {})
    }

    fn with(script: &str, change: impl FnOnce(&mut HelmSettings)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("helm");
        install(&binary, &format!("#!/bin/sh\nDIR='{}'\n{script}\n", dir.path().display()));
        let mut settings = HelmSettings {
            binary,
            private_dir: dir.path().join("private"),
            flags: Flags { history_max: 5, hook_timeout: Duration::from_secs(60) },
            deadline: Duration::from_secs(60),
            grace: Duration::from_secs(60),
            memory: 1 << 30,
            credentials: CredentialFiles::default(),
        };
        change(&mut settings);
        let helm = Helm::new(settings).unwrap();
        Self { dir, helm }
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.dir.path().join(name)).unwrap_or_default()
    }

    async fn upgrade(&self) -> Result<Finished, HelmError> {
        self.helm.upgrade(&gateway().await, &upgrade(), (Box::new(|_| Ok(())), None), &CancellationToken::new()).await.0
    }

    async fn uninstall(&self) -> Result<Finished, HelmError> {
        let (release, namespace) = ("my-app".parse().unwrap(), "tenant".parse().unwrap());
        let request = Uninstall { release, namespace, account: AccountName::default() };
        self.helm.uninstall(&gateway().await, &request, Box::new(|_| Ok(())), &CancellationToken::new()).await
    }

    async fn pull(&self) -> Result<Pulled, HelmError> {
        let source = "https://charts.example.com".parse().unwrap();
        let chart = "nextcloud".parse().unwrap();
        self.helm.pull(&source, &chart, &semver::Version::new(5, 5, 2), &CancellationToken::new()).await
    }
}

/// A script of a helm that finds this index in the repository, and then pulls with this script, in which `$into` is the destination.
fn repository(index: &str, pull: &str) -> String {
    // The last argument of either command is its directory.
    format!(
        r#"echo "$1 $KUBECONFIG" >> "$DIR/runs"; for into; do :; done
        if [ "$1" = repo ]; then mkdir "$into"; echo '{index}' > "$into/charts-index.yaml"; else :; {pull}; fi"#
    )
}

/// A gateway without an API server.
async fn gateway() -> Gateway {
    let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
    Gateway::open(kube::Client::try_from(config).unwrap(), Leadership::unconditional()).await.unwrap()
}

/// Has another process write the script: a concurrent test may fork and inherit our open descriptor, and the kernel refuses to execute
/// a file that is open for writing.
fn install(path: &Path, script: &str) {
    let mut cat = Command::new("/bin/sh")
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    cat.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(cat.wait().unwrap().success());
}

fn upgrade() -> Upgrade {
    let label = |text: &str| text.parse().unwrap();
    Upgrade {
        release: "my-app".parse().unwrap(),
        namespace: "tenant".parse().unwrap(),
        account: AccountName::default(),
        chart: "/charts/x.tgz".into(),
        values: "a: b\n".to_owned(),
        redactor: Redactor::default(),
        labels: ReleaseLabels { digest: label("d"), holder: label("h"), operation: label("o"), revision: 1 },
    }
}

#[tokio::test]
async fn an_upgrade_gets_values_kubeconfig_and_a_private_environment() {
    let bed = Bed::new(
        r#"echo "$@" > "$DIR/argv"; cat > "$DIR/values"; cat "$KUBECONFIG" > "$DIR/used"; env > "$DIR/env"; ls -ld "$HOME" "$KUBECONFIG" > "$DIR/ls""#,
    );
    bed.upgrade().await.unwrap();
    assert!(bed.read("argv").starts_with("upgrade --install my-app /charts/x.tgz --namespace tenant --values - "));
    assert_eq!(bed.read("values"), "a: b\n");
    assert!(bed.read("used").contains("http://clientapp-operator"));
    let env = bed.read("env");
    let private = bed.dir.path().join("private");
    let homes = ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"];
    let others = ["HOME", "TMPDIR", "HELM_REPOSITORY_CACHE", "HELM_CONTENT_CACHE", "KUBECONFIG"];
    for name in homes.into_iter().chain(others) {
        assert!(env.contains(&format!("{name}={}", private.display())), "{name}: {env}");
    }
    let go = ["GOGC=400", "GOMEMLIMIT=256MiB", "GOMAXPROCS=1"];
    for line in ["HELM_DRIVER=secret", "HELM_NO_PLUGINS=1", "NO_COLOR=1", "TZ=UTC"].into_iter().chain(go) {
        assert!(env.lines().any(|found| found == line), "{line}: {env}");
    }
    assert!(!env.contains("canary") && !env.contains("CARGO"), "{env}");
    let ls = bed.read("ls");
    assert!(ls.contains("drwx------") && ls.contains("-rw-------"), "{ls}");
    // The access ends with the run.
    let kubeconfig = env.lines().find_map(|line| line.strip_prefix("KUBECONFIG=")).unwrap();
    assert!(!Path::new(kubeconfig).exists(), "{kubeconfig}");
}

#[tokio::test]
async fn only_what_may_be_passed_on_is() {
    let dir = tempfile::tempdir().unwrap();
    let private = WorkDir::create(dir.path()).unwrap();
    let env = environment(&private, |name| Some(format!("our {name}").into())).unwrap();
    let names: Vec<_> =
        env.iter().filter(|(_, value)| value.to_string_lossy().starts_with("our ")).map(|(name, _)| name).collect();
    assert_eq!(names, INHERITED);
}

#[tokio::test]
async fn failures_are_told_apart_and_worded() {
    let failing = "echo 'level=WARN msg=x' >&2; echo 'Error: UPGRADE FAILED: context deadline exceeded' >&2; exit 1";
    let failed = Bed::new(failing).upgrade().await.unwrap_err();
    assert!(
        matches!(failed, HelmError::Failed { verb: Verb::Upgrade, failure: HelmFailure::Timeout, .. }),
        "{failed:?}"
    );
    let killed = Bed::new("kill -KILL $$").upgrade().await.unwrap_err();
    let by_9 =
        "helm upgrade was killed by signal 9, probably for lack of memory: see the memory limit of the operator's pod";
    let late = Bed::with("sleep 1000", |settings| settings.deadline = Duration::from_millis(100));
    for (error, expected) in [
        (failed, "context deadline exceeded"),
        (killed, by_9),
        (late.upgrade().await.unwrap_err(), "helm upgrade was stopped, because it took longer than 0.1 s"),
    ] {
        assert_eq!(error.to_string(), expected);
    }
}

#[tokio::test]
async fn after_cancellation_nothing_starts() {
    let bed = Bed::new(r#"echo ran > "$DIR/ran""#);
    let cancel = CancellationToken::new();
    cancel.cancel();
    let error =
        bed.helm.upgrade(&gateway().await, &upgrade(), (Box::new(|_| Ok(())), None), &cancel).await.0.unwrap_err();
    assert!(matches!(error, HelmError::NotStarted { .. }), "{error:?}");
    assert_eq!(bed.read("ran"), "");
}

#[tokio::test]
async fn an_absent_release_is_uninstalled() {
    let bed = Bed::new("echo 'Error: uninstall: Release not loaded: my-app: release: not found' >&2; exit 1");
    assert!(bed.uninstall().await.unwrap().success());
    let bed = Bed::new(
        "echo 'Error: uninstall: Release not loaded: my-app: query: failed to query with labels: Unauthorized' >&2; exit 1",
    );
    let error = bed.uninstall().await.unwrap_err();
    assert!(matches!(error, HelmError::Failed { failure: HelmFailure::Forbidden { .. }, .. }), "{error:?}");
}

#[tokio::test]
async fn a_pull_returns_the_one_file_and_has_no_access() {
    let index = "entries: {nextcloud: [{version: 5.5.2, digest: 0a}]}";
    let bed = Bed::new(&repository(index, r#"echo chart > "$into/odd-name""#));
    let pulled = bed.pull().await.unwrap();
    assert_eq!(fs::read_to_string(&pulled.path).unwrap(), "chart\n");
    assert_eq!(pulled.listed, Some(vec!["0a".to_owned()]));
    assert_eq!(bed.read("runs"), "repo \npull \n");
    let path = pulled.path.clone();
    drop(pulled);
    assert!(!path.exists());
    for script in ["exit 0", r#"echo a > "$into/a"; echo b > "$into/b""#] {
        let bed = Bed::new(&repository(index, script));
        assert!(matches!(bed.pull().await, Err(HelmError::NothingPulled)), "{script}");
    }
}

#[tokio::test]
async fn credentials_are_read_at_each_pull_and_told_to_helm_alone() {
    let index = "entries: {nextcloud: [{version: 5.5.2, digest: 0a}]}";
    // A helm that quotes the password.
    let quotes =
        r#"password=$(cat "$DIR/stdin"); echo "Error: failed to fetch https://x/y.tgz : 401 $password" >&2; exit 1"#;
    let script =
        format!(r#"echo "$@" >> "$DIR/argv"; [ "$1" = repo ] && cat > "$DIR/stdin"; {}"#, repository(index, quotes));
    let secret = tempfile::tempdir().unwrap();
    let bed = Bed::with(&script, |settings| settings.credentials.directory = Some(secret.path().to_owned()));
    fs::write(secret.path().join("username"), "-tenant").unwrap();
    let half = bed.pull().await.unwrap_err();
    assert!(half.to_string().ends_with("has username, but no password: put both into the Secret"), "{half}");
    assert_eq!(bed.read("argv"), "");
    for password in ["canary-one", "canary-two"] {
        fs::write(secret.path().join("password"), password).unwrap();
        let HelmError::Failed { failure: HelmFailure::RepositoryUnavailable, message, .. } =
            bed.pull().await.unwrap_err()
        else {
            panic!("the repository refuses it")
        };
        assert_eq!(bed.read("stdin"), format!("{password}\n"));
        assert!(message.ends_with("failed to fetch https://x/y.tgz : 401 ***"), "{message}");
    }
    assert!(bed.read("argv").contains(" --username=-tenant --password-stdin ") && !bed.read("argv").contains("canary"));
}

#[tokio::test]
async fn without_an_entry_in_the_index_nothing_is_pulled() {
    let down = r#"looks like "https://charts.example.com" is not a valid chart repository or cannot be reached: EOF"#;
    let absent = r#"chart "nextcloud" version "5.5.2" not found in https://charts.example.com repository"#;
    for (script, expected) in [
        (format!("echo repo >> \"$DIR/runs\"; echo 'Error: {down}' >&2; exit 1"), down),
        (repository("entries: {nextcloud: [{version: 5.5.1}]}", "exit 0"), absent),
        (repository("entries: [", "exit 0"), "the repository's index is not YAML: "),
        ("echo repo >> \"$DIR/runs\"".to_owned(), "the repository's index cannot be read: "),
    ] {
        let bed = Bed::new(&script);
        let error = bed.pull().await.unwrap_err();
        assert!(error.to_string().starts_with(expected), "{error}");
        assert_eq!(bed.read("runs").lines().map(str::trim).collect::<Vec<_>>(), ["repo"], "{script}");
    }
}

#[tokio::test]
async fn check_says_what_is_wrong() {
    let says = async |script: &str| Bed::new(script).helm.check().await.map_err(|error| error.to_string());
    assert_eq!(says("echo v4.3.1").await, Ok(semver::Version::new(4, 3, 1)));
    assert_eq!(says("echo v4.1").await, Ok(semver::Version::new(4, 1, 0)));
    let too_old =
        "helm 3.22.0 is too old: at least 4.0.0 is needed; install it, or name another executable with --helm";
    for (script, expected) in [
        ("echo v3.22.0", too_old),
        ("echo '<html> login'", r#"is not helm: asked for its version, it said "<html> login""#),
        ("exit 0", r#"is not helm: asked for its version, it said """#),
        ("echo 'unknown flag: --template' >&2; exit 1", r#"it said "unknown flag: --template""#),
    ] {
        let problem = says(script).await.unwrap_err();
        assert!(problem.ends_with(expected), "{problem}");
    }

    let absent = Bed::with("", |settings| settings.binary = "/absent/helm".into());
    let problem = absent.helm.check().await.unwrap_err().to_string();
    assert_eq!(problem, "helm is missing: there is no executable at /absent/helm");
    let plain = Bed::with("", |settings| settings.binary = settings.private_dir.with_file_name("plain"));
    fs::write(plain.dir.path().join("plain"), "").unwrap();
    assert!(plain.helm.check().await.unwrap_err().to_string().starts_with("helm cannot be executed: "));
}
