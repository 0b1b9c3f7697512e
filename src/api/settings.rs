//! Validates the combination of the API's flags, before anything is opened. Pure.

use std::{net::SocketAddr, path::PathBuf};

use crate::config::{ApiArgs, AuthMode, Listen};

/// How the API is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Address to listen on.
    pub listen: SocketAddr,
    /// How users are authenticated.
    pub auth: AuthMode,
    /// Audience that tokens must have.
    pub audience: String,
    /// ServingCertificate and key; `None` for plain HTTP.
    pub tls: Option<TlsFiles>,
}

/// PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate and its chain.
    pub cert: PathBuf,
    /// The private key.
    pub key: PathBuf,
}

/// An invalid combination of flags.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSettings {
    /// Every client on the network could use the API.
    #[error(
        "--api-auth none is for a loopback address only, but --api-listen is {0}: every client that reaches it could create and \
         delete instances. Use --api-auth token, or listen on 127.0.0.1"
    )]
    OpenToAll(SocketAddr),
    /// Tokens would be sent in the clear.
    #[error(
        "--api-listen {0} is not a loopback address, so tokens would cross the network in the clear: set a certificate \
                 with --api-tls-cert and --api-tls-key, or listen on 127.0.0.1"
    )]
    InTheClear(SocketAddr),
    /// ServingCertificate or key is missing.
    #[error("--api-tls-cert and --api-tls-key must be given together")]
    HalfTls,
    /// Tokens for any audience would be accepted.
    #[error("--api-audience is empty: name the audience that tokens are made for")]
    NoAudience,
}

/// The settings; `None` if the API is off.
/// An error if the flags do not go together.
pub fn settings(args: &ApiArgs) -> Result<Option<Settings>, InvalidSettings> {
    let Listen::At(listen) = args.api_listen else { return Ok(None) };
    let tls = match (&args.api_tls_cert, &args.api_tls_key) {
        (Some(cert), Some(key)) => Some(TlsFiles { cert: cert.clone(), key: key.clone() }),
        (None, None) => None,
        _ => return Err(InvalidSettings::HalfTls),
    };
    let loopback = listen.ip().to_canonical().is_loopback();
    let auth = args.api_auth.unwrap_or(if loopback { AuthMode::None } else { AuthMode::Token });
    match auth {
        AuthMode::None if !loopback => return Err(InvalidSettings::OpenToAll(listen)),
        AuthMode::Token if args.api_audience.is_empty() => return Err(InvalidSettings::NoAudience),
        _ if !loopback && tls.is_none() => return Err(InvalidSettings::InTheClear(listen)),
        _ => {}
    }
    Ok(Some(Settings { listen, auth, audience: args.api_audience.clone(), tls }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(flags: &str) -> Result<Option<Settings>, InvalidSettings> {
        #[derive(clap::Parser)]
        struct Parser {
            #[command(flatten)]
            args: ApiArgs,
        }
        let Parser { args } = clap::Parser::parse_from(["test"].into_iter().chain(flags.split_whitespace()));
        settings(&args)
    }

    #[test]
    fn what_goes_together() {
        use AuthMode::{None as Open, Token};
        const TLS: &str = "--api-tls-cert c --api-tls-key k";
        let outside: SocketAddr = "0.0.0.0:8090".parse().unwrap();
        let open_to_all = InvalidSettings::OpenToAll(outside);
        let cases = [
            ("", Ok((Open, false))),
            ("--api-auth token", Ok((Token, false))),
            ("--api-auth none", Ok((Open, false))),
            ("--api-listen 127.9.9.9:1", Ok((Open, false))),
            ("--api-listen [::1]:8090", Ok((Open, false))),
            ("--api-listen [::ffff:127.0.0.1]:8090", Ok((Open, false))),
            (TLS, Ok((Open, true))),
            ("--api-tls-cert c", Err(InvalidSettings::HalfTls)),
            ("--api-tls-key k", Err(InvalidSettings::HalfTls)),
            ("--api-auth token --api-audience=", Err(InvalidSettings::NoAudience)),
            ("--api-listen 0.0.0.0:8090", Err(InvalidSettings::InTheClear(outside))),
            ("--api-listen 0.0.0.0:8090 --api-auth token", Err(InvalidSettings::InTheClear(outside))),
            ("--api-listen 0.0.0.0:8090 --api-auth none", Err(InvalidSettings::OpenToAll(outside))),
            ("--api-listen 0.0.0.0:8090 --api-tls-cert c --api-tls-key k", Ok((Token, true))),
            ("--api-listen 0.0.0.0:8090 --api-auth none --api-tls-cert c --api-tls-key k", Err(open_to_all)),
            ("--api-listen [::]:8090 --api-tls-cert c --api-tls-key k", Ok((Token, true))),
            ("--api-listen 192.0.2.1:8090 --api-tls-cert c", Err(InvalidSettings::HalfTls)),
        ];
        for (flags, expected) in cases {
            let decided =
                of(flags).map(|settings| settings.unwrap()).map(|settings| (settings.auth, settings.tls.is_some()));
            assert_eq!(decided, expected, "{flags}");
        }
    }

    #[test]
    fn off_is_off_whatever_else_is_asked_for() {
        assert_eq!(of("--api-listen off --api-auth none --api-tls-key k"), Ok(None));
    }
}
