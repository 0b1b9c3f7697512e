//! Makes a private directory for this operator process and its helm runs (effect).

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
};

use tempfile::TempDir;

const PREFIX: &str = "clientapp-operator-";
const LOCK: &str = "operator.lock";
/// Ends the name of a chart's signature, after that of the chart.
const PROVENANCE: &str = ".prov";

/// A directory of mode 0700 for kubeconfigs, helm's home directories and pulled charts, removed when dropped.
///
/// The next operator removes what a killed one has left: each directory is locked by its process, and the kernel releases the lock when
/// the process ends, however it ends.
#[derive(Debug)]
pub(in crate::helm) struct WorkDir {
    dir: TempDir,
    _lock: File,
}

impl WorkDir {
    /// Creates a directory in `parent`, which is created too if necessary, and removes abandoned ones there.
    pub(in crate::helm) fn create(parent: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
        remove_abandoned(parent)?;
        let private = fs::Permissions::from_mode(0o700);
        let dir =
            tempfile::Builder::new().prefix(PREFIX).permissions(private).tempdir_in(std::path::absolute(parent)?)?;
        let lock = File::create_new(dir.path().join(LOCK))?;
        lock.try_lock()?;
        Ok(Self { dir, _lock: lock })
    }

    pub(in crate::helm) fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Returns the path of a subdirectory, which it creates if necessary.
    pub(in crate::helm) fn subdir(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path().join(name);
        DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        Ok(path)
    }
}

fn remove_abandoned(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        let ours = entry.file_type()?.is_dir() && entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes());
        // Without a lock file, it is just being created, or is not an operator's.
        if ours && File::open(entry.path().join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok()) {
            // Best effort: nothing depends on the removal.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// Opens a file of another owner; `None`: it is no plain file, or has more bytes than these. No more are read, should it grow.
pub(super) fn open(path: &Path, most: u64) -> io::Result<Option<impl io::Read + use<>>> {
    // To open a pipe would wait for its writer.
    let about = fs::metadata(path)?;
    if !about.is_file() || about.len() > most {
        return Ok(None);
    }
    File::open(path).map(|file| Some(file.take(most)))
}

/// Copies a packaged chart, and its signature if there is one, so that what is verified is what is installed. Neither may have more
/// than `most` bytes.
pub(in crate::helm) fn copy_signed(chart: &Path, into: &Path, most: u64) -> io::Result<()> {
    let copy = |from: &Path| {
        let unfit = || io::Error::other(format!("{} is not a file of at most {most} bytes", from.display()));
        let mut content = open(from, most)?.ok_or_else(unfit)?;
        let mut copy = File::create_new(into.join(from.file_name().unwrap_or_default()))?;
        io::copy(&mut content, &mut copy)
    };
    let mut signature = chart.as_os_str().to_owned();
    signature.push(PROVENANCE);
    copy(chart)?;
    match copy(Path::new(&signature)) {
        // helm says then that there is none.
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the only regular file in a directory beside a chart's signature, if there is exactly one.
pub(in crate::helm) fn only_file(dir: &Path) -> io::Result<Option<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.as_encoded_bytes();
        // `helm pull` first writes to a hidden temporary file.
        if entry.file_type()?.is_file() && !name.starts_with(b".") && !name.ends_with(PROVENANCE.as_bytes()) {
            files.push(entry.path());
        }
    }
    Ok(if files.len() == 1 { files.pop() } else { None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_is_copied_with_its_signature_and_nothing_else() {
        let (from, chart) = (tempfile::tempdir().unwrap(), "a-1.0.0.tgz");
        let path = from.path().join(chart);
        let copied = |most: u64| {
            let into = tempfile::tempdir().unwrap();
            let copied = copy_signed(&path, into.path(), most);
            let names = fs::read_dir(into.path()).unwrap().map(|entry| entry.unwrap().file_name());
            let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
            names.sort();
            copied.map(|()| names).map_err(|error| error.to_string())
        };
        assert!(copied(9).is_err(), "there is none");
        fs::write(&path, "archive").unwrap();
        assert_eq!(copied(9), Ok(vec![chart.to_owned()]));
        assert!(copied(6).unwrap_err().ends_with("a-1.0.0.tgz is not a file of at most 6 bytes"));
        let signature = from.path().join("a-1.0.0.tgz.prov");
        fs::write(&signature, "signature").unwrap();
        assert_eq!(copied(9), Ok(vec![chart.to_owned(), "a-1.0.0.tgz.prov".to_owned()]));
        assert!(copied(8).unwrap_err().ends_with(".prov is not a file of at most 8 bytes"));
        fs::remove_file(&signature).unwrap();
        fs::create_dir(&signature).unwrap();
        assert!(copied(99).unwrap_err().ends_with(".prov is not a file of at most 99 bytes"));
    }

    #[test]
    fn it_is_private_and_leaves_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let workdir = WorkDir::create(&parent.path().join("new")).unwrap();
        let path = workdir.path().to_owned();
        for dir in [path.clone(), workdir.subdir("a/b").unwrap(), parent.path().join("new")] {
            assert_eq!(fs::metadata(&dir).unwrap().permissions().mode() & 0o777, 0o700, "{}", dir.display());
        }
        drop(workdir);
        assert!(!path.exists());
    }

    #[test]
    fn abandoned_ones_are_removed_and_others_are_not() {
        let parent = tempfile::tempdir().unwrap();
        let live = WorkDir::create(parent.path()).unwrap();
        let abandoned = parent.path().join("clientapp-operator-abandoned");
        let foreign = parent.path().join("clientapp-operator-foreign");
        fs::create_dir_all(abandoned.join("full")).unwrap();
        fs::write(abandoned.join(LOCK), "").unwrap();
        fs::create_dir_all(&foreign).unwrap();

        let _second = WorkDir::create(parent.path()).unwrap();
        assert!(live.path().exists() && foreign.exists() && !abandoned.exists());
    }
}
