use jiff::SignedDuration;
use serde_json::{Value, json};

use super::*;
use crate::{
    clientapp::{
        fixtures::{chart, now, settled, want},
        observed::types::Busy,
        spec::file_backup::{Schedule, Volume},
    },
    crd::conditions::State,
};

const DONE: &str = "20260101T110500Z-abcde 4096 12";

fn spec(more: Value) -> Value {
    let store = json!({
        "endpoint": "https://s3.example.com", "bucket": "dumps", "prefix": "prod",
        "credentialsSecret": {"name": "s3"}, "keep": {"daily": 7},
    });
    let mut backup = json!({"schedule": "30 3 * * *", "store": store});
    for (field, value) in more.as_object().unwrap() {
        backup[field] = value.clone();
    }
    json!({"persistence": {"backup": backup}})
}

fn volume(claim: &str) -> Volume {
    Volume { claim: claim.to_owned(), uid: format!("uid-of-{claim}") }
}

fn time(minute: u8) -> Time {
    serde_json::from_value(json!(format!("2026-01-01T11:{minute:02}:00Z"))).unwrap()
}

fn archive(job: &str, succeeded: Option<bool>, ended: u8, words: Option<&str>) -> ArchiveView {
    let ended = succeeded.map(|_| time(ended));
    let words = |is: bool| words.filter(|_| succeeded == Some(is)).map(str::to_owned);
    let progress = JobProgress { succeeded, started: Some(time(0)), ended };
    let cron_job = Some("cron-uid".to_owned());
    ArchiveView { job: job.to_owned(), cron_job, progress, report: words(true), failed: words(false) }
}

/// A deployed release with a volume, and no CronJob yet.
fn observed(desired: &Desired) -> Observed {
    let mut observed = settled(desired);
    observed.recorded.installed = Some(chart("5.5.2", None));
    observed.files = FilesView {
        image: Some("operator:1".to_owned()),
        app_uid: "uid".to_owned(),
        volumes: Some(vec![volume("acme-nextcloud-nextcloud")]),
        ..FilesView::default()
    };
    observed
}

fn cron_job(owner: Option<(&str, &str)>, digest: Option<String>) -> CronJobView {
    let owner = owner.map(|(kind, uid)| (kind.to_owned(), "acme".to_owned(), uid.to_owned()));
    CronJobView { uid: "cron-uid".to_owned(), digest, owner, schedule: None }
}

fn document(desired: &Desired, observed: &Observed) -> Value {
    match step(desired, observed, now()) {
        Some(Step::ApplyArchives { document, .. }) => document,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_cron_job() {
    let desired = want(&spec(json!({})));
    insta::assert_snapshot!(serde_yaml::to_string(&document(&desired, &observed(&desired))).unwrap());
}

#[test]
fn on_request_only_and_of_several_volumes() {
    let desired = want(&spec(json!({"schedule": null, "user": 82})));
    let mut observed = observed(&desired);
    observed.files.volumes.as_mut().unwrap().push(volume("acme-nextcloud-nextcloud-data"));
    let document = document(&desired, &observed);
    let pod = &document["spec"]["jobTemplate"]["spec"]["template"]["spec"];
    let paths: Vec<_> =
        pod["containers"][0]["volumeMounts"].as_array().unwrap().iter().map(|m| &m["mountPath"]).collect();
    assert_eq!(paths, ["/volumes/nextcloud", "/volumes/nextcloud-data", "/tmp"]);
    assert_eq!((&document["spec"]["suspend"], &pod["securityContext"]["runAsUser"]), (&json!(true), &json!(82)));
    let of = pod["containers"][0]["env"].as_array().unwrap().iter().find(|v| v["name"] == "ARCHIVE_OF").unwrap();
    assert_eq!(of["value"], "uid-of-acme-nextcloud-nextcloud.uid-of-acme-nextcloud-nextcloud-data");
}

#[test]
fn when_the_cron_job_is_applied_and_deleted() {
    let desired = want(&spec(json!({})));
    let without = want(&json!({}));
    let suspended = want(&crate::clientapp::fixtures::with(spec(json!({})), &json!({"suspend": true})));
    let digest = cron_job_spec::digest(&document(&desired, &observed(&desired)));
    let ours = |digest: &str| Some(cron_job(Some(("ClientApp", "uid")), Some(digest.to_owned())));
    let edited = |digest: &str| {
        let schedule = Some(Schedule { cron: "30 3 * * *".to_owned(), suspended: true });
        Some(CronJobView { schedule, ..ours(digest).unwrap() })
    };
    let refused = |digest: &str, minutes: i64| {
        let until = now() + SignedDuration::from_mins(minutes);
        Some(RefusedArchives { digest: digest.to_owned(), message: "no".to_owned(), until })
    };
    type Change<'a> = Box<dyn Fn(&mut Observed) + 'a>;
    for (what, desired, change, expected) in [
        ("nothing exists", &desired, Box::new(|_: &mut Observed| {}) as Change<'_>, Some("create")),
        ("it is as desired", &desired, Box::new(|o| o.files.cron_job = ours(&digest)), None),
        ("it is of an earlier spec", &desired, Box::new(|o| o.files.cron_job = ours("earlier")), Some("apply")),
        ("it is a user's", &desired, Box::new(|o| o.files.cron_job = Some(cron_job(None, None))), None),
        (
            "it is an earlier app's",
            &desired,
            Box::new(|o| o.files.cron_job = Some(cron_job(Some(("ClientApp", "another")), None))),
            None,
        ),
        ("it is suspended by a user", &desired, Box::new(|o| o.files.cron_job = edited(&digest)), Some("apply")),
        ("it was refused", &desired, Box::new(|o| o.files.refused = refused(&digest, 1)), None),
        ("it was refused long ago", &desired, Box::new(|o| o.files.refused = refused(&digest, -1)), Some("create")),
        ("another was refused", &desired, Box::new(|o| o.files.refused = refused("another", 1)), Some("create")),
        ("a volume is not seen yet", &desired, Box::new(|o| o.files.volumes = None), None),
        ("there is no volume", &desired, Box::new(|o| o.files.volumes = Some(vec![])), None),
        ("no image is known", &desired, Box::new(|o| o.files.image = None), None),
        ("nothing is released", &desired, Box::new(|o| o.release = None), None),
        ("the release is another's", &desired, Box::new(|o| o.release.as_mut().unwrap().ever_managed = false), None),
        (
            "an upgrade has failed",
            &desired,
            Box::new(|o| o.release.as_mut().unwrap().phase = ReleasePhase::Failed),
            None,
        ),
        (
            "helm runs",
            &desired,
            Box::new(|o| o.run.busy = Some(Busy { digest: None, sentence: String::new(), until: None })),
            None,
        ),
        ("nothing is changed", &suspended, Box::new(|_| {}), None),
        ("none is asked for", &without, Box::new(|_| {}), None),
        ("none is asked for any more", &without, Box::new(|o| o.files.cron_job = ours(&digest)), Some("delete")),
        (
            "files are restored",
            &without,
            Box::new(|o| {
                o.files.cron_job = ours(&digest);
                o.files.stopped_for = Some("ClientAppRestore/r".to_owned());
            }),
            None,
        ),
        ("a user's is not deleted", &without, Box::new(|o| o.files.cron_job = Some(cron_job(None, None))), None),
    ] {
        let mut observed = observed(desired);
        change(&mut observed);
        let found = match step(desired, &observed, now()) {
            Some(Step::ApplyArchives { uid: None, .. }) => Some("create"),
            Some(Step::ApplyArchives { uid: Some(uid), .. }) if uid == "cron-uid" => Some("apply"),
            Some(Step::DeleteArchives { uid }) if uid == "cron-uid" => Some("delete"),
            None => None,
            other => panic!("{what}: {other:?}"),
        };
        assert_eq!(found, expected, "{what}");
    }
}

#[test]
fn another_operators_image_and_another_volume_are_applied() {
    let desired = want(&spec(json!({})));
    let first = observed(&desired);
    let before = cron_job_spec::digest(&document(&desired, &first));
    let mut image = first.clone();
    image.files.image = Some("operator:2".to_owned());
    let mut replaced = first;
    replaced.files.volumes = Some(vec![Volume { uid: "new".to_owned(), ..volume("acme-nextcloud-nextcloud") }]);
    let mut restoring = replaced.clone();
    restoring.files.stopped_for = Some("ClientAppRestore/r".to_owned());
    assert_eq!(document(&desired, &restoring)["spec"]["suspend"], true);
    for observed in [image, replaced] {
        assert_ne!(cron_job_spec::digest(&document(&desired, &observed)), before);
    }
}

#[test]
fn archive_records_and_conditions() {
    let desired = want(&spec(json!({})));
    let mut lines = Vec::new();
    for (what, archives) in [
        ("none", vec![]),
        ("running", vec![archive("one", None, 0, None)]),
        ("complete, its pod is not seen yet", vec![archive("one", Some(true), 5, None)]),
        ("complete", vec![archive("one", Some(true), 5, Some(DONE))]),
        ("failed first", vec![archive("one", Some(false), 5, Some("AWS_ACCESS_KEY_ID is not set"))]),
        (
            "failed after a complete one",
            vec![archive("one", Some(true), 5, Some(DONE)), archive("two", Some(false), 9, None)],
        ),
        (
            "complete after a failed one",
            vec![archive("one", Some(false), 2, Some("why")), archive("two", Some(true), 5, Some(DONE))],
        ),
    ] {
        let mut observed = observed(&desired);
        observed.files.cron_job = Some(cron_job(Some(("ClientApp", "uid")), None));
        observed.files.archives = archives;
        let files = summary(&desired, &observed);
        let verdict = verdict(&desired, &observed, files.as_ref()).unwrap();
        // What the same Jobs say again changes nothing.
        observed.recorded.files.clone_from(&files);
        assert_eq!(summary(&desired, &observed), files, "{what}");
        // Nor do they have to stay.
        observed.files.archives.clear();
        assert_eq!(summary(&desired, &observed), files, "{what}");
        lines.push(format!("{what}: {} {}: {}", verdict.state.as_str(), verdict.reason, verdict.message));
    }
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn users_jobs_with_our_labels_are_ignored() {
    let desired = want(&spec(json!({})));
    let mut observed = observed(&desired);
    let forged =
        |of: Option<&str>| ArchiveView { cron_job: of.map(str::to_owned), ..archive("x", Some(true), 5, Some(DONE)) };
    observed.files.archives = vec![forged(None), forged(Some("another"))];
    assert_eq!(summary(&desired, &observed), None);
    observed.files.cron_job = Some(cron_job(Some(("ClientApp", "uid")), None));
    assert_eq!(summary(&desired, &observed), None);
    observed.files.archives = vec![archive("x", Some(true), 5, Some("../../x 1 2"))];
    assert_eq!(summary(&desired, &observed).unwrap().archive, None);
}

#[test]
fn why_there_are_no_archives() {
    let desired = want(&spec(json!({})));
    let mut observed = observed(&desired);
    let reason = |observed: &Observed| {
        let verdict = verdict(&desired, observed, None).unwrap();
        assert_ne!(verdict.state, State::True);
        verdict.reason.into_owned()
    };
    assert_eq!(reason(&observed), Reason::NoArchive);
    observed.files.stopped_for = Some("ClientAppRestore/r".to_owned());
    assert_eq!(reason(&observed), Reason::Restoring);
    observed.files.refused = Some(RefusedArchives { digest: String::new(), message: "no".to_owned(), until: now() });
    assert_eq!(reason(&observed), Reason::Refused);
    observed.files.volumes = Some(vec![]);
    assert_eq!(reason(&observed), Reason::NoVolume);
    observed.files.image = None;
    assert_eq!(reason(&observed), Reason::OperatorImageUnknown);
    observed.files.cron_job = Some(cron_job(None, None));
    assert_eq!(reason(&observed), Reason::NotOurs);
    let without = want(&json!({}));
    assert_eq!((verdict(&without, &observed, None), summary(&without, &observed)), (None, None));
}
