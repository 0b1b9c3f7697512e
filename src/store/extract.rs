//! `store extract`: restores the files of a snapshot, all of them or none. An **effect**.
//!
//! Files are unpacked into a directory of their own until all of them are there and verified, so an interrupted restore starts over.
//! A volume that has other files is left as it is or, with `--replace`, they are set aside. Directories in a volume say how far a
//! restore has come ([`volume`](super::volume)).

use std::{
    collections::BTreeSet,
    fs,
    io::{self, ErrorKind},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use nix::unistd::{AccessFlags, access, geteuid};

use super::{
    dump::Name,
    error::Error,
    fetch::chosen,
    lock,
    settings::{ExtractArgs, Which},
    stored::{Content, Stored},
    volume::{
        Restore, Target, flushed, is_directory, is_empty, is_ours, is_void, is_volume, read, restores, roots, stamp,
        stamped, tidy, write,
    },
};
use crate::restic::repository::Repository;

pub(super) async fn extract(repository: &Repository, args: &ExtractArgs) -> Result<(), Error> {
    let roots = roots(&args.volumes)?;
    let _locks = roots.iter().map(|root| lock::volume(root, lock::Use::Change)).collect::<Result<Vec<_>, _>>()?;
    let begun = begun(&roots, &args.id, &args.which)?;
    let ready = async {
        let (targets, words) = ready(repository, args, &roots, begun.as_ref()).await?;
        targets.iter().try_for_each(|target| check(target, args.replace))?;
        Ok::<_, Error>((targets, words))
    };
    let ready = ready.await;
    if ready.is_err() && begun.is_none() {
        // What was unpacked takes space that the app may need. If this fails, the next restore removes it.
        for root in &roots {
            let _ = tidy(root, None);
        }
    }
    let untouched = |error| if begun.is_some() { error } else { Error::Untouched(Box::new(error)) };
    let (targets, words) = ready.map_err(untouched)?;
    for target in &targets {
        set_aside(target)?;
        put_in_place(target, &stamp(&args.id, &words))?;
    }
    let archive = words.split(' ').next().unwrap_or_default();
    println!("restored the files of {} volumes from {archive} of {}", targets.len(), repository.location.repository());
    report(args.report.as_deref(), &words)
}

/// Writes the pod's termination message, if there is a file for it.
pub(super) fn report(to: Option<&Path>, words: &str) -> Result<(), Error> {
    to.map_or(Ok(()), |to| fs::write(to, words).map_err(Error::file("write", to)))
}

/// The archive that an earlier pod of this restore has started to move into place: the latest may be another one by now, and two must
/// not mix. Nor may two restores, of which only one knows what it has moved.
fn begun(roots: &[PathBuf], id: &str, which: &Which) -> Result<Option<Name>, Error> {
    let mut begun: Option<Name> = None;
    for root in roots {
        for restore in restores(root)? {
            let target = Target { root: root.clone(), restore };
            let in_another = |root: &PathBuf| Target { root: root.clone(), ..target.clone() }.is_stamped();
            let is_begun = target.is_moving() || target.is_whole() && !target.is_left() && roots.iter().any(in_another);
            if !is_begun {
                continue;
            }
            if target.restore.id != id {
                let path = if target.is_whole() { target.whole() } else { target.aside() };
                return Err(Error::Unfinished { path, id: target.restore.id });
            }
            let named = match which {
                Which::Named(name) => Some(name.clone()),
                Which::Latest => begun.clone(),
            };
            if let Some(named) = named.filter(|named| *named != target.restore.archive) {
                return Err(Error::OtherBegun { id: id.to_owned(), begun: target.restore.archive, named });
            }
            begun = Some(target.restore.archive);
        }
    }
    Ok(begun)
}

/// Unpacks what is missing. Returns the volumes and the archive's words.
async fn ready(
    repository: &Repository,
    args: &ExtractArgs,
    roots: &[PathBuf],
    begun: Option<&Name>,
) -> Result<(Vec<Target>, String), Error> {
    let restore = begun.map(|archive| Restore { archive: archive.clone(), id: args.id.clone() });
    // Without the repository, from which the archive may be gone by now.
    if let Some(ready) = restore.and_then(|restore| all_there(roots, &restore)) {
        return Ok(ready);
    }
    let which = begun.map_or_else(|| args.which.clone(), |name| Which::Named(name.clone()));
    let archive = chosen(repository, &which, Content::Files).await?;
    let restore = Restore { archive: archive.name.clone(), id: args.id.clone() };
    let targets = targets(args, roots, &archive, &restore)?;
    for (target, path) in &targets {
        prepare(repository, args, &archive, path, target).await?;
    }
    Ok((targets.into_iter().map(|(target, _)| target).collect(), archive.words()))
}

/// The volumes and the archive's words, if everything is unpacked or in place already.
fn all_there(roots: &[PathBuf], restore: &Restore) -> Option<(Vec<Target>, String)> {
    let (mut targets, mut all) = (Vec::new(), BTreeSet::new());
    for root in roots {
        let target = Target { root: root.clone(), restore: restore.clone() };
        let stamp = match target.is_whole() {
            true => read(&target.pending()).or_else(|| read(&target.stamp())),
            false => stamped(root),
        };
        all.insert(restore.words(&stamp?)?.to_owned());
        targets.push(target);
    }
    let words = all.pop_first()?;
    all.is_empty().then_some((targets, words))
}

/// Returns where each path of an archive goes. It needs its volume and, if files are replaced, each volume its path.
fn targets<'a>(
    args: &ExtractArgs,
    roots: &[PathBuf],
    archive: &'a Stored,
    restore: &Restore,
) -> Result<Vec<(Target, &'a str)>, Error> {
    let mut targets = Vec::new();
    for path in &archive.paths {
        // A repository's content is not trusted: this name becomes a path.
        let name = path.rsplit('/').next().filter(|name| is_volume(name)).unwrap_or_default();
        let root = args.volumes.join(name);
        if !roots.contains(&root) {
            return Err(Error::NoVolume { archive: archive.name.clone(), volume: name.to_owned() });
        }
        targets.push((Target { root, restore: restore.clone() }, path.as_str()));
    }
    let is_missing = |root: &&PathBuf| targets.iter().all(|(target, _)| target.root != **root);
    match roots.iter().find(is_missing).filter(|_| args.replace) {
        Some(root) => {
            let volume = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Err(Error::NotInArchive { archive: archive.name.clone(), volume })
        }
        None => Ok(targets),
    }
}

/// Unpacks the files of a volume beside it, unless an earlier pod has done so. Refuses a volume with other files in it, unless they are
/// to be replaced.
async fn prepare(
    repository: &Repository,
    args: &ExtractArgs,
    archive: &Stored,
    path: &str,
    target: &Target,
) -> Result<(), Error> {
    tidy(&target.root, Some(&target.restore))?;
    let stamp = stamp(&args.id, &archive.words());
    if target.is_whole() && target.is_moving() || stamped(&target.root).is_some_and(|found| found == stamp) {
        return Ok(());
    }
    if !args.replace && !is_empty(&target.root)? {
        return Err(Error::NotEmpty(target.root.clone()));
    }
    if target.is_whole() {
        return Ok(());
    }
    let partial = target.partial();
    let failed = |error| Error::file("write", &partial)(error);
    fs::create_dir(&partial).map_err(failed)?;
    let restored = repository.restore(&archive.id, path, &partial).await;
    restored.map_err(|trouble| Error::restore(repository, &archive.name, trouble))?;
    write(&target.pending(), &stamp)?;
    fs::create_dir_all(target.aside()).map_err(failed)?;
    // The data must be on disk before the rename says that they are complete.
    flushed(&target.root)?;
    fs::rename(&partial, target.whole()).map_err(failed)
}

/// Fails if something cannot be moved, before anything is.
fn check(target: &Target, replace: bool) -> Result<(), Error> {
    if !target.is_whole() {
        return Ok(());
    }
    if is_directory(&target.stamp()) {
        let error = io::Error::from(ErrorKind::IsADirectory);
        return Err(Error::file("write", &target.stamp())(error));
    }
    if !replace && is_void(&target.aside()) && !is_empty(&target.root)? {
        return Err(Error::NotEmpty(target.root.clone()));
    }
    for found in fs::read_dir(target.whole()).map_err(Error::file("read", &target.whole()))? {
        let found = found.map_err(Error::file("read", &target.whole()))?;
        if is_ours(&found.file_name()) {
            return Err(Error::OursInArchive(found.path()));
        }
    }
    let former = is_directory(&target.aside()).then(|| target.root.clone());
    for directory in former.into_iter().chain([target.whole()]) {
        let failed = |error| Error::file("read", &directory)(error);
        let parent = fs::metadata(&directory).map_err(failed)?;
        for found in fs::read_dir(&directory).map_err(failed)? {
            let found = found.map_err(failed)?;
            if !is_ours(&found.file_name()) && !can_move(&parent, &found).map_err(failed)? {
                return Err(Error::Immovable(found.path()));
            }
        }
    }
    Ok(())
}

/// A directory that gets another parent must be writable, which its owner can make it. In a sticky directory, only owners move.
fn can_move(parent: &fs::Metadata, entry: &fs::DirEntry) -> io::Result<bool> {
    let (me, metadata) = (geteuid().as_raw(), entry.metadata()?);
    let is_sticky = parent.mode() & 0o1000 != 0 && parent.uid() != me;
    Ok(metadata.uid() == me || !is_sticky && (!metadata.is_dir() || is_writable(&entry.path())))
}

fn is_writable(path: &Path) -> bool {
    access(path, AccessFlags::W_OK).is_ok()
}

/// Moves an entry of a volume. What the app has written there meanwhile, because it was started, is not overwritten.
fn move_to(from: &Path, to: &Path, written: &Path) -> Result<(), Error> {
    if to.symlink_metadata().is_ok() {
        return Err(Error::Meanwhile(written.to_owned()));
    }
    let failed = |error| Error::file("write", to)(error);
    let metadata = from.symlink_metadata().map_err(failed)?;
    let locked = (metadata.is_dir() && !is_writable(from)).then(|| metadata.permissions());
    if let Some(locked) = &locked {
        fs::set_permissions(from, fs::Permissions::from_mode(locked.mode() | 0o200)).map_err(failed)?;
    }
    fs::rename(from, to).map_err(failed)?;
    locked.map_or(Ok(()), |locked| fs::set_permissions(to, locked)).map_err(failed)
}

/// Moves the former files one by one. Their directory gets its name last, so that an interrupted move continues, and files that are
/// in place already are never taken for former ones.
fn set_aside(target: &Target) -> Result<(), Error> {
    let aside = target.aside();
    let failed = |error| Error::file("write", &target.root)(error);
    if !is_directory(&aside) || !target.is_whole() {
        return Ok(());
    }
    // The new files must be certain to stay before the former ones go.
    flushed(&target.root)?;
    for found in fs::read_dir(&target.root).map_err(failed)? {
        let found = found.map_err(failed)?;
        if !is_ours(&found.file_name()) {
            move_to(&found.path(), &aside.join(found.file_name()), &found.path())?;
        }
    }
    flushed(&target.root)?;
    match is_void(&aside) {
        true => fs::remove_dir(&aside).map_err(failed)?,
        false => fs::rename(&aside, target.former()).map_err(failed)?,
    }
    flushed(&target.root)
}

/// Moves the files one by one and writes the stamp last, so that an interrupted move continues.
fn put_in_place(target: &Target, stamp: &str) -> Result<(), Error> {
    let whole = target.whole();
    let failed = |error| Error::file("write", &target.root)(error);
    if !target.is_whole() {
        return match read(&target.stamp()).as_deref() == Some(stamp) {
            true => Ok(()),
            false => Err(Error::Vanished(target.root.clone())),
        };
    }
    for found in fs::read_dir(&whole).map_err(failed)? {
        let found = found.map_err(failed)?;
        let place = target.root.join(found.file_name());
        move_to(&found.path(), &place, &place)?;
    }
    write(&target.pending(), stamp)?;
    fs::rename(target.pending(), target.stamp()).map_err(failed)?;
    flushed(&target.root)?;
    fs::remove_dir(&whole).map_err(failed)
}

#[cfg(test)]
mod tests;
