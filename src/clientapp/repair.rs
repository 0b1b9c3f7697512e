//! Stage 4 where an object of the release is missing: it is applied as Helm has stored it, by Helm's own field manager and the account
//! that helm acts as. No helm runs, and the revision stays. An **effect**.

use kube::api::{Patch, PatchParams};
use serde_json::Value;

use super::{
    context::{App, Ctx},
    desired::Desired,
    drift::{self, Found, Missing},
    error::Error,
    live,
    observe::release_view,
    observed::{Observed, ReleaseView},
};
use crate::{
    crd::ReleaseObject,
    helm::ingress,
    runtime::{clock, error::api_sentence},
};

/// As helm calls itself (helm.sh/helm/v4/cmd/helm/helm.go): its next upgrade finds fields of its own.
const HELM: &str = "helm";

/// Makes again what is missing, as far as that can be.
///
/// # Errors
/// The first that could not be made; the others were tried.
pub async fn repair(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    observed: &Observed,
    missing: &[Missing],
) -> Result<(), Error> {
    let key = app.key;
    let Some(release) = &observed.release else { return Ok(()) };
    let objects: Vec<_> = missing.iter().map(|missing| missing.object.clone()).collect();
    let stored = live::objects(ctx, key, &release.secret, objects).await?;
    let stored = stored.map_err(|problem| Error::Repair { release: key.clone(), problem })?;
    let (mut made, mut first) = (Vec::new(), None);
    for (missing, document) in missing.iter().zip(stored) {
        // Meanwhile the app may be suspended or deleted, and another Helm client at work.
        if !is_unchanged(ctx, app, release).await? {
            break;
        }
        match apply(ctx, app, desired, missing, document).await {
            Ok(()) => made.push(missing.object.clone()),
            Err(error) => first = first.or(Some(error)),
        }
    }
    ctx.memory.repairs.put(key.clone(), observed.repairs.clone().with(&made, clock::now()));
    first.map_or(Ok(()), Err)
}

async fn is_unchanged(ctx: &Ctx, app: &App<'_>, release: &ReleaseView) -> Result<bool, Error> {
    Ok(live::is_current(ctx, app).await?
        && release_view(&live::revisions(ctx, app.key).await?).as_ref() == Some(release))
}

async fn apply(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    Missing { object, found }: &Missing,
    document: Value,
) -> Result<(), Error> {
    let key = app.key;
    let ReleaseObject { kind, name, .. } = object;
    let refused =
        |problem: String| Error::Repair { release: key.clone(), problem: format!("{kind} {name}: {problem}") };
    // As the gateway has helm do it.
    if ingress::is_ingress(&document) {
        if ingress::stays(&document) {
            return Err(refused(
                "an Ingress that is a hook, or marked to be kept, would have its hosts longer than its release"
                    .to_owned(),
            ));
        }
        let claim = ctx.claim(app);
        ingress::hosts(&document).iter().try_for_each(|host| claim(host)).map_err(refused)?;
    }
    let api = live::of_release(ctx, key, &desired.account, object);
    let helm = PatchParams { field_manager: Some(HELM.to_owned()), ..PatchParams::default() };
    let applied = match found {
        // What it is otherwise is another question.
        Found::Unmarked => api.patch_metadata(name, &helm, &Patch::Merge(drift::marks(key))).await,
        _ => api.patch_metadata(name, &helm, &Patch::Apply(drift::applied(document, key))).await,
    };
    match applied {
        Ok(_) => {
            tracing::info!(release = %key, "{kind} {}/{name} is made again", key.namespace);
            Ok(())
        }
        // The API server quotes what it refuses.
        Err(kube::Error::Api(status)) if kind == "Secret" && status.code != 403 => {
            Err(refused(format!("the API server refuses it, with code {} {}", status.code, status.reason)))
        }
        Err(error) if api_sentence(&error).contains("failed to create typed patch object") => {
            Err(refused(api_sentence(&error)))
        }
        Err(error) => Err(Error::api(format!("make {kind} {}/{name} again", key.namespace))(error)),
    }
}
