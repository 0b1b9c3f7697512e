//! Tells which backups of a Cluster of CloudNativePG another can be created from. Pure. It is never restored in place.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use super::percona::LATEST;
use crate::crd::{
    CloudNativePgDataSource, annotation,
    cloudnativepg::{BarmanObjectStore, COMPLETED, CloudNativePgBackup, CloudNativePgCluster},
};

/// An app's Cluster, what it archives, and its backups.
#[derive(Clone, Debug)]
pub(crate) struct SeenCluster {
    pub cluster: CloudNativePgCluster,
    pub backups: Vec<CloudNativePgBackup>,
    pub stores: Vec<BarmanObjectStore>,
}

/// Returns the backups to create another Cluster from, or why there are none.
pub(crate) fn data_source(
    app: &str,
    SeenCluster { cluster, backups, stores }: &SeenCluster,
    (from, time): (&str, Option<&Time>),
    now: Timestamp,
) -> Result<CloudNativePgDataSource, String> {
    let (name, namespace) = (cluster.name_any(), cluster.namespace().unwrap_or_default());
    let lists = format!("`kubectl get backups.postgresql.cnpg.io -n {namespace}` lists them");
    let Some(archive) = cluster.archive() else {
        return Err(format!("Cluster {name} keeps no backups: there is nothing to create another from"));
    };
    // Only the phase counts: after a failed backup, other fields call its end a success.
    let completed: Vec<_> =
        backups.iter().filter(|backup| backup.phase() == COMPLETED && backup.is_of(cluster)).collect();
    let ends = completed.iter().filter_map(|backup| backup.status.as_ref()?.stopped_at.as_ref().map(|time| time.0));
    let Some(first) = ends.min() else {
        return Err(format!("{app} has no complete backup: {lists}"));
    };
    let source = |backup: Option<String>, time: Option<Time>| CloudNativePgDataSource {
        // What this operator has configured, it configures in the new one as well.
        object_store: (!cluster.annotations().contains_key(annotation::BACKUPS)).then(|| archive.store.clone()),
        server_name: archive.server.clone(),
        backup,
        time,
    };
    if let Some(time) = time {
        let store = stores.iter().find(|store| store.name_any() == archive.store);
        let window = store.and_then(|store| store.status.as_ref()?.server_recovery_window.get(&archive.server));
        // The retention may have deleted the first.
        let reaches = window.and_then(|window| window.first_recoverability_point.as_ref()).map(|time| time.0);
        let first = reaches.map_or(first, |reaches| reaches.max(first));
        return match time.0 {
            at if at > now => Err(format!("{at} is in the future")),
            at if at < first => Err(format!("{at} is before {first}, the first time that can be restored: {lists}")),
            _ => Ok(source(None, Some(time.clone()))),
        };
    }
    if from == LATEST {
        return Ok(source(None, None));
    }
    let Some(backup) = backups.iter().find(|backup| backup.name_any() == from) else {
        return Err(format!("{app} has no backup {from}: {lists}"));
    };
    if !backup.is_of(cluster) {
        return Err(format!("backup {from} is not of this Cluster {name}: {lists}"));
    }
    match backup.status.as_ref().and_then(|status| status.backup_id.clone()) {
        Some(id) if backup.phase() == COMPLETED => Ok(source(Some(id), None)),
        _ => Err(format!("backup {from} is not complete: {lists}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::platform::fake::{merged, of};

    fn backup(name: &str, uid: &str, status: Value) -> CloudNativePgBackup {
        let status = merged(json!({"pluginMetadata": {"clusterUID": uid}}), status);
        let metadata = json!({"name": name, "namespace": "ns"});
        of(json!({"metadata": metadata, "spec": {"cluster": {"name": "acme-pg"}}, "status": status}))
    }

    fn seen(backups: Vec<CloudNativePgBackup>, first: Option<&str>) -> SeenCluster {
        let parameters = json!({"barmanObjectName": "acme-pg", "serverName": "acme-pg-5f0c2c0e"});
        let plugin = json!({"name": "barman-cloud.cloudnative-pg.io", "isWALArchiver": true, "parameters": parameters});
        let cluster = serde_json::from_value(json!({
            "metadata": {
                "name": "acme-pg", "namespace": "ns", "uid": "pg-uid", "annotations": {annotation::BACKUPS: "somewhere"},
            },
            "spec": {"plugins": [plugin]},
        }));
        let store = serde_json::from_value(json!({
            "metadata": {"name": "acme-pg"}, "spec": {},
            "status": {"serverRecoveryWindow": {
                "acme-pg-5f0c2c0e": {"firstRecoverabilityPoint": first},
                "acme-pg-former": {"firstRecoverabilityPoint": "2026-01-31T23:00:00Z"},
            }},
        }));
        SeenCluster { cluster: cluster.unwrap(), backups, stores: vec![store.unwrap()] }
    }

    #[test]
    fn what_another_cluster_is_created_from() {
        let good = |name: &str, stopped: &str, id: &str| {
            backup(name, "pg-uid", json!({"phase": "completed", "backupId": id, "stoppedAt": stopped}))
        };
        let all = || {
            vec![
                good("one", "2026-01-10T03:00:10Z", "20260110T030000"),
                good("two", "2026-01-20T03:00:10Z", "20260120T030000"),
                backup("failed", "pg-uid", json!({"phase": "failed", "stoppedAt": "2026-01-01T00:00:00Z"})),
                backup("running", "pg-uid", json!({"phase": "started"})),
                backup(
                    "former",
                    "former-uid",
                    json!({"phase": "completed", "backupId": "20250101T030000", "stoppedAt": "2025-01-01T03:00:10Z"}),
                ),
            ]
        };
        let (early, day, later) = ("2026-01-05T00:00:00Z", "2026-01-15T00:00:00Z", "2026-03-01T00:00:00Z");
        let (failed, second) = ("2026-01-01T00:00:00Z", "2026-01-20T03:00:10Z");
        let before_first = "2026-01-05T00:00:00Z is before 2026-01-10T03:00:10Z";
        let before_second = "2026-01-15T00:00:00Z is before 2026-01-20T03:00:10Z";
        let is = |backup: &str| Ok(json!({"serverName": "acme-pg-5f0c2c0e", "backup": backup}));
        let at = |time: &str| Ok(json!({"serverName": "acme-pg-5f0c2c0e", "time": time}));
        for (what, seen, from, time, expected) in [
            ("a backup", seen(all(), None), "one", None, is("20260110T030000")),
            ("the newest state", seen(all(), None), "latest", None, Ok(json!({"serverName": "acme-pg-5f0c2c0e"}))),
            ("a time", seen(all(), None), "latest", Some(day), at(day)),
            ("one that has failed", seen(all(), None), "failed", None, Err("backup failed is not complete")),
            ("one that runs", seen(all(), None), "running", None, Err("backup running is not complete")),
            ("one of a former Cluster", seen(all(), None), "former", None, Err("backup former is not of this Cluster")),
            ("an unknown one", seen(all(), None), "three", None, Err("acme has no backup three")),
            ("before the first", seen(all(), None), "latest", Some(early), Err(before_first)),
            (
                "the end of the failed one is untrue",
                seen(all(), Some(failed)),
                "latest",
                Some(early),
                Err(before_first),
            ),
            ("the retention has deleted the first", seen(all(), Some(second)), "latest", Some(day), Err(before_second)),
            ("in the future", seen(all(), None), "latest", Some(later), Err("2026-03-01T00:00:00Z is in the future")),
            ("none is complete", seen(all().split_off(2), None), "latest", None, Err("acme has no complete backup")),
        ] {
            let time = time.map(|time| Time(time.parse().unwrap()));
            let now = "2026-02-01T00:00:00Z".parse().unwrap();
            let found = data_source("acme", &seen, (from, time.as_ref()), now);
            match (&found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(json!(found), expected, "{what}"),
                (Err(found), Err(expected)) => assert!(found.starts_with(expected), "{what}: {found}"),
                (_, expected) => panic!("{what}: {found:?} instead of {expected:?}"),
            }
        }
        let mut by_hand = seen(all(), None);
        by_hand.cluster.metadata.annotations = None;
        let found = data_source("acme", &by_hand, ("latest", None), Timestamp::MAX).unwrap();
        assert_eq!(found.object_store.as_deref(), Some("acme-pg"));
        let mut without = seen(all(), None);
        without.cluster.spec.plugins.clear();
        let found = data_source("acme", &without, ("latest", None), Timestamp::MAX);
        assert_eq!(found.unwrap_err(), "Cluster acme-pg keeps no backups: there is nothing to create another from");
    }
}
