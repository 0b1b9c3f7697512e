//! Ends the servers and removes the directory when the owner is gone, however it went.
//!
//! Two shells wait for the end of a pipe whose other end only the owner holds, so that the kernel closes it on every
//! way out: a return, a panic, `exit` with a static still alive, a signal, SIGKILL. One shell leads the process group
//! that the servers join, so that they can be ended without a list of process ids, which could miss a server started
//! last or name a process that came later. The other is outside and does the ending. The orderly stop takes the same way.
//!
//! SIGKILL at once: all that the servers could save is about to be deleted.

use std::io::{self, PipeWriter};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Leads the group until it is killed with it, or the owner lets go.
const LEADER: &str = "read -r _";

/// The loop is bounded because where nothing reaps orphans, a killed process stays in its group for ever.
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
    /// Begins to watch over a directory, and over a process group that is empty as yet.
    pub(crate) fn start(directory: &Path) -> io::Result<Self> {
        let (reader, pipe) = io::pipe()?;
        // The directory tells a user who lists processes what this one belongs to.
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
        // That there is nothing to wait for any more is what is hoped for.
        let _ = self.leader.wait();
        let _ = self.watchdog.wait();
    }
}

/// A shell in a process group of its own, out of reach of a terminal's Ctrl-C, and with no hold on the caller's output.
fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, "plane"]).current_dir("/").process_group(0);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command
}
