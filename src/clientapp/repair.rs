//! Stage 4 where an object of the release is missing: it is applied as Helm has stored it, by Helm's own field manager and the account
//! that helm acts as. No helm runs, and the revision stays. An **effect**.

use kube::{
    Api,
    api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams},
};

use super::{
    context::{App, Ctx},
    desired::Desired,
    drift::{self, Found},
    error::Error,
    live,
    observe::release_view,
    observed::Observed,
};
use crate::{
    crd::ReleaseObject,
    runtime::{client::impersonating, clock},
};

/// As helm calls itself (helm.sh/helm/v4/cmd/helm/helm.go): its next upgrade finds fields of its own.
const HELM: &str = "helm";

/// Makes again what is missing.
///
/// # Errors
/// A request failed, or another client's object has the name.
pub async fn repair(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    observed: &Observed,
    missing: &[ReleaseObject],
) -> Result<(), Error> {
    let key = app.key;
    let Some(release) = &observed.release else { return Ok(()) };
    // First: what fails is not tried again any sooner.
    ctx.memory.repairs.put(key.clone(), observed.repairs.clone().with(missing, clock::now()));
    // Meanwhile it may be suspended or deleted, and another Helm client at work.
    if !live::is_current(ctx, app).await? || release_view(&live::revisions(ctx, key).await?).as_ref() != Some(release) {
        return Ok(());
    }
    let failed = |problem: String| Error::Repair { release: key.clone(), problem };
    let stored = live::objects(ctx, key, &release.secret, missing).await?.map_err(failed)?;
    let client = impersonating(&ctx.client, &key.namespace, &desired.account);
    for (ReleaseObject { api_version, kind, name, .. }, document) in stored {
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", &api_version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &kind));
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &key.namespace, &resource);
        let what = format!("{kind} {}/{name}", key.namespace);
        let there = api.get_metadata_opt(&name).await.map_err(Error::api(format!("look for {what}")))?;
        match drift::found(there.as_ref().map(|found| &found.metadata), key) {
            Found::There => {}
            Found::Foreign => {
                return Err(failed(format!(
                    "{kind} {name} is there, and Helm's marks on it are not of this release: delete it, and it is made again, or set spec.drift to Ignore"
                )));
            }
            Found::Apply => {
                let patch = Patch::Apply(drift::applied(document, key));
                let applied = api.patch_metadata(&name, &PatchParams::apply(HELM), &patch).await;
                applied.map_err(Error::api(format!("make {what} again")))?;
                tracing::info!(release = %key, "{what} is made again");
            }
        }
    }
    Ok(())
}
