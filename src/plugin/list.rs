//! `list`: the ClientApps of a namespace or of all, in one request.

use jiff::Timestamp;
use kube::{
    ResourceExt as _,
    api::{DynamicObject, ListParams},
};

use super::{
    args,
    error::Error,
    session::{Printer, Session, Stored},
    text::{Cell, FAINT, age, cell, shortened, styled, table, verdict},
};
use crate::crd::{
    ClientApp,
    conditions::{find, kind},
};

/// Longer sentences are cut: `status` has them whole.
const SENTENCE: usize = 60;

/// Lists.
///
/// # Errors
/// The server's refusal.
pub async fn run(session: &Session, printer: &mut Printer, args: &args::List) -> Result<(), Error> {
    let params = ListParams { label_selector: args.selector.clone(), ..ListParams::default() };
    let (api, place) = match args.all_namespaces {
        true => (session.all_apps(), "any namespace".to_owned()),
        false => (session.apps(), format!("namespace {}", session.namespace)),
    };
    let found = api.list(&params).await.map_err(Error::api(format!("list the ClientApps in {place}")))?.items;
    if found.is_empty() && printer.output == args::Output::Table {
        printer.note(&format!("No ClientApps found in {place}."));
        return Ok(());
    }
    printer.objects(&found, || render(&found, args.all_namespaces, Session::now()))
}

/// The table. **Pure.**
#[must_use]
pub fn render(objects: &[DynamicObject], with_namespace: bool, now: Timestamp) -> String {
    let mut header = vec!["NAMESPACE", "NAME", "READY", "REVISION", "VERSION", "HOSTNAME", "DATABASE", "STATUS", "AGE"];
    let mut rows: Vec<Vec<Cell>> = objects.iter().map(|object| row(object, now)).collect();
    if !with_namespace {
        header.remove(0);
        rows.iter_mut().for_each(|row| drop(row.remove(0)));
    }
    table(&header, &rows)
}

fn row(object: &DynamicObject, now: Timestamp) -> Vec<Cell> {
    let created = object.creation_timestamp().map(|time| time.0);
    let name = [cell(object.namespace().unwrap_or_default()), cell(object.name_any())];
    let age = styled(age(created, now), FAINT);
    let middle = match Stored::read(object.clone()) {
        Err(problem) => {
            let blank = || cell("-");
            let problem = shortened(&format!("does not decode: {problem}"), SENTENCE);
            [verdict_cell("Unknown"), blank(), blank(), blank(), blank(), cell(problem)]
        }
        Ok(Stored { app, .. }) => understood(&app),
    };
    name.into_iter().chain(middle).chain([age]).collect()
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
