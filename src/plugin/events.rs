//! `events`: the events about a ClientApp.

use std::pin::pin;

use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use kube::{
    ResourceExt as _,
    api::ListParams,
    runtime::watcher::{self, watcher},
};

use super::{
    args,
    error::{Error, described},
    session::{AGAIN, Printer, Session},
    text::{BAD, FAINT, PLAIN, age, fitted, paint, tamed},
};

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::Events) -> Result<(), Error> {
    let fields = format!("regarding.kind=ClientApp,regarding.name={}", args.name);
    let what = format!("list the events about {}", described(&session.namespace, &args.name));
    let api = session.api::<Event>();
    let mut events = api.list(&ListParams::default().fields(&fields)).await.map_err(Error::api(what.clone()))?.items;
    events.sort_by_key(last_seen);
    if events.is_empty() {
        session.app(&args.name).await?;
        if printer.is_for_humans() {
            printer.note(&format!("There are no events about {}.", described(&session.namespace, &args.name)));
        }
    }
    let width = printer.width();
    if !(events.is_empty() && printer.is_for_humans()) {
        printer.objects(&events, || render(&events, width, Session::now()))?;
    }
    if !args.watch {
        return Ok(());
    }
    // The watch starts with a list of its own; events printed above are skipped.
    let told = |event: &Event| (event.uid(), event.resource_version());
    let mut seen: std::collections::HashSet<_> = events.iter().map(told).collect();
    let mut stream = pin!(watcher(api, watcher::Config::default().fields(&fields)));
    while let Some(event) = stream.next().await {
        match event {
            Ok(watcher::Event::Apply(event) | watcher::Event::InitApply(event)) if seen.insert(told(&event)) => {
                let text = fitted(&[], &[row(&event, Session::now())], &[MESSAGE], width);
                printer.object(&event, text.trim_end())?;
            }
            Ok(_) => {}
            Err(watcher::Error::InitialListFailed(error) | watcher::Error::WatchStartFailed(error)) => {
                return Err(Error::api(what)(error));
            }
            Err(_) => tokio::time::sleep(AGAIN).await,
        }
    }
    Ok(())
}

/// When it occurred last: repeated events are counted in a series.
fn last_seen(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().map(|series| series.last_observed_time.0);
    let first = event.event_time.as_ref().map(|time| time.0);
    let deprecated = event.deprecated_last_timestamp.as_ref().map(|time| time.0);
    series.or(first).or(deprecated).or_else(|| event.creation_timestamp().map(|time| time.0))
}

/// The column that is cut where it does not fit.
const MESSAGE: usize = 3;

pub(crate) fn render(events: &[Event], width: Option<usize>, now: Timestamp) -> String {
    let rows: Vec<_> = events.iter().map(|event| row(event, now)).collect();
    fitted(&["AGE", "TYPE", "REASON", "MESSAGE"], &rows, &[MESSAGE], width)
}

fn row(event: &Event, now: Timestamp) -> Vec<String> {
    let Event { type_, reason, note, series, .. } = tamed(event).unwrap_or_default();
    let type_ = type_.unwrap_or_default();
    let style = if type_ == "Warning" { BAD } else { PLAIN };
    let times = series.filter(|series| series.count > 1).map(|series| format!(" (x{})", series.count));
    let age = age(last_seen(event), now) + &times.unwrap_or_default();
    vec![paint(FAINT, age), paint(style, type_), reason.unwrap_or_default(), note.unwrap_or_default()]
}
