use super::*;

/// A class, and helm's messages in addition to the fixtures; line breaks are written as `\n`.
const SAID: &str = r#"
Locked| Error: UPGRADE FAILED: release: already exists
Other| Error: uninstallation completed with 1 error(s): uninstall: Failed to purge the release: release: not found
ChartInvalid| Error: UPGRADE FAILED: parse error at (x/templates/a.yaml:3): function "nope" not defined
ChartInvalid| Error: UPGRADE FAILED: template: x/templates/a.yaml:1:3: executing "x/templates/a.yaml" at <fail>: error calling fail: context deadline exceeded
ChartInvalid| Error: UPGRADE FAILED: YAML parse error on x/templates/a.yaml: error converting YAML to JSON: yaml: line 2: did not find
ChartInvalid| Error: INSTALLATION FAILED: chart requires kubeVersion: >=1.99.0 which is incompatible with Kubernetes v1.36.3
Forbidden| Error: UPGRADE FAILED: Unauthorized
Forbidden| Error: failed to create resource: server-side apply failed for object t/x rbac.authorization.k8s.io/v1, Kind=Role: roles.rbac.authorization.k8s.io "x" is forbidden: user "system:serviceaccount:t:d" (groups=["system:authenticated"]) is attempting to grant RBAC permissions not currently held: {APIGroups:["*"], Resources:["*"], Verbs:["*"]}
Quota| Error: pods "x" is forbidden: [maximum cpu usage per Container is 1, but limit is 2]
Admission| Error: pods "x" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true
Admission| Error: admission webhook "policy.example.com" denied the request: no
Admission| Error: Internal error occurred: failed calling webhook "p.example.com": failed to call webhook: Post "https://p": context deadline exceeded
Immutable| Error: UPGRADE FAILED: server-side apply failed for object t/x apps/v1, Kind=Deployment: Deployment.apps "x" is invalid: spec.selector: Invalid value: {}: field is immutable
HookFailed| Error: failed post-install: resource Job/t/x not ready. status: InProgress, message: context deadline exceeded
InvalidObject| Error: Deployment in version "v1" cannot be handled as a Deployment: strict decoding error: unknown field "spec.foo"
ReleaseTooLarge| Error: create: failed to create: Secret "sh.helm.release.v1.x.v1" is invalid: data: Too long: may not be more than 1048576 bytes
ReleaseTooLarge| Error: create: failed to create: etcdserver: request is too large
ApiUnavailable| Error: UPGRADE FAILED: etcdserver: leader changed
ApiUnavailable| Error: x/templates/a.yaml:1:4\n  executing "x/templates/a.yaml" at <lookup "v1" "Secret" "t" "x">:\n    error calling lookup: Get "https://127.0.0.1:1/api/v1": EOF
ChartInvalid| Error: failed to parse -: cannot unmarshal yaml document: error converting YAML to JSON: yaml: line 1: did not find expected node content
ResourceLimit| fatal error: out of memory allocating heap arena metadata\n\nruntime stack:\nruntime.throw
Other| Error: something new
Other|
"#;

const SAID_BY_PULL: &str = r#"
RepositoryUnavailable| Error: failed to fetch https://example.com/nextcloud-5.5.2.tgz : 503 Service Unavailable
RepositoryUnavailable| Error: Get "https://example.com/x.tgz": context deadline exceeded (Client.Timeout exceeded while awaiting headers)
RepositoryUnavailable| Error: repo not found
SignatureInvalid| Error: signature block not found
SignatureInvalid| Error: sha256 sum does not match for nextcloud-5.5.2.tgz: "sha256:0a" != "sha256:0b"
SignatureInvalid| Error: openpgp: invalid signature: RSA verification failure
SignatureInvalid| Error: provenance does not contain a SHA for a file named "nextcloud-5.5.2.tgz"
"#;

const SAID_BY_TEST: &str = r#"
Other| warning: Hook test x/templates/test.yaml failed: pod acme-check failed
Timeout| warning: Hook test x/templates/test.yaml failed: resource Pod/t/acme-check not ready. status: InProgress, message: context deadline exceeded
Forbidden patch pods| warning: Hook test x/templates/test.yaml failed: server-side apply failed for object t/acme-check /v1, Kind=Pod: pods "acme-check" is forbidden: User "system:serviceaccount:t:d" cannot patch resource "pods" in API group "" in the namespace "t"
Admission| warning: Hook test x/templates/test.yaml failed: server-side apply failed for object t/acme-check /v1, Kind=Pod: pods "acme-check" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot != true
ApiUnavailable| warning: Hook test x/templates/test.yaml failed: the API server cannot be reached: connection refused
"#;

fn class(failure: &HelmFailure) -> String {
    match failure {
        HelmFailure::Forbidden { verb, resource } => format!("Forbidden {verb} {resource}").trim().to_owned(),
        other => format!("{other:?}"),
    }
}

#[test]
fn what_each_command_says() {
    for (rows, verbs) in [
        (SAID, &[Verb::Upgrade, Verb::Uninstall][..]),
        (SAID_BY_PULL, &[Verb::Pull]),
        ("NotFound|Error: uninstall: Release not loaded: x: release: not found", &[Verb::Uninstall]),
        ("Other|Error: uninstall: Release not loaded: x: release: not found", &[Verb::Upgrade]),
        (SAID_BY_TEST, &[Verb::Test]),
        ("ChartNotFound|Error: path \"/cache/x.tgz\" not found", &[Verb::Upgrade]),
    ] {
        for row in rows.trim().lines() {
            let (expected, stderr) = row.split_once('|').unwrap();
            let stderr = stderr.trim_start().replace(r"\n", "\n");
            for verb in verbs {
                assert_eq!(class(&classify(*verb, &stderr).0), expected, "{stderr}");
            }
        }
    }
    assert_eq!(classify(Verb::Upgrade, "").1, "helm failed without a message");
}

/// The sentence before helm's own words, and fixtures.
const HINTED: &str = "
the chart has no signature, or it cannot be fetched| pull-unsigned oci-unsigned
the chart has no signature beside it| pull-verify-unsigned
the chart is signed with a key that is not in --chart-keyring| pull-other-key oci-other-key
--chart-keyring is not a keyring| pull-bad-keyring
the proxy in HTTPS_PROXY cannot be reached| pull-proxy-away oci-proxy-away
the proxy in HTTPS_PROXY demands a login| pull-proxy-407 oci-proxy-407
the proxy in HTTPS_PROXY refuses the connection| pull-proxy-403 oci-proxy-403
the registry demands credentials| oci-without-login
the chart repository refuses the user or password| pull-wrong-password oci-wrong-password
the chart repository denies the operator the chart| pull-403 oci-403
the certificate of the chart repository is of an unknown authority| pull-unknown-authority oci-unknown-authority
the certificate of the chart repository has expired| pull-expired oci-expired
the chart repository demands a client certificate| pull-without-certificate pull-other-certificate oci-other-certificate
ca.crt, or tls.crt with tls.key,| pull-bad-authority oci-bad-key
";

#[test]
fn what_a_reader_could_not_know_is_said_first() {
    for row in HINTED.trim().lines() {
        let (hint, names) = row.split_once('|').unwrap();
        for name in names.split_whitespace() {
            let (failure, sentence) = classify(Verb::Pull, &fixture(name));
            assert!(sentence.starts_with(hint) && sentence.contains(": "), "{name}: {sentence}");
            let is_of_signature = hint.contains("signature") || hint.contains("signed") || hint.contains("keyring is");
            let expected = if is_of_signature { SignatureInvalid } else { RepositoryUnavailable };
            assert_eq!(failure, expected, "{name}");
        }
    }
    assert!(classify(Verb::Pull, &fixture("pull-503")).1.starts_with("looks like "));
}

fn fixture(name: &str) -> String {
    let path = format!("{}/e2e/fixtures/helm-4.3.1/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// A class, and its fixtures: real errors of the pinned helm, captured against a real API server. A stopped run is recognized by its
/// cause rather than its words, and the last two are commands that are never run.
const FIXTURES: &str = "
Locked| in-progress-after-sigkill in-progress-while-installing in-progress-while-upgrading name-in-use
NotFound| uninstall-not-found
NoDeployedReleases| no-deployed-releases upgrade-not-found
ChartNotFound| archive-missing oci-missing-chart oci-missing-version pull-archive-404 pull-missing-chart pull-missing-version
RepositoryUnavailable| oci-not-https oci-refused pull-503 pull-index-404 pull-index-html pull-no-such-host pull-refused pull-slow
RepositoryUnavailable| pull-proxy-away oci-proxy-away pull-proxy-407 oci-proxy-407 pull-proxy-403 oci-proxy-403 oci-without-login pull-wrong-password oci-wrong-password pull-403 oci-403
RepositoryUnavailable| pull-unknown-authority oci-unknown-authority pull-expired oci-expired pull-without-certificate pull-other-certificate oci-other-certificate pull-bad-authority oci-bad-key
SignatureInvalid| pull-unsigned oci-unsigned pull-verify-unsigned pull-other-key oci-other-key pull-bad-keyring
ChartInvalid| archive-html archive-truncated render-fail render-fail-upgrade render-null-map schema
Forbidden list secrets| forbidden-storage
Forbidden get networkpolicies| forbidden-get
Forbidden patch networkpolicies| forbidden-write
Forbidden| unauthorized
NamespaceTerminating| namespace-terminating
Quota| quota
Admission| policy-denied webhook-down
Conflict| conflict not-owned
Immutable| immutable-field shrunk-volume
HookFailed| hook-failed-install hook-failed-upgrade hook-timeout
UnknownKind| unknown-kind
InvalidObject| invalid-value misspelt misspelt-unchecked-by-helm misspelt-upgrade
Timeout| wait-timeout
ApiUnavailable| apiserver-refused kubeconfig-missing untrusted-apiserver
Other| namespace-not-found sigterm get-metadata-not-found rollback-not-found
";

#[test]
fn every_fixture() {
    let fixtures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e/fixtures/helm-4.3.1");
    let files = std::fs::read_dir(&fixtures).unwrap().map(|file| file.unwrap().path());
    // The others are standard output.
    for path in files.filter(|path| path.extension().is_some_and(|extension| extension == "txt")) {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let verbs: &[Verb] = match name {
            _ if name.starts_with("pull-") || name.starts_with("oci-") => &[Verb::Pull],
            _ if name.starts_with("uninstall-") => &[Verb::Uninstall],
            "archive-missing" => &[Verb::Upgrade],
            _ => &[Verb::Upgrade, Verb::Uninstall],
        };
        let is_of = |row: &&str| row.split(' ').any(|fixture| fixture == name);
        let row = FIXTURES.lines().find(is_of).unwrap_or_else(|| panic!("{name} has no row"));
        let (expected, _) = row.split_once('|').unwrap();
        let stderr = std::fs::read_to_string(&path).unwrap();
        for verb in verbs {
            let (failure, sentence) = classify(*verb, &stderr);
            assert_eq!(class(&failure), expected, "{name}");
            assert!(!sentence.starts_with("Error") && !sentence.contains("level="), "{name}: {sentence}");
        }
    }
}

#[test]
fn objects_that_uninstall_skipped_are_named() {
    let stdout = include_str!("../../../../e2e/fixtures/helm-4.3.1/uninstall-left-behind.out");
    let left = "Service/shop-nextcloud RoleBinding/shop-nextcloud Role/shop-nextcloud NetworkPolicy/shop-redis";
    assert_eq!(left_behind(stdout).join(" "), left);
    assert_eq!(left_behind("release \"x\" uninstalled\n"), Vec::<String>::new());
}
