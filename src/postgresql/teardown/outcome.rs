//! Decides what a deletion does to the data. **Pure.**

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::{
    crd::{DeletionPolicy, Owned, Postgresql, label},
    deletion::permit::{DataOwner, DeletionIntent, is_orphaned},
    postgresql::{desired::desired, names},
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DataOutcome {
    Delete,
    Retain(String),
    /// Everything stays as it is, including the servers.
    Orphan,
}

/// Returns what happens to the data of a deleted Postgresql. If its spec cannot be understood, the data are kept. **Pure.**
pub(crate) fn outcome(meta: &ObjectMeta, object: Result<&Postgresql, &str>, orphaned: bool) -> DataOutcome {
    if orphaned || is_orphaned(meta) {
        return DataOutcome::Orphan;
    }
    let understood = object.map_err(str::to_owned).and_then(|object| desired(object).map(|_| object));
    match understood {
        Err(problem) => DataOutcome::Retain(format!("its spec cannot be understood ({problem})")),
        Ok(object) if object.spec.deletion_policy == DeletionPolicy::Retain => retained_by_policy(),
        Ok(_) => DataOutcome::Delete,
    }
}

pub(super) fn retained_by_policy() -> DataOutcome {
    DataOutcome::Retain("spec.deletionPolicy is Retain".to_owned())
}

impl DataOwner for Postgresql {
    fn deletion_intent(&self) -> DeletionIntent {
        match outcome(&ObjectMeta::default(), Ok(self), false) {
            DataOutcome::Delete => DeletionIntent::Delete,
            DataOutcome::Retain(_) | DataOutcome::Orphan => DeletionIntent::Retain,
        }
    }

    fn owned(&self) -> &[Owned] {
        self.status.as_ref().map(|status| status.owned.as_slice()).unwrap_or_default()
    }

    /// Each pass of the teardown reads the witness, which shows this, before anything else.
    fn orphaned(&self) -> bool {
        false
    }

    fn is_marked_as_owned(owner: &ObjectMeta, target: &ObjectMeta) -> bool {
        let (name, target_name) = (owner.name.as_deref().unwrap_or_default(), target.name.clone().unwrap_or_default());
        let its = target.labels.as_ref().and_then(|labels| labels.get(label::POSTGRESQL_UID)) == owner.uid.as_ref();
        owner.uid.is_some()
            && its
            && (names::is_claim(name, &target_name) || names::secrets(name).contains(&target_name))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The API server refuses some of these specs now, but may have stored them under an older schema.
    #[test]
    fn data_outcomes() {
        let retain = |why: &str| DataOutcome::Retain(why.to_owned());
        let (requested, dumps) = ("spec.deletionPolicy is Retain", json!({"onDelete": true}));
        let unclear = "its spec cannot be understood (spec.version: 13 is not one of 14, 15, 16, 17, 18)";
        for (what, spec, finalizers, orphaned, expected) in [
            ("by default", json!({}), json!([]), false, DataOutcome::Delete),
            ("asked to stay", json!({"deletionPolicy": "Retain"}), json!([]), false, retain(requested)),
            ("not understood", json!({"version": "13", "backup": dumps}), json!([]), false, retain(unclear)),
            ("orphan", json!({}), json!(["orphan"]), false, DataOutcome::Orphan),
            ("orphan, seen on the witness", json!({}), json!([]), true, DataOutcome::Orphan),
            ("orphan, not understood", json!({"version": "13"}), json!(["orphan"]), false, DataOutcome::Orphan),
            ("foreground", json!({}), json!(["foregroundDeletion"]), false, DataOutcome::Delete),
        ] {
            let object: Value =
                json!({"metadata": {"name": "acme", "namespace": "ns", "finalizers": finalizers}, "spec": spec});
            let object: Postgresql = serde_json::from_value(object).unwrap();
            assert_eq!(outcome(&object.metadata, Ok(&object), orphaned), expected, "{what}");
        }
        let undecodable = outcome(&ObjectMeta::default(), Err("spec.port: x"), false);
        assert_eq!(undecodable, retain("its spec cannot be understood (spec.port: x)"));
    }
}
