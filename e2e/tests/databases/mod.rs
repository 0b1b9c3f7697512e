//! The databases of ClientApps, of each provider.

mod cloudnativepg;
mod database;
mod percona;
mod provider;
