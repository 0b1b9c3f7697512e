//! The parts to build: Go modules in this crate's `tools` directory and their programs.

use std::env::consts::{ARCH, OS};
use std::path::Path;
use std::process::{Command, Stdio};

use sha2::{Digest as _, Sha256};

use crate::digest::short;

/// A Go module that pins one upstream project.
pub(super) struct Part {
    pub(super) name: &'static str,
    /// The upstream module, whose version is the part's.
    pub(super) module: &'static str,
    pub(super) go_mod: &'static str,
    pub(super) go_sum: &'static str,
    /// Variables that the linker sets, with `{version}`, `{major}` and `{minor}` replaced. A server without a version
    /// calls itself v0.0.0, and charts with a `kubeVersion` refuse it.
    stamps: &'static [&'static str],
    /// True if any patch release is good enough.
    any_patch: bool,
    pub(super) programs: &'static [Program],
    /// What its sources need beyond `go build`.
    pub(super) sources: Sources,
}

/// `None` and empty lists: nothing.
pub(super) struct Sources {
    /// True if they need a C compiler.
    pub(super) cgo: bool,
    /// Build tags.
    pub(super) tags: &'static str,
    /// A `main.go` of our own, for a project whose command is no module that a proxy has.
    pub(super) main: Option<&'static str>,
    /// Changes where no flag and no variable does.
    pub(super) patches: &'static [Patch],
    /// The module's file or folder of CustomResourceDefinitions, perhaps among other objects, which the cache entry has as
    /// [`DEFINITIONS`].
    pub(super) definitions: Option<&'static str>,
}

/// The definitions as a JSON list, without descriptions: they are nine tenths of the file.
pub(super) const DEFINITIONS: &str = "definitions.json";

const PURE_GO: Sources = Sources { cgo: false, tags: "", main: None, patches: &[], definitions: None };

/// Replaces a text wherever it occurs in a source file of the module.
pub(super) struct Patch {
    pub(super) file: &'static str,
    pub(super) from: &'static str,
    pub(super) to: &'static str,
}

pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    /// The arguments that make it print its version; none if it cannot.
    version: &'static [&'static str],
}

const KUBERNETES_STAMPS: &[&str] = &[
    "k8s.io/component-base/version.gitVersion=v{version}",
    "k8s.io/component-base/version.gitMajor={major}",
    "k8s.io/component-base/version.gitMinor={minor}",
    "k8s.io/component-base/version.gitTreeState=clean",
];

const KUBERNETES_PROGRAMS: &[Program] = &[
    Program { name: "kube-apiserver", package: "k8s.io/kubernetes/cmd/kube-apiserver", version: &["--version"] },
    Program {
        name: "kube-controller-manager",
        package: "k8s.io/kubernetes/cmd/kube-controller-manager",
        version: &["--version"],
    },
    Program { name: "kube-scheduler", package: "k8s.io/kubernetes/cmd/kube-scheduler", version: &["--version"] },
    Program { name: "kubectl", package: "k8s.io/kubernetes/cmd/kubectl", version: &["version", "--client"] },
];

/// Returns the part of these programs of Kubernetes. Any patch release of the pinned version is good enough.
const fn kubernetes(
    name: &'static str,
    go_mod: &'static str,
    go_sum: &'static str,
    programs: &'static [Program],
) -> Part {
    let (module, stamps) = ("k8s.io/kubernetes", KUBERNETES_STAMPS);
    Part { name, module, go_mod, go_sum, stamps, any_patch: true, programs, sources: PURE_GO }
}

/// In the order of the fields of [`Tools`](super::Tools).
pub(super) const PARTS: &[Part] = &[
    Part {
        name: "etcd",
        module: "go.etcd.io/etcd/server/v3",
        go_mod: include_str!("../../tools/etcd/go.mod"),
        go_sum: include_str!("../../tools/etcd/go.sum"),
        stamps: &[],
        any_patch: false,
        programs: &[Program { name: "etcd", package: "go.etcd.io/etcd/server/v3", version: &["--version"] }],
        sources: PURE_GO,
    },
    Part {
        name: "helm",
        module: "helm.sh/helm/v4",
        go_mod: include_str!("../../tools/helm/go.mod"),
        go_sum: include_str!("../../tools/helm/go.sum"),
        stamps: &["helm.sh/helm/v4/internal/version.version=v{version}"],
        any_patch: false,
        programs: &[Program { name: "helm", package: "helm.sh/helm/v4/cmd/helm", version: &["version", "--short"] }],
        sources: PURE_GO,
    },
    kubernetes(
        "kubernetes",
        include_str!("../../tools/kubernetes/go.mod"),
        include_str!("../../tools/kubernetes/go.sum"),
        KUBERNETES_PROGRAMS,
    ),
    Part {
        name: "kwok",
        module: "sigs.k8s.io/kwok",
        go_mod: include_str!("../../tools/kwok/go.mod"),
        go_sum: include_str!("../../tools/kwok/go.sum"),
        stamps: &["sigs.k8s.io/kwok/pkg/consts.Version=v{version}"],
        any_patch: false,
        programs: &[Program { name: "kwok", package: "sigs.k8s.io/kwok/cmd/kwok", version: &["--version"] }],
        sources: PURE_GO,
    },
];

/// The oldest Kubernetes that the operator supports, in place of the part `kubernetes`.
pub(super) const KUBERNETES_OLDEST: Part = kubernetes(
    "kubernetes-oldest",
    include_str!("../../tools/kubernetes-oldest/go.mod"),
    include_str!("../../tools/kubernetes-oldest/go.sum"),
    KUBERNETES_PROGRAMS,
);

/// The other Helm client of some tests.
pub(super) const HELM3: Part = Part {
    name: "helm3",
    module: "helm.sh/helm/v3",
    go_mod: include_str!("../../tools/helm3/go.mod"),
    go_sum: include_str!("../../tools/helm3/go.sum"),
    stamps: &["helm.sh/helm/v3/internal/version.version=v{version}"],
    any_patch: false,
    programs: &[Program { name: "helm", package: "helm.sh/helm/v3/cmd/helm", version: &["version", "--short"] }],
    sources: PURE_GO,
};

/// The registry of tests that push charts to one.
pub(super) const REGISTRY: Part = Part {
    name: "registry",
    module: "github.com/distribution/distribution/v3",
    go_mod: include_str!("../../tools/registry/go.mod"),
    go_sum: include_str!("../../tools/registry/go.sum"),
    stamps: &[],
    any_patch: false,
    programs: &[Program {
        name: "registry",
        package: "github.com/distribution/distribution/v3/cmd/registry",
        version: &["--version"],
    }],
    sources: PURE_GO,
};

/// The storage of tests that keep backups in a bucket.
pub(super) const VERSITYGW: Part = Part {
    name: "versitygw",
    module: "github.com/versity/versitygw",
    go_mod: include_str!("../../tools/versitygw/go.mod"),
    go_sum: include_str!("../../tools/versitygw/go.sum"),
    stamps: &["main.Version=v{version}"],
    any_patch: false,
    programs: &[Program {
        name: "versitygw",
        package: "github.com/versity/versitygw/cmd/versitygw",
        version: &["--version"],
    }],
    sources: PURE_GO,
};

/// The tool that backs up and restores, as in the operator's image.
pub(super) const RESTIC: Part = Part {
    name: "restic",
    module: "github.com/restic/restic",
    go_mod: include_str!("../../tools/restic/go.mod"),
    go_sum: include_str!("../../tools/restic/go.sum"),
    stamps: &[],
    any_patch: false,
    programs: &[Program { name: "restic", package: "github.com/restic/restic/cmd/restic", version: &["version"] }],
    sources: PURE_GO,
};

/// The Percona operator, of planes with Percona.
pub(super) const PERCONA: Part = Part {
    name: "percona",
    module: "github.com/percona/percona-postgresql-operator/v2",
    go_mod: include_str!("../../tools/percona/go.mod"),
    go_sum: include_str!("../../tools/percona/go.sum"),
    // No metrics, which would listen on a fixed port of all interfaces.
    stamps: &["sigs.k8s.io/controller-runtime/pkg/metrics/server.DefaultBindAddress=0"],
    any_patch: false,
    programs: &[Program {
        name: "postgres-operator",
        package: "github.com/percona/percona-postgresql-operator/v2/cmd/postgres-operator",
        version: &[],
    }],
    sources: Sources {
        // It parses SQL with PostgreSQL's own parser.
        cgo: true,
        tags: "",
        main: None,
        patches: &[
            // Nor probes: several planes run side by side.
            Patch { file: "cmd/postgres-operator/main.go", from: r#"":8081""#, to: r#""0""# },
            // It may send more than the 20 requests a second of its library: dozens of clusters come and go at once.
            Patch {
                file: "cmd/postgres-operator/main.go",
                from: "cfg.Wrap(otelTransportWrapper())",
                to: "cfg.QPS = -1; cfg.Wrap(otelTransportWrapper())",
            },
            // It polls for the end of backups and restores, and no test waits for that longer than for its cause.
            Patch {
                file: "percona/controller/pgbackup/controller.go",
                from: "time.Second * 10",
                to: "time.Second / 5",
            },
            Patch { file: "percona/controller/pgbackup/controller.go", from: "time.Second * 5", to: "time.Second / 5" },
            Patch { file: "percona/controller/pgbackup/controller.go", from: "2*time.Minute", to: "2*time.Second" },
            Patch {
                file: "percona/controller/pgrestore/controller.go",
                from: "time.Second * 5",
                to: "time.Second / 5",
            },
            Patch {
                file: "percona/controller/pgcluster/controller.go",
                from: "5 * time.Second",
                to: "time.Second / 5",
            },
        ],
        definitions: Some("deploy/crd.yaml"),
    },
};

/// cert-manager's controllers, of the tests of TLS.
pub(super) const CERT_MANAGER: Part = Part {
    name: "cert-manager",
    module: "github.com/cert-manager/cert-manager",
    go_mod: include_str!("../../tools/cert-manager/go.mod"),
    go_sum: include_str!("../../tools/cert-manager/go.sum"),
    stamps: &[],
    any_patch: false,
    programs: &[Program { name: "cert-manager", package: ".", version: &[] }],
    sources: Sources {
        main: Some(include_str!("../../tools/cert-manager/main.go")),
        definitions: Some("deploy/crds"),
        ..PURE_GO
    },
};

/// CloudNativePG's operator, of the node, and its definitions, of the tests of its provider.
pub(super) const CLOUDNATIVEPG: Part = Part {
    name: "cloudnativepg",
    module: "github.com/cloudnative-pg/cloudnative-pg",
    go_mod: include_str!("../../tools/cloudnativepg/go.mod"),
    go_sum: include_str!("../../tools/cloudnativepg/go.sum"),
    stamps: &[],
    any_patch: false,
    programs: &[Program {
        name: "manager",
        package: "github.com/cloudnative-pg/cloudnative-pg/cmd/manager",
        version: &[],
    }],
    sources: Sources { definitions: Some("releases/cnpg-1.30.0.yaml"), ..PURE_GO },
};

/// CloudNativePG's plugin barman-cloud, of the node, and its definition, of the tests of its backups.
pub(super) const BARMAN_CLOUD: Part = Part {
    name: "barman-cloud",
    module: "github.com/cloudnative-pg/plugin-barman-cloud",
    go_mod: include_str!("../../tools/barman-cloud/go.mod"),
    go_sum: include_str!("../../tools/barman-cloud/go.sum"),
    stamps: &[],
    any_patch: false,
    programs: &[Program {
        name: "manager",
        package: "github.com/cloudnative-pg/plugin-barman-cloud/cmd/manager",
        version: &[],
    }],
    sources: Sources { definitions: Some("manifest.yaml"), ..PURE_GO },
};

/// The agents of a node, of the version of the control plane.
pub(super) const KUBELET: Part = kubernetes(
    "kubelet",
    include_str!("../../tools/kubelet/go.mod"),
    include_str!("../../tools/kubelet/go.sum"),
    &[
        Program { name: "kubelet", package: "k8s.io/kubernetes/cmd/kubelet", version: &["--version"] },
        Program { name: "kube-proxy", package: "k8s.io/kubernetes/cmd/kube-proxy", version: &["--version"] },
    ],
);

/// The DNS server of the node.
pub(super) const COREDNS: Part = Part {
    name: "coredns",
    module: "github.com/coredns/coredns",
    go_mod: include_str!("../../tools/coredns/go.mod"),
    go_sum: include_str!("../../tools/coredns/go.sum"),
    stamps: &[],
    any_patch: false,
    programs: &[Program { name: "coredns", package: ".", version: &[] }],
    sources: Sources { main: Some(include_str!("../../tools/coredns/main.go")), ..PURE_GO },
};

/// Prometheus, of the tests of the alerts and the dashboard, without what finds targets in clouds.
pub(super) const PROMETHEUS: Part = Part {
    name: "prometheus",
    module: "github.com/prometheus/prometheus",
    go_mod: include_str!("../../tools/prometheus/go.mod"),
    go_sum: include_str!("../../tools/prometheus/go.sum"),
    stamps: &[],
    any_patch: false,
    programs: &[
        Program { name: "prometheus", package: "github.com/prometheus/prometheus/cmd/prometheus", version: &[] },
        Program { name: "promtool", package: "github.com/prometheus/prometheus/cmd/promtool", version: &[] },
    ],
    sources: Sources { tags: "remove_all_sd", ..PURE_GO },
};

impl Part {
    /// The pinned version.
    pub(super) fn version(&self) -> Version {
        directive(self.go_mod, self.module).and_then(Version::parse).expect("go.mod requires the part's module")
    }

    /// The Go release that the module requires, such as 1.26.
    pub(super) fn go(&self) -> Version {
        directive(self.go_mod, "go").and_then(Version::parse).expect("go.mod names a Go version")
    }

    pub(super) fn ldflags(&self) -> String {
        let Version(major, minor, _) = self.version();
        let stamps = self.stamps.iter().map(|stamp| {
            let stamp = stamp.replace("{version}", &self.version().to_string());
            format!(" -X {}", stamp.replace("{major}", &major.to_string()).replace("{minor}", &minor.to_string()))
        });
        String::from("-s -w") + &stamps.collect::<String>()
    }

    /// The cache entry's name, which identifies the programs.
    pub(super) fn key(&self) -> String {
        let mut hash = Sha256::new();
        let texts = [OS, ARCH, &self.ldflags(), self.go_mod, self.go_sum];
        let tags = Some(self.sources.tags).filter(|tags| !tags.is_empty());
        for text in texts.into_iter().chain(self.sources.main).chain(tags) {
            hash.update(text);
            hash.update([0]);
        }
        for program in self.programs {
            hash.update(program.package);
            hash.update([0]);
        }
        for Patch { file, from, to } in self.sources.patches {
            for text in [file, from, to] {
                hash.update(text);
                hash.update([0]);
            }
        }
        format!("{}-{}-{}", self.name, self.version(), short(&hash.finalize()))
    }

    /// Returns true if the program at `path` exists and reports an acceptable version.
    pub(super) fn fits(&self, program: &Program, path: &Path) -> bool {
        if program.version.is_empty() {
            return false;
        }
        let output = Command::new(path).args(program.version).stdin(Stdio::null()).stderr(Stdio::null()).output();
        let found = output
            .ok()
            .filter(|output| output.status.success())
            .and_then(|output| String::from_utf8_lossy(&output.stdout).split_whitespace().find_map(Version::parse));
        found.is_some_and(|found| self.accepts(found))
    }

    fn accepts(&self, found: Version) -> bool {
        let pinned = self.version();
        found == pinned || self.any_patch && (found.0, found.1) == (pinned.0, pinned.1)
    }
}

/// The word after `name` on its line of a go.mod.
fn directive<'a>(go_mod: &'a str, name: &str) -> Option<&'a str> {
    go_mod.lines().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word == "require");
        (words.next() == Some(name)).then(|| words.next()).flatten()
    })
}

/// A released version: three numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Version(pub(super) u32, pub(super) u32, u32);

impl Version {
    fn parse(word: &str) -> Option<Self> {
        let word = word.strip_prefix('v').unwrap_or(word);
        let mut numbers = word.split('+').next()?.split('.').map(|number| number.parse().ok());
        let version = Self(numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(version)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXTRAS: [&Part; 12] = [
        &BARMAN_CLOUD,
        &CERT_MANAGER,
        &CLOUDNATIVEPG,
        &COREDNS,
        &HELM3,
        &KUBELET,
        &KUBERNETES_OLDEST,
        &PERCONA,
        &PROMETHEUS,
        &REGISTRY,
        &RESTIC,
        &VERSITYGW,
    ];

    #[test]
    fn versions_are_found_in_what_programs_print() {
        for (printed, version) in [
            ("etcd Version: 3.6.16\nGit SHA: x\nGo Version: go1.26.8", Some(Version(3, 6, 16))),
            ("v4.3.1+g0123456", Some(Version(4, 3, 1))),
            ("Client Version: v1.36.3\nKustomize Version: v5.8.1", Some(Version(1, 36, 3))),
            ("/bin/registry github.com/distribution/distribution/v3 v3.1.2+unknown", Some(Version(3, 1, 2))),
            ("Version  : v1.8.0\nBuild    : norev", Some(Version(1, 8, 0))),
            ("Kubernetes v1.37.0-rc.1", None),
            ("", None),
        ] {
            assert_eq!(printed.split_whitespace().find_map(Version::parse), version, "{printed}");
        }
    }

    #[test]
    fn the_guide_names_the_versions_that_are_tested() {
        let guide = include_str!("../../../manifests/README.md");
        let row = |name: &str| guide.lines().find(|line| line.starts_with(&format!("| {name} "))).expect(name);
        for (name, part) in [
            ("Kubernetes", &PARTS[2]),
            ("Kubernetes", &KUBERNETES_OLDEST),
            ("helm,", &PARTS[1]),
            ("Other", &HELM3),
            ("Percona", &PERCONA),
            ("CloudNativePG", &CLOUDNATIVEPG),
            ("Plugin", &BARMAN_CLOUD),
            ("cert-manager", &CERT_MANAGER),
            ("restic", &RESTIC),
        ] {
            let version = part.version().to_string();
            assert!(row(name).contains(&version), "{name} {version}: {}", row(name));
        }
    }

    #[test]
    fn every_part_has_a_version_a_go_release_and_its_programs_as_tools() {
        for part in PARTS.iter().chain(EXTRAS) {
            assert_eq!(part.go().0, 1, "{}", part.name);
            assert!(part.key().starts_with(&format!("{}-{}-", part.name, part.version())));
            for program in part.programs {
                let listed = part.go_mod.lines().any(|line| line.trim().trim_start_matches("tool ") == program.package);
                assert!(listed || part.sources.main.is_some(), "{} is not a tool in its go.mod", program.package);
            }
        }
    }

    #[test]
    fn stamps_carry_the_pinned_version() {
        let kubernetes = PARTS.iter().find(|part| part.name == "kubernetes").expect("the part exists");
        let Version(major, minor, patch) = kubernetes.version();
        let flags = kubernetes.ldflags();
        assert!(flags.contains(&format!("version.gitVersion=v{major}.{minor}.{patch} ")), "{flags}");
        assert!(flags.contains(&format!("version.gitMinor={minor} ")), "{flags}");
    }

    #[test]
    fn a_node_is_of_the_version_of_its_control_plane() {
        let kubernetes = PARTS.iter().find(|part| part.name == "kubernetes").expect("the part exists");
        assert_eq!(KUBELET.version().to_string(), kubernetes.version().to_string());
    }

    #[test]
    fn the_oldest_kubernetes_is_that_of_the_readme() {
        let Version(major, minor, _) = KUBERNETES_OLDEST.version();
        let readme = include_str!("../../../README.md");
        assert!(readme.contains(&format!("You need Kubernetes {major}.{minor} or later")));
    }

    #[test]
    fn only_kubernetes_may_differ_in_its_patch_release() {
        for part in PARTS.iter().chain(EXTRAS) {
            let Version(major, minor, patch) = part.version();
            assert!(part.accepts(Version(major, minor, patch)));
            assert_eq!(part.accepts(Version(major, minor, patch + 1)), part.module == "k8s.io/kubernetes");
            assert!(!part.accepts(Version(major, minor + 1, patch)));
            assert!(!part.accepts(Version(major + 1, minor, patch)));
        }
    }
}
