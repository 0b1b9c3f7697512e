//! Conditions for another chart version: allowed versions of the app, and a backup.

use clientapp_crd::percona::{PerconaPGBackup, PerconaPGCluster};
use clientapp_crd::{
    BackupRecord, BackupState, ClientApp, ClientAppBackup, ClientAppStatus, DatabaseBackup, DumpState, Postgresql,
    annotation,
};
use e2e::charts;
use e2e::lab::{Lab, Tenant, has, hostname};
use e2e::percona::Knobs;
use e2e::scenario::{delete, names, nothing_is_left};
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt as _;
use kube::api::{Patch, PatchParams, PropagationPolicy};
use serde_json::json;

use super::remedy::retry;
use super::{helms, installed};

/// Returns what the ClientAppBackup of a record has made of the database.
async fn made(tenant: &Tenant, record: &BackupRecord) -> DatabaseBackup {
    let backup = tenant.api::<ClientAppBackup>().get(&record.name).await.unwrap();
    assert_eq!(backup.annotations()[annotation::UPGRADE], format!("{} -> {}", record.from, record.to));
    backup.status.and_then(|status| status.database).unwrap()
}

/// Waits until a recorded backup is in this state.
async fn backed_up(tenant: &Tenant, state: BackupState) -> BackupRecord {
    let recorded = |status: &ClientAppStatus| status.backup.as_ref().is_some_and(|backup| backup.state == state);
    tenant.status("acme", &format!("backup {state:?}"), recorded).await.backup.unwrap()
}

#[tokio::test]
async fn an_app_goes_back_or_skips_a_major_version_only_when_that_is_allowed() {
    let tenant = installed("no-way-back", json!({"chartVersion": charts::MAJOR})).await;
    let before = helms(&tenant).await;

    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    let words = ["30.0.0 is installed", "29.0.5", "restore a backup", "set spec.upgrade.allow to 5.5.3"];
    tenant.held("acme", "DowngradeRefused", &words).await;
    let status = tenant.api::<ClientApp>().get("acme").await.unwrap().status.unwrap();
    assert!(has(&status, "WorkloadsReady", "True", "Ready"), "the installed version keeps running: {status:?}");
    // An allowance for another version does not apply.
    tenant.patch("acme", json!({"upgrade": {"allow": charts::DEFAULT}})).await.unwrap();
    tenant.condition("acme", "Released", "False", "DowngradeRefused").await;
    assert_eq!(helms(&tenant).await, before);
    assert_eq!(tenant.listed("acme").unwrap().0, "1");
    // The release is gone, but the data still exists, so the downgrade is still refused.
    tenant.helm(&["uninstall", "acme"]);
    let gone = |status: &ClientAppStatus| status.release.is_none() && has(status, "Ready", "False", "DowngradeRefused");
    tenant.status("acme", "without a release", gone).await;
    tenant.patch("acme", json!({"replicas": 2})).await.unwrap();
    tenant.condition("acme", "Released", "False", "DowngradeRefused").await;
    assert_eq!(tenant.listed("acme"), None);

    tenant.patch("acme", json!({"upgrade": {"allow": charts::PATCH}})).await.unwrap();
    tenant.ready("acme", 1).await;
    assert_eq!(tenant.listed("acme").unwrap().2, "nextcloud-5.5.3");

    // Once: the field stays in the spec, but was for that change.
    tenant.patch("acme", json!({"chartVersion": charts::MAJOR})).await.unwrap();
    let status = tenant.ready("acme", 2).await;
    assert_eq!(status.spent_allow.as_deref(), Some(charts::PATCH));
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.held("acme", "DowngradeRefused", &["spec.upgrade.allow names 5.5.3, which was for an earlier change"]).await;
    assert_eq!(tenant.listed("acme").unwrap().2, "nextcloud-6.0.0");
    tenant.patch("acme", json!({"upgrade": {"allow": null}})).await.unwrap();
    tenant.status("acme", "without a leave", |status| status.spent_allow.is_none()).await;
}

/// Backdates the last backup to yesterday, and makes the last attempt due for a retry.
async fn a_day_passes(tenant: &Tenant) {
    let patch = json!({"status": {
        "backup": {"asOf": "2026-01-01T00:00:00Z"}, "lastAttempt": {"retryAt": "2026-01-01T00:00:00Z"},
    }});
    tenant
        .api::<ClientApp>()
        .patch_status("acme", &PatchParams::default(), &Patch::Merge(&patch))
        .await
        .expect("write an earlier time");
}

/// Waits until helm has failed in this way after a new backup, other than these.
async fn failed_after(tenant: &Tenant, reason: &str, earlier: &[&BackupRecord]) -> BackupRecord {
    let failed = |status: &ClientAppStatus| {
        let new = status.backup.as_ref().is_some_and(|backup| {
            backup.state == BackupState::Succeeded && earlier.iter().all(|earlier| earlier.name != backup.name)
        });
        let attempt = status.last_attempt.as_ref();
        new && attempt.is_some_and(|attempt| attempt.retry_at.is_some() && attempt.reason.as_deref() == Some(reason))
    };
    tenant.status("acme", &format!("{reason} after another backup"), failed).await.backup.unwrap()
}

#[tokio::test]
async fn an_upgrade_waits_for_a_dump_of_what_is_upgraded() {
    let backed_up = json!({"postgres": {"provider": "standalone"}, "upgrade": {"backup": true}});
    let tenant = installed("dumped", backed_up).await;
    assert_eq!(names::<Job>(&tenant).await, [""; 0]);
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    let status = tenant.ready("acme", 2).await;
    let backup = status.backup.unwrap();
    assert_eq!(
        (backup.kind.as_str(), backup.state, backup.revision),
        ("ClientAppBackup", BackupState::Succeeded, Some(2))
    );
    let dump = tenant.api::<Postgresql>().get("acme-pg").await.unwrap().status.unwrap().dump.unwrap();
    assert_eq!((&dump.request, dump.state), (&made(&tenant, &backup).await.name, DumpState::Succeeded));
    let job = tenant.api::<Job>().get(&dump.job).await.unwrap();
    let (ended, release) = (job.status.unwrap().completion_time.unwrap(), status.release.unwrap());
    assert!(ended.0 <= release.deployed_at.unwrap().0, "helm ran before the dump had ended");

    // helm has changed nothing, and users keep writing: a day later that backup no longer has their data.
    tenant.patch("acme", json!({"chartVersion": charts::UNRENDERABLE})).await.unwrap();
    let first = failed_after(&tenant, "ChartInvalid", &[&backup]).await;
    a_day_passes(&tenant).await;
    let second = failed_after(&tenant, "ChartInvalid", &[&backup, &first]).await;
    assert_eq!((first.at_revision, second.at_revision), (Some(2), Some(2)));

    // A failed attempt may have upgraded part of the data. The operator backs that up only when a user asks for it.
    tenant.patch("acme", json!({"chartVersion": charts::HOOK_FAILS})).await.unwrap();
    let third = failed_after(&tenant, "UpgradeFailed", &[&backup, &first, &second]).await;
    let before = helms(&tenant).await;
    a_day_passes(&tenant).await;
    tenant.held("acme", "BackupOutdated", &[&third.name, "kubectl clientapp retry acme"]).await;
    tenant.condition("acme", "Stalled", "True", "BackupOutdated").await;
    assert_eq!(helms(&tenant).await, before);
    retry(&tenant).await;
    let fourth = failed_after(&tenant, "UpgradeFailed", &[&backup, &first, &second, &third]).await;
    assert_eq!(fourth.at_revision, Some(3));
    let last = tenant.api::<Postgresql>().get("acme-pg").await.unwrap().status.unwrap().dump.unwrap();
    assert_eq!((&last.request, last.state), (&made(&tenant, &fourth).await.name, DumpState::Succeeded));
    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
}

#[tokio::test]
async fn an_upgrade_waits_for_perconas_backup() {
    let tenant = Lab::shared().await.tenant("backed-up").await;
    let spec = json!({
        "hostname": hostname(&tenant, "acme"),
        "upgrade": {"backup": true},
        "redis": {"enabled": false},
    });
    tenant.create("acme", spec).await.unwrap();
    let status = tenant.ready("acme", 1).await;
    assert_eq!(status.backup, None, "there was nothing to back up");
    let cluster = tenant.api::<PerconaPGCluster>().get("acme-pg").await.unwrap();
    assert!(cluster.spec.backups.are_made());
    let helm = helms(&tenant).await;

    tenant.percona("acme-pg", Knobs { hold_backups: true, ..Knobs::default() });
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    let running = backed_up(&tenant, BackupState::Running).await;
    let told = tenant.condition("acme", "Released", "False", "BackingUp").await;
    assert_eq!(
        told,
        format!("ClientAppBackup {} has to succeed before chart version 5.5.3 is installed", running.name)
    );
    assert_eq!((running.from.as_str(), running.to.as_str()), (charts::DEFAULT, charts::PATCH));
    // It is recorded before it is requested.
    let named = |backup: Option<&ClientAppBackup>| Some(backup?.status.as_ref()?.database.as_ref()?.name.clone());
    let percona = tenant.wait_for(&running.name, "begun", named).await;
    let asked = |backup: Option<&PerconaPGBackup>| Some(backup?.spec.pg_cluster.clone());
    assert_eq!(tenant.wait_for(&percona, "asked for", asked).await, "acme-pg");
    // Neither another reconcile nor another change skips it.
    tenant.patch("acme", json!({"replicas": 2})).await.unwrap();
    tenant.condition("acme", "Released", "False", "BackingUp").await;
    assert_eq!(helms(&tenant).await, helm);
    tenant.percona("acme-pg", Knobs::default());
    tenant.ready("acme", 2).await;
    let done = backed_up(&tenant, BackupState::Succeeded).await;
    assert!(done.as_of.is_some() && done.at_revision == Some(1), "{done:?}");
    assert_eq!(
        done,
        BackupRecord { state: BackupState::Succeeded, revision: Some(2), as_of: done.as_of.clone(), ..running }
    );

    // A failed backup stops the upgrade; if it is deleted, it is recreated.
    tenant.percona("acme-pg", Knobs { fail_backups: true, ..Knobs::default() });
    tenant.patch("acme", json!({"chartVersion": charts::MAJOR})).await.unwrap();
    let words = ["nothing is upgraded without it", "spec.upgrade.backup to false"];
    tenant.condition_with("acme", ("Released", "BackupFailed"), &words).await;
    tenant.condition("acme", "Stalled", "True", "BackupFailed").await;
    let failed = backed_up(&tenant, BackupState::Failed).await;
    assert_eq!(tenant.listed("acme").unwrap().0, "2");
    tenant.percona("acme-pg", Knobs::default());
    tenant.kubectl(&["delete", "clientappbackup", &failed.name, "--timeout=60s"]).unwrap();
    tenant.ready("acme", 3).await;
    assert_eq!(backed_up(&tenant, BackupState::Succeeded).await.revision, Some(3));

    // A change without another version needs no backup.
    tenant.patch("acme", json!({"replicas": 1})).await.unwrap();
    tenant.ready("acme", 4).await;
    let ours = names::<ClientAppBackup>(&tenant).await;
    assert_eq!(ours.len(), 2, "{ours:?}");

    // The backup target stays, with its backups.
    tenant.patch("acme", json!({"upgrade": {"backup": false}, "postgres": {"storageSize": "2Gi"}})).await.unwrap();
    tenant
        .wait_for("acme-pg", "grown", |cluster: Option<&PerconaPGCluster>| {
            (cluster?.spec.instances.first()?.storage() == Some("2Gi")).then_some(())
        })
        .await;
    assert!(tenant.api::<PerconaPGCluster>().get("acme-pg").await.unwrap().spec.backups.are_made());

    delete(&tenant, "acme", PropagationPolicy::Foreground).await;
    nothing_is_left(&tenant).await;
    assert_eq!(names::<PerconaPGBackup>(&tenant).await, [""; 0]);
}
