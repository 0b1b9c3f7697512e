//! Which kinds of objects a namespace may hold, and which objects would be missed if it were deleted. **Pure.**

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{
    Resource as _,
    api::{ApiResource, GroupVersionKind},
    core::discovery::v2::{APIGroupDiscovery, APIResourceDiscovery},
};

use crate::{
    clientapp::spec::{database, deployer::Deployer},
    crd::{ClientApp, label},
};

/// Name of the NetworkPolicy that a namespace gets when it is created, and of its ResourceQuota, if any.
pub(crate) const POLICY: &str = "clientapp-isolation";
pub(crate) const QUOTA: &str = "clientapp-quota";

/// Created by Kubernetes itself in every namespace, as group, kind and name.
const OF_KUBERNETES: &[(&str, &str, &str)] =
    &[("", "ConfigMap", "kube-root-ca.crt"), ("", "ServiceAccount", "default")];
/// Created with a namespace by the operator's HTTP API, as group, kind and name.
const OF_THE_API: &[(&str, &str, &str)] =
    &[("networking.k8s.io", "NetworkPolicy", POLICY), ("", "ResourceQuota", QUOTA)];
/// Copied by CloudNativePG into each namespace with a Cluster, and never deleted, as group, kind and name.
const OF_CLOUDNATIVEPG: &[(&str, &str, &str)] = &[("", "ConfigMap", "cnpg-default-monitoring")];
/// Kinds that only describe other objects: their events and addresses.
const TELLS_OF_OTHERS: &[(&str, &str)] = &[("", "Event"), ("events.k8s.io", "Event"), ("", "Endpoints")];
/// Kinds that hold data, or the credentials for them.
const DATA: &[(&str, &str)] = &[("", "PersistentVolumeClaim"), ("", "Secret")];

#[derive(Debug, Default)]
pub(crate) struct Kinds {
    /// The stored kinds, in the order in which they are listed.
    pub stored: Vec<ApiResource>,
    namespaced: BTreeSet<(String, String)>,
    deployer: Deployer,
}

impl Kinds {
    /// From the API server's discovery; `core` is the group without a name.
    ///
    /// # Errors
    /// Says what is missing from the discovery.
    pub(crate) fn of(
        core: &[APIGroupDiscovery],
        groups: &[APIGroupDiscovery],
        deployer: Deployer,
    ) -> Result<Kinds, String> {
        // An API server without aggregated discovery sends an answer that parses as an empty list.
        if core.is_empty() || groups.is_empty() {
            return Err("the API server does not list its kinds (aggregated discovery)".to_owned());
        }
        let mut kinds = Kinds { deployer, ..Kinds::default() };
        let mut seen = BTreeSet::new();
        for group in core.iter().chain(groups) {
            let name = group.metadata.as_ref().and_then(|meta| meta.name.clone()).unwrap_or_default();
            // In order of preference: a resource is the same in each of its versions.
            for version in &group.versions {
                let number = version.version.as_deref().unwrap_or_default();
                if version.freshness.as_deref() == Some("Stale") {
                    return Err(format!("the kinds of {name}/{number} are not known: its API server does not answer"));
                }
                for resource in version.resources.iter().filter(|found| found.scope.as_deref() == Some("Namespaced")) {
                    let found = api_resource(&name, number, resource);
                    kinds.namespaced.insert((name.clone(), found.kind.clone()));
                    let may = |verb: &str| resource.verbs.iter().any(|known| known == verb);
                    // A kind that cannot be deleted is not stored: the API server computes it for each request, or it is a query.
                    if !may("delete") || !seen.insert((name.clone(), found.plural.clone())) {
                        continue;
                    }
                    if !may("list") {
                        return Err(format!("{} cannot be listed", describe(&found)));
                    }
                    kinds.stored.push(found);
                }
            }
        }
        // ClientApps come first: if another app is in the namespace, nothing else matters.
        kinds.stored.sort_by_key(|kind| kind.group != ClientApp::group(&()));
        Ok(kinds)
    }

    /// Returns true if an object would be missed if the namespace were deleted with this app (the names of its databases, and its uid), or without any.
    pub(crate) fn counts(
        &self,
        resource: &ApiResource,
        object: &ObjectMeta,
        app: Option<(&BTreeSet<String>, &str)>,
    ) -> bool {
        let kind = (resource.group.as_str(), resource.kind.as_str());
        let name = object.name.as_deref().unwrap_or_default();
        if kind == (&*ClientApp::group(&()), &*ClientApp::kind(&())) {
            // A ClientApp that is being deleted takes care of the namespace itself.
            return app.is_none_or(|(_, uid)| object.uid.as_deref() != Some(uid));
        }
        if object.deletion_timestamp.is_some()
            || TELLS_OF_OTHERS.contains(&kind)
            || [OF_KUBERNETES, OF_THE_API, OF_CLOUDNATIVEPG].iter().any(|known| known.contains(&(kind.0, kind.1, name)))
            || self.deployer.has_created(object.uid.as_ref())
        {
            return false;
        }
        if object.labels.as_ref().is_some_and(|labels| labels.contains_key(label::RETAINED_FROM)) {
            return true;
        }
        let owners = || object.owner_references.iter().flatten();
        let controller = owners().find(|owner| owner.controller == Some(true));
        let of_app = |(databases, uid): (&BTreeSet<String>, &str)| {
            let owns = |kind: &str| database::all().any(|provider| provider.info().owners.contains(&kind));
            let of_database = |owner: &OwnerReference| databases.contains(&owner.name) && owns(&owner.kind);
            owners().any(|owner| owner.uid == uid) || controller.is_some_and(of_database)
        };
        if app.is_some_and(of_app) {
            return false;
        }
        // An owner in the namespace counts itself, or it is gone and the garbage collector will follow. For data that is not
        // enough, unless the owner is a ClientApp: its retained data have no owner.
        let by_app =
            |owner: &OwnerReference| owner.api_version == ClientApp::api_version(&()) && owner.kind == "ClientApp";
        match controller {
            Some(owner) if DATA.contains(&kind) => !by_app(owner),
            Some(owner) => !self.is_namespaced(owner),
            None => true,
        }
    }

    fn is_namespaced(&self, owner: &OwnerReference) -> bool {
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        self.namespaced.contains(&(group.to_owned(), owner.kind.clone()))
    }
}

/// Returns a kind, as a user would name it to kubectl.
pub(crate) fn describe(kind: &ApiResource) -> String {
    match kind.group.as_str() {
        "" => kind.plural.clone(),
        group => format!("{}.{group}", kind.plural),
    }
}

fn api_resource(group: &str, version: &str, found: &APIResourceDiscovery) -> ApiResource {
    let kind = found.response_kind.as_ref().and_then(|kind| kind.kind.as_deref()).unwrap_or_default();
    let plural = found.resource.as_deref().unwrap_or_default();
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
}

#[cfg(test)]
mod tests;
