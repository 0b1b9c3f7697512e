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
    os::{
        fd::OwnedFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
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
const STRAGGLER_PATIENCE: Duration = Duration::from_secs(1);

/// What to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    /// The executable.
    pub(super) path: PathBuf,
    /// Its arguments, without the executable.
    pub(super) args: Vec<OsString>,
    /// The whole environment: nothing is inherited.
    pub(super) env: Vec<(OsString, OsString)>,
    /// The working directory.
    pub(super) dir: PathBuf,
    /// The content of standard input; `None` is `/dev/null`.
    pub(super) stdin: Option<Vec<u8>>,
}

/// What bounds a run.
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

/// Why a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cause {
    /// The child ended of its own accord, or somebody else killed it.
    #[default]
    Itself,
    /// It had to be stopped at its deadline.
    Deadline,
    /// It had to be stopped because the caller's token was cancelled.
    Cancelled,
}

/// A run that is over: the child is reaped and its group is gone.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Finished {
    /// Why it ended.
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

impl Finished {
    /// Ended of its own accord with exit code 0.
    pub fn success(&self) -> bool {
        self.cause == Cause::Itself && self.status.success()
    }
}

/// The child could not be run, or could not be followed.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// There is no such file (or it is a script whose interpreter is missing).
    #[error("there is no executable at {path}")]
    Missing {
        /// The executable.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file is there but cannot be executed.
    #[error("{path} cannot be executed")]
    NotExecutable {
        /// The executable.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The machine is out of something now (processes, descriptors, memory); later may be better.
    #[error("the machine lacks the resources to start {path}")]
    Exhausted {
        /// The executable.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Starting failed otherwise, as with an argument that holds a NUL byte.
    #[error("{path} could not be started")]
    Spawn {
        /// The executable.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The child ran, but its end could not be learnt. Its group has been killed.
    #[error("the end of {path} could not be learnt")]
    Lost {
        /// The executable.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
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
/// Cancelling `cancel` stops it politely; dropping the future kills its group at once, because nobody is left who could
/// keep a second run from starting beside it.
///
/// # Errors
///
/// When the program cannot be started or followed. A program that fails is not an error here: see [`Finished`].
pub(super) async fn run(
    program: Program,
    limits: Limits,
    cancel: &CancellationToken,
) -> Result<Finished, ProcessError> {
    let begun = Instant::now();
    let path = program.path.clone();
    let Running { group, mut ended, stdout, stderr } =
        start(program, limits).await.map_err(|source| ProcessError::start(path.clone(), source))?;

    let (mut out, mut err) = (Kept::new(limits.output), Kept::new(limits.output));
    let (cause, status) = {
        let mut drained = std::pin::pin!(async { tokio::join!(out.fill(stdout), err.fill(stderr)) });
        let mut life = std::pin::pin!(live(&group, &mut ended, limits, cancel));
        let mut drains = true;
        let life = loop {
            tokio::select! {
                life = &mut life => break life,
                _ = &mut drained, if drains => drains = false,
            }
        };
        if drains {
            let _ = timeout(STRAGGLER_PATIENCE, drained).await;
        }
        life
    };
    let status = status.map_err(|source| ProcessError::Lost { path, source })?;
    Ok(Finished { cause, status, stdout: out.into_string(), stderr: err.into_string(), elapsed: begun.elapsed() })
}

/// Waits for the end, and brings it about when it has to be.
async fn live(
    group: &Group,
    ended: &mut oneshot::Receiver<io::Result<ExitStatus>>,
    limits: Limits,
    cancel: &CancellationToken,
) -> (Cause, io::Result<ExitStatus>) {
    let cause = tokio::select! {
        biased;
        status = &mut *ended => return (Cause::Itself, told(status)),
        () = cancel.cancelled() => Cause::Cancelled,
        () = sleep(limits.deadline) => Cause::Deadline,
    };
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

/// A started child.
struct Running {
    group: Group,
    ended: oneshot::Receiver<io::Result<ExitStatus>>,
    stdout: pipe::Receiver,
    stderr: pipe::Receiver,
}

/// Forks on a thread of the child's own, which lives exactly as long as the child.
///
/// That is what makes the parent-death signal right: the kernel sends it when the *thread* that forked ends, not the
/// process. A runtime's worker or blocking thread may retire at any time and would take the child with it; this one
/// forks, waits, sweeps the group, reaps, and only then ends.
async fn start(program: Program, limits: Limits) -> io::Result<Running> {
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
        // Nobody listening any more means that the future was dropped: the group dies with the message.
        drop(started.send(Ok((group, pipes))));
        drop(end.send(remains.reap(&mut child)));
    })?;
    let (group, pipes) = start.await.unwrap_or_else(|_| Err(io::Error::other("the thread that forks is gone")))?;
    let receiver = |pipe: Option<OwnedFd>| pipe::Receiver::from_owned_fd(pipe.ok_or(io::ErrorKind::BrokenPipe)?);
    let (stdout, stderr) = (receiver(pipes.0)?, receiver(pipes.1)?);
    Ok(Running { group, ended, stdout, stderr })
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
        // Had we died before that call, no signal would ever come: the child would already belong to somebody else.
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
/// of them. Best effort, and allowed to anybody, because the value only goes up.
fn prefer_as_oom_victim(child: &Child) {
    let _ = std::fs::write(format!("/proc/{}/oom_score_adj", child.id()), "1000");
}

/// The child's process group, until the child is reaped; killed when dropped before that.
///
/// The lock makes sure that no signal is sent to a number which the kernel may have given to somebody else: the child is
/// reaped, and the number let go, only while holding it.
struct Group(Arc<Mutex<Option<Pid>>>);

impl Group {
    fn signal(&self, signal: Signal) {
        if let Some(leader) = *self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            // It fails when nobody is left in the group, which is as good.
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

    /// Reads to the end. A read error ends the stream like its end does: there is nobody to do better for.
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

/// The signal that ended a process, if one did.
pub(super) fn signal(status: ExitStatus) -> Option<i32> {
    status.signal()
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    const LIMITS: Limits = Limits {
        deadline: Duration::from_secs(60),
        grace: Duration::from_secs(60),
        output: 1024,
        memory: 1 << 30,
        file: 1 << 20,
    };

    fn sh(script: &str) -> Program {
        Program {
            path: "/bin/sh".into(),
            args: vec!["-c".into(), script.into()],
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            dir: "/".into(),
            stdin: None,
        }
    }

    async fn ends(script: &str) -> Finished {
        run(sh(script), LIMITS, &CancellationToken::new()).await.unwrap()
    }

    /// Waits until a condition holds; fails only when it plainly never will.
    async fn until(what: &str, mut condition: impl FnMut() -> bool) {
        let patience = async {
            while !condition() {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(Duration::from_secs(60), patience).await.unwrap_or_else(|_| panic!("never: {what}"));
    }

    fn numbers(file: &Path) -> Vec<i32> {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Neither running nor a zombie of ours. A zombie that is another process's to reap counts as gone.
    fn gone(pid: i32) -> bool {
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
        let mut rest = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let (state, parent) = (rest.next().unwrap_or_default(), rest.next().unwrap_or_default());
        state == "Z" && parent != std::process::id().to_string()
    }

    #[tokio::test]
    async fn output_and_exit_code_are_returned() {
        let finished = ends("echo out; echo err >&2; exit 3").await;
        assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!((finished.cause, finished.status.code(), finished.success()), (Cause::Itself, Some(3), false));
        assert!(ends("true").await.success());
    }

    #[tokio::test]
    async fn the_child_gets_only_the_environment_it_is_given() {
        assert_eq!(ends("env | grep -v -e ^PWD= -e ^SHLVL= -e ^_=").await.stdout, "PATH=/usr/bin:/bin\n");
    }

    #[tokio::test]
    async fn the_child_gets_none_of_our_descriptors() {
        let ours = tempfile::NamedTempFile::new().unwrap();
        let descriptors = ends("exec ls -l /proc/self/fd").await.stdout;
        assert!(
            descriptors.contains("/dev/null") && !descriptors.contains(ours.path().to_str().unwrap()),
            "{descriptors}"
        );
    }

    #[tokio::test]
    async fn standard_input_is_the_payload_whole_or_nothing() {
        let payload = "a: b\n".repeat(100_000);
        let mut program = sh("wc -c; exec sha256sum /dev/null");
        program.stdin = Some(payload.clone().into_bytes());
        let finished = run(program, LIMITS, &CancellationToken::new()).await.unwrap();
        assert_eq!(finished.stdout.lines().next(), Some(payload.len().to_string().as_str()));
        assert_eq!(ends("wc -c").await.stdout, "0\n");
        // A child that never reads it is no hindrance.
        let mut deaf = sh("true");
        deaf.stdin = Some(payload.into_bytes());
        assert!(run(deaf, LIMITS, &CancellationToken::new()).await.unwrap().success());
    }

    #[tokio::test]
    async fn megabytes_on_both_pipes_neither_block_nor_pile_up() {
        let finished =
            ends("yes out | head -c 4000000 & yes err | head -c 4000000 >&2; wait; echo last; echo why >&2").await;
        assert!(finished.success());
        for (kept, first, last) in [(&finished.stdout, "out\n", "last\n"), (&finished.stderr, "err\n", "why\n")] {
            assert!(kept.starts_with(first) && kept.ends_with(last), "{kept}");
            assert!(kept.contains("bytes left out"), "{kept}");
            assert!(kept.len() < LIMITS.output + 64, "{}", kept.len());
        }
    }

    #[tokio::test]
    async fn invalid_utf8_is_replaced() {
        assert_eq!(ends(r"printf 'a\377\376b'").await.stdout, "a\u{fffd}\u{fffd}b");
    }

    #[test]
    fn kept_is_exact_below_its_limit_and_bounded_above_it() {
        for chunk in [1, 3, 7, 100] {
            let text: Vec<u8> = (b'a'..=b'z').collect();
            for limit in [26, 52, 1000] {
                let mut kept = Kept::new(limit);
                text.chunks(chunk).for_each(|bytes| kept.push(bytes));
                assert_eq!(kept.into_string(), "abcdefghijklmnopqrstuvwxyz", "{limit} {chunk}");
            }
            let mut kept = Kept::new(6);
            text.chunks(chunk).for_each(|bytes| kept.push(bytes));
            assert_eq!(kept.into_string(), "abc\n[20 bytes left out]\nxyz", "{chunk}");
        }
    }

    #[tokio::test]
    async fn a_signal_from_elsewhere_is_its_own_end() {
        let finished = ends("kill -KILL $$").await;
        assert_eq!((finished.cause, signal(finished.status)), (Cause::Itself, Some(9)));
    }

    #[tokio::test]
    async fn cancellation_asks_and_lets_the_child_finish() {
        let dir = tempfile::tempdir().unwrap();
        let ready = dir.path().join("ready");
        let script =
            format!("trap 'echo recorded; exit 1' TERM; echo $$ > {}; while :; do sleep 0.01; done", ready.display());
        let cancel = CancellationToken::new();
        let ask = async {
            until("the child is ready", || !numbers(&ready).is_empty()).await;
            cancel.cancel();
        };
        let (finished, ()) = tokio::join!(run(sh(&script), LIMITS, &cancel), ask);
        let finished = finished.unwrap();
        assert_eq!((finished.cause, finished.status.code()), (Cause::Cancelled, Some(1)));
        assert_eq!(finished.stdout, "recorded\n");
    }

    #[tokio::test]
    async fn a_child_deaf_to_sigterm_is_killed_after_the_grace_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let script = format!(
            "trap '' TERM; sleep 1000 & echo $! >> {0}; echo $$ >> {0}; while :; do sleep 1000; done",
            pids.display()
        );
        let limits = Limits { grace: Duration::from_millis(50), ..LIMITS };
        let cancel = CancellationToken::new();
        let ask = async {
            until("the child is ready", || numbers(&pids).len() == 2).await;
            cancel.cancel();
        };
        let (finished, ()) = tokio::join!(run(sh(&script), limits, &cancel), ask);
        let finished = finished.unwrap();
        assert_eq!((finished.cause, signal(finished.status)), (Cause::Cancelled, Some(9)));
        for pid in numbers(&pids) {
            until("the group is gone", || gone(pid)).await;
        }
    }

    #[tokio::test]
    async fn the_deadline_stops_a_stopped_child_politely() {
        let dir = tempfile::tempdir().unwrap();
        let said = dir.path().join("said");
        let script =
            format!("trap 'echo 1 > {}; exit 1' TERM; kill -STOP $$; while :; do sleep 0.01; done", said.display());
        let limits = Limits { deadline: Duration::from_millis(200), ..LIMITS };
        let finished = run(sh(&script), limits, &CancellationToken::new()).await.unwrap();
        assert_eq!((finished.cause, finished.status.code()), (Cause::Deadline, Some(1)));
        assert_eq!(numbers(&said), [1]);
    }

    #[tokio::test]
    async fn a_grandchild_that_keeps_the_pipe_dies_with_the_leader() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let finished = ends(&format!("sleep 1000 & echo $! > {}; echo done", pids.display())).await;
        assert_eq!((finished.success(), finished.stdout.as_str()), (true, "done\n"));
        for pid in numbers(&pids) {
            until("the grandchild is gone", || gone(pid)).await;
        }
    }

    #[tokio::test]
    async fn a_descendant_outside_the_group_cannot_hold_the_run_by_the_pipe() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let script = format!(
            "setsid sh -c 'echo $$ > {0}; exec sleep 1000' & while ! [ -s {0} ]; do sleep 0.01; done; echo done",
            pids.display()
        );
        let finished = ends(&script).await;
        assert_eq!((finished.success(), finished.stdout.as_str()), (true, "done\n"));
        for pid in numbers(&pids) {
            let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }

    #[tokio::test]
    async fn dropping_the_future_kills_and_reaps_the_group() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let script = format!("trap '' TERM; sleep 1000 & echo $! >> {0}; echo $$ >> {0}; wait", pids.display());
        let cancel = CancellationToken::new();
        tokio::select! {
            finished = run(sh(&script), LIMITS, &cancel) => panic!("{finished:?}"),
            () = until("the child is ready", || numbers(&pids).len() == 2) => {}
        }
        for pid in numbers(&pids) {
            until("the group is gone", || gone(pid)).await;
        }
    }

    /// Not a test of its own: what [`our_own_death_takes_the_child_along`] starts and kills.
    #[tokio::test]
    #[ignore = "a helper process"]
    async fn host() {
        let pids = std::env::var("PIDS").unwrap();
        let _ = run(sh(&format!("trap '' TERM; echo $$ > {pids}; exec sleep 1000")), LIMITS, &CancellationToken::new())
            .await;
    }

    #[tokio::test]
    async fn our_own_death_takes_the_child_along() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let mut host = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "helm::process::tests::host"])
            .env("PIDS", &pids)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("the host's child is ready", || !numbers(&pids).is_empty()).await;
        let child = numbers(&pids)[0];
        assert!(!gone(child));
        host.kill().unwrap();
        host.wait().unwrap();
        until("the host's child is gone", || gone(child)).await;
    }

    #[tokio::test]
    async fn limits_hold() {
        let dir = tempfile::tempdir().unwrap();
        let script = format!("exec head -c 2000000 /dev/zero > {}", dir.path().join("file").display());
        assert_eq!(signal(ends(&script).await.status), Some(nix::libc::SIGXFSZ));
        assert_eq!(ends("ulimit -c; ulimit -d").await.stdout, format!("0\n{}\n", LIMITS.memory / 1024));
    }

    #[tokio::test]
    async fn the_child_is_the_first_to_go_when_memory_runs_out() {
        assert_eq!(
            ends("while ! grep -qx 1000 /proc/$$/oom_score_adj; do sleep 0.01; done; echo so").await.stdout,
            "so\n"
        );
    }

    #[tokio::test]
    async fn what_cannot_start_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let plain = dir.path().join("plain");
        fs::write(&plain, "#!/bin/sh\n").unwrap();

        let failure = async |path: &Path, args: Vec<OsString>| {
            let program = Program { path: path.into(), args, ..sh("") };
            run(program, LIMITS, &CancellationToken::new()).await.unwrap_err()
        };
        assert!(matches!(failure(&dir.path().join("absent"), vec![]).await, ProcessError::Missing { .. }));
        assert!(matches!(failure(&plain, vec![]).await, ProcessError::NotExecutable { .. }));
        assert!(matches!(failure(dir.path(), vec![]).await, ProcessError::NotExecutable { .. }));
        assert!(matches!(failure(Path::new("/bin/sh"), vec!["a\0b".into()]).await, ProcessError::Spawn { .. }));
    }

    #[test]
    fn a_machine_out_of_resources_is_told_apart() {
        for errno in [Errno::EAGAIN, Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM] {
            assert!(matches!(ProcessError::start("x".into(), errno.into()), ProcessError::Exhausted { .. }), "{errno}");
        }
    }
}
