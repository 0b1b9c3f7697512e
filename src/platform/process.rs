//! Runs one child process, from fork to reaping (effect).
//!
//! Guarantees for every run, whatever the child does and however the caller ends:
//!
//! - the child inherits no environment and no file descriptors, and has resource limits;
//! - it has its own process group, so one signal reaches all of its descendants;
//! - both pipes are always drained, so it never blocks on a full pipe, and the output kept is bounded;
//! - it has a deadline; deadline and cancellation send SIGTERM, and SIGKILL after a grace period;
//! - it is always reaped, and no process of its group outlives it;
//! - it does not outlive the operator, even if that is killed with SIGKILL. Its descendants may, because they do not inherit the
//!   parent-death signal; so a wrapper around a program must `exec` it.

// The only place that starts processes and measures their time.
#![allow(clippy::disallowed_methods)]

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Seek, Write},
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    sys::{
        memfd::{MFdFlags, memfd_create},
        prctl::set_pdeathsig,
        resource::{Resource, setrlimit},
        signal::{Signal, killpg},
        wait::{Id, WaitPidFlag, waitid},
    },
    unistd::{Pid, getppid},
};
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    net::unix::pipe,
    sync::oneshot,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Limits the time for which the pipes may stay open once the whole group is dead. Only a descendant that has left the group can hold one
/// open, and its output does not matter.
const STRAGGLER_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Program {
    pub(crate) path: PathBuf,
    pub(crate) args: Vec<OsString>,
    /// The whole environment: nothing is inherited.
    pub(crate) env: Vec<(OsString, OsString)>,
    pub(crate) dir: PathBuf,
    /// The content of standard input; `/dev/null` if `None`.
    pub(crate) stdin: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Time until the child is asked to stop.
    pub(crate) deadline: Duration,
    /// Time from SIGTERM to SIGKILL.
    pub(crate) grace: Duration,
    /// Bytes kept of each of stdout and stderr: half from the beginning, half from the end.
    pub(crate) output: usize,
    /// Limit of the child's private memory, in bytes (`RLIMIT_DATA`).
    pub(crate) memory: u64,
    /// Size limit of files that the child writes, in bytes (`RLIMIT_FSIZE`).
    pub(crate) file: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Cause {
    /// The child exited on its own, or another process killed it.
    #[default]
    Itself,
    Deadline,
    Cancelled,
}

/// A run that is over: the child is reaped and its group is gone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Finished {
    pub cause: Cause,
    /// The exit status. A child that was asked to stop may still have exited with 0.
    pub status: ExitStatus,
    /// Standard output, as far as it is kept, with invalid UTF-8 replaced.
    pub stdout: String,
    /// Standard error, as far as it is kept, with invalid UTF-8 replaced.
    pub stderr: String,
    /// From just before the fork to the reaping.
    pub elapsed: Duration,
}

#[cfg(test)]
impl Finished {
    pub(crate) fn success(&self) -> bool {
        self.cause == Cause::Itself && self.status.success()
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ProcessError {
    /// The file does not exist, or it is a script whose interpreter is missing.
    #[error("there is no executable at {path}")]
    Missing { path: PathBuf, source: io::Error },
    #[error("{path} cannot be executed")]
    NotExecutable { path: PathBuf, source: io::Error },
    /// The machine is out of processes, descriptors or memory; a later attempt may succeed.
    #[error("the machine lacks the resources to start {path}")]
    Exhausted { path: PathBuf, source: io::Error },
    /// Any other failure to start, such as an argument with a NUL byte.
    #[error("{path} could not be started")]
    Spawn { path: PathBuf, source: io::Error },
    /// The child ran, but waiting for it failed. Its group has been killed.
    #[error("waiting for {path} failed")]
    Lost { path: PathBuf, source: io::Error },
}

impl ProcessError {
    fn start(path: PathBuf, source: io::Error) -> Self {
        match source.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOENT | Errno::ENOTDIR) => Self::Missing { path, source },
            Some(Errno::EACCES | Errno::EPERM | Errno::ENOEXEC | Errno::EISDIR) => Self::NotExecutable { path, source },
            Some(Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE) => Self::Exhausted { path, source },
            _ => Self::Spawn { path, source },
        }
    }
}

/// Runs a program to its end.
///
/// Cancelling `cancel` stops it gracefully; `stopping` is cancelled before SIGTERM is sent. Dropping the future kills the group at
/// once, because no caller is left to keep a second run from starting at the same time.
pub(crate) async fn run(
    program: Program,
    limits: Limits,
    cancel: &CancellationToken,
    stopping: &CancellationToken,
) -> Result<Finished, ProcessError> {
    let begun = Instant::now();
    let path = program.path.clone();
    let (group, mut ended, stdout, stderr) =
        start(program, limits).await.map_err(|source| ProcessError::start(path.clone(), source))?;

    let (mut out, mut err) = (HeadTail::new(limits.output), HeadTail::new(limits.output));
    let (cause, status) = {
        let mut drained = std::pin::pin!(async { tokio::join!(out.fill(stdout), err.fill(stderr)) });
        let mut life = std::pin::pin!(supervise(&group, &mut ended, limits, cancel, stopping));
        let mut drains = true;
        let life = loop {
            tokio::select! {
                life = &mut life => break life,
                _ = &mut drained, if drains => drains = false,
            }
        };
        if drains {
            let _ = timeout(STRAGGLER_TIMEOUT, drained).await;
        }
        life
    };
    let status = status.map_err(|source| ProcessError::Lost { path, source })?;
    Ok(Finished { cause, status, stdout: out.into_string(), stderr: err.into_string(), elapsed: begun.elapsed() })
}

/// Waits for the child to exit, and stops it when necessary.
async fn supervise(
    group: &Group,
    ended: &mut ExitReceiver,
    limits: Limits,
    cancel: &CancellationToken,
    stopping: &CancellationToken,
) -> (Cause, io::Result<ExitStatus>) {
    let cause = tokio::select! {
        biased;
        status = &mut *ended => return (Cause::Itself, exit_status(status)),
        () = cancel.cancelled() => Cause::Cancelled,
        () = sleep(limits.deadline) => Cause::Deadline,
    };
    stopping.cancel();
    // SIGTERM, because it lets the program record how far it came. SIGCONT, because a stopped process handles SIGTERM only once it
    // continues.
    group.signal(Signal::SIGTERM);
    group.signal(Signal::SIGCONT);
    if let Ok(status) = timeout(limits.grace, &mut *ended).await {
        return (cause, exit_status(status));
    }
    group.signal(Signal::SIGKILL);
    // No timeout: until the kernel has released the child, it must not be reported as gone.
    (cause, exit_status(ended.await))
}

fn exit_status(status: Result<io::Result<ExitStatus>, oneshot::error::RecvError>) -> io::Result<ExitStatus> {
    status.unwrap_or_else(|_| Err(io::Error::other("the thread that waited for it has ended")))
}

type ExitReceiver = oneshot::Receiver<io::Result<ExitStatus>>;

/// Forks on a thread of its own, which lives exactly as long as the child.
///
/// The parent-death signal requires that: the kernel sends it when the *thread* that forked ends, not the process. Worker and blocking
/// threads of a runtime may retire at any time, which would kill the child. This thread forks, waits, kills the rest of the group,
/// reaps, and only then ends.
async fn start(program: Program, limits: Limits) -> io::Result<(Group, ExitReceiver, pipe::Receiver, pipe::Receiver)> {
    let (started, start) = oneshot::channel();
    let (end, ended) = oneshot::channel();
    thread::Builder::new().name("child".to_owned()).stack_size(128 * 1024).spawn(move || {
        let mut child = match command(&program, limits).and_then(|mut command| command.spawn()) {
            Ok(child) => child,
            Err(error) => return drop(started.send(Err(error))),
        };
        prefer_as_oom_victim(&child);
        let group = Group(Arc::new(Mutex::new(Some(Pid::from_raw(child.id().cast_signed())))));
        let pipes = (child.stdout.take().map(OwnedFd::from), child.stderr.take().map(OwnedFd::from));
        let remains = Group(Arc::clone(&group.0));
        // Without a receiver, the future was dropped: dropping the message kills the group.
        drop(started.send(Ok((group, pipes))));
        drop(end.send(remains.reap(&mut child)));
    })?;
    let (group, pipes) = start.await.unwrap_or_else(|_| Err(io::Error::other("the thread that forks has ended")))?;
    let receiver = |pipe: Option<OwnedFd>| pipe::Receiver::from_owned_fd(pipe.ok_or(io::ErrorKind::BrokenPipe)?);
    Ok((group, ended, receiver(pipes.0)?, receiver(pipes.1)?))
}

fn command(program: &Program, limits: Limits) -> io::Result<Command> {
    let Program { path, args, env, dir, stdin } = program;
    let mut command = Command::new(path);
    command
        .args(args)
        .env_clear()
        .envs(env.iter().map(|(name, value)| (name, value)))
        .current_dir(dir)
        .stdin(stdin.as_deref().map_or_else(|| Ok(Stdio::null()), anonymous_file)?)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0);
    before_exec(&mut command, limits);
    Ok(command)
}

/// Makes an in-memory file with this content, positioned at its start.
///
/// A pipe needs a writer, which could die and leave a truncated document that still parses; a named file would have to be removed
/// after a crash.
fn anonymous_file(content: &[u8]) -> io::Result<Stdio> {
    let mut file = File::from(memfd_create(c"stdin", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file.into())
}

/// Runs in the child between fork and exec.
#[allow(unsafe_code)]
fn before_exec(command: &mut Command, limits: Limits) {
    let parent = Pid::this();
    let tie_and_limit = move || {
        setrlimit(Resource::RLIMIT_DATA, limits.memory, limits.memory)?;
        setrlimit(Resource::RLIMIT_FSIZE, limits.file, limits.file)?;
        // A core dump would write the child's memory to disk, including credentials.
        setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
        // SIGKILL, because a successor of this operator may start at any moment, and must not meet a child that is still cleaning up
        // or ignores SIGTERM. The successor can determine what SIGTERM would have let the child record.
        set_pdeathsig(Signal::SIGKILL)?;
        // If the operator died before the call above, the signal would never come: the child would already have another parent.
        if getppid() != parent {
            return Err(io::Error::from(Errno::ESRCH));
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe work is allowed. The closure makes four system calls (setrlimit,
    // prctl, getppid) on values copied into it. It takes no locks and allocates nothing, even on its error paths, where an
    // `io::Error` consists of an errno.
    unsafe {
        command.pre_exec(tie_and_limit);
    }
}

/// Makes the kernel kill the child rather than the operator when memory runs out: a lost run is repeated, a lost operator loses all
/// runs. Best effort; every process may raise this value.
fn prefer_as_oom_victim(child: &Child) {
    let _ = std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), "1000");
}

/// The child's process group, until the child is reaped; killed if dropped before.
///
/// The lock keeps signals from reaching a process group that has reused the number: the child is reaped, which releases the number,
/// only while the lock is held.
struct Group(Arc<Mutex<Option<Pid>>>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(leader) = *self.0.lock() {
            // Fails if no process is left in the group, which is fine.
            let _ = killpg(leader, signal);
        }
    }

    /// Waits for the leader to exit, kills the rest of the group, and reaps the leader.
    fn reap(&self, child: &mut Child) -> io::Result<ExitStatus> {
        // WNOWAIT leaves a zombie, whose number still identifies the group while its other processes are killed.
        let leader = Pid::from_raw(child.id().cast_signed());
        while waitid(Id::Pid(leader), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
        let mut group = self.0.lock();
        let _ = killpg(leader, Signal::SIGKILL);
        *group = None;
        child.wait()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::SIGKILL);
    }
}

/// The beginning and the end of a stream, each at most half of the limit.
///
/// An error begins with what failed, and a program says last why it exits.
struct HeadTail {
    half: usize,
    head: Vec<u8>,
    tail: Vec<u8>,
    dropped: usize,
}

impl HeadTail {
    fn new(limit: usize) -> Self {
        Self { half: limit / 2, head: Vec::new(), tail: Vec::new(), dropped: 0 }
    }

    /// Reads to the end. A read error counts as the end.
    async fn fill(&mut self, mut stream: impl AsyncRead + Unpin) {
        let mut chunk = vec![0; 8 * 1024];
        while let Ok(read @ 1..) = stream.read(&mut chunk).await {
            self.push(&chunk[..read]);
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        let (head, rest) = bytes.split_at(bytes.len().min(self.half - self.head.len()));
        self.head.extend_from_slice(head);
        self.tail.extend_from_slice(rest);
        // The tail grows to twice its size before it is cut, so that each byte is moved only about once.
        if self.tail.len() > 2 * self.half {
            self.cut();
        }
    }

    fn cut(&mut self) {
        let surplus = self.tail.len().saturating_sub(self.half);
        self.tail.drain(..surplus);
        self.dropped += surplus;
    }

    fn into_string(mut self) -> String {
        self.cut();
        if self.dropped > 0 {
            self.head.extend_from_slice(format!("\n[{} bytes left out]\n", self.dropped).as_bytes());
        }
        self.head.append(&mut self.tail);
        String::from_utf8_lossy(&self.head).into_owned()
    }
}

#[cfg(test)]
mod tests;
