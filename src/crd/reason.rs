//! Every reason of a condition or event, with what it means and what to do about it. **Pure.**
//!
//! `clientapp-operator reasons` prints this table, which is the only reference of reasons.

use std::{borrow::Cow, fmt};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::conditions::{State, Verdict, kind};

/// Says what a reason says about the progress of an object towards its spec.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The desired state is reached.
    Fine,
    /// Progress without intervention; its events are not warnings.
    Progress,
    /// It is retried or continues by itself, but may need attention.
    Trouble,
    /// Nothing happens until a user or a cluster admin changes something.
    Stalled,
    /// Used in events only, not in conditions.
    Event,
    /// Used in metrics and logs only.
    Metric,
    /// The process is not ready, as shown by `/readyz` and the log.
    Readiness,
}

const APP: &[&str] = &["ClientApp"];
const DB: &[&str] = &["Postgresql"];
const ROW: &[&str] = &["PostgresWriter"];
const BOTH: &[&str] = &["ClientApp", "Postgresql"];
const STORES: &[&str] = &["Postgresql", "PostgresWriter"];
const BACKUP: &[&str] = &["ClientAppBackup"];
const RESTORE: &[&str] = &["ClientAppRestore"];
const ALL: &[&str] = &["ClientApp", "ClientAppBackup", "ClientAppRestore", "Postgresql", "PostgresWriter", "Profile"];
const PROFILE: &[&str] = &["Profile"];
const CLASS: &[&str] = &["ClientApp", "Profile"];
const PROCESS: &[&str] = &["the operator"];
/// The condition of a Postgresql about its dumps.
pub const BACKED_UP: &str = "BackedUp";
/// The condition of a ClientApp about the archives of its files.
pub const FILES_BACKED_UP: &str = "FilesBackedUp";

macro_rules! reasons {
    ($($name:ident $kinds:ident $condition:path, $class:ident: $meaning:literal, $remedy:literal;)*) => {
        /// The reason of a condition or event.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "the table has the meaning of each")]
        pub enum Reason { $($name),* }

        impl Reason {
            /// All reasons, sorted by name.
            pub const ALL: &[Reason] = &[$(Reason::$name),*];

            /// The reason as written in objects.
            pub const fn as_str(self) -> &'static str {
                match self { $(Reason::$name => stringify!($name)),* }
            }

            /// The condition that has this reason, besides `Ready`; if there are several, the usual one.
            pub const fn condition(self) -> &'static str {
                match self { $(Reason::$name => $condition),* }
            }

            /// Returns what it says about the object's progress.
            pub const fn class(self) -> Class {
                match self { $(Reason::$name => Class::$class),* }
            }

            /// The kinds that use it.
            pub const fn kinds(self) -> &'static [&'static str] {
                match self { $(Reason::$name => $kinds),* }
            }

            /// Returns what it means.
            pub const fn meaning(self) -> &'static str {
                match self { $(Reason::$name => $meaning),* }
            }

            /// Returns what to do about it.
            pub const fn remedy(self) -> &'static str {
                match self { $(Reason::$name => $remedy),* }
            }
        }
    };
}

reasons! {
    AccessDenied ALL kind::READY, Stalled: "The API server, or the database of PostgresWriters, denies a request; the message names it.",
        "Grant the right; for objects of a chart, `manifests/role-deployer.yaml` explains how.";
    AdminSecretKeyMissing APP kind::RELEASED, Stalled: "The Secret with the administrator's credentials lacks a key.",
            "Add the key; the operator notices at once.";
    AdminSecretLost APP kind::RELEASED, Stalled: "The generated Secret with the administrator's password is gone, and the app knows no other. No new password is generated.",
            "Restore it, or create it with the app's current credentials; the message has the command.";
    AdminSecretMissing APP kind::RELEASED, Stalled: "`spec.adminSecret` names a Secret that does not exist.",
            "Create it; the operator notices at once.";
    ApiUnavailable ALL kind::READY, Trouble: "The API server does not respond.", "Wait; it is retried.";
    Applying DB kind::RECONCILING, Progress: "Objects of the database have been applied and are not ready yet.", "Wait.";
    ArchiveFailed APP FILES_BACKED_UP, Trouble: "An archive of the app's files has failed, or ran longer than `jobs.timeout` allows.", "Follow the message, or check the log of the Job that it names.";
    Archived APP FILES_BACKED_UP, Fine: "The last archive of the app's files is complete.", "Nothing.";
    AwaitingApproval APP kind::RELEASED, Stalled: "`spec.approval` is Manual, and what the spec asks for is not approved.",
        "`kubectl clientapp plan` shows what helm would change; `kubectl clientapp approve` lets it run.";
    AwaitingTurn DB kind::RECONCILING, Progress: "Another version of the operator changes what the servers run, for example a new minor version of PostgreSQL. It serves as before; databases restart one after the other.",
        "Wait; if it takes long, repair or delete the Postgresql in the message, or remove its `status.rollout`. A change of the spec is applied at once.";
    BackingUp APP kind::RELEASED, Progress: "The backup before an upgrade is in progress.", "Wait.";
    BackupCompleted BACKUP kind::READY, Fine: "The backup is complete.", "Nothing.";
    BackupFailed APP kind::RELEASED, Stalled: "The backup before an upgrade has failed, so nothing is upgraded.",
        "Delete it to try again, or set `spec.upgrade.backup` to false.";
    BackupOutdated APP kind::RELEASED, Stalled: "An upgrade has failed, and the backup before it is too old for another attempt.",
        "Check the app; then `kubectl clientapp retry`.";
    BackupPending BACKUP kind::READY, Progress: "The backup waits for another one, or until the database can be backed up; the message says for what.", "Wait.";
    BackupRunning BACKUP kind::READY, Progress: "The backup is in progress.", "Wait.";
    BackupUnsuccessful BACKUP kind::READY, Stalled: "The backup has failed. It is not tried again.", "Follow the message; then create another ClientAppBackup.";
    CertificateExpiring APP kind::CERTIFICATE_READY, Trouble: "The certificate of the hostname expires soon, and nothing has renewed it. Ready stays as it is.",
        "Renew it; with `tls.issuer`, `kubectl describe certificate,certificaterequest` says why cert-manager does not.";
    CertificateInvalid APP kind::CERTIFICATE_READY, Trouble: "The Secret in `tls` has no valid certificate for the hostname: it is for others, has expired, or cannot be read.",
        "Replace it; the operator notices at once. With `tls.issuer`, `kubectl describe certificate,certificaterequest` says what cert-manager does.";
    CertificateMissing APP kind::CERTIFICATE_READY, Trouble: "The Secret in `tls` does not exist or, with `tls.issuer`, cert-manager has not created it within five minutes.",
        "Create it; with `tls.issuer`, `kubectl describe certificate,certificaterequest` says what cert-manager waits for.";
    CertificatePending APP kind::CERTIFICATE_READY, Progress: "The certificate of the hostname has not been issued by cert-manager yet.", "Wait.";
    CertificateValid APP kind::CERTIFICATE_READY, Fine: "There is a valid certificate for the hostname.", "Nothing.";
    ChartDigestChanged APP kind::RELEASED, Stalled: "The content of an installed chart version has changed in the repository.",
        "Find out who changed it; publish the change as a new version.";
    ChartInvalid APP kind::RELEASED, Stalled: "The chart version does not exist or does not render, its archive is not the one in the repository's index, or the API server refuses one of its objects.",
        "Read the error in the message; correct `spec.chartVersion`, `spec.values` or the repository.";
    ChartSignatureInvalid APP kind::RELEASED, Stalled: "The chart is not signed, or not as it is, or not with a key in `--chart-keyring`. Nothing is installed.",
        "Find out who published it; sign it with `helm package --sign` and upload its `.prov`, or add the publisher's key to the keyring.";
    ChartUnavailable APP kind::RELEASED, Trouble: "The chart repository cannot be reached, or refuses the operator.",
            "Wait; it is retried. Check `--chart-repository`, its credentials and the network to it.";
    ClientAppsUnavailable PROCESS kind::READY, Readiness: "The operator cannot list ClientApps.", "Read the API server's error; it is retried. `manifests/` has the required rights.";
    Closing DB kind::READY, Progress: "The Postgresql is being deleted, and clients are disconnected before the last dump.", "Wait.";
    ColumnMissing ROW kind::READY, Stalled: "The table lacks a column.", "Add the column that the message names.";
    Conflict ALL kind::READY, Metric: "Another client has changed an object at the same time.", "Nothing; it is retried.";
    CredentialsChanged APP kind::RELEASED, Event: "A Secret that the app's pods use has other credentials than before; a new revision restarts the pods.", "Nothing.";
    CredentialsInvalid DB kind::READY, Stalled: "The Secret with the password in use is incomplete.", "Follow the message.";
    CredentialsRefused ROW kind::READY, Stalled: "The database rejects the operator's user or password.", "Correct `PSQL_USER` or `PSQL_PASSWORD`.";
    DataKept APP kind::READY, Event: "The ClientApp was deleted, or has moved to another Cluster; the objects in the message were kept.", "Delete them yourself if their data is no longer needed.";
    DataRetained APP kind::RELEASED, Stalled: "An earlier ClientApp of this name, or an earlier database of the name that it would get, has left data. Nothing is created next to it.",
        "Set `spec.postgres.adopt`, rename the ClientApp, or delete the data.";
    DataSourceMissing APP kind::POSTGRES_READY, Stalled: "`spec.postgres.cloudnativepg.cluster` names another Cluster, which does not exist, and nothing says from which backup to create it. The app would begin with an empty database.",
        "Set `cluster` to a new name together with `dataSource`, or set it back.";
    DatabaseBackedUp APP BACKED_UP, Fine: "The last backup of the PerconaPGCluster or Cluster is complete.", "Nothing.";
    DatabaseBackupFailed APP BACKED_UP, Trouble: "The last backup of the PerconaPGCluster or Cluster has failed, or the Cluster cannot archive WAL.", "Follow the message, or check the Job of that backup or the log of the plugin.";
    DatabaseBusy ROW kind::READY, Trouble: "The database did not reach the row in time, for example because another client holds a lock.", "Wait; it is retried, and a deletion waits for it.";
    DatabaseLost APP kind::POSTGRES_READY, Stalled: "The database in use was deleted with its data. No empty one is created in its place.",
        "Name another Cluster in `spec.postgres.cloudnativepg.cluster` with its backup in `dataSource`; or restore it under its name and hand it over with the label in `DatabaseNotOurs` and `spec.postgres.adopt`; or confirm with the command in the message that the app begins with an empty one.";
    DatabaseMissing ROW kind::READY, Stalled: "The server has no such database.", "Create it, or correct `PSQL_DBNAME`.";
    DatabaseNotConfigured ROW kind::READY, Stalled: "The operator has no database for PostgresWriters.", "Set `PSQL_HOST` and the other `PSQL_` variables of the operator.";
    DatabaseNotOurs APP kind::POSTGRES_READY, Stalled: "A database of this name, or what would back it up, belongs to another object.",
        "Rename the ClientApp, remove that database, or hand it over as the message says.";
    DatabaseNotProgressing APP kind::POSTGRES_READY, Trouble: "The database is not ready, and has made no progress for 5 minutes; the message says what was seen last.",
        "Follow the message. See the log of the database's operator, and that the Percona operator is no older than `spec.crVersion` of the PerconaPGCluster.";
    DatabaseStalled APP kind::POSTGRES_READY, Stalled: "The database's own object is stalled; the message is that object's.", "Follow the message.";
    DatabaseUnavailable ROW kind::READY, Trouble: "The database cannot be reached.", "Wait; it is retried, and a deletion waits for it.";
    Deleting BOTH kind::POSTGRES_READY, Progress: "A database of this name, or the object itself, is being deleted.", "Wait.";
    DeletingDatabase APP kind::READY, Progress: "The ClientApp is being deleted, and waits until its database is gone.",
        "Wait; for a PerconaPGCluster, the Percona operator must be running.";
    DeletingSecrets APP kind::READY, Progress: "The ClientApp is being deleted, and waits until its Secrets are gone.", "Wait.";
    DeletingVolumes APP kind::READY, Progress: "The ClientApp is being deleted, and waits until its volumes are gone.", "Wait until the pods that use them have ended.";
    DeletionHeld BOTH kind::READY, Stalled: "The object is being deleted with its data, as are many others, or the definition of its kind: nothing of it is deleted yet.",
        "If it is meant to go, `kubectl clientapp approve-deletions`, or the command in the message; to keep its data, set `spec.deletionPolicy` to Retain.";
    DependencyCircle APP kind::RELEASED, Stalled: "ClientApps wait for each other by `spec.dependsOn`.", "Remove one of them from the field.";
    DependencyMissing APP kind::POSTGRES_READY, Stalled: "The cluster does not have the kind that provides the database, or a kind that backs it up.",
        "Install the Percona Operator for PostgreSQL, CloudNativePG or its plugin barman-cloud, or apply `crds/`.";
    DependencyNotReady APP kind::RELEASED, Progress: "An object that `spec.dependsOn` names is not Ready.", "Wait; the message says why it is not.";
    Deployed APP kind::RELEASED, Fine: "The release is deployed as the spec requests.", "Nothing.";
    DeployerNotOurs APP kind::RELEASED, Stalled: "A RoleBinding `clientapp-deployer` binds something other than the account that helm acts as. It is not overwritten.",
        "Delete it, so that the operator recreates it; or name an account of your own in `spec.serviceAccountName`.";
    DeployerReplaced APP kind::RELEASED, Event: "The ServiceAccount `clientapp-deployer` or its RoleBinding was missing in the namespace and was recreated.", "Do not delete them: helm needs both.";
    Disabled APP kind::POSTGRES_READY, Fine: "The spec requests no database.", "Nothing.";
    DowngradeRefused APP kind::RELEASED, Stalled: "The chart's app is older than the installed one; migrated data cannot be migrated back.", "Follow the steps in the message.";
    Drifted APP kind::RELEASED, Trouble: "Another client has deleted or edited an object of the release, or removed Helm's marks from it.",
            "With `spec.drift: Repair` it is recreated; if this happens repeatedly, find that client. Otherwise recreate it, or set `Repair`.";
    DrillFailed BOTH BACKED_UP, Trouble: "A drill could not restore the latest dump.", "Follow the message, and take another dump: the latest one may be unusable.";
    DumpFailed BOTH BACKED_UP, Trouble: "A dump has failed, or ran longer than `jobs.timeout` allows; or it is on its volume, but could not be uploaded to the store.", "Follow the message, or check the log of the Job that it names.";
    Dumped BOTH BACKED_UP, Fine: "The last dump is complete.", "Nothing.";
    Dumping DB kind::READY, Progress: "The Postgresql is being deleted, and the last dump is in progress.", "Wait.";
    DumpsMissing DB kind::READY, Stalled: "The volume with dumps in `spec.restore` does not exist, or is not intended for this database.", "Follow the message; the operator notices within a minute.";
    ExpansionNotAllowed DB kind::READY, Stalled: "The StorageClass does not allow volume expansion.", "Set the size back, or set `allowVolumeExpansion` in the StorageClass.";
    ExternalOperationInProgress APP kind::RELEASED, Trouble: "Another Helm client, or another process of the operator, is working on the release.",
        "Wait. If that helm has died: `helm rollback`, or `helm uninstall` if nothing was ever deployed.";
    FetchingChart APP kind::RELEASED, Progress: "The chart is being fetched.", "Wait.";
    Gone BOTH kind::READY, Metric: "The object was deleted without its finalizer during a reconcile.", "Nothing.";
    Growing DB kind::READY, Progress: "The volume is growing.", "Wait.";
    HelmUnavailable APP kind::RELEASED, Trouble: "helm cannot be run; `/readyz` reports it too.", "Check the image, or `--helm`.";
    HostnameConflict APP kind::RELEASED, Stalled: "Another ClientApp has the hostname.", "Choose another hostname, or delete that ClientApp.";
    InitializationFailed DB kind::READY, Stalled: "The Job that creates the database has failed.", "Check its log; delete it to try again.";
    InlinePassword DB kind::READY, Event: "The spec contains a password in clear text, visible to every user who may read the object.", "Put it into a Secret, and name that in `spec.passwordSecret`.";
    InternalError ALL kind::READY, Stalled: "A reconcile of this object panicked: a bug in the operator. Other objects are not affected.",
            "Report it, with the operator's log. It is retried.";
    InvalidSpec ALL kind::READY, Stalled: "A field is invalid; the message begins with its name.", "Correct it.";
    InventoryUnknown APP kind::WORKLOADS_READY, Trouble: "Helm's record of the release cannot be read, so it is unknown whether all of its objects exist.",
        "Check Helm's Secret; the next revision stores a new record.";
    LabelledForPercona APP kind::READY, Stalled: "The ClientApp is being deleted, and an object that the Percona operator has not created has the label by which that operator deletes.",
        "Remove the label from the object that the message names, or delete the object.";
    LastDumpFailed DB kind::READY, Stalled: "The Postgresql is being deleted, and its last dump has failed; nothing is deleted before it succeeds.",
        "Check the Job; delete it to try again, or set `spec.backup.onDelete` to false.";
    LeaseUnavailable PROCESS kind::READY, Readiness: "The operator cannot read or create its Lease.", "Read the API server's error; it is retried. `manifests/role-lease.yaml` has the required rights.";
    LedgerMissing ROW kind::READY, Stalled: "The database lacks the table that records the owner of each row, and the operator may not create it.", "Have the database admin run the SQL in the message.";
    LedgerUnfit ROW kind::READY, Stalled: "The table that records the owner of each row has other columns.", "Have the database admin do what the message says.";
    MajorSkipRefused APP kind::RELEASED, Stalled: "The chart's app is more than one major version ahead of the installed one.", "Follow the steps in the message.";
    NamespaceKept APP kind::READY, Event: "The namespace that was created for the ClientApp is kept, because of the objects in the message.", "Delete it yourself if it is no longer needed.";
    NamespaceTerminating APP kind::READY, Trouble: "The namespace is being deleted.", "Wait.";
    NoArchive APP FILES_BACKED_UP, Progress: "There is no archive of the app's files yet.", "Wait for the schedule, or `kubectl clientapp backup`.";
    NoDatabaseBackup APP BACKED_UP, Progress: "There is no backup of the PerconaPGCluster or Cluster yet.", "Wait for the schedule.";
    NoDump BOTH BACKED_UP, Progress: "There is no dump yet.", "Wait for the schedule.";
    NoRelease APP kind::WORKLOADS_READY, Progress: "Nothing is released yet.", "Check the other conditions.";
    NoVolume APP FILES_BACKED_UP, Stalled: "`spec.persistence.backup` is set, and the release has no volume with files of the app.", "Enable `spec.persistence`, or remove `backup`.";
    NotChecked APP kind::POSTGRES_READY, Progress: "Not checked yet, because an earlier step is blocked.", "Check `Ready`.";
    NotLeading STORES kind::READY, Metric: "This process lost its lease during a reconcile.", "Nothing: the new leader continues.";
    NotOurs BOTH kind::READY, Stalled: "An object with a name that the database needs belongs to something else. It is not taken over.",
        "Rename one of them, or hand the object over as the message says.";
    NotReady BOTH kind::WORKLOADS_READY, Progress: "Pods are not ready; the message names them.", "`kubectl describe` them.";
    NotReporting APP kind::POSTGRES_READY, Trouble: "The database's status is not updated.", "Make sure that the database's operator is running and watches this namespace (Percona's with `watchAllNamespaces`).";
    NotStalled ALL kind::STALLED, Fine: "No manual action is known to be required.", "Nothing; `Ready` says what is waited for.";
    OperatorImageUnknown BOTH kind::READY, Stalled: "Dumps and archives are uploaded with the operator's own image, which the operator does not know. Dumps are kept on their volume only; files are not archived.",
        "Set `CLIENTAPP_POD_NAME` as `manifests/deployment.yaml` does, or `CLIENTAPP_IMAGE`.";
    Overdue BOTH BACKED_UP, Trouble: "Two backups, dumps, archives or drills in a row that were due were not completed.", "Follow the message; check `Ready`, and the Jobs in the namespace.";
    PasswordChanged DB kind::READY, Stalled: "The given password is no longer the one in use.", "Change it in the database as the message says.";
    PasswordInvalid DB kind::READY, Stalled: "The given password cannot be used.", "Correct it; the operator notices at once.";
    PasswordSecretKeyMissing DB kind::READY, Stalled: "The Secret with the given password lacks its key.", "Add the key; the operator notices at once.";
    PasswordSecretMissing DB kind::READY, Stalled: "`spec.passwordSecret` names a Secret that does not exist.", "Create it; the operator notices at once.";
    Pending APP kind::RELEASED, Progress: "helm is about to run.", "Wait.";
    PodUnavailable PROCESS kind::READY, Readiness: "The operator cannot read its own pod, whose image it needs for the Jobs that dump.", "Wait; it is retried.";
    ProfileInvalid CLASS kind::READY, Stalled: "The Profile sets a key that the operator computes or an invalid size, or its rollout names a revision or a canary that cannot be; the message names it.", "Correct the Profile.";
    ProfileMissing APP kind::READY, Stalled: "`spec.profile` names a Profile that does not exist.", "Create it, or name another; the operator notices at once.";
    ProgressDeadlineExceeded APP kind::WORKLOADS_READY, Stalled: "A Deployment of the release no longer makes progress; the message says why its pods are not ready.", "Follow the message; the operator notices the next change of the spec or the pods.";
    Provisioning BOTH kind::POSTGRES_READY, Progress: "The database is being created.", "Wait; if it takes long, `kubectl describe` it.";
    QuotaExceeded BOTH kind::READY, Stalled: "A quota of the namespace refuses an object.", "Raise it.";
    ReadOnly ROW kind::READY, Stalled: "The database is read-only.", "Make it writable, or name the primary in `PSQL_HOST`.";
    Ready ALL kind::READY, Fine: "It is ready.", "Nothing.";
    ReclaimFailed BACKUP kind::READY, Stalled: "The ClientAppBackup is being deleted with `spec.reclaim: Delete`, and what it has made could not be deleted.",
        "Follow the message; or set `spec.reclaim` to Retain: then the object goes, and what it has made stays.";
    Reclaiming BACKUP kind::READY, Progress: "The ClientAppBackup is being deleted, and what it has made goes first.", "Wait.";
    RedisSecretKeyMissing APP kind::RELEASED, Stalled: "A Secret that the operator did not create has the name of the generated Redis Secret, and lacks its key.",
        "Complete it, or delete it, and one is generated; that is noticed at once.";
    Refused BOTH kind::READY, Stalled: "The API server refuses an object.", "Read its error in the message.";
    ReleaseDrifted APP kind::RELEASED, Event: "Another Helm client has changed or uninstalled the release; the operator upgrades it to what the spec requests.", "Stop that client from changing the release.";
    ReleaseNotOurs APP kind::RELEASED, Stalled: "A Helm release of this name existed before. It is not taken over.", "`helm uninstall` it, or rename the ClientApp.";
    ReleaseUnreadable APP kind::READY, Stalled: "The ClientApp is being deleted, and no record says which objects its release has.",
        "Restore Helm's Secret, or delete the release's objects by hand and then the Secret.";
    Replacing DB kind::READY, Progress: "An object that cannot be changed in place is deleted and recreated.", "Wait.";
    RepositoryMismatch APP kind::POSTGRES_READY, Stalled: "The backups of the database are in a repository other than the one in the spec. Neither is touched.",
        "Name the repository that the message names in `spec.postgres.percona.repository` or `spec.postgres.backup.store`.";
    RepositoryPasswordGenerated BOTH BACKED_UP, Event: "The operator has generated the password of a restic repository.", "Keep a copy of the Secret in the message outside this cluster: nobody can read the backups without it.";
    RepositoryPasswordLost BOTH BACKED_UP, Trouble: "The Secret with the password of the restic repository is gone. No other password is generated, because the backups would stay unreadable.",
        "Create the Secret again from your copy.";
    RestoreCompleted RESTORE kind::READY, Fine: "The restore is complete.", "Nothing.";
    RestoreFailed DB kind::READY, Stalled: "The dump could not be restored. The dumps are unchanged, and no database was created.", "Follow the message.";
    RestorePending RESTORE kind::READY, Progress: "The restore has not begun; the message says what it waits for.", "Wait.";
    RestoreRunning RESTORE kind::READY, Progress: "The restore is in progress.", "Wait.";
    RestoreUnsuccessful RESTORE kind::READY, Stalled: "The restore has failed. It is not tried again.", "Follow the message; then create another ClientAppRestore.";
    Restored DB kind::READY, Event: "The database was created from a dump, or replaced by one.", "Nothing.";
    Restoring BOTH kind::POSTGRES_READY, Progress: "A dump is being restored, into a new database or beside the present one, or a backup is.", "Wait.";
    RetainUnsafe APP kind::READY, Stalled: "The ClientApp is being deleted, and uninstalling its release would delete a volume that must be kept: under `Retain`, or because it is not recorded as its own.",
        "Set `spec.deletionPolicy` to Delete, or delete again with `--cascade=orphan`; or delete that volume, if its data is no longer needed.";
    Retained DB kind::READY, Event: "The Postgresql was deleted; the objects in the message were kept.", "Hand them over to a new Postgresql, or delete them yourself.";
    RevisionsUnavailable PROCESS kind::READY, Readiness: "The operator cannot list the revisions of Profiles in its namespace.", "Read the API server's error; it is retried. `manifests/role-lease.yaml` has the required rights.";
    RolledBack APP kind::RELEASED, Stalled: "A revision has failed, and `spec.upgrade.onFailure` is Rollback: the release is as it was when it was last Ready.", "Correct the spec, or ask for another attempt with `kubectl clientapp retry`.";
    RolledOut PROFILE kind::READY, Fine: "All ClientApps that count have the Profile's revision.", "Nothing.";
    RollingBack APP kind::RELEASED, Progress: "A revision has failed, and the release goes back to the last one that was Ready.", "Wait.";
    RollingOut PROFILE kind::READY, Progress: "A revision of the Profile is on its way to the ClientApps, wave by wave; the message says what the next wave waits for.", "Wait.";
    RolloutPaused PROFILE kind::READY, Progress: "`spec.rollout.paused` is true: no further ClientApp gets the revision.", "Set it to false.";
    RolloutStopped PROFILE kind::READY, Stalled: "ClientApps have failed with the Profile's revision, as many as `spec.rollout.stopAtFailures`. No further one gets it.",
        "See those in `status.rollout.failed`, and in `unhealthy` what their answers lack. Correct the Profile, which makes another revision, or go back by `spec.rollout.revision`; the rollout goes on once fewer have failed.";
    RowDrifted ROW kind::READY, Event: "Another client of the database has changed or deleted the row; the operator restores it.", "Stop that client from changing the row.";
    RowNotOurs ROW kind::READY, Stalled: "According to the operator's table `clientapp_operator_rows`, the row with this id does not belong to this cluster.", "Delete the row and its entry there, or delete the object.";
    RowRefused ROW kind::READY, Stalled: "A constraint, trigger or policy of the table refuses the row.", "Correct the spec, or what the message names.";
    SecretKeyMissing APP kind::POSTGRES_READY, Stalled: "The Secret with the database's credentials lacks a key.", "Add it to the Secret in `spec.postgres.external`; otherwise check the log of the database's operator.";
    SecretLost DB kind::READY, Stalled: "The Secret with the password in use is gone.", "Follow the message.";
    SecretMissing APP kind::POSTGRES_READY, Stalled: "The Secret with the database's credentials does not exist.", "Create the one in `spec.postgres.external`; otherwise check the log of the database's operator.";
    SecretNotOurs APP kind::RELEASED, Trouble: "A Secret with a name that the operator generates belongs to another object.", "Wait if it is being deleted; otherwise rename one of them.";
    ServerFails DB kind::READY, Trouble: "The server exits and is restarted repeatedly; the message has the last line of its log.",
        "If the cause is `spec.parameters` or `spec.resources`, correct them: the pod is replaced at once.";
    Settled BOTH kind::RECONCILING, Fine: "Everything that the spec requests is done.", "Nothing.";
    Shutdown APP kind::READY, Metric: "The operator is stopping.", "Nothing.";
    StandbysNotReady DB kind::READY, Progress: "The primary serves, and a standby is not ready yet.", "Wait; if it takes long, `kubectl describe` its pod.";
    Stopping DB kind::READY, Progress: "The Postgresql is being deleted, and waits until its servers have ended.", "Wait.";
    StorageClassMismatch APP kind::POSTGRES_READY, Stalled: "`postgres.storageClassName` is not the class of the database's volume, and data is not moved.", "Set the field to the class that the message names.";
    StorageShrink APP kind::POSTGRES_READY, Stalled: "`storageSize` is below the volume's size, and a volume never shrinks.", "Set the field back.";
    Suspended APP kind::RECONCILING, Progress: "`spec.suspend` is true: nothing is changed or deleted.", "Set it to false.";
    TableMissing ROW kind::READY, Stalled: "The table does not exist.", "Create it; the message says how.";
    TableNotAllowed ROW kind::READY, Stalled: "Objects in this namespace may not use this table.", "Use one of the tables in the message, or add this one to `PSQL_TABLES` of the operator.";
    TableUnfit ROW kind::READY, Stalled: "The table's columns do not fit.", "The message says what to change.";
    TestFailed APP kind::TESTED, Trouble: "Helm's tests of the revision have failed, or cannot be run.",
        "Follow the message; they are repeated at intervals of up to 10 minutes, and at once with `kubectl clientapp retry`.";
    Testing APP kind::TESTED, Progress: "The revision is being tested, or will be once its workloads are ready.", "Wait.";
    TestsPassed APP kind::TESTED, Fine: "The revision has passed Helm's tests.", "Nothing.";
    Timeout APP kind::RELEASED, Trouble: "helm took too long, or lost the connection to the API server.", "Wait; it is retried at intervals of up to 10 minutes.";
    Uninstalling APP kind::READY, Progress: "The ClientApp is being deleted, and its release is being uninstalled.", "Wait.";
    UnlockFailed APP kind::RELEASED, Stalled: "A revision that a dead helm process has left pending cannot be marked as failed.", "Read the message; `helm rollback` has the same effect.";
    UpgradeFailed APP kind::RELEASED, Trouble: "helm has failed.", "Read helm's error in the message. It is retried at intervals of up to 10 minutes.";
    Upgrading APP kind::RELEASED, Progress: "helm is running, or waiting for its turn.", "Wait.";
    ValuesChanged APP kind::RELEASED, Event: "An object that `spec.valuesFrom` refers to has other values than before; the release gets a new revision.", "Nothing.";
    ValuesInvalid APP kind::READY, Stalled: "What `spec.valuesFrom` refers to cannot be used as values; the message names object and key, but never a value of a Secret.", "Correct the object; the operator notices at once.";
    ValuesMissing APP kind::RELEASED, Stalled: "An object or key that `spec.valuesFrom` refers to does not exist.", "Create it; the operator notices at once.";
    VersionMismatch BOTH kind::POSTGRES_READY, Stalled: "The major version of the database, or of its volume, is not the requested one.",
        "Set the field back, or follow the steps in the message.";
    VolumeDropped APP kind::RELEASED, Stalled: "What the spec or the chart version asks for has no place for a volume with the app's data, for example because it has another name there. helm has changed nothing.",
        "Correct `spec.values`, `spec.persistence` or `spec.chartVersion`; or confirm, with the command in the message, that the app goes on without that volume.";
    VolumeGoing BOTH kind::READY, Stalled: "The volume is being deleted: it is gone as soon as no pod uses it.", "Copy the data elsewhere before its pod ends.";
    VolumeLost BOTH kind::READY, Stalled: "The volume with the database, or with the app's data, is gone, was replaced by another, or is empty.",
        "Restore it, or accept, as the message says, what is there now. A database: create a ClientAppRestore. An app's files: the same, once you have confirmed and helm has made an empty volume.";
    Waiting APP kind::RELEASED, Progress: "The release waits for something that another condition describes.", "Check the other conditions.";
}

impl Reason {
    /// Returns true if nothing happens until a user or a cluster admin changes something.
    pub const fn stalled(self) -> bool {
        matches!(self.class(), Class::Stalled)
    }

    /// The reason of this name.
    pub fn parse(text: &str) -> Option<Reason> {
        Reason::ALL.iter().find(|reason| reason.as_str() == text).copied()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl From<Reason> for Cow<'static, str> {
    fn from(reason: Reason) -> Self {
        reason.as_str().into()
    }
}

impl From<Reason> for String {
    fn from(reason: Reason) -> Self {
        reason.as_str().to_owned()
    }
}

impl PartialEq<Reason> for String {
    fn eq(&self, reason: &Reason) -> bool {
        self == reason.as_str()
    }
}

/// Returns true if a condition deserves a warning: it does not hold, and its reason is not just progress.
pub fn is_trouble(condition: &Condition) -> bool {
    let class = Reason::parse(&condition.reason).map(Reason::class);
    condition.status != "True" && class != Some(Class::Progress)
}

impl Verdict {
    /// Returns what `Stalled` says beside `Ready`, of an object that needs no user as far as is known. A pod whose image does not exist
    /// waits as one does whose registry is down.
    pub fn not_stalled(ready: &Verdict) -> Self {
        let message = match ready.state {
            State::True => "no manual action is required",
            State::False | State::Unknown => "no manual action is known to be required; Ready says what is waited for",
        };
        Verdict::no(Reason::NotStalled, message)
    }

    /// Returns `Ready` and, beside it, `Stalled` of an object without further conditions.
    pub fn ready_and_stalled(
        self,
        is_stalled: bool,
        previous: &[Condition],
        generation: Option<i64>,
        now: Timestamp,
    ) -> Vec<Condition> {
        let stalled = if is_stalled { self.that(true) } else { Verdict::not_stalled(&self) };
        let verdicts = [(kind::READY, self), (kind::STALLED, stalled)];
        verdicts.map(|(type_, verdict)| verdict.into_condition(type_, previous, generation, now)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reference_is_in_order_and_complete() {
        assert!(Reason::ALL.is_sorted_by(|a, b| a.as_str() < b.as_str()));
        for reason in Reason::ALL {
            for text in [reason.meaning(), reason.remedy()] {
                assert!(
                    text.ends_with('.')
                        && text.starts_with(|c: char| c.is_uppercase() || c == '`' || text.starts_with("helm")),
                    "{reason}: {text}"
                );
            }
            assert_eq!(Reason::parse(reason.as_str()), Some(*reason));
        }
        assert_eq!(Reason::parse("ready"), None);
    }
}
