//! Decides what follows from the state of a backup: one step, its status, and what its condition says. Pure.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{api::batch::v1::Job, apimachinery::pkg::apis::meta::v1::Time};
use kube::{Resource as _, ResourceExt as _};

use super::{
    archive_job, cloudnativepg,
    context::Backups,
    observed::{Database, Files, Observed, Subject},
    percona,
    quiesce::{self, Stopped},
};
use crate::{
    crd::{
        ArchivedFiles, BackupPart, ClientApp, ClientAppBackup, ClientAppBackupSpec, ClientAppBackupStatus,
        ClientAppRestore, ClientAppRestoreStatus, DatabaseBackup, DumpState, Postgresql, Reason, Reclaim, annotation,
        cloudnativepg::CloudNativePgBackup,
        conditions::{find, kind},
        label,
        percona::{PerconaPGBackup, TYPE_FULL},
    },
    platform::{job::starts_until, run_once},
    store::dump::Name,
};

/// Limits how long the pod of a dump may show later than its Job, which ends after it. Without its report, the dump is not known by name.
const REPORT: SignedDuration = SignedDuration::from_secs(5);

/// Says why a backup fails whose dump would have to be deleted with it.
const NOT_RECLAIMED: &str = "a dump stays as long as postgres.backup keeps it: set spec.reclaim to Retain, or spec.parts to [Files], in another ClientAppBackup";

/// The same of a backup in the archive of a Cluster, where only the plugin's retention deletes.
const NOT_RECLAIMED_BY_PLUGIN: &str = "CloudNativePG's plugin deletes a backup only once postgres.backup.store.keep does not need it: set spec.reclaim to Retain, or spec.parts to [Files], in another ClientAppBackup";

/// Holds what follows.
pub(super) type Outcome = run_once::Outcome<Backups>;
type Progress<T> = run_once::Progress<T, Step>;

/// Makes one object, or asks for it.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    RequestDump {
        postgresql: String,
        uid: Option<String>,
        request: String,
    },
    CreatePerconaBackup(Box<PerconaPGBackup>),
    CreateCloudNativePgBackup(Box<CloudNativePgBackup>),
    CreateJob(Box<Job>),
    /// Ends a Job in which nothing runs.
    EndJob {
        job: String,
        uid: String,
        why: String,
    },
    /// Takes the app's pods away.
    Stop(Box<ClientApp>),
}

/// The backup itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Me<'a> {
    pub uid: &'a str,
    pub name: &'a str,
}

/// Returns how an app shows that it has no pods for a backup.
pub(super) fn mark(name: &str) -> String {
    format!("{}/{name}", ClientAppBackup::kind(&()))
}

/// Decides what follows for a backup.
pub(super) fn decide(
    Me { uid, name }: Me<'_>,
    spec: &ClientAppBackupSpec,
    recorded: &ClientAppBackupStatus,
    observed: &Observed,
    now: Timestamp,
) -> Outcome {
    let status = recorded.clone();
    let wanted = recorded.parts.as_ref().or(spec.parts.as_ref());
    let parts = match parts(spec, wanted, observed) {
        Ok(parts) => parts,
        Err(problem) => return Outcome::failed(status, problem),
    };
    let not_reclaimed = match observed.database {
        Database::Standalone(_) => Some(NOT_RECLAIMED),
        Database::CloudNativePg { .. } => Some(NOT_RECLAIMED_BY_PLUGIN),
        Database::None | Database::Percona { .. } => None,
    };
    if let Some(why) = not_reclaimed.filter(|_| spec.reclaim == Reclaim::Delete)
        && parts.contains(&BackupPart::Database)
    {
        return Outcome::failed(status, why);
    }
    // What the app has may change meanwhile, and another may have its name.
    let uid_now = observed.subject_uid();
    if recorded.subject_uid.as_ref().is_some_and(|uid| Some(uid) != uid_now.as_ref()) {
        let problem = format!("{} {} was deleted meanwhile, and created anew", kind_of(spec), spec.of.name);
        return Outcome::failed(status, problem);
    }
    let mut status = ClientAppBackupStatus { parts: Some(parts.clone()), subject_uid: uid_now, ..status };
    if let Some(restore) = observed.restore.as_ref().filter(|_| recorded.started_at.is_none()) {
        return Outcome::pending(status, format!("ClientAppRestore {restore} is in progress"));
    }
    if let (true, Subject::App(app)) = (spec.quiesce, &observed.subject) {
        if !parts.contains(&BackupPart::Files) {
            return Outcome::failed(status, "spec.quiesce needs the part Files, by which the app's volumes are known");
        }
        let has_begun = recorded.database.is_some() || recorded.files.is_some();
        if has_begun && !quiesce::is_stopped_for(app, &mark(name)) {
            let (of, key) = (&spec.of.name, annotation::STOPPED_FOR);
            let problem = format!("{of} lost its annotation {key}, so its pods came back: back up again");
            return Outcome::failed(status, problem);
        }
        match quiesce::stopped(app, &mark(name), observed.files.knows_volumes(), observed.files.user.as_deref()) {
            Stopped::Yes => {}
            Stopped::Waits(why) => return Outcome::pending(status, why),
            Stopped::NotAsked => {
                let message = format!("the pods of {} are taken away", spec.of.name);
                return Outcome::running(status, message, Some(Step::Stop(app.clone())), now);
            }
        }
    }
    // The database first: files that were added since are unknown to it, but none that it lists is missing.
    if parts.contains(&BackupPart::Database) && !is_complete(recorded.database.as_ref().map(|made| &made.completed_at))
    {
        match database(uid, recorded, observed, now) {
            Progress::Waits(reason) => return Outcome::pending(status, reason),
            Progress::Failed(problem) => return Outcome::failed(status, problem),
            Progress::Runs(made, step, message) => {
                return Outcome::running(ClientAppBackupStatus { database: Some(made), ..status }, message, step, now);
            }
            Progress::Completed(made) => {
                status.database = Some(DatabaseBackup { completed_at: Some(Time(now)), ..made });
            }
        }
    }
    if parts.contains(&BackupPart::Files) && !is_complete(recorded.files.as_ref().map(|made| &made.completed_at)) {
        match files(uid, recorded, observed, now) {
            Progress::Waits(reason) => return Outcome::pending(status, reason),
            Progress::Failed(problem) => return Outcome::failed(status, problem),
            Progress::Runs(made, step, message) => {
                // A Job that is made now has the present settings.
                let known = recorded.repository.clone().filter(|_| !matches!(step, Some(Step::CreateJob(_))));
                let repository = known.or_else(|| repository(observed));
                return Outcome::running(
                    ClientAppBackupStatus { files: Some(made), repository, ..status },
                    message,
                    step,
                    now,
                );
            }
            Progress::Completed(made) => {
                status.files = Some(ArchivedFiles { completed_at: Some(Time(now)), ..made });
            }
        }
    }
    let database = status.database.as_ref().map(|made| match &made.dump {
        Some(dump) => format!("dump {dump}"),
        None if made.kind == Postgresql::kind(&()) => "a dump".to_owned(),
        None => format!("{} {}", made.kind, made.name),
    });
    let files =
        status.files.as_ref().and_then(|made| made.archive.as_ref()).map(|archive| format!("archive {archive}"));
    let made: Vec<_> = database.into_iter().chain(files).collect();
    let approval = match &observed.subject {
        Subject::App(app) if spec.quiesce => quiesce::approval(app),
        _ => String::new(),
    };
    let message = format!("{} {} is backed up: {}{approval}", kind_of(spec), spec.of.name, made.join(", "));
    Outcome::completed(status, message, now)
}

fn is_complete(completed_at: Option<&Option<Time>>) -> bool {
    completed_at.is_some_and(Option::is_some)
}

fn kind_of(spec: &ClientAppBackupSpec) -> String {
    format!("{:?}", spec.of.kind)
}

/// Returns the parts to back up, or why there are none.
fn parts(
    spec: &ClientAppBackupSpec,
    wanted: Option<&Vec<BackupPart>>,
    observed: &Observed,
) -> Result<Vec<BackupPart>, String> {
    let Observed { subject, database, .. } = observed;
    let (kind, name) = (kind_of(spec), &spec.of.name);
    let missing = || Err(format!("{kind} {name} does not exist in this namespace"));
    let is_leaving = || Err(format!("{kind} {name} is being deleted"));
    let archives = match (subject, database) {
        (Subject::Missing, _) | (Subject::Postgresql, Database::Standalone(None)) => return missing(),
        (Subject::App(app), _) if app.metadata.deletion_timestamp.is_some() => return is_leaving(),
        (Subject::Postgresql, Database::Standalone(Some(found))) if found.metadata.deletion_timestamp.is_some() => {
            return is_leaving();
        }
        (Subject::App(app), _) => app.spec.persistence.backup.is_some(),
        (Subject::Postgresql, _) => false,
    };
    let has = |part: &BackupPart| match part {
        BackupPart::Database => !matches!(database, Database::None),
        BackupPart::Files => archives,
    };
    let all = [BackupPart::Database, BackupPart::Files];
    let parts: Vec<_> = wanted.cloned().unwrap_or_else(|| all.into_iter().filter(has).collect());
    match parts.iter().find(|part| !has(part)) {
        Some(BackupPart::Database) => Err(format!("{kind} {name} has no database that the operator backs up")),
        Some(BackupPart::Files) => {
            Err(format!("the files of {kind} {name} are not backed up: set spec.persistence.backup"))
        }
        None if parts.is_empty() => Err(format!(
            "{kind} {name} has nothing that the operator backs up: no database of its own, and no spec.persistence.backup"
        )),
        None => Ok(parts),
    }
}

/// Tells whether the backup that an upgrade waits for, or another one of the same app, waits for the other; `None`: neither is for an
/// upgrade, or both are. The first waits only for a dump that has begun: helm takes the pods away that a backup with `quiesce` waits
/// for, and archives take long.
pub(super) fn waits(backup: &ClientAppBackup, other: &ClientAppBackup) -> Option<bool> {
    let status = |backup: &ClientAppBackup| backup.status.clone().unwrap_or_default();
    match (is_for_upgrade(backup), is_for_upgrade(other)) {
        (true, false) => Some(status(other).database.is_some_and(|made| made.completed_at.is_none())),
        (false, true) => {
            let ClientAppBackupStatus { database, files, .. } = status(backup);
            // Neither a dump nor helm is in the way of files that are read beside the app.
            let is_beside = backup.spec.parts.as_deref() == Some(&[BackupPart::Files]) && !backup.spec.quiesce;
            Some(database.is_none() && files.is_none() && !is_beside)
        }
        _ => None,
    }
}

/// Returns true if a backup has to wait for a restore that has begun. That before an upgrade waits only while the database is replaced: a
/// restore may wait for pods that helm takes away, and helm for this backup.
pub(super) fn waits_for(backup: &ClientAppBackup, restore: &ClientAppRestore) -> bool {
    let replaces = || restore.status.as_ref().is_some_and(ClientAppRestoreStatus::replaces_database);
    restore.spec.subject() == backup.spec.of && (!is_for_upgrade(backup) || replaces())
}

/// Returns true for the backup that an upgrade waits for. It is of the database alone: others may take long.
pub(super) fn is_for_upgrade(backup: &ClientAppBackup) -> bool {
    backup.annotations().contains_key(annotation::UPGRADE)
        && backup.spec.parts.as_deref() == Some(&[BackupPart::Database])
}

fn database(
    uid: &str,
    recorded: &ClientAppBackupStatus,
    observed: &Observed,
    now: Timestamp,
) -> Progress<DatabaseBackup> {
    let began = recorded.database.as_ref();
    match &observed.database {
        Database::Standalone(Some(found)) => dump(uid, found, observed.last_dump_of.as_deref(), now),
        Database::Percona { cluster: Some(cluster), backup } => {
            let name = format!("{}-{}", cluster.name_any(), short(uid));
            let kind = PerconaPGBackup::kind(&()).into_owned();
            let made = |name| DatabaseBackup { kind, name, dump: None, completed_at: None };
            let options = vec![TYPE_FULL.to_owned()];
            percona::backed_up(name, options, began.is_some(), (cluster, backup.as_deref())).map(made, |mut backup| {
                backup.labels_mut().insert(label::BACKUP_UID.to_owned(), uid.to_owned());
                Step::CreatePerconaBackup(Box::new(backup))
            })
        }
        Database::CloudNativePg { cluster: Some(cluster), backup } => {
            let name = format!("{}-{}", cluster.name_any(), short(uid));
            let kind = CloudNativePgBackup::kind(&()).into_owned();
            let made = |name| DatabaseBackup { kind, name, dump: None, completed_at: None };
            let is_wanted = matches!(&observed.subject, Subject::App(app) if app.spec.postgres.backup.is_some());
            cloudnativepg::backed_up(name, is_wanted, (cluster, backup.as_deref())).map(made, |mut backup| {
                backup.labels_mut().insert(label::BACKUP_UID.to_owned(), uid.to_owned());
                Step::CreateCloudNativePgBackup(Box::new(backup))
            })
        }
        Database::Standalone(None)
        | Database::Percona { cluster: None, .. }
        | Database::CloudNativePg { cluster: None, .. } => match began {
            None => Progress::Waits("there is no database yet: the app's condition PostgresReady says why".to_owned()),
            Some(_) => Progress::Failed("the database is gone".to_owned()),
        },
        Database::None => Progress::Failed("there is no database".to_owned()),
    }
}

/// Returns true if a backup has asked for a dump and reads it as soon as it is made. One that waits for something else, or whose
/// reconcile fails, may never do so, and holds up no other.
pub(super) fn awaits_dump(status: &ClientAppBackupStatus) -> bool {
    let ready = find(&status.conditions, kind::READY);
    ready.is_some_and(|ready| ready.reason == Reason::BackupRunning.as_str())
        && status.database.as_ref().is_some_and(|dump| dump.completed_at.is_none())
}

fn dump(uid: &str, found: &Postgresql, last_dump_of: Option<&str>, now: Timestamp) -> Progress<DatabaseBackup> {
    let (name, request) = (found.name_any(), uid.to_owned());
    let made = || DatabaseBackup {
        kind: Postgresql::kind(&()).into_owned(),
        name: request.clone(),
        dump: None,
        completed_at: None,
    };
    let asked_for = || format!("Postgresql {name} is asked for a dump, which begins once it is Ready");
    let status = found.status.as_ref();
    let last = status.and_then(|status| status.dump.as_ref());
    match last.filter(|last| last.request == request) {
        Some(last) if last.state == DumpState::Succeeded => {
            let is_reported = last.dump.is_some() || last.completed_at.as_ref().is_none_or(|at| at.0 + REPORT <= now);
            match is_reported {
                true => Progress::Completed(DatabaseBackup { dump: last.dump.clone(), ..made() }),
                false => Progress::Runs(made(), None, format!("which dump Job {} has made is not known yet", last.job)),
            }
        }
        Some(last) if last.state == DumpState::Failed => Progress::Failed(
            last.message.clone().unwrap_or_else(|| format!("the dump of Postgresql {name} has failed")),
        ),
        Some(_) => Progress::Runs(made(), None, format!("Postgresql {name} is dumped")),
        None if last.is_some_and(|last| last.state == DumpState::Running) => {
            Progress::Waits(format!("another dump of Postgresql {name} is in progress"))
        }
        None => {
            let asked = found.spec.backup.as_ref().and_then(|backup| backup.request.as_ref());
            // Another request may be recorded that has not been seen yet: it comes first.
            let is_other =
                asked.is_some_and(|asked| *asked != request) && last.is_none_or(|last| asked != Some(&last.request));
            // A status has room for one dump: the other would ask for its own again, and so on.
            match (asked == Some(&request), last_dump_of) {
                (true, _) => Progress::Runs(made(), None, asked_for()),
                (false, _) if is_other => Progress::Waits(format!("another dump of Postgresql {name} is requested")),
                (false, Some(other)) => Progress::Waits(format!(
                    "ClientAppBackup {other} has not recorded its dump of Postgresql {name} yet"
                )),
                (false, None) => {
                    let (uid, request) = (found.uid(), request.clone());
                    let step = Step::RequestDump { postgresql: name.clone(), uid, request };
                    Progress::Runs(made(), Some(step), asked_for())
                }
            }
        }
    }
}

fn files(uid: &str, recorded: &ClientAppBackupStatus, observed: &Observed, now: Timestamp) -> Progress<ArchivedFiles> {
    let Subject::App(app) = &observed.subject else { return Progress::Failed("there are no files".to_owned()) };
    let Files { volumes, image, place, job, user: _ } = &observed.files;
    let began = recorded.files.as_ref();
    if let (Some(made), Some(job)) = (began, job) {
        if !job.is_ours {
            return Progress::Failed(format!("Job {} is not the operator's: delete it", made.job));
        }
        return match job.progress.succeeded {
            None => {
                let ends = job.idle_since.is_some_and(|since| starts_until(since) <= now) && job.not_started.is_none();
                let why = || job.idle_because.clone().unwrap_or_else(|| "its pod does not start".to_owned());
                let step = || Step::EndJob { job: made.job.clone(), uid: job.uid.clone(), why: why() };
                Progress::Runs(made.clone(), ends.then(step), format!("{}{}", archives(&made.job), job.waits()))
            }
            Some(true) => Progress::Completed(reported(made, job.report.as_deref())),
            Some(false) => {
                let why = job.failed_because().map_or_else(String::new, |why| format!(": {why}"));
                let (job, namespace) = (&made.job, app.namespace().unwrap_or_default());
                Progress::Failed(format!("Job {job} has failed{why}; see `kubectl logs job/{job} -n {namespace}`"))
            }
        };
    }
    let files = match archive_job::files(app, volumes.as_deref(), image.as_deref()) {
        Ok(files) => files,
        Err(why) => return Progress::Waits(why),
    };
    let is_known = app.status.as_ref().is_some_and(|status| status.repository_password.is_some());
    if files.backup.store.generate_password && !is_known {
        return Progress::Waits("the Secret with the repository's password is not on record yet: the app's condition FilesBackedUp may say why".to_owned());
    }
    let job = archive_job::name(&app.name_any(), &short(uid));
    let mut made = archive_job::archive(files, &job, uid);
    if let Some(place) = place {
        archive_job::keep_at(&mut made, place);
    }
    let step = Step::CreateJob(Box::new(made));
    let made = ArchivedFiles { job, archive: None, bytes: None, files: None, completed_at: None };
    let message = archives(&made.job);
    Progress::Runs(made, Some(step), message)
}

/// Returns the repository that the files are archived in.
fn repository(observed: &Observed) -> Option<String> {
    let Subject::App(app) = &observed.subject else { return None };
    Some(archive_job::repository(app, app.spec.persistence.backup.as_ref()?))
}

fn archives(job: &str) -> String {
    format!("Job {job} archives the files")
}

fn reported(made: &ArchivedFiles, report: Option<&str>) -> ArchivedFiles {
    let mut words = report.unwrap_or_default().split_whitespace();
    let archive = words.next().and_then(Name::parse).map(|name| name.to_string());
    let mut number = || words.next().and_then(|number| number.parse().ok());
    ArchivedFiles { archive, bytes: number(), files: number(), ..made.clone() }
}

/// Returns the part of a uid that names what a backup makes.
pub(crate) fn short(uid: &str) -> String {
    uid.chars().filter(char::is_ascii_alphanumeric).take(10).collect()
}

#[cfg(test)]
mod tests;
