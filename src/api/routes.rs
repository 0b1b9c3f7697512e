//! The routes: authorization, parameters and responses. The work is done in the other modules.

use std::{sync::Arc, time::Duration};

use axum::{
    Extension, Router,
    body::Bytes,
    extract::{FromRequestParts, Path, RawQuery, State},
    http::{HeaderMap, HeaderName, StatusCode, header, request::Parts},
    response::{IntoResponse as _, Response},
    routing::get,
};
use kube::{Api, core::Selector};
use serde::{Deserialize, Serialize};
use utoipa::IntoParams;

use super::{
    auth::User,
    body,
    create::{self, Creation, only},
    dto::{Created, Instance, InstanceList, NewInstance},
    events,
    idempotency::RequestStamp,
    instances::{self, Shown},
    problem::{InstanceRefusals, PostRefusals, Problem, Refusals},
    query::Query,
    refusal::refused,
    selector,
    shared::ApiState,
};
use crate::{
    crd::{ClientApp, Guard},
    platform::key::Key,
};

/// Instances per response: the permitted range, and the default.
const LIMIT: std::ops::RangeInclusive<u64> = 1..=1000;
const DEFAULT_LIMIT: u64 = 100;
/// Seconds that a DELETE may wait.
const WAIT: std::ops::RangeInclusive<u64> = 0..=300;
/// Set on the response to a repeated request.
pub(super) const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

pub(crate) fn routes() -> Router<Arc<ApiState>> {
    Router::new()
        .route("/instances", get(list).post(make))
        .route("/instances/{name}", get(show).delete(remove))
        .route("/instances/{name}/events", get(follow))
}

/// Create an instance
///
/// The namespace, the ClientApp and the administrator's Secret are created before the response; everything else follows, and
/// `/instances/{name}/events` reports the progress. Only this response contains the password. With `postgres.adopt`, which adopts the
/// data that an earlier instance of the name has left, no response does: the password is in the retained Secret.
#[utoipa::path(
    post, path = "/instances", tag = "instances", request_body = NewInstance,
    params(("Idempotency-Key" = Option<String>, Header,
        description = "1 to 255 visible ASCII characters. Repeating a request with its key creates no second instance.")),
    responses(
        (status = 201, description = "The instance was created", body = Created,
            headers(("Location" = String, description = "Path of the instance"))),
        (status = 200, description = "An earlier attempt of this request has created the instance; this response contains no password", body = Created,
            headers(("Idempotency-Replayed" = String, description = "`true`"))),
        Refusals, PostRefusals,
        (status = 409, description = "Hostname, name, namespace or Idempotency-Key is taken, an earlier instance of the name has left data, or a quota is exceeded", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn make(
    State(shared): State<Arc<ApiState>>,
    Extension(user): Extension<User>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let asked = received(&user, &headers, &body).inspect_err(|problem| {
        audit(&user, "create", &Key::new("-", "-"), Err(problem));
    })?;
    let work = shared.clone();
    let (status, created) = shared.to_the_end(async move { made(&work, &user, &asked).await }).await?;
    let location = [(header::LOCATION, format!("/instances/{}?namespace={}", created.name, created.namespace))];
    let replayed = (status == StatusCode::OK).then_some([(REPLAYED, "true")]);
    Ok((location, replayed, json(status, &created)).into_response())
}

fn received(user: &User, headers: &HeaderMap, body: &Bytes) -> Result<create::Request, Problem> {
    let (instance, body) = body::read(headers, body)?;
    let stamp = RequestStamp::of(headers, user, &body)?;
    Ok(create::Request { instance, stamp })
}

async fn made(shared: &ApiState, user: &User, asked: &create::Request) -> Result<Creation, Problem> {
    let NewInstance { name, namespace, .. } = &asked.instance;
    let target = namespace.as_deref().or(name.as_deref());
    let allowed = async || shared.parts.auth.allow::<ClientApp>(user, "create", target, None).await;
    let created = async {
        allowed().await?;
        let profile = create::check(shared, asked).await?;
        let _place = shared.creations.place(&shared.stop).await?;
        // It may have waited for longer than a right that was revoked may last.
        allowed().await?;
        create::create(shared, asked, profile).await
    };
    let result = created.await;
    let known = |part: Option<&str>| part.unwrap_or("-").to_owned();
    let (of, outcome) = match &result {
        Ok((status, created)) => (Key::new(&created.namespace, &created.name), Ok(*status)),
        Err(problem) => (Key::new(known(target), known(name.as_deref())), Err(problem)),
    };
    audit(user, "create", &of, outcome);
    result
}

/// Logs a line for each requested change: the user, the request and its result, and never a secret. The request's id and its source
/// address are in the span.
pub(super) fn audit(user: &User, verb: &'static str, instance: &Key, result: Result<StatusCode, &Problem>) {
    let (status, reason) = result.map_or_else(|problem| (problem.status(), problem.reason), |status| (status, "Done"));
    tracing::info!(target: "audit", user = %user.name, verb, clientapp = %instance, status = status.as_u16(), reason, "api");
}

/// List instances
#[utoipa::path(
    get, path = "/instances", tag = "instances",
    params(
        ("namespace" = Option<String>, Query, description = "Only this namespace. Absent: all namespaces, which needs the right to list ClientApps in all of them."),
        ("labelSelector" = Option<String>, Query, description = "In the syntax of kubectl: `k=v`, `k!=v`, `k`, `!k`, `k in (a,b)`, `k notin (a,b)`, joined by commas."),
        ("limit" = Option<u64>, Query, description = "Maximum number of instances, 1 to 1000; 100 by default."),
        ("continue" = Option<String>, Query, description = "The `continue` of the previous list, to get the next page."),
    ),
    responses(
        (status = 200, description = "Sorted by namespace and name", body = InstanceList),
        Refusals,
    )
)]
async fn list(
    State(shared): State<Arc<ApiState>>,
    Extension(user): Extension<User>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let query = Query::parse(query.as_deref(), &["namespace", "labelSelector", "limit", "continue"])?;
    let selector = query.get("labelSelector").map(selector::parse).transpose()?.unwrap_or_else(Selector::default);
    let after = query.get("continue").map(instances::after).transpose()?;
    let limit = query.number("limit", LIMIT)?.unwrap_or(DEFAULT_LIMIT) as usize;
    let namespace = query.get("namespace");
    shared.parts.auth.allow::<ClientApp>(&user, "list", namespace, None).await.map_err(|problem| match namespace {
        None if problem.status() == StatusCode::FORBIDDEN => {
            let detail = format!("{}: ask for one namespace with ?namespace=", problem.detail);
            Problem::new(problem.status(), problem.reason, detail)
        }
        _ => problem,
    })?;
    shared.instances.synced()?;
    let (page, next) = shared.instances.page(namespace, &selector, after.as_ref(), limit);
    let items = page.iter().map(|shown| shown.instance.clone()).collect();
    Ok(json(StatusCode::OK, &InstanceList { items, next: next.as_ref().map(instances::token) }))
}

/// Show an instance
#[utoipa::path(
    get, path = "/instances/{name}", tag = "instances",
    params(InstanceName, InstanceNamespace),
    responses(
        (status = 200, description = "The instance", body = Instance),
        Refusals, InstanceRefusals,
    )
)]
async fn show(asked: RequestMeta) -> Result<Response, Problem> {
    let query = asked.query(&[])?;
    let (_, shown) = asked.find("get", &query).await?;
    Ok(json(StatusCode::OK, &shown.instance))
}

/// Delete an instance
///
/// With everything that belongs to it, and with its namespace if that was created for it.
#[utoipa::path(
    delete, path = "/instances/{name}", tag = "instances",
    params(
        InstanceName, InstanceNamespace,
        ("wait" = Option<u64>, Query, description = "Seconds to wait until it is gone, 0 to 300; 0 by default."),
    ),
    responses(
        (status = 204, description = "It is gone"),
        (status = 202, description = "It is being deleted", body = Instance),
        Refusals, InstanceRefusals,
    )
)]
async fn remove(asked: RequestMeta) -> Result<Response, Problem> {
    let query = asked.query(&["wait"])?;
    let wait = Duration::from_secs(query.number("wait", WAIT)?.unwrap_or_default());
    let found = asked.find("delete", &query).await;
    let RequestMeta { shared, user, name, .. } = asked;
    let (key, shown) = found.inspect_err(|problem| {
        audit(&user, "delete", &Key::new(query.get("namespace").unwrap_or("-"), &name), Err(problem));
    })?;
    let (work, of, uid) = (shared.clone(), key.clone(), shown.uid.clone());
    let deleting = shared.to_the_end(async move {
        let result = deleted(&work, &of, &uid).await;
        audit(&user, "delete", &of, result.as_ref().map(|_| StatusCode::ACCEPTED));
        result
    });
    let Some(instance) = deleting.await? else { return Ok(StatusCode::NO_CONTENT.into_response()) };
    let gone = shared.instances.wait_gone(&key, &shown.uid, wait);
    if shared.stop.run_until_cancelled(gone).await == Some(true) {
        return Ok(StatusCode::NO_CONTENT.into_response());
    }
    let latest = shared.instances.get(&key).filter(|latest| latest.uid == shown.uid && latest.instance.deleting);
    Ok(json(StatusCode::ACCEPTED, &latest.map_or(instance, |latest| latest.instance.clone())))
}

/// Deletes it in the cluster; `None` if that was immediate.
async fn deleted(shared: &ApiState, key: &Key, uid: &str) -> Result<Option<Instance>, Problem> {
    let apps = Api::<Guard<ClientApp>>::namespaced(shared.parts.client.clone(), &key.namespace);
    #[expect(clippy::disallowed_methods, reason = "what the user has named, and only that")]
    let deleted = apps.delete(&key.name, &only(uid)).await;
    match deleted {
        Ok(answer) => Ok(answer.left().map(|app| Instance::of(&app))),
        Err(kube::Error::Api(status)) if status.code == 404 => Err(missing(&key.name, Some(&key.namespace))),
        Err(error) => Err(refused(&format!("delete ClientApp {key}"), &error)),
    }
}

/// Watch an instance
///
/// Server-sent events: `status` with the instance, at first and after each change; `event` with an event about it; finally `ready`
/// with the instance, or `gone` once it is deleted.
#[utoipa::path(
    get, path = "/instances/{name}/events", tag = "instances",
    params(
        InstanceName, InstanceNamespace,
        ("follow" = Option<bool>, Query, description = "Continue after it is ready, until it is gone"),
    ),
    responses(
        (status = 200, description = "Events until it is ready", body = String, content_type = "text/event-stream"),
        Refusals, InstanceRefusals,
    )
)]
async fn follow(asked: RequestMeta) -> Result<Response, Problem> {
    let query = asked.query(&["follow"])?;
    let follow = query.flag("follow")?;
    let (key, shown) = asked.find("get", &query).await?;
    Ok(events::stream(asked.shared, key, shown.uid.clone(), follow))
}

/// A request for an instance, or for an object of one.
pub(super) struct RequestMeta {
    pub(super) shared: Arc<ApiState>,
    pub(super) user: User,
    /// Name of the instance.
    pub(super) name: String,
    /// Name of its object; empty if the path has none.
    pub(super) object: String,
    query: Option<String>,
}

/// In the description of the API.
#[derive(IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "for the description of the API")]
pub(super) struct InstanceName {
    /// Name of the instance
    name: String,
}

/// In the description of the API.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
#[expect(dead_code, reason = "for the description of the API")]
pub(super) struct InstanceNamespace {
    /// Namespace of the instance, required if there are several of the name
    namespace: Option<String>,
}

/// The parameters of the path.
#[derive(Deserialize)]
struct Names {
    name: String,
    #[serde(default, alias = "backup", alias = "restore")]
    object: String,
}

impl FromRequestParts<Arc<ApiState>> for RequestMeta {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<ApiState>) -> Result<Self, Response> {
        type Asked = (Extension<User>, Path<Names>, RawQuery);
        let (Extension(user), Path(Names { name, object }), RawQuery(query)) =
            Asked::from_request_parts(parts, shared).await?;
        Ok(RequestMeta { shared: shared.clone(), user, name, object, query })
    }
}

impl RequestMeta {
    /// The namespace and these additional parameters.
    pub(super) fn query(&self, more: &[&str]) -> Result<Query, Problem> {
        Query::parse(self.query.as_deref(), &[&["namespace"], more].concat())
    }

    /// The instance. Users without the right are not told whether it exists.
    pub(super) async fn find(&self, verb: &'static str, query: &Query) -> Result<(Key, Arc<Shown>), Problem> {
        let RequestMeta { shared, user, name, .. } = self;
        let namespace = query.get("namespace");
        let allowed = shared.parts.auth.allow::<ClientApp>(user, verb, namespace, Some(name)).await;
        shared.instances.synced()?;
        if let Some(namespace) = namespace {
            allowed?;
            let key = Key::new(namespace, name);
            let shown = shared.instances.get(&key).ok_or_else(|| missing(name, Some(namespace)))?;
            return Ok((key, shown));
        }
        let mut visible = shared.instances.named(name);
        if let Err(everywhere) = allowed {
            let mut theirs = Vec::new();
            for (key, shown) in visible {
                if shared.parts.auth.allow::<ClientApp>(user, verb, Some(&key.namespace), Some(name)).await.is_ok() {
                    theirs.push((key, shown));
                }
            }
            if theirs.is_empty() {
                return Err(everywhere);
            }
            visible = theirs;
        }
        if visible.len() > 1 {
            let namespaces: Vec<_> = visible.iter().map(|(key, _)| key.namespace.as_str()).collect();
            let detail = format!("there are instances named {name} in {}: add ?namespace=", namespaces.join(", "));
            return Err(Problem::new(StatusCode::CONFLICT, "Ambiguous", detail).about("namespace"));
        }
        visible.pop().ok_or_else(|| missing(name, None))
    }
}

fn missing(name: &str, namespace: Option<&str>) -> Problem {
    let place = namespace.map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default();
    Problem::new(StatusCode::NOT_FOUND, "NotFound", format!("there is no instance {name}{place}"))
}

pub(super) fn json(status: StatusCode, answer: &impl Serialize) -> Response {
    // Serialization cannot fail, because all maps have string keys.
    json_bytes(status, serde_json::to_vec(answer).unwrap_or_default().into())
}

pub(crate) fn json_bytes(status: StatusCode, answer: Bytes) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], answer).into_response()
}
