//! Holds the machinery that the controllers of all kinds share.
//!
//! | | module | |
//! |---|---|---|
//! | names of objects and accounts | [`key`], [`account`] | pure |
//! | addresses of servers | [`origin`] | pure |
//! | what is watched | [`watch_builder`], [`managed_fields`], [`watch`], [`cache`], [`definition`] | effect, reads only |
//! | why pods do not run | [`pods`], [`job`], [`warnings`] | pure |
//! | how requests are made | [`client`], [`api`] | effect |
//! | watch → store → reconcile → backoff | [`controller`] | effect |
//! | what an answer of the API server means | [`api_error`] | pure |
//! | what follows from a failure | [`error`], [`backoff`] | pure |
//! | what follows from a panic | [`mod@panic`] | effect |
//! | objects that are carried out once | [`run_once`] | effect |
//! | when something periodic is due | [`schedule`] | pure |
//! | what is written about an object | [`reconciled`], [`status`], [`events`] | effect |
//! | generated passwords, and the time | [`password`], [`clock`] | effect |
//! | what runs one at a time | [`fair_lock`] | effect |
//! | other programs | [`process`] | effect |

pub mod account;
pub(crate) mod api;
pub(crate) mod api_error;
pub(crate) mod backoff;
pub(crate) mod cache;
pub(crate) mod client;
pub(crate) mod clock;
pub(crate) mod controller;
pub(crate) mod definition;
pub(crate) mod error;
pub(crate) mod events;
pub(crate) mod fair_lock;
#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod idle_job;
pub(crate) mod job;
pub mod key;
pub(crate) mod managed_fields;
pub(crate) mod operator_image;
pub(crate) mod origin;
pub(crate) mod panic;
pub(crate) mod password;
pub(crate) mod pods;
pub(crate) mod process;
pub(crate) mod reconciled;
pub(crate) mod run_once;
pub(crate) mod schedule;
pub mod status;
pub(crate) mod warnings;
pub(crate) mod watch;
pub(crate) mod watch_builder;
