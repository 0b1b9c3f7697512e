//! `restore`: an app's database is made anew from a dump, in its place; a PerconaPGCluster is restored by [`percona`].
//!
//! What is there is dumped first, so that each step can be taken back by another restore. Every step is taken only if it still has to
//! be: a restore that was cut off is carried on by the same command.

use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions},
    core::NamespaceResourceScope,
    runtime::wait::await_condition,
};
use serde::de::DeserializeOwned;
use serde_json::json;

use super::{
    args, backup,
    change::patch,
    delete::{agreed, can_agree},
    error::Error,
    percona,
    session::{FIELD_MANAGER, Printer, Session},
    text::span_of,
    wait,
};
use crate::{
    crd::{
        ClientApp, Phase, PostgresProvider, Postgresql, Reason, Restore,
        conditions::{find, kind},
        label,
    },
    postgresql::names,
    runtime::{api::unless_gone, key::Key},
};

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::Restore) -> Result<(), Error> {
    let args::Restore { name, from, time, no_backup, yes, patience } = args;
    let stored = session.app(name).await?;
    if percona::has_cluster(&stored.app) {
        return percona::restore(session, printer, args, &stored).await;
    }
    if time.is_some() {
        return Err(Error::Usage("a dump is of one time: name one with --from instead of --time".to_owned()));
    }
    if !stored.app.spec.postgres.enabled || stored.app.spec.postgres.provider != PostgresProvider::Standalone {
        return backup::needed(session, name).await.map(|_| ());
    }
    let database = Key::new(&session.namespace, name).database();
    let found = backup::database(session, name).await?;
    let wanted = Restore { from: from.clone(), claim: names::backup(&database) };
    may(&stored.app, found.as_ref(), &wanted, *no_backup).map_err(Error::Stalled)?;
    there_are_dumps(session, &wanted.claim).await?;
    if !*yes {
        can_agree("restore")?;
        printer.note(&consequence(name, &wanted, *no_backup));
        agreed(name, "nothing restored")?;
    }

    let timeout = patience.timeout;
    // The one that a restore which was cut off has made is what the app is to have.
    if let Some(found) = found.filter(|found| !is_new(found, &wanted)) {
        if !*no_backup {
            printer.note("dumping what is in the database now");
            backup::dump(session, &found, timeout).await?;
        }
        let stored = session.app(name).await?;
        let restore = json!({"spec": {"suspend": true, "postgres": {"restore": wanted}}});
        patch(session, &stored, restore).await?;
        printer.note(&format!("clientapp/{name} is suspended while postgresql/{database} is taken away"));
        if *no_backup {
            // A last dump before its deletion is none of what is lost.
            let patch = json!({"metadata": {"uid": found.metadata.uid}, "spec": {"backup": null}});
            let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
            let changed = session.api::<Postgresql>().patch(&database, &params, &Patch::Merge(&patch)).await;
            unless_gone(changed).map_err(Error::api(format!("change Postgresql {}/{database}", session.namespace)))?;
        }
        delete_this(&session.api::<Postgresql>(), &found, timeout).await?;
    }
    for claim in volumes(session, &database).await? {
        printer.note(&format!("persistentvolumeclaim/{} with the old files is deleted", claim.name_any()));
        delete_this(&session.api(), &claim, timeout).await?;
    }
    let stored = session.app(name).await?;
    let object = patch(session, &stored, json!({"spec": {"suspend": false}})).await?;
    hand_over(session, &database, timeout).await?;
    let sentence = format!("clientapp/{name} gets its database from dump {} on {}", wanted.from, wanted.claim);
    if patience.wait {
        printer.note(&sentence);
        restored(session, name, &database, timeout).await?;
    }
    wait::asked(session, printer, &object, &sentence, patience, None).await
}

/// Nothing is taken away for dumps that are not there.
async fn there_are_dumps(session: &Session, claim: &str) -> Result<(), Error> {
    let what = format!("PersistentVolumeClaim {}/{claim}", session.namespace);
    let found = session.api::<PersistentVolumeClaim>().get_metadata_opt(claim).await;
    match found.map_err(Error::api(format!("look for {what}")))? {
        Some(found) if found.metadata.deletion_timestamp.is_none() => Ok(()),
        Some(_) => {
            Err(Error::Stalled(format!("{what}, the volume with the dumps, is being deleted: nothing is restored")))
        }
        None => Err(Error::Stalled(format!("{what}, the volume with the dumps, does not exist: nothing is restored"))),
    }
}

/// Whether a Postgresql was made for this very restore.
fn is_new(database: &Postgresql, wanted: &Restore) -> bool {
    let initialized =
        database.status.as_ref().and_then(|status| status.volume.as_ref()).is_some_and(|volume| volume.initialized);
    database.metadata.deletion_timestamp.is_none() && database.spec.restore.as_ref() == Some(wanted) && !initialized
}

/// Whether it can begin, or go on; else why not. **Pure.**
fn may(app: &ClientApp, database: Option<&Postgresql>, wanted: &Restore, no_backup: bool) -> Result<(), String> {
    let name = app.metadata.name.as_deref().unwrap_or_default();
    let Some(database) = database else {
        // It was cut off after the Postgresql was deleted; or a user has deleted it.
        return match app.spec.suspend && app.spec.postgres.restore.as_ref() == Some(wanted) {
            true => Ok(()),
            false => Err(format!(
                "{name} has no Postgresql, so it is not known which dumps there are: set spec.postgres.restore to {{claim: {}}} yourself",
                wanted.claim
            )),
        };
    };
    if is_new(database, wanted) {
        return Ok(());
    }
    let status = database.status.clone().unwrap_or_default();
    if !no_backup && status.phase != Some(Phase::Up) {
        return Err(format!(
            "the database of {name} does not serve, so what is in it cannot be dumped first: with --no-backup it is thrown away"
        ));
    }
    let dumps = status.backup.unwrap_or_default().dumps;
    // The one of now, and the last one before the Postgresql is deleted.
    let more = 1 + usize::from(database.spec.backup.as_ref().is_some_and(|backup| backup.on_delete));
    let keep =
        database.spec.backup.as_ref().map_or(usize::MAX, |backup| usize::try_from(backup.keep).unwrap_or_default());
    match (wanted.from.as_str(), dumps.is_empty()) {
        ("latest", true) => Err(format!("{name} has no dump: `kubectl clientapp backups {name}` lists them")),
        ("latest", false) if no_backup => Ok(()),
        ("latest", false) => {
            Err("the latest dump would be the one of now: name one with --from, or add --no-backup".to_owned())
        }
        (from, _) => match dumps.iter().position(|dump| dump.name == from) {
            Some(newer) if !no_backup && newer + more >= keep => Err(format!(
                "{keep} dumps are kept, and what is dumped now would take dump {from} away: raise spec.postgres.backup.keep first"
            )),
            Some(_) => Ok(()),
            None => Err(format!("{name} has no dump {from}: `kubectl clientapp backups {name}` lists them")),
        },
    }
}

/// What is lost and what is kept. **Pure.**
fn consequence(name: &str, wanted: &Restore, no_backup: bool) -> String {
    let now = match no_backup {
        true => "What is in the database now is LOST: it is not dumped first.",
        false => "What is in the database now is dumped first.",
    };
    format!(
        "This replaces the database of {name} by dump {} on PersistentVolumeClaim {}. {now}\nThe app's files stay as they are now. Until it is over, the app has no database.",
        wanted.from, wanted.claim
    )
}

/// The volumes of the servers, once they are no Postgresql's any more. The one with dumps is none of them.
async fn volumes(session: &Session, database: &str) -> Result<Vec<PersistentVolumeClaim>, Error> {
    let listed = session.api::<PersistentVolumeClaim>().list(&left_by(database)).await;
    let listed =
        listed.map_err(Error::api(format!("list what Postgresql {}/{database} has left", session.namespace)))?;
    let of_server = |claim: &PersistentVolumeClaim| {
        let claim = claim.name_any();
        names::is_claim(database, &claim) && claim != names::backup(database)
    };
    Ok(listed.items.into_iter().filter(of_server).collect())
}

fn left_by(database: &str) -> ListParams {
    let kind = Postgresql::kind(&());
    ListParams::default().labels(&format!("{}={database},{}={kind}", label::RETAINED_FROM, label::RETAINED_KIND))
}

/// Gives the next Postgresql the dumps and Secrets that the one before has left.
async fn hand_over(session: &Session, database: &str, timeout: Duration) -> Result<(), Error> {
    let there = |found: Option<&Postgresql>| found.is_some_and(|found| found.metadata.deletion_timestamp.is_none());
    let found = awaited(&session.api::<Postgresql>(), database, "there again", there, timeout).await?;
    let uid = found.and_then(|found| found.metadata.uid);
    give::<PersistentVolumeClaim>(session, database, uid.as_deref()).await?;
    give::<Secret>(session, database, uid.as_deref()).await
}

/// Waits until the database serves, and the app's status says so. What is told until the next Postgresql has what the one before
/// has left is no answer.
async fn restored(session: &Session, name: &str, database: &str, timeout: Duration) -> Result<(), Error> {
    let stalled = |found: &Postgresql| {
        let conditions = found.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let stalled = find(conditions, kind::STALLED).filter(|stalled| stalled.status == "True")?;
        (stalled.reason != Reason::NotOurs.as_str()).then(|| stalled.message.clone())
    };
    let ended = |found: Option<&Postgresql>| {
        let up = |found: &Postgresql| found.status.as_ref().is_some_and(|status| status.phase == Some(Phase::Up));
        found.is_some_and(|found| up(found) || stalled(found).is_some())
    };
    let found = awaited(&session.api::<Postgresql>(), database, "restored", ended, timeout).await?;
    if let Some(message) = found.as_ref().and_then(stalled) {
        return Err(Error::Stalled(format!("postgresql/{database}: {message}")));
    }
    let has_database = |found: Option<&ClientApp>| {
        let status = found.and_then(|found| found.status.as_ref());
        status
            .and_then(|status| find(&status.conditions, kind::POSTGRES_READY))
            .is_some_and(|ready| ready.status == "True")
    };
    awaited(&session.api::<ClientApp>(), name, "with its database", has_database, timeout).await.map(|_| ())
}

async fn give<K>(session: &Session, database: &str, uid: Option<&str>) -> Result<(), Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let api: Api<K> = session.api();
    let what = || Error::api(format!("hand over what Postgresql {}/{database} has left", session.namespace));
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    for left in api.list_metadata(&left_by(database)).await.map_err(what())? {
        let patch = json!({"metadata": {"uid": left.uid(), "labels": {label::POSTGRESQL_UID: uid}}});
        let given = api.patch_metadata(&left.name_any(), &params, &Patch::Merge(&patch)).await;
        unless_gone(given).map_err(what())?;
    }
    Ok(())
}

/// Deletes this very object, and waits until it is gone.
async fn delete_this<K>(api: &Api<K>, object: &K, timeout: Duration) -> Result<(), Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
{
    let (name, uid) = (object.name_any(), object.uid());
    let this_one = Preconditions { uid: uid.clone(), resource_version: None };
    let params = DeleteParams { preconditions: Some(this_one), ..DeleteParams::background() };
    #[expect(clippy::disallowed_methods, reason = "what the user has agreed to, and only that")]
    let deleted = api.delete(&name, &params).await;
    unless_gone(deleted).map_err(Error::api(format!("delete {} {name}", K::kind(&()))))?;
    let gone = |found: Option<&K>| found.is_none_or(|found| found.uid() != uid);
    awaited(api, &name, "gone", gone, timeout).await.map(|_| ())
}

async fn awaited<K>(
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
            "timed out after {} waiting until {object} is {what}: run the same command again to go on",
            span_of(timeout)
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn of<K: DeserializeOwned>(spec: Value, status: Value) -> K {
        serde_json::from_value(json!({"metadata": {"name": "acme"}, "spec": spec, "status": status})).unwrap()
    }

    #[test]
    fn whether_it_can_begin_or_go_on() {
        let backup = json!({"dumps": [
            {"name": "20260103T000000Z-c", "bytes": 1, "tables": 1},
            {"name": "20260102T000000Z-b", "bytes": 1, "tables": 1},
            {"name": "20260101T000000Z-a", "bytes": 1, "tables": 1},
        ]});
        let made = json!({"name": "x", "uid": "x", "initialized": true});
        let database = |phase: &str| -> Option<Postgresql> {
            Some(of(json!({"backup": {"keep": 3}}), json!({"phase": phase, "backup": backup, "volume": made})))
        };
        let last_too: Option<Postgresql> = Some(of(
            json!({"backup": {"keep": 3, "onDelete": true}}),
            json!({"phase": "Up", "backup": backup, "volume": made}),
        ));
        let without_dumps = Some(of(json!({}), json!({"phase": "Up", "volume": made})));
        let begun = |from: &str| -> Option<Postgresql> {
            Some(of(json!({"restore": {"from": from, "claim": "acme-backup"}}), json!({"phase": "Pending"})))
        };
        let app = |restore: Value, suspend: bool| -> ClientApp {
            let postgres = json!({"provider": "standalone", "restore": restore});
            of(json!({"hostname": "a.example", "suspend": suspend, "postgres": postgres}), json!(null))
        };
        let plain = || app(json!(null), false);
        let asked = |from: &str| app(json!({"from": from, "claim": "acme-backup"}), true);
        let (c, b, a) = ("20260103T000000Z-c", "20260102T000000Z-b", "20260101T000000Z-a");
        for (what, app, database, from, no_backup, expected) in [
            ("a dump", plain(), database("Up"), c, false, Ok(())),
            ("the last but one", plain(), database("Up"), b, false, Ok(())),
            ("one that would go", plain(), database("Up"), a, false, Err("3 dumps are kept")),
            ("with a last one", plain(), last_too, b, false, Err("3 dumps are kept")),
            ("which stays without another", plain(), database("Up"), a, true, Ok(())),
            ("another", plain(), database("Up"), "20250101T000000Z-a", false, Err("has no dump 20250101T000000Z-a")),
            ("of now", plain(), database("Up"), "latest", false, Err("would be the one of now")),
            ("the database is lost", plain(), database("Failed"), c, false, Err("with --no-backup it is thrown away")),
            ("and is given up", plain(), database("Failed"), "latest", true, Ok(())),
            ("no dumps", plain(), without_dumps, "latest", true, Err("has no dump")),
            ("cut off before the volumes went", asked(c), None, c, false, Ok(())),
            ("another was cut off", asked(b), None, c, false, Err("has no Postgresql")),
            ("there is none", plain(), None, c, false, Err("has no Postgresql")),
            ("cut off before it was handed over", asked(c), begun(c), c, false, Ok(())),
            ("another, and it is not made", asked(b), begun(b), c, false, Err("does not serve")),
        ] {
            let wanted = Restore { from: from.to_owned(), claim: "acme-backup".to_owned() };
            match (may(&app, database.as_ref(), &wanted, no_backup), expected) {
                (Ok(()), Ok(())) => {}
                (Err(why), Err(words)) => assert!(why.contains(words), "{what}: {why}"),
                (found, _) => panic!("{what}: {found:?}"),
            }
        }
    }
}
