//! The sizes of the volumes, **pure**: they grow as the spec asks, and never shrink.

use super::{
    commands::label_command,
    plan::{PostgresqlPlan, PostgresqlStep},
};
use crate::{
    crd::{Reason, quantity},
    postgresql::{
        desired::{Desired, Size},
        names,
        observed::{Detail, ObservedPostgresql, Ownership},
    },
};

/// Sizes of volumes that differ by less than this are equal: bytes are whole.
const BYTE: f64 = 1.0;

pub(super) fn steps(plan: &mut PostgresqlPlan, desired: &Desired, observed: &ObservedPostgresql) {
    for ((_, name), view) in observed.objects.iter().filter(|((_, name), _)| names::is_claim(&desired.key.name, name)) {
        if let Ownership::Other(owner) = &view.owner {
            let message = format!(
                "PersistentVolumeClaim {name} belongs to {owner} and is not touched: delete it, or hand it over with {}",
                label_command(desired, "pvc", name)
            );
            plan.hold(Reason::NotOurs, message);
        }
        if view.owner != Ownership::Ours || view.deleting {
            continue;
        }
        let Detail::Claim { requested: Some(requested), capacity, made_for: _ } = &view.detail else { continue };
        let Some((_, size)) = size(desired, name) else { continue };
        let bound = capacity.is_some();
        if size.bytes - requested >= BYTE && !bound {
            plan.hold(
                Reason::Growing,
                format!("PersistentVolumeClaim {name} has to be bound before it grows to {}", size.text),
            );
        } else if size.bytes - requested >= BYTE {
            plan.steps.push(PostgresqlStep::Grow { claim: name.clone(), to: size.text.clone() });
        } else if capacity.as_deref().and_then(quantity::parse_positive).is_some_and(|has| requested - has >= BYTE) {
            let has = capacity.as_deref().unwrap_or_default();
            let message = format!("PersistentVolumeClaim {name} has {has} and grows to {}", quantity::text(*requested));
            plan.hold(Reason::Growing, message);
        }
    }
}

/// Returns the field with the size of a claim of this name, and the size; `None`: the spec asks for no dumps any more.
fn size<'a>(desired: &'a Desired, claim: &str) -> Option<(&'static str, &'a Size)> {
    match &desired.backup {
        wanted if claim == names::backup(&desired.key.name) => Some(("spec.backup.size", &wanted.as_ref()?.size)),
        _ => Some(("spec.storageSize", &desired.storage)),
    }
}

/// Returns the note about a volume that is larger than the spec asks, as one that was enlarged by hand: no volume shrinks, so it stays.
pub(crate) fn larger(desired: &Desired, observed: &ObservedPostgresql) -> Option<String> {
    observed.objects.iter().filter(|(_, view)| view.owner == Ownership::Ours).find_map(|((_, name), view)| {
        let Detail::Claim { requested: Some(requested), .. } = &view.detail else { return None };
        let (field, size) = size(desired, name)?;
        (requested - size.bytes >= BYTE).then(|| {
            format!(
                "PersistentVolumeClaim {name} has {} and keeps its size, larger than {field} {}: raise the field",
                quantity::text(*requested),
                size.text
            )
        })
    })
}
