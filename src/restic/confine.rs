//! Confines this process, and each restic that it runs, to the directories of its task. An effect.
//!
//! The owner of a volume may put links into it while it is read: without this, one that is replaced at the right moment leads to a file of
//! the container, such as the environment of a process with the credentials in it.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, Ruleset, RulesetAttr as _, RulesetCreatedAttr as _, RulesetError, RulesetStatus,
    path_beneath_rules,
};

/// The rights that are withheld are those of Linux 6.2; an older kernel withholds those that it knows.
const RIGHTS: ABI = ABI::V3;
/// Lists what restic needs besides: host names, certificates, and devices.
const SYSTEM: [&str; 4] = ["/etc", "/usr", "/lib", "/lib64"];
const DEVICES: [&str; 1] = ["/dev"];

/// Withholds all other files from the calling thread and those that it starts: call it before there are others.
pub(crate) fn confine(read: &[PathBuf], write: &[PathBuf]) -> Result<(), RulesetError> {
    let temporary = std::env::temp_dir();
    let read = read.iter().map(PathBuf::as_path).chain(SYSTEM.iter().map(Path::new));
    let write = write.iter().map(PathBuf::as_path).chain(DEVICES.iter().map(Path::new)).chain([temporary.as_path()]);
    let status = Ruleset::default()
        .handle_access(AccessFs::from_all(RIGHTS))?
        .create()?
        .add_rules(path_beneath_rules(read, AccessFs::from_read(RIGHTS)))?
        .add_rules(path_beneath_rules(write, AccessFs::from_all(RIGHTS)))?
        .restrict_self()?;
    if status.ruleset == RulesetStatus::NotEnforced {
        println!("this node's kernel has no Landlock: links in the volumes are followed as its owner places them");
    }
    Ok(())
}
