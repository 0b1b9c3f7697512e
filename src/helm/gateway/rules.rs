//! Decides what a helm run may request (pure).
//!
//! A release is confined to its own namespace, where RBAC decides, by the ServiceAccount that helm acts as. The gateway also refuses
//! requests that no release needs: subresources, which give access to an object (such as `pods/exec`), deletions of whole
//! collections, and writes to the storage of other releases. A user who may write Secrets in a namespace can still forge a revision
//! there through its labels; such a revision has no effect beyond that namespace.

use axum::http::{Method, Uri};

use crate::{
    helm::{
        cli::command::{Namespace, ReleaseName},
        hosts, storage,
    },
    platform::account::AccountName,
};

/// The release and identity of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunScope {
    pub release: String,
    pub namespace: String,
    /// The ServiceAccount of that namespace that helm acts as, under the API server's name for it. `None`: helm acts as the client
    /// that the gateway forwards with, and may only read.
    pub user: Option<String>,
    /// The only revision that helm may create; `None`: none.
    pub revision: Option<u32>,
}

impl RunScope {
    /// Returns the scope of a run for a release that acts as this account, or as the gateway's own client without one.
    pub(in crate::helm) fn new(
        release: &ReleaseName,
        namespace: &Namespace,
        account: Option<&AccountName>,
        revision: Option<u32>,
    ) -> RunScope {
        RunScope {
            release: release.to_string(),
            namespace: namespace.to_string(),
            user: account.map(|account| account.user(namespace.as_str())),
            revision,
        }
    }

    /// Returns the user that a refusal names, as the API server would.
    fn user_name(&self) -> &str {
        self.user.as_deref().unwrap_or("a plan")
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RunPhase {
    Running,
    /// helm was asked to stop, and may only record its result.
    Stopping,
}

/// A request in the terms of RBAC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ParsedRequest {
    /// Version, discovery and OpenAPI documents.
    Discovery,
    Object(ObjectRequest),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObjectRequest {
    pub verb: &'static str,
    pub group: String,
    /// Without the subresource.
    pub resource: String,
    /// The subresource, such as `status`; empty for the object itself.
    pub subresource: String,
    /// Empty for cluster-scoped objects, and for requests in all namespaces.
    pub namespace: String,
    /// Empty for a collection, and for an object to create.
    pub name: String,
}

impl ObjectRequest {
    pub(crate) fn writes(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }

    /// Returns whether a request of this object may name hosts that are not claimed yet.
    pub(crate) fn names_hosts(&self) -> bool {
        self.writes() && self.verb != "delete" && hosts::is_named_by_resource(&self.group, &self.resource)
    }

    /// Returns a refusal in the API server's words, with the reason.
    pub(crate) fn refusal(&self, scope: &RunScope, why: &str) -> String {
        let ObjectRequest { verb, group, resource, subresource: part, namespace, name } = self;
        let part = if part.is_empty() { String::new() } else { format!("/{part}") };
        let named = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        let place = match namespace.as_str() {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        format!(
            "{resource}{named} is forbidden: User {:?} cannot {verb} resource \"{resource}{part}\" in API group {group:?} {place}: {why}",
            scope.user_name()
        )
    }

    /// Returns true if it is a storage Secret of any release.
    pub(crate) fn is_storage(&self) -> bool {
        self.group.is_empty() && self.resource == "secrets" && self.name.starts_with(storage::PREFIX)
    }
}

impl ParsedRequest {
    /// Parses a request by the rules of Kubernetes (k8s.io/apiserver/pkg/endpoints/request/requestinfo.go).
    ///
    /// # Errors
    /// For ambiguous requests: the API server may interpret a path that is not in its simplest form differently.
    pub(super) fn parse(method: &Method, uri: &Uri) -> Result<ParsedRequest, &'static str> {
        let path = uri.path();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:/".contains(&byte);
        if !path.bytes().all(plain) {
            return Err("the gateway accepts only paths of letters, digits, '-', '.', '_', ':' and '/'");
        }
        let mut parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
        // Clients request OpenAPI documents and groups with and without a trailing slash.
        parts.pop_if(|last| last.is_empty());
        if parts.iter().any(|part| matches!(*part, "" | "." | "..")) {
            return Err("the gateway accepts only paths in their simplest form");
        }
        let (group, rest) = match parts[..] {
            [] | ["version"] | ["openapi", ..] | ["api"] | ["apis"] | ["api", _] | ["apis", _] | ["apis", _, _] => {
                return match *method {
                    Method::GET => Ok(ParsedRequest::Discovery),
                    _ => Err("what the API server serves can only be read"),
                };
            }
            ["api", _, ..] => ("", &parts[2..]),
            ["apis", group, _, ..] => (group, &parts[3..]),
            _ => return Err("the gateway accepts only requests for objects, discovery and OpenAPI"),
        };
        let (namespace, rest) = match *rest {
            // `namespaces/x` is the namespace itself, and `namespaces/x/status` its subresource.
            ["namespaces", namespace, part, ..] if !matches!(part, "status" | "finalize") => (namespace, &rest[2..]),
            _ => ("", rest),
        };
        let (resource, name, part) = match *rest {
            [resource] => (resource, "", String::new()),
            [resource, name] => (resource, name, String::new()),
            // Deprecated paths for watches, and a proxy to other servers.
            ["watch" | "proxy", ..] | [] => return Err("the gateway does not accept this kind of path"),
            [resource, name, ref part @ ..] => (resource, name, part.join("/")),
        };
        if matches!(resource, "watch" | "proxy") {
            return Err("the gateway does not accept this kind of path");
        }
        let watches = uri.query().is_some_and(watches);
        let verb = match (method, name) {
            (&Method::GET, _) if watches => "watch",
            (&Method::GET, "") => "list",
            (&Method::GET, _) => "get",
            (&Method::POST, _) => "create",
            (&Method::PUT, _) => "update",
            (&Method::PATCH, _) => "patch",
            (&Method::DELETE, "") => "deletecollection",
            (&Method::DELETE, _) => "delete",
            _ => return Err("the gateway does not accept this method"),
        };
        let [group, resource, namespace, name] = [group, resource, namespace, name].map(str::to_owned);
        Ok(ParsedRequest::Object(ObjectRequest { verb, group, resource, subresource: part, namespace, name }))
    }
}

fn watches(query: &str) -> bool {
    query
        .split('&')
        .any(|part| matches!(part.split_once('='), Some(("watch", value)) if !matches!(value, "false" | "0")))
}

/// Decides whether a run may send this request, or returns the refusal in the API server's words with the reason.
pub(super) fn authorize(request: &ParsedRequest, scope: &RunScope, phase: RunPhase) -> Result<(), String> {
    let ParsedRequest::Object(object) = request else { return Ok(()) };
    let refusal = |why: String| Err(object.refusal(scope, &why));
    let RunScope { release, namespace, user, revision: _ } = scope;
    if user.is_none() && object.writes() {
        return refusal("a plan changes nothing".to_owned());
    }
    let is_own_storage = object.is_storage() && is_storage_of(release, &object.name);
    if object.namespace.is_empty() {
        // Without a namespace, only cluster-scoped objects can be read by name; a list would span all namespaces.
        return match object.verb {
            "get" if object.subresource.is_empty() => Ok(()),
            _ => refusal(format!("helm acts only in namespace {namespace}, for release {release}")),
        };
    }
    if object.namespace != *namespace {
        return refusal(format!("helm acts only in namespace {namespace}, for release {release}"));
    }
    if !object.subresource.is_empty() {
        return refusal("a release consists of whole objects".to_owned());
    }
    if object.verb == "deletecollection" {
        return refusal("helm deletes the objects of a release one by one".to_owned());
    }
    if object.writes() && object.is_storage() && !is_own_storage {
        return refusal(format!("that Secret is the storage of a release other than {release}"));
    }
    // helm creates, updates and deletes what it stores; it patches the objects of a chart.
    if object.verb == "patch" && object.is_storage() {
        return refusal("no object of a chart may be the storage of a release".to_owned());
    }
    if phase == RunPhase::Stopping && object.writes() && !(is_own_storage && object.verb == "update") {
        return refusal(format!("the run for release {release} is being stopped"));
    }
    Ok(())
}

/// Returns why helm may not create this revision of its release. helm counts for itself: if another Helm client has made a revision that the
/// operator has not seen, helm would take over that client's release, or leave a revision whose stamp has another number, which
/// counts as another client's.
pub(super) fn unexpected_revision(request: &ParsedRequest, scope: &RunScope) -> Option<String> {
    let ParsedRequest::Object(object) = request else { return None };
    let revision =
        revision_in_name(&scope.release, &object.name).filter(|_| object.verb == "create" && object.is_storage())?;
    let release = &scope.release;
    let Some(expected) = scope.revision else {
        return Some(format!("this run makes no revision of release {release}"));
    };
    match revision.parse::<u32>() {
        Ok(number) if number.to_string() == revision && number == expected => None,
        // Helm ignores foreign storage Secrets, but this one would shadow every revision that Helm creates.
        Ok(number) if number < expected => Some(format!(
            "helm would make revision {number} of release {release}, although a Secret claims to be its revision {}: delete Secret {}, which helm does not count",
            expected - 1,
            storage::secret(release, expected - 1)
        )),
        _ => Some(format!(
            "helm would make revision {revision} of release {release}, and {expected} was expected: another Helm client has changed the release"
        )),
    }
}

fn is_storage_of(release: &str, secret: &str) -> bool {
    revision_in_name(release, secret).is_some()
}

/// Returns the revision in the name of a storage Secret of this release.
fn revision_in_name<'a>(release: &str, secret: &'a str) -> Option<&'a str> {
    let revision = secret.strip_prefix(storage::PREFIX)?.strip_prefix(release)?.strip_prefix(".v")?;
    (!revision.is_empty() && revision.bytes().all(|byte| byte.is_ascii_digit())).then_some(revision)
}
