//! Finds what the database and the files are restored from. Pure.

use kube::{Resource as _, ResourceExt as _};

use crate::{
    crd::{
        BackupPart, BackupPhase, ClientAppRestoreSpec, DatabaseSource, DumpStore, Postgresql, Restore, Store,
        cloudnativepg::CloudNativePgBackup, percona::PerconaPGBackup,
    },
    postgresql::names,
    restore::observed::Observed,
    store::dump::Name,
};

/// Says that the ClientAppBackup that is to be restored has not ended.
pub(super) fn awaited(spec: &ClientAppRestoreSpec, observed: &Observed) -> Option<String> {
    let source = observed.source.as_ref().filter(|source| source.spec.of == spec.of)?;
    let phase = source.status.as_ref().and_then(|status| status.phase);
    let is_over = phase.is_some_and(BackupPhase::is_final);
    (!is_over).then(|| format!("ClientAppBackup {} is not complete yet", source.name_any()))
}

/// Returns the names of what the database and the files are restored from.
pub(super) fn sources(
    spec: &ClientAppRestoreSpec,
    observed: &Observed,
) -> Result<(Option<String>, Option<String>), String> {
    let Some(name) = &spec.backup else {
        let archive = spec.files.as_ref().map(|files| files.from.clone());
        return Ok((spec.database.as_ref().map(|database| database.from.clone()), archive));
    };
    let Some(backup) = &observed.source else {
        return Err(format!("ClientAppBackup {name} does not exist in this namespace"));
    };
    if backup.spec.of != spec.of {
        let of = &backup.spec.of;
        return Err(format!("ClientAppBackup {name} is of {:?} {}", of.kind, of.name));
    }
    if backup.metadata.deletion_timestamp.is_some() {
        return Err(format!("ClientAppBackup {name} is being deleted, and what it has made may go with it"));
    }
    let status = backup.status.clone().unwrap_or_default();
    if status.phase != Some(BackupPhase::Completed) {
        return Err(format!("ClientAppBackup {name} has failed: restore another"));
    }
    let wants = |part: BackupPart| spec.parts.as_ref().is_none_or(|parts| parts.contains(&part));
    let lacks = |what: &str| format!("ClientAppBackup {name} does not say which {what} it has made");
    let database = match status.database.filter(|_| wants(BackupPart::Database)) {
        Some(made)
            if [PerconaPGBackup::kind(&()), CloudNativePgBackup::kind(&())].contains(&made.kind.as_str().into()) =>
        {
            Some(made.name)
        }
        Some(made) => Some(made.dump.ok_or_else(|| lacks("dump"))?),
        None => None,
    };
    let files = match status.files.filter(|_| wants(BackupPart::Files)) {
        Some(made) => Some(made.archive.ok_or_else(|| lacks("archive"))?),
        None => None,
    };
    for (part, is_there) in [(BackupPart::Database, database.is_some()), (BackupPart::Files, files.is_some())] {
        if spec.parts.as_ref().is_some_and(|parts| parts.contains(&part)) && !is_there {
            return Err(format!("ClientAppBackup {name} has no part {part:?}"));
        }
    }
    Ok((database, files))
}

/// Returns the dump and where it is: in the given repository, on the volume, or in the repository that dumps are uploaded to.
pub(super) fn dump(
    source: Option<&DatabaseSource>,
    from: &str,
    (found, volume): (&Postgresql, Option<&str>),
) -> Result<Restore, String> {
    let name = found.name_any();
    if source.is_some_and(|source| source.time.is_some()) {
        return Err("spec.database.time is not for dumps: name a dump in spec.database.from".to_owned());
    }
    if from != "latest" && Name::parse(from).is_none() {
        return Err(format!("{from} is not the name of a dump such as 20260131T030000Z-x7k2p"));
    }
    if let Some(store) = source.and_then(|source| source.store.as_ref()) {
        return Ok(Restore::of_store(from, store.clone()));
    }
    let status = found.status.clone().unwrap_or_default();
    let backup = status.backup.unwrap_or_default();
    // The list outlives the volume.
    let dumps = if volume.is_some() && backup.volume.as_deref().is_none_or(|uid| Some(uid) == volume) {
        backup.dumps
    } else {
        Vec::new()
    };
    let is_there = if from == "latest" { !dumps.is_empty() } else { dumps.iter().any(|dump| dump.name == from) };
    // Its own first dump may not be made yet.
    let was_there =
        volume.is_some() && status.restored.is_some_and(|restored| restored.dump == from && restored.claim.is_some());
    if is_there || was_there {
        return Ok(Restore::of_claim(from, names::backup(&name)));
    }
    let store = found.spec.backup.as_ref().and_then(|backup| backup.store.as_ref());
    let in_store = |store: &Store| {
        let path = store.path(&found.namespace().unwrap_or_default(), &name);
        Restore::of_store(from, DumpStore { bucket: store.bucket.clone(), path, size: None })
    };
    store.map(in_store).ok_or_else(|| {
        let known: Vec<_> = dumps.iter().take(5).map(|dump| dump.name.as_str()).collect();
        match known.is_empty() {
            true => format!("Postgresql {name} has no dump, and no backup.store"),
            false => format!("Postgresql {name} has no dump {from}, but {}", known.join(", ")),
        }
    })
}

/// Says which state of a database is restored, for a sentence that goes on with it.
pub(super) fn state_of(spec: &ClientAppRestoreSpec, from: &str) -> String {
    let time = spec.database.as_ref().and_then(|database| database.time.as_ref());
    time.map_or_else(|| format!("from {from}"), |time| format!("as of {}", time.0))
}
