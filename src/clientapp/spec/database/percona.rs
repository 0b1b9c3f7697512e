//! The Percona Operator for PostgreSQL, 2.6 to 3.x (`pgv2.percona.com/v2`). **Pure.**

mod backups;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    ResourceExt as _,
    api::{ApiResource, DynamicObject},
    runtime::watcher,
};
use serde_json::{Value, json};

use super::{
    endpoints,
    object::{DatabaseObject, DatabaseState, SeenBackup, changed},
    provider::{BackupWords, DatabaseCaches, DeletesByLabel, Provider, ProviderInfo, Summary},
    request::{BackupTargets, DatabaseRequest, USER, document},
};
use crate::{
    config::Config,
    crd::{
        BackupSchedules, BackupState, ClientApp, Postgres, PostgresProvider, Reason, annotation,
        conditions::{find, kind::POSTGRES_READY},
        percona::{
            self, BACKUP_CRD_NAME, CLUSTER_LABEL, CRD_NAME, Condition, DATA_INITIALIZED, Instances, NOT_FOR_READINESS,
            PGBOUNCER_SELECTOR, POSTGRES_CLUSTER, PerconaPGBackup, PerconaPGCluster, PerconaPGClusterStatus,
            USER_SELECTOR,
        },
        quantity,
    },
    deletion::{
        database_kind::{DatabaseKind, UnownedDependents},
        permit::DataKind,
    },
    platform::{
        cache::CacheEntry,
        controller::Objects,
        key::{Key, key_of},
        pods::tidy,
        warnings,
        watch_builder::WatchBuilder,
    },
};

const POSTGRES_REPOSITORY: &str = "percona/percona-distribution-postgresql";
const PGBOUNCER_IMAGE: &str = "percona/percona-pgbouncer:1.25.1-1";

/// The image for a major version, as certified for Percona 3.0.0; without images Percona stops with the event
/// `MissingRequiredImage`. PostgreSQL 13 is past its end of life and no longer shipped.
fn postgres_image(major: &str) -> Option<String> {
    let tag = match major {
        "14" => "14.23-1",
        "15" => "15.18-1",
        "16" => "16.14-1",
        "17" => "17.10-1",
        "18" => "18.4-1",
        _ => return None,
    };
    Some(format!("{POSTGRES_REPOSITORY}:{tag}"))
}

static FACTS: ProviderInfo = ProviderInfo {
    name: PostgresProvider::Percona,
    title: "Percona",
    kind: DatabaseKind {
        name: "PerconaPGCluster",
        resource: || ApiResource::erase::<PerconaPGCluster>(&()),
        delete_with_data,
        retain_data,
        unowned_dependents: Some(UnownedDependents {
            resource: || ApiResource::erase::<PerconaPGBackup>(&()),
            is_deleted_with: tells_of_volume,
        }),
    },
    owners: &["PerconaPGCluster", "PostgresCluster"],
    backups: Some(BackupWords {
        kind: "PerconaPGBackup",
        resource: "pg-backup",
        none: "Percona makes none while the cluster is not ready for backups",
    }),
    volume_label: CLUSTER_LABEL,
    names_volume: percona::names_volume,
    // Even what Percona did not create: a copy of a volume that was restored with its labels would be deleted, too.
    deletes_by_label: Some(DeletesByLabel {
        objects: &[
            (DataKind::Volume, None, percona::names_volume),
            (DataKind::Secret, Some(USER_SELECTOR), percona::names_user_secret),
        ],
        reason: Reason::LabelledForPercona,
    }),
    reuses_leftovers: true,
    // Only with the finalizers below.
    data_goes_with_object: None,
    to_restore: "restore it under this name and hand it over",
    to_install: "install the Percona Operator for PostgreSQL",
    to_report: |app| {
        let namespace = &app.namespace;
        format!(
            "see that the Percona operator runs and watches namespace {namespace} (watchAllNamespaces), and whether its log refuses the cluster"
        )
    },
    log: "the Percona operator's log",
    to_change_version: "upgrade it with a PerconaPGUpgrade, or set the field back",
};

pub(super) struct Percona;

impl Provider for Percona {
    fn info(&self) -> &'static ProviderInfo {
        &FACTS
    }

    fn secret(&self, database: &str) -> String {
        format!("{database}-pguser-{USER}")
    }

    fn service(&self, _postgres: &Postgres, database: &str) -> String {
        pgbouncer(database)
    }

    fn version_error(&self, version: &str, config: &Config) -> Option<String> {
        let version = postgres_image(version).is_none().then_some(&config.percona_cr_version)?;
        Some(format!("Percona {version} ships PostgreSQL 14 to 18"))
    }

    fn document(&self, request: &DatabaseRequest, targets: &BackupTargets) -> Value {
        let DatabaseRequest { app, postgres, percona_cr_version, .. } = request;
        let major: i64 = postgres.version.parse().unwrap_or_default();
        let mut user = json!({"name": USER, "databases": [USER], "password": {"type": "AlphaNumeric"}});
        // Since PostgreSQL 15 only the owner may create objects in the schema public.
        if major >= 15 {
            user["grantPublicSchemaAccess"] = json!(true);
        }
        let mut claim =
            json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": postgres.storage_size}}});
        if let Some(class) = &postgres.storage_class_name {
            claim["storageClassName"] = json!(class);
        }
        let mut spec = json!({
            "crVersion": percona_cr_version,
            "postgresVersion": major,
            "image": postgres_image(&postgres.version),
            "instances": [{"name": "instance1", "replicas": postgres.instances, "dataVolumeClaimSpec": claim}],
            "proxy": {"pgBouncer": {"replicas": 1, "image": PGBOUNCER_IMAGE}},
            "users": [user],
            "backups": backups::block(request, targets, &claim),
        });
        if let Some(resources) = &postgres.resources {
            spec["instances"][0]["resources"] = json!(resources);
        }
        let mut cluster = document(&(FACTS.kind.resource)(), app, &app.database(), spec);
        if *targets != BackupTargets::default() {
            cluster["metadata"]["annotations"] = json!({annotation::BACKUPS: "true"});
        }
        cluster
    }

    fn targets(&self, request: &DatabaseRequest, found: Option<&DatabaseObject>) -> Result<BackupTargets, String> {
        backups::targets(request, found)
    }

    fn backup_schedules(&self, request: &DatabaseRequest) -> Vec<String> {
        let schedules = request.postgres.percona.as_ref().and_then(|percona| percona.schedules.clone());
        let BackupSchedules { full, differential, incremental } = schedules.unwrap_or_default();
        [full, differential, incremental].into_iter().flatten().collect()
    }

    fn source(&self, request: &DatabaseRequest) -> Option<Value> {
        backups::source(&request.postgres)
    }

    fn set_data_source(&self, document: &mut Value, source: &Value) {
        document["spec"]["dataSource"] = source.clone();
        document["metadata"]["annotations"][annotation::DATA_SOURCE] = json!("true");
    }

    fn watch(&self, builder: &WatchBuilder<'_, ClientApp>) -> DatabaseCaches {
        DatabaseCaches {
            objects: builder.optional(CRD_NAME, |guard| DatabaseObject::entry(&guard, read), changed),
            backups: Some(builder.optional(BACKUP_CRD_NAME, backup, changed)),
            parts: Vec::new(),
            endpoints: Some(builder.all(
                "endpointslices",
                watcher::Config::default().labels(PGBOUNCER_SELECTOR),
                endpoints::slice,
                service_changed,
            )),
            warnings: Some((POSTGRES_CLUSTER, builder.warnings(warnings::about(POSTGRES_CLUSTER), cluster_warned))),
        }
    }

    fn lasting_backups(&self, postgres: &Postgres) -> Option<String> {
        Some(postgres.percona.as_ref()?.repository.as_ref()?.store())
    }

    fn deleting(&self, database: &str, _state: Option<DatabaseState>) -> String {
        format!("waiting for Percona to delete PerconaPGCluster {database} with its volumes and Secrets")
    }

    fn summary(&self, object: &DynamicObject) -> Summary {
        let at = |path: &str| object.data.pointer(path);
        let state = at("/status/state").and_then(Value::as_str).map(str::to_owned);
        let part = |title: &str, part: &str| {
            let count =
                |field: &str| at(&format!("/status/{part}/{field}")).and_then(Value::as_i64).unwrap_or_default();
            (title.to_owned(), Some((count("ready"), count("size"))))
        };
        Summary {
            is_ready: state.as_deref() == Some("ready"),
            state,
            version: at("/spec/postgresVersion").map(Value::to_string),
            parts: vec![part("instances", "postgres"), part("PgBouncer", "pgbouncer")],
        }
    }
}

fn pgbouncer(database: &str) -> String {
    format!("{database}-pgbouncer")
}

/// With these finalizers, Percona deletes a cluster's volumes and Secrets with it. Not `percona.com/delete-backups`: with that,
/// pgBackRest deletes everything in each repository of the cluster, even in one that outlives it, and the deletion waits for ever
/// for a pod to do that in. Backups on a volume are deleted with the volume.
const TAKES_ALONG: [&str; 2] = [percona::DELETE_PVC, percona::DELETE_SSL];

fn delete_with_data(cluster: &ObjectMeta) -> Option<Value> {
    // Percona has already removed its finalizers from a cluster that is being deleted.
    if cluster.deletion_timestamp.is_some() {
        return None;
    }
    let mut finalizers = cluster.finalizers.clone().unwrap_or_default();
    for finalizer in TAKES_ALONG {
        if !finalizers.iter().any(|present| present == finalizer) {
            finalizers.push(finalizer.to_owned());
        }
    }
    Some(json!({"metadata": {"finalizers": finalizers}}))
}

fn retain_data(cluster: &ObjectMeta, patch: &mut Value) {
    let finalizers = cluster.finalizers.as_deref().unwrap_or_default();
    let others: Vec<_> = finalizers.iter().filter(|finalizer| !TAKES_ALONG.contains(&finalizer.as_str())).collect();
    if others.len() < finalizers.len() {
        patch["metadata"]["finalizers"] = json!(others);
        patch["metadata"]["resourceVersion"] = json!(cluster.resource_version);
    }
}

/// Returns true if the backup behind a PerconaPGBackup is on a volume of a cluster of this name. Such volumes are deleted with the
/// cluster or gone already. A backup in a bucket does not count, nor does a VolumeSnapshot, which might be deleted with the
/// PerconaPGBackup.
fn tells_of_volume(backup: &DynamicObject, cluster: &ObjectMeta) -> bool {
    let text = |path: &str| backup.data.pointer(path).and_then(Value::as_str).unwrap_or_default();
    text("/spec/pgCluster") == cluster.name.as_deref().unwrap_or_default()
        && text("/status/destination").is_empty()
        && ["", "pgbackrest"].contains(&text("/spec/method"))
}

fn read(cluster: &PerconaPGCluster, seen: DatabaseObject) -> DatabaseObject {
    let status = cluster.status.clone().unwrap_or_default();
    let instances = cluster.spec.instances.first();
    let storage = instances.and_then(|set| set.storage());
    // A configuration by a cluster admin is not this operator's.
    let targets = match cluster.annotations().get(annotation::BACKUPS) {
        Some(_) => backups::seen(cluster.spec.backups.pgbackrest.as_ref()),
        None => BackupTargets::default(),
    };
    DatabaseObject {
        postgres_version: cluster.spec.postgres_version,
        storage_bytes: storage.and_then(quantity::parse_positive),
        storage_class: instances.and_then(|set| set.storage_class()).map(str::to_owned),
        source: cluster.spec.data_source.clone().filter(|_| cluster.annotations().contains_key(annotation::DATA_SOURCE)),
        targets,
        state: match status.state.as_deref() {
            _ if cluster.spec.backups.is_restoring() => DatabaseState::Restoring(
                " is being restored from a backup: nothing else is done with it until then; `kubectl get perconapgrestores` shows the progress".to_owned(),
            ),
            None | Some("") => DatabaseState::NotReported,
            // The cluster is also ready with no PgBouncers at all.
            Some("ready") if status.pgbouncer.as_ref().is_none_or(|instances| instances.ready < 1) => {
                DatabaseState::Waiting(" has no ready PgBouncer".to_owned())
            }
            Some("ready") => DatabaseState::Ready,
            Some(state) => DatabaseState::Waiting(format!(" is {state}{}", lacks(&status))),
        },
        progressed: progressed(cluster, &status),
        ..seen
    }
}

/// Returns what Percona says a cluster lacks that is not ready, for the end of a sentence.
fn lacks(status: &PerconaPGClusterStatus) -> String {
    const QUOTED: usize = 2;
    let counted = |title: &str, instances: &Option<Instances>| match instances {
        Some(Instances { size, ready }) if ready < size => Some(format!("{ready} of {size} {title} are ready")),
        _ => None,
    };
    let counts = [counted("instances", &status.postgres), counted("PgBouncers", &status.pgbouncer)];
    let is_quoted = |condition: &&Condition| {
        condition.status == "False" && !condition.message.is_empty() && !NOT_FOR_READINESS.contains(&&*condition.kind)
    };
    let conditions = status.conditions.iter().filter(is_quoted).take(QUOTED);
    let conditions = conditions.map(|Condition { kind, message, .. }| tidy(&format!("{kind}: {message}")));
    let sentences: Vec<_> = counts.into_iter().flatten().chain(conditions).collect();
    if sentences.is_empty() { String::new() } else { format!(": {}", sentences.join("; ")) }
}

/// When Percona last made progress, as far as times show it. A pause lasts as long as somebody wants it, and a backup may be large.
fn progressed(cluster: &PerconaPGCluster, status: &PerconaPGClusterStatus) -> Option<Timestamp> {
    let is_paused = matches!(status.state.as_deref(), Some("paused" | "stopping"));
    let has_data =
        status.conditions.iter().any(|condition| condition.kind == DATA_INITIALIZED && condition.status == "True");
    let is_restored = cluster.spec.data_source.is_some() && !has_data;
    let changed = status.conditions.iter().filter_map(|condition| condition.last_transition_time.as_ref());
    let times = changed.chain(&cluster.metadata.creation_timestamp).map(|time| time.0);
    times.max().filter(|_| !is_paused && !is_restored)
}

fn backup(backup: PerconaPGBackup) -> CacheEntry<SeenBackup> {
    let key = key_of(&backup);
    let status = backup.status.unwrap_or_default();
    let state = match status.state.as_deref() {
        Some("Succeeded") => BackupState::Succeeded,
        Some("Failed") => BackupState::Failed,
        _ => BackupState::Running,
    };
    let seen = SeenBackup {
        progress: (state, status.error),
        created: backup.metadata.creation_timestamp.map(|at| at.0),
        completed: status.result.completed.map(|at| at.0),
        database_uid: None,
    };
    // A backup that is being deleted does not count.
    let value = backup.metadata.deletion_timestamp.is_none().then_some(seen);
    CacheEntry { group: Some(Key::new(&key.namespace, backup.spec.pg_cluster)), value, key }
}

/// Triggers a reconcile of the app that a warning about a PostgresCluster concerns, as long as it waits for its database. `warned` has the
/// kind in its name.
fn cluster_warned(apps: &Objects<ClientApp>, warned: &Key) {
    let waits = |app: &ClientApp| {
        let condition = app.status.as_ref().and_then(|status| find(&status.conditions, POSTGRES_READY));
        condition.is_none_or(|condition| condition.status != "True")
    };
    apps.trigger_in(&warned.namespace, |app| {
        *warned == warnings::group(&warned.namespace, POSTGRES_CLUSTER, &key_of(app).database())
            && app.object.as_ref().is_ok_and(waits)
    });
}

fn service_changed(apps: &Objects<ClientApp>, service: &Key) {
    apps.trigger_in(&service.namespace, |app| pgbouncer(&key_of(app).database()) == service.name);
}
