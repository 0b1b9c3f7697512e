//! Observes the database and the backup that an upgrade waits for.

use super::secrets;
use crate::{
    clientapp::{
        context::Ctx,
        error::Error,
        observed::{
            owned,
            types::{BackupView, DatabaseView, ScheduledBackups},
        },
        spec::{
            database::{DatabaseCaches, DesiredDatabase, DesiredObject},
            desired::Desired,
        },
    },
    crd::{BackupRecord, BackupState, Owned},
    platform::{key::Key, warnings},
};

pub(super) async fn view(ctx: &Ctx, desired: &Desired, uid: &str, owned: &[Owned]) -> Result<DatabaseView, Error> {
    let key = &desired.key;
    let Some(DesiredDatabase { address, object }) = &desired.database else { return Ok(DatabaseView::default()) };
    // The user names this Secret, so its owner does not matter.
    let secret = secrets::keys(ctx, &Key::new(&key.namespace, &address.secret)).await?;
    let Some(DesiredObject { provider, name, .. }) = object else {
        return Ok(DatabaseView { secret, ..DatabaseView::default() });
    };
    let service = Key::new(&key.namespace, provider.service(key));
    let DatabaseCaches { objects, endpoints, warnings, .. } = ctx.watches.of(*provider);
    let found = ctx.watches.database(*provider, key);
    let warnings = warnings.as_ref().zip(found.as_ref()).and_then(|((kind, warnings), found)| {
        let about = warnings::group(&key.namespace, kind, name);
        warnings::quoted(warnings, &about, found.progressed)
    });
    Ok(DatabaseView {
        kind: objects.availability(),
        app_uid: uid.to_owned(),
        recorded_uid: owned::uid(owned, provider.kind(), name).map(str::to_owned),
        object: found,
        secret,
        warnings,
        scheduled: object.as_ref().map(|object| scheduled(ctx, key, object)).unwrap_or_default(),
        reachable: endpoints.as_ref().is_none_or(|slices| slices.group(&service).iter().any(|(_, ready)| *ready)),
    })
}

/// Returns the backups that the database's operator makes by schedule.
fn scheduled(ctx: &Ctx, key: &Key, object: &DesiredObject) -> ScheduledBackups {
    let schedules = object.backup_schedules();
    let Some(backups) = ctx.watches.of(object.provider).backups.as_ref().filter(|_| !schedules.is_empty()) else {
        return ScheduledBackups::default();
    };
    let seen = backups.objects.group(&Key::new(&key.namespace, &object.name));
    let failed = seen.iter().filter(|(_, backup)| backup.progress.0 == BackupState::Failed);
    let failed =
        failed.filter_map(|(name, backup)| Some((backup.created?, name.name.clone(), backup.progress.1.clone())));
    ScheduledBackups {
        schedules,
        last_success: seen.iter().filter_map(|(_, backup)| backup.completed).max(),
        last_failure: failed.max(),
    }
}

pub(super) fn backup(ctx: &Ctx, desired: &Desired, record: BackupRecord) -> BackupView {
    let key = &desired.key;
    let seen =
        desired.database_object().and_then(|DesiredObject { provider, .. }| match &ctx.watches.of(*provider).backups {
            Some(backups) => backups.objects.get(&Key::new(&key.namespace, &record.name)).map(|seen| seen.progress),
            None => {
                let (word, progress) = ctx.watches.database(*provider, key)?.last_backup?;
                (word == record.name).then_some(progress)
            }
        });
    let state = seen.as_ref().map_or(record.state, |(state, _)| *state);
    BackupView { record: BackupRecord { state, ..record }, seen }
}
