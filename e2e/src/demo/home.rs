//! The demonstration's own directory and processes, which end with it, however it ends.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::plane::watchdog::Watchdog;

/// A directory, and a process group for the processes in it. Dropping it removes both; so does the end of this process.
pub(super) struct Home {
    path: PathBuf,
    watchdog: Watchdog,
}

impl Home {
    pub(super) fn new() -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("clientapp-demo-").tempdir()?;
        let watchdog = Watchdog::start(directory.path()).context("cannot start the watchdog")?;
        // From here on the watchdog removes it in any case.
        Ok(Self { path: directory.keep(), watchdog })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// A terminal's Ctrl-C does not reach this process group.
    pub(super) fn group(&self) -> i32 {
        self.watchdog.group()
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        self.watchdog.act();
        self.watchdog.wait();
    }
}
