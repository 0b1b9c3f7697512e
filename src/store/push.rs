//! `store push`: uploads the dumps that the bucket lacks and reads them back, then removes old ones from the bucket. An **effect**.

use std::{
    fs,
    io::{Read as _, Write},
};

use jiff::SignedDuration;
use rand::RngExt as _;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use super::{
    bucket::Bucket,
    catalog::{self, Catalog, Entry},
    dump::{self, Dump, Name},
    error::Error,
    keep::{self, Candidate, Keep},
    lock,
    seal::Recipient,
    send::{self, Source},
    settings::Push,
};
use crate::platform::{clock, key::hex};

/// Age at which the files of an incomplete upload are removed: every Job ends far earlier.
const LEFT: SignedDuration = SignedDuration::from_hours(24);
/// Bytes read from a file at a time; the chunk size of age.
const CHUNK: usize = 64 << 10;

pub(super) async fn push(bucket: &Bucket, push: &Push, stop: &CancellationToken) -> Result<(), Error> {
    // Two processes would upload the same dumps twice.
    let _lock = stop.run_until_cancelled(lock::wait(&push.dumps)).await.unwrap_or(Err(Error::Stopped))?;
    let (whole, damaged) = dump::all(&push.dumps).map_err(Error::file("read", &push.dumps))?;
    for (name, problem) in damaged {
        println!("dump {name} is damaged ({problem}) and not uploaded");
    }
    let newest = whole.first().ok_or_else(|| Error::NoDump(push.dumps.clone()))?;
    let mut found = catalog::read(bucket).await?;
    for (name, problem) in &found.damaged {
        println!("{} is damaged ({problem})", bucket.place(name.as_str()));
    }
    // The newest first, because a later upload may fail.
    for dump in missing(&found, &whole, push.keep) {
        match upload(bucket, dump, push.recipient.as_ref(), stop).await {
            Ok(entry) => {
                let (files, bytes) = (entry.files.len(), entry.files.iter().map(|file| file.size).sum::<u64>());
                println!(
                    "stored dump {} as {}: {files} files, {bytes} bytes",
                    dump.name,
                    bucket.place(dump.name.as_str())
                );
                found.entries.push(entry);
            }
            Err(Error::DamagedHere { problem, .. }) if dump != newest => {
                println!("dump {} is damaged ({problem}) and not uploaded", dump.name);
            }
            // The Job of another dump has removed it.
            Err(_) if dump != newest && !dump.path.exists() => {}
            Err(error) => return Err(error),
        }
    }
    for entry in later(&found, &newest.name) {
        println!(
            "{} is named later than the newest dump on the volume: it was dumped from another volume, or a node's clock was wrong. It replaces no other dump and is kept",
            bucket.place(entry.name.as_str())
        );
    }
    let Some(keep) = push.keep else { return Ok(()) };
    let here: Vec<_> = whole.iter().map(|dump| &dump.name).collect();
    let gone = gone(&found, newest.about.system.as_str(), keep, &newest.name, &here);
    tidy(bucket, &found, &gone).await
}

/// The dumps that the bucket lacks or has damaged, and would keep; the newest in any case. **Pure.**
fn missing<'a>(found: &Catalog, whole: &'a [Dump], keep: Option<Keep>) -> Vec<&'a Dump> {
    let there = |name: &Name| found.entries.iter().any(|entry| entry.name == *name);
    let lacking = whole.iter().filter(|dump| !there(&dump.name));
    let (Some(keep), Some(newest)) = (keep, whole.first()) else { return lacking.collect() };
    let here: Vec<_> = whole.iter().map(|dump| catalog::candidate(&dump.name, &dump.about)).collect();
    let mut all = counted(found, &newest.name);
    all.extend(here.iter().filter(|candidate| !there(&candidate.name)).cloned());
    let mut kept = keep::kept(&all, keep);
    kept.extend(keep::kept(&here, keep));
    lacking.filter(|dump| *dump == newest || kept.contains(&dump.name)).collect()
}

/// The dumps to remove, of the server of `newest`. A dump that is named later replaces none, and those on the volume, known to
/// be good, are kept as if there were no others: a user with write access to the bucket can put anything else there. **Pure.**
pub(super) fn gone(found: &Catalog, server: &str, keep: Keep, newest: &Name, here: &[&Name]) -> Vec<Name> {
    let all = counted(found, newest);
    let known: Vec<_> = all.iter().filter(|candidate| here.contains(&&candidate.name)).cloned().collect();
    let stays = keep::kept(&known, keep);
    keep::goes(&all, server, keep).into_iter().filter(|name| !stays.contains(name)).collect()
}

/// The dumps that count for the retention rules.
fn counted(found: &Catalog, newest: &Name) -> Vec<Candidate> {
    found.entries.iter().filter(|entry| entry.name <= *newest).map(Entry::candidate).collect()
}

/// Sorted by name is sorted by time, so these were not dumped before the newest one.
pub(super) fn later<'a>(found: &'a Catalog, newest: &Name) -> impl Iterator<Item = &'a Entry> {
    found.entries.iter().filter(move |entry| entry.name > *newest)
}

/// Removes old dumps and the files of incomplete uploads.
pub(super) async fn tidy(bucket: &Bucket, found: &Catalog, gone: &[Name]) -> Result<(), Error> {
    for name in gone {
        let Some(entry) = catalog::one(bucket, name).await? else { continue };
        // The entry first: a partially removed dump must not look complete.
        bucket.delete(&catalog::entry_key(name)).await?;
        for key in entry.keys() {
            bucket.delete(&key).await?;
        }
        println!("removed {}: newer dumps replace it", bucket.place(name.as_str()));
    }
    let old = clock::now() - LEFT;
    for object in found.loose.iter().filter(|object| object.modified < old) {
        bucket.delete(&object.key).await?;
        println!("removed {}: its upload was never completed", bucket.place(&object.key));
    }
    Ok(())
}

async fn upload(
    bucket: &Bucket,
    dump: &Dump,
    recipient: Option<&Recipient>,
    stop: &CancellationToken,
) -> Result<Entry, Error> {
    let folder = hex(&rand::rng().random::<[u8; 8]>());
    let key = |file: &dump::File| catalog::file_key(&dump.name, &folder, &file.name, recipient.is_some());
    let stored = async {
        let mut stored = Vec::new();
        for file in &dump.files {
            let (dump, name, size, whole) = (dump.clone(), file.name.clone(), file.size, file.clone());
            let write = move |to: &mut dyn Write| copy(&dump, &whole, to);
            stored.push(send::send(bucket, &key(file), Source { name, size, write }, recipient, stop).await?);
        }
        let entry = Entry::new(dump, folder.clone(), recipient.map(Recipient::to_string), stored);
        send::complete(bucket, &entry).await.map(|()| entry)
    };
    let stored = stored.await;
    if stored.as_ref().is_err_and(|error| !matches!(error, Error::Stopped)) {
        let keys: Vec<_> = dump.files.iter().map(key).collect();
        send::withdraw(bucket, &catalog::entry_key(&dump.name), &keys).await;
    }
    stored
}

/// Passes a file on, provided that its checksum matches.
fn copy(dump: &Dump, file: &dump::File, to: &mut dyn Write) -> Result<(), Error> {
    let path = dump.path.join(&file.name);
    let mut source = fs::File::open(&path).map_err(Error::file("open", &path))?;
    let (mut plain, mut chunk) = (Sha256::new(), vec![0; CHUNK]);
    loop {
        match source.read(&mut chunk).map_err(Error::file("read", &path))? {
            0 => break,
            read => {
                plain.update(&chunk[..read]);
                to.write_all(&chunk[..read]).map_err(|_| Error::Cut)?;
            }
        }
    }
    if file.sha256.as_ref().is_some_and(|sum| *sum != hex(&plain.finalize())) {
        let problem = format!("the checksum of {} differs from the one in {}", file.name, dump::SUMS);
        return Err(Error::DamagedHere { name: dump.name.clone(), path: dump.path.clone(), problem });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::dump::About;

    fn here(name: &str) -> Dump {
        let about = About { system: "7".to_owned(), postgres: "17.10".to_owned(), tables: 1 };
        Dump { name: Name::parse(name).unwrap(), path: "/x".into(), about, files: Vec::new() }
    }

    fn in_bucket(names: &[&str]) -> Catalog {
        let entry = |name: &&str| Entry::new(&here(name), "f".to_owned(), None, Vec::new());
        Catalog { entries: names.iter().map(entry).collect(), ..Catalog::default() }
    }

    const A: &str = "20260102T030000Z-a";
    const B: &str = "20260103T030000Z-b";
    const C: &str = "20260104T030000Z-c";
    /// From a node whose clock was ahead, or from a user with write access to the bucket.
    const AHEAD: &str = "99991231T000000Z-x";
    /// From such a user, between the good ones.
    const BETWEEN: [&str; 2] = ["20260104T020000Z-x", "20260104T010000Z-x"];

    #[test]
    fn what_is_here_is_uploaded_and_stays_whatever_else_is_in_the_bucket() {
        let last = |last| Keep { last, ..Keep::default() };
        for (what, there, local, keep, uploaded, goes) in [
            ("one is newer", &[B, A][..], &[C, B, A][..], 2, &[C][..], &[A][..]),
            ("one from the future stands for none", &[AHEAD, B, A], &[C, B], 1, &[C], &[B, A]),
            ("nor does it keep the newest away", &[AHEAD, B, A], &[C], 2, &[C], &[A]),
            ("not even where nothing is new", &[AHEAD, C, B, A], &[C, B, A], 3, &[], &[]),
            ("what is known to be good stays", &[C, BETWEEN[0], BETWEEN[1], B, A], &[C, B], 2, &[], &[BETWEEN[1], A]),
            ("and is uploaded", &[BETWEEN[0], BETWEEN[1]], &[C, B], 2, &[C, B], &[BETWEEN[1]]),
        ] {
            let mut found = in_bucket(there);
            let whole: Vec<_> = local.iter().map(|name| here(name)).collect();
            let missing: Vec<_> =
                missing(&found, &whole, Some(last(keep))).iter().map(|dump| dump.name.as_str()).collect();
            assert_eq!(missing, uploaded, "{what}");
            found.entries.extend(in_bucket(uploaded).entries);
            let names: Vec<_> = whole.iter().map(|dump| &dump.name).collect();
            let gone = gone(&found, "7", last(keep), &whole[0].name, &names);
            assert_eq!(gone.iter().map(Name::as_str).collect::<Vec<_>>(), goes, "{what}");
        }
        let named = Name::parse(C).unwrap();
        assert_eq!(
            later(&in_bucket(&[AHEAD, C]), &named).map(|entry| entry.name.as_str()).collect::<Vec<_>>(),
            [AHEAD]
        );
    }
}
