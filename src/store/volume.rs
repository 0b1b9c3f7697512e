//! Reads what restores leave in a volume, and how far they have come. An **effect**.
//!
//! The names of a restore's directories contain the archive and the restore's id, and no other restore uses them:
//!
//! | `.partial` | `.whole` | `.aside` | |
//! |---|---|---|---|
//! | yes | | none, or empty | files are being unpacked |
//! | | yes | empty | everything is unpacked, nothing was moved in this volume |
//! | | yes | filled | the former files are being moved into `.aside` |
//! | | yes | | files are being moved into place; `.aside` is `.former` by now, or there were no former files |
//!
//! From the second row on, `.stamp` has the words that become the volume's stamp, so the repository is not needed any more.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    io::{self, ErrorKind, Read as _, Write as _},
    os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use nix::fcntl::OFlag;

use super::{dump::Name, error::Error, settings::is_id};

/// Prefix of the names of our own directories in a volume.
pub(super) const OURS: &str = ".clientapp-restore.";
/// Records which restore has filled a volume, and with which archive.
pub(super) const STAMP: &str = ".clientapp-restored";
/// Made by the file system itself.
pub(super) const LOST_AND_FOUND: &str = "lost+found";
/// Most bytes read from a stamp: the app may have put any file there.
pub(super) const LONGEST: u64 = 4096;

/// Last parts of the names of what a restore has in a volume.
pub(super) const PARTIAL: &str = "partial";
pub(super) const WHOLE: &str = "whole";
pub(super) const ASIDE: &str = "aside";
pub(super) const PENDING: &str = "stamp";

/// Tells one restore of an archive from any other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Restore {
    pub(super) archive: Name,
    pub(super) id: String,
}

impl Restore {
    /// The restore and the last part of a name in a volume. `.former` directories belong to none.
    pub(super) fn parse(name: &str) -> Option<(Restore, &str)> {
        let mut parts = name.strip_prefix(OURS)?.split('.');
        let (archive, id, kind) = (Name::parse(parts.next()?)?, parts.next()?, parts.next()?);
        let fits = parts.next().is_none() && is_id(id) && [PARTIAL, WHOLE, ASIDE, PENDING].contains(&kind);
        fits.then(|| (Restore { archive, id: id.to_owned() }, kind))
    }

    /// The archive's words in a stamp of this restore.
    pub(super) fn words<'a>(&self, stamp: &'a str) -> Option<&'a str> {
        let words = stamp.strip_prefix(&self.id)?.strip_prefix(' ')?.strip_suffix('\n')?;
        let [name, bytes, files] = words.split(' ').collect::<Vec<_>>()[..] else { return None };
        let fits = name == self.archive.as_str() && [bytes, files].iter().all(|count| count.parse::<u64>().is_ok());
        fits.then_some(words)
    }
}

/// A volume that files are restored to.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) root: PathBuf,
    pub(super) restore: Restore,
}

impl Target {
    pub(super) fn own(&self, kind: &str) -> PathBuf {
        self.root.join(format!("{OURS}{}.{}.{kind}", self.restore.archive, self.restore.id))
    }

    /// The directory to unpack into.
    pub(super) fn partial(&self) -> PathBuf {
        self.own(PARTIAL)
    }

    /// Its name once everything is unpacked and verified.
    pub(super) fn whole(&self) -> PathBuf {
        self.own(WHOLE)
    }

    /// The directory that the former files are moved into. It is created before there is a [`Target::whole`], so it tells that from
    /// one of which files may be in place already.
    pub(super) fn aside(&self) -> PathBuf {
        self.own(ASIDE)
    }

    /// Its name once it has all of them: a free one, since an earlier restore of the same archive may have left one as well.
    pub(super) fn former(&self) -> PathBuf {
        let (mut free, mut number) = (self.root.join(format!("{OURS}former.{}", self.restore.archive)), 1);
        while free.symlink_metadata().is_ok() {
            number += 1;
            free = self.root.join(format!("{OURS}former.{}.{number}", self.restore.archive));
        }
        free
    }

    /// The stamp before it counts.
    pub(super) fn pending(&self) -> PathBuf {
        self.own(PENDING)
    }

    pub(super) fn stamp(&self) -> PathBuf {
        self.root.join(STAMP)
    }

    pub(super) fn is_whole(&self) -> bool {
        is_directory(&self.whole())
    }

    /// Returns true if the volume is stamped by this restore.
    pub(super) fn is_stamped(&self) -> bool {
        stamped(&self.root).is_some_and(|stamp| self.restore.words(&stamp).is_some())
    }

    /// Returns true if an empty `.whole` is left beside the stamp, only to be removed.
    pub(super) fn is_left(&self) -> bool {
        is_void(&self.whole()) && self.is_stamped()
    }

    /// Returns true if files of this volume were moved, and more are to be.
    pub(super) fn is_moving(&self) -> bool {
        let aside = self.aside();
        match is_directory(&aside) {
            true => !is_void(&aside),
            false => self.is_whole() && !self.is_left(),
        }
    }
}

/// Returns true if a directory may have this name: it is that of a volume in a snapshot, too.
pub(super) fn is_volume(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.len() <= 253
        && name.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-.".contains(&c))
}

/// The directories of the volumes, sorted by name.
pub(super) fn roots(volumes: &Path) -> Result<Vec<PathBuf>, Error> {
    let failed = |error| Error::file("read", volumes)(error);
    let mut roots = Vec::new();
    for volume in fs::read_dir(volumes).map_err(failed)? {
        let volume = volume.map_err(failed)?;
        let name = volume.file_name();
        if name == LOST_AND_FOUND {
            continue;
        }
        if !name.to_str().is_some_and(is_volume) {
            return Err(Error::Settings(format!("{} is not named like a volume", volume.path().display())));
        }
        roots.push(volume.path());
    }
    roots.sort();
    match roots.is_empty() {
        true => Err(Error::Settings(format!("{}: no volume found", volumes.display()))),
        false => Ok(roots),
    }
}

/// Fails if a restore has not ended in one of the volumes, so that its files may be somewhere else.
pub(super) fn none_begun<'a>(roots: impl IntoIterator<Item = &'a Path>) -> Result<(), Error> {
    for root in roots {
        for restore in restores(root)? {
            let target = Target { root: root.to_owned(), restore };
            if target.is_whole() && !target.is_left() {
                return Err(Error::Restoring(target.whole()));
            }
            if target.is_moving() {
                return Err(Error::Restoring(target.aside()));
            }
        }
    }
    Ok(())
}

/// Returns true if the file system or a restore has made this entry of a volume, not the app.
pub(super) fn is_ours(name: &OsStr) -> bool {
    name == LOST_AND_FOUND || name == STAMP || name.to_str().is_some_and(|name| name.starts_with(OURS))
}

pub(super) fn stamp(id: &str, words: &str) -> String {
    format!("{id} {words}\n")
}

/// The restores that have something in a volume.
pub(super) fn restores(root: &Path) -> Result<BTreeSet<Restore>, Error> {
    let failed = |error| Error::file("read", root)(error);
    let mut restores = BTreeSet::new();
    for found in fs::read_dir(root).map_err(failed)? {
        let name = found.map_err(failed)?.file_name();
        restores.extend(name.to_str().and_then(Restore::parse).map(|(restore, _)| restore));
    }
    Ok(restores)
}

/// Returns true if the app has no files in a volume.
pub(super) fn is_empty(root: &Path) -> Result<bool, Error> {
    let failed = |error| Error::file("read", root)(error);
    for found in fs::read_dir(root).map_err(failed)? {
        if !is_ours(&found.map_err(failed)?.file_name()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The stamp of a volume. One in an otherwise empty volume belongs to files that were deleted since.
pub(super) fn stamped(root: &Path) -> Option<String> {
    read(&root.join(STAMP)).filter(|_| is_empty(root).is_ok_and(|empty| !empty))
}

/// Reads a stamp. The app may have put a link, a pipe or any other file in its place.
pub(super) fn read(stamp: &Path) -> Option<String> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = fs::File::options().read(true).custom_flags(flags).open(stamp).ok()?;
    let mut text = String::new();
    let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
    (is_file && file.take(LONGEST).read_to_string(&mut text).is_ok()).then_some(text)
}

/// Links are not followed.
pub(super) fn is_directory(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir())
}

/// Returns true if there is such a directory, without anything in it.
pub(super) fn is_void(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut found| found.next().is_none())
}

/// Writes a file anew, without following a link.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Error> {
    let failed = |error| Error::file("write", path)(error);
    remove(path).map_err(failed)?;
    let mut file = fs::File::options().write(true).create_new(true).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}

/// Flushes everything written there to disk.
pub(super) fn flushed(root: &Path) -> Result<(), Error> {
    let failed = |error| Error::file("write", root)(error);
    let directory = fs::File::open(root).map_err(failed)?;
    nix::unistd::syncfs(directory).map_err(|error| failed(error.into()))
}

/// Removes what pods that were interrupted have unpacked, as long as nothing was moved; but keeps what is whole of this restore.
pub(super) fn tidy(root: &Path, keep: Option<&Restore>) -> Result<(), Error> {
    let failed = |error| Error::file("write", root)(error);
    for restore in restores(root)? {
        let target = Target { root: root.to_owned(), restore };
        if target.is_whole() && (target.is_moving() || keep == Some(&target.restore)) {
            continue;
        }
        remove(&target.partial()).map_err(failed)?;
        if target.is_whole() {
            // A half removed one must not look whole.
            fs::rename(target.whole(), target.partial()).map_err(failed)?;
        }
        for own in [target.partial(), target.whole(), target.pending()] {
            remove(&own).map_err(failed)?;
        }
        match is_directory(&target.aside()) {
            true if is_void(&target.aside()) => fs::remove_dir(target.aside()).map_err(failed)?,
            true => {}
            false => remove(&target.aside()).map_err(failed)?,
        }
    }
    Ok(())
}

/// Removes a file, or a directory in which there may be read-only ones.
pub(super) fn remove(path: &Path) -> io::Result<()> {
    if !is_directory(path) {
        return gone(fs::remove_file(path));
    }
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            unlock(path)?;
            fs::remove_dir_all(path)
        }
        removed => removed,
    }
}

/// Makes all directories of a tree writable.
pub(super) fn unlock(directory: &Path) -> io::Result<()> {
    fs::set_permissions(directory, fs::Permissions::from_mode(0o700))?;
    for found in fs::read_dir(directory)? {
        let found = found?;
        if found.file_type()?.is_dir() {
            unlock(&found.path())?;
        }
    }
    Ok(())
}

/// What does not exist is removed.
pub(super) fn gone(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}
