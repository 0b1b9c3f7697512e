//! Texts that never print. Pure.

use std::fmt;

/// A credential or a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub String);

impl Secret {
    /// Returns the text, to pass it on to restic.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print() {
        assert_eq!(format!("{:?}", Secret("canary".to_owned())), "…");
    }
}
