//! Dumps and archives in a bucket, read from the user's machine with the credentials that the cluster uses. An **effect** that reads.

use std::{collections::BTreeMap, time::Duration};

use indicatif::BinaryBytes;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use serde_json::json;

use super::{
    error::Error,
    session::{Printer, Session},
    text::{FAINT, age, harmless, paint, table},
};
use crate::{
    crd::{ClientApp, DumpStore, FilesBackup, IdentitySecret, StoreKeep},
    platform::key::Key,
    store::{
        bucket::{Access, Bucket},
        catalog::{self, Catalog, Entry},
        dump::{About, Name},
        keep::{self, Candidate, Keep},
        seal::Identity,
        settings::{Endpoint, Hidden, Prefix},
    },
};

/// How messages name what is in a bucket.
struct Words {
    one: &'static str,
    /// The command that lists them.
    lists: &'static str,
    /// What makes another one of the present state.
    now: &'static str,
    keep: &'static str,
}

const DUMPS: Words = Words {
    one: "dump",
    lists: "kubectl clientapp backups NAME --store",
    now: "dumping the current content",
    keep: "spec.postgres.backup.store.keep",
};
const ARCHIVES: Words = Words {
    one: "archive",
    lists: "kubectl clientapp backups NAME --files",
    now: "archiving the present files",
    keep: "spec.persistence.backup.store.keep",
};

/// Short, because a user is waiting.
const TIMEOUT: Duration = Duration::from_secs(20);

/// The bucket and path that the dumps of an app's database are uploaded to.
pub(crate) fn of(session: &Session, app: &ClientApp, identity: Option<&str>) -> Result<DumpStore, Error> {
    let name = app.metadata.name.as_deref().unwrap_or_default();
    let store = app.spec.postgres.backup.as_ref().and_then(|backup| backup.store.clone());
    let Some(store) = store else {
        return Err(Error::Missing(format!(
            "the dumps of {name} are not uploaded to a bucket: spec.postgres.backup.store is not set"
        )));
    };
    let path = store.path(&session.namespace, &Key::new(&session.namespace, name).database());
    let identity_secret = identity.map(IdentitySecret::named);
    Ok(DumpStore { bucket: store.bucket, path, identity_secret, size: None })
}

/// The bucket with the archives of an app's files, and a path in it.
pub(crate) fn of_files(backup: &FilesBackup, path: &str, identity: Option<&str>) -> DumpStore {
    let identity_secret = identity.map(IdentitySecret::named);
    DumpStore { bucket: backup.store.bucket.clone(), path: path.to_owned(), identity_secret, size: None }
}

/// Reads what is in the bucket.
async fn read(session: &Session, store: &DumpStore) -> Result<Catalog, Error> {
    let given = &store.bucket;
    let credentials = secret(session, &given.credentials_secret.name).await?;
    let half = |key: &String| text(&credentials, &given.credentials_secret.name, key).map(Hidden);
    let certificates = match &given.ca_secret {
        None => None,
        Some(ca) => {
            let data = secret(session, &ca.name).await?;
            Some((format!("Secret {}", ca.name), text(&data, &ca.name, &ca.key)?.into_bytes()))
        }
    };
    let bucket = Bucket::connect(Access {
        endpoint: &given.endpoint.parse::<Endpoint>().map_err(|problem| unusable(store, problem))?,
        bucket: &given.bucket,
        prefix: &store.path.parse::<Prefix>().map_err(|problem| unusable(store, problem))?,
        region: &given.region,
        access_key_id: half(&given.credentials_secret.access_key_id_key)?,
        secret_access_key: half(&given.credentials_secret.secret_access_key_key)?,
        certificates,
        retry_timeout: TIMEOUT,
        timeout: TIMEOUT,
    });
    match bucket {
        Ok(bucket) => catalog::read(&bucket).await.map_err(|problem| unusable(store, problem)),
        Err(problem) => Err(unusable(store, problem)),
    }
}

fn unusable(store: &DumpStore, problem: impl std::fmt::Display) -> Error {
    Error::Missing(format!("cannot read the bucket at {} from here: {problem}", store.bucket.endpoint))
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

/// Nothing may be deleted for a dump that is not in the bucket, that the given key does not decrypt, or that the retention rules would
/// remove once the current content is dumped: `more` dumps are made.
pub(crate) async fn holds(
    session: &Session,
    app: &ClientApp,
    store: &DumpStore,
    from: &str,
    more: usize,
) -> Result<(), Error> {
    let found = read(session, store).await?;
    let key = public_key(session, store).await?;
    let backup = app.spec.postgres.backup.as_ref().filter(|_| more > 0);
    let keep = backup.and_then(|backup| backup.store.as_ref()?.keep.as_ref());
    usable(&found, from, key.as_deref(), keep, (more, Session::now())).map_err(Error::Stalled)
}

/// The name of an archive that the files can be restored from. `present`: the `ARCHIVE_OF` of the volumes whose files are archived into
/// the same path first, if they are.
pub(crate) async fn archive(
    session: &Session,
    backup: &FilesBackup,
    store: &DumpStore,
    from: &str,
    present: Option<&str>,
) -> Result<String, Error> {
    let found = archives(session, store).await?;
    let key = public_key(session, store).await?;
    let entry = chosen(&found, from, key.as_deref(), &ARCHIVES).map_err(Error::Stalled)?;
    // An archive of other volumes never replaces this one.
    let keep = backup.store.keep.as_ref().filter(|_| present == Some(entry.about.system.as_str()));
    let stays = keep.map_or(Ok(()), |keep| stays(&found, entry, keep, (1, Session::now()), &ARCHIVES));
    stays.map(|()| entry.name.to_string()).map_err(Error::Stalled)
}

/// Reads the archives in the bucket. A dump, which a user may have named the path of, has a version of PostgreSQL.
async fn archives(session: &Session, store: &DumpStore) -> Result<Catalog, Error> {
    let mut found = read(session, store).await?;
    found.entries.retain(|entry| entry.about.postgres.is_empty());
    Ok(found)
}

/// The public key of the secret key that was given to decrypt with.
async fn public_key(session: &Session, store: &DumpStore) -> Result<Option<String>, Error> {
    let Some(IdentitySecret { name, key }) = &store.identity_secret else { return Ok(None) };
    let identity = Identity::parse(&text(&secret(session, name).await?, name, key)?);
    let identity =
        identity.ok_or_else(|| Error::Missing(format!("{key} of Secret {name} is not an age secret key")))?;
    Ok(Some(identity.recipient()))
}

/// Why a restore cannot rely on a dump. The rules in `keep` are applied as if `more` dumps followed. **Pure.**
fn usable(
    found: &Catalog,
    from: &str,
    key: Option<&str>,
    keep: Option<&StoreKeep>,
    times: (usize, Timestamp),
) -> Result<(), String> {
    let entry = chosen(found, from, key, &DUMPS)?;
    keep.map_or(Ok(()), |keep| stays(found, entry, keep, times, &DUMPS))
}

/// The entry of this name, if it is whole and the key decrypts it. **Pure.**
fn chosen<'a>(found: &'a Catalog, from: &str, key: Option<&str>, words: &Words) -> Result<&'a Entry, String> {
    let Words { one, lists, .. } = words;
    if let Some((name, problem)) = found.damaged.iter().find(|(name, _)| name.as_str() == from) {
        return Err(format!("{one} {name} is damaged: {problem}"));
    }
    let chosen = match from {
        "latest" => found.latest(),
        from => found.entries.iter().find(|entry| entry.name.as_str() == from),
    };
    let chosen = chosen.ok_or_else(|| format!("there is no {one} {from} in the bucket: `{lists}` lists them"))?;
    match (&chosen.recipient, key) {
        (Some(recipient), None) => Err(format!(
            "{one} {} is encrypted for {recipient}: store the secret key in a Secret, under the key identity, and pass its name with --identity-secret",
            chosen.name
        )),
        (Some(recipient), Some(key)) if recipient != key => {
            Err(format!("{one} {} is encrypted for {recipient}, but the given key is for {key}", chosen.name))
        }
        _ => Ok(chosen),
    }
}

/// Whether the rules in `keep` would still keep an entry once `more` of the same volumes or database followed. **Pure.**
fn stays(
    found: &Catalog,
    chosen: &Entry,
    keep: &StoreKeep,
    (more, now): (usize, Timestamp),
    Words { one, now: making, keep: field, .. }: &Words,
) -> Result<(), String> {
    let mut all: Vec<Candidate> = found.entries.iter().map(catalog::Entry::candidate).collect();
    let of_now: Vec<_> = (0..more)
        .filter_map(|second| {
            let at = now + SignedDuration::from_secs(i64::try_from(second).unwrap_or_default());
            Name::parse(&at.strftime("%Y%m%dT%H%M%SZ-now").to_string())
        })
        .collect();
    // As in `store`, a dump that is named later replaces none.
    all.retain(|candidate| of_now.last().is_none_or(|newest| candidate.name <= *newest));
    all.extend(of_now.into_iter().map(|name| catalog::candidate(&name, &About { tables: 1, ..chosen.about.clone() })));
    let count = |count: i32| u32::try_from(count).unwrap_or_default();
    let rules = Keep {
        last: count(keep.last),
        daily: count(keep.daily),
        weekly: count(keep.weekly),
        monthly: count(keep.monthly),
    };
    match keep::kept(&all, rules).contains(&chosen.name) {
        true => Ok(()),
        false => Err(format!("{making} would remove {one} {} from the bucket: raise {field} first", chosen.name)),
    }
}

/// `backups --store`.
pub(crate) async fn list(session: &Session, printer: &mut Printer, name: &str) -> Result<(), Error> {
    let stored = session.app(name).await?;
    let store = of(session, &stored.app, None)?;
    let found = read(session, &store).await?;
    for (name, problem) in &found.damaged {
        printer.note(&format!("{name} is damaged: {}", harmless(problem)));
    }
    if found.entries.is_empty() && printer.is_for_humans() {
        printer.note(&format!("there is no dump of {name} in bucket {}", store.bucket.bucket));
    }
    let objects: Vec<_> = found
        .entries
        .iter()
        .map(|entry| {
            let encrypted = entry.recipient.is_some();
            json!({"name": entry.name, "bytes": entry.bytes, "tables": entry.about.tables, "encrypted": encrypted})
        })
        .collect();
    let rows: Vec<_> = found
        .entries
        .iter()
        .map(|entry| {
            let size = BinaryBytes(entry.bytes).to_string();
            let encrypted = if entry.recipient.is_some() { "yes" } else { "no" };
            let age = paint(FAINT, age(Some(entry.name.time()), Session::now()));
            vec![entry.name.to_string(), size, entry.about.tables.to_string(), encrypted.to_owned(), age]
        })
        .collect();
    printer.objects(&objects, || match rows.is_empty() {
        true => String::new(),
        false => table(&["NAME", "SIZE", "TABLES", "ENCRYPTED", "AGE"], &rows),
    })
}

/// Lists the archives of an app's files.
pub(crate) async fn list_archives(
    session: &Session,
    printer: &mut Printer,
    name: &str,
    backup: &FilesBackup,
) -> Result<(), Error> {
    let store = of_files(backup, &backup.path(&session.namespace, name), None);
    let found = archives(session, &store).await?;
    for (name, problem) in &found.damaged {
        printer.note(&format!("{name} is damaged: {}", harmless(problem)));
    }
    if found.entries.is_empty() && printer.is_for_humans() {
        printer.note(&format!("there is no archive of the files of {name} in bucket {}", store.bucket.bucket));
    }
    let object = |entry: &Entry| {
        let encrypted = entry.recipient.is_some();
        json!({"name": entry.name, "bytes": entry.bytes, "files": entry.about.tables, "encrypted": encrypted})
    };
    let objects: Vec<_> = found.entries.iter().map(object).collect();
    printer.objects(&objects, || archives_table(&found, Session::now()))
}

/// **Pure.**
fn archives_table(found: &Catalog, now: Timestamp) -> String {
    let rows = found.entries.iter().map(|entry| {
        let (size, age) = (BinaryBytes(entry.bytes).to_string(), paint(FAINT, age(Some(entry.name.time()), now)));
        vec![entry.name.to_string(), size, entry.about.tables.to_string(), age]
    });
    let rows: Vec<_> = rows.collect();
    if rows.is_empty() { String::new() } else { table(&["NAME", "SIZE", "FILES", "AGE"], &rows) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, recipient: Option<&str>) -> Entry {
        serde_json::from_value(json!({
            "format": 1, "name": name, "system": "7", "postgres": "17.10", "tables": 1, "bytes": 1,
            "recipient": recipient, "folder": "f", "files": [],
        }))
        .unwrap()
    }

    #[test]
    fn which_dumps_can_be_counted_on() {
        let (c, b, a) = ("20260103T000000Z-c", "20260102T000000Z-b", "20260101T000000Z-a");
        let found =
            Catalog { entries: vec![entry(c, Some("age1x")), entry(b, None), entry(a, None)], ..Catalog::default() };
        let last = |last| Some(StoreKeep { last, daily: 0, weekly: 0, monthly: 0 });
        for (what, from, key, keep, expected) in [
            ("in clear", b, None, None, None),
            ("a key that is not needed", b, Some("age1x"), None, None),
            ("the latest", "latest", Some("age1x"), None, None),
            ("no key", "latest", None, None, Some("--identity-secret")),
            ("another key", c, Some("age1y"), None, Some("the given key is for age1y")),
            ("it is not there", "20250101T000000Z-a", None, None, Some("there is no dump 20250101T000000Z-a")),
            ("it stays beside the one of now and the last one", b, None, last(4), None),
            ("it would go for the last one", b, None, last(3), Some("from the bucket")),
        ] {
            let now = "2026-01-04T00:00:00Z".parse().unwrap();
            match (usable(&found, from, key, keep.as_ref(), (2, now)), expected) {
                (Ok(()), None) => {}
                (Err(why), Some(words)) => assert!(why.contains(words), "{what}: {why}"),
                (found, _) => panic!("{what}: {found:?}"),
            }
        }
        assert!(usable(&Catalog::default(), "latest", None, None, (0, Timestamp::UNIX_EPOCH)).is_err());
    }

    #[test]
    fn archives_are_no_dumps() {
        let name = Name::parse("20260102T000000Z-b").unwrap();
        let damaged = vec![(name.clone(), "nextcloud.tar.gz does not exist".to_owned())];
        let found = Catalog { damaged, entries: vec![entry("20260101T000000Z-a", None)], ..Catalog::default() };
        let why = |from: &str| chosen(&found, from, None, &ARCHIVES).map(|entry| entry.name.to_string()).unwrap_err();
        assert_eq!(why(name.as_str()), "archive 20260102T000000Z-b is damaged: nextcloud.tar.gz does not exist");
        assert!(why("20250101T000000Z-a").contains("`kubectl clientapp backups NAME --files` lists them"));
        let keep = StoreKeep { last: 1, daily: 0, weekly: 0, monthly: 0 };
        let now = "2026-01-04T00:00:00Z".parse().unwrap();
        let stays = |more| stays(&found, &found.entries[0], &keep, (more, now), &ARCHIVES);
        assert_eq!(stays(0), Ok(()));
        assert_eq!(
            stays(1).unwrap_err(),
            "archiving the present files would remove archive 20260101T000000Z-a from the bucket: raise spec.persistence.backup.store.keep first"
        );
    }

    #[test]
    fn the_archives() {
        let found = Catalog { entries: vec![entry("20260103T000000Z-c", None)], ..Catalog::default() };
        let now = "2026-01-04T00:00:00Z".parse().unwrap();
        insta::assert_snapshot!(anstream::adapter::strip_str(&archives_table(&found, now)).to_string(), @r"
        NAME                 SIZE   FILES   AGE
        20260103T000000Z-c   1 B    1       24h
        ");
        assert_eq!(archives_table(&Catalog::default(), now), "");
    }
}
