//! Builds a part from its pinned Go module into the cache.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead as _, BufReader, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize as _;
use serde_json::Value;

use super::part::{DEFINITIONS, Part, Patch};
use crate::progress::{Progress, Task};

/// The number of compiler output lines in an error.
const LAST_LINES: usize = 20;

/// Builds the part's programs, unless another process has done so by the time this one holds the lock.
pub(super) fn build(part: &Part, cache: &Path, progress: &Progress) -> Result<Vec<PathBuf>> {
    let title = format!("building {} {}", part.name, part.version());
    let finished = cache.join(part.key());
    let paths = || part.programs.iter().map(|program| finished.join(program.name)).collect();

    require_go(part)?;
    fs::create_dir_all(cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let task = progress.task(title.clone());
    let _lock = lock(&cache.join("lock"), &task)?;
    if !finished.is_dir() {
        // Under the lock, so an existing directory is left over from a killed build.
        let staging = cache.join(format!("{}.partial", part.key()));
        let _ = fs::remove_dir_all(&staging);
        fs::create_dir_all(staging.join("bin"))?;
        fs::write(staging.join("go.mod"), part.go_mod)?;
        fs::write(staging.join("go.sum"), part.go_sum)?;
        if let Some(main) = part.sources.main {
            fs::write(staging.join("main.go"), main)?;
        }
        compile(part, &staging, &task).with_context(|| format!("{title} failed"))?;
        // A rename, so that the entry exists completely or not at all.
        fs::rename(staging.join("bin"), &finished)?;
        let _ = fs::remove_dir_all(&staging);
    }
    task.done();
    Ok(paths())
}

/// Fails with one sentence if Go is missing or too old.
fn require_go(part: &Part) -> Result<()> {
    let (name, needed) = (part.name, part.go());
    let what = format!("Go {}.{} or newer is needed to build {name}", needed.0, needed.1);
    let remedy = "install it (https://go.dev/doc/install), or put the programs on the PATH";
    match Command::new("go").arg("version").stdin(Stdio::null()).output() {
        Ok(output) if output.status.success() => Ok(()),
        Err(error) if error.kind() == ErrorKind::NotFound => bail!("{what}: {remedy}"),
        Err(error) => bail!("{what}, but `go version` failed with \"{error}\": {remedy}"),
        Ok(output) => bail!("{what}, but `go version` failed with \"{}\": {remedy}", last_line(&output.stderr)),
    }
}

/// An exclusive lock that ends with the file's handle, and so with the process in any case.
fn lock(path: &Path, task: &Task<'_>) -> Result<File> {
    let file = File::options().create(true).append(true).open(path);
    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            task.message("waiting for a build in another process");
            file.lock()?;
        }
        Err(TryLockError::Error(error)) => return Err(error).context("cannot lock the cache"),
    }
    Ok(file)
}

/// Runs the compiler in `staging`; the programs end up in its `bin`.
fn compile(part: &Part, staging: &Path, task: &Task<'_>) -> Result<()> {
    task.message("fetching modules");
    if let Some(path) = part.sources.definitions {
        definitions(part, staging, path)?;
    }
    if !part.sources.patches.is_empty() {
        patch(part, staging)?;
    }
    let mut stale: HashSet<String> = stale_packages(part, staging)?.into_iter().collect();
    task.steps(stale.len());

    // Go names a program after its package, which may differ from the program's usual name.
    let target = match part.programs {
        [program] => format!("bin/{}", program.name),
        _ => "bin/".to_owned(),
    };
    let mut child = build_or_list(part, staging, "build")
        .args(["-v", "-o", &target])
        .args(part.programs.iter().map(|program| program.package))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;

    let mut last_lines = VecDeque::with_capacity(LAST_LINES);
    for line in BufReader::new(child.stderr.take().expect("it is piped")).lines() {
        let line = line?;
        if stale.remove(&line) {
            task.step();
            task.message(if stale.is_empty() { "linking".to_owned() } else { line });
            continue;
        }
        if last_lines.len() == LAST_LINES {
            last_lines.pop_front();
        }
        last_lines.push_back(line);
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("go build: {status}\n{}", Vec::from(last_lines).join("\n"));
    }
    Ok(())
}

/// Copies all sources into `vendor`, which go build prefers, and changes them there. Go has compared them with `go.sum` before.
fn patch(part: &Part, staging: &Path) -> Result<()> {
    output(go(part, staging, &["mod", "vendor"]))?;
    for Patch { file, from, to } in part.sources.patches {
        let path = staging.join("vendor").join(part.module).join(file);
        let source = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        if !source.contains(from) {
            bail!("{file} does not have {from}");
        }
        fs::write(&path, source.replace(from, to))?;
    }
    Ok(())
}

/// Takes the definitions out of the module, whatever else it has.
fn definitions(part: &Part, staging: &Path, path: &str) -> Result<()> {
    fn without_descriptions(schema: &mut Value) {
        match schema {
            Value::Object(map) => {
                map.retain(|key, value| !(key == "description" && value.is_string()));
                map.values_mut().for_each(without_descriptions);
            }
            Value::Array(list) => list.iter_mut().for_each(without_descriptions),
            _ => {}
        }
    }
    // `go list -m` has no folder for a module that was never downloaded.
    let downloaded: Value =
        serde_json::from_str(&output(go(part, staging, &["mod", "download", "-json", part.module]))?)?;
    let folder = downloaded["Dir"].as_str().context("`go mod download` names no folder")?;
    let path = Path::new(folder).join(path);
    let mut files = if path.is_dir() {
        let files = fs::read_dir(&path)?.map(|file| Ok(file?.path())).collect::<io::Result<Vec<_>>>()?;
        files.into_iter().filter(|file| file.extension().is_some_and(|extension| extension == "yaml")).collect()
    } else {
        vec![path]
    };
    files.sort();
    let mut definitions: Vec<Value> = Vec::new();
    for file in files {
        let cannot_read = || format!("cannot read {}", file.display());
        let text = fs::read_to_string(&file).with_context(cannot_read)?;
        for document in serde_yaml::Deserializer::from_str(&text) {
            definitions.push(Value::deserialize(document).with_context(cannot_read)?);
        }
    }
    definitions.iter_mut().for_each(without_descriptions);
    fs::write(staging.join("bin").join(DEFINITIONS), serde_json::to_vec(&definitions)?)?;
    Ok(())
}

/// The packages missing from Go's build cache: those that `go build -v` will print.
fn stale_packages(part: &Part, staging: &Path) -> Result<Vec<String>> {
    let mut list = build_or_list(part, staging, "list");
    list.args(["-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}"]);
    list.args(part.programs.iter().map(|program| program.package));
    Ok(output(list)?.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect())
}

fn build_or_list(part: &Part, staging: &Path, verb: &str) -> Command {
    go(part, staging, &[verb, "-trimpath", "-buildvcs=false", "-tags", part.sources.tags, "-ldflags", &part.ldflags()])
}

fn go(part: &Part, staging: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("go");
    command.current_dir(staging).env("CGO_ENABLED", if part.sources.cgo { "1" } else { "0" }).env("GOWORK", "off");
    command.args(arguments).stdin(Stdio::null());
    command
}

fn output(mut command: Command) -> Result<String> {
    let Output { status, stdout, stderr } = command.output()?;
    if !status.success() {
        let arguments: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        bail!("go {}: {status}\n{}", arguments.join(" "), last_line(&stderr));
    }
    Ok(String::from_utf8_lossy(&stdout).into_owned())
}

fn last_line(output: &[u8]) -> String {
    String::from_utf8_lossy(output).lines().last().unwrap_or_default().to_owned()
}
