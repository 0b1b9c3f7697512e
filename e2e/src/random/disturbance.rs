//! The disturbances: what goes wrong meanwhile.
//!
//! | | module | |
//! |---|---|---|
//! | what can happen to operators, the Lease, the API server and releases | [`blow`] | effect |
//! | the operators, one after the other | [`operators`] | effect |
//! | at each write of an undisturbed run, or throughout | [`row`] | pure |
//! | at random moments of lives | [`moments`] | effect |
//! | at set times | [`mod@schedule`] | pure |

pub mod blow;
pub mod moments;
pub mod operators;
pub mod row;
pub mod schedule;
