//! Reads the values that `spec.valuesFrom` names, and the credentials of the app, before the desired state is computed; and later its
//! certificate. An **effect**, reads only.
//!
//! The objects with values are read as the account that helm acts as, whose rights a chart has too (`lookup`): so a user can reach no more
//! with `spec.valuesFrom` than without it. Watches tell the version of each object, and it is read again only after that changes.

use jiff::Timestamp;
use k8s_openapi::{
    ByteString, NamespaceResourceScope,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use crate::{
    clientapp::{
        context::{App, Ctx},
        error::Error,
        hold::Hold,
        observed::certificate::{self, Certificate, TLS_CERTIFICATE, TLS_KEY},
        spec::{
            credentials::{KnownSecret, Readable, of_keys, used},
            desired,
            values_from::{SourceVersions, Sources, ValuesSource, denied, merge},
        },
    },
    crd::{ClientApp, Credentials, Reason, ValuesKind, ValuesReference},
    platform::{
        api::ignore_not_found,
        client::impersonating,
        error::api_sentence,
        key::{Key, key_of},
    },
};

/// Returns what `spec.valuesFrom` of an app amounts to now.
pub(crate) async fn read(ctx: &Ctx, app: &App<'_>, now: Timestamp) -> Result<Sources, Error> {
    let key = app.key;
    let spec = app.object().ok().map(|app| &app.spec);
    // An invalid account is reported with the desired state.
    let asked = spec.filter(|spec| !spec.values_from.is_empty()).and_then(|spec| {
        let versions = spec
            .values_from
            .iter()
            .map(|reference| ctx.watches.version(reference.kind, &Key::new(&key.namespace, &reference.name)));
        let account = desired::account(spec).ok()?;
        Some(SourceVersions { account, references: spec.values_from.clone(), versions: versions.collect() })
    });
    let Some(asked) = asked else {
        ctx.memory.drop(key, |app| app.sources = None);
        return Ok(Sources::default());
    };
    if let Some((versions, sources)) = ctx.memory.read(key, |app| app.sources.clone())
        && versions == asked
    {
        return Ok(sources);
    }
    let deployer = asked.account.is_deployer().then(|| ctx.watches.deployer(&key.namespace));
    if deployer.as_ref().is_some_and(|deployer| !deployer.is_ready()) {
        let message = "the values in spec.valuesFrom are read as soon as the account that helm acts as exists";
        return Ok(Sources::Pending(Hold::new(Reason::Pending, message)));
    }
    let client = impersonating(&ctx.client, &key.namespace, &asked.account);
    let mut found = Vec::new();
    for (reference, version) in asked.references.iter().zip(&asked.versions) {
        let source = match version {
            Some(_) => source(&client, &key.namespace, reference).await,
            None => Ok(None),
        };
        match source {
            Ok(source) => found.push(source),
            Err(error) if matches!(&error, kube::Error::Api(status) if status.code == 403) => {
                let since = deployer.and_then(|deployer| deployer.ready_since());
                return Ok(Sources::Pending(denied(reference, &api_sentence(&error), since, now)));
            }
            Err(error) => {
                let ValuesReference { kind, name, .. } = reference;
                return Err(Error::api(format!("read {kind} {}/{name}", key.namespace))(error));
            }
        }
    }
    let salt = ctx.salts.get(&ctx.client).await?;
    let sources = merge(key, asked.references.iter().zip(found.iter().map(Option::as_ref)), salt);
    ctx.memory.put(key, |app| app.sources = Some((asked, sources.clone())));
    Ok(sources)
}

/// Returns the credentials of an app, as far as they are known: of a Secret that is gone, those that were in it. A Secret that
/// has its recorded version is not read again.
pub(crate) async fn credentials(ctx: &Ctx, app: &App<'_>) -> Result<Vec<Credentials>, Error> {
    let Ok(object) = app.object() else { return Ok(Vec::new()) };
    let mut found = Vec::new();
    let used = used(object, &ctx.config);
    let readable = Readable::new(&used);
    ctx.memory.drop(app.key, |app| app.secrets.retain(|name, known| readable.keeps(name, known)));
    for (secret, keys) in used {
        let recorded =
            app.recorded_status.credentials.iter().find(|known| known.secret == secret && known.keys == keys);
        let name = Key::new(&app.key.namespace, &secret);
        let seen = ctx.watches.secrets.get(&name).filter(|seen| !seen.deleting);
        let is_new =
            seen.is_some_and(|seen| recorded.is_none_or(|known| known.resource_version != seen.resource_version));
        let read = if is_new { contents(ctx, app, &name).await? } else { None };
        found.extend(match read {
            Some(KnownSecret { version, contents, .. }) => {
                let digest = of_keys(&contents, &keys);
                Some(Credentials { secret, keys, resource_version: version, digest })
            }
            None => recorded.cloned(),
        });
    }
    Ok(found)
}

/// Returns what the app reads of a Secret in its namespace. It is read once for each version, and the values are dropped at once.
pub(crate) async fn contents(ctx: &Ctx, app: &App<'_>, secret: &Key) -> Result<Option<KnownSecret>, Error> {
    let (Some(seen), Ok(object)) = (ctx.watches.secrets.get(secret), app.object()) else { return Ok(None) };
    let known = ctx.memory.read(app.key, |app| app.secrets.get(&secret.name).cloned());
    if let Some(known) = known.filter(|known| known.version == seen.resource_version) {
        return Ok(Some(known));
    }
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &secret.namespace);
    let found = api.get_opt(&secret.name).await.map_err(Error::api(format!("read the keys of Secret {secret}")))?;
    match found {
        Some(found) => Ok(Some(remember(ctx, object, found).await?)),
        None => Ok(None),
    }
}

/// Remembers what the app reads of this version of a Secret in its namespace.
pub(crate) async fn remember(ctx: &Ctx, app: &ClientApp, found: Secret) -> Result<KnownSecret, Error> {
    let salt = ctx.salts.get(&ctx.client).await?;
    let secret = key_of(&found);
    let read = Readable::new(&used(app, &ctx.config)).read(&salt, &secret, found);
    ctx.memory.put(&key_of(app), |app| _ = app.secrets.insert(secret.name, read.clone()));
    Ok(read)
}

/// Returns the certificate in an app's Secret; `None`: there is no such Secret. It is read once for each version; of its
/// private key is seen only that there is one.
pub(crate) async fn certificate(ctx: &Ctx, app: &Key, secret: &Key) -> Result<Option<certificate::Read>, Error> {
    let found = match ctx.watches.secrets.get(secret) {
        Some(seen) => {
            let known = ctx.memory.read(app, |app| app.certificate.clone());
            if let Some((_, known)) = known.filter(|(version, _)| *version == seen.resource_version) {
                return Ok(Some(known));
            }
            let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &secret.namespace);
            let found = api.get_opt(&secret.name).await;
            found.map_err(Error::api(format!("read the certificate in Secret {secret}")))?
        }
        None => None,
    };
    let Some(Secret { metadata, data, .. }) = found else {
        ctx.memory.drop(app, |app| app.certificate = None);
        return Ok(None);
    };
    let data = data.unwrap_or_default();
    let value = |key: &str| data.get(key).filter(|ByteString(value)| !value.is_empty());
    let missing = |key: &str| Err(format!("has no value under {key}"));
    let read = match (value(TLS_CERTIFICATE), value(TLS_KEY)) {
        (None, _) => missing(TLS_CERTIFICATE),
        (_, None) => missing(TLS_KEY),
        (Some(ByteString(chain)), Some(_)) => Certificate::parse(chain),
    };
    let version = metadata.resource_version.unwrap_or_default();
    ctx.memory.put(app, |app| app.certificate = Some((version, read.clone())));
    Ok(Some(read))
}

/// Returns the object of a reference, read with the rights of this client; `None`: it does not exist.
pub(crate) async fn source(
    client: &Client,
    namespace: &str,
    reference: &ValuesReference,
) -> kube::Result<Option<ValuesSource>> {
    match reference.kind {
        ValuesKind::Secret => object::<Secret>(client, namespace, &reference.name).await,
        ValuesKind::ConfigMap => object::<ConfigMap>(client, namespace, &reference.name).await,
    }
}

async fn object<K>(client: &Client, namespace: &str, name: &str) -> kube::Result<Option<ValuesSource>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Into<ValuesSource>,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    Ok(ignore_not_found(api.get(name).await)?.map(Into::into))
}
