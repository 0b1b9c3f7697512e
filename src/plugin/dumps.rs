//! The Postgresql that provides an app's database.

use super::{error::Error, session::Session};
use crate::{
    crd::{PostgresProvider, Postgresql},
    platform::key::Key,
};

/// The Postgresql that provides an app's database, if there is one.
pub(crate) async fn database(session: &Session, app: &str) -> Result<Option<Postgresql>, Error> {
    let name = Key::new(&session.namespace, app).database();
    let found = session.api::<Postgresql>().get_opt(&name).await;
    found.map_err(Error::api(format!("read Postgresql {}/{name}", session.namespace)))
}

/// The same, or an error with the reason why there is none.
pub(crate) async fn needed(session: &Session, app: &str) -> Result<Postgresql, Error> {
    if let Some(found) = database(session, app).await? {
        return Ok(found);
    }
    let stored = session.app(app).await?;
    Err(Error::Missing(match (stored.app.spec.postgres.enabled, stored.app.spec.postgres.provider) {
        (true, PostgresProvider::Standalone) => {
            let status = session.flags.command(format!("kubectl clientapp status {app}"));
            format!("{app} has no Postgresql yet: {status} shows what it is waiting for")
        }
        (true, PostgresProvider::CloudNativePg) => {
            format!("{app} has a Cluster of CloudNativePG, which is not dumped")
        }
        _ => format!("{app} has no database of its own"),
    }))
}
