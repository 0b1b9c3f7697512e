//! The account that helm acts as, made where it is missing. An **effect**.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Resource, api::PostParams};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    context::{App, Ctx},
    deployer::{self, Part},
    error::Error,
    report,
};
use crate::runtime::{account::DEPLOYER, api::unless_there};

/// Creates a part of the deployer, and says so where it is made `again`. One that is there is never touched.
pub async fn create(ctx: &Ctx, app: &App<'_>, part: Part, again: bool) -> Result<(), Error> {
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
