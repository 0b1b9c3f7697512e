//! Scenarios on control planes that all groups share: one with an operator of all, one for tests with operators of their own, one that
//! tests change one after the other. A binary for each group would start them again.

mod api;
mod cli;
mod data;
mod databases;
mod faults;
mod postgres_writer;
mod postgresql;
mod refusals;
mod scenarios;
