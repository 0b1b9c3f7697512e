//! `delete`: asks first, then deletes exactly what was shown.

use std::io::{IsTerminal as _, Write as _, stderr, stdin};

use kube::api::{DeleteParams, Preconditions};

use super::{
    args,
    error::{Error, described},
    session::{Printer, Session},
    wait::{self, Goal},
};
use crate::crd::{ClientApp, DeletionPolicy};

/// Deletes.
///
/// # Errors
/// Nobody said yes; there is no such ClientApp; the server's refusal; see [`wait::until`].
pub async fn run(session: &Session, printer: &mut Printer, args: &args::Delete) -> Result<(), Error> {
    let stored = session.app(&args.name).await?;
    if !args.yes {
        if !(stdin().is_terminal() && stderr().is_terminal()) {
            return Err(Error::Usage("there is no terminal to ask on: say --yes to delete without being asked".into()));
        }
        printer.note(&consequence(&stored.app, &session.namespace));
        agreed(&args.name)?;
    }
    let uid = stored.object.metadata.uid.clone();
    let this_one = Preconditions { uid: uid.clone(), resource_version: None };
    let params = DeleteParams { preconditions: Some(this_one), ..DeleteParams::default() };
    let what = format!("delete {}", described(&session.namespace, &args.name));
    let deleted = match session.apps().delete(&args.name, &params).await {
        // Somebody was faster.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(|_| ()).map_err(Error::api(what)),
    };
    deleted?;
    if !args.wait {
        return printer.out(&format!("clientapp/{} is being deleted\n", args.name));
    }
    // Deleted is deleted: there is no object to print.
    printer.output = args::Output::Table;
    wait::until(session, printer, &args.name, &Goal::Deleted { uid }, args.timeout).await
}

/// What is lost and what is kept. **Pure.**
#[must_use]
pub fn consequence(app: &ClientApp, namespace: &str) -> String {
    let name = app.metadata.name.as_deref().unwrap_or_default();
    let status = app.status.clone().unwrap_or_default();
    let database = status.postgres_cluster_name.filter(|_| app.spec.postgres.enabled);
    let data = match &database {
        Some(database) => format!("its database {database} and its volumes"),
        None => "its volumes".to_owned(),
    };
    let data = match app.spec.deletion_policy {
        DeletionPolicy::Delete => format!("with {data}, and all the data in them (deletionPolicy Delete)"),
        DeletionPolicy::Retain => format!("but {data} are kept (deletionPolicy Retain)"),
    };
    format!(
        "{}, serving {}, is deleted with its Helm release {name} and its credentials, {data}.",
        described(namespace, name),
        app.spec.hostname
    )
}

fn agreed(name: &str) -> Result<(), Error> {
    let mut terminal = stderr();
    let _ = write!(terminal, "Type its name to delete it: ");
    let _ = terminal.flush();
    let mut typed = String::new();
    stdin().read_line(&mut typed).map_err(|error| Error::Usage(format!("read the answer: {error}")))?;
    match typed.trim() == name {
        true => Ok(()),
        false => Err(Error::Usage("that is not its name: nothing is deleted".to_owned())),
    }
}
