//! Digests as people and file names have them.

use sha2::{Digest as _, Sha256};

/// Returns bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the sha256 of data in hexadecimal, as `sha256sum` prints it.
pub fn sha256(data: impl AsRef<[u8]>) -> String {
    hex(&Sha256::digest(data))
}

/// Returns the beginning of such a digest, long enough for the name of an entry of the cache.
pub fn short(digest: &[u8]) -> String {
    hex(&digest[..6])
}
