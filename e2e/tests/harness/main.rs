//! What the scenarios stand on: the control plane, its tools, the charts, what helm says, and the stand-in for Percona's operator.

mod charts;
mod percona;
mod plane;
mod stderr;
mod tools;
