//! Which operator process made a release revision, so that a lock left by a dead one can be told from a live one's.
//!
//! helm never outlives the operator process that started it on the same machine (see `helm::process`), so a dead
//! operator process proves its helm dead.

use std::{fs, path::Path, process};

use sha2::{Digest as _, Sha256};

use crate::runtime::key::hex;

/// What is known of the operator process that wrote a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Liveness {
    /// Its helm is provably not running any more.
    Dead,
    /// It may still run.
    Unknown,
}

/// An operator process: host, process namespace, process id and start time in clock ticks since boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockOwner {
    host: String,
    namespace: String,
    pid: u32,
    start: u64,
    /// In a pod the host name is the pod's, and of one pod's containers only the newest lives.
    in_pod: bool,
}

impl LockOwner {
    pub fn current() -> LockOwner {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let namespace = fs::read_link("/proc/self/ns/pid")
            .ok()
            .and_then(|link| Some(link.to_str()?.chars().filter(char::is_ascii_digit).collect()))
            .unwrap_or_else(|| "0".to_owned());
        let pid = process::id();
        LockOwner {
            host: host_label(host.trim()),
            namespace,
            pid,
            start: start_time(pid).unwrap_or_default(),
            in_pod: std::env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
        }
    }

    /// As the value of a label: at most 63 characters of `[-A-Za-z0-9.]`.
    pub fn label(&self) -> String {
        format!("{}.{}.{}.{}", self.host, self.namespace, self.pid, self.start)
    }

    /// What is known of the process that wrote this label. Asked only between this process's own helm runs for the
    /// release, so this very process counts as not running one.
    pub fn liveness_of(&self, label: &str) -> Liveness {
        let parts: Vec<_> = label.rsplitn(4, '.').collect();
        let [start, pid, namespace, host] = parts[..] else { return Liveness::Unknown };
        if host != self.host {
            return Liveness::Unknown;
        }
        if namespace != self.namespace {
            return if self.in_pod { Liveness::Dead } else { Liveness::Unknown };
        }
        let (Ok(pid), Ok(start)) = (pid.parse::<u32>(), start.parse::<u64>()) else {
            return Liveness::Unknown;
        };
        if !Path::new("/proc/self/stat").exists() {
            return Liveness::Unknown;
        }
        if (pid, start) == (self.pid, self.start) || start_time(pid) != Some(start) {
            Liveness::Dead
        } else {
            Liveness::Unknown
        }
    }
}

/// Host names reach 63 characters; a prefix for users and a digest for truth fit beside the rest.
fn host_label(host: &str) -> String {
    let prefix: String = host.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').take(16).collect();
    format!("h{prefix}-{}", &hex(&Sha256::digest(host.as_bytes()))[..8])
}

/// When a process began, if it still runs.
fn start_time(pid: u32) -> Option<u64> {
    running_since(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Fields 3 and 22 of `/proc/<pid>/stat` (proc(5)); the command name before them may hold blanks and parentheses.
fn running_since(stat: &str) -> Option<u64> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    // A process that has ended keeps its entry until its parent asks for its exit status, which may be never.
    let ended = matches!(fields.next()?, "Z" | "X" | "x");
    fields.nth(18).filter(|_| !ended)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use nix::{sys::wait, unistd::Pid};

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "a process that nothing waits for")]
    fn ended_and_not_reaped() -> process::Child {
        let child = process::Command::new("true").spawn().unwrap();
        let id = wait::Id::Pid(Pid::from_raw(child.id() as i32));
        wait::waitid(id, wait::WaitPidFlag::WEXITED | wait::WaitPidFlag::WNOWAIT).unwrap();
        child
    }

    #[test]
    fn fates() {
        let me = LockOwner::current();
        assert!(me.label().len() <= 63, "{}", me.label());
        let with = |change: &dyn Fn(&mut LockOwner)| {
            let mut other = me.clone();
            change(&mut other);
            other.label()
        };
        let mut child = ended_and_not_reaped();
        let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        let began = stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap();
        let parent = nix::unistd::getppid().as_raw() as u32;
        for (label, fate) in [
            (me.label(), Liveness::Dead),
            (with(&|h| h.start += 1), Liveness::Dead),
            (with(&|h| (h.pid, h.start) = (parent, start_time(parent).unwrap())), Liveness::Unknown),
            (with(&|h| h.host = host_label("elsewhere")), Liveness::Unknown),
            (with(&|h| h.namespace = "1".to_owned()), Liveness::Unknown),
            (with(&|h| (h.pid, h.start) = (child.id(), began)), Liveness::Dead),
            ("garbage".to_owned(), Liveness::Unknown),
        ] {
            assert_eq!(me.liveness_of(&label), fate, "{label}");
        }
        for (stat, since) in [
            ("12 (a b) c) S 1 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 9 0 3351 0 0", Some(3351)),
            ("12 (a) Z 1 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 3351 0 0", None),
            ("12 (a) X 1 12 12 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 3351 0 0", None),
            ("12 (a) S 1", None),
            ("", None),
        ] {
            assert_eq!(running_since(stat), since, "{stat}");
        }
        child.wait().unwrap();
        let pod = LockOwner { in_pod: true, ..me.clone() };
        assert_eq!(pod.liveness_of(&with(&|h| h.namespace = "1".to_owned())), Liveness::Dead);
    }
}
