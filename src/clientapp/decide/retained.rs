//! Adoption of the data that an earlier ClientApp of the same name has left.

use jiff::Timestamp;

use super::plan::Step;
use crate::{
    clientapp::{
        hold::{Hold, SAFETY_NET, join_limited},
        observed::types::Retained,
        spec::desired::Desired,
    },
    crd::{Reason, label},
    deletion::permit::DataKind,
};

/// Takes over retained data, if the user asks for it and nothing prevents it.
pub(super) fn adopt(
    desired: &Desired,
    retained: &[Retained],
    closed: Option<&Hold>,
    now: Timestamp,
) -> Result<Step, Hold> {
    // Volumes are not watched, so look again.
    let hold = |message: String| Hold::new(Reason::DataRetained, message).until(now + SAFETY_NET);
    let left = format!("an earlier ClientApp {}, or its database, has left {}", desired.key.name, summary(retained));
    if !desired.data.adopt {
        return Err(hold(format!(
            "{left}: set spec.postgres.adopt to true to continue with these data; otherwise rename this ClientApp, or delete what `kubectl get pvc,secret -n {} -l {}={}` shows",
            desired.key.namespace,
            label::RETAINED_FROM,
            desired.key.name,
        )));
    }
    let wanted = desired.database_object().map(|object| object.provider.kind());
    let other = retained.iter().find(|left| left.kind.is_database() && Some(left.kind) != wanted);
    if let Some(Retained { kind, name, .. }) = other {
        return Err(hold(format!(
            "{left}: {} {name} can only be adopted by a ClientApp with another spec.postgres.provider or spec.postgres.enabled",
            kind.as_str()
        )));
    }
    match closed.filter(|hold| hold.stalled) {
        Some(hold) => Err(hold.clone()),
        None => Ok(Step::Adopt(retained.to_vec())),
    }
}

/// Names the database and one volume, and counts the rest.
fn summary(retained: &[Retained]) -> String {
    const NAMED: usize = 2;
    let mut sorted: Vec<_> = retained.iter().collect();
    sorted.sort_by_key(|left| match left.kind {
        DataKind::Volume => 1,
        DataKind::Secret => 2,
        DataKind::Database(_) => 0,
    });
    join_limited(sorted.iter().map(|left| format!("{} {}", left.kind.as_str(), left.name)), NAMED)
}
