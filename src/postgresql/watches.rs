//! The watches: one cache for each kind, and which Postgresqls a change concerns. At rest, there are no other reads.

use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::StatefulSet,
    batch::v1::Job,
    core::v1::{ConfigMap, ContainerStateTerminated, PersistentVolumeClaim, Pod, Service},
    networking::v1::NetworkPolicy,
    policy::v1::PodDisruptionBudget,
};
use kube::{Client, Resource, ResourceExt as _, api::PartialObjectMeta, runtime::watcher};
use serde_json::json;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    names,
    objects::{
        backup::{DELETION_ANNOTATION, REQUEST_ANNOTATION},
        bucket::FETCH,
        initialize::{MADE_FOR, RESTORE_ANNOTATION},
        servers::{
            CERTIFICATE_ANNOTATION, CLOSED_ANNOTATION, GENERATION_ANNOTATION, REPLACED_ANNOTATION,
            REPLICATION_ANNOTATION,
        },
    },
    observed::{
        Detail, JobView, Kind, NOT_READY_YET, ObjectId, ObjectView, Ownership, PodView, Role, ScriptRefusal,
        SecretIdentity, SetView, UserRequest,
    },
    termination_message,
};
use crate::{
    crd::{Postgresql, annotation::SPEC_DIGEST, label, quantity},
    platform::{
        cache::{Cache, CacheEntry},
        controller::Objects,
        job::{
            JOB_NAME, JobProgress, failure_line, last_termination, not_started, progress, termination_message,
            waits_for_pods_since,
        },
        key::{Key, key_of},
        managed_fields::WithoutManagedFields,
        pods::{idle_since, problem, replaces_pods},
        warnings::{self, Warning},
        watch::owner,
        watch_builder::{WatchBuilder, Watchable},
    },
    secrets::{self, Secrets},
};

/// An object that was made from a document, and the uid of the `Postgresql` that it belongs to.
#[derive(Clone)]
struct WatchedObject {
    id: ObjectId,
    uid: Result<String, String>,
    view: ObjectView,
}

pub(crate) struct PostgresqlWatches {
    pub postgresqls: Objects<Postgresql>,
    pub secrets: Arc<Cache<secrets::SecretMeta>>,
    pods: Arc<Cache<PodView>>,
    /// Says why pods are refused.
    refusals: Arc<Cache<Warning>>,
    watched: [Arc<Cache<WatchedObject>>; 7],
}

impl PostgresqlWatches {
    /// Starts every watch except that of the Postgresqls, which the controller drives. The watches end with `stop`.
    pub(crate) fn start(
        client: &Client,
        postgresqls: Objects<Postgresql>,
        secrets: &Secrets,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        let watch_builder = WatchBuilder { client, objects: &postgresqls, tasks, stop };
        Arc::new(PostgresqlWatches {
            secrets: secrets.told(&postgresqls, secret_changed),
            pods: watch_builder.all("pods", labelled(), pod, Objects::trigger),
            refusals: watch_builder.warnings(warnings::of_refused_pods(), refused_pods),
            watched: [
                documents(&watch_builder, "configmaps", Kind::ConfigMap, |_: &PartialObjectMeta<ConfigMap>| {
                    Detail::None
                }),
                documents(&watch_builder, "services", Kind::Service, |_: &PartialObjectMeta<Service>| Detail::None),
                documents(&watch_builder, "statefulsets", Kind::StatefulSet, stateful_set),
                documents(&watch_builder, "persistentvolumeclaims", Kind::PersistentVolumeClaim, volume),
                documents(&watch_builder, "jobs", Kind::Job, job),
                documents(
                    &watch_builder,
                    "poddisruptionbudgets",
                    Kind::PodDisruptionBudget,
                    |budget: &PodDisruptionBudget| Detail::Spec(json!(budget.spec)),
                ),
                documents(&watch_builder, "networkpolicies", Kind::NetworkPolicy, |policy: &NetworkPolicy| {
                    Detail::Spec(json!(policy.spec))
                }),
            ],
            postgresqls,
        })
    }

    /// Returns once every cache holds a complete list. An earlier decision would be based on incomplete state.
    pub(crate) async fn synced(&self) {
        // Warnings are only quoted, so nothing waits for them.
        let PostgresqlWatches { postgresqls, secrets, pods, refusals: _, watched } = self;
        // The writer lives as long as the controller, which waits here.
        let _ = postgresqls.store.wait_until_ready().await;
        secrets.synced().await;
        pods.synced().await;
        for cache in watched {
            cache.synced().await;
        }
    }

    /// Returns the objects with the Postgresql's name as label, whether they belong to it or not.
    pub(crate) fn objects(&self, key: &Key, uid: &str) -> std::collections::BTreeMap<ObjectId, ObjectView> {
        let watched = self.watched.iter().flat_map(|cache| cache.group(key));
        watched
            .map(|(_, WatchedObject { id, uid: whose, view })| {
                let owner = match whose {
                    Ok(whose) if whose == uid => Ownership::Ours,
                    Ok(_) => Ownership::Other("an earlier Postgresql of this name".to_owned()),
                    Err(other) => Ownership::Other(other),
                };
                (id, ObjectView { owner, ..view })
            })
            .collect()
    }

    pub(crate) fn secret(&self, key: &Key) -> Option<SecretIdentity> {
        let secrets::SecretMeta { uid, resource_version, owner, deleting, retained_from, is_left, postgresql, .. } =
            self.secrets.get(key)?;
        let unsettled = owner.is_some() || is_left;
        let owner = belongs_to(postgresql.as_ref(), owner.as_ref(), retained_from.as_ref());
        Some(SecretIdentity { uid, resource_version, owner, deleting, unsettled })
    }

    pub(crate) fn pods(&self, key: &Key) -> Vec<PodView> {
        self.pods.group(key).into_iter().map(|(_, pod)| pod).collect()
    }

    /// Returns why pods of this object were last refused, unless that was before `since`.
    pub(crate) fn refusal(&self, namespace: &str, (kind, name): &ObjectId, since: Option<Timestamp>) -> Option<String> {
        warnings::refusal(&self.refusals, &warnings::group(namespace, &kind.to_string(), name), since)
    }
}

/// Selects the objects with a Postgresql's name as label.
fn labelled() -> watcher::Config {
    watcher::Config::default().labels(label::POSTGRESQL)
}

/// Watches the objects of a kind that are made from documents. `detail`: what decisions read of one.
fn documents<K: Watchable>(
    watch_builder: &WatchBuilder<'_, Postgresql>,
    resource: &'static str,
    kind: Kind,
    detail: fn(&K) -> Detail,
) -> Arc<Cache<WatchedObject>> {
    let entry =
        move |WithoutManagedFields { object, .. }: WithoutManagedFields<K>| watched(&object, kind, detail(&object));
    watch_builder.with_helm_fields(resource, labelled(), entry, Objects::trigger)
}

/// Triggers the Postgresqls whose StatefulSet or Job may have this name. `warned` has the kind in its name.
fn refused_pods(postgresqls: &Objects<Postgresql>, warned: &Key) {
    let Some((_, name)) = warned.name.split_once('/') else { return };
    postgresqls.trigger_in(&warned.namespace, |postgresql| name.starts_with(&postgresql.name_any()));
}

/// Triggers the Postgresqls that make this Secret, or that name it in `spec.passwordSecret` or for the repository of their dumps.
fn secret_changed(postgresqls: &Objects<Postgresql>, secret: &Key) {
    postgresqls.trigger_in(&secret.namespace, |postgresql| {
        let name = postgresql.name_any();
        let given = postgresql.object.as_ref().ok().and_then(|object| object.spec.password_secret.as_ref());
        let store = |object: &Postgresql| object.spec.backup.as_ref()?.store.as_ref()?.bucket.password_secret.clone();
        let of_repository = postgresql.object.as_ref().ok().and_then(store);
        names::secrets(&name).contains(&secret.name)
            || given.is_some_and(|given| given.name == secret.name)
            || of_repository.is_some_and(|given| given.name == secret.name)
    });
}

/// Returns the Postgresql that an object names in its label.
fn group<K: Resource>(object: &K) -> Option<Key> {
    let name = object.labels().get(label::POSTGRESQL)?;
    Some(Key::new(object.namespace().unwrap_or_default(), name))
}

/// Returns the uid of the `Postgresql` that an object belongs to, or another owner as text for messages. The label is enough: with it,
/// a cluster admin hands over a volume or a password.
pub(crate) fn whose<K: Resource>(object: &K) -> Result<String, String> {
    let label = |label| object.labels().get(label);
    belongs_to(label(label::POSTGRESQL_UID), owner(object).as_ref(), label(label::RETAINED_FROM))
}

fn belongs_to(
    uid: Option<&String>,
    owner: Option<&(String, String, String)>,
    retained_from: Option<&String>,
) -> Result<String, String> {
    match (uid, owner, retained_from) {
        (Some(uid), ..) => Ok(uid.clone()),
        (None, Some((kind, _, uid)), _) if kind == "Postgresql" => Ok(uid.clone()),
        (None, Some((kind, name, _)), _) => Err(format!("{kind} {name}")),
        (None, None, Some(name)) => Err(format!("no owner, since it was retained from {name},")),
        (None, None, None) => Err("no owner that the operator knows".to_owned()),
    }
}

fn watched<K: Resource>(object: &K, kind: Kind, detail: Detail) -> CacheEntry<WatchedObject> {
    let view = ObjectView {
        owner: Ownership::Ours,
        uid: object.uid().unwrap_or_default(),
        digest: object.annotations().get(SPEC_DIGEST).cloned(),
        deleting: object.meta().deletion_timestamp.is_some(),
        detail,
    };
    let watched = WatchedObject { id: (kind, object.name_any()), uid: whose(object), view };
    CacheEntry { key: key_of(object), group: group(object), value: Some(watched) }
}

fn stateful_set(set: &StatefulSet) -> Detail {
    let spec = set.spec.as_ref();
    let template = spec.and_then(|spec| spec.volume_claim_templates.as_ref()?.first()?.spec.as_ref());
    let requests = template.and_then(|claim| claim.resources.as_ref()?.requests.as_ref());
    let of_pods = spec.and_then(|spec| spec.template.metadata.as_ref()?.annotations.as_ref());
    let mounted = |annotation: &str| of_pods.and_then(|annotations| annotations.get(annotation)).cloned();
    Detail::StatefulSet(SetView {
        replicas: spec.and_then(|spec| spec.replicas).unwrap_or(1),
        storage: requests.and_then(|requests| Some(requests.get("storage")?.0.clone())),
        is_rolled: is_rolled(set),
        requested: UserRequest {
            generation: set.annotations().get(GENERATION_ANNOTATION).cloned(),
            mounted: [REPLICATION_ANNOTATION, CERTIFICATE_ANNOTATION, REPLACED_ANNOTATION].map(mounted),
        },
    })
}

/// Returns true if its controller has replaced all pods with those of the newest template (k8s.io/kubectl/pkg/polymorphichelpers,
/// `StatefulSetStatusViewer`), or leaves that to a user, for whom no other database waits.
fn is_rolled(set: &StatefulSet) -> bool {
    if !set.spec.as_ref().is_none_or(replaces_pods) {
        return true;
    }
    let Some(status) = &set.status else { return false };
    let has_seen = status.observed_generation >= set.metadata.generation;
    has_seen && (status.update_revision.is_none() || status.update_revision == status.current_revision)
}

fn volume(claim: &PersistentVolumeClaim) -> Detail {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref());
    Detail::Claim {
        requested: requests.and_then(|requests| quantity::parse_positive(&requests.get("storage")?.0)),
        capacity: capacity.and_then(|capacity| Some(capacity.get("storage")?.0.clone())),
        made_for: claim.annotations().get(MADE_FOR).cloned(),
    }
}

fn job(job: &Job) -> Detail {
    let JobProgress { succeeded, started, ended } = progress(job);
    Detail::Job(JobView {
        request: job.annotations().get(REQUEST_ANNOTATION).cloned(),
        deletion: job.annotations().get(DELETION_ANNOTATION).cloned(),
        restore: job.annotations().get(RESTORE_ANNOTATION).and_then(|restore| serde_json::from_str(restore).ok()),
        generation: job.annotations().get(GENERATION_ANNOTATION).cloned(),
        is_drill: job.labels().get(label::ROLE).and_then(|role| Role::parse(role)) == Some(Role::Drill),
        succeeded,
        started,
        ended,
        waits_since: waits_for_pods_since(job),
        not_started: not_started(job),
    })
}

fn pod(pod: Pod) -> CacheEntry<PodView> {
    let labels = pod.labels();
    let view = PodView {
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
        role: labels.get(label::ROLE).and_then(|role| Role::parse(role)),
        job: labels.get(JOB_NAME).cloned(),
        termination_message: termination_message(&pod),
        failure_line: failure_line(&pod),
        waiting: waiting(&pod),
        idle_since: idle_since(&pod),
        refused: refused(&pod),
        closed: pod.annotations().get(CLOSED_ANNOTATION).cloned(),
        replaced: pod.annotations().get(REPLACED_ANNOTATION).cloned(),
    };
    CacheEntry { key: key_of(&pod), group: group(&pod), value: Some(view) }
}

fn is_ready(pod: &Pod) -> bool {
    let mut conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// Returns why a pod is not ready: in its scripts' words, or else in those of [`problem`].
fn waiting(pod: &Pod) -> Option<String> {
    if pod.metadata.deletion_timestamp.is_some() {
        return Some("it is being deleted".to_owned());
    }
    if is_ready(pod) {
        return None;
    }
    let message =
        || Some(termination(pod)?.message.as_deref()?.trim().to_owned()).filter(|message| !message.is_empty());
    if let Some(why) = refused(pod).and_then(|_| message()).or_else(|| ended(pod)) {
        return Some(why);
    }
    Some(problem(pod).map_or_else(|| NOT_READY_YET.to_owned(), |problem| problem.unnamed()))
}

/// Returns what the pod's script refused when it last ran; `None` for a pod that is ready.
fn refused(pod: &Pod) -> Option<ScriptRefusal> {
    if is_ready(pod) {
        return None;
    }
    let fetched = pod.status.iter().flat_map(|status| status.init_container_statuses.iter().flatten());
    let mut fetched = fetched.filter(|container| container.name == FETCH);
    if fetched.any(|container| last_termination(container).is_some_and(|ended| ended.exit_code != 0)) {
        return Some(ScriptRefusal::Dump);
    }
    match termination(pod)?.exit_code {
        71 => Some(ScriptRefusal::NoDatabase),
        72 => Some(ScriptRefusal::OtherVersion),
        75 => Some(ScriptRefusal::Dump),
        _ => None,
    }
}

/// Returns why the pod's container failed. It may have been restarted since, but until it is ready it may fail again.
fn ended(pod: &Pod) -> Option<String> {
    let ContainerStateTerminated { exit_code, message, reason, .. } = termination(pod)?;
    let summary = message.as_deref().and_then(termination_message::summarize);
    match (exit_code, reason.as_deref()) {
        (0, _) => None,
        (_, Some("OOMKilled")) => {
            Some("it was killed for using more memory than its limit (OOMKilled): see spec.resources.limits".to_owned())
        }
        _ => summary.map(|summary| format!("it has ended with exit code {exit_code}: {summary}")),
    }
}

fn termination(pod: &Pod) -> Option<&ContainerStateTerminated> {
    last_termination(pod.status.as_ref()?.container_statuses.as_ref()?.first()?)
}

#[cfg(test)]
mod tests;
