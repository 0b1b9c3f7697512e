//! A helm that keeps a record of its runs.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use tempfile::TempDir;

/// An executable to give to the operator as its helm. It writes down that it was run, and becomes the real one.
#[derive(Debug)]
pub struct Shim {
    directory: TempDir,
}

/// One run of helm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Its process id.
    pub pid: u32,
    /// All its arguments, joined by blanks.
    pub arguments: String,
}

impl Run {
    /// Whether the process is still there, be it dead and not yet waited for.
    #[must_use]
    pub fn alive(&self) -> bool {
        Path::new(&format!("/proc/{}", self.pid)).exists()
    }
}

impl Shim {
    /// Around this helm.
    ///
    /// # Errors
    /// When the script cannot be written.
    pub fn around(helm: &Path) -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let (runs, path) = (directory.path().join("runs"), directory.path().join("helm"));
        // `exec`, so that the process id is helm's own, and it gets the operator's signals.
        let script = format!(
            "#!/bin/sh\nprintf '%s %s\\n' $$ \"$*\" >>'{}'\nexec '{}' \"$@\"\n",
            runs.display(),
            helm.display()
        );
        File::create(&path)?.write_all(script.as_bytes())?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
        Ok(Shim { directory })
    }

    /// The executable.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.directory.path().join("helm")
    }

    /// The runs so far, but those that ask for the version.
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
