//! How programs get into the cache, with a fake compiler.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use e2e::shim::executable;
use tempfile::TempDir;

/// Uses only shell built-ins where it can, since the `PATH` contains nothing but this script.
const GO: &str = r#"#!/bin/sh
case $1 in
version) echo "$FAKE_VERSION"; exit "${FAKE_STATUS:-0}" ;;
list) echo fake/package ;;
mod) case $2 in download) echo "{\"Dir\": \"$FAKE_MODULE\"}" ;; *) PATH=/usr/bin:/bin cp -r "$FAKE_MODULE/vendor" . ;; esac ;;
build)
    echo fake/package >&2
    echo "$PWD $CGO_ENABLED" >>"$FAKE_LOG"
    if [ -n "$FAKE_FAILURE" ]; then
        line=0
        while [ "$line" -lt 100 ]; do line=$((line + 1)); echo "complaint $line." >&2; done
        exit 2
    fi
    while [ $# -gt 0 ]; do
        case $1 in
        -o) output=$2; shift ;;
        -ldflags) shift ;;
        . | */*) case $output in */) : >"$output${1##*/}" ;; *) : >"$output" ;; esac ;;
        esac
        shift
    done
    ;;
esac
"#;

struct Fixture(TempDir);

impl Fixture {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        fs::create_dir(directory.path().join("bin")).unwrap();
        let go = directory.path().join("bin/go");
        executable(&go, GO, 0o755).unwrap();
        // What is read and changed of the Percona operator, and what is read of cert-manager, CloudNativePG and its plugin.
        let module = directory.path().join("module");
        let sources = module.join("vendor/github.com/percona/percona-postgresql-operator/v2");
        for (file, source) in [
            (module.join("deploy/crd.yaml"), "kind: A\ndescription: a\n---\nkind: B\n"),
            (module.join("deploy/crds/d.yaml"), "kind: D\n"),
            (module.join("deploy/crds/c.yaml"), "kind: C\n"),
            (module.join("releases/cnpg-1.30.0.yaml"), "kind: E\n"),
            (module.join("manifest.yaml"), "kind: F\n"),
            (sources.join("cmd/postgres-operator/main.go"), "cfg.Wrap(otelTransportWrapper()); \":8081\""),
            (
                sources.join("percona/controller/pgbackup/controller.go"),
                "time.Second * 10, time.Second * 5, 2*time.Minute",
            ),
            (sources.join("percona/controller/pgrestore/controller.go"), "time.Second * 5"),
            (sources.join("percona/controller/pgcluster/controller.go"), "5 * time.Second"),
        ] {
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, source).unwrap();
        }
        Self(directory)
    }

    /// `e2e tools` in an environment with only the compiler.
    fn tools(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_e2e"));
        command.arg("tools").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.env_clear().env("PATH", self.0.path().join("bin"));
        command.env("CLIENTAPP_E2E_CACHE", self.0.path().join("cache")).env("FAKE_LOG", self.log());
        command.env("FAKE_MODULE", self.0.path().join("module"));
        command
    }

    fn log(&self) -> PathBuf {
        self.0.path().join("log")
    }

    fn builds(&self) -> usize {
        fs::read_to_string(self.log()).unwrap_or_default().lines().count()
    }
}

#[test]
fn each_module_is_built_once_for_all_who_ask() {
    let fixture = Fixture::new();
    let processes: Vec<_> = (0..3).map(|_| fixture.tools().spawn().unwrap()).collect();
    let outputs: Vec<_> = processes.into_iter().map(|process| process.wait_with_output().unwrap()).collect();
    for output in &outputs {
        assert!(output.status.success(), "{output:?}");
        assert_eq!(output.stdout, outputs[0].stdout);
    }
    let paths = text(&outputs[0].stdout);
    assert_eq!(paths.lines().count(), 7);
    for path in paths.lines().map(PathBuf::from) {
        assert!(path.starts_with(fixture.0.path()) && path.is_file(), "{path:?}");
    }
    assert_eq!(fixture.builds(), 4, "etcd, helm, kubernetes and kwok, each once");

    let again = fixture.tools().output().unwrap();
    assert_eq!((again.stdout, text(&again.stderr)), (outputs[0].stdout.clone(), String::new()));
    assert_eq!(fixture.builds(), 4);
}

/// No helm of another version is taken for it.
#[test]
fn what_only_some_tests_start_is_built_for_those_who_ask() {
    let fixture = Fixture::new();
    executable(&fixture.0.path().join("bin/helm"), "#!/bin/sh\necho v4.0.0\n", 0o755).unwrap();
    let output = fixture.tools().arg("--all").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let paths = text(&output.stdout);
    let helms: Vec<_> = paths.lines().filter(|path| path.ends_with("/helm")).collect();
    let of = |index: usize, key: &str| helms[index].contains(&format!("/cache/tools/{key}-"));
    assert!(helms.len() == 2 && of(0, "helm") && of(1, "helm3"), "{paths}");
    assert_eq!(
        fixture.builds(),
        13,
        "and barman-cloud, cert-manager, cloudnativepg, percona, prometheus, registry, restic and versitygw"
    );
    for (part, expected) in [
        ("percona", r#"[{"kind":"A"},{"kind":"B"}]"#),
        ("cert-manager", r#"[{"kind":"C"},{"kind":"D"}]"#),
        ("cloudnativepg", r#"[{"kind":"E"}]"#),
        ("barman-cloud", r#"[{"kind":"F"}]"#),
    ] {
        let path = paths.lines().find(|path| path.contains(&format!("/cache/tools/{part}-"))).unwrap();
        let definitions = fs::read_to_string(PathBuf::from(path).with_file_name("definitions.json")).unwrap();
        assert_eq!(definitions, expected);
    }
}

#[test]
fn a_failed_build_ends_with_the_compilers_last_lines_and_is_not_kept() {
    let fixture = Fixture::new();
    let error = failed(&fixture.tools().env("FAKE_FAILURE", "1").output().unwrap());
    assert!(error.contains("building etcd") && error.contains("complaint 100."), "{error}");
    assert!(error.contains("complaint 81.") && !error.contains("complaint 80."), "{error}");
    assert!(fixture.tools().output().unwrap().status.success());
}

#[test]
fn a_go_that_does_not_work_is_one_sentence_too() {
    let fixture = Fixture::new();
    let mut tools = fixture.tools();
    let error = failed(&tools.env("FAKE_STATUS", "1").output().unwrap());
    assert!(error.contains("or newer is needed"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert_eq!(fixture.builds(), 0);
}

fn failed(output: &Output) -> String {
    assert!(!output.status.success(), "{output:?}");
    assert_eq!(text(&output.stdout), "");
    text(&output.stderr)
}

fn text(output: &[u8]) -> String {
    String::from_utf8_lossy(output).into_owned()
}
