//! Where the backups of a Cluster go, by CloudNativePG's plugin barman-cloud, and the data source of a new one. **Pure.**
//!
//! The plugin is put into a Cluster that exists: the directory in the bucket is named after its uid, so that no other Cluster, be it the
//! next one of its name, archives into the same one, which the plugin would refuse. The ObjectStore and the ScheduledBackup are
//! owned by the Cluster: they stay with it under `Retain`, and go with it. What is in the bucket stays.

use kube::api::ApiResource;
use serde_json::{Value, json};

use super::super::{
    object::DatabaseObject,
    provider::DatabasePart,
    request::{BackupLocation, BackupTargets, DatabaseRequest, USER, document},
};
use crate::crd::{
    CaSecret, CloudNativePgDataSource, CredentialsSecret, Postgres, Store, StoreKeep, annotation,
    cloudnativepg::{BarmanObjectStore, CloudNativePgCluster, CloudNativePgSchedule, PLUGIN},
};

/// The name in a Cluster of the one that it is created from.
const SOURCE: &str = "source";

/// Returns where the backups of a Cluster are to go, or why that would differ from their present place.
pub(super) fn targets(request: &DatabaseRequest, found: Option<&DatabaseObject>) -> Result<BackupTargets, String> {
    let Some(found) = found else { return Ok(BackupTargets::default()) };
    let there = found.targets.repository.as_ref();
    let server = there.map_or_else(|| own_server(request, &found.uid), |place| server(place).to_owned());
    let wanted = store(&request.postgres).map(|store| BackupLocation {
        store: format!("s3://{}", store.bucket.bucket),
        endpoint: Some(store.bucket.endpoint.trim_end_matches('/').to_owned()),
        path: format!("/{}", store.path(&request.app.namespace, &server)),
    });
    if let Some(place) = there.filter(|place| wanted.as_ref() != Some(place)) {
        let asked = wanted.map_or_else(|| "none".to_owned(), |wanted| wanted.to_string());
        return Err(format!(
            " keeps its backups in {place}, and spec.postgres.backup.store names {asked}: backups do not move; name the former"
        ));
    }
    Ok(BackupTargets { volume: false, repository: wanted })
}

pub(super) fn store(postgres: &Postgres) -> Option<&Store> {
    postgres.backup.as_ref()?.store.as_ref()
}

pub(super) fn schedule(postgres: &Postgres) -> Option<&String> {
    store(postgres).and(postgres.backup.as_ref()?.schedule.as_ref())
}

/// Returns a directory that no other Cluster has: names can repeat, also in another Kubernetes cluster, and uids do not.
fn own_server(request: &DatabaseRequest, uid: &str) -> String {
    format!("{}-{}", request.name, uid.split('-').next().unwrap_or_default())
}

/// Splits the path in a bucket into that of all databases and the directory of one.
fn split(place: &BackupLocation) -> (&str, &str) {
    place.path.rsplit_once('/').unwrap_or(("", &place.path))
}

fn server(place: &BackupLocation) -> &str {
    split(place).1
}

/// Adds the plugin to the document of a Cluster.
pub(super) fn add_plugin(document: &mut Value, request: &DatabaseRequest, place: &BackupLocation) {
    let parameters = json!({"barmanObjectName": request.name, "serverName": server(place)});
    document["spec"]["plugins"] = json!([{"name": PLUGIN, "isWALArchiver": true, "parameters": parameters}]);
    let BackupLocation { store, endpoint, path } = place;
    let recorded = format!("{} {store} {path}", endpoint.as_deref().unwrap_or_default());
    document["metadata"]["annotations"][annotation::BACKUPS] = json!(recorded);
}

/// Returns where the backups of a Cluster go at present. A configuration by another client is not this operator's; and a record that a
/// tenant has changed cannot name the directory of another Cluster, because the plugin's own configuration has to agree.
pub(super) fn seen(cluster: &CloudNativePgCluster) -> BackupTargets {
    let recorded = cluster.metadata.annotations.as_ref().and_then(|all| all.get(annotation::BACKUPS));
    let mut words = recorded.map(|text| text.split(' ')).into_iter().flatten();
    let repository = match (words.next(), words.next(), words.next()) {
        (Some(endpoint), Some(store), Some(path)) => {
            Some(BackupLocation { store: store.to_owned(), endpoint: Some(endpoint.to_owned()), path: path.to_owned() })
        }
        _ => None,
    };
    let is_its = |place: &BackupLocation| cluster.archive().is_some_and(|archive| archive.server == server(place));
    BackupTargets { volume: false, repository: repository.filter(is_its) }
}

/// Returns the ObjectStore and the ScheduledBackup of a Cluster.
pub(super) fn parts(request: &DatabaseRequest, targets: &BackupTargets) -> Vec<DatabasePart> {
    let Some((place, store)) = targets.repository.as_ref().zip(store(&request.postgres)) else { return Vec::new() };
    let name = &request.name;
    let part = |resource: ApiResource, spec: Value| DatabasePart {
        document: document(&resource, &request.app, name, spec),
        resource,
    };
    let schedule = schedule(&request.postgres).map(|schedule| {
        let spec = json!({
            "schedule": with_seconds(schedule),
            "cluster": {"name": name},
            "method": "plugin",
            "pluginConfiguration": {"name": PLUGIN},
            "backupOwnerReference": "cluster",
        });
        part(ApiResource::erase::<CloudNativePgSchedule>(&()), spec)
    });
    let store = part(ApiResource::erase::<BarmanObjectStore>(&()), configuration(store, place));
    [Some(store), schedule].into_iter().flatten().collect()
}

/// Returns a schedule as CloudNativePG reads it, which has seconds first.
fn with_seconds(schedule: &str) -> String {
    if schedule.starts_with('@') { schedule.to_owned() } else { format!("0 {schedule}") }
}

fn configuration(store: &Store, place: &BackupLocation) -> Value {
    let bucket = &store.bucket;
    let CredentialsSecret { name, access_key_id_key, secret_access_key_key } = &bucket.credentials_secret;
    let mut configuration = json!({
        "destinationPath": format!("{}{}", place.store, split(place).0),
        "endpointURL": place.endpoint,
        "s3Credentials": {
            "accessKeyId": {"name": name, "key": access_key_id_key},
            "secretAccessKey": {"name": name, "key": secret_access_key_key},
        },
        "wal": {"compression": "gzip"},
        "data": {"compression": "gzip"},
    });
    if let Some(CaSecret { name, key }) = &bucket.ca_secret {
        configuration["endpointCA"] = json!({"name": name, "key": key});
    }
    // The credentials have a region only as a key of a Secret.
    let region = json!([{"name": "AWS_DEFAULT_REGION", "value": bucket.region}]);
    let mut spec = json!({"configuration": configuration, "instanceSidecarConfiguration": {"env": region}});
    if let Some(window) = store.keep.as_ref().and_then(window) {
        spec["retentionPolicy"] = json!(window);
    }
    spec
}

/// Returns how far back a restore is to reach: the plugin keeps what that needs.
fn window(keep: &StoreKeep) -> Option<String> {
    let StoreKeep { last: _, hourly: _, daily, weekly, monthly, yearly: _ } = keep;
    let counts = [(daily, 'd'), (weekly, 'w'), (monthly, 'm')];
    counts.into_iter().find(|(count, _)| **count > 0).map(|(count, unit)| format!("{count}{unit}"))
}

/// Returns true if a Cluster has these external clusters from [`source`]. Those of another client stay its own. The fields themselves say
/// it: whoever may change a record of it must not thereby remove what CloudNativePG needs.
pub(super) fn is_source(bootstrap: &Value, external_clusters: &Value) -> bool {
    let is_it = |external: &Value| external["name"] == SOURCE && external["plugin"]["name"] == PLUGIN;
    bootstrap["recovery"]["source"] == SOURCE && external_clusters.as_array().is_some_and(|all| all.iter().any(is_it))
}

/// Returns the fields of a new Cluster that is created from backups.
pub(super) fn source(request: &DatabaseRequest) -> Option<Value> {
    let options = request.postgres.cloudnativepg.as_ref()?;
    let CloudNativePgDataSource { object_store, server_name, backup, time } = options.data_source.as_ref()?;
    let mut recovery = json!({"source": SOURCE, "database": USER, "owner": USER});
    match (backup, time) {
        // Without the second, it would go on to the newest state.
        (Some(id), _) => recovery["recoveryTarget"] = json!({"backupID": id, "targetImmediate": true}),
        (None, Some(time)) => recovery["recoveryTarget"] = json!({"targetTime": time}),
        (None, None) => {}
    }
    let store = object_store.clone().unwrap_or_else(|| request.name.clone());
    let parameters = json!({"barmanObjectName": store, "serverName": server_name});
    Some(json!({
        "bootstrap": {"recovery": recovery},
        "externalClusters": [{"name": SOURCE, "plugin": {"name": PLUGIN, "parameters": parameters}}],
    }))
}
