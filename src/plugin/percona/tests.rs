use serde_json::{Value, json};

use super::*;
use crate::{
    platform::fake::of,
    plugin::tests::flags,
    restore::percona::tests::{backups, cluster, now},
};

#[test]
fn whether_a_backup_would_be_carried_out() {
    let why = |cluster: Value| no_backup("acme", &of(cluster), &flags("ns"));
    assert_eq!(why(cluster()), None);
    let (mut none, mut early, mut restoring) = (cluster(), cluster(), cluster());
    none["spec"]["backups"]["enabled"] = json!(false);
    early["status"]["conditions"][0]["status"] = json!("False");
    restoring["spec"]["backups"]["pgbackrest"]["restore"] = json!({"enabled": true});
    for (cluster, words) in [
        (none, "set spec.postgres.percona.schedules"),
        (early, "is not ready for a backup"),
        (restoring, "is being restored"),
    ] {
        let problem = why(cluster).unwrap();
        assert!(problem.contains(words), "{problem}");
    }
}

#[test]
fn the_backups_and_how_far_they_reach() {
    let list: Vec<PerconaPGBackup> = backups().into_iter().map(of).collect();
    let text = render(&of(cluster()), (&list, &[]), None, now());
    insta::assert_snapshot!(anstream::adapter::strip_str(&text).to_string());
    assert_eq!(render(&of(cluster()), (&[], &[]), None, now()), "");
}
