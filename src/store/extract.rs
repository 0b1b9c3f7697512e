//! `store extract`: restores the files of archives, all of them or none. An **effect**.
//!
//! Files are unpacked into a directory of their own until all of them are there and verified, so an interrupted restore starts over.
//! A volume that has other files is left as it is or, with `--replace`, they are set aside. The directories in a volume say how far a
//! restore has come. Their names contain the archive and the restore's id, and no other restore uses them:
//!
//! | `.partial` | `.whole` | `.aside` | |
//! |---|---|---|---|
//! | yes | | none, or empty | files are being unpacked |
//! | | yes | empty | everything is unpacked, nothing was moved in this volume |
//! | | yes | filled | the former files are being moved into `.aside` |
//! | | yes | | files are being moved into place; `.aside` is `.former` by now, or there were no former files |
//!
//! From the second row on, `.stamp` has the words that become the volume's stamp, so the bucket is not needed any more.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    io::{self, ErrorKind, Read, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use flate2::read::GzDecoder;
use nix::{
    fcntl::OFlag,
    unistd::{AccessFlags, access, geteuid},
};

use super::{
    bucket::Bucket,
    catalog::{self, Entry, Stored},
    dump::Name,
    error::Error,
    lock,
    receive::{entry, receive},
    settings::{Extract, Which, is_id},
};

/// Prefix of the names of our own directories in a volume.
const OURS: &str = ".clientapp-restore.";
/// Records which restore has filled a volume, and with which archive.
const STAMP: &str = ".clientapp-restored";
/// Made by the file system itself.
const LOST_AND_FOUND: &str = "lost+found";
/// Most bytes read from a stamp: the app may have put any file there.
const LONGEST: u64 = 4096;

/// Last parts of the names of what a restore has in a volume.
const PARTIAL: &str = "partial";
const WHOLE: &str = "whole";
const ASIDE: &str = "aside";
const PENDING: &str = "stamp";

/// Tells one restore of an archive from any other.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Restore {
    archive: Name,
    id: String,
}

impl Restore {
    /// The restore and the last part of a name in a volume. `.former` directories belong to none.
    fn parse(name: &str) -> Option<(Restore, &str)> {
        let mut parts = name.strip_prefix(OURS)?.split('.');
        let (archive, id, kind) = (Name::parse(parts.next()?)?, parts.next()?, parts.next()?);
        let fits = parts.next().is_none() && is_id(id) && [PARTIAL, WHOLE, ASIDE, PENDING].contains(&kind);
        fits.then(|| (Restore { archive, id: id.to_owned() }, kind))
    }

    /// The archive's words in a stamp of this restore.
    fn words<'a>(&self, stamp: &'a str) -> Option<&'a str> {
        let words = stamp.strip_prefix(&self.id)?.strip_prefix(' ')?.strip_suffix('\n')?;
        let [name, bytes, files] = words.split(' ').collect::<Vec<_>>()[..] else { return None };
        let fits = name == self.archive.as_str() && [bytes, files].iter().all(|count| count.parse::<u64>().is_ok());
        fits.then_some(words)
    }
}

/// A volume that files are restored to.
#[derive(Clone, Debug)]
struct Target {
    root: PathBuf,
    restore: Restore,
}

impl Target {
    fn own(&self, kind: &str) -> PathBuf {
        self.root.join(format!("{OURS}{}.{}.{kind}", self.restore.archive, self.restore.id))
    }

    /// The directory to unpack into.
    fn partial(&self) -> PathBuf {
        self.own(PARTIAL)
    }

    /// Its name once everything is unpacked and verified.
    fn whole(&self) -> PathBuf {
        self.own(WHOLE)
    }

    /// The directory that the former files are moved into. It is created before there is a [`Target::whole`], so it tells that from
    /// one of which files may be in place already.
    fn aside(&self) -> PathBuf {
        self.own(ASIDE)
    }

    /// Its name once it has all of them: a free one, since an earlier restore of the same archive may have left one as well.
    fn former(&self) -> PathBuf {
        let (mut free, mut number) = (self.root.join(format!("{OURS}former.{}", self.restore.archive)), 1);
        while free.symlink_metadata().is_ok() {
            number += 1;
            free = self.root.join(format!("{OURS}former.{}.{number}", self.restore.archive));
        }
        free
    }

    /// The stamp before it counts.
    fn pending(&self) -> PathBuf {
        self.own(PENDING)
    }

    fn stamp(&self) -> PathBuf {
        self.root.join(STAMP)
    }

    fn is_whole(&self) -> bool {
        is_directory(&self.whole())
    }

    /// Whether the volume is stamped by this restore.
    fn is_stamped(&self) -> bool {
        stamped(&self.root).is_some_and(|stamp| self.restore.words(&stamp).is_some())
    }

    /// Whether an empty `.whole` is left beside the stamp, only to be removed.
    fn is_left(&self) -> bool {
        is_void(&self.whole()) && self.is_stamped()
    }

    /// Whether files of this volume were moved, and more are to be.
    fn is_moving(&self) -> bool {
        let aside = self.aside();
        match is_directory(&aside) {
            true => !is_void(&aside),
            false => self.is_whole() && !self.is_left(),
        }
    }
}

pub(super) async fn extract(bucket: &Bucket, args: &Extract) -> Result<(), Error> {
    let roots = roots(&args.volumes)?;
    let _locks = roots.iter().map(|root| lock::volume(root, lock::Use::Change)).collect::<Result<Vec<_>, _>>()?;
    let begun = begun(&roots, &args.id, &args.which)?;
    let ready = async {
        let (targets, words) = ready(bucket, args, &roots, begun.as_ref()).await?;
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
    let (targets, words) = ready?;
    for target in &targets {
        set_aside(target)?;
        put_in_place(target, &stamp(&args.id, &words))?;
    }
    let archive = words.split(' ').next().unwrap_or_default();
    println!("restored the files of {} volumes from {}", targets.len(), bucket.place(archive));
    report(args.report.as_deref(), &words)
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
        if name.to_str().is_none_or(|name| catalog::volume(&catalog::archive(name)).is_none()) {
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

/// Writes the pod's termination message, if there is a file for it.
pub(super) fn report(to: Option<&Path>, words: &str) -> Result<(), Error> {
    to.map_or(Ok(()), |to| fs::write(to, words).map_err(Error::file("write", to)))
}

/// Whether the file system or a restore has made this entry of a volume, not the app.
pub(super) fn is_ours(name: &OsStr) -> bool {
    name == LOST_AND_FOUND || name == STAMP || name.to_str().is_some_and(|name| name.starts_with(OURS))
}

fn stamp(id: &str, words: &str) -> String {
    format!("{id} {words}\n")
}

/// The restores that have something in a volume.
fn restores(root: &Path) -> Result<BTreeSet<Restore>, Error> {
    let failed = |error| Error::file("read", root)(error);
    let mut restores = BTreeSet::new();
    for found in fs::read_dir(root).map_err(failed)? {
        let name = found.map_err(failed)?.file_name();
        restores.extend(name.to_str().and_then(Restore::parse).map(|(restore, _)| restore));
    }
    Ok(restores)
}

/// Whether the app has no files in a volume.
fn is_empty(root: &Path) -> Result<bool, Error> {
    let failed = |error| Error::file("read", root)(error);
    for found in fs::read_dir(root).map_err(failed)? {
        if !is_ours(&found.map_err(failed)?.file_name()) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The stamp of a volume. One in an otherwise empty volume belongs to files that were deleted since.
fn stamped(root: &Path) -> Option<String> {
    read(&root.join(STAMP)).filter(|_| is_empty(root).is_ok_and(|empty| !empty))
}

/// Reads a stamp. The app may have put a link, a pipe or any other file in its place.
fn read(stamp: &Path) -> Option<String> {
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let file = fs::File::options().read(true).custom_flags(flags).open(stamp).ok()?;
    let mut text = String::new();
    let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
    (is_file && file.take(LONGEST).read_to_string(&mut text).is_ok()).then_some(text)
}

/// Links are not followed.
fn is_directory(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|metadata| metadata.is_dir())
}

/// Whether there is such a directory, without anything in it.
fn is_void(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut found| found.next().is_none())
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
    bucket: &Bucket,
    args: &Extract,
    roots: &[PathBuf],
    begun: Option<&Name>,
) -> Result<(Vec<Target>, String), Error> {
    let restore = begun.map(|archive| Restore { archive: archive.clone(), id: args.id.clone() });
    // Without the bucket, from which the archive may be gone by now.
    if let Some(ready) = restore.and_then(|restore| all_there(roots, &restore)) {
        return Ok(ready);
    }
    let which = begun.map_or_else(|| args.which.clone(), |name| Which::Named(name.clone()));
    let entry = entry(bucket, &which, args.identity.as_ref()).await?;
    let restore = Restore { archive: entry.name.clone(), id: args.id.clone() };
    let targets = targets(args, roots, &entry, &restore, || bucket.place(entry.name.as_str()))?;
    for (target, file) in &targets {
        prepare(bucket, args, &entry, file, target).await?;
    }
    Ok((targets.into_iter().map(|(target, _)| target).collect(), entry.words()))
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

/// Each archive needs its volume and, if files are replaced, each volume its archive.
fn targets<'a>(
    args: &Extract,
    roots: &[PathBuf],
    entry: &'a Entry,
    restore: &Restore,
    place: impl Fn() -> String,
) -> Result<Vec<(Target, &'a Stored)>, Error> {
    let mut targets = Vec::new();
    for file in &entry.files {
        let name = catalog::volume(&file.name).ok_or_else(|| Error::NoFiles(place()))?;
        let root = args.volumes.join(name);
        if !roots.contains(&root) {
            return Err(Error::NoVolume { place: place(), name: name.to_owned() });
        }
        targets.push((Target { root, restore: restore.clone() }, file));
    }
    let is_missing = |root: &&PathBuf| targets.iter().all(|(target, _)| target.root != **root);
    match roots.iter().find(is_missing).filter(|_| args.replace) {
        Some(root) => {
            let name = root.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Err(Error::NotInArchive { place: place(), name })
        }
        None => Ok(targets),
    }
}

/// Unpacks the files of a volume beside it, unless an earlier pod has done so. Refuses a volume with other files in it, unless they are
/// to be replaced.
async fn prepare(bucket: &Bucket, args: &Extract, entry: &Entry, file: &Stored, target: &Target) -> Result<(), Error> {
    tidy(&target.root, Some(&target.restore))?;
    let stamp = stamp(&args.id, &entry.words());
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
    let into = partial.clone();
    let unpack = move |plain: &mut dyn Read, damaged: &dyn Fn(io::Error) -> Error| unpack(plain, &into, damaged);
    receive(bucket, entry, file, args.identity.as_ref(), unpack).await?;
    write(&target.pending(), &stamp)?;
    fs::create_dir_all(target.aside()).map_err(failed)?;
    // The data must be on disk before the rename says that they are complete.
    flushed(&target.root)?;
    fs::rename(&partial, target.whole()).map_err(failed)
}

/// Writes a file anew, without following a link.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    let failed = |error| Error::file("write", path)(error);
    remove(path).map_err(failed)?;
    let mut file = fs::File::options().write(true).create_new(true).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}

/// Flushes everything written there to disk.
fn flushed(root: &Path) -> Result<(), Error> {
    let failed = |error| Error::file("write", root)(error);
    let directory = fs::File::open(root).map_err(failed)?;
    nix::unistd::syncfs(directory).map_err(|error| failed(error.into()))
}

/// Removes what pods that were interrupted have unpacked, as long as nothing was moved; but keeps what is whole of this restore.
fn tidy(root: &Path, keep: Option<&Restore>) -> Result<(), Error> {
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
fn remove(path: &Path) -> io::Result<()> {
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
fn unlock(directory: &Path) -> io::Result<()> {
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
fn gone(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|error| if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) })
}

fn unpack(plain: &mut dyn Read, into: &Path, damaged: &dyn Fn(io::Error) -> Error) -> Result<(), Error> {
    let mut archive = tar::Archive::new(GzDecoder::new(plain));
    archive.set_preserve_permissions(true);
    // A file that changed meanwhile may be in an archive twice: the later counts. The earlier, even if it is a link, is removed first.
    archive.set_overwrite(true);
    // tar refuses paths and links that lead out of the directory.
    archive.unpack(into).map_err(|error| {
        // What is wrong with the data; anything else is an answer of the file system.
        let of_data = matches!(
            error.kind(),
            ErrorKind::Other
                | ErrorKind::InvalidData
                | ErrorKind::InvalidInput
                | ErrorKind::UnexpectedEof
                | ErrorKind::AlreadyExists
                | ErrorKind::NotADirectory
                | ErrorKind::IsADirectory
        );
        let cause = innermost(&error);
        if of_data { damaged(cause) } else { Error::file("write", into)(cause) }
    })
}

/// tar's own words do not tell the reason.
fn innermost(error: &io::Error) -> io::Error {
    let mut cause: &(dyn std::error::Error + 'static) = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let number = cause.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error);
    number.map_or_else(|| io::Error::new(error.kind(), cause.to_string()), io::Error::from_raw_os_error)
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
            let problem = "only a restore or the file system makes files of that name".to_owned();
            return Err(Error::Damaged { place: found.path().display().to_string(), problem });
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
