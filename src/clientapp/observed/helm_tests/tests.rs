use super::*;
use crate::{clientapp::fixtures::now, platform::account::AccountName};

#[test]
fn results_are_recorded() {
    let tests = |count: usize, failed: &[&str]| {
        let failed = failed.iter().filter_map(|test| test.split_once(' '));
        Ok(Tests { count, failed: failed.map(|(kind, name)| (kind.to_owned(), name.to_owned())).collect() })
    };
    let failed = || Some("helm test: pod check failed".to_owned());
    let before = Tested { secret: "revision-3".to_owned(), failures: 2, ..Tested::default() };
    let another = Tested { secret: "revision-2".to_owned(), failures: 2, ..Tested::default() };
    let none = || Err("its Secret is gone".to_owned());
    let exit = Some("container check of pod check ends with exit code 1: see `kubectl logs`".to_owned());
    let mut lines = Vec::new();
    for (what, (failed, conclusive), tests, pods, before) in [
        ("none", (None, true), tests(0, &[]), None, None),
        ("one", (None, true), tests(1, &[]), None, Some(&before)),
        ("some", (None, true), tests(3, &[]), None, None),
        ("unreadable", (None, true), none(), None, None),
        ("failed", (failed(), true), tests(2, &["Pod check"]), exit, Some(&another)),
        ("failed again", (failed(), true), tests(2, &["Pod check", "Job ask"]), None, Some(&before)),
        ("denied", (failed(), false), tests(2, &["Pod check"]), None, Some(&before)),
        ("no test has failed", (failed(), true), tests(2, &[]), None, None),
        ("away", (failed(), true), none(), None, Some(&before)),
    ] {
        let account = AccountName::default();
        let (secret, secret_uid) = ("sh.helm.release.v1.acme.v3".to_owned(), "revision-3".to_owned());
        let (started_at, at, unit) = (now(), now(), 0.5);
        let test_run = TestRun { revision: 3, secret, secret_uid, account, failed, conclusive, started_at, at, unit };
        let Tested { secret, revision, passed, message, failures, ended_at, retry_at } =
            record(before, &test_run, tests, pods);
        assert_eq!((secret.as_str(), revision, ended_at), ("revision-3", 3, Some(Time(now()))));
        let again = retry_at.map_or("never".to_owned(), |at| format!("{:#}", at.0.duration_since(now())));
        lines.push(format!("{what}: passed {passed}, {failures} failures, again {again}: {message}\n"));
    }
    insta::assert_snapshot!(lines.concat());
}
