//! Schedules in cron notation, and the record of when one is due.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One field in cron notation: values, ranges and steps, separated by commas.
macro_rules! field {
    ($value:literal) => {
        concat!(
            "([*?]|",
            $value,
            "(-",
            $value,
            ")?)(/[1-9][0-9]?)?(,([*?]|",
            $value,
            "(-",
            $value,
            ")?)(/[1-9][0-9]?)?)*"
        )
    };
}

/// The rule of a schedule: the five fields that Kubernetes' CronJobs have, or a macro.
pub(crate) const CRON: &str = concat!(
    "self.matches('^(@(hourly|daily|midnight|weekly|monthly|yearly|annually)|",
    field!("[0-5]?[0-9]"),
    " ",
    field!("([01]?[0-9]|2[0-3])"),
    " ",
    field!("(0?[1-9]|[12][0-9]|3[01])"),
    " ",
    field!("(0?[1-9]|1[0-2]|[A-Za-z]{3})"),
    " ",
    field!("([0-7]|[A-Za-z]{3})"),
    ")$')"
);

/// Records when something periodic is due.
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Scheduled {
    /// The schedule that these times are of.
    pub schedule: String,
    /// Since when it applies.
    pub since: Time,
    /// When it is due next; in the past while it waits.
    pub next: Time,
}
