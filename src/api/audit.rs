//! One line of the log for each change that the API was asked for. The request's id and where it came from are in the
//! line's span.

use axum::http::StatusCode;

use super::{auth::User, problem::Problem};
use crate::runtime::key::Key;

/// Says who asked for what, and what came of it. Never a secret.
pub(crate) fn mutation(user: &User, verb: &'static str, instance: &Key, result: Result<StatusCode, &Problem>) {
    let (status, reason) = match result {
        Ok(status) => (status, "Done"),
        Err(problem) => (problem.status(), problem.reason()),
    };
    tracing::info!(target: "audit", user = %user.name, verb, clientapp = %instance, status = status.as_u16(), reason, "api");
}
