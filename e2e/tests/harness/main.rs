//! The basis of the scenarios: the control plane, its tools, the charts, helm's messages, and the Percona operator.

mod charts;
mod conformance;
mod operator_chart;
mod percona;
mod plane;
mod release;
mod stderr;
mod tools;

use std::sync::OnceLock;

use e2e::progress::Progress;
use e2e::tools::Tools;

fn tools() -> &'static Tools {
    static TOOLS: OnceLock<Tools> = OnceLock::new();
    TOOLS.get_or_init(|| Tools::ensure(&Progress::stderr()).unwrap())
}
