//! What deletes the rows of objects that went before their claim had become a finalizer. An **effect**.
//!
//! It has something to do only after an operator was killed, or an object deleted, in just that moment.

use std::time::Duration;

use kube::runtime::reflector::ObjectRef;

use super::{
    Ctx, answered,
    claims::{Claim, Claims},
    error::{Error, RETRY},
    row::Table,
};
use crate::controller::key::Key;

/// Between two attempts to reach the API server.
const PAUSE: Duration = Duration::from_secs(1);
/// An API server that has just begun refuses what it will let through a moment later.
const REFUSALS: usize = 5;

/// Takes over the claims that an operator before has left.
pub async fn take_over(claims: &Claims) {
    let mut refusals = 0;
    while let Err(error) = claims.load().await {
        if let kube::Error::Api(status) = &error
            && status.code == 403
        {
            refusals += 1;
        }
        if refusals == REFUSALS {
            tracing::warn!(%error, "rows are claimed one by one, which is slower: apply the Role of the operator's version");
            return claims.close();
        }
        tracing::warn!(%error, "cannot list the claims to rows; trying again");
        tokio::time::sleep(PAUSE).await;
    }
}

/// Sweeps for good, whenever there may be something to sweep.
pub async fn run(ctx: &Ctx) {
    // Until then none is known to be gone.
    ctx.listed.wait().await;
    loop {
        ctx.claims.changed().await;
        let mut failures = 0;
        while !all(ctx).await {
            failures += 1;
            let pause = RETRY.delay(failures).unwrap_or(Duration::MAX);
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = ctx.claims.changed() => {}
            }
        }
    }
}

/// Sweeps what is to be swept now. Returns whether it could.
async fn all(ctx: &Ctx) -> bool {
    let mut swept = true;
    for key in ctx.claims.open() {
        // Of an object that is there its own reconcile takes care.
        if there(ctx, &key) {
            continue;
        }
        let Some(claim) = ctx.claims.take(&key).await else { continue };
        if there(ctx, &key) {
            continue;
        }
        if let Err(error) = sweep(ctx, claim).await {
            tracing::warn!(postgreswriter = %key, %error, "cannot delete the row of an object that is gone");
            swept = false;
        }
    }
    if let Err(error) = ctx.claims.discard().await {
        tracing::warn!(%error, "cannot delete a ConfigMap with claims that are no longer needed");
        swept = false;
    }
    swept
}

fn there(ctx: &Ctx, key: &Key) -> bool {
    ctx.objects.get(&ObjectRef::new(&key.name).within(&key.namespace)).is_some()
}

/// Deletes the row of an object that is gone, and strikes out its claim.
///
/// # Errors
/// The database's refusal, or the API server's.
pub async fn sweep(ctx: &Ctx, claim: Claim<'_>) -> Result<(), Error> {
    let id = claim.id();
    delete(ctx, &claim.table, &id).await?;
    claim.strike().await.map_err(Error::api(format!("strike out the claim to row {id}")))
}

/// Deletes a row. Where there is no table there is none.
///
/// # Errors
/// The database's refusal.
pub async fn delete(ctx: &Ctx, table: &Table, id: &str) -> Result<(), Error> {
    match answered(ctx, ctx.database.delete(table, id).await) {
        Err(Error::Database { class, .. }) if class.reason == "TableMissing" => Ok(()),
        deleted => deleted,
    }
}
