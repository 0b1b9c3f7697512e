//! Deletion: what is taken down is put on record, then the release, then volumes, database and credentials by policy, then
//! the finalizer. An **effect**.
//!
//! It works with a spec that is invalid or does not decode, and ends whatever Helm's storage says. What holds or opens data
//! goes by [`crate::destroy`] alone; what lacks a proof is kept, and named.

mod data;
mod release;

use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{Api, Resource as _, ResourceExt as _};

use super::{
    Ctx,
    error::Error,
    fate::{Deletion, Fate, Piece},
    finalizer,
    names::Maker,
    observe,
    owned::{self, Seen},
    plan::{Hold, SAFETY_NET},
    report,
    retained::Leaving,
    upgrade,
    world::ReleaseView,
};
use crate::{
    controller::key::Key,
    crd::{ClientApp, ClientAppStatus, DeletionPolicy, Guard, conditions::kind},
    destroy::{
        Destroyer,
        permit::{Kept, Kind, Owner as _, Wish, is_orphaned},
    },
};

/// How soon to look again at what is not watched.
const POLL: jiff::SignedDuration = jiff::SignedDuration::from_secs(1);

/// How far a deletion has come.
pub enum Progress {
    /// This is to be on record before it goes on.
    Record(Box<ClientAppStatus>),
    /// It waits.
    Hold(Hold),
    /// Everything is gone or retained, but for this.
    Done(Vec<Kept>),
}

/// An app on its way out.
struct Going<'a> {
    key: &'a Key,
    meta: &'a ObjectMeta,
    uid: &'a str,
    /// What is on record by now.
    status: &'a ClientAppStatus,
    /// What its spec says; `None`: it does not decode.
    wish: Option<Wish>,
    deletion: Deletion,
}

impl Going<'_> {
    fn destroyer<'a>(&self, ctx: &'a Ctx) -> Destroyer<'a> {
        Destroyer { client: &ctx.client, lead: &ctx.lead }
    }

    fn leaving<'a>(&'a self, installed: Option<&'a crate::crd::InstalledChart>) -> Leaving<'a> {
        Leaving { key: self.key, uid: self.uid, installed }
    }

    /// How soon to look again at what is not watched: within a second at first, and ever more rarely at what does not go.
    fn poll(&self, now: jiff::Timestamp) -> jiff::Timestamp {
        now + pause(now.duration_since(self.meta.deletion_timestamp.as_ref().map_or(now, |time| time.0)))
    }

    /// Whether the app is still what this pass goes by: it may have waited for long.
    async fn is_as_judged(&self, ctx: &Ctx) -> Result<bool, Error> {
        let api: Api<Guard<ClientApp>> = Api::namespaced(ctx.client.clone(), &self.key.namespace);
        let found = api.get_opt(&self.key.name).await;
        let found = found.map_err(Error::api(format!("get ClientApp {}", self.key)))?;
        Ok(found.is_some_and(|found| {
            found.metadata.uid.as_deref() == Some(self.uid)
                && found.metadata.deletion_timestamp.is_some()
                && finalizer::present(&found.metadata)
                && !is_orphaned(&found.metadata)
                && found.object.as_ref().ok().map(ClientApp::wish) == self.wish
        }))
    }

    /// Whether a piece is to go.
    fn goes(&self, piece: Piece) -> bool {
        piece.fate(self.deletion) == Fate::Deleted
    }

    /// Whether an object is on record as this app's.
    fn owns(&self, kind: Kind, meta: &ObjectMeta) -> bool {
        self.status.owned.contains(&kind.owned(meta))
    }
}

/// Takes down what belongs to a deleted app, as far as it goes now.
///
/// # Errors
/// A request or helm failed; the deletion is tried again.
pub async fn teardown(
    ctx: &Ctx,
    key: &Key,
    guard: &Guard<ClientApp>,
    before: &ClientAppStatus,
) -> Result<Progress, Error> {
    let meta = &guard.metadata;
    let uid = meta.uid.as_deref().unwrap_or_default();
    let wish = guard.object.as_ref().map(ClientApp::wish);
    if wish == Ok(Wish::Suspended) {
        let message =
            "the ClientApp is deleted, and spec.suspend is true: nothing is taken down until it is false".to_owned();
        return Ok(Progress::Hold(hold("Suspended", message, None)));
    }

    let revisions = observe::live_revisions(ctx, key).await?;
    let release = observe::release_view(&revisions, &ctx.holder);
    let status = recorded(ctx, key, guard, before, release.as_ref()).await?;
    // What does not decode keeps everything anyway, and may take no status either.
    if status != *before && guard.object.is_ok() {
        return Ok(Progress::Record(Box::new(status)));
    }
    let policy = match wish {
        Ok(Wish::Delete) => DeletionPolicy::Delete,
        // Who cannot read the policy keeps the data.
        _ => DeletionPolicy::Retain,
    };
    let deletion = Deletion { policy, orphans: status.orphaned == Some(true) };
    let going = Going { key, meta, uid, status: &status, wish: wish.ok(), deletion };
    let installed = upgrade::installed(&status);
    let leaving = going.leaving(installed.as_ref());

    let foreign = release.as_ref().is_some_and(|release| !release.known);
    if foreign {
        tracing::warn!(release = %key, "the release is not this operator's and stays as it is");
    } else if going.goes(Piece::Release)
        && let Some(hold) = release::may_be_uninstalled(ctx, &going, release.as_ref()).await?
    {
        return Ok(Progress::Hold(hold));
    }
    // First: whatever happens to the rest, what is retained can be found.
    if !going.goes(Piece::Volumes) {
        data::leave(ctx, &going, &leaving).await?;
    }
    if !foreign
        && going.goes(Piece::Release)
        && let Some(hold) = release::uninstall(ctx, &going, release.as_ref()).await?
    {
        return Ok(Progress::Hold(hold));
    }
    data::destroy(ctx, &going, &leaving, foreign).await
}

/// Names what stays of an app that went without its teardown: its finalizer was edited out, or it was deleted while that was
/// written, which the API server does not wait for.
///
/// # Errors
/// A request failed.
pub async fn abandoned(ctx: &Ctx, key: &Key, guard: &Guard<ClientApp>) -> Result<(), Error> {
    let mut kept = Vec::new();
    let of_databases = Maker::ALL.into_iter().map(|maker| (maker.data(), key.cluster()));
    for (kind, name) in of_databases.chain([(Kind::Secret, key.admin_secret())]) {
        let found = data::live(ctx, key, kind, &name).await?;
        if found.is_some_and(|found| owned::is_stamped(&guard.metadata, &found)) {
            kept.push(Kept { kind, name, because: "stays: the ClientApp has not waited for its teardown".to_owned() });
        }
    }
    report::publish(ctx, &guard.object_ref(&()), report::data_kept(key, &kept).as_slice()).await;
    Ok(())
}

/// From one look to the next at what is not watched, so long after the deletion was asked for. **Pure.**
fn pause(since: jiff::SignedDuration) -> jiff::SignedDuration {
    (since / 20).clamp(POLL, SAFETY_NET)
}

fn hold(reason: &'static str, message: String, until: Option<jiff::Timestamp>) -> Hold {
    Hold { condition: kind::READY, reason, message, stalled: false, until }
}

/// The status with all that the deletion depends on: what the release consists of, what is the app's own, and how it is deleted.
async fn recorded(
    ctx: &Ctx,
    key: &Key,
    guard: &Guard<ClientApp>,
    before: &ClientAppStatus,
    release: Option<&ReleaseView>,
) -> Result<ClientAppStatus, Error> {
    let meta = &guard.metadata;
    let inventory = observe::inventory(ctx, key, release, before).await?;
    let seen = Seen {
        app: meta,
        inventory: inventory.as_ref(),
        claims: &ctx.watches.claims(&key.namespace),
        named: &observe::named(ctx, key),
    };
    let owned = owned::on_record(&before.owned, &seen);
    let orphaned = match before.orphaned {
        Some(true) => true,
        // In each pass: a deletion may be asked for once more, with --cascade=orphan.
        _ => {
            let orphaned = orphaned(ctx, key, meta, before).await?;
            let note = report::orphaned(key, orphaned, &owned);
            report::publish(ctx, &guard.object_ref(&()), note.as_slice()).await;
            orphaned.unwrap_or(true)
        }
    };
    Ok(ClientAppStatus { inventory, owned, orphaned: Some(orphaned), ..before.clone() })
}

/// Whether the app is deleted with `--cascade=orphan`; `None`: that cannot be known. The garbage collector takes its mark off
/// the app when it has taken the app's ownerReference off all that has one, and so the Redis Secret shows it to a process that
/// was not there to see the mark, or whose watch was late.
async fn orphaned(ctx: &Ctx, key: &Key, meta: &ObjectMeta, before: &ClientAppStatus) -> Result<Option<bool>, Error> {
    let seen = ctx.memory.orphaned.get(key);
    if is_orphaned(meta) || (seen.is_some() && seen == meta.uid) {
        return Ok(Some(true));
    }
    if before.owned.is_empty() && before.inventory.is_none() && before.last_attempt.is_none() {
        return Ok(Some(false));
    }
    let name = key.redis_secret();
    let Some(witness) = owned::uid(&before.owned, Kind::Secret, &name) else { return Ok(None) };
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let found =
        api.get_metadata_opt(&name).await.map_err(Error::api(format!("look for Secret {}/{name}", key.namespace)))?;
    Ok(match found {
        // Collected, as in every other deletion.
        None => Some(false),
        // Made anew by hand, it has seen nothing.
        Some(found) if found.metadata.uid.as_deref() != Some(witness) => None,
        Some(found) => Some(found.owner_references().iter().all(|owner| Some(&owner.uid) != meta.uid.as_ref())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_go_is_looked_at_ever_more_rarely() {
        for (since, seconds) in [(-5, 1), (0, 1), (20, 1), (60, 3), (600, 30), (86_400, SAFETY_NET.as_secs())] {
            let pause = pause(jiff::SignedDuration::from_secs(since));
            assert_eq!(pause, jiff::SignedDuration::from_secs(seconds), "{since} s after");
        }
    }
}
