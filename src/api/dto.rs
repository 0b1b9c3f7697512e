//! Requests and responses of the API, as JSON. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use crate::{
    crd::{
        AppTls, ClientApp, ClientAppSpec, ClientAppStatus, DEFAULT_CHART_VERSION, FINALIZER, Guard, InstalledChart,
        Persistence, Postgres, PostgresProvider, Redis,
        conditions::{State, find, kind},
    },
    platform::key::Key,
};

/// An instance to create.
#[derive(Clone, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NewInstance {
    /// DNS name that the app is served under, in lower case. Unique in the cluster.
    #[schema(example = "acme.example.com", max_length = 253)]
    pub(crate) hostname: String,
    /// IngressClass to serve the hostname with. Absent: no Ingress is created.
    #[schema(example = "traefik")]
    pub(crate) ingress_class_name: Option<String>,
    /// Where the certificate of the hostname comes from. Absent: as set by the Profile, otherwise none.
    pub(crate) tls: Option<AppTls>,
    /// Name of the instance, a DNS label of at most 37 characters. Absent: a name is generated.
    #[schema(max_length = 37)]
    pub(crate) name: Option<String>,
    /// Namespace of the instance, created if it does not exist. Absent: a namespace with the name of the instance.
    #[schema(max_length = 63)]
    pub(crate) namespace: Option<String>,
    /// Exact version of the chart.
    #[schema(example = "5.5.2")]
    pub(crate) chart_version: Option<String>,
    /// Name of the Profile to take defaults from.
    pub(crate) profile: Option<String>,
    /// The app's Redis.
    pub(crate) redis: Option<Redis>,
    /// The app's PostgreSQL database.
    pub(crate) postgres: Option<Postgres>,
    /// The volume for the app's files.
    pub(crate) persistence: Option<Persistence>,
}

impl NewInstance {
    /// The ClientApp for this request.
    /// An error never occurs in practice, because all fields are fields of the spec.
    pub(crate) fn app(&self, key: &Key) -> serde_json::Result<ClientApp> {
        let mut spec = serde_json::to_value(self)?;
        spec.as_object_mut().into_iter().for_each(|fields| fields.retain(|_, value| !value.is_null()));
        let mut app = ClientApp::new(&key.name, serde_json::from_value(spec)?);
        app.metadata.namespace = Some(key.namespace.clone());
        // Set from the start: an app that is deleted before the controller has seen it would leave its namespace behind.
        app.metadata.finalizers = Some(vec![FINALIZER.to_owned()]);
        Ok(app)
    }
}

/// A new instance with the administrator's password, which no other response contains. It has no `Debug`, so that nothing prints the
/// password.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Created {
    /// Name of the instance.
    pub(crate) name: String,
    /// Namespace of the instance.
    pub(crate) namespace: String,
    /// DNS name that the app is served under.
    pub(crate) hostname: String,
    /// Secret with the administrator's name and password.
    pub(crate) admin_secret: String,
    /// The administrator's password. Absent in the response to a repeated request, and with `postgres.adopt`: then it is in the Secret
    /// that was retained with the data.
    pub(crate) admin_password: Option<String>,
    /// Version of the chart.
    pub(crate) chart_version: Option<String>,
}

/// Returns the version of an app's chart; `None`: its Profile decides, and nothing is installed yet.
fn chart_version(spec: &ClientAppSpec, installed: Option<&InstalledChart>) -> Option<String> {
    let default = || spec.profile.is_none().then(|| DEFAULT_CHART_VERSION.to_owned());
    spec.chart_version.clone().or_else(|| installed.map(|chart| chart.version.clone())).or_else(default)
}

impl Created {
    pub(crate) fn of(instance: &Instance, admin_password: Option<String>) -> Created {
        let Instance { name, namespace, hostname, admin_secret, chart_version, .. } = instance.clone();
        let admin_secret = admin_secret.unwrap_or_default();
        Created { name, namespace, hostname, admin_secret, admin_password, chart_version }
    }
}

/// A page of instances.
#[skip_serializing_none]
#[derive(Serialize, ToSchema)]
pub(crate) struct InstanceList {
    /// Sorted by namespace and name.
    pub(crate) items: Vec<Instance>,
    /// Present if there are more instances: the value of `continue` for the next page.
    #[serde(rename = "continue")]
    pub(crate) next: Option<String>,
}

/// An instance and its state.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Instance {
    /// Name of the instance.
    pub(crate) name: String,
    /// Namespace of the instance.
    pub(crate) namespace: String,
    /// DNS name that the app is served under; empty if the stored object cannot be decoded.
    pub(crate) hostname: String,
    /// URL of the app, once it is served.
    pub(crate) url: Option<String>,
    /// Version of the chart: the pinned one, else the installed one, else the operator's default; absent if the Profile decides.
    pub(crate) chart_version: Option<String>,
    /// Profile that the instance takes defaults from.
    pub(crate) profile: Option<String>,
    /// Revision of the Profile that the instance has.
    pub(crate) profile_revision: Option<i64>,
    /// Labels of the ClientApp.
    pub(crate) labels: BTreeMap<String, String>,
    /// Time of creation, in RFC 3339 format.
    pub(crate) created: String,
    /// True if the instance is being deleted.
    pub(crate) deleting: bool,
    /// True if the instance is suspended: the operator changes nothing.
    pub(crate) suspended: bool,
    /// Status of the condition Ready: `True`, `False` or `Unknown`.
    pub(crate) ready: String,
    /// Reason of the condition Ready, in one word.
    pub(crate) reason: String,
    /// Message of the condition Ready.
    pub(crate) message: String,
    /// True if work is in progress, or the newest spec has not been processed yet.
    pub(crate) reconciling: bool,
    /// True if a user or a cluster admin has to change something before the operator continues.
    pub(crate) stalled: bool,
    /// Revision of the Helm release.
    pub(crate) revision: Option<i64>,
    /// The Helm release.
    pub(crate) release: Option<InstanceRelease>,
    /// Secret with the administrator's name and password.
    pub(crate) admin_secret: Option<String>,
    /// The app's database.
    pub(crate) database: Database,
    /// All conditions of the ClientApp.
    pub(crate) conditions: Vec<InstanceCondition>,
}

/// A Helm release.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InstanceRelease {
    /// Revision, as in `helm history`.
    pub(crate) revision: i64,
    /// Helm's name for the state of the release.
    pub(crate) status: String,
    /// Name of the chart.
    pub(crate) chart: Option<String>,
    /// Version of the chart.
    pub(crate) chart_version: Option<String>,
    /// Version of the app in the chart.
    pub(crate) app_version: Option<String>,
    /// When the revision was written, in RFC 3339 format.
    pub(crate) deployed_at: Option<String>,
}

/// The database of an instance.
#[skip_serializing_none]
#[derive(Clone, Debug, Default, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Database {
    /// Provider of the database; absent if the instance has none.
    pub(crate) provider: Option<PostgresProvider>,
    /// Name of the database's resource.
    pub(crate) name: Option<String>,
    /// `True`, `False`, `Unknown`, or `None` if the instance has no database.
    pub(crate) ready: String,
    /// Reason of the condition PostgresReady, in one word.
    pub(crate) reason: Option<String>,
    /// Message of the condition PostgresReady.
    pub(crate) message: Option<String>,
}

/// A condition of the ClientApp.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct InstanceCondition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// `True`, `False` or `Unknown`.
    pub(crate) status: String,
    /// Reason for the status, in one word.
    pub(crate) reason: String,
    /// Reason for the status, in a sentence.
    pub(crate) message: String,
    /// Time of the last change of the status, in RFC 3339 format.
    pub(crate) last_transition_time: String,
}

/// An event about an instance.
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub(crate) struct Happened {
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    /// Reason of the event, in one word.
    pub(crate) reason: String,
    /// Description of the event.
    pub(crate) message: String,
    /// Time of the last occurrence, in RFC 3339 format.
    pub(crate) time: String,
    /// Number of occurrences, if more than one.
    pub(crate) count: Option<i32>,
}

impl Instance {
    /// The API's view of a ClientApp, even of one that cannot be decoded.
    pub(crate) fn of(guard: &Guard<ClientApp>) -> Instance {
        match &guard.object {
            Ok(app) => Instance::of_app(&guard.metadata, app),
            Err(problem) => Instance {
                ready: State::False.as_str().to_owned(),
                reason: "InvalidSpec".to_owned(),
                message: format!("the stored object does not decode: {problem}"),
                stalled: true,
                ..Instance::bare(&guard.metadata)
            },
        }
    }

    pub(crate) fn of_app(meta: &ObjectMeta, app: &ClientApp) -> Instance {
        let spec = &app.spec;
        let none = ClientAppStatus::default();
        let status = app.status.as_ref().unwrap_or(&none);
        let holds = |kind| find(&status.conditions, kind).is_some_and(|found| found.status == State::True.as_str());
        let (ready, reason, message) = match find(&status.conditions, kind::READY) {
            Some(ready) => (ready.status.clone(), ready.reason.clone(), ready.message.clone()),
            None => ("Unknown".to_owned(), "Pending".to_owned(), "not seen by the operator yet".to_owned()),
        };
        let own = Instance::bare(meta);
        let generated = || Key::new(&own.namespace, &own.name).admin_secret();
        let admin_secret = status.admin_secret_name.clone().or_else(|| spec.admin_secret.clone());
        Instance {
            hostname: spec.hostname.clone(),
            url: status.url.clone(),
            chart_version: chart_version(spec, status.installed.as_ref()),
            profile: spec.profile.clone(),
            profile_revision: status.profile_revision.as_ref().map(|has| has.revision),
            suspended: spec.suspend,
            ready,
            reason,
            message,
            reconciling: holds(kind::RECONCILING) || status.observed_generation != meta.generation,
            stalled: holds(kind::STALLED),
            revision: status.release.as_ref().map(|release| release.revision),
            release: status.release.as_ref().map(|release| InstanceRelease {
                revision: release.revision,
                status: release.status.clone(),
                chart: release.chart.clone(),
                chart_version: release.chart_version.clone(),
                app_version: release.app_version.clone(),
                deployed_at: release.deployed_at.as_ref().map(|time| time.0.to_string()),
            }),
            admin_secret: Some(admin_secret.unwrap_or_else(generated)),
            database: Database::of(app, status),
            conditions: status.conditions.iter().map(InstanceCondition::of).collect(),
            ..own
        }
    }

    /// The fields that are known from the metadata.
    fn bare(meta: &ObjectMeta) -> Instance {
        Instance {
            name: meta.name.clone().unwrap_or_default(),
            namespace: meta.namespace.clone().unwrap_or_default(),
            labels: meta.labels.clone().unwrap_or_default(),
            created: meta.creation_timestamp.as_ref().map(|time| time.0.to_string()).unwrap_or_default(),
            deleting: meta.deletion_timestamp.is_some(),
            ready: State::Unknown.as_str().to_owned(),
            database: Database { ready: State::Unknown.as_str().to_owned(), ..Database::default() },
            ..Instance::default()
        }
    }

    /// Returns true if it is ready as its newest spec requests, and is not being deleted.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready == State::True.as_str() && !self.reconciling && !self.deleting
    }
}

impl Database {
    fn of(app: &ClientApp, status: &ClientAppStatus) -> Database {
        let condition = find(&status.conditions, kind::POSTGRES_READY);
        let postgres = &app.spec.postgres;
        Database {
            provider: postgres.enabled.then_some(postgres.provider),
            name: status.postgres_cluster_name.clone(),
            ready: match condition {
                _ if !postgres.enabled => "None".to_owned(),
                Some(condition) => condition.status.clone(),
                None => State::Unknown.as_str().to_owned(),
            },
            reason: condition.map(|condition| condition.reason.clone()),
            message: condition.map(|condition| condition.message.clone()),
        }
    }
}

impl InstanceCondition {
    fn of(condition: &Condition) -> InstanceCondition {
        InstanceCondition {
            kind: condition.type_.clone(),
            status: condition.status.clone(),
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            last_transition_time: condition.last_transition_time.0.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn instance(object: Value) -> Value {
        serde_json::to_value(Instance::of(&serde_json::from_value(object).unwrap())).unwrap()
    }

    fn object(spec: Value, status: Value) -> Value {
        json!({
            "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp",
            "metadata": {"name": "acme", "namespace": "tenants", "generation": 1, "creationTimestamp": "2026-01-02T03:04:05Z",
                "labels": {"tier": "gold"}},
            "spec": spec, "status": status,
        })
    }

    #[test]
    fn an_app_that_no_controller_has_seen() {
        assert_eq!(
            instance(object(json!({"hostname": "a.example"}), json!({}))),
            json!({
                "name": "acme", "namespace": "tenants", "hostname": "a.example", "chartVersion": "5.5.2",
                "labels": {"tier": "gold"}, "created": "2026-01-02T03:04:05Z", "deleting": false, "suspended": false,
                "ready": "Unknown", "reason": "Pending", "message": "not seen by the operator yet", "reconciling": true,
                "stalled": false, "adminSecret": "acme-admin-secret",
                "database": {"provider": "percona", "ready": "Unknown"}, "conditions": [],
            })
        );
    }

    #[test]
    fn one_that_is_ready() {
        let condition = |kind: &str, status: &str| {
            json!({"type": kind, "status": status, "reason": "Ready", "message": "fine",
                "lastTransitionTime": "2026-01-02T03:04:05Z"})
        };
        let status = json!({
            "observedGeneration": 1, "url": "https://a.example", "adminSecretName": "mine", "postgresClusterName": "acme-pg",
            "conditions": [condition("Ready", "True"), condition("PostgresReady", "True"), condition("Reconciling", "False")],
            "profileRevision": {"profile": "gold", "revision": 3, "name": "gold-1"},
            "release": {"name": "acme", "namespace": "tenants", "revision": 2, "status": "deployed", "chart": "nextcloud",
                "deployedAt": "2026-01-02T03:04:05Z"},
        });
        let spec = json!({"hostname": "a.example", "profile": "gold", "suspend": true});
        let shown = instance(object(spec, status));
        assert_eq!(shown["release"]["deployedAt"], "2026-01-02T03:04:05Z");
        assert_eq!(shown["conditions"][0], condition("Ready", "True"));
        assert_eq!(
            (&shown["ready"], &shown["reconciling"], &shown["revision"], &shown["suspended"]),
            (&json!("True"), &json!(false), &json!(2), &json!(true))
        );
        assert_eq!((&shown["profile"], &shown["profileRevision"]), (&json!("gold"), &json!(3)));
        assert_eq!(
            shown["database"],
            json!({"provider": "percona", "name": "acme-pg", "ready": "True", "reason": "Ready", "message": "fine"})
        );
    }

    #[test]
    fn one_without_a_database_and_one_that_does_not_decode() {
        let shown = instance(object(json!({"hostname": "a.example", "postgres": {"enabled": false}}), json!({})));
        assert_eq!(shown["database"], json!({"ready": "None"}));
        let shown = instance(object(json!({"hostname": 7}), json!({})));
        assert_eq!((&shown["reason"], &shown["ready"]), (&json!("InvalidSpec"), &json!("False")));
        assert!(shown["message"].as_str().unwrap().contains("spec.hostname"), "{shown}");
    }

    #[test]
    fn a_request_becomes_a_spec() {
        let request: NewInstance =
            serde_json::from_value(json!({"hostname": "a.example", "name": "b", "postgres": {"version": "16"}}))
                .unwrap();
        let app = request.app(&Key::new("c", "d")).unwrap();
        assert_eq!(app.metadata.finalizers.as_deref(), Some(&[FINALIZER.to_owned()][..]));
        assert_eq!((app.metadata.name.as_deref(), app.metadata.namespace.as_deref()), (Some("d"), Some("c")));
        assert_eq!((app.spec.postgres.version.as_str(), app.spec.postgres.instances), ("16", 1));
        assert_eq!(app.spec.chart_version, None);
    }
}
