//! `delete`: asks first, then deletes exactly what was shown.

use std::io::{IsTerminal as _, Write as _, stderr, stdin};

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api,
    api::{DeleteParams, Preconditions},
};

use super::{
    args,
    error::{Error, described},
    goal::Goal,
    session::{Printer, Session},
    text::{BAD, GOOD, PLAIN, Style, paint},
    wait,
};
use crate::{
    clientapp::outcome::{self, Outcome, Told},
    crd::{ClientApp, label},
    runtime::api::unless_gone,
};

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::Delete) -> Result<(), Error> {
    let stored = session.app(&args.name).await?;
    if !args.yes {
        can_agree("deletion")?;
        let namespace_made = namespace_made(session).await;
        printer.note(&consequence(&stored.app, &session.namespace, namespace_made));
        agreed(&args.name, "nothing deleted")?;
    }
    let uid = stored.object.metadata.uid.clone();
    let this_one = Preconditions { uid: uid.clone(), resource_version: None };
    let params = DeleteParams { preconditions: Some(this_one), ..DeleteParams::default() };
    let what = format!("delete {}", described(&session.namespace, &args.name));
    #[expect(clippy::disallowed_methods, reason = "what the user has named, and only that")]
    let deleted = session.apps().delete(&args.name, &params).await;
    // Or another client has deleted it in the meantime.
    unless_gone(deleted).map_err(Error::api(what))?;
    if !args.wait {
        return printer.out(&format!("clientapp/{} is being deleted\n", args.name));
    }
    // There is no object left to print.
    printer.output = args::Output::Table;
    wait::until(session, printer, &args.name, &Goal::Deleted { uid }, args.timeout).await
}

/// Whether the operator created the namespace for an app; `None` if the user may not read it.
async fn namespace_made(session: &Session) -> Option<bool> {
    let namespaces: Api<Namespace> = Api::all(session.client.clone());
    let namespace = namespaces.get_metadata(&session.namespace).await.ok()?;
    let labels = namespace.metadata.labels.unwrap_or_default();
    Some(labels.contains_key(label::INSTANCE) && labels.get(label::MANAGED_BY).is_some_and(|by| by == label::OPERATOR))
}

/// What is deleted and what is kept, item by item. **Pure.**
pub(crate) fn consequence(app: &ClientApp, namespace: &str, namespace_made: Option<bool>) -> String {
    let name = app.metadata.name.as_deref().unwrap_or_default();
    let policy = app.spec.deletion_policy;
    let mut text = format!(
        "This deletes {}, which serves {} (deletionPolicy {policy:?}):",
        described(namespace, name),
        app.spec.hostname
    );
    for Told { piece: _, outcome, sentence } in outcome::pieces(app, false, namespace_made) {
        let (style, word): (Style, _) = match outcome {
            Outcome::Deleted => (BAD, "deleted   "),
            Outcome::Retained => (GOOD, "kept      "),
            Outcome::Untouched => (PLAIN, "untouched "),
        };
        text += &format!("\n  {} {}", paint(style, word), sentence);
    }
    if app.spec.suspend {
        text += "\nIt is suspended: nothing is deleted until it is resumed.";
    }
    text
}

/// Whether a user can be asked.
pub(crate) fn can_agree(what: &str) -> Result<(), Error> {
    match stdin().is_terminal() && stderr().is_terminal() {
        true => Ok(()),
        false => Err(Error::Usage(format!(
            "not a terminal, so the {what} cannot be confirmed: pass --yes to skip the confirmation"
        ))),
    }
}

/// Asks the user to type the app's name.
pub(crate) fn agreed(name: &str, otherwise: &str) -> Result<(), Error> {
    let mut terminal = stderr();
    let _ = write!(terminal, "Type the name to confirm: ");
    let _ = terminal.flush();
    let mut typed = String::new();
    stdin().read_line(&mut typed).map_err(|error| Error::Usage(format!("read the confirmation: {error}")))?;
    match typed.trim() == name {
        true => Ok(()),
        false => Err(Error::Usage(format!("the name does not match: {otherwise}"))),
    }
}
