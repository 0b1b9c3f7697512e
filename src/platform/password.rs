//! Generates passwords. An **effect**: the operating system's randomness.

use k8s_openapi::ByteString;
use rand::rand_core::UnwrapErr;
use rand::{RngExt as _, distr::Alphanumeric, rngs::SysRng};

const PASSWORD_LENGTH: usize = 32;

/// Generates 32 characters of `[A-Za-z0-9]`, with the operating system's randomness. Alphanumeric because passwords reach URLs and PHP's
/// session path unescaped.
///
/// # Panics
/// When the operating system provides no randomness: no password is better than a guessable one.
pub(crate) fn password() -> ByteString {
    let mut random = UnwrapErr(SysRng);
    ByteString((0..PASSWORD_LENGTH).map(|_| random.sample(Alphanumeric)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_alphanumeric_and_differ() {
        let (a, b) = (password().0, password().0);
        assert_eq!(a.len(), 32);
        assert!(a.iter().all(u8::is_ascii_alphanumeric));
        assert_ne!(a, b);
    }
}
