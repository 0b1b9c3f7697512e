//! Builders of the parts of a `ClientApp`. Pure: from names and settings to documents.

pub mod secrets;
pub mod values;
