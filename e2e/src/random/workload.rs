//! What users do.

pub mod case;
pub mod life;
pub mod live;
pub mod scenario;
pub mod specs;
pub mod strings;
