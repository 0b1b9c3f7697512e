//! Names of objects, and hashes. **Pure.**

use std::fmt;

use kube::{Resource, ResourceExt as _};
use sha2::{Digest as _, Sha256};

/// An object, by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Namespace of the object; empty for an object of the cluster.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace.as_str() {
            "" => f.write_str(&self.name),
            namespace => write!(f, "{namespace}/{}", self.name),
        }
    }
}

impl Key {
    /// Returns the key of the object `name` in `namespace`.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Key { namespace: namespace.into(), name: name.into() }
    }
}

/// Returns an object's namespace and name.
pub fn key_of<K: Resource>(object: &K) -> Key {
    Key::new(object.namespace().unwrap_or_default(), object.name_any())
}

/// Returns the SHA-256 of length-prefixed parts, so that no two lists of parts read the same.
pub fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}

/// Returns [`sha256`] in hexadecimal digits.
pub fn digest(parts: &[&[u8]]) -> String {
    hex(&sha256(parts))
}

/// Returns true if this is a DNS label.
pub fn is_label(label: &str) -> bool {
    (1..=63).contains(&label.len())
        && label.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'-')
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// Returns lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
