//! Talks to the helm command line: builds its arguments, runs it, and interprets what it prints.
//!
//! `command` builds the arguments, `process` runs the child in the directory of `workdir`. `parse`, `message` and `version` interpret
//! helm's output, `index` reads the index that it has fetched, `error` says what failed, and `redact` removes secrets from messages.
//! `credentials` reads the Secrets that a pull needs.

pub(crate) mod command;
pub(in crate::helm) mod credentials;
pub(in crate::helm) mod error;
pub(in crate::helm) mod index;
pub(crate) mod message;
pub(in crate::helm) mod parse;
pub(crate) mod redact;
pub(in crate::helm) mod version;
pub(in crate::helm) mod workdir;
