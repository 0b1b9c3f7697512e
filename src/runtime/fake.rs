//! An API server for unit tests.

use std::convert::Infallible;

use axum::http::{Method, Request, Response};
use kube::{Client, client::Body};
use serde_json::Value;

/// A client of a server that answers method, path and body of each request with a status and an object.
pub(crate) fn client(answer: impl Fn(&Method, &str, Value) -> (u16, Value) + Clone + Send + 'static) -> Client {
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = answer.clone();
        async move {
            let (parts, body) = request.into_parts();
            let body = serde_json::from_slice(&body.collect_bytes().await.unwrap()).unwrap_or_default();
            let (status, object) = answer(&parts.method, parts.uri.path(), body);
            let response = Response::builder().status(status).body(Body::from(object.to_string().into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    Client::new(service, "default")
}
