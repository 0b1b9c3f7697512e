//! The root file system that all images share: Debian with the programs that run in a tenant's pods.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};
use sha2::{Digest as _, Sha256};

use crate::cache;
use crate::digest::short;
use crate::progress::Progress;

const SUITE: &str = "bookworm";
const PACKAGES: &str = "busybox-static,ca-certificates,curl,php-cli,php-pgsql,php-redis,postgresql-15,postgresql-client-15,procps,redis-server";
/// The major version of its PostgreSQL.
pub(super) const POSTGRES: &str = "15";
/// The official image's user postgres is 999; Debian's is any.
const CUSTOMIZE: &str = r#"
sed -i 's/^postgres:x:[0-9]*:[0-9]*:/postgres:x:999:999:/' "$1/etc/passwd"
sed -i 's/^postgres:x:[0-9]*:/postgres:x:999:/' "$1/etc/group"
rm -rf "$1"/var/lib/postgresql/* "$1"/var/cache/apt/* "$1"/var/lib/apt/lists/*
"#;
const EXCLUDED: [&str; 3] = ["man", "doc", "locale"];

/// Returns the archive, made from Debian's packages if it is not in the cache.
pub(super) fn ensure(progress: &Progress) -> Result<PathBuf> {
    let cache = cache::directory()?.join("images");
    let recipe = format!("{SUITE}\0{PACKAGES}\0{CUSTOMIZE}\0{EXCLUDED:?}");
    let digest = short(&Sha256::digest(recipe));
    let path = cache.join(format!("debian-{digest}.tar"));
    if path.is_file() {
        return Ok(path);
    }
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let task = progress.task("making the root file system of the images");
    // Of this process alone until it is complete.
    let partial = cache.join(format!("{digest}-{}.partial.tar", std::process::id()));
    let output = Command::new("mmdebstrap")
        .args(["--quiet", "--variant=minbase"])
        .arg(format!("--include={PACKAGES}"))
        .args(EXCLUDED.map(|share| format!("--dpkgopt=path-exclude=/usr/share/{share}/*")))
        .arg(format!("--customize-hook={CUSTOMIZE}"))
        .arg(SUITE)
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
