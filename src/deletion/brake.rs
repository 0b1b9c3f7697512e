//! Holds back deletions of data while many objects are deleted at once: a wrong prune, or the wrong context, looks like that. A few
//! deletions are as quick as without it; the others wait until a user approves each, or has its data kept.

use std::{collections::BTreeMap, fmt};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    ClusterResourceScope,
    api::core::v1::Namespace,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta},
};
use kube::{Api, Resource};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;

use super::permit::DataOwner;
use crate::{
    crd::{
        Reason, annotation,
        conditions::{find, kind},
    },
    platform::{api::ignore_not_found, error::ReconcileFailure},
};

/// The time in which deletions are counted.
const WINDOW: SignedDuration = SignedDuration::from_mins(10);
/// How long a deletion that began stays allowed: it may wait for a pod, or for another operator.
const MEMORY: SignedDuration = SignedDuration::from_hours(24);
/// Of this many objects of a kind, one more may go within [`WINDOW`] than the setting says.
const SHARE: usize = 20;

/// Counts the deletions of data of one kind. A restart of the operator begins the count anew; what is held stays held, by its status.
pub(crate) struct DeletionBrake {
    at_once: usize,
    /// When the data of an object, by uid, were allowed to be deleted; `None`: they are held, also if no status can say so.
    decided: Mutex<BTreeMap<String, Option<Timestamp>>>,
}

impl DeletionBrake {
    /// Lets the data of this many objects go within ten minutes, or of 5 % of all, if that is more; with 0, none without approval.
    pub(crate) fn new(at_once: u16) -> DeletionBrake {
        DeletionBrake { at_once: at_once.into(), decided: Mutex::default() }
    }

    /// Returns why the data of a deleted object are not deleted yet; `None`: they may be. `conditions` are those of its status, and
    /// `total` counts the objects of its kind.
    ///
    /// # Errors
    /// The API server does not say whether the kind's definition is being deleted.
    pub(crate) async fn held<K: DataOwner>(
        &self,
        client: &kube::Client,
        meta: &ObjectMeta,
        conditions: &[Condition],
        (total, now): (usize, Timestamp),
    ) -> Result<Option<String>, ReconcileFailure> {
        let uid = meta.uid.as_deref().unwrap_or_default();
        if is_approved(meta) || self.is_allowed(uid, now) {
            return Ok(None);
        }
        let recorded = find(conditions, kind::READY).filter(|ready| ready.reason == Reason::DeletionHeld);
        let message = match recorded {
            Some(recorded) => recorded.message.clone(),
            None => {
                let definition = format!("{}.{}", K::plural(&()), K::group(&()));
                let cause = match is_going::<CustomResourceDefinition>(client, &definition).await? {
                    true => format!("definition {definition} is being deleted, and with it each {}", K::kind(&())),
                    false => match self.allow(uid, total, now) {
                        Ok(()) => return Ok(None),
                        Err(0) => format!("each {} with data needs an approval", K::kind(&())),
                        Err(most) => format!(
                            "{most} {}s with data were deleted within ten minutes, the most at once",
                            K::kind(&())
                        ),
                    },
                };
                sentence::<K>(meta, &cause)
            }
        };
        // With a namespace, Kubernetes deletes the volumes: to wait would save nothing.
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        Ok((!is_going::<Namespace>(client, namespace).await?).then_some(message))
    }

    fn is_allowed(&self, uid: &str, now: Timestamp) -> bool {
        let mut decided = self.decided.lock();
        decided.retain(|_, at| at.is_none_or(|at| now.duration_since(at) < MEMORY));
        decided.get(uid).is_some_and(Option::is_some)
    }

    /// Allows a deletion, unless it is held, or as many as may go at once were allowed within [`WINDOW`]; the error is that number.
    fn allow(&self, uid: &str, total: usize, now: Timestamp) -> Result<(), usize> {
        let mut decided = self.decided.lock();
        let most = if self.at_once == 0 { 0 } else { self.at_once.max(total / SHARE) };
        let recent = decided.values().flatten().filter(|at| now.duration_since(**at) < WINDOW).count();
        let at = (recent < most).then_some(now);
        match decided.entry(uid.to_owned()).or_insert(at) {
            Some(_) => Ok(()),
            None => Err(most),
        }
    }
}

/// Returns true if the cluster-wide object of this name is gone or being deleted, with everything in it.
pub(crate) async fn is_going<K>(client: &kube::Client, name: &str) -> Result<bool, ReconcileFailure>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + Clone + fmt::Debug + DeserializeOwned,
{
    let found = ignore_not_found(Api::<K>::all(client.clone()).get_metadata(name).await);
    let found = found.map_err(ReconcileFailure::api(format!("get {} {name}", K::kind(&()))))?;
    Ok(found.is_none_or(|found| found.metadata.deletion_timestamp.is_some()))
}

/// Returns true if a user has approved this deletion. The uid keeps an annotation in a manifest from approving a later one.
fn is_approved(meta: &ObjectMeta) -> bool {
    let approved = meta.annotations.as_ref().and_then(|annotations| annotations.get(annotation::APPROVED_DELETION));
    approved.is_some() && approved == meta.uid.as_ref()
}

fn sentence<K: DataOwner>(meta: &ObjectMeta, cause: &str) -> String {
    let [name, namespace, uid] =
        [&meta.name, &meta.namespace, &meta.uid].map(|text| text.as_deref().unwrap_or_default());
    let plural = K::plural(&());
    format!(
        "{cause}: to delete this one, `kubectl annotate {plural} {name} -n {namespace} {}={uid}`; to keep its data, set spec.deletionPolicy to Retain",
        annotation::APPROVED_DELETION
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crd::ClientApp;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    #[test]
    fn a_few_go_at_once_and_the_rest_wait() {
        for (at_once, total, most) in [(2, 5, 2), (2, 100, 5), (0, 100, 0), (10, 6, 10)] {
            let brake = DeletionBrake::new(at_once);
            let allowed = (0..20).filter(|n| brake.allow(&format!("uid-{n}"), total, at(*n)).is_ok()).count();
            assert_eq!(allowed, most, "{at_once} of {total}");
            assert_eq!(brake.allow("late", total, at(30)), Err(most), "{at_once} of {total}");
            // Ten minutes later, others may go; each that began goes on, and each that was held waits on.
            assert_eq!(brake.allow("later", total, at(640)).is_ok(), most > 0, "{at_once} of {total}");
            assert_eq!(brake.allow("late", total, at(640)), Err(most), "{at_once} of {total}");
            assert_eq!(brake.is_allowed("uid-0", at(640)), most > 0);
            assert!(!brake.is_allowed("late", at(640)));
        }
    }

    #[test]
    fn an_approval_is_of_one_deletion() {
        let meta = |uid: &str, approved: Option<&str>| ObjectMeta {
            uid: Some(uid.to_owned()),
            annotations: approved.map(|of| [(annotation::APPROVED_DELETION.to_owned(), of.to_owned())].into()),
            ..ObjectMeta::default()
        };
        for (meta, approved) in [
            (meta("a", Some("a")), true),
            (meta("a", Some("b")), false),
            (meta("a", Some("true")), false),
            (meta("a", None), false),
            (ObjectMeta::default(), false),
        ] {
            assert_eq!(is_approved(&meta), approved, "{meta:?}");
        }
    }

    #[test]
    fn the_message_has_both_ways_out() {
        let meta = ObjectMeta {
            name: Some("acme".to_owned()),
            namespace: Some("shop".to_owned()),
            uid: Some("1-2".to_owned()),
            ..ObjectMeta::default()
        };
        insta::assert_snapshot!(sentence::<ClientApp>(&meta, "10 ClientApps with data were deleted within ten minutes, the most at once"), @"10 ClientApps with data were deleted within ten minutes, the most at once: to delete this one, `kubectl annotate clientapps acme -n shop apps.bnerd-operator.local/approved-deletion=1-2`; to keep its data, set spec.deletionPolicy to Retain");
    }
}
