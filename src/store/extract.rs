//! `store extract`: restores the files of archives, all of them or none. An **effect**.
//!
//! Files are unpacked into a directory of their own until all of them are there and verified, so an interrupted restore starts over.
//! A volume that has other files is left as it is or, with `--replace`, they are set aside. The directories in a volume say how far a
//! restore has come:
//!
//! | `.partial` | `.whole` | `.aside` | |
//! |---|---|---|---|
//! | yes | | | files are being unpacked |
//! | | yes | empty | with `--replace`: everything is unpacked, nothing was moved |
//! | | yes | yes | with `--replace`: the former files are being moved into `.aside` |
//! | | yes | | files are being moved into place; `.aside` is `.former` by now |

use std::{
    ffi::OsStr,
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use flate2::read::GzDecoder;

use super::{
    bucket::Bucket,
    catalog::{self, Entry},
    dump::Name,
    error::Error,
    receive::{entry, receive},
    settings::{Extract, Which},
};

/// Prefix of the names of our own files in a volume.
pub(super) const OURS: &str = ".clientapp-restore";
/// Made by the file system itself.
pub(super) const LOST_AND_FOUND: &str = "lost+found";

/// Last parts of the names of our directories in a volume.
const PARTIAL: &str = "partial";
const WHOLE: &str = "whole";
const ASIDE: &str = "aside";

/// A volume that files are restored to.
struct Target<'a> {
    root: PathBuf,
    file: &'a catalog::Stored,
    /// The archive's name.
    name: &'a Name,
}

impl Target<'_> {
    /// The directory to unpack into.
    fn partial(&self) -> PathBuf {
        directory(&self.root, self.name.as_str(), PARTIAL)
    }

    /// Its name once everything is unpacked and verified.
    fn whole(&self) -> PathBuf {
        directory(&self.root, self.name.as_str(), WHOLE)
    }

    /// The directory that the former files are moved into. It is created before there is a [`Target::whole`], so it tells that from
    /// one of which files may be in place already.
    fn aside(&self) -> PathBuf {
        directory(&self.root, self.name.as_str(), ASIDE)
    }

    /// Its name once it has all of them: a free one, since an earlier restore of the same archive may have left one as well.
    fn former(&self) -> PathBuf {
        let (mut free, mut number) = (self.root.join(format!("{OURS}.former.{}", self.name)), 1);
        while free.symlink_metadata().is_ok() {
            number += 1;
            free = self.root.join(format!("{OURS}.former.{}.{number}", self.name));
        }
        free
    }

    /// Records which restore has filled this volume, and with which archive.
    fn stamp(&self) -> PathBuf {
        self.root.join(format!("{OURS}d"))
    }
}

pub(super) async fn extract(bucket: &Bucket, args: &Extract) -> Result<(), Error> {
    let which = begun(&args.volumes)?.map_or_else(|| args.which.clone(), Which::Named);
    let entry = entry(bucket, &which, args.identity.as_ref()).await?;
    let targets = targets(&args.volumes, &entry, || bucket.place(entry.name.as_str()))?;
    let stamp = format!("{} {}\n", args.id, entry.words());
    for target in &targets {
        let prepared = prepare(bucket, args, &entry, target, &stamp).await;
        if prepared.is_err() {
            // What was unpacked takes space that the app may need. If this fails, the next restore removes it.
            for target in &targets {
                let _ = tidy(&target.root, None);
            }
            return prepared;
        }
    }
    for target in &targets {
        set_aside(target)?;
        put_in_place(target, &stamp)?;
    }
    println!("restored the files of {} volumes from {}", targets.len(), bucket.place(entry.name.as_str()));
    report(args.report.as_deref(), &entry)
}

/// Unpacks the files of a volume beside it, unless an earlier pod has done so.
async fn prepare(
    bucket: &Bucket,
    args: &Extract,
    entry: &Entry,
    target: &Target<'_>,
    stamp: &str,
) -> Result<(), Error> {
    if is_done(target, stamp, args.replace)? || target.whole().exists() {
        return Ok(());
    }
    let partial = target.partial();
    let failed = |error| Error::file("write", &partial)(error);
    fs::create_dir(&partial).map_err(failed)?;
    let into = partial.clone();
    let unpack =
        move |plain: &mut dyn Read, damaged: &dyn Fn(io::Error) -> Error| unpack(plain, &into).map_err(damaged);
    receive(bucket, entry, target.file, args.identity.as_ref(), unpack).await?;
    if args.replace {
        fs::create_dir_all(target.aside()).map_err(failed)?;
    }
    // The data must be on disk before the rename says that they are complete.
    flushed(&target.root)?;
    fs::rename(&partial, target.whole()).map_err(failed)
}

/// Writes the pod's termination message, if there is a file for it.
pub(super) fn report(to: Option<&Path>, entry: &Entry) -> Result<(), Error> {
    to.map_or(Ok(()), |to| fs::write(to, entry.words()).map_err(Error::file("write", to)))
}

fn directory(root: &Path, archive: &str, what: &str) -> PathBuf {
    root.join(format!("{OURS}.{archive}.{what}"))
}

/// The archive and the kind of one of our directories.
fn parsed(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix(OURS)?.strip_prefix('.')?.rsplit_once('.')
}

/// Whether the file system or a restore has made this entry of a volume, not the app.
fn is_ours(name: &OsStr) -> bool {
    name == LOST_AND_FOUND || name.to_str().is_some_and(|name| name.starts_with(OURS))
}

/// Whether there is such a directory, without anything in it.
fn is_void(directory: &Path) -> bool {
    fs::read_dir(directory).is_ok_and(|mut found| found.next().is_none())
}

/// The archive that an earlier pod has started to move into place. The latest may be another one by now, and two must not mix.
fn begun(volumes: &Path) -> Result<Option<Name>, Error> {
    let failed = |error| Error::file("read", volumes)(error);
    for volume in fs::read_dir(volumes).map_err(failed)? {
        let root = volume.map_err(failed)?.path();
        let Ok(found) = fs::read_dir(&root) else { continue };
        for found in found.flatten() {
            let name = found.file_name().to_string_lossy().into_owned();
            if let Some((archive, WHOLE)) = parsed(&name)
                && !is_void(&directory(&root, archive, ASIDE))
                && let Some(name) = Name::parse(archive)
            {
                return Ok(Some(name));
            }
        }
    }
    Ok(None)
}

/// Flushes everything written there to disk.
fn flushed(root: &Path) -> Result<(), Error> {
    let failed = |error| Error::file("write", root)(error);
    let directory = fs::File::open(root).map_err(failed)?;
    nix::unistd::syncfs(directory).map_err(|error| failed(error.into()))
}

/// Each archive needs its volume.
fn targets<'a>(volumes: &Path, entry: &'a Entry, place: impl Fn() -> String) -> Result<Vec<Target<'a>>, Error> {
    let of = |file: &'a catalog::Stored| {
        let name = catalog::volume(&file.name).ok_or_else(|| Error::NoFiles(place()))?;
        let root = volumes.join(name);
        match root.is_dir() {
            true => Ok(Target { root, file, name: &entry.name }),
            false => Err(Error::NoVolume { place: place(), name: name.to_owned() }),
        }
    };
    entry.files.iter().map(of).collect()
}

/// Removes what pods that were interrupted have unpacked, as long as nothing was moved; but keeps what is whole of this archive.
fn tidy(root: &Path, keep: Option<&Name>) -> Result<(), Error> {
    let failed = |error| Error::file("write", root)(error);
    for found in fs::read_dir(root).map_err(failed)? {
        let found = found.map_err(failed)?;
        let name = found.file_name().to_string_lossy().into_owned();
        match parsed(&name) {
            Some((_, PARTIAL)) => fs::remove_dir_all(found.path()).map_err(failed)?,
            Some((archive, ASIDE)) if keep.is_none_or(|keep| keep.as_str() != archive) && is_void(&found.path()) => {
                let (whole, partial) = (directory(root, archive, WHOLE), directory(root, archive, PARTIAL));
                if whole.exists() {
                    // A half removed one must not look whole.
                    fs::rename(&whole, &partial).map_err(failed)?;
                    fs::remove_dir_all(&partial).map_err(failed)?;
                }
                fs::remove_dir(found.path()).map_err(failed)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// Whether an earlier pod has restored this volume. Refuses a volume with other files in it, unless they are to be replaced.
fn is_done(target: &Target<'_>, stamp: &str, replace: bool) -> Result<bool, Error> {
    tidy(&target.root, Some(target.name).filter(|_| replace))?;
    if target.whole().exists() {
        return Ok(false);
    }
    let failed = |error| Error::file("read", &target.root)(error);
    let mut is_empty = true;
    for found in fs::read_dir(&target.root).map_err(failed)? {
        is_empty &= is_ours(&found.map_err(failed)?.file_name());
    }
    // A stamp in an otherwise empty volume belongs to files that were deleted since.
    let is_stamped = fs::read_to_string(target.stamp()).is_ok_and(|found| found == stamp);
    match is_empty {
        true => Ok(false),
        false if is_stamped => Ok(true),
        false if replace => Ok(false),
        false => Err(Error::NotEmpty(target.root.clone())),
    }
}

fn unpack(plain: &mut dyn Read, into: &Path) -> io::Result<()> {
    let mut archive = tar::Archive::new(GzDecoder::new(plain));
    archive.set_preserve_permissions(true);
    archive.set_overwrite(false);
    // tar refuses paths and links that lead out of the directory.
    archive.unpack(into)
}

/// Moves an entry of a volume. What the app has written there meanwhile, because it was started, is not overwritten.
fn move_to(from: &fs::DirEntry, to: &Path, written: PathBuf) -> Result<(), Error> {
    match to.symlink_metadata() {
        Ok(_) => Err(Error::Meanwhile(written)),
        Err(_) => fs::rename(from.path(), to).map_err(Error::file("write", to)),
    }
}

/// Moves the former files one by one. Their directory gets its name last, so that an interrupted move continues, and files that are
/// in place already are never taken for former ones.
fn set_aside(target: &Target<'_>) -> Result<(), Error> {
    let aside = target.aside();
    let failed = |error| Error::file("write", &target.root)(error);
    if !aside.exists() || !target.whole().exists() {
        return Ok(());
    }
    // The new files must be certain to stay before the former ones go.
    flushed(&target.root)?;
    for found in fs::read_dir(&target.root).map_err(failed)? {
        let found = found.map_err(failed)?;
        if !is_ours(&found.file_name()) {
            move_to(&found, &aside.join(found.file_name()), found.path())?;
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
fn put_in_place(target: &Target<'_>, stamp: &str) -> Result<(), Error> {
    let whole = target.whole();
    let failed = |error| Error::file("write", &target.root)(error);
    if !whole.exists() {
        return Ok(());
    }
    for found in fs::read_dir(&whole).map_err(failed)? {
        let found = found.map_err(failed)?;
        let place = target.root.join(found.file_name());
        move_to(&found, &place, place.clone())?;
    }
    fs::write(target.stamp(), stamp).map_err(failed)?;
    flushed(&target.root)?;
    fs::remove_dir(&whole).map_err(failed)
}
