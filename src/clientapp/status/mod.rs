//! The status: [`conditions`] and [`events`] are **pure**, [`write`] has the effects.

pub(crate) mod attempt;
pub(crate) mod conditions;
pub(crate) mod events;
pub(crate) mod write;

#[cfg(test)]
mod tests;
