//! Creates a ClientAppBackup or ClientAppRestore and, if asked, follows it to its end. The operator does the rest, whatever becomes of
//! this command.

use std::{fmt::Debug, time::Duration};

use k8s_openapi::NamespaceResourceScope;
use kube::{Resource, ResourceExt as _, api::PostParams, core::object::HasStatus};
use serde::Serialize;

use super::{
    args,
    error::Error,
    session::{FIELD_MANAGER, Printer, Session},
    text::harmless,
    wait::followed,
};
use crate::{
    crd::{
        BackupPhase,
        conditions::{find, kind},
    },
    platform::{controller::ReconciledObject, run_once::RunStatus},
};

/// Limits how long a command that does not wait for the end waits for the operator's first answer.
const BRIEFLY: Duration = Duration::from_secs(10);
const UNSEEN: &str = "waiting for the operator";

/// Creates an object, whose name begins with that of its subject and the time.
pub(crate) async fn create<K>(
    session: &Session,
    printer: &mut Printer,
    (mut object, subject): (K, &str),
    does: &str,
    waiting: &args::Waiting,
) -> Result<(), Error>
where
    K: ReconciledObject + Resource<Scope = NamespaceResourceScope> + HasStatus<Status: RunStatus> + Serialize + Debug,
{
    let kind = K::kind(&());
    object.meta_mut().name = None;
    // Two may be requested within the same second.
    object.meta_mut().generate_name = Some(format!("{subject}-{}-", Session::now().strftime("%Y%m%dt%H%M%Sz")));
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    let made = session.api::<K>().create(&params, &object).await;
    let made = made.map_err(Error::api(format!("create a {kind} in namespace {}", session.namespace)))?;
    let (name, kind) = (made.name_any(), kind.to_lowercase());
    let sentence = format!("{kind}/{name} {does}");
    if !waiting.wait {
        // What cannot be done is told at once.
        let waits_for = |found: &K| phase(found).is_none().then(|| UNSEEN.to_owned());
        let begun = followed(session, printer, &name, BRIEFLY, waits_for);
        return match begun.await {
            Ok(begun) => unless_failed(&begun).and_then(|()| printer.object(&begun, &sentence)),
            Err(Error::Timeout(_)) => printer.object(&made, &sentence),
            Err(error) => Err(error),
        };
    }
    printer.note(&sentence);
    let ended = followed(session, printer, &name, waiting.timeout, waits_for::<K>).await?;
    unless_failed(&ended)?;
    printer.object(&ended, &format!("{kind}/{name}: {}", said(&ended)))
}

fn phase<K: HasStatus<Status: RunStatus>>(object: &K) -> Option<BackupPhase> {
    object.status()?.phase()
}

fn unless_failed<K: ReconciledObject + HasStatus<Status: RunStatus>>(object: &K) -> Result<(), Error> {
    match phase(object) {
        Some(BackupPhase::Failed) => {
            let (kind, name) = (K::kind(&()).to_lowercase(), object.name_any());
            Err(Error::Stalled(format!("{kind}/{name}: {}", said(object))))
        }
        _ => Ok(()),
    }
}

/// Returns what a run waits for; `None`: it has ended.
fn waits_for<K: HasStatus<Status: RunStatus>>(object: &K) -> Option<String> {
    match phase(object) {
        Some(phase) => (!phase.is_final()).then(|| said(object)),
        None => Some(UNSEEN.to_owned()),
    }
}

/// Returns the message of the condition Ready.
fn said<K: HasStatus<Status: RunStatus>>(object: &K) -> String {
    let conditions = object.status().map(RunStatus::conditions).unwrap_or_default();
    find(conditions, kind::READY).map_or_else(String::new, |ready| harmless(&ready.message))
}
