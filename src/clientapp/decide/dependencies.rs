//! Decides whether helm waits for the objects that `spec.dependsOn` names.

use jiff::{SignedDuration, Timestamp};

use crate::{
    clientapp::{
        hold::{Hold, NAMED, SAFETY_NET, join_limited},
        observed::types::UnreadyDependency,
    },
    crd::Reason,
};

/// How often the API server is asked for an object that the operator does not watch, while helm waits for it.
const PAUSE: SignedDuration = SignedDuration::from_secs(15);

pub(super) fn hold(awaited: &[UnreadyDependency], now: Timestamp) -> Option<Hold> {
    let named = join_limited(awaited.iter().map(|dependency| dependency.sentence.clone()), NAMED);
    if awaited.iter().any(|dependency| dependency.is_circle) {
        let message = format!(
            "{named}; circular dependency: it depends on this ClientApp; remove one of the spec.dependsOn entries"
        );
        return Some(Hold::new(Reason::DependencyCircle, message).until(now + SAFETY_NET));
    }
    let pause = if awaited.iter().all(|dependency| dependency.is_watched) { SAFETY_NET } else { PAUSE };
    let message = format!("{named}: helm waits for what spec.dependsOn names");
    (!awaited.is_empty()).then(|| Hold::new(Reason::DependencyNotReady, message).until(now + pause))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_awaited() {
        let now = Timestamp::UNIX_EPOCH;
        let of = |sentence: &str, is_watched, is_circle| UnreadyDependency {
            sentence: sentence.to_owned(),
            is_watched,
            is_circle,
        };
        assert_eq!(hold(&[], now), None);
        let held = hold(
            &[of("ClientApp a does not exist", true, false), of("ClientApp b is not Ready yet", true, false)],
            now,
        );
        let Hold { reason, message, until, stalled, .. } = held.unwrap();
        assert_eq!((reason, stalled, until), (Reason::DependencyNotReady, false, Some(now + SAFETY_NET)));
        assert_eq!(
            message,
            "ClientApp a does not exist, ClientApp b is not Ready yet: helm waits for what spec.dependsOn names"
        );
        assert_eq!(hold(&[of("Bucket x does not exist", false, false)], now).unwrap().until, Some(now + PAUSE));
        let circle = hold(&[of("ClientApp a is not Ready yet", true, true)], now).unwrap();
        assert_eq!((circle.reason, circle.stalled), (Reason::DependencyCircle, true));
        assert!(circle.message.contains("circular dependency"), "{}", circle.message);
    }
}
