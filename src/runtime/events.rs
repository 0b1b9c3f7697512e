//! Events about objects of any kind. An **effect**.

use k8s_openapi::{api::core::v1::ObjectReference, apimachinery::pkg::apis::meta::v1::Condition};
use kube::runtime::events::{Event, EventType, Recorder};

use crate::crd::{
    conditions::{find, kind},
    reason,
};

/// The API server refuses longer notes in events.
const NOTE_BYTES: usize = 1000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// What was done about it. Events that differ in nothing but their sentence are counted as one, so the revision
    /// is in here.
    pub action: String,
    /// It is worth a look.
    pub warning: bool,
    pub reason: String,
    /// The same sentence as in the status.
    pub message: String,
}

impl Note {
    pub fn normal(action: impl Into<String>, reason: impl Into<String>, message: String) -> Note {
        Note { action: action.into(), warning: false, reason: reason.into(), message }
    }

    pub fn warning(action: impl Into<String>, reason: impl Into<String>, message: String) -> Note {
        Note { warning: true, ..Note::normal(action, reason, message) }
    }
}

/// What a change of conditions is worth, if it is a turn of `Ready`. **Pure.**
pub fn turn_of_ready(action: &str, before: &[Condition], after: &[Condition]) -> Option<Note> {
    let [then, now] = [before, after].map(|conditions| find(conditions, kind::READY));
    let now = now.filter(|now| then.is_none_or(|then| (&then.status, &then.reason) != (&now.status, &now.reason)))?;
    let note = Note::normal(action, &now.reason, now.message.clone());
    Some(Note { warning: reason::is_trouble(now), ..note })
}

/// Publishes events; a failure to publish is logged and never stops a reconcile.
pub async fn publish_by(recorder: &Recorder, reference: &ObjectReference, notes: &[Note]) {
    for Note { action, warning, reason, message } in notes {
        if *warning {
            tracing::warn!(%reason, "{message}");
        } else {
            tracing::info!(%reason, "{message}");
        }
        let fits = |(at, c): &(usize, char)| at + c.len_utf8() <= NOTE_BYTES;
        let note = message.char_indices().take_while(fits).map(|(_, c)| c).collect();
        let event = Event {
            type_: if *warning { EventType::Warning } else { EventType::Normal },
            reason: reason.clone(),
            note: Some(note),
            action: action.clone(),
            secondary: None,
        };
        if let Err(error) = recorder.publish(&event, reference).await {
            tracing::warn!(%error, "publish event {reason}");
        }
    }
}
