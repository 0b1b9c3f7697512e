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

/// One of its two objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    ServiceAccount,
    RoleBinding,
}

impl Part {
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Part::ServiceAccount => "ServiceAccount",
            Part::RoleBinding => "RoleBinding",
        }
    }
}

/// Holds what a watch keeps of one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub uid: String,
    pub created: Option<Timestamp>,
    /// It grants helm exactly what the operator's own would.
    pub fits: bool,
    /// The operator created it, and it still fits.
    pub made: bool,
}

/// Holds what exists of the deployer in a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deployer {
    pub account: Option<Found>,
    pub binding: Option<Found>,
}

impl Deployer {
    /// Returns true if a RoleBinding of its name has other content.
    pub(crate) fn is_taken(&self) -> bool {
        self.binding.as_ref().is_some_and(|binding| !binding.fits)
    }

    /// Returns what is to be created, in this order: a binding without its account would give rights to any client that creates the
    /// account.
    pub(crate) fn missing(&self) -> Vec<Part> {
        let missing = |found: &Option<Found>, part| (found.is_none() && !self.is_taken()).then_some(part);
        let parts = [missing(&self.account, Part::ServiceAccount), missing(&self.binding, Part::RoleBinding)];
        parts.into_iter().flatten().collect()
    }

    /// Returns true if helm can act as it.
    pub(crate) fn is_there(&self) -> bool {
        !self.is_taken() && self.missing().is_empty()
    }

    /// Since when it is complete.
    pub(crate) fn since(&self) -> Option<Timestamp> {
        [&self.account, &self.binding].into_iter().flatten().filter_map(|found| found.created).max()
    }

    /// Returns true if the operator created this object, and it is unchanged.
    pub(crate) fn has_made(&self, uid: Option<&String>) -> bool {
        [&self.account, &self.binding].into_iter().flatten().any(|found| found.made && Some(&found.uid) == uid)
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

/// An account is identified by its name alone.
pub(crate) fn account(found: &impl Resource) -> Found {
    self::found(found, true)
}

pub(crate) fn binding(found: &RoleBinding) -> Found {
    let RoleBinding { metadata: _, role_ref, subjects } = role_binding(&found.namespace().unwrap_or_default());
    // The API server fills in defaults.
    let same = |subject: &Subject| Subject {
        api_group: subject.api_group.clone().filter(|group| !group.is_empty()),
        ..subject.clone()
    };
    let subjects_found = found.subjects.as_ref().map(|subjects| subjects.iter().map(same).collect::<Vec<_>>());
    self::found(found, found.role_ref == role_ref && subjects_found == subjects)
}

fn found(found: &impl Resource, fits: bool) -> Found {
    let labelled = found.labels().get(label::MANAGED_BY).is_some_and(|manager| manager == label::OPERATOR);
    Found {
        uid: found.uid().unwrap_or_default(),
        created: found.creation_timestamp().map(|time| time.0),
        fits,
        made: fits && labelled,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_binding_fits_if_it_says_what_the_operator_would() {
        let read = |change: &dyn Fn(&mut Value)| {
            let mut binding = serde_json::to_value(role_binding("acme")).unwrap();
            binding["metadata"]["uid"] = json!("1");
            change(&mut binding);
            let Found { fits, made, .. } = super::binding(&serde_json::from_value(binding).unwrap());
            (fits, made)
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
        let found = |fits| Some(Found { uid: "1".to_owned(), created: None, fits, made: fits });
        for (account, binding, missing, there) in [
            (None, None, &[Part::ServiceAccount, Part::RoleBinding][..], false),
            (found(true), None, &[Part::RoleBinding], false),
            (None, found(true), &[Part::ServiceAccount], false),
            (found(true), found(true), &[], true),
            (found(true), found(false), &[], false),
            (None, found(false), &[], false),
        ] {
            let deployer = Deployer { account, binding };
            assert_eq!((deployer.missing(), deployer.is_there()), (missing.to_vec(), there), "{deployer:?}");
        }
    }
}
