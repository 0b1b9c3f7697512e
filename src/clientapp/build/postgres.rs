//! The database: a PerconaPGCluster or a Postgresql. Pure.
//!
//! Contract of the former: Percona Operator for PostgreSQL 2.6 to 3.x, `pgv2.percona.com/v2`.

use kube::Resource as _;
use serde_json::{Value, json};

use crate::{
    clientapp::names::DATABASE_USER,
    controller::key::Key,
    crd::{BackupRecord, DeletionPolicy, Postgres, Postgresql, annotation, label, percona::PerconaPGBackup},
};

/// On a backup: between which chart versions it was taken.
const UPGRADE_ANNOTATION: &str = "apps.bnerd-operator.local/upgrade";
/// The one repository for backups, of the four that Percona allows.
pub const BACKUP_REPOSITORY: &str = "repo1";

/// Version and images of Percona's operator that the clusters are written for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerconaSettings {
    /// `crVersion`: gates Percona's behaviour, so it is pinned and not left to the installed operator.
    pub cr_version: String,
    /// Repository of the PostgreSQL images, without tag.
    pub postgres_repository: String,
    /// Image of PgBouncer.
    pub pgbouncer_image: String,
    /// Image of pgBackRest.
    pub pgbackrest_image: String,
}

impl Default for PerconaSettings {
    fn default() -> Self {
        PerconaSettings {
            cr_version: "3.0.0".to_owned(),
            postgres_repository: "percona/percona-distribution-postgresql".to_owned(),
            pgbouncer_image: "percona/percona-pgbouncer:1.25.1-1".to_owned(),
            pgbackrest_image: "percona/percona-pgbackrest:2.58.0-1".to_owned(),
        }
    }
}

impl PerconaSettings {
    /// The image for a major version, as certified for Percona 3.0.0; without images Percona stops with the event
    /// `MissingRequiredImage`. 13 is past its end of life and no longer shipped.
    fn postgres_image(&self, major: &str) -> Option<String> {
        let tag = match major {
            "14" => "14.23-1",
            "15" => "15.18-1",
            "16" => "16.14-1",
            "17" => "17.10-1",
            "18" => "18.4-1",
            _ => return None,
        };
        Some(format!("{}:{tag}", self.postgres_repository))
    }

    /// Whether there is an image for this major version.
    #[must_use]
    pub fn supports(&self, major: &str) -> bool {
        self.postgres_image(major).is_some()
    }
}

/// The document for server-side apply, without stamp and digest: those are added by [`applied`].
#[must_use]
pub fn cluster(key: &Key, postgres: &Postgres, settings: &PerconaSettings, backups: bool) -> Value {
    let major: i64 = postgres.version.parse().unwrap_or_default();
    let mut user = json!({
        "name": DATABASE_USER,
        "databases": [DATABASE_USER],
        "password": {"type": "AlphaNumeric"},
    });
    // Since PostgreSQL 15 nobody but the owner may create in the schema public.
    if major >= 15 {
        user["grantPublicSchemaAccess"] = json!(true);
    }
    let mut cluster = json!({
        "apiVersion": "pgv2.percona.com/v2",
        "kind": "PerconaPGCluster",
        "metadata": {
            "name": key.cluster(),
            "namespace": key.namespace,
            "labels": {label::MANAGED_BY: label::OPERATOR, label::APP: key.name},
        },
        "spec": {
            "crVersion": settings.cr_version,
            "postgresVersion": major,
            "image": settings.postgres_image(&postgres.version),
            "instances": [{
                "name": "instance1",
                "replicas": postgres.instances,
                "dataVolumeClaimSpec": {
                    "accessModes": ["ReadWriteOnce"],
                    "resources": {"requests": {"storage": postgres.storage_size}},
                },
            }],
            "proxy": {"pgBouncer": {"replicas": 1, "image": settings.pgbouncer_image}},
            "users": [user],
            "backups": self::backups(postgres, settings, backups),
        },
    });
    if backups {
        cluster["metadata"]["annotations"] = json!({annotation::BACKUPS: "true"});
    }
    cluster
}

/// Room for backups: a volume as large as the data's, which pgBackRest packs.
fn backups(postgres: &Postgres, settings: &PerconaSettings, enabled: bool) -> Value {
    if !enabled {
        // The schema asks for the block; with it disabled no pgBackRest, and so no image of it, is needed.
        return json!({"enabled": false});
    }
    let claim =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": postgres.storage_size}}});
    json!({
        "enabled": true,
        "pgbackrest": {
            "image": settings.pgbackrest_image,
            "repos": [{"name": BACKUP_REPOSITORY, "volume": {"volumeClaimSpec": claim}}],
        },
    })
}

/// The Postgresql, as the document for server-side apply, without stamp and digest: those are added by [`applied`].
///
/// Its own policy is always `Retain`: one that is deleted by mistake keeps its data. The app's teardown changes that before it
/// deletes the Postgresql on purpose.
#[must_use]
pub fn standalone(key: &Key, postgres: &Postgres) -> Value {
    json!({
        "apiVersion": Postgresql::api_version(&()),
        "kind": Postgresql::kind(&()),
        "metadata": {
            "name": key.cluster(),
            "namespace": key.namespace,
            "labels": {label::MANAGED_BY: label::OPERATOR, label::APP: key.name},
        },
        "spec": {
            "defaultUser": DATABASE_USER,
            "name": DATABASE_USER,
            "version": postgres.version,
            "storageSize": postgres.storage_size,
            "replicas": postgres.instances,
            "deletionPolicy": DeletionPolicy::Retain,
        },
    })
}

/// The PerconaPGBackup, as the document for server-side apply.
#[must_use]
pub fn backup(key: &Key, record: &BackupRecord) -> Value {
    json!({
        "apiVersion": PerconaPGBackup::api_version(&()),
        "kind": record.kind,
        "metadata": {
            "name": record.name,
            "namespace": key.namespace,
            "labels": {label::MANAGED_BY: label::OPERATOR, label::APP: key.name},
            "annotations": {UPGRADE_ANNOTATION: format!("{} -> {}", record.from, record.to)},
        },
        "spec": {"pgCluster": key.cluster(), "repoName": BACKUP_REPOSITORY},
    })
}

/// The document as it is applied: with its digest, and stamped with the uid of its app. It has no ownerReference, by which the
/// garbage collector would delete the database; and it says which object it is meant for, if one was seen.
#[must_use]
pub fn applied(mut document: Value, digest: &str, app_uid: &str, uid: Option<&str>) -> Value {
    document["metadata"]["annotations"][annotation::SPEC_DIGEST] = json!(digest);
    document["metadata"]["annotations"][annotation::OWNER_UID] = json!(app_uid);
    if let Some(uid) = uid {
        document["metadata"]["uid"] = json!(uid);
    }
    document
}
