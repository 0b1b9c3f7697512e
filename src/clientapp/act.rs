//! Stage 4, the **effect** that changes things: performs a plan's steps in order; the first error stops.

use std::{sync::Arc, time::Duration};

use k8s_openapi::{
    api::{
        apps::v1::{Deployment, StatefulSet},
        core::v1::{PersistentVolumeClaim, Secret},
    },
    apimachinery::pkg::apis::meta::v1::{OwnerReference, Time},
};
use kube::{
    Api, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use rand::RngExt as _;
use semver::Version;
use serde_json::json;
use tokio::sync::SemaphorePermit;
use tokio_util::sync::CancellationToken;

use super::{
    Ctx, build,
    desired::{Desired, DesiredServer, Document},
    error::{self, Error, Refusal},
    gate::Apply,
    inventory, observe,
    plan::{Because, Plan, Step},
    report, retained, upgrade,
    world::{Phase, ReleaseView, Target, Workload, World},
};
use crate::{
    controller::key::Key,
    crd::{Attempt, BackupRecord, ClientAppStatus, InstalledChart, Owned, percona::PerconaPGBackup},
    destroy::{self, permit::Kind},
    helm::{Chart, ChartError, ReleaseLabels, Upgrade, storage},
};

/// Field manager of the PerconaPGCluster or Postgresql.
const POSTGRES_MANAGER: &str = "clientapp-operator/postgres";
/// Field manager of backups.
const BACKUP_MANAGER: &str = "clientapp-operator/backup";
/// Field manager of restarts.
const RESTART_MANAGER: &str = "clientapp-operator/restart";
/// On a pod template: uid of the Secret for which its pods were restarted.
const RESTARTED_FOR: &str = "apps.bnerd-operator.local/restarted-for";
/// How long the watch may take to show a revision that helm has reported as written. Then the API server is asked.
const WATCH_PATIENCE: Duration = Duration::from_secs(5);

/// The app that is acted for.
pub struct Subject<'a> {
    /// Its uid.
    pub uid: &'a str,
    /// Its owner reference, for what goes with it.
    pub owner: &'a OwnerReference,
    /// Where events about it go.
    pub reference: &'a k8s_openapi::api::core::v1::ObjectReference,
}

/// What acting has come to.
#[derive(Default)]
pub struct Outcome {
    /// The helm run, if there was one.
    pub attempt: Option<Attempt>,
}

/// A chart, or why it cannot be had.
pub struct Fetched {
    /// The version that was asked for.
    pub version: Version,
    chart: Result<Arc<Chart>, ChartError>,
}

impl Fetched {
    /// What decides whether it may be installed; `None`: it cannot be had.
    #[must_use]
    pub fn target(&self) -> Option<Target> {
        let chart = self.chart.as_ref().ok()?;
        let Chart { name, version, app_version, .. } = chart.as_ref();
        Some(Target { chart: name.to_string(), version: version.clone(), app_version: app_version.clone() })
    }
}

/// Fetches the chart that an app asks for. `None`: it asks for something else by now.
///
/// # Errors
/// The status could not be written.
pub async fn fetch(
    ctx: &Ctx,
    subject: &Subject<'_>,
    generation: Option<i64>,
    desired: &Desired,
    world: &World,
) -> Result<Option<Fetched>, Error> {
    let Desired { key, chart_version: version, .. } = desired;
    if !ctx.charts.is_at_hand(version) {
        let sentence = format!("fetching chart {} {version}", ctx.config.chart);
        let status = report::progress(&world.recorded, generation, "FetchingChart", &sentence, ctx.now());
        report::write(ctx, key, subject.uid, &world.recorded, &status).await?;
    }
    let cancel = ctx.stop.child_token();
    ctx.memory.fetching.put(key.clone(), (generation, cancel.clone()));
    let chart = cancel.run_until_cancelled(ctx.charts.get(version)).await;
    ctx.memory.fetching.take(key);
    Ok(chart.map(|chart| Fetched { version: version.clone(), chart }))
}

/// What a helm run takes besides its plan.
pub struct Means<'a> {
    /// Its chart.
    pub fetched: Option<&'a Fetched>,
    /// Leave to run now.
    pub slot: Option<SemaphorePermit<'a>>,
}

/// Performs the steps. `None`: all are done but helm's, which has no slot; each of them may be performed once more.
///
/// # Errors
/// The first step that failed for another reason than helm's: what helm or the chart have to say is in the outcome.
pub async fn act(
    ctx: &Ctx,
    subject: &Subject<'_>,
    generation: Option<i64>,
    desired: &Desired,
    world: &World,
    plan: &Plan,
    Means { fetched, mut slot }: Means<'_>,
) -> Result<Option<Outcome>, Error> {
    let mut outcome = Some(Outcome::default());
    // What was made here is on record with the intent, not only when the watch shows it.
    let mut made = Vec::new();
    for step in &plan.steps {
        match step {
            Step::CreateAdminSecret => {
                made.extend(create(ctx, &desired.key, build::secrets::admin(&desired.key, subject.uid)).await?);
            }
            Step::CreateRedisSecret => {
                made.extend(
                    create(ctx, &desired.key, build::secrets::redis(&desired.key, subject.owner.clone())).await?,
                );
            }
            Step::Adopt(found) => {
                // On record before its marks are gone: what goes with the app, and which way the app may go, depend on it.
                let status = retained::adopted(&world.recorded, found);
                report::write(ctx, &desired.key, subject.uid, &world.recorded, &status).await?;
                retained::adopt(ctx, subject.owner, desired, found).await?;
            }
            Step::Restart { secret, uid } => restart(ctx, subject, desired, world, (secret, uid)).await?,
            Step::ApplyDatabase(apply) => {
                if let Some(server) = desired.database.as_ref().and_then(|database| database.server.as_ref()) {
                    made.extend(apply_database(ctx, subject, desired, server, apply).await?);
                }
            }
            Step::BackUp(record) => {
                // On record before it is asked for: how old it is is told by that.
                let status = ClientAppStatus { backup: Some(record.clone()), ..world.recorded.clone() };
                report::write(ctx, &desired.key, subject.uid, &world.recorded, &status).await?;
                back_up(ctx, &desired.key, record).await?;
            }
            Step::UnlockRelease { secret, revision } => unlock(ctx, &desired.key, secret, *revision).await?,
            Step::HelmUpgrade { revision, because } => {
                // Who plans a run has fetched its chart.
                let Some(Fetched { version: _, chart }) = fetched else { continue };
                let run = Run { revision: *revision, because: because.as_ref(), chart, slot: slot.take() };
                let mut owned = world.owned.clone();
                for object in std::mem::take(&mut made) {
                    // One that takes another's place is put on record once that has been dealt with.
                    if owned.iter().all(|entry| (&entry.kind, &entry.name) != (&object.kind, &object.name)) {
                        owned.push(object);
                    }
                }
                outcome = install(ctx, subject, generation, desired, world, owned, run).await?;
            }
        }
    }
    Ok(outcome)
}

/// Creates a Secret, and never touches one that is there: its password is in use.
async fn create(ctx: &Ctx, key: &Key, secret: Secret) -> Result<Option<Owned>, Error> {
    let name = secret.metadata.name.clone().unwrap_or_default();
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    match api.create(&PostParams::default(), &secret).await {
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => Ok(None),
        Err(error) => Err(Error::api(format!("create Secret {}/{name}", key.namespace))(error)),
        Ok(made) => Ok(Some(Kind::Secret.owned(&made.metadata))),
    }
}

/// Without force: a field that Percona or a person has taken over is theirs, and the conflict is reported.
async fn apply_database(
    ctx: &Ctx,
    subject: &Subject<'_>,
    desired: &Desired,
    server: &DesiredServer,
    Apply { backups, uid }: &Apply,
) -> Result<Option<Owned>, Error> {
    let Document { object, digest } = server.document(*backups);
    let document = build::postgres::applied(object.clone(), digest, subject.uid, uid.as_deref());
    let api = destroy::api(&ctx.client, &desired.key.namespace, server.maker.data());
    let what = format!("{} {}/{}", server.maker.kind(), desired.key.namespace, server.name);
    // An apply would take over what the cache does not show yet; whose that is, the next pass sees.
    if uid.is_none()
        && api.get_metadata_opt(&server.name).await.map_err(Error::api(format!("look for {what}")))?.is_some()
    {
        return Ok(None);
    }
    let applied = api.patch(&server.name, &PatchParams::apply(POSTGRES_MANAGER), &Patch::Apply(&document)).await;
    let applied = applied.map_err(Error::api(format!("apply {what}")))?;
    Ok(uid.is_none().then(|| server.maker.data().owned(&applied.metadata)))
}

/// Restarts what the release runs, and says why.
async fn restart(
    ctx: &Ctx,
    subject: &Subject<'_>,
    desired: &Desired,
    world: &World,
    (secret, uid): (&str, &str),
) -> Result<(), Error> {
    let namespace = &desired.key.namespace;
    let patch = Patch::Merge(json!({"spec": {"template": {"metadata": {"annotations": {RESTARTED_FOR: uid}}}}}));
    let params = PatchParams { field_manager: Some(RESTART_MANAGER.to_owned()), ..PatchParams::default() };
    for Workload { kind, name, waiting: _ } in &world.workloads {
        let restarted = match *kind {
            "Deployment" => {
                let api: Api<Deployment> = Api::namespaced(ctx.client.clone(), namespace);
                api.patch_metadata(name, &params, &patch).await.map(|_| ())
            }
            _ => {
                let api: Api<StatefulSet> = Api::namespaced(ctx.client.clone(), namespace);
                api.patch_metadata(name, &params, &patch).await.map(|_| ())
            }
        };
        match restarted {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            restarted => restarted.map_err(Error::api(format!("restart {kind} {namespace}/{name}")))?,
        }
    }
    report::publish(ctx, subject.reference, &[report::restarted(secret)]).await;
    Ok(())
}

/// Asks for a backup, as whoever makes the database wants to be asked.
async fn back_up(ctx: &Ctx, key: &Key, record: &BackupRecord) -> Result<(), Error> {
    if record.kind == upgrade::PERCONA_BACKUP {
        let api: Api<PerconaPGBackup> = Api::namespaced(ctx.client.clone(), &key.namespace);
        let document = build::postgres::backup(key, record);
        api.patch(&record.name, &PatchParams::apply(BACKUP_MANAGER), &Patch::Apply(&document))
            .await
            .map_err(Error::api(format!("apply {} {}/{}", record.kind, key.namespace, record.name)))?;
        return Ok(());
    }
    let name = key.cluster();
    // Not by apply, which would make a Postgresql that is gone.
    let patch = Patch::Merge(json!({"spec": {"backup": {"request": record.name}}}));
    let params = PatchParams { field_manager: Some(BACKUP_MANAGER.to_owned()), ..PatchParams::default() };
    destroy::api(&ctx.client, &key.namespace, Kind::Postgresql)
        .patch(&name, &params, &patch)
        .await
        .map_err(Error::api(format!("ask Postgresql {}/{name} for a dump", key.namespace)))?;
    Ok(())
}

/// Rewrites a revision that a dead helm left pending as failed, as helm itself would have on a polite signal. Deleting
/// it would lose the record of what it had created already.
async fn unlock(ctx: &Ctx, key: &Key, secret: &str, revision: i64) -> Result<(), Error> {
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let failed = |problem: String| Error::Unlock { release: key.name.clone(), revision, problem };
    let stored = api.get_opt(secret).await.map_err(Error::api(format!("read Secret {}/{secret}", key.namespace)))?;
    let Some(mut stored) = stored else { return Ok(()) };
    let payload = stored.data.as_mut().and_then(|data| data.get_mut("release"));
    let payload = payload.ok_or_else(|| failed("its Secret has no key release".to_owned()))?;
    payload.0 = storage::mark_failed(&payload.0).map_err(failed)?;
    stored.metadata.labels.get_or_insert_default().insert("status".to_owned(), "failed".to_owned());
    // The object carries the resourceVersion that was read: if a helm is alive after all, one of both fails here.
    api.replace(secret, &PostParams::default(), &stored)
        .await
        .map_err(Error::api(format!("mark revision {revision} of release {key} as failed")))?;
    tracing::warn!(release = %key, revision, "revision left pending by a helm that is gone is marked as failed");
    Ok(())
}

/// One run of helm.
struct Run<'a> {
    revision: i64,
    because: Option<&'a Because>,
    chart: &'a Result<Arc<Chart>, ChartError>,
    slot: Option<SemaphorePermit<'a>>,
}

/// Runs helm once, given a slot. Intent is on record before it starts, and what came of it is read back from storage.
async fn install(
    ctx: &Ctx,
    subject: &Subject<'_>,
    generation: Option<i64>,
    desired: &Desired,
    world: &World,
    owned: Vec<Owned>,
    Run { revision, because, chart, slot }: Run<'_>,
) -> Result<Option<Outcome>, Error> {
    let key = &desired.key;
    let earlier = world.recorded.last_attempt.as_ref().filter(|attempt| attempt.digest == desired.digest);
    let failures = earlier.map_or(0, |attempt| attempt.failures);
    let attempt = Attempt {
        digest: desired.digest.clone(),
        started_at: Time(ctx.now()),
        failures,
        retry_at: None,
        reason: None,
        chart: chart.as_ref().ok().map(|chart| InstalledChart {
            name: chart.name.to_string(),
            version: chart.version.to_string(),
            app_version: chart.app_version.clone(),
            digest: chart.digest.clone(),
        }),
        message: None,
    };
    let failed = |refusal: Refusal, message: String| {
        tracing::warn!(reason = refusal.reason(), "{message}");
        let failures = failures + 1;
        let delay = refusal.disposition(failures).retry.delay(failures);
        let delay = delay.map(|delay| error::jittered(delay, rand::rng().random()));
        Some(Outcome {
            attempt: Some(Attempt {
                failures,
                retry_at: delay.map(|delay| Time(ctx.now() + delay)),
                reason: Some(refusal.reason().to_owned()),
                message: Some(message),
                ..attempt.clone()
            }),
        })
    };

    let chart = match chart {
        Ok(chart) => chart.clone(),
        Err(error) => {
            return match error::of_chart_error(error) {
                Some((refusal, message)) => Ok(failed(refusal, message)),
                None => Err(Error::Shutdown),
            };
        }
    };
    if let Some(message) = digest_changed(&world.recorded, &chart) {
        // The next attempt asks the repository again: somebody may have put it right.
        ctx.charts.forget(&desired.chart_version).await;
        return Ok(failed(Refusal::ChartDigestChanged, message));
    }

    let sentence = format!(
        "installing {} {} as revision {revision} of release {}; at most {} helm runs go on at a time",
        chart.name, chart.version, key.name, ctx.config.max_concurrent
    );
    let recorded = ClientAppStatus { owned, ..world.recorded.clone() };
    let intent = report::intent(&recorded, generation, attempt.clone(), &sentence, ctx.now());
    // Who has waited for a slot has said so before.
    if !report::is_on_record(&intent, &world.recorded) {
        if let Some(because) = because {
            report::publish(ctx, subject.reference, &[report::because(because, key)]).await;
        }
        report::write(ctx, key, subject.uid, &world.recorded, &intent).await?;
    }
    let Some(slot) = slot else { return Ok(None) };

    let request = match request(ctx, desired, &chart, revision) {
        Ok(request) => request,
        Err(problem) => return Ok(failed(Refusal::ChartInvalid, problem)),
    };
    keep_volumes(ctx, key, world).await?;
    let cancel = ctx.stop.child_token();
    ctx.memory.running.put(key.clone(), cancel.clone());
    let ended = run(ctx, &request, &cancel).await;
    if ended.is_err() {
        // What it has written before it failed may not be seen yet.
        ctx.memory.written.put(key.clone(), revision);
    }
    // helm has ended: others may run theirs while this one's end is looked at and told.
    drop(slot);
    ctx.memory.running.take(key);

    match ended {
        Ok(()) => {
            await_revision(ctx, key, revision).await;
            Ok(Some(Outcome { attempt: Some(Attempt { failures: 0, ..attempt }) }))
        }
        // Deleted while helm ran: the next reconcile takes the app down.
        Err(None) if !ctx.stop.is_cancelled() => Ok(Some(Outcome { attempt: Some(attempt) })),
        Err(None) => Err(Error::Shutdown),
        Err(Some((refusal, message))) => Ok(failed(refusal, message)),
    }
}

/// Only a deletion of the app takes volumes along: one that the next revision does not have any more, since persistence was turned
/// off or the release's objects got other names, stays. Helm leaves what is marked so in the cluster
/// (helm.sh/helm/v4/pkg/kube/client.go, `Update`); an uninstall goes by what the chart has rendered.
async fn keep_volumes(ctx: &Ctx, key: &Key, world: &World) -> Result<(), Error> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(ctx.client.clone(), &key.namespace);
    for name in world.inventory.iter().flat_map(|inventory| inventory::unkept_claims(inventory, &key.namespace)) {
        let marking = || Error::api(format!("mark PersistentVolumeClaim {}/{name} for helm to keep", key.namespace));
        let Some(claim) = api.get_metadata_opt(name).await.map_err(marking())? else { continue };
        let kept = claim.annotations().get(inventory::RESOURCE_POLICY).is_some_and(|policy| policy == inventory::KEEP);
        if kept || inventory::release_of(&claim.metadata).as_ref() != Some(key) {
            continue;
        }
        let keep = json!({inventory::RESOURCE_POLICY: inventory::KEEP});
        let patch = Patch::Merge(json!({"metadata": {"uid": claim.uid(), "annotations": keep}}));
        match api.patch_metadata(name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(marking()(error)),
            Ok(_) => {}
        }
    }
    Ok(())
}

type Ended = Result<(), Option<(Refusal, String)>>;

async fn run(ctx: &Ctx, request: &Upgrade, cancel: &CancellationToken) -> Ended {
    let started = std::time::Instant::now();
    let ended = ctx.helm.upgrade(request, cancel).await;
    ctx.metrics.helm_run("upgrade", ended.is_ok(), started.elapsed());
    ended.map(|_| ()).map_err(|error| error::of_helm_error(&error))
}

fn request(ctx: &Ctx, desired: &Desired, chart: &Chart, revision: i64) -> Result<Upgrade, String> {
    let operation = format!("{:016x}", rand::rng().random::<u64>());
    let parsed = |error: crate::helm::command::InvalidArgument| error.to_string();
    Ok(Upgrade {
        release: desired.key.name.parse().map_err(parsed)?,
        namespace: desired.key.namespace.parse().map_err(parsed)?,
        chart: chart.path.clone(),
        values: build::values::document(&desired.values),
        labels: ReleaseLabels {
            digest: desired.digest.parse().map_err(parsed)?,
            holder: ctx.holder.label().parse().map_err(parsed)?,
            operation: operation.parse().map_err(parsed)?,
            revision: u32::try_from(revision).map_err(|error| format!("revision {revision}: {error}"))?,
        },
    })
}

/// helm's exit code alone proves nothing: waits until the watch shows the revision. A watch that is later than that makes each
/// look at the release a question to the API server, until it has caught up.
async fn await_revision(ctx: &Ctx, key: &Key, revision: i64) {
    ctx.memory.written.put(key.clone(), revision);
    let settled = |release: ReleaseView| release.revision >= revision && release.phase != Phase::Pending;
    let seen = ctx
        .watches
        .secrets
        .wait_for(WATCH_PATIENCE, |_| {
            let release = observe::release_view(&ctx.watches.revisions(key), &ctx.holder)?;
            settled(release).then_some(())
        })
        .await;
    if seen.is_none() {
        tracing::warn!(release = %key, revision, "the watch does not show what helm wrote; the API server is asked instead");
    }
}

/// The sentence for a chart that is not the one this version was installed from before.
fn digest_changed(recorded: &ClientAppStatus, chart: &Chart) -> Option<String> {
    let InstalledChart { name: _, version: before, app_version: _, digest: installed } = upgrade::installed(recorded)?;
    let version = chart.version.to_string();
    (before == version && installed != chart.digest).then(|| {
        format!(
            "chart {} {version} has sha256 {}, but {installed} was installed as this version before: nothing is installed; publish the change under a new version",
            chart.name, chart.digest
        )
    })
}

/// What the run means for the status that the next decision reads.
#[must_use]
pub fn with_attempt(mut recorded: ClientAppStatus, outcome: &Outcome) -> ClientAppStatus {
    if let Some(attempt) = &outcome.attempt {
        recorded.last_attempt = Some(attempt.clone());
    }
    recorded
}
