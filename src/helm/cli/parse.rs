//! Classifies helm's standard error with a table (pure).
//!
//! helm exits with 0 or 1, so its words are the only source of the reason. They never decide the state of a release: Helm's storage
//! does.

use super::{
    command::Verb::{self, Pull, Uninstall, Upgrade},
    message::{error_text, summarize},
};
use HelmFailure::*;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum HelmFailure {
    /// Another install, upgrade or rollback holds the release, or has just created the revision that this run was to create.
    Locked,
    NotFound,
    /// All revisions of the release were neither deployed nor failed: an uninstall was interrupted.
    NoDeployedReleases,
    ChartNotFound,
    /// The repository cannot be reached, or its response is not a repository or a chart.
    RepositoryUnavailable,
    /// The chart's signature is missing, of another key, or of another archive.
    SignatureInvalid,
    /// The chart cannot be loaded, its templates fail, or its schema rejects the values.
    ChartInvalid,
    /// The API server refused a request for lack of a right; verb and resource as in RBAC, empty if the message does not contain them.
    Forbidden {
        verb: String,
        resource: String,
    },
    NamespaceTerminating,
    /// A quota or a limit range refused an object.
    Quota,
    /// An admission plugin or webhook refused an object, or could not be reached.
    Admission,
    /// An object of the release, or one of its fields, belongs to another release or field manager.
    Conflict,
    /// An immutable field would change.
    Immutable,
    HookFailed,
    /// An object of the release could not be deleted; helm does not say which, or why.
    NotDeleted,
    UnknownKind,
    InvalidObject,
    ReleaseTooLarge,
    Timeout,
    /// The API server cannot be reached, or cannot respond now.
    ApiUnavailable,
    /// helm hit its memory or file size limit.
    ResourceLimit,
    Other,
}

/// A class, the only command that it applies to (`None`: all), and the text to find; `*` matches any text.
type FailureRule = (HelmFailure, Option<Verb>, &'static str);

const FORBIDDEN: HelmFailure = Forbidden { verb: String::new(), resource: String::new() };

/// The first matching row wins, so specific rows come first; comments point out where the order matters. Next to each text is its
/// source in helm 4.3.1 and Kubernetes 1.36.
const TABLE: &[FailureRule] = &[
    // Helm's own messages about its state are unambiguous.
    (Locked, None, "another operation (install/upgrade/rollback) is in progress"), // action.go errPending
    (Locked, None, "release: already exists"), // driver.go: lost the race for the Secret
    (Locked, None, "cannot reuse a name that is still in use"), // install.go: another Helm client installed just now
    // The whole phrase, because it counts as success: purging the history can fail with "release: not found", too.
    (NotFound, Some(Uninstall), "uninstall: Release not loaded: *: release: not found"), // uninstall.go
    (NoDeployedReleases, None, "has no deployed releases"),                              // driver.go
    (ResourceLimit, None, "fatal error: out of memory"),
    (ResourceLimit, None, "runtime: out of memory"),
    (ResourceLimit, None, "cannot allocate memory"),
    (ResourceLimit, None, "SIGXFSZ"),
    (ResourceLimit, None, "file too large"),
    (SignatureInvalid, Some(Pull), "failed to fetch provenance "), // chart_downloader.go: whatever happened
    (SignatureInvalid, Some(Pull), "could not load provenance file "), // chart_downloader.go
    (SignatureInvalid, Some(Pull), "failed to load keyring: "),    // chart_downloader.go
    (SignatureInvalid, Some(Pull), "signature block not found"),   // provenance/sign.go
    (SignatureInvalid, Some(Pull), "message block must have at least two parts"), // provenance/sign.go
    (SignatureInvalid, Some(Pull), "provenance does not contain a SHA for a file"), // provenance/sign.go
    (SignatureInvalid, Some(Pull), "sha256 sum does not match for "), // provenance/sign.go
    (SignatureInvalid, Some(Pull), "openpgp: "),
    // A pull only talks to the repository, so network errors are the repository's. A missing index comes before a missing chart,
    // because both are a 404.
    (RepositoryUnavailable, Some(Pull), "is not a valid chart repository or cannot be reached"), // repo_add.go
    (ChartNotFound, Some(Pull), "no chart version found"),
    (ChartNotFound, Some(Pull), "no chart name found"),
    (ChartNotFound, Some(Pull), "failed to fetch * : 404 "), // httpgetter.go
    (ChartNotFound, Some(Pull), ": not found"),              // oras: the tag
    (ChartNotFound, Some(Pull), "unable to locate any tags in provided repository"),
    (ChartNotFound, Some(Pull), "could not locate a version matching provided version string"),
    (ChartNotFound, Some(Upgrade), "path \"*\" not found"), // install.go LocateChart
    (ChartInvalid, Some(Pull), "invalid digest length"),    // chart_downloader.go: the index's digest is no SHA-256
    (ChartInvalid, Some(Pull), "encoding/hex: "),
    (RepositoryUnavailable, Some(Pull), "failed to fetch "), // httpgetter.go: any status but 200
    (RepositoryUnavailable, Some(Pull), "error loading "),   // index.go
    (RepositoryUnavailable, Some(Pull), "no API version specified"), // index.go
    (RepositoryUnavailable, Some(Pull), "empty index.yaml file"), // index.go
    (RepositoryUnavailable, Some(Pull), "has no downloadable URLs"), // chart_downloader.go
    (RepositoryUnavailable, Some(Pull), "Get \""),           // net/http: no answer
    (RepositoryUnavailable, Some(Pull), "Head \""),          // net/http
    (RepositoryUnavailable, Some(Pull), "response status code "), // oras
    (RepositoryUnavailable, Some(Pull), "basic credential not found"), // oras: the registry demands a login
    (RepositoryUnavailable, Some(Pull), "missing registry client: "), // pull.go: unusable certificates
    (RepositoryUnavailable, Some(Pull), "dial tcp"),
    (RepositoryUnavailable, Some(Pull), "connection re"),
    (RepositoryUnavailable, Some(Pull), "EOF"),
    (RepositoryUnavailable, Some(Pull), "tls: "),
    (RepositoryUnavailable, Some(Pull), "x509: "),
    (RepositoryUnavailable, Some(Pull), "repo not found"), // chart_downloader.go: an index points to a file
    (RepositoryUnavailable, Some(Pull), "scheme \""),
    // Before Conflict, Timeout and ApiUnavailable, because the failure of a hook or webhook quotes its cause.
    (HookFailed, None, "failed pre-install:"),       // install.go
    (HookFailed, None, "failed post-install:"),      // install.go
    (HookFailed, None, "pre-upgrade hooks failed:"), // upgrade.go
    (HookFailed, None, "post-upgrade hooks failed:"),
    // Not for tests, which are hooks: there only the cause shows whether one has failed or could not be run.
    (HookFailed, Some(Upgrade), "warning: Hook "), // hooks.go
    (HookFailed, Some(Uninstall), "warning: Hook "),
    (NotDeleted, Some(Uninstall), "failed to delete release: "), // uninstall.go
    (Admission, None, "admission webhook \""),
    (Admission, None, "failed calling webhook"),
    (Admission, None, "failed to call webhook"),
    (NamespaceTerminating, None, "because it is being terminated"), // apiserver, admission/plugin/namespace/lifecycle
    // All of these read "… is forbidden: …"; a missing right is only one of the reasons.
    (Quota, None, "exceeded quota:"),
    (Quota, None, "failed quota:"),
    (Quota, None, "maximum cpu usage"),
    (Quota, None, "maximum memory usage"),
    (Quota, None, "minimum cpu usage"),
    (Quota, None, "minimum memory usage"),
    (FORBIDDEN, None, "forbidden: User \""),
    (FORBIDDEN, None, "attempting to grant RBAC permissions not currently held"), // registry/rbac/escalation_check.go
    (FORBIDDEN, None, "Unauthorized"),
    (FORBIDDEN, None, "the server has asked for the client to provide credentials"),
    (Admission, None, "is forbidden: "), // pod security and other plugins
    // Before ChartInvalid: a `lookup` in a template fails because of the API server.
    (ApiUnavailable, None, "error calling lookup: "),
    // Before the other messages of the API server, because a template's error may quote anything.
    (ChartInvalid, None, "parse error at ("),                    // engine.go
    (ChartInvalid, None, "parse error in ("),                    // engine.go
    (ChartInvalid, None, "execution error at ("),                // engine.go: `fail` and `required`
    (ChartInvalid, None, "execution error in ("),                // engine.go
    (ChartInvalid, None, "executing \"*\" at <"),                // text/template
    (ChartInvalid, None, "error calling "),                      // text/template
    (ChartInvalid, None, "cannot parse template"),               // engine.go
    (ChartInvalid, None, "rendering template failed"),           // engine.go
    (ChartInvalid, None, "unable to execute template"),          // engine.go
    (ChartInvalid, None, "error during tpl function execution"), // engine.go
    (ChartInvalid, None, "don't meet the specifications of the schema"), // values.go
    (ChartInvalid, None, "unable to validate schema"),           // jsonschema.go
    (ChartInvalid, None, "YAML parse error on "),                // releaseutil manifest_sorter.go
    (ChartInvalid, None, "error converting YAML to JSON"),       // sigs.k8s.io/yaml
    (ChartInvalid, None, "error parsing YAML"),
    (ChartInvalid, None, "cannot load "),     // load.go: Chart.yaml, values.yaml …
    (ChartInvalid, None, "failed to parse "), // options.go: the values
    (ChartInvalid, None, "does not appear to be a "), // archive.go
    (ChartInvalid, None, "unable to load chart archive"), // load.go
    (ChartInvalid, None, "chart requires kubeVersion"), // action.go
    (ChartInvalid, None, "chart exceeds maximum decompressed size"), // budget.go
    (ChartInvalid, None, "decompressed chart is larger than"), // archive.go
    (ChartInvalid, None, "chart illegally "), // archive.go
    (ChartInvalid, None, "chart contains illegally named files"), // archive.go
    (ChartInvalid, None, "chart yaml not in base directory"), // archive.go
    (ChartInvalid, None, "Chart.yaml file is missing"), // load.go
    (ChartInvalid, None, "unable to detect chart version"), // load.go
    (ChartInvalid, None, "unsupported chart version"), // load.go
    (ChartInvalid, None, "error unpacking "), // load.go
    (ChartInvalid, None, "found in Chart.yaml, but missing in charts/ directory"), // install.go
    (ChartInvalid, None, "chart dependencies processing failed"), // install.go
    (ChartInvalid, None, "validation: "),     // chart/v2/errors.go
    (ChartInvalid, None, "not installable"),  // action.go: a library chart
    (UnknownKind, None, "no matches for kind"),
    (UnknownKind, None, "ensure CRDs are installed first"),
    (UnknownKind, None, "contains removed kubernetes api(s)"),
    (Conflict, None, "Apply failed with "),
    (Conflict, None, "cannot be imported into the current release"),
    (Conflict, None, "conflict occurred while applying"),
    // Before InvalidObject, because a change of an immutable field is also reported as an invalid object.
    (Immutable, None, "field is immutable"),
    (Immutable, None, "Forbidden: updates to statefulset spec"),
    (Immutable, None, "is immutable after creation"),
    (Immutable, None, "may not change once set"),
    (Immutable, None, "can not be less than previous value"),
    (Immutable, None, "can not be less than status.capacity"),
    (Immutable, None, "at least one field was changed: apiVersion, kind or name"), // kube/client.go
    // Before InvalidObject, because a Secret that is too large is an invalid Secret.
    (ReleaseTooLarge, None, "Too long: may not be more than 1048576"),
    (ReleaseTooLarge, None, "Too long: must have at most 1048576"),
    (ReleaseTooLarge, None, "request is too large"),
    (ReleaseTooLarge, None, "Request entity too large"),
    (InvalidObject, None, "strict decoding error"),
    (InvalidObject, None, "unknown field \""),
    (InvalidObject, None, "error validating data"),
    (InvalidObject, None, "ValidationError("),
    (InvalidObject, None, "\" is invalid: "),
    (InvalidObject, None, "failed to create typed patch object"), // server-side apply
    (InvalidObject, None, "in body must be of type"),
    // Before Timeout: these are errors of the API server, though some mention time.
    (ApiUnavailable, None, "kubernetes cluster unreachable"), // kube/client.go: whatever happened to the first request
    (ApiUnavailable, None, "the API server cannot be reached: "), // gateway/answer.rs
    (ApiUnavailable, None, "connection refused"),
    (ApiUnavailable, None, "connection reset by peer"),
    (ApiUnavailable, None, "no route to host"),
    (ApiUnavailable, None, "no such host"),
    (ApiUnavailable, None, "i/o timeout"),
    (ApiUnavailable, None, "TLS handshake timeout"),
    (ApiUnavailable, None, "http2: "),
    (ApiUnavailable, None, "EOF"),
    (ApiUnavailable, None, "tls: "),
    (ApiUnavailable, None, "x509: "),
    (ApiUnavailable, None, "Too many requests"),
    (ApiUnavailable, None, "too many requests"),
    (ApiUnavailable, None, "etcdserver: "),
    (ApiUnavailable, None, "apiserver is shutting down"),
    (ApiUnavailable, None, "the server is currently unable to handle the request"),
    (ApiUnavailable, None, "the server was unable to return a response in the time allotted"),
    (ApiUnavailable, None, "Internal error occurred"),
    (ApiUnavailable, None, "could not get server version from Kubernetes"),
    (ApiUnavailable, None, "could not get apiVersions from Kubernetes"),
    (Timeout, None, "context deadline exceeded"),
    (Timeout, None, "timed out waiting for the condition"),
    (Timeout, None, "Timeout: request did not complete"),
    (Timeout, None, "Client.Timeout exceeded"),
];

/// Says what helm's message means, if its reader could not know what to do: the text to find, as in [`TABLE`], and a sentence. The first
/// matching row wins.
const HINTS: &[(&str, &str)] = &[
    ("failed to fetch provenance ", "the chart has no signature, or it cannot be fetched"),
    ("could not load provenance file ", "the chart has no signature beside it"),
    ("openpgp: signature made by unknown entity", "the chart is signed with a key that is not in --chart-keyring"),
    ("sha256 sum does not match for ", "the archive is not the one that was signed"),
    ("failed to load keyring: ", "--chart-keyring is not a keyring; export it with gpg --export"),
    ("proxyconnect ", "the proxy in HTTPS_PROXY cannot be reached"),
    // net/http: what follows the status code in a proxy's answer to CONNECT.
    ("\": Proxy Authentication Required", "the proxy in HTTPS_PROXY demands a login"),
    ("\": Forbidden", "the proxy in HTTPS_PROXY refuses the connection"),
    ("basic credential not found", "the registry demands credentials, which --chart-repository-credentials names"),
    ("failed to fetch * : 401 ", WRONG_LOGIN),
    ("response status code 401", WRONG_LOGIN),
    ("failed to fetch * : 403 ", NO_RIGHT),
    ("response status code 403", NO_RIGHT),
    (
        "x509: certificate signed by unknown authority",
        "the certificate of the chart repository is of an unknown authority, which ca.crt of --chart-repository-credentials names",
    ),
    (
        "x509: certificate has expired or is not yet valid",
        "the certificate of the chart repository has expired, or is not valid yet",
    ),
    ("x509: ", "the certificate of the chart repository is not its own, or not valid"),
    (
        "remote error: tls: *certificate",
        "the chart repository demands a client certificate that it accepts: tls.crt and tls.key of --chart-repository-credentials",
    ),
    ("can't create TLS config", "ca.crt, or tls.crt with tls.key, of --chart-repository-credentials cannot be used"),
];
const WRONG_LOGIN: &str =
    "the chart repository refuses the user or password, or has got none: see --chart-repository-credentials";
const NO_RIGHT: &str =
    "the chart repository denies the operator the chart: see the rights of --chart-repository-credentials";

/// Returns the class of a failure and a summary of it, from helm's standard error.
pub(crate) fn classify(verb: Verb, stderr: &str) -> (HelmFailure, String) {
    let error = error_text(stderr);
    let failure = TABLE
        .iter()
        .find(|(_, only, text)| only.is_none_or(|only| only == verb) && occurs(text, &error))
        .map_or(Other, |(failure, ..)| failure.clone());
    let failure = if failure == FORBIDDEN { forbidden(&error) } else { failure };
    let hint = HINTS.iter().find(|(text, _)| verb == Pull && occurs(text, &error));
    let sentence = hint.map_or_else(|| summarize(&error), |(_, hint)| format!("{hint}: {}", summarize(&error)));
    (failure, if sentence.is_empty() { "helm failed without a message".to_owned() } else { sentence })
}

/// Returns true if the parts of a text between its `*`s occur in this order.
fn occurs(text: &str, error: &str) -> bool {
    text.split('*').try_fold(error, |rest, part| rest.split_once(part).map(|(_, rest)| rest)).is_some()
}

/// Parses `… User "u" cannot VERB resource "RESOURCE" in API group "GROUP" …` of Kubernetes' RBAC authorizer.
fn forbidden(error: &str) -> HelmFailure {
    let part = |before: &str, after: &str| {
        let (_, rest) = error.split_once(before)?;
        rest.split_once(after).map(|(part, _)| summarize(part))
    };
    Forbidden {
        verb: part("\" cannot ", " ").unwrap_or_default(),
        resource: part(" resource \"", "\"").unwrap_or_default(),
    }
}

/// Objects of the release that `helm uninstall` did not delete, as `Kind/name`.
///
/// It exits with 0 nevertheless, both for objects that it attributes to another release and for objects that it could not even read
/// (`deleteRelease` in `action/uninstall.go`). Objects kept by the chart's `helm.sh/resource-policy` are not included.
pub(crate) fn left_behind(stdout: &str) -> Vec<String> {
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
mod tests;
