//! The account that helm acts as: made where it is missing, and asked for where helm cannot tell. An **effect**.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Client, Resource, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    context::{App, Ctx},
    deployer::{self, Part},
    error::{Error, Refusal},
    report,
};
use crate::runtime::{
    account::{AccountName, DEPLOYER},
    api::unless_there,
    client::impersonating,
};

/// What has come of a helm run, and why. That the operator may not impersonate the account is "kubernetes cluster unreachable:
/// unknown" to helm: the API server is asked for its own sentence then.
pub(super) async fn explained(
    client: &Client,
    (namespace, account): (&str, &AccountName),
    failed: (Refusal, String),
) -> (Refusal, String) {
    if failed.0 != Refusal::Timeout {
        return failed;
    }
    match impersonating(client, namespace, account).apiserver_version().await {
        Err(kube::Error::Api(status)) if status.code == 403 => {
            let sentence = &status.message;
            let message = format!(
                "the operator may not impersonate ServiceAccount {account} in namespace {namespace}: {sentence}"
            );
            (Refusal::AccessDenied, message)
        }
        _ => failed,
    }
}

/// Creates a part of the deployer, and says so where it is made `again`. One that is there is never touched.
pub(super) async fn create(ctx: &Ctx, app: &App<'_>, part: Part, again: bool) -> Result<(), Error> {
    let namespace = &app.key.namespace;
    let made = match part {
        Part::ServiceAccount => create_one(ctx, namespace, &deployer::service_account(namespace)).await,
        Part::RoleBinding => create_one(ctx, namespace, &deployer::role_binding(namespace)).await,
    };
    let made = made.map_err(Error::api(format!("create {} {namespace}/{DEPLOYER}", part.kind())))?;
    if made && again {
        report::publish(ctx, app, &[report::deployer_replaced(part, namespace)]).await;
    }
    Ok(())
}

/// Whether it was made; `false`: there is one of its name.
async fn create_one<K>(ctx: &Ctx, namespace: &str, object: &K) -> kube::Result<bool>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(ctx.client.clone(), namespace);
    Ok(unless_there(api.create(&PostParams::default(), object).await)?.is_some())
}
