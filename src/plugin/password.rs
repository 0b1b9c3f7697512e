//! `password`: the administrator's credentials, for `$(…)` and for humans.

use k8s_openapi::{ByteString, api::core::v1::Secret};
use serde_json::json;

use super::{
    args,
    error::Error,
    session::{Printer, Session},
};
use crate::clientapp::build::secrets::{ADMIN_PASSWORD, ADMIN_USERNAME};

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::Password) -> Result<(), Error> {
    let stored = session.app(&args.name).await?;
    let name = stored.app.status.and_then(|status| status.admin_secret_name);
    let name = name.or(stored.app.spec.admin_secret).ok_or_else(|| {
        Error::Missing(format!(
            "ClientApp {} has no administrator yet: `kubectl clientapp status {0}` shows what it is waiting for",
            args.name
        ))
    })?;
    let described = format!("Secret {}/{name}", session.namespace);
    let secret = session.api::<Secret>().get_opt(&name).await.map_err(Error::api(format!("read {described}")))?;
    let data = secret.ok_or_else(|| Error::Missing(format!("{described} does not exist")))?.data.unwrap_or_default();
    let value = |key: &str| -> Result<String, Error> {
        let ByteString(bytes) = data.get(key).ok_or_else(|| Error::Missing(format!("{described} has no key {key}")))?;
        String::from_utf8(bytes.clone()).map_err(|_| Error::Missing(format!("{described}: {key} is not text")))
    };
    if printer.is_for_humans() {
        let key = if args.username { ADMIN_USERNAME } else { ADMIN_PASSWORD };
        return printer.raw(&format!("{}\n", value(key)?));
    }
    printer.object(&json!({"username": value(ADMIN_USERNAME)?, "password": value(ADMIN_PASSWORD)?}), "")
}
