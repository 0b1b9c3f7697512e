use std::{fs, os::unix::process::ExitStatusExt as _, path::Path};

use tempfile::{NamedTempFile, TempPath};

use super::*;

const MINUTE: Duration = Duration::from_secs(60);
const LIMITS: Limits = Limits { deadline: MINUTE, grace: MINUTE, output: 1024, memory: 1 << 30, file: 1 << 20 };

fn sh(script: &str) -> Program {
    Program {
        path: "/bin/sh".into(),
        args: vec!["-c".into(), script.into()],
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        dir: "/".into(),
        stdin: None,
    }
}

/// Runs a program that no one stops.
async fn undisturbed(program: Program) -> Result<Finished, ProcessError> {
    run(program, LIMITS, &CancellationToken::new(), &CancellationToken::new()).await
}

async fn ends(script: &str) -> Finished {
    undisturbed(sh(script)).await.unwrap()
}

/// Waits until a condition holds; the timeout only ends a hopeless wait.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let seen = async {
        while !condition() {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(60), seen).await.unwrap_or_else(|_| panic!("never: {what}"));
}

fn file() -> TempPath {
    NamedTempFile::new().unwrap().into_temp_path()
}

fn numbers(file: &Path) -> Vec<i32> {
    let text = fs::read_to_string(file).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Neither running nor our zombie. A zombie that another process has to reap counts as gone.
fn gone(pid: i32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    let mut rest = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let (state, parent) = (rest.next().unwrap_or_default(), rest.next().unwrap_or_default());
    state == "Z" && parent != std::process::id().to_string()
}

async fn until_gone(pids: &Path) {
    for pid in numbers(pids) {
        until("the group is gone", || gone(pid)).await;
    }
}

#[tokio::test]
async fn output_and_exit_code_are_returned() {
    let finished = ends("echo out; echo err >&2; exit 3").await;
    assert_eq!((finished.stdout.as_str(), finished.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!((finished.cause, finished.status.code(), finished.success()), (Cause::Itself, Some(3), false));
    assert!(ends("true").await.success());
}

#[tokio::test]
async fn what_a_child_finds() {
    for (what, script, found) in [
        ("only the environment it is given", "env | grep -v -e ^PWD= -e ^SHLVL= -e ^_=", "PATH=/usr/bin:/bin\n"),
        ("nothing to read", "wc -c", "0\n"),
        ("no core dumps, and limited memory", "ulimit -c; ulimit -d", "0\n1048576\n"),
        // When memory runs out.
        (
            "that it is the first to go",
            "while ! grep -qx 1000 /proc/$$/oom_score_adj; do sleep 0.01; done; echo so",
            "so\n",
        ),
        ("its invalid UTF-8 replaced", r"printf 'a\377\376b'", "a\u{fffd}\u{fffd}b"),
    ] {
        assert_eq!(ends(script).await.stdout, found, "{what}");
    }
}

#[tokio::test]
async fn the_child_gets_none_of_our_descriptors() {
    let ours = NamedTempFile::new().unwrap();
    let descriptors = ends("exec ls -l /proc/self/fd").await.stdout;
    assert!(descriptors.contains("/dev/null") && !descriptors.contains(ours.path().to_str().unwrap()), "{descriptors}");
}

#[tokio::test]
async fn standard_input_is_the_payload_whole_or_nothing() {
    let payload = "a: b\n".repeat(100_000);
    let mut program = sh("wc -c; exec sha256sum /dev/null");
    program.stdin = Some(payload.clone().into_bytes());
    let finished = undisturbed(program).await.unwrap();
    assert_eq!(finished.stdout.lines().next(), Some(payload.len().to_string().as_str()));
    // A child that never reads it is not blocked.
    let mut deaf = sh("true");
    deaf.stdin = Some(payload.into_bytes());
    assert!(undisturbed(deaf).await.unwrap().success());
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

#[test]
fn kept_is_exact_below_its_limit_and_bounded_above_it() {
    for chunk in [1, 3, 7, 100] {
        let text: Vec<u8> = (b'a'..=b'z').collect();
        for limit in [26, 52, 1000] {
            let mut kept = HeadTail::new(limit);
            text.chunks(chunk).for_each(|bytes| kept.push(bytes));
            assert_eq!(kept.into_string(), "abcdefghijklmnopqrstuvwxyz", "{limit} {chunk}");
        }
        let mut kept = HeadTail::new(6);
        text.chunks(chunk).for_each(|bytes| kept.push(bytes));
        assert_eq!(kept.into_string(), "abc\n[20 bytes left out]\nxyz", "{chunk}");
    }
}

#[tokio::test]
async fn cancellation_asks_and_lets_the_child_finish() {
    let ready = file();
    let script =
        format!("trap 'echo recorded; exit 1' TERM; echo $$ > {}; while :; do sleep 0.01; done", ready.display());
    let (cancel, stopping) = (CancellationToken::new(), CancellationToken::new());
    let ask = async {
        until("the child is ready", || !numbers(&ready).is_empty()).await;
        cancel.cancel();
    };
    let (finished, ()) = tokio::join!(run(sh(&script), LIMITS, &cancel, &stopping), ask);
    let finished = finished.unwrap();
    assert_eq!((finished.cause, finished.status.code()), (Cause::Cancelled, Some(1)));
    assert_eq!(finished.stdout, "recorded\n");
}

#[tokio::test]
async fn a_child_deaf_to_sigterm_is_killed_after_the_grace_with_its_children() {
    let pids = file();
    let script = format!(
        "trap '' TERM; sleep 1000 & echo $! >> {0}; echo $$ >> {0}; while :; do sleep 1000; done",
        pids.display()
    );
    let limits = Limits { grace: Duration::from_millis(50), ..LIMITS };
    let (cancel, stopping) = (CancellationToken::new(), CancellationToken::new());
    let ask = async {
        until("the child is ready", || numbers(&pids).len() == 2).await;
        cancel.cancel();
    };
    let (finished, ()) = tokio::join!(run(sh(&script), limits, &cancel, &stopping), ask);
    let finished = finished.unwrap();
    assert_eq!((finished.cause, finished.status.signal()), (Cause::Cancelled, Some(9)));
    until_gone(&pids).await;
}

#[tokio::test]
async fn the_deadline_stops_a_stopped_child_politely() {
    let terminated = file();
    let script =
        format!("trap 'echo 1 > {}; exit 1' TERM; kill -STOP $$; while :; do sleep 0.01; done", terminated.display());
    let limits = Limits { deadline: Duration::from_millis(200), ..LIMITS };
    let stopping = CancellationToken::new();
    let finished = run(sh(&script), limits, &CancellationToken::new(), &stopping).await.unwrap();
    assert_eq!((finished.cause, finished.status.code()), (Cause::Deadline, Some(1)));
    assert!(stopping.is_cancelled(), "what the child has is taken from it before it is asked to stop");
    assert_eq!(numbers(&terminated), [1]);
}

#[tokio::test]
async fn a_grandchild_that_keeps_the_pipe_dies_with_the_leader() {
    let pids = file();
    let finished = ends(&format!("sleep 1000 & echo $! > {}; echo done", pids.display())).await;
    assert_eq!((finished.success(), finished.stdout.as_str()), (true, "done\n"));
    until_gone(&pids).await;
}

#[tokio::test]
async fn a_descendant_outside_the_group_cannot_hold_the_run_by_the_pipe() {
    let pids = file();
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
    let pids = file();
    let script = format!("trap '' TERM; sleep 1000 & echo $! >> {0}; echo $$ >> {0}; wait", pids.display());
    let (cancel, stopping) = (CancellationToken::new(), CancellationToken::new());
    tokio::select! {
        finished = run(sh(&script), LIMITS, &cancel, &stopping) => panic!("{finished:?}"),
        () = until("the child is ready", || numbers(&pids).len() == 2) => {}
    }
    until_gone(&pids).await;
}

/// Not a test by itself: [`our_own_death_takes_the_child_along`] starts and kills it.
#[tokio::test]
#[ignore = "a helper process"]
async fn host() {
    let pids = std::env::var("PIDS").unwrap();
    let _ = undisturbed(sh(&format!("trap '' TERM; echo $$ > {pids}; exec sleep 1000"))).await;
}

#[tokio::test]
async fn our_own_death_takes_the_child_along() {
    let pids = file();
    let mut host = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "platform::process::tests::host"])
        .env("PIDS", &*pids)
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
async fn files_are_limited() {
    let script = format!("exec head -c 2000000 /dev/zero > {}", file().display());
    assert_eq!(ends(&script).await.status.signal(), Some(nix::libc::SIGXFSZ));
}

#[tokio::test]
async fn what_cannot_start_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let plain = dir.path().join("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();

    let failure = async |path: &Path, args: Vec<OsString>| {
        let program = Program { path: path.into(), args, ..sh("") };
        undisturbed(program).await.unwrap_err()
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
