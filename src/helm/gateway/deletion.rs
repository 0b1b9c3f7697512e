//! A deletion is of the object that was there when helm asked for it (effect).
//!
//! helm deletes by name alone. Such a request can be under way for long while the operator that sent it no longer leads, and another
//! has ended the release and installed the next one of that name: the request would delete an object of that one.

use axum::{
    body::Bytes,
    http::{self, HeaderValue, Request, StatusCode, Uri, header, request},
    response::Response,
};
use kube::Client;

use super::{
    answer::{refused, response, told, unreachable},
    body,
};

/// Of an object, its metadata is enough.
const METADATA: HeaderValue =
    HeaderValue::from_static("application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json");
/// Size limit of an object, in bytes; the API server's own is smaller.
const LARGEST: usize = 4 << 20;

/// The request for the object that a request deletes.
pub(super) fn look(deletion: &Uri) -> Result<request::Parts, http::Error> {
    Ok(Request::get(deletion.path()).header(header::ACCEPT, METADATA).body(())?.into_parts().0)
}

/// The options of helm's deletion, with the uid of the object that is there now as precondition.
///
/// # Errors
/// What helm is to be told instead, such as that there is no object.
pub(super) async fn of_this_one(
    client: &Client,
    asked: Request<kube::client::Body>,
    options: &[u8],
) -> Result<Bytes, Response> {
    let unavailable = |problem: &str| refused(StatusCode::SERVICE_UNAVAILABLE, problem);
    let found = told(client, asked, LARGEST).await.map_err(|problem| unavailable(&problem))?;
    if !found.0.is_success() {
        return Err(response(found));
    }
    let Some(uid) = body::uid(&found.2) else {
        return Err(unavailable(&unreachable("the object to delete was read without a uid")));
    };
    body::only(options, &uid).ok_or_else(|| {
        refused(
            StatusCode::BAD_REQUEST,
            "the gateway accepts the options of a deletion only as JSON, or none as protobuf",
        )
    })
}
