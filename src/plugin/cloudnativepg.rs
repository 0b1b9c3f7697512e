//! `backups` of an app whose database is a Cluster of CloudNativePG.

use jiff::Timestamp;
use kube::{ResourceExt as _, api::ListParams};

use super::{
    error::Error,
    session::{Printer, Session},
    text::{BAD, FAINT, GOOD, UNSURE, age, paint, table, tamed},
};
use crate::{
    clientapp::spec::database,
    crd::{
        ClientApp, PostgresProvider,
        cloudnativepg::{COMPLETED, CloudNativePgBackup, CloudNativePgCluster, FAILED, PENDING},
    },
};

/// Returns true if an app's database is a Cluster of CloudNativePG.
pub(crate) fn has_cluster(app: &ClientApp) -> bool {
    app.spec.postgres.enabled && app.spec.postgres.provider == PostgresProvider::CloudNativePg
}

/// Lists the backups in the archive of the app's Cluster. `archives`: a line about the archives of the app's files.
pub(crate) async fn list(
    session: &Session,
    printer: &mut Printer,
    app: &ClientApp,
    archives: &str,
) -> Result<(), Error> {
    let (name, namespace) = (database::name_in_use(app), &session.namespace);
    let app = app.name_any();
    let found = session.api::<CloudNativePgCluster>().get_opt(&name).await;
    let found = found.map_err(Error::api(format!("read Cluster {namespace}/{name}")))?;
    let status = || session.flags.command(format!("kubectl clientapp status {app}"));
    let missing = || format!("{app} has no Cluster yet: {} shows what it is waiting for", status());
    let cluster = found.ok_or_else(|| Error::Missing(missing()))?;
    let all = session.api::<CloudNativePgBackup>().list(&ListParams::default()).await;
    let all = all.map_err(Error::api(format!("list the Backups of namespace {namespace}")))?.items;
    let mut backups: Vec<_> = all.into_iter().filter(|backup| backup.is_of(&cluster)).collect();
    backups.sort_by_key(|backup| std::cmp::Reverse(backup.creation_timestamp()));
    if backups.is_empty() && printer.is_for_humans() {
        let why = match cluster.archive() {
            Some(_) => format!("{} creates one", session.flags.command(format!("kubectl clientapp backup {app}"))),
            None => format!("Cluster {name} keeps none: set spec.postgres.backup of {app}"),
        };
        printer.note(&format!("{app} has no backup yet: {why}"));
    }
    let shown: Vec<CloudNativePgBackup> = tamed(&backups).map_err(|error| Error::Output(error.to_string()))?;
    printer.objects(&backups, || render(&shown, Session::now()) + archives)
}

fn render(backups: &[CloudNativePgBackup], now: Timestamp) -> String {
    let rows = backups.iter().map(|backup| {
        let (style, state) = match backup.phase() {
            COMPLETED => (GOOD, COMPLETED),
            phase if FAILED.contains(&phase) => (BAD, phase),
            "" => (UNSURE, PENDING),
            phase => (UNSURE, phase),
        };
        let id = backup.status.as_ref().and_then(|status| status.backup_id.clone());
        let made = backup.creation_timestamp().map(|time| time.0);
        vec![backup.name_any(), id.unwrap_or_default(), paint(style, state), paint(FAINT, age(made, now))]
    });
    let rows: Vec<_> = rows.collect();
    table(&["NAME", "ID", "STATE", "AGE"], &rows)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_backups_by_their_phase() {
        let backup = |name: &str, status: Value| -> CloudNativePgBackup {
            let metadata = json!({"name": name, "creationTimestamp": "2026-01-31T03:00:00Z"});
            let spec = json!({"cluster": {"name": "acme-pg"}});
            serde_json::from_value(json!({"metadata": metadata, "spec": spec, "status": status})).unwrap()
        };
        let backups = [
            backup("acme-pg-5f0c2c0e8a", json!(null)),
            backup("acme-pg-20260131030000", json!({"phase": "completed", "backupId": "20260131T030000"})),
            backup("acme-pg-20260130030000", json!({"phase": "failed"})),
        ];
        let text = render(&backups, "2026-01-31T04:00:00Z".parse().unwrap());
        insta::assert_snapshot!(anstream::adapter::strip_str(&text).to_string(), @r"
        NAME                     ID                STATE       AGE
        acme-pg-5f0c2c0e8a                         pending     60m
        acme-pg-20260131030000   20260131T030000   completed   60m
        acme-pg-20260130030000                     failed      60m
        ");
        assert_eq!(render(&[], Timestamp::MAX), "");
    }
}
