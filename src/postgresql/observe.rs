//! Observes, an **effect** that only reads: from the caches, and from the API server only what no cache may hold. That is the
//! passwords, read once for each version of their Secrets, compared here and dropped at once.

mod credentials;
mod dump_source;
pub(crate) mod secrets;

use std::collections::BTreeMap;

use self::{
    credentials::credentials,
    dump_source::dump_source,
    secrets::{own, secret, view},
};
use super::{
    context::{PostgresqlContext, PostgresqlObject},
    decide::restore,
    desired::Desired,
    error::Error,
    names,
    observed::{DumpSource, Kind, ObjectId, ObjectView, ObservedPostgresql, Ownership},
};
use crate::{
    crd::{
        PostgresqlStatus, Restore,
        conditions::{find, kind::READY},
    },
    platform::clock,
};

pub(crate) async fn observe(
    ctx: &PostgresqlContext,
    desired: &Desired,
    postgres: &PostgresqlObject<'_>,
) -> Result<ObservedPostgresql, Error> {
    let (key, recorded) = (&desired.key, postgres.recorded_status.clone());
    let objects = ctx.watches.objects(key, &desired.uid);
    let names = names::secrets(&key.name);
    let metas = names.clone().map(|name| secret(ctx, desired, &name));
    let [kept, client, replication, certificate] = metas.clone();
    Ok(ObservedPostgresql {
        now: clock::now(),
        slot_holder: None,
        replication: view(desired, replication.as_ref()),
        certificate: view(desired, certificate.as_ref()),
        credentials: credentials(ctx, desired, kept, client, certificate).await?,
        secrets: names.into_iter().zip(metas).filter_map(|(name, meta)| Some((name, own(desired, meta?)?))).collect(),
        refusals: refusals(ctx, postgres, &objects),
        objects,
        pods: ctx.watches.pods(key),
        repository_password: repository_password(ctx, desired),
        dump_source: match to_restore(desired, &recorded) {
            Some(restore) => dump_source(ctx, (key, &desired.uid), restore).await?,
            None => DumpSource::default(),
        },
        recorded,
    })
}

/// Returns the uid of the Secret with the password of the repository of dumps, whoever has made it.
fn repository_password(ctx: &PostgresqlContext, desired: &Desired) -> Option<String> {
    let store = desired.backup.as_ref()?.store.as_ref()?;
    secret(ctx, desired, &store.bucket.password_secret.as_ref()?.name).map(|found| found.uid)
}

/// Returns the dump that is restored next: for a request or, without, into a new database.
fn to_restore<'a>(desired: &'a Desired, recorded: &PostgresqlStatus) -> Option<&'a Restore> {
    let is_initialized = recorded.volume.as_ref().is_some_and(|volume| volume.initialized);
    match is_initialized {
        true => restore::pending(desired, recorded).map(|requested| &requested.dump),
        false => desired.restore.as_ref(),
    }
}

/// Returns why pods are refused. What was refused before a StatefulSet's pods were ready says nothing.
fn refusals(
    ctx: &PostgresqlContext,
    postgres: &PostgresqlObject<'_>,
    objects: &BTreeMap<ObjectId, ObjectView>,
) -> BTreeMap<ObjectId, String> {
    let created = postgres.meta().creation_timestamp.as_ref().map(|time| time.0);
    let ready = find(&postgres.recorded_status.conditions, READY);
    let since = |kind: Kind| match (kind, ready) {
        (Kind::Job, _) | (Kind::StatefulSet, None) => Some(created),
        (Kind::StatefulSet, Some(ready)) if ready.status == "False" => {
            Some(created.max(Some(ready.last_transition_time.0)))
        }
        _ => None,
    };
    let ours = objects.iter().filter(|(_, view)| view.owner == Ownership::Ours);
    ours.filter_map(|(id, _)| Some((id.clone(), ctx.watches.refusal(&postgres.key.namespace, id, since(id.0)?)?)))
        .collect()
}
