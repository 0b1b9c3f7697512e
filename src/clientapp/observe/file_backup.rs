//! Observes what archives the app's files.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::uncached;
use crate::{
    clientapp::{
        context::{App, Ctx},
        error::Error,
        observed::{file_backup::FilesView, inventory},
        spec::{desired::Desired, file_backup::Volume},
    },
    crd::{Inventory, annotation},
};

/// Returns what archives the app's files. The API server is asked only for a CronJob that is to be created: another of its name
/// has no label.
pub(super) async fn files(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    (inventory, exist): (Option<&Inventory>, &[Arc<ObjectMeta>]),
) -> Result<FilesView, Error> {
    let key = app.key;
    let mut cron_job = ctx.watches.cron_job(key);
    if desired.data.files.is_some() && cron_job.is_none() && inventory.is_some() {
        cron_job = uncached::cron_job(ctx, app).await?;
    }
    let volume = |claim: &str| {
        let found = exist.iter().find(|found| found.name.as_deref() == Some(claim))?;
        let uid = found.uid.clone().filter(|_| found.deletion_timestamp.is_none())?;
        Some(Volume { claim: claim.to_owned(), uid })
    };
    let volumes = inventory.and_then(|inventory| inventory::claims(inventory, &key.namespace).map(volume).collect());
    Ok(FilesView {
        image: ctx.image.clone(),
        app_uid: app.uid().to_owned(),
        volumes,
        cron_job,
        refused: ctx.memory.read(key, |app| app.refused_archives.clone()),
        stopped_for: app.annotation(annotation::STOPPED_FOR).cloned(),
        archives: ctx.watches.archives(key),
    })
}
