use serde_json::{Value, json};

use super::*;
use crate::platform::fake::of;

pub(crate) fn now() -> Timestamp {
    "2026-01-31T12:00:00Z".parse().unwrap()
}

/// A cluster with backups on a volume and in a bucket.
pub(crate) fn cluster() -> Value {
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

pub(crate) fn backups() -> Vec<Value> {
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

fn may(cluster: Value, backups: Vec<Value>, restores: Value, flags: &[&str]) -> Result<(String, Vec<String>), String> {
    let seen = Seen { cluster: of(cluster), backups: backups.into_iter().map(of).collect(), restores: of(restores) };
    let value = |flag: &str| Some(flags[flags.iter().position(|given| *given == flag)? + 1]);
    let time = value("--time").map(|time| time.parse().unwrap());
    let wanted = (value("--from").unwrap_or(LATEST), time);
    let spec = may_restore("acme", &seen, wanted, !flags.contains(&"--no-backup"), now())?;
    assert_eq!(spec.pg_cluster, "acme-pg");
    Ok((spec.repo_name.unwrap(), spec.options))
}

#[test]
fn what_is_restored() {
    let (newest, first) = ("--set=label-of-newest", "--set=label-of-first");
    for (flags, repository, options) in [
        (&["--from", "first"][..], "repo2", &["--type=immediate", "--set=label-of-first"][..]),
        (&["--from", "old"], "repo1", &["--type=immediate", "--set=label-of-old"]),
        (
            &["--time", "2026-01-31T10:00:00Z"],
            "repo2",
            &["--type=time", r#"--target="2026-01-31 10:00:00+00""#, newest],
        ),
        (&["--time", "2026-01-30T03:00:00Z"], "repo2", &["--type=time", r#"--target="2026-01-30 03:00:00+00""#, first]),
        (&["--no-backup"], "repo2", &["--set=label-of-newest"]),
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
    let no_restore = || json!([]);
    let is_restored = "is being restored by PerconaPGRestore r";
    for (what, cluster, backups, restores, words) in [
        ("no backups", but("/spec/backups/enabled", json!(false)), backups(), no_restore(), "keeps no backups"),
        ("none yet", cluster(), vec![], no_restore(), "has no backup that can be restored"),
        ("none that is good", cluster(), failed(), no_restore(), "has no backup that can be restored"),
        ("another waits", cluster(), backups(), restore(json!(null)), is_restored),
        ("another runs", cluster(), backups(), restore(json!("Running")), is_restored),
        ("by Percona's word", restoring, backups(), no_restore(), "is being restored"),
        ("a backup runs", cluster(), running(), no_restore(), "PerconaPGBackup now is still running"),
    ] {
        let problem = may(cluster, backups, restores, from).unwrap_err();
        assert!(problem.contains(words), "{what}: {problem}");
    }
    let reach =
        "is not known to reach 2026-01-31T11:30:00Z: name a time between 2026-01-30T03:00:00Z and 2026-01-31T11:00:00Z";
    for (what, flags, words) in [
        ("another's", &["--from", "theirs"][..], "acme has no backup theirs"),
        ("a failed one", &["--from", "bad"], "backup bad has failed"),
        ("elsewhere", &["--from", "earlier"], "is not in a repository of"),
        ("before the first", &["--time", "2026-01-30T02:00:00Z"], "which was complete at 2026-01-30T03:00:00Z"),
        ("to come", &["--time", "2026-02-01T00:00:00Z"], "is in the future"),
        ("not archived", &["--time", "2026-01-31T11:30:00Z"], reach),
        ("of now", &[], "the newest state is the current one"),
    ] {
        let problem = may(cluster(), backups(), no_restore(), flags).unwrap_err();
        assert!(problem.contains(words), "{what}: {problem}");
    }
    for over in ["Succeeded", "Failed"] {
        may(cluster(), backups(), restore(json!(over)), from).unwrap();
    }
}

/// A restore to `--time` on the 30th at 12:00, made on the 31st at 9:00.
fn restored(options: Value) -> Value {
    json!([{
        "metadata": {"name": "once", "creationTimestamp": "2026-01-31T09:00:00Z"},
        "spec": {"pgCluster": "acme-pg", "repoName": "repo2", "options": options},
        "status": {"state": "Succeeded", "completed": "2026-01-31T09:10:00Z"},
    }])
}

/// PostgreSQL would stop there, after the data was overwritten.
#[test]
fn what_an_earlier_restore_has_undone_is_no_base_and_no_target() {
    let to_time = json!(["--type=time", "--target=\"2026-01-30 12:00:00+00\"", "--set=label-of-first"]);
    let mut later = backup("later", "repo2", "Succeeded", "2026-01-31T10:00:00Z");
    later["status"]["latestRestorableTime"] = json!("2026-01-31 11:30:00.000000+0000");
    let with_later = || [backups(), vec![later.clone()]].concat();
    let chosen = |backups: Vec<Value>, options: &Value, flags: &[&str]| {
        may(cluster(), backups, restored(options.clone()), flags).map(|(_, options)| options.last().cloned())
    };
    let to_first = json!(["--type=immediate", "--set=label-of-first"]);
    let to_newest_backup = json!(["--type=immediate", "--set=label-of-newest"]);
    let by_hand = json!(["--type=xid", "--target=7"]);
    let (newest, t) = (&["--no-backup"][..], |time: &'static str| ["--time", time]);
    let undone = "was undone by an earlier restore and cannot be reached any more: name a time between 2026-01-30T03:00:00Z and 2026-01-30T12:00:00Z, or between 2026-01-31T09:10:00Z and 2026-01-31T11:30:00Z";
    let no_base = "has no backup in repo2 that the current content";
    for (what, backups, options, flags, base) in [
        ("newest, from before", backups(), &to_time, newest, Ok("first")),
        ("newest, from after", with_later(), &to_time, newest, Ok("later")),
        ("after", with_later(), &to_time, &t("2026-01-31T11:00:00Z"), Ok("later")),
        ("after, before the next backup", with_later(), &to_time, &t("2026-01-31T09:30:00Z"), Ok("first")),
        ("before", with_later(), &to_time, &t("2026-01-30T11:00:00Z"), Ok("first")),
        ("undone", with_later(), &to_time, &t("2026-01-31T04:00:00Z"), Err(undone)),
        ("while it was restored", with_later(), &to_time, &t("2026-01-31T09:05:00Z"), Err("was undone")),
        ("not seen yet", with_later(), &to_time, &t("2026-01-31T11:45:00Z"), Err("is not known to reach")),
        ("to a backup", backups(), &to_first, newest, Ok("first")),
        ("to a backup: undone", with_later(), &to_first, &t("2026-01-30T12:00:00Z"), Err("was undone")),
        ("to another", backups(), &to_newest_backup, newest, Ok("newest")),
        ("to the newest state", backups(), &json!(["--set=label-of-newest"]), newest, Ok("newest")),
        ("by other options", with_later(), &by_hand, newest, Ok("later")),
        ("by other options: no base", backups(), &by_hand, newest, Err(no_base)),
        ("with --from, what is undone as well", backups(), &to_time, &["--from", "newest"], Ok("newest")),
    ] {
        match (chosen(backups, options, flags), base) {
            (Ok(set), Ok(base)) => assert_eq!(set, Some(format!("--set=label-of-{base}")), "{what}"),
            (Err(problem), Err(words)) => assert!(problem.contains(words), "{what}: {problem}"),
            (said, _) => panic!("{what}: {said:?}"),
        }
    }
    let list: Vec<PerconaPGBackup> = with_later().into_iter().map(of).collect();
    let Reach { ranges, .. } = reach(&of(cluster()), &list, &of::<Vec<PerconaPGRestore>>(restored(to_time)), now());
    let text = |(from, to): &(Timestamp, Timestamp)| format!("{from} to {to}");
    assert_eq!(
        ranges.iter().map(text).collect::<Vec<_>>(),
        ["2026-01-30T03:00:00Z to 2026-01-30T12:00:00Z", "2026-01-31T09:10:00Z to 2026-01-31T11:30:00Z"]
    );
}

/// Restored to a backup that an earlier restore had undone: the line is the one before that restore.
#[test]
fn a_restore_that_brings_back_what_another_has_undone() {
    let mut restores = restored(json!(["--type=time", "--target=\"2026-01-30 12:00:00+00\""]));
    let mut back = restores[0].clone();
    back["metadata"] = json!({"name": "back", "creationTimestamp": "2026-01-31T10:00:00Z"});
    back["spec"]["options"] = json!(["--type=immediate", "--set=label-of-newest"]);
    back["status"]["completed"] = json!("2026-01-31T10:10:00Z");
    restores.as_array_mut().unwrap().push(back);
    let set = |flags: &[&str]| may(cluster(), backups(), restores.clone(), flags).map(|(_, mut options)| options.pop());
    assert_eq!(set(&["--no-backup"]), Ok(Some("--set=label-of-newest".to_owned())));
    assert_eq!(set(&["--time", "2026-01-31T02:00:00Z"]), Ok(Some("--set=label-of-first".to_owned())));
    let problem = set(&["--time", "2026-01-31T09:30:00Z"]).unwrap_err();
    assert!(problem.contains("was undone"), "{problem}");
}

/// The volume of the earlier cluster is gone; a bucket, whose path contains the uid, is not.
#[test]
fn a_backup_of_an_earlier_cluster_of_the_name_is_not_usable() {
    let mut again = cluster();
    again["metadata"]["creationTimestamp"] = json!("2026-01-31T01:00:00Z");
    let chosen = |flags: &[&str]| may(again.clone(), backups(), json!([]), flags);
    let problem = chosen(&["--from", "old"]).unwrap_err();
    assert!(problem.contains("backup old is older than PerconaPGCluster acme-pg"), "{problem}");
    assert_eq!(chosen(&["--from", "first"]).unwrap().0, "repo2");
    again["spec"]["backups"]["pgbackrest"]["repos"] = json!([{"name": "repo1", "volume": {}}]);
    let problem = may(again, backups(), json!([]), &["--no-backup"]).unwrap_err();
    assert!(problem.contains("has no backup that can be restored"), "{problem}");
}

#[test]
fn the_end_of_an_earlier_restore_is_not_taken_for_its_own() {
    for (status, expected) in [
        (json!({}), false),
        (json!({"state": "Failed"}), false),
        (json!({"state": "Succeeded", "completed": "2026-01-31T11:59:59Z"}), true),
        (json!({"state": "Succeeded", "completed": "2026-01-31T12:00:01Z"}), false),
    ] {
        let metadata = json!({"name": "r", "creationTimestamp": "2026-01-31T12:00:00Z"});
        let spec = json!({"pgCluster": "acme-pg", "repoName": "repo1"});
        let restore = json!({"metadata": metadata, "spec": spec, "status": status});
        assert_eq!(is_of_an_earlier_one(&of(restore)), expected, "{status}");
    }
}
