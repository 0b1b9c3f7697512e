//! Takes over what another Helm client manages of a release's objects. An **effect**.
//!
//! The API server removes a field that helm no longer applies only if no other client manages it
//! (kubernetes.io/docs/reference/using-api/server-side-apply). After an upgrade by Flux or Terraform, what only their values had would
//! stay for ever. helm takes over from a client of its own name alone (k8s.io/client-go/util/csaupgrade).

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use kube::{
    Api,
    api::{DynamicObject, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{
    clientapp::{
        context::Ctx,
        error::Error,
        observe::uncached,
        observed::{inventory, types::Observed},
        spec::{desired::Desired, names::release_of, values::merge_into},
    },
    platform::{api::ignore_not_found, error::api_sentence, key::Key, managed_fields::HELM},
};

/// Lets helm manage what other Helm clients manage of the objects of their newest revision, so that the next one removes what
/// it does not have. After a revision of this operator's, there is nothing to do.
pub(crate) async fn from_others(ctx: &Ctx, desired: &Desired, observed: &Observed) -> Result<(), Error> {
    let key = &desired.key;
    let is_others = observed.release.as_ref().is_some_and(|release| release.managed_digest.is_none());
    let Some(inventory) = observed.objects.inventory.as_ref().filter(|_| is_others) else { return Ok(()) };
    for object in inventory::own(inventory, &key.namespace) {
        if !ctx.lead.is_held() {
            return Err(Error::Shutdown);
        }
        let api = uncached::of_release(ctx, key, &desired.account, object);
        let what = format!("{} {}/{}", object.kind, key.namespace, object.name);
        match take_over(&api, &object.name, key).await {
            Ok(false) => {}
            Ok(true) => tracing::info!("took over what another Helm client manages of {what}"),
            Err(error) if may_pass(&error) => return Err(Error::api(format!("take over the fields of {what}"))(error)),
            // helm runs nevertheless: the other client may have more rights.
            Err(error) => tracing::warn!("the fields of {what} are not taken over: {}", api_sentence(&error)),
        }
    }
    Ok(())
}

/// Returns true if the same request may succeed later. **Pure.**
fn may_pass(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code >= 500 || matches!(status.code, 409 | 429),
        kube::Error::SerdeError(_) => false,
        _ => true,
    }
}

/// Takes over one object; `false`: there was nothing to do.
async fn take_over(api: &Api<DynamicObject>, name: &str, release: &Key) -> kube::Result<bool> {
    let Some(found) = ignore_not_found(api.get_metadata(name).await)? else { return Ok(false) };
    let managers = managers(found.metadata.managed_fields.as_deref().unwrap_or_default());
    let Some(managers) = managers.filter(|_| release_of(&found.metadata).as_ref() == Some(release)) else {
        return Ok(false);
    };
    // The API server compares the version.
    let patch = json!([
        {"op": "replace", "path": "/metadata/managedFields", "value": managers},
        {"op": "replace", "path": "/metadata/resourceVersion", "value": found.metadata.resource_version},
    ]);
    let patch = Patch::Json::<()>(serde_json::from_value(patch).map_err(kube::Error::SerdeError)?);
    let params = PatchParams { field_manager: Some(HELM.to_owned()), ..PatchParams::default() };
    api.patch_metadata(name, &params, &patch).await?;
    Ok(true)
}

/// Returns true if this is the field manager of a Helm client: Flux's `helm-controller`, or
/// `terraform-provider-helm_v3.1.1_x5`. What a client has changed through a subresource is not of a chart.
fn is_others(entry: &ManagedFieldsEntry) -> bool {
    let manager = entry.manager.as_deref().unwrap_or_default();
    let is_helm_client = manager.starts_with("helm-") || manager.starts_with("terraform-provider-helm");
    is_helm_client && entry.subresource.is_none()
}

/// Returns the managed fields after helm has taken over those of other Helm clients; `None`: they are as they should be. **Pure.**
fn managers(found: &[ManagedFieldsEntry]) -> Option<Vec<ManagedFieldsEntry>> {
    let (others, mut kept): (Vec<_>, Vec<_>) = found.iter().cloned().partition(is_others);
    if others.is_empty() {
        return None;
    }
    for other in others {
        let is_helms = |entry: &&mut ManagedFieldsEntry| {
            (entry.manager.as_deref(), entry.operation.as_deref()) == (Some(HELM), Some("Apply"))
                && entry.subresource.is_none()
        };
        match (kept.iter_mut().find(is_helms), &other.fields_v1) {
            (Some(helms), Some(over)) if helms.api_version == other.api_version => {
                // Trees of names, whose leaves are empty (sigs.k8s.io/structured-merge-diff, `fieldpath.Set`).
                merge_into(&mut helms.fields_v1.get_or_insert(FieldsV1(Value::Null)).0, &over.0);
            }
            // Helm has one entry. Fields of another version of the object have other names; csaupgrade drops them, too.
            (Some(_), _) => {}
            (None, _) => kept.push(ManagedFieldsEntry {
                manager: Some(HELM.to_owned()),
                operation: Some("Apply".to_owned()),
                ..other
            }),
        }
    }
    Some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, subresource: Option<&str>, fields: Value) -> ManagedFieldsEntry {
        serde_json::from_value(json!({
            "manager": manager, "operation": operation, "apiVersion": "apps/v1", "subresource": subresource,
            "fieldsType": "FieldsV1", "fieldsV1": fields,
        }))
        .unwrap()
    }

    #[test]
    fn fields_of_other_helm_clients_are_taken_over() {
        let ours = entry("helm", "Apply", None, json!({"f:spec": {"f:replicas": {}, "f:template": {"f:a": {}}}}));
        let both = json!({"f:spec": {"f:replicas": {}, "f:template": {"f:a": {}, "f:b": {}}}});
        let theirs =
            |manager, operation| entry(manager, operation, None, json!({"f:spec": {"f:template": {"f:b": {}}}}));
        let kubectl = entry("kubectl-edit", "Update", None, json!({"f:spec": {"f:paused": {}}}));
        let scaled = entry("helm-controller", "Update", Some("scale"), json!({"f:spec": {"f:replicas": {}}}));
        let taken = entry("helm", "Apply", None, both);
        for (found, expected) in [
            (vec![ours.clone(), kubectl.clone(), scaled.clone()], None),
            (vec![ours.clone(), theirs("argocd-controller", "Apply")], None),
            (vec![theirs("helm-controller", "Apply"), ours.clone()], Some(vec![taken.clone()])),
            (
                vec![
                    ours.clone(),
                    kubectl.clone(),
                    theirs("terraform-provider-helm_v3.1.1_x5", "Update"),
                    scaled.clone(),
                ],
                Some(vec![taken.clone(), kubectl.clone(), scaled.clone()]),
            ),
            (
                vec![
                    ours.clone(),
                    ManagedFieldsEntry { api_version: Some("v0".to_owned()), ..theirs("helm-controller", "Apply") },
                ],
                Some(vec![ours.clone()]),
            ),
            // An object that only they have made.
            (vec![theirs("helm-controller", "Update")], Some(vec![theirs("helm", "Apply")])),
        ] {
            assert_eq!(managers(&found), expected);
        }
    }
}
