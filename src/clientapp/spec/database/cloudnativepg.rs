//! CloudNativePG, 1.30 (`postgresql.cnpg.io/v1`). **Pure.**

mod backups;
mod pooler;
#[cfg(test)]
mod tests;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Resource, ResourceExt as _,
    api::{ApiResource, DynamicObject},
    runtime::watcher,
};
use serde_json::{Value, json};

use super::{
    endpoints,
    object::{DatabaseObject, DatabaseState, SeenBackup, SeenPart, changed},
    provider::{BackupWords, DatabaseCaches, DatabasePart, PartCache, PartUse, Provider, ProviderInfo, Summary},
    request::{BackupTargets, DatabaseRequest, USER, document},
};
use crate::{
    config::Config,
    crd::{
        BackupState, ClientApp, Guard, Postgres, PostgresProvider, Reason,
        cloudnativepg::{
            self, BACKUP_CRD_NAME, BarmanObjectStore, CLUSTER_LABEL, COMPLETED, COPYING, CRD_NAME, CloudNativePgBackup,
            CloudNativePgCluster, CloudNativePgClusterStatus, CloudNativePgPooler, CloudNativePgSchedule, FAILED,
            HIBERNATION, POOLER_CRD_NAME, POOLER_LABEL, SCHEDULE_CRD_NAME, STORE_CRD_NAME, UNRECOVERABLE,
            major_version,
        },
        conditions::{Verdict, find},
        quantity,
    },
    deletion::database_kind::DatabaseKind,
    platform::{
        cache::CacheEntry,
        key::{Key, key_of},
        pods::{self, tidy},
        watch_builder::WatchBuilder,
    },
};

/// CloudNativePG refuses an image without a tag that begins with the major version.
const IMAGE: &str = "ghcr.io/cloudnative-pg/postgresql";
/// The major versions that CloudNativePG 1.30 supports (`docs/src/supported_releases.md`).
const VERSIONS: [&str; 5] = ["14", "15", "16", "17", "18"];
/// While one idle client is connected, a primary that is deleted refuses new connections for this long, and nothing fails over.
/// CloudNativePG's default is 180 s.
const SMART_SHUTDOWN_SECONDS: i64 = 5;
const CLUSTER: &str = "Cluster";
const JOB: &str = "Job";
const STORE: &str = "ObjectStore";
const SCHEDULE: &str = "ScheduledBackup";
const POOLER: &str = "Pooler";
const WHOLE_MANIFEST: &str = "apply the whole manifest of CloudNativePG";
/// CloudNativePG has a list of its own for this parameter, and refuses it among the others.
const LIBRARIES: &str = "shared_preload_libraries";

/// The field with the clusters that the way of creation names.
const EXTERNAL_CLUSTERS: &str = "externalClusters";

static FACTS: ProviderInfo = ProviderInfo {
    name: PostgresProvider::CloudNativePg,
    title: "CloudNativePG",
    kind: DatabaseKind {
        name: CLUSTER,
        resource: || ApiResource::erase::<CloudNativePgCluster>(&()),
        // The garbage collector deletes its volumes and Secrets in any case.
        delete_with_data: |_| None,
        retain_data: |_, _| {},
        unowned_dependents: None,
    },
    owners: &[CLUSTER],
    backups: Some(BackupWords {
        kind: "Backup",
        resource: "backups.postgresql.cnpg.io",
        none: "see `kubectl describe scheduledbackups.postgresql.cnpg.io` in its namespace",
    }),
    volume_label: CLUSTER_LABEL,
    names_volume: cloudnativepg::names_volume,
    deletes_by_label: None,
    // A cluster without a status takes over volumes with its label and no owner (`internal/controller/cluster_restore.go`).
    reuses_leftovers: true,
    data_goes_with_object: Some(cloudnativepg::names_data),
    to_restore: "name another in spec.postgres.cloudnativepg.cluster, with the backup in dataSource",
    to_install: "install CloudNativePG",
    to_report: |app| {
        let namespace = &app.namespace;
        format!("see that CloudNativePG's operator runs and watches namespace {namespace}, and what its log says")
    },
    log: "the log of CloudNativePG's operator",
    to_change_version: "set imageName of the Cluster to ghcr.io/cloudnative-pg/postgresql with that version as its tag, which upgrades it in place; or set the field back",
};

pub(super) struct CloudNativePg;

impl Provider for CloudNativePg {
    fn info(&self) -> &'static ProviderInfo {
        &FACTS
    }

    fn secret(&self, database: &str) -> String {
        format!("{database}-app")
    }

    fn user_key(&self) -> &'static str {
        "username"
    }

    fn service(&self, postgres: &Postgres, database: &str) -> String {
        match pooler::options(postgres) {
            Some(_) => cloudnativepg::pooler(database),
            None => format!("{database}-rw"),
        }
    }

    /// A primary that is ready is behind the Cluster's own Service, and a Pooler calls itself active with no pod that runs.
    fn needs_address(&self, postgres: &Postgres) -> bool {
        pooler::options(postgres).is_some()
    }

    fn version_error(&self, version: &str, _config: &Config) -> Option<String> {
        (!VERSIONS.contains(&version)).then(|| "the provider cloudnativepg has PostgreSQL 14 to 18".to_owned())
    }

    fn backs_up(&self, postgres: &Postgres) -> bool {
        backups::store(postgres).is_some()
    }

    fn targets(&self, request: &DatabaseRequest, found: Option<&DatabaseObject>) -> Result<BackupTargets, String> {
        backups::targets(request, found)
    }

    fn parts(&self, request: &DatabaseRequest, targets: &BackupTargets, uid: &str) -> Vec<DatabasePart> {
        let ApiResource { api_version, kind, .. } = (FACTS.kind.resource)();
        let owner = json!({"apiVersion": api_version, "kind": kind, "name": request.name, "uid": uid});
        let parts = backups::parts(request, targets).into_iter().chain(pooler::part(request));
        let owned = parts.map(|mut part| {
            part.document["metadata"]["ownerReferences"] = json!([owner]);
            part
        });
        owned.collect()
    }

    fn part_use(&self, kind: &str, postgres: &Postgres) -> PartUse {
        let made = |is_made: bool| if is_made { PartUse::Made } else { PartUse::None };
        let is_recovered = postgres.cloudnativepg.as_ref().is_some_and(|options| options.data_source.is_some());
        match kind {
            STORE if is_recovered && !self.backs_up(postgres) => PartUse::Read,
            STORE => made(self.backs_up(postgres)),
            SCHEDULE => made(backups::schedule(postgres).is_some()),
            POOLER => made(pooler::options(postgres).is_some()),
            _ => PartUse::None,
        }
    }

    fn backup_schedules(&self, request: &DatabaseRequest) -> Vec<String> {
        backups::schedule(&request.postgres).cloned().into_iter().collect()
    }

    fn lasting_backups(&self, postgres: &Postgres) -> Option<String> {
        backups::store(postgres).map(|store| format!("s3://{}", store.bucket.bucket))
    }

    fn source(&self, request: &DatabaseRequest) -> Option<Value> {
        backups::source(request)
    }

    fn document(&self, request: &DatabaseRequest, targets: &BackupTargets) -> Value {
        let DatabaseRequest { app, name, postgres, .. } = request;
        let mut storage = json!({"size": postgres.storage_size});
        if let Some(class) = &postgres.storage_class_name {
            storage["storageClass"] = json!(class);
        }
        let mut spec = json!({
            "instances": postgres.instances,
            "imageName": format!("{IMAGE}:{}", postgres.version),
            "bootstrap": {"initdb": {"database": USER, "owner": USER}},
            "storage": storage,
            "smartShutdownTimeout": SMART_SHUTDOWN_SECONDS,
            // With one instance, it would let no node be drained.
            "enablePDB": postgres.instances > 1,
        });
        if let Some(resources) = &postgres.resources {
            spec["resources"] = json!(resources);
        }
        let mut parameters = postgres.parameters.clone();
        if let Some(libraries) = parameters.remove(LIBRARIES) {
            let libraries = libraries.split(',').map(str::trim).filter(|library| !library.is_empty());
            spec["postgresql"][LIBRARIES] = libraries.collect();
        }
        if !parameters.is_empty() {
            spec["postgresql"]["parameters"] = json!(parameters);
        }
        let mut cluster = document(&(FACTS.kind.resource)(), app, name, spec);
        if let Some(place) = &targets.repository {
            backups::add_plugin(&mut cluster, request, place);
        }
        cluster
    }

    /// Keeps how a cluster was created, be it by another client: CloudNativePG refuses two ways.
    fn set_data_source(&self, document: &mut Value, source: &Value) {
        for (field, value) in source.as_object().into_iter().flatten() {
            document["spec"][field] = value.clone();
        }
    }

    fn watch(&self, builder: &WatchBuilder<'_, ClientApp>) -> DatabaseCaches {
        DatabaseCaches {
            objects: builder.optional(CRD_NAME, |guard| DatabaseObject::entry(&guard, read), changed),
            backups: Some(builder.optional(BACKUP_CRD_NAME, backup, changed)),
            parts: vec![
                PartCache {
                    kind: STORE,
                    resource: || ApiResource::erase::<BarmanObjectStore>(&()),
                    name: str::to_owned,
                    to_install: "install CloudNativePG's plugin barman-cloud, which makes the backups",
                    objects: builder.optional(STORE_CRD_NAME, part::<BarmanObjectStore>, changed),
                },
                PartCache {
                    kind: SCHEDULE,
                    resource: || ApiResource::erase::<CloudNativePgSchedule>(&()),
                    name: str::to_owned,
                    to_install: WHOLE_MANIFEST,
                    objects: builder.optional(SCHEDULE_CRD_NAME, part::<CloudNativePgSchedule>, changed),
                },
                PartCache {
                    kind: POOLER,
                    resource: || ApiResource::erase::<CloudNativePgPooler>(&()),
                    name: cloudnativepg::pooler,
                    to_install: WHOLE_MANIFEST,
                    objects: builder.optional(POOLER_CRD_NAME, part::<CloudNativePgPooler>, pooler::changed),
                },
            ],
            endpoints: Some(builder.all(
                "endpointslices",
                watcher::Config::default().labels(POOLER_LABEL),
                endpoints::slice,
                pooler::changed,
            )),
            // It says nothing of mistakes, and its pods do.
            warnings: None,
        }
    }

    fn pods(&self, database: &str) -> Option<String> {
        Some(format!("{CLUSTER_LABEL}={database}"))
    }

    fn pods_problem(&self, database: &Key, uid: &str, pods: &[Pod]) -> Option<String> {
        let is_its = |pod: &&Pod| match controller(pod) {
            Some((CLUSTER, _, owner)) => owner == uid,
            Some((JOB, name, _)) => cloudnativepg::names_job(&database.name, name),
            _ => false,
        };
        let its: Vec<_> = pods.iter().filter(is_its).cloned().collect();
        let Some(problem) = pods::why(&its, None) else {
            let pooler = cloudnativepg::pooler(&database.name);
            let of_pooler = pods.iter().filter(|pod| pod.labels().get(POOLER_LABEL) == Some(&pooler));
            return pods::why(&of_pooler.cloned().collect::<Vec<_>>(), None);
        };
        let unfinished = its.iter().filter(|pod| pods::phase(pod) != "Succeeded");
        let mut jobs = unfinished.filter_map(|pod| controller(pod).filter(|(kind, ..)| *kind == JOB));
        // CloudNativePG never replaces a Job, whatever its spec becomes.
        let job = jobs.next().map(|(_, name, _)| {
            format!("; if you correct the spec, also `kubectl delete job {name} -n {}`", database.namespace)
        });
        Some(problem + &job.unwrap_or_default())
    }

    fn left(&self, Key { namespace, name }: &Key) -> String {
        format!(
            "to stop it, `kubectl annotate {CRD_NAME} {name} -n {namespace} --overwrite {HIBERNATION}=on`; to delete it with its data, `kubectl delete {CRD_NAME} {name} -n {namespace}`"
        )
    }

    fn deleting(&self, database: &str, _state: Option<DatabaseState>) -> String {
        format!("waiting for Cluster {database} to be gone")
    }

    fn summary(&self, object: &DynamicObject) -> Summary {
        let cluster = serde_json::to_value(object).ok().and_then(|object| serde_json::from_value(object).ok());
        let cluster: CloudNativePgCluster =
            cluster.unwrap_or_else(|| CloudNativePgCluster::new(&object.name_any(), Default::default()));
        let status = cluster.status.clone().unwrap_or_default();
        let instances = ("instances".to_owned(), Some((status.ready_instances, cluster.spec.instances)));
        let primary = status.current_primary.as_ref().filter(|primary| !primary.is_empty());
        Summary {
            is_ready: state(&cluster, &status) == DatabaseState::Ready,
            version: version(&cluster, &status).map(|version| version.to_string()),
            parts: [Some(instances), primary.map(|primary| (format!("primary {primary}"), None))]
                .into_iter()
                .flatten()
                .collect(),
            state: status.phase,
        }
    }
}

/// Returns kind, name and uid of the controller of a pod.
fn controller(pod: &Pod) -> Option<(&str, &str, &str)> {
    let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    Some((&owner.kind, &owner.name, &owner.uid))
}

fn read(cluster: &CloudNativePgCluster, seen: DatabaseObject) -> DatabaseObject {
    let status = cluster.status.clone().unwrap_or_default();
    let bootstrap = cluster.spec.bootstrap.clone().filter(|bootstrap| {
        let ways = bootstrap.as_object();
        ways.is_some_and(|ways| !ways.is_empty() && !ways.contains_key("initdb"))
    });
    let external = cluster.spec.external_clusters.as_ref();
    let source =
        bootstrap.map(|bootstrap| match external.filter(|external| backups::is_source(&bootstrap, external)) {
            Some(external) => json!({"bootstrap": bootstrap, EXTERNAL_CLUSTERS: external}),
            None => json!({"bootstrap": bootstrap}),
        });
    DatabaseObject {
        targets: backups::seen(cluster),
        backed_up: archiving_failure(cluster),
        postgres_version: version(cluster, &status),
        storage_bytes: cluster.spec.storage.size.as_deref().and_then(quantity::parse_positive),
        storage_class: cluster.spec.storage.storage_class.clone(),
        progressed: progressed(cluster, &status, source.is_some()),
        source,
        state: state(cluster, &status),
        ..seen
    }
}

/// Returns the verdict on the backups of a cluster that cannot archive, which nothing else of it shows.
fn archiving_failure(cluster: &CloudNativePgCluster) -> Option<Verdict> {
    let why = cluster.archiving_problem()?;
    let message = format!(
        "Cluster {} cannot archive WAL, so no backup is complete, and no later time can be restored: {}",
        cluster.name_any(),
        tidy(why)
    );
    Some(Verdict::no(Reason::DatabaseBackupFailed, message))
}

fn backup(backup: CloudNativePgBackup) -> CacheEntry<SeenBackup> {
    let key = key_of(&backup);
    let state = match backup.phase() {
        COMPLETED => BackupState::Succeeded,
        phase if FAILED.contains(&phase) => BackupState::Failed,
        _ => BackupState::Running,
    };
    let database_uid = backup.cluster_uid().map(str::to_owned);
    let status = backup.status.unwrap_or_default();
    let seen = SeenBackup {
        progress: (state, status.error.filter(|error| !error.is_empty())),
        created: backup.metadata.creation_timestamp.map(|at| at.0),
        completed: status.stopped_at.map(|at| at.0).filter(|_| state == BackupState::Succeeded),
        database_uid,
    };
    // A backup that is being deleted does not count.
    let value = backup.metadata.deletion_timestamp.is_none().then_some(seen);
    CacheEntry { group: Some(Key::new(&key.namespace, backup.spec.cluster.name)), value, key }
}

fn part<K>(part: Guard<K>) -> CacheEntry<SeenPart>
where
    Guard<K>: Resource<DynamicType = ()>,
{
    CacheEntry { key: key_of(&part), group: None, value: Some(SeenPart::read(&part.metadata)) }
}

/// Returns the major version of the data, or of the image that creates them.
fn version(cluster: &CloudNativePgCluster, status: &CloudNativePgClusterStatus) -> Option<i64> {
    let of_data = status.data.as_ref().and_then(|data| data.major_version);
    of_data.or_else(|| cluster.spec.image_name.as_deref().and_then(major_version))
}

fn state(cluster: &CloudNativePgCluster, status: &CloudNativePgClusterStatus) -> DatabaseState {
    let is_true = |kind: &str| find(&status.conditions, kind).is_some_and(|condition| condition.status == "True");
    if cluster.annotations().get(HIBERNATION).is_some_and(|value| value == "on") {
        let (namespace, name) = (cluster.namespace().unwrap_or_default(), cluster.name_any());
        return DatabaseState::Stalled(format!(
            " is hibernated; to wake it: `kubectl annotate clusters.postgresql.cnpg.io {name} -n {namespace} {HIBERNATION}-`"
        ));
    }
    let phase = status.phase.as_deref().unwrap_or_default();
    if phase.is_empty() && status.conditions.is_empty() {
        return DatabaseState::NotReported;
    }
    let parts = [phase, status.phase_reason.as_deref().unwrap_or_default()];
    let words = tidy(&parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(": "));
    if phase == UNRECOVERABLE {
        return DatabaseState::Stalled(format!(": {words}"));
    }
    let has_primary = status.current_primary.as_ref().is_some_and(|primary| !primary.is_empty());
    let missing = match () {
        () if is_true(HIBERNATION) => "wakes up from hibernation",
        () if !is_true("Ready") => return DatabaseState::Waiting(format!(" is not ready: {words}")),
        // `Ready` stays True of a cluster without pods.
        () if status.ready_instances < 1 => "has no ready instance",
        () if !has_primary => "has no primary",
        () => return DatabaseState::Ready,
    };
    DatabaseState::Waiting(format!(" {missing}: {words}"))
}

/// Returns when CloudNativePG last made progress, as far as times show it. What copies all data may need long.
fn progressed(
    cluster: &CloudNativePgCluster,
    status: &CloudNativePgClusterStatus,
    is_recovered: bool,
) -> Option<Timestamp> {
    let changed = status.conditions.iter().map(|condition| &condition.last_transition_time);
    let times = changed.chain(&cluster.metadata.creation_timestamp).map(|time| time.0);
    let copies = status.phase.as_deref().is_some_and(|phase| COPYING.contains(&phase));
    times.max().filter(|_| !copies && (!is_recovered || status.current_primary.is_some()))
}
