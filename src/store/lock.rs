//! Locks on directories. A lock ends with the process. An **effect**.

use std::{
    fs::{File, TryLockError},
    path::Path,
};

use nix::errno::Errno;
use tokio::task::spawn_blocking;

use super::error::Error;
use crate::platform::panic::joined;

/// Says what a process does with a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Use {
    Read,
    Change,
}

/// Waits for the lock of a directory.
pub(super) async fn wait(directory: &Path) -> Result<File, Error> {
    let path = directory.to_owned();
    let locked = spawn_blocking(move || {
        let directory = open(&path)?;
        match directory.lock() {
            Err(error) if !error.raw_os_error().is_some_and(is_unknown) => Err(Error::file("lock", &path)(error)),
            // Without locks, two processes at worst upload the same dumps twice.
            _ => Ok(directory),
        }
    });
    joined(locked).await
}

/// Locks a volume, or fails if another process has it and one of them changes it. The lock ends when this is dropped; there is none
/// if the volume's file system has no locks.
pub(super) fn volume(root: &Path, what: Use) -> Result<File, Error> {
    let directory = open(root)?;
    let locked = match what {
        Use::Read => directory.try_lock_shared(),
        Use::Change => directory.try_lock(),
    };
    match locked {
        Ok(()) => Ok(directory),
        Err(TryLockError::WouldBlock) => Err(Error::InUse(root.to_owned())),
        Err(TryLockError::Error(error)) if error.raw_os_error().is_some_and(is_unknown) => {
            println!("volume {} has no locks: no other process may archive or restore it now", root.display());
            Ok(directory)
        }
        Err(TryLockError::Error(error)) => Err(Error::file("lock", root)(error)),
    }
}

/// Returns true if a file system answers with this that it has no such locks: NFS refuses an exclusive lock on a directory with EBADF, since
/// that is not open for writing (flock(2)).
fn is_unknown(number: i32) -> bool {
    [Errno::EOPNOTSUPP, Errno::ENOLCK, Errno::ENOSYS, Errno::EBADF].contains(&Errno::from_raw(number))
}

fn open(directory: &Path) -> Result<File, Error> {
    File::open(directory).map_err(Error::file("open", directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_is_changed_is_in_use_by_one_process() {
        let directory = tempfile::tempdir().unwrap();
        for (first, second, fits) in [
            (Use::Read, Use::Read, true),
            (Use::Read, Use::Change, false),
            (Use::Change, Use::Read, false),
            (Use::Change, Use::Change, false),
        ] {
            let held = volume(directory.path(), first).unwrap();
            match volume(directory.path(), second) {
                Ok(_) => assert!(fits, "{first:?} {second:?}"),
                Err(error) => assert!(!fits && matches!(error, Error::InUse(_)), "{first:?} {second:?}: {error}"),
            }
            drop(held);
            assert!(volume(directory.path(), second).is_ok(), "{second:?}: the lock ends");
        }
        for (errno, unknown) in
            [(Errno::ENOLCK, true), (Errno::EOPNOTSUPP, true), (Errno::EBADF, true), (Errno::EIO, false)]
        {
            assert_eq!(is_unknown(errno as i32), unknown, "{errno}");
        }
    }
}
