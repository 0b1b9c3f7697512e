//! Forwards a request and returns the response (effect).

use std::{sync::Arc, time::Duration};

use axum::{
    body::{Body, BodyDataStream, Bytes, to_bytes},
    extract::Request,
    http::{StatusCode, response},
    response::Response,
};
use futures::{Stream, StreamExt as _, stream};
use kube::Client;
use serde_json::Value;
use tokio::{task::spawn_blocking, time::timeout};

use super::{
    answer::{NOT_UNDERSTOOD, SILENCE, refusal_response, response_headers, send, to_upstream},
    body, deletion,
    discovery_cache::DiscoveryCache,
    live_fields::preserve,
    rules::{self, ObjectRequest, ParsedRequest, RunScope},
    run::{NOT_LEADING, Run},
};
use crate::helm::{hosts, storage};

/// Size limit of a request's body, in bytes; the API server's own limit.
const LARGEST: usize = 3 << 20;
/// Limits the bytes of a response that are parsed for the written object. Objects are smaller than 2 MiB.
const MAX_PARSED: usize = 4 << 20;
/// Limits the pauses of a watch: the API server sends bookmarks about every minute, if they are requested.
const WATCH_SILENCE: Duration = Duration::from_secs(300);

/// Checks a complete request and forwards it.
pub(super) async fn forward(
    (client, discovery_cache): (&Client, &DiscoveryCache),
    run: &Arc<Run>,
    mut parsed: ParsedRequest,
    request: Request,
) -> Response {
    let (mut parts, body) = request.into_parts();
    let Ok(mut body) = to_bytes(body, LARGEST).await else {
        return refusal_response(StatusCode::PAYLOAD_TOO_LARGE, "the body of a request may have at most 3 MiB");
    };
    if let ParsedRequest::Object(object) = &mut parsed
        && object.verb == "create"
    {
        let Some(name) = body::name(&body) else {
            let problem = "the gateway accepts an object to create only as JSON, or as protobuf with a name";
            return refusal_response(StatusCode::BAD_REQUEST, problem);
        };
        object.name = name;
    }
    // Judged before anything is read, and again below, since helm may be asked to stop meanwhile.
    if let Err(refusal) = rules::authorize(&parsed, &run.scope, run.phase()) {
        return forbidden(run, &refusal);
    }
    if let Some(why) = rules::unexpected_revision(&parsed, &run.scope) {
        return refusal_response(StatusCode::CONFLICT, &why);
    }
    let object = match &parsed {
        ParsedRequest::Discovery => None,
        ParsedRequest::Object(object) => Some(object),
    };
    if let Some(object) = object {
        let prepared = match object.verb {
            "delete" => deletion::bind_to_uid(client, run, &mut parts, &body).await,
            "create" if object.is_storage() => review_revision(run, body).await,
            _ => preserve(client, run, (object, parts.uri.path()), body).await,
        };
        body = match prepared {
            Ok(body) => body,
            Err(answer) => return answer,
        };
    }
    let named = object.filter(|object| object.names_hosts());
    let judged = rules::authorize(&parsed, &run.scope, run.phase());
    if let Err(refusal) = judged.and_then(|()| named.map_or(Ok(()), |object| claim_hosts(object, &body, run))) {
        return forbidden(run, &refusal);
    }
    let Ok(request) = to_upstream(parts, body, run) else {
        return refusal_response(StatusCode::BAD_REQUEST, NOT_UNDERSTOOD);
    };
    // Writes to Helm's storage are not recorded: the operator reads the storage itself, and helm sends it as protobuf.
    let write = object.filter(|object| object.writes() && !object.is_storage());
    let write = write.map(|object| (run.record.lock().begin(), object.clone()));
    if !run.lead.is_held() {
        return refusal_response(StatusCode::FORBIDDEN, NOT_LEADING);
    }
    if object.is_none() && DiscoveryCache::serves(request.uri().path()) {
        return discovery_cache.answer(client, request).await;
    }
    let client = client.clone();
    let sending = async move { send(&client, request).await };
    let answer = match object {
        Some(object) if object.writes() => run.complete_write(sending).await,
        _ => sending.await,
    };
    match answer {
        Ok(answer) => from_upstream(answer, run, object, write),
        Err(problem) => refusal_response(StatusCode::SERVICE_UNAVAILABLE, &problem),
    }
}

fn forbidden(run: &Run, refusal: &str) -> Response {
    let RunScope { release, namespace, .. } = &run.scope;
    tracing::warn!(release, namespace, "a request of helm was refused: {refusal}");
    refusal_response(StatusCode::FORBIDDEN, refusal)
}

/// Reviews the revision that helm is about to store, and returns its body.
///
/// # Errors
/// The response to helm instead: it may not be made, which is recorded, or it cannot be read.
async fn review_revision(run: &Arc<Run>, body: Bytes) -> Result<Bytes, Response> {
    if run.review.is_none() {
        return Ok(body);
    }
    let (reviewed_run, stored) = (run.clone(), body.clone());
    let review = move || {
        let payload = body::revision(&stored).ok_or_else(|| "it has no key release".to_owned())?;
        let stored = storage::read(&payload)?;
        reviewed_run.review.as_ref().map_or(Ok(None), |review| review(&stored))
    };
    match spawn_blocking(review).await.unwrap_or_else(|_| Err("reading it has panicked".to_owned())) {
        Ok(None) => Ok(body),
        Ok(Some(refusal)) => {
            run.record.lock().refuses(refusal.clone());
            Err(forbidden(run, &refusal))
        }
        Err(problem) => {
            let unread = format!("what helm is about to store cannot be read: {problem}");
            Err(refusal_response(StatusCode::BAD_REQUEST, &unread))
        }
    }
}

/// Claims the hosts that an object names for the release, or returns the refusal.
fn claim_hosts(object: &ObjectRequest, body: &[u8], run: &Run) -> Result<(), String> {
    let refusal = |why: &str| Err(object.refusal(&run.scope, why));
    match serde_json::from_slice::<Value>(body) {
        Ok(named) if named.is_object() => hosts::claim_all(&named, &run.claim).or_else(|why| refusal(&why)),
        Ok(patch) if object.verb == "patch" && hosts::changes_managers_only(&patch) => Ok(()),
        _ => refusal("the gateway accepts an object that names hosts, or a patch of one, only as a JSON object"),
    }
}

fn from_upstream(
    answer: axum::http::Response<kube::client::Body>,
    run: &Arc<Run>,
    object: Option<&ObjectRequest>,
    write: Option<(usize, ObjectRequest)>,
) -> Response {
    let (response::Parts { status, headers, .. }, body) = answer.into_parts();
    if let Some((number, _)) = &write
        && status.is_client_error()
    {
        run.record.lock().refused(*number);
    }
    let write = write.filter(|_| status.is_success());
    let watches = object.is_some_and(|object| object.verb == "watch");
    let silence = if watches { WATCH_SILENCE } else { SILENCE };
    let body = recording_stream(Body::new(body).into_data_stream(), silence, run.clone(), write);
    let mut response = Response::new(Body::from_stream(body));
    *response.status_mut() = status;
    *response.headers_mut() = response_headers(&headers);
    response
}

/// Streams a response. The response to a write is parsed and recorded when it is complete.
fn recording_stream(
    body: BodyDataStream,
    silence: Duration,
    run: Arc<Run>,
    write: Option<(usize, ObjectRequest)>,
) -> impl Stream<Item = Result<Bytes, axum::Error>> {
    stream::unfold((body, Vec::new(), run, write), move |(mut body, mut kept, run, write)| async move {
        let next = tokio::select! {
            biased;
            ended = run.ended() => Some(Err(axum::Error::new(ended))),
            next = timeout(silence, body.next()) => next.unwrap_or_else(|silent| Some(Err(axum::Error::new(silent)))),
        };
        let chunk = match next {
            Some(Ok(chunk)) => chunk,
            Some(Err(error)) => return Some((Err(error), (body, kept, run, None))),
            None => {
                if let Some((number, object)) = write {
                    run.record.lock().answered(number, &object, &kept);
                }
                return None;
            }
        };
        if write.is_some() && kept.len() + chunk.len() <= MAX_PARSED {
            kept.extend_from_slice(&chunk);
        }
        Some((Ok(chunk), (body, kept, run, write)))
    })
}
