//! `GET /openapi.json`: the API's own description, from the code that serves it.

use axum::{http::StatusCode, response::Response};
use utoipa::OpenApi;

use super::routes::{self, json};

#[derive(OpenApi)]
#[openapi(
    info(title = "ClientApp operator", description = "Instances of a web app, on demand."),
    paths(routes::list, routes::make, routes::show, routes::remove, routes::follow, document),
    components(schemas(super::dto::Happened)),
    tags((name = "instances", description = "Instances of the app"))
)]
struct Document;

/// This document
#[utoipa::path(
    get, path = "/openapi.json", tag = "openapi",
    responses((status = 200, description = "The API in the words of OpenAPI 3.1", body = Object))
)]
pub async fn document() -> Response {
    json(StatusCode::OK, &Document::openapi())
}
