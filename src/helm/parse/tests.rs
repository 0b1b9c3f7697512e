use super::*;

fn forbidden_to(verb: &str, resource: &str) -> HelmFailure {
    HelmFailure::Forbidden { verb: verb.to_owned(), resource: resource.to_owned() }
}

/// A class, and what helm says; its line breaks are written as `\n`.
const SAID: &str = r#"
Locked| Error: UPGRADE FAILED: another operation (install/upgrade/rollback) is in progress
Locked| Error: UPGRADE FAILED: release: already exists
Locked| Error: release name check failed: cannot reuse a name that is still in use
Other| Error: uninstallation completed with 1 error(s): uninstall: Failed to purge the release: release: not found
NoDeployedReleases| Error: UPGRADE FAILED: "x" has no deployed releases
ChartInvalid| Error: UPGRADE FAILED: execution error at (nextcloud/templates/deployment.yaml:3:4): a host is required
ChartInvalid| Error: UPGRADE FAILED: parse error at (x/templates/a.yaml:3): function "nope" not defined
ChartInvalid| Error: UPGRADE FAILED: template: x/templates/a.yaml:1:3: executing "x/templates/a.yaml" at <fail>: error calling fail: context deadline exceeded
ChartInvalid| Error: UPGRADE FAILED: YAML parse error on x/templates/a.yaml: error converting YAML to JSON: yaml: line 2: did not find
ChartInvalid| Error: UPGRADE FAILED: values don't meet the specifications of the schema(s) in the following chart(s):\nx:\n- at '/replicas': got string, want integer
ChartInvalid| Error: INSTALLATION FAILED: chart requires kubeVersion: >=1.99.0 which is incompatible with Kubernetes v1.36.3
Forbidden list secrets| Error: query: failed to query with labels: secrets is forbidden: User "system:serviceaccount:a:b" cannot list resource "secrets" in API group "" in the namespace "t"
Forbidden patch deployments| Error: server-side apply failed for object t/x apps/v1, Kind=Deployment: deployments.apps "x" is forbidden: User "u" cannot patch resource "deployments" in API group "apps" in the namespace "t"
Forbidden| Error: UPGRADE FAILED: Unauthorized
NamespaceTerminating| Error: create: failed to create: secrets "sh.helm.release.v1.x.v1" is forbidden: unable to create new content in namespace t because it is being terminated
Quota| Error: server-side apply failed for object t/x /v1, Kind=Pod: pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1
Quota| Error: pods "x" is forbidden: [maximum cpu usage per Container is 1, but limit is 2]
Admission| Error: pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true
Admission| Error: admission webhook "policy.example.com" denied the request: no
Admission| Error: Internal error occurred: failed calling webhook "p.example.com": failed to call webhook: Post "https://p": context deadline exceeded
Conflict| Error: conflict occurred while applying object t/x apps/v1, Kind=Deployment: Apply failed with 1 conflict: conflict with "kubectl" using apps/v1: .spec.replicas
Conflict| Error: unable to continue with install: Service "x" in namespace "t" exists and cannot be imported into the current release: invalid ownership metadata; label validation error
Immutable| Error: UPGRADE FAILED: cannot patch "x" with kind StatefulSet: StatefulSet.apps "x" is invalid: spec: Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden
Immutable| Error: UPGRADE FAILED: server-side apply failed for object t/x apps/v1, Kind=Deployment: Deployment.apps "x" is invalid: spec.selector: Invalid value: {}: field is immutable
HookFailed| Error: UPGRADE FAILED: pre-upgrade hooks failed: 1 error occurred: job x failed: BackoffLimitExceeded
HookFailed| Error: failed post-install: resource Job/t/x not ready. status: InProgress, message: context deadline exceeded
UnknownKind| Error: unable to build kubernetes objects from release manifest: resource mapping not found for name: "x" namespace: "" from "": no matches for kind "Foo" in version "example.com/v1"\nensure CRDs are installed first
InvalidObject| Error: server-side apply failed for object t/x apps/v1, Kind=Deployment: failed to create typed patch object (t/x; apps/v1, Kind=Deployment): .spec.foo: field not declared in schema
InvalidObject| Error: Deployment in version "v1" cannot be handled as a Deployment: strict decoding error: unknown field "spec.foo"
InvalidObject| Error: Service "x" is invalid: spec.ports: Required value
ReleaseTooLarge| Error: create: failed to create: Secret "sh.helm.release.v1.x.v1" is invalid: data: Too long: may not be more than 1048576 bytes
ReleaseTooLarge| Error: create: failed to create: etcdserver: request is too large
ApiUnavailable| Error: kubernetes cluster unreachable: Get "https://127.0.0.1:1/version": dial tcp 127.0.0.1:1: connect: connection refused
ApiUnavailable| Error: UPGRADE FAILED: etcdserver: leader changed
ApiUnavailable| Error: x/templates/a.yaml:1:4\n  executing "x/templates/a.yaml" at <lookup "v1" "Secret" "t" "x">:\n    error calling lookup: Get "https://127.0.0.1:1/api/v1": EOF
Forbidden| Error: kubernetes cluster unreachable: the server has asked for the client to provide credentials
ChartInvalid| Error: x/templates/a.yaml:1:13\n  executing "x/templates/a.yaml" at <.Values.x.y.z>:\n    nil pointer evaluating interface {}.y
ChartInvalid| Error: file '/cache/x.tgz' does not appear to be a gzipped archive; got 'text/plain'
ChartInvalid| Error: failed to parse -: cannot unmarshal yaml document: error converting YAML to JSON: yaml: line 1: did not find expected node content
Timeout| Error: UPGRADE FAILED: context deadline exceeded
ResourceLimit| fatal error: out of memory allocating heap arena metadata\n\nruntime stack:\nruntime.throw
Other| Error: something new
Other|
"#;

const SAID_BY_PULL: &str = r#"
ChartNotFound| Error: chart "nextcloud" version "9.9.9" not found in https://example.com repository
ChartNotFound| Error: failed to fetch https://example.com/nextcloud-5.5.2.tgz : 404 Not Found
ChartNotFound| Error: failed to perform "FetchReference" on source: 127.0.0.1:5000/charts/x:1.2.3: not found
RepositoryUnavailable| Error: looks like "https://example.com" is not a valid chart repository or cannot be reached: failed to fetch https://example.com/index.yaml : 404 Not Found
RepositoryUnavailable| Error: looks like "http://127.0.0.1:1" is not a valid chart repository or cannot be reached: Get "http://127.0.0.1:1/index.yaml": dial tcp 127.0.0.1:1: connect: connection refused
RepositoryUnavailable| Error: failed to fetch https://example.com/nextcloud-5.5.2.tgz : 503 Service Unavailable
RepositoryUnavailable| Error: Get "https://example.com/x.tgz": context deadline exceeded (Client.Timeout exceeded while awaiting headers)
RepositoryUnavailable| Error: repo not found
RepositoryUnavailable| Error: failed to perform "FetchReference" on source: Get "http://127.0.0.1:1/v2/charts/x/manifests/9.0.0": dial tcp 127.0.0.1:1: connect: connection refused
"#;

fn class(failure: &HelmFailure) -> String {
    match failure {
        HelmFailure::Forbidden { verb, resource } => format!("Forbidden {verb} {resource}").trim().to_owned(),
        other => format!("{other:?}"),
    }
}

#[test]
fn what_each_command_says() {
    for (said, verbs) in [(SAID, &[Verb::Upgrade, Verb::Uninstall][..]), (SAID_BY_PULL, &[Verb::Pull])] {
        for row in said.trim().lines() {
            let (expected, stderr) = row.split_once('|').unwrap();
            let stderr = stderr.trim_start().replace(r"\n", "\n");
            for verb in verbs {
                assert_eq!(class(&classify(*verb, &stderr).0), expected, "{stderr}");
            }
        }
    }
}

/// What the pinned helm really said, captured against a real API server; a new file needs a row here.
#[test]
fn every_fixture() {
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
