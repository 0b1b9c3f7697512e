//! Operators: their life, events at the wrong moment, and their deployment.

mod faults;
mod life;
mod manifests;
