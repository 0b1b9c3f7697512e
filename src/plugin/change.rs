//! `upgrade`, `suspend`, `resume` and `retry`: each changes one field of a ClientApp.

use std::time::Duration;

use kube::{
    ResourceExt as _,
    api::{DynamicObject, Patch},
    runtime::wait::await_condition,
};
use serde_json::{Map, Value, json};

use super::{
    args,
    error::{Error, described},
    goal::Goal,
    session::{Printer, Session, Stored, patching},
    several::{Deadline, Tally, chosen},
    wait::{self, Verdict, judge},
};
use crate::crd::{Approval, annotation};

pub(crate) async fn upgrade(session: &Session, printer: &mut Printer, args: &args::Upgrade) -> Result<(), Error> {
    let args::Upgrade { name, version, backup, allow, waiting } = args;
    let before = session.app(name).await?;
    let installed = before.app.status.as_ref().and_then(|status| status.installed.as_ref());
    let pinned = before.app.spec.chart_version.as_ref();
    let from = pinned.or(installed.map(|chart| &chart.version)).map_or("none", String::as_str);
    let mut first = Map::new();
    if *backup && !before.app.spec.upgrade.backup {
        first.insert("backup".to_owned(), json!(true));
    }
    let standing = before.app.spec.upgrade.allow.as_ref();
    let spent = before.app.status.as_ref().and_then(|status| status.spent_allow.as_ref());
    let given = allow.then_some(version);
    if standing.is_some() && standing == given && spent == given {
        take_back(session, &before, version, waiting.timeout).await?;
        first.insert("allow".to_owned(), json!(given));
    } else if standing != given {
        // An earlier --allow was for another change, so without the flag it is withdrawn.
        first.insert("allow".to_owned(), json!(given));
    }
    let (object, sentence) = if from == version && first.is_empty() {
        let sentence = format!("clientapp/{name} unchanged: its chart version is already {version}");
        (before.object, sentence)
    } else {
        let sentence = format!("clientapp/{name}: chart version {from} -> {version}");
        (patch(session, &before, json!({"spec": {"chartVersion": version, "upgrade": first}})).await?, sentence)
    };
    wait::asked(session, printer, &object, &sentence, waiting, None).await
}

/// Withdraws an earlier `--allow` for this version, and waits until the operator has seen that, so that the next one counts as new.
async fn take_back(session: &Session, before: &Stored, version: &str, timeout: Duration) -> Result<(), Error> {
    let name = before.object.name_any();
    patch(session, before, json!({"spec": {"upgrade": {"allow": null}}})).await?;
    let seen = |app: Option<&DynamicObject>| app.is_none_or(|app| app.data["status"]["spentAllow"] != *version);
    match tokio::time::timeout(timeout, await_condition(session.apps(), &name, seen)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(Error::Missing(format!("watch {}: {error}", described(&session.namespace, &name)))),
        Err(_) => Err(Error::Timeout(format!(
            "timed out after {} waiting for {name}: the operator has not yet seen that an earlier --allow was withdrawn; make sure that the operator is running, and run the command again",
            super::text::span_of(timeout)
        ))),
    }
}

pub(crate) async fn approve(session: &Session, printer: &mut Printer, args: &args::Approve) -> Result<(), Error> {
    let args::Approve { name, digest, waiting } = args;
    let before = session.app(name).await?;
    let of = described(&session.namespace, name);
    let plan = before.app.status.as_ref().and_then(|status| status.plan.as_ref());
    let (object, sentence) = match (plan, digest) {
        (None, _) if before.app.spec.approval == Approval::Automatic => {
            return Err(Error::Usage(format!("{of} needs no approval: spec.approval is Automatic")));
        }
        (None, Some(digest)) if before.app.spec.approved.as_ref() == Some(digest) => {
            (before.object, format!("clientapp/{name} unchanged: plan {digest} is approved"))
        }
        (None, _) => return Err(Error::Missing(format!("no plan of {of} waits for approval"))),
        // What waits by now may be another plan than the user has read.
        (Some(plan), None) => {
            return Err(Error::Usage(format!(
                "which plan of {of}? plan {} of chart version {} waits: {} shows it, and {} approves it",
                plan.digest,
                plan.chart_version,
                session.flags.command(format!("kubectl clientapp plan {name}")),
                session.flags.command(format!("kubectl clientapp approve {name} {}", plan.digest))
            )));
        }
        (Some(plan), Some(digest)) if plan.digest != *digest => {
            return Err(Error::Missing(format!(
                "plan {digest} of {of} was overtaken: plan {} of chart version {} waits now; {} shows it",
                plan.digest,
                plan.chart_version,
                session.flags.command(format!("kubectl clientapp plan {name}"))
            )));
        }
        (Some(plan), _) => {
            let sentence =
                format!("clientapp/{name}: plan {} of chart version {} approved", plan.digest, plan.chart_version);
            (patch(session, &before, json!({"spec": {"approved": plan.digest}})).await?, sentence)
        }
    };
    wait::asked(session, printer, &object, &sentence, waiting, None).await
}

pub(crate) async fn suspend(
    session: &Session,
    printer: &mut Printer,
    targets: &args::Targets,
    suspend: bool,
) -> Result<(), Error> {
    let names = chosen(session, targets).await?;
    let mut tally = Tally::of(names.len());
    for name in &names {
        let done = suspended(session, name, suspend).await;
        let told = done.and_then(|(object, sentence)| printer.object(&object, &sentence));
        tally.keep(told, printer)?;
    }
    tally.end()
}

async fn suspended(session: &Session, name: &str, suspend: bool) -> Result<(DynamicObject, String), Error> {
    let before = session.app(name).await?;
    if before.app.spec.suspend == suspend {
        let state = if suspend { "already suspended" } else { "not suspended" };
        return Ok((before.object, format!("clientapp/{name} unchanged: it is {state}")));
    }
    let object = patch(session, &before, json!({"spec": {"suspend": suspend}})).await?;
    let done = if suspend { "suspended: the operator changes nothing until it is resumed" } else { "resumed" };
    Ok((object, format!("clientapp/{name} {done}")))
}

/// Requests all attempts before it waits for the first.
pub(crate) async fn retry(session: &Session, printer: &mut Printer, args: &args::Retry) -> Result<(), Error> {
    let args::Retry { targets, waiting } = args;
    let names = chosen(session, targets).await?;
    let mut tally = Tally::of(names.len());
    let mut requested = Vec::new();
    for name in &names {
        let done = retried(session, name).await;
        let told = done.and_then(|(object, retried)| match retried {
            Retried::Needless => printer
                .object(&object, &format!("clientapp/{name} unchanged: it is ready, so there is nothing to retry")),
            Retried::After(but) => {
                requested.push((name, but));
                let sentence = format!("clientapp/{name}: retry requested");
                if !waiting.wait {
                    return printer.object(&object, &sentence);
                }
                printer.note(&sentence);
                Ok(())
            }
        });
        tally.keep(told, printer)?;
    }
    let deadline = Deadline::after(waiting.timeout);
    for (name, but) in requested.into_iter().filter(|_| waiting.wait) {
        tally.keep(wait::until(session, printer, name, &Goal::Ready { but }, &deadline).await, printer)?;
    }
    tally.end()
}

enum Retried {
    /// It is ready.
    Needless,
    /// A retry is requested; what the attempt before it has come to does not count.
    After(Option<String>),
}

async fn retried(session: &Session, name: &str) -> Result<(DynamicObject, Retried), Error> {
    let before = session.app(name).await?;
    if let Verdict::Reached(_) = judge(&Goal::Ready { but: None }, Some(&before.app)) {
        return Ok((before.object, Retried::Needless));
    }
    let status = before.app.status.as_ref();
    let failed = status.and_then(|status| status.last_attempt.as_ref());
    let rolled_back = status.is_some_and(|status| status.rolled_back.is_some());
    let tests = status.and_then(|status| status.test.as_ref()).filter(|tested| !tested.passed && !rolled_back);
    // If helm has not failed, any change triggers a reconcile.
    let mark = match (tests, failed) {
        (Some(tested), _) => annotation::retest(tested),
        (None, Some(failed)) => annotation::retry_after(failed),
        (None, None) => Session::now().to_string(),
    };
    let object = patch(session, &before, json!({"metadata": {"annotations": {annotation::RETRY: mark}}})).await?;
    // Only an attempt that is scheduled for a retry is followed by another.
    let but = match tests {
        Some(tested) => Some(annotation::retest(tested)),
        None => failed.filter(|attempt| attempt.retry_at.is_some() || rolled_back).map(annotation::retry_after),
    };
    Ok((object, Retried::After(but)))
}

/// Merges a patch, unless the object was recreated since.
pub(crate) async fn patch(session: &Session, before: &Stored, mut patch: Value) -> Result<DynamicObject, Error> {
    let name = before.object.name_any();
    patch["metadata"]["uid"] = json!(before.object.metadata.uid);
    let changed = session.apps().patch(&name, &patching(), &Patch::Merge(&patch)).await;
    changed.map_err(Error::api(format!("change {}", described(&session.namespace, &name))))
}
