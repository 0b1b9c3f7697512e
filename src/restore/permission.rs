//! Names what a copy of an app is created from: the dumps, who may read them, and the administrator. Pure.

use kube::{ResourceExt as _, api::ApiResource};

use crate::{
    crd::{
        ClientApp, ClientAppRestoreSpec, Postgresql, Reason, Restore, annotation,
        conditions::{find, kind},
    },
    platform::key::{Key, key_of},
    postgresql::names,
};

/// Allows a Postgresql to be created from the dumps on a volume or in a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Permission {
    /// The kind of what opens the dumps: a PersistentVolumeClaim or a Secret.
    pub resource: ApiResource,
    pub name: String,
    /// uid of the Postgresql. Nothing else of that name may use it, however long the label stays.
    pub postgresql: String,
}

/// Returns the permission that a Postgresql of the other app needs, if it is to read dumps of the first: no others, since a user may have
/// changed the other app meanwhile.
pub(super) fn permission(spec: &ClientAppRestoreSpec, app: &ClientApp, database: &Postgresql) -> Option<Permission> {
    let is_of_app = database.annotations().get(annotation::OWNER_UID) == app.metadata.uid.as_ref();
    let volume = database.status.as_ref().and_then(|status| status.volume.as_ref());
    if !is_of_app || volume.is_some_and(|volume| volume.initialized) {
        return None;
    }
    let (resource, name) = holder(spec, &app.namespace()?, database.spec.restore.as_ref()?)?;
    Some(Permission { resource, name: name.to_owned(), postgresql: database.uid()? })
}

/// Returns the kind and name of what opens these dumps, if they are of the first app.
pub(super) fn holder<'a>(
    spec: &ClientAppRestoreSpec,
    namespace: &str,
    restore: &'a Restore,
) -> Option<(ApiResource, &'a str)> {
    let first = Key::new(namespace, &spec.of.name).database();
    let is_first = match (&restore.claim, &restore.store) {
        (Some(claim), _) => *claim == names::backup(&first),
        (None, store) => {
            let own = format!("/{namespace}/{first}");
            store.as_ref().is_some_and(|store| format!("/{}", store.path).ends_with(&own))
        }
    };
    restore.holder().filter(|_| is_first)
}

/// Returns the Postgresql for which the operator's label is still needed: it is read until there is a database.
pub(super) fn needed_by(uid: &str, postgresqls: &[Postgresql]) -> Option<String> {
    let found = postgresqls.iter().find(|found| found.uid().as_deref() == Some(uid))?;
    let volume = found.status.as_ref().and_then(|status| status.volume.as_ref());
    let is_over = volume.is_some_and(|volume| volume.initialized) || found.metadata.deletion_timestamp.is_some();
    (!is_over && restore_failed(found).is_none()).then(|| found.name_any())
}

/// Returns why a Postgresql could not be created from a dump.
pub(super) fn restore_failed(database: &Postgresql) -> Option<&str> {
    let ready = find(database.status.as_ref().map_or(&[], |status| &status.conditions), kind::READY)?;
    (ready.reason == Reason::RestoreFailed.as_str()).then_some(&ready.message)
}

/// Returns the name of the Secret with the administrator of an app.
pub(super) fn administrator_of(app: &ClientApp) -> String {
    let name = app.status.as_ref().and_then(|status| status.admin_secret_name.clone());
    name.unwrap_or_else(|| key_of(app).admin_secret())
}
