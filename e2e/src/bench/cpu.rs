//! CPU time by process, which explains a makespan, and is less noisy than it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result};

/// USER_HZ, whatever the kernel's own clock (proc(5)).
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU time in seconds, by process.
#[derive(Clone, Debug, Default)]
pub struct Cpu(BTreeMap<String, f64>);

impl Cpu {
    /// Until now: the servers with this working directory, these processes, and their ended children, which are helms.
    pub fn of(servers: &Path, processes: &[(&str, u32)]) -> Result<Self> {
        let mut used = BTreeMap::new();
        for entry in std::fs::read_dir("/proc")? {
            let path = entry?.path();
            let Ok(cwd) = std::fs::read_link(path.join("cwd")) else { continue };
            if cwd == servers
                && let Ok((comm, own, _)) = times(&path)
            {
                *used.entry(comm).or_default() += own;
            }
        }
        for (name, process) in processes {
            let (_, own, children) = times(&Path::new("/proc").join(process.to_string()))?;
            used.insert((*name).to_owned(), own);
            *used.entry("helm".to_owned()).or_default() += children;
        }
        Ok(Cpu(used))
    }

    pub fn since(&self, then: &Cpu) -> Cpu {
        let used = |name: &String| then.0.get(name).copied().unwrap_or_default();
        Cpu(self.0.iter().map(|(name, now)| (name.clone(), now - used(name))).collect())
    }

    pub fn add(&mut self, other: Cpu) {
        for (name, used) in other.0 {
            *self.0.entry(name).or_default() += used;
        }
    }

    /// One line, in milliseconds divided by `count`.
    pub fn each(&self, count: usize) -> String {
        let of = |used: f64| format!("{:.0}", used / count as f64 * 1e3);
        let names = self.0.iter().map(|(name, used)| format!("{name} {}", of(*used)));
        format!("{}, all {}", names.collect::<Vec<_>>().join(", "), of(self.0.values().sum()))
    }
}

/// The name of a process, its own time, and that of its ended children (proc(5), `/proc/pid/stat`).
fn times(process: &Path) -> Result<(String, f64, f64)> {
    let stat = std::fs::read_to_string(process.join("stat"))?;
    let (head, tail) = stat.rsplit_once(") ").context("a name in parentheses")?;
    let name = head.split_once('(').context("a name in parentheses")?.1.to_owned();
    let fields: Vec<&str> = tail.split(' ').collect();
    let seconds =
        |at: usize| -> Result<f64> { Ok(fields.get(at).context("a field")?.parse::<f64>()? / TICKS_PER_SECOND) };
    // Index 0 is the third field of the line: utime is the 14th, stime, cutime and cstime follow.
    Ok((name, seconds(11)? + seconds(12)?, seconds(13)? + seconds(14)?))
}
