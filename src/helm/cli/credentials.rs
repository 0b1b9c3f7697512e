//! Reads what helm needs to pull charts from a source that demands credentials: files of mounted Secrets (effect).

use std::{
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::{redact::Redactor, workdir};
use crate::helm::source::ChartSource;

/// The keys of a Secret with credentials: those of Flux's HelmRepositories, and of Kubernetes' own types of Secrets.
const USERNAME: &str = "username";
const PASSWORD: &str = "password";
const DOCKER_CONFIG: &str = ".dockerconfigjson";
const CA: &str = "ca.crt";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Limits a file, in bytes: that of a Secret.
const MAX_FILE: u64 = 1 << 20;

/// Names the files. Each pull reads them anew, so that what is in a Secret can be replaced while the operator runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CredentialFiles {
    /// The directory with the credentials of the chart repository.
    pub directory: Option<PathBuf>,
    /// The keyring with the public keys, one of which must have signed each chart.
    pub keyring: Option<PathBuf>,
}

/// Says why the files cannot be used. What is in them is not quoted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidCredentials {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is not a file of at most 1 MiB", path.display())]
    Unfit { path: PathBuf },
    #[error(
        "{} has none of {USERNAME} and {PASSWORD}, {DOCKER_CONFIG}, {CA}, {CERTIFICATE} and {KEY}: mount a Secret with \
         them there",
        directory.display()
    )]
    Empty { directory: PathBuf },
    #[error("{} has {present}, but no {missing}: put both into the Secret", directory.display())]
    Half { directory: PathBuf, present: &'static str, missing: &'static str },
    #[error("{} is not for this source: {rule}", path.display())]
    OtherSource { path: PathBuf, rule: &'static str },
    #[error("{} has to be one line of text{rule}", path.display())]
    NotOneLine { path: PathBuf, rule: &'static str },
    #[error("{} is not a Docker config.json with credentials of {host} in `auths`", path.display())]
    NoAuth { path: PathBuf, host: String },
}

/// Holds what helm is given for one pull. It does not implement `Debug`, so that nothing prints the password.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Credentials {
    /// The user name and password of a repository.
    pub login: Option<(String, String)>,
    /// The Docker config.json with the credentials of a registry.
    pub registry_config: Option<PathBuf>,
    /// The authorities that replace those of the system.
    pub ca: Option<PathBuf>,
    /// The certificate of the client and its key.
    pub certificate: Option<(PathBuf, PathBuf)>,
    pub keyring: Option<PathBuf>,
    /// Redacts helm's messages.
    pub redactor: Redactor,
}

impl CredentialFiles {
    /// Reads and validates the files for a pull from this source.
    pub(crate) fn read(&self, source: &ChartSource) -> Result<Credentials, InvalidCredentials> {
        let mut credentials = match &self.directory {
            Some(directory) => Self::read_directory(absolute(directory)?, source)?,
            None => Credentials::default(),
        };
        if let Some(path) = self.keyring.as_deref().map(absolute).transpose()? {
            if content(&path)?.is_none() {
                return Err(InvalidCredentials::Read { path, source: io::ErrorKind::NotFound.into() });
            }
            credentials.keyring = Some(path);
        }
        Ok(credentials)
    }

    fn read_directory(directory: PathBuf, source: &ChartSource) -> Result<Credentials, InvalidCredentials> {
        let read = |name| content(&directory.join(name));
        let path = |name| directory.join(name);
        if let ChartSource::Directory(_) = source {
            return Err(InvalidCredentials::OtherSource {
                path: directory,
                rule: "charts in a directory need no credentials",
            });
        }
        let (config, ca) = (read(DOCKER_CONFIG)?, read(CA)?);
        let login = pair(&directory, [USERNAME, PASSWORD], [read(USERNAME)?, read(PASSWORD)?])?;
        let certificate = pair(&directory, [CERTIFICATE, KEY], [read(CERTIFICATE)?, read(KEY)?])?;
        if login.is_none() && config.is_none() && ca.is_none() && certificate.is_none() {
            return Err(InvalidCredentials::Empty { directory });
        }
        let login = match (login, source) {
            (None, _) => None,
            (Some([username, password]), ChartSource::Repository(_)) => {
                let username = line(path(USERNAME), username)?;
                if username.contains(':') {
                    return Err(InvalidCredentials::NotOneLine { path: path(USERNAME), rule: " without a colon" });
                }
                Some((username, line(path(PASSWORD), password)?))
            }
            (Some(_), _) => {
                let rule = "the credentials of an oci:// registry are in .dockerconfigjson";
                return Err(InvalidCredentials::OtherSource { path: path(USERNAME), rule });
            }
        };
        let (registry_config, secrets) = match (config, source) {
            (None, _) => (None, login.iter().map(|(_, password)| password.clone()).collect()),
            (Some(config), ChartSource::Registry { url, .. }) => {
                let (path, host) = (path(DOCKER_CONFIG), host(url));
                match registry_secrets(&config, host) {
                    Some(secrets) => (Some(path), secrets),
                    None => return Err(InvalidCredentials::NoAuth { path, host: host.to_owned() }),
                }
            }
            (Some(_), _) => {
                let rule = "the credentials of an https:// repository are in username and password";
                return Err(InvalidCredentials::OtherSource { path: path(DOCKER_CONFIG), rule });
            }
        };
        Ok(Credentials {
            login,
            registry_config,
            ca: ca.map(|_| path(CA)),
            certificate: certificate.map(|_| (path(CERTIFICATE), path(KEY))),
            keyring: None,
            redactor: Redactor::from_values([&Value::from(secrets)]).unwrap_or_default(),
        })
    }
}

/// A relative path would be helm's, which runs in another directory; and none that is absolute acts as a flag.
fn absolute(path: &Path) -> Result<PathBuf, InvalidCredentials> {
    std::path::absolute(path).map_err(|source| InvalidCredentials::Read { path: path.to_owned(), source })
}

/// Reads a file. Returns `None` if there is none.
fn content(path: &Path) -> Result<Option<Vec<u8>>, InvalidCredentials> {
    let failed = |source| InvalidCredentials::Read { path: path.to_owned(), source };
    let mut file = match workdir::open(path, MAX_FILE) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(failed)?.ok_or_else(|| InvalidCredentials::Unfit { path: path.to_owned() })?,
    };
    let mut content = Vec::new();
    file.read_to_end(&mut content).map_err(failed)?;
    Ok(Some(content))
}

/// Returns two files of which neither is of use without the other.
fn pair(
    directory: &Path,
    [first, second]: [&'static str; 2],
    files: [Option<Vec<u8>>; 2],
) -> Result<Option<[Vec<u8>; 2]>, InvalidCredentials> {
    let half = |present, missing| Err(InvalidCredentials::Half { directory: directory.to_owned(), present, missing });
    match files {
        [Some(one), Some(other)] => Ok(Some([one, other])),
        [None, None] => Ok(None),
        [Some(_), None] => half(first, second),
        [None, Some(_)] => half(second, first),
    }
}

/// Returns the text of a file without the newline that editors put at its end.
fn line(path: PathBuf, content: Vec<u8>) -> Result<String, InvalidCredentials> {
    let line = String::from_utf8(content).ok().map(|text| match text.strip_suffix('\n') {
        Some(line) => line.to_owned(),
        None => text,
    });
    line.filter(|line| !line.is_empty() && !line.contains(char::is_control))
        .ok_or(InvalidCredentials::NotOneLine { path, rule: ", with at most one newline at its end" })
}

/// Returns the host and port of a registry, `oci://host:port/path`.
fn host(url: &str) -> &str {
    let address = url.strip_prefix("oci://").unwrap_or(url);
    address.split('/').next().unwrap_or(address)
}

/// Returns what a Docker config.json has of a registry that is secret; `None` if it has nothing. **Pure.**
///
/// Its keys are found as helm finds them: `registry.example.com`, or a URL with it.
fn registry_secrets(config: &[u8], host: &str) -> Option<Vec<String>> {
    // The name under which Docker keeps the credentials of its own registry.
    let host = if matches!(host, "docker.io" | "registry-1.docker.io") { "index.docker.io" } else { host };
    let config: Value = serde_json::from_slice(config).ok()?;
    let auths = config.get("auths")?.as_object()?;
    let is_its = |key: &str| {
        let address = key.strip_prefix("https://").or_else(|| key.strip_prefix("http://")).unwrap_or(key);
        address.split('/').next() == Some(host)
    };
    let (_, auth) = auths.iter().find(|(key, _)| is_its(key))?;
    let text = |field: &str| auth.get(field)?.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
    let mut secrets: Vec<_> =
        ["auth", "password", "identitytoken", "registrytoken"].into_iter().filter_map(text).collect();
    let login = text("auth").and_then(|auth| String::from_utf8(STANDARD.decode(auth).ok()?).ok());
    secrets.extend(login.and_then(|login| Some(login.split_once(':')?.1.to_owned())));
    (!secrets.is_empty()).then_some(secrets)
}

#[cfg(test)]
mod tests;
