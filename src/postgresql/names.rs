//! The names of all objects of a `Postgresql`. Pure, and computed from its name alone, so that a deletion works even if the spec
//! does not decode. The name of a dump on request also depends on the request.

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};

use crate::platform::key::hex;

/// The maximum length of a `Postgresql`'s name. The name of the StatefulSet `<name>-standby`, followed by a hash, is a label of its
/// pods, which has at most 63 characters.
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
    /// The Secret with the password itself, from which the Secret for clients is made.
    credentials = "{name}-credentials";
    /// The Secret with the standbys' password.
    replication = "{name}-replication";
    /// The Secret with the servers' certificate and its key.
    certificate = "{name}-server-tls";
    /// The ConfigMap with the scripts that run in the pods.
    scripts = "{name}-scripts";
    /// The ConfigMap that shows how a Postgresql was deleted: the only object that it owns by an ownerReference.
    witness = "{name}-witness";
    /// The prefix of the names of the Jobs that create the database.
    initialize_prefix = "{name}-init-";
    /// The prefix of the names of the Jobs that restore a dump beside the database.
    restore_prefix = "{name}-restore-";
    /// The volume with the dumps.
    backup = "{name}-backup";
    last_dump = "{name}-last-dump";
    /// The PodDisruptionBudget of the standbys.
    disruption = "{name}-standby";
    /// The NetworkPolicy of all pods.
    network_policy = "{name}-access";
    /// The NetworkPolicy of the pods that restore a dump.
    sealed = "{name}-sealed";
    /// The NetworkPolicy of the pods that restore the latest dump of a bucket into a scratch volume.
    drill = "{name}-drill";
}

/// Names the Job that creates the database on the volume with this uid.
pub(crate) fn initialize(name: &str, volume: &str) -> String {
    format!("{}{}", initialize_prefix(name), hex(&Sha256::digest(volume.as_bytes())[..5]))
}

/// Names the Job for a requested dump. A request may be as long as a label, so the name contains its digest instead.
pub(crate) fn dump(name: &str, request: &str) -> String {
    format!("{name}-dump-{}", hex(&Sha256::digest(request.as_bytes())[..5]))
}

/// Names the Job of the dump that is due then.
pub(crate) fn due_dump(name: &str, due: Timestamp) -> String {
    format!("{name}-dump-{}", due.strftime("%Y%m%d%H%M"))
}

/// Names the Job of the drill that is due then.
pub(crate) fn due_drill(name: &str, due: Timestamp) -> String {
    format!("{}-{}", drill(name), due.strftime("%Y%m%d%H%M"))
}

/// Names the Job that restores a dump beside the database.
pub(crate) fn restore(name: &str, request: &str) -> String {
    format!("{}{}", restore_prefix(name), hex(&Sha256::digest(request.as_bytes())[..5]))
}

pub(crate) fn data_claim(set: &str, ordinal: i32) -> String {
    format!("data-{set}-{ordinal}")
}

/// Returns true if a Postgresql has a claim of this name: for a pod of one of its StatefulSets, or for its dumps. The primary's StatefulSet
/// has more than one claim after a cluster admin has scaled it.
pub(crate) fn is_claim(name: &str, claim: &str) -> bool {
    let is_of = |set: String| {
        let ordinal = claim.strip_prefix(&format!("data-{set}-"));
        ordinal.is_some_and(|ordinal| !ordinal.is_empty() && ordinal.bytes().all(|c| c.is_ascii_digit()))
    };
    is_of(primary(name)) || is_of(standby(name)) || claim == backup(name)
}

pub(crate) fn secrets(name: &str) -> [String; 4] {
    [credentials(name), client_secret(name), replication(name), certificate(name)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_name_fits_everywhere() {
        let name = "a".repeat(MAX);
        // StatefulSet: 52, since Kubernetes appends up to 11 characters to its name.
        for object in [standby(&name), primary(&name)] {
            assert!(object.len() <= 52, "{object}");
        }
        // Service and Job: a DNS label.
        for object in [
            headless(&name),
            read_only(&name),
            last_dump(&name),
            dump(&name, &"r".repeat(63)),
            due_dump(&name, Timestamp::UNIX_EPOCH),
            due_drill(&name, Timestamp::UNIX_EPOCH),
            initialize(&name, "u"),
            restore(&name, "u"),
        ] {
            assert!(object.len() <= 63, "{object}");
        }
    }

    #[test]
    fn claims_of_a_postgresql() {
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
