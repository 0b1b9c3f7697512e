//! Reads Secrets: their metadata from the cache, their data from the API server. An **effect** that only reads.

use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use crate::{
    platform::key::Key,
    postgresql::{
        context::PostgresqlContext,
        desired::{Desired, usable},
        error::Error,
        names,
        objects::secrets::{AUTHORITY, PASSWORD},
        observed::{OwnSecret, SecretIdentity, SecretState},
    },
};

/// Returns the metadata of a Secret that is not being deleted.
pub(super) fn secret(ctx: &PostgresqlContext, desired: &Desired, name: &str) -> Option<SecretIdentity> {
    ctx.watches.secret(&Key::new(&desired.key.namespace, name)).filter(|secret| !secret.deleting)
}

pub(super) fn view(desired: &Desired, secret: Option<&SecretIdentity>) -> SecretState {
    match secret {
        None => SecretState::Absent,
        Some(SecretIdentity { owner: Ok(owner), uid, .. }) if *owner == desired.uid => {
            SecretState::Ours { uid: uid.clone() }
        }
        Some(SecretIdentity { owner: Ok(_), .. }) => SecretState::NotOurs("another Postgresql".to_owned()),
        Some(SecretIdentity { owner: Err(other), .. }) => SecretState::NotOurs(other.clone()),
    }
}

pub(super) fn own(desired: &Desired, secret: SecretIdentity) -> Option<OwnSecret> {
    let SecretIdentity { uid, resource_version: _, owner, deleting: _, unsettled } = secret;
    (owner.as_ref() == Ok(&desired.uid)).then_some(OwnSecret { uid, unsettled })
}

/// Reads the certificate that clients verify the servers' certificate with; `None` without TLS.
pub(crate) async fn authority(ctx: &PostgresqlContext, desired: &Desired) -> Result<Option<Vec<u8>>, Error> {
    let key = &desired.key;
    match desired.tls {
        Some(_) => value(ctx, key, &names::certificate(&key.name), AUTHORITY).await,
        None => Ok(None),
    }
}

/// Reads the password in a Secret; the inner error says what is wrong with it.
pub(crate) async fn password(
    ctx: &PostgresqlContext,
    key: &Key,
    name: &str,
) -> Result<Result<String, &'static str>, Error> {
    let bytes = value(ctx, key, name, PASSWORD).await?;
    Ok(bytes.map_or(Err("is missing"), |bytes| usable(&bytes).map(str::to_owned)))
}

pub(crate) async fn value(ctx: &PostgresqlContext, key: &Key, name: &str, at: &str) -> Result<Option<Vec<u8>>, Error> {
    let data = get(ctx, key, name).await?.and_then(|secret| secret.data);
    Ok(data.and_then(|mut data| data.remove(at)).map(|value| value.0))
}

pub(super) async fn get(ctx: &PostgresqlContext, key: &Key, name: &str) -> Result<Option<Secret>, Error> {
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    api.get_opt(name).await.map_err(Error::api(format!("read Secret {}/{name}", key.namespace)))
}
