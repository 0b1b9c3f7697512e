//! An OCI registry on the loopback interface with every version of the test chart: distribution's `registry` binary.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use serde_json::json;
use tempfile::TempDir;

use crate::charts;
use crate::helm::Helm;
use crate::progress::Progress;
use crate::tools::Extra;

/// The user and password of [`Registry::with_login`], and the line of a file of Apache's `htpasswd -B` with them.
pub const USERNAME: &str = "tenant";
pub const PASSWORD: &str = "canary-of-the-registry";
const HTPASSWD: &str = "tenant:$2b$05$abcdefghijklmnopqrstuuTQLdDQ2arfM5hmv74DJrVlfO6Ojq7Qm\n";

/// Serves until it is dropped, and no longer than this process lives.
#[derive(Debug)]
pub struct Registry {
    address: SocketAddr,
    server: Child,
    watchdog: Child,
    log: Option<JoinHandle<()>>,
    _dir: TempDir,
}

impl Registry {
    /// Starts an empty registry on a free port.
    pub fn start() -> Result<Self> {
        Self::start_with(None)
    }

    /// The same, which demands [`USERNAME`] and [`PASSWORD`].
    pub fn with_login() -> Result<Self> {
        Self::start_with(Some(HTPASSWD))
    }

    fn start_with(login: Option<&str>) -> Result<Self> {
        let binary = Extra::Registry.ensure(&Progress::stderr())?;
        let dir = tempfile::tempdir()?;
        let config = dir.path().join("config.yaml");
        let mut settings = configuration(dir.path());
        if let Some(login) = login {
            let path = dir.path().join("htpasswd");
            fs::write(&path, login)?;
            settings["auth"] = json!({"htpasswd": {"realm": "charts", "path": path}});
        }
        fs::write(&config, settings.to_string())?;
        let mut server = Command::new(&binary)
            .arg("serve")
            .arg(&config)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", binary.display()))?;
        let stderr = server.stderr.take().context("the registry has no stderr")?;
        let watchdog = watch(&server, dir.path());
        let (said, heard) = channel();
        let log = Some(std::thread::spawn(move || listen(stderr, &said)));
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        // Constructed before the first possible failure below, so that its drop ends what was started.
        let mut registry = Self { address: nowhere, server, watchdog: watchdog?, log, _dir: dir };
        registry.address = heard.recv()??;
        Ok(registry)
    }

    /// Packages every version of the test chart and pushes it with helm.
    pub fn push_all(&self, helm: &Path) -> Result<()> {
        let dir = tempfile::tempdir()?;
        charts::package_all(dir.path())?.iter().try_for_each(|archive| self.push(helm, archive))
    }

    /// Pushes one archive with helm.
    pub fn push(&self, helm: &Path, archive: &Path) -> Result<()> {
        let archive = archive.as_os_str();
        let repository = self.repository();
        // Without a demand for them, the user and password are not sent.
        let login = ["--username", USERNAME, "--password", PASSWORD].map(OsStr::new);
        let arguments = ["push".as_ref(), "--plain-http".as_ref(), archive, repository.as_ref()];
        let ran = Helm::new(helm)?.run(&[&arguments[..], &login].concat())?;
        if !ran.success {
            bail!("pushing {}: {}", archive.display(), ran.stderr);
        }
        Ok(())
    }

    /// For a server with TLS in front of it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The charts' location, `oci://127.0.0.1:<port>/charts`. Helm needs `--plain-http` with it.
    pub fn repository(&self) -> String {
        format!("oci://{}/charts", self.address)
    }

    /// The chart argument for helm: the repository and the chart's name.
    pub fn chart(&self) -> String {
        format!("{}/{}", self.repository(), charts::NAME)
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // The watchdog first: until the server is waited for, no other process can get its id.
        for process in [&mut self.watchdog, &mut self.server] {
            let _ = process.kill();
            let _ = process.wait();
        }
        if let Some(log) = self.log.take() {
            let _ = log.join();
        }
    }
}

/// JSON is YAML.
fn configuration(dir: &Path) -> serde_json::Value {
    json!({
        "version": "0.1",
        // The address is read from the log, hence its level and format.
        "log": {"level": "info", "formatter": "json", "accesslog": {"disabled": true}},
        "storage": {"filesystem": {"rootdirectory": dir.join("storage")}},
        "http": {"addr": "127.0.0.1:0"},
    })
}

/// Ends the server when this process dies without dropping anything: the pipe then closes, and the shell's `read`
/// returns. It is in its own process group, like the server, so that a terminal's Ctrl-C does not end it first.
fn watch(server: &Child, dir: &Path) -> Result<Child> {
    Command::new("/bin/sh")
        .args(["-c", "read -r _; kill -s KILL \"$1\"; rm -rf -- \"$2\"", "watchdog"])
        .arg(server.id().to_string())
        .arg(dir)
        .process_group(0)
        .stdin(Stdio::piped())
        .spawn()
        .context("starting the registry's watchdog")
}

/// Reports the address once it appears, or else the whole log. Reads to the end in any case: a full pipe would block
/// the server.
fn listen(stderr: ChildStderr, said: &Sender<Result<SocketAddr>>) {
    let mut all = String::new();
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        if let Some(address) = address(&line) {
            let _ = said.send(Ok(address));
        }
        all.push_str(&line);
        all.push('\n');
    }
    let _ = said.send(Err(anyhow::anyhow!("the registry ended: {all}")));
}

fn address(line: &str) -> Option<SocketAddr> {
    let line: serde_json::Value = serde_json::from_str(line).ok()?;
    line["msg"].as_str()?.strip_prefix("listening on ")?.parse().ok()
}
