//! `approve-deletions`: shows which deletions are held, asks once, then approves exactly what was shown.

use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ListParams, Patch},
};
use serde_json::{Value, json};

use super::{
    args,
    delete::{agreed, can_agree},
    error::{Error, described},
    session::{Printer, Session, Stored, patching},
    several::Tally,
};
use crate::crd::{
    ClientApp, Reason, annotation,
    conditions::{find, kind},
};

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::ApproveDeletions) -> Result<(), Error> {
    let (api, place) = session.apps_in(args.all_namespaces);
    let found = api.list(&ListParams::default()).await;
    let found = found.map_err(Error::api(format!("list the ClientApps in {place}")))?.items;
    let held: Vec<_> = found
        .into_iter()
        .filter_map(|object| Stored::read(object).ok())
        .filter(|stored| is_held(&stored.app))
        .collect();
    if held.is_empty() {
        printer.note(&format!("No deletion of a ClientApp is held in {place}."));
        return Ok(());
    }
    let of = |object: &DynamicObject| described(&object.namespace().unwrap_or_default(), &object.name_any());
    if !args.yes {
        can_agree("approval")?;
        for Stored { object, app } in &held {
            printer.note(&format!("{}, which serves {}, is deleted with its data", of(object), app.spec.hostname));
        }
        printer.note(&format!("These are {} ClientApps.", held.len()));
        agreed(&held.len().to_string(), "nothing approved")?;
    }
    let mut tally = Tally::of(held.len());
    for Stored { object, .. } in &held {
        let namespace = object.namespace().unwrap_or_default();
        let api: Api<ClientApp> = Api::namespaced(session.client.clone(), &namespace);
        let approved = api.patch_metadata(&object.name_any(), &patching(), &Patch::Merge(&approval(object))).await;
        let approved = approved.map_err(Error::api(format!("approve the deletion of {}", of(object))));
        let printed = approved.and_then(|approved| {
            printer.object(&approved, &format!("clientapp/{}: deletion approved", object.name_any()))
        });
        tally.keep(printed, printer)?;
    }
    tally.end()
}

/// Returns the patch that approves the deletion of this object, and of no later one of its name. **Pure.**
fn approval(object: &DynamicObject) -> Value {
    let uid = object.uid();
    json!({"metadata": {"uid": uid, "annotations": {annotation::APPROVED_DELETION: uid}}})
}

/// Returns true if the deletion of this app waits for an approval. **Pure.**
fn is_held(app: &ClientApp) -> bool {
    let held = find(app.conditions(), kind::READY).is_some_and(|ready| ready.reason == Reason::DeletionHeld);
    held && app.metadata.deletion_timestamp.is_some()
}
