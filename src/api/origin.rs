//! Without authentication, every client that reaches the loopback address is admitted, including any page in a browser on this machine.
//! Two headers that pages cannot forge keep those out: Host (DNS rebinding) and Origin (cross-site requests). Pure.

use std::net::IpAddr;

use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header, uri::Authority};

use super::problem::Problem;

/// Refuses a request that is not addressed to this machine, or that comes from another site's page.
/// 421 for the name of another host, 403 for a request of another page.
pub(crate) fn check(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), Problem> {
    // Only HTTP/1.0 permits a request without Host, and no browser sends that.
    let hosts = headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let mut hosts = hosts.chain(uri.authority().map(Authority::as_str));
    if let Some(host) = hosts.find(|host| !is_loopback(host)) {
        let detail = format!(
            "Host is {host:?}, but without authentication this API is served to this machine only: use localhost or \
             127.0.0.1."
        );
        return Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, "WrongHost", detail));
    }
    let own = |origin: &HeaderValue| {
        let origin = origin.to_str().unwrap_or_default();
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
        authority.zip(host).is_some_and(|(authority, host)| authority.eq_ignore_ascii_case(host))
    };
    if !method.is_safe() && !headers.get_all(header::ORIGIN).iter().all(own) {
        let detail = "The request comes from another page, and without authentication only the API's own page may change anything.";
        return Err(Problem::new(StatusCode::FORBIDDEN, "WrongOrigin", detail));
    }
    Ok(())
}

/// Returns true if a Host header names this machine, on any port.
fn is_loopback(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host();
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    !host.contains('@')
        && (name.eq_ignore_ascii_case("localhost")
            || address.parse().is_ok_and(|address: IpAddr| address.is_loopback()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(method: &Method, uri: &str, headers: &[(header::HeaderName, &str)]) -> u16 {
        let headers = headers.iter().map(|(name, value)| (name.clone(), value.parse().unwrap())).collect();
        check(method, &uri.parse().unwrap(), &headers).map_or_else(|problem| problem.status().as_u16(), |()| 200)
    }

    #[test]
    fn hosts() {
        let ours = ["localhost", "LOCALHOST:8090", "127.0.0.1", "127.0.0.1:8090", "127.1.2.3:1", "[::1]", "[::1]:8090"];
        for host in ours {
            assert_eq!(checked(&Method::GET, "/", &[(header::HOST, host)]), 200, "{host}");
        }
        let others = [
            "",
            "example.com",
            "evil.localhost.example.com:8090",
            "127.0.0.1.example.com",
            "localhost.example.com",
            "user@localhost",
            "0.0.0.0:8090",
            "192.0.2.1",
            "[2001:db8::1]:8090",
            "127.0.0.1, example.com",
        ];
        for host in others {
            assert_eq!(checked(&Method::GET, "/", &[(header::HOST, host)]), 421, "{host}");
        }
        assert_eq!(checked(&Method::GET, "/", &[]), 200);
        assert_eq!(checked(&Method::GET, "/", &[(header::HOST, "localhost"), (header::HOST, "example.com")]), 421);
        assert_eq!(checked(&Method::GET, "http://example.com/", &[(header::HOST, "localhost")]), 421);
    }

    #[test]
    fn origins() {
        let from = |method: Method, origin: &str| {
            checked(&method, "/instances", &[(header::HOST, "localhost:8090"), (header::ORIGIN, origin)])
        };
        for own in ["http://localhost:8090", "https://localhost:8090", "http://LocalHost:8090"] {
            assert_eq!(from(Method::POST, own), 200, "{own}");
        }
        for other in ["null", "", "http://localhost", "http://localhost:3000", "http://example.com", "file://"] {
            assert_eq!(from(Method::POST, other), 403, "{other}");
            assert_eq!(from(Method::DELETE, other), 403, "{other}");
            assert_eq!(from(Method::GET, other), 200, "{other}");
        }
        assert_eq!(checked(&Method::POST, "/instances", &[(header::HOST, "localhost:8090")]), 200);
        assert_eq!(checked(&Method::POST, "/", &[(header::ORIGIN, "http://localhost:8090")]), 403);
    }
}
