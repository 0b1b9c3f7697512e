//! The cluster of the user's kubeconfig, and the terminal. Effects.

use std::{
    io::{self, Write as _},
    time::Duration,
};

use anstream::{AutoStream, ColorChoice};
use jiff::Timestamp;
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, PartialObjectMeta, PatchParams},
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
    core::NamespaceResourceScope,
};
use serde::Serialize;

use super::{
    args::{Color, Global, Output},
    error::{self, Error},
    text::tamed,
};
use crate::{crd::ClientApp, runtime::client, yaml};

/// Field manager of everything that the plugin writes.
pub(crate) const FIELD_MANAGER: &str = "kubectl-clientapp";

pub(crate) fn patching() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// Delay before a broken watch is retried.
pub(crate) const AGAIN: Duration = Duration::from_secs(1);

/// A ClientApp, both as stored and as parsed.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// As stored: for programs.
    pub(crate) object: DynamicObject,
    /// As parsed: for humans, and [`tamed`] for their terminals.
    pub(crate) app: ClientApp,
}

impl Stored {
    pub(crate) fn read(object: DynamicObject) -> Result<Stored, String> {
        tamed(&object).map(|app| Stored { object, app }).map_err(|error| error.to_string())
    }
}

pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Session {
    /// Reads the kubeconfig, and sends no request yet.
    pub(crate) async fn open(global: &Global) -> Result<Session, Error> {
        let options = KubeConfigOptions { context: global.context.clone(), ..KubeConfigOptions::default() };
        let file = match &global.kubeconfig {
            Some(path) => Kubeconfig::read_from(path)
                .map_err(|error| Error::Kubeconfig(format!("--kubeconfig {}: {}", path.display(), cause(&error))))?,
            None => Kubeconfig::read().map_err(|error| {
                Error::Kubeconfig(format!(
                    "no cluster: {}; name a kubeconfig with --kubeconfig or $KUBECONFIG",
                    cause(&error)
                ))
            })?,
        };
        let contexts: Vec<String> = file.contexts.iter().map(|context| context.name.clone()).collect();
        let config = kube::Config::from_custom_kubeconfig(file, &options).await.map_err(|error| {
            Error::Kubeconfig(match (&error, &global.context) {
                (KubeconfigError::LoadContext(_), Some(context)) => {
                    format!("the kubeconfig has no context {context}; it has {}", listed(&contexts))
                }
                (KubeconfigError::CurrentContextNotSet | KubeconfigError::LoadContext(_), None) => {
                    format!("the kubeconfig has no current context: name one of {} with --context", listed(&contexts))
                }
                _ => format!("the kubeconfig cannot be used: {}", cause(&error)),
            })
        })?;
        let namespace = global.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = client::commands(&config).map_err(|error| {
            Error::Kubeconfig(format!("the kubeconfig cannot be used: {}", error::sentence(&error)))
        })?;
        Ok(Session { client, namespace })
    }

    /// The clock; rendering code gets the time as a parameter.
    #[expect(clippy::disallowed_methods, reason = "the one clock of a command")]
    pub(crate) fn now() -> Timestamp {
        Timestamp::now()
    }

    pub(crate) fn api<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub(crate) fn apps(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &ApiResource::erase::<ClientApp>(&()))
    }

    pub(crate) fn all_apps(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &ApiResource::erase::<ClientApp>(&()))
    }

    pub(crate) async fn app(&self, name: &str) -> Result<Stored, Error> {
        match self.apps().get(name).await {
            Ok(object) => Stored::read(object).map_err(|problem| {
                Error::Missing(format!("{} does not decode: {problem}", error::described(&self.namespace, name)))
            }),
            Err(kube::Error::Api(status)) if status.code == 404 && !error::kind_is_missing(&status) => {
                Err(self.not_found(name).await)
            }
            Err(error) => Err(Error::api(format!("read {}", error::described(&self.namespace, name)))(error)),
        }
    }

    /// The error for a name that does not exist, with suggestions as far as the user may list names.
    pub(crate) async fn not_found(&self, name: &str) -> Error {
        let params = ListParams::default();
        let there = match self.all_apps().list_metadata(&params).await {
            Ok(all) => all.items,
            Err(_) => self.apps().list_metadata(&params).await.map(|some| some.items).unwrap_or_default(),
        };
        let key = |app: &PartialObjectMeta<DynamicObject>| (app.namespace().unwrap_or_default(), app.name_any());
        let there: Vec<_> = there.iter().map(key).collect();
        let hint = error::hint(name, &self.namespace, &there);
        Error::NotFound { name: name.to_owned(), namespace: self.namespace.clone(), hint }
    }
}

fn listed(names: &[String]) -> String {
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

fn cause(error: &KubeconfigError) -> String {
    match error {
        KubeconfigError::ReadConfig(error, path) => format!("{}: {error}", path.display()),
        KubeconfigError::FindPath => "no kubeconfig found".to_owned(),
        other => other.to_string(),
    }
}

/// Results go to stdout, everything else to stderr.
pub(crate) struct Printer {
    stdout: AutoStream<io::Stdout>,
    stderr: AutoStream<io::Stderr>,
    pub(crate) output: Output,
}

impl Printer {
    pub(crate) fn new(output: Output, color: Color) -> Printer {
        let choice = match color {
            // Respects NO_COLOR and whether the stream is a terminal.
            Color::Auto => ColorChoice::Auto,
            Color::Always => ColorChoice::AlwaysAnsi,
            Color::Never => ColorChoice::Never,
        };
        let (stdout, stderr) = (AutoStream::new(io::stdout(), choice), AutoStream::new(io::stderr(), choice));
        Printer { stdout, stderr, output }
    }

    /// Width of the terminal on stdout; `None` if it is not a terminal.
    pub(crate) fn width(&self) -> Option<usize> {
        console::Term::stdout().size_checked().map(|(_, columns)| columns.into())
    }

    /// A result, with colours on a terminal.
    pub(crate) fn out(&mut self, text: &str) -> Result<(), Error> {
        written(self.stdout.write_all(text.as_bytes()).and_then(|()| self.stdout.flush()))
    }

    /// A result, byte for byte.
    pub(crate) fn raw(&mut self, text: &str) -> Result<(), Error> {
        let mut stdout = io::stdout();
        written(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
    }

    pub(crate) fn note(&mut self, line: &str) {
        // A closed stderr is not a failure.
        let _ = writeln!(self.stderr, "{line}");
    }

    /// The object, or with table output a sentence about it.
    pub(crate) fn object(&mut self, object: &impl Serialize, sentence: &str) -> Result<(), Error> {
        let text = match self.output {
            Output::Table => return self.out(&format!("{sentence}\n")),
            Output::Json => {
                format!("{}\n", serde_json::to_string_pretty(object).map_err(|error| Error::Output(error.to_string()))?)
            }
            Output::Yaml => yaml::print(object).map_err(Error::Output)?,
        };
        self.raw(&text)
    }

    /// The objects in a List, as kubectl prints it, or with table output a text about them.
    pub(crate) fn objects(&mut self, objects: &[impl Serialize], text: impl FnOnce() -> String) -> Result<(), Error> {
        if self.output == Output::Table {
            return self.out(&text());
        }
        let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": objects, "metadata": {}});
        self.object(&list, "")
    }
}

fn written(result: io::Result<()>) -> Result<(), Error> {
    result.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Error::Closed,
        _ => Error::Output(error.to_string()),
    })
}
