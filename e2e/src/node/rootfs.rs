//! The root file systems of the images, of Debian's packages: one that nearly all share, with the programs that run in a tenant's pods, and
//! one with programs that only a newer suite has as CloudNativePG needs them.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::cache;
use crate::digest::short;
use crate::progress::Progress;

/// A root file system.
#[derive(Clone, Copy)]
pub(super) struct RootFiles {
    name: &'static str,
    suite: &'static str,
    packages: &'static str,
    customize: &'static str,
}

/// The one that nearly all images share.
pub(super) const DEBIAN: RootFiles = RootFiles {
    name: "debian",
    suite: "bookworm",
    packages: "busybox-static,ca-certificates,curl,php-cli,php-pgsql,php-redis,postgresql-15,postgresql-client-15,procps,redis-server",
    // The official image's user postgres is 999; Debian's is any.
    customize: r#"
sed -i 's/^postgres:x:[0-9]*:[0-9]*:/postgres:x:999:999:/' "$1/etc/passwd"
sed -i 's/^postgres:x:[0-9]*:/postgres:x:999:/' "$1/etc/group"
rm -rf "$1"/var/lib/postgresql/* "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/*
"#,
};
/// The major version of its PostgreSQL.
pub(super) const POSTGRES: &str = "15";
/// The one of CloudNativePG's Poolers, whose PgBouncer has to be 1.22 or later, and of its plugin's sidecar: its own image has barman 3.19,
/// trixie 3.13, and bookworm only 3.4.
pub(super) const NEWER: RootFiles = RootFiles {
    name: "newer",
    suite: "trixie",
    packages: "barman-cli-cloud,pgbouncer,python3-boto3,python3-snappy",
    customize: r#"
rm -rf "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/*
"#,
};
const EXCLUDED: [&str; 3] = ["man", "doc", "locale"];

/// Returns the archive, made from Debian's packages if it is not in the cache.
pub(super) fn ensure(root: RootFiles, progress: &Progress) -> Result<PathBuf> {
    let RootFiles { name, suite, packages, customize } = root;
    let cache = cache::directory()?.join("images");
    let recipe = format!("{suite}\0{packages}\0{customize}\0{EXCLUDED:?}");
    let digest = short(&Sha256::digest(recipe));
    let path = cache.join(format!("{name}-{digest}.tar"));
    if path.is_file() {
        return Ok(path);
    }
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let task = progress.task(format!("making the root file system {name} of the images"));
    // Of this process alone until it is complete.
    let partial = cache.join(format!("{digest}-{}.partial.tar", std::process::id()));
    let output = Command::new("mmdebstrap")
        .args(["--quiet", "--variant=minbase"])
        .arg(format!("--include={packages}"))
        .args(EXCLUDED.map(|share| format!("--dpkgopt=path-exclude=/usr/share/{share}/*")))
        .arg(format!("--customize-hook={customize}"))
        .arg(suite)
        .arg(&partial)
        .stdin(Stdio::null())
        .output()
        .context("cannot run mmdebstrap")?;
    if !output.status.success() {
        let _ = fs::remove_file(&partial);
        bail!("mmdebstrap: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    fs::rename(&partial, &path)?;
    task.done();
    Ok(path)
}
