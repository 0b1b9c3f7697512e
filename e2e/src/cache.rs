//! The directory for everything worth keeping between runs.

use std::env;
use std::path::{self, PathBuf};

use anyhow::{Context as _, Result};

/// Overrides the cache directory.
pub const VARIABLE: &str = "CLIENTAPP_E2E_CACHE";

/// The per-user directory of built tools and of the background plane's state. It need not exist yet.
pub fn directory() -> Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty());
    if let Some(directory) = set(VARIABLE) {
        return Ok(path::absolute(directory)?);
    }
    let parent = match set("XDG_CACHE_HOME") {
        Some(directory) => PathBuf::from(directory),
        None => PathBuf::from(set("HOME").context("neither CLIENTAPP_E2E_CACHE nor HOME is set")?).join(".cache"),
    };
    Ok(path::absolute(parent.join("clientapp-operator"))?)
}
