//! The scripts of the pods, with a real PostgreSQL: run as in a pod, interrupted at any point, on volumes that are
//! full, lost or another server's.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{LazyLock, Mutex};

use e2e::plane::free_port;
use e2e::postgres::{Node, Pod};
use e2e::wait::{block_on, blocking_until};
use tokio_postgres::{NoTls, SimpleQueryMessage};

mod network;
mod restore;
mod settings;
mod tls;

use network::{Lag, Network};

const PASSWORD: &str = "n&w 'pass\\word";
const REPLICATION: &str = "ReplicationCanary";

/// A node with the passwords as they are mounted.
fn node() -> Node {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("src").join("postgresql/objects/scripts");
    let node = Node::new(&scripts).unwrap();
    node.file("password", PASSWORD).unwrap();
    node.file("replication", REPLICATION).unwrap();
    node
}

/// The Job that initialises the database.
fn initialize(node: &Node, volume: &str, leave: &str) -> Command {
    let mut command = node.command("exec sh $SCRIPTS/initialize.sh");
    command
        .envs([("INITIALIZE", leave), ("POSTGRES_USER", "shop"), ("POSTGRES_DB", "orders")])
        .env("PGDATA", node.path(volume).join("data"))
        .env("PASSWORD_FILE", node.path("password"))
        .env("REPLICATION_PASSWORD_FILE", node.path("replication"));
    command
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn succeeds(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    said(&output)
}

/// Runs a pod that fails, and returns its exit code and its output.
fn fails(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    assert!(!output.status.success(), "{}", said(&output));
    (output.status.code(), said(&output))
}

/// A volume with a database: a copy of one of two, each with its own system identifier, since initialising one takes
/// seconds.
fn with_database(node: &Node, volume: &str, which: usize) -> PathBuf {
    static MADE: LazyLock<[Mutex<Option<tempfile::TempDir>>; 2]> = LazyLock::new(Default::default);
    let mut made = MADE[which].lock().unwrap();
    let kept = made.get_or_insert_with(|| {
        let name = format!("template-{which}");
        node.volume(&name).unwrap();
        succeeds(initialize(node, &name, "yes"));
        let kept = tempfile::tempdir().unwrap();
        let copied =
            Command::new("cp").arg("-a").arg(node.path(&name)).arg(kept.path().join("volume")).status().unwrap();
        assert!(copied.success());
        kept
    });
    let path = node.path(volume);
    let copied = Command::new("cp").arg("-a").arg(kept.path().join("volume")).arg(&path).status().unwrap();
    assert!(copied.success());
    path
}

/// A server, and how to reach it.
struct Server<'a> {
    node: &'a Node,
    pod: Option<Pod>,
    volume: String,
    port: u16,
}

impl<'a> Server<'a> {
    fn primary(node: &'a Node, volume: &str, hba: &str, settings: &str) -> Server<'a> {
        let mut server = Server { node, pod: None, volume: volume.to_owned(), port: free_port().unwrap() };
        server.start(hba, settings);
        server
    }

    /// Starts it, and returns once it answers.
    fn start(&mut self, hba: &str, settings: &str) {
        self.start_with(hba, settings, "");
    }

    /// The same, for a request whose dump is restored beside the database.
    fn start_with(&mut self, hba: &str, settings: &str, restored: &str) {
        let Server { node, volume, port, .. } = self;
        let script = format!("exec sh $SCRIPTS/primary.sh -c port={port} -c unix_socket_directories=$HOME {settings}");
        let mut command = node.command(&script);
        command.env("PGDATA", node.path(volume).join("data")).env("HBA_FILE", node.path("scripts").join(hba));
        command.env("RESTORED", restored);
        self.pod = Some(node.start(command, &format!("{volume}.log")).unwrap());
        blocking_until(&format!("{} answers", self.volume), || self.ask("postgres", "SELECT").is_ok());
    }

    fn stop(&mut self) {
        self.pod.take().unwrap().stop().unwrap();
    }

    /// Runs what the hook runs after each start.
    fn roles(&self) -> Output {
        let mut command = self.node.command("exec sh $SCRIPTS/roles.sh");
        command.env("PGHOST", self.node.path("")).env("PGPORT", self.port.to_string()).env("POSTGRES_USER", "shop");
        command.env("REPLICATION_PASSWORD_FILE", self.node.path("replication")).output().unwrap()
    }

    /// The result of a statement, over the network.
    fn over_tcp(&self, user: &str, password: &str, database: &str, statement: &str) -> Result<String, String> {
        query("127.0.0.1", self.port, (user, password), database, statement)
    }

    /// The same if the database is read-only by default.
    fn writing(&self, user: &str, password: &str, database: &str, statement: &str) -> Result<String, String> {
        let statement =
            format!("SET statement_timeout = 0; SET default_transaction_read_only = off; COMMIT; {statement}");
        self.over_tcp(user, password, database, &statement)
    }

    /// The result of a statement, from within the pod.
    fn sql(&self, database: &str, statement: &str) -> String {
        self.ask(database, statement).unwrap()
    }

    fn ask(&self, database: &str, statement: &str) -> Result<String, String> {
        within(self.node, self.port, database, statement)
    }

    fn system(&self) -> String {
        self.sql("postgres", "SELECT system_identifier FROM pg_control_system()")
    }

    /// A dump Job.
    fn dump(&self, pod: &str) -> Command {
        self.dumping(pod, self.node.command("exec sh $SCRIPTS/dump.sh"))
    }

    fn dumping(&self, pod: &str, mut command: Command) -> Command {
        command
            .envs([("KEEP", "2"), ("HOSTNAME", pod), ("PGHOST", "127.0.0.1"), ("PGUSER", "replicator")])
            .env("POSTGRES_DB", "orders")
            .env("DUMPS", self.node.path("dumps"))
            .env("REPORT", self.node.path("report"))
            .env("PGPORT", self.port.to_string())
            .env("PGPASSWORD", REPLICATION);
        command
    }
}

/// The result of a statement, or the server's refusal, as psql shows it without headers. A pod with psql would cost many times as much.
fn query(
    host: &str,
    port: u16,
    (user, password): (&str, &str),
    database: &str,
    statement: &str,
) -> Result<String, String> {
    let mut config = tokio_postgres::Config::new();
    config.host(host).port(port).user(user).password(password).dbname(database);
    let answer = block_on(async || {
        let (client, connection) = config.connect(NoTls).await?;
        let connection = tokio::spawn(connection);
        let answer = client.simple_query(statement).await;
        // The next statement may need the database for itself.
        drop(client);
        let _ = connection.await;
        answer
    });
    let refusal = |error: tokio_postgres::Error| match error.as_db_error() {
        Some(error) => error.to_string(),
        None => format!("{error:?}"),
    };
    let rows = answer.map_err(refusal)?.into_iter().filter_map(|message| match message {
        SimpleQueryMessage::Row(row) => {
            Some((0..row.len()).map(|column| row.get(column).unwrap_or_default().to_owned()).collect::<Vec<_>>())
        }
        _ => None,
    });
    Ok(rows.map(|row| row.join("|")).collect::<Vec<_>>().join("\n"))
}

/// The result of a statement by the server's own user, from within its pod.
fn within(node: &Node, port: u16, database: &str, statement: &str) -> Result<String, String> {
    query(node.path("").to_str().unwrap(), port, ("postgres", ""), database, statement)
}

/// The names in a directory.
fn files(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = entries.collect();
    names.sort();
    names
}

/// Makes a program stop where the script calls it, and waits until it does, so that the test can end the pod there.
struct Barrier {
    begun: PathBuf,
}

impl Barrier {
    /// `before` runs first in the program's place.
    fn at(node: &Node, program: &str, before: &str) -> Barrier {
        let begun = node.path("begun");
        let _ = fs::remove_file(&begun);
        assert!(Command::new("mkfifo").arg("-m").arg("666").arg(&begun).status().unwrap().success());
        node.replace(program, &format!("{before}\necho >{}\nsleep 1000", begun.display())).unwrap();
        Barrier { begun }
    }

    fn reached(&self) {
        // Opening waits for the other side.
        fs::read(&self.begun).unwrap();
    }
}

/// Kills a pod where its script calls a program, after `before` has run.
fn cut_off(node: &Node, (program, before): (&str, &str), command: Command) {
    let barrier = Barrier::at(node, program, before);
    let pod = node.start(command, "cut.log").unwrap();
    barrier.reached();
    pod.kill().unwrap();
    node.put_back(program).unwrap();
}

/// Cuts off the Job that makes a database where it calls each of these programs, and lets another begin again. `sound` looks at the
/// server that this one makes.
fn is_begun_again(
    node: &Node,
    points: &[(&str, &str)],
    job: impl Fn(&str) -> Command,
    sound: impl Fn(&Server<'_>) -> bool,
) {
    for (point, (program, before)) in points.iter().copied().enumerate() {
        let volume = format!("data{point}");
        node.volume(&volume).unwrap();
        cut_off(node, (program, before), job(&volume));
        // No server starts on these leftovers.
        assert!(!node.path(&volume).join("data").exists(), "{program}, {point}");
        let mut primary = node.command("exec sh $SCRIPTS/primary.sh");
        primary.env("PGDATA", node.path(&volume).join("data")).env("HBA_FILE", "/nowhere");
        assert_eq!(fails(primary).0, Some(71));
        succeeds(job(&volume));
        let mut server = Server::primary(node, &volume, "pg_hba.conf", "");
        assert!(sound(&server), "{program}, {point}");
        server.stop();
        assert_eq!(files(&node.path(&volume)), ["data", "initialize.lock"], "{program}, {point}");
    }
}

#[test]
fn a_database_is_made_whole_and_once() {
    let node = node();
    let volume = node.volume("data").unwrap();
    let log = succeeds(initialize(&node, "data", "yes"));
    let mut server = Server::primary(&node, "data", "pg_hba.conf", "");
    let says = |statement: &str| server.over_tcp("shop", PASSWORD, "orders", statement).unwrap();
    assert_eq!(says("SELECT current_user || ' ' || current_setting('data_checksums')"), "shop on");
    says("CREATE TABLE t AS SELECT 1; CREATE SCHEMA s; CREATE EXTENSION IF NOT EXISTS plpgsql");
    let roles =
        "SELECT rolname || ' ' || rolsuper || ' ' || rolreplication FROM pg_roles WHERE rolname !~ '^pg_' ORDER BY 1";
    assert_eq!(says(roles), "postgres true true\nreplicator true true\nshop false false");
    let databases =
        "SELECT datname || ' ' || rolname || ' ' || datcollate FROM pg_database d JOIN pg_roles r ON r.oid = datdba
        WHERE NOT datistemplate ORDER BY 1";
    assert_eq!(says(databases), "orders shop C.UTF-8\npostgres postgres C.UTF-8");
    assert!(server.over_tcp("shop", "another", "orders", "SELECT").is_err());
    assert!(server.over_tcp("postgres", "", "orders", "SELECT").is_err(), "the server's own user has no password");
    let system = server.system();
    server.stop();

    // Once more, with and without permission: existing data stays.
    for leave in ["yes", "no"] {
        succeeds(initialize(&node, "data", leave));
    }
    server.start("pg_hba.conf", "");
    assert_eq!((server.system(), server.sql("orders", "SELECT count(*) FROM t").as_str()), (system, "1"));
    server.stop();
    assert_eq!(files(&volume), ["data", "initialize.lock"]);
    let logs = log + &fs::read_to_string(node.path("data.log")).unwrap();
    assert!(!logs.contains(REPLICATION) && !logs.contains(PASSWORD), "{logs}");

    // A database of the server's own name.
    node.volume("own").unwrap();
    let mut command = initialize(&node, "own", "yes");
    command.env("POSTGRES_DB", "postgres");
    succeeds(command);
    let mut server = Server::primary(&node, "own", "pg_hba.conf", "");
    let is = "SELECT current_user || ' ' || rolsuper FROM pg_roles WHERE rolname = current_user";
    assert_eq!(server.over_tcp("shop", PASSWORD, "postgres", is).unwrap(), "shop false");
    assert!(server.over_tcp("postgres", PASSWORD, "postgres", "SELECT 1").is_err(), "it has no password");
    server.stop();
}

#[test]
fn a_first_start_that_is_cut_off_is_begun_again() {
    let node = node();
    // A half-finished initdb: the files that it writes last are missing.
    let half =
        r#"for a; do case $a in --pgdata=*) d=${a#--pgdata=};; esac; done; mkdir "$d"; echo 15 >"$d/PG_VERSION""#;
    let whole = r#"$REAL "$@""#;
    let points = [("initdb", half), ("initdb", whole), ("psql", ""), ("psql", whole), ("mv", "")];
    let answers = |server: &Server<'_>| server.over_tcp("shop", PASSWORD, "orders", "SELECT 1").unwrap() == "1";
    is_begun_again(&node, &points, |volume| initialize(&node, volume, "yes"), answers);

    // After the rename the database is complete. While the pod is at work, no other is.
    node.volume("named").unwrap();
    let barrier = Barrier::at(&node, "mv", whole);
    let pod = node.start(initialize(&node, "named", "yes"), "cut.log").unwrap();
    barrier.reached();
    let (code, words) = fails(initialize(&node, "named", "yes"));
    assert!(code == Some(1) && words.contains("another pod is at work"), "{words}");
    pod.kill().unwrap();
    node.put_back("mv").unwrap();
    let mut server = Server::primary(&node, "named", "pg_hba.conf", "");
    assert!(answers(&server));
    server.stop();
}

#[test]
fn what_was_lost_is_not_made_anew() {
    let node = node();
    let serve = |volume: &str| {
        let mut command = node.command("exec sh $SCRIPTS/primary.sh");
        command.env("PGDATA", node.path(volume).join("data")).env("HBA_FILE", node.path("scripts/pg_hba.conf"));
        command
    };
    // An empty volume: neither a server nor a Job without permission initialises a database on it.
    let empty = node.volume("empty").unwrap();
    for (command, words) in [(serve("empty"), "there was one"), (initialize(&node, "empty", "no"), "none is made")] {
        let (code, said) = fails(command);
        assert!(code == Some(71) && said.contains(words), "{said}");
        assert!(!empty.join("data").exists());
    }
    // Something other than a database, even with permission.
    let data = node.volume("other").unwrap().join("data");
    node.volume("other/data").unwrap();
    node.file("other/data/precious", "x").unwrap();
    assert_eq!(fails(initialize(&node, "other", "yes")).0, Some(71));
    assert_eq!(files(&data), ["precious"]);

    // A database of another major version.
    let data = with_database(&node, "old", 0).join("data");
    node.file("old/data/PG_VERSION", "9.6\n").unwrap();
    let before = files(&data);
    for command in [serve("old"), initialize(&node, "old", "yes"), initialize(&node, "old", "no")] {
        let (code, said) = fails(command);
        assert!(code == Some(72) && said.contains("PostgreSQL 9.6"), "{said}");
    }
    assert_eq!(files(&data), before);
}

#[test]
fn a_primary_whose_volume_is_read_only_or_full_says_so_and_goes_on_once_there_is_room() {
    let node = node();
    let data = with_database(&node, "data", 0).join("data");
    let before = files(&data);
    let port = free_port().unwrap();
    let serve = "sh $SCRIPTS/primary.sh -c port=$PORT -c unix_socket_directories=$HOME";
    let pod = |volume: &str, script: &str, prepare: &str| {
        let mut command = node.prepared(script, prepare);
        command.env("PGDATA", node.path(volume).join("data")).env("HBA_FILE", node.path("scripts/pg_hba.conf"));
        command.env("PORT", port.to_string());
        command
    };
    let read_only = "mount --bind $HOME/data $HOME/data && mount -o remount,bind,ro $HOME/data";
    let (code, words) = fails(pod("data", &format!("exec {serve}"), read_only));
    assert!(code == Some(1) && words.trim_end().ends_with("Read-only file system"), "{words}");
    assert_eq!(files(&data), before);

    // It is full before it starts, and once more while it runs.
    node.volume("full").unwrap();
    let full = "mount -t tmpfs -o mode=777,size=160m tmpfs $HOME/full && cp -a $HOME/data/. $HOME/full \
        && { head -c 160m /dev/zero >$HOME/full/ballast || true; } && chmod 666 $HOME/full/ballast";
    let script = format!(
        "{serve}; echo \"first $?\"; rm $HOME/full/ballast; {serve}; echo \"then $?\"; rm $HOME/full/ballast; \
        exec {serve}"
    );
    let started = node.start(pod("full", &script, full), "full.log").unwrap();
    let server = Server { node: &node, pod: Some(started), volume: "full".to_owned(), port };
    let log = || fs::read_to_string(node.path("full.log")).unwrap();
    let home = node.path("");
    let home = home.to_str().unwrap();
    let ask = |statement: &str| server.ask("orders", statement);
    let answers = || ask("SELECT 1").is_ok();
    blocking_until("it has room and answers", answers);
    let words = log();
    let (first, _) = words.split_once("\nfirst 1\n").unwrap_or_else(|| panic!("{words}"));
    assert!(first.ends_with("No space left on device"), "{first}");

    let system = server.system();
    ask("CREATE TABLE t AS SELECT 1 AS n").unwrap();
    let fill = format!("COPY (SELECT repeat('x', 1000) FROM generate_series(1, 1000000)) TO '{home}/full/ballast'");
    let refused = ask(&fill).unwrap_err();
    assert!(refused.contains("No space left on device"), "{refused}");
    // It goes on as long as its WAL has room, and then ends instead of acknowledging what it cannot keep.
    let mut acknowledged = 1;
    while acknowledged < 30 && ask("INSERT INTO t VALUES (2); SELECT pg_switch_wal()").is_ok() {
        acknowledged += 1;
    }
    blocking_until("it has ended, has room and answers", || log().contains("\nthen 1\n") && answers());
    let words = log();
    let (_, then) = words.split_once("\nfirst 1\n").unwrap();
    assert!(then.contains("No space left on device"), "{then}");
    assert_eq!(server.system(), system);
    let kept: u32 = ask("SELECT count(*) FROM t").unwrap().parse().unwrap();
    assert!(kept >= acknowledged, "{kept} rows of {acknowledged}");
    server.pod.unwrap().stop().unwrap();
}

#[test]
fn the_hook_ends_on_any_server() {
    let node = node();
    with_database(&node, "data", 0);
    let mut server = Server::primary(&node, "data", "pg_hba.conf", "");
    let follows =
        |server: &Server<'_>, password: &str| server.over_tcp("replicator", password, "postgres", "SELECT").is_ok();
    assert!(follows(&server, REPLICATION));
    // A new password, on a server that is read-only by default.
    server.sql("postgres", "ALTER SYSTEM SET default_transaction_read_only = on");
    server.sql("postgres", "SELECT pg_reload_conf()");
    node.file("replication", "Another").unwrap();
    let ran = server.roles();
    assert!(ran.status.success() && follows(&server, "Another"), "{}", said(&ran));
    // A database from an earlier version of the operator, whose own user is the only superuser.
    server.sql(
        "postgres",
        "SET transaction_read_only = off; ALTER ROLE shop SUPERUSER; ALTER ROLE replicator NOSUPERUSER",
    );
    let ran = server.roles();
    assert!(ran.status.success() && follows(&server, "Another"), "{}", said(&ran));
    let is = "SELECT rolsuper FROM pg_roles WHERE rolname = 'replicator'";
    assert_eq!(server.sql("postgres", is), "t");
    server.stop();
    // A server that is a standby writes nothing at all.
    node.file("data/data/standby.signal", "").unwrap();
    server.start("pg_hba.conf", "");
    node.file("replication", "Third").unwrap();
    let ran = server.roles();
    assert!(ran.status.success() && follows(&server, "Another"), "{}", said(&ran));
    server.stop();
}

#[test]
fn a_dump_is_complete_or_not_there() {
    let node = node();
    with_database(&node, "data", 0);
    node.volume("dumps").unwrap();
    let mut server = Server::primary(&node, "data", "pg_hba.conf", "");
    server.sql("orders", "CREATE TABLE t AS SELECT random()::text AS x FROM generate_series(1, 100000)");
    succeeds(server.dump("x-a"));
    let kept = files(&node.path("dumps"));
    let stays = |what: &str| assert_eq!(files(&node.path("dumps")), kept, "{what}");

    // Sets `f` to the file that the program writes.
    let file = "for a; do case $a in --file=*) f=${a#--file=};; esac; done";
    let truncated = |size: &str| format!("{file}; $REAL \"$@\"; truncate -s {size} \"$f\"");
    for (what, program, script) in [
        ("pg_dump fails", "pg_dump", "exit 1"),
        ("pg_dumpall fails", "pg_dumpall", "exit 1"),
        // Lists that omit a missing file.
        ("globals are cut off", "pg_dumpall", &truncated("300")),
        ("half a dump", "pg_dump", &truncated("$(($(wc -c <\"$f\") / 2))")),
        ("all but its end", "pg_dump", &truncated("$(($(wc -c <\"$f\") - 9))")),
        ("it does not reach the disk", "sync", "exit 1"),
    ] {
        node.replace(program, script).unwrap();
        fails(server.dump("x-b"));
        node.put_back(program).unwrap();
        stays(what);
    }
    let mut wrong = server.dump("x-b");
    wrong.env("PGPASSWORD", "wrong");
    fails(wrong);
    stays("the wrong password");
    server.sql("postgres", "CREATE DATABASE shut ALLOW_CONNECTIONS false");
    let (_, words) = fails(server.dump("x-b"));
    assert!(words.contains("shut"), "{words}");
    stays("a database that cannot be dumped");
    server.sql("postgres", "DROP DATABASE shut");

    // A volume that is full, and then has room again.
    let script = "sh $SCRIPTS/dump.sh; echo \"first $?\"; ls -A $DUMPS; rm $DUMPS/ballast; sh $SCRIPTS/dump.sh; echo \"then $?\"";
    let full = "mkdir $HOME/full && mount -t tmpfs -o mode=777,size=4m tmpfs $HOME/full && head -c 3700k /dev/zero >$HOME/full/ballast && chmod 777 $HOME/full/ballast";
    let mut command = server.dumping("x-b", node.prepared(script, full));
    let words = said(&command.env("DUMPS", node.path("full")).output().unwrap());
    assert!(
        words.contains("No space left on device") && words.contains("first 1\nballast\n") && words.contains("then 0"),
        "{words}"
    );

    // It is stopped, or its node is lost.
    for stopped in [true, false] {
        let barrier = Barrier::at(&node, "pg_dump", &format!("{file}; echo half >\"$f\""));
        let mut pod = node.start(server.dump("x-b"), "dump.log").unwrap();
        barrier.reached();
        if stopped {
            pod.terminate().unwrap();
            assert_eq!(pod.wait().unwrap(), Some(143));
            stays("it is stopped");
        } else {
            // While it is running, another dump leaves it alone.
            node.put_back("pg_dump").unwrap();
            let words = succeeds(server.dump("x-c"));
            assert!(words.contains("another dump is at work"), "{words}");
            pod.kill().unwrap();
            let left = |name: &String| name.ends_with(".partial");
            assert_eq!(files(&node.path("dumps")).iter().filter(|name| left(name)).count(), 1);
            succeeds(server.dump("x-d"));
            assert!(!files(&node.path("dumps")).iter().any(left));
        }
    }
    server.stop();
}

#[test]
fn no_dump_goes_for_one_that_is_worth_less() {
    let node = node();
    with_database(&node, "data", 0);
    with_database(&node, "another", 1);
    let dumps = node.volume("dumps").unwrap();
    node.file("dumps/notes", "mine").unwrap();
    let [mut server, mut another] = ["data", "another"].map(|volume| Server::primary(&node, volume, "pg_hba.conf", ""));
    // A fake clock, so that each dump has another second, however fast the machine is.
    let mut second = 10;
    let mut dump = |server: &Server<'_>, name: &str| {
        second += 1;
        node.replace("date", &format!("echo 20260101T0000{second}Z")).unwrap();
        succeeds(server.dump(&format!("x-{name}")));
        let names = files(&dumps).into_iter().filter_map(|name| Some(name.split_once("Z-")?.1.to_owned()));
        names.collect::<Vec<_>>().join(" ")
    };
    server.sql("orders", "CREATE TABLE t AS SELECT 1");
    another.sql("orders", "CREATE TABLE t AS SELECT 1");
    assert_eq!(dump(&server, "a"), "a");
    assert_eq!(dump(&server, "b"), "a b");
    assert_eq!(dump(&server, "c"), "b c", "two are kept");
    // Another server on the same volume.
    assert_eq!(dump(&another, "d"), "b c d");
    assert_eq!(dump(&another, "e"), "b c d e");
    assert_eq!(dump(&another, "f"), "b c e f");
    // All data of the first is gone.
    server.sql("orders", "DROP TABLE t");
    assert_eq!(dump(&server, "g"), "b c e f g");
    assert_eq!(dump(&server, "h"), "b c e f g h");
    assert_eq!(dump(&server, "i"), "b c e f h i");
    // There is data again; and one of the good dumps is damaged.
    let name = files(&dumps).into_iter().find(|name| name.ends_with("Z-c")).unwrap();
    node.file(&format!("dumps/{name}/globals.sql"), "").unwrap();
    server.sql("orders", "CREATE TABLE t AS SELECT 1");
    assert_eq!(dump(&server, "j"), "b c e f i j");
    assert_eq!(dump(&server, "k"), "c e f j k");
    assert_eq!(fs::read_to_string(dumps.join("notes")).unwrap(), "mine");
    server.stop();
    another.stop();
}

/// A standby of a primary.
struct Standby<'a> {
    node: &'a Node,
    primary: u16,
    port: u16,
    pod: Option<Pod>,
    /// More settings, as arguments.
    settings: &'static str,
    /// More variables.
    env: Vec<(&'static str, PathBuf)>,
}

impl<'a> Standby<'a> {
    fn of(primary: &Server<'a>) -> Standby<'a> {
        Standby {
            node: primary.node,
            primary: primary.port,
            port: free_port().unwrap(),
            pod: None,
            settings: "",
            env: Vec::new(),
        }
    }

    fn command(&self, script: &str) -> Command {
        self.surrounded(self.node.command(script))
    }

    /// The same with the environment of its pod.
    fn surrounded(&self, mut command: Command) -> Command {
        let node = self.node;
        command
            .envs([("HOSTNAME", "db-standby-0"), ("PRIMARY_HOST", "127.0.0.1"), ("LAG", "1000000")])
            .env("PRIMARY_PORT", self.primary.to_string())
            .env("PGDATA", node.path("copy/data"))
            .env("PGPASSFILE", node.path("pgpass"))
            .env("HBA_FILE", node.path("scripts/pg_hba.conf"))
            .env("REPLICATION_PASSWORD_FILE", node.path("replication"))
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    fn script(&self) -> String {
        let Standby { port, settings, .. } = self;
        format!("exec sh $SCRIPTS/standby.sh -c port={port} -c unix_socket_directories=$HOME {settings}")
    }

    fn serve(&self) -> Command {
        self.command(&self.script())
    }

    fn start(&mut self) {
        self.pod = Some(self.node.start(self.serve(), "standby.log").unwrap());
    }

    fn stop(&mut self) {
        self.pod.take().unwrap().stop().unwrap();
    }

    /// The result of a probe.
    fn probe(&self, script: &str) -> bool {
        let mut command = self.command(&format!("exec sh $SCRIPTS/{script}"));
        command
            .env("PGHOST", self.node.path(""))
            .env("PGPORT", self.port.to_string())
            .output()
            .unwrap()
            .status
            .success()
    }

    fn ready(&self) -> bool {
        self.probe("standby-ready.sh")
    }

    fn until_ready(&self, what: &str) {
        // The probe is a pod, and the server that is not there yet can be asked for less.
        blocking_until(what, || self.says("SELECT").is_ok() && self.ready());
    }

    fn says(&self, statement: &str) -> Result<String, String> {
        within(self.node, self.port, "orders", statement)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.node.path("standby.log")).unwrap()
    }
}

/// Drops the standby's replication slot on the primary.
fn let_slot_go(primary: &Server<'_>) {
    let drop = "SELECT pg_drop_replication_slot('db_standby_0')";
    blocking_until("the slot is dropped", || primary.ask("orders", drop).is_ok());
}

#[test]
fn a_standby_without_room_for_a_copy_says_so_and_does_not_read_the_primary() {
    let node = node();
    with_database(&node, "data", 0);
    node.volume("copy").unwrap();
    let mut primary = Server::primary(&node, "data", "pg_hba.conf", "");
    let standby = Standby::of(&primary);
    node.replace("pg_basebackup", "echo read >>$HOME/read; exec $REAL \"$@\"").unwrap();
    let small = "mount -t tmpfs -o mode=777,size=10m tmpfs $HOME/copy";
    let started = |prepare: &str| fails(standby.surrounded(node.prepared(&standby.script(), prepare)));
    let (code, words) = started(small);
    assert!(
        code == Some(75) && words.contains("the volume has 10 MiB free, and a copy of the primary needs"),
        "{words}"
    );
    assert!(!words.contains("beside"), "{words}");
    // What it has is kept.
    let former = format!(
        "{small} && mkdir $HOME/copy/data && echo 17 >$HOME/copy/data/PG_VERSION && touch $HOME/copy/data.new $HOME/copy/data/standby.signal && chmod -R 777 $HOME/copy"
    );
    let (code, words) = started(&former);
    assert!(code == Some(75) && words.contains("beside the former copy"), "{words}");
    assert!(!node.path("read").exists(), "{words}");
    primary.stop();
}

#[test]
fn a_standby_follows_or_is_not_ready() {
    let node = node();
    with_database(&node, "data", 0);
    node.volume("copy").unwrap();
    // The primary keeps little WAL, so that the test need not write much.
    let bounds = "-c wal_keep_size=0 -c max_slot_wal_keep_size=16MB -c max_wal_size=32MB -c min_wal_size=32MB";
    let mut primary = Server::primary(&node, "data", "pg_hba.conf", bounds);
    primary.sql("orders", "CREATE TABLE t AS SELECT 1 AS n");
    let mut standby = Standby::of(&primary);
    standby.start();
    standby.until_ready("it is ready");
    let one = "SELECT pg_is_in_recovery(), count(*) FROM t";
    blocking_until("it replicates", || standby.says(one).as_deref() == Ok("t|1"));
    primary.sql("orders", "INSERT INTO t VALUES (2)");
    blocking_until("it continues to replicate", || standby.says("SELECT count(*) FROM t").as_deref() == Ok("2"));
    assert!(standby.probe("standby-alive.sh"));

    // It was away briefly: the primary has kept the WAL that it missed.
    standby.stop();
    assert!(!standby.ready());
    primary.sql("orders", "INSERT INTO t VALUES (3)");
    standby.start();
    blocking_until("it catches up", || standby.says("SELECT count(*) FROM t").as_deref() == Ok("3") && standby.ready());
    assert!(!standby.log().contains("starts over"), "{}", standby.log());

    // Without its primary it still serves its data, but is not ready; nor does it exit.
    primary.stop();
    blocking_until("it is not ready", || !standby.ready());
    assert_eq!(standby.says("SELECT count(*) FROM t").unwrap(), "3");
    assert!(standby.probe("standby-alive.sh"));
    primary.start("pg_hba.conf", bounds);
    standby.until_ready("it is ready again");

    // It was away, stopped or just behind, for so long that the primary has given it up.
    standby.stop();
    let write = || {
        for _ in 0..6 {
            primary.sql("orders", "CREATE TABLE big AS SELECT repeat('x', 1000) FROM generate_series(1, 12000)");
            primary.sql("orders", "DROP TABLE big; SELECT pg_switch_wal()");
        }
        primary.sql("orders", "CHECKPOINT");
    };
    write();
    let slot = "SELECT wal_status FROM pg_replication_slots";
    blocking_until("the primary has given it up", || {
        primary.sql("orders", "CHECKPOINT");
        primary.sql("orders", slot) == "lost"
    });
    blocking_until("the kubelet has to restart it", || !standby.probe("standby-alive.sh"));
    primary.sql("orders", "INSERT INTO t VALUES (4)");
    standby.start();
    standby.until_ready("it is rebuilt");
    assert_eq!(standby.says("SELECT count(*) FROM t").unwrap(), "4");
    assert!(standby.log().contains("starts over"));
    assert_eq!(files(&node.path("copy")), ["data"]);

    // An interrupted base backup; the old data stays until the new backup is complete.
    standby.stop();
    let_slot_go(&primary);
    write();
    let barrier = Barrier::at(&node, "pg_basebackup", "");
    standby.start();
    barrier.reached();
    assert!(node.path("copy/data/PG_VERSION").exists());
    standby.pod.take().unwrap().kill().unwrap();
    node.put_back("pg_basebackup").unwrap();
    standby.start();
    standby.until_ready("it is rebuilt again");

    // Another server in the primary's place: the copy may be all that is left of the first.
    standby.stop();
    primary.stop();
    with_database(&node, "other", 1);
    let mut other = Server { node: &node, pod: None, volume: "other".to_owned(), port: primary.port };
    other.start("pg_hba.conf", "");
    // A network that needs a moment does not make it trust its copy.
    standby.primary = Network::to(other.port, &[Lag::Refused, Lag::Refused]).port;
    let (code, words) = fails(standby.serve());
    assert!(code == Some(74) && words.contains("left as it is"), "{words}");
    standby.primary = primary.port;
    other.stop();
    primary.start("pg_hba.conf", bounds);

    // A promoted standby is left alone.
    standby.start();
    standby.until_ready("it is ready");
    standby.says("SELECT pg_promote()").unwrap();
    standby.says("INSERT INTO t VALUES (5)").unwrap();
    let_slot_go(&primary);
    assert!(!standby.ready());
    blocking_until("it does not exit over something that it does not need", || standby.probe("standby-alive.sh"));
    standby.stop();
    let (code, words) = fails(standby.serve());
    assert!(code == Some(73) && words.contains("promoted"), "{words}");
    primary.stop();
    // In the primary's place it is a primary like any other.
    let mut promoted = Server::primary(&node, "copy", "pg_hba.conf", bounds);
    assert_eq!(promoted.sql("orders", "SELECT count(*), pg_is_in_recovery() FROM t"), "5|f");
    promoted.stop();
    assert!(!standby.log().contains(REPLICATION));
}
