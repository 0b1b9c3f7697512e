//! Holds the types of the observed state, and reads what one object or record means by itself. **Pure.**

pub(crate) mod certificate;
pub(crate) mod dependencies;
pub(crate) mod drift;
pub(crate) mod field_edits;
pub(crate) mod file_backup;
pub(crate) mod helm_tests;
pub(crate) mod installed_chart;
pub(crate) mod inventory;
pub(crate) mod lock;
pub(crate) mod owned;
pub(crate) mod pods;
pub(crate) mod release;
pub(crate) mod repair_backoff;
pub(crate) mod types;
pub(crate) mod upgrade_backup;
pub(crate) mod volumes;
