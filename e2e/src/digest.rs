//! Digests as people and file names have them.

use std::io::{self, Read};

use sha2::{Digest as _, Sha256};

/// Returns bytes in hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the sha256 of data in hexadecimal, as `sha256sum` prints it.
pub fn sha256(data: impl AsRef<[u8]>) -> String {
    hex(&Sha256::digest(data))
}

/// Returns the sha256 in hexadecimal of all that is read.
pub fn sha256_of(mut from: impl Read) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match from.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(&buffer[..read]),
        }
    }
}

/// Returns the beginning of such a digest, long enough for the name of an entry of the cache.
pub fn short(digest: &[u8]) -> String {
    hex(&digest[..6])
}
