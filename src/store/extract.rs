//! `store extract`: restores the files of archives into empty volumes, all of them or none. An **effect**.
//!
//! Files are unpacked into a directory of their own until all of them are there and verified, so an interrupted restore starts over.
//! A volume that has other files is left as it is.

use std::{
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
        self.root.join(format!("{OURS}.{}.partial", self.name))
    }

    /// Its name once everything is unpacked and verified.
    fn whole(&self) -> PathBuf {
        self.root.join(format!("{OURS}.{}.whole", self.name))
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
        if is_done(target, &stamp)? {
            continue;
        }
        if !target.whole().exists() {
            let partial = target.partial();
            let failed = |error| Error::file("write", &partial)(error);
            fs::create_dir(&partial).map_err(failed)?;
            let into = partial.clone();
            let unpack =
                move |plain: &mut dyn Read, damaged: &dyn Fn(io::Error) -> Error| unpack(plain, &into).map_err(damaged);
            receive(bucket, &entry, target.file, args.identity.as_ref(), unpack).await?;
            // The data must be on disk before the rename says that they are complete.
            flushed(&target.root)?;
            fs::rename(&partial, target.whole()).map_err(failed)?;
        }
    }
    for target in &targets {
        put_in_place(target, &stamp)?;
    }
    println!("restored the files of {} volumes from {}", targets.len(), bucket.place(entry.name.as_str()));
    report(args.report.as_deref(), &entry)
}

/// Writes the pod's termination message, if there is a file for it.
pub(super) fn report(to: Option<&Path>, entry: &Entry) -> Result<(), Error> {
    to.map_or(Ok(()), |to| fs::write(to, entry.words()).map_err(Error::file("write", to)))
}

/// The archive that an earlier pod has started to move into place. The latest may be another one by now, and two must not mix.
fn begun(volumes: &Path) -> Result<Option<Name>, Error> {
    let failed = |error| Error::file("read", volumes)(error);
    for volume in fs::read_dir(volumes).map_err(failed)? {
        let root = volume.map_err(failed)?.path();
        let Ok(found) = fs::read_dir(&root) else { continue };
        for found in found.flatten() {
            let name = found.file_name().to_string_lossy().into_owned();
            let name = name
                .strip_prefix(OURS)
                .and_then(|name| name.strip_prefix('.')?.strip_suffix(".whole").map(Name::parse));
            if let Some(Some(name)) = name {
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

/// Whether an earlier pod has restored this volume. Removes what it left half unpacked; refuses a volume with other files in it.
fn is_done(target: &Target<'_>, stamp: &str) -> Result<bool, Error> {
    let failed = |error| Error::file("read", &target.root)(error);
    let mut is_empty = true;
    for found in fs::read_dir(&target.root).map_err(failed)? {
        let found = found.map_err(failed)?;
        let name = found.file_name();
        match name.to_str() {
            Some(LOST_AND_FOUND) => {}
            // Left by a pod that was interrupted.
            Some(name) if name.starts_with(OURS) && name.ends_with(".partial") => {
                fs::remove_dir_all(found.path()).map_err(failed)?;
            }
            Some(name) if name.starts_with(OURS) => {}
            _ => is_empty = false,
        }
    }
    // A stamp in an otherwise empty volume belongs to files that were deleted since.
    let is_stamped = fs::read_to_string(target.stamp()).is_ok_and(|found| found == stamp);
    match is_empty || target.whole().exists() {
        true => Ok(false),
        false if is_stamped => Ok(true),
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
        // The app was started in the meantime.
        if place.symlink_metadata().is_ok() {
            return Err(Error::NotEmpty(target.root.clone()));
        }
        fs::rename(found.path(), place).map_err(failed)?;
    }
    fs::write(target.stamp(), stamp).map_err(failed)?;
    flushed(&target.root)?;
    fs::remove_dir(&whole).map_err(failed)
}
