//! The programs of a control plane: existing ones of the right version, or else built from their pinned Go modules.

mod build;
mod part;

use std::env;
use std::fs;
use std::path::{self, Path, PathBuf};
use std::thread;

use anyhow::{Result, bail};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

use crate::cache;
use crate::progress::Progress;
use part::{
    BARMAN_CLOUD, CERT_MANAGER, CLOUDNATIVEPG, COREDNS, DEFINITIONS, HELM3, KUBELET, KUBERNETES_OLDEST, PARTS, PERCONA,
    PROMETHEUS, Part, Program, REGISTRY, RESTIC, VERSITYGW,
};

/// Names a directory of ready-made programs, as in other projects' test suites.
const ASSETS: &str = "KUBEBUILDER_ASSETS";

/// Names the variable that chooses the Kubernetes of planes: the newest that is pinned, or [`OLDEST`].
pub const KUBERNETES: &str = "CLIENTAPP_E2E_KUBERNETES";
/// The oldest Kubernetes that the operator supports.
pub const OLDEST: &str = "oldest";

/// Paths of the programs, all in the pinned versions.
#[derive(Clone, Debug)]
pub struct Tools {
    pub etcd: PathBuf,
    pub helm: PathBuf,
    pub kube_apiserver: PathBuf,
    pub kube_controller_manager: PathBuf,
    pub kube_scheduler: PathBuf,
    pub kubectl: PathBuf,
    pub kwok: PathBuf,
}

/// A program that only some tests start, and the first of them builds.
#[derive(Clone, Copy, Debug)]
pub enum Extra {
    /// CloudNativePG's plugin barman-cloud.
    BarmanCloud,
    /// cert-manager's controllers.
    CertManager,
    /// CloudNativePG's operator.
    CloudNativePg,
    /// The DNS server of a real node.
    CoreDns,
    /// The newest helm 3, an executable `helm`: another Helm client.
    Helm3,
    /// The agent of a real node, beside its `kube-proxy`.
    Kubelet,
    /// The Percona operator.
    Percona,
    /// Prometheus, beside its `promtool`.
    Prometheus,
    /// The OCI registry.
    Registry,
    /// The tool that backs up and restores.
    Restic,
    /// The S3-compatible storage.
    Versitygw,
}

impl Extra {
    /// Those that `cargo test` starts.
    pub const ALL: [Self; 9] = [
        Self::BarmanCloud,
        Self::CertManager,
        Self::CloudNativePg,
        Self::Helm3,
        Self::Percona,
        Self::Prometheus,
        Self::Registry,
        Self::Restic,
        Self::Versitygw,
    ];

    /// Finds or builds the program as [`Tools::ensure`] does, and returns its path. Blocks.
    pub fn ensure(self, progress: &Progress) -> Result<PathBuf> {
        let part = match self {
            Self::BarmanCloud => &BARMAN_CLOUD,
            Self::CertManager => &CERT_MANAGER,
            Self::CloudNativePg => &CLOUDNATIVEPG,
            Self::CoreDns => &COREDNS,
            Self::Helm3 => &HELM3,
            Self::Kubelet => &KUBELET,
            Self::Percona => &PERCONA,
            Self::Prometheus => &PROMETHEUS,
            Self::Registry => &REGISTRY,
            Self::Restic => &RESTIC,
            Self::Versitygw => &VERSITYGW,
        };
        let cache = cache::directory()?.join("tools");
        let paths = match find_part(part, &cache) {
            Some(paths) => paths,
            None => build::build(part, &cache, progress)?,
        };
        Ok(paths.into_iter().next().expect("the part has one program"))
    }

    /// The objects with which the program is installed: its definitions, and for CloudNativePG and its plugin all others. Blocks.
    pub fn manifest(self, progress: &Progress) -> Result<Vec<Value>> {
        Ok(serde_json::from_slice(&fs::read(self.ensure(progress)?.with_file_name(DEFINITIONS))?)?)
    }

    /// The definitions of the program's own kinds. Blocks.
    pub fn definitions(self, progress: &Progress) -> Result<Vec<CustomResourceDefinition>> {
        let objects = self.manifest(progress)?.into_iter();
        let definitions = objects.filter(|object| object["kind"] == "CustomResourceDefinition");
        Ok(definitions.map(serde_json::from_value).collect::<serde_json::Result<_>>()?)
    }
}

impl Tools {
    /// Finds every program in the directory `KUBEBUILDER_ASSETS`, in the cache or on the `PATH`, and builds missing
    /// ones into the cache, which takes minutes, once. Blocks; several processes may call it at once.
    pub fn ensure(progress: &Progress) -> Result<Self> {
        let cache = cache::directory()?.join("tools");
        let wanted = parts()?;
        let mut parts = Vec::with_capacity(wanted.len());
        for (part, found) in wanted.iter().zip(find_all(&wanted, &cache)) {
            parts.push(match found {
                Some(paths) => paths,
                None => build::build(part, &cache, progress)?,
            });
        }
        let mut paths = parts.into_iter().flatten();
        let mut next = || paths.next().expect("PARTS lists as many programs as there are fields");
        Ok(Self {
            etcd: next(),
            helm: next(),
            kube_apiserver: next(),
            kube_controller_manager: next(),
            kube_scheduler: next(),
            kubectl: next(),
            kwok: next(),
        })
    }

    pub fn paths(&self) -> [&Path; 7] {
        let Self { etcd, helm, kube_apiserver, kube_controller_manager, kube_scheduler, kubectl, kwok } = self;
        [etcd, helm, kube_apiserver, kube_controller_manager, kube_scheduler, kubectl, kwok].map(PathBuf::as_path)
    }

    /// The directories of the programs for interactive use, for a user's `PATH`.
    pub fn directories(&self) -> Vec<&Path> {
        let mut directories: Vec<_> = [&self.kubectl, &self.helm].iter().filter_map(|path| path.parent()).collect();
        directories.dedup();
        directories
    }
}

/// Returns the helm and the restic of the operator's image: never what is installed on this machine, but built with the Dockerfile's flags.
/// Blocks.
pub fn of_image(progress: &Progress) -> Result<[PathBuf; 2]> {
    let cache = cache::directory()?.join("tools");
    let helm = PARTS.iter().find(|part| part.name == "helm").expect("it is a part of each plane");
    let build = |part| build::build(part, &cache, progress).map(|mut paths| paths.remove(0));
    Ok([build(helm)?, build(&RESTIC)?])
}

/// Tells if planes have the oldest Kubernetes.
///
/// # Errors
/// [`KUBERNETES`] has another value than [`OLDEST`].
pub fn is_oldest() -> Result<bool> {
    match env::var(KUBERNETES).ok().as_deref() {
        None | Some("") => Ok(false),
        Some(OLDEST) => Ok(true),
        Some(other) => bail!("{KUBERNETES} is {other}: set it to {OLDEST}, or not at all"),
    }
}

/// The parts of a plane.
fn parts() -> Result<Vec<&'static Part>> {
    let oldest = is_oldest()?;
    Ok(PARTS.iter().map(|part| if oldest && part.name == "kubernetes" { &KUBERNETES_OLDEST } else { part }).collect())
}

/// The programs of each part that need not be built. All are looked for at once: each is asked for its version, and
/// large programs take a while to answer.
fn find_all(parts: &[&Part], cache: &Path) -> Vec<Option<Vec<PathBuf>>> {
    thread::scope(|scope| {
        let searches: Vec<_> = parts.iter().map(|part| scope.spawn(|| find_part(part, cache))).collect();
        searches.into_iter().map(|search| search.join().expect("the search does not panic")).collect()
    })
}

fn find_part(part: &Part, cache: &Path) -> Option<Vec<PathBuf>> {
    part.programs.iter().map(|program| find_program(part, program, cache)).collect()
}

fn find_program(part: &Part, program: &Program, cache: &Path) -> Option<PathBuf> {
    let assets = env::var_os(ASSETS).filter(|directory| !directory.is_empty());
    let asset = || path::absolute(Path::new(assets.as_ref()?).join(program.name)).ok();
    let cached = || Some(cache.join(part.key()).join(program.name)).filter(|path| path.is_file());
    let installed = || which::which(program.name).ok();
    asset()
        .filter(|path| part.fits(program, path))
        .or_else(cached)
        .or_else(|| installed().filter(|path| part.fits(program, path)))
}
