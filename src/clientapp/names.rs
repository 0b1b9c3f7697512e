//! Names of everything that belongs to a `ClientApp`. Pure, and from metadata alone, so that a deletion works when
//! the spec is invalid or does not decode.

use sha2::{Digest as _, Sha256};

use crate::{
    controller::key::{Key, hex},
    destroy::permit::Kind,
    postgresql::names as postgresql,
};

/// Percona documents 22 characters for a cluster's name, since it appears inside other names.
const CLUSTER_NAME_MAX: usize = 22;
const CLUSTER_SUFFIX: &str = "-pg";
/// User and database of the app.
pub const DATABASE_USER: &str = "clientapp";

impl Key {
    /// The generated Secret with the administrator's credentials.
    #[must_use]
    pub fn admin_secret(&self) -> String {
        format!("{}-admin-secret", self.name)
    }

    /// The generated Secret with the Redis password.
    #[must_use]
    pub fn redis_secret(&self) -> String {
        format!("{}-redis-secret", self.name)
    }

    /// The PerconaPGCluster or Postgresql: `<name>-pg`, or a shortened name with a digest of the whole one where that is longer
    /// than Percona documents. Two apps of one namespace that met in a shortened name would still not share a
    /// database: a cluster that another ClientApp owns is never used.
    #[must_use]
    pub fn cluster(&self) -> String {
        let plain = format!("{}{CLUSTER_SUFFIX}", self.name);
        if plain.len() <= CLUSTER_NAME_MAX {
            return plain;
        }
        const DIGEST: usize = 6;
        let keep = CLUSTER_NAME_MAX - CLUSTER_SUFFIX.len() - DIGEST - 1;
        let digest = hex(&Sha256::digest(self.name.as_bytes()));
        let head = self.name[..keep].trim_end_matches('-');
        format!("{head}-{}{CLUSTER_SUFFIX}", &digest[..DIGEST])
    }
}

/// Who makes an app's database, and the names that follow from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Maker {
    /// The Percona Operator for PostgreSQL.
    Percona,
    /// This operator's own controller of Postgresqls.
    Standalone,
}

impl Maker {
    /// Each of them.
    pub const ALL: [Maker; 2] = [Maker::Percona, Maker::Standalone];

    /// Kind of the object, which is named [`Key::cluster`].
    #[must_use]
    pub fn kind(self) -> &'static str {
        self.data().as_str()
    }

    /// That kind among all that holds or opens data.
    #[must_use]
    pub fn data(self) -> Kind {
        match self {
            Maker::Percona => Kind::PerconaPGCluster,
            Maker::Standalone => Kind::Postgresql,
        }
    }

    /// The Secret that opens the database for the app.
    #[must_use]
    pub fn secret(self, app: &Key) -> String {
        match self {
            Maker::Percona => format!("{}-pguser-{DATABASE_USER}", app.cluster()),
            Maker::Standalone => postgresql::client_secret(&app.cluster()),
        }
    }

    /// The Service by which the app reaches the database: PgBouncer's, or the server's own.
    #[must_use]
    pub fn service(self, app: &Key) -> String {
        match self {
            Maker::Percona => format!("{}-pgbouncer", app.cluster()),
            Maker::Standalone => postgresql::primary(&app.cluster()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn cluster_names() {
        for (app, cluster) in [
            ("acme", "acme-pg"),
            ("exactly-nineteen-ch", "exactly-nineteen-ch-pg"),
            ("one-more-than-nineteen", "one-more-tha-3a5b8d-pg"),
            ("dash-at-the--cut-off-point", "dash-at-the-c996af-pg"),
        ] {
            assert_eq!(Key::new("ns", app).cluster(), cluster, "{app}");
        }
    }

    proptest! {
        #[test]
        fn cluster_names_fit_and_differ(a in "[a-z]([-a-z0-9]{0,51}[a-z0-9])?", b in "[a-z]([-a-z0-9]{0,51}[a-z0-9])?") {
            let (x, y) = (Key::new("ns", &a).cluster(), Key::new("ns", &b).cluster());
            prop_assert!(x.len() <= CLUSTER_NAME_MAX && x.ends_with(CLUSTER_SUFFIX));
            prop_assert!(x.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-'));
            prop_assert_eq!(a == b, x == y);
        }
    }
}
