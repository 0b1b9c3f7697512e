//! Stage 4 where an object of the release is missing: it is applied as Helm has stored it, by Helm's own field manager and the account
//! that helm acts as. No helm runs, and the revision stays. An **effect**.

use kube::api::{Patch, PatchParams};
use serde_json::Value;

use super::{
    context::{App, Ctx},
    desired::Desired,
    drift,
    error::Error,
    live,
    observe::release_view,
    observed::{Found, Missing, Observed, ReleaseView},
    repairs::Refused,
};
use crate::{
    crd::{Reason, ReleaseObject},
    helm::{ingress, sentence::sentence},
    runtime::{
        clock,
        error::{api_disposition, api_sentence},
    },
};

/// As helm calls itself (helm.sh/helm/v4/cmd/helm/helm.go): its next upgrade finds fields of its own.
const HELM: &str = "helm";

/// Makes again what is missing. What cannot be made is remembered, and told by the next pass; it keeps nothing else from it.
///
/// # Errors
/// The API server could not be asked whether all is still as it was.
pub(super) async fn repair(
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
    for (missing, document) in missing.iter().zip(stored) {
        // Meanwhile the app may be suspended or deleted, and another Helm client at work.
        if !is_unchanged(ctx, app, release).await? {
            return Ok(());
        }
        let applied = match document {
            Ok(document) => apply(ctx, app, desired, missing, document).await,
            Err(problem) => Err(refused(problem)),
        };
        let mut repairs = ctx.memory.repairs.get(key).unwrap_or_default();
        repairs.tried(&missing.object, applied.err(), clock::now());
        ctx.memory.repairs.put(key.clone(), repairs);
    }
    Ok(())
}

async fn is_unchanged(ctx: &Ctx, app: &App<'_>, release: &ReleaseView) -> Result<bool, Error> {
    Ok(live::is_current(ctx, app).await?
        && release_view(&live::revisions(ctx, app.key).await?).as_ref() == Some(release))
}

fn refused(sentence: String) -> Refused {
    Refused { sentence, stalled: true }
}

async fn apply(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    Missing { object, found }: &Missing,
    document: Value,
) -> Result<(), Refused> {
    let key = app.key;
    let ReleaseObject { kind, name, .. } = object;
    // As the gateway has helm do it.
    if ingress::is_ingress(&document) {
        ingress::claimed(&document, ctx.claim(app)).map_err(refused)?;
    }
    let api = live::of_release(ctx, key, &desired.account, object);
    let helm = PatchParams::apply(HELM);
    let applied = match found {
        // What it is otherwise is another question.
        Found::Unmarked => api.patch_metadata(name, &helm, &Patch::Merge(drift::marks(key))).await,
        _ => api.patch_metadata(name, &helm, &Patch::Apply(drift::applied(document, key))).await,
    };
    let error = match applied {
        Ok(_) => {
            tracing::info!(release = %key, "{kind} {}/{name} is recreated", key.namespace);
            return Ok(());
        }
        Err(error) => error,
    };
    let disposition = api_disposition(&error);
    let sentence = match &error {
        // The API server, and who it asks, may quote what is refused.
        kube::Error::Api(status) if kind == "Secret" && disposition.reason != Reason::QuotaExceeded => {
            format!("the API server refuses it, with code {} {}", status.code, status.reason)
        }
        _ => sentence(&api_sentence(&error)),
    };
    tracing::warn!(release = %key, "{kind} {}/{name} cannot be recreated: {sentence}", key.namespace);
    Err(Refused { sentence, stalled: disposition.stalled })
}
