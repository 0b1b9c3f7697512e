//! Tells what a restore changes, and whether there is a dump. **Pure.**

use crate::{
    crd::{ClientApp, ClientAppRestoreSpec, PostgresProvider, Postgresql, Restore},
    plugin::connection::Flags,
};

/// Whether it was created: then a dump is no longer restored into it.
pub(crate) fn has_database(database: &Postgresql) -> bool {
    let volume = database.status.as_ref().and_then(|status| status.volume.as_ref());
    volume.is_some_and(|volume| volume.initialized)
}

/// Checks that the wanted dump is on the volume, as far as it is known.
pub(crate) fn listed(name: &str, database: &Postgresql, wanted: &Restore, flags: &Flags) -> Result<(), String> {
    let command = |verb: &str| flags.command(format!("kubectl clientapp {verb} {name}"));
    let status = database.status.clone().unwrap_or_default();
    let dumps = status.backup.unwrap_or_default().dumps;
    // A restored database lists dumps only after its own first one.
    let was_there =
        status.restored.is_some_and(|restored| restored.claim == wanted.claim && restored.dump == wanted.from);
    let is_there = dumps.iter().any(|dump| dump.name == wanted.from);
    match (is_there, wanted.from.as_str(), dumps.is_empty()) {
        (true, ..) | (false, "latest", false) => Ok(()),
        (false, "latest", true) => Err(format!("{name} has no dump: {} makes one", command("backup"))),
        (false, _, true) if was_there => Ok(()),
        (false, from, _) => Err(format!("{name} has no dump {from}: {} lists them", command("backups"))),
    }
}

/// Says what is lost and what is kept.
pub(super) fn consequence(name: &str, spec: &ClientAppRestoreSpec, app: &ClientApp) -> String {
    let ClientAppRestoreSpec { of: _, backup, parts: _, database, files, backup_first } = spec;
    let is_percona = app.spec.postgres.provider == PostgresProvider::Percona;
    let mut told = Vec::new();
    if let Some(backup) = backup {
        told.push(format!("This replaces what ClientAppBackup {backup} has of {name}."));
    }
    if let Some(database) = database {
        let state = match (&database.time, is_percona) {
            (Some(time), _) => format!("its state at {}", time.0),
            (None, true) => format!("its state in backup {}", database.from),
            (None, false) => format!("dump {}", database.from),
        };
        told.push(format!("This replaces the database of {name} by {state}."));
    }
    if let Some(files) = files {
        told.push(format!(
            "This replaces the files of {name} by archive {}. Meanwhile {name} has no pods.",
            files.from
        ));
    }
    let former = match (is_percona, *backup_first) {
        (true, true) => {
            "The present content of the database is backed up first; the present files are set aside on their volumes."
        }
        (true, false) => {
            "The present content of the database is LOST; the present files are set aside on their volumes."
        }
        (false, _) => "What is there now is set aside on its volumes, and takes space there until you delete it.",
    };
    told.push(former.to_owned());
    if files.is_none() && backup.is_none() {
        told.push(
            "The app's files stay as they are: if the app was upgraded since, they are newer than the database."
                .to_owned(),
        );
    }
    told.join("\n")
}

#[cfg(test)]
mod tests;
