//! A database that exists already. **Pure.** It has no provider: the operator never changes or deletes it.

use std::num::NonZeroU16;

use super::desired::DesiredDatabase;
use crate::{
    clientapp::{
        error::{InvalidSpec, invalid},
        spec::values,
    },
    crd::{ExternalPostgres, Postgres},
};

pub(super) fn desired(postgres: &Postgres) -> Result<DesiredDatabase, InvalidSpec> {
    let external = postgres.external.as_ref().ok_or_else(|| {
        invalid("spec.postgres.external", "is required by the provider external: set at least secretName")
    })?;
    let ExternalPostgres { secret_name, user_key, password_key, host_key, database_key, host, database } = external;
    // Colons in brackets are part of an IPv6 address.
    let port = host.as_ref().and_then(|host| host.rsplit(']').next()?.rsplit_once(':'));
    if port.is_some_and(|(_, port)| port.parse::<NonZeroU16>().is_err()) {
        return Err(invalid("spec.postgres.external.host", "must end in a port from 1 to 65535, or in none"));
    }
    let from = |given: &Option<String>, key: &str| match given {
        Some(value) => values::From::Value(value.clone()),
        None => values::From::Key(key.to_owned()),
    };
    let address = values::DatabaseAddress {
        host: from(host, host_key),
        name: from(database, database_key),
        user: None,
        secret: secret_name.clone(),
        user_key: user_key.clone(),
        password_key: password_key.clone(),
    };
    Ok(DesiredDatabase { address, object: None })
}
