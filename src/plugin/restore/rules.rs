//! Tells what a restore changes. Pure.

use crate::crd::{ClientApp, ClientAppRestoreSpec, PostgresProvider};

/// Says what is lost and what is kept.
pub(super) fn consequence(name: &str, spec: &ClientAppRestoreSpec, app: &ClientApp) -> String {
    let ClientAppRestoreSpec { of: _, into: _, backup, parts: _, database, files, backup_first } = spec;
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
