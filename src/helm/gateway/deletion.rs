//! A deletion is of the object that was there when helm asked for it (effect).
//!
//! helm deletes by name alone. Such a request can be under way for long while the operator that sent it no longer leads, and another
//! has ended the release and installed the next one of that name: the request would delete an object of that one.

use axum::{
    body::Bytes,
    http::{HeaderValue, Request, StatusCode, header, request},
    response::Response,
};
use kube::Client;

use super::{
    answer::{NOT_UNDERSTOOD, passed_on, refused, response, told, unreachable},
    body,
    run::Run,
};

/// Of an object, its metadata is enough.
const METADATA: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json");
/// Size limit of an object, in bytes; the API server's own is smaller.
const LARGEST: usize = 4 << 20;

/// Returns the body of a deletion that deletes only the object that is there now: helm's options, with its uid as precondition.
///
/// # Errors
/// The response to helm instead, such as that there is no object.
pub(super) async fn of_this_one(
    client: &Client,
    run: &Run,
    parts: &mut request::Parts,
    options: &[u8],
) -> Result<Bytes, Response> {
    let unavailable = |problem: &str| refused(StatusCode::SERVICE_UNAVAILABLE, problem);
    let look = Request::get(parts.uri.path()).header(header::ACCEPT, METADATA).body(());
    let Ok(look) = look.and_then(|look| passed_on(look.into_parts().0, Bytes::new(), run)) else {
        return Err(refused(StatusCode::BAD_REQUEST, NOT_UNDERSTOOD));
    };
    let found = told(client, look, LARGEST).await.map_err(|problem| unavailable(&problem))?;
    if !found.0.is_success() {
        return Err(response(found));
    }
    let Some(uid) = body::uid(&found.2) else {
        return Err(unavailable(&unreachable("the object to delete was read without a uid")));
    };
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    body::only(options, &uid).ok_or_else(|| {
        refused(
            StatusCode::BAD_REQUEST,
            "the gateway accepts the options of a deletion only as JSON, or none as protobuf",
        )
    })
}
