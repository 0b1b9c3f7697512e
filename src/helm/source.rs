//! Parses the source of charts (pure).

use std::{
    net::{IpAddr, Ipv6Addr},
    path::{Path, PathBuf},
    str::FromStr,
};

/// The source of charts, as given by `--chart-repository`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, derive_more::Display)]
pub enum ChartSource {
    /// A chart repository: an `https://` URL without a trailing slash (`http://` for a loopback host).
    Repository(String),
    /// The `oci://` URL of the charts in an OCI registry, without a trailing slash. `plain_http` disables TLS, for loopback hosts only.
    #[display("{url}")]
    Registry { url: String, plain_http: bool },
    /// A directory of packaged charts, `<chart>-<version>.tgz`; an absolute path.
    #[display("{}", _0.display())]
    Directory(PathBuf),
}

/// Says why a source is invalid. The text is not quoted, because it may contain credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSource {
    #[error("a chart repository is an https:// or oci:// URL, or a directory; {reason}")]
    Malformed { reason: &'static str },
    #[error(
        "charts are fetched with TLS: http:// is only for a registry or repository on this machine, and {host} is not"
    )]
    PlainHttp { host: String },
    #[error("a chart repository's URL must not hold credentials: it is logged and shown in status")]
    Credentials,
}

impl FromStr for ChartSource {
    type Err = InvalidSource;

    fn from_str(text: &str) -> Result<Self, InvalidSource> {
        let malformed = |reason| Err(InvalidSource::Malformed { reason });
        if text.is_empty() {
            return malformed("this one is empty");
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return match std::path::absolute(text) {
                // `oci:registry` or `nextcloud:5` is a typo rather than the name of a directory.
                Ok(path) if !text.contains([':', '\0']) => Ok(Self::Directory(path)),
                _ => malformed("this one is neither"),
            };
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.contains('@') {
            return Err(InvalidSource::Credentials);
        }
        if rest.contains(['?', '#', '@']) {
            return malformed("this one has a query, a fragment or an @");
        }
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) || rest.contains(['\\', '"', '\'', '<', '>', '`']) {
            return malformed("this one has a character that is not valid in a URL");
        }
        let Some(host) = host(authority) else { return malformed("this one has no valid host and port") };
        let path = path.trim_end_matches('/');
        if path.split('/').any(|segment| segment == ".." || segment == ".") {
            return malformed("this one has a . or .. in its path");
        }
        let url =
            if path.is_empty() { format!("{scheme}://{authority}") } else { format!("{scheme}://{authority}/{path}") };
        match scheme {
            "https" => Ok(Self::Repository(url)),
            "http" if is_loopback(host) => Ok(Self::Repository(url)),
            "http" => Err(InvalidSource::PlainHttp { host: host.to_owned() }),
            "oci" => Ok(Self::Registry { url, plain_http: is_loopback(host) }),
            _ => malformed("this one has another scheme"),
        }
    }
}

impl ChartSource {
    /// Returns the path of a packaged chart, if the source is a directory.
    pub(super) fn file(&self, file_name: &str) -> Option<PathBuf> {
        match self {
            Self::Directory(path) => Some(Path::join(path, file_name)),
            Self::Repository(_) | Self::Registry { .. } => None,
        }
    }
}

/// Returns the host of `host`, `host:port`, `[v6]` or `[v6]:port`.
fn host(authority: &str) -> Option<&str> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']')?;
            host.parse::<Ipv6Addr>().ok()?;
            (host, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
        }
        None => authority.split_once(':').map_or((authority, None), |(host, port)| (host, Some(port))),
    };
    let named = host.contains(':') // an IPv6 address, parsed above
        || (host.starts_with(|char: char| char.is_ascii_alphanumeric())
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)));
    let numbered =
        port.is_none_or(|port| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok());
    (named && numbered).then_some(host)
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repository(url: &str) -> Result<ChartSource, InvalidSource> {
        Ok(ChartSource::Repository(url.to_owned()))
    }

    fn registry(url: &str, plain_http: bool) -> Result<ChartSource, InvalidSource> {
        Ok(ChartSource::Registry { url: url.to_owned(), plain_http })
    }

    #[test]
    fn accepted() {
        let rows = [
            ("https://nextcloud.github.io/helm/", repository("https://nextcloud.github.io/helm")),
            ("https://charts.example.com", repository("https://charts.example.com")),
            ("https://charts.example.com:8443/a/b", repository("https://charts.example.com:8443/a/b")),
            ("http://127.0.0.1:8080/charts", repository("http://127.0.0.1:8080/charts")),
            ("http://localhost", repository("http://localhost")),
            ("http://[::1]:8080", repository("http://[::1]:8080")),
            ("oci://ghcr.io/nextcloud/charts", registry("oci://ghcr.io/nextcloud/charts", false)),
            ("oci://127.0.0.1:5000/charts", registry("oci://127.0.0.1:5000/charts", true)),
            ("/var/lib/charts", Ok(ChartSource::Directory("/var/lib/charts".into()))),
        ];
        for (text, expected) in rows {
            assert_eq!(text.parse(), expected, "{text}");
        }
        assert!(matches!("charts".parse(), Ok(ChartSource::Directory(path)) if path.is_absolute()));
    }

    #[test]
    fn refused() {
        for text in [
            "",
            "ftp://example.com",
            "file:///charts",
            "https://",
            "https:///path",
            "https://-example.com",
            "https://example.com:port",
            "https://example.com:99999",
            "https://example.com/a b",
            "https://example.com/a?token=b",
            "https://example.com/#a",
            "https://example.com/../..",
            "https://example.com/\u{202e}",
            "https://[::1",
            "https://[x]/",
            "oci:example.com",
            "a\0b",
        ] {
            assert!(matches!(text.parse::<ChartSource>(), Err(InvalidSource::Malformed { .. })), "{text:?}");
        }
        for text in
            ["http://example.com", "http://127.0.0.1.example.com", "http://10.0.0.1", "http://169.254.169.254/x"]
        {
            assert!(matches!(text.parse::<ChartSource>(), Err(InvalidSource::PlainHttp { .. })), "{text}");
        }
    }

    #[test]
    fn credentials_are_refused_and_not_repeated() {
        for text in ["https://user:canary@example.com", "oci://canary@example.com/x", "http://a:canary@127.0.0.1"] {
            let error = text.parse::<ChartSource>().unwrap_err();
            assert_eq!(error, InvalidSource::Credentials);
            assert!(!format!("{error} {error:?}").contains("canary"));
        }
    }
}
