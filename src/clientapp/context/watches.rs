//! Everything that is watched: one cache for each kind, and the apps that a change concerns. At rest, there are no other reads.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::{ConfigMap, PersistentVolumeClaim, Service, ServiceAccount},
    networking::v1::{Ingress, NetworkPolicy},
    policy::v1::PodDisruptionBudget,
    rbac::v1::RoleBinding,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use kube::{Client, Resource, ResourceExt as _, api::PartialObjectMeta, runtime::watcher};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    clientapp::{
        observed::{file_backup::AppBackup, owned, types::Workload},
        spec::{
            database::{self, DatabaseCaches, DatabaseObject, Provider},
            deployer::{self, Deployer},
            names::{MANAGED_BY, release_of},
        },
    },
    crd::{
        BackupPhase, BackupSubjectKind, ClientApp, ClientAppBackup, DEPLOYER, Guard, Reason, ReleaseObject, ValuesKind,
        ValuesReference,
        conditions::{
            find,
            kind::{RECONCILING, STALLED},
        },
    },
    deletion::permit,
    platform::{
        cache::{Cache, CacheEntry},
        controller::Objects,
        key::{Key, key_of},
        managed_fields::WithoutManagedFields,
        pods,
        reconciled::version,
        warnings::{self, Warning},
        watch::controller_uid,
        watch_builder::WatchBuilder,
    },
    secrets::{RevisionMeta, SecretMeta, Secrets},
};

/// The caches, and the triggers of reconciles.
pub(crate) struct Watches {
    /// Every ClientApp, decodable or not.
    pub apps: Objects<ClientApp>,
    /// Every Secret's metadata; Helm's Secrets are filed under their release.
    pub secrets: Arc<Cache<SecretMeta>>,
    /// The Deployments that Helm manages, filed under their release.
    deployments: Arc<Cache<Workload>>,
    /// The StatefulSets that Helm manages, filed under their release.
    stateful_sets: Arc<Cache<Workload>>,
    /// The version of every ConfigMap. There may be many that no app uses, so nothing else is kept of them.
    config_maps: Arc<Cache<Box<str>>>,
    /// Other objects of releases, by kind, filed under their release: which of their fields helm manages, as a digest.
    parts: [(&'static str, Arc<Cache<u64>>); 5],
    /// The metadata of every PersistentVolumeClaim.
    claims: Arc<Cache<Arc<ObjectMeta>>>,
    /// Holds why the pods of StatefulSets and Jobs are refused. Only their messages use it, which are computed again soon enough.
    refusals: Arc<Cache<Warning>>,
    /// The ClientAppBackups of apps, filed under the app.
    backups: Arc<Cache<AppBackup>>,
    /// The deployers' ServiceAccounts; no others.
    accounts: Arc<Cache<deployer::DeployerObject>>,
    /// The RoleBindings of that name.
    bindings: Arc<Cache<deployer::DeployerObject>>,
    databases: HashMap<permit::DataKind, DatabaseCaches>,
}

impl Watches {
    /// Starts every watch except that of ClientApps, which the controller drives. The watches end with `stop`.
    pub(crate) fn start(
        client: &Client,
        apps: Objects<ClientApp>,
        secrets: &Secrets,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Arc<Self> {
        let builder = WatchBuilder { client, objects: &apps, tasks, stop };
        let all = watcher::Config::default();
        let (label, word) = MANAGED_BY;
        let helms = all.clone().labels(&format!("{label}={word}"));
        // By name, so that rights for this name are enough.
        let deployers = all.clone().fields(&format!("metadata.name={DEPLOYER}"));
        Arc::new(Watches {
            secrets: secrets.told(&apps, secret_changed),
            claims: builder.all("persistentvolumeclaims", all.clone(), claim, claim_changed),
            config_maps: builder.all("configmaps", all, config_map, config_map_changed),
            deployments: builder.with_helm_fields("deployments", helms.clone(), managed(deployment), Objects::trigger),
            stateful_sets: builder.with_helm_fields(
                "statefulsets",
                helms.clone(),
                managed(stateful_set),
                Objects::trigger,
            ),
            parts: [
                (
                    "ConfigMap",
                    builder.with_helm_fields("configmaps", helms.clone(), part::<ConfigMap>, Objects::trigger),
                ),
                ("Service", builder.with_helm_fields("services", helms.clone(), part::<Service>, Objects::trigger)),
                ("Ingress", builder.with_helm_fields("ingresses", helms.clone(), part::<Ingress>, Objects::trigger)),
                (
                    "NetworkPolicy",
                    builder.with_helm_fields("networkpolicies", helms.clone(), part::<NetworkPolicy>, Objects::trigger),
                ),
                (
                    "PodDisruptionBudget",
                    builder.with_helm_fields(
                        "poddisruptionbudgets",
                        helms,
                        part::<PodDisruptionBudget>,
                        Objects::trigger,
                    ),
                ),
            ],
            backups: builder.all("clientappbackups", watcher::Config::default(), backup, Objects::trigger),
            refusals: builder.warnings(warnings::of_refused_pods(), job_refused),
            accounts: builder.all("serviceaccounts", deployers.clone(), account, deployer_changed),
            bindings: builder.all("rolebindings", deployers, binding, deployer_changed),
            databases: database::all().map(|provider| (provider.kind(), provider.watch(&builder))).collect(),
            apps,
        })
    }

    /// Returns once every cache holds a complete list; a decision before that would see only part of the state.
    pub(crate) async fn synced(&self) {
        let Watches {
            apps,
            secrets,
            deployments,
            stateful_sets,
            config_maps,
            parts: _,
            claims,
            // Warnings are only quoted, so nothing waits for them.
            refusals: _,
            backups,
            accounts,
            bindings,
            databases,
        } = self;
        // The writer lives as long as the controller, which waits here.
        let _ = apps.store.wait_until_ready().await;
        secrets.synced().await;
        deployments.synced().await;
        stateful_sets.synced().await;
        config_maps.synced().await;
        claims.synced().await;
        backups.synced().await;
        accounts.synced().await;
        bindings.synced().await;
        for DatabaseCaches { objects, backups, parts, endpoints, warnings: _ } in databases.values() {
            if let Some(endpoints) = endpoints {
                endpoints.synced().await;
            }
            objects.synced().await;
            if let Some(backups) = backups {
                backups.synced().await;
            }
            for part in parts {
                part.objects.synced().await;
            }
        }
    }

    pub(crate) fn of(&self, provider: &dyn Provider) -> &DatabaseCaches {
        &self.databases[&provider.kind()]
    }

    pub(crate) fn database(&self, provider: &dyn Provider, database: &Key) -> Option<DatabaseObject> {
        self.of(provider).objects.objects.get(database)
    }

    /// Returns the release's Deployments and StatefulSets.
    pub(crate) fn workloads(&self, release: &Key) -> Vec<Workload> {
        let deployments = self.deployments.group(release).into_iter();
        deployments.chain(self.stateful_sets.group(release)).map(|(_, workload)| workload).collect()
    }

    /// Returns why the pods of a workload or Job were last refused, unless that was before `since`.
    pub(crate) fn refusal(
        &self,
        namespace: &str,
        (kind, name): (&str, &str),
        since: Option<Timestamp>,
    ) -> Option<String> {
        warnings::refusal(&self.refusals, &warnings::group(namespace, kind, name), since)
    }

    /// Returns which Job, such as a hook, that seems to be the release's was refused its pods since then, and why.
    pub(crate) fn refused_job(&self, release: &Key, since: Timestamp) -> Option<String> {
        warnings::refused_job(&self.refusals, release, since)
    }

    /// Returns true if an object of a watched kind exists with Helm's marks for this release; a Secret is found by name alone.
    /// A kind that is not watched yet, or cannot be, counts as existing.
    pub(crate) fn has(&self, release: &Key, kind: &str, name: &str) -> bool {
        let key = Key::new(&release.namespace, name);
        match kind {
            "Secret" => self.secrets.get(&key).is_some(),
            "Deployment" => self.deployments.is_of(&key, release),
            "StatefulSet" => self.stateful_sets.is_of(&key, release),
            _ => self
                .parts
                .iter()
                .any(|(part, parts)| *part == kind && (!parts.is_synced() || parts.is_of(&key, release))),
        }
    }

    /// Returns which fields helm manages of the release's objects of the watched kinds except Secrets, as a digest for each.
    pub(crate) fn managed(&self, release: &Key) -> BTreeMap<(&'static str, String), u64> {
        let workloads = self.workloads(release).into_iter();
        let workloads = workloads.map(|workload| ((workload.kind, workload.name), workload.helms));
        let parts = self
            .parts
            .iter()
            .flat_map(|(kind, parts)| parts.group(release).into_iter().map(|(key, helms)| ((*kind, key.name), helms)));
        workloads.chain(parts).collect()
    }

    /// Returns the version of an object with values.
    pub(crate) fn version(&self, kind: ValuesKind, name: &Key) -> Option<String> {
        match kind {
            ValuesKind::Secret => self.secrets.get(name).map(|found| found.resource_version),
            ValuesKind::ConfigMap => self.config_maps.get(name).map(Into::into),
        }
    }

    pub(crate) fn claims(&self, namespace: &str) -> Vec<Arc<ObjectMeta>> {
        self.claims.in_namespace(namespace)
    }

    pub(crate) fn backups(&self, app: &Key) -> Vec<AppBackup> {
        self.backups.group(app).into_iter().map(|(_, backup)| backup).collect()
    }

    pub(crate) fn deployer(&self, namespace: &str) -> Deployer {
        let name = Key::new(namespace, DEPLOYER);
        Deployer { account: self.accounts.get(&name), binding: self.bindings.get(&name) }
    }

    pub(crate) fn revisions(&self, release: &Key) -> Vec<(String, RevisionMeta)> {
        let secrets = self.secrets.group(release).into_iter();
        secrets.filter_map(|(key, secret)| Some((key.name, secret.revision?))).collect()
    }
}

/// Returns true if `spec.valuesFrom` of an app names an object.
fn has_values_from(app: &Guard<ClientApp>, kind: ValuesKind, name: &str) -> bool {
    let named = |reference: &ValuesReference| reference.kind == kind && reference.name == name;
    app.object.as_ref().is_ok_and(|app| app.spec.values_from.iter().any(named))
}

fn config_map_changed(apps: &Objects<ClientApp>, map: &Key) {
    apps.trigger_in(&map.namespace, |app| has_values_from(app, ValuesKind::ConfigMap, &map.name));
}

/// For a Secret that stores a release, `secret` is the release's name; otherwise it is the name of a Secret that an app creates
/// or waits for, or that is part of its release.
fn secret_changed(apps: &Objects<ClientApp>, secret: &Key) {
    apps.trigger_in(&secret.namespace, |app| {
        let key = key_of(app);
        let status = app.object.as_ref().ok().and_then(|app| app.status.as_ref());
        let inventory = status.and_then(|status| status.inventory.as_ref());
        let of_release = |object: &ReleaseObject| object.kind == "Secret" && object.name == secret.name;
        let spec = app.object.as_ref().ok().map(|app| &app.spec);
        let given = spec.and_then(|spec| spec.admin_secret.as_ref());
        let external = spec.and_then(|spec| spec.postgres.external.as_ref()).map(|external| &external.secret_name);
        let archives = spec.and_then(|spec| spec.persistence.backup.as_ref());
        let repository =
            archives.and_then(|backup| backup.store.bucket.password_secret.as_ref()).map(|secret| &secret.name);
        let tls = spec.and_then(|spec| spec.tls.as_ref()).and_then(|tls| tls.secret_name.as_ref());
        let is_of_database = |name: &String| database::all().any(|provider| provider.secret(name) == secret.name);
        // A Profile may name it.
        let of_profile = status.and_then(|status| status.tls_secret_name.as_ref());
        key.name == secret.name
            || [given, external, repository, tls, of_profile].contains(&Some(&secret.name))
            || [key.admin_secret(), key.redis_secret(), key.tls_secret()].contains(&secret.name)
            || database::names_of(app).iter().any(is_of_database)
            || inventory.is_some_and(|inventory| inventory.objects.iter().any(of_release))
            || has_values_from(app, ValuesKind::Secret, &secret.name)
    });
}

/// Triggers apps of a claim: a deletion may wait for it to be gone, archives are of the claims that exist, and each claim of a
/// release is put on record, and must not be lost.
fn claim_changed(apps: &Objects<ClientApp>, claim: &Key) {
    let concerns = |app: &ClientApp| app.spec.persistence.backup.is_some() || owned::has_claim(app, &claim.name);
    apps.trigger_in(&claim.namespace, |app| {
        app.metadata.deletion_timestamp.is_some() || app.object.as_ref().is_ok_and(concerns)
    });
}

/// Returns a backup of an app; those of a Postgresql are of no interest here.
fn backup(backup: Guard<ClientAppBackup>) -> CacheEntry<AppBackup> {
    let (key, meta) = (key_of(&backup), &backup.metadata);
    let Ok(found) = &backup.object else { return CacheEntry { key, group: None, value: None } };
    let (of, status) = (&found.spec.of, found.status.clone().unwrap_or_default());
    let is_of_app = of.kind == BackupSubjectKind::ClientApp;
    let stalled = find(&status.conditions, STALLED).filter(|_| status.phase == Some(BackupPhase::Failed));
    let view = AppBackup {
        name: key.name.clone(),
        uid: meta.uid.clone().unwrap_or_default(),
        created: meta.creation_timestamp.as_ref().map(|at| at.0),
        // Those that the API makes for users have an owner as well, but no controller.
        controller: controller_uid(found),
        deleting: meta.deletion_timestamp.is_some(),
        parts: status.parts.or(found.spec.parts.clone()),
        phase: status.phase,
        subject_uid: status.subject_uid,
        started_at: status.started_at,
        database_at: status.database.and_then(|made| made.completed_at),
        files: status.files,
        failure: stalled.map(|stalled| (stalled.last_transition_time.clone(), stalled.message.clone())),
    };
    let group = Key::new(&key.namespace, &of.name);
    CacheEntry { key, group: Some(group), value: is_of_app.then_some(view) }
}

/// Triggers the app: while helm waits for a hook, nothing else changes that would show that its pods are refused.
fn job_refused(apps: &Objects<ClientApp>, warned: &Key) {
    let Some(("Job", job)) = warned.name.split_once('/') else { return };
    let is_upgrading = |app: &ClientApp| {
        find(app.conditions(), RECONCILING).is_some_and(|found| found.reason == Reason::Upgrading.as_str())
    };
    apps.trigger_in(&warned.namespace, |app| {
        warnings::seems_of(job, &app.name_any()) && app.object.as_ref().is_ok_and(is_upgrading)
    });
}

/// helm acts as the deployer for all apps of the namespace.
fn deployer_changed(apps: &Objects<ClientApp>, deployer: &Key) {
    apps.trigger_in(&deployer.namespace, |_| true);
}

fn account(account: PartialObjectMeta<ServiceAccount>) -> CacheEntry<deployer::DeployerObject> {
    CacheEntry { key: key_of(&account), group: None, value: Some(deployer::account(&account)) }
}

fn binding(binding: RoleBinding) -> CacheEntry<deployer::DeployerObject> {
    CacheEntry { key: key_of(&binding), group: None, value: Some(deployer::binding(&binding)) }
}

fn claim(claim: PartialObjectMeta<PersistentVolumeClaim>) -> CacheEntry<Arc<ObjectMeta>> {
    let key = key_of(&claim);
    let meta = ObjectMeta { managed_fields: None, ..claim.metadata };
    CacheEntry { key, group: None, value: Some(Arc::new(meta)) }
}

fn deployment(deployment: Deployment) -> CacheEntry<Workload> {
    let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = deployment.status.clone().unwrap_or_default();
    let condition = |type_: &str| status.conditions.iter().flatten().find(move |condition| condition.type_ == type_);
    // For example, a quota that is used up.
    let refused = condition("ReplicaFailure").filter(|condition| condition.status == "True");
    let stuck =
        condition("Progressing").filter(|condition| condition.reason.as_deref() == Some("ProgressDeadlineExceeded"));
    // A condition of an earlier generation says nothing about this one.
    let is_stuck = stuck.is_some() && deployment.metadata.generation == status.observed_generation;
    let waiting = rollout(
        deployment.metadata.generation,
        status.observed_generation,
        wanted,
        status.updated_replicas.unwrap_or(0),
        status.available_replicas.unwrap_or(0),
    )
    // The available replica may be an old one, which stays until a new one is available.
    .or_else(|| {
        let old = status.replicas.unwrap_or(0) - status.updated_replicas.unwrap_or(0);
        (old > 0).then(|| format!("{old} old replicas serve until new ones are available"))
    })
    .map(|waiting| match (refused, stuck) {
        (None, Some(_)) => format!("{waiting}, and no progress within its deadline"),
        _ => waiting,
    });
    let selector = deployment.spec.as_ref().map(|spec| &spec.selector);
    let mut entry = workload("Deployment", &deployment, selector, (wanted, waiting));
    if let Some(workload) = &mut entry.value {
        workload.stuck = is_stuck && workload.waiting.is_some();
        workload.refused = refused.and_then(|refused| refused.message.as_deref()).map(pods::tidy);
    }
    entry
}

fn stateful_set(set: StatefulSet) -> CacheEntry<Workload> {
    let wanted = set.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
    let status = set.status.clone().unwrap_or_default();
    let updated = match set.spec.as_ref().is_none_or(pods::replaces_pods) {
        true => status.updated_replicas.unwrap_or(0),
        false => wanted,
    };
    let waiting = rollout(
        set.metadata.generation,
        status.observed_generation,
        wanted,
        updated,
        status.available_replicas.unwrap_or(0),
    );
    let mut entry = workload("StatefulSet", &set, set.spec.as_ref().map(|spec| &spec.selector), (wanted, waiting));
    if let Some(workload) = &mut entry.value {
        workload.rollout = pods::rollout(&set);
    }
    entry
}

/// Returns why a rollout is not complete, in the terms of `kubectl rollout status`.
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

fn workload<K: Resource>(
    kind: &'static str,
    object: &K,
    selector: Option<&LabelSelector>,
    (replicas, waiting): (i32, Option<String>),
) -> CacheEntry<Workload> {
    // An object that Helm manages without the name of its release cannot be filed, and is not an app's.
    let group = release_of(object.meta());
    let workload = || Workload {
        kind,
        name: object.name_any(),
        waiting,
        refused: None,
        uid: object.uid().unwrap_or_default(),
        generation: object.meta().generation.unwrap_or_default(),
        version: version(object.meta()),
        replicas,
        selector: selector.and_then(pods::selector),
        stuck: false,
        rollout: None,
        helms: 0,
    };
    CacheEntry { key: key_of(object), value: group.is_some().then(workload), group }
}

fn config_map(map: PartialObjectMeta<ConfigMap>) -> CacheEntry<Box<str>> {
    CacheEntry { key: key_of(&map), group: None, value: Some(map.resource_version().unwrap_or_default().into()) }
}

fn part<K: Resource>(
    WithoutManagedFields { object, helm_fields_digest: helms }: WithoutManagedFields<PartialObjectMeta<K>>,
) -> CacheEntry<u64> {
    let group = release_of(&object.metadata);
    CacheEntry { key: key_of(&object), value: group.is_some().then_some(helms), group }
}

/// Returns the entry of a workload, with which of its fields helm manages.
fn managed<K>(entry: fn(K) -> CacheEntry<Workload>) -> impl Fn(WithoutManagedFields<K>) -> CacheEntry<Workload> {
    move |WithoutManagedFields { object, helm_fields_digest: helms }| {
        let mut entry = entry(object);
        if let Some(workload) = &mut entry.value {
            workload.helms = helms;
        }
        entry
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::clientapp::spec::names::{RELEASE_NAME, RELEASE_NAMESPACE};

    fn deployment_with(status: Value) -> Workload {
        let object = json!({
            "metadata": {
                "name": "acme", "namespace": "tenants", "generation": 2,
                "annotations": {RELEASE_NAME: "acme", RELEASE_NAMESPACE: "tenants"},
            },
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "acme"}}, "template": {}},
            "status": status,
        });
        deployment(serde_json::from_value(object).unwrap()).value.unwrap()
    }

    #[test]
    fn a_deployment_that_makes_no_progress_is_stuck() {
        for (available, reason, expected) in [
            (0, "ProgressDeadlineExceeded", true),
            (0, "ReplicaSetUpdated", false),
            (1, "ProgressDeadlineExceeded", false),
        ] {
            let workload = deployment_with(json!({
                "observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "availableReplicas": available,
                "conditions": [{"type": "Progressing", "status": "False", "reason": reason}],
            }));
            assert_eq!((workload.stuck, workload.selector.as_deref()), (expected, Some("app=acme")), "{reason}");
        }
    }

    #[test]
    fn a_deployment_is_ready_when_its_rollout_is_complete() {
        let status = |observed: i64, replicas: i32, updated: i32, available: i32| {
            json!({
                "observedGeneration": observed, "replicas": replicas, "updatedReplicas": updated,
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
            assert_eq!(deployment_with(status.clone()).waiting.as_deref(), expected, "{status}");
        }
    }
}
