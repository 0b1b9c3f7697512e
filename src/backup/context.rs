//! Names the controller of ClientAppBackups for its stages. Pure.

#[derive(Clone, Debug)]
pub(crate) enum Backups {}
