//! The operator's own binary, run as a process.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::progress::Progress;
use crate::tools::Extra;
use crate::wait::{TIMEOUT, blocking_within};

/// The binary, rebuilt if it is out of date, once for all tests of a process.
pub fn binary() -> Result<&'static Path> {
    static BINARY: LazyLock<Result<PathBuf>> = LazyLock::new(|| build(&["--workspace"], None));
    BINARY.as_deref().map_err(|error| anyhow!("{error:#}"))
}

/// The restic that the operator's image has, built if necessary. Blocks.
pub fn restic() -> Result<&'static Path> {
    static RESTIC: LazyLock<Result<PathBuf>> = LazyLock::new(|| Extra::Restic.ensure(&Progress::stderr()));
    RESTIC.as_deref().map_err(|error| anyhow!("{error:#}"))
}

/// The release build of the binary, rebuilt if it is out of date.
pub fn release_binary() -> Result<PathBuf> {
    build(&["--workspace", "--release"], None)
}

/// The compiler's flags of the operator in its image, which has no libc: glibc is linked statically, as the Dockerfile does.
pub const STATIC: &str = "-Ctarget-feature=+crt-static";

/// Returns the target of the operator in its image.
pub fn image_target() -> String {
    format!("{}-unknown-linux-gnu", std::env::consts::ARCH)
}

/// Returns the version of the glibc that is linked into it, such as 2.36.
pub fn glibc() -> Result<String> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output().context("cannot run getconf")?;
    let printed = String::from_utf8_lossy(&output.stdout);
    let version = printed.trim().strip_prefix("glibc ");
    version.map(str::to_owned).with_context(|| format!("getconf prints no version of glibc: {printed:?}"))
}

/// The operator for its image, rebuilt if it is out of date. It names no path of this machine.
pub fn image_binary() -> Result<PathBuf> {
    // Because a target is named, the flags are not those of what runs while compiling.
    let (target, glibc) = (image_target(), glibc()?);
    // Before, a static program loaded its resolver of names at run time.
    let is_new = glibc.rsplit_once('.').and_then(|(_, minor)| minor.parse().ok()).is_some_and(|minor: u32| minor >= 34);
    ensure!(is_new, "the operator's image needs glibc 2.34 or later, and its static library; this machine has {glibc}");
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let home = home.context("neither CARGO_HOME nor HOME is set")?;
    let flags = [
        STATIC.to_owned(),
        format!("--remap-path-prefix={}=/cargo", home.display()),
        format!("--remap-path-prefix={}=/build", workspace().display()),
    ];
    let arguments = ["--package", "clientapp-operator", "--release", "--locked", "--target", &target];
    build(&[&arguments[..], &["--target-dir", "target/release-static"]].concat(), Some(flags.join("\x1f")))
}

fn workspace() -> &'static Path {
    // Whatever CARGO_MANIFEST_DIR is at run time, the workspace is where this was compiled.
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("e2e is in a workspace")
}

/// Returns a command of the cargo that has started this process, without its variables about e2e: a build script that reads them (ring's)
/// would be rerun each time.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let ours = std::env::vars_os().map(|(name, _)| name);
    let ours = ours.filter(|name| {
        let name = name.to_string_lossy();
        name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")
    });
    ours.for_each(|name| {
        command.env_remove(name);
    });
    command
}

/// `flags`: of the compiler, in place of the environment's.
fn build(arguments: &[&str], flags: Option<String>) -> Result<PathBuf> {
    let output = cargo()
        .args(["build", "--quiet", "--bin", "clientapp-operator"])
        .args(arguments)
        .args(["--message-format", "json-render-diagnostics"])
        .envs(flags.map(|flags| ("CARGO_ENCODED_RUSTFLAGS", flags)))
        .current_dir(workspace())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run cargo")?;
    if !output.status.success() {
        bail!("the operator does not compile");
    }
    let built = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .filter(|message| message["target"]["name"] == "clientapp-operator")
        .find_map(|message| message["executable"].as_str().map(PathBuf::from));
    built.context("cargo does not say where the operator is")
}

/// Start options of an operator.
#[derive(Clone, Debug)]
pub struct Options {
    /// `None`: the binary from [`binary`].
    pub binary: Option<PathBuf>,
    /// The kubeconfig with the operator's identity.
    pub kubeconfig: PathBuf,
    pub helm: PathBuf,
    pub chart_repository: String,
    /// `None`: an empty directory of its own.
    pub chart_cache: Option<PathBuf>,
    /// Its directory for temporary files, which a container keeps when it restarts. `None`: an empty one of its own.
    pub temporary: Option<PathBuf>,
    pub lease_namespace: String,
    /// Further arguments of `run`.
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
}

impl Options {
    /// The defaults.
    #[must_use]
    pub fn new(kubeconfig: PathBuf, helm: &Path, chart_repository: impl Into<String>) -> Self {
        Options {
            binary: None,
            kubeconfig,
            helm: helm.to_owned(),
            chart_repository: chart_repository.into(),
            chart_cache: None,
            temporary: None,
            lease_namespace: "default".to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
        }
    }
}

/// A running operator. Dropping it stops it and waits for that.
#[derive(Debug)]
pub struct Operator {
    child: Child,
    home: TempDir,
    /// Ends the operator with this process, which may hold it in a static: without a cluster it would run for ever.
    guard: Child,
}

impl Operator {
    /// Does not wait until it is ready.
    pub fn start(options: &Options) -> Result<Self> {
        let home = tempfile::tempdir()?;
        let log = File::create(home.path().join("log"))?;
        std::fs::create_dir(home.path().join("tmp"))?;
        let temporary = options.temporary.clone().unwrap_or_else(|| home.path().join("tmp"));
        let cache = options.chart_cache.clone().unwrap_or_else(|| home.path().join("charts"));
        let mut command = Command::new(match &options.binary {
            Some(path) => path,
            None => binary()?,
        });
        command
            .arg("run")
            .arg("--kubeconfig")
            .arg(&options.kubeconfig)
            .arg("--helm")
            .arg(&options.helm)
            .args(["--chart-repository", &options.chart_repository])
            .arg("--chart-cache")
            .arg(cache)
            .args(["--lease-namespace", &options.lease_namespace])
            .args(&options.arguments)
            .env_clear()
            .env("TMPDIR", temporary)
            .env("RUST_BACKTRACE", "1")
            // Unless the arguments say otherwise.
            .env("CLIENTAPP_HEALTH_LISTEN", "127.0.0.1:0")
            .env("CLIENTAPP_API_LISTEN", "127.0.0.1:0")
            .env("CLIENTAPP_DELETION_BRAKE", "10000")
            .envs(options.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let child = command.spawn().context("cannot start the operator")?;
        let guard = Command::new("sh")
            .args(["-c", "read -r _; kill -KILL \"$1\"", "sh", &child.id().to_string()])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot start the operator's guard")?;
        Ok(Operator { child, home, guard })
    }

    /// Starts it and waits until it leads.
    ///
    /// # Errors
    /// Contain the operator's log.
    pub fn leading(options: &Options) -> Result<Self> {
        let mut operator = Self::start(options)?;
        operator.wait_for_log("\"leading\"")?;
        Ok(operator)
    }

    /// Waits until its log contains this text.
    ///
    /// # Errors
    /// If the operator ends first, or after [`TIMEOUT`], with its log.
    pub fn wait_for_log(&mut self, text: &str) -> Result<()> {
        let logged = blocking_within(TIMEOUT, &format!("the operator's log has {text}"), || {
            match (self.log().contains(text), self.child.try_wait()) {
                (true, _) => Some(Ok(())),
                (false, Ok(None)) => None,
                (false, Ok(Some(status))) => Some(Err(anyhow!("the operator ended with {status}"))),
                (false, Err(error)) => Some(Err(error.into())),
            }
        });
        logged.flatten().with_context(|| format!("the operator's log:\n{}", self.log()))
    }

    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.home.path().join("log")).unwrap_or_default()
    }

    /// Base URL of /healthz, /readyz and /metrics.
    ///
    /// # Errors
    /// Contain the operator's log.
    pub fn health_url(&mut self) -> Result<String> {
        self.wait_for_log("serving /healthz")?;
        let log = self.log();
        let served = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let address = served.into_iter().find_map(|line| line["address"].as_str().map(str::to_owned));
        Ok(format!("http://{}", address.context("the operator does not log its address")?))
    }

    /// Base URL of its HTTP API.
    ///
    /// # Errors
    /// Contain the operator's log.
    pub fn api_url(&mut self) -> Result<String> {
        self.wait_for_log("serving the API")?;
        let log = self.log();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let url = lines.find_map(|line| Some(format!("{}://{}", line["scheme"].as_str()?, line["api"].as_str()?)));
        url.context("the operator does not log its address")
    }

    /// The sample with this name, labels included, at `/metrics`; without them, the sum of all with the name.
    pub fn counted(&mut self, name: &str) -> Result<f64> {
        let url = self.health_url()?;
        let address = url.trim_start_matches("http://");
        let mut connection = TcpStream::connect(address)?;
        write!(connection, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer)?;
        let lines = answer.lines().filter_map(|line| line.rsplit_once(' '));
        let fits =
            |counted: &str| counted.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with('{'));
        // A metric that was never incremented is not listed.
        Ok(lines.filter(|(counted, _)| fits(counted)).filter_map(|(_, value)| value.trim().parse::<f64>().ok()).sum())
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The processes that it has started and not yet waited for: its helms, which have no children.
    #[must_use]
    pub fn children(&self) -> Vec<Pid> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).into_iter().flatten().flatten();
        let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
        let pids = |list: String| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>();
        lists.flat_map(pids).map(Pid::from_raw).collect()
    }

    pub fn signal(&self, signal: Signal) {
        // It may have ended already.
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), signal);
    }

    /// Stops it with SIGTERM and waits. Returns whether it succeeded.
    pub fn stop(mut self) -> Result<bool> {
        self.signal(Signal::SIGTERM);
        Ok(self.child.wait()?.success())
    }

    /// Stops it with its helms, until it is thawed.
    #[must_use]
    pub fn freeze(self) -> Frozen {
        Frozen { tree: Tree::stop(&self), operator: self }
    }

    /// Kills it and waits.
    pub fn kill(mut self) -> Result<()> {
        self.signal(Signal::SIGKILL);
        self.child.wait()?;
        Ok(())
    }

    /// Waits until it ends by itself. Returns whether it succeeded.
    pub fn wait(&mut self) -> Result<bool> {
        Ok(self.child.wait()?.success())
    }
}

/// A stopped operator with all its children, like a paused virtual machine.
#[derive(Debug)]
pub struct Frozen {
    // Dropped first: the drop of the operator below would wait for ever while it is stopped.
    tree: Tree,
    operator: Operator,
}

impl Frozen {
    /// Lets it go on where it was.
    #[must_use]
    pub fn thaw(self) -> Operator {
        let Frozen { tree, operator } = self;
        drop(tree);
        operator
    }
}

/// Stopped processes, resumed when this is dropped.
#[derive(Debug)]
struct Tree(Vec<Pid>);

impl Tree {
    fn stop(parent: &Operator) -> Tree {
        parent.signal(Signal::SIGSTOP);
        let children = parent.children();
        // They may have ended meanwhile.
        children.iter().for_each(|pid| _ = kill(*pid, Signal::SIGSTOP));
        Tree(children.into_iter().chain([Pid::from_raw(parent.pid().cast_signed())]).collect())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.0.iter().for_each(|pid| _ = kill(*pid, Signal::SIGCONT));
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        // The guard first: the kernel may reuse the operator's process id as soon as it has been waited for.
        let _ = self.guard.kill();
        let _ = self.guard.wait();
        self.signal(Signal::SIGTERM);
        // A wrapper that the test has given may pass no signal on.
        if blocking_within(TIMEOUT, "the operator has ended", || self.child.try_wait().ok().flatten()).is_err() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        if std::thread::panicking() {
            eprintln!("the operator's log:\n{}", self.log());
        }
    }
}
