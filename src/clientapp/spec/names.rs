//! Names of everything that belongs to a `ClientApp`. Pure, and from metadata alone, so that a deletion works even if the spec is
//! invalid or does not decode.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use sha2::{Digest as _, Sha256};

use crate::{
    crd::label,
    platform::key::{self, Key, hex},
};

/// How many characters of a digest are used: they fit into a label next to a prefix, and a collision is still far from likely.
const DIGEST_LENGTH: usize = 40;
/// Percona documents a limit of 22 characters for the name of a PerconaPGCluster, since it becomes part of other names.
const DATABASE_MAX: usize = 22;
const DATABASE_SUFFIX: &str = "-pg";

/// The label with which Helm marks the objects of a release, next to two annotations (helm.sh/helm/v4/pkg/action/validate.go).
pub(crate) const MANAGED_BY: (&str, &str) = (label::MANAGED_BY, "Helm");
pub(crate) const RELEASE_NAME: &str = "meta.helm.sh/release-name";
pub(crate) const RELEASE_NAMESPACE: &str = "meta.helm.sh/release-namespace";

impl Key {
    pub(crate) fn admin_secret(&self) -> String {
        format!("{}-admin-secret", self.name)
    }

    pub(crate) fn redis_secret(&self) -> String {
        format!("{}-redis-secret", self.name)
    }

    /// Returns the Secret that cert-manager creates for the app.
    pub(crate) fn tls_secret(&self) -> String {
        format!("{}-tls", self.name)
    }

    /// Returns the database object: `<name>-pg`, or a shortened name with a digest of the full name if that exceeds Percona's
    /// limit. Two apps of one namespace whose shortened names collide would still not share a database: an object that another
    /// ClientApp owns is never used.
    pub(crate) fn database(&self) -> String {
        self.suffixed(DATABASE_SUFFIX, DATABASE_MAX)
    }

    fn suffixed(&self, suffix: &str, max: usize) -> String {
        let plain = format!("{}{suffix}", self.name);
        if plain.len() <= max {
            return plain;
        }
        const DIGEST: usize = 6;
        let keep = max - suffix.len() - DIGEST - 1;
        let digest = hex(&Sha256::digest(self.name.as_bytes()));
        let head = self.name[..keep].trim_end_matches('-');
        format!("{head}-{}{suffix}", &digest[..DIGEST])
    }
}

/// Returns the release named in an object's annotations. It counts only within the object's own namespace: any user can write
/// annotations.
pub(crate) fn release_of(meta: &ObjectMeta) -> Option<Key> {
    let annotation = |key: &str| meta.annotations.as_ref()?.get(key);
    let own = meta.namespace.as_ref()?;
    let says = annotation(RELEASE_NAMESPACE)? == own;
    says.then(|| annotation(RELEASE_NAME).map(|name| Key::new(own, name))).flatten()
}

/// Returns the digest of these parts, shortened to fit a label. JSON documents are already canonical: serde_json keeps its maps
/// sorted.
pub(crate) fn digest(parts: &[&str]) -> String {
    let parts: Vec<_> = parts.iter().map(|part| part.as_bytes()).collect();
    let mut digest = key::digest(&parts);
    digest.truncate(DIGEST_LENGTH);
    digest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn database_names() {
        for (app, database) in [
            ("acme", "acme-pg"),
            ("exactly-nineteen-ch", "exactly-nineteen-ch-pg"),
            ("one-more-than-nineteen", "one-more-tha-3a5b8d-pg"),
            ("dash-at-the--cut-off-point", "dash-at-the-c996af-pg"),
        ] {
            assert_eq!(Key::new("ns", app).database(), database, "{app}");
        }
    }

    #[test]
    fn an_object_speaks_for_its_own_namespace() {
        for (release_namespace, found) in [("tenants", true), ("other", false)] {
            let meta = serde_json::from_value(json!({"name": "x", "namespace": "tenants", "annotations": {
                RELEASE_NAME: "acme", RELEASE_NAMESPACE: release_namespace,
            }}));
            assert_eq!(release_of(&meta.unwrap()).is_some(), found, "{release_namespace}");
        }
    }

    proptest! {
        #[test]
        fn database_names_fit_and_differ(a in "[a-z]([-a-z0-9]{0,51}[a-z0-9])?", b in "[a-z]([-a-z0-9]{0,51}[a-z0-9])?") {
            let (x, y) = (Key::new("ns", &a).database(), Key::new("ns", &b).database());
            prop_assert!(x.len() <= DATABASE_MAX && x.ends_with(DATABASE_SUFFIX));
            prop_assert!(x.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-'));
            prop_assert_eq!(a == b, x == y);
        }
    }
}
