//! README.md and the other pages are right: commands run as printed, links have targets, tables and the map agree with
//! the code. And `kubectl explain` and `--help` contain what the pages leave to them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::CommandFactory as _;
use clientapp_crd::{self as crd, DeletionPolicy};
use clientapp_operator::cli::Cli;
use clientapp_operator::clientapp::{AppResource, DeletionOptions, DeletionOutcome};
use e2e::helm::Ran;
use e2e::lab::Lab;
use e2e::operator::{self, Operator};
use e2e::release;
use serde_json::{Value, json};

/// The pages of the documentation.
const PAGES: [&str; 16] = [
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "crds/README.md",
    "crds/backups.md",
    "crds/clientapp.md",
    "crds/cloudnativepg.md",
    "crds/data.md",
    "crds/percona.md",
    "crds/postgresql.md",
    "crds/postgreswriter.md",
    "crds/profile.md",
    "crds/stores.md",
    "e2e/README.md",
    "manifests/README.md",
    "manifests/runbooks.md",
];

// Commands.

/// Commands that the scenario skips, and why.
const NOT_RUN: [(&str, &str); 5] = [
    ("cargo demo", "e2e/tests/demo.rs runs it"),
    ("cargo test", "it would run this"),
    ("cargo e2e release", "it would build for minutes; e2e/tests/harness/release.rs makes one"),
    ("skopeo copy", "there is no registry; its name is compared with the manifest's"),
    ("kubectl clientapp restore", "there are no dumps without a node; e2e/tests/cli/plugin.rs restores one"),
];

/// Required parts of a command's output.
const OUTPUT: [(&str, &[&str]); 9] = [
    ("kubectl rollout status", &["successfully rolled out"]),
    ("kubectl wait --for=condition=Ready", &["condition met"]),
    ("helm list", &["acme", "deployed", "nextcloud-5.5.2"]),
    ("render -f", &["# helm upgrade --install full", "full.example.com"]),
    ("helm history", &["nextcloud-5.5.2", "nextcloud-5.5.3"]),
    ("kubectl clientapp status", &["beta", "Ready"]),
    ("kubectl clientapp backup beta", &["ClientApp beta is backed up"]),
    ("curl -X POST", &["\"hostname\":\"my.example.com\"", "\"adminPassword\":"]),
    ("reasons", &["HostnameConflict  (ClientApp"]),
];

#[tokio::test]
async fn the_commands_of_the_readme_run_as_printed() {
    let lab = Lab::shared().await;
    tokio::task::spawn_blocking(|| run_all(lab)).await.unwrap();
}

fn run_all(lab: &Lab) {
    let readme = page("README.md");
    let binary = operator::binary().unwrap();
    let api = lab.operator().as_mut().map(Operator::api_url).unwrap().unwrap();

    // A checkout, as far as the commands use it, and the user's home.
    let checkout = tempfile::tempdir().unwrap();
    let at = |path: &str| checkout.path().join(path);
    for directory in ["dist", "home/.local/bin"] {
        fs::create_dir_all(at(directory)).unwrap();
    }
    symlink(workspace().join("manifests"), at("manifests")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    symlink(binary, at(&format!("dist/kubectl-clientapp-{version}-linux-amd64"))).unwrap();
    let manifest = release::manifest(&lab.tools, "registry.example.com/platform/clientapp-operator:0.1.0").unwrap();
    fs::write(at("dist").join(release::MANIFEST), manifest).unwrap();
    for block in blocks(&readme, "yaml") {
        let name = block.lines().next().and_then(|line| line.strip_prefix("# ")).expect("a file begins with its name");
        fs::create_dir_all(at(name).parent().unwrap()).unwrap();
        fs::write(at(name), &block).unwrap();
    }
    let directories = [&lab.tools.kubectl, &lab.tools.helm].map(|tool| tool.parent().unwrap().to_owned());
    let system = std::env::var_os("PATH").unwrap();
    let path = [at("home/.local/bin")].into_iter().chain(directories).chain(std::env::split_paths(&system));
    let path = std::env::join_paths(path).unwrap();

    let mut outputs = OUTPUT.map(|(command, _)| (command, false));
    for printed in commands(&readme) {
        if NOT_RUN.iter().any(|(command, _)| printed.starts_with(command)) {
            continue;
        }
        let line = printed.replace("cargo run -q --", binary.to_str().unwrap()).replace("http://localhost:8090", &api);
        let mut bash = Command::new("bash");
        bash.args(["-euo", "pipefail", "-c", &line]).current_dir(checkout.path()).stdin(Stdio::null());
        bash.env_clear().env("PATH", &path).env("HOME", at("home")).env("KUBECONFIG", lab.plane.kubeconfig());
        let ran = Ran::from(bash.output().unwrap());
        assert!(ran.success, "{printed}\n{}{}\n{}", ran.stdout, ran.stderr, lab.operator_log());
        for ((command, expected), (_, seen)) in OUTPUT.iter().zip(&mut outputs) {
            if printed.contains(command) {
                *seen = true;
                for words in *expected {
                    assert!(ran.stdout.contains(words), "{printed}: {words} is not in\n{}", ran.stdout);
                }
            }
        }
    }
    assert_eq!(outputs.iter().find(|(_, seen)| !seen), None, "no longer in the README");
}

#[test]
fn the_image_is_pushed_to_where_the_manifest_names_it() {
    let commands = commands(&page("README.md"));
    let last = |start: &str| {
        let line = commands.iter().find(|line| line.starts_with(start)).unwrap();
        line.split(' ').next_back().unwrap().to_owned()
    };
    let repository = last("cargo e2e release dist --repository");
    let archive = format!("oci-archive:dist/clientapp-operator-{}-linux-amd64.oci.tar", env!("CARGO_PKG_VERSION"));
    let pushed = last(&format!("skopeo copy --preserve-digests {archive} docker://"));
    assert_eq!(pushed, format!("docker://{repository}:{}", env!("CARGO_PKG_VERSION")));
    assert_eq!(last("kubectl apply --server-side -f"), format!("dist/{}", release::MANIFEST));
}

#[test]
fn the_two_commands_are_at_the_top_of_a_guide_that_is_short() {
    let readme = page("README.md");
    let first = readme.find("\n## ").unwrap();
    for command in ["$ cargo demo ", "$ cargo test "] {
        assert!(readme[..first].contains(command), "{command} is not at the top");
    }
    assert!(readme.lines().count() <= 200);
    for name in PAGES.into_iter().filter(|name| name.starts_with("crds/")) {
        assert!(page(name).lines().count() <= 250, "{name} is too long");
    }
}

// References outside the documentation.

#[test]
fn every_setting_has_a_help_text_and_a_variable() {
    let mut cli = Cli::command();
    // Without this, the arguments do not include `--help`.
    cli.build();
    for command in cli.get_subcommands() {
        assert!(command.get_about().is_some(), "{}", command.get_name());
        for argument in command.get_arguments() {
            assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
        }
    }
    let run = cli.find_subcommand("run").unwrap();
    for flag in run.get_arguments().filter(|flag| !["help", "version"].contains(&flag.get_id().as_str())) {
        let name = flag.get_long().unwrap();
        let variable = format!("CLIENTAPP_{}", name.replace('-', "_").to_uppercase());
        let has_variable = flag.get_env().is_some_and(|found| found == variable.as_str());
        assert_eq!(has_variable, !["kubeconfig", "context"].contains(&name), "--{name}");
    }
}

#[test]
fn every_field_is_explained() {
    for definition in crd::all() {
        let kind = &definition.spec.names.kind;
        let definition = serde_json::to_value(&definition).unwrap();
        let schema = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        let mut open = vec![(kind.clone(), schema)];
        let mut count = 0;
        while let Some((path, schema)) = open.pop() {
            count += 1;
            assert!(schema["description"].is_string() || path.ends_with(['*', ']']), "{path} has no description");
            let fields = schema["properties"].as_object().into_iter().flatten();
            open.extend(fields.map(|(name, schema)| (format!("{path}.{name}"), schema)));
            for (key, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
                open.extend(schema.get(key).map(|schema| (format!("{path}{suffix}"), schema)));
            }
        }
        assert!(count > 10, "only {count} fields of {kind} were found");
    }
}

#[test]
fn the_explanation_of_values_names_what_the_operator_computes() {
    let definition = serde_json::to_value(&crd::all()[0]).unwrap();
    let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
    let text = spec["values"]["description"].as_str().unwrap().replace('\n', " ");
    let (_, list) = text.split_once("the field to use instead:").unwrap();
    let (list, _) = list.split_once(". ").unwrap();
    // Fields of the spec on which it depends.
    let fields = ["image", "postgres.enabled", "tls"];
    let named: BTreeSet<_> = code(list).into_iter().filter(|key| !fields.contains(&key.as_str())).collect();
    let full = json!({
        "hostname": "a.example", "adminSecret": "given", "ingressClassName": "traefik", "image": "cloud:1", "replicas": 2,
        "persistence": {"size": "9Gi", "storageClassName": "fast"},
    });
    for key in &named {
        let mut spec = full.clone();
        spec["tls"] = json!({"secretName": "wildcard"});
        spec["values"] = key.rsplit('.').fold(json!("x"), |inner, key| json!({key: inner}));
        let refusal = rendered(&spec).unwrap_err();
        assert!(refusal.contains(&format!("spec.values: {key} is computed")), "{key}: {refusal}");
    }
    for provider in [json!({}), json!({"provider": "external", "external": {"secretName": "theirs"}})] {
        let mut spec = full.clone();
        spec["postgres"] = provider;
        let mut open = vec![(String::new(), rendered(&spec).unwrap())];
        while let Some((path, value)) = open.pop() {
            let covered = named.iter().any(|key| path == *key || path.starts_with(&format!("{key}.")));
            match value {
                Value::Object(fields) if !covered => {
                    open.extend(fields.into_iter().map(|(key, value)| match path.as_str() {
                        "" => (key, value),
                        path => (format!("{path}.{key}"), value),
                    }));
                }
                _ => assert!(covered, "{path} is computed, but not named"),
            }
        }
    }
}

/// The computed values for a spec, without base values, or the refusal.
fn rendered(spec: &Value) -> Result<Value, String> {
    let directory = tempfile::tempdir().unwrap();
    let app = json!({
        "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp", "metadata": {"name": "a"}, "spec": spec,
    });
    fs::write(directory.path().join("app.yaml"), app.to_string()).unwrap();
    fs::write(directory.path().join("base.yaml"), "{}").unwrap();
    let mut command = Command::new(operator::binary().unwrap());
    command.args(["render", "-f", "app.yaml", "--base-values", "base.yaml"]).current_dir(&directory).env_clear();
    let ran = Ran::from(command.output().unwrap());
    match ran.success {
        true => {
            Ok(serde_json::from_str(ran.stdout.strip_prefix("---\n# ").unwrap().split_once('\n').unwrap().1).unwrap())
        }
        false => Err(ran.stderr),
    }
}

#[test]
fn the_short_names_are_not_perconas() {
    let mut taken = BTreeMap::new();
    for definition in e2e::percona::definitions().unwrap() {
        let names = definition.spec.names;
        taken.extend(names.short_names.into_iter().flatten().map(|name| (name, names.kind.clone())));
    }
    assert!(taken.contains_key("pg-backup"), "{taken:?}");
    for definition in crd::all() {
        for name in definition.spec.names.short_names.into_iter().flatten() {
            assert_eq!(taken.get(&name), None, "{name}");
        }
    }
}

// Contents of the documentation itself.

#[test]
fn every_reason_that_is_named_exists() {
    let mut command = Command::new(operator::binary().unwrap());
    let reference = Ran::from(command.arg("reasons").output().unwrap()).stdout;
    let reasons = reference.lines().filter(|line| !line.starts_with(' ')).filter_map(|line| line.split("  ").next());
    let kinds = crd::all().into_iter().map(|definition| definition.spec.names.kind);
    let conditions =
        ["PostgresReady", "WorkloadsReady", "BackedUp", "FilesBackedUp", "CertificateReady"].map(str::to_owned);
    let known: BTreeSet<_> = reasons.map(str::to_owned).chain(kinds).chain(conditions).collect();
    let is_camel_case = |word: &String| {
        let capitals = word.chars().filter(char::is_ascii_uppercase).count();
        capitals > 1
            && word.starts_with(|c: char| c.is_ascii_uppercase())
            && word.chars().all(|c| c.is_ascii_alphabetic())
            && word.chars().any(|c| c.is_ascii_lowercase())
    };
    for name in PAGES.into_iter().filter(|name| *name != "CONTRIBUTING.md") {
        for word in code(&prose(&page(name))).into_iter().filter(is_camel_case) {
            assert!(known.contains(&word), "{name}: {word} is not a reason, kind or condition");
        }
    }
}

#[test]
fn what_becomes_of_each_piece_is_as_the_code_decides() {
    let delete = DeletionOptions { policy: DeletionPolicy::Delete, orphans: false };
    let deletions = [
        delete,
        DeletionOptions { policy: DeletionPolicy::Retain, orphans: false },
        DeletionOptions { orphans: true, ..delete },
    ];
    let pieces = [
        ("The release", AppResource::Release),
        ("The volumes of app", AppResource::Volumes),
        ("The database that was made", AppResource::Database),
        ("An external database", AppResource::ExternalDatabase),
        ("The generated administrator's Secret", AppResource::AdminSecret),
        ("A Secret that `spec.adminSecret` names", AppResource::GivenSecret),
        ("The generated Redis Secret", AppResource::RedisSecret),
        ("A namespace that the HTTP API created", AppResource::Namespace),
    ];
    let page = page("crds/data.md");
    let (_, table) = page.split_once("<!-- pieces").unwrap();
    let rows: Vec<_> = table.lines().skip(3).take_while(|line| line.starts_with('|')).collect();
    assert_eq!(rows.len(), pieces.len());
    for (row, (what, piece)) in rows.into_iter().zip(pieces) {
        let cells: Vec<_> = row.trim_matches(['|', ' ']).split(" | ").collect();
        assert!(cells[0].starts_with(what), "{row}");
        for (cell, deletion) in cells[1..].iter().zip(deletions) {
            let word = if piece.outcome(deletion) == DeletionOutcome::Deleted { "deleted" } else { "kept" };
            assert!(cell.starts_with(word), "{row}: {word}");
        }
        assert_eq!(cells.len(), 1 + deletions.len(), "{row}");
    }
}

#[test]
fn the_map_is_of_the_folders_that_exist() {
    let contributing = page("CONTRIBUTING.md");
    let (_, map) = contributing.split_once("<!-- map").unwrap();
    let (_, map) = map.split_once("```text\n").unwrap();
    let (map, _) = map.split_once("```").unwrap();
    let mut named = BTreeSet::new();
    for name in map.lines().flat_map(|line| line.split("  ").next().unwrap().split(", ")) {
        assert!(workspace().join(name).exists(), "{name} does not exist");
        named.insert(name.trim_end_matches('/').to_owned());
    }
    let entries = workspace().join("src").read_dir().unwrap().map(|entry| entry.unwrap().file_name());
    let missing: Vec<_> =
        entries.map(|name| format!("src/{}", name.display())).filter(|name| !named.contains(name)).collect();
    assert_eq!(missing, [""; 0], "not in the map");
}

/// A test is named as `area::function`.
#[test]
fn every_test_that_is_named_exists() {
    let page = page("e2e/README.md");
    let named = code(&prose(&page));
    let named: Vec<_> = named.iter().filter_map(|word| word.split_once("::")).collect();
    let named: Vec<_> = named.into_iter().filter(|(_, function)| function.contains('_')).collect();
    assert!(named.len() > 40, "{named:?}");
    let tests = workspace().join("e2e/tests");
    for (area, function) in named {
        let mut files = sources(&tests.join(area));
        files.extend(fs::read_to_string(tests.join(format!("{area}.rs"))));
        assert!(files.iter().any(|file| file.contains(&format!("fn {function}("))), "{area}::{function}");
    }
}

/// The content of all files within a directory, if it exists.
fn sources(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        found.extend(sources(&entry.path()));
        found.extend(fs::read_to_string(entry.path()));
    }
    found
}

#[test]
fn links_lead_somewhere() {
    for name in PAGES {
        let text = page(name);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") {
                continue;
            }
            let (file, section) = link.split_once('#').unwrap_or((link, ""));
            let target = match file {
                "" => workspace().join(name),
                file => workspace().join(name).with_file_name("").join(file),
            };
            assert!(target.exists(), "{name}: {link} does not exist");
            if !section.is_empty() {
                let text = fs::read_to_string(&target).unwrap().to_lowercase();
                let mut headings = text.lines().filter_map(|line| line.strip_prefix('#'));
                // GitHub's anchors.
                let kept = |c: &char| c.is_alphanumeric() || " -_".contains(*c);
                let anchor = |heading: &str| {
                    heading.trim_start_matches('#').trim().chars().filter(kept).collect::<String>().replace(' ', "-")
                };
                assert!(headings.any(|heading| anchor(heading) == section), "{name}: {link} has no such section");
            }
        }
    }
}

/// The commands in the console blocks, comments included, as for bash.
fn commands(text: &str) -> Vec<String> {
    let blocks = blocks(text, "console");
    let lines = blocks.iter().flat_map(|block| block.lines());
    lines.filter_map(|line| line.strip_prefix("$ ")).map(str::to_owned).collect()
}

/// The fenced blocks of a language.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("\n```{language}\n");
    text.split(&fence).skip(1).map(|rest| format!("{}\n", rest.split("\n```").next().unwrap())).collect()
}

/// The text without its fenced blocks, whose fences are backquotes, too.
fn prose(text: &str) -> String {
    text.split("\n```").step_by(2).collect()
}

/// The parts in backquotes.
fn code(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn page(name: &str) -> String {
    fs::read_to_string(workspace().join(name)).unwrap()
}
