//! The parts to build: Go modules in this crate's `tools` directory and their programs.

use std::env::consts::{ARCH, OS};
use std::path::Path;
use std::process::{Command, Stdio};

use sha2::{Digest as _, Sha256};

/// A Go module that pins one upstream project.
pub(super) struct Part {
    pub(super) name: &'static str,
    /// The upstream module, whose version is the part's.
    pub(super) module: &'static str,
    pub(super) go_mod: &'static str,
    pub(super) go_sum: &'static str,
    /// A `main.go` of our own, for a project whose command is no module that a proxy has.
    pub(super) main: Option<&'static str>,
    /// A folder of the upstream module that is kept beside the programs.
    pub(super) folder: Option<&'static str>,
    /// Variables that the linker sets, with `{version}`, `{major}` and `{minor}` replaced. A server without a version
    /// calls itself v0.0.0, and charts with a `kubeVersion` refuse it.
    stamps: &'static [&'static str],
    /// Whether any patch release is good enough.
    any_patch: bool,
    pub(super) programs: &'static [Program],
}

pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    /// The arguments that make it print its version.
    version: &'static [&'static str],
}

/// In the order of the fields of [`Tools`](super::Tools).
pub(super) const PARTS: &[Part] = &[
    Part {
        name: "etcd",
        module: "go.etcd.io/etcd/server/v3",
        go_mod: include_str!("../../tools/etcd/go.mod"),
        go_sum: include_str!("../../tools/etcd/go.sum"),
        main: None,
        folder: None,
        stamps: &[],
        any_patch: false,
        programs: &[Program { name: "etcd", package: "go.etcd.io/etcd/server/v3", version: &["--version"] }],
    },
    Part {
        name: "helm",
        module: "helm.sh/helm/v4",
        go_mod: include_str!("../../tools/helm/go.mod"),
        go_sum: include_str!("../../tools/helm/go.sum"),
        main: None,
        folder: None,
        stamps: &["helm.sh/helm/v4/internal/version.version=v{version}"],
        any_patch: false,
        programs: &[Program { name: "helm", package: "helm.sh/helm/v4/cmd/helm", version: &["version", "--short"] }],
    },
    Part {
        name: "kubernetes",
        module: "k8s.io/kubernetes",
        go_mod: include_str!("../../tools/kubernetes/go.mod"),
        go_sum: include_str!("../../tools/kubernetes/go.sum"),
        main: None,
        folder: None,
        stamps: &[
            "k8s.io/component-base/version.gitVersion=v{version}",
            "k8s.io/component-base/version.gitMajor={major}",
            "k8s.io/component-base/version.gitMinor={minor}",
            "k8s.io/component-base/version.gitTreeState=clean",
        ],
        any_patch: true,
        programs: &[
            Program {
                name: "kube-apiserver",
                package: "k8s.io/kubernetes/cmd/kube-apiserver",
                version: &["--version"],
            },
            Program {
                name: "kube-controller-manager",
                package: "k8s.io/kubernetes/cmd/kube-controller-manager",
                version: &["--version"],
            },
            Program {
                name: "kube-scheduler",
                package: "k8s.io/kubernetes/cmd/kube-scheduler",
                version: &["--version"],
            },
            Program { name: "kubectl", package: "k8s.io/kubernetes/cmd/kubectl", version: &["version", "--client"] },
        ],
    },
    Part {
        name: "kwok",
        module: "sigs.k8s.io/kwok",
        go_mod: include_str!("../../tools/kwok/go.mod"),
        go_sum: include_str!("../../tools/kwok/go.sum"),
        main: None,
        folder: None,
        stamps: &["sigs.k8s.io/kwok/pkg/consts.Version=v{version}"],
        any_patch: false,
        programs: &[Program { name: "kwok", package: "sigs.k8s.io/kwok/cmd/kwok", version: &["--version"] }],
    },
];

/// The other Helm client of some tests.
pub(super) const HELM3: Part = Part {
    name: "helm3",
    module: "helm.sh/helm/v3",
    go_mod: include_str!("../../tools/helm3/go.mod"),
    go_sum: include_str!("../../tools/helm3/go.sum"),
    main: None,
    folder: None,
    stamps: &["helm.sh/helm/v3/internal/version.version=v{version}"],
    any_patch: false,
    programs: &[Program { name: "helm", package: "helm.sh/helm/v3/cmd/helm", version: &["version", "--short"] }],
};

/// The registry of tests that push charts to one.
pub(super) const REGISTRY: Part = Part {
    name: "registry",
    module: "github.com/distribution/distribution/v3",
    go_mod: include_str!("../../tools/registry/go.mod"),
    go_sum: include_str!("../../tools/registry/go.sum"),
    main: None,
    folder: None,
    stamps: &[],
    any_patch: false,
    programs: &[Program {
        name: "registry",
        package: "github.com/distribution/distribution/v3/cmd/registry",
        version: &["--version"],
    }],
};

/// The storage of tests that keep backups in a bucket.
pub(super) const VERSITYGW: Part = Part {
    name: "versitygw",
    module: "github.com/versity/versitygw",
    go_mod: include_str!("../../tools/versitygw/go.mod"),
    go_sum: include_str!("../../tools/versitygw/go.sum"),
    main: None,
    folder: None,
    stamps: &["main.Version=v{version}"],
    any_patch: false,
    programs: &[Program {
        name: "versitygw",
        package: "github.com/versity/versitygw/cmd/versitygw",
        version: &["--version"],
    }],
};

/// cert-manager's controllers, of the tests of TLS.
pub(super) const CERT_MANAGER: Part = Part {
    name: "cert-manager",
    module: "github.com/cert-manager/cert-manager",
    go_mod: include_str!("../../tools/cert-manager/go.mod"),
    go_sum: include_str!("../../tools/cert-manager/go.sum"),
    main: Some(include_str!("../../tools/cert-manager/main.go")),
    folder: Some("deploy/crds"),
    stamps: &[],
    any_patch: false,
    programs: &[Program { name: "cert-manager", package: ".", version: &["--version"] }],
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
        let texts = [OS, ARCH, &self.ldflags(), self.go_mod, self.go_sum].into_iter();
        for text in texts.chain(self.main).chain(self.folder) {
            hash.update(text);
            hash.update([0]);
        }
        for program in self.programs {
            hash.update(program.package);
            hash.update([0]);
        }
        let digest: String = hash.finalize().iter().take(6).map(|byte| format!("{byte:02x}")).collect();
        format!("{}-{}-{digest}", self.name, self.version())
    }

    /// Whether the program at `path` exists and reports an acceptable version.
    pub(super) fn fits(&self, program: &Program, path: &Path) -> bool {
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

    const EXTRAS: [&Part; 4] = [&CERT_MANAGER, &HELM3, &REGISTRY, &VERSITYGW];

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
    fn every_part_has_a_version_a_go_release_and_its_programs_as_tools() {
        for part in PARTS.iter().chain(EXTRAS) {
            assert_eq!(part.go().0, 1, "{}", part.name);
            assert!(part.key().starts_with(&format!("{}-{}-", part.name, part.version())));
            for program in part.programs {
                let listed = part.go_mod.lines().any(|line| line.trim().trim_start_matches("tool ") == program.package);
                assert!(listed || part.main.is_some(), "{} is not a tool in its go.mod", program.package);
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
    fn only_kubernetes_may_differ_in_its_patch_release() {
        for part in PARTS.iter().chain(EXTRAS) {
            let Version(major, minor, patch) = part.version();
            assert!(part.accepts(Version(major, minor, patch)));
            assert_eq!(part.accepts(Version(major, minor, patch + 1)), part.name == "kubernetes");
            assert!(!part.accepts(Version(major, minor + 1, patch)));
            assert!(!part.accepts(Version(major + 1, minor, patch)));
        }
    }
}
