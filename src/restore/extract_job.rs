//! Builds the Job that restores an app's files, from the one that archives them. Pure.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Container, EnvVar, KeyToPath, SecretVolumeSource, Volume, VolumeMount},
};
use kube::ResourceExt as _;

use crate::{
    backup::archive_job::ARCHIVE,
    crd::{DumpStore, JobSettings, StorePasswordSecret, label},
};

/// The container that restores, in place of the one that archives.
const EXTRACT: &str = "extract";
/// The value of [`label::ROLE`] of a Job that restores.
const RESTORE: &str = "restore";
/// The volume with the repository's password.
const PASSWORD: &str = "password";

/// Names what is restored into the volumes of a Job.
#[derive(Clone, Debug)]
pub(crate) struct Extract {
    /// Identifies the restore: another Job of the same restore continues it.
    pub(crate) id: String,
    /// Name of the archive.
    pub(crate) archive: String,
    /// The repository that it is in.
    pub(crate) store: DumpStore,
    /// uid and gid of the files' owner.
    pub(crate) user: i64,
    /// True if files in the volumes are replaced; otherwise a volume with files is refused.
    pub(crate) replace: bool,
}

/// Turns a Job that archives into one that restores.
pub(crate) fn extract(mut job: Job, what: &Extract) -> Job {
    job.labels_mut().insert(label::ROLE.to_owned(), RESTORE.to_owned());
    let Some(spec) = &mut job.spec else { return job };
    // The limit is for archives, which are incremental: a restore of all files takes longer, and is not cut off half way.
    spec.active_deadline_seconds =
        spec.active_deadline_seconds.map(|limit| limit.max(JobSettings::deadline_seconds(None)));
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

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn of<K: DeserializeOwned>(value: Value) -> K {
        serde_json::from_value(value).unwrap()
    }

    fn archives() -> Job {
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
        let owner = json!({"apiVersion": "v1", "kind": "ClientApp", "name": "acme", "uid": "uid", "controller": true});
        let meta = json!({"name": "acme-files-2", "namespace": "ns", "labels": labels, "ownerReferences": [owner]});
        of(json!({"metadata": meta, "spec": spec}))
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
    fn a_job_that_restores() {
        let job = extract(archives(), &extraction(true, Some("restic")));
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
          - apiVersion: v1
            controller: true
            kind: ClientApp
            name: acme
            uid: uid
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
        let plain = json!(extract(archives(), &extraction(false, None))).to_string();
        assert!(!plain.contains("--replace") && !plain.contains("PASSWORD"), "{plain}");
    }
}
