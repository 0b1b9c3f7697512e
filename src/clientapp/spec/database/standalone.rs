//! Databases of this operator's own kind Postgresql. **Pure.**

use kube::{
    CustomResourceExt as _, ResourceExt as _,
    api::{ApiResource, DynamicObject},
};
use serde_json::{Value, json};

use super::{
    object::{DatabaseObject, DatabaseState, changed},
    provider::{DatabaseCaches, Provider, ProviderInfo, Summary},
    request::{BackupTargets, DatabaseRequest, USER, document},
};
use crate::{
    config::Config,
    crd::{
        ClientApp, DeletionPolicy, Phase, Postgres, PostgresProvider, Postgresql,
        conditions::{Verdict, find, kind},
        label, quantity,
        reason::BACKED_UP,
    },
    deletion::database_kind::DatabaseKind,
    platform::watch_builder::WatchBuilder,
    postgresql::{desired::VERSIONS, names},
};

static FACTS: ProviderInfo = ProviderInfo {
    name: PostgresProvider::Standalone,
    title: "this operator",
    kind: DatabaseKind {
        name: "Postgresql",
        resource: || ApiResource::erase::<Postgresql>(&()),
        delete_with_data: |_| Some(json!({"spec": {"deletionPolicy": DeletionPolicy::Delete}})),
        retain_data: |_, patch| patch["spec"] = json!({"deletionPolicy": DeletionPolicy::Retain}),
        unowned_dependents: None,
    },
    owners: &["Postgresql"],
    backups: None,
    volume_label: label::POSTGRESQL,
    names_volume: names::is_claim,
    deletes_by_label: None,
    // A Postgresql itself labels the data that it leaves.
    reuses_leftovers: false,
    data_goes_with_object: None,
    to_restore: "restore it under this name and hand it over",
    to_install: "apply the operator's crds/",
    to_report: |_| "see this operator's log for what its controller lacks".to_owned(),
    log: "this operator's log",
    to_change_version: "another major version cannot read its files; set the field back, or restore a dump into a new ClientApp",
};

pub(super) struct Standalone;

impl Provider for Standalone {
    fn info(&self) -> &'static ProviderInfo {
        &FACTS
    }

    fn secret(&self, database: &str) -> String {
        names::client_secret(database)
    }

    fn secrets(&self, database: &str) -> Vec<String> {
        vec![self.secret(database), names::credentials(database)]
    }

    fn service(&self, _postgres: &Postgres, database: &str) -> String {
        names::primary(database)
    }

    fn version_error(&self, version: &str, _config: &Config) -> Option<String> {
        (!VERSIONS.contains(&version)).then(|| "the provider standalone has PostgreSQL 14 to 18".to_owned())
    }

    /// Its own policy is always `Retain`, so that a Postgresql that is deleted by mistake keeps its data. The app's teardown
    /// changes the policy before it deletes the Postgresql on purpose.
    fn document(&self, request: &DatabaseRequest, _room: &BackupTargets) -> Value {
        let DatabaseRequest { app, postgres, .. } = request;
        let mut spec = json!({
            "defaultUser": USER,
            "name": USER,
            "version": postgres.version,
            "storageSize": postgres.storage_size,
            "replicas": postgres.instances,
            "deletionPolicy": DeletionPolicy::Retain,
        });
        if let Some(class) = &postgres.storage_class_name {
            spec["storageClassName"] = json!(class);
        }
        if let Some(backup) = &postgres.backup {
            spec["backup"] = json!(backup);
        }
        if let Some(restore) = &postgres.restore {
            spec["restore"] = json!(restore);
        }
        if let Some(resources) = &postgres.resources {
            spec["resources"] = json!(resources);
        }
        if !postgres.parameters.is_empty() {
            spec["parameters"] = json!(postgres.parameters);
        }
        if let Some(tls) = &postgres.tls {
            spec["tls"] = json!(tls);
        }
        document(&(FACTS.kind.resource)(), app, &app.database(), spec)
    }

    fn isolate(&self, document: &mut Value) {
        document["spec"]["networkPolicy"] = json!({});
    }

    fn watch(&self, builder: &WatchBuilder<'_, ClientApp>) -> DatabaseCaches {
        let crd = Postgresql::crd_name();
        DatabaseCaches {
            objects: builder.optional(crd, |guard| DatabaseObject::entry(&guard, read), changed),
            backups: None,
            parts: Vec::new(),
            // Its phase is Up only while the pod behind its Service is ready.
            endpoints: None,
            warnings: None,
        }
    }

    fn deleting(&self, database: &str, state: Option<DatabaseState>) -> String {
        let why = match state {
            Some(DatabaseState::Waiting(why) | DatabaseState::Stalled(why)) => why,
            _ => " with its volumes and Secrets".to_owned(),
        };
        format!("waiting for Postgresql {database} to be gone{why}")
    }

    fn summary(&self, object: &DynamicObject) -> Summary {
        let at = |path: &str| object.data.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let state = at("/status/phase");
        Summary {
            is_ready: state.as_deref() == Some("Up"),
            state,
            version: at("/status/version"),
            parts: at("/status/active/name").map(|pod| (format!("pod {pod}"), None)).into_iter().collect(),
        }
    }
}

fn read(postgresql: &Postgresql, seen: DatabaseObject) -> DatabaseObject {
    let status = postgresql.status.clone().unwrap_or_default();
    let ready = find(&status.conditions, kind::READY);
    let why = ready.map_or_else(|| " is not up".to_owned(), |ready| format!(": {}", ready.message));
    DatabaseObject {
        postgres_version: postgresql.spec.version.parse().ok(),
        storage_bytes: quantity::parse_positive(&postgresql.spec.storage_size),
        storage_class: postgresql.spec.storage_class_name.clone(),
        isolated: postgresql.spec.network_policy.is_some(),
        state: match status.phase {
            None => DatabaseState::NotReported,
            Some(Phase::Up) => DatabaseState::Ready,
            Some(Phase::Pending) => DatabaseState::Waiting(why),
            Some(Phase::Failed) => DatabaseState::Stalled(why),
        },
        backed_up: find(&status.conditions, BACKED_UP).map(|condition| {
            let verdict = Verdict::of(condition);
            Verdict { message: format!("Postgresql {}: {}", postgresql.name_any(), verdict.message), ..verdict }
        }),
        ..seen
    }
}
