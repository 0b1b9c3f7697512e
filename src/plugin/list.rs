//! `list`: the ClientApps of a namespace or of all, in one request.

use std::{collections::HashMap, pin::pin, time::Duration};

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
    session::{Printer, Session, Stored},
    text::{Cell, FAINT, age, cell, shortened, styled, table_line, verdict, widths, with_header},
};
use crate::crd::{
    ClientApp,
    conditions::{find, kind},
};

const HEADER: [&str; 9] =
    ["NAMESPACE", "NAME", "READY", "REVISION", "VERSION", "HOSTNAME", "DATABASE", "STATUS", "AGE"];
/// Between two tries of a watch that broke off.
const AGAIN: Duration = Duration::from_secs(1);
/// Longer sentences are cut: `status` has them whole.
const SENTENCE: usize = 60;

/// Lists, and with `--watch` tells of every change.
///
/// # Errors
/// The server's refusal.
pub async fn run(session: &Session, printer: &mut Printer, args: &args::List) -> Result<(), Error> {
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
    printer.objects(&found, || render(&found, args.all_namespaces, Session::now()))
}

/// One object after the other: those that are there, and each that changes.
async fn watch(printer: &mut Printer, api: Api<DynamicObject>, args: &args::List, what: &str) -> Result<(), Error> {
    let row = |object: &DynamicObject| row(object, args.all_namespaces, Session::now());
    let config = watcher::Config { label_selector: args.selector.clone(), ..watcher::Config::default() };
    let mut changes = pin!(watcher(api, config));
    // By uid; none before the first list. A watch that breaks off begins with another list.
    let mut known: Option<HashMap<_, DynamicObject>> = None;
    let mut listed = Vec::new();
    let mut columns = Vec::new();
    while let Some(change) = changes.next().await {
        let (changed, gone) = match change {
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
                    let rows = rows(&first, args.all_namespaces, Session::now());
                    columns = widths(&rows);
                    rows.iter().try_for_each(|row| printer.out(&table_line(row, &columns)))?;
                    continue;
                }
                let before = before.unwrap_or_default();
                let same = |uid: &Option<String>, object: &DynamicObject| {
                    before.get(uid).is_some_and(|before| before.metadata == object.metadata)
                };
                let gone = before.iter().filter(|(uid, _)| !now.contains_key(*uid)).map(|(_, object)| object.clone());
                let gone: Vec<_> = gone.collect();
                (now.into_iter().filter(|(uid, object)| !same(uid, object)).map(|(_, object)| object).collect(), gone)
            }
            Ok(watcher::Event::Apply(object)) => {
                known.get_or_insert_default().insert(object.uid(), object.clone());
                (vec![object], Vec::new())
            }
            Ok(watcher::Event::Delete(object)) => {
                known.get_or_insert_default().remove(&object.uid());
                (Vec::new(), vec![object])
            }
            Err(watcher::Error::InitialListFailed(error)) if known.is_none() => return Err(Error::api(what)(error)),
            // Whoever may list may not always watch.
            Err(watcher::Error::WatchStartFailed(error @ kube::Error::Api(_))) => {
                return Err(Error::api(format!("{what} as they change"))(error));
            }
            Err(_) => {
                tokio::time::sleep(AGAIN).await;
                continue;
            }
        };
        for object in changed {
            printer.object(&object, table_line(&row(&object), &columns).trim_end())?;
        }
        for object in gone {
            let mut row = row(&object);
            if let Some(status) = row.iter_mut().nth_back(1) {
                *status = styled("deleted", FAINT);
            }
            printer.object(&object, table_line(&row, &columns).trim_end())?;
        }
    }
    Ok(())
}

/// The table. **Pure.**
#[must_use]
pub fn render(objects: &[DynamicObject], with_namespace: bool, now: Timestamp) -> String {
    let rows = rows(objects, with_namespace, now);
    let widths = widths(&rows);
    rows.iter().map(|row| table_line(row, &widths)).collect()
}

fn rows(objects: &[DynamicObject], with_namespace: bool, now: Timestamp) -> Vec<Vec<Cell>> {
    let rows: Vec<_> = objects.iter().map(|object| row(object, with_namespace, now)).collect();
    with_header(&HEADER[usize::from(!with_namespace)..], &rows)
}

fn row(object: &DynamicObject, with_namespace: bool, now: Timestamp) -> Vec<Cell> {
    let created = object.creation_timestamp().map(|time| time.0);
    let namespace = with_namespace.then(|| cell(object.namespace().unwrap_or_default()));
    let name = cell(object.name_any());
    let age = styled(age(created, now), FAINT);
    let middle = match Stored::read(object.clone()) {
        Err(problem) => {
            let blank = || cell("-");
            let problem = shortened(&format!("does not decode: {problem}"), SENTENCE);
            [verdict_cell("Unknown"), blank(), blank(), blank(), blank(), cell(problem)]
        }
        Ok(Stored { app, .. }) => understood(&app),
    };
    namespace.into_iter().chain([name]).chain(middle).chain([age]).collect()
}

fn verdict_cell(status: &str) -> Cell {
    styled(status, verdict(status, "True"))
}

fn understood(app: &ClientApp) -> [Cell; 6] {
    let status = app.status.clone().unwrap_or_default();
    let condition = |type_: &str| find(&status.conditions, type_);
    let ready = condition(kind::READY).map_or("Unknown", |ready| ready.status.as_str());
    let revision = status.release.as_ref().map_or_else(|| "-".to_owned(), |release| release.revision.to_string());
    let database = match condition(kind::POSTGRES_READY) {
        _ if !app.spec.postgres.enabled => styled("none", FAINT),
        None => cell("-"),
        Some(condition) => styled(condition.reason.clone(), verdict(&condition.status, "True")),
    };
    [
        verdict_cell(ready),
        cell(revision),
        cell(app.spec.chart_version.clone()),
        cell(app.spec.hostname.clone()),
        database,
        cell(shortened(&sentence(app), SENTENCE)),
    ]
}

/// What there is to say of an app in one sentence: why it is not ready, else that it is. **Pure.**
#[must_use]
pub fn sentence(app: &ClientApp) -> String {
    let status = app.status.clone().unwrap_or_default();
    let Some(ready) = find(&status.conditions, kind::READY) else {
        return "the operator has not looked at it yet".to_owned();
    };
    let seen = |generation: Option<i64>| generation >= app.metadata.generation;
    if !seen(status.observed_generation) && !seen(ready.observed_generation) {
        return "the operator has not looked at the newest change yet".to_owned();
    }
    let working = find(&status.conditions, kind::RECONCILING).filter(|working| working.status == "True");
    match working {
        _ if ready.status != "True" => ready.message.clone(),
        // An upgrade leaves the app serving.
        Some(working) => working.message.clone(),
        None => ready.reason.clone(),
    }
}
