//! Dumps in real S3-compatible storage: they are restored unchanged, and the storage fails in many ways.

mod files;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, SystemTime};

use axum::http::{Method, StatusCode};
use e2e::objects::{ACCESS_KEY, BUCKET, Fault, Objects, Rule, SECRET_KEY, make_dump as make};
use e2e::operator;
use e2e::postgres::{Node, PASSWORD, Postgres, USER};
use e2e::wait::blocking_until;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::RngExt as _;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

/// The prefix as the operator computes it.
const PREFIX: &str = "prod/shop/orders";

/// A storage, a volume with dumps, and a Job's commands on both.
struct Bench {
    objects: Objects,
    volume: TempDir,
}

impl Bench {
    fn new() -> Bench {
        Bench { objects: Objects::start().unwrap(), volume: tempfile::tempdir().unwrap() }
    }

    fn dumps(&self) -> &Path {
        self.volume.path()
    }

    /// A Job's container, with direct access to the storage.
    fn store(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(operator::binary().unwrap());
        command
            .arg("store")
            .args(arguments)
            .env_clear()
            .envs([("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)])
            .envs([("STORE_BUCKET", BUCKET), ("STORE_PREFIX", PREFIX), ("STORE_ENDPOINT", &self.objects.url())])
            .env("DUMPS", self.dumps())
            .stdin(Stdio::null());
        command
    }

    /// The same through the proxy that injects faults, without retries.
    fn faulty(&self, arguments: &[&str]) -> Command {
        let mut command = self.store(arguments);
        command.envs([("STORE_ENDPOINT", self.objects.faulty_url().as_str()), ("STORE_RETRY_TIMEOUT", "0")]);
        command
    }

    fn push(&self) -> String {
        succeeds(self.store(&["push"]))
    }

    /// Uploads with these variables.
    fn push_with<V: AsRef<OsStr>>(&self, variables: impl IntoIterator<Item = (&'static str, V)>) -> String {
        succeeds(with_env(self.store(&["push"]), variables))
    }

    /// Names of the dumps in the bucket, newest first.
    fn list(&self) -> Vec<String> {
        let lines = succeeds(self.store(&["list"]));
        let names =
            lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["name"].as_str().unwrap().to_owned());
        names.collect()
    }

    fn keys(&self) -> Vec<String> {
        self.objects.keys(PREFIX)
    }

    /// The file of a key below the prefix.
    fn file(&self, key: impl AsRef<Path>) -> PathBuf {
        self.objects.file(PREFIX).join(key)
    }

    /// The names on the volume.
    fn on_volume(&self) -> Vec<String> {
        names(self.dumps())
    }
}

/// The same with these variables.
fn with_env<V: AsRef<OsStr>>(mut command: Command, variables: impl IntoIterator<Item = (&'static str, V)>) -> Command {
    command.envs(variables);
    command
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn succeeds(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    no_secret(&output);
    String::from_utf8(output.stdout).unwrap()
}

/// The sentence with which it failed.
fn fails(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    no_secret(&output);
    let words = String::from_utf8(output.stderr).unwrap();
    let [sentence] = words.lines().collect::<Vec<_>>()[..] else { panic!("{words}") };
    sentence.strip_prefix("error: ").unwrap().to_owned()
}

fn no_secret(output: &Output) {
    for canary in [ACCESS_KEY, SECRET_KEY, "AGE-SECRET-KEY", "Signature="] {
        assert!(!said(output).contains(canary), "{canary} is in {}", said(output));
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.collect();
    names.sort();
    names
}

fn random(length: usize) -> Vec<u8> {
    let mut data = vec![0; length];
    rand::rng().fill(&mut data[..]);
    data
}

/// Makes a dump with a file that is uploaded and fetched in two parts.
fn two_parts(volume: &Path) -> PathBuf {
    make(volume, A, ("7", 1), &random(9 << 20))
}

/// A small dump with data.
fn small(volume: &Path, name: &str) -> PathBuf {
    make(volume, name, ("7", 1), b"data")
}

fn contents(dump: &Path) -> BTreeMap<String, Vec<u8>> {
    names(dump).into_iter().map(|name| (name.clone(), fs::read(dump.join(name)).unwrap())).collect()
}

const A: &str = "20260101T030000Z-aaaaa";
const B: &str = "20260102T030000Z-bbbbb";
const C: &str = "20260103T030000Z-ccccc";

/// A key pair: the file with the secret key, and the public key.
fn keys(directory: &Path, name: &str) -> (PathBuf, String) {
    use age::secrecy::ExposeSecret as _;
    let identity = age::x25519::Identity::generate();
    let file = directory.join(name);
    let text = format!("# created: 2026-01-01T00:00:00Z\n# public key: {}\n", identity.to_public());
    fs::write(&file, text + identity.to_string().expose_secret() + "\n").unwrap();
    (file, identity.to_public().to_string())
}

#[test]
fn a_dump_of_a_real_server_comes_back_as_it_was() {
    let bench = Bench::new();
    let postgres = Postgres::start().unwrap();
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("src").join("postgresql/objects/scripts");
    let node = Node::new(&scripts).unwrap();
    let volume = node.volume("dumps").unwrap();
    e2e::lab::block_on(async || {
        let sql = postgres.connect("postgres").await.unwrap();
        sql.batch_execute(
            "CREATE ROLE canary_role; CREATE TABLE t AS SELECT random()::text AS x FROM generate_series(1, 300000)",
        )
        .await
        .unwrap();
    });
    let dump = |pod: &str| {
        let mut command = node.command("exec sh $SCRIPTS/dump.sh");
        command.envs([("PGHOST", "127.0.0.1"), ("PGUSER", USER), ("PGPASSWORD", PASSWORD), ("HOSTNAME", pod)]);
        command.env("PGPORT", postgres.port().to_string()).env("DUMPS", &volume);
        succeeds(with_env(command, [("KEEP", "2"), ("POSTGRES_DB", "postgres")]));
        names(&volume).into_iter().find(|name| name.ends_with(&format!("Z-{}", &pod[2..]))).unwrap()
    };
    // In plain text.
    let plain = dump("x-plain");
    bench.push_with([("DUMPS", &volume)]);
    let [line] = succeeds(bench.store(&["list"]))
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .collect::<Vec<_>>()
        .try_into()
        .unwrap();
    let bytes: u64 = contents(&volume.join(&plain)).values().map(|data| data.len() as u64).sum();
    assert_eq!(
        (&line["name"], &line["bytes"], &line["tables"], &line["encrypted"]),
        (&plain.as_str().into(), &bytes.into(), &1.into(), &false.into())
    );
    assert!(
        line["postgres"].as_str().unwrap().starts_with(char::is_numeric)
            && line["time"].as_str().unwrap().ends_with('Z'),
        "{line}"
    );
    succeeds(bench.store(&["fetch", &plain]));
    assert_eq!(contents(&bench.dumps().join(&plain)), contents(&volume.join(&plain)));

    // Encrypted, beside it.
    let (identity, recipient) = keys(bench.dumps(), "identity");
    let sealed = dump("x-sealed");
    bench.push_with([("DUMPS", volume.as_os_str()), ("STORE_RECIPIENT", recipient.as_ref())]);
    assert_eq!(bench.list(), [&*sealed, &*plain]);
    for key in bench.keys() {
        let stored = fs::read(bench.file(&key)).unwrap();
        let legible = stored.windows(11).any(|word| word == b"canary_role");
        assert_eq!(legible, key.starts_with(&plain) && key.ends_with("globals.sql"), "{key}");
        assert_eq!(key.starts_with(&sealed) && !key.ends_with(".json"), key.ends_with(".age"), "{key}");
    }
    succeeds(with_env(bench.store(&["fetch"]), [("STORE_IDENTITY_FILE", &identity)]));
    assert_eq!(contents(&bench.dumps().join(&sealed)), contents(&volume.join(&sealed)));
    // It can be decrypted without the operator, too.
    let globals = bench.keys().into_iter().find(|key| key.ends_with("globals.sql.age")).unwrap();
    let text = fs::read_to_string(&identity).unwrap();
    let key: age::x25519::Identity = text.lines().last().unwrap().parse().unwrap();
    let opened = age::decrypt(&key, &fs::read(bench.file(globals)).unwrap()).unwrap();
    assert_eq!(opened, fs::read(volume.join(&sealed).join("globals.sql")).unwrap());
}

#[test]
fn what_an_outage_has_kept_back_is_caught_up() {
    let bench = Bench::new();
    small(bench.dumps(), A);
    bench.objects.set([Rule::new(Method::GET, "", Fault::Answer(StatusCode::SERVICE_UNAVAILABLE))]);
    let sentence = fails(bench.faulty(&["push"]));
    assert!(sentence.contains("503") && sentence.contains("is uploaded with the next one"), "{sentence}");
    small(bench.dumps(), B);
    fails(bench.faulty(&["push"]));
    assert_eq!(bench.keys(), Vec::<String>::new());
    small(bench.dumps(), C);
    // An incomplete dump on the volume does not count.
    fs::create_dir(bench.dumps().join("20260104T030000Z-ddddd.partial")).unwrap();
    bench.objects.set([]);
    let told = succeeds(bench.faulty(&["push"]));
    assert_eq!(told.lines().filter(|line| line.starts_with("stored dump")).count(), 3, "{told}");
    assert_eq!(bench.list(), [C, B, A]);

    // A dump is uploaded only once; and another Postgresql's dumps are left alone.
    let before = bench.keys();
    assert_eq!((bench.push().as_str(), bench.keys()), ("", before.clone()));
    bench.push_with([("STORE_PREFIX", "prod/shop/orders2")]);
    assert_eq!(bench.keys(), before);
    // Not even one whose prefix is inside this one.
    bench.push_with([("STORE_PREFIX", format!("{PREFIX}/other/db").as_str()), ("STORE_KEEP_LAST", "1")]);
    assert_eq!((bench.push().as_str(), bench.list()), ("", [C, B, A].map(str::to_owned).to_vec()));
}

#[test]
fn a_connection_that_is_lost_is_made_again() {
    let bench = Bench::new();
    two_parts(bench.dumps());
    for (method, part) in [
        (Method::PUT, "partNumber=2"),
        (Method::GET, "16386.dump"),
        (Method::POST, "uploadId"),
        (Method::GET, "list-type"),
    ] {
        bench.objects.set([Rule::new(method.clone(), part, Fault::Lose).times(2)]);
        let before = bench.objects.met();
        succeeds(with_env(bench.faulty(&["push"]), [("STORE_RETRY_TIMEOUT", "100")]));
        assert_eq!(bench.objects.met(), before + 2, "{method} {part}");
        bench.objects.set([Rule::new(Method::GET, "16386.dump", Fault::Lose).times(2)]);
        let into = tempfile::tempdir().unwrap();
        let fetch = bench.faulty(&["fetch", A, "--into", into.path().to_str().unwrap()]);
        succeeds(with_env(fetch, [("STORE_RETRY_TIMEOUT", "100")]));
        assert_eq!(contents(&into.path().join(A)), contents(&bench.dumps().join(A)));
        fs::remove_dir_all(bench.objects.file(PREFIX)).unwrap();
    }
}

#[test]
fn half_an_upload_is_no_dump_and_says_why() {
    let bench = Bench::new();
    // In three parts.
    make(bench.dumps(), A, ("7", 1), &random((16 << 20) + 1));
    let later = "What is on the volume stays there, and is uploaded with the next one";
    let put = |part: &str, fault| Rule::new(Method::PUT, part, fault);
    let full = Fault::Answer(StatusCode::INSUFFICIENT_STORAGE);
    let forbidden = Fault::Answer(StatusCode::FORBIDDEN);
    for (what, rule, parts) in [
        ("full", put("partNumber=2", full), &["16386.dump", "507 Insufficient Storage", "full", later][..]),
        ("full at the end", Rule::new(Method::POST, "uploadId", full), &["16386.dump", "507"]),
        ("full for what is small", put("globals.sql", full), &["globals.sql", "507"]),
        ("full for what says that it is complete", put(".json", full), &[".json", "507"]),
        ("no right to write", Rule::new(Method::POST, "uploads", forbidden), &["16386.dump", "403", "credentials"]),
        ("the connection is lost", put("partNumber=3", Fault::Lose), &["16386.dump", "connection", later]),
        ("it does not answer", put("globals.sql", Fault::Hang), &["globals.sql", "did not answer in time", later]),
        (
            "other content",
            Rule::new(Method::GET, "16386.dump", Fault::Change),
            &["16386.dump", "reads back", "its checksum differs"],
        ),
        ("of what is small", Rule::new(Method::GET, "MANIFEST", Fault::Change), &["MANIFEST", "its checksum differs"]),
        ("half of it", Rule::new(Method::GET, "16386.dump", Fault::Lose), &["16386.dump", "connection"]),
        (
            "it is gone",
            Rule::new(Method::HEAD, "SIZES", Fault::Answer(StatusCode::NOT_FOUND)),
            &["SIZES", "it does not exist"],
        ),
    ] {
        bench.objects.set([rule]);
        let patience = (what == "it does not answer").then_some(("STORE_TIMEOUT", "15"));
        let sentence = fails(with_env(bench.faulty(&["push"]), patience));
        for part in parts.iter().chain(&[format!("s3://{BUCKET}/{PREFIX}/{A}").as_str()]) {
            assert!(sentence.contains(part), "{what}: {part} is not in {sentence}");
        }
        bench.objects.set([]);
        assert_eq!(bench.list(), Vec::<String>::new(), "{what}");
        assert_eq!(
            bench.keys().iter().filter(|key| key.ends_with("16386.dump")).count(),
            0,
            "{what}: it takes back what it can"
        );
        let sentence = fails(bench.store(&["fetch", "latest"]));
        assert!(sentence.contains("there is no complete dump"), "{sentence}");
    }
    assert_eq!(bench.on_volume(), [A], "the dumps on the volume stay");
    bench.push();
    assert_eq!(bench.list(), [A]);
}

/// Starts it, and returns once a request meets the fault.
fn held_up(bench: &Bench, mut command: Command, rule: Rule) -> Child {
    let before = bench.objects.met();
    bench.objects.set([rule]);
    let child = command.env("STORE_TIMEOUT", "1000").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    bench.objects.met_more_than(before);
    child
}

/// Kills it when a request meets the fault, and ends the fault.
fn killed(bench: &Bench, command: Command, rule: Rule) {
    let mut child = held_up(bench, command, rule);
    child.kill().unwrap();
    child.wait().unwrap();
    bench.objects.set([]);
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

#[test]
fn an_upload_that_is_killed_leaves_no_dump_and_is_tidied_up_later() {
    let bench = Bench::new();
    two_parts(bench.dumps());
    // Stopped like a pod: at once, and no incomplete upload is left that has to be paid for.
    let mut child = held_up(&bench, bench.faulty(&["push"]), Rule::new(Method::PUT, "partNumber=2", Fault::Hang));
    signal(&child, Signal::SIGTERM);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(!bench.keys().iter().any(|key| key.contains("16386.dump")), "{:?}", bench.keys());
    // Its node is lost.
    killed(&bench, bench.faulty(&["push"]), Rule::new(Method::PUT, "globals.sql", Fault::Hang));
    let left: Vec<_> = bench.keys().into_iter().filter(|key| key.starts_with(A)).collect();
    assert!(left.len() > 1 && bench.list().is_empty(), "{left:?}");
    // Another upload of the dump does not mix with the first, which could still be running.
    bench.push_with([("STORE_KEEP_LAST", "5")]);
    assert_eq!(bench.list(), [A]);
    assert!(left.iter().all(|key| bench.keys().contains(key)));
    // A day later it cannot be.
    let two_days_ago = SystemTime::now() - Duration::from_secs(48 * 60 * 60);
    for key in bench.keys() {
        let file = File::options().write(true).open(bench.file(key)).unwrap();
        file.set_modified(two_days_ago).unwrap();
    }
    bench.push_with([("STORE_KEEP_LAST", "5")]);
    assert!(!left.iter().any(|key| bench.keys().contains(key)), "{:?}", bench.keys());
    let into = tempfile::tempdir().unwrap();
    succeeds(bench.store(&["fetch", "--into", into.path().to_str().unwrap()]));
    assert_eq!(contents(&into.path().join(A)), contents(&bench.dumps().join(A)));
}

#[test]
fn two_uploads_at_once_do_it_once() {
    let bench = Bench::new();
    small(bench.dumps(), A);
    let first = held_up(&bench, bench.faulty(&["push"]), Rule::new(Method::PUT, "16386.dump", Fault::Hang));
    let second = bench.store(&["push"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    blocking_until("the second waits for the first", || {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        locks
            .lines()
            .any(|line| line.contains("->") && line.contains("FLOCK") && line.contains(&second.id().to_string()))
    });
    bench.objects.set([]);
    let told: Vec<_> = [first, second].into_iter().map(|child| said(&child.wait_with_output().unwrap())).collect();
    assert!(told[0].starts_with("stored dump") && told[1].is_empty(), "{told:?}");
    assert_eq!(bench.keys().len(), 6);
}

#[test]
fn what_newer_dumps_stand_for_goes() {
    let bench = Bench::new();
    let push = |keep: &[(&str, &str)]| {
        let mut command = bench.store(&["push"]);
        command.envs(keep.iter().map(|(age, count)| (format!("STORE_KEEP_{age}"), *count)));
        succeeds(command)
    };
    let name = |month: u32, day: u32, suffix: &str| format!("2026{month:02}{day:02}T030000Z-{suffix}");
    let [january, first, second, empty, other] =
        [name(1, 31, "a"), name(2, 1, "b"), name(2, 2, "c"), name(2, 3, "d"), name(1, 1, "e")];
    make(bench.dumps(), &other, ("8", 1), b"of another server");
    for name in [&january, &first, &second] {
        small(bench.dumps(), name);
    }
    push(&[]);
    assert_eq!(bench.list(), [&*second, &*first, &*january, &*other]);
    make(bench.dumps(), &empty, ("7", 0), b"");
    push(&[("LAST", "1"), ("MONTHLY", "2")]);
    assert_eq!(bench.list(), [&*empty, &*second, &*january, &*other], "a month keeps its newest dump with data");
    push(&[("LAST", "1")]);
    assert_eq!(bench.list(), [&*empty, &*second, &*other], "one dump with data stays, and those of another server");
    // All dumps deleted from the bucket are still on the volume, and are not uploaded just to be deleted again.
    assert_eq!(push(&[("LAST", "1")]), "");
    assert!(!bench.keys().iter().any(|key| key.starts_with(&first)));

    // A damaged dump in the bucket does not count, and is uploaded again.
    let damaged = bench.keys().into_iter().find(|key| key.starts_with(&second) && key.ends_with("16386.dump")).unwrap();
    fs::write(bench.file(&damaged), "d").unwrap();
    let told = push(&[("LAST", "1")]);
    assert!(told.contains("is damaged") && told.contains(&format!("stored dump {second}")), "{told}");
    assert_eq!(bench.list(), [&*empty, &*second, &*other]);
    // If it is no longer on the volume, an older one takes its place.
    fs::remove_dir_all(bench.dumps().join(&second)).unwrap();
    let is_good = |key: &String| key.starts_with(&second) && key.ends_with("16386.dump") && *key != damaged;
    let good = bench.keys().into_iter().find(is_good).unwrap();
    fs::remove_file(bench.file(good)).unwrap();
    let told = push(&[("LAST", "1")]);
    assert!(told.contains("does not exist") && told.contains(&format!("stored dump {first}")), "{told}");
    assert_eq!(bench.list(), [&*empty, &*first, &*other]);

    // If nothing may be deleted, the message says what to do.
    small(bench.dumps(), &name(2, 4, "f"));
    bench.objects.set([Rule::new(Method::DELETE, "", Fault::Answer(StatusCode::FORBIDDEN))]);
    let sentence = fails(with_env(bench.faulty(&["push"]), [("STORE_KEEP_LAST", "1")]));
    assert!(sentence.contains("cannot delete") && sentence.contains("403"), "{sentence}");
    succeeds(bench.faulty(&["push"]));
}

#[test]
fn input_that_cannot_be_right_is_refused_in_a_sentence() {
    let bench = Bench::new();
    small(bench.dumps(), A);
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let missing = bench.dumps().join("missing").display().to_string();
    let empty = tempfile::tempdir().unwrap();
    let not_pem = empty.path().join("not-pem").display().to_string();
    fs::write(&not_pem, "nothing").unwrap();
    let none = tempfile::tempdir().unwrap();
    for (variable, value, parts) in [
        ("STORE_ENDPOINT", &*format!("http://{nowhere}"), &["cannot be reached", "s3://dumps"][..]),
        ("STORE_BUCKET", "another-bucket", &["s3://another-bucket/", "404", "bucket's name"]),
        ("AWS_SECRET_ACCESS_KEY", "wrong", &["403", "credentials"]),
        ("AWS_ACCESS_KEY_ID", "another", &["cannot list", "UserNotFound"]),
        ("AWS_ACCESS_KEY_ID", "", &["AWS_ACCESS_KEY_ID is not set", "credentialsSecret"]),
        ("STORE_CA_FILE", &missing, &["cannot read", "missing"]),
        ("STORE_CA_FILE", &not_pem, &["a PEM file with certificates is expected"]),
        ("DUMPS", &missing, &["missing", "No such file"]),
        ("DUMPS", none.path().to_str().unwrap(), &["there is no complete dump in"]),
    ] {
        let push = with_env(bench.store(&["push"]), [("STORE_RETRY_TIMEOUT", "0")]);
        let sentence = fails(with_env(push, [(variable, value)]));
        for part in parts {
            assert!(sentence.contains(part), "{variable}: {part} is not in {sentence}");
        }
    }
    // The rest is in the tables of src/store/settings.rs.
    for (variable, value) in [
        ("STORE_ENDPOINT", "https://me:canary@s3.example.com"),
        ("STORE_RECIPIENT", "age1canary"),
        ("STORE_KEEP_LAST", "-1"),
    ] {
        let refused = with_env(bench.store(&["push"]), [(variable, value)]).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{variable}: {}", said(&refused));
    }
    // Files that the server did not write.
    fs::write(bench.dumps().join(A).join("16386.dump"), "DATA").unwrap();
    let sentence = fails(bench.store(&["push"]));
    assert!(sentence.contains(A) && sentence.contains("is damaged") && sentence.contains("16386.dump"), "{sentence}");
    small(bench.dumps(), B);
    let told = bench.push();
    assert!(told.contains(&format!("dump {A} is damaged")) && bench.list() == [B], "{told}");
    // A text that was encrypted for another purpose.
    fs::write(bench.file(format!("{C}.json")), "{}").unwrap();
    let sentence = fails(bench.store(&["fetch", C]));
    assert!(sentence.contains("damaged"), "{sentence}");
    let sentence = fails(bench.store(&["fetch", "20200101T000000Z-a"]));
    assert!(sentence.contains("store list"), "{sentence}");
    assert_eq!(bench.list(), [B]);
}

#[test]
fn a_certificate_of_ones_own() {
    let bench = Bench { objects: Objects::start_with_tls().unwrap(), volume: tempfile::tempdir().unwrap() };
    small(bench.dumps(), A);
    let sentence = fails(with_env(bench.store(&["push"]), [("STORE_RETRY_TIMEOUT", "0")]));
    assert!(sentence.contains("cannot be reached") && sentence.contains("certificate"), "{sentence}");
    bench.push_with([("STORE_CA_FILE", bench.objects.ca())]);
}

#[test]
fn a_dump_comes_back_whole_or_not_at_all() {
    let bench = Bench::new();
    let home = tempfile::tempdir().unwrap();
    let (identity, recipient) = keys(home.path(), "identity");
    let (wrong, _) = keys(home.path(), "wrong");
    let original = two_parts(bench.dumps());
    bench.push_with([("STORE_RECIPIENT", &recipient)]);
    small(bench.dumps(), B);
    bench.push();
    let into = tempfile::tempdir().unwrap();
    let fetch = |name: &str, identity: Option<&Path>| {
        let mut command = bench.faulty(&["fetch", name, "--into"]);
        command.arg(into.path()).envs(identity.map(|identity| ("STORE_IDENTITY_FILE", identity)));
        command
    };
    let nothing_left = |what: &str| assert_eq!(names(into.path()), Vec::<String>::new(), "{what}");

    let no_key = home.path().join("no-key");
    fs::write(&no_key, "# nothing\n").unwrap();
    for (what, identity, parts) in [
        ("no key", None, &["is encrypted for", recipient.as_str(), "--identity-file"][..]),
        ("the wrong key", Some(&wrong), &["was not encrypted for this key"]),
        ("a file without a key", Some(&no_key), &["AGE-SECRET-KEY-1 is expected"]),
        ("a file that is not there", Some(&home.path().join("x")), &["there is no file", "identitySecret"]),
    ] {
        let output = fetch(A, identity.map(|identity| &**identity)).output().unwrap();
        let words = said(&output);
        assert!(!output.status.success() && parts.iter().all(|part| words.contains(part)), "{what}: {words}");
        nothing_left(what);
    }

    // The stored object is damaged, or its transfer is.
    let object = |name: &str, part: &str| {
        let key = bench.keys().into_iter().find(|key| key.starts_with(name) && key.contains(part)).unwrap();
        bench.file(key)
    };
    for (name, identity) in [(A, Some(&*identity)), (B, None)] {
        let files = [object(name, "/SIZES"), object(name, "16386.dump")];
        for (what, spoil) in [
            (
                "a byte is another",
                (|file| {
                    let mut data = fs::read(file).unwrap();
                    *data.last_mut().unwrap() ^= 1;
                    fs::write(file, data).unwrap();
                }) as fn(&Path),
            ),
            ("its end is missing", |file| {
                let length = fs::metadata(file).unwrap().len();
                File::options().write(true).open(file).unwrap().set_len(length - 1).unwrap();
            }),
            ("there is more", |file| {
                let data = [fs::read(file).unwrap(), b"x".to_vec()].concat();
                fs::write(file, data).unwrap();
            }),
            ("it is gone", |file| fs::remove_file(file).unwrap()),
        ] {
            for file in &files {
                let good = fs::read(file).unwrap();
                spoil(file);
                let sentence = fails(fetch(name, identity));
                let key = file.file_name().unwrap().to_str().unwrap();
                assert!(sentence.contains("is damaged") && sentence.contains(key), "{what}: {sentence}");
                nothing_left(what);
                fs::write(file, good).unwrap();
            }
        }
        for (what, fault) in
            [("lost", Fault::Lose), ("forbidden", Fault::Answer(StatusCode::FORBIDDEN)), ("changed", Fault::Change)]
        {
            bench.objects.set([Rule::new(Method::GET, "16386.dump", fault)]);
            let sentence = fails(fetch(name, identity));
            assert!(sentence.contains("16386.dump"), "{what}: {sentence}");
            nothing_left(what);
        }
        bench.objects.set([]);
    }
    // It is stopped.
    let child = held_up(&bench, fetch(A, Some(&identity)), Rule::new(Method::GET, "16386.dump", Fault::Hang));
    // Another fetch does not take its partial files for leftovers.
    let another = bench.store(&["fetch", A, "--into", into.path().to_str().unwrap()]);
    let sentence = fails(with_env(another, [("STORE_IDENTITY_FILE", &identity)]));
    assert!(sentence.contains("another process is using"), "{sentence}");
    signal(&child, Signal::SIGTERM);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", said(&ended));
    nothing_left("stopped");
    // It is killed, and its leftovers are no obstacle.
    killed(&bench, fetch(A, Some(&identity)), Rule::new(Method::GET, "16386.dump", Fault::Hang));
    assert_eq!(names(into.path()), [format!("{A}.partial")]);
    succeeds(fetch(A, Some(&identity)));
    assert_eq!(names(into.path()), [A]);
    assert_eq!(contents(&into.path().join(A)), contents(&original));
    assert!(succeeds(fetch(A, Some(&identity))).contains("already"));
    // A different directory of the same name.
    fs::write(into.path().join(A).join("globals.sql"), "other").unwrap();
    let sentence = fails(fetch(A, Some(&identity)));
    assert!(sentence.contains("move it away"), "{sentence}");
}

/// The peak memory of a process so far, in KiB.
fn peak(child: &Child) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn memory_does_not_grow_with_the_data() {
    let home = tempfile::tempdir().unwrap();
    let (identity, recipient) = keys(home.path(), "identity");
    // Both sizes exceed what is held in memory at once: four parts of 8 MiB.
    let peaks = [40, 120].map(|size: usize| {
        let bench = Bench::new();
        make(bench.dumps(), A, ("7", 1), &random(size << 20));
        let push = with_env(bench.faulty(&["push"]), [("STORE_RECIPIENT", &recipient)]);
        // Each at its last request.
        let child = held_up(&bench, push, Rule::new(Method::PUT, ".json", Fault::Hang));
        let pushing = peak(&child);
        bench.objects.set([]);
        assert!(child.wait_with_output().unwrap().status.success());
        let into = tempfile::tempdir().unwrap();
        let fetch = bench.faulty(&["fetch", "--into", into.path().to_str().unwrap()]);
        let fetch = with_env(fetch, [("STORE_IDENTITY_FILE", &identity)]);
        let last = (size << 20) / (8 << 20) * (8 << 20);
        let child =
            held_up(&bench, fetch, Rule::new(Method::GET, format!("16386.dump.age bytes={last}-"), Fault::Hang));
        let fetching = peak(&child);
        bench.objects.set([]);
        assert!(child.wait_with_output().unwrap().status.success());
        (pushing, fetching)
    });
    let [(push, fetch), (push_more, fetch_more)] = peaks;
    println!("peak memory in KiB with 40 MiB: push {push}, fetch {fetch}; with 120 MiB: {push_more}, {fetch_more}");
    // Three times the data.
    assert!(2 * push_more < 3 * push && 2 * fetch_more < 3 * fetch, "{peaks:?}");
    assert!(push_more.max(fetch_more) < 128 << 10, "{peaks:?}");
}

/// The object that marks a dump as complete may be arbitrarily large, depending on its writer.
#[test]
fn memory_does_not_grow_with_what_a_bucket_says() {
    let bench = Bench::new();
    small(bench.dumps(), A);
    bench.push();
    let entry = fs::read_to_string(bench.file(format!("{A}.json"))).unwrap();
    let mut entry: Value = serde_json::from_str(&entry).unwrap();
    let file = serde_json::json!({"name": "1.dump", "size": 0, "sha256": ""});
    entry["files"].as_array_mut().unwrap().extend(std::iter::repeat_n(file, 24_000));
    for minute in 0..60 {
        let name = format!("20250101T03{minute:02}00Z-aaaaa");
        entry["name"] = Value::from(name.as_str());
        let text = serde_json::to_string(&entry).unwrap();
        assert!(text.len() < 1 << 20);
        fs::write(bench.file(format!("{name}.json")), text).unwrap();
    }
    let child = held_up(&bench, bench.faulty(&["list"]), Rule::new(Method::GET, format!("{A}.json"), Fault::Hang));
    let peak = peak(&child);
    bench.objects.set([]);
    let told = said(&child.wait_with_output().unwrap());
    assert!(told.matches("is damaged").count() == 60);
    println!("peak memory in KiB: {peak}");
    assert!(peak < 128 << 10, "{peak} KiB");
}
