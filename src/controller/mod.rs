//! What the controllers of all kinds do alike.
//!
//! | | module | |
//! |---|---|---|
//! | what objects are called | [`key`] | pure |
//! | what is watched | [`watch`], [`cache`], [`definition`] | effect, reads only |
//! | what follows from a failure | [`error`] | pure |
//! | what follows from a panic | [`mod@panic`] | effect |
//! | what is written about an object | [`finalizer`], [`status`], [`events`] | effect |
//! | what is made up | [`password`] | effect |

pub mod cache;
pub mod definition;
pub mod error;
pub mod events;
pub mod finalizer;
pub mod key;
pub mod panic;
pub mod password;
pub mod status;
pub mod watch;
