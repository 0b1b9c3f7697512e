//! Holds what every reconcile of a Postgresql shares, and the controller's start. An **effect**.

use std::sync::Arc;

use jiff::Timestamp;
use kube::Client;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    decide::{dumps, is_restarting},
    desired::{Desired, desired},
    observed::{Basis, CredentialsView},
    rollout_queue::RolloutQueue,
    watches::PostgresqlWatches,
};
use crate::{
    crd::{Guard, Postgresql, PostgresqlStatus},
    deletion::{brake::DeletionBrake, recently_created::RecentlyCreated},
    leadership::Leadership,
    metrics::{self, Measure, Sample},
    platform::{
        cache::Memo,
        controller::{ControllerContext, Objects, control},
        events::Recorder,
        key::{Key, key_of},
        operator_image::OperatorImage,
        reconciled::Reconciled,
        status::Statuses,
    },
    secrets::Secrets,
};

/// The Postgresql of one reconcile.
pub(crate) type PostgresqlObject<'a> = Reconciled<'a, Postgresql, PostgresqlStatus>;

pub(crate) struct PostgresqlContext {
    pub client: Client,
    pub recorder: Recorder,
    pub watches: Arc<PostgresqlWatches>,
    pub lead: Leadership,
    pub statuses: Statuses<PostgresqlStatus>,
    pub credentials: Memo<Key, (Basis, CredentialsView)>,
    /// Says why the Job of a dump or drill that is due was refused.
    pub refused_due: Memo<Key, String>,
    /// Postgresqls, by uid, that are deleted with `--cascade=foreground`: the garbage collector removes its finalizer from them.
    pub foreground: Memo<Key, String>,
    /// The claims that this process has created for a Postgresql, which may be deleted before they are on record.
    pub recently_created: RecentlyCreated,
    /// Lets one database at a time restart because of the operator's version.
    pub rollout_queue: RolloutQueue,
    /// The operator's own image, which uploads dumps; `None` if the operator does not know it.
    pub image: Option<Arc<OperatorImage>>,
    pub deletion_brake: DeletionBrake,
}

impl PostgresqlContext {
    pub(crate) fn postgres<'a>(&self, key: &'a Key, guard: &'a Guard<Postgresql>) -> PostgresqlObject<'a> {
        self.statuses.reconciled(key, guard)
    }

    /// Returns the desired state, with the image of this operator.
    pub(crate) fn desired(&self, object: &Postgresql) -> Result<Desired, String> {
        desired(object).map(|desired| Desired { operator_image: self.image.clone(), ..desired })
    }

    /// Takes the rollout slot for this database, or waits for it; returns its holder.
    pub(crate) fn take_rollout_slot(&self, key: &Key) -> Key {
        self.rollout_queue.take(key, || self.restarting())
    }

    /// Releases the rollout slot, and has those that wait for it reconciled.
    pub(crate) fn release_rollout_slot(&self, key: &Key) {
        for waiting in self.rollout_queue.release(key) {
            self.watches.postgresqls.trigger(&waiting);
        }
    }

    /// Returns the first database, by name, whose rollout is on record and has begun. One that is being deleted does not come back.
    fn restarting(&self) -> Option<Key> {
        let restarts = |guard: &Arc<Guard<Postgresql>>| {
            let key = key_of(&**guard);
            let postgres = self.postgres(&key, guard);
            let restarts = !postgres.is_deleted()
                && postgres.recorded_status.rollout.is_some()
                && is_restarting(
                    &postgres.recorded_status,
                    &self.watches.objects(&key, postgres.uid()),
                    &self.watches.pods(&key),
                );
            restarts.then_some(key)
        };
        self.watches.postgresqls.store.state().iter().filter_map(restarts).min()
    }

    pub(crate) fn forget(&self, key: &Key) {
        self.release_rollout_slot(key);
        self.statuses.forget(key);
        self.credentials.take(key);
        self.refused_due.take(key);
        self.foreground.take(key);
        self.recently_created.forget(key);
    }
}

/// Returns what `/metrics` says of each Postgresql with a schedule for dumps or drills.
fn samples(postgresqls: &Objects<Postgresql>) -> Vec<Sample> {
    let times = |guard: Arc<Guard<Postgresql>>| {
        let backup = guard.object.as_ref().ok().and_then(|object| object.spec.backup.as_ref());
        let has_schedule = backup.is_some_and(|backup| backup.schedule.is_some());
        let has_times = has_schedule || backup.is_some_and(|backup| backup.drill.is_some());
        let status = guard.status().unwrap_or_default();
        let success = status.backup.as_ref().and_then(|summary| summary.last_success.as_ref());
        let last = success.map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let overdue = dumps::overdue_times(&status).min();
        let Key { namespace, name } = key_of(&*guard);
        let times = [
            (Measure::PostgresqlBackup, has_schedule.then_some(last)),
            (Measure::PostgresqlBackupOverdue, overdue.filter(|_| has_times)),
        ];
        metrics::times(&namespace, &name, times)
    };
    postgresqls.store.state().into_iter().flat_map(times).collect()
}

/// Runs the controller until `stop`. Returns when its last reconcile has ended.
pub(crate) async fn run(
    parts: ControllerContext,
    deletion_brake: DeletionBrake,
    secrets: Secrets,
    stop: CancellationToken,
) {
    let (postgresqls, feed) = Objects::new();
    let tasks = TaskTracker::new();
    let ctx = PostgresqlContext {
        client: parts.client.clone(),
        recorder: parts.recorder.clone(),
        watches: PostgresqlWatches::start(&parts.watch_client, postgresqls.clone(), &secrets, &tasks, &stop),
        lead: parts.lead.clone(),
        statuses: Statuses::default(),
        credentials: Memo::default(),
        refused_due: Memo::default(),
        foreground: Memo::default(),
        recently_created: RecentlyCreated::default(),
        rollout_queue: RolloutQueue::default(),
        image: parts.image.clone(),
        deletion_brake,
    };
    let counted = postgresqls.clone();
    let measured = parts.metrics.measure("Postgresql", move || samples(&counted));
    control(Arc::new(ctx), parts, (postgresqls, feed), stop).await;
    drop(measured);
    tasks.close();
    tasks.wait().await;
}
