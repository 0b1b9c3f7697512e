//! A real control plane as plain processes: etcd, the API server, the controller manager, the scheduler, and kwok, which
//! simulates nodes whose pods become ready, and volumes.
//!
//! ```no_run
//! use std::sync::OnceLock;
//! use e2e::{plane::ControlPlane, progress::Progress, tools::Tools};
//!
//! /// One plane for all tests of a binary. It ends with the process.
//! fn plane() -> &'static ControlPlane {
//!     static PLANE: OnceLock<ControlPlane> = OnceLock::new();
//!     PLANE.get_or_init(|| {
//!         let tools = Tools::ensure(&Progress::stderr()).expect("the tools are there");
//!         ControlPlane::builder().start(&tools).expect("the plane starts")
//!     })
//! }
//! ```

pub mod certs;
pub(crate) mod kubeconfig;
pub(crate) mod layout;
pub(crate) mod ready;
pub(crate) mod server;
pub(crate) mod watchdog;

use std::collections::BTreeSet;
use std::hash::{BuildHasher as _, RandomState};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use k8s_openapi::ByteString;
use kube::{Client, Config};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use serde::Serialize;
use serde_json::json;

use crate::tools::Tools;
use crate::wait::block_on;
use layout::{Addresses, IPV4, IPV6, Layout};
use server::{Recipe, Server};
use watchdog::Watchdog;

/// Settings of a plane.
#[derive(Clone, Debug)]
#[must_use]
pub struct Builder {
    nodes: usize,
    addresses: Addresses,
    audit_log: bool,
    audit_bodies: bool,
    fsync: bool,
    apiserver_arguments: Vec<String>,
}

impl Builder {
    /// The number of nodes; the default is one.
    pub fn nodes(mut self, nodes: usize) -> Self {
        self.nodes = nodes;
        self
    }

    /// Gives the API server, Services, nodes and pods addresses of IPv6, and none of IPv4.
    pub fn ipv6(mut self) -> Self {
        self.addresses = IPV6;
        self
    }

    /// Sets if the API server writes a line for each request to [`ControlPlane::audit_log`].
    pub fn audit_log(mut self, audit_log: bool) -> Self {
        self.audit_log = audit_log;
        self
    }

    /// Sets if that log has the objects of all writes, before and after, in place of the reads.
    pub fn audit_bodies(mut self, audit_bodies: bool) -> Self {
        self.audit_bodies = audit_bodies;
        self
    }

    /// Sets if etcd's writes survive a crash of the machine. By default they do not, which is faster.
    pub fn fsync(mut self, fsync: bool) -> Self {
        self.fsync = fsync;
        self
    }

    /// Adds an argument for the API server.
    pub fn apiserver_argument(mut self, argument: impl Into<String>) -> Self {
        self.apiserver_arguments.push(argument.into());
        self
    }

    /// Starts the plane and blocks until it is usable: the API server and all nodes are ready, and the namespace
    /// `default` has its service account.
    pub fn start(self, tools: &Tools) -> Result<ControlPlane> {
        self.start_with(tools, |_| Ok(()))
    }

    /// The same, but runs `prepare` before the controllers start. The garbage collector discovers the kinds when it
    /// starts and then every 30 s: dependents of objects of a kind installed in between are collected that late.
    pub fn start_with(
        self,
        tools: &Tools,
        mut prepare: impl FnMut(&ControlPlane) -> Result<()>,
    ) -> Result<ControlPlane> {
        // The port is chosen before the server binds it, so another process may bind it first.
        for _ in 0..2 {
            match self.try_start(tools, &mut prepare) {
                Err(error) if format!("{error:#}").contains("address already in use") => {}
                result => return result,
            }
        }
        self.try_start(tools, &mut prepare)
    }

    fn try_start(&self, tools: &Tools, prepare: &mut impl FnMut(&ControlPlane) -> Result<()>) -> Result<ControlPlane> {
        let directory = tempfile::Builder::new().prefix("clientapp-plane-").tempdir()?;
        let watchdog = Watchdog::start(directory.path()).context("cannot start the watchdog")?;
        // From here on the watchdog removes it in any case.
        let directory = directory.keep();
        let plane = ControlPlane {
            layout: Layout::new(&directory, self.addresses, [free_port()?, free_port()?]),
            audit_log: self.audit_log,
            servers: Mutex::default(),
            watchdog,
            directory,
        };
        plane.layout.write(self.audit_bodies)?;
        plane.run(plane.layout.api(self, tools))?;
        block_on(async || plane.apiserver_answers(&plane.client().await?).await)?;
        prepare(&plane)?;
        // Not before: the controller manager gives up after ten seconds of retries, which is not long on a busy
        // machine.
        plane.run(plane.layout.controllers(tools))?;
        block_on(async || plane.settle(&plane.client().await?, self.nodes).await)?;
        Ok(plane)
    }
}

/// A running control plane. Dropping it stops it and waits until nothing is left. The end of this process also stops
/// it, without the wait, even if nothing is dropped.
pub struct ControlPlane {
    directory: PathBuf,
    layout: Layout,
    audit_log: bool,
    servers: Mutex<Vec<Server>>,
    watchdog: Watchdog,
}

impl ControlPlane {
    /// A plane with one node and no audit log.
    pub fn builder() -> Builder {
        Builder {
            nodes: 1,
            addresses: IPV4,
            audit_log: false,
            audit_bodies: false,
            fsync: false,
            apiserver_arguments: Vec::new(),
        }
    }

    /// The administrator's kubeconfig file, for helm, kubectl and operators.
    pub fn kubeconfig(&self) -> PathBuf {
        self.layout.kubeconfig()
    }

    /// A client configuration with all rights, which the caller may change.
    pub async fn config(&self) -> Result<Config> {
        kubeconfig::config(&self.kubeconfig()).await
    }

    /// A new client with all rights. It belongs to the current runtime: each test creates its own.
    pub async fn client(&self) -> Result<Client> {
        Ok(Client::try_from(self.config().await?)?)
    }

    pub fn server_url(&self) -> String {
        self.layout.server_url()
    }

    /// The plane's private directory, with a log of each server, such as `kube-apiserver.log`.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The log of all requests, one JSON object per line, if it is enabled.
    pub fn audit_log(&self) -> Option<PathBuf> {
        self.audit_log.then(|| self.layout.audit_log())
    }

    /// Puts an object into etcd, past the API server, which allows no client to set a field such as a creation time.
    /// `key`: such as `secrets/a/b`.
    pub async fn put(&self, key: &str, object: &impl Serialize) -> Result<()> {
        let etcd = reqwest::Client::builder().unix_socket(self.directory.join("etcd.sock")).build()?;
        let [key, value] = [format!("/registry/{key}").into_bytes(), serde_json::to_vec(object)?].map(ByteString);
        let request = etcd.post("http://etcd/v3/kv/put").json(&json!({"key": key, "value": value}));
        request.send().await?.error_for_status()?;
        Ok(())
    }

    /// Kills the API server, as in a crash. Its data is kept.
    pub fn kill_apiserver(&self) -> Result<()> {
        apiserver(&mut self.servers())?.kill()
    }

    /// Starts the API server after [`ControlPlane::kill_apiserver`], and blocks until it is ready.
    pub fn start_apiserver(&self) -> Result<()> {
        apiserver(&mut self.servers())?.start_again(&self.directory, self.watchdog.group())?;
        block_on(async || self.apiserver_answers(&self.client().await?).await)
    }

    /// Starts the Percona operator, which is one of the controllers then.
    pub(crate) fn run_percona(&self, program: &Path) -> Result<()> {
        self.run([self.layout.percona(program)])
    }

    /// Starts the controllers, the scheduler and kwok anew, as the kubelet does with those that have lost their Leases during an
    /// outage of the API server.
    pub fn restart_controllers(&self) -> Result<()> {
        let mut servers = self.servers();
        for server in servers.iter_mut().filter(|server| !["etcd", "kube-apiserver"].contains(&server.name())) {
            server.kill()?;
            server.start_again(&self.directory, self.watchdog.group())?;
        }
        Ok(())
    }

    pub fn restart_apiserver(&self) -> Result<()> {
        self.kill_apiserver()?;
        self.start_apiserver()
    }

    /// Stops the plane and waits until no process and no file is left, like a drop.
    pub fn stop(self) {}

    /// Kills its servers, for a plane that is never dropped. Its directory stays until this process ends.
    pub fn end(&self) {
        // The group's leader is a child of this process that was not waited for: no other group has its id.
        let _ = killpg(Pid::from_raw(self.watchdog.group()), Signal::SIGKILL);
    }

    /// Starts servers, all at once.
    fn run(&self, recipes: impl IntoIterator<Item = Recipe>) -> Result<()> {
        for recipe in recipes {
            let server = Server::start(recipe, &self.directory, self.watchdog.group())?;
            self.servers().push(server);
        }
        Ok(())
    }

    async fn settle(&self, client: &Client, nodes: usize) -> Result<()> {
        ready::furnish(client, nodes).await?;
        self.wait("the nodes are ready", "kwok", async || ready::nodes_are_ready(client, nodes).await).await?;
        let account = async || ready::service_account_exists(client).await;
        self.wait("there is the default service account", "kube-controller-manager", account).await
    }

    async fn apiserver_answers(&self, client: &Client) -> Result<()> {
        self.wait("the API server is ready", "kube-apiserver", async || ready::answers(client).await).await
    }

    async fn wait(&self, what: &str, responsible: &str, is_so: impl AsyncFn() -> bool) -> Result<()> {
        server::wait(&self.servers, what, responsible, is_so).await
    }

    fn servers(&self) -> MutexGuard<'_, Vec<Server>> {
        server::all(&self.servers)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        self.watchdog.act();
        for server in self.servers().iter_mut() {
            server.wait();
        }
        self.watchdog.wait();
    }
}

fn apiserver<'a>(servers: &'a mut MutexGuard<'_, Vec<Server>>) -> Result<&'a mut Server> {
    servers.iter_mut().find(|server| server.name() == "kube-apiserver").context("the plane has no API server")
}

/// Returns whether this machine has the address `::1`. Without it a test of IPv6 says that it is skipped, or fails where it must not be.
///
/// # Panics
/// If there is no such address, and the variable `CI` or `CLIENTAPP_E2E_REQUIRE_IPV6` is set.
pub fn has_ipv6() -> bool {
    const REQUIRE: [&str; 2] = ["CI", "CLIENTAPP_E2E_REQUIRE_IPV6"];
    let Err(error) = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)) else { return true };
    let required = REQUIRE.iter().find(|name| std::env::var_os(name).is_some());
    if let Some(name) = required {
        panic!("this machine has no ::1 ({error}), but ${name} is set: enable IPv6, or unset the variable");
    }
    eprintln!("skipped: this machine has no ::1 ({error})");
    false
}

/// A free port of 127.0.0.1, below the range for outgoing connections: while the server is down, a client that keeps
/// dialling its port from a port in that range would sooner or later connect to itself, and occupy the port. No port is
/// returned twice by a process, since a server that has been stopped may be about to start again.
///
/// # Errors
/// None is found.
pub fn free_port() -> Result<u16> {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 10_000;
    let random = RandomState::new();
    let candidates = (0..100u8).map(|attempt| FIRST + (random.hash_one(attempt) % u64::from(COUNT)) as u16);
    let is_new = |port: &u16| GIVEN.lock().unwrap_or_else(PoisonError::into_inner).insert(*port);
    let mut free = candidates.filter(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok() && is_new(port));
    free.next().context("no port of 127.0.0.1 seems to be free")
}
