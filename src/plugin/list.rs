//! `list`: the ClientApps of a namespace, or of all, in one request.

use std::{collections::HashMap, pin::pin};

use futures::StreamExt as _;
use jiff::Timestamp;
use kube::{
    Api, ResourceExt as _,
    api::{DynamicObject, ListParams},
    runtime::watcher::{self, watcher},
};

use super::{
    args,
    error::Error,
    output::Output,
    session::{AGAIN, Printer, Session, Stored},
    text::{FAINT, age, fitted, paint, verdict},
};
use crate::crd::{
    ClientApp, ClientAppSpec, ClientAppStatus,
    conditions::{find, kind},
};

const HEADER: [&str; 8] = ["NAMESPACE", "NAME", "READY", "REVISION", "VERSION", "HOSTNAME", "STATUS", "AGE"];
/// Columns of `-o wide`.
const MORE: [&str; 3] = ["DATABASE", "PROFILE", "DELETION"];

/// The columns of the table, and the room for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    pub(crate) with_namespace: bool,
    pub(crate) wide: bool,
    pub(crate) width: Option<usize>,
}

impl Shape {
    fn header(self) -> Vec<&'static str> {
        let more = if self.wide { &MORE[..] } else { &[] };
        HEADER[usize::from(!self.with_namespace)..].iter().chain(more).copied().collect()
    }

    fn column(self, title: &str) -> Option<usize> {
        self.header().iter().position(|known| *known == title)
    }

    /// Hostnames and messages are cut where they do not fit; `status` shows them in full.
    fn draw(self, rows: &[Vec<String>]) -> String {
        let cut: Vec<_> = ["HOSTNAME", STATUS].into_iter().filter_map(|title| self.column(title)).collect();
        fitted(&self.header(), rows, &cut, self.width)
    }
}

const STATUS: &str = "STATUS";

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::List) -> Result<(), Error> {
    let params = ListParams { label_selector: args.selector.clone(), ..ListParams::default() };
    let (api, place) = session.apps_in(args.all_namespaces);
    let what = format!("list the ClientApps in {place}");
    let wide = printer.output == Output::Wide;
    let shape = Shape { with_namespace: args.all_namespaces, wide, width: printer.width() };
    if args.watch {
        return watch(printer, api, (args, shape), &what).await;
    }
    let found = api.list(&params).await.map_err(Error::api(what))?.items;
    if found.is_empty() && printer.is_for_humans() {
        printer.note(&format!("No ClientApps found in {place}."));
        return Ok(());
    }
    printer.objects(&found, || render(&found, shape, Session::now()))
}

/// Prints a row for each existing object, then one for each change.
async fn watch(
    printer: &mut Printer,
    api: Api<DynamicObject>,
    (args, shape): (&args::List, Shape),
    what: &str,
) -> Result<(), Error> {
    let row = |object: &DynamicObject| row(object, shape, Session::now());
    let config = watcher::Config { label_selector: args.selector.clone(), ..watcher::Config::default() };
    let mut stream = pin!(watcher(api, config));
    // By uid; `None` before the first list. A watch that breaks starts with another list.
    let mut known: Option<HashMap<_, DynamicObject>> = None;
    let mut listed = Vec::new();
    // Later rows are aligned with those of the first list.
    let mut rows = Vec::new();
    while let Some(change) = stream.next().await {
        // Each object, and whether it was deleted.
        let changes: Vec<(DynamicObject, bool)> = match change {
            Ok(watcher::Event::Init) => {
                listed.clear();
                continue;
            }
            Ok(watcher::Event::InitApply(object)) => {
                listed.push(object);
                continue;
            }
            Ok(watcher::Event::InitDone) => {
                let now: HashMap<_, _> = listed.drain(..).map(|object| (object.uid(), object)).collect();
                let before = known.replace(now.clone());
                if before.is_none() && printer.is_for_humans() {
                    let mut first: Vec<_> = now.into_values().collect();
                    first.sort_by_key(|object| (object.namespace(), object.name_any()));
                    rows = first.iter().map(row).collect();
                    printer.out(&shape.draw(&rows))?;
                    continue;
                }
                let before = before.unwrap_or_default();
                let same = |uid: &Option<String>, object: &DynamicObject| {
                    before.get(uid).is_some_and(|before| before.metadata == object.metadata)
                };
                let gone = before.iter().filter(|(uid, _)| !now.contains_key(*uid));
                let gone: Vec<_> = gone.map(|(_, object)| (object.clone(), true)).collect();
                let changed = now.into_iter().filter(|(uid, object)| !same(uid, object));
                changed.map(|(_, object)| (object, false)).chain(gone).collect()
            }
            Ok(watcher::Event::Apply(object)) => {
                known.get_or_insert_default().insert(object.uid(), object.clone());
                vec![(object, false)]
            }
            Ok(watcher::Event::Delete(object)) => {
                known.get_or_insert_default().remove(&object.uid());
                vec![(object, true)]
            }
            Err(watcher::Error::InitialListFailed(error)) if known.is_none() => return Err(Error::api(what)(error)),
            // A user with the right to list may lack the right to watch.
            Err(watcher::Error::WatchStartFailed(error @ kube::Error::Api(_))) => {
                return Err(Error::api(format!("{what} as they change"))(error));
            }
            Err(_) => {
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        for (object, gone) in changes {
            let mut row = row(&object);
            if let Some(status) = shape.column(STATUS).and_then(|at| row.get_mut(at)).filter(|_| gone) {
                *status = "deleted".to_owned();
            }
            rows.push(row);
            let text = shape.draw(&rows);
            rows.pop();
            printer.object(&object, text.lines().last().unwrap_or_default())?;
        }
    }
    Ok(())
}

pub(crate) fn render(objects: &[DynamicObject], shape: Shape, now: Timestamp) -> String {
    let rows: Vec<_> = objects.iter().map(|object| row(object, shape, now)).collect();
    shape.draw(&rows)
}

fn row(object: &DynamicObject, shape: Shape, now: Timestamp) -> Vec<String> {
    let created = object.creation_timestamp().map(|time| time.0);
    let namespace = shape.with_namespace.then(|| object.namespace().unwrap_or_default());
    let blank = || "-".to_owned();
    let (middle, more) = match Stored::read(object.clone()) {
        Err(problem) => {
            let problem = format!("does not decode: {problem}");
            ([verdict_cell("Unknown"), blank(), blank(), blank(), problem], [blank(), blank(), blank()])
        }
        Ok(Stored { app, .. }) => (understood(&app), more(&app)),
    };
    let more = more.into_iter().filter(|_| shape.wide);
    let age = paint(FAINT, age(created, now));
    namespace.into_iter().chain([object.name_any()]).chain(middle).chain([age]).chain(more).collect()
}

fn verdict_cell(status: &str) -> String {
    paint(verdict(status, "True"), status)
}

fn understood(app: &ClientApp) -> [String; 5] {
    let status = app.status.clone().unwrap_or_default();
    let ready = find(&status.conditions, kind::READY).map_or("Unknown", |ready| ready.status.as_str());
    let revision = status.release.as_ref().map_or_else(|| "-".to_owned(), |release| release.revision.to_string());
    [verdict_cell(ready), revision, version(app, &status), app.spec.hostname.clone(), sentence(app)]
}

/// Returns the installed chart version, and the one in the spec where it differs.
fn version(app: &ClientApp, status: &ClientAppStatus) -> String {
    let pinned = &app.spec.chart_version;
    match status.release.as_ref().and_then(|release| release.chart_version.as_ref()) {
        Some(installed) if installed == pinned => pinned.clone(),
        Some(installed) => format!("{installed} -> {pinned}"),
        None => format!("-> {pinned}"),
    }
}

fn more(app: &ClientApp) -> [String; 3] {
    let ClientAppSpec { postgres, profile, deletion_policy, .. } = &app.spec;
    let database = match find(app.conditions(), kind::POSTGRES_READY) {
        _ if !postgres.enabled => paint(FAINT, "none"),
        None => "-".to_owned(),
        Some(condition) => paint(verdict(&condition.status, "True"), &condition.reason),
    };
    [database, profile.clone().unwrap_or_else(|| "-".to_owned()), format!("{deletion_policy:?}")]
}

/// The state of an app in one sentence: the reason why it is not ready, or that it is. **Pure.**
pub(crate) fn sentence(app: &ClientApp) -> String {
    let status = app.status.clone().unwrap_or_default();
    let Some(ready) = find(&status.conditions, kind::READY) else {
        return "the operator has not processed it yet".to_owned();
    };
    let seen = |generation: Option<i64>| generation >= app.metadata.generation;
    if !seen(status.observed_generation) && !seen(ready.observed_generation) {
        return "the operator has not processed the latest change yet".to_owned();
    }
    let working = find(&status.conditions, kind::RECONCILING).filter(|working| working.status == "True");
    match working {
        _ if ready.status != "True" => ready.message.clone(),
        // During an upgrade the app keeps serving, so it stays ready.
        Some(working) => working.message.clone(),
        None => ready.reason.clone(),
    }
}
