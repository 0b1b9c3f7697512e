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
    args::{self, Output},
    error::Error,
    session::{AGAIN, Printer, Session, Stored},
    text::{FAINT, age, paint, shortened, table, verdict},
};
use crate::crd::{
    ClientApp,
    conditions::{find, kind},
};

const HEADER: [&str; 9] =
    ["NAMESPACE", "NAME", "READY", "REVISION", "VERSION", "HOSTNAME", "DATABASE", "STATUS", "AGE"];
/// Longer messages are cut; `status` shows them in full.
const SENTENCE: usize = 60;
/// Minimum length of a message or hostname on a narrow terminal.
const LEAST: usize = 4;

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::List) -> Result<(), Error> {
    let params = ListParams { label_selector: args.selector.clone(), ..ListParams::default() };
    let (api, place) = match args.all_namespaces {
        true => (session.all_apps(), "any namespace".to_owned()),
        false => (session.apps(), format!("namespace {}", session.namespace)),
    };
    let what = format!("list the ClientApps in {place}");
    if args.watch {
        return watch(printer, api, args, &what).await;
    }
    let found = api.list(&params).await.map_err(Error::api(what))?.items;
    if found.is_empty() && printer.output == Output::Table {
        printer.note(&format!("No ClientApps found in {place}."));
        return Ok(());
    }
    let width = printer.width();
    printer.objects(&found, || render(&found, args.all_namespaces, Session::now(), width))
}

/// Prints a row for each existing object, then one for each change.
async fn watch(printer: &mut Printer, api: Api<DynamicObject>, args: &args::List, what: &str) -> Result<(), Error> {
    let (all, width) = (args.all_namespaces, printer.width());
    let row = |object: &DynamicObject| row(object, all, Session::now());
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
                if before.is_none() && printer.output == Output::Table {
                    let mut first: Vec<_> = now.into_values().collect();
                    first.sort_by_key(|object| (object.namespace(), object.name_any()));
                    rows = first.iter().map(row).collect();
                    printer.out(&fitted(&rows, all, width))?;
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
            if let Some(status) = row.iter_mut().nth_back(STATUS).filter(|_| gone) {
                *status = "deleted".to_owned();
            }
            rows.push(row);
            let text = fitted(&rows, all, width);
            rows.pop();
            printer.object(&object, text.lines().last().unwrap_or_default())?;
        }
    }
    Ok(())
}

pub(crate) fn render(objects: &[DynamicObject], all: bool, now: Timestamp, width: Option<usize>) -> String {
    let rows: Vec<_> = objects.iter().map(|object| row(object, all, now)).collect();
    fitted(&rows, all, width)
}

/// A table whose rows take one line each on a terminal of this width, if cutting hostnames and messages makes that possible.
fn fitted(rows: &[Vec<String>], all: bool, width: Option<usize>) -> String {
    let draw = |most: Option<usize>| {
        let cut = |row: &Vec<String>| {
            let mut row = row.clone();
            for (column, most) in [(STATUS, Some(most.unwrap_or(SENTENCE))), (HOSTNAME, most)] {
                if let (Some(cell), Some(most)) = (row.iter_mut().nth_back(column), most) {
                    *cell = shortened(cell, most);
                }
            }
            row
        };
        table(&HEADER[usize::from(!all)..], &rows.iter().map(cut).collect::<Vec<_>>())
    };
    let Some(width) = width else { return draw(None) };
    let is_too_wide = |most: &Option<usize>| draw(*most).lines().any(|line| console::measure_text_width(line) > width);
    let limits: Vec<_> = [None].into_iter().chain((LEAST..=SENTENCE).rev().map(Some)).collect();
    draw(limits.get(limits.partition_point(is_too_wide)).copied().unwrap_or(Some(LEAST)))
}

/// Columns that may be cut, counted from the right.
const STATUS: usize = 1;
const HOSTNAME: usize = 3;

fn row(object: &DynamicObject, with_namespace: bool, now: Timestamp) -> Vec<String> {
    let created = object.creation_timestamp().map(|time| time.0);
    let namespace = with_namespace.then(|| object.namespace().unwrap_or_default());
    let middle = match Stored::read(object.clone()) {
        Err(problem) => {
            let blank = || "-".to_owned();
            let problem = format!("does not decode: {problem}");
            [verdict_cell("Unknown"), blank(), blank(), blank(), blank(), problem]
        }
        Ok(Stored { app, .. }) => understood(&app),
    };
    namespace.into_iter().chain([object.name_any()]).chain(middle).chain([paint(FAINT, age(created, now))]).collect()
}

fn verdict_cell(status: &str) -> String {
    paint(verdict(status, "True"), status)
}

fn understood(app: &ClientApp) -> [String; 6] {
    let status = app.status.clone().unwrap_or_default();
    let condition = |type_: &str| find(&status.conditions, type_);
    let ready = condition(kind::READY).map_or("Unknown", |ready| ready.status.as_str());
    let revision = status.release.as_ref().map_or_else(|| "-".to_owned(), |release| release.revision.to_string());
    let database = match condition(kind::POSTGRES_READY) {
        _ if !app.spec.postgres.enabled => paint(FAINT, "none"),
        None => "-".to_owned(),
        Some(condition) => paint(verdict(&condition.status, "True"), &condition.reason),
    };
    let spec = &app.spec;
    [verdict_cell(ready), revision, spec.chart_version.clone(), spec.hostname.clone(), database, sentence(app)]
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
