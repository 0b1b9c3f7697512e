//! The kinds that this operator serves and uses. Pure: types, schemas and names, no I/O.

mod app_restore;
mod app_tls;
mod backup;
mod clientapp;
pub mod cloudnativepg;
mod cloudnativepg_options;
pub mod conditions;
mod deletion;
pub mod duration;
pub mod guard;
mod job_settings;
pub mod parameters;
pub mod percona;
mod percona_options;
mod postgres_writer;
mod postgresql;
mod profile;
pub mod quantity;
pub mod reason;
mod restore;
mod schedule;
mod schema;
mod server;
mod store;
mod values_reference;

pub use app_restore::{
    ClientAppRestore, ClientAppRestoreSpec, ClientAppRestoreStatus, DatabaseRestore, DatabaseSource, FilesRestore,
    FilesSource, RestoreInto,
};
pub use app_tls::{AppTls, CertificateIssuer, IssuerKind};
pub use backup::{
    ArchivedFiles, BackupPart, BackupPhase, BackupSubject, BackupSubjectKind, ClientAppBackup, ClientAppBackupSpec,
    ClientAppBackupStatus, DatabaseBackup, Reclaim,
};
pub use clientapp::{
    Approval, Attempt, BackupRecord, BackupState, ClientApp, ClientAppSpec, ClientAppStatus, Credentials,
    DEFAULT_CHART_VERSION, Dependency, Drift, DriftIgnore, ExternalPostgres, FilesBackup, FilesSummary, InstalledChart,
    Inventory, MAX_NAME, NAME_TOO_LONG, OnFailure, Persistence, Planned, Postgres, PostgresProvider, ReadyRevision,
    Redis, Release, ReleaseObject, RolledBack, Test, Tested, Upgrade, ValuesDigest,
};
pub use cloudnativepg_options::{CloudNativePgDataSource, CloudNativePgOptions, PoolMode, PoolerOptions};
pub use deletion::{DeletionPolicy, Owned};
pub use guard::read;
pub use guard::{Guard, decode_strictly};
pub use job_settings::JobSettings;
pub use parameters::Parameters;
pub use percona_options::{
    AzureContainer, BackupRepository, BackupSchedules, GcsBucket, PerconaDataSource, PerconaOptions, S3Bucket,
};
pub use postgres_writer::{PostgresWriter, PostgresWriterSpec, PostgresWriterStatus, WrittenRow};
pub use postgresql::{
    ActivePod, Backup, BackupSummary, DumpRecord, DumpState, PasswordSecret, Phase, Postgresql, PostgresqlRollout,
    PostgresqlSpec, PostgresqlStatus, SecretRecord, VolumeRecord,
};
pub use profile::{
    BoundRevision, ExpectedJson, HealthCheck, PodSecurity, Profile, ProfileApp, ProfileDefaults, ProfileHelm,
    ProfileNamespace, ProfilePersistence, ProfileResources, ProfileRollout, ProfileSpec, ProfileStatus, RolloutStatus,
    RolloutWindow, UnhealthyApp,
};
pub use quantity::Amount;
pub use reason::Reason;
pub use restore::{
    Drill, DrillStore, Dump, DumpStore, Restore, RestoreProgress, RestoreRecord, RestoreRequest, RestoreState,
};
pub use schedule::Scheduled;
use schema::{
    EXACT_VERSION, HOSTNAME, NOT_A_HOSTNAME, NOT_A_VERSION, OBJECT_NAME, OBJECT_NAME_OR_NOTHING, any_object,
    default_password_key, default_storage, number,
};
pub use server::{NetworkAccess, Resources, Scheduling, Tls};
pub use store::{
    Bucket, CaSecret, CredentialsSecret, PasswordState, RepositoryPassword, Store, StoreKeep, StorePasswordSecret,
};
pub use values_reference::{ValuesKind, ValuesReference};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

/// API group of the operator's kinds, and prefix of every label, annotation and finalizer that it writes.
pub const GROUP: &str = "apps.bnerd-operator.local";

/// Keys of labels on objects and on Helm's release Secrets.
pub mod label {
    /// The `ClientApp` that an object belongs to, in the object's namespace.
    pub const APP: &str = "apps.bnerd-operator.local/clientapp";
    /// On objects that `deletionPolicy: Retain` has kept: the name of the `ClientApp` that they belonged to.
    pub const RETAINED_FROM: &str = "apps.bnerd-operator.local/retained-from";
    /// On a PerconaPGBackup, which is deleted with its ClientAppBackup, or a Backup: the uid of that.
    pub const BACKUP_UID: &str = "apps.bnerd-operator.local/backup-uid";
    /// Set with [`RETAINED_FROM`] if that names a `Postgresql`: the kind.
    pub const RETAINED_KIND: &str = "apps.bnerd-operator.local/retained-kind";
    /// On a namespace that was created for a `ClientApp`: its name. Such a namespace is deleted with the last `ClientApp` in it.
    pub const INSTANCE: &str = "apps.bnerd-operator.local/instance";
    /// The `Postgresql` that an object belongs to.
    pub const POSTGRESQL: &str = "apps.bnerd-operator.local/postgresql";
    /// The uid of that `Postgresql`. Volumes and credentials have no other owner, because they outlive it under `Retain`.
    pub const POSTGRESQL_UID: &str = "apps.bnerd-operator.local/postgresql-uid";
    /// On a volume with dumps, or a Secret with the credentials of a bucket with dumps: another `Postgresql` that may be restored from
    /// them, besides the one that was dumped.
    pub const RESTORE_TO: &str = "apps.bnerd-operator.local/restore-to";
    /// On the same, set by the operator for a copy: the uid of the `Postgresql` that may be restored from the dumps of its namespace.
    pub const RESTORE_TO_UID: &str = "apps.bnerd-operator.local/restore-to-uid";
    /// On a Job for the files of a `ClientApp`, its pods, and a ClientAppBackup by schedule: the name of the `ClientApp`.
    pub const FILES_OF: &str = "apps.bnerd-operator.local/files-of";
    /// On a pod of a `Postgresql`: `primary`, `standby`, `backup`, `initialize` or `drill`. On a Job: `drill`. With [`FILES_OF`]:
    /// `archive` or `restore`.
    pub const ROLE: &str = "apps.bnerd-operator.local/role";
    /// The Pod Security level that Kubernetes enforces in a namespace.
    pub const POD_SECURITY: &str = "pod-security.kubernetes.io/enforce";
    /// On a ControllerRevision in the operator's namespace: uid of the Profile that it is a revision of.
    pub const PROFILE_UID: &str = "apps.bnerd-operator.local/profile-uid";
    /// The well-known label for the tool that manages an object.
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    /// Value of [`MANAGED_BY`] on every object that this operator creates itself.
    pub const OPERATOR: &str = "clientapp-operator";
}

/// Keys of annotations.
pub mod annotation {
    use super::{Attempt, Tested};

    /// On a volume that a `ClientApp` has left: the chart that its data belongs to, as JSON of `status.installed`.
    pub const INSTALLED: &str = "apps.bnerd-operator.local/installed";
    /// On an object that holds or opens data and was created for a `ClientApp`, or adopted by it: the uid of the `ClientApp`. It is
    /// not an ownerReference, because the garbage collector would delete the object.
    pub const OWNER_UID: &str = "apps.bnerd-operator.local/clientapp-uid";
    /// On applied objects: digest of the document, so that it is applied again only if it changes.
    pub const SPEC_DIGEST: &str = "apps.bnerd-operator.local/spec-digest";
    /// On a PerconaPGCluster or a Cluster: this operator has configured its backups. Without it, a cluster admin has, and they are left
    /// alone. On a Cluster: where they go.
    pub const BACKUPS: &str = "apps.bnerd-operator.local/backups";
    /// On a PerconaPGCluster or a Cluster: it was created from the backups of another.
    pub const DATA_SOURCE: &str = "apps.bnerd-operator.local/data-source";
    /// On the pods of a release: digest of the credentials that they read when they start. Named as charts name such annotations.
    pub const CREDENTIALS: &str = "checksum/clientapp-credentials";

    /// On a `ClientApp`: the ClientAppBackup or ClientAppRestore for which it has no pods.
    pub const STOPPED_FOR: &str = "apps.bnerd-operator.local/stopped-for";

    /// On a ClientAppBackup that an upgrade waits for: the chart versions before and after.
    pub const UPGRADE: &str = "apps.bnerd-operator.local/upgrade";

    /// On a `ClientApp`: the uid of the ClientAppRestore that has created it.
    pub const CREATED_BY: &str = "apps.bnerd-operator.local/created-by-restore";

    /// On a `ClientApp`: the uids of volumes with its data, separated by commas, without which it goes on, as a user confirms.
    pub const WITHOUT_VOLUME: &str = "apps.bnerd-operator.local/without-volume";

    /// On an object that is being deleted: its own uid, by which a user approves that its data are deleted (`DeletionHeld`).
    pub const APPROVED_DELETION: &str = "apps.bnerd-operator.local/approved-deletion";

    /// Requests another attempt now, instead of waiting after a failed one. It names the failed attempt rather than a time, so it
    /// requests exactly one more, even if the clock of the user or the operator is wrong.
    pub const RETRY: &str = "apps.bnerd-operator.local/retry";

    /// The value of [`RETRY`] that repeats this attempt: `startedAt/failures` of `status.lastAttempt`.
    pub fn retry_after(attempt: &Attempt) -> String {
        // Times are stored in whole seconds, and two attempts may start within one second.
        format!("{}/{}", attempt.started_at.0.strftime("%Y-%m-%dT%H:%M:%SZ"), attempt.failures)
    }

    /// The value of [`RETRY`] that repeats these tests: `tests/endedAt/failures` of `status.test`.
    pub fn retest(tested: &Tested) -> String {
        let ended =
            tested.ended_at.as_ref().map_or_else(String::new, |at| at.0.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        format!("tests/{ended}/{}", tested.failures)
    }
}

/// Name of the Lease of the operator's leader.
pub const LEASE: &str = "clientapp-operator";

/// Name of the ServiceAccount that the operator creates in each namespace with a ClientApp, of its RoleBinding, and of the
/// ClusterRole that the RoleBinding grants.
pub const DEPLOYER: &str = "clientapp-deployer";

/// Removed from a `ClientApp` only after its release is verified gone and its database deleted or retained.
pub const FINALIZER: &str = "apps.bnerd-operator.local/teardown";

/// Removed from a `Postgresql` only after its pods are gone and its volumes deleted or retained.
pub const POSTGRESQL_FINALIZER: &str = "apps.bnerd-operator.local/postgresql";

/// Removed from a `ClientAppBackup` or `ClientAppRestore` only after its app has its pods back.
pub const RUN_FINALIZER: &str = "apps.bnerd-operator.local/run";

/// Removed from a `ClientAppBackup` with `reclaim: Delete` only after what it has made is gone.
pub const RECLAIM_FINALIZER: &str = "apps.bnerd-operator.local/reclaim";

/// Removed from a `PostgresWriter` only after its row is deleted.
pub const ROW_FINALIZER: &str = "apps.bnerd-operator.local/row";

/// Keeps Argo CD and Flux from pruning a definition: all objects of the kind go with it.
const KEPT: [(&str, &str); 2] = [
    ("argocd.argoproj.io/sync-options", "Prune=false,Delete=false"),
    ("kustomize.toolkit.fluxcd.io/prune", "disabled"),
];

/// The operator's CustomResourceDefinitions, in the order in which they are printed and applied.
pub fn all() -> Vec<CustomResourceDefinition> {
    let definitions = [
        ClientApp::crd(),
        ClientAppBackup::crd(),
        ClientAppRestore::crd(),
        Profile::crd(),
        PostgresWriter::crd(),
        Postgresql::crd(),
    ];
    definitions.into_iter().map(kept).collect()
}

fn kept(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    let annotations = definition.metadata.annotations.get_or_insert_default();
    annotations.extend(KEPT.map(|(key, value)| (key.to_owned(), value.to_owned())));
    definition
}

#[cfg(test)]
mod tests {
    /// `crds/` is generated by `clientapp-operator crds`; set `UPDATE_GENERATED=1` to regenerate it.
    #[test]
    fn committed_crds_are_up_to_date() {
        for crd in super::all() {
            let plural = &crd.spec.names.plural;
            let path = format!("{}/crds/{plural}.yaml", env!("CARGO_MANIFEST_DIR").trim_end_matches("/src/crd"));
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
