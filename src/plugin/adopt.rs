//! `adopt`: sets `spec.postgres.adopt` where there is something to take over.

use serde_json::json;

use super::{
    args,
    change::patch,
    error::Error,
    list,
    session::{Printer, Session},
    wait,
};
use crate::crd::{
    ClientApp, Reason,
    conditions::{find, kind},
};

/// Whether a ClientApp can adopt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Adoption {
    /// It can: what an earlier ClientApp has left holds it up.
    Possible,
    /// Nothing that was left holds it up.
    Needless(String),
    /// It does already, and is held up all the same.
    Refused(String),
    /// The operator has not looked at its newest spec.
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
                "{name}: the operator has not yet reported whether an earlier ClientApp left data: try again in a moment"
            )));
        }
    }
    let object = patch(session, &before, json!({"spec": {"postgres": {"adopt": true}}})).await?;
    let sentence = format!("clientapp/{name} adopts the data that an earlier ClientApp of its name left");
    wait::asked(session, printer, &object, &sentence, waiting, None).await
}

/// Judges by what the operator has said of the newest spec. **Pure.**
pub(crate) fn judge(app: &ClientApp) -> Adoption {
    let conditions = app.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let released = find(conditions, kind::RELEASED);
    let Some(released) = released.filter(|found| found.observed_generation == app.metadata.generation) else {
        return Adoption::Unknown;
    };
    // The data themselves, or a Secret that may open some.
    let held = matches!(Reason::parse(&released.reason), Some(Reason::DataRetained | Reason::SecretNotOurs));
    match (held, app.spec.postgres.adopt) {
        (true, true) => Adoption::Refused(released.message.clone()),
        (true, false) => Adoption::Possible,
        (false, true) => Adoption::Needless("spec.postgres.adopt is already true".to_owned()),
        (false, false) => Adoption::Needless(format!(
            "no data of an earlier ClientApp stands in its way; the operator says: {}",
            list::sentence(app)
        )),
    }
}
