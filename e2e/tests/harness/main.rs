//! The basis of the scenarios: the control plane, its tools, the charts, helm's messages, and the Percona operator.

mod charts;
mod conformance;
mod operator_chart;
mod percona;
mod plane;
mod stderr;
mod tools;
