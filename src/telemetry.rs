//! Logs: text on a terminal, JSON otherwise. `RUST_LOG` sets the filter.

use std::io::IsTerminal as _;

use tracing_subscriber::{EnvFilter, fmt, layer::SubscriberExt as _, util::SubscriberInitExt as _};

use crate::platform::panic::message;

/// Filter if `RUST_LOG` is not set. kube reports every retry of a watch as a separate error, which the operator logs in one line.
const DEFAULT_FILTER: &str = "info,kube_runtime=error,kube_client=off";

/// Starts logging to standard error, including panics with their location, which a bug report needs.
pub(crate) fn init() {
    std::panic::set_hook(Box::new(|panic| {
        let at = panic.location().map(ToString::to_string);
        tracing::error!(at, "panic: {}", message(panic.payload()));
    }));
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER));
    let logs = tracing_subscriber::registry().with(filter);
    if std::io::stderr().is_terminal() {
        logs.with(fmt::layer().with_target(false).with_writer(std::io::stderr)).init();
    } else {
        logs.with(fmt::layer().json().flatten_event(true).with_writer(std::io::stderr)).init();
    }
}
