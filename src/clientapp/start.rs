//! Start and end of the controller. An **effect**.

use std::sync::Arc;

use jiff::Timestamp;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    context::{Ctx, memory::Memory, salt::Salts, watches::Watches},
    decide::file_backup,
    helm_runs::HelmRuns,
    observed::certificate::Certificate,
    teardown::namespace,
};
use crate::{
    config::Config,
    crd::{ClientApp, Guard},
    deletion::brake::DeletionBrake,
    helm::{ChartCache, Helm, gateway::Gateway},
    metrics::{self, Measure, Sample, ready_labels},
    platform::{
        controller::{ControllerContext, Feed, Objects, control},
        key::{Key, key_of},
    },
    profile::Profiles,
    secrets::Secrets,
};

/// Holds what the controller of ClientApps needs besides what every controller has.
pub(crate) struct Tools {
    pub config: Arc<Config>,
    pub helm: Helm,
    pub gateway: Gateway,
    pub charts: Arc<ChartCache>,
    pub secrets: Secrets,
    /// The name of this process, as stamped on releases.
    pub holder: String,
    /// The operator's own namespace, with its Lease.
    pub namespace: String,
    pub deletion_brake: DeletionBrake,
    pub profiles: Arc<Profiles>,
}

struct Aborted(Arc<HelmRuns>);

impl Drop for Aborted {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns what `/metrics` says of the apps, and of the queue for helm.
fn samples(ctx: &Ctx, apps: &Objects<ClientApp>) -> Vec<Sample> {
    let queued = ctx.helm_runs.queued().map(|(work, length)| {
        (Measure::HelmQueue, vec![("work", work.to_owned())], i64::try_from(length).unwrap_or(i64::MAX))
    });
    let of_app = |app: Arc<Guard<ClientApp>>| {
        let known = ctx.memory.read(&key_of(&*app), |app| app.certificate.clone());
        samples_of(&app, known.and_then(|(_, read)| read.ok()))
    };
    queued.into_iter().chain(apps.store.state().into_iter().flat_map(of_app)).collect()
}

/// Returns what `/metrics` says of an app with this certificate. **Pure.**
fn samples_of(app: &Guard<ClientApp>, certificate: Option<Arc<Certificate>>) -> Vec<Sample> {
    let status = app.status().unwrap_or_default();
    let Key { namespace, name } = key_of(app);
    let (profile, revision) = status
        .profile_revision
        .as_ref()
        .map_or_else(Default::default, |has| (has.profile.clone(), has.revision.to_string()));
    let chart_version = status.release.as_ref().and_then(|release| release.chart_version.clone()).unwrap_or_default();
    let installed = vec![("chart_version", chart_version), ("profile", profile), ("profile_revision", revision)];
    let certificate = certificate.filter(|_| status.tls_secret_name.is_some());
    let [not_before, not_after] =
        certificate.map_or([None; 2], |found| [Some(found.not_before), Some(found.not_after)]);
    let has_schedule = app
        .object
        .as_ref()
        .is_ok_and(|app| app.spec.persistence.backup.as_ref().is_some_and(|backup| backup.schedule.is_some()));
    let files = status.files.as_ref().filter(|_| has_schedule);
    let success = files.and_then(|files| files.last_success.as_ref());
    let times = [
        (Measure::CertificateNotBefore, not_before),
        (Measure::CertificateNotAfter, not_after),
        (Measure::FilesBackup, has_schedule.then(|| success.map_or(Timestamp::UNIX_EPOCH, |time| time.0))),
        (Measure::FilesBackupOverdue, files.and_then(file_backup::late_at)),
    ];
    [(Measure::Apps, ready_labels(&status.conditions), 1), (Measure::AppsInstalled, installed, 1)]
        .into_iter()
        .chain(metrics::times(&namespace, &name, times))
        .collect()
}

/// Runs the controller until `stop`, and returns when its last reconcile and its last helm process have ended.
pub(crate) async fn run(
    parts: ControllerContext,
    Tools { config, helm, gateway, charts, secrets, holder, namespace, deletion_brake, profiles }: Tools,
    (apps, feed): (Objects<ClientApp>, Feed<ClientApp>),
    stop: CancellationToken,
) {
    let tasks = TaskTracker::new();
    let watches = Watches::start(&parts.watch_client, apps.clone(), &secrets, &tasks, &stop);
    let changed = {
        let apps = apps.clone();
        move |key: &Key| apps.trigger(key)
    };
    let ctx = Arc::new(Ctx {
        client: parts.client.clone(),
        recorder: parts.recorder.clone(),
        metrics: parts.metrics.clone(),
        lead: parts.lead.clone(),
        helm_runs: HelmRuns::new(config.max_concurrent, tasks.clone(), stop.clone(), changed),
        config,
        helm,
        gateway: Arc::new(gateway),
        charts,
        holder,
        image: parts.image.clone(),
        watches,
        profiles,
        memory: Memory::default(),
        salts: Salts::new(namespace),
        hostnames: Arc::default(),
        deletion_brake,
    });
    tasks.spawn({
        let ctx = ctx.clone();
        stop.clone().run_until_cancelled_owned(async move { namespace::sweep(&ctx).await })
    });
    // If this future is dropped, because this process lost the lead and a task hangs, no helm process outlives it.
    let _aborted = Aborted(ctx.helm_runs.clone());
    let (counted, counting) = (apps.clone(), ctx.clone());
    let measured = parts.metrics.measure("ClientApp", move || samples(&counting, &counted));
    control(ctx, parts, (apps, feed), stop).await;
    drop(measured);
    tasks.close();
    tasks.wait().await;
}
