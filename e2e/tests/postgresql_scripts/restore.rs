//! Creating a database from a dump: completely or not at all, and without changing the dumps.

use super::*;

/// The Job that creates the database from a dump.
fn restore(node: &Node, volume: &str, which: &str) -> Command {
    let mut command = initialize(node, volume, "yes");
    command
        .envs([("RESTORE", which), ("RESTORE_ID", "uid-1")])
        .env("DUMPS", node.path("dumps"))
        .env("REPORT", node.path("report"));
    command
}

fn report(node: &Node) -> String {
    fs::read_to_string(node.path("report")).unwrap().trim().to_owned()
}

/// A node with a volume for dumps, and a server with data.
fn with_dumps(node: &Node) -> Server<'_> {
    with_database(node, "data", 0);
    node.volume("dumps").unwrap();
    let server = Server::primary(node, "data", "pg_hba.conf", "");
    server.over_tcp("shop", PASSWORD, "orders", "CREATE TABLE t AS SELECT generate_series(1, 1000) AS n").unwrap();
    server
}

/// Takes a dump, and returns its name.
fn dumped(node: &Node, server: &Server<'_>) -> String {
    let before = files(&node.path("dumps"));
    succeeds(server.dump(&format!("x-{}", before.len())));
    files(&node.path("dumps")).into_iter().find(|name| !before.contains(name)).unwrap()
}

/// A server on a new volume with the database of a dump, and the log of the restore.
fn restored<'a>(node: &'a Node, volume: &str, which: &str) -> (Server<'a>, String) {
    node.volume(volume).unwrap();
    let log = succeeds(restore(node, volume, which));
    (Server::primary(node, volume, "pg_hba.conf", ""), log)
}

/// Every file of the dumps, with its content.
fn content(node: &Node) -> Vec<(PathBuf, Vec<u8>)> {
    let of = |dump: String| {
        let dump = node.path("dumps").join(dump);
        files(&dump).into_iter().map(move |file| (dump.join(&file), fs::read(dump.join(&file)).unwrap()))
    };
    files(&node.path("dumps")).into_iter().flat_map(of).collect()
}

/// Changes a dump, and corrects its checksums.
fn tampered(node: &Node, dump: &str, script: &str) {
    let script = format!(
        "set -e; cd $HOME/dumps/{dump}; {script}; rm SHA256SUMS; sums=$(sha256sum -- *); echo \"$sums\" >SHA256SUMS"
    );
    succeeds(node.command(&script));
}

#[test]
fn all_that_was_dumped_is_restored() {
    let node = node();
    let mut server = with_dumps(&node);
    for statement in [
        "CREATE ROLE second LOGIN PASSWORD 'its own' IN ROLE shop",
        "ALTER ROLE shop PASSWORD 'of before'",
        "ALTER ROLE shop SET work_mem = '7MB'",
        r#"CREATE DATABASE "odd & 'name" OWNER second"#,
        "CREATE TABLE in_postgres AS SELECT 3 AS n",
    ] {
        server.sql("postgres", statement);
    }
    server.sql("template1", "CREATE TABLE in_template AS SELECT 5 AS n");
    server.sql("odd & 'name", "SELECT lo_from_bytea(0, 'large'); CREATE TABLE u AS SELECT 7 AS n");
    server.sql("odd & 'name", "ALTER TABLE u OWNER TO second; ALTER TABLE u ENABLE ROW LEVEL SECURITY");
    let system = server.system();
    let dump = dumped(&node, &server);
    let dumps = content(&node);
    server.stop();
    let manifest = fs::read_to_string(node.path("dumps").join(&dump).join("MANIFEST")).unwrap();
    assert!(manifest.contains(&format!("system {system}\n")) && manifest.contains("odd & 'name\n"), "{manifest}");
    // One table in each of four databases, and large objects in one.
    assert!(manifest.contains("tables 5\n"), "{manifest}");
    let globals = fs::metadata(node.path("dumps").join(&dump).join("globals.sql")).unwrap();
    assert_eq!(globals.mode() & 0o077, 0, "only its owner reads it");

    let volume = node.volume("another").unwrap();
    let log = succeeds(restore(&node, "another", "latest"));
    let said = format!("{dump} 5");
    assert_eq!((report(&node), content(&node) == dumps), (said.clone(), true));
    assert_eq!(files(&volume), ["data", "initialize.lock"]);
    // Another pod of the same Job finds that the work is done; a pod of another Job finds an existing database.
    node.file("report", "").unwrap();
    succeeds(restore(&node, "another", "latest"));
    assert_eq!(report(&node), said);
    let mut other = restore(&node, "another", "latest");
    let (code, _) = fails({
        other.env("RESTORE_ID", "uid-2");
        other
    });
    assert!(code == Some(75) && report(&node).contains("has a database already"), "{}", report(&node));

    let mut another = Server::primary(&node, "another", "pg_hba.conf", "");
    assert_ne!(another.system(), system);
    let shop = |database: &str, statement: &str| another.over_tcp("shop", PASSWORD, database, statement).unwrap();
    assert_eq!(shop("orders", "SELECT sum(n) || current_setting('work_mem') FROM t"), "5005007MB");
    assert_eq!(another.over_tcp("second", "its own", "odd & 'name", "SELECT n FROM u").unwrap(), "7");
    let large = "SELECT convert_from(lo_get(oid), 'UTF8') FROM pg_largeobject_metadata";
    assert_eq!(another.sql("odd & 'name", large), "large");
    assert_eq!(another.sql("postgres", "SELECT n FROM in_postgres"), "3");
    assert_eq!(another.sql("template1", "SELECT n FROM in_template"), "5");
    assert!(another.over_tcp("shop", "of before", "orders", "SELECT").is_err(), "the password is the Secret's");
    assert!(another.over_tcp("replicator", REPLICATION, "postgres", "SELECT").is_ok());
    let statistics = "SELECT count(*) > 0 FROM pg_stats WHERE tablename = 't'";
    assert_eq!((shop("orders", statistics), shop("orders", "SHOW fsync")), ("t".to_owned(), "on".to_owned()));
    // A restored database can be dumped and restored like any other.
    let second = dumped(&node, &another);
    another.stop();
    let (mut third, _) = restored(&node, "third", &second);
    assert_eq!(third.over_tcp("shop", PASSWORD, "orders", "SELECT sum(n) FROM t").unwrap(), "500500");
    third.stop();
    for secret in [PASSWORD, REPLICATION, "of before", "its own", "SCRAM"] {
        assert!(!log.contains(secret), "{log}");
    }

    // A drill is given no password, and restores beside none.
    node.volume("scratch").unwrap();
    let mut drill = restore(&node, "scratch", &dump);
    drill.env_remove("PASSWORD_FILE").env_remove("REPLICATION_PASSWORD_FILE");
    succeeds(drill);
    assert_eq!(report(&node), said);
    let mut scratch = Server::primary(&node, "scratch", "pg_hba.conf", "");
    for (user, password) in [("shop", PASSWORD), ("shop", ""), ("replicator", REPLICATION), ("replicator", "")] {
        assert!(scratch.over_tcp(user, password, "orders", "SELECT").is_err(), "{user}");
    }
    scratch.stop();
}

#[test]
fn what_cannot_be_restored_leaves_everything_as_it_was() {
    let node = node();
    let mut server = with_dumps(&node);
    let whole = dumped(&node, &server);
    server.stop();
    let copied = |name: &str| {
        succeeds(node.command(&format!("cp -a $HOME/dumps/{whole} $HOME/dumps/{name}")));
        name.to_owned()
    };
    let cut_off = copied("20990101T000000Z-cut");
    succeeds(node.command(&format!("cd $HOME/dumps/{cut_off}; for file in *.dump; do truncate -s -9 $file; done")));
    let newer = copied("20990102T000000Z-newer");
    tampered(&node, &newer, "sed -i 's/^version .*/version 99.1 (Debian)/' MANIFEST");
    let no_table = copied("20990103T000000Z-half");
    tampered(&node, &no_table, "for file in *.dump; do head -c 2000 $file >x; mv x $file; done");
    let role = copied("20990104T000000Z-role");
    tampered(&node, &role, "echo \"ALTER ROLE nowhere PASSWORD 'SCRAM-SHA-256-canary';\" >>globals.sql");
    let unfinished = copied("20990105T000000Z-x.partial");
    let dumps = content(&node);
    let refused = |mut command: Command, change: &[(&str, &str)], words: &str| {
        node.file("report", "").unwrap();
        let _ = fs::remove_dir_all(node.path("new"));
        let volume = node.volume("new").unwrap();
        let (code, log) = fails({
            command.envs(change.iter().copied());
            command
        });
        assert!(code == Some(75) && report(&node).contains(words), "{words}: {code:?}, {}\n{log}", report(&node));
        assert_eq!(files(&volume), ["initialize.lock"], "{words}");
        assert!(content(&node) == dumps, "{words}");
        assert!(!log.contains("canary"), "{log}");
    };
    let job = |which: &str| restore(&node, "new", which);
    refused(job(&cut_off), &[], "is damaged");
    // `latest` means the newest dump, which is named.
    refused(job("latest"), &[], &format!("the roles of dump {role}"));
    refused(job(&newer), &[], "is of PostgreSQL 99");
    refused(job(&no_table), &[], "cannot be restored");
    refused(job(&unfinished), &[], "there is no complete dump");
    refused(job("20000101T000000Z-x"), &[], &whole);
    refused(job("../dumps"), &[], "there is no complete dump");
    refused(job(&whole), &[("POSTGRES_DB", "shop")], "there is no database shop in dump");
    refused(job(&whole), &[("POSTGRES_USER", "other")], "belongs to the user shop: set spec.defaultUser");
    node.volume("nothing").unwrap();
    let nothing = node.path("nothing");
    refused(job("latest"), &[("DUMPS", nothing.to_str().unwrap())], "there is no dump on the volume");
    // A volume that is too small.
    let full = "mkdir $HOME/full && mount -t tmpfs -o mode=777,size=24m tmpfs $HOME/full";
    let mut small = node.prepared("sh $SCRIPTS/initialize.sh; echo \"code $?\"; ls -A $HOME/full", full);
    let environment: Vec<_> =
        job(&whole).get_envs().map(|(name, value)| (name.to_owned(), value.unwrap().to_owned())).collect();
    small.envs(
        environment.into_iter().filter(|(name, _)| !["PATH", "SCRIPTS", "HOME"].contains(&name.to_str().unwrap())),
    );
    let output = small.env("PGDATA", node.path("full/data")).output().unwrap();
    let words = said(&output);
    assert!(!words.contains("code 0") && !words.contains("\ndata\n"), "{words}");
    assert!(content(&node) == dumps);
    // With the right arguments it is restored on the very volume of the failed attempts.
    node.volume("right").unwrap();
    fails(restore(&node, "right", &role));
    succeeds(restore(&node, "right", &whole));
    let mut server = Server::primary(&node, "right", "pg_hba.conf", "");
    assert_eq!(server.over_tcp("shop", PASSWORD, "orders", "SELECT count(*) FROM t").unwrap(), "1000");
    server.stop();
}

#[test]
fn the_latest_is_the_newest_with_something_in_it() {
    let node = node();
    let mut server = with_dumps(&node);
    let full = dumped(&node, &server);
    server.over_tcp("shop", PASSWORD, "orders", "DROP TABLE t").unwrap();
    let empty = dumped(&node, &server);
    server.stop();
    assert!(empty > full);
    // The report of the dump pod.
    let said = report(&node);
    let said: Vec<_> = said.split_whitespace().collect();
    let [newest, _, "0", older, bytes, "1"] = said[..] else { panic!("{said:?}") };
    assert_eq!((newest, older), (empty.as_str(), full.as_str()));
    let sizes = fs::read_to_string(node.path("dumps").join(&full).join("SIZES")).unwrap();
    let sizes: u64 = sizes.lines().map(|line| line.split(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(bytes.parse::<u64>(), Ok(sizes));
    for (which, restored) in [("latest", &full), (empty.as_str(), &empty)] {
        let volume = format!("of-{restored}");
        node.volume(&volume).unwrap();
        succeeds(restore(&node, &volume, which));
        assert_eq!(report(&node), format!("{restored} {}", usize::from(*restored == full)));
    }
}

#[test]
fn a_restore_that_is_cut_off_is_begun_again() {
    let node = node();
    let mut server = with_dumps(&node);
    let dump = dumped(&node, &server);
    server.stop();
    let points = ["sha256sum", "psql", "pg_restore", "vacuumdb", "mv"].map(|program| (program, ""));
    let points = [&points[..], &[("pg_restore", r#"$REAL "$@""#)]].concat();
    let is_whole = |server: &Server<'_>| {
        assert_eq!(report(&node), format!("{dump} 1"));
        server.over_tcp("shop", PASSWORD, "orders", "SELECT sum(n) FROM t").unwrap() == "500500"
    };
    is_begun_again(&node, &points, |volume| restore(&node, volume, "latest"), is_whole);
}

/// A database's user is not a superuser, and its code does not run as one: neither in a dump nor in a restore, including a drill.
#[test]
fn a_user_of_the_database_gets_no_more_rights_by_a_dump_or_a_restore() {
    let node = node();
    let mut server = with_dumps(&node);
    let mine = |statement: &str| server.over_tcp("shop", PASSWORD, "orders", statement).unwrap();
    // In each of these places, it runs during a restore.
    for statement in [
        // Whatever attributes the code gives itself, and whichever role it asks for.
        "CREATE FUNCTION attempt() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
           RAISE LOG 'own code runs';
           BEGIN RESET SESSION AUTHORIZATION; RESET ROLE; EXCEPTION WHEN OTHERS THEN NULL; END;
           BEGIN SET ROLE postgres; EXCEPTION WHEN OTHERS THEN NULL; END;
           BEGIN EXECUTE 'ALTER ROLE shop SUPERUSER'; EXCEPTION WHEN OTHERS THEN NULL; END;
           END $$",
        "CREATE FUNCTION own(int) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS 'BEGIN PERFORM public.attempt(); RETURN true; END'",
        "CREATE TABLE c (n int CHECK (public.own(n)))",
        "INSERT INTO c VALUES (1)",
        // A constant in the table's definition.
        "CREATE DOMAIN checked AS int CHECK (public.own(VALUE))",
        "CREATE TABLE defaults (n public.checked[] DEFAULT '{1}'::public.checked[])",
        // Computed when rows are inserted, and a constraint that is added after them.
        "CREATE TABLE computed (n int, own boolean GENERATED ALWAYS AS (public.own(n)) STORED)",
        "INSERT INTO computed VALUES (1)",
        "CREATE TABLE late (n int)",
        "INSERT INTO late VALUES (1)",
        "CREATE FUNCTION own(late) RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT public.own($1.n)'",
        "ALTER TABLE late ADD CHECK (public.own(late))",
        "CREATE INDEX ON late (public.own(n))",
        "CREATE MATERIALIZED VIEW seen AS SELECT public.own(n) FROM late",
    ] {
        mine(statement);
    }
    // Names and operators that mean something else in this database: a dump would run what they stand for.
    let body = "LANGUAGE plpgsql AS $$ BEGIN
        IF current_setting('is_superuser') = 'on' THEN EXECUTE 'ALTER ROLE shop SUPERUSER'; END IF; ";
    mine(&format!("CREATE FUNCTION public.pg_relation_size(oid) RETURNS bigint {body} RETURN 8192; END $$"));
    mine(&format!("CREATE FUNCTION public.same(name, text) RETURNS boolean {body} RETURN true; END $$"));
    mine("CREATE OPERATOR public.~ (LEFTARG = name, RIGHTARG = text, FUNCTION = public.same)");
    mine("ALTER DATABASE orders SET search_path = public, pg_catalog");
    dumped(&node, &server);
    assert_eq!(server.sql("postgres", "SELECT rolsuper FROM pg_roles WHERE rolname = 'shop'"), "f");
    server.stop();
    let (mut another, log) = restored(&node, "another", "latest");
    assert!(log.contains("own code runs"), "the test says something: {log}");
    let roles =
        "SELECT string_agg(rolname || ' ' || rolsuper, ', ' ORDER BY rolname) FROM pg_roles WHERE rolname !~ '^pg_'";
    assert_eq!(another.sql("postgres", roles), "postgres true, replicator true, shop false");
    let own = "SELECT (SELECT count(*) FROM c) + (SELECT count(*) FROM computed) + (SELECT count(*) FROM seen)";
    assert_eq!(another.over_tcp("shop", PASSWORD, "orders", own).unwrap(), "3");
    another.stop();
}

/// Users beside the owner, with rights on another user's objects, and without the right with which they once created
/// their own.
#[test]
fn what_belongs_to_many_users_is_restored() {
    let node = node();
    let mut server = with_dumps(&node);
    server.sql("postgres", "CREATE ROLE second LOGIN PASSWORD 'its own'; CREATE ROLE reader");
    server.sql("orders", "GRANT CREATE ON SCHEMA public TO second; GRANT CREATE ON DATABASE orders TO second");
    let of = |user: &str, password: &str, statements: &[&str]| {
        for statement in statements {
            server.over_tcp(user, password, "orders", statement).unwrap();
        }
    };
    of(
        "second",
        "its own",
        &[
            "CREATE TABLE public.theirs (id serial PRIMARY KEY, n int)",
            "INSERT INTO theirs (n) VALUES (7), (8)",
            "CREATE SCHEMA apart",
            "CREATE TABLE apart.inner_one AS SELECT 1 AS n",
            "CREATE FUNCTION apart.twice(int) RETURNS int LANGUAGE sql AS 'SELECT 2 * $1'",
            "REVOKE EXECUTE ON FUNCTION apart.twice(int) FROM PUBLIC",
            "ALTER TABLE apart.inner_one ADD CHECK (apart.twice(n) > 0)",
            "SELECT lo_from_bytea(0, 'large')",
            "GRANT SELECT ON public.theirs TO reader",
            "ALTER DEFAULT PRIVILEGES IN SCHEMA apart GRANT SELECT ON TABLES TO reader",
        ],
    );
    of("second", "its own", &["GRANT SELECT ON public.theirs TO shop", "ALTER TABLE theirs ENABLE ROW LEVEL SECURITY"]);
    of("second", "its own", &["CREATE POLICY all_of_it ON theirs USING (true)"]);
    of(
        "shop",
        PASSWORD,
        &[
            "CREATE EXTENSION pg_trgm",
            "CREATE MATERIALIZED VIEW seen AS SELECT sum(n) FROM theirs",
            "CREATE INDEX words ON t (n)",
            "COMMENT ON TABLE t IS 'mine'",
            "CREATE SEQUENCE s START 5",
            "SELECT nextval('s')",
        ],
    );
    server.sql("orders", "REVOKE CREATE ON SCHEMA public FROM second; REVOKE CREATE ON DATABASE orders FROM second");
    server.sql("orders", "REVOKE CONNECT ON DATABASE orders FROM PUBLIC; GRANT CONNECT ON DATABASE orders TO second");
    let shown = |server: &Server<'_>| {
        let owned = "SELECT string_agg(format('%s %s %s %s', oid::regclass, relkind, pg_get_userbyid(relowner), relacl), '
            ' ORDER BY oid::regclass::text) FROM pg_class WHERE relnamespace IN ('public'::regnamespace, 'apart'::regnamespace)";
        let functions = "SELECT string_agg(format('%s %s %s', proname, pg_get_userbyid(proowner), proacl), ' ' ORDER BY 1) FROM pg_proc
            WHERE pronamespace = 'apart'::regnamespace";
        let rights = "SELECT concat(has_schema_privilege('second', 'public', 'CREATE'), has_database_privilege('second', 'orders', 'CREATE'),
            has_database_privilege('reader', 'orders', 'CONNECT'), has_schema_privilege('reader', 'public', 'USAGE'),
            has_schema_privilege('reader', 'apart', 'USAGE'), (SELECT count(*) FROM pg_largeobject_metadata),
            (SELECT defaclacl FROM pg_default_acl), (SELECT sum FROM seen), (SELECT last_value FROM s),
            (SELECT pg_get_userbyid(nspowner) FROM pg_namespace WHERE nspname = 'apart'))";
        [owned, functions, rights].map(|statement| server.sql("orders", statement))
    };
    let before = shown(&server);
    dumped(&node, &server);
    server.stop();
    let (mut another, log) = restored(&node, "another", "latest");
    assert!(!log.contains("of a superuser"), "{log}");
    assert_eq!(shown(&another), before);
    another.stop();
}

/// Settings of a database by its owner apply to the owner's sessions only.
#[test]
fn settings_of_a_database_are_kept_and_stop_no_dump_and_no_restore() {
    let node = node();
    let mut server = with_dumps(&node);
    let mine = |statement: &str| server.over_tcp("shop", PASSWORD, "orders", statement);
    mine("CREATE TABLE euro AS SELECT '€' AS sign").unwrap();
    for setting in [
        "default_transaction_read_only = on",
        "role = 'shop'",
        "client_encoding = 'LATIN1'",
        "lock_timeout = '1ms'",
        "array_nulls = off",
        "default_transaction_isolation = serializable",
        // These are last, since no connection succeeds any more. And in one session, since the next one would have only
        // a millisecond.
        "statement_timeout = '1ms'; ALTER DATABASE orders SET local_preload_libraries = 'nowhere'",
    ] {
        server.writing("shop", PASSWORD, "orders", &format!("ALTER DATABASE orders SET {setting}")).unwrap();
    }
    server.sql("postgres", "ALTER ROLE shop SET default_transaction_read_only = on");
    dumped(&node, &server);
    server.stop();
    let (mut another, _) = restored(&node, "another", "latest");
    assert_eq!(
        another.sql("postgres", "SELECT cardinality(setconfig) FROM pg_db_role_setting WHERE setdatabase > 0"),
        "8"
    );
    another.sql("postgres", "ALTER DATABASE orders RESET ALL");
    assert_eq!(another.over_tcp("shop", PASSWORD, "orders", "SELECT sign FROM euro").unwrap(), "€");
    another.stop();
}

/// Not every directory on the volume is a dump, and one may be named by a clock that was ahead.
#[test]
fn what_has_no_name_of_a_dump_is_none_and_no_name_takes_a_new_dump_away() {
    let node = node();
    let mut server = with_dumps(&node);
    let dump = dumped(&node, &server);
    let copied = |name: &str| {
        succeeds(node.command(&format!("cp -a $HOME/dumps/{dump} $HOME/dumps/{name}")));
        name.to_owned()
    };
    let none = ["20990101T000000Z-", "20990101T000000Z-a.old", "20991301T000000Z-a", "old-copy", "zZ-z"].map(copied);
    let ahead = ["20990101T235959Z-x", "20991231T235959Z-x"].map(copied);
    for name in &ahead {
        succeeds(node.command(&format!("mv $HOME/dumps/{name} $HOME/{name}")));
    }
    for pod in ["x-b", "x-c"] {
        succeeds(server.dump(pod));
    }
    let dumps = || files(&node.path("dumps")).into_iter().filter(|name| !none.contains(name)).collect::<Vec<_>>();
    let two = dumps();
    assert!(!two.contains(&dump) && files(&node.path("dumps")).len() == none.len() + 2, "{two:?}");
    assert_eq!(report(&node).lines().count(), 2, "{}", report(&node));
    node.volume("another").unwrap();
    succeeds(restore(&node, "another", "latest"));
    assert!(report(&node).contains("Z-c "), "{}", report(&node));
    node.volume("third").unwrap();
    assert_eq!(fails(restore(&node, "third", "old-copy")).0, Some(75));

    // The clock was once ahead: a new dump is still the latest, and stays.
    for name in &two {
        fs::remove_dir_all(node.path("dumps").join(name)).unwrap();
    }
    for name in &ahead {
        succeeds(node.command(&format!("mv $HOME/{name} $HOME/dumps/{name}")));
    }
    let said = succeeds(server.dump("x-now"));
    assert_eq!(dumps(), ["20991231T235959Z-x", "21000101T000000Z-now"], "{said}");
    assert!(said.contains("by this node's clock it is not later"), "{said}");
    // No name sorts after this one: the log says so, and nothing is deleted.
    succeeds(node.command("mv $HOME/dumps/20991231T235959Z-x $HOME/dumps/99991231T235959Z-x"));
    let (_, said) = fails(server.dump("x-then"));
    assert!(said.contains("look at the clock"), "{said}");
    assert_eq!(dumps(), ["21000101T000000Z-now", "99991231T235959Z-x"]);
    server.stop();
}

/// A database's owner can hide it from a dump of all databases that accept connections.
#[test]
fn a_dump_has_the_database_it_is_made_for() {
    let node = node();
    let mut server = with_dumps(&node);
    server.sql("postgres", "CREATE DATABASE shut IS_TEMPLATE true ALLOW_CONNECTIONS false");
    let said = succeeds(server.dump("x-a"));
    assert!(said.contains("database shut is a template that takes no connections"), "{said}");
    let kept = files(&node.path("dumps"));
    for (hide, words) in [
        ("ALTER DATABASE orders IS_TEMPLATE true ALLOW_CONNECTIONS false", "not currently accepting connections"),
        (
            "ALTER DATABASE orders ALLOW_CONNECTIONS true; ALTER DATABASE orders RENAME TO other",
            "there is no database orders",
        ),
    ] {
        for statement in hide.split("; ") {
            server
                .over_tcp("shop", PASSWORD, "postgres", statement)
                .unwrap_or_else(|_| server.sql("postgres", statement));
        }
        let (_, said) = fails(server.dump("x-b"));
        assert!(said.contains(words), "{said}");
        assert_eq!(files(&node.path("dumps")), kept);
    }
    server.stop();
}

/// Not a test of a duration: it prints how long a dump and a restore take compared with plain ones, alternating within
/// one run.
#[test]
#[ignore = "a measurement, of MIB=1024: cargo test -p e2e --test postgresql_scripts beside_plain -- --ignored --nocapture"]
fn dump_and_restore_beside_plain_ones() {
    let mib: u64 = std::env::var("MIB").map_or(128, |mib| mib.parse().unwrap());
    let node = node();
    let mut server = with_dumps(&node);
    // About 128 bytes of a row are text that compresses badly.
    let rows = mib << 13;
    let text = "md5(n::text) || md5((n * 7)::text) || md5((n * 11)::text)";
    server
        .over_tcp(
            "shop",
            PASSWORD,
            "orders",
            &format!("CREATE TABLE big AS SELECT n, {text} AS x FROM generate_series(1, {rows}) AS n"),
        )
        .unwrap();
    server.over_tcp("shop", PASSWORD, "orders", "ALTER TABLE big ADD PRIMARY KEY (n)").unwrap();
    let size = server.sql("postgres", "SELECT pg_size_pretty(pg_database_size('orders'))");
    let timed = |command: Command| {
        let begun = std::time::Instant::now();
        succeeds(command);
        begun.elapsed().as_secs_f64()
    };
    let rounds = 3;
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        ours.push(timed(server.dump(&format!("x-{round}"))));
        let script = "exec pg_dump --format=custom --create --no-password --file=$HOME/plain.dump orders";
        let mut command = server.dumping("x", node.command(script));
        command.env_remove("DUMPS");
        plain.push(timed(command));
    }
    println!("{size}: dump {ours:.1?} s, pg_dump {plain:.1?} s: {:.2} of its speed", ratio(&plain, &ours));
    server.stop();
    let (mut ours, mut plain) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let volume = format!("restored-{round}");
        node.volume(&volume).unwrap();
        ours.push(timed(restore(&node, &volume, "latest")));
        fs::remove_dir_all(node.path(&volume)).unwrap();
        let volume = format!("plain-{round}");
        with_database(&node, &volume, 0);
        let mut another = Server::primary(&node, &volume, "pg_hba.conf", "");
        another.sql("postgres", "DROP DATABASE orders");
        let script =
            "exec pg_restore --exit-on-error --no-password --jobs=2 --create --dbname=postgres $HOME/plain.dump";
        plain.push(timed(another.dumping("x", node.command(script))));
        another.stop();
        fs::remove_dir_all(node.path(&volume)).unwrap();
    }
    println!("{size}: restore {ours:.1?} s, pg_restore {plain:.1?} s: {:.2} of its speed", ratio(&plain, &ours));
}

/// Of the fastest rounds, since the machine has other work.
fn ratio(of: &[f64], to: &[f64]) -> f64 {
    let best = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    best(of) / best(to)
}

/// The Job that restores a dump beside a database that a server may be using.
fn beside(node: &Node, volume: &str, request: &str) -> Command {
    let mut command = restore(node, volume, "latest");
    command.env("PGDATA", node.path(volume).join(format!("restored.{request}")));
    command.env("BESIDE", node.path(volume).join("data")).env("RESTORE_ID", request);
    command
}

const HOW_MANY: &str = "SELECT count(*) FROM t";

#[test]
fn a_dump_replaces_a_database_that_serves_meanwhile() {
    let node = node();
    let mut server = with_dumps(&node);
    node.volume("copy").unwrap();
    let mut standby = Standby::of(&server);
    standby.start();
    standby.until_ready("the standby follows");
    let dump = dumped(&node, &server);
    server.over_tcp("shop", PASSWORD, "orders", "INSERT INTO t VALUES (0)").unwrap();
    let before = server.system();

    // The server serves while the dump is restored, and a second pod of the Job finds that it is.
    for _ in 0..2 {
        succeeds(beside(&node, "data", "one"));
        assert_eq!(report(&node), format!("{dump} 1"));
    }
    assert_eq!(server.over_tcp("shop", PASSWORD, "orders", HOW_MANY).unwrap(), "1001");
    // It is exchanged for the request only.
    server.stop();
    server.start_with("pg_hba.conf", "", "another");
    assert_eq!(server.system(), before);
    server.stop();
    server.start_with("pg_hba.conf", "", "one");
    assert_eq!(server.over_tcp("shop", PASSWORD, "orders", HOW_MANY).unwrap(), "1000");
    let restored = server.system();
    assert_ne!(restored, before);
    assert_eq!(files(&node.path("data")), ["data", "former.one", "initialize.lock"]);
    // The standby follows the other database, and no other than that.
    standby.stop();
    standby.start();
    standby.until_ready("the standby follows the restored database");
    assert_eq!(standby.says("SELECT system_identifier FROM pg_control_system()").unwrap(), restored);
    assert_eq!(standby.says(HOW_MANY).unwrap(), "1000");
    standby.stop();

    // A restart changes nothing more.
    server.over_tcp("shop", PASSWORD, "orders", "INSERT INTO t VALUES (0)").unwrap();
    server.stop();
    server.start_with("pg_hba.conf", "", "one");
    assert_eq!(server.over_tcp("shop", PASSWORD, "orders", HOW_MANY).unwrap(), "1001");

    // An exchange that was cut off goes on.
    succeeds(beside(&node, "data", "two"));
    server.stop();
    let mut primary = node.command("exec sh $SCRIPTS/primary.sh");
    primary.env("PGDATA", node.path("data/data")).env("HBA_FILE", "/nowhere").env("RESTORED", "two");
    // After the former directory is moved: the second call of `mv` on directories, the third of all.
    cut_off(&node, ("mv", "case $1 in */restored.two) ;; *) exec $REAL \"$@\" ;; esac"), primary);
    assert_eq!(files(&node.path("data")), ["former.one", "former.two", "initialize.lock", "restored.two"]);
    server.start_with("pg_hba.conf", "", "two");
    assert_eq!(server.over_tcp("shop", PASSWORD, "orders", HOW_MANY).unwrap(), "1000");
    assert_eq!(files(&node.path("data")), ["data", "former.one", "former.two", "initialize.lock"]);
    server.stop();
    // The former one is whole.
    for (request, rows) in [("one", "1001"), ("two", "1001")] {
        let volume = node.volume(&format!("again-{request}")).unwrap();
        fs::rename(node.path("data").join(format!("former.{request}")), volume.join("data")).unwrap();
        let mut again = Server::primary(&node, &format!("again-{request}"), "pg_hba.conf", "");
        assert_eq!(again.over_tcp("shop", PASSWORD, "orders", HOW_MANY).unwrap(), rows, "{request}");
        again.stop();
    }
}

#[test]
fn a_database_keeps_its_space_and_a_lost_one_begins_anew() {
    let node = node();
    let mut server = with_dumps(&node);
    dumped(&node, &server);
    // A volume that is full, and one that becomes full while the dump is restored.
    let df = "echo header; if [ -e $HOME/full ]; then echo x 100 91 9 91% /; else echo x 100 50 50 50% /; fi";
    node.replace("df", df).unwrap();
    for vacuum in [None, Some("touch $HOME/full; while pg_isready --quiet; do sleep 0.1; done; exit 1")] {
        match vacuum {
            None => drop(node.file("full", "").unwrap()),
            Some(script) => {
                fs::remove_file(node.path("full")).unwrap();
                node.replace("vacuumdb", script).unwrap();
            }
        }
        let (code, log) = fails(beside(&node, "data", "one"));
        assert_eq!(code, Some(75), "{log}");
        assert!(report(&node).contains("has not enough space for a second database"), "{}", report(&node));
        assert_eq!(files(&node.path("data")), ["data", "initialize.lock"]);
        assert_eq!(server.over_tcp("shop", PASSWORD, "orders", HOW_MANY).unwrap(), "1000");
    }
    node.put_back("vacuumdb").unwrap();
    fs::remove_file(node.path("full")).unwrap();
    // What an interrupted restore has left goes with the next one.
    fs::create_dir(node.path("data/restored.zero.new")).unwrap();
    succeeds(beside(&node, "data", "one"));
    assert_eq!(files(&node.path("data")), ["data", "initialize.lock", "restored.one"]);
    server.stop();

    // On a volume without a database, too.
    node.volume("lost").unwrap();
    succeeds(beside(&node, "lost", "one"));
    let mut server = Server { node: &node, pod: None, volume: "lost".to_owned(), port: free_port().unwrap() };
    server.start_with("pg_hba.conf", "", "one");
    assert_eq!(server.over_tcp("shop", PASSWORD, "orders", HOW_MANY).unwrap(), "1000");
    assert_eq!(files(&node.path("lost")), ["data", "initialize.lock"]);
    server.stop();
}
