//! The part of the stage `act` that involves helm: starts runs in [`helm_runs`](crate::clientapp::helm_runs) for [`act`](super::act()), and
//! prepares the release for them. An **effect**.

use std::{path::PathBuf, sync::Arc};

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client, api::PostParams};
use rand::RngExt as _;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{account, retention, take_over};
use crate::{
    clientapp::{
        context::{App, Ctx},
        decide::{helm_tests, plan::Plan},
        error::{self, Error, Refusal},
        helm_runs::{HelmRun, TestRun, Upgraded, Upgrading, Work},
        observe::{uncached, values_in_effect::values},
        observed::{
            installed_chart, inventory,
            release::ReleasePhase,
            types::{CachedChart, Observed},
            volumes,
        },
        spec::{desired::Desired, names},
        status::attempt,
    },
    crd::{Attempt, ClientAppStatus},
    deletion::permit::DataKind,
    helm::{
        self, ChartCache, Helm, Redactor, ReleaseLabels, Upgrade,
        gateway::{Claim, Gateway, Review, record::Recorded},
        storage,
    },
    metrics::Metrics,
    platform::{clock, key::Key},
};

/// Marks a revision that a dead helm process left pending as failed, as helm itself would have done on SIGTERM. Deleting it would
/// lose the record of what that helm process created.
pub(crate) async fn unlock(ctx: &Ctx, key: &Key, (secret, uid): (&str, &str), revision: i64) -> Result<(), Error> {
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let failed = |problem: String| Error::Unlock { release: key.name.clone(), revision, problem };
    let stored = api.get_opt(secret).await.map_err(Error::api(format!("read Secret {}/{secret}", key.namespace)))?;
    // The lock that a late watch shows may be long gone, and another client may hold one under the same name.
    let Some(mut stored) = stored.filter(|stored| stored.metadata.uid.as_deref() == Some(uid)) else { return Ok(()) };
    let status = stored.metadata.labels.as_ref().and_then(|labels| labels.get("status"));
    if status
        .is_none_or(|status| !matches!(ReleasePhase::parse(status), ReleasePhase::Pending | ReleasePhase::Uninstalling))
    {
        return Ok(());
    }
    let payload = stored.data.as_mut().and_then(|data| data.get_mut("release"));
    let payload = payload.ok_or_else(|| failed("its Secret has no key release".to_owned()))?;
    let pending = std::mem::take(&mut payload.0);
    payload.0 =
        uncached::unpacked(ctx, &key.namespace, move || storage::mark_failed(&pending)).await.map_err(failed)?;
    stored.metadata.labels.get_or_insert_default().insert("status".to_owned(), "failed".to_owned());
    // The object has the resourceVersion that was read: if that helm process is alive after all and wrote meanwhile, this fails.
    api.replace(secret, &PostParams::default(), &stored)
        .await
        .map_err(Error::api(format!("mark revision {revision} of release {key} as failed")))?;
    tracing::warn!(release = %key, revision, "revision left pending by a dead helm process is marked as failed");
    Ok(())
}

/// Starts to fetch the desired chart. A chart that cannot be fetched is a failed attempt.
pub(crate) fn fetch(ctx: &Ctx, app: &App<'_>, desired: &Desired, observed: &Observed) {
    let version = desired.target().chart_version.clone();
    let attempt = attempt::start(desired, &observed.recorded, None, false, clock::now());
    let installed = installed_chart::installed(&observed.recorded);
    let (charts, wanted, panicked) = (ctx.charts.clone(), version.clone(), attempt.clone());
    let work = |cancel: CancellationToken| async move {
        let Some(fetched) = cancel.run_until_cancelled(charts.get(&wanted)).await else { return HelmRun::Idle };
        let failed = match fetched {
            Ok(chart) => {
                match installed_chart::digest_changed(installed.as_ref(), &CachedChart::from(chart.as_ref())) {
                    None => return HelmRun::Idle,
                    Some(message) => {
                        // The next attempt asks the repository again: it may have been corrected.
                        charts.forget(&wanted).await;
                        (Refusal::ChartDigestChanged, message)
                    }
                }
            }
            Err(error) => match error::of_chart_error(&error) {
                None => return HelmRun::Idle,
                Some(failed) => failed,
            },
        };
        ended(attempt, Err(Some(failed)), None, Recorded::default())
    };
    let panicked = move || ended(panicked, Err(Some(error::panicked())), None, Recorded::default());
    ctx.helm_runs.begin((app.key, app.uid()), HelmRun::FetchingChart(version), work, panicked);
}

/// Starts helm if the app gets a slot; otherwise the app joins the queue. `status` is already recorded.
pub(crate) async fn upgrade(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    observed: &Observed,
    plan: &Plan,
    status: &ClientAppStatus,
    revision: i64,
) -> Result<(), Error> {
    let (Some(attempt), Some(target)) = (status.last_attempt.clone(), observed.prerequisites.chart.clone()) else {
        return Ok(());
    };
    let waited = attempt::queued_for(observed, clock::now());
    let Some(slot) = ctx.helm_runs.slot(Work::Change, app.key, waited) else { return Ok(()) };
    keep_volumes(ctx, app.key, observed).await?;
    take_over::from_others(ctx, desired, observed).await?;
    if !ctx.lead.is_held() {
        return Err(Error::Shutdown);
    }
    let (values, hidden) = values(ctx, desired).await?;
    let request = request(ctx, desired, hidden, revision);
    let review = volumes::review(desired, observed.objects.inventory.as_ref(), &observed.owned)
        .map(|review| Box::new(review) as Review);
    let run = UpgradeRun {
        helm: ctx.helm.clone(),
        gateway: ctx.gateway.clone(),
        charts: ctx.charts.clone(),
        metrics: ctx.metrics.clone(),
        client: ctx.client.clone(),
        target,
        values,
        checks: (ctx.claim(app), review),
    };
    let begun = attempt.clone();
    let work = |cancel: CancellationToken| async move {
        let mut wrote = Recorded::default();
        let result = run.run(request, &mut wrote, &cancel).await;
        // helm has ended: another app may run helm while the outcome of this run is observed and reported.
        drop(slot);
        ended(attempt, result, Some(revision), wrote)
    };
    let panicked = move || ended(begun, Err(Some(error::panicked())), Some(revision), Recorded::default());
    let upgrading =
        Upgrading { digest: desired.target().digest.clone(), sentence: plan.sentence(), since: clock::now() };
    ctx.helm_runs.begin((app.key, app.uid()), HelmRun::Upgrading(Box::new(upgrading)), work, panicked);
    Ok(())
}

/// Holds what one `helm upgrade` needs after the reconcile that has started it.
struct UpgradeRun {
    helm: Helm,
    gateway: Arc<Gateway>,
    charts: Arc<ChartCache>,
    metrics: Arc<Metrics>,
    client: Client,
    /// The chart that was judged: no other content of its version is installed.
    target: CachedChart,
    values: Value,
    checks: (Claim, Option<Review>),
}

impl UpgradeRun {
    async fn run(self, request: Result<Upgrade, String>, wrote: &mut Recorded, cancel: &CancellationToken) -> Ended {
        let request = request.map_err(|problem| Some((Refusal::ChartInvalid, problem)))?;
        let chart = self.charts.get(&self.target.version).await.map_err(|error| error::of_chart_error(&error))?;
        if chart.digest != self.target.digest {
            let message = format!("chart {} {} was replaced before helm could install it", chart.name, chart.version);
            return Err(Some((Refusal::ChartUnavailable, message)));
        }
        let values = helm::values::document(&chart.values(self.values));
        let request = Upgrade { chart: chart.path.clone(), values, ..request };
        let started = std::time::Instant::now();
        let result;
        (result, *wrote) = self.helm.upgrade(&self.gateway, &request, self.checks, cancel).await;
        self.metrics.helm_run("upgrade", result.is_ok(), started.elapsed());
        if let Some(why) = &wrote.refused {
            return Err(Some((Refusal::VolumeDropped, request.redactor.redact(why))));
        }
        match result.map_err(|error| error::of_helm_error(&error)) {
            Ok(_) => Ok(()),
            Err(None) => Err(None),
            Err(Some(failed)) => {
                let account = (request.namespace.as_str(), &request.account);
                Err(Some(account::explained(&self.client, account, failed).await))
            }
        }
    }
}

/// Starts Helm's tests of the release if the app gets a slot; otherwise the app joins the queue.
pub(crate) fn test(ctx: &Ctx, app: &App<'_>, desired: &Desired, observed: &Observed, plan: &Plan) {
    let (Some(timeout), Some(release)) = (desired.upgrade.test, observed.release.clone()) else { return };
    // An app with another name has no release.
    let (Ok(name), Ok(namespace)) = (app.key.name.parse(), app.key.namespace.parse()) else { return };
    let waited = helm_tests::queued_for(observed, clock::now());
    let Some(slot) = ctx.helm_runs.slot(Work::Test, app.key, waited) else { return };
    let (account, hidden) = (desired.account.clone(), desired.values.redactor.clone());
    let request =
        helm::TestRequest { release: name, namespace, account, timeout: timeout.unsigned_abs(), redactor: hidden };
    let (helm, gateway, metrics, claim) = (ctx.helm.clone(), ctx.gateway.clone(), ctx.metrics.clone(), ctx.claim(app));
    let test_run = TestRun {
        revision: release.revision,
        secret: release.secret,
        secret_uid: release.secret_uid,
        account: desired.account.clone(),
        failed: None,
        conclusive: false,
        started_at: clock::now(),
        at: clock::now(),
        unit: rand::rng().random(),
    };
    let panicked = TestRun { failed: Some(error::panicked().1), ..test_run.clone() };
    let work = |cancel: CancellationToken| async move {
        let started = std::time::Instant::now();
        let result = helm.test(&gateway, &request, claim, &cancel).await;
        metrics.helm_run("test", result.is_ok(), started.elapsed());
        drop(slot);
        let (failed, conclusive) = match result {
            Ok(_) => (None, true),
            Err(error) => match error::of_helm_error(&error) {
                // The operator stopped it.
                None => return HelmRun::Idle,
                Some((_, message)) => (Some(message), error::is_of_test(&error)),
            },
        };
        HelmRun::Tested(Box::new(TestRun { failed, conclusive, at: clock::now(), ..test_run }))
    };
    let testing = Upgrading { digest: helm_tests::digest(desired), sentence: plan.sentence(), since: clock::now() };
    let panicked = move || HelmRun::Tested(Box::new(panicked));
    ctx.helm_runs.begin((app.key, app.uid()), HelmRun::Testing(Box::new(testing)), work, panicked);
}

/// Class and message of a failure; `None`: the operator stopped it.
type Ended = Result<(), Option<(Refusal, String)>>;

fn ended(attempt: Attempt, result: Ended, revision: Option<i64>, wrote: Recorded) -> HelmRun {
    let (at, succeeded) = (clock::now(), result.is_ok());
    let attempt = match result {
        Ok(()) => Attempt { failures: 0, message: volumes::kept(&wrote.kept), ..attempt },
        // For example, for a deletion: the next reconcile starts the teardown.
        Err(None) => attempt,
        Err(Some((refusal, message))) => {
            tracing::warn!(reason = %refusal.reason(), "{message}");
            attempt::record_failure(attempt, refusal, message, at, rand::rng().random())
        }
    };
    HelmRun::Upgraded(Box::new(Upgraded { attempt, revision, succeeded, at, wrote }))
}

/// Keeps volumes, which are deleted only with the app: a volume that the next revision no longer contains, because persistence
/// was turned off or the release's objects got other names, stays: an upgrade with Helm leaves objects with this annotation
/// (helm.sh/helm/v4/pkg/kube/client.go, `Update`). An uninstall goes by the manifest that the chart rendered.
async fn keep_volumes(ctx: &Ctx, key: &Key, observed: &Observed) -> Result<(), Error> {
    for name in
        observed.objects.inventory.iter().flat_map(|inventory| inventory::unkept_claims(inventory, &key.namespace))
    {
        let Some(claim) = uncached::object(ctx, key, DataKind::Volume, name).await? else { continue };
        let policy = claim.annotations.as_ref().and_then(|annotations| annotations.get(storage::RESOURCE_POLICY));
        let kept = policy.is_some_and(|policy| policy == inventory::KEEP);
        if !kept && names::release_of(&claim).as_ref() == Some(key) {
            let keep = json!({storage::RESOURCE_POLICY: inventory::KEEP});
            let patch = json!({"metadata": {"uid": claim.uid, "annotations": keep}});
            retention::patch_if_present(ctx, key, DataKind::Volume, name, &patch).await?;
        }
    }
    Ok(())
}

/// Returns the request to helm, without the chart's path and the values.
fn request(ctx: &Ctx, desired: &Desired, hidden: Redactor, revision: i64) -> Result<Upgrade, String> {
    let operation = format!("{:016x}", rand::rng().random::<u64>());
    let parsed = |error: helm::cli::command::InvalidArgument| error.to_string();
    Ok(Upgrade {
        release: desired.key.name.parse().map_err(parsed)?,
        namespace: desired.key.namespace.parse().map_err(parsed)?,
        account: desired.account.clone(),
        chart: PathBuf::new(),
        values: String::new(),
        redactor: hidden,
        labels: ReleaseLabels {
            digest: desired.target().digest.parse().map_err(parsed)?,
            holder: ctx.holder.parse().map_err(parsed)?,
            operation: operation.parse().map_err(parsed)?,
            revision: u32::try_from(revision).map_err(|error| format!("revision {revision}: {error}"))?,
        },
    })
}
