//! A file to which other processes append, read line by line. An **effect**.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::PathBuf;

use anyhow::{Context as _, Result};

/// The file, and how much of it was read, in bytes.
pub struct Tail {
    path: PathBuf,
    read: u64,
}

impl Tail {
    #[must_use]
    pub fn new(path: PathBuf) -> Tail {
        Tail { path, read: 0 }
    }

    /// Calls `take` for each new line, with its end. An incomplete line is read the next time.
    pub fn each(&mut self, mut take: impl FnMut(&str) -> Result<()>) -> Result<()> {
        let mut file = File::open(&self.path).with_context(|| format!("cannot read {}", self.path.display()))?;
        file.seek(SeekFrom::Start(self.read))?;
        let mut lines = BufReader::new(file);
        let mut line = String::new();
        loop {
            line.clear();
            let length = lines.read_line(&mut line)?;
            if length == 0 || !line.ends_with('\n') {
                return Ok(());
            }
            self.read += length as u64;
            take(&line)?;
        }
    }
}
