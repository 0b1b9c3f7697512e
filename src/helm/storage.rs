//! Reads and writes Helm's record of a revision, **pure**: base64 of gzip of JSON (helm.sh/helm/v4/pkg/storage/driver/util.go).

use std::{collections::BTreeSet, fmt::Display, io::Read as _};

use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use k8s_openapi::ByteString;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

/// Size limit of an unpacked revision, in bytes: several times that of the largest charts. A tenant could write a Secret of one MiB
/// that unpacks to a thousand times its size.
const LIMIT: u64 = 16 << 20;

/// Set on objects that Helm keeps when the release no longer contains them (helm.sh/helm/v4/pkg/kube, `ResourcePolicyAnno`).
pub(crate) const RESOURCE_POLICY: &str = "helm.sh/resource-policy";

/// Makes an object of a chart a hook (helm.sh/helm/v4/pkg/release/v1/hook.go, `HookAnnotation`).
pub(crate) const HOOK: &str = "helm.sh/hook";

/// The events of `helm test`; `test-success` is the name of Helm 2 (helm.sh/helm/v4/pkg/release/v1/util/manifest_sorter.go).
const TESTS: [&str; 2] = ["test", "test-success"];

/// Prefix of the names of the Secrets with revisions (helm.sh/helm/v4/pkg/storage, `HelmStorageType`).
pub(crate) const PREFIX: &str = "sh.helm.release.v1.";

/// Returns the name of the Secret with a revision (helm.sh/helm/v4/pkg/storage, `makeKey`).
pub(crate) fn secret(release: impl Display, revision: impl Display) -> String {
    format!("{PREFIX}{release}.v{revision}")
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Stored {
    /// The objects as rendered from the chart: YAML documents.
    #[serde(default)]
    pub manifest: String,
    /// The chart's hooks, which are not part of the manifest.
    #[serde(default)]
    pub hooks: Vec<Hook>,
    #[serde(default)]
    pub info: Info,
    /// The values that helm was given.
    pub config: Option<Box<RawValue>>,
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Info {
    /// When the release was installed, and when this revision was begun.
    pub first_deployed: Option<String>,
    pub last_deployed: Option<String>,
}

impl Info {
    /// Returns true if the revision is an installation (helm.sh/helm/v4/pkg/action/install.go, `createRelease`).
    pub(crate) fn is_installation(&self) -> bool {
        self.first_deployed.is_some() && self.first_deployed == self.last_deployed
    }
}

#[derive(Debug, Default, Deserialize)]
pub(crate) struct Hook {
    #[serde(default)]
    pub kind: String,
    #[serde(default)]
    pub name: String,
    /// The object, a YAML document.
    #[serde(default)]
    pub manifest: String,
    /// When helm runs it, such as `pre-install` (helm.sh/helm/v4/pkg/release/v1/hook.go).
    #[serde(default)]
    pub events: BTreeSet<String>,
    #[serde(default)]
    pub last_run: HookRun,
}

/// The tests of a revision.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Tests {
    pub count: usize,
    /// Kind and name of those whose last run has failed, or did not end. helm does not go on to the next after a failure.
    pub failed: Vec<(String, String)>,
}

/// The last run of a hook.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct HookRun {
    /// `Succeeded` once it is complete.
    #[serde(default)]
    pub phase: String,
}

impl Hook {
    /// Returns true if `helm test` runs it.
    pub(crate) fn is_test(&self) -> bool {
        TESTS.iter().any(|event| self.events.contains(*event))
    }

    /// Returns true if its last run is complete.
    pub(crate) fn has_succeeded(&self) -> bool {
        self.last_run.phase == "Succeeded"
    }

    /// Returns true if it is incomplete and will not run again, because helm runs it during an installation but not at the same point of an
    /// upgrade.
    pub(crate) fn is_left_out(&self) -> bool {
        let has = |event: &str| self.events.contains(event);
        let only = (has("pre-install") && !has("pre-upgrade")) || (has("post-install") && !has("post-upgrade"));
        only && !self.has_succeeded()
    }
}

impl Stored {
    /// Returns the hooks that helm runs for this revision, each with its events; with `is_tested`, those of `helm test` too.
    pub(crate) fn hooks_that_run(&self, is_tested: bool) -> Vec<(&Hook, Vec<&str>)> {
        let own = match self.info.is_installation() {
            true => ["pre-install", "post-install"],
            false => ["pre-upgrade", "post-upgrade"],
        };
        let runs = |event: &&str| own.contains(event) || is_tested && TESTS.contains(event);
        let mut hooks_that_run = Vec::new();
        for hook in &self.hooks {
            let events: Vec<_> = hook.events.iter().map(String::as_str).filter(runs).collect();
            if !events.is_empty() {
                hooks_that_run.push((hook, events));
            }
        }
        hooks_that_run
    }

    pub(crate) fn tests(&self) -> Tests {
        let tests: Vec<_> = self.hooks.iter().filter(|hook| hook.is_test()).collect();
        let failed = tests.iter().filter(|hook| ["Failed", "Running"].contains(&hook.last_run.phase.as_str()));
        let failed = failed.map(|hook| (hook.kind.clone(), hook.name.clone()));
        Tests { count: tests.len(), failed: failed.collect() }
    }
}

/// Decodes the value of the key `release` in a storage Secret.
pub(crate) fn read(payload: &[u8]) -> Result<Stored, String> {
    unpack(payload)
}

/// Returns the same revision marked as failed, as helm itself records it on SIGTERM.
pub(crate) fn mark_failed(payload: &[u8]) -> Result<Vec<u8>, String> {
    let mut release: Value = unpack(payload)?;
    release["info"]["status"] = "failed".into();
    release["info"]["description"] = "the helm process ended before it could record a result".into();
    pack(&release)
}

fn unpack<T: DeserializeOwned>(payload: &[u8]) -> Result<T, String> {
    let not = |what: &str, error: &dyn Display| format!("its payload is not {what}: {error}");
    let text = std::str::from_utf8(payload).map_err(|error| not("base64", &error))?;
    let packed: ByteString = serde_json::from_value(text.into()).map_err(|error| not("base64", &error))?;
    let mut json = Vec::new();
    GzDecoder::new(&*packed.0).take(LIMIT + 1).read_to_end(&mut json).map_err(|error| not("gzip", &error))?;
    if json.len() as u64 > LIMIT {
        return Err(format!("its payload is larger than {} MiB, unpacked", LIMIT >> 20));
    }
    serde_json::from_slice(&json).map_err(|error| not("JSON", &error))
}

pub(super) fn pack(release: &Value) -> Result<Vec<u8>, String> {
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    serde_json::to_writer(&mut packed, release).map_err(|error| error.to_string())?;
    let packed = packed.finish().map_err(|error| error.to_string())?;
    match serde_json::to_value(ByteString(packed)) {
        Ok(Value::String(encoded)) => Ok(encoded.into_bytes()),
        other => Err(format!("base64 gave {other:?}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pending_revision_becomes_failed_and_keeps_everything_else() {
        let release = json!({"name": "acme", "version": 3, "manifest": "kind: A\n", "info": {"status": "pending-upgrade", "first_deployed": "x"}});
        let failed: Value = unpack(&mark_failed(&pack(&release).unwrap()).unwrap()).unwrap();
        assert_eq!(failed["info"]["status"], "failed");
        assert_eq!(failed["info"]["first_deployed"], "x");
        assert_eq!(failed["manifest"], release["manifest"]);
        assert_eq!(read(&pack(&release).unwrap()).unwrap().manifest, "kind: A\n");
        let bomb = pack(&json!({"manifest": "a".repeat(17 << 20)})).unwrap();
        assert_eq!(read(&bomb).unwrap_err(), "its payload is larger than 16 MiB, unpacked");
        for garbage in [&b"\xff\xfe"[..], b"not base64!", b"aGVsbG8="] {
            assert!(mark_failed(garbage).unwrap_err().contains("its payload is not"));
            assert!(read(garbage).unwrap_err().contains("its payload is not"));
        }
    }
}
