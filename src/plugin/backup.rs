//! `backup` creates a ClientAppBackup; `backups` lists the dumps of an app's database and, for a PerconaPGCluster
//! or a Cluster, see [`percona`] and [`cloudnativepg`].

use indicatif::BinaryBytes;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{Resource as _, api::ListParams};
use serde_json::Value;

use super::{
    args, cloudnativepg,
    dumps::needed,
    error::Error,
    files, percona, run_once,
    session::{Printer, Session},
    several::Tally,
    text::{BAD, FAINT, GOOD, age, paint, table, tamed},
};
use crate::{
    clientapp::spec::database,
    crd::{
        BackupSubject, BackupSubjectKind, BackupSummary, ClientApp, ClientAppBackup, ClientAppBackupSpec, Postgresql,
        Reclaim,
    },
    store::dump::Name,
};

/// Returns true if the files are all there is to back up.
fn has_files_only(app: &ClientApp) -> bool {
    let postgres = &app.spec.postgres;
    let provider = database::provider(postgres.provider).filter(|_| postgres.enabled);
    app.spec.persistence.backup.is_some() && !provider.is_some_and(|provider| provider.backs_up(postgres))
}

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::Backup) -> Result<(), Error> {
    let args::Backup { names: args::Names { names }, stop, reclaim, waiting } = args;
    let mut tally = Tally::of(names.len());
    for name in names {
        tally.keep(back_up(session, printer, name, (*stop, *reclaim), waiting).await, printer)?;
    }
    tally.end()
}

async fn back_up(
    session: &Session,
    printer: &mut Printer,
    name: &str,
    (quiesce, reclaim): (bool, Reclaim),
    waiting: &args::Waiting,
) -> Result<(), Error> {
    // A name that is mistyped is told at once.
    session.app(name).await?;
    let of = BackupSubject { kind: BackupSubjectKind::ClientApp, name: name.to_owned() };
    let backup = ClientAppBackup::new("", ClientAppBackupSpec { of, parts: None, quiesce, reclaim });
    run_once::create(session, printer, (backup, name), &format!("backs up {name}"), waiting).await
}

pub(crate) async fn list(session: &Session, printer: &mut Printer, name: &str) -> Result<(), Error> {
    let app = session.app(name).await.ok().map(|stored| stored.app);
    let archives = app.as_ref().map(|app| files::last(app, &session.flags, Session::now())).unwrap_or_default();
    if app.as_ref().is_some_and(percona::has_cluster) {
        return percona::list(session, printer, name, &archives).await;
    }
    if let Some(app) = app.as_ref().filter(|app| cloudnativepg::has_cluster(app) && !has_files_only(app)) {
        return cloudnativepg::list(session, printer, app, &archives).await;
    }
    if app.as_ref().is_some_and(has_files_only) {
        let none: [Value; 0] = [];
        return printer.objects(&none, || archives);
    }
    let found = needed(session, name).await?;
    let database: Postgresql = tamed(&found).map_err(|error| Error::Output(error.to_string()))?;
    let summary = database.status.and_then(|status| status.backup).unwrap_or_default();
    if summary.dumps.is_empty() && printer.is_for_humans() {
        let backup = session.flags.command(format!("kubectl clientapp backup {name}"));
        printer.note(&format!("{name} has no dump yet: {backup} creates one"));
    }
    // Who may not list them sees the last drill.
    let backups = session.api::<ClientAppBackup>().list(&ListParams::default()).await;
    let backups = backups.map(|backups| backups.items).unwrap_or_default();
    printer.objects(&summary.dumps, || render(&summary, &backups, Session::now()) + &archives)
}

/// Returns when a drill last restored a dump.
fn verified(dump: &str, summary: &BackupSummary, backups: &[ClientAppBackup]) -> Option<Timestamp> {
    let last = summary.drill.iter().filter(|drill| drill.dump.as_deref() == Some(dump));
    let last = last.filter_map(|drill| drill.last_success.as_ref());
    let statuses = backups.iter().filter_map(|backup| backup.status.as_ref());
    let of_dump = statuses.filter(|status| {
        let made = status.database.as_ref().filter(|made| made.kind == Postgresql::kind(&()));
        made.is_some_and(|made| made.dump.as_deref() == Some(dump))
    });
    last.chain(of_dump.filter_map(|status| status.verified_at.as_ref())).map(|at| at.0).max()
}

fn render(summary: &BackupSummary, backups: &[ClientAppBackup], now: Timestamp) -> String {
    let rows = summary.dumps.iter().map(|dump| {
        let made = paint(FAINT, age(Name::parse(&dump.name).map(|name| name.time()), now));
        let size = BinaryBytes(dump.bytes.unsigned_abs()).to_string();
        let verified = verified(&dump.name, summary, backups);
        let verified = verified.map_or_else(String::new, |at| format!("{} ago", age(Some(at), now)));
        vec![dump.name.clone(), size, dump.tables.to_string(), verified, made]
    });
    let rows: Vec<_> = rows.collect();
    let headers = ["NAME", "SIZE", "TABLES", "VERIFIED", "AGE"];
    let mut text = table(&headers, &rows);
    if let Some(drill) = &summary.drill {
        let ago = |time: &Option<Time>| time.as_ref().map(|time| format!("{} ago", age(Some(time.0), now)));
        if let (Some(dump), Some(ago)) = (&drill.dump, ago(&drill.last_success)) {
            let tables = drill.tables.map_or_else(String::new, |tables| format!(", {tables} non-empty tables"));
            text += &format!("{} {dump} was restored in a drill {ago}{tables}\n", paint(GOOD, "proven:"));
        }
        let failed_last = drill
            .last_failure
            .as_ref()
            .is_some_and(|failure| drill.last_success.as_ref().is_none_or(|success| success.0 < failure.0));
        if let (true, Some(ago), Some(message)) = (failed_last, ago(&drill.last_failure), &drill.message) {
            text += &format!("{} the drill {ago} failed: {message}\n", paint(BAD, "in doubt:"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_dumps_and_what_drills_say_of_them() {
        let summary = json!({
            "dumps": [
                {"name": "20260131T030000Z-x7k2p", "bytes": 123_456_789, "tables": 42},
                {"name": "20260130T030000Z-aaaaa", "bytes": 900, "tables": 0},
            ],
            "drill": {"lastSuccess": "2026-01-25T05:00:00Z", "dump": "20260125T030000Z-b", "tables": 41},
        });
        let now = "2026-01-31T04:00:00Z".parse().unwrap();
        let backup = |kind: &str, dump: &str| {
            serde_json::from_value(json!({
                "metadata": {"name": "b"}, "spec": {"of": {"name": "acme"}},
                "status": {"database": {"kind": kind, "name": "r", "dump": dump}, "verifiedAt": "2026-01-31T03:00:00Z"},
            }))
            .unwrap()
        };
        let backups =
            [backup("Postgresql", "20260130T030000Z-aaaaa"), backup("PerconaPGBackup", "20260131T030000Z-x7k2p")];
        let of = |summary: serde_json::Value| {
            anstream::adapter::strip_str(&render(&serde_json::from_value(summary).unwrap(), &backups, now)).to_string()
        };
        insta::assert_snapshot!(of(summary.clone()), @r"
        NAME                     SIZE         TABLES   VERIFIED   AGE
        20260131T030000Z-x7k2p   117.74 MiB   42                  60m
        20260130T030000Z-aaaaa   900 B        0        60m ago    25h
        proven: 20260125T030000Z-b was restored in a drill 5d23h ago, 41 non-empty tables
        ");
        let mut failed = summary;
        failed["drill"]["lastFailure"] = json!("2026-01-31T03:30:00Z");
        failed["drill"]["message"] = json!("dump x is damaged; see `kubectl logs job/acme-pg-drill-1`");
        insta::assert_snapshot!(of(failed), @r"
        NAME                     SIZE         TABLES   VERIFIED   AGE
        20260131T030000Z-x7k2p   117.74 MiB   42                  60m
        20260130T030000Z-aaaaa   900 B        0        60m ago    25h
        proven: 20260125T030000Z-b was restored in a drill 5d23h ago, 41 non-empty tables
        in doubt: the drill 30m ago failed: dump x is damaged; see `kubectl logs job/acme-pg-drill-1`
        ");
        assert_eq!(of(json!({})), "");
    }
}
