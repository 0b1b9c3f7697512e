//! Operators: their life, their deployment, and the networks that they are in.

mod credentials;
mod ipv6;
mod life;
mod manifests;
