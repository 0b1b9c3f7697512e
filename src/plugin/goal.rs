//! The value of `wait --for`. Pure.

use std::str::FromStr;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The result of the attempt `but` does not count (in the form of [`crate::crd::annotation::retry_after`]): another follows it.
    Ready {
        but: Option<String>,
    },
    /// An object of the same name with another uid is a new one.
    Deleted {
        uid: Option<String>,
    },
    Condition {
        type_: String,
        status: String,
    },
}

impl FromStr for Goal {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Goal, &'static str> {
        let condition =
            |type_: &str, status: &str| Ok(Goal::Condition { type_: type_.to_owned(), status: status.to_owned() });
        match text.split('=').collect::<Vec<_>>()[..] {
            ["ready"] => Ok(Goal::Ready { but: None }),
            ["deleted" | "delete"] => Ok(Goal::Deleted { uid: None }),
            ["condition", type_] if !type_.is_empty() => condition(type_, "True"),
            ["condition", type_, status @ ("True" | "False" | "Unknown")] if !type_.is_empty() => {
                condition(type_, status)
            }
            _ => Err("expected ready, deleted or condition=TYPE[=True|False|Unknown]"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals() {
        let condition =
            |type_: &str, status: &str| Goal::Condition { type_: type_.to_owned(), status: status.to_owned() };
        for (text, parsed) in [
            ("ready", Goal::Ready { but: None }),
            ("deleted", Goal::Deleted { uid: None }),
            ("condition=Released", condition("Released", "True")),
            ("condition=Stalled=False", condition("Stalled", "False")),
        ] {
            assert_eq!(text.parse(), Ok(parsed));
        }
        for wrong in ["Ready", "condition", "condition=", "condition=A=yes", "condition=A=True=b"] {
            assert!(wrong.parse::<Goal>().is_err(), "{wrong}");
        }
    }
}
