//! A cluster's backup repositories: the volume, pgBackRest's host, the Jobs that back up to it, and the cluster's
//! status about them. Pure.

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::ResourceExt as _;
use serde_json::json;

use super::instances::letters;
use super::objects::{built, labels, owner};
use super::spec::{Cluster, PgBackRestStatus, Repo, RepoHostStatus, RepoStatus, RepoVolume};

/// On every object of pgBackRest.
pub(super) const PGBACKREST: &str = "postgres-operator.crunchydata.com/pgbackrest";
/// On a Job, as a label: its purpose. On a Job and a cluster, as an annotation: the `PerconaPGBackup`.
pub(super) const BACKUP: &str = "postgres-operator.crunchydata.com/pgbackrest-backup";
/// The repository's name.
pub(super) const REPO: &str = "postgres-operator.crunchydata.com/pgbackrest-repo";
/// On the volume of a repository.
pub(super) const VOLUME: &str = "postgres-operator.crunchydata.com/pgbackrest-volume";
const DEDICATED: &str = "postgres-operator.crunchydata.com/pgbackrest-dedicated";
const DATA: &str = "postgres-operator.crunchydata.com/data";

/// True when a backup can start; a `PerconaPGBackup` that is too early fails.
pub(super) const READY_FOR_BACKUP: &str = "ReadyForBackup";
const HOST_READY: &str = "PGBackRestRepoHostReady";
const REPO_READY: &str = "PGBackRestReplicaRepoReady";
const REPLICA_CREATE: &str = "PGBackRestReplicaCreate";

/// The state besides the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// All PostgreSQL servers are ready.
    pub(super) servers: bool,
    /// The Job of the initial backup has succeeded.
    pub(super) first_backup: bool,
}

/// The purpose of a Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The initial backup, which no user requests: replicas are created from it.
    ReplicaCreate,
    /// A `PerconaPGBackup` requested it.
    Manual,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::ReplicaCreate => "replica-create",
            Self::Manual => "manual",
        }
    }
}

/// The volume of a repository. Like an instance's volume, it has no owner.
pub(super) fn volume(cluster: &Cluster, repo: &Repo, volume: &RepoVolume) -> PersistentVolumeClaim {
    let labels = labels(cluster, &[(PGBACKREST, ""), (REPO, &repo.name), (VOLUME, ""), (DATA, "pgbackrest")]);
    built(json!({
        "metadata": {"name": format!("{}-{}", cluster.name_any(), repo.name), "labels": labels},
        "spec": volume.volume_claim_spec,
    }))
}

pub(super) fn host_name(cluster: &str) -> String {
    format!("{cluster}-repo-host")
}

/// The repositories' host: one pod with all volumes.
pub(super) fn host(cluster: &Cluster, image: &str) -> StatefulSet {
    let name = cluster.name_any();
    let labels = labels(cluster, &[(PGBACKREST, ""), (DEDICATED, ""), (DATA, "pgbackrest")]);
    let on_volumes = cluster.spec.backups.repos().iter().filter(|repo| repo.volume.is_some());
    let (volumes, mounts): (Vec<_>, Vec<_>) = on_volumes
        .map(|Repo { name: repo, .. }| {
            let claim = json!({"claimName": format!("{name}-{repo}")});
            let mount = json!({"name": repo, "mountPath": format!("/pgbackrest/{repo}")});
            (json!({"name": repo, "persistentVolumeClaim": claim}), mount)
        })
        .unzip();
    built(json!({
        "metadata": {"name": host_name(&name), "labels": labels, "ownerReferences": owner(cluster)},
        "spec": {
            "replicas": if cluster.spec.pause { 0 } else { 1 },
            "serviceName": format!("{name}-pods"),
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "containers": [{"name": "pgbackrest", "image": image, "volumeMounts": mounts}],
                    "volumes": volumes,
                },
            },
        },
    }))
}

/// The real names are random; these only look so.
pub(super) fn job_name(cluster: &str, seed: &str) -> String {
    format!("{cluster}-backup-{}", letters(seed))
}

/// It has no owner yet.
pub(super) fn job(cluster: &Cluster, name: &str, kind: Kind, repo: &str, suspended: bool) -> Job {
    let labels = labels(cluster, &[(PGBACKREST, ""), (BACKUP, kind.name()), (REPO, repo)]);
    let image = cluster.spec.backups.pgbackrest.as_ref().map(|pgbackrest| &pgbackrest.image);
    built(json!({
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "suspend": suspended,
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "pgbackrest", "image": image, "command": ["/opt/crunchy/bin/pgbackrest"]}],
                },
            },
        },
    }))
}

/// Whether the Job has this condition: `Complete` or `Failed`.
pub(super) fn is_over(job: &Job, how: &str) -> bool {
    let mut conditions = job.status.iter().flat_map(|status| &status.conditions).flatten();
    conditions.any(|condition| condition.type_ == how && condition.status == "True")
}

/// Whether all work on the cluster is paused, because backups were disabled without permission to remove the
/// repository.
pub(super) fn waits_for_leave(cluster: &Cluster, host: bool) -> bool {
    // Percona's annotations are those of the Crunchy operator that it is based on, under its own prefix.
    let leave = ["pgv2.percona.com", "postgres-operator.crunchydata.com"]
        .into_iter()
        .any(|prefix| cluster.annotations().contains_key(&format!("{prefix}/authorizeBackupRemoval")));
    host && !cluster.spec.backups.are_enabled() && !leave
}

/// The status of pgBackRest while it has a host. Earlier values are kept.
pub(super) fn status(cluster: &Cluster, host: &StatefulSet, seen: Seen) -> Option<PgBackRestStatus> {
    let before = cluster.status.as_ref().and_then(|status| status.pgbackrest.as_ref());
    if !cluster.spec.backups.are_enabled() {
        return before.cloned();
    }
    let ready = host.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default() > 0;
    let repos = cluster.spec.backups.repos().iter().enumerate().map(|(index, repo)| {
        let before = before.and_then(|status| status.repos.iter().find(|before| before.name == repo.name));
        RepoStatus {
            name: repo.name.clone(),
            stanza_created: seen.servers && ready || before.is_some_and(|before| before.stanza_created),
            // The initial backup goes to the first repository only.
            replica_create_backup_complete: index == 0
                && (seen.first_backup || before.is_some_and(|before| before.replica_create_backup_complete)),
        }
    });
    Some(PgBackRestStatus { repos: repos.collect(), repo_host: RepoHostStatus { ready } })
}

/// The conditions; an unchanged one keeps its time.
///
/// Without backups there is only `ReadyForBackup`, False since the cluster's creation. That is why a `PerconaPGBackup`
/// created together with the change that enables backups fails: its two minutes are over.
pub(super) fn conditions(cluster: &Cluster, status: Option<&PgBackRestStatus>, now: Timestamp) -> Vec<Condition> {
    let first = status.and_then(|status| status.repos.first());
    let host = status.is_some_and(|status| status.repo_host.ready);
    let stanza = first.is_some_and(|repo| repo.stanza_created);
    let complete = first.is_some_and(|repo| repo.replica_create_backup_complete);
    let (ready, reason) = match (host, complete) {
        (false, _) => (false, HOST_READY),
        (true, false) => (false, REPLICA_CREATE),
        (true, true) => (true, "AllConditionsAreTrue"),
    };
    let condition = |kind: &str, is: bool, reason: &str, message: &str| {
        let value = if is { "True" } else { "False" };
        let before = cluster.status.iter().flat_map(|status| &status.conditions).flatten();
        let same = before.into_iter().find(|before| before.type_ == kind && before.status == value);
        Condition {
            type_: kind.to_owned(),
            status: value.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: same.map_or(Time(now), |same| same.last_transition_time.clone()),
            observed_generation: None,
        }
    };
    let mut conditions = vec![condition(READY_FOR_BACKUP, ready, reason, "")];
    if status.is_some() {
        let either = |is: bool, yes: &'static str, no: &'static str| if is { yes } else { no };
        conditions.extend([
            condition(HOST_READY, host, either(host, "RepoHostReady", "RepoHostNotReady"), ""),
            condition(REPO_READY, stanza, either(stanza, "StanzaCreated", "StanzaNotCreated"), ""),
            condition(REPLICA_CREATE, complete, either(complete, "RepoBackupComplete", "RepoBackupNotComplete"), ""),
        ]);
    }
    if waits_for_leave(cluster, status.is_some()) {
        let message = "Reconciliation is paused: please fill in spec.backups or add the \
                       postgres-operator.crunchydata.com/authorizeBackupRemoval annotation to authorize backup removal.";
        conditions.push(condition("Progressing", false, "Paused", message));
    }
    conditions
}
