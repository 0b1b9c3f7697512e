//! Creates the ClientAppBackups that are due by schedule or that an upgrade waits for, and deletes old ones. An **effect**.

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, Resource as _, ResourceExt as _, api::TypeMeta};

use crate::{
    clientapp::{
        context::{App, Ctx, owner_reference},
        error::Error,
        observed::file_backup::RefusedBackup,
    },
    crd::{
        BackupPart, BackupRecord, BackupSubject, BackupSubjectKind, ClientAppBackup, ClientAppBackupSpec, Reclaim,
        StorePasswordSecret, annotation, label,
    },
    deletion::recreatable,
    platform::{
        api::create_if_absent, clock, error::api_sentence, password::create_of_repository, watch::controller_uid,
    },
};

/// When a refused ClientAppBackup is tried again.
const RETRY: SignedDuration = SignedDuration::from_mins(5);

fn api(ctx: &Ctx, app: &App<'_>) -> Api<ClientAppBackup> {
    Api::namespaced(ctx.client.clone(), &app.key.namespace)
}

/// Creates a ClientAppBackup of the app's files, which goes with the app; the archive stays. A refusal is reported by the next pass,
/// and does not make the app less ready.
pub(crate) async fn create(ctx: &Ctx, app: &App<'_>, name: &str) -> Result<(), Error> {
    let mut backup = object(app, name, BackupPart::Files);
    backup.labels_mut().insert(label::FILES_OF.to_owned(), app.key.name.clone());
    let what = format!("create ClientAppBackup {}/{name}", app.key.namespace);
    let message = match create_if_absent(&api(ctx, app), None, &backup).await {
        Ok(Some(_)) => {
            ctx.memory.drop(app.key, |app| app.refused_backup = None);
            return Ok(());
        }
        Ok(None) if is_own(ctx, app, name).await? => return Ok(()),
        Ok(None) => format!("ClientAppBackup {name} exists and is not the operator's: delete it"),
        Err(error @ kube::Error::Api(_)) => format!("{what}: {}", api_sentence(&error)),
        Err(error) => return Err(Error::api(what)(error)),
    };
    tracing::warn!(app = %app.key, "{message}");
    let refused = RefusedBackup { name: name.to_owned(), message, until: clock::now() + RETRY };
    ctx.memory.put(app.key, |app| app.refused_backup = Some(refused));
    ctx.watches.apps.trigger(app.key);
    Ok(())
}

/// Creates the Secret with the password of the repository of the app's files.
pub(crate) async fn create_password(ctx: &Ctx, app: &App<'_>, secret: &StorePasswordSecret) -> Result<(), Error> {
    let created = create_of_repository(&ctx.client, &ctx.recorder, &app.reference(), None, secret).await;
    created.map_err(Error::api(format!("create Secret {}/{}", app.key.namespace, secret.name)))
}

/// Creates the ClientAppBackup of the database that an upgrade waits for, unless it exists; it goes with the app, the backup stays.
pub(crate) async fn before_upgrade(ctx: &Ctx, app: &App<'_>, record: &BackupRecord) -> Result<(), Error> {
    let BackupRecord { name, from, to, .. } = record;
    let mut backup = object(app, name, BackupPart::Database);
    backup.annotations_mut().insert(annotation::UPGRADE.to_owned(), format!("{from} -> {to}"));
    let created = create_if_absent(&api(ctx, app), None, &backup).await;
    created.map(drop).map_err(Error::api(format!("create ClientAppBackup {}/{name}", app.key.namespace)))
}

/// Builds a ClientAppBackup of one part of the app.
fn object(app: &App<'_>, name: &str, part: BackupPart) -> ClientAppBackup {
    let of = BackupSubject { kind: BackupSubjectKind::ClientApp, name: app.key.name.clone() };
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some(app.key.namespace.clone()),
        labels: Some([(label::MANAGED_BY.to_owned(), label::OPERATOR.to_owned())].into()),
        owner_references: Some(vec![owner_reference(app)]),
        ..ObjectMeta::default()
    };
    let spec = ClientAppBackupSpec { of, parts: Some(vec![part]), quiesce: false, reclaim: Reclaim::Retain };
    ClientAppBackup { metadata, spec, status: None }
}

/// Returns true if it was made by the schedule of this app, and the cache does not show it yet.
async fn is_own(ctx: &Ctx, app: &App<'_>, name: &str) -> Result<bool, Error> {
    let found = api(ctx, app).get_metadata_opt(name).await;
    let found = found.map_err(Error::api(format!("read ClientAppBackup {}/{name}", app.key.namespace)))?;
    Ok(found.is_none_or(|found| controller_uid(&found).as_deref() == Some(app.uid())))
}

fn object_type() -> TypeMeta {
    TypeMeta {
        api_version: ClientAppBackup::api_version(&()).into_owned(),
        kind: ClientAppBackup::kind(&()).into_owned(),
    }
}

/// Deletes the ClientAppBackup with this uid if it was made before an upgrade of this app and, as the API server has it now, nothing of it
/// has begun.
pub(crate) async fn withdraw(ctx: &Ctx, app: &App<'_>, name: &str, uid: &str) {
    let api = api(ctx, app);
    let deleted = match api.get_opt(name).await {
        Ok(Some(found)) if is_idle(&found, app.uid(), uid) => {
            recreatable::delete_unchanged(&api, &object_type(), found.meta()).await
        }
        found => found.map(|_| false),
    };
    match deleted {
        Ok(true) => tracing::info!(app = %app.key, backup = name, "deleted: its upgrade was withdrawn"),
        Ok(false) => {}
        // Another pass tries again; the app is no less ready meanwhile.
        Err(error) => {
            tracing::warn!(app = %app.key, "delete ClientAppBackup {}/{name}: {}", app.key.namespace, api_sentence(&error));
        }
    }
}

/// Returns true for the backup with this uid that the operator has made before an upgrade of this app, while nothing of it has begun.
/// **Pure.**
fn is_idle(found: &ClientAppBackup, app_uid: &str, uid: &str) -> bool {
    let is_ours = controller_uid(found).as_deref() == Some(app_uid)
        && found.annotations().contains_key(annotation::UPGRADE)
        && found.uid().as_deref() == Some(uid);
    is_ours && found.status.as_ref().is_none_or(|status| status.started_at.is_none() && status.database.is_none())
}

/// Deletes the ClientAppBackup with this uid. What it has made stays.
pub(crate) async fn delete(ctx: &Ctx, app: &App<'_>, name: &str, uid: &str) {
    let meta = ObjectMeta { name: Some(name.to_owned()), uid: Some(uid.to_owned()), ..ObjectMeta::default() };
    let deleted = recreatable::delete(&api(ctx, app), &object_type(), &meta).await;
    // Another pass tries again; the app is no less ready meanwhile.
    if let Err(error) = deleted {
        tracing::warn!(app = %app.key, "delete ClientAppBackup {}/{name}: {}", app.key.namespace, api_sentence(&error));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_has_begun_is_not_withdrawn() {
        let nothing = json!(null);
        let pending = json!({"phase": "Pending", "subjectUid": "app"});
        let begun = json!({"phase": "Running", "startedAt": "2026-01-31T03:00:00Z"});
        let asked = json!({"phase": "Pending", "database": {"kind": "Postgresql", "name": "r"}});
        for (what, owner, annotations, uid, status, expected) in [
            ("it was just created", "app", json!({annotation::UPGRADE: "1 -> 2"}), "b", &nothing, true),
            ("it waits", "app", json!({annotation::UPGRADE: "1 -> 2"}), "b", &pending, true),
            ("it runs", "app", json!({annotation::UPGRADE: "1 -> 2"}), "b", &begun, false),
            ("a dump is asked for", "app", json!({annotation::UPGRADE: "1 -> 2"}), "b", &asked, false),
            ("a user's", "app", json!({}), "b", &pending, false),
            ("an earlier app's", "before", json!({annotation::UPGRADE: "1 -> 2"}), "b", &pending, false),
            ("created anew", "app", json!({annotation::UPGRADE: "1 -> 2"}), "c", &pending, false),
        ] {
            let owner =
                json!([{"apiVersion": "v1", "kind": "ClientApp", "name": "acme", "uid": owner, "controller": true}]);
            let meta: Value = json!({"name": "b", "uid": uid, "annotations": annotations, "ownerReferences": owner});
            let found = json!({"metadata": meta, "spec": {"of": {"name": "acme"}}, "status": status});
            assert_eq!(is_idle(&serde_json::from_value(found).unwrap(), "app", "b"), expected, "{what}");
        }
    }
}
