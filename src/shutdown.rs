//! The end of the process: SIGTERM or SIGINT cancels everything once, politely.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A token that is cancelled by SIGTERM or SIGINT. A second signal has no further effect: helm is given its time to
/// record what it was doing.
///
/// # Errors
/// When the signals cannot be caught.
pub(crate) fn on_signals() -> std::io::Result<CancellationToken> {
    let stop = CancellationToken::new();
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let cancel = stop.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
            _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
        }
        cancel.cancel();
    });
    Ok(stop)
}
