//! Random tests.

pub mod disturbance;
pub mod oracle;
pub mod preset;
pub mod report;
pub mod requests;
pub mod workload;
