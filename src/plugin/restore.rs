//! `restore`: recreates an app's database from a dump; for a PerconaPGCluster, see [`percona`].
//!
//! The current content is dumped first, so that every step can be undone by another restore. What will be deleted is recorded by uid
//! before anything is ([`rules`]), and each step is skipped if it is done already: running the same command again resumes an
//! interrupted restore.

mod rules;

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, Secret},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions},
    core::NamespaceResourceScope,
    runtime::wait::await_condition,
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use self::rules::{Begun, Way, consequence, is_from, is_made_for, still_ours, still_stays, way};
pub(crate) use self::rules::{has_database, listed};
use super::{
    args, bucket,
    change::patch,
    delete::{agreed, can_agree},
    dumps,
    error::Error,
    percona,
    session::{Printer, Session, Stored, patching},
    text::span_of,
    wait,
};
use crate::{
    crd::{
        ClientApp, DeletionPolicy, Phase, PostgresProvider, Postgresql, Reason, Restore, annotation,
        conditions::{find, kind},
        label,
    },
    platform::{api::ignore_not_found, key::Key},
    postgresql::names,
};

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::Restore) -> Result<(), Error> {
    let args::Restore { name, no_backup, yes, waiting, .. } = args;
    let stored = session.app(name).await?;
    if percona::has_cluster(&stored.app) {
        return percona::restore(session, printer, args, &stored).await;
    }
    let checked = checked(session, args, &stored).await?;
    let wanted = checked.wanted.clone();
    if checked.way == Way::Done {
        annotate(session, &stored, None).await?;
        let sentence = format!("clientapp/{name} has its database from dump {} of {}", wanted.from, wanted.place());
        return printer.object(&stored.object, &sentence);
    }
    if !*yes {
        can_agree("restore")?;
        printer.note(&consequence(name, &wanted, (checked.way, checked.begun.as_ref()), *no_backup, false));
        agreed(name, "nothing restored")?;
    }
    let (stored, made) = handed_over(session, printer, args, checked).await?;
    let sentence = format!("clientapp/{name} gets its database from dump {} of {}", wanted.from, wanted.place());
    if waiting.wait {
        printer.note(&sentence);
        restored(session, name, &made, &wanted, waiting.timeout).await?;
        annotate(session, &stored, None).await?;
    }
    wait::asked(session, printer, &stored.object, &sentence, waiting, None).await
}

/// What restoring the database would do, or why it cannot begin; for a caller that restores the files as well.
pub(crate) async fn foreseen(session: &Session, args: &args::Restore, stored: &Stored) -> Result<String, Error> {
    if percona::has_cluster(&stored.app) {
        return percona::foreseen(session, args).await;
    }
    let Checked { wanted, begun, way, .. } = checked(session, args, stored).await?;
    Ok(consequence(&args.name, &wanted, (way, begun.as_ref()), args.no_backup, true))
}

/// Restores the database from a dump and waits until it serves. The record of it stays for the caller to remove.
pub(crate) async fn completed(session: &Session, printer: &mut Printer, args: &args::Restore) -> Result<(), Error> {
    let args::Restore { name, waiting, .. } = args;
    let stored = session.app(name).await?;
    let checked = checked(session, args, &stored).await?;
    let wanted = checked.wanted.clone();
    if checked.way == Way::Done {
        return Ok(());
    }
    let (_, made) = handed_over(session, printer, args, checked).await?;
    printer.note(&format!("clientapp/{name} gets its database from dump {} of {}", wanted.from, wanted.place()));
    restored(session, name, &made, &wanted, waiting.timeout).await
}

/// A restore that may begin or continue.
struct Checked {
    found: Option<Postgresql>,
    wanted: Restore,
    begun: Option<Begun>,
    way: Way,
}

async fn checked(session: &Session, args: &args::Restore, stored: &Stored) -> Result<Checked, Error> {
    let args::Restore { name, no_backup, .. } = args;
    if !stored.app.spec.postgres.enabled || stored.app.spec.postgres.provider != PostgresProvider::Standalone {
        return Err(dumps::without_database(&stored.app));
    }
    let found = dumps::database(session, name).await?;
    let wanted = wanted(session, args, &stored.app)?;
    let begun = Begun::read(&stored.app);
    let way = way(&stored.app, found.as_ref(), begun.as_ref(), &wanted, *no_backup).map_err(Error::Stalled)?;
    if way != Way::Done {
        // The dump made now, and the last one before the Postgresql is deleted.
        let more = if way == Way::Replace && !no_backup { 2 } else { 0 };
        there_are_dumps(session, &stored.app, found.as_ref(), &wanted, more).await?;
    }
    Ok(Checked { found, wanted, begun, way })
}

/// Takes the database away and lets the operator create another, which has what the previous one has left: the app, and the uid of the
/// new Postgresql.
async fn handed_over(
    session: &Session,
    printer: &mut Printer,
    args: &args::Restore,
    checked: Checked,
) -> Result<(Stored, String), Error> {
    let args::Restore { name, no_backup, waiting, .. } = args;
    let Checked { found, wanted, begun, way } = checked;
    let (database, timeout) = (Key::new(&session.namespace, name).database(), waiting.timeout);
    let begun = match (way, found, begun) {
        (Way::Replace, Some(found), _) => take_away(session, printer, args, &found, &wanted).await?,
        // The previous Postgresql is gone, or is being deleted.
        (Way::GoOn, found, Some(begun)) => {
            let begun = Begun { wanted: wanted.clone(), ..begun };
            let stored = session.app(name).await?;
            patch(session, &stored, begun.patch(stored.app.spec.suspend)).await?;
            if let Some(before) = found.filter(|found| found.metadata.uid.as_ref() == Some(&begun.postgresql)) {
                if *no_backup && before.spec.backup.is_some() {
                    change(session, &before, json!({"backup": {"onDelete": false}})).await?;
                }
                delete_database(session, &before, timeout).await?;
            }
            begun
        }
        // There is nothing to lose.
        _ => {
            let stored = session.app(name).await?;
            let begun =
                Begun { wanted: wanted.clone(), postgresql: String::new(), claims: BTreeMap::new(), made: None };
            patch(session, &stored, begun.patch(false)).await?;
            begun
        }
    };
    for claim in old_volumes(session, &database, &begun).await? {
        printer.note(&format!("persistentvolumeclaim/{} with the old files is deleted", claim.name_any()));
        delete_this(&session.api(), &claim, timeout).await?;
    }
    let stored = session.app(name).await?;
    still_ours(&stored.app, &begun).map_err(Error::Stalled)?;
    if stored.app.spec.suspend {
        patch(session, &stored, json!({"spec": {"suspend": false}})).await?;
    }
    let made = hand_over(session, &database, &begun, timeout).await?;
    // The operator does the rest. Until it is done, the same command resumes this restore and starts no other.
    let stored = session.app(name).await?;
    let begun = Begun { made: Some(made.clone()), ..begun };
    annotate(session, &stored, Some(&begun)).await?;
    Ok((stored, made))
}

/// The dump that the flags name.
pub(crate) fn wanted(session: &Session, args: &args::Restore, app: &ClientApp) -> Result<Restore, Error> {
    let args::Restore { name, from, time, store, password_secret, .. } = args;
    if time.is_some() {
        return Err(Error::Usage(
            "a dump cannot be restored to a point in time: name a dump with --from instead of --time".to_owned(),
        ));
    }
    Ok(match store {
        true => Restore::of_store(from, bucket::of(session, app, password_secret.as_deref())?),
        false => Restore::of_claim(from, names::backup(&Key::new(&session.namespace, name).database())),
    })
}

/// Records the restore in progress, or clears the record.
async fn annotate(session: &Session, stored: &Stored, begun: Option<&Begun>) -> Result<(), Error> {
    let begun = begun.map(|begun| json!(begun).to_string());
    patch(session, stored, json!({"metadata": {"annotations": {annotation::RESTORING: begun}}})).await.map(drop)
}

/// Dumps the current content and deletes the Postgresql. What will be deleted is recorded first, so that nothing else is.
async fn take_away(
    session: &Session,
    printer: &mut Printer,
    args: &args::Restore,
    found: &Postgresql,
    wanted: &Restore,
) -> Result<Begun, Error> {
    let args::Restore { name, no_backup, waiting, .. } = args;
    let (database, timeout) = (found.name_any(), waiting.timeout);
    let claims = volumes(session, &database).await?;
    // Checks all rights before the first step.
    may_delete(&session.api::<Postgresql>(), found).await?;
    for claim in &claims {
        may_delete(&session.api(), claim).await?;
    }
    may_hand_over::<PersistentVolumeClaim>(session, &[names::backup(&database)]).await?;
    may_hand_over::<Secret>(session, &names::secrets(&database)).await?;
    if !*no_backup {
        printer.note("dumping the current content of the database");
        let dumped = dumps::dump(session, found, timeout).await?;
        still_stays(&dumped, wanted).map_err(Error::Stalled)?;
        if let Some(place) = &wanted.store {
            let stored = session.app(name).await?;
            bucket::holds(session, &stored.app, place, &wanted.from, 1).await?;
        }
    }
    let uid = |meta: &ObjectMeta| meta.uid.clone().unwrap_or_default();
    let begun = Begun {
        wanted: wanted.clone(),
        postgresql: uid(&found.metadata),
        claims: claims.iter().map(|claim| (claim.name_any(), uid(&claim.metadata))).collect(),
        made: None,
    };
    let stored = session.app(name).await?;
    patch(session, &stored, begun.patch(true)).await?;
    printer.note(&format!("clientapp/{name} is suspended while postgresql/{database} is deleted"));
    // Its volumes are deleted one by one below, and the dumps are kept, whatever its deletion policy was. A last dump, made once
    // clients are disconnected, has what they wrote since the first one.
    let mut last = json!({"onDelete": !no_backup});
    if *no_backup
        && found.spec.backup.as_ref().is_none_or(|backup| backup.schedule.is_none() && backup.request.is_none())
    {
        last = json!(null);
    }
    change(session, found, json!({"deletionPolicy": DeletionPolicy::Retain, "backup": last})).await?;
    delete_database(session, found, timeout).await?;
    Ok(begun)
}

/// Changes the spec, unless the Postgresql is gone or was recreated since.
async fn change(session: &Session, database: &Postgresql, spec: Value) -> Result<(), Error> {
    let changed = ignore_not_found(dumps::change(session, database, spec).await).map(drop);
    changed.map_err(Error::api(format!("change Postgresql {}/{}", session.namespace, database.name_any())))
}

/// Deletes the Postgresql and waits until it is gone. On a timeout, the error says what the deletion is waiting for.
async fn delete_database(session: &Session, database: &Postgresql, timeout: Duration) -> Result<(), Error> {
    let api = session.api::<Postgresql>();
    let why = match delete_this(&api, database, timeout).await {
        Err(Error::Timeout(why)) => why,
        ended => return ended,
    };
    let name = database.name_any();
    let found = api.get_opt(&name).await.ok().flatten();
    let conditions = found.and_then(|found| found.status).map(|status| status.conditions).unwrap_or_default();
    let Some(ready) = find(&conditions, kind::READY).filter(|ready| ready.status != "True") else {
        return Err(Error::Timeout(why));
    };
    let without = "with --no-backup there is no last dump, and the content of the database is lost";
    Err(Error::Timeout(format!("{why}; postgresql/{name}: {}; {without}", ready.message)))
}

/// Nothing may be deleted for dumps that do not exist. `more` dumps are made of the current content.
pub(crate) async fn there_are_dumps(
    session: &Session,
    app: &ClientApp,
    database: Option<&Postgresql>,
    wanted: &Restore,
    more: usize,
) -> Result<(), Error> {
    let claim = match (&wanted.store, &wanted.claim) {
        (Some(place), _) => return bucket::holds(session, app, place, &wanted.from, more).await,
        (None, claim) => claim.as_deref().unwrap_or_default(),
    };
    let what = format!("PersistentVolumeClaim {}/{claim}", session.namespace);
    let found = session.api::<PersistentVolumeClaim>().get_metadata_opt(claim).await;
    let listed = database.and_then(|database| database.status.as_ref()?.backup.as_ref()?.volume.as_ref());
    let why = match found.map_err(Error::api(format!("look for {what}")))? {
        None => "does not exist",
        Some(found) if found.metadata.deletion_timestamp.is_some() => "is being deleted",
        Some(found) if listed.is_some() && listed != found.metadata.uid.as_ref() => {
            "is not the one that the dumps were written to"
        }
        Some(_) => return Ok(()),
    };
    Err(Error::Stalled(format!("{what}, the volume with the dumps, {why}: nothing is restored")))
}

/// The volumes to delete, once no Postgresql owns them any more.
async fn old_volumes(session: &Session, database: &str, begun: &Begun) -> Result<Vec<PersistentVolumeClaim>, Error> {
    let listed = session.api::<PersistentVolumeClaim>().list(&left_by(database)).await;
    let listed =
        listed.map_err(Error::api(format!("list what Postgresql {}/{database} has left", session.namespace)))?;
    let goes = |claim: &PersistentVolumeClaim| begun.claims.get(&claim.name_any()) == claim.metadata.uid.as_ref();
    let (old, other): (Vec<_>, Vec<_>) =
        listed.items.into_iter().filter(|claim| of_server(database, claim)).partition(goes);
    match other.first() {
        None => Ok(old),
        Some(other) => Err(Error::Stalled(format!(
            "PersistentVolumeClaim {}/{} is in the way: it was left by an earlier Postgresql {database} and is not in the dump. Hand it over as the condition of postgresql/{database} says and then restore, or delete it yourself",
            session.namespace,
            other.name_any()
        ))),
    }
}

/// The volumes of a Postgresql's servers, without the volume for dumps.
async fn volumes(session: &Session, database: &str) -> Result<Vec<PersistentVolumeClaim>, Error> {
    let labelled = ListParams::default().labels(&format!("{}={database}", label::POSTGRESQL));
    let listed = session.api::<PersistentVolumeClaim>().list(&labelled).await;
    let listed =
        listed.map_err(Error::api(format!("list the volumes of Postgresql {}/{database}", session.namespace)))?;
    Ok(listed.items.into_iter().filter(|claim| of_server(database, claim)).collect())
}

fn of_server(database: &str, claim: &PersistentVolumeClaim) -> bool {
    let claim = claim.name_any();
    names::is_claim(database, &claim) && claim != names::backup(database)
}

fn left_by(database: &str) -> ListParams {
    let kind = Postgresql::kind(&());
    ListParams::default().labels(&format!("{}={database},{}={kind}", label::RETAINED_FROM, label::RETAINED_KIND))
}

/// Hands the dumps and Secrets of the previous Postgresql over to the next one, and returns its uid. Only a Postgresql that is made
/// from this dump receives them; any other, being without them, stalls instead of creating an empty database.
async fn hand_over(session: &Session, database: &str, begun: &Begun, timeout: Duration) -> Result<String, Error> {
    let made = |found: Option<&Postgresql>| found.is_some_and(|found| is_made_for(found, begun));
    let what = "there again, restoring the dump";
    let found = awaited(&session.api::<Postgresql>(), database, what, made, timeout).await?;
    let uid = found.and_then(|found| found.metadata.uid).unwrap_or_default();
    give::<PersistentVolumeClaim>(session, database, &uid).await?;
    give::<Secret>(session, database, &uid).await?;
    Ok(uid)
}

/// Waits until the restored database serves and the app's status says so. Until the Postgresql has received what the previous one has
/// left, a stall with `NotOurs` is not final.
async fn restored(session: &Session, name: &str, made: &str, wanted: &Restore, timeout: Duration) -> Result<(), Error> {
    let database = Key::new(&session.namespace, name).database();
    let stalled = |found: &Postgresql| {
        let conditions = found.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let stalled = find(conditions, kind::STALLED).filter(|stalled| stalled.status == "True")?;
        (stalled.reason != Reason::NotOurs.as_str()).then(|| stalled.message.clone())
    };
    let is_another = |found: &Postgresql| found.metadata.uid.as_deref() != Some(made);
    let ended = |found: Option<&Postgresql>| {
        let up = |found: &Postgresql| found.status.as_ref().is_some_and(|status| status.phase == Some(Phase::Up));
        found.is_none_or(|found| is_another(found) || up(found) || stalled(found).is_some())
    };
    let found = awaited(&session.api::<Postgresql>(), &database, "restored", ended, timeout).await?;
    let found = found.filter(|found| !is_another(found));
    let found = found.ok_or_else(|| Error::Gone(format!("postgresql/{database} was deleted while it was restored")))?;
    if let Some(message) = stalled(&found) {
        return Err(Error::Stalled(format!("postgresql/{database}: {message}")));
    }
    is_from(&found, wanted).map_err(Error::Stalled)?;
    let has_database = |found: Option<&ClientApp>| {
        let status = found.and_then(|found| found.status.as_ref());
        status
            .and_then(|status| find(&status.conditions, kind::POSTGRES_READY))
            .is_some_and(|ready| ready.status == "True")
    };
    awaited(&session.api::<ClientApp>(), name, "with its database", has_database, timeout).await.map(|_| ())
}

async fn give<K>(session: &Session, database: &str, uid: &str) -> Result<(), Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = session.api();
    let what =
        || Error::api(format!("hand over what the previous Postgresql {}/{database} has left", session.namespace));
    for left in api.list_metadata(&left_by(database)).await.map_err(what())? {
        let patch = json!({"metadata": {"uid": left.uid(), "labels": {label::POSTGRESQL_UID: uid}}});
        let given = api.patch_metadata(&left.name_any(), &patching(), &Patch::Merge(&patch)).await;
        ignore_not_found(given).map_err(what())?;
    }
    Ok(())
}

/// Asks the API server whether the user may delete an object, with a dry run.
async fn may_delete<K>(api: &Api<K>, object: &K) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let name = object.name_any();
    let params = DeleteParams { dry_run: true, ..DeleteParams::background() };
    #[expect(clippy::disallowed_methods, reason = "nothing is deleted")]
    let asked = api.delete(&name, &params).await;
    ignore_not_found(asked).map(drop).map_err(Error::api(format!("ask whether {} {name} may be deleted", K::kind(&()))))
}

/// Asks the API server whether the user may hand these objects over to the next Postgresql, with a dry run.
async fn may_hand_over<K>(session: &Session, names: &[String]) -> Result<(), Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let params = PatchParams { dry_run: true, ..patching() };
    for name in names {
        let asked = session.api::<K>().patch_metadata(name, &params, &Patch::Merge(&json!({}))).await;
        let what = format!("ask whether {} {}/{name} may be handed over", K::kind(&()), session.namespace);
        ignore_not_found(asked).map_err(Error::api(what))?;
    }
    Ok(())
}

/// Deletes this object, unless it was recreated since, and waits until it is gone.
async fn delete_this<K>(api: &Api<K>, object: &K, timeout: Duration) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let (name, uid) = (object.name_any(), object.uid());
    let this_one = Preconditions { uid: uid.clone(), resource_version: None };
    let params = DeleteParams { preconditions: Some(this_one), ..DeleteParams::background() };
    #[expect(clippy::disallowed_methods, reason = "what the user has agreed to, and only that")]
    let deleted = api.delete(&name, &params).await;
    ignore_not_found(deleted).map_err(Error::api(format!("delete {} {name}", K::kind(&()))))?;
    let gone = |found: Option<&K>| found.is_none_or(|found| found.uid() != uid);
    awaited(api, &name, "gone", gone, timeout).await.map(|_| ())
}

pub(crate) async fn awaited<K>(
    api: &Api<K>,
    name: &str,
    what: &str,
    condition: impl Fn(Option<&K>) -> bool,
    timeout: Duration,
) -> Result<Option<K>, Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let object = format!("{} {name}", K::kind(&()));
    match tokio::time::timeout(timeout, await_condition(api.clone(), name, condition)).await {
        Ok(Ok(found)) => Ok(found),
        Ok(Err(error)) => Err(Error::Missing(format!("watch {object}: {error}"))),
        Err(_) => Err(Error::Timeout(format!(
            "timed out after {} waiting until {object} is {what}: run the same command again to continue",
            span_of(timeout)
        ))),
    }
}
