//! Operators: their life, and their deployment.

mod credentials;
mod life;
mod manifests;
