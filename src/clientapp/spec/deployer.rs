//! The deployer, **pure**: the ServiceAccount `clientapp-deployer` of a namespace, whose rights helm has unless the spec names
//! another account, and the RoleBinding that grants them.
//!
//! The operator creates both if they are missing, and never changes existing ones. They belong to the namespace: they stay when
//! an app is deleted.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        core::v1::ServiceAccount,
        rbac::v1::{ClusterRole, RoleBinding, RoleRef, Subject},
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{Resource, ResourceExt as _};

use crate::crd::{DEPLOYER, label};

/// By then every API server applies a new RoleBinding.
pub(crate) const RIGHTS_SETTLE: SignedDuration = SignedDuration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeployerPart {
    ServiceAccount,
    RoleBinding,
}

impl DeployerPart {
    pub(crate) fn kind(self) -> &'static str {
        match self {
            DeployerPart::ServiceAccount => "ServiceAccount",
            DeployerPart::RoleBinding => "RoleBinding",
        }
    }
}

/// Holds what a watch keeps of one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeployerObject {
    pub uid: String,
    pub created: Option<Timestamp>,
    /// It grants helm exactly what the operator's own would.
    pub matches: bool,
    /// The operator created it, and it still fits.
    pub created_by_us: bool,
}

/// Holds what exists of the deployer in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deployer {
    pub account: Option<DeployerObject>,
    pub binding: Option<DeployerObject>,
}

impl Deployer {
    /// Returns true if a RoleBinding of its name has other content.
    pub(crate) fn has_conflict(&self) -> bool {
        self.binding.as_ref().is_some_and(|binding| !binding.matches)
    }

    /// Returns what is to be created, in this order: a binding without its account would give rights to any client that creates the
    /// account.
    pub(crate) fn missing(&self) -> Vec<DeployerPart> {
        let missing =
            |object: &Option<DeployerObject>, part| (object.is_none() && !self.has_conflict()).then_some(part);
        let parts =
            [missing(&self.account, DeployerPart::ServiceAccount), missing(&self.binding, DeployerPart::RoleBinding)];
        parts.into_iter().flatten().collect()
    }

    /// Returns true if helm can act as it.
    pub(crate) fn is_ready(&self) -> bool {
        !self.has_conflict() && self.missing().is_empty()
    }

    /// Returns since when it is complete.
    pub(crate) fn ready_since(&self) -> Option<Timestamp> {
        [&self.account, &self.binding].into_iter().flatten().filter_map(|object| object.created).max()
    }

    /// Returns true if the operator created this object, and it is unchanged.
    pub(crate) fn has_created(&self, uid: Option<&String>) -> bool {
        [&self.account, &self.binding]
            .into_iter()
            .flatten()
            .any(|object| object.created_by_us && Some(&object.uid) == uid)
    }
}

pub(crate) fn service_account(namespace: &str) -> ServiceAccount {
    ServiceAccount {
        metadata: metadata(namespace),
        // helm impersonates it: no pod needs its token.
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

pub(crate) fn role_binding(namespace: &str) -> RoleBinding {
    RoleBinding {
        metadata: metadata(namespace),
        role_ref: RoleRef {
            api_group: ClusterRole::group(&()).into_owned(),
            kind: ClusterRole::kind(&()).into_owned(),
            name: DEPLOYER.to_owned(),
        },
        subjects: Some(vec![Subject {
            kind: ServiceAccount::kind(&()).into_owned(),
            name: DEPLOYER.to_owned(),
            namespace: Some(namespace.to_owned()),
            api_group: None,
        }]),
    }
}

fn metadata(namespace: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(DEPLOYER.to_owned()),
        namespace: Some(namespace.to_owned()),
        labels: Some(BTreeMap::from([(label::MANAGED_BY.to_owned(), label::OPERATOR.to_owned())])),
        ..ObjectMeta::default()
    }
}

/// Reads an account, which is identified by its name alone.
pub(crate) fn account(object: &impl Resource) -> DeployerObject {
    self::object(object, true)
}

pub(crate) fn binding(object: &RoleBinding) -> DeployerObject {
    let RoleBinding { metadata: _, role_ref, subjects } = role_binding(&object.namespace().unwrap_or_default());
    // The API server fills in defaults.
    let same = |subject: &Subject| Subject {
        api_group: subject.api_group.clone().filter(|group| !group.is_empty()),
        ..subject.clone()
    };
    let subjects_found = object.subjects.as_ref().map(|subjects| subjects.iter().map(same).collect::<Vec<_>>());
    self::object(object, object.role_ref == role_ref && subjects_found == subjects)
}

fn object(object: &impl Resource, matches: bool) -> DeployerObject {
    let labelled = object.labels().get(label::MANAGED_BY).is_some_and(|manager| manager == label::OPERATOR);
    DeployerObject {
        uid: object.uid().unwrap_or_default(),
        created: object.creation_timestamp().map(|time| time.0),
        matches,
        created_by_us: matches && labelled,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn role_binding_matches_only_the_operators_own() {
        let read = |change: &dyn Fn(&mut Value)| {
            let mut binding = serde_json::to_value(role_binding("acme")).unwrap();
            binding["metadata"]["uid"] = json!("1");
            change(&mut binding);
            let DeployerObject { matches, created_by_us, .. } =
                super::binding(&serde_json::from_value(binding).unwrap());
            (matches, created_by_us)
        };
        assert_eq!(read(&|_| {}), (true, true));
        assert_eq!(read(&|b| b["metadata"]["labels"] = json!({})), (true, false), "made by a user");
        assert_eq!(read(&|b| b["subjects"][0]["apiGroup"] = json!("")), (true, true));
        for (what, at, value) in [
            ("another role", "/roleRef/name", json!("cluster-admin")),
            ("a Role", "/roleRef/kind", json!("Role")),
            ("another account", "/subjects/0/name", json!("default")),
            ("another namespace", "/subjects/0/namespace", json!("other")),
            ("a user", "/subjects/0/kind", json!("User")),
            ("no subject", "/subjects", json!([])),
        ] {
            assert_eq!(read(&|b| *b.pointer_mut(at).unwrap() = value.clone()), (false, false), "{what}");
        }
        let one_more =
            |b: &mut Value| b["subjects"].as_array_mut().unwrap().push(json!({"kind": "User", "name": "eve"}));
        assert_eq!(read(&one_more), (false, false));
    }

    #[test]
    fn what_is_missing() {
        let object =
            |matches| Some(DeployerObject { uid: "1".to_owned(), created: None, matches, created_by_us: matches });
        for (account, binding, missing, there) in [
            (None, None, &[DeployerPart::ServiceAccount, DeployerPart::RoleBinding][..], false),
            (object(true), None, &[DeployerPart::RoleBinding], false),
            (None, object(true), &[DeployerPart::ServiceAccount], false),
            (object(true), object(true), &[], true),
            (object(true), object(false), &[], false),
            (None, object(false), &[], false),
        ] {
            let deployer = Deployer { account, binding };
            assert_eq!((deployer.missing(), deployer.is_ready()), (missing.to_vec(), there), "{deployer:?}");
        }
    }
}
