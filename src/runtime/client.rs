//! The operator's ways to the API server. An **effect**.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Request};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder},
};
use tower::{BoxError, ServiceBuilder, service_fn, timeout::TimeoutLayer};
use tower_http::timeout::ResponseBodyTimeoutLayer;

use super::account::AccountName;
use crate::lead::Lead;

/// A request that has no answer by then has failed.
const DEADLINE: Duration = Duration::from_secs(5);
/// A watch that is silent for longer than this is cut off: the API server sends bookmarks about every minute, and ends
/// each watch after five.
pub(crate) const WATCH_SILENCE: Duration = Duration::from_secs(300);
/// A watch, or a page of a list, that has not begun by then has failed: many times what a page of large objects takes.
const WATCH_BEGINS: Duration = Duration::from_secs(30);
/// The header of requests that are made as another user.
pub(crate) const IMPERSONATE: HeaderName = HeaderName::from_static("impersonate-user");

/// A client for requests. Each has its own deadline: kube's read timeout counts from the last byte on a connection, which may
/// have been idle for long.
pub(crate) fn requests(config: &Config) -> kube::Result<Client> {
    let config = without_retries(config, None);
    let deadlines =
        ServiceBuilder::new().layer(TimeoutLayer::new(DEADLINE)).layer(ResponseBodyTimeoutLayer::new(DEADLINE));
    Ok(ClientBuilder::try_from(config)?.with_layer(&deadlines.into_inner()).build())
}

/// A client for watches, and for the lists that they begin with: the API server answers both at once or not at all, and what follows
/// comes bit by bit.
pub(crate) fn watches(config: &Config) -> kube::Result<Client> {
    let config = without_retries(config, Some(WATCH_SILENCE));
    let answered = ServiceBuilder::new().layer(TimeoutLayer::new(WATCH_BEGINS));
    Ok(ClientBuilder::try_from(config)?.with_layer(&answered.into_inner()).build())
}

/// A client for what helm asks for: it waits for as long as the API server may take, and for a watch as long as it lasts.
pub(crate) fn forwarding(config: &Config) -> kube::Result<Client> {
    Client::try_from(without_retries(config, None))
}

/// The same client for as long as this operator leads. Then nothing is sent any more, and what is under way is cut off.
pub(crate) fn led(client: &Client, lead: &Lead) -> Client {
    let (client, lead, namespace) = (client.clone(), lead.clone(), client.default_namespace().to_owned());
    let service = service_fn(move |request: Request<Body>| {
        let (client, lead) = (client.clone(), lead.clone());
        async move {
            tokio::select! {
                biased;
                () = lead.over() => Err(BoxError::from("this operator does not lead any more")),
                answer = client.send(request) => answer.map_err(BoxError::from),
            }
        }
    });
    Client::new(service, namespace)
}

/// The same way to the API server, for requests with the rights of a ServiceAccount of this namespace, and not the operator's own.
/// The groups of a ServiceAccount are added by the API server.
pub(crate) fn impersonating(client: &Client, namespace: &str, account: &AccountName) -> Client {
    let (of, user) = (client.clone(), account.user(namespace));
    let service = service_fn(move |mut request: Request<Body>| {
        let (client, user) = (of.clone(), HeaderValue::try_from(&user));
        async move {
            // Without it the request would have the operator's rights.
            request.headers_mut().insert(IMPERSONATE, user.map_err(|error| kube::Error::HttpError(error.into()))?);
            client.send(request).await
        }
    });
    Client::new(service, namespace)
}

/// What is tried again in the client, out of sight, looks like a request that lasts: up to a quarter of an hour, or for as long as
/// a Retry-After says. Each caller has its own way to wait, and says that it does.
fn without_retries(config: &Config, read_timeout: Option<Duration>) -> Config {
    let mut config = config.clone();
    config.default_retry = false;
    config.connect_timeout = Some(DEADLINE);
    config.read_timeout = read_timeout;
    config
}
