//! What has to hold.

pub mod audit;
pub mod convergence;
pub mod evidence;
pub mod leaks;
pub mod lives_audit;
pub mod ownership;
pub mod rest;
pub mod state;
