//! How to reach the API server, in kubectl's own words: kubectl hands its flags on to a plugin only if they follow the plugin's name.
//! Pure.

use std::{fmt::Display, path::PathBuf, time::Duration};

use axum::http::Uri;
use clap::Args;
use kube::{
    Config,
    config::{AuthInfo, KubeConfigOptions},
};

use super::text::duration;

/// The flags of the connection; what is not given is as the kubeconfig says.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Connection, as for kubectl")]
pub(crate) struct Connection {
    /// Kubeconfig; defaults to $KUBECONFIG or ~/.kube/config.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig; defaults to the current context.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// Cluster of the kubeconfig, instead of the context's.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) cluster: Option<String>,
    /// User of the kubeconfig, instead of the context's.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) user: Option<String>,
    /// Address of the API server.
    #[arg(short, long, global = true, value_name = "URL", value_parser = url)]
    pub(crate) server: Option<Uri>,
    /// Bearer token, instead of the user's credentials.
    #[arg(long, global = true, value_name = "TOKEN")]
    token: Option<Token>,
    /// User, or ServiceAccount as system:serviceaccount:NAMESPACE:NAME, to act as.
    #[arg(long = "as", global = true, value_name = "USER")]
    as_user: Option<String>,
    /// Group to act as; may be repeated.
    #[arg(long, global = true, value_name = "GROUP", requires = "as_user")]
    as_group: Vec<String>,
    /// Uid to act as.
    #[arg(long, global = true, value_name = "UID", requires = "as_user")]
    as_uid: Option<String>,
    /// File with the certificates that the API server's is verified with.
    #[arg(long, global = true, value_name = "FILE", conflicts_with = "insecure_skip_tls_verify")]
    certificate_authority: Option<PathBuf>,
    /// Do not verify the API server's certificate: an attacker in between can read and change everything.
    #[arg(long, global = true)]
    insecure_skip_tls_verify: bool,
    /// Name that the API server's certificate is for, if not the server's own.
    #[arg(long, global = true, value_name = "NAME")]
    tls_server_name: Option<String>,
    /// How long a request may take, such as 10s; 0 for no limit. Defaults to 30s.
    #[arg(long, global = true, value_name = "TIME", value_parser = request_timeout)]
    pub(crate) request_timeout: Option<Duration>,
}

/// The flags with which another command reaches the same namespace of the same cluster.
#[derive(Clone, Debug)]
pub(crate) struct Flags(String);

impl Flags {
    /// Returns a command that a message prints for the user to paste. **Pure.**
    pub(crate) fn command(&self, line: impl Display) -> String {
        format!("`{line} {}`", self.0)
    }
}

/// Never printed. It is not parsed, so clap has no error that quotes it.
#[derive(Clone, derive_more::Debug, derive_more::From)]
#[debug("…")]
struct Token(String);

impl Connection {
    /// Returns the flags that choose this namespace, and the cluster as the user has done. **Pure.**
    pub(crate) fn flags(&self, namespace: &str) -> Flags {
        let kubeconfig = self.kubeconfig.as_ref().map(|path| path.display().to_string());
        let server = self.server.as_ref().map(ToString::to_string);
        let given = [
            ("-n", Some(namespace)),
            ("--kubeconfig", kubeconfig.as_deref()),
            ("--context", self.context.as_deref()),
            ("--cluster", self.cluster.as_deref()),
            ("--user", self.user.as_deref()),
            ("--server", server.as_deref()),
        ];
        let flags = given.into_iter().filter_map(|(flag, value)| Some(format!("{flag} {}", quoted(value?))));
        Flags(flags.collect::<Vec<_>>().join(" "))
    }

    /// What to take from the kubeconfig.
    pub(crate) fn options(&self) -> KubeConfigOptions {
        KubeConfigOptions { context: self.context.clone(), cluster: self.cluster.clone(), user: self.user.clone() }
    }

    /// The flag whose value cannot be sent in a header of HTTP; it is not quoted, since it may be a token. **Pure.**
    pub(crate) fn unfit(&self) -> Option<&'static str> {
        let Connection { token, as_user, as_group, as_uid, .. } = self;
        let is_unfit = |text: &&str| text.chars().any(|char| char.is_control() || !char.is_ascii());
        let token = token.iter().map(|Token(token)| ("--token", token.as_str()));
        let user = as_user.iter().map(|user| ("--as", user.as_str()));
        let groups = as_group.iter().map(|group| ("--as-group", group.as_str()));
        let uid = as_uid.iter().map(|uid| ("--as-uid", uid.as_str()));
        token.chain(user).chain(groups).chain(uid).find(|(_, text)| is_unfit(text)).map(|(flag, _)| flag)
    }

    /// The connection of the kubeconfig, changed as the flags say. **Pure.**
    pub(crate) fn applied(&self, mut config: Config) -> Config {
        let Connection {
            // The session reads it.
            kubeconfig: _,
            // See `options`.
            context: _,
            cluster: _,
            user: _,
            server,
            token,
            as_user,
            as_group,
            as_uid,
            certificate_authority,
            insecure_skip_tls_verify,
            tls_server_name,
            // The client has its own timeout.
            request_timeout: _,
        } = self;
        let auth = &mut config.auth_info;
        if let Some(Token(token)) = token {
            // A client certificate would take precedence over the token.
            let before = std::mem::take(auth);
            *auth = AuthInfo {
                token: Some(token.clone().into()),
                impersonate: before.impersonate,
                impersonate_uid: before.impersonate_uid,
                impersonate_groups: before.impersonate_groups,
                impersonate_user_extra: before.impersonate_user_extra,
                ..AuthInfo::default()
            };
        }
        if let Some(user) = as_user {
            auth.impersonate = Some(user.clone());
            auth.impersonate_groups = Some(as_group.clone());
            auth.impersonate_uid.clone_from(as_uid);
            auth.impersonate_user_extra = None;
        }
        if let Some(server) = server {
            config.cluster_url = server.clone();
        }
        if let Some(file) = certificate_authority {
            // The file is what counts; without the empty list, kube would also want the system's certificates.
            config.root_cert = Some(Vec::new());
            config.root_cert_file = Some(file.clone());
            config.accept_invalid_certs = false;
        }
        config.accept_invalid_certs |= insecure_skip_tls_verify;
        if tls_server_name.is_some() {
            config.tls_server_name.clone_from(tls_server_name);
        }
        config
    }
}

/// Quotes a word for a shell, if it needs that.
fn quoted(word: &str) -> String {
    let is_plain = |char: char| char.is_ascii_alphanumeric() || "/:@.,_-+=".contains(char);
    if word.chars().all(is_plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

fn url(text: &str) -> Result<Uri, &'static str> {
    let parsed = text.parse::<Uri>().ok().filter(|uri| matches!(uri.scheme_str(), Some("http" | "https")));
    parsed.ok_or("expected a URL such as https://cluster.example.com:6443")
}

/// kubectl takes seconds, too.
fn request_timeout(text: &str) -> Result<Duration, String> {
    text.parse().map(Duration::from_secs).or_else(|_| duration(text))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::plugin::args::Cli;

    fn parsed(flags: &[&str]) -> Result<Connection, clap::Error> {
        let line = ["kubectl-clientapp", "check"];
        Cli::try_parse_from(line.iter().chain(flags)).map(|cli| cli.global.connection)
    }

    /// What the flags make of a kubeconfig with a client certificate, a CA and an impersonated user.
    fn applied(flags: &[&str]) -> Config {
        let mut config = Config::new(Uri::from_static("https://theirs"));
        config.auth_info.client_certificate_data = Some("certificate".to_owned());
        config.auth_info.impersonate = Some("theirs".to_owned());
        config.auth_info.impersonate_uid = Some("1".to_owned());
        config.root_cert = Some(vec![vec![1]]);
        parsed(flags).unwrap().applied(config)
    }

    #[test]
    fn what_each_flag_changes() {
        let none = applied(&[]);
        assert_eq!(none.cluster_url, "https://theirs/");
        assert_eq!(none.auth_info.impersonate.as_deref(), Some("theirs"));
        assert!(!none.accept_invalid_certs && none.root_cert == Some(vec![vec![1]]));

        assert_eq!(applied(&["-s", "http://127.0.0.1:1"]).cluster_url, "http://127.0.0.1:1/");
        let as_them = applied(&["--as", "ada", "--as-group", "a", "--as-group=b"]).auth_info;
        assert_eq!(as_them.impersonate.as_deref(), Some("ada"));
        assert_eq!(as_them.impersonate_groups, Some(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!(as_them.impersonate_uid, None, "it is the uid of another user");
        assert_eq!(applied(&["--as", "ada", "--as-uid", "7"]).auth_info.impersonate_uid.as_deref(), Some("7"));

        let token = applied(&["--token", "secret"]).auth_info;
        assert!(token.token.is_some() && token.client_certificate_data.is_none());
        assert_eq!(token.impersonate.as_deref(), Some("theirs"));

        let file = applied(&["--certificate-authority", "ca.crt"]);
        assert_eq!((file.root_cert, file.root_cert_file), (Some(vec![]), Some("ca.crt".into())));
        assert!(applied(&["--insecure-skip-tls-verify"]).accept_invalid_certs);
        assert_eq!(applied(&["--tls-server-name", "api"]).tls_server_name.as_deref(), Some("api"));
        let options = parsed(&["--context", "a", "--cluster", "b", "--user", "c"]).unwrap().options();
        assert_eq!([options.context, options.cluster, options.user].map(Option::unwrap), ["a", "b", "c"]);
    }

    #[test]
    fn commands_to_paste_reach_the_same_cluster() {
        for (flags, expected) in [
            (&[][..], "-n shop"),
            (&["--kubeconfig", "/home/it's/my config"], r"-n shop --kubeconfig '/home/it'\''s/my config'"),
            (&["--context", "ada@prod", "--token", "secret"], "-n shop --context ada@prod"),
            (&["--cluster=a", "--user=b", "-s", "http://c:1"], "-n shop --cluster a --user b --server http://c:1/"),
        ] {
            let command = parsed(flags).unwrap().flags("shop").command("kubectl get clientapps");
            assert_eq!(command, format!("`kubectl get clientapps {expected}`"));
        }
    }

    #[test]
    fn what_no_header_can_carry() {
        assert_eq!(parsed(&["--token", "a.b-c_d=", "--as", "ada lovelace"]).unwrap().unfit(), None);
        for (flags, expected) in [
            (&["--token", "can\nary"][..], "--token"),
            (&["--as", "ad\u{e4}"], "--as"),
            (&["--as", "ada", "--as-group", "a", "--as-group", "\r"], "--as-group"),
            (&["--as", "ada", "--as-uid", "\u{7f}"], "--as-uid"),
        ] {
            assert_eq!(parsed(flags).unwrap().unfit(), Some(expected));
        }
    }

    #[test]
    fn times_of_requests() {
        assert_eq!(parsed(&[]).unwrap().request_timeout, None);
        for (given, seconds) in [("0", 0), ("7", 7), ("2m", 120)] {
            let parsed = parsed(&["--request-timeout", given]).unwrap();
            assert_eq!(parsed.request_timeout, Some(Duration::from_secs(seconds)), "{given}");
        }
    }

    #[test]
    fn what_is_refused_and_never_with_the_token() {
        for flags in [
            &["--as-group", "a"][..],
            &["--as-uid", "a"],
            &["--server", "cluster.example.com"],
            &["--insecure-skip-tls-verify", "--certificate-authority", "a"],
            &["--request-timeout", "soon"],
        ] {
            let refused = parsed(&[&["--token", "secret"], flags].concat()).unwrap_err();
            assert!(refused.exit_code() == 2 && !refused.to_string().contains("secret"), "{refused}");
        }
        let shown = format!("{:?}", parsed(&["--token=secret"]).unwrap());
        assert!(!shown.contains("secret"), "{shown}");
    }
}
