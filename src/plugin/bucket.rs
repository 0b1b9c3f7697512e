//! Dumps and archives in a repository, read from the user's machine by restic with the credentials that the cluster uses. An **effect**
//! that reads.

use std::{collections::BTreeMap, io::Write as _, path::PathBuf, time::Duration};

use indicatif::BinaryBytes;
use jiff::Timestamp;
use k8s_openapi::{ByteString, api::core::v1::Secret};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{
    error::Error,
    session::{Printer, Session},
    text::{FAINT, age, paint, table},
};
use crate::{
    crd::{ClientApp, DumpStore, FilesBackup, StorePasswordSecret},
    platform::key::Key,
    restic::{
        command::{self, Access, Location, Password},
        repository::{Repository, Trouble},
    },
    store::{
        error::told,
        stored::{self, Content, Stored},
    },
};

/// Short, because a user is waiting.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Returns the repository that the dumps of an app's database are uploaded to, with the password of this Secret, if one is given.
pub(crate) fn of(session: &Session, app: &ClientApp, password: Option<&str>) -> Result<DumpStore, Error> {
    let name = app.metadata.name.as_deref().unwrap_or_default();
    let store = app.spec.postgres.backup.as_ref().and_then(|backup| backup.store.clone());
    let Some(store) = store else {
        return Err(Error::Missing(format!(
            "the dumps of {name} are not uploaded to a bucket: spec.postgres.backup.store is not set"
        )));
    };
    let path = store.path(&session.namespace, &Key::new(&session.namespace, name).database());
    let mut bucket = store.bucket;
    bucket.password_secret = password.map(StorePasswordSecret::named).or(bucket.password_secret);
    Ok(DumpStore { bucket, path, size: None })
}

/// Reads what is in the repository, newest first.
async fn read(session: &Session, store: &DumpStore, content: Content) -> Result<Vec<Stored>, Error> {
    let given = &store.bucket;
    let credentials = secret(session, &given.credentials_secret.name).await?;
    let half = |key: &String| text(&credentials, &given.credentials_secret.name, key).map(command::Secret);
    let mut ca = None;
    if let Some(given) = &given.ca_secret {
        let pem = text(&secret(session, &given.name).await?, &given.name, &given.key)?;
        let written = tempfile::NamedTempFile::new().and_then(|mut file| file.write_all(pem.as_bytes()).map(|()| file));
        ca = Some(written.map_err(|error| Error::Missing(format!("cannot write a temporary file: {error}")))?);
    }
    let password = match &given.password_secret {
        None => Password::None,
        Some(StorePasswordSecret { name, key }) => {
            let password = text(&secret(session, name).await?, name, key)?;
            Password::Given(command::Secret(password.trim().to_owned()))
        }
    };
    let location = Location {
        endpoint: given.endpoint.clone(),
        bucket: given.bucket.clone(),
        path: store.path.clone(),
        region: given.region.clone(),
        access: Access::Keys {
            access_key_id: half(&given.credentials_secret.access_key_id_key)?,
            secret_access_key: half(&given.credentials_secret.secret_access_key_key)?,
        },
        ca_file: ca.as_ref().map(|file| file.path().to_owned()),
        password,
        cache: None,
    };
    let restic = std::env::var_os("CLIENTAPP_RESTIC").map_or_else(|| PathBuf::from("restic"), PathBuf::from);
    let repository = Repository { restic, location, timeout: TIMEOUT, stop: CancellationToken::new() };
    let snapshots = repository.snapshots_if_any().await.map_err(|trouble| unusable(&repository, &trouble))?;
    Ok(stored::all(&snapshots, content))
}

fn unusable(repository: &Repository, trouble: &Trouble) -> Error {
    let place = repository.location.repository();
    let hint = match trouble {
        Trouble::Restic(_) => "; restic 0.17 or later has to be installed here",
        _ => "",
    };
    Error::Missing(format!("cannot read {place} from here: {}{hint}", told(trouble, &place)))
}

async fn secret(session: &Session, name: &str) -> Result<BTreeMap<String, ByteString>, Error> {
    let found = session.api::<Secret>().get(name).await;
    let found = found.map_err(Error::api(format!("read Secret {}/{name}", session.namespace)))?;
    Ok(found.data.unwrap_or_default())
}

fn text(data: &BTreeMap<String, ByteString>, secret: &str, key: &str) -> Result<String, Error> {
    let value = data.get(key).and_then(|value| String::from_utf8(value.0.clone()).ok());
    value.ok_or_else(|| Error::Missing(format!("Secret {secret} has no text under the key {key}")))
}

/// `backups --store`.
pub(crate) async fn list(session: &Session, printer: &mut Printer, name: &str) -> Result<(), Error> {
    let stored = session.app(name).await?;
    let store = of(session, &stored.app, None)?;
    let found = read(session, &store, Content::Dump).await?;
    print(printer, &found, &format!("there is no dump of {name} in bucket {}", store.bucket.bucket), "TABLES")
}

/// Lists the archives of an app's files.
pub(crate) async fn list_archives(
    session: &Session,
    printer: &mut Printer,
    name: &str,
    backup: &FilesBackup,
) -> Result<(), Error> {
    let (bucket, path) = (backup.store.bucket.clone(), backup.path(&session.namespace, name));
    let store = DumpStore { bucket, path, size: None };
    let found = read(session, &store, Content::Files).await?;
    let none = format!("there is no archive of the files of {name} in bucket {}", store.bucket.bucket);
    print(printer, &found, &none, "FILES")
}

/// Prints snapshots; `counted` is the heading of what is counted in them.
fn print(printer: &mut Printer, found: &[Stored], none: &str, counted: &str) -> Result<(), Error> {
    if found.is_empty() && printer.is_for_humans() {
        printer.note(none);
    }
    let object = |stored: &Stored| {
        let short = stored.id.get(..8).unwrap_or(&stored.id);
        json!({"name": stored.name, "snapshot": short, "bytes": stored.bytes, counted.to_lowercase(): stored.count})
    };
    let objects: Vec<_> = found.iter().map(object).collect();
    printer.objects(&objects, || rendered(found, counted, Session::now()))
}

/// **Pure.**
fn rendered(found: &[Stored], counted: &str, now: Timestamp) -> String {
    let rows = found.iter().map(|stored| {
        let (size, age) = (BinaryBytes(stored.bytes).to_string(), paint(FAINT, age(Some(stored.name.time()), now)));
        vec![stored.name.to_string(), size, stored.count.to_string(), age]
    });
    let rows: Vec<_> = rows.collect();
    table(&["NAME", "SIZE", counted, "AGE"], &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::dump::Name;

    fn stored(name: &str) -> Stored {
        let name = Name::parse(name).unwrap();
        let (content, id, of) = (Content::Dump, "20543f14f5a0".to_owned(), "7".to_owned());
        let time = name.time();
        Stored { name, content, time, id, paths: Vec::new(), of, has_data: true, bytes: 1, count: 1 }
    }

    #[test]
    fn the_table() {
        let now = "2026-01-04T00:00:00Z".parse().unwrap();
        let text = rendered(&[stored("20260103T000000Z-c")], "FILES", now);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text).to_string(), @r"
        NAME                 SIZE   FILES   AGE
        20260103T000000Z-c   1 B    1       24h
        ");
        assert_eq!(rendered(&[], "FILES", now), "");
    }
}
