//! The kinds this operator serves and uses. Pure: types, schemas and names, no I/O.

mod clientapp;
pub mod conditions;
mod deletion;
pub(crate) mod guard;
pub mod parameters;
pub mod percona;
mod percona_options;
mod postgres_writer;
mod postgresql;
mod profile;
pub mod quantity;
pub mod reason;
mod restore;
mod schema;
mod server;
mod store;

pub use clientapp::{
    Attempt, BackupRecord, BackupState, ClientApp, ClientAppSpec, ClientAppStatus, Drift, ExternalPostgres,
    InstalledChart, Inventory, Persistence, Postgres, PostgresProvider, Redis, Release, ReleaseObject, Upgrade,
};
pub use deletion::{DeletionPolicy, Owned};
pub use guard::{Guard, decode_strictly};
pub use parameters::Parameters;
pub use percona_options::{
    AzureContainer, BackupRepository, BackupSchedules, GcsBucket, PerconaDataSource, PerconaOptions, S3Bucket,
};
pub use postgres_writer::{PostgresWriter, PostgresWriterSpec, PostgresWriterStatus, WrittenRow};
pub use postgresql::{
    ActivePod, Backup, BackupSummary, DumpRecord, DumpState, PasswordSecret, Phase, Postgresql, PostgresqlSpec,
    PostgresqlStatus, SecretRecord, VolumeRecord,
};
pub use profile::{
    Amount, PodSecurity, Profile, ProfileApp, ProfileDefaults, ProfileHelm, ProfileNamespace, ProfilePersistence,
    ProfileResources, ProfileSpec,
};
pub use reason::Reason;
pub use restore::{Drill, Dump, DumpStore, IdentitySecret, Restore, RestoreRecord};
use schema::{OBJECT_NAME, OBJECT_NAME_OR_NOTHING, any_object, default_password_key, default_storage, number};
pub use server::{NetworkAccess, Resources, Scheduling};
pub use store::{Bucket, CaSecret, CredentialsSecret, Store, StoreKeep};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

/// API group of every kind, and the prefix of every label, annotation and finalizer the operator writes.
pub const GROUP: &str = "apps.bnerd-operator.local";

/// Keys of the labels the operator writes on objects and on Helm's release Secrets.
pub mod label {
    /// Which `ClientApp` an object belongs to; its namespace is the object's own.
    pub const APP: &str = "apps.bnerd-operator.local/clientapp";
    /// On what `deletionPolicy: Retain` left behind: the name of the `ClientApp` it served.
    pub const RETAINED_FROM: &str = "apps.bnerd-operator.local/retained-from";
    /// Beside [`RETAINED_FROM`] on what a `Postgresql` left behind, which has its name there: that kind.
    pub const RETAINED_KIND: &str = "apps.bnerd-operator.local/retained-kind";
    /// On a namespace that was made for a `ClientApp`: its name. Such a namespace goes with the last `ClientApp` in it.
    pub const INSTANCE: &str = "apps.bnerd-operator.local/instance";
    /// Which `Postgresql` an object belongs to.
    pub const POSTGRESQL: &str = "apps.bnerd-operator.local/postgresql";
    /// The uid of that `Postgresql`: volumes and credentials, which outlive it under `Retain`, have no other owner.
    pub const POSTGRESQL_UID: &str = "apps.bnerd-operator.local/postgresql-uid";
    /// On a volume with dumps, or a Secret that opens a bucket with dumps: the `Postgresql` that may be made from them, besides the one
    /// whose dumps they are.
    pub const RESTORE_TO: &str = "apps.bnerd-operator.local/restore-to";
    /// On a pod of a `Postgresql`: `primary`, `standby`, `backup`, `initialize` or `drill`. On a Job: `drill`.
    pub const ROLE: &str = "apps.bnerd-operator.local/role";
    /// The Pod Security level that a namespace enforces, by Kubernetes' own admission plugin.
    pub const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";
    /// The well-known label for the tool that manages an object.
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// Value of [`MANAGED_BY`] on everything this operator makes itself.
    pub const OPERATOR: &str = "clientapp-operator";
}

/// Annotations.
pub mod annotation {
    use super::Attempt;

    /// On a volume that a `ClientApp` left behind: the chart its data are of, as JSON of `status.installed`.
    pub const INSTALLED: &str = "apps.bnerd-operator.local/installed";
    /// On what holds or opens data and was made for a `ClientApp`, or adopted by it: that object's uid. Not an ownerReference,
    /// by which the garbage collector would delete it.
    pub const OWNER_UID: &str = "apps.bnerd-operator.local/clientapp-uid";
    /// On what is applied: digest of the document, so that an unchanged one is not applied again.
    pub const SPEC_DIGEST: &str = "apps.bnerd-operator.local/spec-digest";
    /// On a PerconaPGCluster: this operator has set up its backups. A setup without it is a cluster admin's, and left alone.
    pub const BACKUPS: &str = "apps.bnerd-operator.local/backups";
    /// On a PerconaPGCluster: it was made from backups of another.
    pub const DATA_SOURCE: &str = "apps.bnerd-operator.local/data-source";
    /// On the pod template of a release's workload: uid of the Secret for which its pods were restarted.
    pub const RESTARTED_FOR: &str = "apps.bnerd-operator.local/restarted-for";

    /// On a `ClientApp` while `kubectl clientapp restore` replaces its database: what is to be taken away for that, by uid, and what comes.
    pub const RESTORING: &str = "apps.bnerd-operator.local/restoring";

    /// Asks for another attempt now: the failed one that it names is not waited out. It names one attempt, and not the
    /// time of the asking, so that it asks for exactly one more, however wrong the user's clock or the operator's is.
    pub const RETRY: &str = "apps.bnerd-operator.local/retry";

    /// The value of [`RETRY`] that has this attempt repeated: `startedAt/failures` of `status.lastAttempt`.
    pub fn retry_after(attempt: &Attempt) -> String {
        // Times are stored in whole seconds, and two attempts may begin within one.
        format!("{}/{}", attempt.started_at.0.strftime("%Y-%m-%dT%H:%M:%SZ"), attempt.failures)
    }
}

/// Removed from a `ClientApp` only after its release is verified gone and its database deleted or retained.
pub const FINALIZER: &str = "apps.bnerd-operator.local/teardown";

/// Removed from a `Postgresql` only after its pods are gone and its volumes deleted or retained.
pub const POSTGRESQL_FINALIZER: &str = "apps.bnerd-operator.local/postgresql";

/// Removed from a `PostgresWriter` only after its row is deleted.
pub const ROW_FINALIZER: &str = "apps.bnerd-operator.local/row";

/// Every CustomResourceDefinition the operator owns, in the order they are printed and applied.
pub fn all() -> Vec<CustomResourceDefinition> {
    vec![ClientApp::crd(), Profile::crd(), PostgresWriter::crd(), Postgresql::crd()]
}

#[cfg(test)]
mod tests {
    /// `crds/` is generated by `clientapp-operator crds`; set `UPDATE_GENERATED=1` to write it anew.
    #[test]
    fn committed_crds_are_up_to_date() {
        for crd in super::all() {
            let plural = &crd.spec.names.plural;
            let path = format!("{}/crds/{plural}.yaml", env!("CARGO_MANIFEST_DIR"));
            let generated = serde_yaml::to_string(&crd).unwrap();
            if std::env::var_os("UPDATE_GENERATED").is_some() {
                std::fs::write(&path, &generated).unwrap();
            }
            let committed = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                committed == generated,
                "{path} is out of date: run `UPDATE_GENERATED=1 cargo test committed_crds`"
            );
        }
    }
}
