//! Builds the Jobs that archive an app's files, as `spec.persistence.backup` asks for, and restore them. Pure.
//!
//! They belong to the ClientApp: what keeps a volume in use goes with the app.

use std::collections::BTreeSet;

use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{Pod, PodSpec, Toleration},
};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::{
    clientapp::spec::names::digest,
    crd::{Bucket, ClientApp, FilesBackup, JobSettings, label},
    platform::{key::key_of, operator_image::OperatorImage, watch::owner_reference},
    postgresql::{
        decide::dumps::NO_IMAGE,
        desired::DesiredStore,
        objects::{
            bucket::{self, variable},
            pod::{REPORT, confined, give_account, give_job_settings},
        },
    },
    store::settings::{BACKUP_UID, LONGEST},
};

/// The maximum length of a Job's name: it becomes a label of its pods.
const LONGEST_NAME: usize = 63;
/// The directory with a directory for each volume.
const VOLUMES: &str = "/volumes";
/// The name of the container that archives, and the value of [`label::ROLE`] of its Job.
const ARCHIVE: &str = "archive";
/// The name of the container that restores.
const EXTRACT: &str = "extract";
/// The value of [`label::ROLE`] of a Job that restores.
const RESTORE: &str = "restore";
/// The Job, its log and its pod are deleted after this time; the status has the result by then.
const KEPT_SECONDS: i32 = 24 * 60 * 60;

/// A volume with files of the app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Volume {
    /// Name of the PersistentVolumeClaim.
    pub claim: String,
    /// uid of the PersistentVolumeClaim.
    pub uid: String,
}

/// Holds what a Job for an app's files is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files<'a> {
    pub app: &'a ClientApp,
    pub backup: &'a FilesBackup,
    pub volumes: &'a [Volume],
    /// The operator's own image.
    pub image: &'a OperatorImage,
}

/// Returns what a Job for an app's files is made of, or what it waits for.
pub(crate) fn files<'a>(
    app: &'a ClientApp,
    volumes: Option<&'a [Volume]>,
    image: Option<&'a OperatorImage>,
) -> Result<Files<'a>, String> {
    let Some(image) = image else { return Err(NO_IMAGE.to_owned()) };
    let backup = settings(app)?;
    match volumes.filter(|volumes| !volumes.is_empty()) {
        Some(volumes) => Ok(Files { app, backup, volumes, image }),
        None => Err(unknown(&app.name_any())),
    }
}

/// Returns `spec.persistence.backup`, or says that it is missing.
pub(crate) fn settings(app: &ClientApp) -> Result<&FilesBackup, String> {
    let missing = || format!("the files of {} are not backed up: set spec.persistence.backup", app.name_any());
    app.spec.persistence.backup.as_ref().ok_or_else(missing)
}

/// Says that the volumes of an app are not known.
pub(crate) fn unknown(app: &str) -> String {
    format!("the volumes of {app} are not known, or do not exist: its conditions Released and FilesBackedUp say why")
}

/// Returns the name of a Job for an app's files, which ends with a word.
pub(crate) fn name(app: &str, word: &str) -> String {
    let head: String = format!("{app}-files").chars().take(LONGEST_NAME - 1 - word.len()).collect();
    format!("{}-{word}", head.trim_end_matches('-'))
}

/// Builds the Job that archives the files as they are now, for the ClientAppBackup with this uid.
pub(crate) fn archive(files: Files<'_>, name: &str, backup: &str) -> Job {
    keeps(files, name, "archive", backup)
}

/// Builds the Job that forgets the archive of the ClientAppBackup with this uid.
pub(crate) fn forget(app: &ClientApp, settings: &FilesBackup, image: &OperatorImage, name: &str, backup: &str) -> Job {
    keeps(Files { app, backup: settings, volumes: &[], image }, name, "forget", backup)
}

/// Builds a Job that changes what the app's own repository has for the ClientAppBackup with this uid.
fn keeps(files: Files<'_>, name: &str, command: &str, backup: &str) -> Job {
    let key = key_of(files.app);
    let store = DesiredStore::of(&files.backup.store, files.backup.path(&key.namespace, &key.name));
    let mut env = bucket::uploads(&store, files.image);
    // A newer archive of another volume never replaces an archive of this one.
    let uids: Vec<_> = files.volumes.iter().map(|volume| volume.uid.as_str()).collect();
    let archive_of = Some(uids.join(".")).filter(|uids| uids.len() <= LONGEST).unwrap_or_else(|| digest(&uids));
    env.extend([variable("ARCHIVE_OF", &archive_of), variable(BACKUP_UID, backup)]);
    let args = vec!["store", command];
    let task = Task { container: ARCHIVE, role: ARCHIVE, args, env, bucket: &store.bucket, is_restore: false };
    let mut job = job(files, name, task);
    job.spec.get_or_insert_default().ttl_seconds_after_finished = Some(KEPT_SECONDS);
    job
}

/// Names what is restored into the volumes of a Job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extract<'a> {
    /// Identifies the restore: another Job of the same restore continues it.
    pub id: &'a str,
    pub archive: &'a str,
    /// The bucket with the repository that it is in.
    pub bucket: &'a Bucket,
    /// Path of the repository in the bucket.
    pub path: &'a str,
}

/// Builds the Job that replaces the files by those of an archive, and stays.
pub(crate) fn extract(files: Files<'_>, name: &str, what: Extract<'_>) -> Job {
    let Extract { id, archive, bucket, path } = what;
    let mut env = bucket::access(bucket, path, files.image);
    env.push(variable("RESTORE_ID", id));
    let args = vec!["store", "extract", archive, "--replace"];
    job(files, name, Task { container: EXTRACT, role: RESTORE, args, env, bucket, is_restore: true })
}

/// Returns the repository in which these settings keep the app's files.
pub(super) fn repository(app: &ClientApp, settings: &FilesBackup) -> String {
    let key = key_of(app);
    settings.repository(&key.namespace, &key.name)
}

fn pod(job: &mut Job) -> Option<&mut PodSpec> {
    job.spec.as_mut()?.template.spec.as_mut()
}

/// Holds what a Job does with the app's files.
struct Task<'a> {
    container: &'static str,
    /// The value of [`label::ROLE`].
    role: &'static str,
    args: Vec<&'a str>,
    env: Vec<Value>,
    bucket: &'a Bucket,
    /// True if it writes into the volumes.
    is_restore: bool,
}

fn job(Files { app, backup, volumes, image }: Files<'_>, name: &str, task: Task<'_>) -> Job {
    let Task { container, role, args, mut env, bucket, is_restore } = task;
    let key = key_of(app);
    let chart = app.status.as_ref().and_then(|status| status.installed.as_ref()).map(|chart| chart.name.as_str());
    env.extend([variable("VOLUMES", VOLUMES), variable("REPORT", REPORT)]);
    let (mut mounts, mut sources) = (Vec::new(), Vec::new());
    let names = volume_names(&key.name, chart.unwrap_or_default(), volumes);
    for (index, (volume, name)) in volumes.iter().zip(names).enumerate() {
        // In a pod, a volume's name has at most 63 characters and no dot, unlike a claim's.
        let within = format!("files-{index}");
        let mut mount = json!({"name": within, "mountPath": format!("{VOLUMES}/{name}")});
        let mut claim = json!({"claimName": volume.claim});
        if !is_restore {
            mount["readOnly"] = json!(true);
            claim["readOnly"] = json!(true);
        }
        mounts.push(mount);
        sources.push(json!({"name": within, "persistentVolumeClaim": claim}));
    }
    mounts.extend(bucket::bucket_mounts(bucket));
    sources.push(bucket::temporary());
    sources.extend(bucket::bucket_volumes(bucket));
    let rules = bucket::failure_rules(container);
    let container = confined(json!({
        "name": container, "image": image.name, "args": args, "env": env, "volumeMounts": mounts,
    }));
    let near = json!({
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app.kubernetes.io/instance": key.name}},
    });
    let mut pod = json!({
        "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        // A ReadWriteOnce volume is on one node.
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": near}]}},
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": backup.user,
            "runAsGroup": backup.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": sources,
    });
    give_job_settings(&mut pod, backup.jobs.as_ref());
    give_account(&mut pod, backup.jobs.as_ref());
    let mut deadline = JobSettings::deadline_seconds(backup.jobs.as_ref());
    if is_restore {
        // The root directory of a new volume belongs to root.
        pod["securityContext"]["fsGroup"] = json!(backup.user);
        pod["securityContext"]["fsGroupChangePolicy"] = json!("OnRootMismatch");
        // The limit is for archives, which are incremental: a restore of all files takes longer, and is not cut off half way.
        deadline = deadline.max(JobSettings::deadline_seconds(None));
    }
    let labels = json!({
        label::MANAGED_BY: label::OPERATOR,
        label::FILES_OF: key.name,
        label::ROLE: role,
    });
    let job = json!({
        "metadata": {"name": name, "namespace": key.namespace, "labels": labels, "ownerReferences": [owner_reference(app)]},
        "spec": {
            "backoffLimit": 2,
            "activeDeadlineSeconds": deadline,
            "podFailurePolicy": {"rules": rules},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    });
    serde_json::from_value(job).expect("this is a Job")
}

/// Returns what the volumes are called in an archive. Each has a name of its own.
fn volume_names<'a>(release: &str, chart: &str, volumes: &'a [Volume]) -> Vec<&'a str> {
    let names: Vec<_> = volumes.iter().map(|volume| volume_name(release, chart, &volume.claim)).collect();
    let is_unique = |name: &str| names.iter().filter(|other| **other == name).count() == 1;
    let own = |(name, volume): (&&'a str, &'a Volume)| if is_unique(name) { *name } else { volume.claim.as_str() };
    names.iter().zip(volumes).map(own).collect()
}

/// Returns what a volume is called in an archive: the claim's name without the chart's prefix, so that the files of one release
/// fit another. The prefix is Helm's usual one: the release's name, followed by the chart's unless it contains that already.
fn volume_name<'a>(release: &str, chart: &str, claim: &'a str) -> &'a str {
    let full = if release.contains(chart) { release.to_owned() } else { format!("{release}-{chart}") };
    let without = |prefix: &str| claim.strip_prefix(prefix)?.strip_prefix('-');
    without(&full).or_else(|| without(release)).unwrap_or(claim)
}

/// Where a pod has the volumes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    pub node: String,
    /// Tolerations of the pod there.
    pub tolerations: Vec<Toleration>,
}

fn claims(pod: &PodSpec) -> BTreeSet<&str> {
    let claims = pod.volumes.iter().flatten().filter_map(|volume| volume.persistent_volume_claim.as_ref());
    claims.map(|claim| claim.claim_name.as_str()).collect()
}

/// Returns where one of these pods has one of the volumes; `None`: none of them has.
pub(crate) fn place(volumes: &[Volume], pods: &[Pod]) -> Option<Place> {
    let mut places = users(volumes, pods).filter_map(|pod| {
        let pod = pod.spec.as_ref()?;
        Some(Place { node: pod.node_name.clone()?, tolerations: pod.tolerations.clone().unwrap_or_default() })
    });
    places.next()
}

/// Returns the pods that have not ended and have one of the volumes.
pub(crate) fn users<'a>(volumes: &'a [Volume], pods: &'a [Pod]) -> impl Iterator<Item = &'a Pod> {
    pods.iter().filter(move |pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let has = |pod: &PodSpec| volumes.iter().any(|volume| claims(pod).contains(volume.claim.as_str()));
        !matches!(phase, Some("Succeeded" | "Failed")) && pod.spec.as_ref().is_some_and(has)
    })
}

/// Keeps a Job's pod on the node where a volume is in use: one that only one node can have is not attached elsewhere.
pub(crate) fn keep_at(job: &mut Job, Place { node, tolerations }: &Place) {
    let Some(pod) = pod(job) else { return };
    let terms = json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]);
    let here = json!({"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}});
    pod.affinity = Some(serde_json::from_value(json!({"nodeAffinity": here})).expect("this is an affinity"));
    pod.tolerations = Some(tolerations.clone());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::fake::{merged, of};

    /// Returns an app whose files are archived, with this difference.
    fn app(more: Value) -> ClientApp {
        let store = json!({
            "endpoint": "https://s3.example.com", "bucket": "dumps", "prefix": "prod",
            "credentialsSecret": {"name": "s3"}, "keep": {"daily": 7},
        });
        let backup = merged(json!({"schedule": "30 3 * * *", "store": store}), more);
        of(json!({
            "metadata": {"name": "acme", "namespace": "tenant", "uid": "uid"},
            "spec": {"hostname": "acme.example.com", "persistence": {"backup": backup}},
            "status": {"installed": {"name": "nextcloud", "version": "5.5.2", "digest": "d"}},
        }))
    }

    fn volume(claim: &str) -> Volume {
        Volume { claim: claim.to_owned(), uid: format!("uid-of-{claim}") }
    }

    fn built(app: &ClientApp, volumes: &[Volume], image: &str) -> Value {
        let image = &OperatorImage::named(image);
        let backup = app.spec.persistence.backup.as_ref().unwrap();
        json!(archive(Files { app, backup, volumes, image }, &name("acme", "abc"), "backup-uid"))
    }

    #[test]
    fn the_job() {
        let job = built(&app(json!({})), &[volume("acme-nextcloud-nextcloud")], "operator:1");
        insta::assert_snapshot!(serde_yaml::to_string(&job).unwrap());
    }

    /// Returns the Job that restores from another path of the bucket, with this password.
    fn extracted(app: &ClientApp, password: Value) -> Value {
        let image = &OperatorImage::named("operator:1");
        let backup = app.spec.persistence.backup.as_ref().unwrap();
        let bucket = of(json!({
            "endpoint": "http://e", "bucket": "dumps", "credentialsSecret": {"name": "s3"}, "caSecret": {"name": "ca"},
            "passwordSecret": password,
        }));
        let volumes = [volume("acme-nextcloud-nextcloud")];
        let archive = "20260131T033000Z-p9d4f";
        let what = Extract { id: "app-uid-1", archive, bucket: &bucket, path: "old/ns/acme.files" };
        json!(extract(Files { app, backup, volumes: &volumes, image }, "acme-files-2", what))
    }

    #[test]
    fn a_job_that_restores() {
        let job = extracted(&app(json!({})), json!({"name": "restic"}));
        insta::assert_snapshot!(serde_yaml::to_string(&job).unwrap());
        let plain = extracted(&app(json!({"jobs": {"timeout": "1h"}})), Value::Null);
        assert!(!plain.to_string().contains("PASSWORD"), "{plain}");
        assert_eq!(plain["spec"]["activeDeadlineSeconds"], 21600);
    }

    #[test]
    fn of_several_volumes_and_another_user() {
        let volumes = ["acme-nextcloud-nextcloud", "acme-nextcloud-nextcloud-data"].map(volume);
        let job = built(&app(json!({"user": 82})), &volumes, "operator:1");
        let pod = &job["spec"]["template"]["spec"];
        let mounts = pod["containers"][0]["volumeMounts"].as_array().unwrap().iter();
        let paths: Vec<_> = mounts.map(|mount| &mount["mountPath"]).collect();
        assert_eq!(paths, ["/volumes/nextcloud", "/volumes/nextcloud-data", "/tmp"]);
        assert_eq!(pod["securityContext"]["runAsUser"], 82);
        let of = pod["containers"][0]["env"].as_array().unwrap().iter().find(|v| v["name"] == "ARCHIVE_OF").unwrap();
        assert_eq!(of["value"], "uid-of-acme-nextcloud-nextcloud.uid-of-acme-nextcloud-nextcloud-data");
    }

    #[test]
    fn a_job_that_forgets_has_no_volume() {
        let app = app(json!({"jobs": {"timeout": "48h"}}));
        let settings = app.spec.persistence.backup.as_ref().unwrap();
        let job = json!(forget(&app, settings, &OperatorImage::named("operator:1"), "acme-files-f1", "backup-uid"));
        let container = &job["spec"]["template"]["spec"]["containers"][0];
        assert_eq!(container["args"], json!(["store", "forget"]));
        let env: Vec<_> =
            container["env"].as_array().unwrap().iter().map(|env| (&env["name"], &env["value"])).collect();
        for (name, value) in [("BACKUP_UID", "backup-uid"), ("STORE_PREFIX", "prod/tenant/acme.files")] {
            assert!(env.contains(&(&json!(name), &json!(value))), "{name}: {env:?}");
        }
        let volumes = job["spec"]["template"]["spec"]["volumes"].as_array().unwrap();
        assert!(volumes.iter().all(|volume| volume["persistentVolumeClaim"] == Value::Null), "{volumes:?}");
        assert_eq!(job["metadata"]["ownerReferences"][0]["uid"], "uid");
        assert_eq!(job["spec"]["activeDeadlineSeconds"], 172_800);
    }

    #[test]
    fn settings_of_the_job() {
        let jobs =
            json!({"resources": {"limits": {"memory": "2Gi"}}, "timeout": "48h", "serviceAccountName": "puller"});
        let job = built(&app(json!({"jobs": jobs})), &[volume("files")], "operator:1");
        let pod = &job["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["resources"], jobs["resources"]);
        assert_eq!(
            (&pod["serviceAccountName"], &pod["automountServiceAccountToken"]),
            (&json!("puller"), &json!(false))
        );
        assert_eq!(job["spec"]["activeDeadlineSeconds"], 172_800);
    }

    fn pod_with(claim: &str, node: Value, phase: &str) -> Pod {
        let volumes =
            json!([{"name": "a", "emptyDir": {}}, {"name": "b", "persistentVolumeClaim": {"claimName": claim}}]);
        let tolerations = json!([{"key": "cloud", "operator": "Exists"}]);
        let spec = json!({"containers": [], "volumes": volumes, "nodeName": node, "tolerations": tolerations});
        of(json!({"metadata": {}, "spec": spec, "status": {"phase": phase}}))
    }

    #[test]
    fn the_job_is_where_the_volume_is() {
        let volumes = [volume("files")];
        for (pods, expected) in [
            (vec![], None),
            (vec![pod_with("other", json!("n1"), "Running")], None),
            (vec![pod_with("files", json!("n1"), "Succeeded")], None),
            (vec![pod_with("files", json!(null), "Pending")], None),
            (vec![pod_with("files", json!(null), "Pending"), pod_with("files", json!("n2"), "Running")], Some("n2")),
        ] {
            assert_eq!(place(&volumes, &pods).map(|place| place.node).as_deref(), expected, "{pods:?}");
        }
        let place = place(&volumes, &[pod_with("files", json!("n2"), "Running")]).unwrap();
        let mut job: Job = of(built(&app(json!({})), &volumes, "operator:1"));
        keep_at(&mut job, &place);
        let pod = json!(job.spec.unwrap().template.spec.unwrap());
        let fields = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(
            fields["nodeSelectorTerms"][0]["matchFields"][0],
            json!({"key": "metadata.name", "operator": "In", "values": ["n2"]})
        );
        assert_eq!(pod["tolerations"], json!([{"key": "cloud", "operator": "Exists"}]));
        assert!(pod["affinity"].get("podAffinity").is_none(), "{pod}");
    }

    #[test]
    fn volumes_are_called_alike_in_each_release() {
        for (release, claim, name) in [
            ("acme", "acme-nextcloud-nextcloud", "nextcloud"),
            ("acme", "acme-nextcloud-nextcloud-data", "nextcloud-data"),
            ("nextcloud", "nextcloud-nextcloud", "nextcloud"),
            ("nextcloud-2", "nextcloud-2-nextcloud-data", "nextcloud-data"),
            ("acme", "acme-files", "files"),
            ("acme", "acmes", "acmes"),
            ("acme", "given", "given"),
        ] {
            assert_eq!(volume_name(release, "nextcloud", claim), name, "{release}: {claim}");
        }
    }

    #[test]
    fn no_two_volumes_are_called_alike() {
        let volumes = ["acme-nextcloud-data", "acme-data", "acme-nextcloud-nextcloud"];
        let volumes = volumes.map(|claim| Volume { claim: claim.to_owned(), uid: String::new() });
        assert_eq!(volume_names("acme", "nextcloud", &volumes), ["acme-nextcloud-data", "acme-data", "nextcloud"]);
    }
}
