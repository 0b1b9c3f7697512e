//! Creates Secrets, and never changes those whose password or key is in use. An **effect**.

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::apply::{MANAGER, settled};
use crate::{
    crd::StorePasswordSecret,
    platform::{api::create_if_absent, events::publish_by, password::create_of_repository},
    postgresql::{
        context::{PostgresqlContext, PostgresqlObject},
        decide::PasswordOrigin,
        desired::{Desired, PasswordSource, usable},
        error::Error,
        names,
        objects::secrets,
        observe::secrets::{authority, password, value},
        observed::ClientSecret,
        status::events::inline_password,
    },
};

pub(super) async fn keep_password(
    ctx: &PostgresqlContext,
    postgres: &PostgresqlObject<'_>,
    desired: &Desired,
    origin: PasswordOrigin,
) -> Result<(), Error> {
    let key = &desired.key;
    let password = match (origin, &desired.password) {
        (PasswordOrigin::Generated, _) | (PasswordOrigin::Spec, PasswordSource::Generated) => {
            Some(secrets::generated())
        }
        (PasswordOrigin::Spec, PasswordSource::Inline(password)) => Some(password.clone()),
        (PasswordOrigin::Spec, PasswordSource::Secret(given)) => {
            let value = value(ctx, key, &given.name, &given.key).await?;
            value.and_then(|value| usable(&value).ok().map(str::to_owned))
        }
        (PasswordOrigin::ClientSecret, _) => password(ctx, key, &names::client_secret(&key.name)).await?.ok(),
    };
    // It was removed after it was observed: the watch triggers the next pass.
    let Some(password) = password else { return Ok(()) };
    create(ctx, secrets::credentials(desired, &password)).await?;
    if origin == PasswordOrigin::Spec && matches!(desired.password, PasswordSource::Inline(_)) {
        publish_by(&ctx.recorder, &postgres.reference(), &[inline_password(key)]).await;
    }
    Ok(())
}

/// Creates a Secret, and never changes an existing one: its password or key is in use.
pub(crate) async fn create(ctx: &PostgresqlContext, secret: Secret) -> Result<(), Error> {
    let namespace = secret.metadata.namespace.clone().unwrap_or_default();
    let name = secret.metadata.name.clone().unwrap_or_default();
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &namespace);
    let created = create_if_absent(&api, Some(MANAGER), &secret).await;
    created.map(|_| ()).map_err(Error::api(format!("create Secret {namespace}/{name}")))
}

/// Creates the Secret with the password of the repository of dumps.
pub(super) async fn create_repository_password(
    ctx: &PostgresqlContext,
    postgres: &PostgresqlObject<'_>,
    secret: &StorePasswordSecret,
) -> Result<(), Error> {
    let reference = postgres.reference();
    let created = create_of_repository(&ctx.client, &ctx.recorder, &reference, Some(MANAGER), secret).await;
    created.map_err(Error::api(format!("create Secret {}/{}", postgres.key.namespace, secret.name)))
}

pub(super) async fn apply_client_secret(
    ctx: &PostgresqlContext,
    desired: &Desired,
    found: &ClientSecret,
) -> Result<(), Error> {
    let key = &desired.key;
    let Ok(password) = password(ctx, key, &names::credentials(&key.name)).await? else { return Ok(()) };
    let authority = authority(ctx, desired).await?;
    let secret = secrets::client(desired, &password, authority.as_deref());
    if *found == ClientSecret::Absent {
        return create(ctx, secret).await;
    }
    let name = names::client_secret(&key.name);
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    // By force: values that another field manager wrote there do not work for the database.
    let applied = api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&secret)).await;
    applied.map(|_| ()).map_err(Error::api(format!("apply Secret {}/{name}", key.namespace)))
}

pub(super) async fn settle(ctx: &PostgresqlContext, desired: &Desired, name: &str) -> Result<(), Error> {
    let key = &desired.key;
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let patch = json!({"metadata": {"ownerReferences": null, "labels": settled(desired)}});
    let settled = api.patch_metadata(name, &PatchParams::default(), &Patch::Merge(&patch)).await;
    settled.map(|_| ()).map_err(Error::api(format!("label Secret {}/{name}", key.namespace)))
}
