//! What happens to the operator.

pub mod fleet;
pub mod moments;
pub mod operators;
pub mod row;
pub mod schedule;
pub mod trouble;
