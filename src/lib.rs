//! The ClientApp operator: `kubectl apply` of a [`crd::ClientApp`] gives one tenant a complete, isolated instance of a
//! Helm-packaged web app, by running the helm CLI at exactly the chart version that the spec pins.
//!
//! ```text
//! cli, run          run | crds | render | kubectl: what a person types; the process
//! config            flags and environment -> Config          every error at start-up
//! crd/              the kinds, their schemas, their conditions     pure
//! runtime/          what the controllers of all kinds do alike
//! clientapp/        the controller: observe -> desired -> decide -> act -> report, and teardown
//! postgresql/       the controller of Postgresql, in the same stages
//! postgres_writer/  the controller of PostgresWriter: one row for each object
//! api/              the HTTP API and its page: instances on demand
//! plugin/           kubectl clientapp
//! helm/             the helm CLI: argv, process, charts, what its words mean
//! lock_owner, lease which operator process holds a release; one leader at a time
//! health, metrics   /healthz, /readyz, /metrics
//! yaml              YAML that people write and read
//! telemetry, shutdown
//! ```
//!
//! Start reading at [`clientapp`]: its driver is one reconcile.

// The documentation is for those who work on the operator.
#![allow(rustdoc::private_intra_doc_links)]

pub mod api;
pub mod cli;
pub mod clientapp;
pub mod config;
pub mod crd;
pub(crate) mod destroy;
pub(crate) mod health;
pub(crate) mod helm;
pub(crate) mod lead;
pub mod lease;
pub(crate) mod lock_owner;
pub(crate) mod metrics;
pub(crate) mod plugin;
pub mod postgres_writer;
pub(crate) mod postgresql;
pub(crate) mod run;
pub mod runtime;
pub(crate) mod shutdown;
pub(crate) mod telemetry;
pub mod yaml;
