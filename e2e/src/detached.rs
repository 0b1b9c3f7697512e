//! A control plane that outlives a command: `up` starts it, `down` stops it; one per user.
//!
//! A separate process holds it, see [`hold`], together with a lock on a file in the cache: the lock shows whether the
//! plane exists, the content how to reach it. A lock does not outlive its process, so a crash leaves no false trace.

use std::env;
use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};
use tokio::signal::unix::{SignalKind, signal};

use crate::cache;
use crate::plane::ControlPlane;
use crate::progress::Progress;
use crate::tools::Tools;
use crate::wait::{TIMEOUT, blocking_within};

/// A plane in the background, and how to reach it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Detached {
    /// The process that holds it; ending this process ends the plane.
    pub process: i32,
    pub directory: PathBuf,
    /// The administrator's kubeconfig file.
    pub kubeconfig: PathBuf,
    /// The directories of kubectl and helm.
    pub path: Vec<PathBuf>,
}

impl Detached {
    /// Lines for a POSIX shell to evaluate.
    pub fn exports(&self) -> String {
        let path: Vec<_> = self.path.iter().map(|directory| quoted(directory)).collect();
        format!("export KUBECONFIG={}\nexport PATH={}:\"$PATH\"", quoted(&self.kubeconfig), path.join(":"))
    }
}

/// Starts a plane in the background unless one exists, and returns how to reach it.
pub fn up(nodes: usize, progress: &Progress) -> Result<Detached> {
    if let Some(running) = running()? {
        progress.note("the control plane is running already");
        return Ok(running);
    }
    Tools::ensure(progress)?;

    let task = progress.task("starting the control plane");
    let log = run_directory()?.join("plane.log");
    let mut holder = Command::new(env::current_exe()?)
        .args(["hold", "--nodes", &nodes.to_string()])
        // Out of reach of this terminal's Ctrl-C.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(File::create(&log)?)
        .spawn()?;
    let mut line = String::new();
    BufReader::new(holder.stdout.take().expect("it is piped")).read_line(&mut line)?;
    if line.is_empty() {
        holder.wait()?;
        bail!("{}", fs::read_to_string(&log)?.trim_end().trim_start_matches("error: "));
    }
    task.done();
    serde_json::from_str(&line).context("the holder printed something unexpected")
}

/// Stops the plane in the background and waits until nothing of it is left. Returns whether there was one.
pub fn down() -> Result<bool> {
    let Some(running) = running()? else { return Ok(false) };
    kill(Pid::from_raw(running.process), Signal::SIGTERM).context("cannot stop the control plane")?;
    lock_file()?.lock()?;
    Ok(true)
}

/// Holds a plane until SIGTERM or SIGINT, and writes one line to standard output when it is ready.
pub fn hold(nodes: usize) -> Result<()> {
    let mut file = lock_file()?;
    match file.try_lock() {
        Ok(()) => file.set_len(0)?,
        Err(TryLockError::WouldBlock) => bail!("the control plane is running already"),
        Err(TryLockError::Error(error)) => return Err(error.into()),
    }
    let tools = Tools::ensure(&Progress::stderr())?;
    let plane = ControlPlane::builder().nodes(nodes).start(&tools)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut term = signal(SignalKind::terminate())?;
        let mut int = signal(SignalKind::interrupt())?;
        let detached = Detached {
            process: Pid::this().as_raw(),
            directory: plane.directory().to_owned(),
            kubeconfig: plane.kubeconfig(),
            path: tools.directories().into_iter().map(Path::to_owned).collect(),
        };
        let line = serde_json::to_string(&detached)?;
        file.write_all(line.as_bytes())?;
        // If the reader is gone, `up` was interrupted, and the plane is not wanted either.
        writeln!(io::stdout(), "{line}").context("`up` no longer waits for the control plane")?;
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        Ok(())
    })
    // The plane ends before the lock does.
}

/// The plane in the background. Waits while it starts.
fn running() -> Result<Option<Detached>> {
    let mut file = lock_file()?;
    blocking_within(TIMEOUT, "the plane has started", || match file.try_lock() {
        Ok(()) => Some(Ok(None)),
        Err(TryLockError::WouldBlock) => {
            let mut state = String::new();
            match file.rewind().and_then(|()| file.read_to_string(&mut state)) {
                Ok(_) => serde_json::from_str(&state).ok().map(|detached| Ok(Some(detached))),
                Err(error) => Some(Err(error.into())),
            }
        }
        Err(TryLockError::Error(error)) => Some(Err(error.into())),
    })
    .flatten()
}

fn lock_file() -> Result<File> {
    let path = run_directory()?.join("plane.json");
    let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
    file.with_context(|| format!("cannot open {}", path.display()))
}

fn run_directory() -> Result<PathBuf> {
    let directory = cache::directory()?.join("run");
    fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    Ok(directory)
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_exports_as_they_are_meant() {
        let detached = Detached {
            process: 1,
            directory: "/tmp/it's".into(),
            kubeconfig: "/tmp/it's $HOME/kubeconfig".into(),
            path: vec!["/a b".into(), "/c".into()],
        };
        let script = format!("PATH=/bin\n{}\necho \"$KUBECONFIG|$PATH\"", detached.exports());
        let output = Command::new("/bin/sh").args(["-c", &script]).output().expect("there is a shell");
        assert_eq!(String::from_utf8_lossy(&output.stdout), "/tmp/it's $HOME/kubeconfig|/a b:/c:/bin\n");
    }
}
