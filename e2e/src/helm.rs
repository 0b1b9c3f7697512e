//! The helm program, run as a test needs it: apart from the user's own configuration, and with nothing hidden.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

/// A helm with a home of its own, hence with cold caches and no repositories.
#[derive(Debug)]
pub struct Helm {
    program: PathBuf,
    kubeconfig: Option<PathBuf>,
    home: TempDir,
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Whether the exit code was 0.
    pub success: bool,
    /// All that was printed there.
    pub stdout: String,
    /// All that was printed there.
    pub stderr: String,
}

impl Helm {
    /// A helm that knows no cluster.
    pub fn new(program: &Path) -> Result<Self> {
        Ok(Self { program: program.to_owned(), kubeconfig: None, home: tempfile::tempdir()? })
    }

    /// A helm for the cluster of a kubeconfig file.
    pub fn for_cluster(program: &Path, kubeconfig: &Path) -> Result<Self> {
        Ok(Self { kubeconfig: Some(kubeconfig.to_owned()), ..Self::new(program)? })
    }

    /// Its home, which is also the directory it runs in.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    /// Runs it to its end.
    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<Ran> {
        self.spawn(arguments)?.wait_with_output().map(Ran::from).context("cannot wait for helm")
    }

    /// Starts it. The caller waits for it.
    pub fn spawn<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(arguments).current_dir(self.home());
        command.env_clear().env("HOME", self.home()).env("NO_COLOR", "1");
        if let Some(kubeconfig) = &self.kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().with_context(|| format!("cannot start {}", self.program.display()))
    }
}

impl From<std::process::Output> for Ran {
    fn from(output: std::process::Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self { success: output.status.success(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}
