//! What helm's standard error means, as one table (pure).
//!
//! The exit code of helm is 0 or 1, so its words are all there is. They come second: what a release is, Helm's storage
//! tells; the words say why.

use super::{
    command::Verb,
    sentence::{error_text, sentence},
};

/// Why helm failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelmFailure {
    /// Another install, upgrade or rollback holds the release, or has just made the revision this one was to make.
    Locked,
    /// There is no such release.
    NotFound,
    /// The release has revisions, none of which was ever deployed or failed: an uninstall was interrupted.
    NoDeployedReleases,
    /// The chart is not in the repository, or not in this version.
    ChartNotFound,
    /// The repository cannot be reached, or answers something that is not a repository or a chart.
    RepositoryUnavailable,
    /// The chart cannot be loaded, its templates fail, or its schema refuses the values.
    ChartInvalid,
    /// The API server refused a request for lack of permission.
    Forbidden {
        /// The verb, as in RBAC; empty when the message has none.
        verb: String,
        /// The resource, as in RBAC; empty when the message has none.
        resource: String,
    },
    /// The namespace is being deleted.
    NamespaceTerminating,
    /// A quota or a limit range refused an object.
    Quota,
    /// An admission plugin or webhook refused an object, or could not be asked.
    Admission,
    /// An object of the release, or a field of one, belongs to somebody else.
    Conflict,
    /// A field was to be changed that can only be set once.
    Immutable,
    /// A hook failed.
    HookFailed,
    /// The cluster does not know a kind that the chart uses.
    UnknownKind,
    /// The API server refused an object as invalid.
    InvalidObject,
    /// The release with its chart, values and manifest is too large for one Secret.
    ReleaseTooLarge,
    /// Something took too long.
    Timeout,
    /// The API server cannot be reached, or cannot answer now.
    ApiUnavailable,
    /// Helm hit the memory or file size limit it was started with.
    ResourceLimit,
    /// Something else.
    Other,
}

/// A class, the commands it is meant for (all when empty), and the texts of which one has to occur; `*` is any text.
type Row = (HelmFailure, &'static [Verb], &'static [&'static str]);

/// The first row that matches wins, so the specific ones come first; the comments say which order matters. Next to each
/// text is where it comes from, as of helm 4.3.1 and Kubernetes 1.36.
const TABLE: &[Row] = &[
    // Helm's own words for its own state: nothing else contains them.
    (
        HelmFailure::Locked,
        &[],
        &[
            "another operation (install/upgrade/rollback) is in progress", // action.go errPending
            "release: already exists",                                     // driver.go: lost the race for the Secret
            "cannot reuse a name that is still in use", // install.go: somebody else installed just now
        ],
    ),
    // The whole phrase, since it counts as success: purging the history can fail with "release: not found", too.
    (HelmFailure::NotFound, &[Verb::Uninstall], &["uninstall: Release not loaded: *: release: not found"]), // uninstall.go
    (HelmFailure::NoDeployedReleases, &[], &["has no deployed releases"]),                                  // driver.go
    (
        HelmFailure::ResourceLimit,
        &[],
        &[
            "fatal error: out of memory",
            "runtime: out of memory",
            "cannot allocate memory",
            "SIGXFSZ",
            "file too large",
        ],
    ),
    // A pull speaks to nobody but the repository: here everything about the network is the repository's. An index that is
    // not there comes before a chart that is not there, because both are a 404.
    (
        HelmFailure::RepositoryUnavailable,
        &[Verb::Pull],
        &["is not a valid chart repository or cannot be reached"], // chartrepo.go: unreachable, or not an index
    ),
    (
        HelmFailure::ChartNotFound,
        &[Verb::Pull],
        &[
            "no chart version found",
            "no chart name found",
            "failed to fetch * : 404 ", // httpgetter.go
            ": not found",              // oras: the tag
            "unable to locate any tags in provided repository",
            "could not locate a version matching provided version string",
            "chart \"*\" not found in ", // chartrepo.go ChartNotFoundError
        ],
    ),
    (HelmFailure::ChartNotFound, &[Verb::Upgrade], &["path \"*\" not found"]), // install.go LocateChart
    (
        HelmFailure::RepositoryUnavailable,
        &[Verb::Pull],
        &[
            "failed to fetch ",         // httpgetter.go: any status but 200
            "error loading ",           // index.go
            "no API version specified", // index.go
            "empty index.yaml file",    // index.go
            "has no downloadable URLs", // chartrepo.go
            "Get \"",                   // net/http: no answer
            "Head \"",                  // net/http
            "response status code ",    // oras
            "dial tcp",
            "connection re",
            "EOF",
            "tls: ",
            "x509: ",
            "repo not found", // chart_downloader.go: an index that points to something that is not fetched, like a file
            "scheme \"",
        ],
    ),
    // Before Conflict, Timeout and ApiUnavailable: a hook's or a webhook's failure quotes what its cause was.
    (
        HelmFailure::HookFailed,
        &[],
        &[
            "failed pre-install:",       // install.go
            "failed post-install:",      // install.go
            "pre-upgrade hooks failed:", // upgrade.go
            "post-upgrade hooks failed:",
            "warning: Hook ", // hooks.go
        ],
    ),
    (HelmFailure::Admission, &[], &["admission webhook \"", "failed calling webhook", "failed to call webhook"]),
    (
        HelmFailure::NamespaceTerminating,
        &[],
        &["because it is being terminated"], // apiserver, admission/plugin/namespace/lifecycle
    ),
    // All of these are "… is forbidden: …", a permission being only one of the reasons.
    (
        HelmFailure::Quota,
        &[],
        &[
            "exceeded quota:",
            "failed quota:",
            "maximum cpu usage",
            "maximum memory usage",
            "minimum cpu usage",
            "minimum memory usage",
        ],
    ),
    (
        HelmFailure::Forbidden { verb: String::new(), resource: String::new() },
        &[],
        &[
            "is forbidden: User \"",
            "forbidden: User \"",
            "Unauthorized",
            "the server has asked for the client to provide credentials",
        ],
    ),
    (HelmFailure::Admission, &[], &["is forbidden: "]), // pod security and other plugins
    // Before ChartInvalid: a template that looks something up fails for the API server's sake.
    (HelmFailure::ApiUnavailable, &[], &["error calling lookup: "]),
    // Before everything else that the API server says, because a template's error may quote anything.
    (
        HelmFailure::ChartInvalid,
        &[],
        &[
            "parse error at (",                            // engine.go
            "parse error in (",                            // engine.go
            "execution error at (",                        // engine.go: `fail` and `required`
            "execution error in (",                        // engine.go
            "executing \"*\" at <",                        // text/template
            "error calling ",                              // text/template
            "cannot parse template",                       // engine.go
            "rendering template failed",                   // engine.go
            "unable to execute template",                  // engine.go
            "error during tpl function execution",         // engine.go
            "don't meet the specifications of the schema", // values.go
            "unable to validate schema",                   // jsonschema.go
            "YAML parse error on ",                        // releaseutil manifest_sorter.go
            "error converting YAML to JSON",               // sigs.k8s.io/yaml
            "error parsing YAML",
            "cannot load ",                                          // load.go: Chart.yaml, values.yaml …
            "failed to parse ",                                      // options.go: the values
            "does not appear to be a ",                              // archive.go
            "unable to load chart archive",                          // load.go
            "chart requires kubeVersion",                            // action.go
            "chart exceeds maximum decompressed size",               // budget.go
            "decompressed chart is larger than",                     // archive.go
            "chart illegally ",                                      // archive.go
            "chart contains illegally named files",                  // archive.go
            "chart yaml not in base directory",                      // archive.go
            "Chart.yaml file is missing",                            // load.go
            "unable to detect chart version",                        // load.go
            "unsupported chart version",                             // load.go
            "error unpacking ",                                      // load.go
            "found in Chart.yaml, but missing in charts/ directory", // install.go
            "chart dependencies processing failed",                  // install.go
            "validation: ",                                          // chart/v2/errors.go
            "not installable",                                       // action.go: a library chart
        ],
    ),
    (
        HelmFailure::UnknownKind,
        &[],
        &["no matches for kind", "ensure CRDs are installed first", "contains removed kubernetes api(s)"],
    ),
    (
        HelmFailure::Conflict,
        &[],
        &["Apply failed with ", "cannot be imported into the current release", "conflict occurred while applying"],
    ),
    // Before InvalidObject: what may not change is reported as an invalid object, too.
    (
        HelmFailure::Immutable,
        &[],
        &[
            "field is immutable",
            "Forbidden: updates to statefulset spec",
            "is immutable after creation",
            "may not change once set",
            "can not be less than previous value",
            "can not be less than status.capacity",
            "at least one field was changed: apiVersion, kind or name", // kube/client.go
        ],
    ),
    // Before InvalidObject: a Secret that is too large is an invalid Secret.
    (
        HelmFailure::ReleaseTooLarge,
        &[],
        &[
            "Too long: may not be more than 1048576",
            "Too long: must have at most 1048576",
            "request is too large",
            "Request entity too large",
        ],
    ),
    (
        HelmFailure::InvalidObject,
        &[],
        &[
            "strict decoding error",
            "unknown field \"",
            "error validating data",
            "ValidationError(",
            "\" is invalid: ",
            "failed to create typed patch object", // server-side apply
            "in body must be of type",
        ],
    ),
    // Before Timeout: this is the API server's, though some of it is about time.
    (
        HelmFailure::ApiUnavailable,
        &[],
        &[
            "kubernetes cluster unreachable", // kube/client.go: whatever happened to the first request
            "connection refused",
            "connection reset by peer",
            "no route to host",
            "no such host",
            "i/o timeout",
            "TLS handshake timeout",
            "http2: ",
            "EOF",
            "tls: ",
            "x509: ",
            "Too many requests",
            "too many requests",
            "etcdserver: ",
            "apiserver is shutting down",
            "the server is currently unable to handle the request",
            "the server was unable to return a response in the time allotted",
            "Internal error occurred",
            "could not get server version from Kubernetes",
            "could not get apiVersions from Kubernetes",
        ],
    ),
    (
        HelmFailure::Timeout,
        &[],
        &[
            "context deadline exceeded",
            "timed out waiting for the condition",
            "Timeout: request did not complete",
            "Client.Timeout exceeded",
        ],
    ),
];

/// The class of a failure and one redacted sentence about it, from a helm command's standard error.
pub fn classify(verb: Verb, stderr: &str) -> (HelmFailure, String) {
    let error = error_text(stderr);
    let failure = TABLE
        .iter()
        .find(|(_, verbs, texts)| {
            (verbs.is_empty() || verbs.contains(&verb)) && texts.iter().any(|text| occurs(text, &error))
        })
        .map_or(HelmFailure::Other, |(failure, ..)| failure.clone());
    let failure = match failure {
        HelmFailure::Forbidden { .. } => forbidden(&error),
        failure => failure,
    };
    let sentence = sentence(&error);
    (failure, if sentence.is_empty() { "helm failed without a word".to_owned() } else { sentence })
}

/// Whether the parts of a text between its `*`s occur one after the other.
fn occurs(text: &str, error: &str) -> bool {
    text.split('*').try_fold(error, |rest, part| rest.split_once(part).map(|(_, rest)| rest)).is_some()
}

/// `… User "u" cannot VERB resource "RESOURCE" in API group "GROUP" …`, as Kubernetes' RBAC authorizer puts it.
fn forbidden(error: &str) -> HelmFailure {
    let part = |before: &str, after: &str| {
        let (_, rest) = error.split_once(before)?;
        rest.split_once(after).map(|(part, _)| sentence(part))
    };
    HelmFailure::Forbidden {
        verb: part("\" cannot ", " ").unwrap_or_default(),
        resource: part(" resource \"", "\"").unwrap_or_default(),
    }
}

/// The objects that `helm uninstall` left alone though the release contained them, as `Kind/name`.
///
/// It exits with 0 all the same: for an object that it takes for somebody else's, and for one that it could not even read
/// (`deleteRelease` in `action/uninstall.go`). Objects kept by the chart's `helm.sh/resource-policy` are not among them.
pub fn left_behind(stdout: &str) -> Vec<String> {
    stdout
        .lines()
        .scan(false, |listing, line| {
            if line.ends_with(':') {
                *listing = line.contains(" were not deleted because ");
            }
            Some(listing.then_some(line))
        })
        .flatten()
        .filter_map(|line| line.strip_prefix('[')?.split_once("] "))
        .map(|(kind, name)| format!("{kind}/{}", name.split(':').next().unwrap_or_default()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forbidden_to(verb: &str, resource: &str) -> HelmFailure {
        HelmFailure::Forbidden { verb: verb.to_owned(), resource: resource.to_owned() }
    }

    #[test]
    fn upgrade_and_uninstall() {
        let rows = [
            ("Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress", HelmFailure::Locked),
            ("Error: UPGRADE FAILED: release: already exists", HelmFailure::Locked),
            ("Error: release name check failed: cannot reuse a name that is still in use", HelmFailure::Locked),
            (
                "Error: uninstallation completed with 1 error(s): uninstall: Failed to purge the release: release: not found",
                HelmFailure::Other,
            ),
            ("Error: UPGRADE FAILED: \"x\" has no deployed releases", HelmFailure::NoDeployedReleases),
            (
                "Error: UPGRADE FAILED: execution error at (nextcloud/templates/deployment.yaml:3:4): a host is required",
                HelmFailure::ChartInvalid,
            ),
            (
                "Error: UPGRADE FAILED: parse error at (x/templates/a.yaml:3): function \"nope\" not defined",
                HelmFailure::ChartInvalid,
            ),
            (
                "Error: UPGRADE FAILED: template: x/templates/a.yaml:1:3: executing \"x/templates/a.yaml\" at <fail>: error calling fail: context deadline exceeded",
                HelmFailure::ChartInvalid,
            ),
            (
                "Error: UPGRADE FAILED: YAML parse error on x/templates/a.yaml: error converting YAML to JSON: yaml: line 2: did not find",
                HelmFailure::ChartInvalid,
            ),
            (
                "Error: UPGRADE FAILED: values don't meet the specifications of the schema(s) in the following chart(s):\nx:\n- at '/replicas': got string, want integer",
                HelmFailure::ChartInvalid,
            ),
            (
                "Error: INSTALLATION FAILED: chart requires kubeVersion: >=1.99.0 which is incompatible with Kubernetes v1.36.3",
                HelmFailure::ChartInvalid,
            ),
            (
                "Error: query: failed to query with labels: secrets is forbidden: User \"system:serviceaccount:a:b\" cannot list resource \"secrets\" in API group \"\" in the namespace \"t\"",
                forbidden_to("list", "secrets"),
            ),
            (
                "Error: server-side apply failed for object t/x apps/v1, Kind=Deployment: deployments.apps \"x\" is forbidden: User \"u\" cannot patch resource \"deployments\" in API group \"apps\" in the namespace \"t\"",
                forbidden_to("patch", "deployments"),
            ),
            ("Error: UPGRADE FAILED: Unauthorized", forbidden_to("", "")),
            (
                "Error: create: failed to create: secrets \"sh.helm.release.v1.x.v1\" is forbidden: unable to create new content in namespace t because it is being terminated",
                HelmFailure::NamespaceTerminating,
            ),
            (
                "Error: server-side apply failed for object t/x /v1, Kind=Pod: pods \"x\" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1",
                HelmFailure::Quota,
            ),
            (
                "Error: pods \"x\" is forbidden: [maximum cpu usage per Container is 1, but limit is 2]",
                HelmFailure::Quota,
            ),
            (
                "Error: pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": runAsNonRoot != true",
                HelmFailure::Admission,
            ),
            ("Error: admission webhook \"policy.example.com\" denied the request: no", HelmFailure::Admission),
            (
                "Error: Internal error occurred: failed calling webhook \"p.example.com\": failed to call webhook: Post \"https://p\": context deadline exceeded",
                HelmFailure::Admission,
            ),
            (
                "Error: conflict occurred while applying object t/x apps/v1, Kind=Deployment: Apply failed with 1 conflict: conflict with \"kubectl\" using apps/v1: .spec.replicas",
                HelmFailure::Conflict,
            ),
            (
                "Error: unable to continue with install: Service \"x\" in namespace \"t\" exists and cannot be imported into the current release: invalid ownership metadata; label validation error",
                HelmFailure::Conflict,
            ),
            (
                "Error: UPGRADE FAILED: cannot patch \"x\" with kind StatefulSet: StatefulSet.apps \"x\" is invalid: spec: Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden",
                HelmFailure::Immutable,
            ),
            (
                "Error: UPGRADE FAILED: server-side apply failed for object t/x apps/v1, Kind=Deployment: Deployment.apps \"x\" is invalid: spec.selector: Invalid value: {}: field is immutable",
                HelmFailure::Immutable,
            ),
            (
                "Error: UPGRADE FAILED: pre-upgrade hooks failed: 1 error occurred: job x failed: BackoffLimitExceeded",
                HelmFailure::HookFailed,
            ),
            (
                "Error: failed post-install: resource Job/t/x not ready. status: InProgress, message: context deadline exceeded",
                HelmFailure::HookFailed,
            ),
            (
                "Error: unable to build kubernetes objects from release manifest: resource mapping not found for name: \"x\" namespace: \"\" from \"\": no matches for kind \"Foo\" in version \"example.com/v1\"\nensure CRDs are installed first",
                HelmFailure::UnknownKind,
            ),
            (
                "Error: server-side apply failed for object t/x apps/v1, Kind=Deployment: failed to create typed patch object (t/x; apps/v1, Kind=Deployment): .spec.foo: field not declared in schema",
                HelmFailure::InvalidObject,
            ),
            (
                "Error: Deployment in version \"v1\" cannot be handled as a Deployment: strict decoding error: unknown field \"spec.foo\"",
                HelmFailure::InvalidObject,
            ),
            ("Error: Service \"x\" is invalid: spec.ports: Required value", HelmFailure::InvalidObject),
            (
                "Error: create: failed to create: Secret \"sh.helm.release.v1.x.v1\" is invalid: data: Too long: may not be more than 1048576 bytes",
                HelmFailure::ReleaseTooLarge,
            ),
            ("Error: create: failed to create: etcdserver: request is too large", HelmFailure::ReleaseTooLarge),
            (
                "Error: kubernetes cluster unreachable: Get \"https://127.0.0.1:1/version\": dial tcp 127.0.0.1:1: connect: connection refused",
                HelmFailure::ApiUnavailable,
            ),
            ("Error: UPGRADE FAILED: etcdserver: leader changed", HelmFailure::ApiUnavailable),
            (
                "Error: x/templates/a.yaml:1:4\n  executing \"x/templates/a.yaml\" at <lookup \"v1\" \"Secret\" \"t\" \"x\">:\n    error calling lookup: Get \"https://127.0.0.1:1/api/v1\": EOF",
                HelmFailure::ApiUnavailable,
            ),
            (
                "Error: kubernetes cluster unreachable: the server has asked for the client to provide credentials",
                forbidden_to("", ""),
            ),
            (
                "Error: x/templates/a.yaml:1:13\n  executing \"x/templates/a.yaml\" at <.Values.x.y.z>:\n    nil pointer evaluating interface {}.y",
                HelmFailure::ChartInvalid,
            ),
            (
                "Error: file '/cache/x.tgz' does not appear to be a gzipped archive; got 'text/plain'",
                HelmFailure::ChartInvalid,
            ),
            (
                "Error: failed to parse -: cannot unmarshal yaml document: error converting YAML to JSON: yaml: line 1: did not find expected node content",
                HelmFailure::ChartInvalid,
            ),
            ("Error: UPGRADE FAILED: context deadline exceeded", HelmFailure::Timeout),
            (
                "fatal error: out of memory allocating heap arena metadata\n\nruntime stack:\nruntime.throw",
                HelmFailure::ResourceLimit,
            ),
            ("Error: something new", HelmFailure::Other),
            ("", HelmFailure::Other),
        ];
        for (stderr, expected) in rows {
            for verb in [Verb::Upgrade, Verb::Uninstall] {
                assert_eq!(classify(verb, stderr).0, expected, "{stderr}");
            }
        }
    }

    #[test]
    fn pull() {
        let rows = [
            (
                "Error: chart \"nextcloud\" version \"9.9.9\" not found in https://example.com repository",
                HelmFailure::ChartNotFound,
            ),
            (
                "Error: failed to fetch https://example.com/nextcloud-5.5.2.tgz : 404 Not Found",
                HelmFailure::ChartNotFound,
            ),
            (
                "Error: failed to perform \"FetchReference\" on source: 127.0.0.1:5000/charts/x:1.2.3: not found",
                HelmFailure::ChartNotFound,
            ),
            (
                "Error: looks like \"https://example.com\" is not a valid chart repository or cannot be reached: failed to fetch https://example.com/index.yaml : 404 Not Found",
                HelmFailure::RepositoryUnavailable,
            ),
            (
                "Error: looks like \"http://127.0.0.1:1\" is not a valid chart repository or cannot be reached: Get \"http://127.0.0.1:1/index.yaml\": dial tcp 127.0.0.1:1: connect: connection refused",
                HelmFailure::RepositoryUnavailable,
            ),
            (
                "Error: failed to fetch https://example.com/nextcloud-5.5.2.tgz : 503 Service Unavailable",
                HelmFailure::RepositoryUnavailable,
            ),
            (
                "Error: Get \"https://example.com/x.tgz\": context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
                HelmFailure::RepositoryUnavailable,
            ),
            ("Error: repo not found", HelmFailure::RepositoryUnavailable),
            (
                "Error: failed to perform \"FetchReference\" on source: Get \"http://127.0.0.1:1/v2/charts/x/manifests/9.0.0\": dial tcp 127.0.0.1:1: connect: connection refused",
                HelmFailure::RepositoryUnavailable,
            ),
        ];
        for (stderr, expected) in rows {
            assert_eq!(classify(Verb::Pull, stderr).0, expected, "{stderr}");
        }
    }

    /// What the pinned helm really said, captured against a real API server; a new file needs a row here.
    #[test]
    fn every_fixture() {
        use HelmFailure::*;
        let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/fixtures/helm-4.3.1");
        for file in std::fs::read_dir(&fixtures).unwrap() {
            let path = file.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            let verb = match name {
                _ if name.starts_with("pull-") || name.starts_with("oci-") => Verb::Pull,
                _ if name.starts_with("uninstall-") => Verb::Uninstall,
                _ => Verb::Upgrade,
            };
            let expected = match name {
                "in-progress-after-sigkill"
                | "in-progress-while-installing"
                | "in-progress-while-upgrading"
                | "name-in-use" => Locked,
                "uninstall-not-found" => NotFound,
                "no-deployed-releases" | "upgrade-not-found" => NoDeployedReleases,
                "archive-missing"
                | "oci-missing-chart"
                | "oci-missing-version"
                | "pull-archive-404"
                | "pull-missing-chart"
                | "pull-missing-version" => ChartNotFound,
                "oci-not-https" | "oci-refused" | "pull-503" | "pull-index-404" | "pull-index-html"
                | "pull-no-such-host" | "pull-refused" | "pull-slow" => RepositoryUnavailable,
                "archive-html"
                | "archive-truncated"
                | "render-fail"
                | "render-fail-upgrade"
                | "render-null-map"
                | "schema" => ChartInvalid,
                "forbidden-storage" => forbidden_to("list", "secrets"),
                "forbidden-get" => forbidden_to("get", "networkpolicies"),
                "forbidden-write" => forbidden_to("patch", "networkpolicies"),
                "unauthorized" => forbidden_to("", ""),
                "namespace-terminating" => NamespaceTerminating,
                "quota" => Quota,
                "policy-denied" | "webhook-down" => Admission,
                "conflict" | "not-owned" => Conflict,
                "immutable-field" | "shrunk-volume" => Immutable,
                "hook-failed-install" | "hook-failed-upgrade" | "hook-timeout" => HookFailed,
                "unknown-kind" => UnknownKind,
                "invalid-value" | "misspelt" | "misspelt-unchecked-by-helm" | "misspelt-upgrade" => InvalidObject,
                "wait-timeout" => Timeout,
                "apiserver-refused" | "kubeconfig-missing" | "untrusted-apiserver" => ApiUnavailable,
                // Stopping is told by its cause, not by its words; and the last two are commands that are never run.
                "namespace-not-found" | "sigterm" | "get-metadata-not-found" | "rollback-not-found" => Other,
                _ => panic!("{name} has no row"),
            };
            let (failure, sentence) = classify(verb, &std::fs::read_to_string(&path).unwrap());
            assert_eq!(failure, expected, "{name}");
            assert!(!sentence.starts_with("Error") && !sentence.contains("level="), "{name}: {sentence}");
        }
    }

    #[test]
    fn what_only_one_command_says() {
        let absent = "Error: uninstall: Release not loaded: x: release: not found";
        assert_eq!(classify(Verb::Uninstall, absent).0, HelmFailure::NotFound);
        assert_eq!(classify(Verb::Upgrade, absent).0, HelmFailure::Other);
        let chart = "Error: path \"/cache/x.tgz\" not found";
        assert_eq!(classify(Verb::Upgrade, chart).0, HelmFailure::ChartNotFound);
    }

    #[test]
    fn the_sentence_is_helms_own() {
        let (_, sentence) = classify(
            Verb::Upgrade,
            "level=WARN msg=\"upgrade failed\"\nError: UPGRADE FAILED: values don't meet\n- at '/replicas': got string\n",
        );
        assert_eq!(sentence, "values don't meet - at '/replicas': got string");
        assert_eq!(classify(Verb::Upgrade, "").1, "helm failed without a word");
    }

    #[test]
    fn objects_that_uninstall_skipped_are_named() {
        let stdout = "These resources were kept due to the resource policy:\n[PersistentVolumeClaim] data\n\n\
            1 resource(s) were not deleted because they are not owned by this release:\n[Service] web\n\n\
            1 resource(s) were not deleted because their ownership could not be verified:\n[Ingress] web: ingresses is forbidden\n\n\
            release \"x\" uninstalled\n";
        assert_eq!(left_behind(stdout), ["Service/web", "Ingress/web"]);
        assert_eq!(left_behind("release \"x\" uninstalled\n"), Vec::<String>::new());
    }
}
