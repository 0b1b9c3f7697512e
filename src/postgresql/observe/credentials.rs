//! Compares the passwords in the spec and in the Secrets, which are read once for each version of these. An **effect** that only reads.

use super::secrets::{authority, get, password, secret, value, view};
use crate::{
    crd::{PasswordSecret, Reason},
    postgresql::{
        context::PostgresqlContext,
        desired::{Desired, PasswordSource, usable},
        error::Error,
        names,
        objects::secrets::{PASSWORD, client_data},
        observed::{Basis, ClientSecret, CredentialsView, GivenPassword, SecretIdentity, SecretState},
    },
};

pub(super) async fn credentials(
    ctx: &PostgresqlContext,
    desired: &Desired,
    kept: Option<SecretIdentity>,
    client: Option<SecretIdentity>,
    certificate: Option<SecretIdentity>,
) -> Result<CredentialsView, Error> {
    let key = &desired.key;
    let given = match &desired.password {
        PasswordSource::Secret(given) => secret(ctx, desired, &given.name),
        _ => None,
    };
    let secrets = [kept.clone(), client.clone(), given.clone(), certificate];
    let basis = Basis { desired: desired.clone(), secrets };
    if let Some((then, seen)) = ctx.credentials.get(key)
        && then == basis
    {
        return Ok(seen);
    }
    let kept_view = view(desired, kept.as_ref());
    let in_use = match &kept_view {
        SecretState::Ours { .. } => Some(password(ctx, key, &names::credentials(&key.name)).await?),
        _ => None,
    };
    let (in_use, broken) = match &in_use {
        Some(Ok(in_use)) => (Some(in_use.as_str()), None),
        Some(Err(problem)) => (None, Some(*problem)),
        None => (None, None),
    };
    let seen = CredentialsView {
        broken,
        given: self::given(ctx, desired, in_use, given).await?,
        client: match view(desired, client.as_ref()) {
            SecretState::Absent => ClientSecret::Absent,
            SecretState::NotOurs(owner) => ClientSecret::NotOurs(owner),
            SecretState::Ours { .. } => client_view(ctx, desired, in_use).await?,
        },
        kept: kept_view,
    };
    ctx.credentials.put(key.clone(), (basis, seen.clone()));
    Ok(seen)
}

async fn given(
    ctx: &PostgresqlContext,
    desired: &Desired,
    in_use: Option<&str>,
    meta: Option<SecretIdentity>,
) -> Result<GivenPassword, Error> {
    let key = &desired.key;
    let (password, version) = match &desired.password {
        PasswordSource::Generated => return Ok(GivenPassword::Nothing),
        PasswordSource::Inline(password) => (password.clone(), None),
        PasswordSource::Secret(PasswordSecret { name, key: at }) => {
            let missing =
                format!("Secret {name}, which spec.passwordSecret names, does not exist: create it with the key {at}");
            let Some(meta) = meta else { return Ok(GivenPassword::Unusable(Reason::PasswordSecretMissing, missing)) };
            let Some(bytes) = value(ctx, key, name, at).await? else {
                let message =
                    format!("Secret {name}, which spec.passwordSecret names, has no value under {at}: add it");
                return Ok(GivenPassword::Unusable(Reason::PasswordSecretKeyMissing, message));
            };
            match usable(&bytes) {
                Ok(password) => (password.to_owned(), Some(meta.resource_version)),
                Err(problem) => {
                    let message = format!("the value under {at} in Secret {name} {problem}");
                    return Ok(GivenPassword::Unusable(Reason::PasswordInvalid, message));
                }
            }
        }
    };
    Ok(match in_use {
        None => GivenPassword::Usable(version),
        Some(in_use) if in_use == password => GivenPassword::Same(version),
        Some(_) => GivenPassword::Differs,
    })
}

async fn client_view(ctx: &PostgresqlContext, desired: &Desired, in_use: Option<&str>) -> Result<ClientSecret, Error> {
    let key = &desired.key;
    let found = get(ctx, key, &names::client_secret(&key.name)).await?;
    let Some(data) = found.and_then(|secret| secret.data) else { return Ok(ClientSecret::Stale { password: false }) };
    let password = data.get(PASSWORD).is_some_and(|password| usable(&password.0).is_ok());
    let authority = authority(ctx, desired).await?;
    let current = in_use.is_some_and(|in_use| {
        let wanted = client_data(desired, in_use, authority.as_deref());
        wanted.iter().all(|(key, value)| data.get(key) == Some(value))
    });
    Ok(if current { ClientSecret::Current } else { ClientSecret::Stale { password } })
}
