//! One control plane with everything that a tenant needs, shared by the scenarios of a process: the operator under
//! its own ClusterRole, the Percona operator, a chart repository.

use std::fmt::Debug;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::{Context as _, Result, bail};
use clientapp_crd::{ClientApp, ClientAppStatus, conditions};
use futures::StreamExt as _;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::{Namespace, Pod, ResourceQuota};
use k8s_openapi::api::events::v1::Event;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::runtime::watcher;
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::helm::{Helm, Ran};
use crate::manifests;
use crate::operator::{Operator, Options};
use crate::percona::{Knobs, Percona};
use crate::plane::{self, ControlPlane};
use crate::progress::Progress;
use crate::proxy::{self, Proxy};
use crate::repository::Repository;
use crate::tools::Tools;
use crate::wait::{POLL, until};
pub use crate::wait::{TIMEOUT, block_on};

/// The image that the operator of [`Lab::shared`] takes for its own.
pub const IMAGE: &str = "registry.example.com/clientapp-operator:test";

/// A control plane and everything on it.
pub struct Lab {
    pub tools: Tools,
    /// The control plane, with an audit log.
    pub plane: ControlPlane,
    /// Kubeconfig of the operator's ServiceAccount.
    pub operator_kubeconfig: PathBuf,
    /// The chart repository.
    pub repository: Repository,
    /// Creates databases; `None` while Percona is not installed.
    pub percona: Option<Percona>,
    operator: Mutex<Option<Operator>>,
}

impl Lab {
    /// A control plane with the operator's manifests and, on request, Percona. No operator runs yet.
    pub fn start(with_percona: bool) -> Result<Lab> {
        Self::start_on(ControlPlane::builder(), with_percona)
    }

    /// The same on a control plane with other settings.
    pub fn start_on(plane: plane::Builder, with_percona: bool) -> Result<Lab> {
        let tools = Tools::ensure(&Progress::stderr())?;
        let mut operator_kubeconfig = PathBuf::new();
        let prepare = |plane: &ControlPlane| {
            operator_kubeconfig = block_on(async || manifests::install(plane, &tools).await)?;
            if with_percona { block_on(async || Percona::define(&plane.client().await?).await) } else { Ok(()) }
        };
        let plane = plane.audit_log(true).start_with(&tools, prepare)?;
        let percona = with_percona.then(|| block_on(async || Percona::start(&plane).await)).transpose()?;
        let repository = Repository::start()?;
        Ok(Lab { tools, plane, operator_kubeconfig, repository, percona, operator: Mutex::new(None) })
    }

    /// Kills the API server, as in a crash, and starts it again, and then all other servers of the plane, whose watches may take
    /// minutes to recover. `meanwhile` runs while it is away.
    pub fn outage(&self, meanwhile: impl FnOnce()) -> Result<()> {
        self.plane.kill_apiserver()?;
        meanwhile();
        self.plane.start_apiserver()?;
        self.plane.restart_controllers()?;
        self.percona.as_ref().map_or(Ok(()), Percona::restart)
    }

    /// Shared by all scenarios of this process, with Percona and the operator.
    pub async fn shared() -> &'static Lab {
        static SHARED: OnceLock<Lab> = OnceLock::new();
        Lab::once(&SHARED, Lab::operated).await
    }

    /// Shared by all tests of this process that start operators of their own, with Percona.
    pub async fn unattended() -> &'static Lab {
        static UNATTENDED: OnceLock<Lab> = OnceLock::new();
        Lab::once(&UNATTENDED, || Lab::start(true)).await
    }

    /// For tests that change the cluster itself one after the other, without Percona and without an operator of all.
    pub async fn to_change() -> (&'static Lab, tokio::sync::MutexGuard<'static, ()>) {
        static TO_CHANGE: OnceLock<Lab> = OnceLock::new();
        static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
        let turn = TURN.lock().await;
        (Lab::once(&TO_CHANGE, || Lab::start(false)).await, turn)
    }

    /// Returns the lab in a cell, which the first caller starts.
    pub async fn once(cell: &'static OnceLock<Lab>, start: fn() -> Result<Lab>) -> &'static Lab {
        let started = move || cell.get_or_init(|| start().expect("the lab starts"));
        // Inside a test's runtime, tokio refuses to block on another.
        tokio::task::spawn_blocking(started).await.expect("the lab starts")
    }

    /// Starts a lab and its operator, which knows its own image.
    fn operated() -> Result<Lab> {
        let lab = Lab::start(true)?;
        let image = ("CLIENTAPP_IMAGE".to_owned(), IMAGE.to_owned());
        // For the tests that run at once.
        let helms = ("CLIENTAPP_MAX_CONCURRENT".to_owned(), "6".to_owned());
        // Nothing kills it, and all of its tests would notice a run of helm that is cut off while the machine has no time for the servers.
        let lease = ("CLIENTAPP_LEASE_DURATION".to_owned(), "60".to_owned());
        lab.start_operator(&Options { environment: vec![image, helms, lease], ..lab.options() })?;
        Ok(lab)
    }

    /// For a test that changes the cluster itself, without Percona and without an operator. It ends with the guard.
    pub async fn own() -> (&'static Lab, Ends) {
        let start = || &*Box::leak(Box::new(Lab::start(false).expect("the lab starts")));
        let lab = tokio::task::spawn_blocking(start).await.expect("the lab starts");
        (lab, Ends(lab))
    }

    /// A new namespace for an operator of its own, which sees no other namespace. No operator runs yet.
    pub async fn apart(&'static self, namespace: &str) -> Apart {
        self.try_apart(namespace).await.expect("a namespace for an operator of its own")
    }

    /// [`Lab::apart`] outside tests.
    pub async fn try_apart(&'static self, namespace: &str) -> Result<Apart> {
        let tenant = Tenant::new(self, namespace).await?;
        // The Lease is in another namespace, since the operator's writes in this one are counted.
        let lease = Tenant::new(self, &format!("{namespace}-lease")).await?;
        for kind in ["roles", "rolebindings"] {
            let name = manifests::LEASE_ROLE;
            let url = |namespace: &str| format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/{kind}");
            let given = http::Request::get(format!("{}/{name}", url(manifests::NAMESPACE)));
            let mut object: Value = tenant.client.request(given.body(Vec::new())?).await?;
            object["metadata"] = json!({"name": name});
            let request = http::Request::post(url(&lease.namespace));
            let request = request.header(http::header::CONTENT_TYPE, "application/json");
            tenant.client.request::<Value>(request.body(object.to_string().into_bytes())?).await?;
        }
        let proxy = Proxy::confined(&self.operator_kubeconfig, namespace)?;
        let options =
            Options { kubeconfig: proxy.kubeconfig(), lease_namespace: lease.namespace.clone(), ..self.options() };
        Ok(Apart { tenant, proxy, options })
    }

    /// Options for an operator in this lab.
    #[must_use]
    pub fn options(&self) -> Options {
        Options {
            lease_namespace: manifests::NAMESPACE.to_owned(),
            ..Options::new(self.operator_kubeconfig.clone(), &self.tools.helm, self.repository.url())
        }
    }

    /// Starts an operator in place of the running one, and waits until it leads.
    pub fn start_operator(&self, options: &Options) -> Result<()> {
        let mut operator = self.operator();
        // The old operator first, so that it releases its Lease.
        *operator = None;
        *operator = Some(Operator::leading(options)?);
        Ok(())
    }

    /// The running operator.
    pub fn operator(&self) -> MutexGuard<'_, Option<Operator>> {
        // After a panic of the scenario that held it, the operator still runs or it does not: there is no broken state.
        self.operator.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The operator's log.
    #[must_use]
    pub fn operator_log(&self) -> String {
        self.operator().as_ref().map(Operator::log).unwrap_or_default()
    }

    /// A new namespace with its own client and helm, both as cluster admin.
    pub async fn tenant(&'static self, namespace: &str) -> Tenant {
        Tenant::new(self, namespace).await.expect("a namespace for the scenario")
    }

    /// The requests of the operator itself and of its helms for a namespace so far, as `verb resource`, from the audit
    /// log. Watches are left out; ` there` is appended if the object to create existed already.
    pub fn requests(&self, namespace: &str) -> Result<Vec<String>> {
        let events = self.audited(namespace)?.into_iter();
        Ok(events
            .filter(|event| event["verb"] != "watch")
            .filter(|event| !event["userAgent"].as_str().is_some_and(|agent| agent.ends_with(proxy::OF_ALL)))
            .map(|event| {
                let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                let object = &event["objectRef"];
                let agent = if word(&event["userAgent"]).starts_with("Helm/") { "helm" } else { "operator" };
                let (verb, resource) = (word(&event["verb"]), word(&object["resource"]));
                // A watch was late, and another client, or more often this one, had created the object.
                let there = if verb == "create" && event["responseStatus"]["code"] == 409 { " there" } else { "" };
                format!("{agent} {verb} {resource}/{}{there}", word(&object["subresource"]))
            })
            .collect())
    }

    /// See [`Tenant::writers`].
    fn writers(&self, namespace: &str) -> Result<Vec<String>> {
        let mut writes: Vec<(String, String)> = Vec::new();
        for event in self.audited(namespace)? {
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let reads = ["get", "list", "watch"].contains(&word(&event["verb"]).as_str());
            if reads || event["objectRef"]["resource"] == "leases" {
                continue;
            }
            let writer = word(&event["userAgent"]).rsplit(' ').next().unwrap_or_default().to_owned();
            writes.push((word(&event["requestReceivedTimestamp"]), writer));
        }
        writes.sort();
        let mut writers: Vec<String> = writes.into_iter().map(|(_, writer)| writer).collect();
        writers.dedup();
        Ok(writers)
    }

    /// Completed requests of the operator and its helms for a namespace, from the audit log.
    fn audited(&self, namespace: &str) -> Result<Vec<Value>> {
        let path = self.plane.audit_log().context("the plane keeps no audit log")?;
        let user = manifests::user();
        let log = std::fs::read_to_string(path)?;
        // Most lines concern other namespaces, and parsing a line takes a while.
        let about = format!("\"namespace\":\"{namespace}\"");
        let lines = log.lines().filter(|line| line.contains(&about));
        let events = lines.filter_map(|line| serde_json::from_str::<Value>(line).ok());
        Ok(events
            .filter(|event| event["stage"] == "ResponseComplete" && event["user"]["username"] == user.as_str())
            .filter(|event| event["objectRef"]["namespace"] == namespace)
            .collect())
    }
}

/// Ends the control plane of a lab of which tenants may still know.
pub struct Ends(&'static Lab);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.plane.end();
    }
}

/// A namespace for one scenario with operators of its own.
pub struct Apart {
    pub tenant: Tenant,
    /// Between the operators and the API server; hides all other namespaces from the operators.
    pub proxy: Proxy,
    /// Options for an operator here.
    pub options: Options,
}

/// Starts an operator and waits until it leads, without blocking the test's runtime.
pub async fn leading(options: &Options) -> Operator {
    let options = options.clone();
    let start = move || Operator::leading(&options).expect("the operator leads");
    tokio::task::spawn_blocking(start).await.expect("the operator leads")
}

/// An object of a namespaced kind.
pub trait Object:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static
{
}

impl<K> Object for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static
{
}

/// A namespace for one scenario.
pub struct Tenant {
    pub lab: &'static Lab,
    pub namespace: String,
    /// As cluster admin.
    pub client: Client,
    helm: Helm,
}

impl Tenant {
    async fn new(lab: &'static Lab, namespace: &str) -> Result<Tenant> {
        let client = lab.plane.client().await?;
        let object = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await?;
        let helm = Helm::for_cluster(&lab.tools.helm, &lab.plane.kubeconfig())?;
        Ok(Tenant { lab, namespace: namespace.to_owned(), client, helm })
    }

    /// The same namespace, where the cluster admin has this helm program.
    ///
    /// # Panics
    /// Without a directory for its home.
    #[must_use]
    pub fn with_helm(self, program: &Path) -> Tenant {
        let helm = Helm::for_cluster(program, &self.lab.plane.kubeconfig()).expect("a home for helm");
        Tenant { helm, ..self }
    }

    /// Makes the pods of one of Percona's clusters in the namespace misbehave.
    pub fn percona(&self, cluster: &str, knobs: Knobs) {
        self.lab.percona.as_ref().expect("a lab with Percona").set_for(&self.namespace, cluster, knobs);
    }

    /// Lets Percona ignore the namespace, or no longer ignore it.
    pub async fn percona_ignores(&self, ignores: bool) {
        let percona = self.lab.percona.as_ref().expect("a lab with Percona");
        percona.ignore(&self.namespace, ignores).await.expect("Percona can be made to ignore a namespace");
    }

    #[must_use]
    pub fn api<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates a ClientApp, as `kubectl create` would.
    ///
    /// # Errors
    /// The API server's refusal.
    pub async fn create(&self, name: &str, spec: Value) -> kube::Result<()> {
        self.create_one::<ClientApp>(name, spec).await
    }

    /// Creates an object of this kind, as `kubectl create` would.
    ///
    /// # Errors
    /// The API server's refusal.
    pub async fn create_one<K: Object>(&self, name: &str, spec: Value) -> kube::Result<()> {
        let object = json!({
            "apiVersion": K::api_version(&()), "kind": K::kind(&()),
            "metadata": {"name": name, "namespace": self.namespace}, "spec": spec,
        });
        // As text, since a typed object could not be invalid.
        let url = K::url_path(&(), Some(&self.namespace));
        let request = http::Request::post(format!("{url}?fieldValidation=Strict"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(object.to_string().into_bytes())
            .map_err(kube::Error::HttpError)?;
        // The stored object may be nested more deeply than serde_json reads.
        self.client.request_text(request).await.map(|_| ())
    }

    /// Merges a patch into a ClientApp's spec.
    ///
    /// # Errors
    /// The API server's refusal.
    pub async fn patch(&self, name: &str, spec: Value) -> kube::Result<ClientApp> {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.api::<ClientApp>().patch(name, &PatchParams::default(), &patch).await
    }

    /// The uid of an object, if it exists.
    pub async fn uid<K: Object>(&self, name: &str) -> Option<String> {
        self.api::<K>().get_opt(name).await.expect("look for an object").and_then(|object| object.uid())
    }

    /// Deletes an object, and waits until another one has its name.
    pub async fn replaced<K: Object>(&self, name: &str) {
        let before = self.uid::<K>(name).await.expect("the object exists");
        self.api::<K>().delete(name, &DeleteParams::background()).await.expect("delete an object");
        let another = |found: Option<&K>| found.filter(|found| found.uid().as_ref() != Some(&before)).map(|_| ());
        self.wait_for(name, "recreated", another).await;
    }

    /// Waits until the check returns a value for an object, or for `None` if there is no such object. An object that is still being
    /// changed is waited for longer: each of many steps may take its time.
    pub async fn wait_for<K: Object, T>(&self, name: &str, what: &str, check: impl Fn(Option<&K>) -> Option<T>) -> T {
        let mut last = None;
        let mut objects = Box::pin(watcher::watch_object(self.api::<K>(), name));
        // On the heap, since a test waits many times, and each wait has a place in its future.
        let found = Box::pin(async {
            loop {
                let object = match tokio::time::timeout(TIMEOUT, objects.next()).await {
                    Ok(Some(Ok(object))) => object,
                    // The API server may be away.
                    Ok(_) => {
                        tokio::time::sleep(POLL).await;
                        continue;
                    }
                    Err(_) => return None,
                };
                last = object;
                if let Some(object) = &mut last {
                    object.meta_mut().managed_fields = None;
                }
                if let Some(found) = check(last.as_ref()) {
                    return Some(found);
                }
            }
        });
        tokio::time::timeout(5 * TIMEOUT, found).await.ok().flatten().unwrap_or_else(|| {
            panic!(
                "{} {}/{name} was not {what}; it was {last:#?}\nthe operator's log:\n{}",
                K::kind(&()),
                self.namespace,
                self.lab.operator_log()
            )
        })
    }

    /// Waits until the check accepts a ClientApp's status.
    pub async fn status(&self, name: &str, what: &str, check: impl Fn(&ClientAppStatus) -> bool) -> ClientAppStatus {
        self.wait_for(name, what, |app: Option<&ClientApp>| {
            app?.status.as_ref().filter(|status| check(status)).cloned()
        })
        .await
    }

    /// Waits until a ClientApp is Ready at this revision and for its latest spec.
    pub async fn ready(&self, name: &str, revision: i64) -> ClientAppStatus {
        let what = format!("Ready at revision {revision}");
        self.wait_for(name, &what, |app: Option<&ClientApp>| {
            let app = app?;
            let status = app.status.as_ref()?;
            let current = status.observed_generation == app.metadata.generation;
            let revised = status.release.as_ref().is_some_and(|release| release.revision == revision);
            (current && revised && has(status, "Ready", "True", "Ready")).then(|| status.clone())
        })
        .await
    }

    /// Waits until a ClientApp's condition has this status and reason, and returns its message.
    pub async fn condition(&self, name: &str, type_: &str, status: &str, reason: &str) -> String {
        let what = format!("{type_}={status} {reason}");
        let found = self.status(name, &what, |found| has(found, type_, status, reason)).await;
        conditions::find(&found.conditions, type_).map(|condition| condition.message.clone()).unwrap_or_default()
    }

    /// Waits until a ClientApp is not Ready for this reason, with these words in the message.
    pub async fn held(&self, name: &str, reason: &str, words: &[&str]) {
        self.condition_with(name, ("Ready", reason), words).await;
    }

    /// Waits until a condition of a ClientApp is not True for this reason, with these words in the message, and returns
    /// the message.
    pub async fn condition_with(&self, name: &str, (type_, reason): (&str, &str), words: &[&str]) -> String {
        let message = |status: &ClientAppStatus| {
            let told = conditions::find(&status.conditions, type_)?;
            let fits = told.status != "True" && told.reason == reason;
            (fits && words.iter().all(|part| told.message.contains(part))).then(|| told.message.clone())
        };
        let what = format!("{type_} {reason} with {words:?}");
        message(&self.status(name, &what, |status| message(status).is_some()).await)
            .expect("the status has the condition")
    }

    /// Creates a ResourceQuota, and waits until the API server counts usage: before that, it refuses nothing.
    pub async fn quota(&self, name: &str, spec: Value) {
        let quota =
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).expect("the spec is valid");
        self.api::<ResourceQuota>().create(&PostParams::default(), &quota).await.expect("create the quota");
        let counts = |quota: Option<&ResourceQuota>| quota?.status.as_ref()?.used.as_ref().map(|_| ());
        self.wait_for(name, "counted", counts).await;
    }

    /// Waits until the API server grants a user this right in the namespace, or no longer grants it.
    pub async fn until_may(&self, user: &str, [verb, resource]: [&str; 2], may: bool) {
        // kubectl also fails when the answer is no; its output tells the difference.
        let answer = if may { "yes" } else { "no" };
        let said =
            || self.kubectl(&["auth", "can-i", verb, resource, "--as", user]).unwrap_or_else(|error| error.to_string());
        let is = async || said().trim().ends_with(answer);
        until(&format!("{user} may {verb} {resource} in {}: {may}", self.namespace), is).await;
    }

    /// The requests of the operator and its helms for this namespace so far, without watches, including all before this
    /// call.
    pub async fn requests(&self) -> Vec<String> {
        self.until_audited().await;
        self.lab.requests(&self.namespace).expect("the plane keeps an audit log")
    }

    /// Who wrote into this namespace, in the order of the API server's audit log, including all before this call: names
    /// of [`proxy::Proxy`]s, each once for all writes in a row. Writes that the API server refused count as well;
    /// requests for the Lease do not.
    pub async fn writers(&self) -> Vec<String> {
        self.until_audited().await;
        self.lab.writers(&self.namespace).expect("the plane keeps an audit log")
    }

    /// Waits until the audit log has all requests before this call.
    async fn until_audited(&self) {
        static MARKERS: AtomicU32 = AtomicU32::new(0);
        // The log is in order: once it has this request, it has all that were answered before.
        let marker = format!("marker-{}-{}", std::process::id(), MARKERS.fetch_add(1, Ordering::Relaxed));
        let log = self.lab.plane.audit_log().expect("the plane keeps an audit log");
        let mut log = std::fs::File::open(log).expect("the audit log is there");
        let before = log.seek(SeekFrom::End(0)).expect("a file has an end");
        let _ = self.api::<Pod>().get_opt(&marker).await;
        log.seek(SeekFrom::Start(before)).expect("a file can be read from anywhere");
        let mut since = Vec::new();
        until(&format!("the audit log shows {marker}"), async || {
            log.read_to_end(&mut since).expect("the audit log can be read");
            since.windows(marker.len()).any(|window| window == marker.as_bytes())
        })
        .await;
    }

    /// The events about an object, as reason and message; an event counted twice is listed twice.
    pub async fn events(&self, name: &str) -> Vec<(String, String)> {
        let mut events = self.api::<Event>().list(&ListParams::default()).await.expect("list events").items;
        events.retain(|event| event.regarding.as_ref().is_some_and(|about| about.name.as_deref() == Some(name)));
        events.sort_by_key(|event| event.event_time.as_ref().map(|time| time.0));
        let times = |event: &Event| event.series.as_ref().map_or(1, |series| series.count.unsigned_abs() as usize);
        let said = |event: &Event| (event.reason.clone().unwrap_or_default(), event.note.clone().unwrap_or_default());
        events.iter().flat_map(|event| std::iter::repeat_n(said(event), times(event))).collect()
    }

    /// Waits until an event about an object has this message, and returns all events: the operator writes a status
    /// before its event.
    pub async fn events_with(&self, name: &str, reason: &str, sentence: &str) -> Vec<(String, String)> {
        self.told(name, reason, |note| note == sentence, sentence).await
    }

    /// Waits until the message of an event about an object contains this part.
    pub async fn event(&self, name: &str, reason: &str, part: &str) {
        self.told(name, reason, |note| note.contains(part), part).await;
    }

    async fn told(&self, name: &str, reason: &str, says: impl Fn(&str) -> bool, words: &str) -> Vec<(String, String)> {
        until(&format!("there is an event {reason}: {words}"), async || {
            let events = self.events(name).await;
            let told = events.iter().any(|event| event.0 == reason && says(&event.1));
            if told { Ok(events) } else { Err(format!("there are only {events:#?}")) }
        })
        .await
    }

    /// Binds the pod of the Job with this uid to a node, although none is suitable, so that the Job succeeds.
    pub async fn let_job_run(&self, uid: &str) {
        let of_job = ListParams::default().labels(&format!("batch.kubernetes.io/controller-uid={uid}"));
        let pod = until("the Job has a pod", async || {
            let pods = self.api::<Pod>().list(&of_job).await.ok()?;
            pods.into_iter().find(|pod| pod.metadata.deletion_timestamp.is_none()).map(|pod| pod.name_any())
        });
        let pod = pod.await;
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod},
            "target": {"apiVersion": "v1", "kind": "Node", "name": "node-0"},
        });
        self.api::<Pod>()
            .create_subresource::<Value, Value>("binding", &pod, &PostParams::default(), &binding)
            .await
            .expect("bind the pod");
    }

    /// Deletes a ClientApp and waits until it is gone.
    pub async fn delete(&self, name: &str) {
        self.api::<ClientApp>().delete(name, &DeleteParams::default()).await.expect("delete a ClientApp");
        self.gone(name).await;
    }

    pub async fn gone(&self, name: &str) {
        self.wait_for(name, "gone", |app: Option<&ClientApp>| app.is_none().then_some(())).await;
    }

    /// Runs helm in the namespace as cluster admin.
    pub fn helm(&self, arguments: &[&str]) -> Ran {
        let arguments: Vec<&str> = arguments.iter().copied().chain(["--namespace", &self.namespace]).collect();
        self.helm.run(&arguments).expect("helm starts")
    }

    /// A release in `helm list`, as `(revision, status, chart)`.
    pub fn listed(&self, release: &str) -> Option<(String, String, String)> {
        let ran = self.helm(&["list", "-o", "json"]);
        assert!(ran.success, "{}", ran.stderr);
        let releases: Vec<Value> = serde_json::from_str(&ran.stdout).expect("helm list prints JSON");
        let found = releases.into_iter().find(|listed| listed["name"] == release)?;
        let word = |key: &str| found[key].as_str().unwrap_or_default().to_owned();
        Some((word("revision"), word("status"), word("chart")))
    }

    /// Runs kubectl in the namespace as cluster admin.
    ///
    /// # Errors
    /// kubectl's output, if it fails.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        kubectl(&self.lab.tools.kubectl, &self.lab.plane.kubeconfig(), Some(&self.namespace), arguments)
    }
}

/// Runs kubectl, with its cache beside the kubeconfig.
///
/// # Errors
/// kubectl's output, if it fails.
pub fn kubectl(kubectl: &Path, kubeconfig: &Path, namespace: Option<&str>, arguments: &[&str]) -> Result<String> {
    let mut command = Command::new(kubectl);
    command.arg("--kubeconfig").arg(kubeconfig).args(arguments).stdin(Stdio::null());
    // It ends before garbage would matter, and half of its time goes into collecting it.
    command.env("GOGC", "off");
    // kubectl's discovery cache must not outlive the server: the next plane may have the same port.
    command.env("KUBECACHEDIR", kubeconfig.with_file_name("kubectl"));
    if let Some(namespace) = namespace {
        command.args(["--namespace", namespace]);
    }
    let output = command.output().with_context(|| format!("cannot start {}", kubectl.display()))?;
    if !output.status.success() {
        let said = [output.stderr, output.stdout].concat();
        bail!("kubectl {}: {}", arguments.join(" "), String::from_utf8_lossy(&said).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns true if a status has a condition of this type with this status and reason.
#[must_use]
pub fn has(status: &ClientAppStatus, type_: &str, state: &str, reason: &str) -> bool {
    conditions::find(&status.conditions, type_)
        .is_some_and(|condition| condition.status == state && condition.reason == reason)
}

/// A hostname that is unique in the cluster, for a name in a tenant's namespace.
#[must_use]
pub fn hostname(tenant: &Tenant, name: &str) -> String {
    format!("{name}.{}.example.com", tenant.namespace)
}
