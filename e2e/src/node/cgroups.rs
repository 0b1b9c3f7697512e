//! The node's directory in each hierarchy of cgroups, which no namespace removes.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};

use super::requirements::CGROUPS;

/// The environment variable with the name of the node's cgroup, within its namespaces.
pub(super) const VARIABLE: &str = "CLIENTAPP_NODE_CGROUP";
/// Waits for the end of a process, and then removes its cgroups and its directory. A cgroup can be removed once its processes are gone.
const CLEANER: &str = r#"
trap '' HUP INT TERM
while kill -0 "$1" 2>/dev/null; do sleep 0.3; done
tries=100
while [ "$tries" -gt 0 ]; do
    left=
    for hierarchy in "$4"/*; do
        [ -d "$hierarchy/$3" ] || continue
        find "$hierarchy/$3" -depth -type d -exec rmdir {} + 2>/dev/null
        [ ! -d "$hierarchy/$3" ] || left=1
    done
    [ -n "$left" ] || break
    tries=$((tries - 1))
    sleep 0.3
done
rm -rf -- "$2"
"#;

/// Makes a directory in each hierarchy, in which processors and memory are those of its parent.
pub(super) fn create(name: &str) -> Result<()> {
    for hierarchy in hierarchies()? {
        let directory = hierarchy.join(name);
        match fs::create_dir(&directory) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(error).with_context(|| format!("cannot create {}", directory.display()));
            }
            _ => {}
        }
        for setting in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(value) = fs::read(hierarchy.join(setting)) {
                fs::write(directory.join(setting), value)?;
            }
        }
    }
    Ok(())
}

fn hierarchies() -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(CGROUPS).with_context(|| format!("cannot read {CGROUPS}"))?;
    // Links are other names of hierarchies.
    let directories = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    // Without controllers.
    Ok(directories.map(|entry| entry.path()).filter(|path| !path.ends_with("unified")).collect())
}

/// Returns the lists of processes of a pod's containers, by its uid, in one of the hierarchies.
pub(super) fn processes(pod: &str) -> Result<Vec<PathBuf>> {
    let mut open =
        vec![Path::new(CGROUPS).join("memory").join(std::env::var(VARIABLE).context("the node has no cgroup")?)];
    let mut lists = Vec::new();
    while let Some(directory) = open.pop() {
        let of_pod = directory.iter().any(|part| part.to_string_lossy().ends_with(pod));
        lists.extend(of_pod.then(|| directory.join("cgroup.procs")));
        let entries = fs::read_dir(&directory)?.flatten();
        open.extend(
            entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
        );
    }
    Ok(lists)
}

/// Starts what removes them, and `directory`, when the process `pid` is gone, however it ends.
pub(super) fn remove_after(pid: u32, directory: &Path, name: &str) -> Result<()> {
    let mut cleaner = Command::new("setsid");
    cleaner.args(["sh", "-c", CLEANER, "node"]).arg(pid.to_string()).arg(directory).args([name, CGROUPS]);
    cleaner.current_dir("/").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    cleaner.spawn().context("cannot start what cleans up after the node")?;
    Ok(())
}
