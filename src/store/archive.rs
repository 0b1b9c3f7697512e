//! `store archive`: backs up the files of volumes in one snapshot, without a copy. An **effect**.
//!
//! The app may be writing to them: a file that disappears meanwhile is left out, and links are not followed.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tokio::task::spawn_blocking;

use super::{
    error::Error,
    extract::report,
    lock,
    settings::ArchiveArgs,
    stored::{Content, Stored, tag_of_backup},
    tidy,
    volume::{LOST_AND_FOUND, OURS, STAMP, is_ours, none_begun, roots},
};
use crate::{
    platform::panic::joined,
    restic::{command::Backup, repository::Repository},
};

pub(super) async fn archive(repository: &Repository, args: &ArchiveArgs) -> Result<(), Error> {
    let roots = roots(&args.volumes)?;
    let _locks = roots.iter().map(|root| lock::volume(root, lock::Use::Read)).collect::<Result<Vec<_>, _>>()?;
    let here = || roots.iter().map(PathBuf::as_path);
    none_begun(here())?;
    let looked = roots.clone();
    let has_files = joined(spawn_blocking(move || all_have_files(&looked))).await?;
    let mut tags = Content::Files.tags(has_files);
    tags.extend(args.backup.as_deref().map(tag_of_backup));
    let failed = |trouble| Error::upload(repository, trouble);
    repository.create().await.map_err(failed)?;
    let what = Backup {
        paths: here().collect(),
        exclude: here().flat_map(not_the_apps).collect(),
        host: &args.of,
        tags,
        time: None,
    };
    let id = repository.backup(&what).await.map_err(failed)?.snapshot_id;
    // Where the file system has no locks, a restore may have begun meanwhile.
    if let Err(begun) = none_begun(here()) {
        repository.forget(&[&id]).await.map_err(failed)?;
        return Err(begun);
    }
    let snapshots = repository.snapshots().await.map_err(failed)?;
    let made = snapshots.iter().find(|snapshot| snapshot.id == id).and_then(Stored::of);
    let made = made.ok_or_else(|| Error::Gone { id: id.clone(), place: repository.location.repository() })?;
    let (place, count) = (repository.location.repository(), roots.len());
    println!("stored the files of {count} volumes as {} in {place}: {} files", made.name, made.count);
    tidy::tidy(repository, &args.of, Content::Files, args.keep, Some(&id)).await?;
    tidy::check(repository).await?;
    // Last: while this is empty, an error becomes the termination message.
    report(args.report.as_deref(), &made.words())
}

/// Returns what in a volume belongs to the file system or to a restore.
fn not_the_apps(root: &Path) -> [PathBuf; 3] {
    [root.join(LOST_AND_FOUND), root.join(STAMP), root.join(format!("{OURS}*"))]
}

/// Returns whether each volume has a regular file. One without may have been lost.
fn all_have_files(roots: &[PathBuf]) -> Result<bool, Error> {
    for root in roots {
        if !has_files(root, true)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn has_files(directory: &Path, is_root: bool) -> Result<bool, Error> {
    let failed = |error| Error::file("read", directory)(error);
    let mut below = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        if is_root && is_ours(&entry.file_name()) {
            continue;
        }
        match entry.file_type() {
            Ok(kind) if kind.is_file() => return Ok(true),
            Ok(kind) if kind.is_dir() => below.push(entry.path()),
            _ => {}
        }
    }
    for directory in below {
        // The app may have deleted it, or closed it to this user, which the backup itself reports.
        if has_files(&directory, false).unwrap_or_default() {
            return Ok(true);
        }
    }
    Ok(false)
}
