//! The account that helm acts as: created if it is missing, and checked if helm's message does not tell what is wrong with it. An
//! **effect**.

use kube::{Api, Client};

use crate::{
    clientapp::{
        context::{App, Ctx},
        error::{Error, Refusal},
        spec::deployer::{self, DeployerPart},
        status::{events, write},
    },
    crd::DEPLOYER,
    platform::{account::AccountName, api::create_if_absent, client::impersonating},
};

/// Returns the failure of a helm run, with a better message if possible. If the operator may not impersonate the account, helm
/// reports "kubernetes cluster unreachable: unknown", or the refusal of its first request; the API server's own message is used
/// then.
pub(crate) async fn explained(
    client: &Client,
    (namespace, account): (&str, &AccountName),
    failed: (Refusal, String),
) -> (Refusal, String) {
    let (refusal, message) = &failed;
    if *refusal != Refusal::Timeout && !message.contains("cannot impersonate") {
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

/// Creates a part of the deployer; if `again`, an event reports it. An existing part is never changed.
pub(crate) async fn create(ctx: &Ctx, app: &App<'_>, part: DeployerPart, again: bool) -> Result<(), Error> {
    let namespace = &app.key.namespace;
    let client = ctx.client.clone();
    let made = match part {
        DeployerPart::ServiceAccount => {
            let account = deployer::service_account(namespace);
            create_if_absent(&Api::namespaced(client, namespace), None, &account).await.map(|made| made.is_some())
        }
        DeployerPart::RoleBinding => {
            let binding = deployer::role_binding(namespace);
            create_if_absent(&Api::namespaced(client, namespace), None, &binding).await.map(|made| made.is_some())
        }
    };
    let made = made.map_err(Error::api(format!("create {} {namespace}/{DEPLOYER}", part.kind())))?;
    if made && again {
        write::publish(ctx, app, &[events::deployer_replaced(part, namespace)]).await;
    }
    Ok(())
}
