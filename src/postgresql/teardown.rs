//! Deletion: a last dump if asked for, then servers, volumes by policy, Secrets, then the finalizer. An **effect**.
//!
//! One pure function, [`outcome`], decides what happens to the data: they are deleted only if the whole spec is understood and says
//! so. Each volume and Secret is deleted through [`crate::deletion`], which reads the API server again, and by its recorded uid; what
//! lacks a proof is kept and named in an event. Whether something is gone is also read from the API server, as a cache may be
//! outdated.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{ConfigMap, Pod, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{DynamicObject, ListParams, PartialObjectMeta, Patch, PatchParams},
    runtime::controller::Action,
};
use serde_json::json;

use super::{
    act,
    context::{Ctx, Database},
    decide::{Hold, dumps::words, volume::LOST},
    desired::{Desired, DesiredBackup, desired},
    error::Error,
    names,
    objects::{Mounted, backup, network, secrets, servers},
    observed::{Detail, Id, JobView, Kind, ObjectView, Owner, primary},
    status,
    watches::whose,
};
use crate::{
    crd::{ClientApp, DeletionPolicy, FINALIZER, Owned, Postgresql, PostgresqlStatus, Reason, annotation, label},
    deletion::{
        self, Destroyer, made,
        permit::{Kept, Kind as Held, Owner as DataOwner, Wish, is_orphaned, takes_dependents},
    },
    platform::{api::unless_gone, controller::WRONGLY_GONE, events::publish_by, key::Key, subject::carries},
};

/// An object that outlives the Postgresql, and the sentence about it.
type Staying = (ObjectMeta, Kept);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Delete,
    Retain(String),
    /// Everything stays as it is, including the servers.
    Orphan,
}

/// Returns what happens to the data of a deleted Postgresql. If its spec cannot be understood, the data are kept. **Pure.**
pub(crate) fn outcome(meta: &ObjectMeta, object: Result<&Postgresql, &str>, orphaned: bool) -> Outcome {
    if orphaned || is_orphaned(meta) {
        return Outcome::Orphan;
    }
    let understood = object.map_err(str::to_owned).and_then(|object| desired(object).map(|_| object));
    match understood {
        Err(problem) => Outcome::Retain(format!("its spec cannot be understood ({problem})")),
        Ok(object) if object.spec.deletion_policy == DeletionPolicy::Retain => retained_by_policy(),
        Ok(_) => Outcome::Delete,
    }
}

fn retained_by_policy() -> Outcome {
    Outcome::Retain("spec.deletionPolicy is Retain".to_owned())
}

/// Returns the ClientApp whose database this is, while that is being deleted too and has not come to its database yet: its teardown
/// either sets `spec.deletionPolicy` to Delete, by the app's own proof, or takes these marks away. The marks prove nothing, and
/// nothing is deleted because of them.
async fn deleted_with(ctx: &Ctx, of: &Database<'_>) -> Result<Option<String>, Error> {
    let Database { key, .. } = of;
    let (labels, annotations) = (of.meta().labels.as_ref(), of.meta().annotations.as_ref());
    let Some(app) = labels.and_then(|labels| labels.get(label::APP)) else { return Ok(None) };
    let uid = annotations.and_then(|annotations| annotations.get(annotation::OWNER_UID));
    let api: Api<ClientApp> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let found = api.get_metadata_opt(app).await;
    let found = found.map_err(Error::api(format!("look for ClientApp {}/{app}", key.namespace)))?;
    let decides =
        |app: &ObjectMeta| app.deletion_timestamp.is_some() && app.uid.as_ref() == uid && carries(app, FINALIZER);
    Ok(found.filter(|found| decides(&found.metadata)).map(|found| found.name_any()))
}

impl DataOwner for Postgresql {
    fn wish(&self) -> Wish {
        match outcome(&ObjectMeta::default(), Ok(self), false) {
            Outcome::Delete => Wish::Delete,
            Outcome::Retain(_) | Outcome::Orphan => Wish::Retain,
        }
    }

    fn owned(&self) -> &[Owned] {
        self.status.as_ref().map(|status| status.owned.as_slice()).unwrap_or_default()
    }

    /// Each pass of the teardown reads the witness, which shows this, before anything else.
    fn orphaned(&self) -> bool {
        false
    }

    fn made(owner: &ObjectMeta, target: &ObjectMeta) -> bool {
        let (name, target_name) = (owner.name.as_deref().unwrap_or_default(), target.name.clone().unwrap_or_default());
        let its = target.labels.as_ref().and_then(|labels| labels.get(label::POSTGRESQL_UID)) == owner.uid.as_ref();
        owner.uid.is_some()
            && its
            && (names::is_claim(name, &target_name) || names::secrets(name).contains(&target_name))
    }
}

/// Takes down what belongs to a deleted Postgresql, as far as possible now. `Some`: what the rest waits for; `None`: it is done.
pub(crate) async fn teardown(ctx: &Ctx, of: &Database<'_>) -> Result<Option<Hold>, Error> {
    let orphaned = orphaned(ctx, of).await?;
    let outcome = outcome(of.meta(), of.object(), orphaned.unwrap_or(true));
    if outcome == Outcome::Orphan {
        let why = match orphaned {
            Some(_) => "it was deleted with --cascade=orphan".to_owned(),
            None => format!(
                "it is not known whether the Postgresql was deleted with --cascade=orphan, since ConfigMap {}, which would show it, is gone",
                names::witness(&of.key.name)
            ),
        };
        let all = all_stay(ctx, of, &why).await?;
        hand_over(ctx, of, all).await?;
        return Ok(None);
    }
    if outcome == retained_by_policy()
        && let Some(app) = deleted_with(ctx, of).await?
    {
        let message = format!(
            "waiting for ClientApp {app}, which is being deleted as well and decides whether the data stay: see `kubectl get clientapp {app} -n {}`",
            of.key.namespace
        );
        return Ok(Some(hold(Reason::Deleting, message)));
    }
    // On record before anything is deleted: the witness may be gone in the next pass, and a claim without a record is kept.
    let mut owned = of.before.owned.clone();
    made::add(&mut owned, &ctx.made.of(of.key, of.uid()));
    let recorded = PostgresqlStatus { orphaned: Some(false), owned, ..of.before.clone() };
    if of.object().is_ok() && recorded != of.before {
        status::say(ctx, of, &recorded).await?;
    }
    let of = &ctx.database(of.key, of.guard);
    let spec = of.object().ok().and_then(|object| ctx.desired(object).ok());
    let last = spec.as_ref().and_then(|desired| Some((desired, desired.backup.as_ref().filter(|b| b.on_delete)?)));
    if let Some((desired, backup)) = last
        && let Some(hold) = last_dump(ctx, of, desired, backup).await?
    {
        return Ok(Some(hold));
    }
    if let Some(hold) = servers(ctx, of).await? {
        return Ok(Some(hold));
    }
    let staying = match &outcome {
        Outcome::Retain(why) => all_stay(ctx, of, why).await?,
        _ => match destroy_all(ctx, of, last.is_some()).await? {
            Ok(staying) => staying,
            Err(hold) => return Ok(Some(hold)),
        },
    };
    hand_over(ctx, of, staying).await?;
    rest(ctx, of).await?;
    Ok(None)
}

/// Publishes what stays of a Postgresql that was removed without its teardown: a client removed its finalizer, or deleted it while
/// the operator was writing the finalizer.
pub(crate) async fn abandoned(ctx: &Ctx, of: &Database<'_>) -> Result<Action, Error> {
    if !of.is_gone(&ctx.client).await.map_err(Error::api(format!("get Postgresql {}", of.key)))? {
        return Ok(Action::requeue(WRONGLY_GONE));
    }
    let staying = all_stay(ctx, of, "the Postgresql was removed without its teardown").await?;
    tell(ctx, of, &staying).await;
    Ok(Action::await_change())
}

fn hold(reason: Reason, message: String) -> Hold {
    Hold { reason, message }
}

/// Returns true if the Postgresql is deleted with `--cascade=orphan`; `None`: unknown. The garbage collector orphans dependents and removes
/// its own finalizer, even while the operator is down. The witness shows afterwards whether it did. A witness that is gone shows
/// nothing, since a user may have deleted it, unless the deletion is a foreground one.
async fn orphaned(ctx: &Ctx, of: &Database<'_>) -> Result<Option<bool>, Error> {
    let (key, uid) = (of.key, of.uid());
    if is_orphaned(of.meta()) {
        return Ok(Some(true));
    }
    let foreground = takes_dependents(of.meta()) || ctx.foreground.get(key).is_some_and(|seen| seen == uid);
    if foreground || of.before.orphaned == Some(false) {
        return Ok(Some(false));
    }
    let name = names::witness(&key.name);
    let api: Api<ConfigMap> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let found = api.get_metadata_opt(&name).await;
    let found = found.map_err(Error::api(format!("look for ConfigMap {}/{name}", key.namespace)))?;
    let its = found.filter(|witness| witness.labels().get(label::POSTGRESQL_UID).is_some_and(|owner| owner == uid));
    Ok(its.map(|witness| witness.owner_references().iter().all(|owner| owner.uid != *uid)))
}

/// Takes a dump of a server that clients can no longer reach. It counts for this deletion only.
async fn last_dump(
    ctx: &Ctx,
    of: &Database<'_>,
    desired: &Desired,
    wanted: &DesiredBackup,
) -> Result<Option<Hold>, Error> {
    let key = &desired.key;
    let deletion = of.meta().deletion_timestamp.as_ref().map(|time| time.0.to_string()).unwrap_or_default();
    let objects = ctx.watches.objects(key, &desired.uid);
    let job = names::last_dump(&key.name);
    let instead = "to delete without it, set spec.backup.onDelete to false";
    match objects.get(&(Kind::Job, job.clone())) {
        Some(ObjectView { owner: Owner::Other(owner), .. }) => {
            return Err(Error::NotOurs { object: format!("Job {job}"), owner: owner.clone() });
        }
        Some(ObjectView { detail: Detail::Job(JobView { deletion: of, succeeded, .. }), deleting, uid, .. }) => {
            if of.as_ref() != Some(&deletion) {
                // It is from an earlier deletion, and clients may have written since.
                act::delete(ctx, key, &(Kind::Job, job.clone()), uid).await?;
            } else if *succeeded == Some(true) {
                return Ok(None);
            } else if *succeeded == Some(false) && !deleting {
                let pods = ctx.watches.pods(key);
                let why = words(&pods, &job, false).map(|why| format!(": {why}")).unwrap_or_default();
                let message = format!(
                    "Job {job}, the last dump, has failed, and nothing is deleted{why}: see `kubectl logs -n {} job/{job}`, and delete the Job to try again; {instead}",
                    key.namespace
                );
                return Ok(Some(hold(Reason::LastDumpFailed, message)));
            }
            let refusal = ctx.watches.refusal(&key.namespace, &(Kind::Job, job.clone()), None);
            let refusal = refusal.map(|refusal| format!(": {refusal}")).unwrap_or_default();
            let message = format!("waiting for Job {job}, the last dump{refusal}; {instead}");
            return Ok(Some(hold(Reason::Dumping, message)));
        }
        _ => {}
    }
    let data = (Kind::PersistentVolumeClaim, names::data(&key.name));
    let set = (Kind::StatefulSet, names::primary(&key.name));
    match &of.before.volume {
        // There was never a database.
        Some(volume) if !volume.initialized => return Ok(None),
        None if !objects.contains_key(&data) && !objects.contains_key(&set) => return Ok(None),
        Some(volume) if objects.get(&data).is_none_or(|claim| claim.uid != volume.uid) => {
            let message = format!(
                "PersistentVolumeClaim {} with the database is gone, and there is nothing to dump: {instead}",
                volume.name
            );
            return Ok(Some(hold(LOST, message)));
        }
        _ => {}
    }
    if let Some(hold) = close(ctx, desired, &objects, &deletion).await? {
        return Ok(Some(Hold { message: format!("{}; {instead}", hold.message), ..hold }));
    }
    for object in [network::client(desired), backup::claim(desired, wanted)] {
        if !objects.contains_key(&object.id) {
            act::apply(ctx, desired, &object, false).await?;
        }
    }
    act::apply(ctx, desired, &backup::last_dump(desired, wanted, &deletion), false).await?;
    Ok(Some(hold(Reason::Dumping, format!("waiting for Job {job}, the last dump; {instead}"))))
}

/// Restarts the primary so that it refuses clients. `None`: it serves, and no client can connect.
async fn close(
    ctx: &Ctx,
    desired: &Desired,
    objects: &BTreeMap<Id, ObjectView>,
    deletion: &str,
) -> Result<Option<Hold>, Error> {
    let key = &desired.key;
    let secret = names::replication(&key.name);
    let waiting =
        |what: String| hold(Reason::Closing, format!("waiting for {what}, to take the last dump without clients"));
    let Some(replication) = ctx.watches.secret(&Key::new(&key.namespace, &secret)).filter(|found| !found.deleting)
    else {
        act::create(ctx, secrets::replication(desired)).await?;
        return Ok(Some(waiting(format!("Secret {secret}"))));
    };
    if replication.owner.as_ref() != Ok(&desired.uid) {
        let owner = replication.owner.err().unwrap_or_else(|| "another Postgresql".to_owned());
        return Err(Error::NotOurs { object: format!("Secret {secret}"), owner });
    }
    // Without TLS, which only clients need.
    let mounted = Mounted { replication: &replication.uid, certificate: None };
    let closed = servers::primary(desired, objects, mounted, Some(deletion));
    for object in [network::scripts(desired), network::headless(desired), closed] {
        let found = objects.get(&object.id);
        if let Some(ObjectView { owner: Owner::Other(owner), .. }) = found {
            let object = format!("{} {}", object.id.0, object.id.1);
            return Err(Error::NotOurs { object, owner: owner.clone() });
        }
        if found.and_then(|found| found.digest.as_ref()) != Some(&object.digest) {
            act::apply(ctx, desired, &object, found.is_some()).await?;
        }
    }
    let name = names::primary_pod(&key.name);
    let pods = ctx.watches.pods(key);
    Ok(match primary(&pods, &key.name).map(|pod| (pod.closed.as_deref() == Some(deletion), &pod.waiting)) {
        Some((true, None)) => None,
        Some((true, Some(why))) => Some(waiting(format!("pod {name} ({why})"))),
        _ => Some(waiting(format!("pod {name} to be restarted"))),
    })
}

/// All objects with this Postgresql's name as label that belong to its uid.
async fn ours(ctx: &Ctx, of: &Database<'_>, kind: Kind) -> Result<Vec<PartialObjectMeta<DynamicObject>>, Error> {
    let (key, uid) = (of.key, of.uid());
    let params = ListParams::default().labels(&format!("{}={}", label::POSTGRESQL, key.name));
    let listed = act::api(ctx, key, kind).list_metadata(&params).await;
    let listed = listed.map_err(Error::api(format!("list each {kind} of Postgresql {key}")))?;
    Ok(listed.items.into_iter().filter(|object| whose(object).is_ok_and(|owner| owner == *uid)).collect())
}

async fn servers(ctx: &Ctx, of: &Database<'_>) -> Result<Option<Hold>, Error> {
    let Database { key, .. } = of;
    let last = names::last_dump(&key.name);
    let mut left = None;
    // Other dump Jobs have nothing left to dump, and keep their volume in use.
    for kind in [Kind::CronJob, Kind::Job, Kind::StatefulSet] {
        for object in ours(ctx, of, kind).await? {
            let name = object.name_any();
            // The Job of the last dump proves that it was taken, and stays until everything else is gone.
            if kind == Kind::Job && name == last {
                continue;
            }
            if object.metadata.deletion_timestamp.is_none() {
                act::delete(ctx, key, &(kind, name.clone()), &object.uid().unwrap_or_default()).await?;
            }
            left = Some(format!("{kind} {name}"));
        }
    }
    let api: Api<Pod> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let servers = format!(
        "{}={},{}={},{} in (primary,standby)",
        label::POSTGRESQL,
        key.name,
        label::POSTGRESQL_UID,
        of.uid(),
        label::ROLE
    );
    let pods = api.list_metadata(&ListParams::default().labels(&servers)).await;
    let pods = pods.map_err(Error::api(format!("list the pods of Postgresql {key}")))?;
    let left = pods.items.first().map(|pod| format!("Pod {}", pod.name_any())).or(left);
    Ok(left.map(|left| hold(Reason::Stopping, format!("waiting for {left} to be gone"))))
}

/// The volumes of this Postgresql and the Secrets that open them, by label and name.
async fn holdings(ctx: &Ctx, of: &Database<'_>) -> Result<[Vec<ObjectMeta>; 2], Error> {
    let (key, uid) = (of.key, of.uid());
    let claims = ours(ctx, of, Kind::PersistentVolumeClaim).await?.into_iter();
    let claims = claims.map(|claim| claim.metadata).filter(|claim| names::is_claim(&key.name, name(claim)));
    let mut claims: Vec<_> = claims.collect();
    // A claim that has lost its labels is still recorded.
    for entry in of.before.owned.iter().filter(|entry| entry.kind == Held::Volume.as_str()) {
        if !names::is_claim(&key.name, &entry.name) || claims.iter().any(|claim| claim.uid.as_ref() == Some(&entry.uid))
        {
            continue;
        }
        let found = act::api(ctx, key, Kind::PersistentVolumeClaim).get_metadata_opt(&entry.name).await;
        let operation = format!("look for PersistentVolumeClaim {}/{}", key.namespace, entry.name);
        let found = found.map_err(Error::api(operation))?.map(|claim| claim.metadata);
        let left = |claim: &ObjectMeta| claim.labels.iter().flatten().any(|(key, _)| key == label::RETAINED_FROM);
        claims.extend(found.filter(|claim| claim.uid.as_ref() == Some(&entry.uid) && !left(claim)));
    }
    let api: Api<Secret> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let mut secrets = Vec::new();
    for name in names::secrets(&key.name) {
        let found = api.get_metadata_opt(&name).await;
        let found = found.map_err(Error::api(format!("look for Secret {}/{name}", key.namespace)))?;
        secrets.extend(
            found.filter(|secret| whose(secret).is_ok_and(|owner| owner == *uid)).map(|secret| secret.metadata),
        );
    }
    Ok([claims, secrets])
}

fn name(meta: &ObjectMeta) -> &str {
    meta.name.as_deref().unwrap_or_default()
}

async fn all_stay(ctx: &Ctx, of: &Database<'_>, why: &str) -> Result<Vec<Staying>, Error> {
    let [volumes, secrets] = holdings(ctx, of).await?;
    let secrets = secrets.into_iter().map(|secret| stays(Held::Secret, secret, why));
    Ok(secrets.chain(volumes.into_iter().map(|volume| stays(Held::Volume, volume, why))).collect())
}

fn stays(kind: Held, meta: ObjectMeta, why: &str) -> Staying {
    let kept = Kept { kind, name: name(&meta).to_owned(), because: format!("stays: {why}") };
    (meta, kept)
}

/// Deletes what may be deleted, and returns what stays, or a hold while a volume is not gone yet: Secrets are deleted after the
/// volumes that they open.
async fn destroy_all(ctx: &Ctx, of: &Database<'_>, dumped: bool) -> Result<Result<Vec<Staying>, Hold>, Error> {
    let [volumes, secrets] = holdings(ctx, of).await?;
    let dumps = names::backup(&of.key.name);
    let mut left = None;
    let mut volumes_staying = Vec::new();
    for volume in volumes {
        if dumped && name(&volume) == dumps {
            volumes_staying.push(stays(Held::Volume, volume, "the last dump is on it"));
            continue;
        }
        match destroy(ctx, of, Held::Volume, &volume).await? {
            Some(kept) => volumes_staying.push((volume, kept)),
            None => left = Some(volume),
        }
    }
    if let Some(left) = left {
        let message = format!("waiting for {} {} to be gone", Held::Volume.as_str(), name(&left));
        return Ok(Err(hold(Reason::Deleting, message)));
    }
    // Dumps can be read without the Secrets.
    let opened = volumes_staying.iter().map(|(volume, _)| name(volume)).find(|volume| *volume != dumps);
    let mut staying = Vec::new();
    for secret in secrets {
        if let Some(volume) = opened {
            staying.push(stays(Held::Secret, secret, &format!("it opens {volume}")));
        } else if let Some(kept) = destroy(ctx, of, Held::Secret, &secret).await? {
            staying.push((secret, kept));
        }
    }
    staying.extend(volumes_staying);
    Ok(Ok(staying))
}

/// Publishes what stays before it relabels it, volumes last: the next pass no longer sees a relabelled volume as this Postgresql's,
/// and would neither publish it nor keep the Secrets that open it.
async fn hand_over(ctx: &Ctx, of: &Database<'_>, staying: Vec<Staying>) -> Result<(), Error> {
    tell(ctx, of, &staying).await;
    for (meta, kept) in staying {
        retain(ctx, of, kept.kind, &meta).await?;
    }
    Ok(())
}

async fn tell(ctx: &Ctx, of: &Database<'_>, staying: &[Staying]) {
    let kept: Vec<_> = staying.iter().map(|(_, kept)| kept.clone()).collect();
    if !kept.is_empty() {
        publish_by(&ctx.recorder, &of.reference(), &[status::kept(of.key, &kept)]).await;
    }
}

/// Deletes a volume, or a Secret that opens one, if there is proof that it may. `Some`: it stays, and why.
async fn destroy(ctx: &Ctx, of: &Database<'_>, kind: Held, target: &ObjectMeta) -> Result<Option<Kept>, Error> {
    let (key, uid) = (of.key, of.uid());
    let destroyer = Destroyer { client: &ctx.client, lead: &ctx.lead };
    let mandate = match destroyer.mandate::<Postgresql>(key, uid).await.map_err(Error::destroy)? {
        Ok(mandate) => mandate,
        Err(withheld) => return Ok(Some(stays(kind, target.clone(), &withheld.to_string()).1)),
    };
    match mandate.permit(kind, target.clone()) {
        Err(kept) => Ok(Some(kept)),
        Ok(permit) => destroyer.delete(permit).await.map_err(Error::destroy).map(|()| None),
    }
}

/// Deletes the objects that nothing has to wait for. The last dump's Job gets an ownerReference instead, so that the garbage
/// collector deletes it when the Postgresql is gone: it proves that the dump was taken, and a further pass needs that proof if the
/// finalizer cannot be removed in this one.
async fn rest(ctx: &Ctx, of: &Database<'_>) -> Result<(), Error> {
    let last = names::last_dump(&of.key.name);
    for kind in [Kind::Job, Kind::Service, Kind::ConfigMap, Kind::PodDisruptionBudget, Kind::NetworkPolicy] {
        for object in ours(ctx, of, kind).await? {
            let (name, uid) = (object.name_any(), object.uid().unwrap_or_default());
            if kind != Kind::Job || name != last {
                act::delete(ctx, of.key, &(kind, name), &uid).await?;
                continue;
            }
            let owner = of.guard.owner_ref(&());
            let patch = Patch::Merge(json!({"metadata": {"uid": uid, "ownerReferences": [owner]}}));
            let owned = act::api(ctx, of.key, kind).patch_metadata(&name, &PatchParams::default(), &patch).await;
            unless_gone(owned).map_err(Error::api(format!("give Job {}/{name} its owner", of.key.namespace)))?;
        }
    }
    Ok(())
}

/// Retains an object: it no longer belongs to this Postgresql, and gets labels by which it can be found. An object that its
/// ClientApp has retained has these labels already.
async fn retain(ctx: &Ctx, of: &Database<'_>, kind: Held, object: &ObjectMeta) -> Result<(), Error> {
    let Database { key, .. } = of;
    let mut labels = json!({label::POSTGRESQL: null, label::POSTGRESQL_UID: null});
    if !object.labels.iter().flatten().any(|(key, _)| key == label::RETAINED_FROM) {
        labels[label::RETAINED_FROM] = json!(key.name);
        labels[label::RETAINED_KIND] = json!(Postgresql::kind(&()));
        labels[label::APP] = json!(of.meta().labels.as_ref().and_then(|labels| labels.get(label::APP)));
    }
    let patch = Patch::Merge(json!({"metadata": {"uid": object.uid, "ownerReferences": null, "labels": labels}}));
    let api = deletion::api(&ctx.client, &key.namespace, kind);
    let retained = unless_gone(api.patch_metadata(name(object), &PatchParams::default(), &patch).await);
    retained.map_err(Error::api(format!("retain {} {}/{}", kind.as_str(), key.namespace, name(object))))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    /// The API server refuses some of these specs now, but may have stored them under an older schema.
    #[test]
    fn what_becomes_of_the_data() {
        let retain = |why: &str| Outcome::Retain(why.to_owned());
        let (asked, dumps) = ("spec.deletionPolicy is Retain", json!({"onDelete": true}));
        let unclear = "its spec cannot be understood (spec.version: 13 is not one of 14, 15, 16, 17, 18)";
        for (what, spec, finalizers, orphaned, expected) in [
            ("by default", json!({}), json!([]), false, Outcome::Delete),
            ("asked to stay", json!({"deletionPolicy": "Retain"}), json!([]), false, retain(asked)),
            ("not understood", json!({"version": "13", "backup": dumps}), json!([]), false, retain(unclear)),
            ("orphan", json!({}), json!(["orphan"]), false, Outcome::Orphan),
            ("orphan, seen on the witness", json!({}), json!([]), true, Outcome::Orphan),
            ("orphan, not understood", json!({"version": "13"}), json!(["orphan"]), false, Outcome::Orphan),
            ("foreground", json!({}), json!(["foregroundDeletion"]), false, Outcome::Delete),
        ] {
            let object: Value =
                json!({"metadata": {"name": "acme", "namespace": "ns", "finalizers": finalizers}, "spec": spec});
            let object: Postgresql = serde_json::from_value(object).unwrap();
            assert_eq!(outcome(&object.metadata, Ok(&object), orphaned), expected, "{what}");
        }
        let undecodable = outcome(&ObjectMeta::default(), Err("spec.port: x"), false);
        assert_eq!(undecodable, retain("its spec cannot be understood (spec.port: x)"));
    }
}
