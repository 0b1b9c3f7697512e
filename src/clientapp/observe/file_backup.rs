//! Observes the archives of the app's files.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{
    clientapp::{
        context::{App, Ctx},
        observed::{file_backup::FilesView, inventory},
        spec::file_backup::DesiredFiles,
    },
    crd::{Inventory, annotation},
    platform::key::Key,
};

/// Returns what exists of the archives of the app's files.
pub(super) fn files(
    ctx: &Ctx,
    app: &App<'_>,
    desired: Option<&DesiredFiles>,
    (inventory, exist): (Option<&Inventory>, &[Arc<ObjectMeta>]),
) -> FilesView {
    let key = app.key;
    let exists = |claim: &str| {
        let mut found = exist.iter().filter(|found| found.name.as_deref() == Some(claim));
        found.any(|found| found.deletion_timestamp.is_none())
    };
    let has_volumes = inventory.and_then(|inventory| {
        let mut claims = inventory::claims(inventory, &key.namespace).peekable();
        let has = claims.peek().is_some();
        claims.all(exists).then_some(has)
    });
    let secret = desired.and_then(|files| files.bucket.password_secret.as_ref());
    let secret = secret.and_then(|secret| ctx.watches.secrets.get(&Key::new(&key.namespace, &secret.name)));
    FilesView {
        has_image: ctx.image.is_some(),
        app_uid: app.uid().to_owned(),
        has_volumes,
        stopped_for: app.annotation(annotation::STOPPED_FOR).cloned(),
        password: secret.filter(|found| !found.deleting).map(|found| found.uid),
        refused: ctx.memory.read(key, |app| app.refused_backup.clone()),
        backups: ctx.watches.backups(key),
    }
}
