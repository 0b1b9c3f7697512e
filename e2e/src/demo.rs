//! `cargo demo`: shows step by step what the operator does, on a real control plane, with the output of real commands.
//!
//! One story, `tell`, in one of two places: a control plane of its own (`own`), or the user's cluster (`existing`). The
//! place is set up before the story and taken down after it, however it ended.

mod existing;
mod home;
mod operator;
mod own;
mod screen;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use clap::Args;
use clientapp_crd::{ClientApp, conditions};
use futures::StreamExt as _;
use kube::runtime::watcher;
use kube::{Api, Client};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::charts;
use operator::Operator;
use screen::{Commands, say, step};

/// The exit code after Ctrl-C, as in shells.
const INTERRUPTED: u8 = 130;

#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Leave everything running until Ctrl-C, for a look around
    #[arg(long)]
    keep: bool,
    /// Use this context of your kubeconfig instead: an existing cluster, left as it was
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
}

/// Where the story takes place.
trait Place {
    /// Creates everything that the story needs, and remembers what it created even if it fails half-way.
    async fn set_up(&mut self) -> Result<Stage>;
    /// The operator, once it runs.
    fn operator(&mut self) -> Option<&mut Operator>;
    /// Removes everything that was created.
    async fn take_down(&mut self) -> Result<()>;
}

/// The place, as far as the story needs to know it.
struct Stage {
    client: Client,
    commands: Commands,
    namespace: &'static str,
    /// Name of the ClientApp.
    name: &'static str,
    /// The files to apply, by their names for `kubectl apply -f`, the ClientApp's last.
    files: Vec<&'static str>,
    /// How long a version may take to become ready.
    timeout: Duration,
    /// Directories of the programs, for a user who looks around.
    path: Vec<PathBuf>,
}

/// Ctrl-C and other signals: the first ends the story, the second also the cleanup.
#[derive(Clone, Default)]
struct Interrupts {
    first: CancellationToken,
    second: CancellationToken,
}

/// Runs the demonstration.
///
/// # Errors
/// Contain the last lines of the operator's log.
pub fn run(options: &Options) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let interrupts = interrupts()?;
        match &options.context {
            None => demonstrate(own::Own::default(), options.keep, &interrupts).await,
            Some(context) => demonstrate(existing::Existing::new(context)?, options.keep, &interrupts).await,
        }
    });
    // Work that an interrupted step left on a thread, such as a compiler's run, is no longer needed.
    runtime.shutdown_background();
    result
}

fn interrupts() -> Result<Interrupts> {
    let interrupts = Interrupts::default();
    let Interrupts { first, second } = interrupts.clone();
    let mut signals = Vec::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()] {
        signals.push(signal(kind)?);
    }
    tokio::spawn(async move {
        for token in [first, second] {
            futures::future::select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
            token.cancel();
        }
    });
    Ok(interrupts)
}

async fn demonstrate(mut place: impl Place, keep: bool, interrupts: &Interrupts) -> Result<ExitCode> {
    let started = Instant::now();
    let told = tokio::select! {
        told = tell(&mut place, keep) => Some(told),
        () = interrupts.first.cancelled() => None,
    };
    // A compiler receives the terminal's Ctrl-C as well, and fails.
    let told = told.filter(|told| told.is_ok() || !interrupts.first.is_cancelled());
    match (&told, place.operator()) {
        (Some(Ok(())), _) if keep => interrupts.first.cancelled().await,
        (Some(Err(_)), Some(operator)) => say(&format!("\nThe end of the operator's log:\n{}", operator.last_words())),
        _ => {}
    }
    if interrupts.first.is_cancelled() {
        say("\n\nInterrupted.");
    }
    say("");
    let down = tokio::select! {
        down = step("Removing everything", place.take_down()) => down,
        () = interrupts.second.cancelled() => Err(anyhow!("interrupted again: not everything was removed")),
    };
    match told {
        Some(Err(error)) => {
            if let Err(down) = down {
                say(&format!("{down:#}"));
            }
            return Err(error);
        }
        Some(Ok(())) => down?,
        None => {
            down?;
            return Ok(ExitCode::from(INTERRUPTED));
        }
    }
    say(&format!("Nothing is left. That took {}.", screen::seconds(started.elapsed())));
    Ok(ExitCode::SUCCESS)
}

async fn tell(place: &mut impl Place, keep: bool) -> Result<()> {
    let stage = place.set_up().await?;
    let operator = place.operator().context("the place has no operator")?;
    let Stage { commands, namespace, name, files, .. } = &stage;
    let in_namespace = |arguments: &[&str]| -> Vec<String> {
        arguments.iter().copied().chain(["--namespace", namespace]).map(str::to_owned).collect()
    };

    say("\nThis ClientApp is all that its owner has to write:\n");
    let app = files.last().context("there is nothing to apply")?;
    say(&without_comments(&commands.read(app)?));
    let apply: Vec<String> =
        ["apply"].into_iter().chain(files.iter().flat_map(|file| ["-f", file])).map(str::to_owned).collect();
    commands.kubectl(&apply).await?;
    stage.until_ready(operator, 1).await?;
    commands.kubectl(&in_namespace(&["get", "clientapps"])).await?;
    commands.helm(&in_namespace(&["list"])).await?;

    say("\nThe next version of the chart, with a change of the spec:");
    let change = format!(r#"{{"spec":{{"chartVersion":"{}"}}}}"#, charts::PATCH);
    commands.kubectl(&in_namespace(&["patch", "clientapp", name, "--type=merge", "--patch", &change])).await?;
    stage.until_ready(operator, 2).await?;
    commands.kubectl(&in_namespace(&["get", "clientapps"])).await?;
    commands.helm(&in_namespace(&["history", name])).await?;

    if keep {
        look_around(&stage, operator);
        return Ok(());
    }
    say("\nIts deletion, with all data, since spec.deletionPolicy is Delete:");
    commands.kubectl(&in_namespace(&["delete", "clientapp", name, "--timeout=2m"])).await?;
    commands.helm(&in_namespace(&["list"])).await
}

impl Stage {
    /// Waits until the ClientApp is Ready at a revision, and prints changes of its status meanwhile.
    async fn until_ready(&self, operator: &mut Operator, revision: i64) -> Result<()> {
        let started = Instant::now();
        let mut told = String::new();
        let api: Api<ClientApp> = Api::namespaced(self.client.clone(), self.namespace);
        let mut objects = Box::pin(watcher::watch_object(api, self.name));
        let mut look = tokio::time::interval(Duration::from_millis(200));
        say("");
        loop {
            let app = tokio::select! {
                object = objects.next() => match object {
                    Some(Ok(Some(app))) => app,
                    _ => continue,
                },
                _ = look.tick() => {
                    if let Some(status) = operator.ended()? {
                        bail!("the operator ended ({status})");
                    }
                    if started.elapsed() > self.timeout {
                        bail!("{} was not Ready at revision {revision} within {:?}: {told}", self.name, self.timeout);
                    }
                    continue;
                }
            };
            let Some(status) = &app.status else { continue };
            let Some(ready) = conditions::find(&status.conditions, conditions::kind::READY) else { continue };
            let current = ready.observed_generation == app.metadata.generation;
            let sentence = format!("Ready={} {}: {}", ready.status, ready.reason, ready.message);
            if current && sentence != told {
                say(&format!("  {:>7}  {sentence}", screen::seconds(started.elapsed())));
                told = sentence;
            }
            let revised = status.release.as_ref().is_some_and(|release| release.revision == revision);
            if current && revised && ready.status == "True" {
                return Ok(());
            }
        }
    }
}

fn look_around(stage: &Stage, operator: &Operator) {
    let Stage { commands, namespace, name, path, .. } = stage;
    let path: Vec<_> = path.iter().map(|directory| screen::quoted(directory)).collect();
    say(&format!(
        "\nIt stays until you press Ctrl-C here. To look around from another terminal:\n
export KUBECONFIG={}
export PATH={}:\"$PATH\"
kubectl get clientapps --all-namespaces --watch
kubectl clientapp status {name} --namespace {namespace}
kubectl edit clientapp {name} --namespace {namespace}
helm list --all-namespaces
helm rollback {name} 1 --namespace {namespace}    # what others do is put right
tail -f {}",
        screen::quoted(commands.kubeconfig()),
        path.join(":"),
        screen::quoted(operator.log()),
    ));
    if let Some(api) = operator.api() {
        say(&format!(
            "\nThe page is at http://{api}/, and this makes another instance:\n
curl -X POST http://{api}/instances -H 'Content-Type: application/json' -d '{{\"hostname\": \"my-instance.local\"}}'"
        ));
    }
}

fn without_comments(yaml: &str) -> String {
    let lines = yaml.lines().filter(|line| !line.trim_start().starts_with('#') && !line.is_empty());
    lines.map(|line| format!("    {line}\n")).collect::<String>().trim_end().to_owned()
}

/// Runs blocking work on a thread, so that Ctrl-C is still handled.
async fn apart<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}
