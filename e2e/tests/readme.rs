//! What README.md says is so: its tables and its map are compared with what they are about.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use clientapp_operator::cli::Cli;
use clientapp_operator::clientapp::build::values;
use clientapp_operator::crd;
use serde_json::{Map, Value, json};

#[test]
fn the_two_commands_are_there() {
    let readme = readme();
    let first = readme.find("\n## ").unwrap();
    for command in ["$ cargo demo ", "$ cargo test "] {
        assert!(readme[..first].contains(command), "{command} is not at the top");
    }
}

#[test]
fn the_flags_are_those_of_run() {
    let mut cli = Cli::command();
    // Without this, `--help` would not yet be among the arguments.
    cli.build();
    let run = cli.find_subcommand("run").unwrap();
    let flags = run.get_arguments().filter(|flag| !["help", "version"].contains(&flag.get_id().as_str()));
    let mut expected = BTreeMap::new();
    for flag in flags {
        let name = format!("--{}", flag.get_long().unwrap());
        let default = flag.get_default_values().first().map(|default| default.to_str().unwrap().to_owned());
        let variable = format!("CLIENTAPP_{}", name.trim_start_matches('-').replace('-', "_").to_uppercase());
        let has_variable = flag.get_env().is_some_and(|found| found == variable.as_str());
        assert_eq!(has_variable, !["--kubeconfig", "--context"].contains(&name.as_str()), "{name}");
        expected.insert(name, default);
    }
    let rows: BTreeMap<_, _> = table("| Flag |")
        .into_iter()
        .map(|cells| (code(&cells[0])[0].split(' ').next().unwrap().to_owned(), cells[1].clone()))
        .collect();
    assert_eq!(rows.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    for (flag, default) in expected {
        // A default in words is one that clap does not know.
        if let Some(default) = default {
            assert_eq!(rows[&flag], format!("`{default}`"), "{flag}");
        }
    }
}

#[test]
fn the_spec_is_that_of_the_schema() {
    let definition = serde_json::to_value(&crd::all()[0]).unwrap();
    let spec = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
    let mut expected = BTreeMap::new();
    let mut open = vec![(String::new(), spec)];
    while let Some((path, schema)) = open.pop() {
        match schema["properties"].as_object() {
            Some(properties) => open.extend(properties.iter().map(|(name, schema)| {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                (path, schema)
            })),
            None => {
                let default = match &schema["default"] {
                    Value::Null => "–".to_owned(),
                    Value::String(text) if text.is_empty() => "`\"\"`".to_owned(),
                    Value::String(text) => format!("`{text}`"),
                    other => format!("`{other}`"),
                };
                expected.insert(path, default);
            }
        }
    }
    let rows = table("| `spec.` |").into_iter().map(|cells| (code(&cells[0]).remove(0), cells[1].clone()));
    assert_eq!(rows.collect::<BTreeMap<_, _>>(), expected);
}

#[test]
fn the_refused_keys_are_refused_and_no_others() {
    let readme = readme();
    let (_, list) = readme.split_once("names the field to use instead: ").unwrap();
    let (list, _) = list.split_once(". ").unwrap();
    let named: BTreeSet<_> = code(list).into_iter().filter(|key| key != "postgres.enabled").collect();
    for key in &named {
        let tree = key.rsplit('.').fold(json!("x"), |inner, key| json!({key: inner}));
        let tree: Map<String, Value> = serde_json::from_value(tree).unwrap();
        assert!(values::check_user_values(&tree, true).is_err(), "{key} is not refused");
    }
    let source = fs::read_to_string(workspace().join("src/clientapp/build/values.rs")).unwrap();
    let (_, tables) = source.split_once("const RESERVED").unwrap();
    let (tables, _) = tables.split_once("\n///\n/// # Errors").unwrap();
    let pairs = literals(tables);
    let keys: BTreeSet<_> = pairs.into_iter().filter(|text| !text.starts_with("spec.")).collect();
    assert_eq!(named, keys);
}

#[test]
fn every_reason_is_explained_and_no_other() {
    let mut reasons = BTreeSet::new();
    let stages = [
        "desired",
        "decide",
        "gate",
        "upgrade",
        "error",
        "report",
        "teardown",
        "teardown/data",
        "teardown/release",
        "namespace",
        "act",
        "mod",
    ];
    let files = stages.map(|stage| format!("src/clientapp/{stage}.rs"));
    for file in files.into_iter().chain(["src/controller/error.rs".to_owned()]) {
        let source = fs::read_to_string(workspace().join(file)).unwrap();
        let code = source.split("#[cfg(test)]").next().unwrap();
        reasons.extend(literals(code).into_iter().filter(|text| is_reason(text)));
    }
    // Words of Kubernetes and Helm, and actions of events, that look like reasons.
    for other in [
        "True",
        "Helm",
        "AlreadyExists",
        "ClientApp",
        "ConfigMap",
        "Deployment",
        "Job",
        "PerconaPGBackup",
        "Pod",
        "ServiceAccount",
        "Restarting",
    ] {
        reasons.remove(other);
    }
    let readme = readme();
    let (_, section) = readme.split_once("\n## Why is it not Ready?\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let (_, after) = section.split_once("\n`Ready`, ").unwrap();
    let rows = table("| Reason |").into_iter().flat_map(|cells| code(&cells[0]));
    let explained: BTreeSet<_> = rows.chain(code(&format!("`Ready`, {after}"))).collect();
    assert_eq!(explained, reasons);
}

#[test]
fn the_map_is_of_the_files_that_exist() {
    let readme = readme();
    let (_, map) = readme.split_once("<!-- map").unwrap();
    let (_, map) = map.split_once("```text\n").unwrap();
    let (map, _) = map.split_once("```").unwrap();
    let mut named = BTreeSet::new();
    let mut path: Vec<&str> = Vec::new();
    for line in map.lines() {
        let entry = line.trim_start();
        path.truncate((line.len() - entry.len()) / 2);
        let names = entry.split("  ").next().unwrap();
        for name in names.split(", ") {
            let whole = path.iter().copied().chain([name]).collect::<String>();
            assert!(workspace().join(&whole).exists(), "{whole} does not exist");
            named.insert(whole);
        }
        if names.ends_with('/') {
            path.push(names);
        }
    }
    // Of e2e the parts: what is below them belongs to them.
    let parts = modules(Path::new("e2e/src")).into_iter().filter(|file| file.matches('/').count() == 2);
    let modules = modules(Path::new("src")).into_iter().filter(|file| !file.ends_with("/tests.rs"));
    let missing: Vec<_> = modules.chain(parts).filter(|file| !named.contains(file)).collect();
    assert_eq!(missing, [""; 0], "not in the map");
}

#[test]
fn links_lead_somewhere() {
    let readme = readme();
    for link in readme.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        if let Some(section) = link.strip_prefix('#') {
            assert!(readme.to_lowercase().contains(&format!("# {}\n", section.replace('-', " "))), "{link}");
        } else if !link.contains("://") {
            assert!(workspace().join(link).exists(), "{link} does not exist");
        }
    }
}

/// The rows of the table whose head begins like this, as cells.
fn table(head: &str) -> Vec<Vec<String>> {
    let readme = readme();
    let rows = readme.lines().skip_while(|line| !line.starts_with(head)).take_while(|line| line.starts_with('|'));
    let rows: Vec<Vec<String>> = rows
        .skip(2)
        .map(|row| row.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect())
        .collect();
    assert!(!rows.is_empty(), "there is no table {head}");
    rows
}

/// What is between backquotes.
fn code(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// The string literals of Rust code, comments aside.
fn literals(source: &str) -> Vec<String> {
    let lines = source.lines().filter(|line| !line.trim_start().starts_with("//"));
    lines.flat_map(|line| line.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>()).collect()
}

/// One CamelCase word.
fn is_reason(text: &str) -> bool {
    text.len() > 1
        && text.starts_with(|first: char| first.is_ascii_uppercase())
        && text.ends_with(|last: char| last.is_ascii_lowercase())
        && text.chars().all(|char| char.is_ascii_alphabetic())
}

/// Paths of the modules under a directory, relative to the workspace.
fn modules(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in workspace().join(directory).read_dir().unwrap() {
        let entry = entry.unwrap();
        let path = directory.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            found.extend(modules(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path.to_str().unwrap().to_owned());
        }
    }
    found
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn readme() -> String {
    fs::read_to_string(workspace().join("README.md")).unwrap()
}
