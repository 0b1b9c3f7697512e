//! `delete`: shows what follows for all of them, asks once, then deletes exactly what was shown.

use std::io::{IsTerminal as _, Write as _, stderr, stdin};

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Preconditions},
};

use super::{
    args,
    error::{Error, described},
    goal::Goal,
    session::{Printer, Session, Stored},
    several::{Deadline, Tally},
    text::{BAD, GOOD, PLAIN, Style, paint},
    wait,
};
use crate::{
    clientapp::teardown::policy::{self, DeletionEffect, DeletionOutcome},
    crd::{ClientApp, label},
    platform::api::ignore_not_found,
};

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::Delete) -> Result<(), Error> {
    let args::Delete { names: args::Names { names }, yes, wait, timeout } = args;
    let mut tally = Tally::of(names.len());
    let mut found = Vec::new();
    for name in names {
        found.extend(tally.keep(session.app(name).await, printer)?);
    }
    if !*yes && !found.is_empty() {
        can_agree("deletion")?;
        let namespace_made = namespace_made(session).await;
        for stored in &found {
            printer.note(&consequence(&stored.app, &session.namespace, namespace_made));
        }
        let found: Vec<_> = found.iter().map(|stored| stored.object.name_any()).collect();
        agreed(&found.join(" "), "nothing deleted")?;
    }
    let mut going = Vec::new();
    for stored in found {
        let deleted = delete(session, &stored).await.map(|()| stored);
        going.extend(tally.keep(deleted, printer)?);
    }
    let deadline = Deadline::after(*timeout);
    for Stored { object, .. } in going {
        let name = object.name_any();
        let goal = Goal::Deleted { uid: object.metadata.uid.clone() };
        let sentence = match wait {
            true => wait::reached(session, printer, &name, &goal, &deadline).await.map(|(_, sentence)| sentence),
            false => Ok(format!("clientapp/{name} is being deleted")),
        };
        let printed = sentence.and_then(|sentence| printer.object(&object, &sentence));
        tally.keep(printed, printer)?;
    }
    tally.end()
}

/// Deletes the object that was shown, unless another client has done so meanwhile.
async fn delete(session: &Session, Stored { object, .. }: &Stored) -> Result<(), Error> {
    let name = object.name_any();
    let this_one = Preconditions { uid: object.metadata.uid.clone(), resource_version: None };
    let params = DeleteParams { preconditions: Some(this_one), ..DeleteParams::default() };
    #[expect(clippy::disallowed_methods, reason = "what the user has named, and only that")]
    let deleted = session.apps().delete(&name, &params).await;
    let what = format!("delete {}", described(&session.namespace, &name));
    ignore_not_found(deleted).map(drop).map_err(Error::api(what))
}

/// Returns true if the operator created the namespace for an app; `None` if the user may not read it.
async fn namespace_made(session: &Session) -> Option<bool> {
    let namespaces: Api<Namespace> = Api::all(session.client.clone());
    let namespace = namespaces.get_metadata(&session.namespace).await.ok()?;
    let labels = namespace.metadata.labels.unwrap_or_default();
    Some(labels.contains_key(label::INSTANCE) && labels.get(label::MANAGED_BY).is_some_and(|by| by == label::OPERATOR))
}

/// Says what is deleted and what is kept, item by item. **Pure.**
pub(crate) fn consequence(app: &ClientApp, namespace: &str, namespace_made: Option<bool>) -> String {
    let name = app.metadata.name.as_deref().unwrap_or_default();
    let policy = app.spec.deletion_policy;
    let mut text = format!(
        "This deletes {}, which serves {} (deletionPolicy {policy:?}):",
        described(namespace, name),
        app.spec.hostname
    );
    for DeletionEffect { resource: _, outcome, sentence } in policy::deletion_effects(app, false, namespace_made) {
        let (style, word): (Style, _) = match outcome {
            DeletionOutcome::Deleted => (BAD, "deleted   "),
            DeletionOutcome::Retained => (GOOD, "kept      "),
            DeletionOutcome::Untouched => (PLAIN, "untouched "),
        };
        text += &format!("\n  {} {}", paint(style, word), sentence);
    }
    if app.spec.suspend {
        text += "\nIt is suspended: nothing is deleted until it is resumed.";
    }
    text
}

/// Returns true if a user can be asked.
pub(crate) fn can_agree(what: &str) -> Result<(), Error> {
    match stdin().is_terminal() && stderr().is_terminal() {
        true => Ok(()),
        false => Err(Error::Usage(format!(
            "not a terminal, so the {what} cannot be confirmed: pass --yes to skip the confirmation"
        ))),
    }
}

/// Asks the user to type the app's name, the names of several, or their number.
pub(crate) fn agreed(names: &str, otherwise: &str) -> Result<(), Error> {
    let mut terminal = stderr();
    let several = names.contains(' ');
    let what = if several { format!("names {names}") } else { "name".to_owned() };
    let _ = write!(terminal, "Type the {what} to confirm: ");
    let _ = terminal.flush();
    let mut typed = String::new();
    stdin().read_line(&mut typed).map_err(|error| Error::Usage(format!("read the confirmation: {error}")))?;
    match typed.split_whitespace().eq(names.split_whitespace()) {
        true => Ok(()),
        false if several => Err(Error::Usage(format!("the names do not match: {otherwise}"))),
        false => Err(Error::Usage(format!("the name does not match: {otherwise}"))),
    }
}
