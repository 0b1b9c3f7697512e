//! The operator's own image, with which Jobs reach buckets, and the proxy on their way. Pure.

use std::str::FromStr;

use super::origin::origin;

/// Longest list of hosts without a proxy.
const LONGEST_LIST: usize = 1000;

/// The operator's own image, and what its containers get besides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OperatorImage {
    pub name: String,
    pub proxy: StoreProxy,
}

/// The proxy between Jobs and the buckets. Tenants can read it in their Jobs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoreProxy {
    /// `None`: there is none.
    pub url: Option<ProxyUrl>,
    /// Hosts and networks that are reached without it.
    pub except: Option<ProxyExceptions>,
}

#[cfg(test)]
impl OperatorImage {
    pub(crate) fn named(name: &str) -> std::sync::Arc<OperatorImage> {
        OperatorImage { name: name.to_owned(), ..OperatorImage::default() }.into()
    }
}

impl StoreProxy {
    /// Returns the variables that restic reads, as any program in Go does.
    pub(crate) fn variables(&self) -> Vec<(&'static str, &str)> {
        let Some(ProxyUrl(url)) = &self.url else { return Vec::new() };
        let except = self.except.as_ref().map(|ProxyExceptions(except)| ("NO_PROXY", except.as_str()));
        [("HTTPS_PROXY", url.as_str()), ("HTTP_PROXY", url)].into_iter().chain(except).collect()
    }
}

/// Scheme, host and port of a proxy. Credentials are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyUrl(String);

/// A list for `NO_PROXY`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyExceptions(String);

impl FromStr for ProxyUrl {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<ProxyUrl, Self::Err> {
        if text.contains('@') {
            return Err(
                "it has credentials, which every tenant could read in a Job: let the proxy admit the nodes by their addresses",
            );
        }
        origin(text).map(ProxyUrl)
    }
}

impl FromStr for ProxyExceptions {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<ProxyExceptions, Self::Err> {
        let fits = |c: u8| c.is_ascii_alphanumeric() || b".,-:/[]*_ ".contains(&c);
        match !text.trim().is_empty() && text.len() <= LONGEST_LIST && text.bytes().all(fits) {
            true => Ok(ProxyExceptions(text.trim().to_owned())),
            false => Err("hosts, domains and networks, separated by commas, are expected, such as .svc,10.0.0.0/8"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_of_proxies() {
        for (text, fits) in [
            ("http://proxy.example.com:3128", true),
            ("http://user:canary@proxy.example.com:3128", false),
            ("http://canary@proxy.example.com", false),
            ("http://proxy.example.com/path", false),
        ] {
            let parsed = text.parse::<ProxyUrl>();
            assert_eq!(parsed.is_ok(), fits, "{text}");
            assert!(parsed.err().is_none_or(|problem| !problem.contains("canary")));
        }
    }

    #[test]
    fn hosts_without_a_proxy() {
        for (text, fits) in [
            (".svc,10.0.0.0/8,s3.example.com:9000, *.internal,[fd00::1]", true),
            ("*", true),
            ("", false),
            ("a\nb", false),
            ("$(AWS_SECRET_ACCESS_KEY)", false),
        ] {
            assert_eq!(text.parse::<ProxyExceptions>().is_ok(), fits, "{text}");
        }
    }

    #[test]
    fn the_variables() {
        let (url, except) = ("http://proxy:3128".parse().ok(), ".svc".parse().ok());
        assert!(StoreProxy { url: None, except: except.clone() }.variables().is_empty());
        assert_eq!(
            StoreProxy { url, except }.variables(),
            [("HTTPS_PROXY", "http://proxy:3128"), ("HTTP_PROXY", "http://proxy:3128"), ("NO_PROXY", ".svc")]
        );
    }
}
