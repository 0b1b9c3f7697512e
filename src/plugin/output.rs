//! The forms of `-o`. Pure.

use clap::ValueEnum;
use serde_json::Value;

use super::error::Error;

/// How results are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For humans.
    Table,
    /// For humans: with more columns, and nothing cut.
    Wide,
    /// The names of the objects.
    Name,
    /// The objects themselves.
    Json,
    /// The objects themselves.
    Yaml,
}

impl Output {
    /// Refuses a form that a command does not have. **Pure.**
    pub(crate) fn one_of(&self, possible: &[&str]) -> Result<(), Error> {
        let own = self.to_possible_value().unwrap_or_default();
        let word = own.get_name();
        match possible.contains(&word) {
            true => Ok(()),
            false => Err(Error::Usage(format!("-o {word} is not possible here, but -o {}", possible.join(", -o ")))),
        }
    }

    pub(crate) fn is_for_humans(&self) -> bool {
        matches!(self, Output::Table | Output::Wide)
    }
}

/// An object's kind, group and name, as kubectl takes them as an argument.
pub(crate) fn name(object: &Value) -> String {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default();
    let kind = text("/kind").to_lowercase();
    match text("/apiVersion").split_once('/') {
        Some((group, _)) => format!("{kind}.{group}/{}", text("/metadata/name")),
        None => format!("{kind}/{}", text("/metadata/name")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use serde_json::json;

    use super::*;
    use crate::plugin::args::Cli;

    #[test]
    fn the_forms_of_each_command() {
        let refused = |line: &str| {
            let cli = Cli::try_parse_from(["kubectl-clientapp"].into_iter().chain(line.split(' '))).unwrap();
            cli.global.output.one_of(cli.command.outputs()).err().map(|error| error.to_string())
        };
        for line in ["check", "status a -o wide", "status a -o name", "password a -o json", "delete a -o name"] {
            assert_eq!(refused(line), None, "{line}");
        }
        for (line, why) in [
            ("suspend a -o wide", "-o wide is not possible here, but -o table, -o name, -o json, -o yaml"),
            ("password a -o name", "-o name is not possible here, but -o table, -o json, -o yaml"),
            ("delete a -o json", "-o json is not possible here, but -o table, -o name"),
            ("check -o yaml", "-o yaml is not possible here, but -o table"),
        ] {
            assert_eq!(refused(line).as_deref(), Some(why));
        }
        for wrong in ["status a -o jsonpath={.spec}", "status a -o xml"] {
            let line = ["kubectl-clientapp"].into_iter().chain(wrong.split(' '));
            assert_eq!(Cli::try_parse_from(line).unwrap_err().exit_code(), 2, "{wrong}");
        }
    }

    #[test]
    fn names() {
        let app = json!({"apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp", "metadata": {"name": "acme"}});
        assert_eq!(name(&app), "clientapp.apps.bnerd-operator.local/acme");
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}});
        assert_eq!(name(&secret), "secret/a");
    }
}
