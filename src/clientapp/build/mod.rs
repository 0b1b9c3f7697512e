//! Builders of what a `ClientApp` consists of. Pure: from names and settings to documents.

pub mod secrets;
pub mod values;
