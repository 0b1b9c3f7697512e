//! Dumps of the Postgresql that provides an app's database: how they are requested, and their end.

use jiff::Timestamp;
use kube::{Api, ResourceExt as _, api::Patch, runtime::wait::await_condition};
use serde_json::{Value, json};

use super::{
    error::Error,
    session::{Session, patching},
    text::span_of,
};
use crate::{
    crd::{ClientApp, DumpState, PostgresProvider, Postgresql},
    platform::key::Key,
};

/// The Postgresql that provides an app's database, if there is one.
pub(crate) async fn database(session: &Session, app: &str) -> Result<Option<Postgresql>, Error> {
    let name = Key::new(&session.namespace, app).database();
    let found = session.api::<Postgresql>().get_opt(&name).await;
    found.map_err(Error::api(format!("read Postgresql {}/{name}", session.namespace)))
}

/// The same, or an error with the reason why there is none.
pub(crate) async fn needed(session: &Session, app: &str) -> Result<Postgresql, Error> {
    if let Some(found) = database(session, app).await? {
        return Ok(found);
    }
    let stored = session.app(app).await?;
    Err(Error::Missing(match (stored.app.spec.postgres.enabled, stored.app.spec.postgres.provider) {
        (true, PostgresProvider::Standalone) => {
            format!("{app} has no Postgresql yet: check `kubectl clientapp status {app}`")
        }
        _ => format!("{app} has no database of its own"),
    }))
}

/// The error for an app whose database, if it has one, the operator does not back up.
pub(crate) fn without_database(app: &ClientApp) -> Error {
    let files = match app.spec.persistence.backup {
        Some(_) => ": restore its files with --only-files",
        None => "",
    };
    Error::Missing(format!("{} has no database of its own{files}", app.name_any()))
}

/// The value of `spec.backup.request`.
pub(crate) fn request(now: Timestamp) -> String {
    now.strftime("by-hand-%Y%m%dt%H%M%Sz").to_string()
}

pub(crate) fn name_of(database: &Postgresql) -> &str {
    database.metadata.name.as_deref().unwrap_or_default()
}

/// Requests a dump. The uid in the patch keeps it off a Postgresql that was recreated since.
pub(crate) async fn ask(session: &Session, database: &Postgresql, request: &str) -> Result<Postgresql, Error> {
    let asked = change(session, database, json!({"backup": {"request": request}})).await;
    asked.map_err(Error::api(format!("ask Postgresql {}/{} for a dump", session.namespace, name_of(database))))
}

/// Patches the spec, unless the Postgresql was recreated since.
pub(crate) async fn change(session: &Session, database: &Postgresql, spec: Value) -> kube::Result<Postgresql> {
    let patch = json!({"metadata": {"uid": database.metadata.uid}, "spec": spec});
    session.api::<Postgresql>().patch(name_of(database), &patching(), &Patch::Merge(&patch)).await
}

/// Waits until the requested dump has ended.
pub(crate) async fn ended(
    session: &Session,
    database: &Postgresql,
    request: &str,
    timeout: std::time::Duration,
) -> Result<Postgresql, Error> {
    let name = name_of(database);
    let what = format!("Postgresql {}/{name}", session.namespace);
    let ended = |found: Option<&Postgresql>| {
        let dump = found.and_then(|found| found.status.as_ref()?.dump.as_ref());
        found.is_none() || dump.is_some_and(|dump| dump.request == request && dump.state != DumpState::Running)
    };
    let api: Api<Postgresql> = session.api();
    let found = match tokio::time::timeout(timeout, await_condition(api, name, ended)).await {
        Ok(Ok(found)) => found.ok_or_else(|| Error::Gone(format!("{what} is gone")))?,
        Ok(Err(error)) => return Err(Error::Missing(format!("watch {what}: {error}"))),
        Err(_) => {
            let last = "`kubectl describe` it to see its progress";
            return Err(Error::Timeout(format!(
                "timed out after {} waiting for the dump of {what}: {last}",
                span_of(timeout)
            )));
        }
    };
    let dump = found.status.as_ref().and_then(|status| status.dump.clone());
    match dump.filter(|dump| dump.state == DumpState::Failed) {
        Some(dump) => Err(Error::Missing(dump.message.unwrap_or_else(|| format!("the dump of {what} has failed")))),
        None => Ok(found),
    }
}

/// Dumps the current content of the database, and waits for the dump to end.
pub(crate) async fn dump(
    session: &Session,
    database: &Postgresql,
    timeout: std::time::Duration,
) -> Result<Postgresql, Error> {
    let request = request(Session::now());
    ask(session, database, &request).await?;
    ended(session, database, &request, timeout).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_named_after_its_time() {
        assert_eq!(request("2026-01-31T04:00:00Z".parse().unwrap()), "by-hand-20260131t040000z");
    }
}
