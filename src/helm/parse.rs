//! What helm's standard error means, as one table (pure).
//!
//! The exit code of helm is 0 or 1, so its words are all there is. They come second: what a release is, Helm's storage
//! tells; the words say why.

use super::{
    command::Verb,
    sentence::{error_text, sentence},
};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelmFailure {
    /// Another install, upgrade or rollback holds the release, or has just made the revision this one was to make.
    Locked,
    NotFound,
    /// The release has revisions, none of which was ever deployed or failed: an uninstall was interrupted.
    NoDeployedReleases,
    ChartNotFound,
    /// The repository cannot be reached, or answers something that is not a repository or a chart.
    RepositoryUnavailable,
    /// The chart cannot be loaded, its templates fail, or its schema refuses the values.
    ChartInvalid,
    /// The API server refused a request for lack of permission.
    Forbidden {
        /// Verb and resource as in RBAC; empty when the message has none.
        verb: String,
        resource: String,
    },
    NamespaceTerminating,
    /// A quota or a limit range refused an object.
    Quota,
    /// An admission plugin or webhook refused an object, or could not be asked.
    Admission,
    /// An object of the release, or a field of one, belongs to another release or field manager.
    Conflict,
    /// A field was to be changed that can only be set once.
    Immutable,
    HookFailed,
    UnknownKind,
    InvalidObject,
    ReleaseTooLarge,
    Timeout,
    /// The API server cannot be reached, or cannot answer now.
    ApiUnavailable,
    /// Helm hit the memory or file size limit it was started with.
    ResourceLimit,
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
            "cannot reuse a name that is still in use", // install.go: another Helm client installed just now
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
    // A pull speaks to the repository alone: here everything about the network is the repository's. An index that is
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
/// It exits with 0 all the same: for an object that it takes for another release's, and for an object that it could not even read
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
mod tests;
