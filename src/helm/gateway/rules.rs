//! What a helm run may ask for (pure).
//!
//! A release reaches no further than its own namespace, and there RBAC decides, by the service account that helm acts for. What no
//! release has any business with is refused before: the parts of an object that are doors into it (`pods/exec` and the like), the
//! deletion of a whole collection, and the storage of other releases by its name. Who may write Secrets in a namespace can forge a
//! revision there all the same, by its labels; it is believed only as far as that namespace reaches.

use axum::http::{Method, Uri};

/// Whose run it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scope {
    pub release: String,
    pub namespace: String,
    /// Whom helm acts as: a ServiceAccount of that namespace, as the API server calls it.
    pub user: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Running,
    /// helm was asked to stop: it may write how far it came.
    Stopping,
}

/// A request in the words of a Role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Asked {
    /// What the API server is and serves.
    Discovery,
    Object(Object),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Object {
    pub verb: &'static str,
    pub group: String,
    /// Without its part.
    pub resource: String,
    /// Such as `status`; empty: the object itself.
    pub part: String,
    /// Empty: none, or all.
    pub namespace: String,
    /// Empty: all, or one that is to be created.
    pub name: String,
}

impl Object {
    pub(crate) fn writes(&self) -> bool {
        !matches!(self.verb, "get" | "list" | "watch")
    }

    pub(crate) fn writes_ingress(&self) -> bool {
        self.writes() && self.verb != "delete" && self.resource == "ingresses"
    }

    /// That it may not be done, in the API server's words and with the reason.
    pub(crate) fn refusal(&self, scope: &Scope, why: &str) -> String {
        let Object { verb, group, resource, part, namespace, name } = self;
        let part = if part.is_empty() { String::new() } else { format!("/{part}") };
        let named = if name.is_empty() { String::new() } else { format!(" {name:?}") };
        let place = match namespace.as_str() {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {namespace:?}"),
        };
        format!(
            "{resource}{named} is forbidden: User {:?} cannot {verb} resource \"{resource}{part}\" in API group {group:?} {place}: {why}",
            scope.user
        )
    }

    /// Whether it is where Helm stores a revision, of whichever release.
    pub(crate) fn is_storage(&self) -> bool {
        self.group.is_empty() && self.resource == "secrets" && self.name.starts_with(STORAGE)
    }
}

impl Asked {
    /// What is asked for, by the rules of Kubernetes (k8s.io/apiserver/pkg/endpoints/request/requestinfo.go).
    ///
    /// # Errors
    /// What cannot be told: a path that is not in its simplest form may mean another thing to the API server.
    pub(super) fn of(method: &Method, uri: &Uri) -> Result<Asked, &'static str> {
        let path = uri.path();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:/".contains(&byte);
        if !path.bytes().all(plain) {
            return Err("the gateway understands paths of letters, digits, '-', '.', '_', ':' and '/' only");
        }
        let mut parts: Vec<&str> = path.strip_prefix('/').unwrap_or(path).split('/').collect();
        // The OpenAPI documents and the groups are asked for with and without a slash at the end.
        parts.pop_if(|last| last.is_empty());
        if parts.iter().any(|part| matches!(*part, "" | "." | "..")) {
            return Err("the gateway understands paths in their simplest form only");
        }
        let (group, rest) = match parts[..] {
            [] | ["version"] | ["openapi", ..] | ["api"] | ["apis"] | ["api", _] | ["apis", _] | ["apis", _, _] => {
                return match *method {
                    Method::GET => Ok(Asked::Discovery),
                    _ => Err("what the API server serves can only be read"),
                };
            }
            ["api", _, ..] => ("", &parts[2..]),
            ["apis", group, _, ..] => (group, &parts[3..]),
            _ => return Err("the gateway knows the API's objects, and what tells of them, only"),
        };
        let (namespace, rest) = match *rest {
            // `namespaces/x` is the namespace itself, and `namespaces/x/status` a part of it.
            ["namespaces", namespace, part, ..] if !matches!(part, "status" | "finalize") => (namespace, &rest[2..]),
            _ => ("", rest),
        };
        let (resource, name, part) = match *rest {
            [resource] => (resource, "", String::new()),
            [resource, name] => (resource, name, String::new()),
            // The deprecated way to ask for a watch, and to reach another server.
            ["watch" | "proxy", ..] | [] => return Err("the gateway does not know this way to ask"),
            [resource, name, ref part @ ..] => (resource, name, part.join("/")),
        };
        if matches!(resource, "watch" | "proxy") {
            return Err("the gateway does not know this way to ask");
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
            _ => return Err("the gateway does not know this method"),
        };
        let [group, resource, namespace, name] = [group, resource, namespace, name].map(str::to_owned);
        Ok(Asked::Object(Object { verb, group, resource, part, namespace, name }))
    }
}

fn watches(query: &str) -> bool {
    query
        .split('&')
        .any(|part| matches!(part.split_once('='), Some(("watch", value)) if !matches!(value, "false" | "0")))
}

/// Whether a run may ask for this; or the refusal, in the API server's words and with the reason.
pub(super) fn judge(asked: &Asked, scope: &Scope, phase: Phase) -> Result<(), String> {
    let Asked::Object(object) = asked else { return Ok(()) };
    let refusal = |why: String| Err(object.refusal(scope, &why));
    let Scope { release, namespace, user: _ } = scope;
    let is_own_storage = object.is_storage() && is_of(release, &object.name);
    if object.namespace.is_empty() {
        // By its name only what is of no namespace can be read; a list would be of all namespaces.
        return match object.verb {
            "get" if object.part.is_empty() => Ok(()),
            _ => refusal(format!("helm acts in namespace {namespace} for release {release}, and nowhere else")),
        };
    }
    if object.namespace != *namespace {
        return refusal(format!("helm acts in namespace {namespace} for release {release}, and nowhere else"));
    }
    if !object.part.is_empty() {
        return refusal("a release consists of whole objects".to_owned());
    }
    if object.verb == "deletecollection" {
        return refusal("helm deletes the objects of a release one by one".to_owned());
    }
    if object.writes() && object.is_storage() && !is_own_storage {
        return refusal(format!("that Secret is the storage of another release than {release}"));
    }
    if phase == Phase::Stopping && object.writes() && !(is_own_storage && matches!(object.verb, "update" | "patch")) {
        return refusal(format!("the run for release {release} is being stopped"));
    }
    Ok(())
}

/// How the names of Helm's storage Secrets begin.
const STORAGE: &str = "sh.helm.release.v1.";

/// Whether this is the name of a storage Secret of this release.
fn is_of(release: &str, secret: &str) -> bool {
    let revision = secret
        .strip_prefix(STORAGE)
        .and_then(|rest| rest.strip_prefix(release))
        .and_then(|rest| rest.strip_prefix(".v"));
    revision.is_some_and(|revision| !revision.is_empty() && revision.bytes().all(|byte| byte.is_ascii_digit()))
}
