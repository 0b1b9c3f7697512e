//! Stage 4, the **effect** that changes things: performs a plan's steps in order; the first error stops.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams, PostParams},
};
use rand::RngExt as _;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    attempt, build,
    context::{self, App, Ctx},
    database::DesiredObject,
    desired::Desired,
    error::{self, Error, Refusal},
    helm_runs::{HelmRun, Upgraded},
    inventory, live,
    observed::{Observed, Phase, Target, Workload},
    plan::{Apply, Plan, Step},
    report, retained, upgrade,
};
use crate::{
    crd::{Attempt, BackupRecord, ClientAppStatus, annotation},
    destroy::{self, permit::Kind},
    helm::{self, ReleaseLabels, Upgrade, storage},
    runtime::{
        api::{unless_gone, unless_there},
        key::Key,
    },
};

const POSTGRES_MANAGER: &str = "clientapp-operator/postgres";
const BACKUP_MANAGER: &str = "clientapp-operator/backup";
const RESTART_MANAGER: &str = "clientapp-operator/restart";

/// Performs the steps. `status` is what was put on record before.
///
/// # Errors
/// The first step that failed. What helm and the chart have to say is no failure of a step.
pub async fn act(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    observed: &Observed,
    plan: &Plan,
    status: &ClientAppStatus,
) -> Result<(), Error> {
    for step in &plan.steps {
        match step {
            Step::CreateAdminSecret => create(ctx, app, build::secrets::admin(app.key, app.uid)).await?,
            Step::CreateRedisSecret => {
                create(ctx, app, build::secrets::redis(app.key, app.owner_reference())).await?;
            }
            Step::Adopt(found) => retained::adopt(ctx, &app.owner_reference(), desired, found).await?,
            Step::Restart { secret, uid } => restart(ctx, app, observed, (secret, uid)).await?,
            Step::ApplyDatabase(apply) => {
                if let Some(object) = desired.database_object() {
                    apply_database(ctx, app, object, apply).await?;
                }
            }
            Step::BackUp(record) => {
                if let Some(object) = desired.database_object() {
                    back_up(ctx, app.key, object, record).await?;
                }
            }
            Step::UnlockRelease { secret, revision } => unlock(ctx, app.key, secret, *revision).await?,
            Step::FetchChart => fetch(ctx, app, desired, observed),
            Step::HelmUpgrade { revision, .. } => upgrade(ctx, app, desired, observed, status, *revision).await?,
        }
    }
    // An app that does not wait for its teardown has no later reconcile that would name what was made for it.
    let stays = |step: &Step| {
        matches!(step, Step::CreateAdminSecret | Step::Adopt(_) | Step::ApplyDatabase(Apply { uid: None, .. }))
    };
    match plan.steps.iter().any(stays) && live::is_gone(ctx, app).await? {
        true => Err(Error::Gone(app.key.clone())),
        false => Ok(()),
    }
}

/// Creates a Secret, and never touches a Secret that is there: its password is in use.
async fn create(ctx: &Ctx, app: &App<'_>, secret: Secret) -> Result<(), Error> {
    let App { key, uid, .. } = *app;
    let name = secret.metadata.name.clone().unwrap_or_default();
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let made = unless_there(api.create(&PostParams::default(), &secret).await);
    if let Some(made) = made.map_err(Error::api(format!("create Secret {}/{name}", key.namespace)))? {
        ctx.memory.put_made(key, uid, Kind::Secret.owned(&made.metadata));
    }
    Ok(())
}

/// Without force: a field that a user or another operator has taken over is theirs, and the conflict is reported.
async fn apply_database(
    ctx: &Ctx,
    app: &App<'_>,
    object: &DesiredObject,
    Apply { backups, uid }: &Apply,
) -> Result<(), Error> {
    let DesiredObject { provider, name, .. } = object;
    let document = object.document(*backups).applied(app.uid, uid.as_deref());
    let api = destroy::api(&ctx.client, &app.key.namespace, provider.kind());
    let what = format!("{} {}/{name}", provider.kind().as_str(), app.key.namespace);
    // An apply would take over what the cache does not show yet; whose that is, the next pass sees.
    if uid.is_none() && api.get_metadata_opt(name).await.map_err(Error::api(format!("look for {what}")))?.is_some() {
        return Ok(());
    }
    let applied = api.patch(name, &PatchParams::apply(POSTGRES_MANAGER), &Patch::Apply(&document)).await;
    let applied = applied.map_err(Error::api(format!("apply {what}")))?;
    if uid.is_none() {
        ctx.memory.put_made(app.key, app.uid, provider.kind().owned(&applied.metadata));
    }
    Ok(())
}

/// Restarts what the release runs, and says why.
async fn restart(ctx: &Ctx, app: &App<'_>, observed: &Observed, (secret, uid): (&str, &str)) -> Result<(), Error> {
    let namespace = &app.key.namespace;
    let patch =
        Patch::Merge(json!({"spec": {"template": {"metadata": {"annotations": {annotation::RESTARTED_FOR: uid}}}}}));
    let params = PatchParams { field_manager: Some(RESTART_MANAGER.to_owned()), ..PatchParams::default() };
    for workload in &observed.workloads {
        let Workload { kind, name, .. } = workload;
        let restarted = workload.api(&ctx.client, namespace).patch_metadata(name, &params, &patch).await;
        unless_gone(restarted).map_err(Error::api(format!("restart {kind} {namespace}/{name}")))?;
    }
    report::publish(ctx, &app.reference, &[report::restarted(secret)]).await;
    Ok(())
}

async fn back_up(ctx: &Ctx, key: &Key, object: &DesiredObject, record: &BackupRecord) -> Result<(), Error> {
    let (resource, name, patch) = object.provider.back_up(key, record);
    let api: Api<DynamicObject> = Api::namespaced_with(ctx.client.clone(), &key.namespace, &resource);
    let params = PatchParams { field_manager: Some(BACKUP_MANAGER.to_owned()), ..PatchParams::default() };
    let asked = api.patch(&name, &params, &patch).await.map(|_| ());
    asked.map_err(Error::api(format!("ask {} {}/{name} for a backup", resource.kind, key.namespace)))
}

/// Rewrites a revision that a dead helm left pending as failed, as helm itself would have on a polite signal. Deleting
/// it would lose the record of what it had created already.
async fn unlock(ctx: &Ctx, key: &Key, secret: &str, revision: i64) -> Result<(), Error> {
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let failed = |problem: String| Error::Unlock { release: key.name.clone(), revision, problem };
    let stored = api.get_opt(secret).await.map_err(Error::api(format!("read Secret {}/{secret}", key.namespace)))?;
    let Some(mut stored) = stored else { return Ok(()) };
    // What a late watch shows as pending may have ended long ago.
    let status = stored.metadata.labels.as_ref().and_then(|labels| labels.get("status"));
    if status.is_none_or(|status| Phase::parse(status) != Phase::Pending) {
        return Ok(());
    }
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

/// Begins to fetch the chart that is asked for. A chart that cannot be had is a failed attempt.
fn fetch(ctx: &Ctx, app: &App<'_>, desired: &Desired, observed: &Observed) {
    let version = desired.chart_version.clone();
    let attempt = attempt::begun(desired, &observed.recorded, None, ctx.now());
    let installed = upgrade::installed(&observed.recorded);
    let (charts, wanted, panicked) = (ctx.charts.clone(), version.clone(), attempt.clone());
    let work = |cancel: CancellationToken| async move {
        let Some(fetched) = cancel.run_until_cancelled(charts.get(&wanted)).await else { return HelmRun::Idle };
        let failed = match fetched {
            Ok(chart) => match attempt::digest_changed(installed.as_ref(), &Target::from(chart.as_ref())) {
                None => return HelmRun::Idle,
                Some(message) => {
                    // The next attempt asks the repository again, where it may have been put right.
                    charts.forget(&wanted).await;
                    (Refusal::ChartDigestChanged, message)
                }
            },
            Err(error) => match error::of_chart_error(&error) {
                None => return HelmRun::Idle,
                Some(failed) => failed,
            },
        };
        ended(attempt, Err(Some(failed)), None)
    };
    let panicked = move || ended(panicked, Err(Some(PANICKED())), None);
    ctx.helm_runs.begin((app.key, app.uid), HelmRun::FetchingChart(version), work, panicked);
}

/// Begins to run helm, if it is the app's turn; else the app is in the queue.
async fn upgrade(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    observed: &Observed,
    status: &ClientAppStatus,
    revision: i64,
) -> Result<(), Error> {
    let (Some(attempt), Some(target)) = (status.last_attempt.clone(), observed.target.clone()) else { return Ok(()) };
    let Some(slot) = ctx.helm_runs.slot(app.key) else { return Ok(()) };
    keep_volumes(ctx, app.key, observed).await?;
    if !ctx.lead.holds() {
        return Err(Error::Shutdown);
    }
    let request = request(ctx, desired, revision);
    let (charts, helm, metrics) = (ctx.charts.clone(), ctx.helm.clone(), ctx.metrics.clone());
    let begun = attempt.clone();
    let work = |cancel: CancellationToken| async move {
        let run = async {
            let request = request.map_err(|problem| Some((Refusal::ChartInvalid, problem)))?;
            let chart = charts.get(&target.version).await.map_err(|error| error::of_chart_error(&error))?;
            if chart.digest != target.digest {
                let message =
                    format!("chart {} {} was replaced while helm was to install it", chart.name, chart.version);
                return Err(Some((Refusal::ChartUnavailable, message)));
            }
            let request = Upgrade { chart: chart.path.clone(), ..request };
            let started = std::time::Instant::now();
            let result = helm.upgrade(&request, &cancel).await;
            metrics.helm_run("upgrade", result.is_ok(), started.elapsed());
            result.map(|_| ()).map_err(|error| error::of_helm_error(&error))
        };
        let result: Ended = run.await;
        // helm has ended: others may run theirs while this one's end is looked at and told.
        drop(slot);
        ended(attempt, result, Some(revision))
    };
    let panicked = move || ended(begun, Err(Some(PANICKED())), Some(revision));
    ctx.helm_runs.begin((app.key, app.uid), HelmRun::Upgrading, work, panicked);
    Ok(())
}

/// What is said of a run that has panicked.
pub const PANICKED: fn() -> (Refusal, String) =
    || (Refusal::UpgradeFailed, "internal error of the operator: report it with the operator's log".to_owned());

/// Class and sentence of a failure; `None`: the operator has stopped it.
type Ended = Result<(), Option<(Refusal, String)>>;

/// What has come of an attempt.
fn ended(attempt: Attempt, result: Ended, revision: Option<i64>) -> HelmRun {
    let (at, succeeded) = (context::now(), result.is_ok());
    let attempt = match result {
        Ok(()) => Attempt { failures: 0, ..attempt },
        // Such as by a deletion: the next reconcile takes the app down.
        Err(None) => attempt,
        Err(Some((refusal, message))) => {
            tracing::warn!(reason = %refusal.reason(), "{message}");
            attempt::failed(attempt, refusal, message, at, rand::rng().random())
        }
    };
    HelmRun::Upgraded(Box::new(Upgraded { attempt, revision, succeeded, at }))
}

/// Only a deletion of the app takes volumes along: a volume that the next revision does not have any more, since persistence was turned
/// off or the release's objects got other names, stays. Helm leaves what is marked so in the cluster
/// (helm.sh/helm/v4/pkg/kube/client.go, `Update`); an uninstall goes by what the chart has rendered.
async fn keep_volumes(ctx: &Ctx, key: &Key, observed: &Observed) -> Result<(), Error> {
    for name in observed.inventory.iter().flat_map(|inventory| inventory::unkept_claims(inventory, &key.namespace)) {
        let Some(claim) = live::object(ctx, key, Kind::Volume, name).await? else { continue };
        let policy = claim.annotations.as_ref().and_then(|annotations| annotations.get(inventory::RESOURCE_POLICY));
        let kept = policy.is_some_and(|policy| policy == inventory::KEEP);
        if !kept && inventory::release_of(&claim).as_ref() == Some(key) {
            let keep = json!({inventory::RESOURCE_POLICY: inventory::KEEP});
            let patch = json!({"metadata": {"uid": claim.uid, "annotations": keep}});
            retained::mark(ctx, key, Kind::Volume, name, &patch).await?;
        }
    }
    Ok(())
}

/// What helm is asked for, but for the chart's path.
fn request(ctx: &Ctx, desired: &Desired, revision: i64) -> Result<Upgrade, String> {
    let operation = format!("{:016x}", rand::rng().random::<u64>());
    let parsed = |error: helm::command::InvalidArgument| error.to_string();
    Ok(Upgrade {
        release: desired.key.name.parse().map_err(parsed)?,
        namespace: desired.key.namespace.parse().map_err(parsed)?,
        chart: PathBuf::new(),
        values: helm::values::document(&desired.values),
        labels: ReleaseLabels {
            digest: desired.digest.parse().map_err(parsed)?,
            holder: ctx.holder.label().parse().map_err(parsed)?,
            operation: operation.parse().map_err(parsed)?,
            revision: u32::try_from(revision).map_err(|error| format!("revision {revision}: {error}"))?,
        },
    })
}
