//! `GET /instances/{name}/events`: the progress of an instance, as server-sent events.

use std::{
    collections::HashMap,
    convert::Infallible,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::response::{
    IntoResponse as _, Response,
    sse::{Event, KeepAlive, Sse},
};
use futures::{Stream, StreamExt as _};
use k8s_openapi::api::events::v1::Event as KubeEvent;
use kube::{
    Api, ResourceExt as _,
    runtime::{WatchStreamExt as _, watcher},
};
use serde::Serialize;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::{
    dto::{Happened, Instance},
    shared::ApiState,
};
use crate::platform::{key::Key, watch::WatchLog};

/// Interval of keep-alive comments on a silent stream.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// How long `ready` waits for the list of earlier events.
const LISTED_WITHIN: Duration = Duration::from_secs(5);

/// Streams until the instance is ready, or with `follow` until it is gone; in any case until the operator stops.
pub(crate) fn stream(shared: Arc<ApiState>, key: Key, uid: String, follow: bool) -> Response {
    // One event at a time: a slow reader delays its watch instead of filling the memory.
    let (sender, receiver) = mpsc::channel(1);
    let (tasks, stop) = (shared.tasks.clone(), shared.stop.clone());
    let gone = sender.clone();
    tasks.spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = gone.closed() => {}
            _ = EventStream { shared, key, uid, follow, sender }.run() => {}
        }
    });
    let events = ReceiverStream::new(receiver).map(Ok::<_, Infallible>);
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

struct EventStream {
    shared: Arc<ApiState>,
    key: Key,
    uid: String,
    follow: bool,
    sender: mpsc::Sender<Event>,
}

/// The reader has disconnected.
struct Gone;

impl EventStream {
    async fn run(self) -> Result<(), Gone> {
        let mut changes = self.shared.instances.changes();
        let happened = self.happened();
        tokio::pin!(happened);
        let mut sent: Option<Instance> = None;
        // Earlier events are sent before the stream ends.
        let mut listed = false;
        let began = Instant::now();
        loop {
            changes.mark_unchanged();
            let shown = self.shared.instances.get(&self.key).filter(|shown| shown.uid == self.uid);
            let Some(shown) = shown else {
                return self.say("gone", &json!({"name": self.key.name, "namespace": self.key.namespace})).await;
            };
            if sent.as_ref() != Some(&shown.instance) {
                self.say("status", &shown.instance).await?;
                sent = Some(shown.instance.clone());
            }
            if !self.follow && shown.instance.is_ready() && (listed || began.elapsed() >= LISTED_WITHIN) {
                return self.say("ready", &shown.instance).await;
            }
            tokio::select! {
                changed = changes.changed() => changed.map_err(|_| Gone)?,
                Some(event) = happened.next() => match event {
                    Some(event) => self.say("event", &event).await?,
                    None => listed = true,
                },
                () = tokio::time::sleep(LISTED_WITHIN), if !listed => listed = true,
            }
        }
    }

    async fn say(&self, name: &str, data: &impl Serialize) -> Result<(), Gone> {
        // Serialization cannot fail, because all maps have string keys.
        let data = serde_json::to_string(data).unwrap_or_default();
        self.sender.send(Event::default().event(name).data(data)).await.map_err(|_| Gone)
    }

    /// Past and new events about the instance, with `None` between them.
    fn happened(&self) -> impl Stream<Item = Option<Happened>> + use<> {
        let events = Api::<KubeEvent>::namespaced(self.shared.parts.watch_client.clone(), &self.key.namespace);
        let of_this = watcher::Config::default().fields(&format!("regarding.uid={}", self.uid));
        // A watch that restarts repeats earlier events.
        let mut sent = HashMap::new();
        let mut log = WatchLog::new("events");
        watcher(events, of_this).default_backoff().filter_map(move |event| {
            log.record(&event, Instant::now());
            let happened = match event {
                Ok(watcher::Event::Apply(event) | watcher::Event::InitApply(event)) => {
                    let version = event.resource_version();
                    (sent.insert(event.name_any(), version.clone()) != Some(version)).then(|| Some(happened(&event)))
                }
                Ok(watcher::Event::Delete(event)) => {
                    sent.remove(&event.name_any());
                    None
                }
                Ok(watcher::Event::InitDone) => Some(None),
                Ok(watcher::Event::Init) | Err(_) => None,
            };
            std::future::ready(happened)
        })
    }
}

fn happened(event: &KubeEvent) -> Happened {
    let series = event.series.as_ref();
    let time = series.map(|series| series.last_observed_time.0).or(event.event_time.as_ref().map(|time| time.0));
    let time = time.or(event.deprecated_last_timestamp.as_ref().map(|time| time.0));
    Happened {
        kind: event.type_.clone().unwrap_or_default(),
        reason: event.reason.clone().unwrap_or_default(),
        message: event.note.clone().unwrap_or_default(),
        time: time.map(|time| time.to_string()).unwrap_or_default(),
        count: series.map(|series| series.count).or(event.deprecated_count).filter(|count| *count > 1),
    }
}
