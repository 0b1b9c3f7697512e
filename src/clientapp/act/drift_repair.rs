//! The part of the stage `act` that repairs drift: a missing or edited object is applied as Helm stored it, with Helm's own field manager
//! and as the account that helm acts as. helm does not run, and the revision stays. An **effect**.

use kube::api::{Patch, PatchParams};
use serde_json::Value;

use crate::{
    clientapp::{
        context::{App, Ctx},
        error::Error,
        observe::uncached,
        observed::{
            drift, field_edits,
            release::{ReleaseView, release_view},
            repair_backoff::Refused,
            types::{DriftedObject, LiveState, Observed},
        },
        spec::desired::Desired,
    },
    crd::{Reason, ReleaseObject},
    helm::{cli::message::summarize, hosts},
    platform::{
        clock,
        error::{api_disposition, api_sentence},
        managed_fields::HELM,
    },
};

/// Recreates missing objects. A failure is remembered and reported by the next pass; it does not stop the rest of this pass.
///
/// # Errors
/// The API server could not be asked whether app and release are unchanged.
pub(crate) async fn repair(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    observed: &Observed,
    missing: &[DriftedObject],
) -> Result<(), Error> {
    let key = app.key;
    let Some(release) = &observed.release else { return Ok(()) };
    let objects: Vec<_> = missing.iter().map(|missing| missing.object.clone()).collect();
    let stored = uncached::objects(ctx, key, &release.secret, objects).await?;
    for (missing, document) in missing.iter().zip(stored) {
        // The app may have been suspended or deleted by now, or another Helm client may be working on the release.
        if !is_unchanged(ctx, app, release).await? {
            return Ok(());
        }
        let applied = match document {
            Ok(document) => apply(ctx, app, desired, missing, document).await,
            Err(problem) => Err(refused(desired.values.redactor.redact(&problem))),
        };
        ctx.memory.put(key, |app| app.repairs.tried(&missing.object, applied.err(), clock::now()));
    }
    Ok(())
}

async fn is_unchanged(ctx: &Ctx, app: &App<'_>, release: &ReleaseView) -> Result<bool, Error> {
    Ok(uncached::is_current(ctx, app).await?
        && release_view(&uncached::revisions(ctx, app.key).await?).as_ref() == Some(release))
}

fn refused(sentence: String) -> Refused {
    Refused { sentence, stalled: true }
}

async fn apply(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    DriftedObject { object, state: found }: &DriftedObject,
    document: Value,
) -> Result<(), Refused> {
    let key = app.key;
    let ReleaseObject { kind, name, .. } = object;
    // As the gateway does for helm.
    if hosts::is_named_by_kind(&document) {
        hosts::claim_all(&document, ctx.claim(app))
            .map_err(|problem| refused(desired.values.redactor.redact(&problem)))?;
    }
    let api = uncached::of_release(ctx, key, &desired.account, object);
    let helm = PatchParams::apply(HELM);
    let applied = match found {
        // Only the marks: other differences are not repaired.
        LiveState::Unmarked => api.patch_metadata(name, &helm, &Patch::Merge(drift::marks(key))).await,
        // By force, as helm applies: another client manages these fields now.
        LiveState::Edited(edit) => {
            let document = field_edits::document_of(document, key, &edit.ignored);
            api.patch_metadata(name, &helm.force(), &Patch::Apply(document)).await
        }
        _ => api.patch_metadata(name, &helm, &Patch::Apply(drift::applied(document, key))).await,
    };
    let error = match applied {
        Ok(_) => {
            let done = if matches!(found, LiveState::Edited(_)) { "put back" } else { "recreated" };
            tracing::info!(release = %key, "{kind} {}/{name} is {done}", key.namespace);
            return Ok(());
        }
        Err(error) => error,
    };
    let disposition = api_disposition(&error);
    let sentence = match &error {
        // The API server, or a webhook, may quote the rejected content.
        kube::Error::Api(status) if kind == "Secret" && disposition.reason != Reason::QuotaExceeded => {
            format!("the API server refuses it, with code {} {}", status.code, status.reason)
        }
        _ => summarize(&desired.values.redactor.redact(&api_sentence(&error))),
    };
    tracing::warn!(release = %key, "{kind} {}/{name} cannot be repaired: {sentence}", key.namespace);
    Err(Refused { sentence, stalled: disposition.stalled })
}
