//! `store fetch`: downloads a dump into a directory of its own, which gets the dump's name only once verified. An **effect**.

use std::{
    fs,
    io::{self, Read, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use tokio::task::spawn_blocking;

use super::{
    bucket::Bucket,
    catalog,
    dump::{self, Name},
    error::Error,
    receive::{entry, receive},
    settings::Fetch,
};
use crate::platform::panic::joined;

/// Bytes written at a time; the chunk size of age.
const CHUNK: usize = 64 << 10;

pub(super) async fn fetch(bucket: &Bucket, fetch: &Fetch) -> Result<(), Error> {
    let entry = entry(bucket, &fetch.which, fetch.identity.as_ref()).await?;
    if entry.is_of_files() {
        return Err(Error::OfFiles(bucket.place(entry.name.as_str())));
    }
    let target = fetch.into.join(entry.name.as_str());
    if target.exists() {
        verify(&target, &entry.name).await.map_err(|problem| Error::InTheWay { path: target.clone(), problem })?;
        println!("dump {} is already in {}", entry.name, target.display());
        return Ok(());
    }
    let partial = Partial::new(&fetch.into, &entry.name)?;
    // The smallest first, so that a wrong key is detected at once.
    let mut files: Vec<_> = entry.files.iter().collect();
    files.sort_by_key(|file| file.size);
    for file in files {
        let path = partial.path.join(&file.name);
        let write = move |plain: &mut dyn Read, damaged: &dyn Fn(io::Error) -> Error| write(&path, plain, damaged);
        receive(bucket, &entry, file, fetch.identity.as_ref(), write).await?;
    }
    let place = || bucket.place(&catalog::entry_key(&entry.name));
    let found = verify(&partial.path, &entry.name).await;
    let found = found.map_err(|problem| Error::Damaged { place: place(), problem })?;
    if found.files.len() != entry.files.len() {
        return Err(Error::Damaged {
            place: place(),
            problem: format!("{} does not list all of its files", dump::SUMS),
        });
    }
    partial.complete(&target)?;
    println!("fetched dump {} into {}", entry.name, target.display());
    Ok(())
}

async fn verify(path: &Path, name: &Name) -> Result<dump::Dump, String> {
    let (path, name) = (path.to_owned(), name.clone());
    joined(spawn_blocking(move || dump::verify(&path, &name))).await
}

/// The directory until it is complete; dropping it removes it. Its lock tells `dump.sh` that it is in use.
struct Partial {
    path: PathBuf,
    directory: fs::File,
}

impl Partial {
    fn new(into: &Path, name: &Name) -> Result<Partial, Error> {
        let path = into.join(format!("{name}.partial"));
        if path.exists() {
            // Left by a fetch that was killed, or in use by a running fetch.
            let left = fs::File::open(&path).map_err(Error::file("open", &path))?;
            left.try_lock().map_err(|_| Error::Busy(path.clone()))?;
            fs::remove_dir_all(&path).map_err(Error::file("remove", &path))?;
        }
        fs::DirBuilder::new().mode(0o700).create(&path).map_err(Error::file("create", &path))?;
        let directory = fs::File::open(&path).map_err(Error::file("open", &path))?;
        let partial = Partial { path, directory };
        partial.directory.try_lock().map_err(|_| Error::Busy(partial.path.clone()))?;
        Ok(partial)
    }

    fn complete(self, target: &Path) -> Result<(), Error> {
        self.directory.sync_all().map_err(Error::file("write", &self.path))?;
        fs::rename(&self.path, target).map_err(Error::file("rename", &self.path))?;
        let into = target.parent().unwrap_or(Path::new("."));
        fs::File::open(into).and_then(|into| into.sync_all()).map_err(Error::file("write", into))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // A complete dump was renamed, so nothing has this name any more.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Writes a file from the stream.
fn write(path: &Path, plain: &mut dyn Read, damaged: &dyn Fn(io::Error) -> Error) -> Result<(), Error> {
    let file = fs::File::options().write(true).create_new(true).mode(0o600).open(path);
    let mut file = file.map_err(Error::file("create", path))?;
    let mut chunk = vec![0; CHUNK];
    loop {
        match plain.read(&mut chunk).map_err(damaged)? {
            0 => break,
            read => file.write_all(&chunk[..read]).map_err(Error::file("write", path))?,
        }
    }
    file.sync_all().map_err(Error::file("write", path))
}
