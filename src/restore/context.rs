//! Names the controller of ClientAppRestores for its stages. Pure.

#[derive(Clone, Debug)]
pub(crate) enum Restores {}
