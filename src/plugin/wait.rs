//! `wait`, and the `--wait` of other commands: the goal, and progress until it is reached.

use std::{
    fmt::Debug,
    io::{IsTerminal as _, stderr},
    mem::replace,
    pin::pin,
    time::Duration,
};

use futures::StreamExt as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{
    Api, Resource, ResourceExt as _,
    api::DynamicObject,
    core::NamespaceResourceScope,
    runtime::watcher::{self, watch_object},
};
use serde::de::DeserializeOwned;

use super::{
    args,
    error::{self, Error},
    goal::Goal,
    session::{Printer, Session, Stored},
    several::{Deadline, Tally, chosen},
    status::sentence,
};
use crate::crd::{
    ClientApp, Reason, annotation,
    conditions::{find, kind},
};

/// Delay before a broken watch is retried.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Reached(String),
    Waiting(String),
    /// Nothing happens until a user or a cluster admin changes something.
    Stalled(String),
    /// The object is gone, or is being deleted.
    Gone(String),
}

/// How far an app is; `None` if it does not exist. **Pure.**
pub(crate) fn judge(goal: &Goal, app: Option<&ClientApp>) -> Verdict {
    let going = app.is_some_and(|app| app.metadata.deletion_timestamp.is_some());
    match (goal, app) {
        (Goal::Deleted { .. }, None) => Verdict::Reached("deleted".to_owned()),
        (Goal::Deleted { uid: Some(uid) }, Some(app)) if app.metadata.uid.as_ref() != Some(uid) => {
            Verdict::Reached("deleted; there is a new ClientApp of the same name".to_owned())
        }
        (Goal::Deleted { .. }, Some(app)) => match stalled(app).filter(|_| going) {
            Some(stalled) => Verdict::Stalled(stalled.message.clone()),
            None => Verdict::Waiting(sentence(app)),
        },
        (Goal::Ready { .. } | Goal::Condition { .. }, None) => Verdict::Gone("it no longer exists".to_owned()),
        (Goal::Ready { .. }, Some(_)) if going => Verdict::Gone("it is being deleted".to_owned()),
        (Goal::Ready { but }, Some(app)) => ready(app, but.as_deref()),
        (Goal::Condition { type_, status }, Some(app)) => condition(app, type_, status),
    }
}

fn ready(app: &ClientApp, but: Option<&str>) -> Verdict {
    let status = app.status.clone().unwrap_or_default();
    let attempts =
        [status.last_attempt.as_ref().map(annotation::retry_after), status.test.as_ref().map(annotation::retest)];
    if but.is_some() && attempts.iter().any(|attempt| attempt.as_deref() == but) {
        return Verdict::Waiting("waiting for the retry to start".to_owned());
    }
    let current = |seen: Option<i64>| seen == app.metadata.generation;
    let summary = find(&status.conditions, kind::READY);
    if let Some(ready) = summary.filter(|ready| ready.status == "True" && current(status.observed_generation)) {
        return Verdict::Reached(ready.message.clone());
    }
    if let Some(stalled) = stalled(app) {
        return Verdict::Stalled(stalled.message.clone());
    }
    if let Some(ready) =
        summary.filter(|ready| ready.reason == Reason::Suspended.as_str() && current(ready.observed_generation))
    {
        return Verdict::Stalled(ready.message.clone());
    }
    Verdict::Waiting(sentence(app))
}

/// The condition that says that nothing happens before a user acts, if it is about the present generation.
fn stalled(app: &ClientApp) -> Option<&Condition> {
    let stalled = find(app.conditions(), kind::STALLED).filter(|stalled| stalled.status == "True")?;
    (stalled.observed_generation == app.metadata.generation).then_some(stalled)
}

fn condition(app: &ClientApp, type_: &str, wanted: &str) -> Verdict {
    match find(app.conditions(), type_) {
        Some(found) if found.status == wanted && found.observed_generation == app.metadata.generation => {
            Verdict::Reached(format!("{type_} is {wanted}: {}", found.message))
        }
        Some(found) => Verdict::Waiting(format!("{type_} is {}: {}", found.status, found.message)),
        None => Verdict::Waiting(format!("it has no condition {type_} yet")),
    }
}

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::Wait) -> Result<(), Error> {
    let names = match chosen(session, &args.targets).await {
        Err(Error::Gone(_)) if matches!(args.goal, Goal::Deleted { .. }) => Vec::new(),
        names => names?,
    };
    let (mut tally, deadline) = (Tally::of(names.len()), Deadline::after(args.timeout));
    for name in &names {
        tally.keep(until(session, printer, name, &args.goal, &deadline).await, printer)?;
    }
    tally.end()
}

/// Reports what a command has requested and, with `--wait`, waits until the app is ready.
pub(crate) async fn asked(
    session: &Session,
    printer: &mut Printer,
    object: &DynamicObject,
    sentence: &str,
    waiting: &args::Waiting,
    but: Option<String>,
) -> Result<(), Error> {
    if !waiting.wait {
        return printer.object(object, sentence);
    }
    printer.note(sentence);
    until(session, printer, &object.name_any(), &Goal::Ready { but }, &Deadline::after(waiting.timeout)).await
}

/// Waits until an app has reached its goal, with progress on stderr, and prints the result.
pub(crate) async fn until(
    session: &Session,
    printer: &mut Printer,
    name: &str,
    goal: &Goal,
    deadline: &Deadline,
) -> Result<(), Error> {
    let (last, sentence) = reached(session, printer, name, goal, deadline).await?;
    match last {
        Some(last) => printer.object(&last.object, &sentence),
        None if printer.is_for_humans() => printer.out(&format!("{sentence}\n")),
        None => Ok(()),
    }
}

/// The same, but leaves it to the caller to print the app, if it still exists, or the sentence.
pub(crate) async fn reached(
    session: &Session,
    printer: &mut Printer,
    name: &str,
    goal: &Goal,
    deadline: &Deadline,
) -> Result<(Option<Stored>, String), Error> {
    let mut progress = Progress::new(name);
    let ended = tokio::time::timeout(deadline.left(), follow(session, printer, name, goal, &mut progress)).await;
    progress.clear();
    let (last, sentence) = ended.map_err(|_| {
        let last = progress.last.as_deref().unwrap_or("the cluster has not responded");
        let after = super::text::span_of(deadline.timeout);
        Error::Timeout(format!("timed out after {after} waiting for {name}: {last}"))
    })??;
    Ok((last, format!("{name}: {sentence}")))
}

async fn follow(
    session: &Session,
    printer: &mut Printer,
    name: &str,
    goal: &Goal,
    progress: &mut Progress,
) -> Result<(Option<Stored>, String), Error> {
    let described = error::described(&session.namespace, name);
    let watch = watched(session.apps(), (name, &described), async |object, is_first| {
        if object.is_none() && is_first && !matches!(goal, Goal::Deleted { .. }) {
            return Err(session.not_found(name).await);
        }
        let stored = match object.map(Stored::read).transpose() {
            Ok(stored) => stored,
            Err(problem) => {
                progress.say(printer, &format!("it does not decode: {problem}"));
                return Ok(None);
            }
        };
        match judge(goal, stored.as_ref().map(|stored| &stored.app)) {
            Verdict::Reached(sentence) => return Ok(Some((stored, sentence))),
            Verdict::Waiting(sentence) => progress.say(printer, &sentence),
            Verdict::Stalled(sentence) => return Err(Error::Stalled(format!("{name}: {sentence}"))),
            Verdict::Gone(sentence) => return Err(Error::Gone(format!("{described}: {sentence}"))),
        }
        Ok(None)
    });
    watch.await
}

/// Watches an object, which errors call `what`, until `judge` has a result. It gets each state, and whether that is the first.
async fn watched<K, T>(
    api: Api<K>,
    (name, what): (&str, &str),
    mut judge: impl AsyncFnMut(Option<K>, bool) -> Result<Option<T>, Error>,
) -> Result<T, Error>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let mut states = pin!(watch_object(api, name));
    let mut seen = false;
    while let Some(state) = states.next().await {
        match state {
            Ok(object) => {
                if let Some(result) = judge(object, !replace(&mut seen, true)).await? {
                    return Ok(result);
                }
            }
            Err(error) => {
                failed(what, error, seen)?;
                tokio::time::sleep(AGAIN).await;
            }
        }
    }
    Err(Error::Missing(format!("watch {what}: the watch ended")))
}

/// Errors that a retry cannot fix end the wait, and so does a cluster that has never responded.
fn failed(described: &str, error: watcher::Error, seen: bool) -> Result<(), Error> {
    let error = match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => error,
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => return Ok(()),
    };
    let refused = matches!(&error, kube::Error::Api(status) if matches!(status.code, 401 | 403 | 404));
    if refused || !seen { Err(Error::api(format!("watch {described}"))(error)) } else { Ok(()) }
}

/// Follows an object until it is over, and reports each state on the way. `waits_for`: what it waits for; `None`: it is over.
pub(crate) async fn followed<K>(
    session: &Session,
    printer: &mut Printer,
    name: &str,
    timeout: Duration,
    waits_for: impl Fn(&K) -> Option<String>,
) -> Result<K, Error>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Send + 'static,
{
    let what = format!("{} {}/{name}", K::kind(&()), session.namespace);
    let mut last = None;
    let follow = watched(session.api::<K>(), (name, &what), async |found: Option<K>, _| {
        let found = found.ok_or_else(|| Error::Gone(format!("{what} is gone")))?;
        let Some(state) = waits_for(&found) else { return Ok(Some(found)) };
        if last.as_ref() != Some(&state) {
            printer.note(&format!("{}/{name}: {state}", K::kind(&()).to_lowercase()));
            last = Some(state);
        }
        Ok(None)
    });
    match tokio::time::timeout(timeout, follow).await {
        Ok(ended) => ended,
        Err(_) => Err(Error::Timeout(format!(
            "timed out after {} waiting for {what}; it continues in the background: {} shows the progress",
            super::text::span_of(timeout),
            session.flags.command(format!("kubectl get {} {name}", K::kind(&()).to_lowercase()))
        ))),
    }
}

/// Progress: one changing line on a terminal, otherwise a line for each change.
struct Progress {
    name: String,
    bar: Option<ProgressBar>,
    last: Option<String>,
}

impl Progress {
    fn new(name: &str) -> Progress {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} ({elapsed})") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        });
        Progress { name: name.to_owned(), bar, last: None }
    }

    fn say(&mut self, printer: &mut Printer, sentence: &str) {
        if self.last.as_deref() == Some(sentence) {
            return;
        }
        self.last = Some(sentence.to_owned());
        let line = format!("{}: {sentence}", self.name);
        match &self.bar {
            Some(bar) => bar.set_message(line),
            None => printer.note(&line),
        }
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::{Value, json};

    use super::*;
    use crate::{platform::fake::of, plugin::tests};

    fn app(generation: i64, status: Value) -> ClientApp {
        let mut app = tests::app("acme", json!({}), status);
        (app["metadata"]["uid"], app["metadata"]["generation"]) = (json!("u"), json!(generation));
        of(app)
    }

    fn conditions(observed: i64, conditions: &[(&str, &str, &str, i64)]) -> Value {
        let conditions: Vec<Value> = conditions
            .iter()
            .map(|(type_, status, reason, seen)| {
                let mut condition = tests::condition(type_, status, reason, "");
                condition["observedGeneration"] = json!(seen);
                condition
            })
            .collect();
        json!({"observedGeneration": observed, "conditions": conditions})
    }

    /// The verdict's name.
    fn word(verdict: &Verdict) -> String {
        format!("{verdict:?}").split('(').next().unwrap_or_default().to_lowercase()
    }

    #[test]
    fn readiness_of_the_newest_spec_only() {
        let goal = Goal::Ready { but: None };
        let (ready, upgrading) = (|seen| ("Ready", "True", "Ready", seen), ("Reconciling", "True", "Upgrading", 2));
        let [failed, stalled] =
            [("Ready", "False"), ("Stalled", "True")].map(|(type_, status)| move |seen| (type_, status, "X", seen));
        for (what, status, verdict) in [
            ("ready", conditions(2, &[ready(2)]), "reached"),
            ("ready before the change", conditions(1, &[ready(1)]), "waiting"),
            // During an upgrade, Ready keeps its status.
            ("serving while it is upgraded", conditions(1, &[ready(1), upgrading]), "waiting"),
            ("stalled", conditions(2, &[failed(2), stalled(2)]), "stalled"),
            // A failed pass leaves observedGeneration.
            ("stalled in a failed pass", conditions(1, &[failed(2), stalled(2)]), "stalled"),
            ("stalled before the change", conditions(1, &[failed(1), stalled(1)]), "waiting"),
            ("suspended", conditions(2, &[("Ready", "False", "Suspended", 2)]), "stalled"),
            ("nothing is known", json!({}), "waiting"),
        ] {
            assert_eq!(word(&judge(&goal, Some(&app(2, status)))), verdict, "{what}");
        }
        assert_eq!(word(&judge(&goal, None)), "gone");
        let mut going = app(1, conditions(1, &[("Ready", "True", "Ready", 1)]));
        going.metadata.deletion_timestamp = Some(Time("2026-01-01T12:00:00Z".parse().unwrap()));
        assert_eq!(word(&judge(&goal, Some(&going))), "gone");
    }

    #[test]
    fn what_an_earlier_attempt_came_to_does_not_count() {
        let mut status = conditions(1, &[("Ready", "False", "X", 1), ("Stalled", "True", "X", 1)]);
        status["lastAttempt"] = json!({"digest": "d", "startedAt": "2026-01-01T12:00:00Z", "failures": 2});
        let app = app(1, status);
        let after = |attempt: &str| Goal::Ready { but: Some(attempt.to_owned()) };
        assert_eq!(word(&judge(&after("2026-01-01T12:00:00Z/2"), Some(&app))), "waiting");
        assert_eq!(word(&judge(&after("2026-01-01T12:00:00Z/1"), Some(&app))), "stalled");
        assert_eq!(word(&judge(&after("2026-01-01T11:00:00Z/2"), Some(&app))), "stalled");
    }

    #[test]
    fn deletion_and_conditions() {
        let there = app(2, conditions(2, &[("Stalled", "False", "NotStalled", 2)]));
        let deleted = |uid: &str| Goal::Deleted { uid: Some(uid.to_owned()) };
        assert_eq!(word(&judge(&deleted("u"), None)), "reached");
        assert_eq!(word(&judge(&deleted("u"), Some(&there))), "waiting");
        assert_eq!(word(&judge(&deleted("older"), Some(&there))), "reached");
        // What stalled the app before it was deleted does not hold up its deletion.
        for (generation, is_going, verdict) in [(3, true, "stalled"), (2, true, "waiting"), (3, false, "waiting")] {
            let mut held = app(3, conditions(generation, &[("Stalled", "True", "DeletionHeld", generation)]));
            held.metadata.deletion_timestamp = is_going.then(|| Time("2026-01-01T12:00:00Z".parse().unwrap()));
            assert_eq!(word(&judge(&deleted("u"), Some(&held))), verdict, "{generation} {is_going}");
        }
        let condition = |type_: &str, status: &str| Goal::Condition { type_: type_.into(), status: status.into() };
        assert_eq!(word(&judge(&condition("Stalled", "False"), Some(&there))), "reached");
        assert_eq!(word(&judge(&condition("Stalled", "True"), Some(&there))), "waiting");
        assert_eq!(word(&judge(&condition("Other", "True"), Some(&there))), "waiting");
        let late = app(3, conditions(2, &[("Stalled", "False", "NotStalled", 2)]));
        assert_eq!(word(&judge(&condition("Stalled", "False"), Some(&late))), "waiting");
    }
}
