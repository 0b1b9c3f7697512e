//! Observes, an **effect** that only reads: from the caches, and from the API server only what no cache may hold. That is the
//! passwords, read once for each version of their Secrets, compared here and dropped at once.

use std::{collections::BTreeMap, fmt::Debug};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use kube::{Api, Resource, api::ObjectMeta, core::NamespaceResourceScope};
use serde::de::DeserializeOwned;

use super::{
    context::{Ctx, Database},
    desired::{Desired, PasswordSource, usable},
    error::Error,
    names,
    objects::secrets::{self, AUTHORITY, PASSWORD},
    observed::{
        Basis, ClientSecret, CredentialsView, DumpSource, Given, Id, Kind, ObjectView, Observed, OwnSecret, Owner,
        SecretMeta, SecretView,
    },
};
use crate::{
    crd::{
        PasswordSecret, Reason, Restore,
        conditions::{find, kind::READY},
        label,
    },
    platform::key::Key,
};

pub(crate) async fn observe(ctx: &Ctx, desired: &Desired, of: &Database<'_>) -> Result<Observed, Error> {
    let (key, recorded) = (&desired.key, of.before.clone());
    let objects = ctx.watches.objects(key, &desired.uid);
    let names = names::secrets(&key.name);
    let found = names.clone().map(|name| secret(ctx, desired, &name));
    let [kept, client, replication, certificate] = found.clone();
    Ok(Observed {
        turn_of: None,
        replication: view(desired, replication.as_ref()),
        certificate: view(desired, certificate.as_ref()),
        credentials: credentials(ctx, desired, kept, client, certificate).await?,
        secrets: names.into_iter().zip(found).filter_map(|(name, meta)| Some((name, own(desired, meta?)?))).collect(),
        refusals: refusals(ctx, of, &objects),
        objects,
        pods: ctx.watches.pods(key),
        dump_source: match &desired.restore {
            Some(restore) if recorded.volume.as_ref().is_none_or(|volume| !volume.initialized) => {
                dump_source(ctx, key, restore).await?
            }
            _ => DumpSource::default(),
        },
        recorded,
    })
}

/// Returns why pods are refused. What was refused before a StatefulSet's pods were ready says nothing.
fn refusals(ctx: &Ctx, of: &Database<'_>, objects: &BTreeMap<Id, ObjectView>) -> BTreeMap<Id, String> {
    let created = of.meta().creation_timestamp.as_ref().map(|time| time.0);
    let ready = find(&of.before.conditions, READY);
    let since = |kind: Kind| match (kind, ready) {
        (Kind::Job, _) | (Kind::StatefulSet, None) => Some(created),
        (Kind::StatefulSet, Some(ready)) if ready.status == "False" => {
            Some(created.max(Some(ready.last_transition_time.0)))
        }
        _ => None,
    };
    let ours = objects.iter().filter(|(_, view)| view.owner == Owner::Ours);
    ours.filter_map(|(id, _)| Some((id.clone(), ctx.watches.refusal(&of.key.namespace, id, since(id.0)?)?))).collect()
}

/// A label says which Postgresql may be restored from a volume or Secret: a user who may create Postgresqls in a namespace may not
/// necessarily read all of its volumes, or what its Secrets give access to.
async fn dump_source(ctx: &Ctx, key: &Key, restore: &Restore) -> Result<DumpSource, Error> {
    let found = match (&restore.claim, &restore.store) {
        (Some(claim), _) => metadata::<PersistentVolumeClaim>(ctx, key, claim).await?,
        (None, Some(store)) => metadata::<Secret>(ctx, key, &store.bucket.credentials_secret.name).await?,
        (None, None) => None,
    };
    let Some(found) = found else { return Ok(DumpSource::Missing) };
    let labels = found.labels.unwrap_or_default();
    let says = |label: &str| labels.get(label) == Some(&key.name);
    let own = match (&restore.claim, &restore.store) {
        (Some(claim), _) => {
            let left = says(label::RETAINED_FROM) && labels.contains_key(label::RETAINED_KIND);
            *claim == names::backup(&key.name) && (left || says(label::POSTGRESQL))
        }
        (None, Some(store)) => format!("/{}", store.path).ends_with(&format!("/{}/{}", key.namespace, key.name)),
        (None, None) => false,
    };
    Ok(match found.deletion_timestamp {
        Some(_) => DumpSource::Going,
        None if own || says(label::RESTORE_TO) => DumpSource::Usable,
        None => DumpSource::NotAllowed,
    })
}

async fn metadata<K>(ctx: &Ctx, key: &Key, name: &str) -> Result<Option<ObjectMeta>, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let found = api.get_metadata_opt(name).await;
    let found = found.map_err(Error::api(format!("look for {} {}/{name}", K::kind(&()), key.namespace)))?;
    Ok(found.map(|found| found.metadata))
}

async fn credentials(
    ctx: &Ctx,
    desired: &Desired,
    kept: Option<SecretMeta>,
    client: Option<SecretMeta>,
    certificate: Option<SecretMeta>,
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
        SecretView::Ours { .. } => Some(password(ctx, key, &names::credentials(&key.name)).await?),
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
            SecretView::Absent => ClientSecret::Absent,
            SecretView::NotOurs(owner) => ClientSecret::NotOurs(owner),
            SecretView::Ours { .. } => client_view(ctx, desired, in_use).await?,
        },
        kept: kept_view,
    };
    ctx.credentials.put(key.clone(), (basis, seen.clone()));
    Ok(seen)
}

async fn given(ctx: &Ctx, desired: &Desired, in_use: Option<&str>, meta: Option<SecretMeta>) -> Result<Given, Error> {
    let key = &desired.key;
    let (password, version) = match &desired.password {
        PasswordSource::Generated => return Ok(Given::Nothing),
        PasswordSource::Inline(password) => (password.clone(), None),
        PasswordSource::Secret(PasswordSecret { name, key: at }) => {
            let missing =
                format!("Secret {name}, which spec.passwordSecret names, does not exist: create it with the key {at}");
            let Some(meta) = meta else { return Ok(Given::Unusable(Reason::PasswordSecretMissing, missing)) };
            let Some(bytes) = value(ctx, key, name, at).await? else {
                let message =
                    format!("Secret {name}, which spec.passwordSecret names, has no value under {at}: add it");
                return Ok(Given::Unusable(Reason::PasswordSecretKeyMissing, message));
            };
            match usable(&bytes) {
                Ok(password) => (password.to_owned(), Some(meta.resource_version)),
                Err(problem) => {
                    let message = format!("the value under {at} in Secret {name} {problem}");
                    return Ok(Given::Unusable(Reason::PasswordInvalid, message));
                }
            }
        }
    };
    Ok(match in_use {
        None => Given::Usable(version),
        Some(in_use) if in_use == password => Given::Same(version),
        Some(_) => Given::Differs,
    })
}

async fn client_view(ctx: &Ctx, desired: &Desired, in_use: Option<&str>) -> Result<ClientSecret, Error> {
    let key = &desired.key;
    let found = get(ctx, key, &names::client_secret(&key.name)).await?;
    let Some(data) = found.and_then(|secret| secret.data) else { return Ok(ClientSecret::Stale { password: false }) };
    let password = data.get(PASSWORD).is_some_and(|password| usable(&password.0).is_ok());
    let authority = authority(ctx, desired).await?;
    let current = in_use.is_some_and(|in_use| {
        let wanted = secrets::client_data(desired, in_use, authority.as_deref());
        wanted.iter().all(|(key, value)| data.get(key) == Some(value))
    });
    Ok(if current { ClientSecret::Current } else { ClientSecret::Stale { password } })
}

/// The certificate that clients verify the servers' certificate with; `None` without TLS.
pub(crate) async fn authority(ctx: &Ctx, desired: &Desired) -> Result<Option<Vec<u8>>, Error> {
    let key = &desired.key;
    match desired.tls {
        Some(_) => value(ctx, key, &names::certificate(&key.name), AUTHORITY).await,
        None => Ok(None),
    }
}

/// A Secret that is not being deleted.
fn secret(ctx: &Ctx, desired: &Desired, name: &str) -> Option<SecretMeta> {
    ctx.watches.secret(&Key::new(&desired.key.namespace, name)).filter(|secret| !secret.deleting)
}

fn view(desired: &Desired, secret: Option<&SecretMeta>) -> SecretView {
    match secret {
        None => SecretView::Absent,
        Some(SecretMeta { owner: Ok(owner), uid, .. }) if *owner == desired.uid => {
            SecretView::Ours { uid: uid.clone() }
        }
        Some(SecretMeta { owner: Ok(_), .. }) => SecretView::NotOurs("another Postgresql".to_owned()),
        Some(SecretMeta { owner: Err(other), .. }) => SecretView::NotOurs(other.clone()),
    }
}

fn own(desired: &Desired, secret: SecretMeta) -> Option<OwnSecret> {
    let SecretMeta { uid, resource_version: _, owner, deleting: _, unsettled } = secret;
    (owner.as_ref() == Ok(&desired.uid)).then_some(OwnSecret { uid, unsettled })
}

/// The password in a Secret; the inner error says what is wrong with it.
pub(crate) async fn password(ctx: &Ctx, key: &Key, name: &str) -> Result<Result<String, &'static str>, Error> {
    let bytes = value(ctx, key, name, PASSWORD).await?;
    Ok(bytes.map_or(Err("is missing"), |bytes| usable(&bytes).map(str::to_owned)))
}

pub(crate) async fn value(ctx: &Ctx, key: &Key, name: &str, at: &str) -> Result<Option<Vec<u8>>, Error> {
    let data = get(ctx, key, name).await?.and_then(|secret| secret.data);
    Ok(data.and_then(|mut data| data.remove(at)).map(|value| value.0))
}

async fn get(ctx: &Ctx, key: &Key, name: &str) -> Result<Option<Secret>, Error> {
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    api.get_opt(name).await.map_err(Error::api(format!("read Secret {}/{name}", key.namespace)))
}
