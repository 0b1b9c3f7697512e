//! Deletion: what is taken down is put on record, then the release, then volumes, database and credentials by policy, then
//! the finalizer. An **effect**.
//!
//! It works with a spec that is invalid or does not decode, and ends whatever Helm's storage says. What holds or opens data
//! goes by [`crate::destroy`] alone; what lacks a proof is kept, and named.

mod data;
mod release;

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Api, runtime::controller::Action};

use super::{
    context::{App, Ctx},
    database, desired,
    error::Error,
    live, namespace, observe,
    observed::ReleaseView,
    outcome::{Deletion, Outcome, Piece},
    owned,
    plan::{Hold, Plan, SAFETY_NET},
    report,
    retained::Leaving,
    upgrade,
};
use crate::{
    crd::{ClientApp, ClientAppStatus, DeletionPolicy, FINALIZER, Guard, InstalledChart, Reason},
    destroy::{
        Destroyer,
        permit::{Kept, Kind, Owner as _, Wish, is_orphaned},
    },
    runtime::{account::AccountName, clock, controller::WRONGLY_GONE, subject::carries},
};

/// How soon to look again at what is not watched.
const POLL: SignedDuration = SignedDuration::from_secs(1);

enum Progress {
    /// This is to be on record before it goes on.
    Record(Box<ClientAppStatus>),
    Hold(Hold),
    /// Everything is gone or retained, but for this.
    Done(Vec<Kept>),
}

/// An app on its way out.
struct Going<'a> {
    app: &'a App<'a>,
    /// What is on record by now.
    status: &'a ClientAppStatus,
    /// What its spec says; `None`: it does not decode.
    wish: Option<Wish>,
    /// The account that helm acts as, and all that finishes what helm has left.
    account: AccountName,
    deletion: Deletion,
    /// The chart its data are of.
    installed: Option<InstalledChart>,
}

impl Going<'_> {
    fn destroyer<'a>(&self, ctx: &'a Ctx) -> Destroyer<'a> {
        Destroyer { client: &ctx.client, lead: &ctx.lead }
    }

    fn leaving(&self) -> Leaving<'_> {
        Leaving { key: self.app.key, uid: self.app.uid(), installed: self.installed.as_ref() }
    }

    /// How soon to look again at what is not watched: within a second at first, and ever more rarely at what does not go.
    fn poll(&self, now: Timestamp) -> Timestamp {
        now + pause(now.duration_since(self.app.meta().deletion_timestamp.as_ref().map_or(now, |time| time.0)))
    }

    /// Whether the app is still what this pass goes by: it may have waited for long.
    async fn is_as_judged(&self, ctx: &Ctx) -> Result<bool, Error> {
        let key = self.app.key;
        let api: Api<Guard<ClientApp>> = Api::namespaced(ctx.client.clone(), &key.namespace);
        let found = api.get_opt(&key.name).await.map_err(Error::api(format!("get ClientApp {key}")))?;
        Ok(found.is_some_and(|found| {
            found.metadata.uid.as_deref() == Some(self.app.uid())
                && found.metadata.deletion_timestamp.is_some()
                && carries(&found.metadata, FINALIZER)
                && !is_orphaned(&found.metadata)
                && found.object.as_ref().ok().map(ClientApp::wish) == self.wish
        }))
    }

    fn goes(&self, piece: Piece) -> bool {
        piece.outcome(self.deletion) == Outcome::Deleted
    }

    /// Whether an object is on record as this app's.
    fn owns(&self, kind: Kind, meta: &ObjectMeta) -> bool {
        self.status.owned.contains(&kind.owned(meta))
    }
}

/// Takes down what belongs to a deleted app, as far as it goes now, and says so.
///
/// # Errors
/// A request or helm failed; the deletion is tried again.
pub(super) async fn take_down(ctx: &Ctx, app: &App<'_>) -> Result<Action, Error> {
    let status = match teardown(ctx, app).await? {
        Progress::Done(kept) => {
            report::publish(ctx, app, report::data_kept(app.key, &kept).as_slice()).await;
            let outcome = namespace::release(ctx, app.key, app.uid()).await?;
            report::publish(ctx, app, outcome.note(&app.key.namespace).as_slice()).await;
            let put = ctx.put_finalizer(app, false).await?;
            ctx.forget(app.key);
            return Ok(put);
        }
        Progress::Record(status) => {
            let sentence = "what the deletion is about is on record";
            report::progress(&status, app.meta().generation, Reason::Deleting, sentence, clock::now())
        }
        Progress::Hold(hold) => {
            report::tell(ctx, app, &report::deleting(&app.before, app.meta().generation, &hold, clock::now())).await?;
            return Ok(Plan::default().hold(hold).requeue(clock::now()));
        }
    };
    report::tell(ctx, app, &status).await?;
    Ok(Action::requeue(Duration::ZERO))
}

async fn teardown(ctx: &Ctx, app: &App<'_>) -> Result<Progress, Error> {
    let key = app.key;
    if let Some(hold) = release::stop_upgrade(ctx, app) {
        return Ok(Progress::Hold(hold));
    }
    let wish = app.object().ok().map(ClientApp::wish);
    if wish == Some(Wish::Suspended) {
        let message = "the ClientApp is deleted, and spec.suspend is true: nothing is taken down until it is false";
        return Ok(Progress::Hold(Hold::new(Reason::Suspended, message)));
    }

    let revisions = live::revisions(ctx, key).await?;
    let release = observe::release_view(&revisions);
    let status = recorded(ctx, app, release.as_ref()).await?;
    // What does not decode keeps everything anyway, and may take no status either.
    if status != app.before && wish.is_some() {
        return Ok(Progress::Record(Box::new(status)));
    }
    let policy = match wish {
        Some(Wish::Delete) => DeletionPolicy::Delete,
        // Who cannot read the policy keeps the data.
        _ => DeletionPolicy::Retain,
    };
    let deletion = Deletion { policy, orphans: status.orphaned == Some(true) };
    // Where the spec cannot be read, the one that the operator makes.
    let account = app.object().ok().and_then(|app| desired::account(&app.spec).ok()).unwrap_or_default();
    let going = Going { app, status: &status, wish, account, deletion, installed: upgrade::installed(&status) };

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
        data::leave(ctx, &going).await?;
    }
    if !foreign
        && going.goes(Piece::Release)
        && let Some(hold) = release::uninstall(ctx, &going, release.as_ref()).await?
    {
        return Ok(Progress::Hold(hold));
    }
    data::destroy(ctx, &going, foreign).await
}

/// Names what stays of an app that went without its teardown: its finalizer was edited out, or it was deleted while that was
/// written, which the API server does not wait for. One that is there after all is looked at again.
pub(super) async fn abandoned(ctx: &Ctx, app: &App<'_>) -> Result<Action, Error> {
    let key = app.key;
    if !live::is_gone(ctx, app).await? {
        return Ok(Action::requeue(WRONGLY_GONE));
    }
    let mut kept = Vec::new();
    let of_databases = database::all().map(|provider| (provider.kind(), key.database()));
    for (kind, name) in of_databases.chain([(Kind::Secret, key.admin_secret())]) {
        let found = live::object(ctx, key, kind, &name).await?;
        if found.is_some_and(|found| owned::is_stamped(app.meta(), &found)) {
            kept.push(Kept { kind, name, because: "stays: the ClientApp has not waited for its teardown".to_owned() });
        }
    }
    report::publish(ctx, app, report::data_kept(key, &kept).as_slice()).await;
    Ok(Action::await_change())
}

/// From one look to the next at what is not watched, so long after the deletion was asked for. **Pure.**
fn pause(since: SignedDuration) -> SignedDuration {
    (since / 20).clamp(POLL, SAFETY_NET)
}

/// The status with all that the deletion depends on: what the release consists of, what is the app's own, and how it is deleted.
async fn recorded(ctx: &Ctx, app: &App<'_>, release: Option<&ReleaseView>) -> Result<ClientAppStatus, Error> {
    let before = &app.before;
    let inventory = observe::inventory(ctx, app.key, release, before).await?;
    let owned = observe::owned(ctx, app, inventory.as_ref());
    let orphaned = match before.orphaned {
        Some(true) => true,
        // In each pass: a deletion may be asked for once more, with --cascade=orphan.
        _ => {
            let orphaned = orphaned(ctx, app).await?;
            report::publish(ctx, app, report::orphaned(app.key, orphaned, &owned).as_slice()).await;
            orphaned.unwrap_or(true)
        }
    };
    let installed = upgrade::installed_now(release, before);
    Ok(ClientAppStatus { inventory, installed, owned, orphaned: Some(orphaned), ..before.clone() })
}

/// Whether the app is deleted with `--cascade=orphan`; `None`: that cannot be known. The garbage collector takes its mark off
/// the app when it has taken the app's ownerReference off all that has one, and so the Redis Secret shows it to a process that
/// was not there to see the mark, or whose watch was late.
async fn orphaned(ctx: &Ctx, app: &App<'_>) -> Result<Option<bool>, Error> {
    let (key, meta, before) = (app.key, app.meta(), &app.before);
    let seen = ctx.memory.orphaned.get(key);
    if is_orphaned(meta) || (seen.is_some() && seen == meta.uid) {
        return Ok(Some(true));
    }
    if before.owned.is_empty() && before.inventory.is_none() && before.last_attempt.is_none() {
        return Ok(Some(false));
    }
    let name = key.redis_secret();
    let made = ctx.memory.made(key, app.uid());
    let witness = owned::uid(&before.owned, Kind::Secret, &name).or_else(|| owned::uid(&made, Kind::Secret, &name));
    let of_app =
        |found: &ObjectMeta| found.owner_references.iter().flatten().any(|owner| Some(&owner.uid) == meta.uid.as_ref());
    Ok(match live::object(ctx, key, Kind::Secret, &name).await? {
        Some(found) if of_app(&found) => Some(false),
        Some(found) if witness.is_some() && found.uid.as_deref() == witness => Some(true),
        // Made anew by hand, it has seen nothing.
        Some(_) => None,
        // Collected, as in every other deletion.
        None => witness.map(|_| false),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_go_is_looked_at_ever_more_rarely() {
        for (since, seconds) in [(-5, 1), (0, 1), (20, 1), (60, 3), (600, 30), (86_400, SAFETY_NET.as_secs())] {
            let pause = pause(SignedDuration::from_secs(since));
            assert_eq!(pause, SignedDuration::from_secs(seconds), "{since} s after");
        }
    }
}
