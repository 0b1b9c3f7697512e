//! Commands for several ClientApps: which ones, for how long, and what their failures add up to.

use std::time::{Duration, Instant};

use kube::{ResourceExt, api::ListParams};

use super::{
    args::Targets,
    error::{Error, worse},
    session::{Printer, Session},
};

/// Time for a ClientApp whose turn comes after the deadline: enough to see whether it is ready already.
const LOOK: Duration = Duration::from_secs(5);

/// The names that were given, or those that labels select.
pub(crate) async fn chosen(session: &Session, targets: &Targets) -> Result<Vec<String>, Error> {
    let Targets { names, selector, all } = targets;
    // An empty variable in a script must not mean all of them.
    if selector.as_ref().is_some_and(|selector| selector.trim().is_empty()) {
        return Err(Error::Usage(
            "-l needs labels, such as tier=gold; for all ClientApps of the namespace, use --all".to_owned(),
        ));
    }
    if !all && selector.is_none() {
        return Ok(names.clone());
    }
    let params = ListParams { label_selector: selector.clone(), ..ListParams::default() };
    let place = format!("namespace {}", session.namespace);
    let found = session.apps().list_metadata(&params).await;
    let found = found.map_err(Error::api(format!("list the ClientApps in {place}")))?;
    match (found.items.is_empty(), selector) {
        (false, _) => Ok(found.items.iter().map(ResourceExt::name_any).collect()),
        (true, None) => Err(Error::Gone(format!("there is no ClientApp in {place}"))),
        (true, Some(labels)) => Err(Error::Gone(format!("there is no ClientApp with {labels} in {place}"))),
    }
}

/// The failures of a command. With several names, a failure is printed when it occurs, and the others go on.
pub(crate) struct Tally {
    several: bool,
    worst: Option<u8>,
}

impl Tally {
    /// For this many names.
    pub(crate) fn of(count: usize) -> Tally {
        Tally { several: count > 1, worst: None }
    }

    /// Returns what succeeded; or an error that ends the command, because there is nothing else to do.
    pub(crate) fn keep<T>(&mut self, result: Result<T, Error>, printer: &mut Printer) -> Result<Option<T>, Error> {
        match result {
            Ok(done) => Ok(Some(done)),
            Err(error) if !self.several || matches!(error, Error::Closed) => Err(error),
            Err(error) => {
                printer.error(&error);
                self.worst = Some(self.worst.map_or(error.code(), |worst| worse(worst, error.code())));
                Ok(None)
            }
        }
    }

    /// The result of the command.
    pub(crate) fn end(self) -> Result<(), Error> {
        self.worst.map_or(Ok(()), |code| Err(Error::Told { code }))
    }
}

/// The end of `--timeout`, which is for all names together.
pub(crate) struct Deadline {
    pub(crate) timeout: Duration,
    begun: Instant,
}

impl Deadline {
    /// This long from now.
    pub(crate) fn after(timeout: Duration) -> Deadline {
        Deadline { timeout, begun: Instant::now() }
    }

    /// Time for the next name.
    pub(crate) fn left(&self) -> Duration {
        self.timeout.saturating_sub(self.begun.elapsed()).max(LOOK.min(self.timeout))
    }
}
