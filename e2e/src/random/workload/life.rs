//! Carries out the steps of a life. An **effect**.

pub mod lasting;
pub mod script;
pub mod step;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clientapp_crd::label::{APP, INSTANCE, MANAGED_BY, OPERATOR, POSTGRESQL, POSTGRESQL_UID, RETAINED_FROM};
use clientapp_crd::percona::CLUSTER_LABEL;
use clientapp_crd::{GROUP, PostgresProvider, annotation};
use derive_more::Display;
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{
    Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy,
};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Client, Resource as _, ResourceExt as _};
use serde_json::{Value, json};

use self::step::{
    Cascade, Edit, Helm as HelmDoes, Hostname, Move, Name, Part, Plant, Policy, SOLO, Spec, Step, Then,
    external_secret, given_secret,
};
use crate::helm::Helm;
use crate::random::oracle::audit::Entry;
use crate::random::oracle::ownership::REST;
use crate::random::oracle::ownership::history::{Kind, Time};
use crate::random::oracle::ownership::model::Asked;
use crate::random::oracle::ownership::quiet;
use crate::random::oracle::ownership::recorder::resource;
use crate::random::report::Done;
use crate::random::requests::{MERGE, WHOLE, text};
use crate::random::stage::Found;
use crate::random::world::World;

/// With the name of its release on all objects of a chart.
const INSTANCE_OF_CHART: &str = "app.kubernetes.io/instance";
/// For a request while the API server may be away, and how often it is sent meanwhile.
const ANSWERED: Duration = Duration::from_secs(120);
const AGAIN: Duration = Duration::from_millis(100);
/// The namespace of the apps that show whether the operator has seen all earlier writes.
pub const ECHO: &str = "life-echo";
/// How long a step waits before the life continues anyway.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long to wait for a state that may never come, such as the success of a release that fails again and again.
const SETTLED_WITHIN: Duration = Duration::from_secs(30);

/// A life in progress.
pub struct Life {
    pub world: Arc<World>,
    pub namespace: String,
    /// The requests of its steps.
    pub asked: Asked,
    /// The steps taken so far.
    pub done: Vec<Done<Move>>,
    /// All writes to its namespace that were read so far.
    pub trace: Vec<Entry>,
    /// Of the last change of a spec.
    pub generation: Option<i64>,
    labels: Value,
    client: Client,
    helm: Arc<Helm>,
    echo: String,
    echoes: u32,
}

impl Life {
    /// A life in a namespace, which is created if there is none.
    pub async fn new(world: Arc<World>, namespace: String, made: bool) -> Result<Life> {
        let client = world.client().await?;
        let mut labels = json!({MANAGED_BY: OPERATOR});
        if made {
            labels[INSTANCE] = json!("acme");
        }
        let lab = world.stage.lab;
        let helm = Arc::new(Helm::for_cluster(&lab.tools.helm, &lab.plane.kubeconfig())?);
        let echo = format!("echo-{namespace}");
        let (asked, done, trace, generation) = (Asked::default(), Vec::new(), Vec::new(), None);
        let life = Life { world, namespace, asked, done, trace, generation, labels, client, helm, echo, echoes: 0 };
        life.ensure_namespace().await?;
        Ok(life)
    }

    /// Creates the app that shows whether the operator has seen all earlier writes.
    pub async fn listen(&self) -> Result<()> {
        let namespace = json!({"metadata": {"name": ECHO}});
        let namespaces = Api::<Namespace>::all(self.client.clone());
        match namespaces.create(&PostParams::default(), &serde_json::from_value(namespace)?).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            created => drop(created?),
        }
        let spec = json!({"hostname": self.hostname_of_echo(), "suspend": true});
        let echo = json!({"metadata": {"name": self.echo}, "spec": spec});
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), ECHO, &resource(Kind::App));
        api.create(&PostParams::default(), &object(Kind::App, echo)?).await?;
        Ok(())
    }

    /// Takes a step. A refusal is an outcome.
    pub async fn take(&mut self, moved: &Move) {
        let at = Timestamp::now();
        let outcome = match self.ensure_namespace().await {
            Ok(()) => self.act(&moved.step).await,
            Err(error) => Err(error),
        };
        let outcome = outcome.unwrap_or_else(|error| sentence(&error));
        self.done.push(Done { at, step: moved.clone(), outcome });
        let waited = match moved.then {
            Then::AtOnce => Ok(None),
            Then::Seen => self.seen().await.map(|()| None),
            Then::Settled => self.settled(SETTLED_WITHIN).await,
        };
        let unsettled = waited.unwrap_or_else(|error| Some(format!("{error:#}")));
        if let (Some(unsettled), Some(done)) = (unsettled, self.done.last_mut()) {
            done.outcome += &format!("; not settled: {unsettled}");
        }
    }

    /// Takes a step that cannot be refused, and asks again while the API server is away.
    ///
    /// # Errors
    /// If it is refused to the end.
    pub async fn insist(&mut self, step: Step) -> Result<()> {
        let (at, deadline) = (Timestamp::now(), Instant::now() + ANSWERED);
        // Whether an earlier request may have been applied.
        let mut is_open = false;
        let outcome = loop {
            let error = match self.act(&step).await {
                Ok(outcome) => break outcome,
                Err(error) => error,
            };
            let code = error.downcast_ref().and_then(|error| match error {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            });
            match step {
                // It is put back, or is not there yet.
                Step::Hand(..) => break sentence(&error),
                // The former app was gone, so it is this one, and an answer was lost.
                Step::Create(..) if is_open && code == Some(409) => break "created before".to_owned(),
                Step::Delete(..) if is_open && error.is::<Missing>() => break "deleted before".to_owned(),
                _ if Instant::now() > deadline => return Err(error.context(format!("{step} is refused"))),
                _ => tokio::time::sleep(AGAIN).await,
            }
            is_open |= code.is_none_or(|code| code >= 500) && !error.is::<Missing>();
        };
        self.done.push(Done { at, step: Move { step, then: Then::AtOnce }, outcome });
        Ok(())
    }

    /// Waits until the operator has seen everything that was written before.
    ///
    /// # Errors
    /// On a timeout, which means that no operator leads.
    pub async fn seen(&mut self) -> Result<()> {
        self.echoes += 1;
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), ECHO, &resource(Kind::App));
        let patch = Patch::Merge(json!({"spec": {"values": {"echo": self.echoes}}}));
        let patched = api.patch(&self.echo, &PatchParams::default(), &patch).await?;
        let heard = |world: &World| {
            let record = world.recorder.record();
            let echo = record.present(ECHO, Kind::App, &self.echo)?;
            let observed = echo.last()["status"]["observedGeneration"].as_i64();
            (observed >= patched.metadata.generation).then_some(())
        };
        self.world.until(2 * TIMEOUT, heard).await.context("no operator answers")
    }

    /// Waits until the operator has nothing more to do here. Returns its remaining work if the time is up.
    pub async fn settled(&mut self, within: Duration) -> Result<Option<String>> {
        let deadline = Instant::now() + within;
        loop {
            self.seen().await?;
            let left = deadline.saturating_duration_since(Instant::now());
            let quiet = |_: &World| self.busy().is_none().then_some(());
            if self.world.until(left, quiet).await.is_none() {
                return Ok(self.busy());
            }
            // A controller that is about to act does so before another round is over.
            let before = self.newest();
            self.seen().await?;
            if self.newest() == before && self.busy().is_none() {
                return Ok(None);
            }
        }
    }

    fn busy(&self) -> Option<String> {
        quiet::busy(&self.world.recorder.record(), &self.namespace, &self.asked)
    }

    fn newest(&self) -> Time {
        let record = self.world.recorder.record();
        record
            .of(&self.namespace)
            .into_iter()
            .map(|seen| seen.gone.unwrap_or(seen.versions[seen.versions.len() - 1].0))
            .max()
            .unwrap_or_default()
    }

    fn hostname(&self, name: Name) -> String {
        format!("{name}.{}.example.com", self.namespace)
    }

    fn hostname_of_echo(&self) -> String {
        format!("{}.example.com", self.echo)
    }

    /// The last app may have taken the namespace with it, if the namespace is marked as created by the HTTP API.
    async fn ensure_namespace(&self) -> Result<()> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        if let Some(found) = api.get_opt(&self.namespace).await? {
            if found.metadata.deletion_timestamp.is_none() {
                return Ok(());
            }
            self.namespace_gone(&found.uid().unwrap_or_default()).await?;
        }
        let new = json!({"metadata": {"name": self.namespace, "labels": self.labels}});
        api.create(&PostParams::default(), &serde_json::from_value(new)?).await?;
        Ok(())
    }

    async fn namespace_gone(&self, uid: &str) -> Result<()> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let gone = await_condition(api, &self.namespace, conditions::is_deleted(uid));
        tokio::time::timeout(2 * TIMEOUT, gone).await.context("the namespace is not deleted")??;
        Ok(())
    }

    fn api(&self, kind: Kind) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), &self.namespace, &resource(kind))
    }

    async fn act(&mut self, step: &Step) -> Result<String> {
        match step {
            Step::Create(name, spec) => self.create(name, spec).await,
            Step::Post(name, spec, hostname) => self.post(name, spec, *hostname).await,
            Step::Edit(name, edit) => self.edit(name, *edit).await,
            Step::Delete(name, cascade) => self.delete(Kind::App, name, *cascade).await,
            Step::HttpDelete(name) => self.http_delete(name).await,
            Step::EditOutFinalizers(name) => self.edit_out_finalizers(name).await,
            Step::Hand(name, part) => self.hand(name, *part).await,
            Step::Helm(name, helm) => self.helm(name, *helm).await,
            Step::Plant(name, plant) => self.plant(name, *plant).await,
            Step::ForgeStatus(name) => self.forge_status(name).await,
            Step::ForgeMarks(name) => self.forge_marks(name).await,
            Step::CreateSolo(solo) => {
                let database = json!({"metadata": {"name": SOLO}, "spec": solo.document()});
                self.api(Kind::Postgresql).create(&PostParams::default(), &object(Kind::Postgresql, database)?).await?;
                Ok("created".to_owned())
            }
            Step::FlipSolo(policy) => self.flip_solo(*policy).await,
            Step::DeleteSolo(cascade) => self.delete(Kind::Postgresql, SOLO, *cascade).await,
            Step::DeleteNamespace => self.delete_namespace().await,
        }
    }

    async fn create(&mut self, name: Name, spec: &Spec) -> Result<String> {
        if spec.given_secret {
            let data = json!({"nextcloud-username": "admin", "nextcloud-password": "given"});
            self.plant_secret(&given_secret(name), json!({}), data).await?;
        }
        if spec.provider == Some(PostgresProvider::External) {
            let data = json!({"user": "u", "password": "p", "host": "db.example.com", "dbname": "d"});
            self.plant_secret(&external_secret(name), json!({}), data).await?;
        }
        let app = json!({"metadata": {"name": name}, "spec": spec.document(name, &self.hostname(name))});
        let made = self.api(Kind::App).create(&PostParams::default(), &object(Kind::App, app)?).await?;
        self.generation = None;
        Ok(format!("created, uid {}", made.uid().unwrap_or_default()))
    }

    async fn post(&self, name: Name, spec: &Spec, hostname: Hostname) -> Result<String> {
        let hostname = match hostname {
            Hostname::Own => self.hostname(name),
            Hostname::Taken => self.hostname_of_echo(),
        };
        let body = spec.request(name, &self.namespace, &hostname);
        let request = self.world.http.post(format!("{}/instances", self.world.api.get()));
        let answer = request.json(&body).timeout(TIMEOUT).send().await?;
        let status = answer.status();
        let problem: Value = answer.json().await.unwrap_or_default();
        // The response contains the password, which must not be recorded.
        Ok(format!("{status} {}", problem["detail"].as_str().unwrap_or_default()))
    }

    fn path(&self, kind: Kind, name: &str) -> String {
        format!("{}/{name}", DynamicObject::url_path(&resource(kind), Some(&self.namespace)))
    }

    async fn merge(&self, kind: Kind, name: &str, subresource: &str, patch: String) -> Result<String> {
        let path = self.path(kind, name) + subresource;
        Ok(text(&self.client, Method::PATCH, &path, MERGE, patch).await?)
    }

    async fn edit(&mut self, name: Name, edit: Edit) -> Result<String> {
        let patch = match edit {
            Edit::Undecodable => {
                let deep = format!("{}1{}", r#"{"a":"#.repeat(200), "}".repeat(200));
                format!(r#"{{"spec":{{"values":{{"deep":{deep}}}}}}}"#)
            }
            // Without the confirmation, helm does not run.
            Edit::NoPersistence => {
                let volumes = self.api(Kind::Volume).list_metadata(&ListParams::default()).await?;
                let uids: Vec<_> = volumes.iter().filter_map(|volume| volume.uid()).collect();
                let annotations = json!({annotation::WITHOUT_VOLUME: uids.join(",")});
                json!({"metadata": {"annotations": annotations}, "spec": edit.patch()}).to_string()
            }
            _ => json!({"spec": edit.patch()}).to_string(),
        };
        let patched = self.merge(Kind::App, name, "", patch).await?;
        // That of a spec that is nested too deeply does not matter.
        let patched: Option<Value> = serde_json::from_str(&patched).ok();
        self.generation = patched.and_then(|patched| patched["metadata"]["generation"].as_i64());
        Ok("patched".to_owned())
    }

    async fn flip_solo(&self, policy: Policy) -> Result<String> {
        let patch = json!({"spec": {"deletionPolicy": policy}});
        self.merge(Kind::Postgresql, SOLO, "", patch.to_string()).await?;
        Ok("patched".to_owned())
    }

    /// The uid of the object that currently has this name.
    async fn uid(&self, kind: Kind, name: &str) -> Result<String> {
        let found = self.api(kind).get_metadata_opt(name).await?.and_then(|found| found.uid());
        found.ok_or_else(|| Missing(format!("there is no {kind} {name}")).into())
    }

    async fn delete(&mut self, kind: Kind, name: Name, cascade: Cascade) -> Result<String> {
        let uid = self.uid(kind, name).await?;
        let policy = match cascade {
            Cascade::Background => PropagationPolicy::Background,
            Cascade::Foreground => PropagationPolicy::Foreground,
            Cascade::Orphan => PropagationPolicy::Orphan,
        };
        self.asked.ended.insert(uid.clone());
        let options = json!({"propagationPolicy": policy, "preconditions": {"uid": uid}});
        text(&self.client, Method::DELETE, &self.path(kind, name), WHOLE, options.to_string()).await?;
        Ok(format!("deleted, uid {uid}"))
    }

    async fn http_delete(&mut self, name: Name) -> Result<String> {
        let uid = self.uid(Kind::App, name).await?;
        self.asked.ended.insert(uid);
        let url = format!("{}/instances/{name}?namespace={}", self.world.api.get(), self.namespace);
        let answer = self.world.http.delete(url).timeout(TIMEOUT).send().await?;
        Ok(answer.status().to_string())
    }

    async fn edit_out_finalizers(&mut self, name: Name) -> Result<String> {
        let uid = self.uid(Kind::App, name).await?;
        self.delete(Kind::App, name, Cascade::Background).await?;
        let patch = json!({"metadata": {"uid": uid, "finalizers": null}});
        self.asked.cut.insert(uid.clone());
        let cut = self.merge(Kind::App, name, "", patch.to_string()).await;
        if cut.is_err() {
            // It was gone, and a successor, if there is one, is a different object.
            self.asked.cut.remove(&uid);
        }
        cut.map(|_| "deleted, its finalizers edited out".to_owned())
    }

    /// Deletes an object other than a ClientApp or Postgresql, and records the request.
    async fn delete_by_hand(&mut self, kind: Kind, name: &str) -> Result<String> {
        let uid = self.uid(kind, name).await?;
        self.asked.deleted.insert(uid.clone());
        let this = Preconditions { uid: Some(uid.clone()), resource_version: None };
        let params = DeleteParams { preconditions: Some(this), ..DeleteParams::background() };
        self.api(kind).delete(name, &params).await?;
        Ok(format!("deleted {} {name}, uid {uid}", kind))
    }

    async fn hand(&mut self, name: Name, part: Part) -> Result<String> {
        let there = |kind: Kind, name: &str| {
            self.world.recorder.record().present(&self.namespace, kind, name).map(|seen| (seen.kind, seen.name.clone()))
        };
        let database = if name == SOLO { SOLO.to_owned() } else { format!("{name}-pg") };
        let found = match part {
            Part::AdminSecret => there(Kind::Secret, &format!("{name}-admin-secret")),
            Part::RedisSecret => there(Kind::Secret, &format!("{name}-redis-secret")),
            Part::Database => there(Kind::Cluster, &database).or_else(|| there(Kind::Postgresql, &database)),
            Part::DatabaseSecret => there(Kind::Secret, &format!("{database}-pguser-clientapp"))
                .or_else(|| there(Kind::Secret, &format!("{database}-credentials"))),
            Part::DatabaseVolume => {
                let record = self.world.recorder.record();
                let volumes = record.of(&self.namespace).into_iter().filter(|seen| {
                    seen.kind == Kind::Volume && seen.gone.is_none() && seen.name.contains(&format!("{database}-"))
                });
                volumes.map(|seen| (seen.kind, seen.name.clone())).next()
            }
            Part::Files => there(Kind::Volume, &format!("{name}-nextcloud-nextcloud")),
            Part::ReleaseSecret => {
                let releases = Api::<Secret>::namespaced(self.client.clone(), &self.namespace);
                let params = ListParams::default().labels(&format!("owner=helm,name={name}"));
                let mut listed = releases.list_metadata(&params).await?.items;
                listed.sort_by_key(|secret| secret.labels().get("version").and_then(|text| text.parse::<u32>().ok()));
                listed.last().map(|secret| (Kind::Secret, secret.name_any()))
            }
            Part::Deployment => return self.delete_deployment(name).await,
        };
        let (kind, found) = found.context("there is none")?;
        self.delete_by_hand(kind, &found).await
    }

    async fn delete_deployment(&self, name: Name) -> Result<String> {
        let api = Api::<Deployment>::namespaced(self.client.clone(), &self.namespace);
        let of_app = ListParams::default().labels(&format!("{INSTANCE_OF_CHART}={name}"));
        let found = api.list_metadata(&of_app).await?.items.first().map(|found| found.name_any());
        let found = found.context("there is none")?;
        api.delete(&found, &DeleteParams::background()).await?;
        Ok(format!("deleted Deployment {found}"))
    }

    async fn helm(&self, name: Name, does: HelmDoes) -> Result<String> {
        let chart = self.world.chart().display().to_string();
        let arguments: Vec<&str> = match does {
            HelmDoes::Install => vec!["install", name, &chart, "--set", "persistence.enabled=true"],
            HelmDoes::Upgrade => vec!["upgrade", name, &chart, "--reuse-values", "--set", "podAnnotations.by=hand"],
            HelmDoes::Uninstall => vec!["uninstall", name],
            HelmDoes::UninstallKeepHistory => vec!["uninstall", name, "--keep-history"],
        };
        let arguments: Vec<String> =
            arguments.into_iter().chain(["--namespace", &self.namespace]).map(str::to_owned).collect();
        let helm = self.helm.clone();
        let ran = tokio::task::spawn_blocking(move || helm.run(&arguments)).await??;
        Ok(if ran.success { "done".to_owned() } else { ran.stderr.trim().to_owned() })
    }

    async fn plant(&mut self, name: Name, plant: Plant) -> Result<String> {
        let (database, own) = (format!("{name}-pg"), format!("theirs-{}", self.asked.planted.len()));
        let named = |name: &str, labels: Value| json!({"name": name, "labels": labels});
        let claim = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        let volume = |labels| (Kind::Volume, json!({"metadata": named(&own, labels), "spec": claim}));
        let (kind, document) = match plant {
            Plant::ReleaseVolume => {
                let (kind, mut volume) = volume(json!({INSTANCE_OF_CHART: name, MANAGED_BY: "Helm"}));
                let namespace = &self.namespace;
                volume["metadata"]["annotations"] =
                    json!({"meta.helm.sh/release-name": name, "meta.helm.sh/release-namespace": namespace});
                (kind, volume)
            }
            Plant::InstanceVolume => volume(json!({INSTANCE_OF_CHART: name})),
            Plant::RetainedVolume => volume(json!({RETAINED_FROM: name})),
            Plant::DatabaseVolume => volume(json!({CLUSTER_LABEL: database, POSTGRESQL: database, APP: name})),
            Plant::LabelledSecret => {
                let labels = json!({APP: name, MANAGED_BY: OPERATOR, CLUSTER_LABEL: database, POSTGRESQL: database,
                    "postgres-operator.crunchydata.com/role": "pguser"});
                return self.plant_secret(&own, labels, json!({"password": "theirs"})).await;
            }
            Plant::AdminSecret => {
                let data = json!({"nextcloud-username": "admin", "nextcloud-password": "theirs"});
                return self.plant_secret(&format!("{name}-admin-secret"), json!({}), data).await;
            }
            Plant::Cluster => (Kind::Cluster, json!({"metadata": {"name": database}, "spec": cluster(&claim)})),
            Plant::Postgresql => (Kind::Postgresql, json!({"metadata": {"name": database}, "spec": {}})),
            Plant::Backup => {
                (Kind::Backup, json!({"metadata": {"name": own}, "spec": {"pgCluster": database, "repoName": "repo1"}}))
            }
            Plant::EndpointSlice => {
                let labels = json!({"kubernetes.io/service-name": format!("{database}-pgbouncer")});
                let endpoints = json!([{"addresses": ["10.20.30.40"]}]);
                let metadata = named(&own, labels);
                let slice = json!({"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints, "ports": []});
                (Kind::EndpointSlice, slice)
            }
            Plant::Snapshot => {
                let source = json!({"persistentVolumeClaimName": format!("{name}-nextcloud-nextcloud")});
                (Kind::Snapshot, json!({"metadata": {"name": own}, "spec": {"source": source}}))
            }
        };
        self.planted(kind, document).await
    }

    async fn plant_secret(&mut self, name: &str, labels: Value, data: Value) -> Result<String> {
        // A script may ask for it twice.
        if self.api(Kind::Secret).get_metadata_opt(name).await?.is_some() {
            bail!("Secret {name} already exists");
        }
        self.planted(Kind::Secret, json!({"metadata": {"name": name, "labels": labels}, "stringData": data})).await
    }

    async fn planted(&mut self, kind: Kind, document: Value) -> Result<String> {
        let made = self.api(kind).create(&PostParams::default(), &object(kind, document)?).await?;
        let uid = made.uid().unwrap_or_default();
        self.asked.planted.insert(uid.clone(), version(&made));
        Ok(format!("created {} {}, uid {uid}", kind, made.name_any()))
    }

    /// The planted volumes and Secrets that exist.
    fn plants(&self) -> Vec<(Kind, String, String)> {
        let record = self.world.recorder.record();
        let there = self.asked.planted.keys().filter_map(|uid| record.objects.get(uid));
        let there = there.filter(|seen| seen.gone.is_none() && matches!(seen.kind, Kind::Volume | Kind::Secret));
        there.map(|seen| (seen.kind, seen.name.clone(), seen.uid.clone())).collect()
    }

    async fn forge_status(&mut self, name: Name) -> Result<String> {
        let plants = self.plants();
        let found = self.api(Kind::App).get(name).await?;
        let mut owned = found.data["status"]["owned"].as_array().cloned().unwrap_or_default();
        for (kind, name, uid) in &plants {
            owned.push(json!({"kind": kind.to_string(), "name": name, "uid": uid}));
            self.asked.on_record.insert(uid.clone());
        }
        self.merge(Kind::App, name, "/status", json!({"status": {"owned": owned}}).to_string()).await?;
        Ok(format!("{} objects written into the status", plants.len()))
    }

    async fn forge_marks(&mut self, name: Name) -> Result<String> {
        let app = self.uid(Kind::App, name).await?;
        let plants = self.plants();
        for (kind, object, uid) in &plants {
            let marks = json!({
                "labels": {APP: name, POSTGRESQL_UID: app},
                "annotations": {format!("{GROUP}/clientapp-uid"): app},
            });
            let patch = Patch::Merge(json!({"metadata": marks}));
            let patched = self.api(*kind).patch(object, &PatchParams::default(), &patch).await?;
            self.asked.planted.insert(uid.clone(), version(&patched));
            self.asked.marked.insert(uid.clone());
        }
        Ok(format!("{} objects marked", plants.len()))
    }

    async fn delete_namespace(&mut self) -> Result<String> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        let found = api.get(&self.namespace).await?;
        let deleted = api.delete(&self.namespace, &DeleteParams::default()).await?;
        let version = deleted.left().and_then(|object| object.resource_version()).or(found.resource_version());
        self.asked.namespaces.push(version.and_then(|version| version.parse().ok()).unwrap_or_default());
        self.namespace_gone(&found.uid().unwrap_or_default()).await?;
        self.ensure_namespace().await?;
        Ok("deleted and recreated".to_owned())
    }

    /// Returns the objects without data.
    pub async fn rest(&self) -> Result<Vec<Found>> {
        self.world.stage.listed(Some(&self.namespace), |kind| REST.contains(&kind)).await
    }

    /// Reads the audit log up to now.
    pub async fn audit(&mut self) -> Result<()> {
        let more = self.world.stage.trace(&self.namespace).await?;
        self.trace.extend(more);
        Ok(())
    }
}

/// There is no object of a name.
#[derive(Debug, Display)]
struct Missing(String);

impl std::error::Error for Missing {}

/// A refusal, worded by the API server.
fn sentence(error: &anyhow::Error) -> String {
    match error.downcast_ref() {
        Some(kube::Error::Api(status)) => format!("{} {}", status.code, status.message),
        _ => format!("{error:#}"),
    }
}

fn object(kind: Kind, mut document: Value) -> Result<DynamicObject> {
    let resource = resource(kind);
    document["apiVersion"] = json!(resource.api_version);
    document["kind"] = json!(resource.kind);
    Ok(serde_json::from_value(document)?)
}

fn version(object: &DynamicObject) -> Time {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

/// The minimal spec with which Percona starts.
fn cluster(claim: &Value) -> Value {
    json!({
        "crVersion": "2.9.0",
        "image": "percona/postgres",
        "postgresVersion": 16,
        "instances": [{"name": "instance1", "replicas": 1, "dataVolumeClaimSpec": claim}],
        "users": [{"name": "clientapp", "databases": ["clientapp"]}],
        "backups": {"enabled": false, "pgbackrest": {"image": "percona/pgbackrest"}},
    })
}
