//! Names of everything that belongs to a `Postgresql`. Pure, and from its own name alone, so that a deletion works when
//! the spec does not decode. A dump on request is named by the request as well.

use sha2::{Digest as _, Sha256};

use crate::runtime::key::hex;

/// A `Postgresql`'s name can have this many characters: a StatefulSet's, which ends in `-standby`, is with a hash behind it
/// a label of its pods, and those have 63.
pub(crate) const MAX: usize = 44;

/// A function for each name.
macro_rules! names {
    ($($(#[$doc:meta])* $function:ident = $name:literal;)*) => {
        $($(#[$doc])* pub(crate) fn $function(name: &str) -> String {
            format!($name, name = name)
        })*
    };
}

names! {
    /// The client's Service, and the StatefulSet of the primary.
    primary = "{name}";
    primary_pod = "{name}-0";
    /// The claim with the database.
    data = "data-{name}-0";
    standby = "{name}-standby";
    /// The Service that gives the pods their DNS names.
    headless = "{name}-headless";
    /// The Service of the standbys.
    read_only = "{name}-ro";
    /// The Secret for clients: how to reach the database.
    client_secret = "{name}-app";
    /// The Secret with the password itself, which the one for clients is made from.
    credentials = "{name}-credentials";
    /// The Secret with the standbys' password.
    replication = "{name}-replication";
    /// The ConfigMap with what runs inside the pods.
    scripts = "{name}-scripts";
    /// The ConfigMap that shows how a Postgresql was deleted: the one thing that it owns by an ownerReference.
    witness = "{name}-witness";
    /// What the names of the Jobs begin with that make the database.
    initialize_prefix = "{name}-init-";
    /// The CronJob that dumps, and the volume with the dumps.
    backup = "{name}-backup";
    last_dump = "{name}-last-dump";
    /// The PodDisruptionBudget of the standbys.
    disruption = "{name}-standby";
    /// The NetworkPolicy of all pods.
    network_policy = "{name}-access";
    /// The NetworkPolicy of pods in which a dump is restored.
    sealed = "{name}-sealed";
    /// The CronJob that restores the latest dump into a scratch volume.
    drill = "{name}-drill";
}

/// The Job that makes the database on the volume with this uid.
pub(crate) fn initialize(name: &str, volume: &str) -> String {
    format!("{}{}", initialize_prefix(name), hex(&Sha256::digest(volume.as_bytes())[..5]))
}

/// The Job that takes the dump which a request asks for. A request is as long as a label, so it is its digest that is in here.
pub(crate) fn dump(name: &str, request: &str) -> String {
    format!("{name}-dump-{}", hex(&Sha256::digest(request.as_bytes())[..5]))
}

pub(crate) fn data_claim(set: &str, ordinal: i32) -> String {
    format!("data-{set}-{ordinal}")
}

/// Whether a claim of this name is one that a Postgresql has: of a pod of its StatefulSets, or for its dumps. A cluster admin who
/// scales the primary's makes more than one of that.
pub(crate) fn is_claim(name: &str, claim: &str) -> bool {
    let of = |set: String| {
        let ordinal = claim.strip_prefix(&format!("data-{set}-"));
        ordinal.is_some_and(|ordinal| !ordinal.is_empty() && ordinal.bytes().all(|c| c.is_ascii_digit()))
    };
    of(primary(name)) || of(standby(name)) || claim == backup(name)
}

pub(crate) fn secrets(name: &str) -> [String; 3] {
    [credentials(name), client_secret(name), replication(name)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_fits_everywhere() {
        let name = "a".repeat(MAX);
        // StatefulSet and CronJob: 52, since both get up to 11 characters behind their names.
        for object in [standby(&name), backup(&name), drill(&name), primary(&name)] {
            assert!(object.len() <= 52, "{object}");
        }
        // Service and Job: a DNS label.
        for object in
            [headless(&name), read_only(&name), last_dump(&name), dump(&name, &"r".repeat(63)), initialize(&name, "u")]
        {
            assert!(object.len() <= 63, "{object}");
        }
    }

    #[test]
    fn whose_claims() {
        for (claim, its) in [
            ("data-acme-0", true),
            ("data-acme-standby-0", true),
            ("data-acme-standby-12", true),
            ("acme-backup", true),
            ("data-acme-1", true),
            ("data-acme-x", false),
            ("data-acme-standby-", false),
            ("data-acme-standby-x", false),
            ("acme-nextcloud", false),
        ] {
            assert_eq!(is_claim("acme", claim), its, "{claim}");
        }
    }

    #[test]
    fn every_request_has_a_job_of_its_own() {
        assert_eq!(dump("acme", "one"), "acme-dump-7692c3ad35");
        assert_ne!(dump("acme", "one"), dump("acme", "two"));
    }
}
