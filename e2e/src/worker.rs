//! Runs the pods of archives and restores of files for real: their container, which has the operator's own image, is a
//! process on this machine. kwok leaves these pods running, so that without a Worker they never end.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Output, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use clientapp_crd::label;
use futures::StreamExt as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    Container, EnvVarSource, PersistentVolumeClaim, Pod, Secret, SecretVolumeSource, Volume,
};
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::runtime::wait::await_condition;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt as _, watcher};
use kube::{Client, Config, ResourceExt as _};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;
use tokio::task::AbortHandle;

use crate::background::Background;
use crate::lab::{IMAGE, Tenant};
use crate::operator;

/// The content of all Secrets of a namespace, by name and key.
type Secrets = BTreeMap<String, BTreeMap<String, Vec<u8>>>;

/// The path of the termination message, if the container names no other.
const TERMINATION_LOG: &str = "/dev/termination-log";
/// Most lines of the log in a termination message, as with the kubelet.
const LINES: usize = 80;

/// Runs the pods of one namespace that have the label [`label::FILES_OF`]. Dropping it kills the processes, and then
/// removes the volumes.
#[derive(Debug)]
pub struct Worker {
    _service: Background,
    home: TempDir,
}

impl Worker {
    /// For all pods of the tenant's namespace, whenever they are created.
    pub async fn start(tenant: &Tenant) -> Result<Worker> {
        let home = tempfile::tempdir()?;
        let (config, namespace) = (tenant.lab.plane.config().await?, tenant.namespace.clone());
        let path = home.path().to_owned();
        let service = Background::spawn("worker", move || serve(config, namespace, path))?;
        Ok(Worker { _service: service, home })
    }

    /// The directory with the content of a `PersistentVolumeClaim`, by the claim's uid.
    pub fn volume(&self, uid: &str) -> Result<PathBuf> {
        claimed(self.home.path(), uid)
    }
}

fn claimed(home: &Path, uid: &str) -> Result<PathBuf> {
    let directory = home.join("claims").join(uid);
    fs::create_dir_all(&directory)?;
    Ok(directory)
}

async fn serve(config: Config, namespace: String, home: PathBuf) {
    // Created here, since a client belongs to the runtime on which it was created.
    let client = Client::try_from(config).expect("the configuration makes a client");
    let pods = Api::<Pod>::namespaced(client.clone(), &namespace);
    let of_files = watcher::Config::default().labels(label::FILES_OF);
    let mut events = pin!(watcher(pods, of_files).default_backoff());
    let mut started: BTreeMap<String, AbortHandle> = BTreeMap::new();
    // After an error, the watcher lists the pods again.
    while let Some(event) = events.next().await {
        let (pod, is_gone) = match event {
            Ok(Event::Apply(pod) | Event::InitApply(pod)) => {
                let is_gone = pod.metadata.deletion_timestamp.is_some();
                (pod, is_gone)
            }
            Ok(Event::Delete(pod)) => (pod, true),
            Ok(Event::Init | Event::InitDone) | Err(_) => continue,
        };
        let uid = pod.uid().unwrap_or_default();
        // Not before kwok has set it Running, which would otherwise overwrite its end.
        let is_running = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
        if is_gone {
            // Dropping a process kills it.
            if let Some(task) = started.get(&uid) {
                task.abort();
            }
        } else if is_running && !started.contains_key(&uid) {
            started.insert(uid, tokio::spawn(run(client.clone(), home.clone(), pod)).abort_handle());
        }
    }
}

/// Runs a pod's container, and reports its end as the kubelet does.
async fn run(client: Client, home: PathBuf, pod: Pod) {
    let began = Timestamp::now();
    let end = execute(&client, &home, &pod).await.unwrap_or_else(|error| End {
        code: 128,
        reason: "StartError",
        message: format!("the Worker of the tests: {error:#}"),
    });
    let patch = Patch::Strategic(status(&pod, &end, began, Timestamp::now()));
    let pods = Api::<Pod>::namespaced(client, &pod.namespace().unwrap_or_default());
    match pods.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await {
        // It was deleted meanwhile.
        Err(kube::Error::Api(status)) if status.code == 404 => {}
        reported => drop(reported.expect("the end of the pod is reported")),
    }
}

async fn execute(client: &Client, home: &Path, pod: &Pod) -> Result<End> {
    let spec = pod.spec.as_ref().context("it has no spec")?;
    let (None, [container]) = (&spec.init_containers, &spec.containers[..]) else {
        bail!("a pod with a single container is expected");
    };
    ensure!(container.image.as_deref() == Some(IMAGE), "{:?} is not the operator's image", container.image);
    let (namespace, uid) = (pod.namespace().unwrap_or_default(), pod.uid().unwrap_or_default());
    let secrets = secrets(client, &namespace, container).await?;
    let home_of_pod = home.join("pods").join(uid);
    let mut volumes = BTreeMap::new();
    for volume in spec.volumes.iter().flatten() {
        let source = match &volume.persistent_volume_claim {
            Some(source) => {
                let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), &namespace);
                Source::Claim(claimed(home, &claims.get(&source.claim_name).await?.uid().unwrap_or_default())?)
            }
            None => Source::Own(provided(&home_of_pod.join("volumes"), volume, &secrets)?),
        };
        volumes.insert(volume.name.as_str(), source);
    }
    let root = Root::new(home_of_pod.join("root"), container, &volumes)?;
    let arguments = container.args.iter().flatten().map(|word| root.path_of(word));
    let environment = environment(container, pod, &secrets)?;
    let mut command = Command::new(operator::binary()?);
    command.env_clear().env("CLIENTAPP_RESTIC", tokio::task::spawn_blocking(operator::restic).await??);
    command
        .args(arguments)
        .envs(environment.into_iter().map(|(name, value)| (name, root.path_of(&value))))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = command.output().await?;
    let report = fs::read_to_string(root.path_of(termination_log(container))).unwrap_or_default();
    Ok(End::new(&output, report, container.termination_message_policy.as_deref()))
}

/// The Secrets of the namespace, once it has those without which the container does not start.
async fn secrets(client: &Client, namespace: &str, container: &Container) -> Result<Secrets> {
    let api = Api::<Secret>::namespaced(client.clone(), namespace);
    loop {
        let listed = api.list(&ListParams::default()).await?.items.into_iter();
        let secrets: Secrets = listed
            .map(|secret| {
                let data = secret.data.clone().unwrap_or_default();
                (secret.name_any(), data.into_iter().map(|(key, value)| (key, value.0)).collect())
            })
            .collect();
        let Some((name, key)) = missing(container, &secrets) else { return Ok(secrets) };
        let has_key = move |secret: Option<&Secret>| {
            secret.and_then(|secret| secret.data.as_ref()).is_some_and(|data| data.contains_key(key))
        };
        await_condition(api.clone(), name, has_key).await?;
    }
}

/// Name and key of a Secret that the container needs to start, and that is not there.
fn missing<'a>(container: &'a Container, secrets: &Secrets) -> Option<(&'a str, &'a str)> {
    let sources = container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref());
    let needed = sources.filter_map(|from| from.secret_key_ref.as_ref()).filter(|from| from.optional != Some(true));
    needed
        .map(|from| (from.name.as_str(), from.key.as_str()))
        .find(|(name, key)| !secrets.get(*name).is_some_and(|data| data.contains_key(*key)))
}

/// The container's variables, with paths as in the container.
fn environment(container: &Container, pod: &Pod, secrets: &Secrets) -> Result<BTreeMap<String, String>> {
    let mut variables = BTreeMap::from([("HOSTNAME".to_owned(), pod.name_any())]);
    for variable in container.env.iter().flatten() {
        let value = match &variable.value_from {
            None => variable.value.clone().unwrap_or_default(),
            Some(EnvVarSource { secret_key_ref: Some(from), .. }) => {
                // An optional one, or else the container would not have started.
                let Some(value) = secrets.get(&from.name).and_then(|data| data.get(&from.key)) else { continue };
                String::from_utf8(value.clone())?
            }
            Some(EnvVarSource { field_ref: Some(from), .. }) => field(pod, &from.field_path)?,
            Some(_) => bail!("variable {} is neither of a Secret nor of a field", variable.name),
        };
        variables.insert(variable.name.clone(), value);
    }
    Ok(variables)
}

fn field(pod: &Pod, path: &str) -> Result<String> {
    let label = path.strip_prefix("metadata.labels['").and_then(|rest| rest.strip_suffix("']"));
    match (path, label) {
        ("metadata.name", _) => Ok(pod.name_any()),
        (_, Some(key)) => Ok(pod.labels().get(key).cloned().unwrap_or_default()),
        _ => bail!("field {path} is neither the name nor a label"),
    }
}

/// A new directory for a volume of the pod that no claim provides, with the files of its Secret.
fn provided(volumes: &Path, volume: &Volume, secrets: &Secrets) -> Result<PathBuf> {
    let directory = volumes.join(&volume.name);
    fs::create_dir_all(&directory)?;
    if let Some(source) = &volume.secret {
        for (file, data) in files(source, secrets) {
            fs::write(directory.join(file), data)?;
        }
    }
    Ok(directory)
}

/// The files of a volume from a Secret; none of what is missing.
fn files<'a>(source: &'a SecretVolumeSource, secrets: &'a Secrets) -> BTreeMap<&'a str, &'a [u8]> {
    let Some(data) = source.secret_name.as_ref().and_then(|name| secrets.get(name)) else { return BTreeMap::new() };
    match &source.items {
        Some(items) => {
            items.iter().filter_map(|item| Some((item.path.as_str(), data.get(&item.key)?.as_slice()))).collect()
        }
        None => data.iter().map(|(key, value)| (key.as_str(), value.as_slice())).collect(),
    }
}

fn termination_log(container: &Container) -> &str {
    container.termination_message_path.as_deref().unwrap_or(TERMINATION_LOG)
}

/// Where a volume is.
#[derive(Clone, Debug)]
enum Source {
    /// At the end of this link, or in this directory if no pod has mounted it so far.
    Claim(PathBuf),
    /// In this directory of the pod.
    Own(PathBuf),
}

impl Source {
    /// Mounts the volume. That of a claim is moved there, since a mount is a directory and no link, and stays until another pod mounts it.
    fn mount(&self, place: &Path) -> Result<()> {
        let claim = match self {
            Source::Own(directory) => return Ok(symlink(directory, place)?),
            Source::Claim(claim) => claim,
        };
        fs::rename(fs::canonicalize(claim)?, place)?;
        if claim.is_symlink() {
            fs::remove_file(claim)?;
        }
        Ok(symlink(place, claim)?)
    }
}

/// The file system of a container: a directory with what is mounted, and room for the termination message.
struct Root {
    directory: PathBuf,
    /// Paths in the container.
    mounts: Vec<String>,
}

impl Root {
    fn new(directory: PathBuf, container: &Container, volumes: &BTreeMap<&str, Source>) -> Result<Root> {
        let mut root = Root { directory, mounts: vec![termination_log(container).to_owned()] };
        fs::write(root.make_room(termination_log(container))?, "")?;
        for mount in container.volume_mounts.iter().flatten() {
            ensure!(mount.sub_path.is_none(), "a mount of only a part of volume {} is not expected", mount.name);
            let volume = volumes.get(mount.name.as_str()).with_context(|| format!("no volume {}", mount.name))?;
            volume.mount(&root.make_room(&mount.mount_path)?)?;
            root.mounts.push(mount.mount_path.clone());
        }
        Ok(root)
    }

    /// Where a path of the container is, with all directories above it.
    fn make_room(&self, path: &str) -> Result<PathBuf> {
        let place = self.directory.join(path.trim_start_matches('/'));
        fs::create_dir_all(place.parent().context("a path has a parent")?)?;
        Ok(place)
    }

    /// A word with a path of the container replaced by that on this machine: of a mount, or of what is above or below
    /// it. Other words stay as they are.
    fn path_of(&self, word: &str) -> String {
        let is_ours = |mount: &String| is_below(word, mount) || is_below(mount, word);
        match word.starts_with('/') && self.mounts.iter().any(is_ours) {
            true => format!("{}{word}", self.directory.display()),
            false => word.to_owned(),
        }
    }
}

/// Returns true if a path is this one or below it.
fn is_below(path: &str, above: &str) -> bool {
    path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// How a container has ended.
#[derive(Debug, PartialEq, Eq)]
struct End {
    code: i32,
    reason: &'static str,
    message: String,
}

impl End {
    /// A container that fails without a report is described by its log, if its policy says so.
    fn new(output: &Output, report: String, policy: Option<&str>) -> End {
        let (status, log) = (output.status, String::from_utf8_lossy(&output.stderr));
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
        let lines: Vec<&str> = log.lines().collect();
        let falls_back = code != 0 && report.is_empty() && policy == Some("FallbackToLogsOnError");
        let message = if falls_back { lines[lines.len().saturating_sub(LINES)..].join("\n") } else { report };
        End { code, reason: if code == 0 { "Completed" } else { "Error" }, message }
    }
}

/// The status of a pod whose container has ended.
fn status(pod: &Pod, end: &End, began: Timestamp, ended: Timestamp) -> Value {
    let [began, ended] = [began, ended].map(|time| time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
    let End { code, reason, message } = end;
    let terminated =
        json!({"exitCode": code, "reason": reason, "message": message, "startedAt": began, "finishedAt": ended});
    let container = pod.spec.as_ref().and_then(|spec| spec.containers.first());
    json!({"status": {
        "phase": if *code == 0 { "Succeeded" } else { "Failed" },
        "conditions": [{"type": "Ready", "status": "False", "reason": "PodCompleted", "lastTransitionTime": ended}],
        "containerStatuses": [{
            "name": container.map(|container| &container.name), "image": container.map(|container| &container.image),
            "imageID": "", "ready": false, "started": false, "restartCount": 0, "state": {"terminated": terminated},
        }],
    }})
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use super::*;

    fn container(value: Value) -> Container {
        serde_json::from_value(value).unwrap()
    }

    fn secrets_of(name: &str, key: &str, value: &str) -> Secrets {
        BTreeMap::from([(name.to_owned(), BTreeMap::from([(key.to_owned(), value.into())]))])
    }

    #[test]
    fn variables_are_those_that_the_kubelet_would_set() {
        let pod = json!({"metadata": {"name": "job-x", "labels": {"a/b": "label"}}});
        let pod: Pod = serde_json::from_value(pod).unwrap();
        let from = |source: Value| json!({"name": "V", "valueFrom": source});
        let of_secret = |key: &str, optional: bool| {
            let source = json!({"name": "s3", "key": key, "optional": optional});
            from(json!({"secretKeyRef": source}))
        };
        let of_field = |path: &str| from(json!({"fieldRef": {"fieldPath": path}}));
        let secrets = secrets_of("s3", "key", "canary");
        for (variable, expected) in [
            (json!({"name": "V", "value": "plain"}), Some("plain")),
            (json!({"name": "V"}), Some("")),
            (of_secret("key", false), Some("canary")),
            (of_secret("other", true), None),
            (of_field("metadata.name"), Some("job-x")),
            (of_field("metadata.labels['a/b']"), Some("label")),
            (of_field("metadata.labels['other']"), Some("")),
        ] {
            let container = container(json!({"name": "c", "env": [variable]}));
            let found = environment(&container, &pod, &secrets).unwrap();
            assert_eq!(found.get("V").map(String::as_str), expected, "{variable}");
            assert_eq!(found["HOSTNAME"], "job-x");
        }
        for variable in [of_field("spec.nodeName"), from(json!({"resourceFieldRef": {"resource": "limits.cpu"}}))] {
            let container = container(json!({"name": "c", "env": [variable]}));
            assert!(environment(&container, &pod, &secrets).is_err(), "{variable}");
        }
    }

    #[test]
    fn a_container_waits_for_the_secrets_that_it_needs() {
        let of = |name: &str, key: &str, optional: Value| {
            let from = json!({"secretKeyRef": {"name": name, "key": key, "optional": optional}});
            container(json!({"name": "c", "env": [{"name": "V", "valueFrom": from}]}))
        };
        let secrets = secrets_of("s3", "key", "canary");
        for (container, expected) in [
            (container(json!({"name": "c", "env": [{"name": "V", "value": "plain"}]})), None),
            (of("s3", "key", json!(null)), None),
            (of("s3", "other", json!(null)), Some(("s3", "other"))),
            (of("absent", "key", json!(false)), Some(("absent", "key"))),
            (of("absent", "key", json!(true)), None),
        ] {
            assert_eq!(missing(&container, &secrets), expected);
        }
    }

    #[test]
    fn volumes_of_secrets_have_the_files_that_are_named() {
        let mut secrets = secrets_of("restic", "password", "canary");
        secrets.get_mut("restic").unwrap().insert("other".to_owned(), b"other".to_vec());
        for (source, expected) in [
            (json!({"secretName": "restic"}), vec![("password", "canary"), ("other", "other")]),
            (json!({"secretName": "restic", "items": [{"key": "password", "path": "key"}]}), vec![("key", "canary")]),
            (json!({"secretName": "restic", "items": [{"key": "absent", "path": "key"}]}), vec![]),
            (json!({"secretName": "absent", "optional": true}), vec![]),
        ] {
            let source = serde_json::from_value(source).unwrap();
            let expected: BTreeMap<&str, &[u8]> =
                expected.into_iter().map(|(file, data)| (file, data.as_bytes())).collect();
            assert_eq!(files(&source, &secrets), expected);
        }
    }

    #[test]
    fn paths_of_the_container_are_found_on_this_machine() {
        let home = tempfile::tempdir().unwrap();
        let volume = home.path().join("volume");
        fs::create_dir(&volume).unwrap();
        fs::write(volume.join("file"), "content").unwrap();
        let container = container(json!({
            "name": "c", "volumeMounts": [
                {"name": "files", "mountPath": "/volumes/nextcloud"}, {"name": "files", "mountPath": "/ca"},
            ],
        }));
        let root = home.path().join("root");
        let made = Root::new(root.clone(), &container, &BTreeMap::from([("files", Source::Own(volume))])).unwrap();
        for (word, is_path) in [
            ("/volumes", true),
            ("/volumes/nextcloud", true),
            ("/volumes/nextcloud/file", true),
            ("/ca/ca.crt", true),
            ("/dev/termination-log", true),
            ("/volumes2", false),
            ("/volumes/nextcloud2", false),
            ("/etc/passwd", false),
            ("/", false),
            ("", false),
            ("volumes", false),
            ("https://s3.example.com/volumes", false),
        ] {
            let expected = if is_path { format!("{}{word}", root.display()) } else { word.to_owned() };
            assert_eq!(made.path_of(word), expected);
        }
        let content = |path: &str| fs::read_to_string(made.path_of(path)).unwrap();
        assert_eq!((content("/volumes/nextcloud/file"), content("/ca/file")), ("content".into(), "content".into()));
        let entries: Vec<_> = fs::read_dir(made.path_of("/volumes")).unwrap().collect();
        assert_eq!(entries.len(), 1);
        fs::write(made.path_of("/dev/termination-log"), "report").unwrap();
    }

    #[test]
    fn the_end_is_what_the_kubelet_would_report() {
        let long: String = (0..100).map(|number| format!("line {number}\n")).collect();
        let from_20: String = (20..100).map(|number| format!("line {number}\n")).collect();
        let policy = Some("FallbackToLogsOnError");
        for (status, stderr, report, policy, expected) in [
            (0, "a warning", "name 1 2", policy, (0, "Completed", "name 1 2")),
            (0, "a warning", "", policy, (0, "Completed", "")),
            (1 << 8, "error: why", "", policy, (1, "Error", "error: why")),
            (1 << 8, "error: why", "", None, (1, "Error", "")),
            (1 << 8, "error: why", "report", policy, (1, "Error", "report")),
            (1 << 8, long.as_str(), "", policy, (1, "Error", from_20.trim_end())),
            (9, "", "", policy, (137, "Error", "")),
        ] {
            let output = Output { status: ExitStatus::from_raw(status), stdout: Vec::new(), stderr: stderr.into() };
            let (code, reason, message) = expected;
            let end = End { code, reason, message: message.to_owned() };
            assert_eq!(End::new(&output, report.to_owned(), policy), end, "{stderr}");
        }
    }
}
