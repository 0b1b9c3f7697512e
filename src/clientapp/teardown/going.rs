//! An app on its way out, and how far it is. **Effects**, reads only.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;

use crate::{
    clientapp::{
        context::{App, Ctx},
        error::Error,
        outcome::{Deletion, Outcome, Piece},
        plan::{Hold, SAFETY_NET},
        retained::Leaving,
    },
    crd::{ClientApp, ClientAppStatus, FINALIZER, Guard, InstalledChart},
    destroy::{
        Destroyer,
        permit::{Kept, Kind, Owner as _, Wish, is_orphaned},
    },
    runtime::{account::AccountName, subject::carries},
};

/// How soon to look again at what is not watched.
const POLL: SignedDuration = SignedDuration::from_secs(1);

pub(super) enum Progress {
    /// This is to be on record before it goes on.
    Record(Box<ClientAppStatus>),
    Hold(Hold),
    /// Everything is gone or retained, but for this.
    Done(Vec<Kept>),
}

/// An app on its way out.
pub(super) struct Going<'a> {
    pub(super) app: &'a App<'a>,
    /// What is on record by now.
    pub(super) status: &'a ClientAppStatus,
    /// What its spec says; `None`: it does not decode.
    pub(super) wish: Option<Wish>,
    /// The account that helm acts as, and all that finishes what helm has left.
    pub(super) account: AccountName,
    pub(super) deletion: Deletion,
    /// The chart its data are of.
    pub(super) installed: Option<InstalledChart>,
}

impl Going<'_> {
    pub(super) fn destroyer<'a>(&self, ctx: &'a Ctx) -> Destroyer<'a> {
        Destroyer { client: &ctx.client, lead: &ctx.lead }
    }

    pub(super) fn leaving(&self) -> Leaving<'_> {
        Leaving { key: self.app.key, uid: self.app.uid(), installed: self.installed.as_ref() }
    }

    /// How soon to look again at what is not watched: within a second at first, and ever more rarely at what does not go.
    pub(super) fn poll(&self, now: Timestamp) -> Timestamp {
        now + pause(now.duration_since(self.app.meta().deletion_timestamp.as_ref().map_or(now, |time| time.0)))
    }

    /// Whether the app is still what this pass goes by: it may have waited for long.
    pub(super) async fn is_as_judged(&self, ctx: &Ctx) -> Result<bool, Error> {
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

    pub(super) fn goes(&self, piece: Piece) -> bool {
        piece.outcome(self.deletion) == Outcome::Deleted
    }

    /// Whether an object is on record as this app's.
    pub(super) fn owns(&self, kind: Kind, meta: &ObjectMeta) -> bool {
        self.status.owned.contains(&kind.owned(meta))
    }
}

/// From one look to the next at what is not watched, so long after the deletion was asked for. **Pure.**
fn pause(since: SignedDuration) -> SignedDuration {
    (since / 20).clamp(POLL, SAFETY_NET)
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
