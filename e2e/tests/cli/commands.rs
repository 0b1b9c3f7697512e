//! Commands on the command line: every output, every refusal. Without a cluster.

use std::io::Write as _;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use e2e::helm::Ran;
use e2e::operator;
use serde_json::Value;

/// The output in a terminal, and the exit code.
struct Answer {
    code: i32,
    ran: Ran,
}

/// Runs the operator in a directory, with no environment except `environment`.
fn type_in(dir: &Path, arguments: &[&str], stdin: &str, environment: &[(&str, &str)]) -> Answer {
    let mut command = Command::new(operator::binary().unwrap());
    command.args(arguments).current_dir(dir).env_clear().envs(environment.iter().copied());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The process may have refused its arguments and exited already.
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let output = child.wait_with_output().unwrap();
    Answer { code: output.status.code().unwrap(), ran: Ran::from(output) }
}

fn answer(arguments: &[&str]) -> Answer {
    type_in(Path::new("/"), arguments, "", &[])
}

#[test]
fn version() {
    let Answer { code, ran } = answer(&["--version"]);
    assert_eq!((code, ran.stdout.as_str()), (0, concat!("clientapp-operator ", env!("CARGO_PKG_VERSION"), "\n")));
}

#[test]
fn the_printed_definitions_are_the_committed_ones() {
    let Answer { code, ran } = answer(&["crds"]);
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crds");
    let mut committed: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
        .filter(|text| text.contains("kind: CustomResourceDefinition"))
        .collect();
    let mut printed: Vec<&str> = ran.stdout.split_terminator("---\n").filter(|text| !text.is_empty()).collect();
    printed.sort_unstable();
    committed.sort_unstable();
    assert_eq!((code, printed.len()), (0, committed.len()));
    assert!(printed.iter().zip(&committed).all(|(printed, committed)| printed == committed), "{}", ran.stdout);
}

const ACME: &str = "\
apiVersion: apps.bnerd-operator.local/v1alpha1
kind: ClientApp
metadata: {name: acme, namespace: tenants}
spec:
  hostname: acme.example.com
  chartVersion: 6.0.0
  ingressClassName: traefik
  replicas: 2
  image: registry.example.com:5000/cloud:30
  persistence: {size: 20Gi, storageClassName: fast}
  values: {nextcloud: {mail: {enabled: true}}}
";

#[test]
fn render_prints_argv_and_values_without_a_cluster() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("acme.yaml"), ACME).unwrap();
    let Answer { code, ran } = type_in(dir.path(), &["render", "-f", "acme.yaml"], "", &[]);
    assert_eq!((code, ran.stderr.as_str()), (0, ""));
    let (argv, values) = ran.stdout.strip_prefix("---\n# ").unwrap().split_once('\n').unwrap();

    let mut words = argv.split(' ');
    // Only the operator knows the salt.
    assert!(argv.contains("/digest=with-salt,"), "{argv}");
    let expected = "helm upgrade --install acme /chart-cache/nextcloud-6.0.0.tgz --namespace tenants --values - --history-max 3 \
                    --timeout 300s";
    for word in expected.split(' ') {
        assert!(words.any(|said| said == word), "{word} is not in its place in {argv}");
    }
    assert!(!argv.contains("--set") && !argv.contains("--wait") && !argv.contains("--atomic"), "{argv}");

    // Texts are quoted, so that helm, which reads YAML 1.1, does not take them for other types.
    let values: Value = serde_json::from_str(values).unwrap();
    for (path, expected) in [
        ("/nextcloud/host", "acme.example.com"),
        ("/persistence/size", "20Gi"),
        ("/image/repository", "registry.example.com:5000/cloud"),
        ("/image/tag", "30"),
    ] {
        assert_eq!(values.pointer(path).and_then(Value::as_str), Some(expected), "{path} in {values}");
    }
    assert_eq!(values["replicaCount"], 2);
    assert_eq!(values["internalDatabase"]["enabled"], false);
    assert_eq!(values["nextcloud"]["mail"]["enabled"], true);

    // The output is the same from standard input, and when repeated.
    let again = type_in(dir.path(), &["render", "-f", "-"], ACME, &[]);
    assert_eq!(again.ran.stdout, ran.stdout);
}

#[test]
fn render_takes_many_documents_and_a_namespace() {
    let two = format!("---\n{ACME}---\n---\n{}", ACME.replace("acme", "beta").replace(", namespace: tenants", ""));
    let Answer { code, ran } = type_in(Path::new("/"), &["render", "-f", "-", "-n", "elsewhere"], &two, &[]);
    assert_eq!(code, 0, "{}", ran.stderr);
    let argv: Vec<_> = ran.stdout.lines().filter(|line| line.starts_with("# helm")).collect();
    assert_eq!(argv.len(), 2);
    assert!(argv[0].contains(" acme ") && argv[0].contains("--namespace tenants"), "{}", argv[0]);
    assert!(argv[1].contains(" beta ") && argv[1].contains("--namespace elsewhere"), "{}", argv[1]);
}

#[test]
fn render_shows_no_value_of_a_secret() {
    let from =
        "valuesFrom: [{kind: ConfigMap, name: a}, {kind: Secret, name: b, valuesKey: k, targetPath: smtp.password}]";
    let app = format!("{ACME}  {from}\n");
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: tenants}\ndata: {values.yaml: 'smtp: {host: mail}'}\n";
    let secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: b, namespace: tenants}\nstringData: {k: canary}\n";
    let render = |text: &str| type_in(Path::new("/"), &["render", "-f", "-"], text, &[]);
    let Answer { code, ran } = render(&format!("{app}---\n{map}---\n{secret}"));
    assert_eq!(code, 0, "{}", ran.stderr);
    let (argv, values) = ran.stdout.strip_prefix("---\n# ").unwrap().split_once('\n').unwrap();
    let values: Value = serde_json::from_str(values).unwrap();
    assert_eq!(values["smtp"], serde_json::json!({"host": "mail", "password": "***"}));
    assert!(argv.contains("digest=with-salt,"), "{argv}");
    let Answer { code, ran } = render(&format!("{app}---\n{map}"));
    assert_refused("without the Secret", code, &ran);
    assert!(ran.stderr.contains("spec.valuesFrom: put the Secret b into the same file"), "{}", ran.stderr);
}

#[test]
fn render_refuses_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let spec = |spec: &str| ACME.split_once("spec:\n").unwrap().0.to_owned() + "spec:\n  " + spec + "\n";
    for (text, parts) in [
        (spec("hostname: Acme"), &["ClientApp tenants/acme", "spec.hostname: must be a DNS name in lower case"][..]),
        // Read like kubectl and helm, or refused.
        (spec("{hostname: a.example, values: {a: no}}"), &["line 5: no is false to kubectl and helm"]),
        (spec("hostname: 7"), &["not a ClientApp", "spec.hostname", "expected a string"]),
        (spec("{}"), &["not a ClientApp", "missing field `hostname`"]),
        (spec("{hostname: a.example, ingressClas: traefik}"), &["spec.ingressClas", "unknown field"]),
        (spec("{hostname: a.example, postgres: {sise: 1Gi}}"), &["spec.postgres.sise", "unknown field"]),
        (ACME.replace("name: acme, ", ""), &["metadata.name: must be a DNS label"]),
        (ACME.replace("name: acme,", "name: 7acme,"), &["metadata.name: must be a DNS label"]),
        (
            ACME.replace("kind: ClientApp", "kind: Deployment"),
            &["a ClientApp of apps.bnerd-operator.local/v1alpha1 is expected, but kind is \"Deployment\""],
        ),
        (ACME.replace("kind: ClientApp\n", ""), &["a ClientApp of", "kind is null"]),
        (ACME.replace("v1alpha1", "v2"), &["apiVersion", "apps.bnerd-operator.local/v1alpha1"]),
        ("- a\n- b\n".to_owned(), &["a ClientApp of"]),
        ("just words".to_owned(), &["a ClientApp of"]),
        ("a: [b\n".to_owned(), &["not YAML", "line"]),
        ("a: b: c".to_owned(), &["not YAML", "line 1"]),
        (String::new(), &["there is no ClientApp in it"]),
        ("---\n# nothing\n".to_owned(), &["there is no ClientApp in it"]),
    ] {
        let file = dir.path().join("app.yaml");
        std::fs::write(file, &text).unwrap();
        let Answer { code, ran } = type_in(dir.path(), &["render", "-f", "app.yaml"], "", &[]);
        assert_refused(&text, code, &ran);
        for part in parts.iter().chain(&["app.yaml"]) {
            assert!(ran.stderr.contains(part), "{text}: {part} is not in {}", ran.stderr);
        }
    }
    for (file, part) in [("missing.yaml", "No such file"), (".", "Is a directory")] {
        let Answer { code, ran } = type_in(dir.path(), &["render", "-f", file], "", &[]);
        assert_refused(file, code, &ran);
        assert!(ran.stderr.contains(file) && ran.stderr.contains(part), "{}", ran.stderr);
    }
}

/// Exit code 1, no result for a script on standard output, and one line for the user.
fn assert_refused(what: &str, code: i32, ran: &Ran) {
    assert_eq!((code, ran.stdout.as_str()), (1, ""), "{what}: {}", ran.stderr);
    let sentence = ran.stderr.trim_end();
    assert!(!sentence.is_empty() && !sentence.contains('\n'), "{what}: {sentence}");
}

#[test]
fn base_values_that_cannot_be_used_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("acme.yaml"), ACME).unwrap();
    std::fs::write(dir.path().join("list.yaml"), "- a\n").unwrap();
    std::fs::write(dir.path().join("broken.yaml"), "a: [\n").unwrap();
    std::fs::write(dir.path().join("words.yaml"), "a: 1\nb: On\n").unwrap();
    std::fs::write(dir.path().join("large.yaml"), "a: 9007199254740993\n").unwrap();
    for (file, part) in [
        ("missing.yaml", "No such file"),
        ("list.yaml", "they are not a map"),
        ("broken.yaml", "line"),
        ("words.yaml", "line 2: On is true to kubectl and helm"),
        ("large.yaml", "a: the number would reach the chart changed"),
    ] {
        let arguments = ["render", "-f", "acme.yaml", "--base-values", file];
        let Answer { code, ran } = type_in(dir.path(), &arguments, "", &[]);
        assert_refused(file, code, &ran);
        assert!(ran.stderr.contains(file) && ran.stderr.contains(part), "{}", ran.stderr);
    }
}

#[test]
fn flags_that_cannot_be_right_are_refused_by_name() {
    for (arguments, parts) in [
        (
            &["--chart-repository", "ftp://charts.example.com"][..],
            &["--chart-repository", "https:// or oci:// URL"][..],
        ),
        (
            &["--chart-repository", "https://me:secret@charts.example.com"],
            &["--chart-repository", "must not hold credentials"],
        ),
        (&["--chart", "Next Cloud"], &["--chart"]),
        (&["--max-concurrent", "0"], &["--max-concurrent", "1..=64"]),
        (&["--history-max", "1"], &["--history-max", "2..=100"]),
        (&["--hook-timeout", "0"], &["--hook-timeout", "1..=86400"]),
        (&["--health-listen", "here"], &["--health-listen", "invalid socket address"]),
        (&["--max-concurent", "2"], &["--max-concurent", "--max-concurrent"]),
    ] {
        let arguments: Vec<_> = ["run"].iter().chain(arguments).copied().collect();
        let Answer { code, ran } = answer(&arguments);
        assert_eq!((code, ran.stdout.as_str()), (2, ""), "{arguments:?}: {}", ran.stderr);
        for part in parts {
            assert!(ran.stderr.contains(part), "{arguments:?}: {part} is not in {}", ran.stderr);
        }
        assert!(!ran.stderr.contains("me:secret"), "{}", ran.stderr);
    }
    // The environment is validated as strictly.
    let Answer { code, ran } = type_in(Path::new("/"), &["run"], "", &[("CLIENTAPP_MAX_CONCURRENT", "0")]);
    assert!(code == 2 && ran.stderr.contains("--max-concurrent"), "{}", ran.stderr);
}

const KUBECONFIG: &str = "\
apiVersion: v1
kind: Config
clusters: [{name: nowhere, cluster: {server: 'https://127.0.0.1:1'}}]
users: [{name: nobody, user: {}}]
contexts: [{name: nowhere, context: {cluster: nowhere, user: nobody}}]
current-context: nowhere
";

#[test]
fn run_ends_at_once_where_it_cannot_work() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("config"), KUBECONFIG).unwrap();
    std::fs::write(dir.path().join("broken"), "clusters: [\n").unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let free = "127.0.0.1:0";
    for (arguments, parts) in [
        (&["--kubeconfig", "missing", "--health-listen", free][..], &["--kubeconfig missing"][..]),
        (&["--kubeconfig", "broken", "--health-listen", free], &["--kubeconfig broken"]),
        (&["--kubeconfig", "config", "--context", "other", "--health-listen", free], &["--context", "other"]),
        (&["--health-listen", free], &["no cluster", "--kubeconfig"]),
        (
            &["--kubeconfig", "config", "--chart-repository-credentials", "."],
            &["--chart-repository-credentials", "has none of username and password"],
        ),
        (
            &["--kubeconfig", "config", "--chart-repository", ".", "--chart-repository-credentials", "."],
            &["charts in a directory need no credentials"],
        ),
        (&["--kubeconfig", "config", "--chart-keyring", "missing"], &["--chart-keyring", "missing: entity not found"]),
        (&["--kubeconfig", "config", "--health-listen", &taken], &["--health-listen", &taken, "in use"]),
    ] {
        let arguments: Vec<_> = ["run"].iter().chain(arguments).copied().collect();
        let Answer { code, ran } = type_in(dir.path(), &arguments, "", &[]);
        assert_eq!((code, ran.stdout.as_str()), (1, ""), "{arguments:?}: {}", ran.stderr);
        // Logs are JSON unless they go to a terminal, and the last entry says why the operator ended.
        let logs: Vec<Value> = ran.stderr.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let last = logs.last().unwrap_or_else(|| panic!("{arguments:?}: {}", ran.stderr));
        assert_eq!(last["level"], "ERROR", "{last}");
        for part in parts {
            let message = last["message"].as_str().unwrap();
            assert!(message.contains(part), "{arguments:?}: {part} is not in {message}");
        }
    }
}
