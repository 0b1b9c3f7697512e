//! Where the backups of a PerconaPGCluster go, and the data source of a new one. **Pure.**
//!
//! pgBackRest numbers repositories. A cluster has one, on a volume or in object storage; or both, if it had backups on its volume
//! before it got object storage.

use serde_json::{Value, json};

use super::super::{
    object::DatabaseObject,
    request::{BackupLocation, BackupTargets, DatabaseRequest},
};
use crate::crd::{BackupRepository, PerconaDataSource, PerconaOptions, Postgres, percona, quantity};

/// The first repository for backups, of the four that Percona allows.
const FIRST: &str = "repo1";
/// The repository next to a volume with backups, which is not removed.
const SECOND: &str = "repo2";
/// pgBackRest's name for the backed-up cluster; Percona uses the same for all clusters.
const STANZA: &str = "db";
/// How many full backups are kept if the spec does not say. Without a number, backups never expire: the repository's volume fills
/// up, WAL can no longer be archived, and PostgreSQL stops as soon as WAL has filled its own volume. While a backup runs, there
/// is one more.
const KEPT: i32 = 2;
/// The part of the data volume that WAL waiting to be archived may fill. Beyond it, pgBackRest drops WAL, and a restore to a
/// later point in time is possible only after the next backup: that is better than PostgreSQL without disk space.
const QUEUE: f64 = 0.25;
const PGBACKREST_IMAGE: &str = "percona/percona-pgbackrest:2.58.0-1";
/// The first version whose schema takes pgBackRest's image without a repository. Since 2.9.0 Percona stops without that image
/// (`MissingRequiredImage`), even with backups disabled (`internal/config/config.go`, `VerifyImageValues`).
const IMAGE_WITHOUT_REPOSITORY: semver::Version = semver::Version::new(2, 8, 0);

/// Returns where the backups of a cluster are to go, or why that would differ from their present place.
pub(super) fn targets(request: &DatabaseRequest, found: Option<&DatabaseObject>) -> Result<BackupTargets, String> {
    let there = found.map(|found| found.targets.clone()).unwrap_or_default();
    let options = request.postgres.percona.as_ref();
    let wanted = options.and_then(|options| options.repository.as_ref()).map(|repository| {
        let kept = there.repository.as_ref().map(|place| place.path.clone());
        let path = repository.path.clone().or(kept).unwrap_or_else(|| own_path(request));
        BackupLocation { store: repository.store(), endpoint: repository.endpoint(), path }
    });
    if let Some(place) = there.repository.as_ref().filter(|place| wanted.as_ref() != Some(place)) {
        let asked = wanted.map_or_else(|| "none".to_owned(), |wanted| wanted.to_string());
        return Err(format!(
            " keeps its backups in {place}, and spec.postgres.percona.repository names {asked}: backups do not move by themselves, and neither they nor the cluster are changed; name that bucket there{}, and path: {}",
            place.endpoint.as_ref().map_or_else(String::new, |endpoint| format!(", endpoint: {endpoint}")),
            place.path
        ));
    }
    let on_volume = request.before_upgrades || options.is_some_and(PerconaOptions::backs_up);
    Ok(BackupTargets { volume: there.volume || wanted.is_none() && on_volume, repository: wanted })
}

pub(super) fn source(postgres: &Postgres) -> Option<Value> {
    let PerconaDataSource { cluster, repository, backup, time } = postgres.percona.as_ref()?.data_source.as_ref()?;
    let options = match (backup, time) {
        (Some(label), _) => percona::up_to_backup(label),
        (None, Some(time)) => percona::up_to_time(time.0),
        (None, None) => Vec::new(),
    };
    let (kind, mut source) = match (cluster, repository) {
        (Some(cluster), _) => ("postgresCluster", json!({"clusterName": cluster, "repoName": FIRST})),
        (None, Some(repository)) => {
            let pgbackrest = json!({
                "stanza": STANZA,
                "configuration": configuration(repository),
                "global": {format!("{FIRST}-path"): repository.path},
                "repo": storage(FIRST, repository),
            });
            ("pgbackrest", pgbackrest)
        }
        (None, None) => return None,
    };
    if !options.is_empty() {
        source["options"] = json!(options);
    }
    Some(json!({kind: source}))
}

/// Returns the repository that backups go to; WAL goes to every repository.
pub(super) fn in_use(targets: &BackupTargets) -> &'static str {
    if targets.volume && targets.repository.is_some() { SECOND } else { FIRST }
}

/// Returns the block `backups` of a cluster, which the schema requires.
pub(super) fn block(request: &DatabaseRequest, targets: &BackupTargets, claim: &Value) -> Value {
    let postgres = &request.postgres;
    let options = postgres.percona.clone().unwrap_or_default();
    let name = in_use(targets);
    let mut repos = Vec::new();
    let mut pgbackrest = json!({"image": PGBACKREST_IMAGE});
    if targets.volume {
        // A volume as large as the data volume; pgBackRest compresses backups.
        repos.push(json!({"name": FIRST, "volume": {"volumeClaimSpec": claim}}));
    }
    if let (Some(place), Some(repository)) = (&targets.repository, &options.repository) {
        repos.push(storage(name, repository));
        pgbackrest["configuration"] = configuration(repository);
        pgbackrest["global"][format!("{name}-path")] = json!(place.path);
    }
    if repos.is_empty() {
        return match semver::Version::parse(&request.percona_cr_version) {
            // The schema wants a repository beside the image there.
            Ok(version) if version < IMAGE_WITHOUT_REPOSITORY => json!({"enabled": false}),
            _ => json!({"enabled": false, "pgbackrest": pgbackrest}),
        };
    }
    // WAL goes to every repository, and is removed from a repository only after backups in it.
    if let Some(schedules) = &options.schedules {
        repos.iter_mut().for_each(|repo| repo["schedules"] = json!(schedules));
    }
    for repo in &repos {
        let repo = repo["name"].as_str().unwrap_or_default();
        let keep = options.keep.filter(|_| repo == name).unwrap_or(KEPT);
        pgbackrest["global"][format!("{repo}-retention-full")] = json!(keep.to_string());
    }
    let storage = quantity::parse_positive(&postgres.storage_size).unwrap_or_default();
    pgbackrest["global"]["archive-push-queue-max"] = json!(format!("{:.0}", storage * QUEUE));
    pgbackrest["repos"] = json!(repos);
    json!({"enabled": true, "pgbackrest": pgbackrest})
}

/// Returns a repository in object storage, in Percona's format.
fn storage(name: &str, repository: &BackupRepository) -> Value {
    let BackupRepository { s3, gcs, azure, secret_name: _, path: _ } = repository;
    let mut repo = json!({"name": name});
    if let Some(s3) = s3 {
        repo["s3"] = json!(s3);
    }
    if let Some(gcs) = gcs {
        repo["gcs"] = json!(gcs);
    }
    if let Some(azure) = azure {
        repo["azure"] = json!(azure);
    }
    repo
}

fn configuration(repository: &BackupRepository) -> Value {
    json!([{"secret": {"name": repository.secret_name}}])
}

/// Returns a path that no other cluster has: names can repeat, also in another Kubernetes cluster, and uids do not. A cluster
/// that was restored from another has the same system identifier, so pgBackRest would not keep the two apart.
fn own_path(DatabaseRequest { app, uid, .. }: &DatabaseRequest) -> String {
    let own = uid.as_deref().and_then(|uid| uid.split('-').next()).map(|part| format!("/{part}"));
    format!("/{}/{}{}", app.namespace, app.database(), own.unwrap_or_default())
}

/// Returns where the backups of a cluster go at present.
pub(super) fn seen(pgbackrest: Option<&Value>) -> BackupTargets {
    let repos = pgbackrest.and_then(|pgbackrest| pgbackrest["repos"].as_array());
    let mut targets = BackupTargets::default();
    for repo in repos.into_iter().flatten() {
        match percona::store(repo) {
            Some(store) => {
                let option = format!("{}-path", repo["name"].as_str().unwrap_or_default());
                let path = pgbackrest.and_then(|pgbackrest| pgbackrest["global"][option].as_str());
                let endpoint = repo["s3"]["endpoint"].as_str().map(str::to_owned);
                targets.repository =
                    Some(BackupLocation { store, endpoint, path: path.unwrap_or_default().to_owned() });
            }
            None => targets.volume = true,
        }
    }
    targets
}
