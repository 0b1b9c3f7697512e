//! `backups` and `restore` of an app whose database is a PerconaPGCluster. They create PerconaPGBackups and
//! PerconaPGRestores, which the Percona operator carries out, and report their progress.

use std::time::Duration;

use jiff::{Timestamp, fmt::strtime};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Resource, ResourceExt as _,
    api::{ListParams, PostParams},
    core::NamespaceResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    args::{self, LATEST},
    delete::{agreed, can_agree},
    error::Error,
    session::{FIELD_MANAGER, Printer, Session, Stored},
    text::{BAD, FAINT, GOOD, UNSURE, age, fitted, paint, tamed},
    wait::{self, Step, followed},
};
use crate::{
    backup::percona::{Refusal, repository as repository_for_backup},
    crd::{
        ClientApp, PerconaDataSource, PostgresProvider,
        percona::{
            PerconaPGBackup, PerconaPGBackupSpec, PerconaPGCluster, PerconaPGRestore, PerconaPGRestoreSpec,
            READY_FOR_BACKUP, up_to_backup, up_to_time,
        },
    },
    platform::key::Key,
};

mod history;

use self::history::{SUCCEEDED, completed, is_of};

const FAILED: &str = "Failed";

/// Whether an app's database is a PerconaPGCluster.
pub(crate) fn has_cluster(app: &ClientApp) -> bool {
    app.spec.postgres.enabled && app.spec.postgres.provider == PostgresProvider::Percona
}

/// An app's cluster, its backups and its restores.
struct Seen {
    cluster: PerconaPGCluster,
    backups: Vec<PerconaPGBackup>,
    restores: Vec<PerconaPGRestore>,
}

/// `archives`: a line about the archives of the app's files.
pub(crate) async fn list(session: &Session, printer: &mut Printer, app: &str, archives: &str) -> Result<(), Error> {
    let seen = seen(session, app).await?;
    let backups: Vec<PerconaPGBackup> = tamed(&seen.backups).map_err(|error| Error::Output(error.to_string()))?;
    if backups.is_empty() && printer.is_for_humans() {
        let why = may_back_up(app, &seen.cluster).err();
        let why = why.unwrap_or_else(|| format!("`kubectl clientapp backup {app}` creates one"));
        printer.note(&format!("{app} has no backup yet: {why}"));
    }
    let width = printer.width();
    let seen_now = || render(&seen.cluster, (&backups, &seen.restores), width, Session::now());
    printer.objects(&seen.backups, || seen_now() + archives)
}

pub(crate) async fn restore(
    session: &Session,
    printer: &mut Printer,
    args: &args::Restore,
    stored: &Stored,
) -> Result<(), Error> {
    let args::Restore {
        name: app,
        from: _,
        time: _,
        store: _,
        // The caller restores the files.
        files: _,
        only_files: _,
        files_path: _,
        password_secret: _,
        to: _,
        hostname: _,
        no_backup: _,
        yes,
        waiting,
    } = args;
    let foreseen = foreseen(session, args).await?;
    if !yes {
        can_agree("restore")?;
        printer.note(&foreseen);
        agreed(app, "nothing restored")?;
    }
    let (restore, sentence) = begun(session, printer, args).await?;
    if !waiting.wait {
        printer.note(&format!("once it is complete, `kubectl clientapp backup {app}` backs up the restored database"));
        return printer.object(&restore, &sentence);
    }
    printer.note(&sentence);
    ended(session, printer, args, &restore).await?;
    let sentence = format!("perconapgrestore/{}: restored", restore.name_any());
    wait::asked(session, printer, &stored.object, &sentence, waiting, None).await
}

/// What a restore would do, or why it cannot begin.
pub(crate) async fn foreseen(session: &Session, args: &args::Restore) -> Result<String, Error> {
    checked(session, args).await.map(|_| consequence(args))
}

async fn checked(session: &Session, args: &args::Restore) -> Result<(Seen, PerconaPGRestoreSpec), Error> {
    let args::Restore { name: app, no_backup, .. } = args;
    without_store(args)?;
    let found = seen(session, app).await?;
    let spec = may_restore(app, &found, args, Session::now()).map_err(Error::Stalled)?;
    if !no_backup {
        may_back_up(app, &found.cluster).map_err(|why| {
            Error::Stalled(format!("{why}; with --no-backup, the current content of the database is lost"))
        })?;
    }
    Ok((found, spec))
}

/// Backs up the current content and begins the restore; the text says so.
pub(crate) async fn begun(
    session: &Session,
    printer: &mut Printer,
    args: &args::Restore,
) -> Result<(PerconaPGRestore, String), Error> {
    let args::Restore { name: app, no_backup, waiting, .. } = args;
    let (found, spec) = checked(session, args).await?;
    if !no_backup {
        printer.note("backing up the current content of the database");
        // Not a full backup: it would expire the oldest one, which may be the one to restore.
        let backup = asked(session, app, &found.cluster, &[]).await?.name_any();
        backed_up(session, printer, &backup, waiting.timeout).await?;
        printer.note(&format!("`kubectl clientapp restore {app} --from {backup}` would bring it back"));
    }
    let restore = create(session, PerconaPGRestore::new("", spec), &found.cluster.name_any()).await?;
    let sentence = format!("perconapgrestore/{} restores the database of {app} {}", restore.name_any(), state_of(args));
    Ok((restore, sentence))
}

/// A restore that runs or has succeeded.
pub(crate) async fn unless_failed(session: &Session, name: &str) -> Result<Option<PerconaPGRestore>, Error> {
    let found = session.api::<PerconaPGRestore>().get_opt(name).await;
    let found = found.map_err(Error::api(format!("read PerconaPGRestore {}/{name}", session.namespace)))?;
    let state = |restore: &PerconaPGRestore| restore.status.as_ref().and_then(|status| status.state.clone());
    Ok(found.filter(|found| state(found).as_deref() != Some(FAILED)))
}

/// Waits until the database is restored, and backs it up.
pub(crate) async fn ended(
    session: &Session,
    printer: &mut Printer,
    args: &args::Restore,
    restore: &PerconaPGRestore,
) -> Result<(), Error> {
    let args::Restore { name: app, waiting, .. } = args;
    restored(session, printer, restore, waiting.timeout).await?;
    if let Err(error) = back_up_restored(session, printer, app, waiting.timeout).await {
        printer.note(&format!("the restored database is not backed up: {error}; run `kubectl clientapp backup {app}`"));
    }
    Ok(())
}

fn without_store(args: &args::Restore) -> Result<(), Error> {
    match args.store {
        true => Err(Error::Usage("Percona restores from the cluster's own repository: omit --store".to_owned())),
        false => Ok(()),
    }
}

/// What the database of another ClientApp is created from.
pub(crate) async fn source(session: &Session, args: &args::Restore) -> Result<PerconaDataSource, Error> {
    without_store(args)?;
    let mut found = seen(session, &args.name).await?;
    // One that still runs is not disturbed: this cluster is only read.
    found.backups.retain(|backup| matches!(state(backup), SUCCEEDED | FAILED));
    data_source(&args.name, &found, args, Session::now()).map_err(Error::Stalled)
}

/// The requested data source, or the reason why no cluster can be created from it: what can be restored into this cluster can be restored
/// into another one, as far as the field tells Percona which backup to begin with. **Pure.**
fn data_source(app: &str, seen: &Seen, args: &args::Restore, now: Timestamp) -> Result<PerconaDataSource, String> {
    let cluster = seen.cluster.name_any();
    // Percona would choose the backup to begin with, and may choose one that an earlier restore has undone.
    if args.from == LATEST && !seen.restores.is_empty() {
        return Err(format!(
            "PerconaPGCluster {cluster} was restored before, so another cluster might miss the state: name a backup with --from; `kubectl clientapp backups {app}` lists them"
        ));
    }
    let nothing_is_lost = args::Restore { no_backup: true, ..args.clone() };
    let spec = may_restore(app, seen, &nothing_is_lost, now)?;
    let first = seen.cluster.spec.backups.repositories().first().map(ToString::to_string);
    if spec.repo_name != first {
        return Err(format!(
            "the backup is in {} of PerconaPGCluster {cluster}, and another cluster is created from the backups in its first repository: create the other ClientApp yourself, with spec.postgres.percona.dataSource.repository",
            spec.repo_name.unwrap_or_default()
        ));
    }
    let backup = seen.backups.iter().find(|backup| args.from != LATEST && backup.name_any() == args.from);
    let backup = backup.and_then(|backup| backup.status.as_ref()?.result.backup_name.clone());
    Ok(PerconaDataSource { cluster: Some(cluster), repository: None, backup, time: args.time.map(Time) })
}

/// So that a later restore need not start from a backup of before this one.
async fn back_up_restored(session: &Session, printer: &mut Printer, app: &str, timeout: Duration) -> Result<(), Error> {
    let cluster = cluster(session, app).await?;
    let backup = asked(session, app, &cluster, &[]).await?.name_any();
    printer.note(&format!("perconapgbackup/{backup} backs up the restored database"));
    backed_up(session, printer, &backup, timeout).await.map(drop)
}

async fn cluster(session: &Session, app: &str) -> Result<PerconaPGCluster, Error> {
    let name = Key::new(&session.namespace, app).database();
    let found = session.api::<PerconaPGCluster>().get_opt(&name).await;
    let found = found.map_err(Error::api(format!("read PerconaPGCluster {}/{name}", session.namespace)))?;
    found.ok_or_else(|| {
        Error::Missing(format!("{app} has no PerconaPGCluster yet: check `kubectl clientapp status {app}`"))
    })
}

async fn seen(session: &Session, app: &str) -> Result<Seen, Error> {
    let cluster = cluster(session, app).await?;
    let name = cluster.name_any();
    let all = ListParams::default();
    let listing = |what: &str| Error::api(format!("list the {what} of namespace {}", session.namespace));
    let backups = session.api::<PerconaPGBackup>().list(&all).await.map_err(listing("PerconaPGBackups"))?;
    let restores = session.api::<PerconaPGRestore>().list(&all).await.map_err(listing("PerconaPGRestores"))?;
    let mut backups: Vec<_> = backups.items.into_iter().filter(|backup| backup.spec.pg_cluster == name).collect();
    backups.sort_by_key(|backup| std::cmp::Reverse(backup.creation_timestamp()));
    let restores = restores.items.into_iter().filter(|restore| restore.spec.pg_cluster == name).collect();
    Ok(Seen { cluster, backups, restores })
}

/// The repository for a backup if the Percona operator would carry one out now, or the reason why it would not. **Pure.**
fn may_back_up(app: &str, cluster: &PerconaPGCluster) -> Result<String, String> {
    let name = cluster.name_any();
    repository_for_backup(cluster).map_err(|refusal| match refusal {
        Refusal::KeepsNone => format!(
            "PerconaPGCluster {name} keeps no backups: set spec.postgres.percona.schedules, keep or repository of {app} to start keeping them"
        ),
        Refusal::Restoring => {
            format!("PerconaPGCluster {name} is being restored: `kubectl get perconapgrestores` shows the progress")
        }
        Refusal::NotReady => format!(
            "PerconaPGCluster {name} is not ready for a backup: `kubectl describe perconapgcluster {name}` shows why, in the condition {READY_FOR_BACKUP}"
        ),
    })
}

/// The spec of the requested restore, or the reason why it cannot start. **Pure.**
fn may_restore(app: &str, seen: &Seen, args: &args::Restore, now: Timestamp) -> Result<PerconaPGRestoreSpec, String> {
    let Seen { cluster, backups, restores } = seen;
    let name = cluster.name_any();
    let lists = format!("`kubectl clientapp backups {app}` lists them");
    let Some(newest) = cluster.spec.backups.repositories().last().map(ToString::to_string) else {
        return Err(format!("PerconaPGCluster {name} keeps no backups: there is nothing to restore it from"));
    };
    let runs = |restore: &&PerconaPGRestore| {
        let state = restore.status.as_ref().and_then(|status| status.state.as_deref());
        !matches!(state, Some(SUCCEEDED | FAILED)) && restore.metadata.deletion_timestamp.is_none()
    };
    if let Some(running) = restores.iter().find(runs) {
        let running = running.name_any();
        return Err(format!(
            "{app} is already being restored: `kubectl get perconapgrestore {running}` shows the progress"
        ));
    }
    if cluster.spec.backups.is_restoring() {
        return Err(format!("PerconaPGCluster {name} is already being restored"));
    }
    if let Some(running) = backups.iter().find(|backup| !matches!(state(backup), SUCCEEDED | FAILED)) {
        let running = running.name_any();
        return Err(format!(
            "PerconaPGBackup {running} is still running, and a restore would abort it: wait until it ends, or delete it"
        ));
    }
    let usable = |backup: &&PerconaPGBackup| state(backup) == SUCCEEDED && is_in(cluster, backup);
    if !backups.iter().any(|backup| usable(&backup)) {
        return Err(format!("{app} has no backup that can be restored: {lists}"));
    }
    let spec = |repository: String, options| PerconaPGRestoreSpec {
        pg_cluster: name.clone(),
        repo_name: Some(repository),
        options,
    };
    if args.time.is_none() && args.from == LATEST && !args.no_backup {
        return Err(
            "the newest state is the current one: name a backup with --from or a time with --time, or add --no-backup"
                .to_owned(),
        );
    }
    if args.time.is_some() || args.from == LATEST {
        let Reach { bases, line, ranges } = reach(cluster, backups, restores, now);
        let to = args.time.unwrap_or(now);
        let Some(first) = bases.iter().map(|(end, _)| *end).min() else {
            return Err(format!(
                "{app} has no backup in {newest} that the current content of the database is based on, since an earlier restore has undone them: choose one with --from; {lists}"
            ));
        };
        if to < first {
            return Err(format!("{to} is before the first backup of {app}, which was complete at {first}: {lists}"));
        }
        if to > now {
            return Err(format!("{to} is in the future"));
        }
        if !history::is_on(&line, to) {
            return Err(format!(
                "{to} was undone by an earlier restore and cannot be reached any more{}",
                sentence(&ranges)
            ));
        }
        let reached = |time: Timestamp| ranges.iter().any(|(from, to)| *from <= time && time <= *to);
        if let Some(time) = args.time.filter(|time| !ranges.is_empty() && !reached(*time)) {
            return Err(format!("the archive is not known to reach {time}{}", sentence(&ranges)));
        }
        // On its own, pgBackRest would take the last backup before that time, even if an earlier restore has undone it.
        let base = bases.into_iter().filter(|(end, _)| *end <= to).max().map(|(_, label)| label);
        let mut options = args.time.map_or_else(Vec::new, up_to_time);
        options.extend(base.map(|label| format!("--set={label}")));
        return Ok(spec(newest, options));
    }
    let Some(backup) = backups.iter().find(|backup| backup.name_any() == args.from) else {
        return Err(format!("{app} has no backup {}: {lists}", args.from));
    };
    let label = backup.status.as_ref().and_then(|status| status.result.backup_name.clone());
    match label.filter(|_| usable(&backup)) {
        Some(label) => Ok(spec(repository(backup), up_to_backup(&label))),
        None if state(backup) == SUCCEEDED && !is_of(cluster, &backup.metadata) => Err(format!(
            "backup {} is older than PerconaPGCluster {name}, and not in its repositories: it was made from an earlier cluster of that name",
            args.from
        )),
        None if state(backup) == SUCCEEDED => Err(format!(
            "backup {} is not in a repository of PerconaPGCluster {name}: create a new ClientApp whose spec.postgres.percona.dataSource is the repository with the backup",
            args.from
        )),
        None => Err(format!("backup {} has failed: {lists}", args.from)),
    }
}

/// What is lost and what is kept. **Pure.**
fn consequence(args: &args::Restore) -> String {
    let now = match args.no_backup {
        true => "The current content of the database is LOST: it is not backed up first.",
        false => "The current content of the database is backed up first.",
    };
    let files = if args.files.is_some() { "" } else { "The app's files stay as they are. " };
    format!(
        "This restores the database of {} {}. {now}\n{files}During the restore the app has no database.",
        args.name,
        state_of(args)
    )
}

/// The state to restore, worded as the end of a sentence.
pub(crate) fn state_of(args: &args::Restore) -> String {
    match (args.time, args.from.as_str()) {
        (Some(time), _) => format!("to its state at {time}"),
        (None, LATEST) => "to the newest archived state".to_owned(),
        (None, from) => format!("to its state in backup {from}"),
    }
}

fn state(backup: &PerconaPGBackup) -> &str {
    let state = backup.status.as_ref().and_then(|status| status.state.as_deref()).unwrap_or_default();
    if state.is_empty() { "Waiting" } else { state }
}

fn repository(backup: &PerconaPGBackup) -> String {
    backup.spec.repo_name.clone().unwrap_or_default()
}

/// The latest time that a database can be restored to, as far as the Percona operator has observed it.
fn restorable(backup: &PerconaPGBackup) -> Option<Timestamp> {
    let text = backup.status.as_ref()?.result.latest_restorable_time.as_ref()?;
    strtime::parse("%Y-%m-%d %H:%M:%S%.f%z", text).ok()?.to_timestamp().ok()
}

/// Whether a backup is in one of the cluster's current repositories. An earlier cluster of the same name may have had others, and its
/// volume is gone.
fn is_in(cluster: &PerconaPGCluster, backup: &PerconaPGBackup) -> bool {
    let told = backup.status.as_ref().and_then(|status| status.result.destination.clone()).unwrap_or_default();
    let here = cluster.spec.backups.destination(&repository(backup)).is_some_and(|place| told == place);
    here && (!told.is_empty() || is_of(cluster, &backup.metadata))
}

/// What a point-in-time restore can reach.
struct Reach {
    /// Backups in the newest repository that the current content of the database is based on: the time of completion and the label.
    bases: Vec<(Timestamp, String)>,
    line: history::Line,
    /// The times that can be restored to, as far as the Percona operator has observed; empty if it has not.
    ranges: history::Line,
}

fn reach(
    cluster: &PerconaPGCluster,
    backups: &[PerconaPGBackup],
    restores: &[PerconaPGRestore],
    now: Timestamp,
) -> Reach {
    let newest = cluster.spec.backups.repositories().last().map(ToString::to_string);
    let line = history::line(&history::done(cluster, restores, backups), now);
    let usable = || {
        let good = backups.iter().filter(|backup| state(backup) == SUCCEEDED && is_in(cluster, backup));
        let good = good.filter(|backup| newest.as_ref() == Some(&repository(backup)));
        good.filter(|backup| completed(backup).is_some_and(|end| history::is_on(&line, end)))
    };
    let label = |backup: &PerconaPGBackup| backup.status.as_ref()?.result.backup_name.clone();
    let bases: Vec<_> = usable().filter_map(|backup| Some((completed(backup)?, label(backup)?))).collect();
    let ends: Vec<_> = bases.iter().map(|(end, _)| *end).collect();
    let last = usable().filter_map(restorable).max();
    let ranges = last.map_or_else(Vec::new, |last| history::ranges(&line, &ends, last));
    Reach { bases, line, ranges }
}

/// Ends a message of refusal.
fn sentence(ranges: &history::Line) -> String {
    let each: Vec<_> = ranges.iter().map(|(from, to)| format!("between {from} and {to}")).collect();
    if each.is_empty() { String::new() } else { format!(": name a time {}", each.join(", or ")) }
}

fn render(
    cluster: &PerconaPGCluster,
    (backups, restores): (&[PerconaPGBackup], &[PerconaPGRestore]),
    width: Option<usize>,
    now: Timestamp,
) -> String {
    /// The column that is cut where it does not fit.
    const IN: usize = 3;
    let rows = backups.iter().map(|backup| {
        let style = match state(backup) {
            SUCCEEDED if is_in(cluster, backup) => GOOD,
            FAILED => BAD,
            _ => UNSURE,
        };
        let result = backup.status.as_ref().map(|status| status.result.clone()).unwrap_or_default();
        let place = result.destination.filter(|place| !place.is_empty()).unwrap_or_else(|| "volume".to_owned());
        let made = backup.creation_timestamp().map(|time| time.0);
        vec![
            backup.name_any(),
            result.backup_type.unwrap_or_default(),
            paint(style, state(backup)),
            place,
            paint(FAINT, age(made, now)),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let mut text = match rows.is_empty() {
        true => String::new(),
        false => fitted(&["NAME", "TYPE", "STATE", "IN", "AGE"], &rows, &[IN], width),
    };
    for (from, to) in reach(cluster, backups, restores, now).ranges {
        text += &format!("can be restored to any time from {from} to {to}\n");
    }
    text
}

/// Requests a backup.
async fn asked(
    session: &Session,
    app: &str,
    cluster: &PerconaPGCluster,
    options: &[&str],
) -> Result<PerconaPGBackup, Error> {
    let repository = may_back_up(app, cluster).map_err(Error::Stalled)?;
    let pg_cluster = cluster.name_any();
    let prefix = format!("{pg_cluster}-by-hand");
    let spec = PerconaPGBackupSpec {
        pg_cluster,
        repo_name: Some(repository),
        options: options.iter().map(ToString::to_string).collect(),
    };
    create(session, PerconaPGBackup::new("", spec), &prefix).await
}

/// Creates an object whose name contains the time.
async fn create<K>(session: &Session, mut object: K, prefix: &str) -> Result<K, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Serialize,
{
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let what = format!("create a {} in namespace {}", K::kind(&()), session.namespace);
    // Two may be requested within the same second.
    object.meta_mut().generate_name = Some(format!("{prefix}-{}-", Session::now().strftime("%Y%m%dt%H%M%Sz")));
    object.meta_mut().name = None;
    session.api::<K>().create(&params, &object).await.map_err(Error::api(what))
}

async fn backed_up(
    session: &Session,
    printer: &mut Printer,
    name: &str,
    timeout: Duration,
) -> Result<PerconaPGBackup, Error> {
    let over = |backup: &PerconaPGBackup| match state(backup) {
        SUCCEEDED => Step::Over,
        FAILED => {
            let why = backup.status.as_ref().and_then(|status| status.error.clone());
            let why = why.unwrap_or_else(|| "check the log of the Job that it names".to_owned());
            Step::Failed(format!("PerconaPGBackup {name} has failed: {why}"))
        }
        state => Step::Waiting(state.to_owned()),
    };
    followed(session, printer, name, timeout, over).await
}

/// Waits until a restore has succeeded and the cluster serves again.
async fn restored(
    session: &Session,
    printer: &mut Printer,
    restore: &PerconaPGRestore,
    timeout: Duration,
) -> Result<(), Error> {
    let (name, cluster) = (restore.name_any(), &restore.spec.pg_cluster);
    let over = |restore: &PerconaPGRestore| match restore
        .status
        .as_ref()
        .and_then(|status| status.state.as_deref())
        .unwrap_or_default()
    {
        SUCCEEDED if is_of_an_earlier_one(restore) => Step::Failed(format!(
            "PerconaPGRestore {name} restored nothing: Percona took the end of an earlier restore for its own; retry"
        )),
        SUCCEEDED => Step::Over,
        FAILED => Step::Failed(format!(
            "PerconaPGRestore {name} has failed, and the database may be partially restored: `kubectl logs job/{cluster}-pgbackrest-restore` says why; restore another backup, or retry this one, with --no-backup"
        )),
        "" => Step::Waiting("Waiting".to_owned()),
        state => Step::Waiting(state.to_owned()),
    };
    followed(session, printer, &name, timeout, over).await?;
    let serves = |cluster: &PerconaPGCluster| {
        let state = cluster.status.as_ref().and_then(|status| status.state.clone()).unwrap_or_default();
        if state == "ready" && !cluster.spec.backups.is_restoring() { Step::Over } else { Step::Waiting(state) }
    };
    followed(session, printer, cluster, timeout, serves).await.map(|_| ())
}

/// Returns whether a restore is called over for the Job of one before: Percona 2.9.0 reads the status of that Job if it is not yet
/// deleted when the next restore starts. Of a failure, it reports no time.
fn is_of_an_earlier_one(restore: &PerconaPGRestore) -> bool {
    let completed = restore.status.as_ref().and_then(|status| status.completed.as_ref());
    let created = restore.metadata.creation_timestamp.as_ref();
    completed.zip(created).is_some_and(|(completed, created)| completed < created)
}

#[cfg(test)]
mod tests;
