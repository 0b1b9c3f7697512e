//! Jobs that are made from the CronJob of `spec.persistence.backup`, and what they say. **Pure.**

use std::collections::BTreeSet;

use jiff::Timestamp;
use k8s_openapi::api::{
    batch::v1::{CronJob, Job},
    core::v1::{Container, EnvVar, KeyToPath, Pod, PodSpec, SecretVolumeSource, Volume, VolumeMount},
};
use kube::ResourceExt as _;

use crate::{
    backup::archive_job,
    clientapp::spec::file_backup::cron_job_spec::ARCHIVE,
    crd::{DumpStore, StorePasswordSecret, label},
};

/// The container that restores, in place of the one that archives.
const EXTRACT: &str = "extract";
/// The value of [`label::ROLE`] of a Job that restores: the operator counts the others as archives.
const RESTORE: &str = "restore";
/// The volume with the repository's password.
const PASSWORD: &str = "password";

/// A name that contains the time.
pub(super) fn name(cron_job: &CronJob, at: Timestamp) -> String {
    archive_job::name(&cron_job.name_any(), &at.strftime("%Y%m%d%H%M%S").to_string())
}

/// What is restored into the volumes of a CronJob.
#[derive(Clone, Debug)]
pub(super) struct Extract {
    /// Identifies the restore: another Job of the same restore continues it.
    pub(super) id: String,
    /// Name of the archive.
    pub(super) archive: String,
    /// The repository that it is in.
    pub(super) store: DumpStore,
    /// uid and gid of the files' owner.
    pub(super) user: i64,
    /// Whether files in the volumes are replaced; otherwise a volume with files is refused.
    pub(super) replace: bool,
}

/// Restores an archive.
pub(super) fn extract(cron_job: &CronJob, name: &str, what: &Extract) -> Job {
    let mut job = archive_job::instance(cron_job, name);
    job.labels_mut().insert(label::ROLE.to_owned(), RESTORE.to_owned());
    let Some(spec) = &mut job.spec else { return job };
    let rules = spec.pod_failure_policy.iter_mut().flat_map(|policy| &mut policy.rules);
    for codes in rules.filter_map(|rule| rule.on_exit_codes.as_mut()) {
        if codes.container_name.as_deref() == Some(ARCHIVE) {
            codes.container_name = Some(EXTRACT.to_owned());
        }
    }
    let labels = &mut spec.template.metadata.get_or_insert_default().labels;
    labels.get_or_insert_default().insert(label::ROLE.to_owned(), RESTORE.to_owned());
    let Some(pod) = &mut spec.template.spec else { return job };
    let security = pod.security_context.get_or_insert_default();
    // The root directory of a new volume belongs to root.
    security.fs_group = Some(what.user);
    security.fs_group_change_policy = Some("OnRootMismatch".to_owned());
    let mut writable = BTreeSet::new();
    for volume in pod.volumes.iter_mut().flatten() {
        if let Some(claim) = &mut volume.persistent_volume_claim {
            claim.read_only = None;
            writable.insert(volume.name.clone());
        }
    }
    for container in pod.containers.iter_mut().filter(|container| container.name == ARCHIVE) {
        extracts(container, what, &writable);
    }
    pod.volumes.get_or_insert_default().retain(|volume| volume.name != PASSWORD);
    if let Some(password) = &what.store.bucket.password_secret {
        pod.volumes.get_or_insert_default().push(password_volume(password));
    }
    job
}

fn extracts(container: &mut Container, what: &Extract, writable: &BTreeSet<String>) {
    container.name = EXTRACT.to_owned();
    let mut args = vec!["store".to_owned(), "extract".to_owned(), what.archive.clone()];
    if what.replace {
        args.push("--replace".to_owned());
    }
    container.args = Some(args);
    let mounts = container.volume_mounts.get_or_insert_default();
    for mount in mounts.iter_mut().filter(|mount| writable.contains(&mount.name)) {
        mount.read_only = None;
    }
    let env = container.env.get_or_insert_default();
    let is_for_archives = |name: &str| {
        ["ARCHIVE_OF", "STORE_PASSWORD_FILE", "STORE_PREFIX"].contains(&name) || name.starts_with("STORE_KEEP_")
    };
    env.retain(|variable| !is_for_archives(&variable.name));
    let variable =
        |name: &str, value: String| EnvVar { name: name.to_owned(), value: Some(value), ..EnvVar::default() };
    env.push(variable("STORE_PREFIX", what.store.path.clone()));
    env.push(variable("RESTORE_ID", what.id.clone()));
    mounts.retain(|mount| mount.name != PASSWORD);
    if what.store.bucket.password_secret.is_some() {
        env.push(variable("STORE_PASSWORD_FILE", format!("/{PASSWORD}/{PASSWORD}")));
        mounts.push(VolumeMount {
            name: PASSWORD.to_owned(),
            mount_path: format!("/{PASSWORD}"),
            read_only: Some(true),
            ..VolumeMount::default()
        });
    }
}

/// It is optional: the container reports a missing key, while the kubelet would only wait for it.
fn password_volume(StorePasswordSecret { name, key }: &StorePasswordSecret) -> Volume {
    let item = KeyToPath { key: key.clone(), path: PASSWORD.to_owned(), ..KeyToPath::default() };
    let secret = SecretVolumeSource {
        secret_name: Some(name.clone()),
        items: Some(vec![item]),
        optional: Some(true),
        ..SecretVolumeSource::default()
    };
    Volume { name: PASSWORD.to_owned(), secret: Some(secret), ..Volume::default() }
}

fn pod_of(cron_job: &CronJob) -> Option<&PodSpec> {
    cron_job.spec.as_ref()?.job_template.spec.as_ref()?.template.spec.as_ref()
}

/// The volumes whose files are archived.
pub(super) fn claims(cron_job: &CronJob) -> BTreeSet<String> {
    pod_of(cron_job).map(archive_job::claims).unwrap_or_default()
}

/// What identifies the volumes in their archives.
pub(super) fn archive_of(cron_job: &CronJob) -> Option<&str> {
    let mut variables = pod_of(cron_job)?.containers.iter().flat_map(|container| container.env.iter().flatten());
    variables.find(|variable| variable.name == "ARCHIVE_OF")?.value.as_deref()
}

/// Whether a pod can write to one of the volumes.
pub(super) fn mounts(pod: &Pod, claims: &BTreeSet<String>) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed"))
        && pod.spec.as_ref().is_some_and(|spec| !archive_job::claims(spec).is_disjoint(claims))
}

/// How a Job has ended; `None` if it has not.
pub(super) fn outcome(job: &Job) -> Option<Result<(), String>> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().filter(|condition| condition.status == "True").find_map(|condition| {
        match condition.type_.as_str() {
            "Complete" => Some(Ok(())),
            "Failed" => Some(Err(condition.message.clone().unwrap_or_default())),
            _ => None,
        }
    })
}

/// What a Job that has not ended is doing.
pub(super) fn state(job: &Job) -> &'static str {
    let ready = job.status.as_ref().and_then(|status| status.ready).unwrap_or_default();
    if ready > 0 { "its pod is running" } else { "waiting for its pod" }
}

/// The termination message of the pod that has failed last.
pub(super) fn last_words(pods: &[Pod]) -> Option<String> {
    let statuses = pods.iter().filter_map(|pod| pod.status.as_ref()?.container_statuses.as_ref()).flatten();
    let ended = statuses.filter_map(|status| status.state.as_ref()?.terminated.as_ref());
    let ended = ended.filter(|ended| ended.exit_code != 0);
    let last = ended.max_by_key(|ended| ended.finished_at.as_ref().map(|at| at.0))?;
    last.message.as_ref().map(|message| message.trim().to_owned()).filter(|message| !message.is_empty())
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn of<K: DeserializeOwned>(value: Value) -> K {
        serde_json::from_value(value).unwrap()
    }

    fn cron_job() -> CronJob {
        let labels = json!({
            "app.kubernetes.io/managed-by": "clientapp-operator",
            "apps.bnerd-operator.local/files-of": "acme",
            "apps.bnerd-operator.local/role": "archive",
        });
        let env = json!([
            {"name": "VOLUMES", "value": "/volumes"}, {"name": "ARCHIVE_OF", "value": "uid-1"},
            {"name": "STORE_PREFIX", "value": "prod/ns/acme.files"}, {"name": "STORE_PASSWORD_FILE", "value": "/password/password"},
            {"name": "STORE_KEEP_DAILY", "value": "7"}, {"name": "STORE_CA_FILE", "value": "/ca/ca.crt"},
        ]);
        let container = json!({
            "name": "archive", "image": "operator:1", "args": ["store", "archive"], "env": env,
            "volumeMounts": [
                {"name": "files-0", "mountPath": "/volumes/nextcloud", "readOnly": true},
                {"name": "ca", "mountPath": "/ca", "readOnly": true},
            ],
        });
        let pod = json!({
            "restartPolicy": "Never", "securityContext": {"runAsUser": 33}, "containers": [container],
            "volumes": [
                {"name": "files-0", "persistentVolumeClaim": {"claimName": "acme-nextcloud-nextcloud", "readOnly": true}},
                {"name": "ca", "secret": {"secretName": "ca"}},
            ],
        });
        let codes = json!({"containerName": "archive", "operator": "NotIn", "values": [0]});
        let rules = json!([
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
            {"action": "FailJob", "onExitCodes": codes},
        ]);
        let spec = json!({
            "backoffLimit": 2, "podFailurePolicy": {"rules": rules},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        });
        of(json!({
            "metadata": {"name": "acme-files", "namespace": "ns", "uid": "cron-uid"},
            "spec": {"schedule": "@daily", "jobTemplate": {"metadata": {"labels": labels}, "spec": spec}},
        }))
    }

    fn extraction(replace: bool, password: Option<&str>) -> Extract {
        let store = json!({
            "endpoint": "http://e", "bucket": "dumps", "credentialsSecret": {"name": "s3"}, "path": "old/ns/acme.files",
            "passwordSecret": password.map(|name| json!({"name": name})),
        });
        Extract {
            id: "app-uid-1".to_owned(),
            archive: "20260131T033000Z-p9d4f".to_owned(),
            store: of(store),
            user: 33,
            replace,
        }
    }

    #[test]
    fn a_job_that_archives() {
        let job = archive_job::archive(&cron_job(), "acme-files-1");
        let template = cron_job().spec.unwrap().job_template;
        assert_eq!((&job.spec, &job.metadata.labels), (&template.spec, &template.metadata.unwrap().labels));
        insta::assert_snapshot!(serde_yaml::to_string(&job.metadata).unwrap(), @r"
        annotations:
          cronjob.kubernetes.io/instantiate: manual
        labels:
          app.kubernetes.io/managed-by: clientapp-operator
          apps.bnerd-operator.local/files-of: acme
          apps.bnerd-operator.local/role: archive
        name: acme-files-1
        namespace: ns
        ownerReferences:
        - apiVersion: batch/v1
          controller: true
          kind: CronJob
          name: acme-files
          uid: cron-uid
        ");
    }

    #[test]
    fn a_job_that_restores() {
        let job = extract(&cron_job(), "acme-files-2", &extraction(true, Some("restic")));
        insta::assert_snapshot!(serde_yaml::to_string(&json!(job)).unwrap(), @r"
        apiVersion: batch/v1
        kind: Job
        metadata:
          labels:
            app.kubernetes.io/managed-by: clientapp-operator
            apps.bnerd-operator.local/files-of: acme
            apps.bnerd-operator.local/role: restore
          name: acme-files-2
          namespace: ns
          ownerReferences:
          - apiVersion: batch/v1
            controller: true
            kind: CronJob
            name: acme-files
            uid: cron-uid
        spec:
          backoffLimit: 2
          podFailurePolicy:
            rules:
            - action: Ignore
              onPodConditions:
              - status: 'True'
                type: DisruptionTarget
            - action: FailJob
              onExitCodes:
                containerName: extract
                operator: NotIn
                values:
                - 0
          template:
            metadata:
              labels:
                app.kubernetes.io/managed-by: clientapp-operator
                apps.bnerd-operator.local/files-of: acme
                apps.bnerd-operator.local/role: restore
            spec:
              containers:
              - args:
                - store
                - extract
                - 20260131T033000Z-p9d4f
                - --replace
                env:
                - name: VOLUMES
                  value: /volumes
                - name: STORE_CA_FILE
                  value: /ca/ca.crt
                - name: STORE_PREFIX
                  value: old/ns/acme.files
                - name: RESTORE_ID
                  value: app-uid-1
                - name: STORE_PASSWORD_FILE
                  value: /password/password
                image: operator:1
                name: extract
                volumeMounts:
                - mountPath: /volumes/nextcloud
                  name: files-0
                - mountPath: /ca
                  name: ca
                  readOnly: true
                - mountPath: /password
                  name: password
                  readOnly: true
              restartPolicy: Never
              securityContext:
                fsGroup: 33
                fsGroupChangePolicy: OnRootMismatch
                runAsUser: 33
              volumes:
              - name: files-0
                persistentVolumeClaim:
                  claimName: acme-nextcloud-nextcloud
              - name: ca
                secret:
                  secretName: ca
              - name: password
                secret:
                  items:
                  - key: password
                    path: password
                  optional: true
                  secretName: restic
        ");
        let plain = json!(extract(&cron_job(), "acme-files-2", &extraction(false, None))).to_string();
        assert!(!plain.contains("--replace") && !plain.contains("PASSWORD"), "{plain}");
    }

    #[test]
    fn names_of_jobs() {
        let at = "2026-01-31T04:05:06Z".parse().unwrap();
        assert_eq!(name(&cron_job(), at), "acme-files-20260131040506");
        let mut longest = cron_job();
        longest.metadata.name = Some(format!("{}-files", "a".repeat(46)));
        assert_eq!(name(&longest, at), format!("{}-f-20260131040506", "a".repeat(46)));
        longest.metadata.name = Some(format!("{}-files", "a".repeat(47)));
        assert_eq!(name(&longest, at), format!("{}-20260131040506", "a".repeat(47)), "no two dashes");
    }

    #[test]
    fn which_pods_mount_the_volumes() {
        let claims = claims(&cron_job());
        assert_eq!(claims.iter().collect::<Vec<_>>(), ["acme-nextcloud-nextcloud"]);
        assert_eq!(archive_of(&cron_job()), Some("uid-1"));
        let pod = |claim: &str, phase: &str| -> Pod {
            let volume = json!({"name": "b", "persistentVolumeClaim": {"claimName": claim}});
            let volumes = json!([{"name": "a", "emptyDir": {}}, volume]);
            of(json!({"metadata": {}, "spec": {"containers": [], "volumes": volumes}, "status": {"phase": phase}}))
        };
        for (claim, phase, expected) in [
            ("acme-nextcloud-nextcloud", "Running", true),
            ("acme-nextcloud-nextcloud", "Pending", true),
            ("acme-nextcloud-nextcloud", "Unknown", true),
            ("acme-nextcloud-nextcloud", "Succeeded", false),
            ("acme-nextcloud-nextcloud", "Failed", false),
            ("another", "Running", false),
        ] {
            assert_eq!(mounts(&pod(claim, phase), &claims), expected, "{claim}, {phase}");
        }
    }

    #[test]
    fn how_a_job_has_ended() {
        let job = |conditions: Value| -> Job { of(json!({"metadata": {}, "status": {"conditions": conditions}})) };
        let condition = |type_: &str, status: &str| json!({"type": type_, "status": status, "message": "why"});
        for (conditions, expected) in [
            (json!([]), None),
            (json!([condition("SuccessCriteriaMet", "True")]), None),
            (json!([condition("Complete", "False")]), None),
            (json!([condition("Complete", "True")]), Some(Ok(()))),
            (json!([condition("FailureTarget", "True"), condition("Failed", "True")]), Some(Err("why".to_owned()))),
        ] {
            assert_eq!(outcome(&job(conditions.clone())), expected, "{conditions}");
        }
        let pod = |code: i32, at: &str, message: &str| -> Pod {
            let ended = json!({"exitCode": code, "finishedAt": at, "message": message});
            let status = json!({"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0,
                "state": {"terminated": ended}});
            of(json!({"metadata": {}, "status": {"containerStatuses": [status]}}))
        };
        let pods = [
            pod(1, "2026-01-31T04:00:00Z", "error: first\n"),
            pod(1, "2026-01-31T04:01:00Z", "error: second\n"),
            pod(0, "2026-01-31T04:02:00Z", "fine"),
        ];
        assert_eq!(last_words(&pods).as_deref(), Some("error: second"));
        assert_eq!(last_words(&[]), None);
    }
}
