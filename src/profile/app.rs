//! Reads off a ClientApp how it does with its Profile's revision. **Pure.**

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::{ResourceExt as _, core::{Selector, SelectorExt as _}};

use super::waves::{AppView, Health};
use crate::{
    crd::{
        Approval, ClientApp, ClientAppStatus, Guard, Reason,
        conditions::{find, kind},
        reason::Class,
    },
    platform::key::key_of,
};

/// Returns how a ClientApp does; `None`: it has another Profile, is being deleted, or does not decode.
pub(super) fn view(app: &Guard<ClientApp>, profile: &str, canary: Option<&Selector>) -> Option<AppView> {
    let object = app.object.as_ref().ok()?;
    let spec = &object.spec;
    if spec.profile.as_deref() != Some(profile) || app.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let status = object.status.as_ref();
    let has = status.and_then(|status| status.profile_revision.as_ref()).filter(|has| has.profile == profile);
    Some(AppView {
        key: key_of(app),
        uid: app.metadata.uid.clone().unwrap_or_default(),
        revision: has.map(|has| has.revision),
        is_canary: canary.is_some_and(|canary| canary.matches(app.labels())),
        is_out: spec.suspend || spec.approval == Approval::Manual,
        health: status.map_or(Health::Waits, health),
    })
}

/// Returns the selector of the canaries.
///
/// # Errors
/// It is not valid.
pub(super) fn canaries(selector: Option<&LabelSelector>) -> Result<Option<Selector>, String> {
    selector.cloned().map(Selector::try_from).transpose().map_err(|error| format!("spec.rollout.canary: {error}"))
}

fn health(status: &ClientAppStatus) -> Health {
    let holds = |type_: &str| find(&status.conditions, type_).filter(|found| found.status == "True");
    let since = status.profile_revision.as_ref().and_then(|has| has.ready_since.as_ref());
    match (holds(kind::READY), since) {
        _ if holds(kind::STALLED).is_some() => Health::Failed,
        (Some(_), Some(since)) => Health::Ready(since.0),
        (Some(_), None) => Health::Waits,
        (None, _) => {
            let ready = find(&status.conditions, kind::READY);
            let class = ready.and_then(|ready| Reason::parse(&ready.reason)).map(Reason::class);
            if class == Some(Class::Trouble) { Health::Failed } else { Health::Waits }
        }
    }
}
