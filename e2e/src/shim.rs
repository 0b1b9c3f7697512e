//! A wrapper around helm that records its runs.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

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
    /// Whether the process exists, running or dead and not yet waited for.
    #[must_use]
    pub fn alive(&self) -> bool {
        Path::new(&format!("/proc/{}", self.pid)).exists()
    }
}

/// Writes a script, in one step: a file that is open for writing under its final name, perhaps in a child that was just forked, cannot
/// be executed.
pub fn executable(path: &Path, script: &str, mode: u32) -> io::Result<()> {
    let made = path.with_extension("new");
    fs::write(&made, script)?;
    fs::set_permissions(&made, fs::Permissions::from_mode(mode))?;
    fs::rename(made, path)
}

impl Shim {
    pub fn around(helm: &Path) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let (runs, path) = (directory.path().join("runs"), directory.path().join("helm"));
        // `exec`, so that helm keeps the process id and gets the operator's signals.
        let script = format!(
            "#!/bin/sh\nprintf '%s %s\\n' $$ \"$*\" >>'{}'\nexec '{}' \"$@\"\n",
            runs.display(),
            helm.display()
        );
        executable(&path, &script, 0o755)?;
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
}
