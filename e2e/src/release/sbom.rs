//! Lists what the programs of the image consist of, in CycloneDX: what cargo has resolved for the operator, and what helm and restic say of
//! themselves, since Go writes it into each program. The list has no time and no path of this machine.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::Programs;
use crate::manifests;
use crate::operator::{self, cargo};

/// Components by their package URLs, and the components that each is made of.
#[derive(Default)]
struct Bill {
    components: BTreeMap<String, Value>,
    made_of: BTreeMap<String, BTreeSet<String>>,
}

/// Returns the document of an image, by its name with its digest.
pub(super) fn document(image: &str, version: &str, programs: &Programs) -> Result<Value> {
    let root = manifests::directory();
    let root = root.parent().context("manifests is in a workspace")?;
    let mut tree = cargo();
    tree.args(["tree", "--locked", "--package", "clientapp-operator", "--edges", "normal,no-proc-macro"]);
    tree.args(["--target", &operator::image_target(), "--prefix", "depth", "--format", "\t{p}\t{l}\t"])
        .current_dir(root);
    let lock = std::fs::read_to_string(root.join("Cargo.lock"))?;
    let mut bill = Bill::default();
    let mut parts = vec![bill.add_crates(&output(tree)?, &checksums(&lock))?];
    for program in [&programs.helm, &programs.restic] {
        parts.push(bill.add_modules(&serde_json::from_str(&output(go_version(program))?)?)?);
    }
    // It is linked into the operator.
    let glibc = operator::glibc()?;
    let component = json!({"type": "library", "name": "glibc", "version": glibc});
    let libc = bill.add(url("generic", "glibc", &glibc), component);
    bill.made_of.entry(parts[0].clone()).or_default().insert(libc);
    Ok(bill.into_document(image, version, parts))
}

fn go_version(program: &Path) -> Command {
    let mut command = Command::new("go");
    command.args(["version", "-m", "-json"]).arg(program);
    command
}

fn output(mut command: Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {}", command.get_program().display()))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?)
}

/// Returns the sha256 of each crate's archive by `name version`. Pure.
fn checksums(lock: &str) -> BTreeMap<String, String> {
    let value = |package: &str, key: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(" = "));
        line.map(|value| value.trim_matches('"').to_owned())
    };
    let packages = lock.split("[[package]]").filter_map(|package| {
        let name = format!("{} {}", value(package, "name")?, value(package, "version")?);
        Some((name, value(package, "checksum")?))
    });
    packages.collect()
}

impl Bill {
    fn add(&mut self, url: String, mut component: Value) -> String {
        component["bom-ref"] = json!(url);
        component["purl"] = json!(url);
        self.components.insert(url.clone(), component);
        url
    }

    /// Adds what `cargo tree` prints, and returns the first crate, whose dependencies the others are.
    fn add_crates(&mut self, tree: &str, checksums: &BTreeMap<String, String>) -> Result<String> {
        let mut above: Vec<String> = Vec::new();
        for line in tree.lines() {
            let mut fields = line.split('\t');
            let mut next = || fields.next().with_context(|| format!("cargo tree prints {line:?}"));
            let (depth, package, license): (usize, _, _) = (next()?.parse()?, next()?, next()?);
            let mut words = package.split(' ');
            let name = words.next().unwrap_or_default();
            let version =
                words.next().and_then(|version| version.strip_prefix('v')).context("a crate has a version")?;
            let kind = if depth == 0 { "application" } else { "library" };
            let mut component = json!({"type": kind, "name": name, "version": version});
            if !license.is_empty() {
                component["licenses"] = json!([{"expression": license.replace('/', " OR ")}]);
            }
            if let Some(sum) = checksums.get(&format!("{name} {version}")) {
                component["hashes"] = json!([{"alg": "SHA-256", "content": sum}]);
            }
            let url = self.add(url("cargo", name, version), component);
            above.truncate(depth);
            if let Some(parent) = above.last() {
                self.made_of.entry(parent.clone()).or_default().insert(url.clone());
            }
            above.push(url);
        }
        above.into_iter().next().context("cargo tree prints nothing")
    }

    /// Adds what `go version -m -json` prints, and returns the program's own module.
    fn add_modules(&mut self, program: &Value) -> Result<String> {
        let word = |value: &Value, key: &str| {
            let word = value[key].as_str().map(str::to_owned);
            word.with_context(|| format!("go version prints no {key} of a module"))
        };
        let main = &program["Main"];
        let (name, version) = (word(main, "Path")?, word(main, "Version")?);
        let component = json!({"type": "application", "name": name, "version": version});
        let main = self.add(url("golang", &name, &version), component);
        let release = word(program, "GoVersion")?;
        let standard = ("std".to_owned(), release.trim_start_matches("go").to_owned());
        let modules = program["Deps"].as_array().into_iter().flatten().map(|module| {
            let module = module.get("Replace").unwrap_or(module);
            Ok((word(module, "Path")?, word(module, "Version")?))
        });
        for (name, version) in [standard].into_iter().map(Ok).chain(modules).collect::<Result<Vec<_>>>()? {
            let component = json!({"type": "library", "name": name, "version": version});
            let module = self.add(url("golang", &name, &version), component);
            self.made_of.entry(main.clone()).or_default().insert(module);
        }
        Ok(main)
    }

    fn into_document(mut self, image: &str, version: &str, parts: Vec<String>) -> Value {
        let component = json!({"type": "container", "name": image, "version": version, "bom-ref": image});
        self.made_of.insert(image.to_owned(), parts.into_iter().collect());
        let dependencies = self.made_of.into_iter().map(|(url, made_of)| json!({"ref": url, "dependsOn": made_of}));
        json!({
            "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
            "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
            "metadata": {"component": component},
            "components": self.components.into_values().collect::<Vec<_>>(),
            "dependencies": dependencies.collect::<Vec<_>>(),
        })
    }
}

/// Returns a package URL. Pure.
fn url(kind: &str, name: &str, version: &str) -> String {
    // Its specification has them so.
    let name = if kind == "golang" { name.to_lowercase() } else { name.to_owned() };
    format!("pkg:{kind}/{name}@{}", version.replace('+', "%2B"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_and_modules_are_listed_with_what_they_are_made_of() {
        let lock = "version = 4\n\n[[package]]\nname = \"b\"\nversion = \"1.0.0+x\"\nchecksum = \"ab\"\n";
        let tree = "0\ta v0.1.0 (/home/a)\tApache-2.0\t\n1\tb v1.0.0+x\tMIT/Apache-2.0\t\n2\tc v1.0.0\t\t\n1\tc v1.0.0\t\t (*)\n";
        let mut bill = Bill::default();
        let operator = bill.add_crates(tree, &checksums(lock)).expect("it is a tree");
        let helm = json!({
            "GoVersion": "go1.26.8", "Main": {"Path": "helm.sh/helm/v4", "Version": "v4.3.1"},
            "Deps": [{"Path": "github.com/A/b", "Version": "v1.0.0+incompatible"},
                     {"Path": "old", "Version": "v1.0.0", "Replace": {"Path": "new", "Version": "v2.0.0"}}],
        });
        let helm = bill.add_modules(&helm).expect("it is a program");
        let document = bill.into_document("image@sha256:0", "0.1.0", vec![operator, helm]);
        let expected = json!([
            {"ref": "image@sha256:0", "dependsOn": ["pkg:cargo/a@0.1.0", "pkg:golang/helm.sh/helm/v4@v4.3.1"]},
            {"ref": "pkg:cargo/a@0.1.0", "dependsOn": ["pkg:cargo/b@1.0.0%2Bx", "pkg:cargo/c@1.0.0"]},
            {"ref": "pkg:cargo/b@1.0.0%2Bx", "dependsOn": ["pkg:cargo/c@1.0.0"]},
            {"ref": "pkg:golang/helm.sh/helm/v4@v4.3.1", "dependsOn": [
                "pkg:golang/github.com/a/b@v1.0.0%2Bincompatible", "pkg:golang/new@v2.0.0", "pkg:golang/std@1.26.8",
            ]},
        ]);
        assert_eq!(document["dependencies"], expected);
        let expected = json!({
            "type": "library", "name": "b", "version": "1.0.0+x", "bom-ref": "pkg:cargo/b@1.0.0%2Bx",
            "purl": "pkg:cargo/b@1.0.0%2Bx", "licenses": [{"expression": "MIT OR Apache-2.0"}],
            "hashes": [{"alg": "SHA-256", "content": "ab"}],
        });
        assert_eq!(document["components"][1], expected);
        assert_eq!(document["components"].as_array().map(Vec::len), Some(7));
    }
}
