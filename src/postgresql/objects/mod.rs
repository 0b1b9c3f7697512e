//! Builders of a `Postgresql`'s objects. Pure: they turn the desired state into documents.

pub(crate) mod backup;
pub(crate) mod bucket;
pub(crate) mod drill;
pub(crate) mod initialize;
pub(crate) mod network;
mod object;
mod placement;
pub(crate) mod pod;
pub(crate) mod policies;
pub(crate) mod secrets;
pub(crate) mod servers;

pub(crate) use self::{object::Object, servers::Mounted};
use super::{desired::Desired, observed::ObservedPostgresql};

/// Builds all objects, in the order in which they are applied.
pub(crate) fn all(desired: &Desired, observed: &ObservedPostgresql, mounted: Mounted<'_>) -> Vec<Object> {
    let mut objects = vec![
        network::witness(desired),
        network::scripts(desired),
        network::headless(desired),
        network::client(desired),
    ];
    objects.extend(policies::network_policy(desired));
    objects.extend(policies::sealed(desired));
    objects.extend(policies::drill(desired));
    objects.push(servers::primary(desired, &observed.objects, mounted, None));
    objects.extend(policies::disruption(desired));
    if desired.standbys > 0 {
        objects.push(network::read_only(desired));
        objects.push(servers::standby(desired, &observed.objects, mounted));
    }
    if let Some(backup) = &desired.backup {
        // A volume is created once; later a patch of its size grows it.
        let claim = backup::claim(desired, backup);
        if !observed.objects.contains_key(&claim.id) {
            objects.push(claim);
        }
    }
    objects
}

#[cfg(test)]
mod tests;
