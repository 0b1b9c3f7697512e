//! Output: steps with their time, commands with their output. Plain lines on standard output, terminal or not.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::tools::Tools;

/// One or more lines. A write error is ignored, since the cleanup still has to run.
pub(super) fn say(text: &str) {
    write(&format!("{text}\n"));
}

/// Runs a step, and prints its description and how long it took.
pub(super) async fn step<T>(what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
    let started = Instant::now();
    write(&format!("{what} ... "));
    let result = work.await;
    match &result {
        Ok(_) => say(&seconds(started.elapsed())),
        Err(_) => say("failed"),
    }
    result
}

pub(super) fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

/// A path as one word of a shell command.
pub(super) fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

fn write(text: &str) {
    let mut output = io::stdout().lock();
    let _ = output.write_all(text.as_bytes()).and_then(|()| output.flush());
}

/// kubectl and helm, for one cluster.
pub(super) struct Commands {
    kubectl: PathBuf,
    helm: PathBuf,
    kubeconfig: PathBuf,
    directory: PathBuf,
    /// The programs' caches, which are removed with the demonstration.
    memory: PathBuf,
}

impl Commands {
    /// For the cluster of a kubeconfig; they run in `directory`.
    pub(super) fn new(tools: &Tools, kubeconfig: &Path, directory: &Path, memory: &Path) -> Self {
        Self {
            kubectl: tools.kubectl.clone(),
            helm: tools.helm.clone(),
            kubeconfig: kubeconfig.to_owned(),
            directory: directory.to_owned(),
            memory: memory.to_owned(),
        }
    }

    pub(super) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// A file by its name in the commands.
    pub(super) fn read(&self, file: &str) -> Result<String> {
        let path = self.directory.join(file);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// Prints and runs kubectl.
    pub(super) async fn kubectl(&self, arguments: &[String]) -> Result<()> {
        self.show("kubectl", &self.kubectl, arguments).await
    }

    /// Prints and runs helm.
    pub(super) async fn helm(&self, arguments: &[String]) -> Result<()> {
        self.show("helm", &self.helm, arguments).await
    }

    async fn show(&self, name: &str, program: &Path, arguments: &[String]) -> Result<()> {
        let words: Vec<_> = arguments.iter().map(|argument| word(argument)).collect();
        let line = format!("{name} {}", words.join(" "));
        say(&format!("\n$ {line}"));
        let output = tokio::process::Command::new(program)
            .args(arguments)
            .current_dir(&self.directory)
            .envs(self.environment())
            // Out of reach of the terminal's Ctrl-C, which would look like a failure of the command.
            .process_group(0)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(|| format!("cannot start {}", program.display()))?;
        write(&String::from_utf8_lossy(&output.stdout));
        if !output.status.success() {
            bail!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim_end());
        }
        Ok(())
    }

    fn environment(&self) -> [(&'static str, OsString); 5] {
        let memory = |name: &str| self.memory.join(name).into_os_string();
        [
            ("KUBECONFIG", self.kubeconfig.clone().into_os_string()),
            ("KUBECACHEDIR", memory("kubectl")),
            ("HELM_CACHE_HOME", memory("helm")),
            ("HELM_CONFIG_HOME", memory("helm")),
            ("HELM_DATA_HOME", memory("helm")),
        ]
    }
}

/// An argument as one word of a shell command.
fn word(argument: &str) -> String {
    let plain = |char: char| char.is_ascii_alphanumeric() || "-_./=:".contains(char);
    if argument.chars().all(plain) { argument.to_owned() } else { quoted(Path::new(argument)) }
}
