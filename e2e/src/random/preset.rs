//! What the commands compose. An **effect**.

pub mod faults;
pub mod lives;
pub mod soak;
pub mod specs;
