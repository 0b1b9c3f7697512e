//! Dumps in a restic repository in real S3-compatible storage: they are restored unchanged, and the storage fails in many ways.

mod files;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use axum::http::{Method, StatusCode};
use e2e::objects::{ACCESS_KEY, BUCKET, Fault, Objects, Rule, SECRET_KEY, make_dump as make};
use e2e::operator;
use e2e::postgres::{Node, PASSWORD, Postgres, USER};
use e2e::shim::{executable, program};
use e2e::wait::blocking_until;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use rand::RngExt as _;
use serde_json::Value;
use tempfile::TempDir;

/// The prefix as the operator computes it.
const PREFIX: &str = "prod/shop/orders";
/// The password of encrypted repositories.
const KEY: &str = "key-canary";

/// A storage, a volume with dumps, and a Job's commands on both.
struct Bench {
    objects: Objects,
    volume: TempDir,
    /// A directory with the file of the password.
    secrets: TempDir,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(Objects::start().unwrap())
    }

    fn with(objects: Objects) -> Bench {
        let [volume, secrets] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        fs::write(secrets.path().join("password"), format!("{KEY}\n")).unwrap();
        Bench { objects, volume, secrets }
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
            .env("CLIENTAPP_RESTIC", operator::restic().unwrap())
            .envs([("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY)])
            .envs([("STORE_BUCKET", BUCKET), ("STORE_PREFIX", PREFIX), ("STORE_ENDPOINT", &self.objects.url())])
            .envs([("DUMPS", self.dumps()), ("STORE_PASSWORD_FILE", &self.secrets.path().join("password"))])
            .stdin(Stdio::null());
        command
    }

    /// The same through the proxy that injects faults.
    fn faulty(&self, arguments: &[&str]) -> Command {
        let mut command = self.store(arguments);
        command.env("STORE_ENDPOINT", self.objects.faulty_url());
        command
    }

    fn push(&self) -> String {
        succeeds(self.store(&["push"]))
    }

    /// Uploads with these variables.
    fn push_with<V: AsRef<OsStr>>(&self, variables: impl IntoIterator<Item = (&'static str, V)>) -> String {
        succeeds(with_env(self.store(&["push"]), variables))
    }

    /// What a user runs who has the values of the Secrets, as the README shows.
    fn restic(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(operator::restic().unwrap());
        command
            .args(arguments)
            .arg("--no-cache")
            .env_clear()
            .env("RESTIC_REPOSITORY", format!("s3:{}/{BUCKET}/{PREFIX}", self.objects.url()))
            .envs([("AWS_ACCESS_KEY_ID", ACCESS_KEY), ("AWS_SECRET_ACCESS_KEY", SECRET_KEY), ("RESTIC_PASSWORD", KEY)])
            .stdin(Stdio::null());
        command
    }

    /// The snapshots, newest first; none if there is no repository.
    fn snapshots(&self) -> Vec<Value> {
        let output = self.restic(&["snapshots", "--json", "--no-lock"]).output().unwrap();
        if output.status.code() == Some(10) {
            return Vec::new();
        }
        assert!(output.status.success(), "{}", said(&output));
        let mut snapshots: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        snapshots.sort_by_key(|snapshot| std::cmp::Reverse(snapshot["time"].to_string()));
        snapshots
    }

    /// Names of the dumps in the repository, newest first.
    fn list(&self) -> Vec<String> {
        let name = |snapshot: Value| snapshot["paths"][0].as_str().unwrap().rsplit_once('/').unwrap().1.to_owned();
        self.snapshots().into_iter().map(name).collect()
    }

    fn keys(&self) -> Vec<String> {
        self.objects.keys(PREFIX)
    }

    /// The keys below a directory of the repository.
    fn keys_of(&self, directory: &str) -> Vec<String> {
        self.keys().into_iter().filter(|key| key.starts_with(&format!("{directory}/"))).collect()
    }

    /// The ids of the repository's locks.
    fn locks(&self) -> Vec<String> {
        succeeds(self.restic(&["list", "locks", "--no-lock"])).lines().map(str::to_owned).collect()
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
    for canary in [ACCESS_KEY, SECRET_KEY, KEY, "Signature="] {
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

/// Makes a dump with a file that is uploaded and fetched in parts.
fn two_parts(volume: &Path) -> PathBuf {
    make(volume, A, ("7", 1), &random(40 << 20))
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
    let mut dump = node.command("exec sh $SCRIPTS/dump.sh");
    dump.envs([("PGHOST", "127.0.0.1"), ("PGUSER", USER), ("PGPASSWORD", PASSWORD), ("HOSTNAME", "x-a")]);
    dump.env("PGPORT", postgres.port().to_string()).env("DUMPS", &volume);
    succeeds(with_env(dump, [("KEEP", "2"), ("POSTGRES_DB", "postgres")]));
    let name = names(&volume).into_iter().find(|name| name.ends_with("Z-a")).unwrap();
    bench.push_with([("DUMPS", &volume)]);

    // What people have who know restic.
    let [snapshot] = &bench.snapshots()[..] else { panic!("{:?}", bench.snapshots()) };
    let bytes: u64 = contents(&volume.join(&name)).values().map(|data| data.len() as u64).sum();
    assert_eq!(snapshot["summary"]["total_bytes_processed"], bytes);
    let tags: Vec<_> = snapshot["tags"].as_array().unwrap().iter().map(|tag| tag.as_str().unwrap()).collect();
    assert_eq!(tags[..3], ["dump", "data", "tables=1"], "{tags:?}");
    assert!(tags[3].starts_with("postgres=") && bench.list() == [&*name], "{snapshot}");
    let stamp = format!("{}T{}Z", &name[..8], &name[9..15]);
    let time = snapshot["time"].as_str().unwrap().replace(['-', ':'], "");
    assert_eq!(time[..16], stamp, "{snapshot}");
    succeeds(bench.restic(&["check", "--read-data"]));
    for key in bench.keys() {
        let stored = fs::read(bench.file(&key)).unwrap();
        assert!(!stored.windows(11).any(|word| word == b"canary_role"), "{key}");
    }
    succeeds(bench.store(&["fetch", &name]));
    assert_eq!(contents(&bench.dumps().join(&name)), contents(&volume.join(&name)));

    // Without a password, restic needs none either.
    let open = |mut command: Command| {
        command.env_remove("STORE_PASSWORD_FILE").env("STORE_PREFIX", "open");
        command
    };
    succeeds(open(bench.store(&["push"])));
    let mut command = bench.restic(&["snapshots", "--insecure-no-password"]);
    command.env_remove("RESTIC_PASSWORD");
    command.env("RESTIC_REPOSITORY", format!("s3:{}/{BUCKET}/open", bench.objects.url()));
    assert!(succeeds(command).contains(&name));
    let into = tempfile::tempdir().unwrap();
    succeeds(open(bench.store(&["fetch", "--into", into.path().to_str().unwrap()])));
    assert_eq!(contents(&into.path().join(&name)), contents(&volume.join(&name)));
}

/// Answers each request with credentials, as EKS Pod Identity does, if it has the token of the pod. Returns its URL.
fn identity(token: &'static str) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("http://{}/v1/credentials", listener.local_addr().unwrap());
    // Ends with the test.
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let head = BufReader::new(connection.try_clone().unwrap()).lines().map(Result::unwrap);
            let head: Vec<_> = head.take_while(|line| !line.is_empty()).collect();
            let is_known = head.iter().any(|line| line.eq_ignore_ascii_case(&format!("authorization: {token}")));
            let body = format!(
                r#"{{"AccessKeyId": "{ACCESS_KEY}", "SecretAccessKey": "{SECRET_KEY}", "Token": "", "Expiration": "2999-01-01T00:00:00Z"}}"#
            );
            let (status, body) = if is_known { ("200 OK", body) } else { ("403 Forbidden", String::new()) };
            let length = body.len();
            write!(connection, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
                .unwrap();
        }
    });
    url
}

#[test]
fn the_identity_of_the_pod_opens_the_storage() {
    let bench = Bench::new();
    small(bench.dumps(), A);
    let token = tempfile::tempdir().unwrap();
    fs::write(token.path().join("token"), "canary-token").unwrap();
    let url = identity("canary-token");
    let by_identity = |arguments: &[&str]| {
        let mut command = bench.store(arguments);
        command.env_remove("AWS_ACCESS_KEY_ID").env_remove("AWS_SECRET_ACCESS_KEY");
        command.env("AWS_CONTAINER_CREDENTIALS_FULL_URI", &url);
        command.env("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", token.path().join("token"));
        command
    };
    succeeds(by_identity(&["push"]));
    assert_eq!(bench.list(), [A]);
    let into = tempfile::tempdir().unwrap();
    succeeds(by_identity(&["fetch", "--into", into.path().to_str().unwrap()]));
    assert_eq!(contents(&into.path().join(A)), contents(&bench.dumps().join(A)));
    // Half of the keys is a mistake, and no identity replaces it.
    let sentence = fails(with_env(by_identity(&["push"]), [("AWS_ACCESS_KEY_ID", ACCESS_KEY)]));
    assert!(sentence.contains("AWS_SECRET_ACCESS_KEY is not set"), "{sentence}");
}

#[test]
fn what_an_outage_has_kept_back_is_caught_up() {
    let bench = Bench::new();
    small(bench.dumps(), A);
    bench.objects.set([Method::GET, Method::HEAD].map(|method| Rule::new(method, "", Fault::Hang)));
    let down = || fails(with_env(bench.faulty(&["push"]), [("STORE_TIMEOUT", "2")]));
    let sentence = down();
    assert!(
        sentence.contains("did not answer within 2 seconds") && sentence.contains("is uploaded with the next one"),
        "{sentence}"
    );
    small(bench.dumps(), B);
    down();
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
    // Not even by one whose repository is inside this one.
    bench.push_with([("STORE_PREFIX", format!("{PREFIX}/other/db").as_str()), ("STORE_KEEP", r#"{"last": 1}"#)]);
    assert_eq!((bench.push().as_str(), bench.list()), ("", [C, B, A].map(str::to_owned).to_vec()));
}

#[test]
#[ignore = "only another version of restic can break it"]
fn a_connection_that_is_lost_is_made_again() {
    let bench = Bench::new();
    two_parts(bench.dumps());
    for (method, part) in [(Method::PUT, "/data/"), (Method::PUT, "/snapshots/"), (Method::GET, "/snapshots/")] {
        bench.objects.set([Rule::new(method.clone(), part, Fault::Lose).times(2)]);
        let before = bench.objects.met();
        succeeds(bench.faulty(&["push"]));
        bench.objects.set([Rule::new(Method::GET, "/data/", Fault::Lose).times(2)]);
        let into = tempfile::tempdir().unwrap();
        succeeds(bench.faulty(&["fetch", A, "--into", into.path().to_str().unwrap()]));
        assert!(bench.objects.met() >= before + 3, "{method} {part}");
        assert_eq!(contents(&into.path().join(A)), contents(&bench.dumps().join(A)));
        fs::remove_dir_all(bench.objects.file(PREFIX)).unwrap();
    }
}

#[test]
fn half_an_upload_is_no_dump_and_says_why() {
    let bench = Bench::new();
    two_parts(bench.dumps());
    let forbidden = Fault::Answer(StatusCode::FORBIDDEN);
    for part in ["/keys/", "/locks/", "/data/", "/index/", "/snapshots/"] {
        bench.objects.set([Rule::new(Method::PUT, part, forbidden)]);
        let sentence = fails(bench.faulty(&["push"]));
        for words in ["check the credentials", "is uploaded with the next one", &format!("/{BUCKET}/{PREFIX}")] {
            assert!(sentence.contains(words), "{part}: {words} is not in {sentence}");
        }
        bench.objects.set([]);
        assert_eq!(bench.list(), Vec::<String>::new(), "{part}");
        let sentence = fails(bench.store(&["fetch", "latest"]));
        assert!(sentence.contains("there is no complete dump"), "{sentence}");
    }
    assert_eq!(bench.on_volume(), [A], "the dumps on the volume stay");
    bench.push();
    assert_eq!(bench.list(), [A]);
    // restic itself cannot repair this.
    fs::remove_dir_all(bench.objects.file(PREFIX)).unwrap();
    bench.objects.set([Rule::new(Method::PUT, "/config", forbidden)]);
    fails(bench.faulty(&["push"]));
    let sentence = fails(bench.store(&["push"]));
    assert!(sentence.contains("its object config is missing") && sentence.contains("delete nothing"), "{sentence}");
    fs::remove_dir_all(bench.file("keys")).unwrap();
    bench.push();
}

/// Starts it in a group of its own, and returns once a request meets the fault.
fn held_up(bench: &Bench, mut command: Command, rule: Rule) -> Child {
    let before = bench.objects.met();
    bench.objects.set([rule]);
    let child = command.env("STORE_TIMEOUT", "1000").process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = child.spawn().unwrap();
    bench.objects.met_more_than(before);
    child
}

/// Kills it with its restic, as a container is killed.
fn kill_all(mut child: Child) {
    killpg(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL).unwrap();
    child.wait().unwrap();
}

/// Kills it when a request meets the fault, and ends the fault.
fn killed(bench: &Bench, command: Command, rule: Rule) {
    kill_all(held_up(bench, command, rule));
    bench.objects.set([]);
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
}

/// With Object Lock, where the bucket keeps as a former version what is forgotten, pruned and unlocked, and restic does not see it.
#[test]
fn an_upload_that_is_killed_leaves_no_dump_and_no_obstacle() {
    let bench = &Bench::with(Objects::start_with_lock().unwrap());
    two_parts(bench.dumps());
    // Stopped like a pod: at once, and without a lock.
    let child = held_up(bench, bench.faulty(&["push"]), Rule::new(Method::PUT, "/data/", Fault::Hang));
    signal(&child, Signal::SIGTERM);
    let ended = child.wait_with_output().unwrap();
    assert!(ended.status.code() == Some(1) && said(&ended).contains("stopped before"), "{}", said(&ended));
    bench.objects.set([]);
    assert_eq!((bench.list(), bench.locks()), (Vec::new(), Vec::new()));
    // Its node is lost.
    killed(bench, bench.faulty(&["push"]), Rule::new(Method::PUT, "/index/", Fault::Hang));
    assert_eq!((bench.list().len(), bench.locks().len()), (0, 1));
    bench.push();
    // Also while it removes data, when nobody else may change the repository.
    small(bench.dumps(), B);
    let removing = with_env(bench.faulty(&["push"]), [("STORE_KEEP", r#"{"last": 1}"#)]);
    killed(bench, removing, Rule::new(Method::DELETE, "/data/", Fault::Hang));
    assert!(!bench.locks().is_empty());
    small(bench.dumps(), C);
    let told = bench.push_with([("STORE_KEEP", r#"{"last": 1}"#)]);
    assert!(told.contains("another process has locked the repository"), "{told}");
    assert_eq!((bench.list(), bench.locks()), (vec![C.to_owned()], Vec::new()));
    succeeds(bench.restic(&["check", "--read-data"]));
    let into = tempfile::tempdir().unwrap();
    succeeds(bench.store(&["fetch", "--into", into.path().to_str().unwrap()]));
    assert_eq!(contents(&into.path().join(C)), contents(&bench.dumps().join(C)));
    assert!(bench.objects.former_versions() > 0);
}

#[test]
fn two_uploads_at_once_do_it_once() {
    let bench = Bench::new();
    small(bench.dumps(), A);
    let first = held_up(&bench, bench.faulty(&["push"]), Rule::new(Method::PUT, "/snapshots/", Fault::Hang));
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
    assert_eq!(bench.list(), [A]);
}

#[test]
fn what_newer_dumps_stand_for_goes() {
    let bench = Bench::new();
    let push = |keep: &str| succeeds(with_env(bench.store(&["push"]), [("STORE_KEEP", keep)]));
    let name = |month: u32, day: u32, suffix: &str| format!("2026{month:02}{day:02}T030000Z-{suffix}");
    let [january, first, second, empty, other] =
        [name(1, 31, "a"), name(2, 1, "b"), name(2, 2, "c"), name(2, 3, "d"), name(1, 1, "e")];
    make(bench.dumps(), &other, ("8", 1), b"of another server");
    for name in [&january, &first, &second] {
        small(bench.dumps(), name);
    }
    push("{}");
    assert_eq!(bench.list(), [&*second, &*first, &*january, &*other]);
    make(bench.dumps(), &empty, ("7", 0), b"");
    push(r#"{"last": 1, "monthly": 2}"#);
    assert_eq!(bench.list(), [&*empty, &*second, &*january, &*other], "a month keeps its newest dump with data");
    push(r#"{"last": 1}"#);
    assert_eq!(bench.list(), [&*empty, &*second, &*other], "one dump with data stays, and those of another server");
    // What was removed is still on the volume, and is not uploaded just to be removed again.
    assert_eq!(push(r#"{"last": 1}"#), "");

    // A snapshot of the user's own, in the same repository, is none of ours.
    let own = bench.dumps().join("MANIFEST");
    fs::write(&own, "x").unwrap();
    succeeds(bench.restic(&["backup", "--host", "7", own.to_str().unwrap()]));
    small(bench.dumps(), &name(2, 4, "f"));
    push(r#"{"last": 1}"#);
    assert_eq!(bench.list().len(), 4, "{:?}", bench.list());

    // Damage is told, whatever is uploaded.
    let pack = bench.keys_of("data").remove(0);
    fs::remove_file(bench.file(pack)).unwrap();
    small(bench.dumps(), &name(2, 5, "g"));
    let sentence = fails(bench.store(&["push"]));
    assert!(sentence.contains("is damaged (") && sentence.contains("`restic check` says more"), "{sentence}");

    // If nothing may be removed, the message says so.
    let bench = Bench::new();
    small(bench.dumps(), A);
    bench.push();
    small(bench.dumps(), B);
    bench.objects.set([Rule::new(Method::DELETE, "/snapshots/", Fault::Answer(StatusCode::FORBIDDEN))]);
    let sentence = fails(with_env(bench.faulty(&["push"]), [("STORE_KEEP", r#"{"last": 1}"#)]));
    assert!(sentence.contains("check the credentials"), "{sentence}");
    bench.objects.set([]);
    assert_eq!(bench.list(), [B, A]);
    // Nor was anything of it removed.
    succeeds(bench.restic(&["check", "--read-data"]));
}

#[test]
fn input_that_cannot_be_right_is_refused_in_a_sentence() {
    let bench = Bench::new();
    small(bench.dumps(), A);
    // It never accepts.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = silent.local_addr().unwrap();
    let missing = bench.dumps().join("missing").display().to_string();
    let empty = tempfile::tempdir().unwrap();
    let not_pem = empty.path().join("not-pem").display().to_string();
    fs::write(&not_pem, "").unwrap();
    let none = tempfile::tempdir().unwrap();
    for (variable, value, parts) in [
        (
            "STORE_ENDPOINT",
            &*format!("http://{nowhere}"),
            &["did not answer within 3 seconds", "check the endpoint"][..],
        ),
        ("AWS_SECRET_ACCESS_KEY", "wrong", &["check the credentials"]),
        ("AWS_ACCESS_KEY_ID", "another", &["check the credentials"]),
        ("AWS_ACCESS_KEY_ID", "", &["AWS_ACCESS_KEY_ID is not set", "credentialsSecret"]),
        ("STORE_CA_FILE", &missing, &["cannot read", "missing"]),
        ("STORE_PASSWORD_FILE", &missing, &["there is no file", "passwordSecret"]),
        ("STORE_PASSWORD_FILE", &not_pem, &["is empty: it needs the repository's password"]),
        ("CLIENTAPP_RESTIC", &missing, &["cannot find restic at", "CLIENTAPP_RESTIC"]),
        ("DUMPS", &missing, &["missing", "No such file"]),
        ("DUMPS", none.path().to_str().unwrap(), &["there is no complete dump in"]),
    ] {
        let timeout = if variable == "STORE_ENDPOINT" { "3" } else { "120" };
        let push = with_env(bench.store(&["push"]), [("STORE_TIMEOUT", timeout)]);
        let sentence = fails(with_env(push, [(variable, value)]));
        for part in parts {
            assert!(sentence.contains(part), "{variable}: {part} is not in {sentence}");
        }
    }
    // The rest is in the tables of src/store/settings.rs.
    for (variable, value) in [("STORE_ENDPOINT", "https://me:canary@s3.example.com"), ("STORE_KEEP", r#"{"last": -1}"#)]
    {
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
    let sentence = fails(bench.store(&["fetch", "20200101T000000Z-a"]));
    assert!(sentence.contains("restic snapshots"), "{sentence}");
    let mut open = bench.store(&["push"]);
    open.env_remove("STORE_PASSWORD_FILE");
    let sentence = fails(open);
    assert!(sentence.contains("encrypted with another password, or with none"), "{sentence}");
    assert_eq!(bench.list(), [B]);
}

/// The address is for documentation (RFC 5737): only the proxy leads anywhere.
#[test]
fn the_proxy_of_the_job_leads_to_the_storage() {
    let bench = Bench::new();
    small(bench.dumps(), A);
    let through = |arguments: &[&str]| {
        let proxy =
            [("STORE_ENDPOINT", "http://192.0.2.1:9000".to_owned()), ("HTTP_PROXY", bench.objects.faulty_url())];
        with_env(bench.store(arguments), proxy)
    };
    succeeds(through(&["push"]));
    assert_eq!(bench.list(), [A]);
    let into = tempfile::tempdir().unwrap();
    succeeds(through(&["fetch", "--into", into.path().to_str().unwrap()]));
    assert_eq!(contents(&into.path().join(A)), contents(&bench.dumps().join(A)));
}

#[test]
fn a_certificate_of_ones_own() {
    let bench = Bench::with(Objects::start_with_tls().unwrap());
    small(bench.dumps(), A);
    let sentence = fails(with_env(bench.store(&["push"]), [("STORE_TIMEOUT", "3")]));
    assert!(sentence.contains("did not answer") && sentence.contains("certificate"), "{sentence}");
    bench.push_with([("STORE_CA_FILE", bench.objects.ca())]);
}

/// Whatever restic is told to do: the owner of a volume may place links in it while it is read.
#[test]
fn nothing_else_of_the_container_can_be_read() {
    let bench = Bench::new();
    small(bench.dumps(), A);
    let script = bench.secrets.path().join("restic");
    let password = bench.secrets.path().join("password");
    let text = format!(
        "#!/bin/sh\nfor file in {}/{A}/MANIFEST {} /proc/$PPID/environ /proc/self/environ\n\
         do if grep -q . $file; then read=\"$read $file\"; fi; done 2>/dev/null\necho \"read:$read\" >&2\nexit 1\n",
        bench.dumps().display(),
        password.display(),
    );
    executable(&script, &text, 0o755).unwrap();
    // Where restic may do as it likes.
    let temporary = tempfile::tempdir().unwrap();
    let push = with_env(bench.store(&["push"]), [("CLIENTAPP_RESTIC", script.as_path()), ("TMPDIR", temporary.path())]);
    let output = with_env(push, [("PATH", "/usr/bin")]).output().unwrap();
    if said(&output).contains("has no Landlock") {
        return;
    }
    let read = format!("read: {}/{A}/MANIFEST. ", bench.dumps().display());
    assert!(said(&output).contains(&read), "{}", said(&output));
}

#[test]
fn a_dump_comes_back_whole_or_not_at_all() {
    let bench = Bench::new();
    let original = two_parts(bench.dumps());
    bench.push();
    let into = tempfile::tempdir().unwrap();
    let fetch = || bench.faulty(&["fetch", A, "--into", into.path().to_str().unwrap()]);
    let nothing_left = |what: &str| assert_eq!(names(into.path()), Vec::<String>::new(), "{what}");
    let wrong = bench.secrets.path().join("wrong");
    fs::write(&wrong, "another").unwrap();
    let sentence = fails(with_env(fetch(), [("STORE_PASSWORD_FILE", &wrong)]));
    assert!(sentence.contains("it is encrypted with another password"), "{sentence}");
    nothing_left("the wrong password");

    // The stored data are damaged, or their transfer is refused.
    let largest = bench.keys_of("data").into_iter().max_by_key(|key| fs::metadata(bench.file(key)).unwrap().len());
    let file = bench.file(largest.unwrap());
    let good = fs::read(&file).unwrap();
    for (what, spoil) in [
        (
            "a byte is another",
            (|file| {
                let mut data = fs::read(file).unwrap();
                let middle = data.len() / 2;
                data[middle] ^= 1;
                fs::write(file, data).unwrap();
            }) as fn(&Path),
        ),
        ("its end is missing", |file| {
            let length = fs::metadata(file).unwrap().len();
            fs::File::options().write(true).open(file).unwrap().set_len(length / 2).unwrap();
        }),
        ("it is gone", |file| fs::remove_file(file).unwrap()),
    ] {
        spoil(&file);
        let sentence = fails(fetch());
        assert!(sentence.contains(&format!("cannot restore {A} from ")), "{what}: {sentence}");
        nothing_left(what);
        fs::write(&file, &good).unwrap();
    }
    bench.objects.set([Rule::new(Method::GET, "/data/", Fault::Answer(StatusCode::FORBIDDEN))]);
    let sentence = fails(fetch());
    assert!(sentence.contains("Access Denied"), "{sentence}");
    nothing_left("forbidden");
    // It is stopped.
    let child = held_up(&bench, fetch(), Rule::new(Method::GET, "/data/", Fault::Hang));
    // Another fetch does not take its partial files for leftovers.
    let sentence = fails(bench.store(&["fetch", A, "--into", into.path().to_str().unwrap()]));
    assert!(sentence.contains("another process is using"), "{sentence}");
    signal(&child, Signal::SIGTERM);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "{}", said(&ended));
    nothing_left("stopped");
    // It is killed, and its leftovers are no obstacle.
    killed(&bench, fetch(), Rule::new(Method::GET, "/data/", Fault::Hang));
    assert_eq!(names(into.path()), [format!("{A}.partial")]);
    succeeds(fetch());
    assert_eq!(names(into.path()), [A]);
    assert_eq!(contents(&into.path().join(A)), contents(&original));
    assert!(succeeds(fetch()).contains("already"));
    // A different directory of the same name.
    fs::write(into.path().join(A).join("globals.sql"), "other").unwrap();
    let sentence = fails(fetch());
    assert!(sentence.contains("move it away"), "{sentence}");
}

/// The peak memory of a process and its children so far, in KiB.
fn peak(pid: u32) -> u64 {
    let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let status = read("status");
    let own =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<u64>().ok());
    let children = read(&format!("task/{pid}/children"));
    own.unwrap_or_default() + children.split_whitespace().map(|child| peak(child.parse().unwrap())).sum::<u64>()
}

#[test]
#[ignore = "only another version of restic can break it"]
fn memory_does_not_grow_with_the_data() {
    let peaks = [100, 300].map(|size: usize| {
        let bench = Bench::new();
        make(bench.dumps(), A, ("7", 1), &random(size << 20));
        // Each at its last request.
        let child = held_up(&bench, bench.faulty(&["push"]), Rule::new(Method::PUT, "/snapshots/", Fault::Hang));
        let peak = peak(child.id());
        bench.objects.set([]);
        assert!(child.wait_with_output().unwrap().status.success());
        peak
    });
    println!("peak memory in KiB: {peaks:?}");
    // Three times the data.
    assert!(2 * peaks[1] < 3 * peaks[0], "{peaks:?}");
}
