//! The status of a Postgresql and the events about its changes: computed by **pure** functions, and written by one effect.

pub(crate) mod conditions;
pub(crate) mod events;
pub(crate) mod record;
pub(crate) mod write;

#[cfg(test)]
mod tests;
