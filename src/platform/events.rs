//! Publishes events about objects of any kind. An **effect**.

use std::time::Duration;

use k8s_openapi::{
    api::{
        core::v1::ObjectReference,
        events::v1::{Event, EventSeries},
    },
    apimachinery::pkg::apis::meta::v1::{Condition, MicroTime, ObjectMeta},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use moka::{future::Cache, policy::EvictionPolicy};
use serde_json::json;

use super::{clock, key::sha256};
use crate::crd::{
    conditions::{find, kind},
    reason,
};

/// The operator's name in events, the same for all of its processes.
const CONTROLLER: &str = "clientapp-operator";
/// The API server refuses longer notes in events.
const NOTE_BYTES: usize = 1000;
/// A repetition after a longer time is a new event (k8s.io/client-go/tools/events, `finishTime`).
const SERIES: Duration = Duration::from_secs(6 * 60);
/// Limits the events that are remembered to notice repetitions: as many as in client-go.
const SERIES_AT_ONCE: u64 = 4096;

/// Publishes events, and counts repetitions. kube's own recorder does the same, but keeps whole events and scans all of them for
/// each that it publishes: with a thousand apps they took a quarter of the memory in use.
#[derive(Clone)]
pub(crate) struct Recorder {
    client: Client,
    /// This process.
    instance: String,
    /// Maps a hash of what tells events apart to the event's name and the number of its publications.
    published: Cache<[u8; 32], (String, i32)>,
}

impl Recorder {
    pub(crate) fn new(client: Client, instance: String) -> Self {
        let published = Cache::builder().time_to_live(SERIES).max_capacity(SERIES_AT_ONCE);
        Recorder { client, instance, published: published.eviction_policy(EvictionPolicy::lru()).build() }
    }

    async fn publish(&self, reference: &ObjectReference, note: &Note) -> kube::Result<()> {
        let time = MicroTime(clock::now());
        let Note { action, warning, reason, related, message: _ } = note;
        let type_ = if *warning { "Warning" } else { "Normal" };
        let uid = reference.uid.as_deref().unwrap_or_default();
        let related_object =
            related.as_ref().map(|object| format!("{:?} {:?}", object.kind, object.name)).unwrap_or_default();
        let series_id = sha256(&[uid, type_, reason, action, &related_object].map(str::as_bytes));
        let events = Api::<Event>::namespaced(self.client.clone(), reference.namespace.as_deref().unwrap_or("default"));
        let (name, count) = match self.published.get(&series_id).await {
            Some((name, count)) => {
                let series = EventSeries { count: count + 1, last_observed_time: time };
                let patch = Patch::Merge(json!({"series": series}));
                events.patch_metadata(&name, &PatchParams::default(), &patch).await?;
                (name, count + 1)
            }
            None => {
                let about = reference.name.as_deref().unwrap_or(CONTROLLER);
                let name = format!("{about}.{:x}", time.0.as_nanosecond());
                let event = Event {
                    action: Some(action.clone()),
                    event_time: Some(time),
                    metadata: ObjectMeta {
                        name: Some(name.clone()),
                        namespace: reference.namespace.clone(),
                        ..ObjectMeta::default()
                    },
                    note: Some(note.truncated_message()),
                    reason: Some(reason.clone()),
                    regarding: Some(reference.clone()),
                    related: related.clone(),
                    reporting_controller: Some(CONTROLLER.to_owned()),
                    reporting_instance: Some(self.instance.clone()),
                    type_: Some(type_.to_owned()),
                    ..Event::default()
                };
                events.create(&PostParams::default(), &event).await?;
                (name, 1)
            }
        };
        self.published.insert(series_id, (name, count)).await;
        Ok(())
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Note {
    /// Names what the operator did about it. Events that differ only in their message are counted as one, so the revision belongs in here.
    pub action: String,
    /// True if it needs attention.
    pub warning: bool,
    pub reason: String,
    /// The object that it did that to, if that is not the object of the event. Such events are counted per object.
    pub related: Option<ObjectReference>,
    /// The same message as in the status.
    pub message: String,
}

impl Note {
    pub(crate) fn normal(action: impl Into<String>, reason: impl Into<String>, message: String) -> Note {
        Note { action: action.into(), warning: false, reason: reason.into(), related: None, message }
    }

    pub(crate) fn warning(action: impl Into<String>, reason: impl Into<String>, message: String) -> Note {
        Note { warning: true, ..Note::normal(action, reason, message) }
    }

    /// Returns the message, cut to the length that an event may have.
    fn truncated_message(&self) -> String {
        let fits = |(at, c): &(usize, char)| at + c.len_utf8() <= NOTE_BYTES;
        self.message.char_indices().take_while(fits).map(|(_, c)| c).collect()
    }
}

/// Returns the event about `Ready`, if it has changed. **Pure.**
pub(crate) fn ready_transition(action: &str, before: &[Condition], after: &[Condition]) -> Option<Note> {
    let [old, new] = [before, after].map(|conditions| find(conditions, kind::READY));
    let new = new.filter(|new| old.is_none_or(|old| (&old.status, &old.reason) != (&new.status, &new.reason)))?;
    let note = Note::normal(action, &new.reason, new.message.clone());
    Some(Note { warning: reason::is_trouble(new), ..note })
}

/// Publishes events; a failure to publish is logged and never stops a reconcile.
pub(crate) async fn publish_by(recorder: &Recorder, reference: &ObjectReference, notes: &[Note]) {
    for note in notes {
        let Note { action: _, warning, reason, related: _, message } = note;
        if *warning {
            tracing::warn!(%reason, "{message}");
        } else {
            tracing::info!(%reason, "{message}");
        }
        if let Err(error) = recorder.publish(reference, note).await {
            tracing::warn!(%error, "publish event {reason}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::platform::fake;

    #[tokio::test]
    async fn what_is_told_again_is_counted() {
        let requests = Arc::new(Mutex::new(Vec::new()));
        let record = requests.clone();
        let client = fake::client(move |method, path, body| {
            record.lock().unwrap().push((method.to_string(), path.to_owned(), body.clone()));
            (200, json!({"metadata": {}}))
        });
        let recorder = Recorder::new(client, "pod-1".to_owned());
        let about = |uid: &str| ObjectReference {
            name: Some("acme".to_owned()),
            namespace: Some("tenants".to_owned()),
            uid: Some(uid.to_owned()),
            ..ObjectReference::default()
        };
        let long = Note::warning("Upgrading", "UpgradeFailed", "é".repeat(NOTE_BYTES));
        let service = ObjectReference { kind: Some("Service".to_owned()), ..about("3") };
        let notes = [
            ("1", long.clone()),
            ("1", Note { message: "in other words".to_owned(), ..long.clone() }),
            ("1", long.clone()),
            // Each of these is a separate event.
            ("2", long.clone()),
            ("1", Note { action: "Installing".to_owned(), ..long.clone() }),
            ("1", Note { reason: "Refused".to_owned(), ..long.clone() }),
            ("1", Note { related: Some(service), ..long.clone() }),
            ("1", Note { warning: false, ..long.clone() }),
        ];
        for (uid, note) in &notes {
            publish_by(&recorder, &about(uid), std::slice::from_ref(note)).await;
        }
        let requests = requests.lock().unwrap();
        let methods: Vec<_> = requests.iter().map(|(method, _, _)| method.as_str()).collect();
        assert_eq!(methods, ["POST", "PATCH", "PATCH", "POST", "POST", "POST", "POST", "POST"]);
        let (_, path, event) = &requests[0];
        assert_eq!(path, "/apis/events.k8s.io/v1/namespaces/tenants/events");
        assert_eq!((&event["type"], &event["reportingInstance"]), (&json!("Warning"), &json!("pod-1")));
        assert_eq!(event["note"].as_str().unwrap().len(), NOTE_BYTES);
        for (count, (_, event_path, patch)) in [(2, &requests[1]), (3, &requests[2])] {
            assert_eq!(*event_path, format!("{path}/{}", event["metadata"]["name"].as_str().unwrap()));
            assert_eq!(patch["series"]["count"], count);
        }
    }
}
