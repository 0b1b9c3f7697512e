//! The cluster as the user's kubeconfig reaches it, and the terminal. Effects.

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

/// Field manager of everything that is written.
pub(crate) const FIELD_MANAGER: &str = "kubectl-clientapp";

/// How an object is changed.
pub(crate) fn patching() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// Between two tries of a watch that broke off.
pub(crate) const AGAIN: Duration = Duration::from_secs(1);

/// A ClientApp, as it is stored and as it is understood.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    /// As it is stored: for programs.
    pub(crate) object: DynamicObject,
    /// As it is understood: for people, and [`tamed`] for their terminals.
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
    /// Reads the kubeconfig; asks the cluster nothing yet.
    pub(crate) async fn open(global: &Global) -> Result<Session, Error> {
        let options = KubeConfigOptions { context: global.context.clone(), ..KubeConfigOptions::default() };
        let file = match &global.kubeconfig {
            Some(path) => Kubeconfig::read_from(path)
                .map_err(|error| Error::Kubeconfig(format!("--kubeconfig {}: {}", path.display(), cause(&error))))?,
            None => Kubeconfig::read().map_err(|error| {
                Error::Kubeconfig(format!(
                    "no cluster to ask: {}; name a kubeconfig with --kubeconfig or $KUBECONFIG",
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

    /// The clock; what renders is given the time.
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

    /// The error for a name that is not there, with what might have been meant as far as the user may know.
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
        KubeconfigError::FindPath => "there is no kubeconfig".to_owned(),
        other => other.to_string(),
    }
}

/// Where answers go: what was asked for to stdout, all else to stderr.
pub(crate) struct Printer {
    stdout: AutoStream<io::Stdout>,
    stderr: AutoStream<io::Stderr>,
    pub(crate) output: Output,
}

impl Printer {
    pub(crate) fn new(output: Output, color: Color) -> Printer {
        let choice = match color {
            // Looks at NO_COLOR and at what is behind the stream.
            Color::Auto => ColorChoice::Auto,
            Color::Always => ColorChoice::AlwaysAnsi,
            Color::Never => ColorChoice::Never,
        };
        let (stdout, stderr) = (AutoStream::new(io::stdout(), choice), AutoStream::new(io::stderr(), choice));
        Printer { stdout, stderr, output }
    }

    /// Characters in a line of the terminal that answers go to; `None`: it is none.
    pub(crate) fn width(&self) -> Option<usize> {
        console::Term::stdout().size_checked().map(|(_, columns)| columns.into())
    }

    /// What was asked for, with colours where there are any.
    pub(crate) fn out(&mut self, text: &str) -> Result<(), Error> {
        written(self.stdout.write_all(text.as_bytes()).and_then(|()| self.stdout.flush()))
    }

    /// What was asked for, byte by byte.
    pub(crate) fn raw(&mut self, text: &str) -> Result<(), Error> {
        let mut stdout = io::stdout();
        written(stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()))
    }

    pub(crate) fn note(&mut self, line: &str) {
        // A closed stderr is no failure.
        let _ = writeln!(self.stderr, "{line}");
    }

    /// An object as it is, or a sentence about it where people read.
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

    /// Objects as they are, in a List as kubectl prints it, or a text about them where people read.
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
