//! The HTTP API: instances on demand. It writes specs and reads status; it never runs helm, and its state is the
//! cluster's.

pub mod problem;
