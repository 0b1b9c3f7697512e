//! One child process, from fork to reaping (effect; knows no helm).
//!
//! What holds for every run, whatever the child does and however the caller goes away:
//!
//! - the child starts with nothing but the environment it is given, none of our descriptors, and limits;
//! - its group is its own, so one signal reaches whatever it started in turn;
//! - both of its pipes are read all the time, so it can never block on a full one, and what is kept of them is bounded;
//! - it has one deadline; deadline and cancellation ask first (SIGTERM), and after a grace insist (SIGKILL);
//! - it is always reaped, and nothing of its group outlives it;
//! - it does not outlive us, not even when we are killed by SIGKILL (what it started in turn then may: the kernel does not
//!   hand the parent-death signal on, so a wrapper around a program has to `exec` it).

// Here, and nowhere else, processes are started and their time is measured.
#![allow(clippy::disallowed_methods)]

use std::{
    ffi::OsString,
    fs::File,
    io::{self, Seek, Write},
    os::{fd::OwnedFd, unix::process::CommandExt},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex, PoisonError},
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
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    net::unix::pipe,
    sync::oneshot,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// How long the pipes may stay open after the whole group is dead. Only a descendant that left the group can hold one;
/// its output is not worth waiting for.
const STRAGGLER_TIMEOUT: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) args: Vec<OsString>,
    /// The whole environment: nothing is inherited.
    pub(super) env: Vec<(OsString, OsString)>,
    pub(super) dir: PathBuf,
    /// The content of standard input; `None` is `/dev/null`.
    pub(super) stdin: Option<Vec<u8>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Limits {
    /// Wall time before the child is asked to stop.
    pub(super) deadline: Duration,
    /// Wall time between asking (SIGTERM) and insisting (SIGKILL).
    pub(super) grace: Duration,
    /// How much is kept of each of stdout and stderr, in bytes: half from its beginning, half from its end.
    pub(super) output: usize,
    /// Private memory of the child, in bytes (`RLIMIT_DATA`).
    pub(super) memory: u64,
    /// The largest file the child may write, in bytes (`RLIMIT_FSIZE`).
    pub(super) file: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Cause {
    /// The child ended of its own accord, or another process killed it.
    #[default]
    Itself,
    Deadline,
    Cancelled,
}

/// A run that is over: the child is reaped and its group is gone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Finished {
    pub cause: Cause,
    /// How it ended. A child that was asked to stop may still have exited with 0.
    pub status: ExitStatus,
    /// What is kept of its standard output, invalid UTF-8 replaced.
    pub stdout: String,
    /// What is kept of its standard error, invalid UTF-8 replaced.
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
    /// There is no such file (or it is a script whose interpreter is missing).
    #[error("there is no executable at {path}")]
    Missing { path: PathBuf, source: io::Error },
    #[error("{path} cannot be executed")]
    NotExecutable { path: PathBuf, source: io::Error },
    /// The machine is out of something now (processes, descriptors, memory); later may be better.
    #[error("the machine lacks the resources to start {path}")]
    Exhausted { path: PathBuf, source: io::Error },
    /// Starting failed otherwise, as with an argument that holds a NUL byte.
    #[error("{path} could not be started")]
    Spawn { path: PathBuf, source: io::Error },
    /// The child ran, but its end could not be learnt. Its group has been killed.
    #[error("the end of {path} could not be learnt")]
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
/// Cancelling `cancel` stops it politely; `stopping` is cancelled before it is asked to stop. Dropping the future kills its group at once, because no caller is left that could
/// keep a second run from starting beside it.
pub(super) async fn run(
    program: Program,
    limits: Limits,
    cancel: &CancellationToken,
    stopping: &CancellationToken,
) -> Result<Finished, ProcessError> {
    let begun = Instant::now();
    let path = program.path.clone();
    let (group, mut ended, stdout, stderr) =
        start(program, limits).await.map_err(|source| ProcessError::start(path.clone(), source))?;

    let (mut out, mut err) = (Kept::new(limits.output), Kept::new(limits.output));
    let (cause, status) = {
        let mut drained = std::pin::pin!(async { tokio::join!(out.fill(stdout), err.fill(stderr)) });
        let mut life = std::pin::pin!(live(&group, &mut ended, limits, cancel, stopping));
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

/// Waits for the end, and brings it about when it has to be.
async fn live(
    group: &Group,
    ended: &mut Ended,
    limits: Limits,
    cancel: &CancellationToken,
    stopping: &CancellationToken,
) -> (Cause, io::Result<ExitStatus>) {
    let cause = tokio::select! {
        biased;
        status = &mut *ended => return (Cause::Itself, told(status)),
        () = cancel.cancelled() => Cause::Cancelled,
        () = sleep(limits.deadline) => Cause::Deadline,
    };
    stopping.cancel();
    // SIGTERM, not SIGINT or SIGKILL: it is the signal at which a polite program still writes down how far it came.
    // SIGCONT after it, because a stopped process handles SIGTERM only once it continues.
    group.signal(Signal::SIGTERM);
    group.signal(Signal::SIGCONT);
    if let Ok(status) = timeout(limits.grace, &mut *ended).await {
        return (cause, told(status));
    }
    group.signal(Signal::SIGKILL);
    // No time limit: as long as the kernel has not let go of the child, it must not be reported as gone.
    (cause, told(ended.await))
}

fn told(status: Result<io::Result<ExitStatus>, oneshot::error::RecvError>) -> io::Result<ExitStatus> {
    status.unwrap_or_else(|_| Err(io::Error::other("the thread that waited for it is gone")))
}

type Ended = oneshot::Receiver<io::Result<ExitStatus>>;

/// Forks on a thread of the child's own, which lives exactly as long as the child.
///
/// That is what makes the parent-death signal right: the kernel sends it when the *thread* that forked ends, not the
/// process. A runtime's worker or blocking thread may retire at any time and would take the child with it; this one
/// forks, waits, sweeps the group, reaps, and only then ends.
async fn start(program: Program, limits: Limits) -> io::Result<(Group, Ended, pipe::Receiver, pipe::Receiver)> {
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
        // Without a receiver the future was dropped: the group dies with the message.
        drop(started.send(Ok((group, pipes))));
        drop(end.send(remains.reap(&mut child)));
    })?;
    let (group, pipes) = start.await.unwrap_or_else(|_| Err(io::Error::other("the thread that forks is gone")))?;
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

/// A file in memory with this content, at its beginning.
///
/// Not a pipe: a pipe needs a writer, which can die half way and leave a document that is cut off and still parses; nor a
/// file with a name, which would have to be cleared away after a crash.
fn anonymous_file(content: &[u8]) -> io::Result<Stdio> {
    let mut file = File::from(memfd_create(c"stdin", MFdFlags::MFD_CLOEXEC)?);
    file.write_all(content)?;
    file.rewind()?;
    Ok(file.into())
}

/// What the child does to itself between fork and exec.
#[allow(unsafe_code)]
fn before_exec(command: &mut Command, limits: Limits) {
    let parent = Pid::this();
    let tie_and_limit = move || {
        setrlimit(Resource::RLIMIT_DATA, limits.memory, limits.memory)?;
        setrlimit(Resource::RLIMIT_FSIZE, limits.file, limits.file)?;
        // A core dump would be a copy of the child's memory, credentials included, on disk.
        setrlimit(Resource::RLIMIT_CORE, 0, 0)?;
        // SIGKILL, not SIGTERM: when we are gone, a successor may begin at any moment, and it must not meet a child that
        // is still tidying up, or is deaf. What SIGTERM would have let it write down, the successor finds out anyway.
        set_pdeathsig(Signal::SIGKILL)?;
        // Had we died before that call, no signal would ever come: the child would already have another parent.
        if getppid() != parent {
            return Err(io::Error::from(Errno::ESRCH));
        }
        Ok(())
    };
    // SAFETY: between fork and exec only async-signal-safe work is allowed. The closure makes four plain system calls
    // (setrlimit, prctl, getppid) on values copied into it; it takes no lock and allocates nothing, on its error paths
    // either, where an `io::Error` is made of a bare errno.
    unsafe {
        command.pre_exec(tie_and_limit);
    }
}

/// When memory runs out, the kernel should take the child and leave us: a lost run is repeated, a lost operator loses all
/// of them. Best effort, and allowed to every process, because the value only goes up.
fn prefer_as_oom_victim(child: &Child) {
    let _ = std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), "1000");
}

/// The child's process group, until the child is reaped; killed when dropped before that.
///
/// The lock makes sure that no signal is sent to a number which the kernel may have given to another group: the child is
/// reaped, and the number let go, only while holding it.
struct Group(Arc<Mutex<Option<Pid>>>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(leader) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // It fails when no process is left in the group, which is as good.
            let _ = killpg(leader, signal);
        }
    }

    /// Waits for the leader's end, kills what it leaves behind, and reaps it.
    fn reap(&self, child: &mut Child) -> io::Result<ExitStatus> {
        // WNOWAIT leaves a zombie, whose number still names the group while the rest of it is killed.
        let leader = Pid::from_raw(child.id().cast_signed());
        while waitid(Id::Pid(leader), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT) == Err(Errno::EINTR) {}
        let mut group = self.0.lock().unwrap_or_else(PoisonError::into_inner);
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
/// The beginning, because an error starts with what failed; the end, because that is where a program says why.
struct Kept {
    half: usize,
    head: Vec<u8>,
    tail: Vec<u8>,
    dropped: usize,
}

impl Kept {
    fn new(limit: usize) -> Self {
        Self { half: limit / 2, head: Vec::new(), tail: Vec::new(), dropped: 0 }
    }

    /// Reads to the end. A read error ends the stream as its end does.
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
        // Let the tail grow to twice its size before cutting it, so that each byte is moved about once.
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
