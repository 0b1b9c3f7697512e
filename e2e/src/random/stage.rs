//! The control plane that all cases of a run share. An **effect**.

use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};
use clientapp_crd::{ClientApp, PostgresWriter, Postgresql};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{Api, ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::discovery::{Discovery, Scope, verbs};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::task::{JoinHandle, block_in_place};

use super::oracle::audit::{Audit, Entry, MARKER};
use super::oracle::state::{Present, State, is_compared, state};
use crate::lab::{Lab, Object};
use crate::plane::ControlPlane;
use crate::postgres::Postgres;
use crate::wait::within;

/// For the audit log to have what was answered.
const LOGGED: Duration = Duration::from_secs(60);

pub struct Stage {
    pub lab: &'static Lab,
    pub client: Client,
    audit: Mutex<Audit>,
    /// All namespaced kinds.
    kinds: Vec<ApiResource>,
}

/// An object that is there.
#[derive(Clone, Debug)]
pub struct Found {
    pub kind: String,
    /// Plural of the kind.
    pub resource: String,
    pub metadata: ObjectMeta,
}

impl Found {
    /// Returns kind, namespace and name.
    pub fn place(&self) -> String {
        let word = |word: &Option<String>| word.clone().unwrap_or_default();
        format!("{} {}/{}", self.kind, word(&self.metadata.namespace), word(&self.metadata.name))
    }
}

impl Stage {
    /// Starts a control plane with everything on it but an operator. Its audit log has the objects only on request.
    pub async fn start(audit_bodies: bool) -> Result<Stage> {
        // Another part of this process may have been first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let plane = ControlPlane::builder().audit_bodies(audit_bodies);
        // For the lifetime of this process: the lab's watchdog ends it.
        let lab: &'static Lab = Box::leak(Box::new(block_in_place(|| Lab::start_on(plane, true))?));
        let client = lab.plane.client().await?;
        let discovery = Discovery::new(client.clone()).run().await?;
        let groups = discovery.groups().flat_map(|group| group.recommended_resources());
        let kinds = groups.filter(|(_, able)| able.scope == Scope::Namespaced && able.supports_operation(verbs::LIST));
        let audit = Mutex::new(Audit::new(lab.plane.audit_log().context("the plane keeps no audit log")?));
        Ok(Stage { lab, client, audit, kinds: kinds.map(|(kind, _)| kind).collect() })
    }

    /// Returns the objects of a namespace, and what is compared beside them.
    pub async fn state(&self, namespace: &str, beside: Vec<Value>) -> Result<State> {
        let (mut objects, mut present) = (beside, Vec::new());
        for kind in self.kinds.iter().filter(|kind| is_compared(&kind.kind)) {
            let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, kind);
            for object in api.list(&ListParams::default()).await? {
                let [resource, name, uid] = [kind.plural.clone(), object.name_any(), object.uid().unwrap_or_default()];
                present.push(Present { resource, name, uid });
                let mut object = serde_json::to_value(object)?;
                object["kind"] = json!(kind.kind);
                objects.push(object);
            }
        }
        Ok(State { present, ..state(namespace, &objects) })
    }

    /// Returns the objects of some kinds, in one namespace or in all.
    pub async fn listed(&self, namespace: Option<&str>, kinds: impl Fn(&str) -> bool) -> Result<Vec<Found>> {
        let mut found = Vec::new();
        for kind in self.kinds.iter().filter(|kind| kinds(&kind.kind)) {
            let api: Api<DynamicObject> = match namespace {
                Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, kind),
                None => Api::all_with(self.client.clone(), kind),
            };
            let listed = api.list_metadata(&ListParams::default()).await?.items.into_iter();
            found.extend(listed.map(|object| Found {
                kind: kind.kind.clone(),
                resource: kind.plural.clone(),
                metadata: object.metadata,
            }));
        }
        Ok(found)
    }

    /// Returns all writes to the namespace that were answered before this call, and after the last one.
    pub async fn trace(&self, namespace: &str) -> Result<Vec<Entry>> {
        let marker = format!("{MARKER}{namespace}-{}", Timestamp::now().as_nanosecond());
        let api: Api<ConfigMap> = Api::default_namespaced(self.client.clone());
        // It does not exist; the log is in order, and has this request after all that were answered before.
        let _ = api.delete(&marker, &DeleteParams::default()).await;
        within(LOGGED, "the audit log has the marker", async || {
            let mut audit = self.audit.lock().unwrap_or_else(PoisonError::into_inner);
            match audit.until(&marker, namespace) {
                Ok(None) => Err("it has not".to_owned()),
                Ok(Some(entries)) => Ok(entries),
                Err(error) => Err(format!("{error:#}")),
            }
        })
        .await
    }

    /// Deletes everything of a case that is over, and does not wait for that.
    pub async fn clean_up(&self, namespaces: [&str; 2]) -> Result<()> {
        self.audit.lock().unwrap_or_else(PoisonError::into_inner).close(namespaces[0]);
        self.release::<ClientApp>(namespaces[0]).await?;
        self.release::<Postgresql>(namespaces[0]).await?;
        self.release::<PostgresWriter>(namespaces[0]).await?;
        for namespace in namespaces {
            Api::<Namespace>::all(self.client.clone()).delete(namespace, &DeleteParams::default()).await?;
        }
        Ok(())
    }

    /// Removes the finalizers of an operator that has stopped.
    async fn release<K: Object>(&self, namespace: &str) -> Result<()> {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        for object in api.list(&ListParams::default()).await? {
            let free = Patch::Merge(json!({"metadata": {"finalizers": null}}));
            api.patch(&object.name_any(), &PatchParams::default(), &free).await?;
        }
        Ok(())
    }

    pub fn leases(&self, namespace: &str) -> Api<Lease> {
        Api::namespaced(self.client.clone(), namespace)
    }
}

/// Returns the PostgreSQL of all PostgresWriters: each operator has a database of its own there. It ends with this process.
pub fn postgres() -> Result<&'static Postgres> {
    static POSTGRES: LazyLock<Result<Postgres>> = LazyLock::new(Postgres::start);
    POSTGRES.as_ref().map_err(|error| anyhow!("{error:#}"))
}

/// Creates a database with these tables for PostgresWriters.
pub async fn database(name: &str, tables: &str) -> Result<tokio_postgres::Client> {
    // PostgreSQL copies one template at a time.
    static ONE_BY_ONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _turn = ONE_BY_ONE.lock().await;
    let postgres = block_in_place(postgres)?;
    postgres.connect("postgres").await?.batch_execute(&format!("CREATE DATABASE {name}")).await?;
    let sql = postgres.connect(name).await?;
    for table in tables.split(", ") {
        let columns = "id text PRIMARY KEY, name text NOT NULL, age integer NOT NULL, country text NOT NULL";
        sql.batch_execute(&format!("CREATE TABLE {table} ({columns})")).await?;
    }
    Ok(sql)
}

/// Returns the name of a namespace's database.
pub fn database_name(namespace: &str) -> String {
    namespace.replace('-', "_")
}

/// Runs a future on its own thread of this runtime, where it may block.
pub fn on_a_thread<T: Send + 'static>(run: impl AsyncFnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || runtime.block_on(run()))
}

/// Looks until a look rests, given how long nothing has changed. Returns the last look.
///
/// # Errors
/// After `most`, with what has changed last.
pub async fn at_rest<T: Clone>(
    most: Duration,
    what: &str,
    mut look: impl AsyncFnMut() -> Result<T>,
    changes: impl Fn(&T, &T) -> Vec<String>,
    rests: impl Fn(&T, Duration) -> bool,
) -> Result<T> {
    let mut last = (Instant::now(), look().await?);
    within(most, what, async || {
        let now = look().await.map_err(|error| format!("{error:#}"))?;
        let changed = changes(&last.1, &now);
        let since = if changed.is_empty() { last.0 } else { Instant::now() };
        last = (since, now.clone());
        if rests(&now, since.elapsed()) { Ok(now) } else { Err(changed.join("\n    ")) }
    })
    .await
}
