//! The command line: `run`, `crds`, `render`, `reasons`, `kubectl`.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::{Parser, Subcommand};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    clientapp::{
        decide::QUESTIONS,
        spec::{
            credentials::placeholders,
            desired::{StoredProfile, desired},
            values_from::{Salt, ValuesSource, merge},
        },
    },
    config::{ChartArgs, Config, HISTORY_MAX, RunArgs},
    crd::{self, ClientApp, Profile, Reason, ValuesKind, conditions::kind, reason::Class},
    helm::{self, Flags, HelmCommand, ReleaseLabels, Upgrade},
    lease,
    platform::key::{Key, key_of},
    plugin,
    run::run,
    store, telemetry, yaml,
};

/// Turns a ClientApp into a complete, isolated instance of a Helm-packaged web app.
#[derive(Parser)]
#[command(name = "clientapp-operator", version, propagate_version = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the operator.
    Run(Box<RunArgs>),
    /// Print the CustomResourceDefinitions.
    Crds,
    /// Print the helm command and the values for a ClientApp, without values from Secrets. Needs no cluster; Profile, Secrets and
    /// ConfigMaps that the ClientApp takes values from must be in the same file.
    Render {
        /// Values for a chart that puts `image.registry` before `image.repository`, as later versions of Nextcloud's do.
        #[arg(long, hide = true)]
        with_registry: bool,
        /// File with the ClientApp; `-` for standard input.
        #[arg(short, long, value_name = "FILE")]
        file: PathBuf,
        /// Namespace of the ClientApp, if the file does not set one.
        #[arg(short, long, default_value = "default")]
        namespace: String,
        #[command(flatten)]
        chart: ChartArgs,
    },
    /// Print what each reason of a condition or event means, and what to do about it.
    Reasons {
        /// Print only these reasons.
        #[arg(value_name = "REASON")]
        names: Vec<String>,
        /// Print the questions that each reconciliation of a ClientApp asks, in order; the first that is not met gives the reason.
        #[arg(long, conflicts_with = "names")]
        order: bool,
    },
    /// Push, fetch and list dumps in S3-compatible storage; used by the Jobs that dump.
    #[command(hide = true)]
    Store(Box<store::settings::StoreArgs>),
    /// Run `kubectl clientapp`, which is this binary under the name kubectl-clientapp.
    Kubectl(Box<plugin::args::Cli>),
}

/// Runs the command, and prints an error for the user if it fails.
#[must_use]
pub fn main() -> ExitCode {
    if let Some(ended) = plugin::called(std::env::args_os()) {
        return ended;
    }
    let result = match Cli::parse().command {
        Command::Run(args) => {
            telemetry::init();
            let failed = started(&args).inspect_err(|error| tracing::error!("{error:#}")).is_err();
            return ExitCode::from(u8::from(failed));
        }
        Command::Kubectl(cli) => return plugin::main(&cli),
        Command::Store(args) => return store::main(&args),
        Command::Crds => definitions(),
        Command::Reasons { order: true, .. } => Ok(order()),
        Command::Reasons { names, .. } => reasons(&names),
        Command::Render { file, namespace, chart, with_registry } => render(&file, &namespace, &chart, with_registry),
    };
    match result {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

const STACK_BYTES: usize = 16 << 20;

fn started(args: &RunArgs) -> Result<()> {
    // Unoptimized, a reconciliation of an app needs more than tokio's 2 MiB; what is not touched costs no memory.
    let threads = tokio::runtime::Builder::new_multi_thread().thread_stack_size(STACK_BYTES).enable_all().build()?;
    let of_lease = lease::thread()?;
    let ended = threads.block_on(run(args, of_lease.handle()));
    // A blocking thread may be at work for longer than the kubelet waits.
    threads.shutdown_background();
    of_lease.shutdown_background();
    ended
}

fn definitions() -> Result<String> {
    let document = |crd| Ok(format!("---\n{}\n", serde_yaml::to_string(&crd)?.trim_end()));
    crd::all().into_iter().map(document).collect()
}

fn order() -> String {
    let numbered = QUESTIONS.iter().zip(1..).map(|(question, number)| format!("{number:2}. {}\n", question.text));
    numbered.collect()
}

fn reasons(names: &[String]) -> Result<String> {
    let parsed = |name: &String| Reason::parse(name).with_context(|| format!("there is no reason {name}"));
    let asked = names.iter().map(parsed).collect::<Result<Vec<_>>>()?;
    let shown = if names.is_empty() { Reason::ALL } else { &asked };
    let entry = |reason: &Reason| {
        let place = match reason.class() {
            Class::Event => "events".to_owned(),
            Class::Metric => "metrics and logs".to_owned(),
            Class::Readiness => "/readyz and the log".to_owned(),
            Class::Fine | Class::Progress | Class::Trouble | Class::Stalled if reason.condition() == kind::READY => {
                kind::READY.to_owned()
            }
            Class::Stalled => format!("{}, {} and {}", kind::READY, reason.condition(), kind::STALLED),
            Class::Fine | Class::Progress | Class::Trouble => format!("{} and {}", kind::READY, reason.condition()),
        };
        let kinds = reason.kinds().join(", ");
        format!("{reason}  ({kinds}: {place})\n  {}\n  {}\n", reason.meaning(), reason.remedy())
    };
    Ok(shown.iter().map(entry).collect::<Vec<_>>().join("\n"))
}

fn render(file: &Path, namespace: &str, args: &ChartArgs, with_registry: bool) -> Result<String> {
    let text = match file.to_str() {
        Some("-") => std::io::read_to_string(std::io::stdin()).context("read standard input")?,
        _ => std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?,
    };
    let config = Config::new(args)?;
    render_documents(&text, namespace, &config, with_registry).with_context(|| file.display().to_string())
}

/// Returns helm's command line as a comment, then the values as helm gets them, for each ClientApp in this text.
fn render_documents(text: &str, namespace: &str, config: &Config, with_registry: bool) -> Result<String> {
    let (mut apps, mut profiles) = (Vec::new(), BTreeMap::<String, StoredProfile>::new());
    let mut given = Given::new();
    let in_file = |problem: String| anyhow!(problem);
    let documents = yaml::documents(text).map_err(in_file)?;
    for value in documents.into_iter().filter(|document| !document.is_null()) {
        if value["kind"] == *Profile::kind(&()) {
            let profile: Profile = crd::read(&value).map_err(in_file)?;
            profiles.insert(profile.name_any(), Ok(profile.spec));
            continue;
        }
        let found = match value["kind"].as_str() {
            Some("Secret") => Some((ValuesKind::Secret, source::<Secret>(&value, namespace).map_err(in_file)?)),
            Some("ConfigMap") => {
                Some((ValuesKind::ConfigMap, source::<ConfigMap>(&value, namespace).map_err(in_file)?))
            }
            _ => None,
        };
        if let Some((kind, (key, source))) = found {
            given.insert((kind, key), source);
            continue;
        }
        let mut app: ClientApp = crd::read(&value).map_err(in_file)?;
        app.metadata.namespace.get_or_insert_with(|| namespace.to_owned());
        apps.push(app);
    }
    if apps.is_empty() {
        bail!("there is no ClientApp in it");
    }
    let mut documents = String::new();
    for app in apps {
        let profile = app.spec.profile.as_ref();
        let rendered = match profile.filter(|name| !profiles.contains_key(*name)) {
            Some(name) => Err(anyhow!("spec.profile: put the Profile {name} into the same file")),
            None => rendered(&app, profile.and_then(|name| profiles.get(name)), &given, config, with_registry),
        };
        let rendered = rendered.with_context(|| format!("ClientApp {}", key_of(&app)))?;
        documents += &format!("---\n{}\n", rendered.trim_end());
    }
    Ok(documents)
}

/// The Secrets and ConfigMaps of the file.
type Given = BTreeMap<(ValuesKind, Key), ValuesSource>;

fn source<K>(document: &Value, namespace: &str) -> Result<(Key, ValuesSource), String>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Into<ValuesSource>,
{
    let mut object: K = crd::read(document)?;
    object.meta_mut().namespace.get_or_insert_with(|| namespace.to_owned());
    Ok((key_of(&object), object.into()))
}

/// The argv as a comment, and the values exactly as helm gets them, except those from Secrets, which are masked, and the registry of
/// `spec.image`, which charts with `image.registry` get there; text that a user has written into `spec.values` is shown as it is in the
/// object.
fn rendered(
    app: &ClientApp,
    profile: Option<&StoredProfile>,
    given: &Given,
    config: &Config,
    with_registry: bool,
) -> Result<String> {
    let key = key_of(app);
    let references = &app.spec.values_from;
    let found: Vec<_> =
        references.iter().map(|of| (of, given.get(&(of.kind, Key::new(&key.namespace, &of.name))))).collect();
    if let Some((of, _)) = found.iter().find(|(of, source)| source.is_none() && !of.optional) {
        bail!("spec.valuesFrom: put the {} {} into the same file, or set optional to true", of.kind, of.name);
    }
    let sources = merge(&key, found, Salt::default());
    let credentials = placeholders(app, config);
    // The values as they are have to be valid.
    desired(app, profile, (&sources, &credentials), config)?;
    let desired = desired(app, profile, (&sources.masked(), &credentials), config)?;
    if let Some(hold) = desired.values.awaits {
        bail!("{}", hold.message);
    }
    let chart = format!("/chart-cache/{}-{}.tgz", config.chart, desired.target().chart_version);
    let values =
        if with_registry { helm::values::with_registry(desired.values.merged.0) } else { desired.values.merged.0 };
    let values = helm::values::document(&values);
    let request = Upgrade {
        release: desired.key.name.parse()?,
        namespace: desired.key.namespace.parse()?,
        account: desired.account,
        chart: PathBuf::from(chart),
        values: values.clone(),
        redactor: desired.values.redactor,
        labels: ReleaseLabels {
            // Only the operator knows the salt.
            digest: "with-salt".parse()?,
            holder: "this-operator".parse()?,
            operation: "this-run".parse()?,
            revision: 1,
        },
    };
    let command =
        HelmCommand::upgrade(&request, Flags { history_max: HISTORY_MAX, hook_timeout: Duration::from_secs(300) });
    let replaced: String = desired.values.replaced.iter().map(|sentence| format!("# {sentence}\n")).collect();
    Ok(format!("# {command}\n{replaced}{values}"))
}
