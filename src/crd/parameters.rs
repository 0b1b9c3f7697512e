//! PostgreSQL parameters that users may set. **Pure.**
//!
//! One table yields both the rules of the schema, with which the API server refuses a parameter at once, and the check of objects that
//! were stored under an older schema.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Parameters by name.
pub type Parameters = BTreeMap<String, String>;

const MOST: usize = 128;
const LONGEST_NAME: usize = 63;
const LONGEST_VALUE: usize = 1024;

/// Refused names, where `*` stands for any text, and why.
const REFUSED: [(&[&str], &str); 4] = [
    (
        &[
            "listen_addresses",
            "port",
            "unix_socket_*",
            "hba_file",
            "ident_file",
            "data_directory",
            "config_file",
            "external_pid_file",
            "allow_alter_system",
            // Replication to the standbys.
            "primary_*",
            "recovery_*",
            "hot_standby",
            "max_wal_senders",
            "promote_trigger_file",
            // A missing standby would block every commit, including the operator's own at the start of the primary.
            "synchronous_standby_names",
            // dump.sh makes the dumps, and an archive of WAL would fill the volume.
            "archive_*",
            // The pod's log must have the server's log, whose last lines say why a server has ended.
            "logging_collector",
            "log_directory",
            "log_filename",
            "log_file_mode",
            "log_destination",
        ],
        "this is the operator's to set",
    ),
    (
        &[
            "fsync",
            "full_page_writes",
            "zero_damaged_pages",
            "ignore_*",
            "data_sync_retry",
            // Foreign keys would not be enforced.
            "session_replication_role",
            "allow_system_table_mods",
            "allow_in_place_tablespaces",
        ],
        "data could be lost, or its damage hidden",
    ),
    (
        // With an older hash, no password fits the method in pg_hba.conf, not even those of the standbys.
        &["ssl*", "krb_*", "password_encryption", "db_user_namespace", "role", "session_authorization"],
        "it controls access to the server",
    ),
    (
        &[
            "*_command",
            "*_library",
            "session_preload_libraries",
            "local_preload_libraries",
            "oauth_validator_libraries",
            "dynamic_library_path",
            "extension_control_path",
            "jit_provider",
        ],
        "it runs or loads other programs",
    ),
];

/// Libraries of the image that can be preloaded without opening access.
const PRELOADABLE: [&str; 3] = ["pg_stat_statements", "auto_explain", "pg_prewarm"];
/// Levels of the WAL that standbys can follow.
const WAL_LEVELS: [&str; 2] = ["replica", "logical"];

/// A parameter with restricted values.
struct Bounded {
    name: &'static str,
    /// The same check in the schema: a pattern that values must match.
    pattern: fn() -> String,
    accepts: fn(&str) -> bool,
    message: &'static str,
}

const BOUNDED: [Bounded; 3] = [
    Bounded {
        name: "wal_level",
        pattern: || format!("^({})$", WAL_LEVELS.join("|")),
        accepts: |value| WAL_LEVELS.contains(&value),
        message: "wal_level must be replica or logical: with less, no standby can follow and no server starts",
    },
    Bounded {
        name: "max_replication_slots",
        pattern: || "^[1-9][0-9]{1,5}$".to_owned(),
        accepts: |value| {
            (2..=6).contains(&value.len()) && !value.starts_with('0') && value.bytes().all(|c| c.is_ascii_digit())
        },
        message: "max_replication_slots must be a number of at least 10: each standby has one",
    },
    Bounded {
        name: "shared_preload_libraries",
        pattern: || format!("^(({one})( *, *({one}))*)?$", one = PRELOADABLE.join("|")),
        accepts: |value| {
            let listed = value.split(',').all(|name| PRELOADABLE.contains(&name.trim_matches(' ')));
            value.is_empty() || listed && value.trim_matches(' ') == value
        },
        message: "shared_preload_libraries must be a comma-separated list of pg_stat_statements, auto_explain and pg_prewarm: they are the only safe ones in the image",
    },
];

const NAMES: &str = "names must consist of lower-case letters, digits, '_' and '.', not begin with a digit or '.', and have at most 63 characters";
const CONTROL: &str = "values must not contain line breaks or other control characters";

/// Returns true if a name matches a pattern, which may have a `*` at its beginning or end.
fn meant(pattern: &str, name: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), _) => name.ends_with(end),
        (_, Some(beginning)) => name.starts_with(beginning),
        (None, None) => name == pattern,
    }
}

/// Returns why these parameters are refused.
pub fn problem(parameters: &Parameters) -> Option<String> {
    if parameters.len() > MOST {
        return Some(format!("at most {MOST} parameters can be set"));
    }
    parameters.iter().find_map(|(name, value)| of_one(name, value))
}

fn of_one(name: &str, value: &str) -> Option<String> {
    let known = |c: char| c.is_ascii_lowercase() || c == '_';
    let spelled = name.starts_with(known) && name.chars().all(|c| known(c) || c.is_ascii_digit() || c == '.');
    if !spelled || name.len() > LONGEST_NAME {
        return Some(format!("{name:?}: {NAMES}"));
    }
    if value.chars().any(char::is_control) {
        return Some(format!("{name}: {CONTROL}"));
    }
    if value.chars().count() > LONGEST_VALUE {
        return Some(format!("{name}: a value can have at most {LONGEST_VALUE} characters"));
    }
    let refused = REFUSED.iter().find(|(names, _)| names.iter().any(|pattern| meant(pattern, name)));
    if let Some((_, why)) = refused {
        return Some(sentence(name, why));
    }
    let bounded = BOUNDED.iter().find(|bounded| bounded.name == name && !(bounded.accepts)(value));
    bounded.map(|bounded| bounded.message.to_owned())
}

fn sentence(names: &str, why: &str) -> String {
    format!("{names} cannot be set here: {why}")
}

/// Schema of parameters of PostgreSQL, with the rules.
pub(super) fn schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let mut rules = Vec::new();
    for (names, why) in REFUSED {
        let patterns: Vec<_> = names.iter().map(|name| name.replace('*', ".*")).collect();
        // Naming the one at fault would need a messageExpression, which for keys exceeds the API server's cost budget.
        let message = sentence(&names.join(", "), why);
        rules.push(rule(format!("self.all(name, !name.matches('^({})$'))", patterns.join("|")), &message));
    }
    for Bounded { name, pattern, message, .. } in BOUNDED {
        rules.push(rule(format!("!('{name}' in self) || self['{name}'].matches('{}')", pattern()), message));
    }
    with_rules(rules)
}

/// Schema of parameters of PgBouncer. CloudNativePG knows which there are.
pub(super) fn of_pgbouncer(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    let message = sentence("auth_*", "it controls access to the server");
    with_rules(vec![rule("self.all(name, !name.startsWith('auth_'))".to_owned(), &message)])
}

fn rule(rule: String, message: &str) -> Value {
    json!({"rule": rule, "message": message})
}

fn with_rules(more: Vec<Value>) -> schemars::Schema {
    let mut rules = vec![
        rule(format!("self.all(name, size(name) <= {LONGEST_NAME} && name.matches('^[a-z_][a-z0-9_.]*$'))"), NAMES),
        rule("self.all(name, self[name].matches('^[^\\\\p{Cc}]*$'))".to_owned(), CONTROL),
    ];
    rules.extend(more);
    schemars::json_schema!({
        "type": "object",
        "maxProperties": MOST,
        "additionalProperties": {"type": "string", "maxLength": LONGEST_VALUE},
        "x-kubernetes-validations": rules,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// e2e/tests/postgresql compares the API server's answers with this table.
    #[test]
    fn what_is_accepted() {
        for (name, value) in [
            ("max_connections", "200"),
            ("shared_buffers", "256MB"),
            ("log_line_prefix", "%m [%p] $(HOME) 'x' \"y\" \\"),
            ("pg_stat_statements.max", "100"),
            ("wal_level", "logical"),
            ("max_replication_slots", "10"),
            ("shared_preload_libraries", "pg_stat_statements"),
            ("shared_preload_libraries", "auto_explain, pg_stat_statements,pg_prewarm"),
            ("shared_preload_libraries", ""),
            ("timezone", "Europe/Berlin"),
            ("work_mem", ""),
        ] {
            assert_eq!(of_one(name, value), None, "{name}={value}");
        }
    }

    #[test]
    fn what_is_refused() {
        for (name, value, words) in [
            ("Port", "1", "lower-case"),
            ("a-b", "1", "lower-case"),
            ("a=b", "1", "lower-case"),
            (".a", "1", "lower-case"),
            ("", "1", "lower-case"),
            ("9a", "1", "lower-case"),
            ("a\n", "1", "lower-case"),
            ("work_mem", "1MB\n", "line break"),
            ("work_mem", "\0", "line break"),
            ("listen_addresses", "*", "listen_addresses cannot be set here: this is the operator's to set"),
            ("unix_socket_permissions", "0", "the operator's to set"),
            ("primary_conninfo", "", "the operator's to set"),
            ("archive_mode", "on", "the operator's to set"),
            ("fsync", "off", "data could be lost"),
            ("ignore_checksum_failure", "on", "data could be lost"),
            ("allow_alter_system", "on", "the operator's to set"),
            ("ssl", "on", "controls access to the server"),
            ("ssl_cert_file", "x", "controls access to the server"),
            ("restore_command", "x", "runs or loads"),
            ("archive_cleanup_command", "x", "cannot be set here"),
            ("session_preload_libraries", "x", "runs or loads"),
            ("wal_level", "minimal", "replica or logical"),
            ("wal_level", "LOGICAL", "replica or logical"),
            ("max_replication_slots", "9", "at least 10"),
            ("max_replication_slots", "010", "at least 10"),
            ("max_replication_slots", "0x10", "at least 10"),
            ("shared_preload_libraries", "evil", "pg_stat_statements"),
            ("shared_preload_libraries", "pg_prewarm, /tmp/evil", "pg_stat_statements"),
            ("shared_preload_libraries", " pg_prewarm", "pg_stat_statements"),
            ("shared_preload_libraries", "pg_prewarm,", "pg_stat_statements"),
        ] {
            let problem = of_one(name, value).unwrap_or_else(|| panic!("{name}={value} is accepted"));
            assert!(problem.contains(words), "{problem}");
        }
        let many = (0..=MOST).map(|n| (format!("a{n}"), String::new())).collect();
        assert_eq!(problem(&many).as_deref(), Some("at most 128 parameters can be set"));
        let long = [("work_mem".to_owned(), "1".repeat(LONGEST_VALUE + 1))].into();
        assert!(problem(&long).unwrap().contains("at most 1024 characters"));
    }
}
