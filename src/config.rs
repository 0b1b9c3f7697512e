//! Settings: flags and environment, checked at start-up so that no setting fails later.

use std::{ffi::OsStr, net::SocketAddr, path::PathBuf, str::FromStr, time::Duration};

use clap::{Arg, Args, Command, ValueEnum, builder::TypedValueParser, error::ErrorKind};
use jiff::SignedDuration;
use serde_json::Value;

use crate::{
    helm::{ChartName, ChartSource, Flags, HelmSettings, InvalidSource, values},
    yaml,
};

/// Base values for charts the operator knows, by name of the chart.
const KNOWN_VALUES: &[(&str, &str)] = &[("nextcloud", include_str!("../helm-values/nextcloud.yaml"))];
/// How long helm may need beyond its hooks' time: for the requests before and after them.
const BEYOND_HOOKS: Duration = Duration::from_secs(120);
/// After a polite signal helm records the revision as failed; this is its time for that.
pub(crate) const GRACE: Duration = Duration::from_secs(10);
pub(crate) const HISTORY_MAX: u32 = 3;
/// Far above what a run needs, far below what would take the node down.
const HELM_MEMORY: u64 = 2 << 30;

/// What is installed, for `run` and `render` alike.
#[derive(Args, Clone, Debug)]
pub struct ChartArgs {
    /// Name of the chart that every ClientApp gets.
    #[arg(long, env = "CLIENTAPP_CHART", default_value = "nextcloud", value_name = "NAME")]
    pub(crate) chart: ChartName,
    /// File with base values for the chart, in place of the built-in ones.
    #[arg(long, env = "CLIENTAPP_BASE_VALUES", value_name = "FILE")]
    pub base_values: Option<PathBuf>,
    /// The cluster's DNS domain.
    #[arg(long, env = "CLIENTAPP_CLUSTER_DOMAIN", default_value = "cluster.local", value_name = "DOMAIN")]
    pub cluster_domain: String,
    /// crVersion of the PerconaPGClusters: the version of the Percona operator whose behaviour they ask for.
    #[arg(long, env = "CLIENTAPP_PERCONA_CR_VERSION", default_value = "3.0.0", value_name = "VERSION")]
    pub percona_cr_version: String,
}

/// How charts and helm are found and used, for `run`.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    /// What is installed.
    pub chart: ChartArgs,
    /// Where charts are pulled from: an https:// chart repository, an oci:// registry, or a directory of packaged charts.
    #[arg(
        long,
        env = "CLIENTAPP_CHART_REPOSITORY",
        default_value = "https://nextcloud.github.io/helm",
        value_parser = SourceParser,
        value_name = "SOURCE"
    )]
    pub chart_repository: ChartSource,
    /// Kubeconfig file [default: the pod's service account, or else $KUBECONFIG or ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: the current one]
    #[arg(long, value_name = "NAME")]
    pub context: Option<String>,
    /// The helm executable, 4.0 or later.
    #[arg(long, env = "CLIENTAPP_HELM", default_value = "helm", value_name = "FILE")]
    pub helm: PathBuf,
    /// Directory for pulled charts; one that outlives a restart saves pulling them again
    /// [default: ~/.cache/clientapp-operator/charts]
    #[arg(long, env = "CLIENTAPP_CHART_CACHE", value_name = "DIR")]
    pub chart_cache: Option<PathBuf>,
    /// How many helm processes may run at the same time.
    #[arg(long, env = "CLIENTAPP_MAX_CONCURRENT", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=64), value_name = "N")]
    pub max_concurrent: u16,
    /// How many revisions Helm keeps of each release, besides the last one that was deployed. Each run reads them all, with all
    /// of the chart in each; and a way back that keeps the data is a chart version in the spec, not a rollback.
    #[arg(long, env = "CLIENTAPP_HISTORY_MAX", default_value_t = HISTORY_MAX, value_parser = clap::value_parser!(u32).range(2..=100), value_name = "N")]
    pub history_max: u32,
    /// How long helm waits for one hook of a chart, in seconds; a helm process as a whole may take two minutes more.
    #[arg(long, env = "CLIENTAPP_HOOK_TIMEOUT", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86400), value_name = "SECONDS")]
    pub hook_timeout: u64,
    /// Address for /healthz, /readyz and /metrics.
    #[arg(long, env = "CLIENTAPP_HEALTH_LISTEN", default_value = "0.0.0.0:8080", value_name = "ADDRESS")]
    pub health_listen: SocketAddr,
    #[command(flatten)]
    /// The HTTP API.
    pub api: ApiArgs,
    /// The operator's own pod in its own namespace, which tells its image.
    #[arg(long, env = "CLIENTAPP_POD_NAME", value_name = "NAME")]
    pub pod_name: Option<String>,
    /// The operator's own image, by which Jobs upload dumps [default: that of its pod]
    #[arg(long, env = "CLIENTAPP_IMAGE", value_name = "IMAGE")]
    pub image: Option<String>,
    /// Namespace of the Lease that elects the leader [default: the operator's own]
    #[arg(long, env = "CLIENTAPP_LEASE_NAMESPACE", value_name = "NAMESPACE")]
    pub lease_namespace: Option<String>,
}

/// How the HTTP API is served, for `run`. What does not go together is refused by [`crate::api::settings`].
#[derive(Args, Clone, Debug)]
pub struct ApiArgs {
    /// Address for the HTTP API and its page; `off` for none.
    #[arg(long, env = "CLIENTAPP_API_LISTEN", default_value = "127.0.0.1:8090", value_name = "ADDRESS")]
    pub api_listen: Listen,
    /// How users of the API are authenticated; `none` is accepted on a loopback address only
    /// [default: none on a loopback address, token elsewhere]
    #[arg(long, env = "CLIENTAPP_API_AUTH", value_name = "HOW")]
    pub api_auth: Option<AuthMode>,
    /// Audience that users' tokens have to be issued for.
    #[arg(long, env = "CLIENTAPP_API_AUDIENCE", default_value = "clientapp-operator", value_name = "AUDIENCE")]
    pub api_audience: String,
    /// PEM file with the API's certificate and its chain, read again when it changes; required beyond loopback.
    #[arg(long, env = "CLIENTAPP_API_TLS_CERT", value_name = "FILE")]
    pub api_tls_cert: Option<PathBuf>,
    /// PEM file with the certificate's private key.
    #[arg(long, env = "CLIENTAPP_API_TLS_KEY", value_name = "FILE")]
    pub api_tls_key: Option<PathBuf>,
}

/// Where the HTTP API listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// Nowhere.
    Off,
    /// At this address.
    At(SocketAddr),
}

impl FromStr for Listen {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Listen, Self::Err> {
        match text {
            "off" => Ok(Listen::Off),
            address => address.parse().map(Listen::At).map_err(|_| "neither `off` nor an address like 127.0.0.1:8090"),
        }
    }
}

/// How users of the HTTP API are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AuthMode {
    /// By a token that the cluster accepts; what they may do is what RBAC lets them do with ClientApps.
    Token,
    /// Not at all: every process that reaches the address may do everything.
    None,
}

/// clap quotes a value that it refuses; one with a credential in it shall not get into logs.
#[derive(Clone)]
struct SourceParser;

impl TypedValueParser for SourceParser {
    type Value = ChartSource;

    fn parse_ref(&self, command: &Command, _: Option<&Arg>, value: &OsStr) -> Result<ChartSource, clap::Error> {
        let refused = |problem: String| {
            let message = format!("invalid value for '--chart-repository <SOURCE>': {problem}\n");
            clap::Error::raw(ErrorKind::ValueValidation, message).with_cmd(command)
        };
        let text = value.to_str().ok_or_else(|| refused("it is not UTF-8".to_owned()))?;
        text.parse().map_err(|error: InvalidSource| refused(error.to_string()))
    }
}

/// What the controller needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) chart: String,
    pub(crate) base_values: Value,
    pub(crate) cluster_domain: String,
    /// `crVersion` of PerconaPGClusters: gates Percona's behaviour, so it is pinned and not left to the installed operator.
    pub(crate) percona_cr_version: String,
    pub(crate) max_concurrent: usize,
    /// How long one helm process may live at most, from start to the end of its grace.
    pub(crate) helm_deadline: SignedDuration,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("--base-values {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("base values in {origin}: {problem}")]
    BaseValues { origin: String, problem: String },
}

impl Config {
    /// Checks and completes the settings for what is installed.
    pub(crate) fn new(args: &ChartArgs) -> Result<Config, ConfigError> {
        Ok(Config {
            base_values: base_values(args)?,
            chart: args.chart.to_string(),
            cluster_domain: args.cluster_domain.clone(),
            percona_cr_version: args.percona_cr_version.clone(),
            max_concurrent: 1,
            helm_deadline: SignedDuration::from_secs(430),
        })
    }

    /// Checks and completes the settings for `run`.
    pub(crate) fn for_run(args: &RunArgs) -> Result<Config, ConfigError> {
        let helm = helm_settings(args);
        let helm_deadline = SignedDuration::try_from(helm.deadline + helm.grace).unwrap_or(SignedDuration::MAX);
        Ok(Config { max_concurrent: args.max_concurrent.into(), helm_deadline, ..Config::new(&args.chart)? })
    }

    /// Defaults, as the tests of the pure stages use them.
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

/// How helm is run.
pub fn helm_settings(args: &RunArgs) -> HelmSettings {
    let hook_timeout = Duration::from_secs(args.hook_timeout);
    HelmSettings {
        binary: args.helm.clone(),
        private_dir: std::env::temp_dir(),
        flags: Flags { history_max: args.history_max, hook_timeout },
        deadline: hook_timeout + BEYOND_HOOKS,
        grace: GRACE,
        memory: HELM_MEMORY,
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
        _ => Err(problem("they are not a map".to_owned())),
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
}
