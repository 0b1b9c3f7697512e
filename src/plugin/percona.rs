//! `backups` of an app whose database is a PerconaPGCluster, and what another ClientApp can be created from.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{ResourceExt as _, api::ListParams};

use super::{
    args::{self, LATEST},
    connection::Flags,
    error::Error,
    session::{Printer, Session},
    text::{BAD, FAINT, GOOD, UNSURE, age, fitted, paint, tamed},
};
use crate::{
    backup::percona::{Refusal, repository as repository_for_backup},
    crd::{
        ClientApp, PerconaDataSource, PostgresProvider,
        percona::{PerconaPGBackup, PerconaPGCluster, PerconaPGRestore, READY_FOR_BACKUP},
    },
    platform::key::Key,
    restore::{
        history::SUCCEEDED,
        percona::{FAILED, Seen, is_in, may_restore, reach, state},
    },
};

/// Whether an app's database is a PerconaPGCluster.
pub(crate) fn has_cluster(app: &ClientApp) -> bool {
    app.spec.postgres.enabled && app.spec.postgres.provider == PostgresProvider::Percona
}

/// `archives`: a line about the archives of the app's files.
pub(crate) async fn list(session: &Session, printer: &mut Printer, app: &str, archives: &str) -> Result<(), Error> {
    let seen = seen(session, app).await?;
    let backups: Vec<PerconaPGBackup> = tamed(&seen.backups).map_err(|error| Error::Output(error.to_string()))?;
    if backups.is_empty() && printer.is_for_humans() {
        let backup = session.flags.command(format!("kubectl clientapp backup {app}"));
        let refusal = no_backup(app, &seen.cluster, &session.flags);
        let why = refusal.unwrap_or_else(|| format!("{backup} creates one"));
        printer.note(&format!("{app} has no backup yet: {why}"));
    }
    let width = printer.width();
    let seen_now = || render(&seen.cluster, (&backups, &seen.restores), width, Session::now());
    printer.objects(&seen.backups, || seen_now() + archives)
}

/// What the database of another ClientApp is created from.
pub(crate) async fn source(session: &Session, args: &args::Restore) -> Result<PerconaDataSource, Error> {
    if args.store {
        return Err(Error::Usage("Percona restores from the cluster's own repository: omit --store".to_owned()));
    }
    let mut found = seen(session, &args.name).await?;
    // One that still runs is not disturbed: this cluster is only read.
    found.backups.retain(|backup| matches!(state(backup), SUCCEEDED | FAILED));
    data_source(&found, args, &session.flags, Session::now()).map_err(Error::Stalled)
}

/// The requested data source, or the reason why no cluster can be created from it: what can be restored into this cluster can be restored
/// into another one, as far as the field tells Percona which backup to begin with. **Pure.**
fn data_source(seen: &Seen, args: &args::Restore, flags: &Flags, now: Timestamp) -> Result<PerconaDataSource, String> {
    let app = &args.name;
    let cluster = seen.cluster.name_any();
    // Percona would choose the backup to begin with, and may choose one that an earlier restore has undone.
    if args.from == LATEST && !seen.restores.is_empty() {
        return Err(format!(
            "PerconaPGCluster {cluster} was restored before, so another cluster might miss the state: name a backup with --from; {} lists them",
            flags.command(format!("kubectl clientapp backups {app}"))
        ));
    }
    // This cluster is only read, so nothing of it is lost.
    let spec = may_restore(app, seen, (&args.from, args.time), false, now)?;
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

async fn cluster(session: &Session, app: &str) -> Result<PerconaPGCluster, Error> {
    let name = Key::new(&session.namespace, app).database();
    let found = session.api::<PerconaPGCluster>().get_opt(&name).await;
    let found = found.map_err(Error::api(format!("read PerconaPGCluster {}/{name}", session.namespace)))?;
    let status = || session.flags.command(format!("kubectl clientapp status {app}"));
    let missing = || format!("{app} has no PerconaPGCluster yet: {} shows what it is waiting for", status());
    found.ok_or_else(|| Error::Missing(missing()))
}

async fn seen(session: &Session, app: &str) -> Result<Seen, Error> {
    let cluster = cluster(session, app).await?;
    let all = ListParams::default();
    let listing = |what: &str| Error::api(format!("list the {what} of namespace {}", session.namespace));
    let backups = session.api::<PerconaPGBackup>().list(&all).await.map_err(listing("PerconaPGBackups"))?;
    let restores = session.api::<PerconaPGRestore>().list(&all).await.map_err(listing("PerconaPGRestores"))?;
    Ok(Seen::of(cluster, backups.items, restores.items))
}

/// Returns the reason why the Percona operator would not carry out a backup now, if it would not. **Pure.**
fn no_backup(app: &str, cluster: &PerconaPGCluster, flags: &Flags) -> Option<String> {
    let name = cluster.name_any();
    Some(match repository_for_backup(cluster).err()? {
        Refusal::KeepsNone => format!(
            "PerconaPGCluster {name} keeps no backups: set spec.postgres.percona.schedules, keep or repository of {app} to start keeping them"
        ),
        Refusal::Restoring => {
            let restores = flags.command("kubectl get perconapgrestores");
            format!("PerconaPGCluster {name} is being restored: {restores} shows the progress")
        }
        Refusal::Unaware => format!(
            "PerconaPGCluster {name} does not know its new repository for backups yet: try again in a minute, and see {}",
            flags.command(format!("kubectl describe perconapgcluster {name}"))
        ),
        Refusal::NotReady => format!(
            "PerconaPGCluster {name} is not ready for a backup: {} shows why, in the condition {READY_FOR_BACKUP}",
            flags.command(format!("kubectl describe perconapgcluster {name}"))
        ),
    })
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

#[cfg(test)]
mod tests;
