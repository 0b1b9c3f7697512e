//! Binds a deletion to the object that exists when helm asks for it (effect).
//!
//! helm deletes by name alone. Such a request can be under way for long while the operator that sent it no longer leads, and another
//! has ended the release and installed the next one of that name: the request would delete an object of that one.

use axum::{
    body::Bytes,
    http::{HeaderValue, StatusCode, header, request},
    response::Response,
};
use kube::Client;

use super::{
    answer::{get, refusal_response, response, unreachable},
    body,
    run::Run,
};

/// Asks for the metadata of an object only.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// Returns the body of a deletion that deletes only the object that is there now: helm's options, with its uid as precondition.
///
/// # Errors
/// The response to helm instead, such as that there is no object.
pub(super) async fn bind_to_uid(
    client: &Client,
    run: &Run,
    parts: &mut request::Parts,
    options: &[u8],
) -> Result<Bytes, Response> {
    let object = get(client, run, parts.uri.path(), METADATA).await?;
    if !object.0.is_success() {
        return Err(response(object));
    }
    let Some(uid) = body::uid(&object.2) else {
        let problem = unreachable("the object to delete was read without a uid");
        return Err(refusal_response(StatusCode::SERVICE_UNAVAILABLE, &problem));
    };
    parts.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    body::with_uid_precondition(options, &uid).ok_or_else(|| {
        refusal_response(
            StatusCode::BAD_REQUEST,
            "the gateway accepts the options of a deletion only as JSON, or none as protobuf",
        )
    })
}
