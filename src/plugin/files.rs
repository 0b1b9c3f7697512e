//! The app's files: `restore` brings an archive back, in place or into the volumes of another ClientApp.
//!
//! Jobs do the work. They are made from the CronJob that the operator maintains for `spec.persistence.backup`, so that they have its
//! image, its volumes and its credentials ([`job`]). A restore in place takes the app's pods away meanwhile. It records each step before
//! it is taken ([`rules`]): running the same command again resumes an interrupted restore.

mod job;
mod rules;

use std::{collections::BTreeSet, time::Duration};

use k8s_openapi::api::{
    batch::v1::{CronJob, Job},
    core::v1::Pod,
};
use kube::{
    ResourceExt as _,
    api::{ListParams, PostParams},
};

pub(crate) use self::rules::{Stopped, last};
use self::{
    job::Extract,
    rules::{Asked, Begun, Step, archived, consequence, former, resumed, settings, still_ours},
};
use super::{
    args::{self, LATEST},
    bucket,
    change::patch,
    delete::{agreed, can_agree},
    error::Error,
    goal::Goal,
    percona,
    restore::{self, awaited},
    session::{FIELD_MANAGER, Printer, Session, Stored},
    several::Deadline,
    text::harmless,
    wait::{self, followed},
};
use crate::{
    backup::archive_job,
    crd::{Approval, ClientApp, FilesBackup, Restore, conditions::kind},
    platform::key::Key,
};

/// `backups --files`.
pub(crate) async fn list(session: &Session, printer: &mut Printer, name: &str) -> Result<(), Error> {
    let stored = session.app(name).await?;
    let backup = settings(&stored.app).map_err(Error::Missing)?;
    bucket::list_archives(session, printer, name, backup).await
}

/// Takes the pods of an app away for a backup, and records how many it had. If an earlier backup was interrupted, it already has none.
pub(crate) async fn stopped(session: &Session, printer: &mut Printer, name: &str) -> Result<Stopped, Error> {
    let stored = session.app(name).await?;
    cron_job(session, &stored.app).await?;
    let (stopped, is_new) = rules::stopped(&stored.app).map_err(Error::Stalled)?;
    if is_new {
        patch(session, &stored, stopped.first()).await?;
    }
    printer.note(&stopped.way_out(name, &session.namespace));
    Ok(stopped)
}

/// Waits until no pod has the app's volumes.
pub(crate) async fn without_pods(
    session: &Session,
    printer: &mut Printer,
    name: &str,
    timeout: Duration,
) -> Result<(), Error> {
    let stored = session.app(name).await?;
    let (_, cron_job) = cron_job(session, &stored.app).await?;
    stop(session, printer, &stored.app, &job::claims(&cron_job), timeout).await
}

/// Gives an app its pods back after a backup.
pub(crate) async fn started(
    session: &Session,
    printer: &mut Printer,
    name: &str,
    stopped: &Stopped,
) -> Result<(), Error> {
    let stored = session.app(name).await?;
    // Another user may have done so.
    if Stopped::read(&stored.app).as_ref() == Some(stopped) {
        patch(session, &stored, stopped.last()).await?;
        printer.note(&format!("{name} has pods again"));
    }
    Ok(())
}

/// `restore --files` and `--only-files`.
pub(crate) async fn restore(session: &Session, printer: &mut Printer, args: &args::Restore) -> Result<(), Error> {
    let ended = in_place(session, printer, args).await;
    if ended.is_err()
        && let Ok(stored) = session.app(&args.name).await
        && let Ok(Some(begun)) = Begun::read(&stored.app)
    {
        printer.note(&begun.ways_out(&args.name, &session.namespace));
    }
    ended
}

async fn in_place(session: &Session, printer: &mut Printer, args: &args::Restore) -> Result<(), Error> {
    let args::Restore { name, no_backup, yes, waiting, .. } = args;
    let stored = session.app(name).await?;
    let (backup, cron_job) = cron_job(session, &stored.app).await?;
    let own = backup.path(&session.namespace, name);
    let path = args.files_path.as_deref().unwrap_or(&own);
    let asked = Asked { archive: args.archive().unwrap_or(LATEST), path, database: args.files.is_some() };
    let before = resumed(&stored.app, &asked).map_err(Error::Stalled)?;
    let next = before.as_ref().map(|before| before.next);

    let store = bucket::of_files(backup, path, args.password_secret.as_deref());
    let wanted = before.as_ref().map_or(asked.archive, |before| before.archive.as_str());
    let archives_first = !no_backup && next != Some(Step::Extract);
    let present = job::archive_of(&cron_job).filter(|_| archives_first && path == own);
    // A later archive does not change what is the latest now.
    let archive = bucket::archive(session, backup, &store, wanted, present).await?;
    let place = Restore::of_store(&archive, store.clone()).place();
    let id = before.as_ref().map_or_else(|| rules::new_id(&stored.app, Session::now()), |before| before.id.clone());
    let what = Extract { id: id.clone(), archive: archive.clone(), store, user: i64::from(backup.user), replace: true };
    create(session, &job::extract(&cron_job, &job::name(&cron_job, Session::now()), &what), true).await?;
    let mut foreseen = String::new();
    let is_running = before.as_ref().is_some_and(|before| before.by.is_some());
    if asked.database && !is_running && matches!(next, None | Some(Step::Stop | Step::Database)) {
        foreseen = restore::foreseen(session, args, &stored).await? + "\n";
    }
    if !yes {
        can_agree("restore")?;
        printer.note(&(foreseen + &consequence(name, &archive, &place, next, *no_backup)));
        agreed(name, "nothing restored")?;
    }

    // The user may have taken long to agree.
    let stored = session.app(name).await?;
    if resumed(&stored.app, &asked).map_err(Error::Stalled)? != before {
        return Err(Error::Stalled(format!(
            "another user has begun or continued a restore of {name}: nothing restored"
        )));
    }
    let mut begun = match before {
        Some(before) => before,
        None => {
            let replicas = stored.app.spec.replicas;
            let (database, path) = (asked.database, path.to_owned());
            let begun = Begun { id, archive: archive.clone(), path, database, replicas, next: Step::Stop, by: None };
            patch(session, &stored, begun.first()).await?;
            begun
        }
    };
    printer.note(&begun.ways_out(name, &session.namespace));
    let claims = job::claims(&cron_job);
    if begun.next == Step::Stop {
        stop(session, printer, &stored.app, &claims, waiting.timeout).await?;
        // The operator sees the record, too. An archive that is made meanwhile would have half of the files.
        let suspended = |found: Option<&CronJob>| {
            found.is_some_and(|found| found.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true)))
        };
        awaited(&session.api::<CronJob>(), &cron_job.name_any(), "suspended", suspended, waiting.timeout).await?;
        unmounted(session, printer, &claims, waiting.timeout).await?;
        let next = if begun.database { Step::Database } else { Step::Archive };
        record(session, name, &mut begun, next, None).await?;
    }
    if begun.next == Step::Database {
        database(session, printer, args, &mut begun).await?;
        record(session, name, &mut begun, Step::Archive, None).await?;
    }
    if begun.next == Step::Archive {
        if !no_backup {
            printer.note("archiving the present files");
            let make = |name: &str| archive_job::archive(&cron_job, name);
            carry_out(session, printer, args, &cron_job, &mut begun, make).await?;
        }
        record(session, name, &mut begun, Step::Extract, None).await?;
    }
    unmounted(session, printer, &claims, waiting.timeout).await?;
    printer.note(&format!("restoring the files from archive {archive} of {place}"));
    let make = |name: &str| job::extract(&cron_job, name, &what);
    carry_out(session, printer, args, &cron_job, &mut begun, make).await?;

    let stored = current(session, name, &begun).await?;
    let object = patch(session, &stored, begun.last()).await?;
    let sentence = format!(
        "clientapp/{name} has its files from archive {archive} of {place}; the former ones are in the directory {} of each volume",
        former(&archive)
    );
    if stored.app.spec.approval == Approval::Manual {
        printer.note(&waits_for_approval(name));
    }
    wait::asked(session, printer, &object, &sentence, waiting, None).await
}

/// The settings of an app's archives, and the CronJob that makes them.
async fn cron_job<'a>(session: &Session, app: &'a ClientApp) -> Result<(&'a FilesBackup, CronJob), Error> {
    settings(app).map_err(Error::Stalled)?;
    let name = Key::new(&session.namespace, app.name_any()).files();
    let found = session.api::<CronJob>().get_opt(&name).await;
    let found = found.map_err(Error::api(format!("read CronJob {}/{name}", session.namespace)))?;
    archived(app, &name, found).map_err(Error::Stalled)
}

/// The app, if it is as this restore has left it.
async fn current(session: &Session, name: &str, begun: &Begun) -> Result<Stored, Error> {
    let stored = session.app(name).await?;
    still_ours(&stored.app, begun).map_err(Error::Stalled)?;
    Ok(stored)
}

/// Records what is to be done next, and the object that does it.
async fn record(session: &Session, name: &str, begun: &mut Begun, next: Step, by: Option<String>) -> Result<(), Error> {
    let stored = current(session, name, begun).await?;
    let now = Begun { next, by, ..begun.clone() };
    patch(session, &stored, now.patch()).await?;
    *begun = now;
    Ok(())
}

fn waits_for_approval(name: &str) -> String {
    format!(
        "spec.approval is Manual: the change of spec.replicas waits until a user approves its plan; `kubectl clientapp approve {name}` says which"
    )
}

/// Waits until the release is deployed without pods of the app, and no pod has the volumes any more.
async fn stop(
    session: &Session,
    printer: &mut Printer,
    app: &ClientApp,
    claims: &BTreeSet<String>,
    timeout: Duration,
) -> Result<(), Error> {
    let name = app.name_any();
    printer.note(&format!("taking the pods of {name} away (spec.replicas: 0)"));
    if app.spec.approval == Approval::Manual {
        printer.note(&waits_for_approval(&name));
    }
    deployed(session, printer, &name, timeout).await?;
    unmounted(session, printer, claims, timeout).await
}

/// Waits until the release is deployed as the spec asks.
async fn deployed(session: &Session, printer: &mut Printer, name: &str, timeout: Duration) -> Result<(), Error> {
    let goal = Goal::Condition { type_: kind::RELEASED.to_owned(), status: "True".to_owned() };
    wait::reached(session, printer, name, &goal, &Deadline::after(timeout)).await.map(drop)
}

/// Waits until no pod has one of the volumes.
async fn unmounted(
    session: &Session,
    printer: &mut Printer,
    claims: &BTreeSet<String>,
    timeout: Duration,
) -> Result<(), Error> {
    let api = session.api::<Pod>();
    loop {
        let pods = api.list(&ListParams::default()).await;
        let pods = pods.map_err(Error::api(format!("list the pods of namespace {}", session.namespace)))?;
        let Some(pod) = pods.items.into_iter().find(|pod| job::mounts(pod, claims)) else { return Ok(()) };
        let (name, uid) = (pod.name_any(), pod.uid());
        printer.note(&format!("pod/{name} still has a volume with the files"));
        let gone = |found: Option<&Pod>| found.is_none_or(|found| found.uid() != uid || !job::mounts(found, claims));
        awaited(&api, &name, "gone", gone, timeout).await?;
    }
}

/// Restores the database, or waits until a restore that has begun is complete.
async fn database(
    session: &Session,
    printer: &mut Printer,
    args: &args::Restore,
    begun: &mut Begun,
) -> Result<(), Error> {
    let name = &args.name;
    if !percona::has_cluster(&session.app(name).await?.app) {
        return restore::completed(session, printer, args).await;
    }
    let running = match &begun.by {
        Some(by) => percona::unless_failed(session, by).await?,
        None => None,
    };
    let restore = match running {
        Some(running) => running,
        None => {
            let (restore, sentence) = percona::begun(session, printer, args).await?;
            printer.note(&sentence);
            record(session, name, begun, Step::Database, Some(restore.name_any())).await?;
            restore
        }
    };
    percona::ended(session, printer, args, &restore).await
}

/// Takes a step with a Job: that of an earlier run of the command, unless it has failed or is gone.
async fn carry_out(
    session: &Session,
    printer: &mut Printer,
    args: &args::Restore,
    cron_job: &CronJob,
    begun: &mut Begun,
    make: impl Fn(&str) -> Job,
) -> Result<(), Error> {
    let found = match &begun.by {
        Some(by) => {
            let found = session.api::<Job>().get_opt(by).await;
            found.map_err(Error::api(format!("read Job {}/{by}", session.namespace)))?
        }
        None => None,
    };
    let running = found.filter(|job| !matches!(job::outcome(job), Some(Err(_))));
    let name = match running {
        Some(running) => running.name_any(),
        None => {
            let (name, step) = (job::name(cron_job, Session::now()), begun.next);
            record(session, &args.name, begun, step, Some(name.clone())).await?;
            create(session, &make(&name), false).await?;
            name
        }
    };
    ended(session, printer, &name, args.waiting.timeout).await.map(drop)
}

/// Creates a Job. With `dry_run`, the API server is only asked whether the user may do so.
async fn create(session: &Session, job: &Job, dry_run: bool) -> Result<Job, Error> {
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), dry_run };
    let made = session.api::<Job>().create(&params, job).await;
    made.map_err(Error::api(format!("create Job {}/{}", session.namespace, job.name_any())))
}

/// Waits until a Job has succeeded. If it fails, the error says why.
async fn ended(session: &Session, printer: &mut Printer, name: &str, timeout: Duration) -> Result<Job, Error> {
    let step = |job: &Job| match job::outcome(job) {
        Some(_) => wait::Step::Over,
        None => wait::Step::Waiting(job::state(job).to_owned()),
    };
    let job = followed(session, printer, name, timeout, step).await?;
    let Some(Err(why)) = job::outcome(&job) else { return Ok(job) };
    let of_job = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={name}"));
    let pods = session.api::<Pod>().list(&of_job).await.map(|pods| pods.items).unwrap_or_default();
    let why = job::last_words(&pods).unwrap_or(why);
    Err(Error::Missing(format!(
        "job/{name} has failed: {}; `kubectl logs job/{name} -n {}` shows its log",
        harmless(&why),
        session.namespace
    )))
}

/// An archive to fill the volumes of another ClientApp with.
pub(crate) struct Source(Extract);

impl Source {
    /// Its name.
    pub(crate) fn archive(&self) -> &str {
        &self.0.archive
    }
}

/// The archive of the app's files for `restore --to`, if they are asked for.
pub(crate) async fn source(session: &Session, args: &args::Restore, app: &ClientApp) -> Result<Option<Source>, Error> {
    let Some(wanted) = args.archive() else { return Ok(None) };
    let backup = settings(app).map_err(Error::Stalled)?;
    let own = backup.path(&session.namespace, &args.name);
    let path = args.files_path.as_deref().unwrap_or(&own);
    let store = bucket::of_files(backup, path, args.password_secret.as_deref());
    let archive = bucket::archive(session, backup, &store, wanted, None).await?;
    Ok(Some(Source(Extract { id: String::new(), archive, store, user: i64::from(backup.user), replace: false })))
}

/// Restores the archive into the volumes of another ClientApp, which are empty, once they exist.
pub(crate) async fn fill(
    session: &Session,
    printer: &mut Printer,
    other: &str,
    Source(what): &Source,
    timeout: Duration,
) -> Result<(), Error> {
    let (Extract { archive, store, .. }, namespace) = (what, &session.namespace);
    printer.note(&format!(
        "the files of archive {archive} follow once clientapp/{other} is deployed; after an interruption, `kubectl clientapp restore {other} -n {namespace} --only-files={archive} --files-path {} --no-backup` restores them",
        store.path
    ));
    deployed(session, printer, other, timeout).await?;
    let app = session.app(other).await?.app;
    let name = Key::new(namespace, other).files();
    let there = |found: Option<&CronJob>| found.is_some_and(|found| archive_job::is_of(found, &app));
    let found = awaited(&session.api::<CronJob>(), &name, "there", there, timeout).await?;
    let (_, cron_job) = archived(&app, &name, found).map_err(Error::Stalled)?;
    // Whatever gives it pods although it has no replicas.
    unmounted(session, printer, &job::claims(&cron_job), timeout).await?;
    let name = job::name(&cron_job, Session::now());
    let what = Extract { id: app.metadata.uid.clone().unwrap_or_default(), ..what.clone() };
    create(session, &job::extract(&cron_job, &name, &what), false).await?;
    ended(session, printer, &name, timeout).await.map(drop)
}
