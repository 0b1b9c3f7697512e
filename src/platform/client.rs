//! Makes the operator's clients of the API server. An **effect**.

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, Request, Response, Uri};
use hyper::rt::{Read, Write};
use hyper_util::{
    client::{
        legacy::{
            Client as HttpClient,
            connect::{
                Connection, HttpConnector,
                proxy::{SocksV5, Tunnel},
            },
        },
        proxy::matcher::{Intercept, Matcher},
    },
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ConfigExt as _},
};
use tower::{BoxError, Service, ServiceBuilder, service_fn, timeout::Timeout};

use super::account::AccountName;
use crate::leadership::Leadership;

/// A request whose answer is not complete by then has failed, so that the failure is reported within five seconds.
const DEADLINE: Duration = Duration::from_secs(4);
/// Deadline for a page of a list: many times what a page of large objects takes.
const LIST_DEADLINE: Duration = Duration::from_secs(30);
/// TCP keepalive: after how long without data the kernel probes the other end of a connection, and how often it probes again.
const PROBE: Duration = Duration::from_secs(20);
const PROBE_AGAIN: Duration = Duration::from_secs(10);
/// A connection is broken if the other end acknowledges nothing for this long. Without this limit, an operator that is cut off would
/// not notice for five minutes that its watches are dead, because a working watch may be silent for that long.
const UNACKNOWLEDGED: Duration = Duration::from_secs(40);
/// Limit for requests of helm. The kernel goes on sending what a closed connection has not sent yet: when a network comes back, a
/// request of a run that is long over could still arrive, after another operator has begun to lead. So this is not longer than the
/// time between the end of a term and the beginning of the next operator's (see `lease`).
const UNACKNOWLEDGED_BY_HELM: Duration = Duration::from_secs(2);
/// Names the hosts that are never reached through a proxy of the environment.
const LOOPBACK: &str = "localhost,127.0.0.0/8,::1";
/// The header of requests that are made as another user.
pub(crate) const IMPERSONATE: HeaderName = HeaderName::from_static("impersonate-user");

pub(crate) fn requests(config: &Config) -> kube::Result<Client> {
    Ok(within(connection(config, UNACKNOWLEDGED)?, DEADLINE))
}

/// Returns a client for watches, and for the lists that they begin with.
pub(crate) fn watches(config: &Config) -> kube::Result<Client> {
    Ok(within(connection(config, UNACKNOWLEDGED)?, LIST_DEADLINE))
}

/// Returns a client for a user's commands; with a limit of zero, a request takes as long as it does.
pub(crate) fn commands(config: &Config, limit: Duration) -> kube::Result<Client> {
    let client = connection(config, UNACKNOWLEDGED)?;
    Ok(if limit.is_zero() { client } else { within(client, limit) })
}

/// Returns a client for helm's requests: it waits as long as the API server takes to answer, and lets a watch run as long as it lasts.
pub(crate) fn forwarding(config: &Config) -> kube::Result<Client> {
    connection(config, UNACKNOWLEDGED_BY_HELM)
}

/// Connects a client that does not retry. Retries inside the client would look like one slow request, of up to a quarter of an hour or as
/// long as a Retry-After says. Each caller has its own backoff, and reports that it waits.
fn connection(config: &Config, unacknowledged: Duration) -> kube::Result<Client> {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_connect_timeout(Some(DEADLINE));
    connector.set_keepalive(Some(PROBE));
    connector.set_keepalive_interval(Some(PROBE_AGAIN));
    connector.set_tcp_user_timeout(Some(unacknowledged));
    let Some(proxy) = proxy(config, |name| std::env::var(name).ok())? else { return over(connector, config) };
    match (proxy.uri().scheme_str(), proxy.basic_auth(), proxy.raw_auth()) {
        (Some("http"), None, _) => over(Tunnel::new(proxy.uri().clone(), connector), config),
        (Some("http"), Some(auth), _) => {
            over(Tunnel::new(proxy.uri().clone(), connector).with_auth(auth.clone()), config)
        }
        (Some("socks5" | "socks5h"), _, None) => over(SocksV5::new(proxy.uri().clone(), connector), config),
        (Some("socks5" | "socks5h"), _, Some((user, password))) => {
            let socks = SocksV5::new(proxy.uri().clone(), connector);
            over(socks.with_auth(user.to_owned(), password.to_owned()), config)
        }
        _ => Err(kube::Error::ProxyProtocolUnsupported { proxy_url: Box::new(proxy.uri().clone()) }),
    }
}

/// Returns the proxy to the API server. Its address is in `Config`: kube takes it from the kubeconfig or else from HTTPS_PROXY, and
/// never inside a cluster. As for kubectl, only that of the environment is not for loopback addresses and what NO_PROXY names; kube
/// looks for the proxy itself in NO_PROXY. **Pure.**
fn proxy(config: &Config, environment: impl Fn(&str) -> Option<String>) -> kube::Result<Option<Intercept>> {
    let Some(url) = &config.proxy_url else { return Ok(None) };
    let either = |names: [&str; 2]| names.into_iter().filter_map(&environment).find(|value| !value.is_empty());
    let of_environment = either(["HTTPS_PROXY", "https_proxy"]).and_then(|proxy| proxy.parse::<Uri>().ok());
    let direct = match of_environment.as_ref() == Some(url) {
        true => format!("{LOOPBACK},{}", either(["NO_PROXY", "no_proxy"]).unwrap_or_default()),
        false => String::new(),
    };
    let proxy = |but: String| Matcher::builder().all(url.to_string()).no(but).build().intercept(&config.cluster_url);
    match proxy(String::new()) {
        None => Err(kube::Error::ProxyProtocolUnsupported { proxy_url: Box::new(url.clone()) }),
        Some(_) => Ok(proxy(direct)),
    }
}

/// Makes a client of connections, to which TLS is added.
fn over<C>(connector: C, config: &Config) -> kube::Result<Client>
where
    C: Service<Uri, Error: Into<BoxError>, Future: Unpin + Send> + Clone + Send + Sync + 'static,
    C::Response: Connection + Read + Write + Send + Unpin + 'static,
{
    let connector = config.rustls_https_connector_with_connector(connector)?;
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(HttpClient::builder(TokioExecutor::new()).build(connector));
    Ok(Client::new(service, &config.default_namespace))
}

/// Limits the client to requests whose answers are complete by the deadline. A watch must only begin by then: it goes on for as
/// long as kube and the API server let it, and ends within five minutes.
fn within(client: Client, deadline: Duration) -> Client {
    let namespace = client.default_namespace().to_owned();
    let service = service_fn(move |request: Request<Body>| {
        let client = client.clone();
        let goes_on = request.uri().query().is_some_and(|query| query.split('&').any(|part| part == "watch=true"));
        async move {
            let (head, body) = client.send(request).await?.into_parts();
            let body = if goes_on { body } else { body.collect_bytes().await?.into() };
            Ok::<_, kube::Error>(Response::from_parts(head, body))
        }
    });
    Client::new(Timeout::new(service, deadline), namespace)
}

/// Limits the client to the time in which this operator leads. After that it sends nothing more, and aborts requests in progress.
pub(crate) fn led(client: &Client, lead: &Leadership) -> Client {
    let (client, lead, namespace) = (client.clone(), lead.clone(), client.default_namespace().to_owned());
    let service = service_fn(move |request: Request<Body>| {
        let (client, lead) = (client.clone(), lead.clone());
        async move {
            tokio::select! {
                biased;
                () = lead.lost() => Err(BoxError::from("this operator is no longer the leader")),
                answer = client.send(request) => answer.map_err(BoxError::from),
            }
        }
    });
    Client::new(service, namespace)
}

/// Gives the client the rights of a ServiceAccount of this namespace instead of the operator's own. The API server adds
/// the groups of the ServiceAccount.
pub(crate) fn impersonating(client: &Client, namespace: &str, account: &AccountName) -> Client {
    let (client, user) = (client.clone(), account.user(namespace));
    let service = service_fn(move |mut request: Request<Body>| {
        let (client, user) = (client.clone(), HeaderValue::try_from(&user));
        async move {
            // Without this header the request would have the operator's rights.
            request.headers_mut().insert(IMPERSONATE, user.map_err(|error| kube::Error::HttpError(error.into()))?);
            client.send(request).await
        }
    });
    Client::new(service, namespace)
}

#[cfg(test)]
mod tests {
    use std::{convert::Infallible, future::pending};

    use axum::body::{Body as Answer, Bytes};
    use futures::{StreamExt as _, stream};
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    #[tokio::test]
    async fn an_answer_is_here_to_its_last_byte_by_the_deadline_or_has_failed() {
        // Each pause is short, but together they are long.
        let trickle = || {
            let bytes = stream::iter(0..10_000_000).then(async |_| {
                tokio::task::yield_now().await;
                Ok::<_, Infallible>(Bytes::from_static(b" "))
            });
            Response::new(Answer::from_stream(bytes))
        };
        let server = service_fn(move |request: Request<Body>| async move {
            match request.uri().path() {
                "/hangs" => pending().await,
                "/trickles" => Ok::<_, Infallible>(trickle()),
                _ => Ok(Response::new(Answer::from("whole"))),
            }
        });
        let client = within(Client::new(server, "default"), Duration::from_millis(50));
        for (uri, answered) in [
            ("/whole?limit=1", true),
            ("/trickles", false),
            ("/trickles?watch=false", false),
            ("/trickles?limit=1&watch=true", true),
            ("/hangs", false),
            ("/hangs?watch=true", false),
        ] {
            let request = Request::get(uri).body(Body::empty()).unwrap();
            assert_eq!(client.send(request).await.is_ok(), answered, "{uri}");
        }
    }

    #[test]
    fn which_proxy_is_used() {
        const PROXY: &str = "http://127.0.0.1:3128";
        let proxied = |server: &'static str, of_kubeconfig: Option<&'static str>, environment: &[(&str, &str)]| {
            let mut config = Config::new(Uri::from_static(server));
            let of = |name: &str| environment.iter().find(|(known, _)| *known == name).map(|(_, it)| (*it).to_owned());
            // As kube does.
            config.proxy_url = of_kubeconfig.map(str::to_owned).or(of("HTTPS_PROXY")).map(|url| url.parse().unwrap());
            proxy(&config, of).map(|proxy| proxy.map(|proxy| proxy.uri().to_string())).map_err(drop)
        };
        let used = |proxy: &str| Ok(Some(format!("{proxy}/")));
        let (far, near) = ("https://api.shop.example.com:6443", "https://127.0.0.1:6443");
        for (server, of_kubeconfig, environment, expected) in [
            (far, None, &[][..], Ok(None)),
            (far, None, &[("HTTPS_PROXY", PROXY)], used(PROXY)),
            (near, None, &[("HTTPS_PROXY", PROXY)], Ok(None)),
            ("https://[::1]:6443", None, &[("HTTPS_PROXY", PROXY)], Ok(None)),
            ("https://[fd00:10::1]", None, &[("HTTPS_PROXY", PROXY)], used(PROXY)),
            ("https://[fd00:10::1]", None, &[("HTTPS_PROXY", PROXY), ("NO_PROXY", "fd00:10::/108")], Ok(None)),
            (far, None, &[("HTTPS_PROXY", PROXY), ("NO_PROXY", "10.0.0.0/8, .example.com")], Ok(None)),
            (far, None, &[("HTTPS_PROXY", PROXY), ("NO_PROXY", ""), ("no_proxy", "api.shop.example.com")], Ok(None)),
            // The proxy itself is named.
            (far, None, &[("HTTPS_PROXY", PROXY), ("NO_PROXY", "localhost,127.0.0.1")], used(PROXY)),
            (near, Some("socks5://a:1"), &[("HTTPS_PROXY", PROXY), ("NO_PROXY", "*")], used("socks5://a:1")),
            (far, Some("ftp://a:1"), &[], Err(())),
        ] {
            assert_eq!(proxied(server, of_kubeconfig, environment), expected, "{server} {environment:?}");
        }
    }

    #[tokio::test]
    async fn a_connection_on_which_nothing_comes_is_asked_for_a_sign_of_life() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let client = watches(&Config::new(format!("http://{address}").parse().unwrap())).unwrap();
        let begins = async {
            let (mut connection, _) = listener.accept().await.unwrap();
            // The answer acknowledges the request.
            _ = connection.read(&mut [0; 4096]).await.unwrap();
            connection.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").await.unwrap();
            connection
        };
        let request = Request::get("/api/v1/pods?watch=true").body(Body::empty()).unwrap();
        let (_server, watch) = tokio::join!(begins, client.send(request));
        let _watch = watch.unwrap();
        // man 5 proc_net_tcp: the remote address, and a timer (2: keepalive) with the hundredths of a second that it has left.
        let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let to = format!("0100007F:{:04X}", address.port());
        let socket = sockets.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let socket = socket.into_iter().find(|words| words[2] == to).expect("a connection to the server");
        let (timer, left) = socket[5].split_once(':').unwrap();
        let left = Duration::from_millis(10 * u64::from_str_radix(left, 16).unwrap());
        assert!(timer == "02" && left <= PROBE, "{socket:?}");
    }
}
