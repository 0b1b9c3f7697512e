//! The stage `desired`, **pure**: from a valid spec, everything that an app should be. [`desired`](mod@desired) puts it together.

pub(crate) mod credentials;
pub(crate) mod database;
pub(crate) mod deployer;
pub(crate) mod desired;
pub(crate) mod file_backup;
pub(crate) mod names;
pub(crate) mod secrets;
pub(crate) mod values;
pub(crate) mod values_from;
