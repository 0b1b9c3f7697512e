//! `adopt`: sets `spec.postgres.adopt` if there is data to adopt.

use serde_json::json;

use super::{
    args,
    change::patch,
    error::Error,
    session::{Printer, Session},
    status, wait,
};
use crate::crd::{
    ClientApp, Reason,
    conditions::{find, kind},
};

/// True if a ClientApp can adopt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Adoption {
    /// Retained data of an earlier ClientApp is blocking it.
    Possible,
    /// No retained data is blocking it.
    Needless(String),
    /// It adopts already, and is blocked nevertheless.
    Refused(String),
    /// The operator has not processed its newest spec yet.
    Unknown,
}

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::Awaited) -> Result<(), Error> {
    let args::Awaited { name, waiting } = args;
    let before = session.app(name).await?;
    match judge(&before.app) {
        Adoption::Possible => {}
        Adoption::Needless(why) => {
            return printer.object(&before.object, &format!("clientapp/{name} unchanged: {why}"));
        }
        Adoption::Refused(why) => return Err(Error::Stalled(format!("{name}: {why}"))),
        Adoption::Unknown => {
            return Err(Error::Missing(format!(
                "{name}: the operator has not yet reported whether there is data of an earlier ClientApp: try again in a moment"
            )));
        }
    }
    let object = patch(session, &before, json!({"spec": {"postgres": {"adopt": true}}})).await?;
    let sentence = format!("clientapp/{name} adopts the data retained from an earlier ClientApp of its name");
    wait::asked(session, printer, &object, &sentence, waiting, None).await
}

/// Decides by what the operator has reported about the newest spec. **Pure.**
pub(crate) fn judge(app: &ClientApp) -> Adoption {
    let released = find(app.conditions(), kind::RELEASED);
    let Some(released) = released.filter(|found| found.observed_generation == app.metadata.generation) else {
        return Adoption::Unknown;
    };
    // Retained data, or a Secret that may belong to some.
    let held = matches!(Reason::parse(&released.reason), Some(Reason::DataRetained | Reason::SecretNotOurs));
    match (held, app.spec.postgres.adopt) {
        (true, true) => Adoption::Refused(released.message.clone()),
        (true, false) => Adoption::Possible,
        (false, true) => Adoption::Needless("spec.postgres.adopt is already true".to_owned()),
        (false, false) => Adoption::Needless(format!(
            "no data of an earlier ClientApp is blocking it; the operator says: {}",
            status::sentence(app)
        )),
    }
}
