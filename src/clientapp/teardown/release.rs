//! The release of a deleted app: uninstalled with helm, then verified object by object, and completed if helm left something. An
//! **effect**.

use k8s_openapi::{api::core::v1::Namespace, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Client,
    api::{DynamicObject, GroupVersionKind, TypeMeta},
    discovery,
};
use tokio_util::sync::CancellationToken;

use super::{context::TeardownContext, policy::AppResource};
use crate::{
    clientapp::{
        act::account,
        context::{App, Ctx},
        decide::deployer_taken,
        error::{self, Error},
        helm_runs::{HelmRun, Work},
        hold::{Hold, SAFETY_NET},
        observe::uncached,
        observed::{
            inventory,
            lock::{self, LockHolder},
            release::{ReleasePhase, ReleaseView},
        },
        spec::{desired::foreign_lock_timeout, names},
    },
    crd::{ClientApp, DEPLOYER, FINALIZER, Reason, ReleaseObject},
    deletion::{brake::is_going, permit::DataKind, recreatable},
    helm::{self, Uninstall},
    platform::{api::ignore_not_found, client::impersonating, clock, controller::ReconcileError as _, key::Key},
};

/// Returns why the release must not be uninstalled now, if so.
pub(super) fn may_be_uninstalled(teardown: &TeardownContext<'_>, release: Option<&ReleaseView>) -> Option<Hold> {
    let key = teardown.app.key;
    let timeout = teardown.app.decoded().ok().and_then(|app| foreign_lock_timeout(app).ok()?);
    // An uninstall at the same time as another client's does no harm.
    if let Some(release) = release.filter(|release| release.phase == ReleasePhase::Pending)
        && let LockHolder::OtherClient(until) = lock::holder(release, timeout, clock::now())
    {
        let message = lock::held(release, &key.name);
        return Some(Hold::new(Reason::ExternalOperationInProgress, message).until(until));
    }
    let Some(inventory) = &teardown.status.inventory else {
        let release = release?;
        let message = format!(
            "the objects of release {} cannot be read from Secret {}, and nothing is uninstalled: restore that Secret, or delete the release's objects by hand and then the Secret",
            key.name, release.secret
        );
        return Some(Hold::new(Reason::ReleaseUnreadable, message).until(clock::now() + SAFETY_NET));
    };
    if inventory::own(inventory, &key.namespace).all(|object| inventory::danger(object).is_none()) {
        return None;
    }
    // Claims of an earlier app count as well: an uninstall deletes everything in the release.
    let stays = |claim: &&ObjectMeta| {
        claim.deletion_timestamp.is_none()
            && !(teardown.is_deleted(AppResource::Volumes) && teardown.owns(DataKind::Volume, claim))
    };
    let name = |claim: &ObjectMeta| claim.name.clone().unwrap_or_default();
    let (claim, danger) = teardown.claims.iter().filter(stays).find_map(|claim| {
        let maker = inventory::maker(inventory, &key.namespace, &name(claim))?;
        Some((name(claim), inventory::danger(maker)?))
    })?;
    let message = if !teardown.is_deleted(AppResource::Volumes) {
        format!(
            "spec.deletionPolicy is Retain, but {danger}: nothing is uninstalled; set it to Delete if the data may go, or delete with --cascade=orphan, which leaves the release"
        )
    } else {
        format!(
            "PersistentVolumeClaim {claim} is not on record as this ClientApp's, but {danger}: nothing is uninstalled; delete that claim, or remove the finalizer {FINALIZER} from the ClientApp, which leaves the release"
        )
    };
    Some(Hold::new(Reason::RetainUnsafe, message).until(clock::now() + SAFETY_NET))
}

/// Uninstalls the release, and trusts only Helm's storage and the objects themselves. In a namespace that is being deleted, the
/// account may go before the release and cannot be recreated; that is not necessary either, since everything in the release goes
/// with the namespace.
pub(super) async fn uninstall(
    ctx: &Ctx,
    teardown: &TeardownContext<'_>,
    release: Option<&ReleaseView>,
) -> Result<Option<Hold>, Error> {
    match uninstalled(ctx, teardown, release).await {
        Err(error) if is_denied(&error) && is_going::<Namespace>(&ctx.client, &teardown.app.key.namespace).await? => {
            tracing::info!(release = %teardown.app.key, "goes with its namespace: {error}");
            Ok(None)
        }
        result => result,
    }
}

fn is_denied(error: &Error) -> bool {
    matches!(error.disposition().reason, Reason::AccessDenied | Reason::NamespaceTerminating)
}

async fn uninstalled(
    ctx: &Ctx,
    teardown: &TeardownContext<'_>,
    release: Option<&ReleaseView>,
) -> Result<Option<Hold>, Error> {
    let key = teardown.app.key;
    let ended = match ctx.helm_runs.state(key, teardown.app.uid()) {
        HelmRun::Uninstalling => {
            return Ok(Some(Hold::new(Reason::Uninstalling, format!("helm uninstalls release {}", key.name))));
        }
        HelmRun::Uninstalled(Err((refusal, message))) => {
            ctx.helm_runs.settle(key);
            let (refusal, message) = match refusal {
                error::Refusal::NotDeleted => match failure_cause(ctx, teardown, message).await? {
                    Some(cause) => cause,
                    // helm cannot uninstall a release of which it does not know every kind, even if nothing is left of it.
                    None => return record(ctx, teardown, release).await,
                },
                _ => (refusal, message),
            };
            return Err(Error::Uninstall { release: key.clone(), refusal, message });
        }
        HelmRun::Uninstalled(Ok(())) => true,
        _ => false,
    };
    if (release.is_some() || teardown.status.inventory.is_some())
        && let Some(hold) = ensure_deployer(ctx, teardown).await?
    {
        return Ok(Some(hold));
    }
    if let Some(release) = release.filter(|_| !ended) {
        match uncached::stored(ctx, key, &release.secret).await? {
            Ok(_) => return run(ctx, teardown).await.map(Some),
            // helm could not read it either; the recorded inventory is enough.
            Err(problem) => {
                tracing::warn!(release = %key, secret = release.secret, "taken down according to the recorded inventory: {problem}");
            }
        }
    }
    if let Some(left) = objects(ctx, teardown).await?.deleting {
        let hold = Hold::new(Reason::Uninstalling, format!("waiting for {left} to be gone"));
        return Ok(Some(hold.until(teardown.poll(clock::now()))));
    }
    record(ctx, teardown, release).await
}

/// Returns what helm could not delete, and why: the API server tells that when it is asked to delete what is left. helm itself
/// does not, and the objects are those that it was to delete. `None`: nothing is left.
async fn failure_cause(
    ctx: &Ctx,
    teardown: &TeardownContext<'_>,
    message: String,
) -> Result<Option<(error::Refusal, String)>, Error> {
    Ok(match objects(ctx, teardown).await {
        Ok(Remaining { deleting: None, helm_only: None }) => None,
        Ok(Remaining { helm_only: Some(left), .. } | Remaining { deleting: Some(left), .. }) => {
            Some((error::Refusal::NotDeleted, format!("{message}: {left} is left")))
        }
        Err(Error::Shutdown) => return Err(Error::Shutdown),
        Err(refused) => {
            let refusal = if is_denied(&refused) { error::Refusal::AccessDenied } else { error::Refusal::NotDeleted };
            Some((refusal, refused.to_string()))
        }
    })
}

/// Deletes Helm's own record of a release of which nothing is left, if there is one.
async fn record(
    ctx: &Ctx,
    teardown: &TeardownContext<'_>,
    release: Option<&ReleaseView>,
) -> Result<Option<Hold>, Error> {
    if release.is_some()
        && let Some((secret, _)) = uncached::revisions(ctx, teardown.app.key).await?.first()
    {
        return storage(ctx, teardown, secret).await;
    }
    Ok(None)
}

/// Creates missing parts of the deployer, and waits for them.
async fn ensure_deployer(ctx: &Ctx, teardown: &TeardownContext<'_>) -> Result<Option<Hold>, Error> {
    let key = teardown.app.key;
    let deployer = ctx.watches.deployer(&key.namespace);
    if !teardown.account.is_deployer() || deployer.is_ready() {
        return Ok(None);
    }
    for part in deployer.missing() {
        account::create(ctx, teardown.app, part, true).await?;
    }
    let hold = match deployer.has_conflict() {
        true => deployer_taken(key),
        false => Hold::new(Reason::Uninstalling, format!("waiting for ServiceAccount {DEPLOYER} and its RoleBinding")),
    };
    Ok(Some(hold.until(teardown.poll(clock::now()))))
}

/// Deletes Helm's own record of the release, once all its objects are gone.
async fn storage(ctx: &Ctx, teardown: &TeardownContext<'_>, first: &str) -> Result<Option<Hold>, Error> {
    let key = teardown.app.key;
    let mut left = None;
    for (secret, revision) in uncached::revisions(ctx, key).await? {
        // A revision without this operator's stamp is another Helm client's, or forged.
        if revision.digest.is_some() && revision.stamped.is_some() {
            teardown.destroyer(ctx).delete_revision(&key.namespace, &secret, &revision.uid).await?;
        } else {
            left.get_or_insert(secret);
        }
    }
    if let Some(secret) = left {
        tracing::warn!(release = %key, secret, "is not a revision of this operator and stays");
        return Ok(None);
    }
    let message = format!("waiting for Secret {first} of release {} to be gone", key.name);
    Ok(Some(Hold::new(Reason::Uninstalling, message).until(teardown.poll(clock::now()))))
}

/// Starts the uninstall if the app gets a slot; otherwise the app joins the queue.
async fn run(ctx: &Ctx, teardown: &TeardownContext<'_>) -> Result<Hold, Error> {
    let (key, uid) = (teardown.app.key, teardown.app.uid());
    let failed = |refusal, message| Error::Uninstall { release: key.clone(), refusal, message };
    let parsed = |error: helm::cli::command::InvalidArgument| failed(error::Refusal::UpgradeFailed, error.to_string());
    let request = Uninstall {
        release: key.name.parse().map_err(parsed)?,
        namespace: key.namespace.parse().map_err(parsed)?,
        account: teardown.account.clone(),
    };
    let waited = teardown.since_deletion(clock::now());
    let Some(slot) = ctx.helm_runs.slot(Work::Change, key, waited) else {
        let message = format!(
            "release {} is to be uninstalled and waits for its turn; helm runs for at most {} apps at a time",
            key.name, ctx.config.max_concurrent
        );
        return Ok(Hold::new(Reason::Uninstalling, message));
    };
    // Read from the API server, since a watch may be late.
    if !teardown.is_still_current(ctx).await? {
        let message = "the ClientApp has changed since: it is checked again";
        return Ok(Hold::new(Reason::Uninstalling, message).until(teardown.poll(clock::now())));
    }
    if !ctx.lead.is_held() {
        return Err(Error::Shutdown);
    }
    let (helm, gateway, client) = (ctx.helm.clone(), ctx.gateway.clone(), ctx.client.clone());
    let (metrics, release, claim) = (ctx.metrics.clone(), key.clone(), ctx.claim(teardown.app));
    let work = |cancel: CancellationToken| async move {
        let started = std::time::Instant::now();
        let result = helm.uninstall(&gateway, &request, claim, &cancel).await;
        metrics.helm_run("uninstall", result.is_ok(), started.elapsed());
        drop(slot);
        match result {
            Ok(finished) => {
                for object in helm::left_behind(&finished.stdout) {
                    tracing::warn!(%release, %object, "helm left an object of the release in place");
                }
                HelmRun::Uninstalled(Ok(()))
            }
            // The operator stopped it: the next reconcile starts it again.
            Err(error) => match error::of_helm_error(&error) {
                None => HelmRun::Idle,
                Some(failed) => {
                    let account = (&*release.namespace, &request.account);
                    HelmRun::Uninstalled(Err(account::explained(&client, account, failed).await))
                }
            },
        }
    };
    ctx.helm_runs.begin((key, uid), HelmRun::Uninstalling, work, || HelmRun::Uninstalled(Err(error::panicked())));
    Ok(Hold::new(Reason::Uninstalling, format!("helm uninstalls release {}", key.name)))
}

/// Stops a helm process that installs the release, and waits for its end.
pub(super) fn stop_upgrade(ctx: &Ctx, app: &App<'_>) -> Option<Hold> {
    match ctx.helm_runs.state(app.key, app.uid()) {
        HelmRun::Upgrading(_) | HelmRun::Testing(_) | HelmRun::OfPredecessor => {
            ctx.helm_runs.cancel(app.key);
            let message = format!(
                "the helm process that works on release {} is being stopped before the release is uninstalled",
                app.key.name
            );
            Some(Hold::new(Reason::Uninstalling, message))
        }
        HelmRun::FetchingChart(_) | HelmRun::Upgraded(_) | HelmRun::Tested(_) => {
            ctx.helm_runs.forget(app.key);
            None
        }
        HelmRun::Idle | HelmRun::Uninstalling | HelmRun::Uninstalled(_) => None,
    }
}

#[derive(Default)]
struct Remaining {
    /// The first object that is being deleted.
    deleting: Option<String>,
    /// The first one that only helm may delete: it may hold data.
    helm_only: Option<String>,
}

enum Fate {
    Gone,
    Deleting,
    HelmOnly,
}

/// Checks each object of the release, and deletes what helm left.
async fn objects(ctx: &Ctx, teardown: &TeardownContext<'_>) -> Result<Remaining, Error> {
    let Some(inventory) = &teardown.status.inventory else { return Ok(Remaining::default()) };
    let hook = |api_version: &str, kind: &str, name: &String| ReleaseObject {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: name.clone(),
        ..ReleaseObject::default()
    };
    let jobs = inventory.hook_jobs.iter().map(|name| hook("batch/v1", "Job", name));
    let hooks: Vec<_> = jobs.chain(inventory.hook_pods.iter().map(|name| hook("v1", "Pod", name))).collect();
    let client = impersonating(&ctx.client, &teardown.app.key.namespace, &teardown.account);
    let mut left = Remaining::default();
    // Objects in other namespaces are not this app's to delete, and kept objects are deleted by policy.
    let own = inventory::own(inventory, &teardown.app.key.namespace).filter(|object| !object.kept);
    for (object, of_hook) in own.map(|object| (object, false)).chain(hooks.iter().map(|hook| (hook, true))) {
        let list = match fate(ctx, &client, teardown, object, of_hook).await? {
            Fate::Gone => continue,
            Fate::Deleting => &mut left.deleting,
            Fate::HelmOnly => &mut left.helm_only,
        };
        list.get_or_insert_with(|| format!("{} {}", object.kind, object.name));
    }
    Ok(left)
}

/// Deletes an object, if that loses nothing, unless it is gone or replaced by another; returns what has become of it.
async fn fate(
    ctx: &Ctx,
    client: &Client,
    teardown: &TeardownContext<'_>,
    object: &ReleaseObject,
    of_hook: bool,
) -> Result<Fate, Error> {
    let key = teardown.app.key;
    let object_type = TypeMeta { api_version: object.api_version.clone(), kind: object.kind.clone() };
    let what = format!("{} {}/{}", object.kind, key.namespace, object.name);
    let Some(api) = api(ctx, client, key, &object_type).await? else { return Ok(Fate::Gone) };
    let found =
        ignore_not_found(api.get_metadata(&object.name).await).map_err(Error::api(format!("look for {what}")))?;
    let Some(meta) = found.map(|found| found.metadata) else { return Ok(Fate::Gone) };
    // Hooks do not have Helm's marks of a release. They are found by the names stored with it, and may never have run: then a user may
    // have an object of that name.
    let of_release = match of_hook {
        true => meta.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(helm::storage::HOOK)),
        false => names::release_of(&meta).as_ref() == Some(key),
    };
    if !of_release || is_later(teardown.app.meta(), &meta) {
        return Ok(Fate::Gone);
    }
    if meta.deletion_timestamp.is_some() {
        return Ok(Fate::Deleting);
    }
    if !ctx.lead.is_held() {
        return Err(Error::Shutdown);
    }
    let kind = [DataKind::Volume, DataKind::Secret]
        .into_iter()
        .find(|kind| object_type.api_version == "v1" && object_type.kind == kind.as_str());
    match kind {
        // Volumes are handled later, by policy.
        Some(DataKind::Volume) => Ok(Fate::Gone),
        Some(kind) => {
            let destroyer = teardown.destroyer(ctx);
            match destroyer.grant::<ClientApp>(key, teardown.app.uid()).await?.map(|m| m.permit(kind, meta)) {
                Ok(Ok(permit)) => destroyer.delete(permit).await.map(|()| Fate::Deleting).map_err(Error::from),
                // A Secret of the chart without a proof stays.
                _ => Ok(Fate::HelmOnly),
            }
        }
        None => {
            let deleted = recreatable::delete(&api, &object_type, &meta).await;
            let fate = |deleted| if deleted { Fate::Deleting } else { Fate::HelmOnly };
            deleted.map(fate).map_err(Error::api(format!("delete {what}, which helm left")))
        }
    }
}

/// Returns true if an object was created after the app's deletion was requested: the deletion does not apply to it.
fn is_later(app: &ObjectMeta, object: &ObjectMeta) -> bool {
    let created = object.creation_timestamp.as_ref().map(|time| time.0);
    app.deletion_timestamp.as_ref().map(|time| time.0) < created
}

/// Returns the API for a kind in the app's namespace; `None`: the cluster does not know the kind, or it is not namespaced.
async fn api(
    ctx: &Ctx,
    client: &Client,
    key: &Key,
    object_type: &TypeMeta,
) -> Result<Option<Api<DynamicObject>>, Error> {
    let Ok(kind) = GroupVersionKind::try_from(object_type) else { return Ok(None) };
    let name = format!("{} {}", object_type.api_version, object_type.kind);
    let known = match ctx.memory.kinds.get(&name) {
        Some(known) => known,
        None => match discovery::pinned_kind(client, &kind).await {
            Ok((resource, capabilities)) => {
                let known = (capabilities.scope == discovery::Scope::Namespaced).then_some(resource);
                ctx.memory.kinds.put(name, known.clone());
                known
            }
            Err(kube::Error::Api(status)) if status.code == 404 => None,
            Err(kube::Error::Discovery(_)) => None,
            Err(error) => return Err(Error::api(format!("ask for the kind {name}"))(error)),
        },
    };
    Ok(known.map(|resource| Api::namespaced_with(client.clone(), &key.namespace, &resource)))
}
