//! Everything that is watched: one cache per kind, and the apps that a change concerns. The only reads at rest.

use std::sync::Arc;

use futures::{FutureExt as _, Stream, StreamExt as _, channel::mpsc, future::BoxFuture};
use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{PersistentVolumeClaim, Secret},
    discovery::v1::EndpointSlice,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api, Client, Resource, ResourceExt as _,
    api::PartialObjectMeta,
    runtime::{
        reflector::{ObjectRef, Store},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tokio::sync;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    desired::StoredProfile,
    inventory::release_of,
    names::Maker,
    world::{Availability, ServerState, ServerView, Workload},
};
use crate::{
    controller::{
        cache::{Cache, Change, Entry},
        definition::Definition,
        key::{Key, key_of},
        watch::{forbidden, keep, owner},
    },
    crd::{
        BackupState, ClientApp, DumpState, Guard, Phase, Postgresql, Profile, annotation,
        conditions::{find, kind},
        label,
        percona::{self, PerconaPGBackup, PerconaPGCluster},
        quantity,
    },
    helm::command::{DIGEST_LABEL, HOLDER_LABEL, REVISION_LABEL},
};

/// Selects what Helm manages.
const MANAGED_BY_HELM: &str = "app.kubernetes.io/managed-by=Helm";
/// Name of the definition of Postgresql.
const POSTGRESQLS: &str = "postgresqls.apps.bnerd-operator.local";
/// Name of the definition of Profile.
const PROFILES: &str = "profiles.apps.bnerd-operator.local";
/// On an EndpointSlice: its Service.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Of any Secret: whose it is, and which version of it this is. Never its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretMeta {
    /// Tells it from a successor of the same name.
    pub uid: String,
    /// Changes with every write.
    pub resource_version: String,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Kind, name and uid of the controlling or first owner.
    pub owner: Option<(String, String, String)>,
    /// uid of the ClientApp that it was made for, or adopted by.
    pub stamp: Option<String>,
    /// It is being deleted.
    pub deleting: bool,
    /// The app that left it behind.
    pub retained_from: Option<String>,
    /// Where it stores a revision of a Helm release.
    pub revision: Option<RevisionMeta>,
}

/// One stored revision of a Helm release, by its labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RevisionMeta {
    /// uid of the Secret that stores it.
    pub uid: String,
    /// Helm's `version`.
    pub revision: i64,
    /// Helm's `status`.
    pub status: String,
    /// Our digest, be it inherited.
    pub digest: Option<String>,
    /// The revision for which our labels were stamped.
    pub stamped: Option<i64>,
    /// The operator process that stamped it.
    pub holder: Option<String>,
    /// When it was begun. Helm's own time labels come and go with the revision's updates.
    pub written: Option<Timestamp>,
}

/// The caches, and the way to ask for a reconcile.
pub struct Watches {
    /// Every ClientApp, decodable or not.
    pub apps: Store<Guard<ClientApp>>,
    /// Every Secret's metadata; those of Helm are filed under their release.
    pub secrets: Cache<SecretMeta>,
    /// The Deployments that Helm manages, filed under their release.
    pub deployments: Cache<Workload>,
    /// The StatefulSets that Helm manages, filed under their release.
    pub stateful_sets: Cache<Workload>,
    /// The metadata of every PersistentVolumeClaim, filed under its namespace.
    pub claims: Cache<Arc<ObjectMeta>>,
    /// Every PerconaPGCluster.
    pub clusters: Optional<ServerView>,
    /// Every Postgresql.
    pub postgresqls: Optional<ServerView>,
    /// How far each PerconaPGBackup is, and what went wrong; filed under its cluster.
    pub backups: Optional<(BackupState, Option<String>)>,
    /// Whether an EndpointSlice of PgBouncer has a ready address, filed under its Service.
    pub endpoints: Cache<bool>,
    /// Every Profile, or why it does not decode.
    pub profiles: Optional<Arc<StoredProfile>>,
    triggers: mpsc::UnboundedSender<ObjectRef<Guard<ClientApp>>>,
}

/// The apps to reconcile, as the watches see reasons to.
pub type Triggers = mpsc::UnboundedReceiver<ObjectRef<Guard<ClientApp>>>;

impl Watches {
    /// Starts every watch but that of the ClientApps, which the controller drives. The watches end with `stop`.
    pub fn start(
        client: &Client,
        apps: Store<Guard<ClientApp>>,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> (Arc<Self>, Triggers) {
        let (triggers, triggered) = mpsc::unbounded();
        let watches = Arc::new(Watches {
            apps,
            secrets: Cache::default(),
            deployments: Cache::default(),
            stateful_sets: Cache::default(),
            claims: Cache::default(),
            clusters: Optional::new(percona::CRD_NAME),
            postgresqls: Optional::new(POSTGRESQLS),
            backups: Optional::new(percona::BACKUP_CRD_NAME),
            endpoints: Cache::default(),
            profiles: Optional::new(PROFILES),
            triggers,
        });
        let config = watcher::Config::default();
        let helms = config.clone().labels(MANAGED_BY_HELM);
        let spawn = |feed: BoxFuture<'static, ()>| tasks.spawn(stop.clone().run_until_cancelled_owned(feed));

        let secrets = watcher(Api::<PartialObjectMeta<Secret>>::all(client.clone()), config.clone());
        spawn(feed(watches.clone(), "secrets", secrets, |w| &w.secrets, secret, Watches::secret_changed).boxed());
        let claims = watcher(Api::<PartialObjectMeta<PersistentVolumeClaim>>::all(client.clone()), config.clone());
        let feed_claims =
            feed(watches.clone(), "persistentvolumeclaims", claims, |w| &w.claims, claim, Watches::claims_changed);
        spawn(feed_claims.boxed());
        let deployments = watcher(Api::<Deployment>::all(client.clone()), helms.clone());
        spawn(
            feed(watches.clone(), "deployments", deployments, |w| &w.deployments, deployment, Watches::trigger).boxed(),
        );
        let stateful = watcher(Api::<StatefulSet>::all(client.clone()), helms);
        spawn(
            feed(watches.clone(), "statefulsets", stateful, |w| &w.stateful_sets, stateful_set, Watches::trigger)
                .boxed(),
        );
        let slices =
            watcher(Api::<EndpointSlice>::all(client.clone()), config.clone().labels(percona::PGBOUNCER_SELECTOR));
        spawn(
            feed(watches.clone(), "endpointslices", slices, |w| &w.endpoints, slice, Watches::service_changed).boxed(),
        );
        spawn(
            feed_optional(watches.clone(), client.clone(), |w| &w.clusters, cluster, Watches::server_changed).boxed(),
        );
        spawn(
            feed_optional(watches.clone(), client.clone(), |w| &w.postgresqls, postgresql, Watches::server_changed)
                .boxed(),
        );
        spawn(feed_optional(watches.clone(), client.clone(), |w| &w.backups, backup, Watches::server_changed).boxed());
        spawn(
            feed_optional(watches.clone(), client.clone(), |w| &w.profiles, profile, Watches::profile_changed).boxed(),
        );
        (watches, triggered)
    }

    /// Returns once every cache holds a complete list; what is decided before would be decided on half of the truth.
    pub async fn synced(&self) {
        let Watches {
            apps,
            secrets,
            deployments,
            stateful_sets,
            claims,
            clusters,
            postgresqls,
            backups,
            endpoints,
            profiles,
            triggers: _,
        } = self;
        // The writer lives as long as the controller, which waits here.
        let _ = apps.wait_until_ready().await;
        secrets.synced().await;
        deployments.synced().await;
        stateful_sets.synced().await;
        claims.synced().await;
        endpoints.synced().await;
        clusters.synced().await;
        postgresqls.synced().await;
        backups.synced().await;
        profiles.synced().await;
    }

    /// What databases are made from.
    pub fn servers(&self, maker: Maker) -> &Optional<ServerView> {
        match maker {
            Maker::Percona => &self.clusters,
            Maker::Standalone => &self.postgresqls,
        }
    }

    /// What is stored under a Profile's name.
    pub fn profile(&self, name: &str) -> Option<Arc<StoredProfile>> {
        self.profiles.objects.get(&Key::new("", name))
    }

    /// The release's Deployments and StatefulSets.
    pub fn workloads(&self, release: &Key) -> Vec<Workload> {
        let deployments = self.deployments.group(release).into_iter();
        deployments.chain(self.stateful_sets.group(release)).map(|(_, workload)| workload).collect()
    }

    /// The claims of a namespace.
    pub fn claims(&self, namespace: &str) -> Vec<Arc<ObjectMeta>> {
        self.claims.group(&Key::new("", namespace)).into_iter().map(|(_, claim)| claim).collect()
    }

    /// The stored revisions of a release.
    pub fn revisions(&self, release: &Key) -> Vec<(String, RevisionMeta)> {
        let secrets = self.secrets.group(release).into_iter();
        secrets.filter_map(|(key, secret)| Some((key.name, secret.revision?))).collect()
    }

    /// Asks for a reconcile of this app.
    pub fn trigger(&self, app: &Key) {
        // The receiver ends with the controller; then nothing is reconciled any more.
        let _ = self.triggers.unbounded_send(ObjectRef::new(&app.name).within(&app.namespace));
    }

    /// Asks for a reconcile of the apps that wait for a hostname, now that another app has changed.
    pub fn trigger_hostname_waiters(&self, changed: &Key) {
        self.trigger_where(|app| {
            let status = app.object.as_ref().ok().and_then(|app| app.status.as_ref());
            let ready = status.and_then(|status| find(&status.conditions, kind::READY));
            ready.is_some_and(|ready| ready.reason == "HostnameConflict") && key_of(app) != *changed
        });
    }

    fn trigger_all(&self) {
        self.trigger_where(|_| true);
    }

    fn trigger_where(&self, concerned: impl Fn(&Guard<ClientApp>) -> bool) {
        for app in self.apps.state().iter().filter(|app| concerned(app)) {
            self.trigger(&key_of(app.as_ref()));
        }
    }

    /// A Secret is a release's, and then the release's name comes here; or one an app makes or waits for by name.
    fn secret_changed(&self, secret: &Key) {
        self.trigger_where(|app| {
            if app.metadata.namespace.as_deref() != Some(&secret.namespace) {
                return false;
            }
            let key = key_of(app);
            let spec = app.object.as_ref().ok().map(|app| &app.spec);
            let given = spec.and_then(|spec| spec.admin_secret.as_ref());
            let external = spec.and_then(|spec| spec.postgres.external.as_ref()).map(|external| &external.secret_name);
            key.name == secret.name
                || [given, external].contains(&Some(&secret.name))
                || [key.admin_secret(), key.redis_secret()].contains(&secret.name)
                || Maker::ALL.iter().any(|maker| maker.secret(&key) == secret.name)
        });
    }

    fn server_changed(&self, server: &Key) {
        self.trigger_where(|app| {
            let key = key_of(app);
            key.namespace == server.namespace && key.cluster() == server.name
        });
    }

    /// A deletion may wait for a claim to be gone. An app that lives puts its own on record when its workloads are ready.
    fn claims_changed(&self, namespace: &Key) {
        self.trigger_where(|app| {
            app.metadata.deletion_timestamp.is_some() && app.metadata.namespace.as_ref() == Some(&namespace.name)
        });
    }

    fn profile_changed(&self, profile: &Key) {
        self.trigger_where(|app| {
            let named = app.object.as_ref().ok().and_then(|app| app.spec.profile.as_ref());
            named == Some(&profile.name)
        });
    }

    fn service_changed(&self, service: &Key) {
        self.trigger_where(|app| {
            let key = key_of(app);
            key.namespace == service.namespace && Maker::Percona.service(&key) == service.name
        });
    }
}

/// Takes one watch into its cache for good, and tells of each change: of the group an object is filed under, or
/// else of the object itself.
async fn feed<K, V: Clone>(
    watches: Arc<Watches>,
    resource: &'static str,
    stream: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
    cache: impl Fn(&Watches) -> &Cache<V> + Send + 'static,
    entry: impl Fn(K) -> Entry<V> + Send + 'static,
    changed: impl Fn(&Watches, &Key) + Send + 'static,
) where
    K: Send + 'static,
{
    keep(resource, stream, cache(&watches), entry, |change| match change {
        Change::Everything => watches.trigger_all(),
        Change::One(key, group) => changed(&watches, group.as_ref().unwrap_or(&key)),
        Change::Nothing => {}
    })
    .await;
}

/// A kind that a cluster may do without: whether it is there, and its objects while it is.
pub struct Optional<V> {
    definition: Definition,
    /// Its objects.
    pub objects: Cache<V>,
    /// Why they cannot be seen, while RBAC refuses that. Only who needs them waits for it.
    refused: sync::watch::Sender<Option<String>>,
}

impl<V: Clone> Optional<V> {
    fn new(definition: &'static str) -> Self {
        Optional {
            definition: Definition::new(definition),
            objects: Cache::default(),
            refused: sync::watch::Sender::new(None),
        }
    }

    /// Whether the cluster knows the kind.
    pub fn installed(&self) -> bool {
        self.definition.installed()
    }

    /// Whether its objects can be told.
    pub fn availability(&self) -> Availability {
        match &*self.refused.borrow() {
            Some(sentence) => Availability::Refused(sentence.clone()),
            None if self.installed() => Availability::Installed,
            None => Availability::Missing,
        }
    }

    async fn synced(&self) {
        let known = async {
            self.definition.synced().await;
            if self.installed() {
                self.objects.synced().await;
            }
        };
        let mut refused = self.refused.subscribe();
        tokio::select! {
            () = known => {}
            // The sender lives as long as this.
            _ = refused.wait_for(Option::is_some) => {}
        }
    }

    /// Takes note of what came of a watch, and tells whether that changes anything.
    fn note(&self, failure: Option<&watcher::Error>) -> bool {
        let sentence = failure.and_then(forbidden);
        if failure.is_some() && sentence.is_none() {
            // Whatever it is, it says nothing about rights.
            return false;
        }
        self.refused.send_if_modified(|refused| std::mem::replace(refused, sentence.clone()) != sentence)
    }
}

/// Watches the objects of a kind while it exists.
async fn feed_optional<K, V>(
    watches: Arc<Watches>,
    client: Client,
    of: fn(&Watches) -> &Optional<V>,
    entry: fn(K) -> Entry<V>,
    changed: fn(&Watches, &Key),
) where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + std::fmt::Debug + Send + 'static,
    V: Clone + Send + 'static,
{
    let optional = of(&watches);
    let Optional { definition, objects, refused: _ } = optional;
    let note = |failure: Option<&watcher::Error>| {
        if optional.note(failure) {
            watches.trigger_all();
        }
    };
    let definitions = definition.watch(client.clone(), || watches.trigger_all(), note);
    let fed = async {
        loop {
            definition.until(true).await;
            let stream = watcher(Api::<K>::all(client.clone()), watcher::Config::default());
            let noted = watches.clone();
            let stream = stream.inspect(move |event| {
                if of(&noted).note(event.as_ref().err()) {
                    noted.trigger_all();
                }
            });
            let resource = definition.resource();
            tokio::select! {
                () = feed(watches.clone(), resource, stream, move |w| &of(w).objects, entry, changed) => {}
                () = definition.until(false) => objects.clear(),
            }
        }
    };
    tokio::join!(definitions, fed);
}

fn secret(secret: PartialObjectMeta<Secret>) -> Entry<SecretMeta> {
    let revision = revision(&secret);
    let key = key_of(&secret);
    let release = revision.is_some().then(|| secret.labels().get("name").cloned()).flatten();
    Entry {
        group: release.map(|release| Key::new(&key.namespace, release)),
        value: Some(SecretMeta {
            uid: secret.uid().unwrap_or_default(),
            resource_version: secret.resource_version().unwrap_or_default(),
            created: secret.creation_timestamp().map(|time| time.0),
            owner: owner(&secret),
            stamp: secret.annotations().get(annotation::OWNER_UID).cloned(),
            deleting: secret.metadata.deletion_timestamp.is_some(),
            retained_from: secret.labels().get(label::RETAINED_FROM).cloned(),
            revision,
        }),
        key,
    }
}

fn claim(claim: PartialObjectMeta<PersistentVolumeClaim>) -> Entry<Arc<ObjectMeta>> {
    let key = key_of(&claim);
    let meta = ObjectMeta { managed_fields: None, ..claim.metadata };
    Entry { group: Some(Key::new("", &key.namespace)), value: Some(Arc::new(meta)), key }
}

/// A revision of a release by the labels of its Secret (helm.sh/helm/v4/pkg/storage/driver/secrets.go).
pub fn revision(secret: &PartialObjectMeta<Secret>) -> Option<RevisionMeta> {
    let labels = secret.labels();
    if labels.get("owner").map(String::as_str) != Some("helm") {
        return None;
    }
    Some(RevisionMeta {
        uid: secret.uid().unwrap_or_default(),
        // What is no number of Helm's is no revision of it, whatever the label says.
        revision: labels.get("version")?.parse::<i32>().ok().filter(|revision| *revision > 0)?.into(),
        status: labels.get("status")?.clone(),
        digest: labels.get(DIGEST_LABEL).cloned(),
        stamped: labels.get(REVISION_LABEL).and_then(|revision| revision.parse().ok()),
        holder: labels.get(HOLDER_LABEL).cloned(),
        written: secret.creation_timestamp().map(|time| time.0),
    })
}

fn deployment(deployment: Deployment) -> Entry<Workload> {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = deployment.status.clone().unwrap_or_default();
    let condition = |type_: &str| status.conditions.iter().flatten().find(move |condition| condition.type_ == type_);
    // Such as a quota that is used up.
    let refused = condition("ReplicaFailure").filter(|condition| condition.status == "True");
    let stuck =
        condition("Progressing").filter(|condition| condition.reason.as_deref() == Some("ProgressDeadlineExceeded"));
    let waiting = rollout(
        deployment.metadata.generation,
        status.observed_generation,
        wanted,
        status.updated_replicas.unwrap_or(0),
        status.available_replicas.unwrap_or(0),
    )
    // The one that is available may be an old one, which stays until a new one is.
    .or_else(|| {
        let old = status.replicas.unwrap_or(0) - status.updated_replicas.unwrap_or(0);
        (old > 0).then(|| format!("{old} old replicas serve until new ones are available"))
    })
    .map(|waiting| match (refused.and_then(|refused| refused.message.as_ref()), stuck) {
        (Some(why), _) => format!("{waiting}: {why}"),
        (None, Some(_)) => format!("{waiting}, and no progress within its deadline"),
        (None, None) => waiting,
    });
    workload("Deployment", &deployment, waiting)
}

fn stateful_set(set: StatefulSet) -> Entry<Workload> {
    let wanted = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = set.status.clone().unwrap_or_default();
    // A set that updates on delete is as new as somebody wants it to be.
    let updated = match set.spec.as_ref().and_then(|spec| spec.update_strategy.as_ref()?.type_.as_deref()) {
        Some("OnDelete") => wanted,
        _ => status.updated_replicas.unwrap_or(0),
    };
    let waiting = rollout(
        set.metadata.generation,
        status.observed_generation,
        wanted,
        updated,
        status.available_replicas.unwrap_or(0),
    );
    workload("StatefulSet", &set, waiting)
}

/// Why a rollout is not complete, as `kubectl rollout status` would say it.
fn rollout(
    generation: Option<i64>,
    observed: Option<i64>,
    wanted: i32,
    updated: i32,
    available: i32,
) -> Option<String> {
    if generation > observed {
        Some("its controller has not seen it yet".to_owned())
    } else if updated < wanted {
        Some(format!("{updated} of {wanted} replicas are up to date"))
    } else if available < wanted {
        Some(format!("{available} of {wanted} replicas are available"))
    } else {
        None
    }
}

fn workload<K: Resource>(kind: &'static str, object: &K, waiting: Option<String>) -> Entry<Workload> {
    // What Helm manages without naming its release cannot be filed, and is nobody's.
    let group = release_of(object.meta());
    Entry {
        key: key_of(object),
        value: group.is_some().then(|| Workload { kind, name: object.name_any(), waiting }),
        group,
    }
}

/// What both kinds say of themselves in the same way.
fn server<K: Resource>(object: &K) -> ServerView {
    ServerView {
        app: object.labels().get(label::APP).cloned(),
        retained_from: object.labels().get(label::RETAINED_FROM).cloned(),
        uid: object.meta().uid.clone().unwrap_or_default(),
        owner_uid: owner(object).map(|(_, _, uid)| uid),
        stamp: object.annotations().get(annotation::OWNER_UID).cloned(),
        deleting: object.meta().deletion_timestamp.is_some(),
        digest: object.annotations().get(annotation::SPEC_DIGEST).cloned(),
        created: object.meta().creation_timestamp.as_ref().map(|time| time.0),
        ..ServerView::default()
    }
}

fn cluster(cluster: PerconaPGCluster) -> Entry<ServerView> {
    let status = cluster.status.clone().unwrap_or_default();
    let volume = cluster.spec.instances.first().map(|instance| &instance.data_volume_claim_spec.resources.requests);
    let view = ServerView {
        postgres_version: cluster.spec.postgres_version,
        storage_bytes: volume.and_then(|volume| quantity::parse_positive(volume.storage.as_deref()?)),
        backups: cluster.annotations().contains_key(annotation::BACKUPS),
        ready_for_backup: status
            .conditions
            .iter()
            .any(|condition| condition.kind == percona::READY_FOR_BACKUP && condition.status == "True"),
        state: match status.state.as_deref() {
            None | Some("") => ServerState::Silent,
            // Of no PgBouncers all are ready.
            Some("ready") if status.pgbouncer.unwrap_or_default().ready < 1 => {
                ServerState::Waiting(" has no ready PgBouncer".to_owned())
            }
            Some("ready") => ServerState::Ready,
            Some(state) => ServerState::Waiting(format!(" is {state}")),
        },
        ..server(&cluster)
    };
    Entry { key: key_of(&cluster), group: None, value: Some(view) }
}

fn postgresql(guard: Guard<Postgresql>) -> Entry<ServerView> {
    let key = key_of(&guard);
    let view = match &guard.object {
        Ok(postgresql) => postgresql_view(&guard, postgresql),
        Err(problem) => {
            ServerView { state: ServerState::Stalled(format!(" does not decode: {problem}")), ..server(&guard) }
        }
    };
    Entry { key, group: None, value: Some(view) }
}

fn postgresql_view(guard: &Guard<Postgresql>, postgresql: &Postgresql) -> ServerView {
    let status = postgresql.status.clone().unwrap_or_default();
    let ready = find(&status.conditions, kind::READY);
    let why = ready.map_or_else(|| " is not up".to_owned(), |ready| format!(": {}", ready.message));
    ServerView {
        postgres_version: postgresql.spec.version.parse().ok(),
        storage_bytes: quantity::parse_positive(&postgresql.spec.storage_size),
        state: match status.phase {
            None => ServerState::Silent,
            Some(Phase::Up) => ServerState::Ready,
            Some(Phase::Pending) => ServerState::Waiting(why),
            Some(Phase::Failed) => ServerState::Stalled(why),
        },
        // One that is not up waits until it is.
        ready_for_backup: true,
        dump: status.dump.map(|dump| {
            let state = match dump.state {
                DumpState::Running => BackupState::Running,
                DumpState::Succeeded => BackupState::Succeeded,
                DumpState::Failed => BackupState::Failed,
            };
            (dump.request, state, dump.message)
        }),
        ..server(guard)
    }
}

fn backup(backup: PerconaPGBackup) -> Entry<(BackupState, Option<String>)> {
    let key = key_of(&backup);
    let status = backup.status.unwrap_or_default();
    let state = match status.state.as_deref() {
        Some("Succeeded") => BackupState::Succeeded,
        Some("Failed") => BackupState::Failed,
        _ => BackupState::Running,
    };
    // One that is on its way out is none.
    let value = backup.metadata.deletion_timestamp.is_none().then_some((state, status.error));
    Entry { group: Some(Key::new(&key.namespace, backup.spec.pg_cluster)), value, key }
}

fn profile(profile: Guard<Profile>) -> Entry<Arc<StoredProfile>> {
    let key = key_of(&profile);
    Entry { key, group: None, value: Some(Arc::new(profile.object.map(|profile| profile.spec))) }
}

fn slice(slice: EndpointSlice) -> Entry<bool> {
    let key = key_of(&slice);
    let service = slice.labels().get(SERVICE_NAME).cloned();
    // No condition means ready (k8s.io/api/discovery/v1, EndpointConditions).
    let ready = slice
        .endpoints
        .iter()
        .any(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true));
    Entry { group: service.map(|service| Key::new(&key.namespace, service)), value: Some(ready), key }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::clientapp::inventory::{RELEASE_NAME, RELEASE_NAMESPACE};

    #[test]
    fn a_deployment_is_ready_when_its_rollout_is_complete() {
        let waiting = |status: Value| {
            let metadata = json!({
                "name": "acme", "namespace": "tenants", "generation": 2,
                "annotations": {RELEASE_NAME: "acme", RELEASE_NAMESPACE: "tenants"},
            });
            let object = json!({"metadata": metadata, "spec": {"replicas": 1}, "status": status});
            deployment(serde_json::from_value(object).unwrap()).value.unwrap().waiting
        };
        let status = |observed: i64, replicas: i32, updated: i32, available: i32| {
            json!({
                "observedGeneration": observed,
                "replicas": replicas,
                "updatedReplicas": updated,
                "availableReplicas": available,
            })
        };
        for (status, expected) in [
            (status(1, 1, 1, 1), Some("its controller has not seen it yet")),
            (status(2, 1, 0, 1), Some("0 of 1 replicas are up to date")),
            (status(2, 1, 1, 0), Some("0 of 1 replicas are available")),
            (status(2, 2, 1, 1), Some("1 old replicas serve until new ones are available")),
            (status(2, 1, 1, 1), None),
        ] {
            assert_eq!(waiting(status.clone()).as_deref(), expected, "{status}");
        }
    }
}
