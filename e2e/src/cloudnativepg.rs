//! CloudNativePG, played: its definitions, and that of its plugin barman-cloud, are real, and what its operator, its instances and their Jobs write is written in their
//! place, as version 1.30 was seen to write it on a node. Its own operator is not run: it connects to the addresses of pods, and those that
//! kwok gives to them are anywhere.

use anyhow::{Context as _, Result};
use clientapp_crd::cloudnativepg::{
    BACKUP_CRD_NAME, BarmanObjectStore, CRD_NAME, CloudNativePgBackup, CloudNativePgCluster, CloudNativePgPooler,
    POOLER_CRD_NAME, POOLER_LABEL, SCHEDULE_CRD_NAME,
};
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::lab::Tenant;
use crate::percona::define as define_one;
use crate::progress::Progress;
use crate::tools::Extra;
use crate::wait::{TIMEOUT, within};

/// Creates the definitions of clusters and backups, and waits until such objects can be created.
pub async fn define(client: &Client) -> Result<()> {
    let definitions = Extra::CloudNativePg.definitions(&Progress::stderr())?;
    for name in [BACKUP_CRD_NAME, SCHEDULE_CRD_NAME, POOLER_CRD_NAME, CRD_NAME] {
        let found = definitions.iter().find(|definition| definition.name_any() == name);
        define_one(&Api::all(client.clone()), found.with_context(|| format!("the module has no {name}"))?).await?;
    }
    Ok(())
}

/// Creates the definition of the plugin, as its installation does.
pub async fn define_plugin(client: &Client) -> Result<()> {
    for definition in Extra::BarmanCloud.definitions(&Progress::stderr())? {
        define_one(&Api::all(client.clone()), &definition).await?;
    }
    Ok(())
}

/// Writes what the operator and the instance of a cluster would.
#[derive(Clone, Copy)]
pub struct Played<'a> {
    pub tenant: &'a Tenant,
    pub name: &'a str,
}

impl Played<'_> {
    fn labels(&self) -> Value {
        json!({"cnpg.io/cluster": self.name})
    }

    async fn cluster(&self) -> CloudNativePgCluster {
        let is_there = |cluster: Option<&CloudNativePgCluster>| cluster.cloned();
        self.tenant.wait_for(self.name, "created", is_there).await
    }

    async fn create<K>(&self, name: &str, labels: Value, more: Value) -> Result<()>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
        K: Clone + std::fmt::Debug + DeserializeOwned + Serialize,
    {
        // Without `blockOwnerDeletion` (`pkg/utils/ownership.go`, `SetAsOwnedBy`).
        let owner = self.cluster().await.controller_owner_ref(&()).context("the cluster is stored")?;
        let owner = json!({"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid, "controller": true});
        let mut object = json!({"metadata": {"name": name, "labels": labels, "ownerReferences": [owner]}});
        object.as_object_mut().context("it is a map")?.extend(more.as_object().cloned().unwrap_or_default());
        self.tenant.api::<K>().create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Ok(())
    }

    /// Makes what appears within tenths of a second: credentials, Services, the volume, and the Job that creates the database, none of
    /// whose pods is scheduled. The cluster then says of itself that it is bootstrapped.
    ///
    /// # Errors
    /// The API server refuses one of them.
    pub async fn begin(&self) -> Result<()> {
        let name = self.name;
        let (host, port) = (format!("{name}-rw"), "5432");
        let credentials = json!({"type": "kubernetes.io/basic-auth", "stringData": {
            "username": "clientapp", "user": "clientapp", "password": "generated", "dbname": "clientapp", "host": host, "port": port,
        }});
        self.create::<Secret>(&format!("{name}-app"), self.labels(), credentials).await?;
        self.create::<Secret>(&format!("{name}-ca"), json!({}), json!({})).await?;
        let ports = json!({"ports": [{"port": 5432}]});
        self.create::<Service>(&host, self.labels(), json!({"spec": ports})).await?;
        let claim = json!({"spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
        self.create::<PersistentVolumeClaim>(&format!("{name}-1"), self.labels(), claim).await?;
        let pod = json!({
            "schedulerName": "nobody", "restartPolicy": "Never",
            "containers": [{"name": "initdb", "image": "ghcr.io/cloudnative-pg/postgresql:17"}],
        });
        let template = json!({"metadata": {"labels": self.labels()}, "spec": pod});
        let job = json!({"spec": {"template": template}});
        self.create::<Job>(&format!("{name}-1-initdb"), self.labels(), job).await?;
        self.reports("Setting up primary", &format!("Creating primary instance {name}-1"), false, json!({})).await
    }

    /// Lets the image of the Job's pod not be pulled, which the cluster does not say.
    ///
    /// # Errors
    /// The Job's pod does not come, or cannot be written.
    pub async fn cannot_pull(&self) -> Result<()> {
        let pods = self.tenant.api::<Pod>();
        let of_job = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={}-1-initdb", self.name));
        let pod = within(TIMEOUT, "the Job's pod", async || {
            let pods = pods.list(&of_job).await.ok()?;
            pods.items.into_iter().next()
        });
        let state = json!({"waiting": {"reason": "ErrImagePull", "message": "not found"}});
        let container = json!({
            "name": "initdb", "image": "ghcr.io/cloudnative-pg/postgresql:17", "imageID": "", "ready": false,
            "restartCount": 0, "state": state,
        });
        let status = Patch::Merge(json!({"status": {"phase": "Pending", "containerStatuses": [container]}}));
        pods.patch_status(&pod.await?.name_any(), &PatchParams::default(), &status).await?;
        Ok(())
    }

    /// Reports that it can be used.
    ///
    /// # Errors
    /// The API server refuses it.
    pub async fn is_healthy(&self) -> Result<()> {
        let primary = format!("{}-1", self.name);
        let more = json!({"readyInstances": 1, "currentPrimary": primary, "pgDataImageInfo": {"image": "i", "majorVersion": 17}});
        self.reports("Cluster in healthy state", "", true, more).await
    }

    /// Reports that it has no pods: everything else stays as it was.
    ///
    /// # Errors
    /// The API server refuses it.
    pub async fn is_hibernated(&self) -> Result<()> {
        self.reports("Cluster in healthy state", "", true, json!({"readyInstances": null})).await
    }

    /// Reports that the store cannot be reached, which leaves the cluster ready and healthy.
    ///
    /// # Errors
    /// The API server refuses it.
    pub async fn cannot_archive(&self) -> Result<()> {
        let why =
            "rpc error: code = Unknown desc = unexpected failure invoking barman-cloud-wal-archive: exit status 2";
        let more = |found: &CloudNativePgCluster| {
            let mut conditions = json!(found.status.clone().unwrap_or_default().conditions);
            let failing = json!({
                "type": "ContinuousArchiving", "status": "False", "reason": "ContinuousArchivingFailing", "message": why,
                "lastTransitionTime": "2026-01-31T04:00:00Z",
            });
            if let Some(conditions) = conditions.as_array_mut() {
                conditions.push(failing);
            }
            conditions
        };
        let conditions = more(&self.cluster().await);
        let patch = Patch::Merge(json!({"status": {"conditions": conditions}}));
        self.tenant.api::<CloudNativePgCluster>().patch_status(self.name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Lets the plugin make a backup, and list it in the store.
    ///
    /// # Errors
    /// The API server refuses it.
    pub async fn completes(&self, backup: &str) -> Result<()> {
        let cluster = self.cluster().await;
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let status = json!({
            "phase": "completed", "backupId": "20260131T030000", "method": "plugin", "startedAt": now, "stoppedAt": now,
            "pluginMetadata": {"clusterUID": cluster.uid()},
        });
        self.backup_is(backup, status).await?;
        let archive = cluster.archive().context("the cluster archives")?;
        let window = json!({archive.server: {"firstRecoverabilityPoint": now, "lastSuccessfulBackupTime": now}});
        let patch = Patch::Merge(json!({"status": {"serverRecoveryWindow": window}}));
        let stores = self.tenant.api::<BarmanObjectStore>();
        stores.patch_status(&archive.store, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Writes the status of a backup.
    ///
    /// # Errors
    /// The API server refuses it.
    pub async fn backup_is(&self, backup: &str, status: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"status": status}));
        self.tenant.api::<CloudNativePgBackup>().patch_status(backup, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Makes the Service of the Pooler, as soon as that is there, and says whether one of its pods is ready.
    ///
    /// # Errors
    /// The API server refuses one of them.
    pub async fn pooler_answers(&self, ready: bool) -> Result<()> {
        let name = format!("{}-pooler", self.name);
        let is_there = |pooler: Option<&CloudNativePgPooler>| pooler.cloned();
        let pooler = self.tenant.wait_for(&name, "created", is_there).await;
        let owner = pooler.controller_owner_ref(&()).context("the Pooler is stored")?;
        let metadata = |name: &str, labels: Value| json!({"name": name, "labels": labels, "ownerReferences": [owner]});
        let apply = PatchParams::apply("cloudnative-pg").force();
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": metadata(&name, json!({POOLER_LABEL: name})),
            "spec": {"ports": [{"name": "pgbouncer", "port": 5432}]},
        });
        self.tenant.api::<Service>().patch(&name, &apply, &Patch::Apply(&service)).await?;
        let labels = json!({POOLER_LABEL: name, "kubernetes.io/service-name": name});
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata(&format!("{name}-1"), labels),
            "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"], "conditions": {"ready": ready}}],
            "ports": [{"name": "pgbouncer", "port": 5432}],
        });
        self.tenant.api::<EndpointSlice>().patch(&format!("{name}-1"), &apply, &Patch::Apply(&slice)).await?;
        Ok(())
    }

    async fn reports(&self, phase: &str, reason: &str, ready: bool, more: Value) -> Result<()> {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let condition = |kind: &str, status: bool, reason: &str, message: &str| {
            let status = if status { "True" } else { "False" };
            json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": now})
        };
        let ready = match ready {
            true => condition("Ready", true, "ClusterIsReady", "Cluster is Ready"),
            false => condition("Ready", false, "ClusterIsNotReady", "Cluster Is Not Ready"),
        };
        let initialized = condition("Initialized", true, "BootstrapCompleted", "Cluster has been bootstrapped");
        let mut status = json!({"phase": phase, "phaseReason": reason, "conditions": [ready, initialized]});
        status.as_object_mut().context("it is a map")?.extend(more.as_object().cloned().unwrap_or_default());
        let patch = Patch::Merge(json!({"status": status}));
        self.cluster().await;
        self.tenant.api::<CloudNativePgCluster>().patch_status(self.name, &PatchParams::default(), &patch).await?;
        Ok(())
    }
}
