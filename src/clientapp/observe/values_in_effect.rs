//! Reads the values of a release that was rolled back: those of the revision that is in effect. An **effect**, reads only.

use super::uncached;
use crate::{
    clientapp::{
        context::Ctx,
        error::Error,
        spec::{
            desired::{Desired, DesiredValues},
            values::with_credentials_of,
        },
    },
    crd::{ReadyRevision, RolledBack},
    helm::{Redactor, storage},
};
use serde_json::Value;

/// Returns the desired state with what no message may contain: of the revision that is in effect as well, not only of the spec.
pub(crate) async fn with_hidden(ctx: &Ctx, desired: Desired) -> Result<Desired, Error> {
    let Some(RolledBack { to, .. }) = desired.rolled_back() else {
        ctx.memory.drop(&desired.key, |app| app.rolled_back = None);
        return Ok(desired);
    };
    let hidden =
        match ctx.memory.read(&desired.key, |app| app.rolled_back.clone()).filter(|(digest, _)| *digest == to.digest) {
            Some((_, hidden)) => hidden,
            None => {
                let (_, hidden) = values(ctx, &desired).await?;
                ctx.memory.put(&desired.key, |app| app.rolled_back = Some((to.digest.clone(), hidden.clone())));
                hidden
            }
        };
    let values = DesiredValues { redactor: hidden, ..desired.values };
    Ok(Desired { values, ..desired })
}

/// Returns the values for helm, and what no message may contain.
pub(crate) async fn values(ctx: &Ctx, desired: &Desired) -> Result<(Value, Redactor), Error> {
    let Some(RolledBack { to: ReadyRevision { revision, .. }, .. }) = desired.rolled_back() else {
        return Ok((desired.values.merged.0.clone(), desired.values.redactor.clone()));
    };
    let release = &desired.key;
    let stored = uncached::values(ctx, release, &storage::secret(&release.name, revision)).await?;
    let unread = |problem| Error::Stored { release: release.name.clone(), revision: *revision, problem };
    let values = stored.map_err(unread)?;
    let hidden = Redactor::for_previous_values(&values, &desired.values.merged.0, &desired.values.redactor)
        .ok_or_else(|| unread("it has too many values to keep them out of messages".to_owned()))?;
    Ok((with_credentials_of(values, &desired.values.merged.0), hidden))
}
