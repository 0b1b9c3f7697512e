//! Computes what should exist, **pure**: validates the spec once; later stages never read the raw spec.

use std::sync::Arc;

use k8s_openapi::api::networking::v1::NetworkPolicyPeer;

use super::names;
use crate::{
    crd::{
        Backup, Bucket, DrillStore, DumpStore, JobSettings, Parameters, PasswordSecret, PasswordState, Postgresql,
        PostgresqlSpec, RepositoryPassword, Resources, Restore, RestoreRequest, Scheduling, Store, StoreKeep, Tls,
        parameters, quantity,
    },
    platform::{
        key::{Key, key_of},
        operator_image::OperatorImage,
        schedule::Schedule,
    },
};

const REPOSITORY: &str = "docker.io/library/postgres";
/// The major versions that have an image and that the scripts support.
pub(crate) const VERSIONS: [&str; 5] = ["14", "15", "16", "17", "18"];
/// Their images. The Debian release is pinned: another C library may sort text differently from the existing indexes.
const IMAGES: [&str; 5] = ["14.23-trixie", "15.18-trixie", "16.14-trixie", "17.10-trixie", "18.4-trixie"];
/// Annotation of a Postgresql: uid of the claim that holds its data from now on, instead of the recorded claim.
pub(crate) const ACCEPT_VOLUME: &str = "apps.bnerd-operator.local/accept-volume";

#[derive(Clone, PartialEq)]
pub(crate) enum PasswordSource {
    Generated,
    Inline(String),
    Secret(PasswordSecret),
}

impl PasswordSource {
    pub(crate) fn field(&self) -> &'static str {
        match self {
            PasswordSource::Generated => "generated",
            PasswordSource::Inline(_) => "spec.password",
            PasswordSource::Secret(_) => "spec.passwordSecret",
        }
    }
}

impl std::fmt::Debug for PasswordSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.field())
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Size {
    pub text: String,
    pub bytes: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredBackup {
    pub schedule: Option<String>,
    /// The word that requests a dump now.
    pub request: Option<String>,
    pub keep: i32,
    pub size: Size,
    /// True if a last dump is taken before a deletion.
    pub on_delete: bool,
    /// The schedule of drills, which restore the latest dump as a test.
    pub drill: Option<String>,
    /// The bucket that drills restore from; `None`: they restore from the volume.
    pub drill_store: Option<DumpStore>,
    pub store: Option<DesiredStore>,
    /// `None`: the defaults.
    pub jobs: Option<JobSettings>,
}

/// Where dumps or archives are uploaded.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredStore {
    pub bucket: Bucket,
    /// Ends with namespace and name, so that no other object of the cluster has the same.
    pub prefix: String,
    pub keep: Option<StoreKeep>,
    /// The operator generates the password.
    pub generate_password: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Desired {
    pub key: Key,
    pub uid: String,
    /// The generation of the spec.
    pub generation: i64,
    /// Owner of the database.
    pub user: String,
    pub database: String,
    pub password: PasswordSource,
    pub port: i32,
    pub storage: Size,
    /// StorageClass; `None`: the default one.
    pub storage_class: Option<String>,
    pub image: String,
    pub version: String,
    /// Number of servers besides the primary.
    pub standbys: i32,
    /// Of each server and of the Job that creates the database.
    pub resources: Option<Resources>,
    pub scheduling: Scheduling,
    pub parameters: Parameters,
    /// `None`: without TLS.
    pub tls: Option<Tls>,
    /// Peers that may connect besides the pods of the namespace; `None`: every pod of the cluster.
    pub peers: Option<Vec<NetworkPolicyPeer>>,
    pub backup: Option<DesiredBackup>,
    /// The dump from which the database is created.
    pub restore: Option<Restore>,
    /// The dump that replaces the database.
    pub restore_request: Option<RestoreRequest>,
    /// uid of the claim that a cluster admin has accepted in place of the recorded claim.
    pub accepted_volume: Option<String>,
    /// The image that uploads dumps, if the operator knows it.
    pub operator_image: Option<Arc<OperatorImage>>,
}

impl Desired {
    /// Returns how the repository of dumps stands with its password.
    pub(crate) fn password_state(&self, recorded: Option<&RepositoryPassword>, exists: bool) -> PasswordState {
        let Some(store) = self.backup.as_ref().and_then(|backup| backup.store.as_ref()) else {
            return PasswordState::Given;
        };
        // A repository that the database is created from has its password already.
        let restored = self.restore.as_ref().and_then(|restore| restore.store.as_ref());
        let is_known = restored.is_some_and(|restored| restored.bucket.password_secret == store.bucket.password_secret);
        store.bucket.password_state(store.generate_password && !is_known, recorded, exists)
    }

    /// Returns the settings of the Jobs that back up and restore; `None`: the defaults.
    pub(crate) fn jobs(&self) -> Option<&JobSettings> {
        self.backup.as_ref()?.jobs.as_ref()
    }
}

/// Users whose password no client gets.
const SUPERUSERS: [&str; 2] = ["postgres", "replicator"];

/// Checks and completes a spec; an error begins with the field at fault. The API server refuses most of these already, but not
/// in an object that was stored under an older schema.
pub(crate) fn desired(postgresql: &Postgresql) -> Result<Desired, String> {
    let key = key_of(postgresql);
    let spec = &postgresql.spec;
    if key.name.len() > names::MAX {
        return Err(format!("metadata.name: can have at most {} characters", names::MAX));
    }
    let made = postgresql.status.as_ref().and_then(|status| status.volume.as_ref()).is_some_and(|it| it.initialized);
    // A database that an earlier version of the operator has created is still managed.
    if SUPERUSERS.contains(&spec.default_user.as_str()) && !made {
        return Err(format!("spec.defaultUser: {} is a superuser: name another user", spec.default_user));
    }
    let password = password(spec)?;
    let Some(tag) = VERSIONS.iter().position(|version| *version == spec.version).map(|index| IMAGES[index]) else {
        return Err(format!("spec.version: {} is not one of {}", spec.version, VERSIONS.join(", ")));
    };
    let storage = size("spec.storageSize", &spec.storage_size)?;
    let backup = spec.backup.as_ref().map(|backup| self::backup(&key, backup, &storage)).transpose()?;
    let account = backup.as_ref().and_then(|backup| backup.jobs.as_ref()?.service_account_name.as_ref());
    if let (Some(_), Some(account)) = (&spec.image, account) {
        // A user who may create a Postgresql, but no pod, would run an image with the rights of any account.
        let problem = format!("{account} is for official images: omit it, or spec.image");
        return Err(format!("spec.backup.jobs.serviceAccountName: {problem}"));
    }
    if let Some(scratch) = spec.restore.as_ref().and_then(|restore| restore.store.as_ref()?.size.as_ref()) {
        size("spec.restore.store.size", scratch)?;
    }
    let requested = spec.restore_request.as_ref().and_then(|requested| requested.dump.store.as_ref());
    if let Some(scratch) = requested.and_then(|store| store.size.as_ref()) {
        size("spec.restoreRequest.dump.store.size", scratch)?;
    }
    let resources = spec.resources.clone().filter(|resources| !resources.is_empty());
    if let Some(problem) = resources.as_ref().and_then(Resources::problem) {
        return Err(format!("spec.resources.{problem}"));
    }
    if let Some(problem) = parameters::problem(&spec.parameters) {
        return Err(format!("spec.parameters: {problem}"));
    }
    Ok(Desired {
        uid: postgresql.metadata.uid.clone().unwrap_or_default(),
        generation: postgresql.metadata.generation.unwrap_or_default(),
        user: spec.default_user.clone(),
        database: spec.name.clone(),
        password,
        port: spec.port,
        storage,
        storage_class: spec.storage_class_name.clone(),
        image: spec.image.clone().unwrap_or_else(|| format!("{REPOSITORY}:{tag}")),
        version: spec.version.clone(),
        standbys: spec.replicas - 1,
        resources,
        scheduling: spec.scheduling.clone().unwrap_or_default(),
        parameters: spec.parameters.clone(),
        tls: spec.tls,
        peers: peers(spec)?,
        backup,
        restore: spec.restore.clone(),
        restore_request: spec.restore_request.clone(),
        accepted_volume: postgresql.metadata.annotations.as_ref().and_then(|all| all.get(ACCEPT_VOLUME)).cloned(),
        operator_image: None,
        key,
    })
}

fn password(spec: &PostgresqlSpec) -> Result<PasswordSource, String> {
    Ok(match (&spec.password, &spec.password_secret) {
        (Some(_), Some(_)) => return Err("spec.password: give password or passwordSecret, not both".to_owned()),
        (Some(password), None) => {
            usable(password.as_bytes()).map_err(|problem| format!("spec.password: {problem}"))?;
            PasswordSource::Inline(password.clone())
        }
        (None, Some(secret)) => PasswordSource::Secret(secret.clone()),
        (None, None) => PasswordSource::Generated,
    })
}

/// Checks and completes `spec.backup`; the volume of dumps is by default as large as that of the database.
fn backup(key: &Key, backup: &Backup, storage: &Size) -> Result<DesiredBackup, String> {
    let own = |given: &Store| DesiredStore::of(given, given.path(&key.namespace, &key.name));
    let store = backup.store.as_ref().map(own);
    let drill_store = backup.drill_store.as_ref().map(|given| drill_store(given, store.as_ref())).transpose()?;
    for (field, schedule) in [("schedule", &backup.schedule), ("drill", &backup.drill)] {
        let schedule = schedule.as_ref().map(|schedule| Schedule::parse(schedule));
        schedule.transpose().map_err(|problem| format!("spec.backup.{field}: {problem}"))?;
    }
    if let Some(problem) = backup.jobs.as_ref().and_then(JobSettings::problem) {
        return Err(format!("spec.backup.jobs.{problem}"));
    }
    Ok(DesiredBackup {
        schedule: backup.schedule.clone(),
        request: backup.request.clone(),
        keep: backup.keep,
        size: backup.size.as_ref().map_or(Ok(storage.clone()), |text| size("spec.backup.size", text))?,
        on_delete: backup.on_delete,
        drill: backup.drill.clone(),
        drill_store,
        store,
        jobs: backup.jobs.clone(),
    })
}

/// Returns the peers that may connect besides the pods of the namespace; `None`: every pod of the cluster.
fn peers(spec: &PostgresqlSpec) -> Result<Option<Vec<NetworkPolicyPeer>>, String> {
    let peers = spec.network_policy.as_ref().filter(|access| access.enabled).map(|access| access.from.clone());
    if peers.iter().flatten().any(|peer| *peer == NetworkPolicyPeer::default()) {
        // An empty peer would allow every pod of the cluster.
        return Err(
            "spec.networkPolicy.from: each peer must have a podSelector, a namespaceSelector or an ipBlock".to_owned()
        );
    }
    Ok(peers)
}

fn size(field: &str, text: &str) -> Result<Size, String> {
    let bytes = quantity::parse_positive(text)
        .ok_or_else(|| format!("{field}: {text:?} is not a quantity above zero such as 1Gi or 500Mi"))?;
    Ok(Size { text: text.to_owned(), bytes })
}

impl DesiredStore {
    /// Returns where this store keeps the snapshots of one object: `prefix` is its own.
    pub(crate) fn of(given: &Store, prefix: String) -> DesiredStore {
        let Store { bucket, prefix: _, keep, generate_password } = given.clone();
        DesiredStore { bucket, prefix, keep, generate_password }
    }
}

/// Returns the dumps that a Postgresql uploads itself, as those of another are restored.
fn drill_store(given: &DrillStore, store: Option<&DesiredStore>) -> Result<DumpStore, String> {
    let DrillStore { size: scratch } = given.clone();
    let Some(DesiredStore { bucket, prefix, keep: _, generate_password: _ }) = store.cloned() else {
        return Err("spec.backup.drillStore: set spec.backup.store as well, from which drills get the dumps".to_owned());
    };
    if let Some(scratch) = &scratch {
        size("spec.backup.drillStore.size", scratch)?;
    }
    Ok(DumpStore { bucket, path: prefix, size: scratch })
}

/// Returns a password that PostgreSQL's image accepts, or what is wrong with it, without any part of it.
pub(crate) fn usable(password: &[u8]) -> Result<&str, &'static str> {
    let text = std::str::from_utf8(password).map_err(|_| "is not UTF-8")?;
    match text.chars().position(char::is_control) {
        _ if text.is_empty() => Err("is empty"),
        None => Ok(text),
        Some(_) if text.trim_end_matches(['\r', '\n']).chars().all(|c| !c.is_control()) => {
            Err("ends with a line break: write it without one, as printf does")
        }
        Some(_) => Err("has a control character in it"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn validate(spec: Value) -> Result<Desired, String> {
        let object = json!({"metadata": {"name": "acme", "namespace": "ns", "uid": "uid-1"}, "spec": spec});
        desired(&serde_json::from_value(object).unwrap())
    }

    pub(in crate::postgresql) fn acme(spec: Value) -> Desired {
        validate(spec).unwrap()
    }

    #[test]
    fn defaults() {
        let desired = validate(json!({})).unwrap();
        assert_eq!((desired.user.as_str(), desired.database.as_str(), desired.port), ("app", "app", 5432));
        assert_eq!(
            (desired.image.as_str(), desired.storage.text.as_str(), desired.standbys),
            ("docker.io/library/postgres:17.10-trixie", "1Gi", 0)
        );
        assert_eq!(desired.password, PasswordSource::Generated);
        let backup = validate(json!({"storageSize": "3Gi", "backup": {"schedule": "@daily"}})).unwrap().backup.unwrap();
        assert_eq!((backup.size.text.as_str(), backup.keep, backup.on_delete), ("3Gi", 7, false));
    }

    #[test]
    fn an_image_is_pinned_for_each_version() {
        for version in VERSIONS {
            let image = validate(json!({"version": version})).unwrap().image;
            assert!(image.starts_with(&format!("{REPOSITORY}:{version}.")), "{image}");
        }
    }

    #[test]
    fn refusals_begin_with_the_field() {
        for (spec, field) in [
            (json!({"password": "a", "passwordSecret": {"name": "b"}}), "spec.password: "),
            (json!({"password": "a\n"}), "spec.password: "),
            (json!({"storageSize": "10GB"}), "spec.storageSize: "),
            (json!({"storageSize": "0"}), "spec.storageSize: "),
            (json!({"backup": {"onDelete": true, "size": "x"}}), "spec.backup.size: "),
            (json!({"backup": {"onDelete": true, "drill": "@weekly", "drillStore": {}}}), "spec.backup.drillStore: "),
            (drilled(json!({"size": "x"})), "spec.backup.drillStore.size: "),
            (json!({"backup": {"onDelete": true, "jobs": {"timeout": "1s"}}}), "spec.backup.jobs.timeout: "),
            (
                json!({"image": "own:1", "backup": {"onDelete": true, "jobs": {"serviceAccountName": "puller"}}}),
                "spec.backup.jobs.serviceAccountName: puller is for official images",
            ),
            (json!({"version": "13"}), "spec.version: "),
            (json!({"defaultUser": "postgres"}), "spec.defaultUser: postgres is a superuser"),
            (json!({"defaultUser": "replicator"}), "spec.defaultUser: replicator is a superuser"),
            (json!({"resources": {"limits": {"cpu": "much"}}}), "spec.resources.limits.cpu: "),
            (json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}), "spec.resources.requests.cpu: "),
            (json!({"parameters": {"work_mem": "4MB", "fsync": "off"}}), "spec.parameters: fsync cannot be set here"),
            (json!({"networkPolicy": {"from": [{}]}}), "spec.networkPolicy.from: "),
        ] {
            let problem = validate(spec).unwrap_err();
            assert!(problem.starts_with(field), "{problem}");
        }
    }

    #[test]
    fn an_existing_database_of_a_superuser_is_still_managed() {
        let volume = json!({"name": "data-acme-0", "uid": "u", "initialized": true});
        let object = json!({"metadata": {"name": "acme", "namespace": "ns"}, "spec": {"defaultUser": "postgres"},
            "status": {"phase": "Up", "volume": volume}});
        assert_eq!(desired(&serde_json::from_value(object).unwrap()).unwrap().user, "postgres");
    }

    /// Returns a spec with a store that has these fields as well.
    pub(in crate::postgresql) fn stored(more: Value) -> Value {
        let mut store =
            json!({"endpoint": "https://s3.example.com", "bucket": "dumps", "credentialsSecret": {"name": "s3"}});
        for (field, value) in more.as_object().unwrap() {
            store[field] = value.clone();
        }
        json!({"backup": {"schedule": "@daily", "store": store}})
    }

    /// Returns a spec with drills from the bucket.
    pub(in crate::postgresql) fn drilled(drill_store: Value) -> Value {
        let mut spec = stored(json!({
            "prefix": "prod", "caSecret": {"name": "ca"}, "passwordSecret": {"name": "restic"},
        }));
        spec["backup"]["drill"] = json!("@weekly");
        spec["backup"]["drillStore"] = drill_store;
        spec
    }

    #[test]
    fn each_postgresql_has_its_own_prefix() {
        for (given, prefix) in [(json!({}), "ns/acme"), (json!({"prefix": "prod/eu"}), "prod/eu/ns/acme")] {
            assert_eq!(validate(stored(given)).unwrap().backup.unwrap().store.unwrap().prefix, prefix);
        }
    }

    #[test]
    fn a_password_is_never_printed() {
        assert!(!format!("{:?}", validate(json!({"password": "canary"})).unwrap()).contains("canary"));
    }

    #[test]
    fn passwords() {
        for (password, problem) in [
            (&b"correct horse"[..], None),
            (b"", Some("is empty")),
            (b"x\n", Some("ends with a line break: write it without one, as printf does")),
            (b"a\nb", Some("has a control character in it")),
            (b"\xff", Some("is not UTF-8")),
        ] {
            assert_eq!(usable(password).err(), problem);
        }
    }
}
