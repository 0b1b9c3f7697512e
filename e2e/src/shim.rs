//! A wrapper around helm that records its runs, and whether two were at work at once.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use tempfile::TempDir;

/// An executable for the operator to use as its helm. It records the run, and then becomes the real helm.
#[derive(Debug)]
pub struct Shim {
    directory: TempDir,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub pid: u32,
    /// All arguments, joined by spaces.
    pub arguments: String,
}

impl Run {
    /// Returns true if the process exists, running or dead and not yet waited for.
    #[must_use]
    pub fn alive(&self) -> bool {
        Path::new(&format!("/proc/{}", self.pid)).exists()
    }
}

/// Writes a script in one step.
pub fn executable(path: &Path, script: &str, mode: u32) -> io::Result<()> {
    let text = path.with_extension("text");
    fs::write(&text, script)?;
    fs::set_permissions(&text, fs::Permissions::from_mode(mode))?;
    program(&text, path)?;
    fs::remove_file(text)
}

/// Copies a program in one step. Another process writes the file itself: one that is open for writing, be it in a child of
/// this process that was just forked, cannot be executed.
pub fn program(from: &Path, to: &Path) -> io::Result<()> {
    let copy = to.with_extension("copy");
    if !Command::new("cp").arg("--preserve=mode").args([from, &copy]).status()?.success() {
        return Err(io::Error::other(format!("cp to {} failed", copy.display())));
    }
    fs::rename(copy, to)
}

impl Shim {
    pub fn around(helm: &Path) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        fs::create_dir(directory.path().join("at-work"))?;
        // `exec`, so that helm keeps the process id and gets the operator's signals. A process writes its name down before it
        // looks for others, so of two that start at once at least one sees the other.
        let script = format!(
            r#"#!/bin/sh
cd '{directory}' && printf '%s %s\n' $$ "$*" >>runs
case "$1" in upgrade|uninstall|rollback)
    : >"at-work/$$"
    for other in at-work/*; do
        pid=${{other##*/}}
        if [ "$pid" = $$ ]; then continue; fi
        # Of a dead process that was not waited for, the command line is empty.
        if grep -qs helm "/proc/$pid/cmdline"; then
            echo "$1 while helm process $pid is at work" >>overlaps
        else
            rm -f "$other"
        fi
    done
esac
cd "$OLDPWD" && exec '{helm}' "$@"
"#,
            directory = directory.path().display(),
            helm = helm.display()
        );
        executable(&directory.path().join("helm"), &script, 0o755)?;
        Ok(Shim { directory })
    }

    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("helm")
    }

    /// The runs so far, except those that ask for the version.
    #[must_use]
    pub fn runs(&self) -> Vec<Run> {
        let runs = fs::read_to_string(self.directory.path().join("runs")).unwrap_or_default();
        let run = |line: &str| {
            let (pid, arguments) = line.split_once(' ')?;
            Some(Run { pid: pid.parse().ok()?, arguments: arguments.to_owned() })
        };
        runs.lines().filter_map(run).filter(|run| !run.arguments.starts_with("version")).collect()
    }

    /// The runs that began to change a release while another was at work, each as a sentence.
    #[must_use]
    pub fn overlaps(&self) -> Vec<String> {
        let overlaps = fs::read_to_string(self.directory.path().join("overlaps")).unwrap_or_default();
        overlaps.lines().map(str::to_owned).collect()
    }
}
