//! Flags and environment, validated at start-up so that no setting fails later.

use std::{
    ffi::OsStr, fmt::Display, marker::PhantomData, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration,
};

use clap::{Arg, Args, Command, ValueEnum, builder::TypedValueParser, error::ErrorKind};
use jiff::SignedDuration;
use serde_json::Value;

use crate::{
    helm::{ChartName, ChartSource, CredentialFiles, Flags, HelmSettings, InvalidCredentials, values},
    lease::rules::{MAX_DURATION, MIN_DURATION},
    platform::operator_image::{ProxyExceptions, ProxyUrl, StoreProxy},
    yaml,
};

/// Base values for known charts, by chart name.
const KNOWN_VALUES: &[(&str, &str)] = &[("nextcloud", include_str!("../helm-values/nextcloud.yaml"))];
/// Time for a helm run in addition to its hooks: for the requests before and after them.
const BEYOND_HOOKS: Duration = Duration::from_secs(120);
/// Time for helm to record the revision as failed after SIGTERM.
pub(crate) const GRACE: Duration = Duration::from_secs(10);
pub(crate) const HISTORY_MAX: u32 = 3;
/// Far more than a run needs, and far less than would exhaust the node.
const HELM_MEMORY: u64 = 2 << 30;

/// Settings of what is installed, shared by `run` and `render`.
#[derive(Args, Clone, Debug)]
pub struct ChartArgs {
    /// Name of the chart to install for every ClientApp.
    #[arg(long, env = "CLIENTAPP_CHART", default_value = "nextcloud", value_name = "NAME")]
    pub(crate) chart: ChartName,
    /// File with base values for the chart, instead of the built-in ones.
    #[arg(long, env = "CLIENTAPP_BASE_VALUES", value_name = "FILE")]
    pub base_values: Option<PathBuf>,
    /// DNS domain of the cluster.
    #[arg(long, env = "CLIENTAPP_CLUSTER_DOMAIN", default_value = "cluster.local", value_name = "DOMAIN")]
    pub cluster_domain: String,
    /// crVersion of PerconaPGClusters: the version of the Percona operator whose behaviour they request.
    #[arg(long, env = "CLIENTAPP_PERCONA_CR_VERSION", default_value = "3.0.0", value_name = "VERSION")]
    pub percona_cr_version: String,
}

/// Holds what is installed, and with which helm: shared by `run` and `kubectl clientapp plan`.
#[derive(Args, Clone, Debug)]
pub struct InstallArgs {
    #[command(flatten)]
    /// Holds what is installed.
    pub chart: ChartArgs,
    /// Source of charts: an https:// chart repository, an oci:// registry, or a directory of packaged charts.
    #[arg(
        long,
        env = "CLIENTAPP_CHART_REPOSITORY",
        default_value = "https://nextcloud.github.io/helm",
        value_parser = Unquoted::<ChartSource>::parser(),
        value_name = "SOURCE"
    )]
    pub chart_repository: ChartSource,
    /// Directory with the credentials of the chart repository, where a Secret is mounted: `username` and `password`, or
    /// `.dockerconfigjson` for a registry; `ca.crt`; `tls.crt` and `tls.key`. Each pull reads them anew.
    #[arg(long, env = "CLIENTAPP_CHART_REPOSITORY_CREDENTIALS", value_name = "DIR")]
    pub chart_repository_credentials: Option<PathBuf>,
    /// File with the public keys, as `gpg --export` writes it, one of which must have signed each chart (`helm package --sign`)
    /// [default: signatures are not verified]
    #[arg(long, env = "CLIENTAPP_CHART_KEYRING", value_name = "FILE")]
    pub chart_keyring: Option<PathBuf>,
    /// The helm executable, 4.0 or later.
    #[arg(long, env = "CLIENTAPP_HELM", default_value = "helm", value_name = "FILE")]
    pub helm: PathBuf,
}

/// How to run the operator.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    /// Holds what is installed.
    pub install: InstallArgs,
    /// Kubeconfig file [default: the pod's service account, or else $KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// Directory for pulled charts; if it survives restarts, they are not pulled again
    /// [default: ~/.cache/clientapp-operator/charts]
    #[arg(long, env = "CLIENTAPP_CHART_CACHE", value_name = "DIR")]
    pub chart_cache: Option<PathBuf>,
    /// Maximum number of concurrent helm processes, and as many that only test.
    #[arg(long, env = "CLIENTAPP_MAX_CONCURRENT", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "N")]
    pub max_concurrent: u16,
    /// Number of revisions of each release that Helm keeps, in addition to the last one that was deployed. Each run reads them all,
    /// including the chart in each. To go back, set an older chart version in the spec; no rollback needs old revisions.
    #[arg(long, env = "CLIENTAPP_HISTORY_MAX", default_value_t = HISTORY_MAX, value_parser = clap::value_parser!(u32).range(2..=100), value_name = "N")]
    pub history_max: u32,
    /// Timeout of each hook of a chart, in seconds; a helm process may take two minutes longer in total.
    #[arg(long, env = "CLIENTAPP_HOOK_TIMEOUT", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86400), value_name = "SECONDS")]
    pub hook_timeout: u64,
    /// Address for /healthz, /readyz and /metrics. `[::]` is all addresses, of IPv4 and IPv6.
    #[arg(long, env = "CLIENTAPP_HEALTH_LISTEN", default_value = "[::]:8080", value_name = "ADDRESS")]
    pub health_listen: SocketAddr,
    #[command(flatten)]
    /// The HTTP API.
    pub api: ApiArgs,
    /// The operator's own pod in its own namespace, from which it reads its image.
    #[arg(long, env = "CLIENTAPP_POD_NAME", value_name = "NAME")]
    pub pod_name: Option<String>,
    /// The operator's own image, used by Jobs that upload dumps [default: that of its pod]
    #[arg(long, env = "CLIENTAPP_IMAGE", value_name = "IMAGE")]
    pub image: Option<String>,
    /// Proxy that Jobs reach the buckets of dumps and archives through, such as `http://proxy.example.com:3128`. It has no credentials,
    /// which users could read in a Job [default: none]
    #[arg(long, env = "CLIENTAPP_STORE_PROXY", value_parser = Unquoted::<ProxyUrl>::parser(), value_name = "URL")]
    pub store_proxy: Option<ProxyUrl>,
    /// Hosts, domains and networks of buckets that Jobs reach without that proxy, such as .svc,10.0.0.0/8.
    #[arg(long, env = "CLIENTAPP_STORE_NO_PROXY", requires = "store_proxy", value_name = "LIST")]
    pub store_no_proxy: Option<ProxyExceptions>,
    /// Maximum number of ClientApps, and of Postgresqls, whose data are deleted within ten minutes without approval, or 5 % of all, if
    /// that is more. 0: none.
    #[arg(long, env = "CLIENTAPP_DELETION_BRAKE", default_value_t = 10, value_name = "N")]
    pub deletion_brake: u16,
    /// Loopback address that is asked for the health of every ClientApp, instead of its Service: for a test plane, where the address of a
    /// Service leads to no pod.
    #[arg(long, env = "CLIENTAPP_HEALTH_CHECKS_TO", hide = true, value_parser = loopback, value_name = "ADDRESS")]
    pub(crate) health_checks_to: Option<SocketAddr>,
    /// Namespace of the leader election Lease [default: the operator's own]
    #[arg(long, env = "CLIENTAPP_LEASE_NAMESPACE", value_name = "NAMESPACE")]
    pub lease_namespace: Option<String>,
    /// Duration of that Lease, in seconds: the longer it is, the longer the API server may be without an answer while helm runs, and the
    /// later a standby takes over from a leader that crashed.
    #[arg(
        long,
        env = "CLIENTAPP_LEASE_DURATION",
        default_value_t = MIN_DURATION.as_secs(),
        value_parser = clap::value_parser!(u64).range(MIN_DURATION.as_secs()..=MAX_DURATION.as_secs()),
        value_name = "SECONDS"
    )]
    pub(crate) lease_duration: u64,
}

/// How to serve the HTTP API, for `run`. [`crate::api::settings`] refuses invalid combinations.
#[derive(Args, Clone, Debug)]
pub struct ApiArgs {
    /// Address for the HTTP API and its page; `off` disables both.
    #[arg(long, env = "CLIENTAPP_API_LISTEN", default_value = "127.0.0.1:8090", value_name = "ADDRESS")]
    pub api_listen: Listen,
    /// Authentication of the API's users; `none` is accepted on a loopback address only
    /// [default: none on a loopback address, token elsewhere]
    #[arg(long, env = "CLIENTAPP_API_AUTH", value_name = "HOW")]
    pub api_auth: Option<AuthMode>,
    /// Audience that users' tokens must be issued for.
    #[arg(long, env = "CLIENTAPP_API_AUDIENCE", default_value = "clientapp-operator", value_name = "AUDIENCE")]
    pub api_audience: String,
    /// PEM file with the API's certificate and its chain, reread when it changes; required except on a loopback address.
    #[arg(long, env = "CLIENTAPP_API_TLS_CERT", value_name = "FILE")]
    pub api_tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's private key.
    #[arg(long, env = "CLIENTAPP_API_TLS_KEY", value_name = "FILE")]
    pub api_tls_key: Option<PathBuf>,
}

/// Where the HTTP API listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// The API is disabled.
    Off,
    /// On this address.
    At(SocketAddr),
}

impl FromStr for Listen {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Listen, Self::Err> {
        match text {
            "off" => Ok(Listen::Off),
            address => {
                address.parse().map(Listen::At).map_err(|_| "expected `off` or an address such as 127.0.0.1:8090")
            }
        }
    }
}

fn loopback(text: &str) -> Result<SocketAddr, &'static str> {
    let address = text.parse().ok().filter(|address: &SocketAddr| address.ip().is_loopback());
    address.ok_or("expected a loopback address such as 127.0.0.1:8080")
}

/// How users of the HTTP API are authenticated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AuthMode {
    /// By a token that the cluster accepts; RBAC on ClientApps decides their rights.
    Token,
    /// Not at all: every process that can reach the address has all rights.
    None,
}

/// clap would quote an invalid value, and one with credentials must not get into logs.
struct Unquoted<T>(PhantomData<fn() -> T>);

impl<T> Unquoted<T> {
    fn parser() -> Unquoted<T> {
        Unquoted(PhantomData)
    }
}

impl<T> Clone for Unquoted<T> {
    fn clone(&self) -> Self {
        Unquoted(PhantomData)
    }
}

impl<T> TypedValueParser for Unquoted<T>
where
    T: FromStr<Err: Display> + Clone + Send + Sync + 'static,
{
    type Value = T;

    fn parse_ref(&self, command: &Command, flag: Option<&Arg>, value: &OsStr) -> Result<T, clap::Error> {
        let refused = |problem: String| {
            let flag = flag.map(Arg::to_string).unwrap_or_default();
            let message = format!("invalid value for '{flag}': {problem}\n");
            clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
        };
        let text = value.to_str().ok_or_else(|| refused("it is not UTF-8".to_owned()))?;
        text.parse().map_err(|error: T::Err| refused(error.to_string()))
    }
}

/// Settings of the controller.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) chart: String,
    pub(crate) base_values: Value,
    pub(crate) cluster_domain: String,
    /// `crVersion` of PerconaPGClusters: it selects Percona's behaviour, so it is pinned instead of left to the installed operator.
    pub(crate) percona_cr_version: String,
    pub(crate) max_concurrent: usize,
    /// Maximum lifetime of a helm process, from start to the end of its grace period.
    pub(crate) helm_deadline: SignedDuration,
    /// The address that is asked for the health of ClientApps, instead of their Services.
    pub(crate) health_checks_to: Option<SocketAddr>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("--base-values {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("base values in {origin}: {problem}")]
    BaseValues { origin: String, problem: String },
    #[error("--chart-repository-credentials or --chart-keyring cannot be used: {0}")]
    Credentials(#[from] InvalidCredentials),
}

impl Config {
    /// Validates and completes the settings of what is installed.
    pub(crate) fn new(args: &ChartArgs) -> Result<Config, ConfigError> {
        Ok(Config {
            base_values: base_values(args)?,
            chart: args.chart.to_string(),
            cluster_domain: args.cluster_domain.clone(),
            percona_cr_version: args.percona_cr_version.clone(),
            max_concurrent: 1,
            helm_deadline: SignedDuration::from_secs(430),
            health_checks_to: None,
        })
    }

    /// Validates and completes the settings for `run`.
    pub(crate) fn for_run(args: &RunArgs) -> Result<Config, ConfigError> {
        let helm = helm_settings(args);
        // Each pull reads them again.
        drop(helm.credentials.read(&args.install.chart_repository)?);
        let helm_deadline = SignedDuration::try_from(helm.deadline + helm.grace).unwrap_or(SignedDuration::MAX);
        Ok(Config {
            max_concurrent: args.max_concurrent.into(),
            helm_deadline,
            health_checks_to: args.health_checks_to,
            ..Config::new(&args.install.chart)?
        })
    }

    /// The defaults, for tests of the pure stages.
    #[cfg(test)]
    pub(crate) fn for_tests() -> Config {
        #[derive(clap::Parser)]
        struct Parser {
            #[command(flatten)]
            args: ChartArgs,
        }
        let Parser { args } = clap::Parser::parse_from(["test"]);
        Config::new(&args).expect("the built-in settings are right")
    }
}

impl RunArgs {
    /// Returns the proxy between Jobs and buckets.
    pub(crate) fn proxy(&self) -> StoreProxy {
        StoreProxy { url: self.store_proxy.clone(), except: self.store_no_proxy.clone() }
    }
}

/// The settings of helm runs.
pub fn helm_settings(args: &RunArgs) -> HelmSettings {
    let hook_timeout = Duration::from_secs(args.hook_timeout);
    let flags = Flags { history_max: args.history_max, hook_timeout };
    HelmSettings { flags, deadline: hook_timeout + BEYOND_HOOKS, ..settings_of_plans(&args.install) }
}

/// The settings of helm runs that change nothing.
pub(crate) fn settings_of_plans(args: &InstallArgs) -> HelmSettings {
    HelmSettings {
        binary: args.helm.clone(),
        private_dir: std::env::temp_dir(),
        flags: Flags { history_max: HISTORY_MAX, hook_timeout: BEYOND_HOOKS },
        deadline: BEYOND_HOOKS,
        grace: GRACE,
        memory: HELM_MEMORY,
        credentials: CredentialFiles {
            directory: args.chart_repository_credentials.clone(),
            keyring: args.chart_keyring.clone(),
        },
    }
}

fn base_values(args: &ChartArgs) -> Result<Value, ConfigError> {
    let (origin, text) = match &args.base_values {
        Some(path) => {
            let text =
                std::fs::read_to_string(path).map_err(|source| ConfigError::Read { path: path.clone(), source })?;
            (path.display().to_string(), text)
        }
        None => {
            let known = KNOWN_VALUES.iter().find(|(chart, _)| *chart == args.chart.as_str());
            let text = known.map_or("{}", |(_, text)| *text);
            (format!("helm-values/{}.yaml", args.chart), text.to_owned())
        }
    };
    let problem = |problem: String| ConfigError::BaseValues { origin: origin.clone(), problem };
    match yaml::read(&text).map_err(problem)? {
        Value::Null => Ok(Value::Object(serde_json::Map::new())),
        Value::Object(values) => match values::unfit(&values) {
            None => Ok(Value::Object(values)),
            Some(unfit) => Err(problem(unfit)),
        },
        _ => Err(problem("they are not a mapping".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_base_values_is_a_map_and_known() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/helm-values");
        for file in std::fs::read_dir(dir).unwrap() {
            let path = file.unwrap().path();
            let chart = path.file_stem().unwrap().to_str().unwrap().to_owned();
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(yaml::read(&text).unwrap().is_object(), "{path:?}");
            assert!(KNOWN_VALUES.iter().any(|(known, built_in)| *known == chart && *built_in == text), "{path:?}");
        }
    }

    #[test]
    fn only_this_machine_is_asked_for_the_health_of_all_apps() {
        for (address, is_accepted) in [
            ("127.0.0.1:8080", true),
            ("[::1]:8080", true),
            ("10.96.0.1:443", false),
            ("0.0.0.0:80", false),
            ("169.254.169.254:80", false),
            ("localhost:80", false),
        ] {
            assert_eq!(loopback(address).is_ok(), is_accepted, "{address}");
        }
    }

    #[test]
    fn an_app_is_ready_as_soon_as_it_serves_and_has_time_for_migrations() {
        let values = Config::for_tests().base_values;
        for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
            assert_eq!(values[probe]["initialDelaySeconds"], 0, "{probe}");
        }
        let startup = |field: &str| values["startupProbe"][field].as_u64().unwrap();
        assert!(startup("periodSeconds") <= 2 && startup("periodSeconds") * startup("failureThreshold") >= 600);
        assert!(values["readinessProbe"]["periodSeconds"].as_u64().unwrap() <= 5);
    }
}
