//! Says why a stage ends before the app is as desired: any stage may hold. Plain data.

use jiff::{SignedDuration, Timestamp};

use crate::crd::Reason;

/// A watch ends a hold; this is the safety net in case it does not.
pub(crate) const SAFETY_NET: SignedDuration = SignedDuration::from_secs(60);

/// Says why a plan ends before the app is as desired.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Hold {
    /// The condition that reports it.
    pub condition: &'static str,
    pub reason: Reason,
    /// One sentence: what is missing, on which object, what to do.
    pub message: String,
    /// Nothing continues until a user or cluster admin changes something.
    pub stalled: bool,
    /// When to reconcile again if no watch triggers a reconcile earlier.
    pub until: Option<Timestamp>,
    /// The conditions that nothing is known about because of it: they stay as they were.
    pub unjudged: &'static [&'static str],
    /// A run of helm begins, which may take long.
    pub begins: bool,
}

impl Hold {
    /// Returns a hold with the condition and class of its reason, without a time.
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> Hold {
        let message = message.into();
        Hold {
            condition: reason.condition(),
            reason,
            message,
            stalled: reason.stalled(),
            until: None,
            unjudged: &[],
            begins: false,
        }
    }

    pub(crate) fn begins(self) -> Hold {
        Hold { begins: true, ..self }
    }

    pub(crate) fn until(self, until: impl Into<Option<Timestamp>>) -> Hold {
        Hold { until: until.into(), ..self }
    }
}

/// Limits how many things a sentence of a condition names; the rest are counted.
pub(crate) const NAMED: usize = 3;

/// Joins at most `most` words for a sentence, and counts the rest.
pub(crate) fn join_limited(words: impl IntoIterator<Item = String>, most: usize) -> String {
    joined(words, most, ", ", " and")
}

/// Joins at most `most` parts of a sentence that may have commas themselves, and counts the rest.
pub(crate) fn join_sentences(sentences: impl IntoIterator<Item = String>, most: usize) -> String {
    joined(sentences, most, "; ", "; and")
}

fn joined(words: impl IntoIterator<Item = String>, most: usize, separator: &str, and: &str) -> String {
    let mut words: Vec<_> = words.into_iter().collect();
    let more = words.len().saturating_sub(most);
    words.truncate(most);
    let named = words.join(separator);
    if more > 0 { format!("{named}{and} {more} more") } else { named }
}
