//! The workloads: what users do.
//!
//! | | module | |
//! |---|---|---|
//! | random lives of apps and databases, and their steps | [`life`] | effect |
//! | fixed scenarios, each run by a case of its own | [`scenario`], [`case`] | effect |
//! | sequences of specs, from the kinds' schemas | [`specs`] | effect |
//! | strings for every field | [`strings`] | effect |

pub mod case;
pub mod life;
pub mod scenario;
pub mod specs;
pub mod strings;
