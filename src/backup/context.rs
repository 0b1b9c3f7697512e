//! Holds what all reconciles of ClientAppBackups share, and the start of the controller. An effect.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::{
    crd::{ClientAppBackup, ClientAppBackupStatus},
    platform::{
        controller::{ControllerContext, Objects, control},
        reconciled::Reconciled,
        status::Statuses,
    },
};

/// The ClientAppBackup of one reconcile.
pub(super) type Backup<'a> = Reconciled<'a, ClientAppBackup, ClientAppBackupStatus>;

pub(super) struct BackupContext {
    pub(super) parts: ControllerContext,
    pub(super) objects: Objects<ClientAppBackup>,
    pub(super) statuses: Statuses<ClientAppBackupStatus>,
}

/// Runs the controller until `stop`, and returns when its last reconcile has ended.
pub(crate) async fn run(parts: ControllerContext, stop: CancellationToken) {
    let (objects, feed) = Objects::new();
    let ctx = BackupContext { parts: parts.clone(), objects: objects.clone(), statuses: Statuses::default() };
    control(Arc::new(ctx), parts, (objects, feed), stop).await;
}
