//! One pass over one cluster.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret, Service};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::runtime::controller::Action;
use kube::runtime::events::{Event, EventType, Recorder};
use kube::{Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::sync::watch;

use super::instances::instances;
use super::objects::{self, CLUSTER, INSTANCE_SET, ROLE, ROLE_USER};
use super::spec::{Cluster, Count, PostgresStatus, SetStatus, State, Status, resource};
use super::{Knobs, Settings};

/// The field manager.
pub(super) const MANAGER: &str = "percona-stand-in";

const DELETE_PVC: &str = "percona.com/delete-pvc";
const DELETE_SSL: &str = "percona.com/delete-ssl";

pub(super) struct World {
    pub(super) client: Client,
    pub(super) recorder: Recorder,
    pub(super) settings: watch::Receiver<Settings>,
}

/// A namespace, and the client for it.
struct Scope {
    client: Client,
    namespace: String,
}

pub(super) async fn reconcile(cluster: Arc<Cluster>, world: Arc<World>) -> Result<Action, kube::Error> {
    let knobs = world.settings.borrow().of(&cluster.name_any()).clone();
    let scope = Scope { client: world.client.clone(), namespace: cluster.namespace().unwrap_or_default() };
    if knobs.ignore {
        return Ok(Action::await_change());
    }
    if cluster.metadata.deletion_timestamp.is_some() {
        return scope.tear_down(&cluster).await;
    }
    let missing = cluster.spec.missing_images();
    if missing.is_empty() {
        scope.write_secrets(&cluster, &knobs).await?;
        for service in objects::services(&cluster) {
            scope.apply(&service).await?;
        }
        if !knobs.hold {
            scope.run(&cluster, &knobs).await?;
        }
    } else {
        let event = Event {
            type_: EventType::Warning,
            reason: "MissingRequiredImage".to_owned(),
            note: Some(format!("Missing image(s): [{}]", missing.join(" "))),
            action: "Reconcile".to_owned(),
            secondary: None,
        };
        world.recorder.publish(&event, &objects::inner_cluster(&cluster)).await?;
    }
    scope.report(&cluster, &knobs).await?;
    Ok(Action::await_change())
}

/// Soon: what fails here is a conflict, or a definition or namespace that is not there yet or any more.
pub(super) fn retry(_: Arc<Cluster>, _: &kube::Error, _: Arc<World>) -> Action {
    Action::requeue(Duration::from_millis(200))
}

impl Scope {
    async fn write_secrets(&self, cluster: &Cluster, knobs: &Knobs) -> Result<(), kube::Error> {
        let name = cluster.name_any();
        for user in cluster.spec.users(&name) {
            let existing = self.api::<Secret>().get_opt(&objects::user_secret_name(&name, &user)).await?;
            self.apply(&objects::user_secret(cluster, &user, existing.as_ref(), knobs.omit_key.as_deref())).await?;
        }
        for secret in objects::tls_secrets(&name) {
            self.apply(&objects::tls_secret(cluster, &secret)).await?;
        }
        Ok(())
    }

    async fn run(&self, cluster: &Cluster, knobs: &Knobs) -> Result<(), kube::Error> {
        let name = cluster.name_any();
        let volumes = self.api::<PersistentVolumeClaim>().list(&of_cluster(&name)).await?.items;
        for set in &cluster.spec.instances {
            for instance in instances(&name, &cluster.uid().unwrap_or_default(), set, &volumes) {
                self.apply(&objects::volume(cluster, &instance)).await?;
                self.apply(&objects::stateful_set(cluster, &instance)).await?;
            }
        }
        if let Some(pgbouncer) = cluster.spec.pgbouncer() {
            self.apply(&objects::pgbouncer(cluster, pgbouncer, knobs.pgbouncer_unready)).await?;
        }
        Ok(())
    }

    async fn report(&self, cluster: &Cluster, knobs: &Knobs) -> Result<(), kube::Error> {
        let name = cluster.name_any();
        let servers = self.api::<StatefulSet>().list(&of_cluster(&name)).await?.items;
        let pgbouncer = self.api::<Deployment>().get_opt(&objects::pgbouncer_name(&name)).await?;
        let status = status(cluster, &servers, pgbouncer.as_ref(), knobs.hold);
        if cluster.status.as_ref() != Some(&status) {
            let clusters: Api<Cluster> = Api::namespaced_with(self.client.clone(), &self.namespace, &resource());
            let patch = Patch::Merge(json!({"status": status}));
            clusters.patch_status(&name, &PatchParams::default(), &patch).await?;
        }
        Ok(())
    }

    /// First what runs, then, once it is gone, what the finalizers ask for.
    async fn tear_down(&self, cluster: &Cluster) -> Result<Action, kube::Error> {
        let name = cluster.name_any();
        let foreground = DeleteParams::foreground();
        let listed = of_cluster(&name);
        self.api::<StatefulSet>().delete_collection(&foreground, &listed).await?;
        self.api::<Deployment>().delete_collection(&foreground, &listed).await?;
        self.api::<Service>().delete_collection(&foreground, &listed).await?;
        let servers = self.api::<StatefulSet>().list(&listed).await?.items.len();
        let pgbouncers = self.api::<Deployment>().list(&listed).await?.items.len();
        if servers + pgbouncers > 0 {
            // Their end is watched.
            return Ok(Action::await_change());
        }
        let now = DeleteParams::default();
        let mut finalizers = cluster.finalizers().to_vec();
        if finalizers.iter().any(|finalizer| finalizer == DELETE_PVC) {
            self.api::<PersistentVolumeClaim>().delete_collection(&now, &listed).await?;
            let of_users = ListParams::default().labels(&format!("{CLUSTER}={name},{ROLE}={ROLE_USER}"));
            self.api::<Secret>().delete_collection(&now, &of_users).await?;
        }
        if finalizers.iter().any(|finalizer| finalizer == DELETE_SSL) {
            for secret in objects::tls_secrets(&name) {
                match self.api::<Secret>().delete(&secret, &now).await {
                    Err(kube::Error::Api(status)) if status.is_not_found() => {}
                    deleted => drop(deleted?),
                }
            }
        }
        finalizers.retain(|finalizer| finalizer != DELETE_PVC && finalizer != DELETE_SSL);
        if finalizers.len() < cluster.finalizers().len() {
            let clusters: Api<Cluster> = Api::namespaced_with(self.client.clone(), &self.namespace, &resource());
            // The version, so that a finalizer which somebody else puts on or takes off meanwhile is not undone.
            let metadata = json!({"resourceVersion": cluster.resource_version(), "finalizers": finalizers});
            clusters.patch(&name, &PatchParams::default(), &Patch::Merge(json!({"metadata": metadata}))).await?;
        }
        Ok(Action::await_change())
    }

    async fn apply<K>(&self, object: &K) -> Result<K, kube::Error>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned + Serialize,
    {
        let params = PatchParams::apply(MANAGER).force();
        self.api().patch(&object.name_any(), &params, &Patch::Apply(object)).await
    }

    fn api<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }
}

fn of_cluster(name: &str) -> ListParams {
    ListParams::default().labels(&format!("{CLUSTER}={name}"))
}

fn status(cluster: &Cluster, servers: &[StatefulSet], pgbouncer: Option<&Deployment>, hold: bool) -> Status {
    let name = cluster.name_any();
    let instances: Vec<_> = cluster
        .spec
        .instances
        .iter()
        .map(|set| {
            let of_set = servers.iter().filter(|server| server.labels().get(INSTANCE_SET) == Some(&set.name));
            let count = of_set.fold(Count::default(), |sum, server| sum + count_server(server));
            SetStatus { name: set.name.clone(), count }
        })
        .collect();
    let postgres = instances.iter().fold(Count::default(), |sum, set| sum + set.count);
    let pgbouncer = pgbouncer.map(count_pgbouncer).unwrap_or_default();
    let all_ready = postgres.ready == postgres.size && pgbouncer.ready == pgbouncer.size && postgres.size > 0;
    let state = match (cluster.spec.pause, hold) {
        (true, _) if postgres.ready > 0 => State::Stopping,
        (true, _) => State::Paused,
        (false, false) if all_ready => State::Ready,
        (false, _) => State::Initializing,
    };
    let service = if cluster.spec.proxy.is_some() { "pgbouncer" } else { "primary" };
    Status {
        state: Some(state),
        host: Some(format!("{name}-{service}.{}.svc", cluster.namespace().unwrap_or_default())),
        postgres: Some(PostgresStatus { count: postgres, version: Some(cluster.spec.postgres_version), instances }),
        pgbouncer: Some(pgbouncer),
        observed_generation: cluster.metadata.generation,
    }
}

fn count_server(server: &StatefulSet) -> Count {
    let size = server.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or_default();
    let ready = server.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
    Count { size, ready }
}

fn count_pgbouncer(pgbouncer: &Deployment) -> Count {
    let size = pgbouncer.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or_default();
    let ready = pgbouncer.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
    Count { size, ready }
}
