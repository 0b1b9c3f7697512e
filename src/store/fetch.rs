//! `store fetch`: restores a dump into a directory of its own, which gets the dump's name only once verified. An **effect**.

use std::{
    fs,
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use tokio::task::spawn_blocking;

use super::{
    dump::{self, Name},
    error::Error,
    settings::{FetchArgs, Which},
    stored::{self, Content, Stored},
};
use crate::{
    platform::{clock, panic::joined},
    restic::repository::Repository,
};

pub(super) async fn fetch(repository: &Repository, fetch: &FetchArgs) -> Result<(), Error> {
    let dump = chosen(repository, &fetch.which, Content::Dump).await?;
    let target = fetch.into.join(dump.name.as_str());
    if target.exists() {
        verify(&target, &dump.name).await.map_err(|problem| Error::InTheWay { path: target.clone(), problem })?;
        println!("dump {} is already in {}", dump.name, target.display());
        return Ok(());
    }
    let partial = Partial::new(&fetch.into, &dump.name)?;
    let path = dump.paths.first().map(String::as_str).unwrap_or_default();
    let restored = repository.restore(&dump.id, path, &partial.path).await;
    restored.map_err(|trouble| Error::restore(repository, &dump.name, trouble))?;
    let found = verify(&partial.path, &dump.name).await;
    found.map_err(|problem| Error::Damaged {
        name: dump.name.clone(),
        place: repository.location.repository(),
        problem,
    })?;
    partial.complete(&target)?;
    println!("fetched dump {} into {}", dump.name, target.display());
    Ok(())
}

/// Returns the requested snapshot of a repository.
pub(super) async fn chosen(repository: &Repository, which: &Which, content: Content) -> Result<Stored, Error> {
    let snapshots = repository.snapshots_if_any().await.map_err(|trouble| Error::read(repository, trouble))?;
    let (all, now) = (stored::all(&snapshots, content), clock::now());
    let (found, which) = match which {
        Which::Named(name) => (all.iter().find(|stored| stored.name == *name), name.to_string()),
        Which::Latest => {
            for stored in all.iter().filter(|stored| stored::is_ahead(stored, now)) {
                println!(
                    "{} is named more than a day ahead of now: it is the latest only if there is no other",
                    stored.name
                );
            }
            (stored::latest(&all, now), "at all".to_owned())
        }
    };
    found.cloned().ok_or_else(|| Error::NotThere { content, which, place: repository.location.repository() })
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
