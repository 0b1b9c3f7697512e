//! An app that is being deleted, and the progress of its teardown. **Effects**, reads only.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Api;

use super::policy::{AppResource, DeletionOptions, DeletionOutcome};
use crate::{
    clientapp::{
        act::retention::RetentionContext,
        context::{App, Ctx},
        error::Error,
        hold::{Hold, SAFETY_NET},
    },
    crd::{ClientApp, ClientAppStatus, FINALIZER, Guard, InstalledChart},
    deletion::{
        Destroyer,
        permit::{DataKind, DataOwner as _, DeletionIntent, RetainedObject, is_orphaned},
    },
    platform::{account::AccountName, reconciled::has_finalizer},
};

/// How soon to check again objects that are not watched.
const POLL: SignedDuration = SignedDuration::from_secs(1);

pub(super) enum TeardownProgress {
    /// This status has to be written before the teardown goes on.
    Record(Box<ClientAppStatus>),
    Hold(Hold),
    /// Everything is deleted or retained, except these objects.
    Done(Vec<RetainedObject>),
}

pub(super) struct TeardownContext<'a> {
    pub(super) app: &'a App<'a>,
    pub(super) status: &'a ClientAppStatus,
    /// The volumes in its namespace, as the API server listed them for this pass.
    pub(super) claims: &'a [ObjectMeta],
    /// The spec's policy of deletion; `None`: it does not decode.
    pub(super) deletion_intent: Option<DeletionIntent>,
    /// The account that helm acts as, and that deletes what helm left.
    pub(super) account: AccountName,
    pub(super) deletion: DeletionOptions,
    /// The chart that last ran with its data.
    pub(super) installed: Option<InstalledChart>,
}

impl TeardownContext<'_> {
    pub(super) fn destroyer<'a>(&self, ctx: &'a Ctx) -> Destroyer<'a> {
        Destroyer { client: &ctx.client, lead: &ctx.lead }
    }

    pub(super) fn retention(&self) -> RetentionContext<'_> {
        RetentionContext { key: self.app.key, uid: self.app.uid(), installed: self.installed.as_ref() }
    }

    /// Returns when to check again objects that are not watched: after a second at first, and less and less often for objects
    /// that do not go.
    pub(super) fn poll(&self, now: Timestamp) -> Timestamp {
        now + pause(self.since_deletion(now))
    }

    /// Returns the time since its deletion was requested; negative if the API server's clock is ahead.
    pub(super) fn since_deletion(&self, now: Timestamp) -> SignedDuration {
        now.duration_since(self.app.meta().deletion_timestamp.as_ref().map_or(now, |time| time.0))
    }

    /// Returns true if the app is still as this pass observed it; this pass may have waited a long time.
    pub(super) async fn is_still_current(&self, ctx: &Ctx) -> Result<bool, Error> {
        let key = self.app.key;
        let api: Api<Guard<ClientApp>> = Api::namespaced(ctx.client.clone(), &key.namespace);
        let found = api.get_opt(&key.name).await.map_err(Error::api(format!("get ClientApp {key}")))?;
        Ok(found.is_some_and(|found| {
            found.metadata.uid.as_deref() == Some(self.app.uid())
                && found.metadata.deletion_timestamp.is_some()
                && has_finalizer(&found.metadata, FINALIZER)
                && !is_orphaned(&found.metadata)
                && found.object.as_ref().ok().map(ClientApp::deletion_intent) == self.deletion_intent
        }))
    }

    pub(super) fn is_deleted(&self, resource: AppResource) -> bool {
        resource.outcome(self.deletion) == DeletionOutcome::Deleted
    }

    /// Returns true if an object is recorded as owned by this app.
    pub(super) fn owns(&self, kind: DataKind, meta: &ObjectMeta) -> bool {
        self.status.owned.contains(&kind.owned(meta))
    }
}

/// Returns the interval between two checks of objects that are not watched, this long after the deletion was requested. **Pure.**
fn pause(since: SignedDuration) -> SignedDuration {
    (since / 20).clamp(POLL, SAFETY_NET)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polling_slows_down_for_slow_deletions() {
        for (since, seconds) in [(-5, 1), (0, 1), (20, 1), (60, 3), (600, 30), (86_400, SAFETY_NET.as_secs())] {
            let pause = pause(SignedDuration::from_secs(since));
            assert_eq!(pause, SignedDuration::from_secs(seconds), "{since} s after");
        }
    }
}
