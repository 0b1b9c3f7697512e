//! Names the ServiceAccount that a request is made as. **Pure.**

use crate::crd::DEPLOYER;

/// Name of a ServiceAccount; its namespace is always the one in which it acts.
#[derive(Clone, Debug, derive_more::Display, PartialEq, Eq)]
pub struct AccountName(String);

impl AccountName {
    /// Parses a name by Kubernetes' rule (RFC 1123 subdomain).
    pub fn parse(text: &str) -> Option<Self> {
        let alphanumeric = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit();
        let part = |part: &str| {
            part.starts_with(alphanumeric)
                && part.ends_with(alphanumeric)
                && part.chars().all(|char| alphanumeric(char) || char == '-')
        };
        (text.len() <= 253 && text.split('.').all(part)).then(|| AccountName(text.to_owned()))
    }

    /// Returns the user name by which the API server knows it.
    pub fn user(&self, namespace: &str) -> String {
        format!("system:serviceaccount:{namespace}:{self}")
    }

    /// Returns true if it is the account that the operator creates.
    pub fn is_deployer(&self) -> bool {
        self.0 == DEPLOYER
    }
}

impl Default for AccountName {
    fn default() -> Self {
        AccountName(DEPLOYER.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_service_accounts() {
        let long = "a".repeat(254);
        for (text, valid) in [
            ("clientapp-deployer", true),
            ("0.team-1.deployer", true),
            (&long[..253], true),
            (&long, false),
            ("", false),
            ("a..b", false),
            ("-a", false),
            ("a.-b", false),
            ("a-", false),
            ("A", false),
            ("a_b", false),
            ("kube-system:admin", false),
            ("a\r\nImpersonate-Group: system:masters", false),
        ] {
            assert_eq!(AccountName::parse(text).is_some(), valid, "{text}");
        }
        assert_eq!(AccountName::parse("team").unwrap().user("acme"), "system:serviceaccount:acme:team");
        assert_eq!(AccountName::parse(DEPLOYER), Some(AccountName::default()));
    }
}
