//! Reads the addresses of servers. Pure.

/// Returns scheme, host and port of a URL with nothing else in it: credentials would reach all users who may read a Job. The error does
/// not quote it.
pub(crate) fn origin(url: &str) -> Result<String, &'static str> {
    let text = url.trim_end_matches('/');
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let fits =
        |host: &str| !host.is_empty() && host.bytes().all(|c| c.is_ascii_alphanumeric() || b".-:[]".contains(&c));
    match host {
        Some(host) if fits(host) => Ok(text.to_owned()),
        _ => Err("an http:// or https:// URL with only a host and a port is expected"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins() {
        for (text, expected) in [
            ("https://s3.example.com", Some("https://s3.example.com")),
            ("http://minio.storage.svc:9000/", Some("http://minio.storage.svc:9000")),
            ("http://[fd00::1]:3128", Some("http://[fd00::1]:3128")),
            ("s3.example.com:9000", None),
            ("ftp://s3.example.com", None),
            ("socks5://proxy.example.com", None),
            ("https://", None),
            ("https://me:canary@s3.example.com", None),
            ("https://canary@s3.example.com", None),
            ("http://user%3Acanary%40proxy.example.com", None),
            ("https://s3.example.com/path", None),
            ("https://s3.example.com?x=y", None),
        ] {
            let found = origin(text);
            assert_eq!(found.as_deref().ok(), expected, "{text}");
            assert!(found.err().is_none_or(|problem| !problem.contains("canary")));
        }
    }
}
