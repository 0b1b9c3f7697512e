//! Reads the release from Helm's storage: its newest revision, and the objects in it.

use super::{run::cache_has, uncached};
use crate::{
    clientapp::{
        context::{App, Ctx},
        error::Error,
        helm_runs::HelmRun,
        observed::{
            inventory,
            release::{ReleaseView, release_view},
            types::Observed,
        },
        spec::desired::Desired,
    },
    crd::{ClientAppStatus, Inventory},
    platform::key::Key,
};

/// Returns the newest revision of the release, and whether it shows the outcome of the run. The cache is asked first. If it
/// knows less than the operator has recorded, or has seen helm write, then either it is late or another Helm client removed
/// revisions, and only the API server can tell which.
pub(super) async fn newest(
    ctx: &Ctx,
    key: &Key,
    cached: Option<ReleaseView>,
    recorded: &ClientAppStatus,
    run: &HelmRun,
) -> Result<(Option<ReleaseView>, bool), Error> {
    let newest = |release: &Option<ReleaseView>| release.as_ref().map(|release| release.revision);
    let known = recorded.release.as_ref().map(|release| release.revision);
    let upgraded = match run {
        HelmRun::Upgraded(upgraded) => Some(upgraded),
        _ => None,
    };
    let is_shown = upgraded.is_none_or(|upgraded| cache_has(upgraded, cached.as_ref()));
    if is_shown && newest(&cached) >= known {
        return Ok((cached, is_shown));
    }
    let live = release_view(&uncached::revisions(ctx, key).await?);
    // helm did not get as far as writing it, or another Helm client removed it.
    let is_none = upgraded.is_some_and(|upgraded| newest(&live) < upgraded.revision);
    Ok((live, is_shown || is_none))
}

/// Returns the objects of the release: as recorded for this revision, otherwise read from Helm's storage.
pub(crate) async fn inventory(
    ctx: &Ctx,
    key: &Key,
    release: Option<&ReleaseView>,
    recorded: &ClientAppStatus,
) -> Result<Option<Inventory>, Error> {
    let Some(release) = release.filter(|release| release.ever_managed) else { return Ok(recorded.inventory.clone()) };
    if let Some(inventory) = recorded.inventory.as_ref().filter(|inventory| inventory.secret == release.secret_uid) {
        return Ok(Some(inventory.clone()));
    }
    if ctx.memory.read(key, |app| app.unreadable.as_ref() == Some(&release.secret_uid)) {
        return Ok(recorded.inventory.clone());
    }
    match uncached::stored(ctx, key, &release.secret).await? {
        Ok(found) => Ok(Some(inventory::with_former_hooks(found, recorded.inventory.as_ref()))),
        Err(problem) => {
            tracing::warn!(release = %key, secret = release.secret, "what revision {} consists of is not known: {problem}", release.revision);
            ctx.memory.put(key, |app| app.unreadable = Some(release.secret_uid.clone()));
            Ok(recorded.inventory.clone())
        }
    }
}

/// Returns a hook's Job that still runs, of a revision that an operator's helm left pending.
pub(super) async fn hook(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    observed: &Observed,
) -> Result<Option<String>, Error> {
    let Some(release) = observed.release.as_ref().filter(|release| release.is_stale_lock()) else { return Ok(None) };
    let inventory = observed.objects.inventory.as_ref().filter(|inventory| inventory.secret == release.secret_uid);
    for job in inventory.iter().flat_map(|inventory| &inventory.hook_jobs) {
        if uncached::job_runs(ctx, app.key, &desired.account, job).await? {
            return Ok(Some(job.clone()));
        }
    }
    Ok(None)
}
