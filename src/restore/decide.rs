//! Decides what follows from the state of a restore: one step, its status, and what its condition says. Pure.
//!
//! The app's pods go first if its files are replaced, then the database is restored, then the files; in the end, the app gets its pods
//! back. The names of what is restored are on record from the begin, so that no user changes them meanwhile.

mod copy;
mod source;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;

use self::{
    copy::database_of_copy,
    source::{awaited, dump, sources, state_of},
};
use super::{
    cloudnativepg::{SeenCluster, data_source},
    context::Restores,
    history::SUCCEEDED,
    observed::{Database, Observed},
    percona::{FAILED, Seen, busy, is_of_an_earlier_one, may_restore},
    step::{Me, Step},
};
use crate::{
    backup::{
        archive_job::{self, Extract},
        decide::short,
        observed::{ArchiveJob, Files, Subject},
        percona,
        quiesce::{self, Stopped},
    },
    crd::{
        ClientApp, ClientAppRestore, ClientAppRestoreSpec, ClientAppRestoreStatus, CloudNativePgDataSource,
        DatabaseRestore, FilesRestore, FilesSource, Phase, Postgresql, RestoreProgress, RestoreRequest, RestoreState,
        conditions::{find, kind},
        label,
        percona::{PerconaPGBackup, PerconaPGRestore},
    },
    platform::run_once,
    store::{dump::Name, error::UNTOUCHED},
};

/// Holds what follows.
pub(super) type Outcome = run_once::Outcome<Restores>;
type Progress<T> = run_once::Progress<T, Step>;

/// Returns how an app shows that it has no pods for a restore.
pub(super) fn mark(name: &str) -> String {
    format!("{}/{name}", ClientAppRestore::kind(&()))
}

/// Decides what follows for a restore.
pub(super) fn decide(
    me: Me<'_>,
    spec: &ClientAppRestoreSpec,
    recorded: &ClientAppRestoreStatus,
    observed: &Observed,
    now: Timestamp,
) -> Outcome {
    let mut status = recorded.clone();
    let name = if is_copied(spec, recorded) { spec.target() } else { &spec.of.name };
    let of = format!("{:?} {name}", spec.of.kind);
    match subject(&of, observed) {
        Err(problem) => return Outcome::failed(status, problem),
        Ok(uid) => {
            let recorded = if is_copied(spec, recorded) { &mut status.into_uid } else { &mut status.subject_uid };
            if recorded.as_ref().is_some_and(|before| *before != uid) {
                return Outcome::failed(status, format!("{of} was deleted meanwhile, and created anew"));
            }
            *recorded = Some(uid);
        }
    }
    if let Some(into) = spec.into.as_ref().filter(|_| !is_copied(spec, recorded)) {
        let status = match database_of_copy(me, spec, into, status.clone(), observed, now) {
            Progress::Waits(why) if recorded.started_at.is_none() => return Outcome::pending(status, why),
            Progress::Waits(why) => return Outcome::running(status, why, None, now),
            Progress::Failed(problem) => return Outcome::failed(status, problem),
            Progress::Runs(status, step, message) => return Outcome::running(status, message, step, now),
            Progress::Completed(status) => status,
        };
        let database = status.database.map(|made| DatabaseRestore { completed_at: Some(Time(now)), ..made });
        let message = format!("ClientApp {} has its database", into.name);
        return Outcome::running(ClientAppRestoreStatus { database, ..status }, message, None, now);
    }
    if recorded.started_at.is_none() {
        match begun(me, spec, &of, observed, now) {
            Progress::Waits(why) => return Outcome::pending(status, why),
            Progress::Failed(problem) => return Outcome::failed(status, problem),
            Progress::Runs((database, files), ..) | Progress::Completed((database, files)) => {
                status = ClientAppRestoreStatus { database, files, ..status };
            }
        }
    }
    // Without its database, an app cannot be stopped by helm: the database comes back first. And helm may wait for one that has begun.
    let is_first = |made: &DatabaseRestore| made.completed_at.is_none() && (made.has_begun() || !serves(observed));
    let comes_first = status.database.as_ref().is_some_and(is_first);
    if let Some((why, step)) = held(me, spec, observed).filter(|_| status.files.is_some() && !comes_first) {
        return Outcome::running(status, why, step, now);
    }
    if let Some(made) = status.database.clone().filter(|made| made.completed_at.is_none()) {
        match database(me, spec, made, observed, now) {
            Progress::Waits(why) => return Outcome::running(status, why, None, now),
            Progress::Failed(problem) => {
                let problem = problem + &approval(&status, observed);
                return Outcome::failed(status, problem);
            }
            Progress::Runs(made, step, message) => {
                return Outcome::running(ClientAppRestoreStatus { database: Some(made), ..status }, message, step, now);
            }
            Progress::Completed(made) => {
                status.database = Some(DatabaseRestore { completed_at: Some(Time(now)), ..made });
            }
        }
    }
    if let Some(made) = status.files.clone().filter(|made| made.completed_at.is_none()) {
        if let Some((why, step)) = held(me, spec, observed) {
            return Outcome::running(status, why, step, now);
        }
        match files(me, spec, made, observed) {
            Progress::Waits(why) => return Outcome::running(status, why, None, now),
            Progress::Failed(problem) => {
                let problem = and_the_database(problem, spec, recorded) + &approval(&status, observed);
                return Outcome::failed(status, problem);
            }
            Progress::Runs(made, step, message) => {
                return Outcome::running(ClientAppRestoreStatus { files: Some(made), ..status }, message, step, now);
            }
            Progress::Completed(made) => {
                status.files = Some(FilesRestore { completed_at: Some(Time(now)), ..made });
            }
        }
    }
    let message = match (&observed.subject, is_copied(spec, recorded)) {
        (Subject::App(app), true) => copy::told(spec, &status, app),
        _ => format!("{of} is restored: {}{}", told(spec, &status, observed), approval(&status, observed)),
    };
    Outcome::completed(status, message, now)
}

/// Returns true if another app has its database.
fn is_copied(spec: &ClientAppRestoreSpec, recorded: &ClientAppRestoreStatus) -> bool {
    spec.into.is_some() && recorded.has_database()
}

/// Returns the uid of the object that is restored, or why it cannot be.
fn subject(of: &str, observed: &Observed) -> Result<String, String> {
    let meta = match (&observed.subject, &observed.database) {
        (Subject::App(app), _) => &app.metadata,
        (Subject::Postgresql, Database::Standalone(Some(found))) => &found.metadata,
        _ => return Err(format!("{of} does not exist in this namespace")),
    };
    match meta.deletion_timestamp {
        Some(_) => Err(format!("{of} is being deleted")),
        None => Ok(meta.uid.clone().unwrap_or_default()),
    }
}

/// Returns true if the database is in use, or can be.
fn serves(observed: &Observed) -> bool {
    match &observed.database {
        Database::Standalone(Some(found)) => found.status.as_ref().and_then(|status| status.phase) == Some(Phase::Up),
        Database::Percona { seen: Some(seen), .. } => is_ready(seen),
        _ => false,
    }
}

/// Returns what files wait for whose volumes a pod may have, and the step that takes the pods away.
fn held(me: Me<'_>, spec: &ClientAppRestoreSpec, observed: &Observed) -> Option<(String, Option<Step>)> {
    let Subject::App(app) = &observed.subject else { return None };
    match quiesce::stopped(app, &mark(me.name), observed.files.knows_volumes(), observed.files.user.as_deref()) {
        Stopped::Yes => None,
        Stopped::Waits(why) => Some((why, None)),
        Stopped::NotAsked => {
            Some((format!("the pods of {} are taken away", spec.target()), Some(Step::Stop(app.clone()))))
        }
    }
}

type Parts = (Option<DatabaseRestore>, Option<FilesRestore>);

/// Says why a Cluster of CloudNativePG is not restored in place, and how the app moves to a new one.
fn never_in_place(
    app: &str,
    seen: Option<&SeenCluster>,
    (from, time): (&str, Option<&Time>),
    now: Timestamp,
) -> String {
    let never = "CloudNativePG restores backups into a new Cluster, never in place";
    let others = "for another ClientApp, set spec.into; for files alone, spec.parts to [Files]";
    let Some(seen) = seen else { return format!("{never}: {others}") };
    let source = match data_source(app, seen, (from, time), now) {
        Ok(source) => source,
        Err(problem) => return format!("{never}, and {problem}; {others}"),
    };
    let CloudNativePgDataSource { object_store, server_name, backup, time } = source;
    // A merge keeps what it does not name.
    let source = json!({"objectStore": object_store, "serverName": server_name, "backup": backup, "time": time});
    let cluster = json!({"cluster": next_name(&seen.cluster.name_any()), "dataSource": source});
    let patch = json!({"spec": {"postgres": {"adopt": false, "cloudnativepg": cluster}}});
    let namespace = seen.cluster.namespace().unwrap_or_default();
    format!(
        "{never}: let the app move to one, with `kubectl patch clientapp {app} -n {namespace} --type=merge -p '{patch}'`; {others}"
    )
}

/// Returns a name for the Cluster after this one, within CloudNativePG's 50 characters.
fn next_name(cluster: &str) -> String {
    let numbered = cluster.rsplit_once('-').and_then(|(stem, number)| Some((stem, number.parse::<u32>().ok()?)));
    let (stem, number) = numbered.unwrap_or((cluster, 1));
    let suffix = format!("-{}", number.saturating_add(1));
    let stem: String = stem.chars().take(50 - suffix.len()).collect();
    stem + &suffix
}

/// Returns what a restore that begins now restores.
fn begun(me: Me<'_>, spec: &ClientAppRestoreSpec, of: &str, observed: &Observed, now: Timestamp) -> Progress<Parts> {
    if let Some(backup) = &observed.backup {
        return Progress::Waits(format!("ClientAppBackup {backup} is in progress"));
    }
    if let Some(why) = awaited(spec, observed) {
        return Progress::Waits(why);
    }
    let (from, archive) = match sources(spec, observed) {
        Ok(sources) => sources,
        Err(problem) => return Progress::Failed(problem),
    };
    let mut parts = (None, None);
    if let Some(from) = from {
        let (kind, name) = match &observed.database {
            Database::None => return Progress::Failed(format!("{of} has no database that the operator restores")),
            Database::CloudNativePg(seen) => {
                let time = spec.database.as_ref().and_then(|wanted| wanted.time.as_ref());
                return Progress::Failed(never_in_place(&spec.of.name, seen.as_deref(), (&from, time), now));
            }
            Database::Standalone(None) | Database::Percona { seen: None, .. } => {
                return Progress::Waits(
                    "there is no database yet: the app's condition PostgresReady says why".to_owned(),
                );
            }
            Database::Standalone(Some(_)) => (Postgresql::kind(&()).into_owned(), me.uid.to_owned()),
            Database::Percona { seen: Some(seen), .. } => {
                let name = format!("{}-{}", seen.cluster.name_any(), short(me.uid));
                (PerconaPGRestore::kind(&()).into_owned(), name)
            }
        };
        parts.0 = Some(DatabaseRestore { kind, name, from, backup: None, requested_at: None, completed_at: None });
    }
    if let Some(archive) = archive {
        let Subject::App(app) = &observed.subject else {
            return Progress::Failed(format!("{of} has no files"));
        };
        if let Err(problem) = archive_job::settings(app) {
            return Progress::Failed(problem);
        }
        if let Err(problem) = permitted(app, observed) {
            return Progress::Failed(problem);
        }
        let Files { volumes, image, .. } = &observed.files;
        if let Err(why) = archive_job::files(app, volumes.as_deref(), image.as_deref()) {
            return Progress::Waits(why);
        }
        let job = archive_job::name(&app.name_any(), &format!("r{}", short(me.uid)));
        parts.1 = Some(FilesRestore { job, archive, completed_at: None });
    }
    if let Subject::App(app) = &observed.subject {
        if app.spec.suspend {
            return Progress::Waits(format!("{of} is suspended: set spec.suspend to false"));
        }
        if app.is_backed_up_before_upgrade() {
            return Progress::Waits(format!("{of} is being backed up before an upgrade"));
        }
    }
    Progress::Completed(parts)
}

/// Says why the archives of another app may not be read.
fn permitted(app: &ClientApp, observed: &Observed) -> Result<(), String> {
    let Some(secret) = &observed.not_permitted else { return Ok(()) };
    let (namespace, app) = (app.namespace().unwrap_or_default(), app.name_any());
    Err(format!(
        "Secret {secret} has no label that lets {app} read another app's archives: `kubectl label secret {secret} -n {namespace} {}={app}`",
        label::RESTORE_TO
    ))
}

fn database(
    me: Me<'_>,
    spec: &ClientAppRestoreSpec,
    made: DatabaseRestore,
    observed: &Observed,
    now: Timestamp,
) -> Progress<DatabaseRestore> {
    match &observed.database {
        Database::Standalone(Some(found)) if made.kind == Postgresql::kind(&()) => {
            standalone(spec, made, (found, observed.volume_of_dumps.as_deref()), now)
        }
        Database::Percona { seen: Some(seen), first } if made.kind == PerconaPGRestore::kind(&()) => {
            of_cluster(me, spec, made, (seen, first.as_deref()), now)
        }
        _ => Progress::Failed("the database is gone".to_owned()),
    }
}

fn standalone(
    spec: &ClientAppRestoreSpec,
    made: DatabaseRestore,
    (found, volume): (&Postgresql, Option<&str>),
    now: Timestamp,
) -> Progress<DatabaseRestore> {
    let (name, status) = (found.name_any(), found.status.clone().unwrap_or_default());
    let is_it = |request: &str| request == made.name;
    if let Some(restore) = status.restore.as_ref().filter(|restore| is_it(&restore.request)) {
        return match restore.state {
            RestoreState::Succeeded => {
                let restored = status.restored.filter(|restored| restored.request.as_deref().is_some_and(is_it));
                let from = restored.map_or(made.from.clone(), |restored| restored.dump);
                Progress::Completed(DatabaseRestore { from, ..made })
            }
            RestoreState::Failed => Progress::Failed(restore.message.clone().unwrap_or_default()),
            RestoreState::Replacing => Progress::Runs(made, None, format!("Postgresql {name} restarts with the dump")),
            RestoreState::Running => Progress::Runs(made, None, at_work(&name, &status.conditions)),
        };
    }
    let requested = found.spec.restore_request.as_ref();
    if requested.is_some_and(|requested| is_it(&requested.request)) {
        return Progress::Runs(made, None, at_work(&name, &status.conditions));
    }
    // What was asked for is asked for once, whatever others have asked since.
    if let Some(at) = &made.requested_at {
        if let Some(done) = status.restored.as_ref().filter(|restored| restored.request.as_deref().is_some_and(is_it)) {
            return Progress::Completed(DatabaseRestore { from: done.dump.clone(), ..made });
        }
        let is_later = |other: &RestoreProgress| other.completed_at.as_ref().is_none_or(|ended| ended.0 >= at.0);
        if requested.is_some() || status.restore.as_ref().is_some_and(is_later) {
            return Progress::Failed(format!("another restore of Postgresql {name} was requested meanwhile"));
        }
    }
    let is_over = |request: &str| {
        status.restore.as_ref().is_some_and(|restore| restore.request == request && restore.state.is_final())
    };
    if requested.is_some_and(|requested| !is_over(&requested.request)) {
        return Progress::Waits(format!("another restore of Postgresql {name} is requested"));
    }
    let dump = match dump(spec.database.as_ref(), &made.from, (found, volume)) {
        Ok(dump) => dump,
        Err(problem) => return Progress::Failed(problem),
    };
    let message = format!("Postgresql {name} is asked to restore dump {} of {}", dump.from, dump.place());
    let request = Box::new(RestoreRequest { request: made.name.clone(), dump });
    let step = Step::RequestRestore { postgresql: name, uid: found.uid(), request };
    let requested_at = made.requested_at.clone().or(Some(Time(now)));
    Progress::Runs(DatabaseRestore { requested_at, ..made }, Some(step), message)
}

/// Quotes what a Postgresql is doing.
fn at_work(name: &str, conditions: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition]) -> String {
    let doing = find(conditions, kind::RECONCILING).filter(|found| found.status == "True");
    let doing = doing.or_else(|| find(conditions, kind::STALLED).filter(|found| found.status == "True"));
    match doing {
        Some(doing) => format!("Postgresql {name}: {}", doing.message),
        None => format!("Postgresql {name} is asked to restore a dump"),
    }
}

fn of_cluster(
    me: Me<'_>,
    spec: &ClientAppRestoreSpec,
    made: DatabaseRestore,
    (seen, first): (&Seen, Option<&PerconaPGBackup>),
    now: Timestamp,
) -> Progress<DatabaseRestore> {
    let cluster = seen.cluster.name_any();
    if let Some(restore) = seen.restores.iter().find(|restore| restore.name_any() == made.name) {
        let state = restore.status.as_ref().and_then(|status| status.state.as_deref()).unwrap_or_default();
        let doing = format!("PerconaPGRestore {} restores the database", made.name);
        let created = restore.creation_timestamp();
        let made = DatabaseRestore { requested_at: made.requested_at.clone().or(created), ..made };
        return match state {
            SUCCEEDED if is_of_an_earlier_one(restore) => Progress::Failed(format!(
                "PerconaPGRestore {} restored nothing: Percona took the end of an earlier restore for its own; restore again",
                made.name
            )),
            SUCCEEDED if seen.cluster.spec.backups.is_restoring() || !is_ready(seen) => {
                let message = format!("PerconaPGCluster {cluster} is restored, and not ready yet");
                Progress::Runs(made, None, message)
            }
            SUCCEEDED => afterwards(me, made, seen),
            FAILED => Progress::Failed(format!(
                "PerconaPGRestore {} has failed, and the database may be restored in part: `kubectl logs job/{cluster}-pgbackrest-restore -n {}` says why; restore another backup with spec.backupFirst false",
                made.name,
                restore.namespace().unwrap_or_default()
            )),
            _ => Progress::Runs(made, None, doing),
        };
    }
    if made.requested_at.is_some() {
        return Progress::Failed(format!("PerconaPGRestore {} was deleted before it was seen to end", made.name));
    }
    let source = spec.database.as_ref();
    if source.is_some_and(|source| source.store.is_some()) {
        return Progress::Failed(
            "spec.database.store is for dumps: Percona restores from its own repository".to_owned(),
        );
    }
    let wanted = (made.from.as_str(), source.and_then(|source| source.time.as_ref()).map(|time| time.0));
    let name = format!("{cluster}-{}-before", short(me.uid));
    // Not a full backup: it would expire the oldest one, which may be the one to restore.
    let backed_up = |has_begun| match percona::backed_up(name.clone(), Vec::new(), has_begun, (&seen.cluster, first)) {
        run_once::Progress::Completed(_) => None,
        backup => {
            let made = DatabaseRestore { backup: Some(name.clone()), ..made.clone() };
            Some(backup.map(|_| made, |backup| Step::CreateBackup(Box::new(backup))))
        }
    };
    if let Some(progress) = made.backup.as_ref().and_then(|_| backed_up(true)) {
        return progress;
    }
    // What is over by itself is waited for.
    if let Some(why) = busy(seen) {
        return Progress::Waits(why);
    }
    let restore = match may_restore(&spec.of.name, seen, wanted, spec.backup_first, now) {
        Ok(restore) => restore,
        Err(why) => return Progress::Failed(why),
    };
    if spec.backup_first
        && made.backup.is_none()
        && let Some(progress) = backed_up(false)
    {
        return progress;
    }
    let mut object = PerconaPGRestore::new(&made.name, restore);
    object.metadata.namespace = seen.cluster.namespace();
    let message = format!("PerconaPGRestore {} restores the database", made.name);
    Progress::Runs(made, Some(Step::CreateRestore(Box::new(object))), message)
}

/// Backs up what was restored, so that a later restore need not start from a backup of before this one.
fn afterwards(me: Me<'_>, made: DatabaseRestore, seen: &Seen) -> Progress<DatabaseRestore> {
    let name = format!("{}-{}-after", seen.cluster.name_any(), short(me.uid));
    if seen.backups.iter().any(|backup| backup.name_any() == name) {
        return Progress::Completed(made);
    }
    match percona::backed_up(name, Vec::new(), false, (&seen.cluster, None)) {
        run_once::Progress::Waits(why) => Progress::Runs(made, None, format!("restored; {why}")),
        run_once::Progress::Runs(_, backup, message) => {
            Progress::Runs(made, backup.map(|backup| Step::CreateBackup(Box::new(backup))), message)
        }
        // The restore itself is complete.
        run_once::Progress::Completed(_) | run_once::Progress::Failed(_) => Progress::Completed(made),
    }
}

fn is_ready(seen: &Seen) -> bool {
    seen.cluster.status.as_ref().and_then(|status| status.state.as_deref()) == Some("ready")
}

fn files(me: Me<'_>, spec: &ClientAppRestoreSpec, made: FilesRestore, observed: &Observed) -> Progress<FilesRestore> {
    let Subject::App(app) = &observed.subject else { return Progress::Failed("there are no files".to_owned()) };
    let Files { volumes, image, job, user: _, place: _ } = &observed.files;
    let replaces = || format!("Job {} replaces the files", made.job);
    let namespace = app.namespace().unwrap_or_default();
    if let Some(job) = job {
        if !job.is_ours {
            return Progress::Waits(format!("Job {} is not the operator's: delete it", made.job));
        }
        return match job.progress.succeeded {
            None => Progress::Runs(made.clone(), None, format!("{}{}", replaces(), job.waits())),
            Some(true) => {
                let report = job.report.as_deref().unwrap_or_default();
                let archive = report.split_whitespace().next().and_then(Name::parse).map(|name| name.to_string());
                Progress::Completed(FilesRestore { archive: archive.unwrap_or(made.archive.clone()), ..made })
            }
            Some(false) => {
                let why = job.failure.as_ref().map_or_else(String::new, |why| format!(": {why}"));
                let message =
                    format!("Job {} has failed{why}; see `kubectl logs job/{} -n {namespace}`", made.job, made.job);
                match is_untouched(job) {
                    true => Progress::Failed(format!("{message}; the files are as they were")),
                    // Half of the files would be served.
                    false => Progress::Waits(format!(
                        "{message}. It may have moved files, so the app stays without pods: delete the Job, and another goes on"
                    )),
                }
            }
        };
    }
    if let Err(problem) = archive_job::settings(app).map(drop).and_then(|()| permitted(app, observed)) {
        return Progress::Failed(problem);
    }
    let files = match archive_job::files(app, volumes.as_deref(), image.as_deref()) {
        Ok(files) => files,
        Err(why) => return Progress::Waits(why),
    };
    let source = spec.files.clone().unwrap_or_else(|| FilesSource {
        from: made.archive.clone(),
        path: None,
        password_secret: None,
    });
    let mut bucket = files.backup.store.bucket.clone();
    if source.password_secret.is_some() {
        bucket.password_secret = source.password_secret;
    }
    let own = || files.backup.path(&namespace, &spec.of.name);
    let path = source.path.unwrap_or_else(own);
    let what = Extract { id: me.uid, archive: &made.archive, bucket: &bucket, path: &path };
    let job = archive_job::extract(files, &made.job, what);
    let message = replaces();
    Progress::Runs(made, Some(Step::CreateJob(Box::new(job))), message)
}

/// Returns true if a Job that has failed has moved no file.
pub(super) fn is_untouched(job: &ArchiveJob) -> bool {
    job.failure.as_ref().is_some_and(|why| why.starts_with(UNTOUCHED))
}

/// Completes the message of a failure by what has become of the database.
fn and_the_database(problem: String, spec: &ClientAppRestoreSpec, recorded: &ClientAppRestoreStatus) -> String {
    match recorded.database.as_ref().filter(|made| made.completed_at.is_some()) {
        Some(made) => format!("{problem}; the database is restored {} already", state_of(spec, &made.from)),
        None => problem,
    }
}

/// Says what was restored, and where the former state is.
fn told(spec: &ClientAppRestoreSpec, status: &ClientAppRestoreStatus, observed: &Observed) -> String {
    let database = status.database.as_ref().map(|made| match (&observed.database, &made.backup) {
        (Database::Standalone(Some(_)), _) => {
            format!("the database from dump {}; the former one is in former.{} on its volume", made.from, made.name)
        }
        (_, Some(backup)) => {
            format!("the database {}; the former state is in PerconaPGBackup {backup}", state_of(spec, &made.from))
        }
        (_, None) => format!("the database {}", state_of(spec, &made.from)),
    });
    let files = status.files.as_ref().map(|made| {
        let former = format!(".clientapp-restore.former.{}", made.archive);
        format!("the files from archive {}; the former ones are in {former} of each volume", made.archive)
    });
    database.into_iter().chain(files).collect::<Vec<_>>().join("; ")
}

/// Says what is still to be done for the app to get its pods back.
fn approval(status: &ClientAppRestoreStatus, observed: &Observed) -> String {
    match &observed.subject {
        Subject::App(app) if status.files.is_some() => quiesce::approval(app),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests;
