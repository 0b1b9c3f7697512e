//! Runs a service on its own thread and runtime, so that it outlives a test's runtime and keeps answering while the
//! test blocks.

use std::future::Future;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use tokio::sync::oneshot;

/// A service in the background. Dropping it ends the service with every task it spawned, and waits for that.
#[derive(Debug)]
pub struct Background {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// The name is the thread's.
    pub fn spawn<F: Future<Output = ()> + 'static>(
        name: &str,
        service: impl FnOnce() -> F + Send + 'static,
    ) -> Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let run = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = service() => {}
                    // An error means that the handle was dropped, which is a stop as well.
                    _ = stopped => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run).context("starting a thread")?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already printed.
            let _ = thread.join();
        }
    }
}
