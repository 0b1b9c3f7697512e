//! Operators: their life, what happens around them at the wrong moment, and how they are deployed.

mod faults;
mod life;
mod manifests;
