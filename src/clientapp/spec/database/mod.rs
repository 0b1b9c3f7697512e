//! The app's database: what all providers have in common, and [`Provider`] for their differences.
//!
//! **Pure**, except for the watches that a provider starts. A database that exists already has no provider ([`external`]).

mod cloudnativepg;
mod desired;
mod endpoints;
mod external;
mod names;
mod object;
mod percona;
mod provider;
mod request;
mod standalone;

use clap::ValueEnum as _;

#[cfg(test)]
pub(crate) use self::request::BackupLocation;
use self::request::{DatabaseRequest, USER};
pub(crate) use self::{
    desired::{DesiredDatabase, DesiredObject},
    names::{is_database, name, name_in_use, names, names_of},
    object::{BackupProgress, DatabaseObject, DatabaseState, SeenBackup, SeenPart},
    provider::{
        BackupWords, DatabaseCaches, DatabasePart, DeletesByLabel, PartCache, PartUse, Provider, ProviderInfo, Summary,
    },
    request::BackupTargets,
};
use super::values;
use crate::{
    clientapp::error::{InvalidSpec, invalid},
    config::Config,
    crd::{ClientApp, JobSettings, PostgresProvider, Resources, parameters, quantity},
    platform::key::Key,
};

/// The provider of this name; `None`: the database exists already.
pub(crate) fn provider(name: PostgresProvider) -> Option<&'static dyn Provider> {
    match name {
        PostgresProvider::Percona => Some(&percona::Percona),
        PostgresProvider::Standalone => Some(standalone()),
        PostgresProvider::CloudNativePg => Some(&cloudnativepg::CloudNativePg),
        PostgresProvider::External => None,
    }
}

/// The provider of Postgresqls.
pub(crate) fn standalone() -> &'static dyn Provider {
    &standalone::Standalone
}

pub(crate) fn all() -> impl Iterator<Item = &'static dyn Provider> {
    PostgresProvider::value_variants().iter().copied().filter_map(provider)
}

/// The database that a spec asks for. Pods of other namespaces can reach it if the Profile opens its namespaces. `jobs`: the Profile's.
pub(crate) fn desired(
    key: &Key,
    app: &ClientApp,
    config: &Config,
    (open, jobs): (bool, Option<&JobSettings>),
) -> Result<DesiredDatabase, InvalidSpec> {
    let postgres = &app.spec.postgres;
    let Some(provider) = provider(postgres.provider) else { return external::desired(postgres) };
    if let Some(unsupported) = provider.version_error(&postgres.version, config) {
        return Err(invalid("spec.postgres.version", format!("{unsupported}, not {:?}", postgres.version)));
    }
    if let Some(problem) = postgres.resources.as_ref().and_then(Resources::problem) {
        return Err(invalid("spec.postgres.resources", problem));
    }
    if let Some(problem) = parameters::problem(&postgres.parameters) {
        return Err(invalid("spec.postgres.parameters", problem));
    }
    let storage_bytes = quantity::parse_positive(&postgres.storage_size)
        .ok_or_else(|| invalid("spec.postgres.storageSize", "must be a quantity above zero such as 1Gi"))?;
    let name = names::name(key, postgres);
    let host = format!("{}.{}.svc.{}", provider.service(postgres, &name), key.namespace, config.cluster_domain);
    let mut postgres = postgres.clone();
    if let Some(backup) = &mut postgres.backup {
        backup.jobs = JobSettings::over(backup.jobs.as_ref(), jobs);
    }
    Ok(DesiredDatabase {
        address: values::DatabaseAddress {
            host: values::From::Value(host),
            name: values::From::Value(USER.to_owned()),
            user: Some(USER.to_owned()),
            secret: provider.secret(&name),
            user_key: provider.user_key().to_owned(),
            password_key: "password".to_owned(),
        },
        object: Some(DesiredObject {
            provider,
            name: name.clone(),
            postgres_version: postgres.version.parse().unwrap_or_default(),
            storage_bytes,
            isolated: !open,
            request: DatabaseRequest {
                app: key.clone(),
                name,
                uid: app.metadata.uid.clone(),
                postgres,
                deletion_policy: app.spec.deletion_policy,
                before_upgrades: app.spec.upgrade.backup,
                percona_cr_version: config.percona_cr_version.clone(),
            },
        }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kind_names_match_the_api_server() {
        for kind in all().map(|provider| &provider.info().kind) {
            assert_eq!((kind.resource)().kind, kind.name);
        }
    }
}
