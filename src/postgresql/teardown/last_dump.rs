//! The last dump, of a server that clients can no longer reach. An **effect**.

use std::collections::BTreeMap;

use crate::{
    crd::{Reason, RestoreRecord},
    platform::key::Key,
    postgresql::{
        act::{
            apply::{apply, delete},
            secrets::create,
        },
        context::{PostgresqlContext, PostgresqlObject},
        decide::{PostgresqlHold, dumps::job_message, volume::LOST},
        desired::{Desired, DesiredBackup},
        error::Error,
        names,
        objects::{Mounted, backup, network, secrets, servers},
        observed::{Detail, JobView, Kind, ObjectId, ObjectView, Ownership, primary},
    },
};

/// The end of each message: how a user deletes the database without a dump.
const INSTEAD: &str = "to delete without it, set spec.backup.onDelete to false";

/// Takes a dump of a server that clients can no longer reach. It counts for this deletion only.
pub(super) async fn last_dump(
    ctx: &PostgresqlContext,
    postgres: &PostgresqlObject<'_>,
    desired: &Desired,
    wanted: &DesiredBackup,
) -> Result<Option<PostgresqlHold>, Error> {
    let key = &desired.key;
    let deletion = postgres.meta().deletion_timestamp.as_ref().map(|time| time.0.to_string()).unwrap_or_default();
    let objects = ctx.watches.objects(key, &desired.uid);
    let job = names::last_dump(&key.name);
    match objects.get(&(Kind::Job, job.clone())) {
        Some(ObjectView { owner: Ownership::Other(owner), .. }) => {
            return Err(Error::NotOurs { object: format!("Job {job}"), owner: owner.clone() });
        }
        Some(view) => {
            if let Detail::Job(found) = &view.detail {
                return after_job(ctx, key, (view, found), &deletion).await;
            }
        }
        None => {}
    }
    match has_database(postgres, key, &objects) {
        Ok(true) => {}
        Ok(false) => return Ok(None),
        Err(lost) => return Ok(Some(lost)),
    }
    if let Some(hold) = close(ctx, desired, (&objects, postgres.recorded_status.restored.as_ref()), &deletion).await? {
        return Ok(Some(PostgresqlHold { message: format!("{}; {INSTEAD}", hold.message), ..hold }));
    }
    for object in [network::client(desired), backup::claim(desired, wanted)] {
        if !objects.contains_key(&object.id) {
            apply(ctx, desired, &object, false).await?;
        }
    }
    apply(ctx, desired, &backup::last_dump(desired, wanted, &deletion), false).await?;
    Ok(Some(PostgresqlHold::new(Reason::Dumping, format!("waiting for Job {job}, the last dump; {INSTEAD}"))))
}

/// Judges a Job of the last dump's name: it is complete, has failed, still runs, or is from an earlier deletion.
async fn after_job(
    ctx: &PostgresqlContext,
    key: &Key,
    (ObjectView { uid, deleting, .. }, JobView { deletion: dumped_for, succeeded, .. }): (&ObjectView, &JobView),
    deletion: &str,
) -> Result<Option<PostgresqlHold>, Error> {
    let job = names::last_dump(&key.name);
    if dumped_for.as_deref() != Some(deletion) {
        // It is from an earlier deletion, and clients may have written since.
        delete(ctx, key, &(Kind::Job, job.clone()), uid).await?;
    } else if *succeeded == Some(true) {
        return Ok(None);
    } else if *succeeded == Some(false) && !deleting {
        let pods = ctx.watches.pods(key);
        let why = job_message(&pods, &job, false).map(|why| format!(": {why}")).unwrap_or_default();
        let message = format!(
            "Job {job}, the last dump, has failed, and nothing is deleted{why}: see `kubectl logs -n {} job/{job}`, and delete the Job to try again; {INSTEAD}",
            key.namespace
        );
        return Ok(Some(PostgresqlHold::new(Reason::LastDumpFailed, message)));
    }
    let refusal = ctx.watches.refusal(&key.namespace, &(Kind::Job, job.clone()), None);
    let refusal = refusal.map(|refusal| format!(": {refusal}")).unwrap_or_default();
    let message = format!("waiting for Job {job}, the last dump{refusal}; {INSTEAD}");
    Ok(Some(PostgresqlHold::new(Reason::Dumping, message)))
}

/// Returns true if there is a database to dump, and false if there never was one.
///
/// # Errors
/// Its volume is gone.
fn has_database(
    postgres: &PostgresqlObject<'_>,
    key: &Key,
    objects: &BTreeMap<ObjectId, ObjectView>,
) -> Result<bool, PostgresqlHold> {
    let data = (Kind::PersistentVolumeClaim, names::data(&key.name));
    let set = (Kind::StatefulSet, names::primary(&key.name));
    match &postgres.recorded_status.volume {
        Some(volume) if !volume.initialized => Ok(false),
        None => Ok(objects.contains_key(&data) || objects.contains_key(&set)),
        Some(volume) if objects.get(&data).is_none_or(|claim| claim.uid != volume.uid) => {
            let message = format!(
                "PersistentVolumeClaim {} with the database is gone, and there is nothing to dump: {INSTEAD}",
                volume.name
            );
            Err(PostgresqlHold::new(LOST, message))
        }
        Some(_) => Ok(true),
    }
}

/// Restarts the primary so that it refuses clients. `None`: it serves, and no client can connect.
async fn close(
    ctx: &PostgresqlContext,
    desired: &Desired,
    (objects, restored): (&BTreeMap<ObjectId, ObjectView>, Option<&RestoreRecord>),
    deletion: &str,
) -> Result<Option<PostgresqlHold>, Error> {
    let key = &desired.key;
    let secret = names::replication(&key.name);
    let waiting = |what: String| {
        PostgresqlHold::new(Reason::Closing, format!("waiting for {what}, to take the last dump without clients"))
    };
    let Some(replication) = ctx.watches.secret(&Key::new(&key.namespace, &secret)).filter(|found| !found.deleting)
    else {
        create(ctx, secrets::replication(desired)).await?;
        return Ok(Some(waiting(format!("Secret {secret}"))));
    };
    if replication.owner.as_ref() != Ok(&desired.uid) {
        let owner = replication.owner.err().unwrap_or_else(|| "another Postgresql".to_owned());
        return Err(Error::NotOurs { object: format!("Secret {secret}"), owner });
    }
    // An exchange of databases that has begun goes on. Without TLS, which only clients need.
    let replaced = restored.and_then(|restored| restored.request.as_deref());
    let mounted = Mounted { replication: &replication.uid, certificate: None, replaced };
    let closed = servers::primary(desired, objects, mounted, Some(deletion));
    for object in [network::scripts(desired), network::headless(desired), closed] {
        let found = objects.get(&object.id);
        if let Some(ObjectView { owner: Ownership::Other(owner), .. }) = found {
            let object = format!("{} {}", object.id.0, object.id.1);
            return Err(Error::NotOurs { object, owner: owner.clone() });
        }
        if found.and_then(|found| found.digest.as_ref()) != Some(&object.digest) {
            apply(ctx, desired, &object, found.is_some()).await?;
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
