//! `restore` creates a ClientAppRestore, which the operator carries out; `restore --to`: see [`copy`](super::copy).

mod rules;

use k8s_openapi::{api::core::v1::PersistentVolumeClaim, apimachinery::pkg::apis::meta::v1::Time};

use self::rules::consequence;
pub(crate) use self::rules::{has_database, listed};
use super::{
    args, bucket,
    delete::{agreed, can_agree},
    error::Error,
    run_once,
    session::{Printer, Session},
};
use crate::{
    crd::{
        BackupSubject, BackupSubjectKind, ClientApp, ClientAppRestore, ClientAppRestoreSpec, DatabaseSource,
        FilesSource, Postgresql, Restore, StorePasswordSecret,
    },
    platform::key::Key,
    postgresql::names,
};

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::Restore) -> Result<(), Error> {
    let args::Restore { name, yes, waiting, .. } = args;
    let stored = session.app(name).await?;
    let spec = spec(session, args, &stored.app)?;
    if !*yes {
        can_agree("restore")?;
        printer.note(&consequence(name, &spec, &stored.app));
        agreed(name, "nothing restored")?;
    }
    let restore = ClientAppRestore::new("", spec);
    run_once::create(session, printer, (restore, name), &format!("restores {name}"), waiting).await
}

/// Returns what the flags ask for.
fn spec(session: &Session, args: &args::Restore, app: &ClientApp) -> Result<ClientAppRestoreSpec, Error> {
    let args::Restore { name, backup, from, time, store, only_files, files_path, password_secret, no_backup, .. } =
        args;
    let password_secret = password_secret.as_deref();
    let of = BackupSubject { kind: BackupSubjectKind::ClientApp, name: name.clone() };
    let database = match only_files.is_none() && backup.is_none() {
        true => Some(DatabaseSource {
            from: from.clone(),
            time: time.map(Time),
            store: store.then(|| bucket::of(session, app, password_secret)).transpose()?,
        }),
        false => None,
    };
    let files = args.archive().map(|archive| FilesSource {
        from: archive.to_owned(),
        path: files_path.clone(),
        password_secret: password_secret.map(StorePasswordSecret::named),
    });
    Ok(ClientAppRestoreSpec { of, backup: backup.clone(), parts: None, database, files, backup_first: !no_backup })
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

/// Checks that there are dumps to create a database from.
pub(crate) async fn there_are_dumps(
    session: &Session,
    name: &str,
    database: Option<&Postgresql>,
    wanted: &Restore,
) -> Result<(), Error> {
    let claim = match (&wanted.store, &wanted.claim) {
        (Some(place), _) => return bucket::holds(session, (name, place), &wanted.from).await,
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
