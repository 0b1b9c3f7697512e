//! `backups` of an app whose database is a PerconaPGCluster.

use jiff::Timestamp;
use kube::{ResourceExt as _, api::ListParams};

use super::{
    connection::Flags,
    error::Error,
    session::{Printer, Session},
    text::{BAD, FAINT, GOOD, UNSURE, age, fitted, paint, tamed},
};
use crate::{
    backup::percona::{Refusal, repository as repository_for_backup},
    crd::{
        ClientApp, PostgresProvider,
        percona::{PerconaPGBackup, PerconaPGCluster, PerconaPGRestore, READY_FOR_BACKUP},
    },
    platform::key::Key,
    restore::{
        history::SUCCEEDED,
        percona::{FAILED, Seen, is_in, reach, state},
    },
};

/// Returns true if an app's database is a PerconaPGCluster.
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
    let mut text = fitted(&["NAME", "TYPE", "STATE", "IN", "AGE"], &rows, &[IN], width);
    for (from, to) in reach(cluster, backups, restores, now).ranges {
        text += &format!("can be restored to any time from {from} to {to}\n");
    }
    text
}

#[cfg(test)]
mod tests;
