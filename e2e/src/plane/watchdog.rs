//! Ends the servers and removes the directory when the owner is gone, however it ended.
//!
//! Two shells wait for the end of a pipe whose other end only the owner holds, so that the kernel closes it in every
//! case: a return, a panic, `exit` with a live static, a signal, SIGKILL. One shell leads the process group that the
//! servers join, so that they can be ended without a list of process ids, which could miss the latest server or name an
//! unrelated process that reused an id. The other shell is outside the group and kills it. A regular stop works in the
//! same way.
//!
//! SIGKILL at once: everything that the servers could save is about to be deleted.

use std::fs::File;
use std::io::{self, PipeWriter};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};

/// Leads the group until it is killed with it, or the owner lets go.
const LEADER: &str = "read -r _";

/// The loop is bounded: if nothing reaps orphans, a killed process stays in its group for ever.
const WATCHDOG: &str = r#"
trap '' HUP INT TERM
read -r _
tries=250
while [ "$tries" -gt 0 ] && kill -s KILL -- "-$1" 2>/dev/null; do
    tries=$((tries - 1))
    sleep 0.02
done
rm -rf -- "$2"
"#;

/// The owner's end.
pub(crate) struct Watchdog {
    pipe: Option<PipeWriter>,
    leader: Child,
    watchdog: Child,
}

impl Watchdog {
    /// Starts watching a directory, and a process group that is still empty.
    pub(crate) fn start(directory: &Path) -> io::Result<Self> {
        let (reader, pipe) = io::pipe()?;
        // With the directory as argument, a process list shows what this process belongs to.
        let leader = shell(LEADER).arg(directory).stdin(reader.try_clone()?).spawn()?;
        let watchdog = shell(WATCHDOG).arg(leader.id().to_string()).arg(directory).stdin(reader).spawn()?;
        Ok(Self { pipe: Some(pipe), leader, watchdog })
    }

    /// The process group for the servers.
    pub(crate) fn group(&self) -> i32 {
        i32::try_from(self.leader.id()).expect("process ids are positive numbers of 32 bits")
    }

    /// Makes the watchdog act. The servers die at once, but stay in their group until the owner has waited for them.
    pub(crate) fn act(&mut self) {
        self.pipe.take();
    }

    /// Waits until nothing is left.
    pub(crate) fn wait(&mut self) {
        // An error means that there is nothing left to wait for, which is the goal.
        let _ = self.leader.wait();
        let _ = self.watchdog.wait();
    }
}

/// A server in a directory of its own. Dropping it stops the server and removes the directory.
pub(crate) struct Watched {
    pub(crate) home: PathBuf,
    pub(crate) server: Child,
    watchdog: Watchdog,
}

impl Watched {
    /// Starts the server of this name with the command that `command` returns for the directory. The directory's file `log` has what it prints.
    pub(crate) fn start(name: &str, command: impl FnOnce(&Path) -> Result<Command>) -> Result<Self> {
        let home = tempfile::tempdir()?;
        let watchdog = Watchdog::start(home.path()).context("cannot start the watchdog")?;
        // From here on the watchdog removes it in any case.
        let home = home.keep();
        let log = File::create(home.join("log"))?;
        let server = command(&home)?
            .process_group(watchdog.group())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self { home, server, watchdog })
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.watchdog.act();
        let _ = self.server.wait();
        self.watchdog.wait();
    }
}

/// A shell in its own process group, out of reach of a terminal's Ctrl-C, that does not keep the caller's output open.
fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, "plane"]).current_dir("/").process_group(0);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}
