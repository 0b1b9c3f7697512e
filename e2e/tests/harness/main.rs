//! What the scenarios stand on: the control plane, its tools, the charts, and the stand-in for Percona's operator.

mod charts;
mod percona;
mod plane;
mod tools;
