//! The databases of ClientApps, of each provider.

mod database;
mod percona;
mod provider;
