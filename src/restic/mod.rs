//! Runs the restic command line, the field's backup tool.
//!
//! `command` builds command lines and `output` interprets exit codes and JSON, both pure; `repository` runs restic (effect).
//! `confine` withholds files that are none of its task (effect).

pub(crate) mod command;
#[cfg(target_os = "linux")]
pub(crate) mod confine;
pub(crate) mod output;
pub(crate) mod repository;
