//! What the commands compose.

pub mod faults;
pub mod lives;
pub mod soak;
pub mod specs;
