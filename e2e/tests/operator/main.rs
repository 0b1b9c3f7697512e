//! Operators: their life, and their deployment.

mod life;
mod manifests;
