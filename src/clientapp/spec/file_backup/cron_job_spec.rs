//! The CronJob. **Pure.**

use k8s_openapi::api::batch::v1::CronJob;
use kube::Resource as _;
use serde_json::{Value, json};

use super::{DesiredFiles, Schedule, Volume};
use crate::{
    clientapp::spec::names,
    crd::label,
    platform::key::Key,
    postgresql::objects::{
        backup::DEADLINE_SECONDS,
        bucket::{self, variable},
        pod::{REPORT, confined},
    },
    store::settings::LONGEST,
};

/// The directory with a directory for each volume.
pub(crate) const VOLUMES: &str = "/volumes";
/// The name of the container that archives, and the value of [`label::ROLE`] of its Job.
pub(crate) const ARCHIVE: &str = "archive";

/// Returns the CronJob, without the marks of its ClientApp. Without a schedule it is suspended, and serves as the template of
/// Jobs on request.
pub(crate) fn cron_job(key: &Key, chart: &str, files: &DesiredFiles, volumes: &[Volume], image: &str) -> Value {
    let DesiredFiles { schedule: _, store, user } = files;
    let Schedule { cron, suspended } = schedule(files);
    let mut env = bucket::uploads(store);
    // A newer archive of another volume never replaces an archive of this one.
    let uids: Vec<_> = volumes.iter().map(|volume| volume.uid.as_str()).collect();
    let archive_of = Some(uids.join(".")).filter(|uids| uids.len() <= LONGEST).unwrap_or_else(|| names::digest(&uids));
    env.extend([variable("VOLUMES", VOLUMES), variable("ARCHIVE_OF", &archive_of), variable("REPORT", REPORT)]);
    let (mut mounts, mut sources) = (Vec::new(), Vec::new());
    for (index, (volume, name)) in volumes.iter().zip(volume_names(&key.name, chart, volumes)).enumerate() {
        // In a pod, a volume's name has at most 63 characters and no dot, unlike a claim's.
        let within = format!("files-{index}");
        mounts.push(json!({"name": within, "mountPath": format!("{VOLUMES}/{name}"), "readOnly": true}));
        let claim = json!({"claimName": volume.claim, "readOnly": true});
        sources.push(json!({"name": within, "persistentVolumeClaim": claim}));
    }
    mounts.extend(bucket::bucket_mounts(&store.bucket));
    sources.push(bucket::temporary());
    sources.extend(bucket::bucket_volumes(&store.bucket));
    let container = confined(json!({
        "name": ARCHIVE, "image": image, "args": ["store", "archive"], "env": env, "volumeMounts": mounts,
    }));
    let near = json!({
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app.kubernetes.io/instance": key.name}},
    });
    let pod = json!({
        "restartPolicy": "Never",
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        // A ReadWriteOnce volume is on one node.
        "affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": near}]}},
        "securityContext": {
            "runAsNonRoot": true,
            "runAsUser": user,
            "runAsGroup": user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": sources,
    });
    let labels = json!({
        label::MANAGED_BY: label::OPERATOR,
        label::FILES_OF: key.name,
        label::ROLE: ARCHIVE,
    });
    json!({
        "apiVersion": CronJob::api_version(&()),
        "kind": CronJob::kind(&()),
        "metadata": {"name": key.files(), "namespace": key.namespace, "labels": labels},
        "spec": {
            "schedule": cron,
            "suspend": suspended,
            // A slow archive is not joined by the next.
            "concurrencyPolicy": "Forbid",
            // Without it, the CronJob controller gives up once it has missed a hundred runs.
            "startingDeadlineSeconds": 3600,
            "successfulJobsHistoryLimit": 3,
            "failedJobsHistoryLimit": 3,
            "jobTemplate": {
                "metadata": {"labels": labels},
                "spec": {
                    "backoffLimit": 2,
                    "activeDeadlineSeconds": DEADLINE_SECONDS,
                    "podFailurePolicy": {"rules": bucket::failure_rules(ARCHIVE)},
                    "template": {"metadata": {"labels": labels}, "spec": pod},
                },
            },
        },
    })
}

/// Returns when the CronJob makes Jobs.
pub(crate) fn schedule(files: &DesiredFiles) -> Schedule {
    let cron = files.schedule.clone().unwrap_or_else(|| "@yearly".to_owned());
    Schedule { cron, suspended: files.schedule.is_none() }
}

/// Returns the digest of a document, to tell whether it was applied.
pub(crate) fn digest(document: &Value) -> String {
    names::digest(&[&document.to_string()])
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

#[cfg(test)]
mod tests {
    use super::*;

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
