//! The commands that messages suggest to users and cluster admins. **Pure.**

use crate::{
    crd::label,
    postgresql::{desired::Desired, names},
};

pub(super) fn hand_over(desired: &Desired) -> String {
    let (key, secret) = (&desired.key, names::credentials(&desired.key.name));
    format!(
        "hand one over with `kubectl create secret generic {secret} -n {} --from-literal=password=…` and {}",
        key.namespace,
        label_command(desired, "secret", &secret)
    )
}

/// Returns the command with which a cluster admin hands one object over to this Postgresql.
pub(super) fn label_command(desired: &Desired, resource: &str, name: &str) -> String {
    let Desired { key, uid, .. } = desired;
    format!("`kubectl label {resource} {name} -n {} --overwrite {}={uid}`", key.namespace, label::POSTGRESQL_UID)
}

pub(super) fn hand_all_over(desired: &Desired) -> String {
    let key = &desired.key;
    format!(
        "`kubectl label pvc,secret -n {} -l {}={},{}=Postgresql --overwrite {}={}`",
        key.namespace,
        label::RETAINED_FROM,
        key.name,
        label::RETAINED_KIND,
        label::POSTGRESQL_UID,
        desired.uid
    )
}

pub(super) fn change_password(desired: &Desired) -> String {
    let (key, pod) = (&desired.key, names::primary_pod(&desired.key.name));
    format!(
        "`kubectl exec -it {pod} -n {} -- psql --username={} --dbname={} --command='\\password'`",
        key.namespace, desired.user, desired.database
    )
}
