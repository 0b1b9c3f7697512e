//! Tells what a machine lacks for a node.

use std::path::Path;

use nix::unistd::geteuid;

/// Programs, and the package of Debian that each comes with.
const PROGRAMS: &[(&str, &str)] = &[
    ("containerd", "containerd"),
    ("containerd-shim-runc-v2", "containerd"),
    ("ctr", "containerd"),
    ("runc", "runc"),
    ("iptables", "iptables"),
    ("ip", "iproute2"),
    ("mmdebstrap", "mmdebstrap"),
    ("mount", "mount"),
    ("unshare", "util-linux"),
];
/// The directory of the plugins that connect pods, of Debian's `containernetworking-plugins`.
pub(super) const NETWORK_PLUGINS: &str = "/usr/lib/cni";
/// The hierarchies of cgroup v1.
pub(super) const CGROUPS: &str = "/sys/fs/cgroup";

/// Returns in one sentence why there can be no node on this machine. `None`: there can.
pub(super) fn missing() -> Option<String> {
    if !cfg!(target_os = "linux") {
        return Some("a node needs Linux".to_owned());
    }
    if !geteuid().is_root() {
        return Some("a node needs root: run it as root".to_owned());
    }
    // With version 2 the kubelet needs other settings, and nobody has tried them.
    if !Path::new(CGROUPS).join("memory").is_dir() {
        return Some("this machine has no cgroup v1, with which the node is configured".to_owned());
    }
    let absent = PROGRAMS.iter().filter(|(program, _)| which::which(program).is_err());
    let mut packages: Vec<_> = absent.map(|(_, package)| *package).collect();
    if !Path::new(NETWORK_PLUGINS).join("bridge").is_file() {
        packages.push("containernetworking-plugins");
    }
    packages.dedup();
    (!packages.is_empty()).then(|| format!("packages are missing: apt-get install {}", packages.join(" ")))
}
