//! The status: [`conditions`], [`verdicts`] and [`events`] are **pure**, [`write`] has the effects.

pub(crate) mod attempt;
pub(crate) mod conditions;
pub(crate) mod events;
mod verdicts;
pub(crate) mod write;

#[cfg(test)]
mod tests;
