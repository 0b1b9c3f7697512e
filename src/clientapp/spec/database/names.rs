//! Names of database objects. **Pure.**

use std::collections::BTreeSet;

use crate::{
    crd::{ClientApp, ClientAppStatus, Guard, Owned, Postgres},
    deletion::permit::DataKind,
    platform::key::{Key, key_of},
};

pub(crate) fn name(app: &Key, postgres: &Postgres) -> String {
    let cluster = postgres.cloudnativepg.as_ref().and_then(|options| options.cluster.clone());
    cluster.unwrap_or_else(|| app.database())
}

/// Returns the name of the database object that an app uses: while it moves to another one, that of the former.
pub(crate) fn name_in_use(app: &ClientApp) -> String {
    let recorded = app.status.as_ref().and_then(|status| status.postgres_cluster_name.clone());
    recorded.unwrap_or_else(|| name(&key_of(app), &app.spec.postgres))
}

/// Returns the names of all database objects that are, or may be, an app's: that of its spec, if it decodes, and those on record.
pub(crate) fn names(app: &Key, postgres: Option<&Postgres>, recorded: &ClientAppStatus) -> BTreeSet<String> {
    let owned = recorded.owned.iter().filter(|entry| is_database(entry)).map(|entry| entry.name.clone());
    let of_spec = postgres.map_or_else(|| app.database(), |postgres| name(app, postgres));
    owned.chain(recorded.postgres_cluster_name.clone()).chain([of_spec]).collect()
}

/// Returns the same of a stored app.
pub(crate) fn names_of(app: &Guard<ClientApp>) -> BTreeSet<String> {
    let (key, object, none) = (key_of(app), app.object.as_ref().ok(), ClientAppStatus::default());
    let recorded = object.and_then(|app| app.status.as_ref()).unwrap_or(&none);
    names(&key, object.map(|app| &app.spec.postgres), recorded)
}

/// Returns true if the entry is neither a volume nor a Secret.
pub(crate) fn is_database(entry: &Owned) -> bool {
    ![DataKind::Volume, DataKind::Secret].iter().any(|kind| kind.as_str() == entry.kind)
}
