//! A deletion in the foreground. An **effect**.
//!
//! The user has a dependent of the app, which the garbage collector waits for. So it is known throughout how the app is deleted:
//! without one, an operator that was away from the beginning would keep everything, as documented.

use anyhow::Result;
use clientapp_crd::{ClientApp, FINALIZER};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Resource as _, ResourceExt as _};
use serde_json::json;

use crate::lab::Tenant;
use crate::random::oracle::told;
use crate::random::requests::{APP, TIMEOUT, ask_to_delete, asked, gone};
use crate::wait::within;

const DEPENDENT: &str = "dependent";

/// Creates the dependent, with a finalizer of the user.
pub async fn prepare(tenant: &Tenant) -> Result<()> {
    let app = tenant.api::<ClientApp>().get(APP).await?;
    let owner = json!({
        "apiVersion": ClientApp::api_version(&()), "kind": ClientApp::kind(&()), "name": APP, "uid": app.uid(),
        "blockOwnerDeletion": true,
    });
    let metadata = json!({"name": DEPENDENT, "ownerReferences": [owner], "finalizers": ["example.com/wait"]});
    let dependent = serde_json::from_value(json!({"metadata": metadata}))?;
    tenant.api::<ConfigMap>().create(&PostParams::default(), &dependent).await?;
    Ok(())
}

/// Deletes the app, and lets the dependent go once the operator is done.
pub async fn act(tenant: &Tenant) -> Result<()> {
    ask_to_delete::<ClientApp>(tenant, APP, &DeleteParams::foreground()).await?;
    let is_done = async || {
        let app = tenant.api::<ClientApp>().get(APP).await.map_err(|error| error.to_string())?;
        if app.finalizers().iter().any(|finalizer| finalizer == FINALIZER) { Err(told(&app)) } else { Ok(()) }
    };
    within(TIMEOUT, "the operator is done with the ClientApp", is_done).await?;
    let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    let patch = async || tenant.api::<ConfigMap>().patch(DEPENDENT, &PatchParams::default(), &free).await;
    asked("the dependent may go", 404, patch).await?;
    gone::<ClientApp>(tenant, APP).await
}
