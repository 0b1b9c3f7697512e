//! One version of each major of chart and app, installed and upgraded in turn by the operator on a control plane: volumes and
//! credentials stay, and the app is Ready after each.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use clientapp_crd::{ClientApp, ClientAppStatus};
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Secret};
use kube::ResourceExt as _;
use kube::api::{Api, ListParams};
use serde_json::json;
use tokio::task::block_in_place;

use super::archives::Archive;
use crate::lab::{Lab, Object, Tenant, has, hostname};
use crate::operator;
use crate::progress::Progress;
use crate::random::RELEASE;
use crate::wait::{TIMEOUT, within};

const APP: &str = "acme";
const NAMESPACE: &str = "chart-upgrades";

/// What one version came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub version: String,
    pub app_major: u64,
    /// The names of all volumes of the namespace.
    pub claims: Vec<String>,
    pub violations: Vec<String>,
}

/// Returns the newest version of each pair of chart's and app's major versions: Nextcloud upgrades one major version at a time.
#[must_use]
pub fn chosen(archives: &[Archive]) -> Vec<&Archive> {
    let newest: BTreeMap<_, _> =
        archives.iter().map(|archive| ((archive.version.0, archive.app_major), archive)).collect();
    newest.into_values().collect()
}

/// Returns the steps as a table in Markdown.
#[must_use]
pub fn told(steps: &[Step]) -> String {
    let mut text = "| upgraded to | app | volumes | |\n|---|---|---|---|\n".to_owned();
    for Step { version, app_major, claims, violations } in steps {
        let verdict = if violations.is_empty() { "ok".to_owned() } else { violations.join("; ") };
        _ = writeln!(text, "| {version} | {app_major} | {} | {verdict} |", claims.join(", "));
    }
    text
}

/// Installs and upgrades.
///
/// # Errors
/// If there is no control plane, or it does not answer.
pub fn run(archives: &[Archive], progress: &Progress) -> Result<Vec<Step>> {
    tokio::runtime::Runtime::new()?.block_on(climb(&chosen(archives), progress))
}

async fn climb(archives: &[&Archive], progress: &Progress) -> Result<Vec<Step>> {
    // Another part of this process may have been first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let first = archives.first().context("there is no chart to install")?;
    let directory = first.path.parent().context("an archive is in no directory")?.to_string_lossy().into_owned();
    // For the lifetime of this process: the lab's watchdog ends it.
    let lab: &'static Lab = Box::leak(Box::new(block_in_place(|| Lab::start(false))?));
    let options = operator::Options { chart_repository: directory, ..lab.options() };
    block_in_place(|| lab.start_operator(&options))?;
    let tenant = lab.tenant(NAMESPACE).await;
    let mut steps: Vec<Step> = Vec::new();
    let mut before = None;
    for (archive, revision) in archives.iter().zip(1..) {
        let version = archive.version.to_string();
        let task = progress.task(format!("upgrade to {version}"));
        if before.is_none() {
            let spec = json!({
                "hostname": hostname(&tenant, APP), "chartVersion": version,
                "ingressClassName": "traefik", "postgres": {"provider": "standalone"},
            });
            tenant.create(APP, spec).await?;
        } else {
            tenant.patch(APP, json!({"chartVersion": version})).await?;
        }
        let mut violations = Vec::new();
        if let Err(error) = ready(&tenant, revision, &version).await {
            violations.push(format!("{error:#}"));
        }
        let found = kept(&tenant).await?;
        violations.extend(lost(before.as_ref().unwrap_or(&found), &found));
        task.done();
        let claims =
            found.keys().filter_map(|name| name.strip_prefix("PersistentVolumeClaim ")).map(str::to_owned).collect();
        let failed = !violations.is_empty();
        steps.push(Step { version, app_major: archive.app_major, claims, violations });
        before = Some(found);
        if failed {
            break;
        }
    }
    block_in_place(|| *lab.operator() = None);
    Ok(steps)
}

/// Waits until the app is Ready at a revision of this chart version.
async fn ready(tenant: &Tenant, revision: i64, version: &str) -> Result<()> {
    let apps = tenant.api::<ClientApp>();
    let installed = |status: &ClientAppStatus| {
        status
            .release
            .as_ref()
            .is_some_and(|release| release.revision == revision && release.chart_version.as_deref() == Some(version))
    };
    within(TIMEOUT, &format!("{APP} is Ready with chart {version} at revision {revision}"), async || {
        let app = apps.get(APP).await.map_err(|error| error.to_string())?;
        let status = app.status.clone().unwrap_or_default();
        let current = status.observed_generation == app.metadata.generation;
        if current && installed(&status) && has(&status, "Ready", "True", "Ready") {
            return Ok(());
        }
        let told = status.conditions.iter().find(|condition| condition.type_ == "Ready");
        Err(told.map_or_else(|| "it has no status".to_owned(), |ready| format!("{}: {}", ready.reason, ready.message)))
    })
    .await
}

/// Returns what has to outlive an upgrade, by kind and name: each volume, with uid and size; each Secret but helm's, with uid and
/// digest, since without their passwords the rows cannot be read; and the uid of each workload.
async fn kept(tenant: &Tenant) -> Result<BTreeMap<String, String>> {
    async fn uids<K: Object>(tenant: &Tenant) -> Result<Vec<(String, String)>> {
        let listed = tenant.api::<K>().list(&ListParams::default()).await?.items;
        let uid = |object: &K| (format!("{} {}", K::kind(&()), object.name_any()), object.uid().unwrap_or_default());
        Ok(listed.iter().map(uid).collect())
    }
    let mut found: BTreeMap<_, _> =
        uids::<Deployment>(tenant).await?.into_iter().chain(uids::<StatefulSet>(tenant).await?).collect();
    let volumes = Api::<PersistentVolume>::all(tenant.client.clone()).list(&ListParams::default()).await?.items;
    for claim in tenant.api::<PersistentVolumeClaim>().list(&ListParams::default()).await?.items {
        let spec = claim.spec.clone().unwrap_or_default();
        let volume = volumes.iter().find(|volume| Some(volume.name_any()) == spec.volume_name);
        let size = spec.resources.and_then(|resources| resources.requests?.get("storage").cloned()).unwrap_or_default();
        let uid = volume.and_then(PersistentVolume::uid).unwrap_or_else(|| "unbound".to_owned());
        let value = format!("uid {}, volume {uid}, {}", claim.uid().unwrap_or_default(), size.0);
        found.insert(format!("PersistentVolumeClaim {}", claim.name_any()), value);
    }
    for secret in tenant.api::<Secret>().list(&ListParams::default()).await?.items {
        if secret.type_.as_deref() != Some(RELEASE) {
            let digest = crate::digest::sha256(&serde_json::to_vec(&secret.data)?);
            let value = format!("uid {}, digest {digest}", secret.uid().unwrap_or_default());
            found.insert(format!("Secret {}", secret.name_any()), value);
        }
    }
    Ok(found)
}

/// Returns what was there before, and is not, or is another.
fn lost(before: &BTreeMap<String, String>, after: &BTreeMap<String, String>) -> Vec<String> {
    let gone = before.iter().filter_map(|(object, uid)| match after.get(object) {
        Some(present) if present == uid => None,
        Some(present) => Some(format!("{object} was {uid}, and is {present}")),
        None => Some(format!("{object} is gone")),
    });
    let is_claim = |object: &&String| object.starts_with("PersistentVolumeClaim ") && !before.contains_key(*object);
    gone.chain(after.keys().filter(is_claim).map(|object| format!("{object} is new"))).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::archives::Version;
    use super::*;

    #[test]
    fn the_newest_of_each_major_of_chart_and_app() {
        let archive = |major, minor, app_major| Archive::for_tests(Version(major, minor, 0), app_major, PathBuf::new());
        let all = [
            archive(5, 5, 29),
            archive(8, 0, 31),
            archive(8, 1, 32),
            archive(8, 9, 32),
            archive(9, 1, 33),
            archive(9, 2, 34),
        ];
        let versions: Vec<_> = chosen(&all).iter().map(|archive| archive.version.to_string()).collect();
        assert_eq!(versions, ["5.5.0", "8.0.0", "8.9.0", "9.1.0", "9.2.0"]);
    }

    #[test]
    fn a_volume_that_is_gone_or_another_or_new_is_told() {
        let state = |objects: &[(&str, &str)]| -> BTreeMap<String, String> {
            objects.iter().map(|(name, uid)| (format!("{name} a"), (*uid).to_owned())).collect()
        };
        let before = state(&[("PersistentVolumeClaim", "1"), ("StatefulSet", "2")]);
        for (after, told) in [
            (before.clone(), vec![]),
            (
                state(&[("PersistentVolumeClaim", "3"), ("StatefulSet", "2")]),
                vec!["PersistentVolumeClaim a was 1, and is 3"],
            ),
            (state(&[("PersistentVolumeClaim", "1")]), vec!["StatefulSet a is gone"]),
        ] {
            assert_eq!(lost(&before, &after), told);
        }
        let new: BTreeMap<_, _> =
            before.clone().into_iter().chain([("PersistentVolumeClaim b".to_owned(), String::new())]).collect();
        assert_eq!(lost(&before, &new), ["PersistentVolumeClaim b is new"]);
    }
}
