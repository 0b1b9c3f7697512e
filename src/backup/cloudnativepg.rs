//! Backs up a Cluster of CloudNativePG by a Backup, which its plugin barman-cloud makes. Pure.

use kube::{Resource as _, ResourceExt as _};

use crate::{
    crd::cloudnativepg::{
        COMPLETED, CloudNativePgBackup, CloudNativePgBackupSpec, CloudNativePgCluster, ClusterName, FAILED, PENDING,
        PLUGIN, PluginName,
    },
    platform::run_once::Progress,
};

/// Tells how far the backup of this name is, or how it begins. `is_wanted`: the app's spec asks for an archive.
pub(crate) fn backed_up(
    name: String,
    is_wanted: bool,
    (cluster, backup): (&CloudNativePgCluster, Option<&CloudNativePgBackup>),
) -> Progress<String, CloudNativePgBackup> {
    let of = cluster.name_any();
    let archiving = cluster.archiving_problem().map(|why| format!("Cluster {of} cannot archive WAL: {why}"));
    let message = |what: &str| {
        let why = archiving.as_ref().map_or_else(String::new, |why| format!("; {why}"));
        format!("Backup {name} {what}{why}")
    };
    if let Some(backup) = backup {
        if !backup.is_of(cluster) {
            return Progress::Failed(format!("Backup {name} is of another Cluster: delete it"));
        }
        let error = backup.status.as_ref().and_then(|status| status.error.as_deref()).filter(|why| !why.is_empty());
        let why = error.map_or_else(String::new, |why| format!(": {why}"));
        return match backup.phase() {
            COMPLETED => Progress::Completed(name),
            phase if FAILED.contains(&phase) => {
                let namespace = cluster.namespace().unwrap_or_default();
                Progress::Failed(format!(
                    "Backup {name} has failed{why}; the log of plugin-barman-cloud in the pods of Cluster {of} in namespace {namespace} says more"
                ))
            }
            PENDING => {
                let waits = format!("waits until its pod is ready and no other backup of Cluster {of} runs{why}");
                let message = message(&waits);
                Progress::Runs(name, None, message)
            }
            _ => {
                let message = message("backs up the database");
                Progress::Runs(name, None, message)
            }
        };
    }
    // Without the plugin in the Cluster, a Backup fails at once.
    if cluster.archive().is_none() {
        return match is_wanted {
            true => Progress::Waits(format!(
                "Cluster {of} does not have the plugin for backups yet: the app's condition PostgresReady says why"
            )),
            false => Progress::Failed(format!("Cluster {of} keeps no backups: set spec.postgres.backup of the app")),
        };
    }
    if !cluster.serves() {
        return Progress::Waits(format!("Cluster {of} is not ready: the app's condition PostgresReady says why"));
    }
    if let Some(why) = archiving {
        return Progress::Waits(why);
    }
    let spec = CloudNativePgBackupSpec {
        cluster: ClusterName { name: of },
        method: Some("plugin".to_owned()),
        plugin_configuration: Some(PluginName { name: PLUGIN.to_owned() }),
    };
    let mut object = CloudNativePgBackup::new(&name, spec);
    object.metadata.namespace = cluster.namespace();
    // Like those by schedule: a later Cluster of the name has another archive.
    object.metadata.owner_references = cluster.owner_ref(&()).map(|owner| vec![owner]);
    let message = message("backs up the database");
    Progress::Runs(name, Some(object), message)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn cluster(archives: bool, ready: bool, archiving: &str) -> CloudNativePgCluster {
        let plugins = json!([{"name": PLUGIN, "isWALArchiver": true, "parameters": {"barmanObjectName": "acme-pg"}}]);
        let condition = |kind: &str, status: &str, message: &str| json!({"type": kind, "status": status, "reason": "R", "message": message, "lastTransitionTime": "2026-01-31T04:00:00Z"});
        let archiving = match archiving {
            // Untrue, and there without any archive.
            "" => condition("ContinuousArchiving", "True", "Continuous archiving is working"),
            why => condition("ContinuousArchiving", "False", why),
        };
        let ready = condition("Ready", if ready { "True" } else { "False" }, "Cluster is Ready");
        serde_json::from_value(json!({
            "metadata": {"name": "acme-pg", "namespace": "ns", "uid": "pg-uid"},
            "spec": {"plugins": if archives { plugins } else { json!([]) }},
            "status": {"conditions": [ready, archiving], "readyInstances": 1, "currentPrimary": "acme-pg-1"},
        }))
        .unwrap()
    }

    fn backup(owner: &str, status: Value) -> Option<CloudNativePgBackup> {
        let owner = json!({"apiVersion": "postgresql.cnpg.io/v1", "kind": "Cluster", "name": "acme-pg", "uid": owner});
        let metadata = json!({"name": "b", "ownerReferences": [owner]});
        serde_json::from_value(
            json!({"metadata": metadata, "spec": {"cluster": {"name": "acme-pg"}}, "status": status}),
        )
        .unwrap()
    }

    #[test]
    fn how_far_a_backup_is() {
        let store_down =
            "rpc error: code = Unknown desc = unexpected failure invoking barman-cloud-wal-archive: exit status 2";
        let failed = json!({"phase": "failed", "error": "rpc error: code = Unknown desc = exit status 2"});
        let fails = "failed: Backup b has failed: rpc error: code = Unknown desc = exit status 2; the log";
        let done = json!({"phase": "completed"});
        let own = |phase: &str| backup("pg-uid", json!({"phase": phase}));
        let no_wal = "waits: Cluster acme-pg cannot archive WAL: rpc error";
        let good = || cluster(true, true, "");
        let none = || None;
        for (what, cluster, backup, expected) in [
            ("it begins", good(), none(), "creates: Backup b backs up the database"),
            ("no plugin, nor asked for", cluster(false, true, ""), none(), "failed: Cluster acme-pg keeps no backups"),
            ("not ready", cluster(true, false, ""), none(), "waits: Cluster acme-pg is not ready"),
            // It calls itself ready.
            ("the store is down", cluster(true, true, store_down), none(), no_wal),
            ("not seen yet", good(), backup("pg-uid", Value::Null), "runs: Backup b backs up"),
            ("pending", good(), own("pending"), "runs: Backup b waits until its pod"),
            ("started", good(), own("started"), "runs: Backup b backs up"),
            ("running", good(), own("running"), "runs: Backup b backs up"),
            ("completed", good(), own("completed"), "completed"),
            ("completed, and not ready any more", cluster(true, false, ""), own("completed"), "completed"),
            ("failed", good(), backup("pg-uid", failed), fails),
            ("of a former Cluster", good(), backup("former", done), "failed: Backup b is of another"),
        ] {
            let found = match backed_up("b".to_owned(), false, (&cluster, backup.as_ref())) {
                Progress::Waits(why) => format!("waits: {why}"),
                Progress::Failed(why) => format!("failed: {why}"),
                Progress::Completed(name) => {
                    assert_eq!(name, "b");
                    "completed".to_owned()
                }
                Progress::Runs(_, Some(made), message) => {
                    assert_eq!(
                        json!(made)["spec"],
                        json!({
                            "cluster": {"name": "acme-pg"}, "method": "plugin",
                            "pluginConfiguration": {"name": "barman-cloud.cloudnative-pg.io"},
                        })
                    );
                    assert_eq!((made.namespace().as_deref(), made.is_of(&cluster)), (Some("ns"), true));
                    format!("creates: {message}")
                }
                Progress::Runs(_, None, message) => format!("runs: {message}"),
            };
            assert!(found.starts_with(expected), "{what}: {found}");
        }
        let wanted = backed_up("b".to_owned(), true, (&cluster(false, true, ""), None));
        assert!(matches!(wanted, Progress::Waits(why) if why.contains("does not have the plugin")));
    }
}
