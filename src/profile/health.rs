//! The health of apps that have a Profile's revision: asked while a rollout waits for it.
//!
//! | stage | module | |
//! |---|---|---|
//! | who is asked when, and how each does | [`checks`] | pure |
//! | ask one | [`request`] | one request |
//! | where it is, and what it says | [`answer`] | pure |

mod answer;
mod checks;
mod request;

pub(super) use self::{
    answer::{Outcome, service},
    checks::{Checks, Judged, Question},
    request::ask,
};
