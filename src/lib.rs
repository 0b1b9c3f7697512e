//! The ClientApp operator: `kubectl apply` of a [`crd::ClientApp`] gives one tenant a complete, isolated instance of a
//! Helm-packaged web app, by running the helm CLI at exactly the chart version that the spec pins.
//! `CONTRIBUTING.md` has the map of the modules. Start reading at [`clientapp`]: its driver is one reconcile.

// The documentation is for developers of the operator.
#![allow(rustdoc::private_intra_doc_links)]
// Items are `pub` only for users of the library and for `e2e`; those must be documented.
#![warn(unreachable_pub)]

pub mod api;
pub(crate) mod backup;
pub mod cli;
pub mod clientapp;
pub mod config;
pub(crate) mod deletion;
pub(crate) mod health;
pub(crate) mod helm;
pub(crate) mod identity;
pub(crate) mod leadership;
pub mod lease;
pub(crate) mod listen;
pub(crate) mod metrics;
pub mod platform;
pub(crate) mod plugin;
pub(crate) mod postgres_writer;
pub(crate) mod postgresql;
pub(crate) mod profile;
pub(crate) mod restic;
pub(crate) mod restore;
pub(crate) mod run;
pub(crate) mod secrets;
pub(crate) mod shutdown;
pub(crate) mod store;
pub(crate) mod telemetry;
pub mod yaml;

pub use clientapp_crd as crd;
