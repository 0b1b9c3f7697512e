//! Every reason of a condition or event, with what it means and what to do about it. **Pure.**
//!
//! `clientapp-operator reasons` prints this table; it is the reference of reasons, and there is no other.

use std::{borrow::Cow, fmt};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::conditions::kind;

/// What a reason says of the object's way to what its spec asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// All is well.
    Fine,
    /// It goes on by itself; an event about it is none to worry about.
    Progress,
    /// It is tried again, or goes on by itself, but a look may be due.
    Trouble,
    /// Nothing goes on until a user or a cluster admin changes something.
    Stalled,
    /// An event, no condition.
    Event,
    /// Seen in metrics and logs only.
    Metric,
    /// Why a process is not ready to work, as `/readyz` and the log say.
    Readiness,
}

const APP: &[&str] = &["ClientApp"];
const DB: &[&str] = &["Postgresql"];
const ROW: &[&str] = &["PostgresWriter"];
const BOTH: &[&str] = &["ClientApp", "Postgresql"];
const STORES: &[&str] = &["Postgresql", "PostgresWriter"];
const ALL: &[&str] = &["ClientApp", "Postgresql", "PostgresWriter"];
const PROCESS: &[&str] = &["the operator"];
/// The condition of a Postgresql that tells of its dumps.
pub const BACKED_UP: &str = "BackedUp";

macro_rules! reasons {
    ($($name:ident $kinds:ident $condition:path, $class:ident: $meaning:literal, $remedy:literal;)*) => {
        /// Why a condition is what it is, or what an event is about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(missing_docs, reason = "each has its meaning in the table")]
        pub enum Reason { $($name),* }

        impl Reason {
            /// All of them, in the order of their names.
            pub const ALL: &[Reason] = &[$(Reason::$name),*];

            /// The word in the object.
            pub const fn as_str(self) -> &'static str {
                match self { $(Reason::$name => stringify!($name)),* }
            }

            /// The condition that it stands in, besides `Ready`; where a reason can stand in several, the usual one.
            pub const fn condition(self) -> &'static str {
                match self { $(Reason::$name => $condition),* }
            }

            /// What it says of the object's way.
            pub const fn class(self) -> Class {
                match self { $(Reason::$name => Class::$class),* }
            }

            /// The kinds that have it.
            pub const fn kinds(self) -> &'static [&'static str] {
                match self { $(Reason::$name => $kinds),* }
            }

            /// What it means.
            pub const fn meaning(self) -> &'static str {
                match self { $(Reason::$name => $meaning),* }
            }

            /// What to do about it.
            pub const fn remedy(self) -> &'static str {
                match self { $(Reason::$name => $remedy),* }
            }
        }
    };
}

reasons! {
    AccessDenied ALL kind::READY, Stalled: "The API server, or the database of PostgresWriters, forbids something; the message names what.",
        "Grant it; for what a chart makes, `manifests/role-deployer.yaml` says how.";
    AdminSecretKeyMissing APP kind::RELEASED, Stalled: "The Secret with the administrator's credentials lacks a key.",
        "Complete it; that is noticed at once.";
    AdminSecretLost APP kind::RELEASED, Stalled: "The generated Secret with the administrator's password is gone, and the app knows no other. No new password is generated.",
        "Restore it, or create it with the credentials that the app has; the message has the command.";
    AdminSecretMissing APP kind::RELEASED, Stalled: "`spec.adminSecret` names a Secret that does not exist.",
        "Create it; that is noticed at once.";
    ApiUnavailable ALL kind::READY, Trouble: "The API server does not answer.", "It is tried again.";
    Applying DB kind::RECONCILING, Progress: "Objects of the database have been applied and are not ready yet.", "Wait.";
    BackingUp APP kind::RELEASED, Progress: "The backup before an upgrade is being taken.", "Wait.";
    BackupFailed APP kind::RELEASED, Stalled: "The backup before an upgrade has failed, and nothing is upgraded.",
        "Delete it for another try, or set `spec.upgrade.backup` to false.";
    BackupOutdated APP kind::RELEASED, Stalled: "An upgrade has failed, and the backup before it is too old for another try.",
        "Look at the app; then `kubectl clientapp retry`.";
    ChartDigestChanged APP kind::RELEASED, Stalled: "The repository has other content under an installed version.",
        "Find out who changed it; publish the change under a new version.";
    ChartInvalid APP kind::RELEASED, Stalled: "There is no such version, or it does not render, or the API server refuses an object of it.",
        "Read helm's sentence; correct `spec.chartVersion` or `spec.values`.";
    ChartUnavailable APP kind::RELEASED, Trouble: "The chart repository cannot be reached.",
        "It is tried again. Check `--chart-repository` and the network to it.";
    ClientAppsUnavailable PROCESS kind::READY, Readiness: "The operator cannot list ClientApps.", "Read the API server's sentence; it is tried again. `manifests/` has the rights.";
    Closing DB kind::READY, Progress: "The database is deleted, and clients are kept out before the last dump.", "Wait.";
    ColumnMissing ROW kind::READY, Stalled: "The table lacks a column.", "Add it; the message names it.";
    Conflict ALL kind::READY, Metric: "Another client has changed an object at the same moment.", "It is tried again.";
    CredentialsInvalid DB kind::READY, Stalled: "The Secret with the password in use is incomplete.", "Follow the message.";
    CredentialsRefused ROW kind::READY, Stalled: "The database refuses the operator's user or password.", "Correct `PSQL_USER` or `PSQL_PASSWORD`.";
    DataKept APP kind::READY, Event: "The ClientApp is deleted, and what the message names is not.", "Delete it by hand if its data may go.";
    DataRetained APP kind::RELEASED, Stalled: "An earlier ClientApp of this name, or a database that it would get, has left data. Nothing is made beside them.",
        "Set `spec.postgres.adopt`, or rename the ClientApp, or delete the data.";
    DatabaseBusy ROW kind::READY, Trouble: "The database did not get to the row in time, as when another client holds a lock.", "It is tried again; a deletion waits for it.";
    DatabaseMissing ROW kind::READY, Stalled: "The server has no such database.", "Create it, or correct `PSQL_DBNAME`.";
    DatabaseNotConfigured ROW kind::READY, Stalled: "The operator has no database for PostgresWriters.", "Set `PSQL_HOST` and the other `PSQL_` variables of the operator.";
    DatabaseNotOurs APP kind::POSTGRES_READY, Stalled: "A database of this name belongs to something else.",
        "Rename the ClientApp, or remove that database, or hand it over as the message says.";
    DatabaseStalled APP kind::POSTGRES_READY, Stalled: "The database's own object is stalled; the message is its own.", "Follow the message.";
    DatabaseUnavailable ROW kind::READY, Trouble: "The database cannot be reached.", "It is tried again; a deletion waits for it.";
    Deleting BOTH kind::POSTGRES_READY, Progress: "A database of this name, or the object itself, is being deleted.", "Wait.";
    DeletingDatabase APP kind::READY, Progress: "The ClientApp is deleted, and waits for its database to be gone.",
        "Wait; for a PerconaPGCluster the Percona operator has to run.";
    DeletingSecrets APP kind::READY, Progress: "The ClientApp is deleted, and waits for its Secrets to be gone.", "Wait.";
    DeletingVolumes APP kind::READY, Progress: "The ClientApp is deleted, and waits for its volumes to be gone.", "Wait for the pods that use them to end.";
    DependencyMissing APP kind::POSTGRES_READY, Stalled: "The cluster lacks the kind that the database is made from.",
        "Install the Percona Operator for PostgreSQL, or apply `crds/`.";
    Deployed APP kind::RELEASED, Fine: "The release is deployed as the spec asks.", "Nothing.";
    DeployerNotOurs APP kind::RELEASED, Stalled: "A RoleBinding `clientapp-deployer` binds something else than the account that helm acts as. It is not overwritten.",
        "Delete it, and it is made as it has to be; or name an account of your own in `spec.serviceAccountName`.";
    DeployerReplaced APP kind::RELEASED, Event: "The ServiceAccount `clientapp-deployer` or its RoleBinding was missing in the namespace, and is recreated.", "Leave both there: helm acts by them.";
    Disabled APP kind::POSTGRES_READY, Fine: "The spec asks for no database.", "Nothing.";
    DowngradeRefused APP kind::RELEASED, Stalled: "The chart's app is older than the installed one; migrated data cannot be migrated back.", "Take the way in the message.";
    Drifted APP kind::RELEASED, Trouble: "Another client has deleted an object of the release, or removed Helm's marks from it.",
        "With `spec.drift: Repair` it is recreated: find the client, if that goes on. Else recreate it, or set that.";
    DrillFailed DB BACKED_UP, Trouble: "The latest dump could not be restored when that was tried.", "Follow the message, and make another dump: the newest is in doubt.";
    DumpFailed DB BACKED_UP, Trouble: "A dump has failed, or has hung for six hours; or it is on its volume, and could not be uploaded to the store.", "Do what the message says, or look at the log of the Job that is named.";
    Dumped DB BACKED_UP, Fine: "The last dump is complete.", "Nothing.";
    Dumping DB kind::READY, Progress: "The database is deleted, and the last dump is made.", "Wait.";
    DumpsMissing DB kind::READY, Stalled: "The volume with dumps that `spec.restore` names is not there, or not meant for this database.", "Follow the message; that is noticed within a minute.";
    ExpansionNotAllowed DB kind::READY, Stalled: "The StorageClass cannot grow volumes.", "Set the size back, or let the StorageClass grow them.";
    ExternalOperationInProgress APP kind::RELEASED, Trouble: "Another Helm client, or another process of the operator, is at work on the release.",
        "Wait. If that helm is dead: `helm rollback`, or `helm uninstall` if nothing was ever deployed.";
    FetchingChart APP kind::RELEASED, Progress: "The chart is fetched.", "Wait.";
    Gone BOTH kind::READY, Metric: "The object was deleted without its finalizer while the operator was at it.", "Nothing.";
    Growing DB kind::READY, Progress: "The volume grows.", "Wait.";
    HelmUnavailable APP kind::RELEASED, Trouble: "helm cannot be run; `/readyz` says so too.", "Check the image, or `--helm`.";
    HostnameConflict APP kind::RELEASED, Stalled: "Another ClientApp has the hostname.", "Choose another, or delete that one.";
    InitializationFailed DB kind::READY, Stalled: "The Job that makes the database has failed.", "Look at its log; delete it for another try.";
    InlinePassword DB kind::READY, Event: "The spec has a password in clear text, for every user who may read the object.", "Put it into a Secret, and name that in `spec.passwordSecret`.";
    InternalError ALL kind::READY, Stalled: "A reconcile of this object panicked: a bug in the operator. Other objects are not affected.",
        "It is tried again. Report it, with the operator's log.";
    InvalidSpec ALL kind::READY, Stalled: "A field cannot be carried out; the message begins with it.", "Correct it.";
    InventoryUnknown APP kind::WORKLOADS_READY, Trouble: "What Helm stored of the release cannot be read; whether all of it is there is not known.",
        "Look at Helm's Secret; the next revision stores it anew.";
    KindMissing PROCESS kind::READY, Readiness: "The cluster does not know the kind ClientApp.", "Apply `crds/`; that is noticed within seconds.";
    LabelledForPercona APP kind::READY, Stalled: "The ClientApp is deleted, and an object that the Percona operator has not made has the label by which it deletes.",
        "Take the label off, or delete the object; the message names it.";
    LastDumpFailed DB kind::READY, Stalled: "The database is deleted, and its last dump has failed; nothing is deleted before it succeeds.",
        "Look at the Job; delete it for another try, or set `spec.backup.onDelete` to false.";
    LeaseUnavailable PROCESS kind::READY, Readiness: "The operator cannot read or create its Lease.", "Read the API server's sentence; it is tried again. `manifests/role-lease.yaml` has the rights.";
    LedgerMissing ROW kind::READY, Stalled: "The database lacks the table that says whose each row is, and the operator may not create it.", "Have the database admin run the SQL in the message.";
    LedgerUnfit ROW kind::READY, Stalled: "The table that says whose each row is has other columns.", "Have the database admin do what the message says.";
    MajorSkipRefused APP kind::RELEASED, Stalled: "The chart's app is more than one major version ahead of the installed one.", "Take the way in the message.";
    NamespaceKept APP kind::READY, Event: "The namespace that was made for the ClientApp stays, for what the message names.", "Delete it by hand if it may go.";
    NamespaceTerminating APP kind::READY, Trouble: "The namespace is being deleted.", "Wait.";
    NoDump DB BACKED_UP, Progress: "There is no dump yet.", "Wait for the schedule.";
    NoRelease APP kind::WORKLOADS_READY, Progress: "Nothing is released yet.", "Look at the other conditions.";
    NotChecked APP kind::POSTGRES_READY, Progress: "Not checked yet: something before it is blocked.", "Look at `Ready`.";
    NotLeading STORES kind::READY, Metric: "This process lost its lease in the middle of a reconcile.", "Nothing: the leader goes on.";
    NotOurs DB kind::READY, Stalled: "An object of a name that the database needs belongs to something else, and is not taken over.",
        "Rename one of them, or hand it over as the message says.";
    NotReady BOTH kind::WORKLOADS_READY, Progress: "Pods are not ready; the message names them.", "`kubectl describe` them.";
    NotReporting APP kind::POSTGRES_READY, Trouble: "The database gets no status.", "See that the Percona operator runs and watches this namespace (`watchAllNamespaces`).";
    NotStalled ALL kind::STALLED, Fine: "No manual action is required.", "Nothing.";
    OperatorImageUnknown DB kind::READY, Stalled: "Dumps are to be uploaded by the operator's own image, and the operator does not know which that is; they go to their volume only.",
        "Set `CLIENTAPP_POD_NAME` as `manifests/deployment.yaml` does, or `CLIENTAPP_IMAGE`.";
    PasswordChanged DB kind::READY, Stalled: "The given password is no longer the one in use.", "The message says how to change it in the database.";
    PasswordInvalid DB kind::READY, Stalled: "The given password cannot be used.", "Correct it; that is noticed at once.";
    PasswordSecretKeyMissing DB kind::READY, Stalled: "The Secret with the given password lacks its key.", "Complete it; that is noticed at once.";
    PasswordSecretMissing DB kind::READY, Stalled: "`spec.passwordSecret` names a Secret that does not exist.", "Create it; that is noticed at once.";
    Pending APP kind::RELEASED, Progress: "helm is to run.", "Wait.";
    PodUnavailable PROCESS kind::READY, Readiness: "The operator cannot read its own pod, whose image the Jobs of dumps are to have.", "It is tried again.";
    ProfileInvalid APP kind::READY, Stalled: "The Profile sets a key that the operator computes, or a size that is none; the message names it.", "Correct the Profile.";
    ProfileMissing APP kind::READY, Stalled: "There is no Profile of the name in `spec.profile`.", "Create it, or name another; that is noticed at once.";
    ProgressDeadlineExceeded APP kind::WORKLOADS_READY, Stalled: "A Deployment of the release makes no progress any more; the message says why its pods are not ready.", "Follow the message; the next change of the spec, or of the pods, is noticed.";
    Provisioning BOTH kind::POSTGRES_READY, Progress: "The database is being created.", "Wait; then `kubectl describe` it.";
    QuotaExceeded BOTH kind::READY, Stalled: "A quota of the namespace refuses an object.", "Raise it.";
    ReadOnly ROW kind::READY, Stalled: "The database is read-only.", "Make it writable, or name the primary in `PSQL_HOST`.";
    Ready ALL kind::READY, Fine: "It is ready.", "Nothing.";
    RedisSecretKeyMissing APP kind::RELEASED, Stalled: "A Secret that the operator did not create has the name of the generated Redis Secret, and lacks its key.",
        "Complete it, or delete it, and one is generated; that is noticed at once.";
    Refused BOTH kind::READY, Stalled: "The API server refuses an object.", "Read its sentence in the message.";
    ReleaseDrifted APP kind::RELEASED, Event: "Another Helm client has changed or uninstalled the release: it is upgraded to what the spec asks for.", "Let that client leave the release alone.";
    ReleaseNotOurs APP kind::RELEASED, Stalled: "A Helm release of this name was there before, and is not taken over.", "`helm uninstall` it, or rename the ClientApp.";
    ReleaseUnreadable APP kind::READY, Stalled: "The ClientApp is deleted, and what its release consists of is in no record.",
        "Restore Helm's Secret, or delete the release's objects by hand and then the Secret.";
    Replacing DB kind::READY, Progress: "An object that cannot be changed in place is deleted and recreated.", "Wait.";
    RepositoryMismatch APP kind::POSTGRES_READY, Stalled: "The backups of the database are in another repository than the spec names. Neither is touched.",
        "Name the repository that the message names in `spec.postgres.percona.repository`.";
    RestoreFailed DB kind::READY, Stalled: "The dump could not be restored; the dumps are as they were, and no database was made.", "Follow the message.";
    Restored DB kind::READY, Event: "The database was made from a dump.", "Nothing to do.";
    Restoring BOTH kind::POSTGRES_READY, Progress: "The database is made from a dump, or restored from a backup.", "Wait.";
    RetainUnsafe APP kind::READY, Stalled: "The ClientApp is deleted, and uninstalling would delete a volume that is to stay: under `Retain`, or one that is not on record as its own.",
        "Set `spec.deletionPolicy` to Delete, or delete once more with `--cascade=orphan`; or delete that volume, if its data may go.";
    Retained DB kind::READY, Event: "The Postgresql is deleted, and what the message names is not.", "Hand it over to a new one, or delete it by hand.";
    RowDrifted ROW kind::READY, Event: "Another client of the database has changed or deleted the row: it is put back.", "Let that client leave the row alone.";
    RowNotOurs ROW kind::READY, Stalled: "The row with this id is not this cluster's, as the operator's table `clientapp_operator_rows` says.", "Delete the row and its entry there, or the object.";
    RowRefused ROW kind::READY, Stalled: "A constraint, trigger or policy of the table refuses the row.", "Correct the spec, or what the message names.";
    SecretKeyMissing APP kind::POSTGRES_READY, Stalled: "The Secret that opens the database lacks a key.", "Complete the one in `spec.postgres.external`; else look at Percona's log.";
    SecretLost DB kind::READY, Stalled: "The Secret with the password in use is gone.", "Follow the message.";
    SecretMissing APP kind::POSTGRES_READY, Stalled: "The Secret that opens the database is not there.", "Create the one in `spec.postgres.external`; else look at Percona's log.";
    SecretNotOurs APP kind::RELEASED, Trouble: "A Secret of a name that the operator generates belongs to something else.", "Wait if that is being deleted; else rename one of them.";
    SecretReplaced APP kind::RELEASED, Event: "A generated Secret was deleted and recreated: the workloads that hold the old password are restarted.", "Nothing.";
    ServerFails DB kind::READY, Trouble: "The server exits, and is restarted in a loop; the message has the last line of its log.",
        "Correct `spec.parameters` or `spec.resources`, if they are about those: the pod is replaced at once.";
    Settled BOTH kind::RECONCILING, Fine: "All that the spec asks for is done.", "Nothing.";
    Shutdown APP kind::READY, Metric: "The operator is stopping.", "Nothing.";
    StandbysNotReady DB kind::READY, Progress: "The primary serves, and a standby is not ready yet.", "Wait; then `kubectl describe` its pod.";
    Stopping DB kind::READY, Progress: "The database is deleted, and waits for its servers to end.", "Wait.";
    StorageShrink BOTH kind::POSTGRES_READY, Stalled: "`storageSize` is below the volume's size, and a volume never shrinks.", "Set the field back.";
    Suspended APP kind::RECONCILING, Progress: "`spec.suspend` is true: nothing is changed, and nothing is taken down.", "Set it to false.";
    TableMissing ROW kind::READY, Stalled: "There is no such table.", "Create it; the message says how.";
    TableNotAllowed ROW kind::READY, Stalled: "Objects in this namespace may not name this table.", "Name one of those in the message, or add it to `PSQL_TABLES` of the operator.";
    TableUnfit ROW kind::READY, Stalled: "The table's columns do not fit.", "The message says what to change.";
    Timeout APP kind::RELEASED, Trouble: "helm took too long, or lost the API server.", "It is tried again, at most 10 minutes apart.";
    Uninstalling APP kind::READY, Progress: "The ClientApp is deleted, and its release is uninstalled.", "Wait.";
    UnlockFailed APP kind::RELEASED, Stalled: "A revision that a dead helm left pending cannot be marked as failed.", "Read the message; `helm rollback` does the same.";
    UpgradeFailed APP kind::RELEASED, Trouble: "helm has failed.", "It is tried again, at most 10 minutes apart. Read helm's sentence in the message.";
    Upgrading APP kind::RELEASED, Progress: "helm runs, or waits for its turn.", "Wait.";
    VersionMismatch BOTH kind::POSTGRES_READY, Stalled: "The database, or its volume, is of another major version than asked for.",
        "Set the field back, or take the way in the message.";
    VolumeGoing DB kind::READY, Stalled: "The volume is being deleted: it is gone as soon as no pod uses it.", "Copy the data elsewhere before its pod ends.";
    VolumeLost DB kind::READY, Stalled: "The volume with the database is gone, another one, or empty.", "Restore a dump into a new Postgresql, or accept what came back.";
    Waiting APP kind::RELEASED, Progress: "The release waits for what another condition tells.", "Look at the other conditions.";
}

impl Reason {
    /// Nothing goes on until a user or a cluster admin changes something.
    pub const fn stalled(self) -> bool {
        matches!(self.class(), Class::Stalled)
    }

    /// The reason of this spelling.
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

/// Whether a condition is worth a warning: it does not hold, and that is no step on the way.
pub fn is_trouble(condition: &Condition) -> bool {
    let class = Reason::parse(&condition.reason).map(Reason::class);
    condition.status != "True" && class != Some(Class::Progress)
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
