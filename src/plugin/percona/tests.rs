use clap::Parser as _;
use serde_json::{Value, json};

use super::*;
use crate::plugin::args::{Cli, Command};

fn read<K: DeserializeOwned>(object: Value) -> K {
    serde_json::from_value(object).unwrap()
}

fn now() -> Timestamp {
    "2026-01-31T12:00:00Z".parse().unwrap()
}

/// A cluster with backups on a volume and in a bucket.
fn cluster() -> Value {
    let repos = json!([{"name": "repo1", "volume": {}}, {"name": "repo2", "s3": {"bucket": "b"}}]);
    json!({
        "metadata": {"name": "acme-pg"},
        "spec": {"backups": {"enabled": true, "pgbackrest": {"repos": repos, "global": {"repo2-path": "/a"}}}},
        "status": {"state": "ready", "conditions": [{"type": "ReadyForBackup", "status": "True"}]},
    })
}

fn backup(name: &str, repo: &str, state: &str, completed: &str) -> Value {
    let destination = if repo == "repo2" { "s3://b/a" } else { "" };
    let backup_name = (state == "Succeeded").then(|| format!("label-of-{name}"));
    json!({
        "metadata": {"name": name, "creationTimestamp": completed},
        "spec": {"pgCluster": "acme-pg", "repoName": repo},
        "status": {
            "state": state, "completed": completed, "destination": destination, "backupName": backup_name,
            "backupType": "full",
        },
    })
}

fn backups() -> Vec<Value> {
    let mut newest = backup("newest", "repo2", "Succeeded", "2026-01-31T03:00:00Z");
    newest["status"]["latestRestorableTime"] = json!("2026-01-31 11:00:00.000000+0000");
    let mut earlier = backup("earlier", "repo2", "Succeeded", "2026-01-28T03:00:00Z");
    earlier["status"]["destination"] = json!("s3://b/another");
    vec![
        newest,
        backup("first", "repo2", "Succeeded", "2026-01-30T03:00:00Z"),
        backup("bad", "repo2", "Failed", "2026-01-29T03:00:00Z"),
        earlier,
        backup("old", "repo1", "Succeeded", "2026-01-01T03:00:00Z"),
    ]
}

/// As typed.
fn asked(flags: &[&str]) -> args::Restore {
    let line = [&["kubectl-clientapp", "restore", "acme"][..], flags].concat();
    let Command::Restore(args) = Cli::try_parse_from(line).unwrap().command else { panic!("{flags:?}") };
    args
}

fn may(cluster: Value, backups: Vec<Value>, restores: Value, flags: &[&str]) -> Result<(String, Vec<String>), String> {
    let seen =
        Seen { cluster: read(cluster), backups: backups.into_iter().map(read).collect(), restores: read(restores) };
    let spec = may_restore("acme", &seen, &asked(flags), now())?;
    assert_eq!(spec.pg_cluster, "acme-pg");
    Ok((spec.repo_name.unwrap(), spec.options))
}

#[test]
fn what_is_restored() {
    for (flags, repository, options) in [
        (&["--from", "first"][..], "repo2", &["--type=immediate", "--set=label-of-first"][..]),
        (&["--from", "old"], "repo1", &["--type=immediate", "--set=label-of-old"]),
        (&["--time", "2026-01-31T10:00:00Z"], "repo2", &["--type=time", "--target=\"2026-01-31 10:00:00+00\""]),
        (&["--time", "2026-01-30T03:00:00Z"], "repo2", &["--type=time", "--target=\"2026-01-30 03:00:00+00\""]),
        (&["--no-backup"], "repo2", &[]),
    ] {
        let (repo, told) = may(cluster(), backups(), json!([]), flags).unwrap();
        assert_eq!((repo.as_str(), told), (repository, options.iter().map(ToString::to_string).collect()), "{flags:?}");
    }
}

#[test]
fn what_is_refused() {
    let restore = |state: Value| {
        json!([{
            "metadata": {"name": "r"}, "spec": {"pgCluster": "acme-pg", "repoName": "repo1"}, "status": {"state": state},
        }])
    };
    let but = |pointer: &str, value: Value| {
        let mut cluster = cluster();
        *cluster.pointer_mut(pointer).unwrap() = value;
        cluster
    };
    let mut restoring = cluster();
    restoring["spec"]["backups"]["pgbackrest"]["restore"] = json!({"enabled": true});
    let running = || [backups(), vec![backup("now", "repo2", "Running", "2026-01-31T03:00:00Z")]].concat();
    let failed = || vec![backup("bad", "repo2", "Failed", "2026-01-29T03:00:00Z")];
    let from = &["--from", "first"][..];
    for (what, cluster, backups, restores, flags, words) in [
        ("no backups", but("/spec/backups/enabled", json!(false)), backups(), json!([]), from, "keeps no backups"),
        ("none yet", cluster(), vec![], json!([]), from, "has no backup that could be restored"),
        ("none that is good", cluster(), failed(), json!([]), from, "has no backup that could be restored"),
        ("another waits", cluster(), backups(), restore(json!(null)), from, "kubectl get perconapgrestore r"),
        ("another runs", cluster(), backups(), restore(json!("Running")), from, "kubectl get perconapgrestore r"),
        ("by Percona's word", restoring, backups(), json!([]), from, "is being restored already"),
        ("a backup runs", cluster(), running(), json!([]), from, "PerconaPGBackup now is under way"),
        ("another's", cluster(), backups(), json!([]), &["--from", "theirs"], "acme has no backup theirs"),
        ("a failed one", cluster(), backups(), json!([]), &["--from", "bad"], "backup bad has failed"),
        ("elsewhere", cluster(), backups(), json!([]), &["--from", "earlier"], "is not in a repository of"),
        (
            "before the first",
            cluster(),
            backups(),
            json!([]),
            &["--time", "2026-01-30T02:00:00Z"],
            "the first of which was complete at 2026-01-30T03:00:00Z",
        ),
        ("to come", cluster(), backups(), json!([]), &["--time", "2026-02-01T00:00:00Z"], "is yet to come"),
        (
            "not archived",
            cluster(),
            backups(),
            json!([]),
            &["--time", "2026-01-31T11:30:00Z"],
            "name a time between 2026-01-30T03:00:00Z and 2026-01-31T11:00:00Z",
        ),
        ("of now", cluster(), backups(), json!([]), &[], "would be the one of now"),
    ] {
        let problem = may(cluster, backups, restores, flags).unwrap_err();
        assert!(problem.contains(words), "{what}: {problem}");
    }
    for over in ["Succeeded", "Failed"] {
        may(cluster(), backups(), restore(json!(over)), from).unwrap();
    }
    for wrong in [&["--time", "yesterday"][..], &["--time", "2026-01-31T00:00:00Z", "--from", "x"]] {
        let line = [&["kubectl-clientapp", "restore", "acme"][..], wrong].concat();
        assert!(Cli::try_parse_from(line).is_err(), "{wrong:?}");
    }
}

#[test]
fn whether_a_backup_would_be_carried_out() {
    let of = |cluster: Value| may_back_up("acme", &read(cluster));
    assert_eq!(of(cluster()).as_deref(), Ok("repo2"));
    let (mut none, mut early, mut restoring) = (cluster(), cluster(), cluster());
    none["spec"]["backups"]["enabled"] = json!(false);
    early["status"]["conditions"][0]["status"] = json!("False");
    restoring["spec"]["backups"]["pgbackrest"]["restore"] = json!({"enabled": true});
    for (cluster, words) in [
        (none, "set spec.postgres.percona.schedules"),
        (early, "is not ready for a backup"),
        (restoring, "is being restored"),
    ] {
        let problem = of(cluster).unwrap_err();
        assert!(problem.contains(words), "{problem}");
    }
}

#[test]
fn the_backups_and_how_far_they_reach() {
    let list: Vec<PerconaPGBackup> = backups().into_iter().map(read).collect();
    let text = render(&read(cluster()), &list, now());
    insta::assert_snapshot!(anstream::adapter::strip_str(&text).to_string());
    assert_eq!(render(&read(cluster()), &[], now()), "");
    insta::assert_snapshot!(consequence(&asked(&["--time", "2026-01-31T10:00:00Z"])));
}
