//! Resources that a process of the operator has in use, and their growth. Reading it is an **effect**.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::operator::Operator;

/// How much more memory a process may have after the same work once more.
const MEMORY_RATIO: f64 = 1.3;

/// In use at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// Resident memory in KiB.
    pub memory: u64,
    /// The most that it ever was.
    pub peak: u64,
    /// Open file descriptors.
    pub descriptors: usize,
    pub threads: usize,
    /// Child processes.
    pub children: usize,
    /// Files and directories for temporary files.
    pub files: usize,
}

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured { memory, peak: _, descriptors, threads, children, files } = self;
        let mib = *memory as f64 / 1024.0;
        write!(
            f,
            "{mib:.1} MiB, {descriptors} descriptors, {threads} threads, {children} child processes, {files} files"
        )
    }
}

/// Of the operator, whose temporary files are in this directory.
pub fn measure(operator: &Operator, temporary: &Path) -> Result<Measured> {
    let process = PathBuf::from(format!("/proc/{}", operator.pid()));
    let status = fs::read_to_string(process.join("status"))?;
    let kib = |key| kib(&status, key).with_context(|| format!("{}/status has no {key}", process.display()));
    let entries = |part: &str| fs::read_dir(process.join(part)).map(Iterator::count);
    Ok(Measured {
        memory: kib("VmRSS")?,
        peak: kib("VmHWM")?,
        descriptors: entries("fd")?,
        threads: entries("task")?,
        children: operator.children().len(),
        files: files(temporary),
    })
}

fn kib(status: &str, key: &str) -> Option<u64> {
    let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    value.trim().trim_end_matches(" kB").parse().ok()
}

/// All files below a directory; some may vanish meanwhile.
fn files(directory: &Path) -> usize {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let below = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir());
    entries.map(|entry| 1 + if below(&entry) { files(&entry.path()) } else { 0 }).sum()
}

type Count = (&'static str, fn(&Measured) -> usize);
const COUNTS: [Count; 4] = [
    ("descriptors", |measured| measured.descriptors),
    ("threads", |measured| measured.threads),
    ("child processes", |measured| measured.children),
    ("temporary files", |measured| measured.files),
];

impl Measured {
    /// Returns whether as much is in use, besides memory and threads.
    pub fn is_like(&self, other: &Measured) -> bool {
        let counts = |of: &Measured| (of.descriptors, of.children, of.files);
        counts(self) == counts(other)
    }
}

/// The threads that a process has more of than before so many rounds of the same work, once idle ones have ended, a sentence: at
/// least one for each round.
pub fn lingering(before: &Measured, after: &Measured, rounds: usize) -> Option<String> {
    let more = after.threads.saturating_sub(before.threads);
    (more >= rounds).then(|| format!("after {rounds} rounds of the same work the operator has {more} threads more"))
}

/// Returns what a process has more of after each round of the same work, a sentence each. A count that grows once only is no
/// leak: idle connections and threads are kept for a while.
pub fn leaks(rounds: &[Measured]) -> Vec<String> {
    let growing = COUNTS.iter().filter(|(_, of)| rounds.windows(2).all(|pair| of(&pair[0]) < of(&pair[1])));
    let told = |of: &dyn Fn(&Measured) -> u64| rounds.iter().map(|round| of(round).to_string()).collect::<Vec<_>>();
    let sentence = |what: &str, counts: &[String]| {
        format!("after each round of the same work the operator has more {what}: {}", counts.join(", "))
    };
    let mut found: Vec<_> = growing.map(|(what, of)| sentence(what, &told(&|round| of(round) as u64))).collect();
    if let [first, .., last] = rounds
        && last.memory as f64 > first.memory as f64 * MEMORY_RATIO
    {
        found.push(sentence("memory in KiB", &told(&|round| round.memory)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_counts_as_a_leak() {
        let first = Measured { memory: 10_000, peak: 20_000, descriptors: 40, threads: 6, children: 0, files: 12 };
        let rounds = |change: fn(&mut Measured, usize)| {
            let mut rounds = [first; 3];
            rounds.iter_mut().enumerate().for_each(|(nth, round)| change(round, nth));
            rounds
        };
        for (rounds, expected) in [
            (rounds(|_, _| ()), None),
            (rounds(|round, nth| round.descriptors += nth.min(1)), None),
            (rounds(|round, nth| round.peak += 9_000 * nth as u64), None),
            (rounds(|round, nth| round.memory += 1_500 * nth as u64), None),
            (rounds(|round, nth| round.memory += 1_501 * nth as u64), Some("memory in KiB: 10000, 11501, 13002")),
            (rounds(|round, nth| round.descriptors += nth), Some("descriptors: 40, 41, 42")),
            (rounds(|round, nth| round.threads += 9 * nth), Some("threads: 6, 15, 24")),
            (rounds(|round, nth| round.children += nth), Some("child processes: 0, 1, 2")),
            (rounds(|round, nth| round.files += nth), Some("temporary files: 12, 13, 14")),
        ] {
            let found = leaks(&rounds);
            let expected: Vec<_> = expected
                .iter()
                .map(|words| format!("after each round of the same work the operator has more {words}"))
                .collect();
            assert_eq!(found, expected);
        }
        let threads = |more| lingering(&first, &Measured { threads: first.threads + more, ..first }, 3);
        assert!(threads(2).is_none() && threads(3).is_some_and(|told| told.ends_with("3 threads more")));
        assert!(first.is_like(&Measured { memory: 1, threads: 9, ..first }));
        assert!(!first.is_like(&Measured { descriptors: 41, ..first }));
    }

    #[test]
    fn what_the_kernel_tells() {
        let status = "Name:\tclientapp\nVmHWM:\t   51234 kB\nVmRSS:\t   41234 kB\nThreads:\t7\n";
        assert_eq!((kib(status, "VmRSS"), kib(status, "VmHWM"), kib(status, "Vm")), (Some(41_234), Some(51_234), None));
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("a")).unwrap();
        fs::write(directory.path().join("a/b"), "").unwrap();
        assert_eq!(files(directory.path()), 2);
    }
}
