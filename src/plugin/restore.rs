//! `restore` creates a ClientAppRestore, which the operator carries out.

mod rules;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use self::rules::consequence;
use super::{
    args, bucket,
    delete::{agreed, can_agree},
    error::Error,
    run_once,
    session::{Printer, Session},
};
use crate::crd::{
    BackupSubject, BackupSubjectKind, ClientApp, ClientAppRestore, ClientAppRestoreSpec, DatabaseSource, FilesSource,
    RestoreInto, StorePasswordSecret,
};

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::Restore) -> Result<(), Error> {
    let args::Restore { name, yes, waiting, .. } = args;
    let stored = session.app(name).await?;
    let spec = spec(session, args, &stored.app)?;
    if !*yes && spec.into.is_none() {
        can_agree("restore")?;
        printer.note(&consequence(name, &spec, &stored.app));
        agreed(name, "nothing restored")?;
    }
    let does = match &spec.into {
        Some(into) => format!("creates clientapp/{} from a backup of {name}", into.name),
        None => format!("restores {name}"),
    };
    run_once::create(session, printer, (ClientAppRestore::new("", spec), name), &does, waiting).await
}

/// Returns what the flags ask for.
fn spec(session: &Session, args: &args::Restore, app: &ClientApp) -> Result<ClientAppRestoreSpec, Error> {
    let args::Restore { name, backup, from, time, store, only_files, files_path, password_secret, .. } = args;
    let args::Restore { to, hostname, no_backup, .. } = args;
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
    let (name, hostname) = (to.clone(), hostname.clone().unwrap_or_default());
    let into = name.map(|name| RestoreInto { name, hostname });
    let (backup, backup_first) = (backup.clone(), !no_backup);
    Ok(ClientAppRestoreSpec { of, into, backup, parts: None, database, files, backup_first })
}
