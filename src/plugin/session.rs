//! The cluster of the user's kubeconfig, and the terminal. Effects.

use std::{
    io::{self, Write as _},
    path::Path,
    time::Duration,
};

use anstream::{AutoStream, ColorChoice};
use jiff::Timestamp;
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, PartialObjectMeta, PatchParams},
    config::{Kubeconfig, KubeconfigError},
    core::NamespaceResourceScope,
};
use serde::Serialize;
use serde_json::Value;

use super::{
    args::{Color, Global},
    connection::{Connection, Flags},
    error::{self, Error},
    output::{self, Output},
    text::{BAD, harmless, paint, tamed},
};
use crate::{crd::ClientApp, platform::client, yaml};

/// Field manager of everything that the plugin writes.
pub(crate) const FIELD_MANAGER: &str = "kubectl-clientapp";

pub(crate) fn patching() -> PatchParams {
    PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() }
}

/// Default of `--request-timeout`: the user may be far away, and this is many times what a page of large objects takes.
const LIMIT: Duration = Duration::from_secs(30);

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
    /// For the commands that messages print.
    pub(crate) flags: Flags,
}

impl Session {
    /// Reads the kubeconfig, and sends no request yet.
    pub(crate) async fn open(global: &Global) -> Result<Session, Error> {
        let connection = &global.connection;
        if let Some(flag) = connection.unfit() {
            return Err(Error::Kubeconfig(format!(
                "{flag} contains a character that cannot be sent to the API server"
            )));
        }
        let config = connection.applied(configured(connection).await?);
        let namespace = global.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = client::commands(&config, connection.request_timeout.unwrap_or(LIMIT))
            .map_err(|error| Error::Kubeconfig(format!("cannot connect as asked: {}", error::sentence(&error))))?;
        Ok(Session { client, flags: connection.flags(&namespace), namespace })
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

    /// The ClientApps of all namespaces or of one, and the place for messages.
    pub(crate) fn apps_in(&self, all_namespaces: bool) -> (Api<DynamicObject>, String) {
        match all_namespaces {
            true => (self.all_apps(), "any namespace".to_owned()),
            false => (self.apps(), format!("namespace {}", self.namespace)),
        }
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
        let hint = error::hint(name, &self.namespace, &there, &self.flags);
        Error::NotFound { name: name.to_owned(), namespace: self.namespace.clone(), hint }
    }
}

/// A YAML document of the user; `-` is standard input.
pub(crate) fn document(path: &Path) -> Result<Value, Error> {
    let text = match path.to_str() {
        Some("-") => io::read_to_string(io::stdin()),
        _ => std::fs::read_to_string(path),
    };
    let failed = Error::file(path);
    yaml::read(&text.map_err(|error| failed(error.to_string()))?).map_err(failed)
}

/// The cluster, user and context that the flags choose in the kubeconfig.
async fn configured(connection: &Connection) -> Result<kube::Config, Error> {
    let file = match (&connection.kubeconfig, &connection.server) {
        (Some(path), _) => Kubeconfig::read_from(path)
            .map_err(|error| Error::Kubeconfig(format!("--kubeconfig {}: {}", path.display(), cause(&error))))?,
        (None, server) => match (Kubeconfig::read(), server) {
            (Ok(file), _) => file,
            // Like kubectl, which needs no kubeconfig then.
            (Err(error), Some(server)) if is_missing(&error) => return Ok(kube::Config::new(server.clone())),
            (Err(error), _) => {
                let why = cause(&error);
                return Err(Error::Kubeconfig(format!(
                    "no cluster: {why}; name a kubeconfig with --kubeconfig or $KUBECONFIG"
                )));
            }
        },
    };
    let contexts = listed(file.contexts.iter().map(|context| &context.name));
    let clusters = listed(file.clusters.iter().map(|cluster| &cluster.name));
    let users = listed(file.auth_infos.iter().map(|user| &user.name));
    if let Some(user) = &connection.user
        && !file.auth_infos.iter().any(|known| known.name == *user)
    {
        return Err(Error::Kubeconfig(format!("the kubeconfig has no user {user}; it has {users}")));
    }
    kube::Config::from_custom_kubeconfig(file, &connection.options()).await.map_err(|error| {
        Error::Kubeconfig(match (&error, &connection.context, &connection.cluster) {
            (KubeconfigError::LoadContext(_), Some(context), _) => {
                format!("the kubeconfig has no context {context}; it has {contexts}")
            }
            (KubeconfigError::CurrentContextNotSet | KubeconfigError::LoadContext(_), None, _) => {
                format!("the kubeconfig has no current context: name one of {contexts} with --context")
            }
            (KubeconfigError::LoadClusterOfContext(_), _, Some(cluster)) => {
                format!("the kubeconfig has no cluster {cluster}; it has {clusters}")
            }
            _ => format!("the kubeconfig cannot be used: {}", cause(&error)),
        })
    })
}

fn is_missing(error: &KubeconfigError) -> bool {
    match error {
        KubeconfigError::FindPath => true,
        KubeconfigError::ReadConfig(error, _) => error.kind() == io::ErrorKind::NotFound,
        _ => false,
    }
}

fn listed<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<_> = names.map(String::as_str).collect();
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
    /// True if an object was printed before.
    begun: bool,
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
        Printer { stdout, stderr, output, begun: false }
    }

    /// Width of the terminal on stdout that a line has to fit; `None` if it is not a terminal, or wide output is asked for.
    pub(crate) fn width(&self) -> Option<usize> {
        let size = console::Term::stdout().size_checked().filter(|_| self.output != Output::Wide);
        size.map(|(_, columns)| columns.into())
    }

    /// Returns true if results are for humans, and not for scripts.
    pub(crate) fn is_for_humans(&self) -> bool {
        self.output.is_for_humans()
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

    pub(crate) fn error(&mut self, error: &Error) {
        self.note(&format!("{} {}", paint(BAD, "error:"), harmless(&error.to_string())));
    }

    /// The object, or for humans a sentence about it.
    pub(crate) fn object(&mut self, object: &impl Serialize, sentence: &str) -> Result<(), Error> {
        let unprintable = |error: serde_json::Error| Error::Output(error.to_string());
        let another = std::mem::replace(&mut self.begun, true);
        let text = match self.output {
            Output::Table | Output::Wide => return self.out(&format!("{sentence}\n")),
            Output::Name => {
                let object = serde_json::to_value(object).map_err(unprintable)?;
                format!("{}\n", harmless(&output::name(&object)))
            }
            Output::Json => format!("{}\n", serde_json::to_string_pretty(object).map_err(unprintable)?),
            Output::Yaml => {
                let separator = if another { "---\n" } else { "" };
                format!("{separator}{}", yaml::print(object).map_err(Error::Output)?)
            }
        };
        self.raw(&text)
    }

    /// The objects in a List, as kubectl prints it, or for humans a text about them.
    pub(crate) fn objects(&mut self, objects: &[impl Serialize], text: impl FnOnce() -> String) -> Result<(), Error> {
        match self.output {
            Output::Table | Output::Wide => return self.out(&text()),
            Output::Name => return objects.iter().try_for_each(|object| self.object(object, "")),
            Output::Json | Output::Yaml => {}
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
