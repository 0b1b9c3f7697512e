//! The identity of this operator process, as used in the Lease, in events and on revisions that it creates.

use std::{fs, process};

use rand::RngExt as _;
use sha2::{Digest as _, Sha256};

use crate::platform::key::hex;

/// Host, process id, and a random part in case the id is reused. At most 63 characters of `[-A-Za-z0-9.]`, because it is also the value
/// of a label.
pub(crate) fn identity() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}.{}.{:08x}", host_label(host.trim()), process::id(), rand::rng().random::<u32>())
}

/// Host names can have 63 characters, so this is the readable end, which tells pods of a Deployment apart, and a digest for uniqueness.
fn host_label(host: &str) -> String {
    const MOST: usize = 36;
    let kept: String = host.chars().filter(|c| c.is_ascii_alphanumeric() || *c == '-').collect();
    let end = &kept[kept.len().saturating_sub(MOST)..];
    format!("h{end}-{}", &hex(&Sha256::digest(host.as_bytes()))[..8])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::helm::cli::command::LabelValue;

    #[test]
    fn it_is_the_value_of_a_label() {
        identity().parse::<LabelValue>().unwrap();
        for host in ["", "-", "a.b_c", &"x".repeat(64)] {
            let label = format!("{}.4194304.ffffffff", host_label(host));
            label.parse::<LabelValue>().unwrap();
        }
        let pod = "clientapp-operator-7d9f8b6c5d-x2x7k";
        assert!(host_label(pod).starts_with(&format!("h{pod}-")));
    }
}
