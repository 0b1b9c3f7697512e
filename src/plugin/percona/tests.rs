use clap::Parser as _;
use serde_json::{Value, json};

use super::*;
use crate::{
    plugin::{
        args::{Cli, Command},
        tests::flags,
    },
    restore::percona::tests::{backups, cluster, now, read},
};

/// As typed.
fn asked(flags: &[&str]) -> args::Restore {
    let line = [&["kubectl-clientapp", "restore", "acme"][..], flags].concat();
    let Command::Restore(args) = Cli::try_parse_from(line).unwrap().command else { panic!("{flags:?}") };
    args
}

#[test]
fn what_another_cluster_is_created_from() {
    let one_repository = || {
        let mut cluster = cluster();
        cluster["spec"]["backups"]["pgbackrest"]["repos"] = json!([{"name": "repo2", "s3": {"bucket": "b"}}]);
        cluster
    };
    let restored =
        || json!([{"metadata": {"name": "r"}, "spec": {"pgCluster": "acme-pg"}, "status": {"state": "Failed"}}]);
    let of = |backup: Value| Ok(json!({"cluster": "acme-pg", "backup": backup}));
    let at = &["--time", "2026-01-31T10:00:00Z"][..];
    for (what, cluster, restores, line, expected) in [
        ("the newest state", one_repository(), json!([]), &[][..], Ok(json!({"cluster": "acme-pg"}))),
        ("a backup", one_repository(), json!([]), &["--from", "first"], of(json!("label-of-first"))),
        ("a time", one_repository(), json!([]), at, Ok(json!({"cluster": "acme-pg", "time": "2026-01-31T10:00:00Z"}))),
        ("a backup, restored", one_repository(), restored(), &["--from", "first"], of(json!("label-of-first"))),
        ("a time, restored", one_repository(), restored(), at, Err("name a backup with --from")),
        ("the newest state, restored", one_repository(), restored(), &[], Err("name a backup with --from")),
        ("a failed backup", one_repository(), json!([]), &["--from", "bad"], Err("backup bad has failed")),
        ("the first repository", cluster(), json!([]), &["--from", "old"], of(json!("label-of-old"))),
        (
            "another repository",
            cluster(),
            json!([]),
            &["--from", "first"],
            Err("is in repo2 of PerconaPGCluster acme-pg"),
        ),
    ] {
        let backups = backups().into_iter().map(read).collect();
        let seen = Seen { cluster: read(cluster), backups, restores: read(restores) };
        match (data_source(&seen, &asked(line), &flags("ns"), now()), expected) {
            (Ok(found), Ok(expected)) => assert_eq!(json!(found), expected, "{what}"),
            (Err(why), Err(words)) => assert!(why.contains(words), "{what}: {why}"),
            (found, _) => panic!("{what}: {found:?}"),
        }
    }
}

#[test]
fn whether_a_backup_would_be_carried_out() {
    let of = |cluster: Value| no_backup("acme", &read(cluster), &flags("ns"));
    assert_eq!(of(cluster()), None);
    let (mut none, mut early, mut restoring) = (cluster(), cluster(), cluster());
    none["spec"]["backups"]["enabled"] = json!(false);
    early["status"]["conditions"][0]["status"] = json!("False");
    restoring["spec"]["backups"]["pgbackrest"]["restore"] = json!({"enabled": true});
    for (cluster, words) in [
        (none, "set spec.postgres.percona.schedules"),
        (early, "is not ready for a backup"),
        (restoring, "is being restored"),
    ] {
        let problem = of(cluster).unwrap();
        assert!(problem.contains(words), "{problem}");
    }
}

#[test]
fn the_backups_and_how_far_they_reach() {
    let list: Vec<PerconaPGBackup> = backups().into_iter().map(read).collect();
    let text = render(&read(cluster()), (&list, &[]), None, now());
    insta::assert_snapshot!(anstream::adapter::strip_str(&text).to_string());
    assert_eq!(render(&read(cluster()), (&[], &[]), None, now()), "");
}
