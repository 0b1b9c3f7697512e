//! The compositions of the commands. An **effect**.

pub mod faults;
pub mod lives;
pub mod soak;
pub mod specs;
