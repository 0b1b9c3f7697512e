//! `GET /openapi.json`: the API's description, generated from the code that serves it.

use std::sync::LazyLock;

use axum::{body::Bytes, http::StatusCode, response::Response};
use utoipa::{
    Modify, OpenApi,
    openapi::{
        OpenApi as Description,
        security::{Http, HttpAuthScheme, SecurityScheme},
    },
};

use super::{
    backups,
    routes::{self, json_bytes},
};

#[derive(OpenApi)]
#[openapi(
    info(title = "ClientApp operator", description = "Instances of a web app, on demand."),
    paths(
        routes::list, routes::make, routes::show, routes::remove, routes::follow,
        backups::list_backups, backups::make_backup, backups::show_backup,
        backups::list_restores, backups::make_restore, backups::show_restore,
        document,
    ),
    components(schemas(super::dto::Happened)),
    modifiers(&Tokens),
    security((), ("token" = [])),
    tags(
        (name = "instances", description = "Instances of the app"),
        (name = "backups", description = "Backups of instances, and restores from them")
    )
)]
struct Document;

/// How callers authenticate, unless the API is served to its own machine only.
struct Tokens;

impl Modify for Tokens {
    fn modify(&self, description: &mut Description) {
        let token = SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer));
        description.components.get_or_insert_default().add_security_scheme("token", token);
    }
}

/// This document
#[utoipa::path(
    get, path = "/openapi.json", tag = "openapi",
        responses((status = 200, description = "The API in OpenAPI 3.1 format", body = Object))
)]
pub(crate) async fn document() -> Response {
    static BYTES: LazyLock<Bytes> =
        LazyLock::new(|| serde_json::to_vec(&Document::openapi()).unwrap_or_default().into());
    json_bytes(StatusCode::OK, BYTES.clone())
}
