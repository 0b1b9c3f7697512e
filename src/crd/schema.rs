//! Patterns, defaults and schemas that several kinds share. **Pure.**

/// Pattern of the names of most kinds of objects, which become part of URL paths to the API server.
pub(super) const OBJECT_NAME: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// The same, or empty.
pub(super) const OBJECT_NAME_OR_NOTHING: &str = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$";
/// CEL rule of a hostname.
pub(super) const HOSTNAME: &str =
    "self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*$')";
/// Says that a value is no hostname.
pub(super) const NOT_A_HOSTNAME: &str = "must be a DNS name in lower case, such as acme.example.com: letters, digits, '-' and '.', no wildcard, no trailing dot";

/// CEL rule of a chart's version.
pub(super) const EXACT_VERSION: &str = "self.matches('^(0|[1-9][0-9]*)[.](0|[1-9][0-9]*)[.](0|[1-9][0-9]*)(-[0-9A-Za-z-]+([.][0-9A-Za-z-]+)*)?([+][0-9A-Za-z-]+([.][0-9A-Za-z-]+)*)?$')";
/// Says that a value is no chart's version.
pub(super) const NOT_A_VERSION: &str = "must be one exact version such as 5.5.2: no range, no 'latest', no leading 'v'";

pub(super) fn number<const N: i32>() -> i32 {
    N
}

pub(super) fn default_storage() -> String {
    "1Gi".to_owned()
}

pub(super) fn default_password_key() -> String {
    "password".to_owned()
}

/// Schema of raw chart values.
pub(super) fn any_object(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
    })
}
