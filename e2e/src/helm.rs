//! The helm program, isolated from the user's configuration, with all of its output.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use tempfile::TempDir;

/// A helm with its own home, hence with cold caches and no repositories.
#[derive(Debug)]
pub struct Helm {
    program: PathBuf,
    kubeconfig: Option<PathBuf>,
    proxy: Option<String>,
    home: TempDir,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Ran {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
}

impl Helm {
    /// A helm without a cluster.
    pub fn new(program: &Path) -> Result<Self> {
        Ok(Self { program: program.to_owned(), kubeconfig: None, proxy: None, home: tempfile::tempdir()? })
    }

    /// One that reaches servers with TLS through this proxy.
    pub fn behind(program: &Path, proxy: &str) -> Result<Self> {
        Ok(Self { proxy: Some(proxy.to_owned()), ..Self::new(program)? })
    }

    pub fn for_cluster(program: &Path, kubeconfig: &Path) -> Result<Self> {
        Ok(Self { kubeconfig: Some(kubeconfig.to_owned()), ..Self::new(program)? })
    }

    /// The home, which is also the working directory.
    pub fn home(&self) -> &Path {
        self.home.path()
    }

    pub fn run<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<Ran> {
        self.spawn(arguments)?.wait_with_output().map(Ran::from).context("cannot wait for helm")
    }

    /// The caller waits for the child.
    pub fn spawn<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Result<Child> {
        let mut command = Command::new(&self.program);
        command.args(arguments).current_dir(self.home());
        command.env_clear().env("HOME", self.home()).env("NO_COLOR", "1").env("GOGC", "off");
        if let Some(kubeconfig) = &self.kubeconfig {
            command.env("KUBECONFIG", kubeconfig);
        }
        command.envs(self.proxy.iter().map(|proxy| ("HTTPS_PROXY", proxy)));
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
