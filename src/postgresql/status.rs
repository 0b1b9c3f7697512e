//! The status of a Postgresql and the events about its changes: computed by **pure** functions, and written by one effect,
//! as is the result of a drill in the ClientAppBackup whose dump it has restored.

pub(crate) mod conditions;
pub(crate) mod events;
pub(crate) mod record;
mod verified;
pub(crate) mod write;

#[cfg(test)]
mod tests;
