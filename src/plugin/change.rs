//! `upgrade`, `suspend`, `resume` and `retry`: one field of one ClientApp.

use std::time::Duration;

use kube::{
    ResourceExt as _,
    api::{DynamicObject, Patch, PatchParams},
    runtime::wait::await_condition,
};
use serde_json::{Map, Value, json};

use super::{
    args,
    error::{Error, described},
    session::{FIELD_MANAGER, Printer, Session, Stored},
    wait::{self, Goal, Verdict, judge},
};
use crate::crd::annotation;

/// `upgrade`.
///
/// # Errors
/// There is no such ClientApp; the server's refusal; see [`wait::until`].
pub async fn upgrade(session: &Session, printer: &mut Printer, args: &args::Upgrade) -> Result<(), Error> {
    let args::Upgrade { name, version, backup, allow, patience } = args;
    let before = session.app(name).await?;
    let from = &before.app.spec.chart_version;
    let mut first = Map::new();
    if *backup && !before.app.spec.upgrade.backup {
        first.insert("backup".to_owned(), json!(true));
    }
    let standing = before.app.spec.upgrade.allow.as_ref();
    let spent = before.app.status.as_ref().and_then(|status| status.spent_allow.as_ref());
    let given = allow.then_some(version);
    if standing.is_some() && standing == given && spent == given {
        take_back(session, &before, version, patience.timeout).await?;
        first.insert("allow".to_owned(), json!(given));
    } else if standing != given {
        // Without --allow an earlier one is taken back: it was for another change.
        first.insert("allow".to_owned(), json!(given));
    }
    let object = if from == version && first.is_empty() {
        printer.note(&format!("clientapp/{name} asks for chart version {version} already: nothing is changed"));
        before.object
    } else {
        let object = patch(session, &before, json!({"spec": {"chartVersion": version, "upgrade": first}})).await?;
        let sentence = format!("clientapp/{name}: chart version {from} -> {version}");
        if !patience.wait {
            return printer.object(&object, &sentence);
        }
        printer.note(&sentence);
        object
    };
    match patience.wait {
        true => wait::until(session, printer, name, &Goal::Ready { but: None }, patience.timeout).await,
        false if printer.output == args::Output::Table => Ok(()),
        false => printer.object(&object, ""),
    }
}

/// Takes an earlier `--allow` for this version back, and waits until the operator has seen that: the next one is another.
async fn take_back(session: &Session, before: &Stored, version: &str, patience: Duration) -> Result<(), Error> {
    let name = before.object.name_any();
    patch(session, before, json!({"spec": {"upgrade": {"allow": null}}})).await?;
    let seen = |app: Option<&DynamicObject>| app.is_none_or(|app| app.data["status"]["spentAllow"] != *version);
    match tokio::time::timeout(patience, await_condition(session.apps(), &name, seen)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(Error::Missing(format!("watch {}: {error}", described(&session.namespace, &name)))),
        Err(_) => Err(Error::Timeout(format!(
            "{name}: the --allow of an earlier change is taken back, but the operator has not seen that in {}: say it again when the operator runs",
            super::text::span_of(patience)
        ))),
    }
}

/// `suspend` and `resume`.
///
/// # Errors
/// There is no such ClientApp; the server's refusal.
pub async fn suspend(session: &Session, printer: &mut Printer, name: &str, suspend: bool) -> Result<(), Error> {
    let before = session.app(name).await?;
    let state = if suspend { "suspended" } else { "not suspended" };
    if before.app.spec.suspend == suspend {
        return printer.object(&before.object, &format!("clientapp/{name} is {state} already: nothing is changed"));
    }
    let object = patch(session, &before, json!({"spec": {"suspend": suspend}})).await?;
    let meaning = if suspend { "nothing is changed until it is resumed" } else { "the operator goes on" };
    printer.object(&object, &format!("clientapp/{name} is {state}: {meaning}"))
}

/// `retry`.
///
/// # Errors
/// There is no such ClientApp; the server's refusal; see [`wait::until`].
pub async fn retry(session: &Session, printer: &mut Printer, args: &args::Retry) -> Result<(), Error> {
    let args::Retry { name, patience } = args;
    let before = session.app(name).await?;
    if let Verdict::Reached(_) = judge(&Goal::Ready { but: None }, Some(&before.app)) {
        return printer.object(&before.object, &format!("clientapp/{name} is ready: there is nothing to try again"));
    }
    let failed = before.app.status.as_ref().and_then(|status| status.last_attempt.as_ref());
    // Where helm has no part in it, any change makes the operator look again.
    let mark = failed.map_or_else(|| Session::now().to_string(), annotation::retry_after);
    let object = patch(session, &before, json!({"metadata": {"annotations": {annotation::RETRY: mark}}})).await?;
    let sentence = format!("clientapp/{name}: another attempt is asked for");
    if !patience.wait {
        return printer.object(&object, &sentence);
    }
    printer.note(&sentence);
    // Only an attempt that is held back is followed by another one.
    let but = failed.filter(|attempt| attempt.retry_at.is_some()).map(annotation::retry_after);
    wait::until(session, printer, name, &Goal::Ready { but }, patience.timeout).await
}

/// Merges, into this very object.
///
/// # Errors
/// The server's refusal.
pub async fn patch(session: &Session, before: &Stored, mut patch: Value) -> Result<DynamicObject, Error> {
    let name = before.object.name_any();
    patch["metadata"]["uid"] = json!(before.object.metadata.uid);
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let changed = session.apps().patch(&name, &params, &Patch::Merge(&patch)).await;
    changed.map_err(Error::api(format!("change {}", described(&session.namespace, &name))))
}
