//! Records in a ClientAppBackup that a drill has restored its dump. An **effect**.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::{
    Api, Client, Resource as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use crate::{
    crd::{BackupSubject, BackupSubjectKind, ClientAppBackup, Drill, Guard, Postgresql, PostgresqlStatus},
    platform::{error::api_sentence, key::Key},
};

/// Records that the drill which this status reports for the first time has restored the dumps of these ClientAppBackups. What fails is
/// logged: the next drill tells again of its own dump.
pub(super) async fn record(client: &Client, key: &Key, before: &PostgresqlStatus, after: &PostgresqlStatus) {
    let Some((dump, at)) = drilled(before, after) else { return };
    let api = Api::<Guard<ClientAppBackup>>::namespaced(client.clone(), &key.namespace);
    let listed = match api.list(&ListParams::default()).await {
        Ok(listed) => listed.items,
        Err(error) => {
            return tracing::warn!(%key, "list the ClientAppBackups of a dump that a drill has restored: {}", api_sentence(&error));
        }
    };
    let backups = listed.into_iter().filter_map(|guard| guard.object.ok());
    for backup in backups.filter(|backup| is_of(backup, key, dump)) {
        let name = backup.metadata.name.as_deref().unwrap_or_default();
        // A merge into a status does not compare the uid, which keeps it off one that was recreated since.
        let patch = json!([
            {"op": "test", "path": "/metadata/uid", "value": backup.metadata.uid},
            {"op": "add", "path": "/status/verifiedAt", "value": at},
        ]);
        let Ok(patch) = serde_json::from_value(patch) else { continue };
        if let Err(error) = api.patch_status(name, &PatchParams::default(), &Patch::Json::<()>(patch)).await {
            tracing::warn!(%key, "record in ClientAppBackup {name} that a drill has restored it: {}", api_sentence(&error));
        }
    }
}

/// Returns the dump that the last drill has restored, and when, if that is new. **Pure.**
fn drilled<'a>(before: &PostgresqlStatus, after: &'a PostgresqlStatus) -> Option<(&'a str, &'a Time)> {
    fn last(status: &PostgresqlStatus) -> Option<(&str, &Time)> {
        let Drill { last_success, dump, .. } = status.backup.as_ref()?.drill.as_ref()?;
        Some((dump.as_deref()?, last_success.as_ref()?))
    }
    last(after).filter(|now| last(before).as_ref() != Some(now))
}

/// Returns true for the backup of this Postgresql that has made this dump. **Pure.**
fn is_of(backup: &ClientAppBackup, postgresql: &Key, dump: &str) -> bool {
    let BackupSubject { kind, name } = &backup.spec.of;
    let database = match kind {
        BackupSubjectKind::Postgresql => name.clone(),
        BackupSubjectKind::ClientApp => Key::new(&postgresql.namespace, name).database(),
    };
    let made = backup.status.as_ref().and_then(|status| status.database.as_ref());
    let is_made = made.is_some_and(|made| made.kind == Postgresql::kind(&()) && made.dump.as_deref() == Some(dump));
    database == postgresql.name && is_made
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    const DUMP: &str = "20260130T030000Z-a";
    const AT: &str = "2026-02-01T05:00:00Z";

    #[test]
    fn which_drill_is_new() {
        let status = |at: Value, dump: Value| -> PostgresqlStatus {
            let drill = json!({"lastSuccess": at, "dump": dump});
            serde_json::from_value(json!({"backup": {"drill": drill}})).unwrap()
        };
        let none = PostgresqlStatus::default;
        let now = || status(json!(AT), json!(DUMP));
        for (what, before, after, is_new) in [
            ("there was none", none(), none(), false),
            ("the first", none(), now(), true),
            ("told before", now(), now(), false),
            ("the same dump again", status(json!("2026-01-25T05:00:00Z"), json!(DUMP)), now(), true),
            ("another dump", status(json!("2026-01-25T05:00:00Z"), json!("20260124T030000Z-b")), now(), true),
            ("its pod shows later than its Job", status(json!(AT), json!(null)), now(), true),
            ("the pod is not seen yet", none(), status(json!(AT), json!(null)), false),
        ] {
            let found = drilled(&before, &after).map(|(dump, at)| (dump.to_owned(), at.0.to_string()));
            assert_eq!(found, is_new.then(|| (DUMP.to_owned(), AT.to_owned())), "{what}");
        }
    }

    #[test]
    fn which_backup_has_made_the_dump() {
        for (what, of, database, expected) in [
            ("the app's", json!({"name": "acme"}), json!({"kind": "Postgresql", "name": "r", "dump": DUMP}), true),
            (
                "its database's",
                json!({"kind": "Postgresql", "name": "acme-pg"}),
                json!({"kind": "Postgresql", "name": "r", "dump": DUMP}),
                true,
            ),
            ("another app's", json!({"name": "beta"}), json!({"kind": "Postgresql", "name": "r", "dump": DUMP}), false),
            ("another dump", json!({"name": "acme"}), json!({"kind": "Postgresql", "name": "r", "dump": "x"}), false),
            ("without a name", json!({"name": "acme"}), json!({"kind": "Postgresql", "name": "r"}), false),
            ("Percona's", json!({"name": "acme"}), json!({"kind": "PerconaPGBackup", "name": DUMP}), false),
            ("none", json!({"name": "acme"}), json!(null), false),
        ] {
            let backup = json!({"metadata": {"name": "b"}, "spec": {"of": of}, "status": {"database": database}});
            let backup = serde_json::from_value(backup).unwrap();
            assert_eq!(is_of(&backup, &Key::new("ns", "acme-pg"), DUMP), expected, "{what}");
        }
    }
}
