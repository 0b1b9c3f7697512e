//! The routes: which user may, what is asked, what is answered. What is done is in the modules beside this one.

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
use serde::Serialize;

use super::{
    auth::User,
    body,
    create::{self, Answer, only},
    dto::{Created, Instance, InstanceList, NewInstance},
    events,
    idempotency::Stamp,
    instances::{self, Shown},
    problem::Problem,
    query::Query,
    refusal::refused,
    selector,
    shared::Shared,
};
use crate::{
    crd::{ClientApp, Guard},
    runtime::key::Key,
};

/// Instances in one answer, at most and where nothing is said.
const LIMIT: std::ops::RangeInclusive<u64> = 1..=1000;
const DEFAULT_LIMIT: u64 = 100;
/// Seconds that a DELETE waits at most.
const WAIT: std::ops::RangeInclusive<u64> = 0..=300;
/// On the answer to a repeated request.
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

pub(crate) fn routes() -> Router<Arc<Shared>> {
    Router::new()
        .route("/instances", get(list).post(make))
        .route("/instances/{name}", get(show).delete(remove))
        .route("/instances/{name}/events", get(follow))
}

/// Make an instance
///
/// Namespace, ClientApp and the administrator's Secret are made before the answer; all else follows, and
/// `/instances/{name}/events` tells of it. The password is in this one answer and in no other. With `postgres.adopt`, which
/// goes on with what an earlier instance of the name has left, it is in none: the retained Secret has it.
#[utoipa::path(
    post, path = "/instances", tag = "instances", request_body = NewInstance,
    params(("Idempotency-Key" = Option<String>, Header,
        description = "1 to 255 visible ASCII characters. A request that is repeated with its key makes no second instance.")),
    responses(
        (status = 201, description = "It is made", body = Created,
            headers(("Location" = String, description = "Where it is seen"))),
        (status = 200, description = "An earlier attempt of this request made it; there is no password in this answer", body = Created,
            headers(("Idempotency-Replayed" = String, description = "`true`"))),
        (status = 400, description = "The body is not JSON", body = Problem, content_type = "application/problem+json"),
        (status = 401, description = "No valid token", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "The user may not do this", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "Hostname, name, namespace or Idempotency-Key is taken, an earlier instance of the name has left data, or a quota is used up", body = Problem, content_type = "application/problem+json"),
        (status = 413, description = "The body is too large", body = Problem, content_type = "application/problem+json"),
        (status = 415, description = "The body is not declared as JSON", body = Problem, content_type = "application/problem+json"),
        (status = 422, description = "A field cannot be carried out; it is named", body = Problem, content_type = "application/problem+json"),
        (status = 429, description = "Too many requests", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "The cluster does not answer, or the operator has just started", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn make(
    State(shared): State<Arc<Shared>>,
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
    let stamp = Stamp::of(headers, user, &body)?;
    Ok(create::Request { instance, stamp })
}

async fn made(shared: &Shared, user: &User, asked: &create::Request) -> Result<Answer, Problem> {
    let NewInstance { name, namespace, .. } = &asked.instance;
    let place = namespace.as_deref().or(name.as_deref());
    let result = match shared.parts.auth.allow(user, "create", place, None).await {
        Ok(()) => create::create(shared, asked).await,
        Err(problem) => Err(problem),
    };
    let known = |part: Option<&str>| part.unwrap_or("-").to_owned();
    let (of, outcome) = match &result {
        Ok((status, created)) => (Key::new(&created.namespace, &created.name), Ok(*status)),
        Err(problem) => (Key::new(known(place), known(name.as_deref())), Err(problem)),
    };
    audit(user, "create", &of, outcome);
    result
}

/// One line of the log for each change that was asked for: who asked for what, and what came of it. Never a secret. The
/// request's id and where it came from are in the line's span.
fn audit(user: &User, verb: &'static str, instance: &Key, result: Result<StatusCode, &Problem>) {
    let (status, reason) = result.map_or_else(|problem| (problem.status(), problem.reason), |status| (status, "Done"));
    tracing::info!(target: "audit", user = %user.name, verb, clientapp = %instance, status = status.as_u16(), reason, "api");
}

/// List instances
#[utoipa::path(
    get, path = "/instances", tag = "instances",
    params(
        ("namespace" = Option<String>, Query, description = "Those of one namespace. Without: of all, which needs the right to list ClientApps in all of them."),
        ("labelSelector" = Option<String>, Query, description = "As kubectl takes it: `k=v`, `k!=v`, `k`, `!k`, `k in (a,b)`, `k notin (a,b)`, joined by commas."),
        ("limit" = Option<u64>, Query, description = "So many at most, 1 to 1000; 100 where nothing is said."),
        ("continue" = Option<String>, Query, description = "Go on where the last list ended: its `continue`."),
    ),
    responses(
        (status = 200, description = "In the order of namespace and name", body = InstanceList),
        (status = 400, description = "A parameter cannot be used; it is named", body = Problem, content_type = "application/problem+json"),
        (status = 401, description = "No valid token", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "The user may not do this", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "The operator has just started", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn list(
    State(shared): State<Arc<Shared>>,
    Extension(user): Extension<User>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let query = Query::parse(query.as_deref(), &["namespace", "labelSelector", "limit", "continue"])?;
    let selector = query.get("labelSelector").map(selector::parse).transpose()?.unwrap_or_else(Selector::default);
    let after = query.get("continue").map(instances::after).transpose()?;
    let limit = query.number("limit", LIMIT)?.unwrap_or(DEFAULT_LIMIT) as usize;
    let namespace = query.get("namespace");
    shared.parts.auth.allow(&user, "list", namespace, None).await.map_err(|problem| match namespace {
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
    params(
        ("name" = String, Path, description = "Its name"),
        ("namespace" = Option<String>, Query, description = "Its namespace, where there is more than one of the name"),
    ),
    responses(
        (status = 200, description = "The instance", body = Instance),
        (status = 401, description = "No valid token", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "The user may not do this", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is none", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "There is more than one; the namespaces are named", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "The operator has just started", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn show(asked: About) -> Result<Response, Problem> {
    let query = asked.query(&[])?;
    let (_, shown) = asked.find("get", &query).await?;
    Ok(json(StatusCode::OK, &shown.instance))
}

/// Delete an instance
///
/// With everything that belongs to it, and with its namespace where that was made for it.
#[utoipa::path(
    delete, path = "/instances/{name}", tag = "instances",
    params(
        ("name" = String, Path, description = "Its name"),
        ("namespace" = Option<String>, Query, description = "Its namespace, where there is more than one of the name"),
        ("wait" = Option<u64>, Query, description = "Seconds to wait until it is gone, 0 to 300; 0 where nothing is said."),
    ),
    responses(
        (status = 204, description = "It is gone"),
        (status = 202, description = "It is being deleted", body = Instance),
        (status = 400, description = "A parameter cannot be used; it is named", body = Problem, content_type = "application/problem+json"),
        (status = 401, description = "No valid token", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "The user may not do this", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is none", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "There is more than one; the namespaces are named", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "The cluster does not answer, or the operator has just started", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn remove(asked: About) -> Result<Response, Problem> {
    let query = asked.query(&["wait"])?;
    let wait = Duration::from_secs(query.number("wait", WAIT)?.unwrap_or_default());
    let found = asked.find("delete", &query).await;
    let About { shared, user, name, .. } = asked;
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

/// Asks the API server to delete it; `None`: it is gone already.
async fn deleted(shared: &Shared, key: &Key, uid: &str) -> Result<Option<Instance>, Problem> {
    let apps = Api::<Guard<ClientApp>>::namespaced(shared.parts.client.clone(), &key.namespace);
    #[expect(clippy::disallowed_methods, reason = "what the user has named, and only that")]
    let deleted = apps.delete(&key.name, &only(uid)).await;
    match deleted {
        Ok(answer) => Ok(answer.left().map(|app| Instance::of(&app))),
        Err(kube::Error::Api(status)) if status.code == 404 => Err(missing(&key.name, Some(&key.namespace))),
        Err(error) => Err(refused(&format!("delete ClientApp {key}"), &error)),
    }
}

/// Watch what becomes of an instance
///
/// Server-sent events: `status` with the instance, at first and after each change; `event` with what happened to it; at the
/// end `ready` with the instance, or `gone` when it was deleted.
#[utoipa::path(
    get, path = "/instances/{name}/events", tag = "instances",
    params(
        ("name" = String, Path, description = "Its name"),
        ("namespace" = Option<String>, Query, description = "Its namespace, where there is more than one of the name"),
        ("follow" = Option<bool>, Query, description = "Go on after it is ready, until it is gone"),
    ),
    responses(
        (status = 200, description = "Events until it is ready", body = String, content_type = "text/event-stream"),
        (status = 401, description = "No valid token", body = Problem, content_type = "application/problem+json"),
        (status = 403, description = "The user may not do this", body = Problem, content_type = "application/problem+json"),
        (status = 404, description = "There is none", body = Problem, content_type = "application/problem+json"),
        (status = 409, description = "There is more than one; the namespaces are named", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "The operator has just started", body = Problem, content_type = "application/problem+json"),
    )
)]
async fn follow(asked: About) -> Result<Response, Problem> {
    let query = asked.query(&["follow"])?;
    let follow = query.flag("follow")?;
    let (key, shown) = asked.find("get", &query).await?;
    Ok(events::stream(asked.shared, key, shown.uid.clone(), follow))
}

struct About {
    shared: Arc<Shared>,
    user: User,
    name: String,
    query: Option<String>,
}

impl FromRequestParts<Arc<Shared>> for About {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, shared: &Arc<Shared>) -> Result<Self, Response> {
        type Asked = (Extension<User>, Path<String>, RawQuery);
        let (Extension(user), Path(name), RawQuery(query)) = Asked::from_request_parts(parts, shared).await?;
        Ok(About { shared: shared.clone(), user, name, query })
    }
}

impl About {
    /// Its parameters: the namespace, and these.
    fn query(&self, more: &[&str]) -> Result<Query, Problem> {
        Query::parse(self.query.as_deref(), &[&["namespace"], more].concat())
    }

    /// The instance. A user who may not do this to it is not told whether it exists.
    async fn find(&self, verb: &'static str, query: &Query) -> Result<(Key, Arc<Shown>), Problem> {
        let About { shared, user, name, .. } = self;
        let namespace = query.get("namespace");
        let allowed = shared.parts.auth.allow(user, verb, namespace, Some(name)).await;
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
                if shared.parts.auth.allow(user, verb, Some(&key.namespace), Some(name)).await.is_ok() {
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
            let detail = format!("{name} is the name of instances in {}: add ?namespace=", namespaces.join(", "));
            return Err(Problem::new(StatusCode::CONFLICT, "Ambiguous", detail).about("namespace"));
        }
        visible.pop().ok_or_else(|| missing(name, None))
    }
}

fn missing(name: &str, namespace: Option<&str>) -> Problem {
    let place = namespace.map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default();
    Problem::new(StatusCode::NOT_FOUND, "NotFound", format!("there is no instance {name}{place}"))
}

fn json(status: StatusCode, answer: &impl Serialize) -> Response {
    // All answers have string keys, so this cannot fail.
    json_bytes(status, serde_json::to_vec(answer).unwrap_or_default().into())
}

pub(crate) fn json_bytes(status: StatusCode, answer: Bytes) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], answer).into_response()
}
