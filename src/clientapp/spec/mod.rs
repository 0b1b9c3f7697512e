//! The stage `desired`, **pure**: from a valid spec, everything that an app should be. [`desired`](mod@desired) puts it together.

pub(crate) mod credentials;
pub(crate) mod database;
pub(crate) mod deployer;
pub mod desired;
pub(crate) mod file_backup;
pub(crate) mod names;
pub mod secrets;
pub mod values;
pub(crate) mod values_from;
