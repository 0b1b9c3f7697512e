//! `password`: the administrator's credentials, for `$(…)` and for humans.

use std::collections::BTreeMap;

use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::ResourceExt as _;
use serde_json::json;

use super::{
    args,
    error::Error,
    session::{Printer, Session},
};
use crate::{
    clientapp::spec::secrets::{ADMIN_PASSWORD, ADMIN_USERNAME},
    crd::ClientApp,
};

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::Password) -> Result<(), Error> {
    let stored = session.app(&args.name).await?;
    let administrator = Administrator::of(session, &stored.app).await?;
    let value = |key: &str| -> Result<String, Error> {
        let ByteString(bytes) = administrator.value(key)?;
        let not_text = |_| Error::Missing(format!("{}: {key} is not text", administrator.secret));
        String::from_utf8(bytes.clone()).map_err(not_text)
    };
    if printer.is_for_humans() {
        let key = if args.username { ADMIN_USERNAME } else { ADMIN_PASSWORD };
        return printer.raw(&format!("{}\n", value(key)?));
    }
    printer.object(&json!({"username": value(ADMIN_USERNAME)?, "password": value(ADMIN_PASSWORD)?}), "")
}

/// The Secret with an app's administrator.
pub(crate) struct Administrator {
    /// Kind, namespace and name, for messages.
    secret: String,
    data: BTreeMap<String, ByteString>,
}

impl Administrator {
    /// Reads it from the cluster.
    pub(crate) async fn of(session: &Session, app: &ClientApp) -> Result<Administrator, Error> {
        let name = app.status.as_ref().and_then(|status| status.admin_secret_name.as_ref());
        let name = name.or(app.spec.admin_secret.as_ref()).ok_or_else(|| {
            let name = app.name_any();
            let status = session.flags.command(format!("kubectl clientapp status {name}"));
            Error::Missing(format!("ClientApp {name} has no administrator yet: {status} shows what it is waiting for"))
        })?;
        let secret = format!("Secret {}/{name}", session.namespace);
        let found = session.api::<Secret>().get_opt(name).await.map_err(Error::api(format!("read {secret}")))?;
        let found = found.ok_or_else(|| Error::Missing(format!("{secret} does not exist")))?;
        Ok(Administrator { secret, data: found.data.unwrap_or_default() })
    }

    pub(crate) fn value(&self, key: &str) -> Result<&ByteString, Error> {
        self.data.get(key).ok_or_else(|| Error::Missing(format!("{} has no key {key}", self.secret)))
    }
}
