//! Keeps charts: `cache` has each version pulled once, `archive` checks what was pulled.

pub(in crate::helm) mod archive;
pub(in crate::helm) mod cache;
