//! Reads the values that `spec.valuesFrom` names, before the desired state is computed. An **effect**, reads only.
//!
//! The objects are read as the account that helm acts as, whose rights a chart has anyway (`lookup`): so a user can reach no more
//! with `spec.valuesFrom` than without it. Watches tell the version of each object, and it is read again only after that changes.

use jiff::Timestamp;
use k8s_openapi::{
    NamespaceResourceScope,
    api::core::v1::{ConfigMap, Secret},
};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

use super::{
    context::{App, Ctx},
    desired,
    error::Error,
    plan::Hold,
    values_from::{Asked, Source, Sources, combined, denied},
};
use crate::{
    crd::{Reason, ValuesKind, ValuesReference},
    runtime::{api::unless_gone, client::impersonating, error::api_sentence, key::Key},
};

/// What `spec.valuesFrom` of an app amounts to now.
pub(super) async fn read(ctx: &Ctx, app: &App<'_>, now: Timestamp) -> Result<Sources, Error> {
    let key = app.key;
    let spec = app.object().ok().map(|app| &app.spec);
    // An invalid account is reported with the desired state.
    let asked = spec.filter(|spec| !spec.values_from.is_empty()).and_then(|spec| {
        let versions =
            spec.values_from.iter().map(|of| ctx.watches.version(of.kind, &Key::new(&key.namespace, &of.name)));
        let account = desired::account(spec).ok()?;
        Some(Asked { account, references: spec.values_from.clone(), versions: versions.collect() })
    });
    let Some(asked) = asked else {
        ctx.memory.sources.take(key);
        return Ok(Sources::default());
    };
    if let Some((of, sources)) = ctx.memory.sources.get(key)
        && of == asked
    {
        return Ok(sources);
    }
    let deployer = asked.account.is_deployer().then(|| ctx.watches.deployer(&key.namespace));
    if deployer.as_ref().is_some_and(|deployer| !deployer.is_there()) {
        let message = "the values in spec.valuesFrom are read as soon as the account that helm acts as exists";
        return Ok(Sources::Awaited(Hold::new(Reason::Pending, message)));
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
                let since = deployer.and_then(|deployer| deployer.since());
                return Ok(Sources::Awaited(denied(reference, &api_sentence(&error), since, now)));
            }
            Err(error) => {
                let ValuesReference { kind, name, .. } = reference;
                return Err(Error::api(format!("read {kind} {}/{name}", key.namespace))(error));
            }
        }
    }
    let salt = ctx.salts.get(&ctx.client).await?;
    let sources = combined(key, asked.references.iter().zip(found.iter().map(Option::as_ref)), salt);
    ctx.memory.sources.put(key.clone(), (asked, sources.clone()));
    Ok(sources)
}

async fn source(client: &Client, namespace: &str, of: &ValuesReference) -> kube::Result<Option<Source>> {
    match of.kind {
        ValuesKind::Secret => object::<Secret>(client, namespace, &of.name).await,
        ValuesKind::ConfigMap => object::<ConfigMap>(client, namespace, &of.name).await,
    }
}

async fn object<K>(client: &Client, namespace: &str, name: &str) -> kube::Result<Option<Source>>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + DeserializeOwned
        + Into<Source>,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    Ok(unless_gone(api.get(name).await)?.map(Into::into))
}
