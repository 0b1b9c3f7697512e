//! Users' actions and their effects, on a real control plane with a real helm, with the operator under exactly the
//! ClusterRole of `manifests/`.

mod boundary;
mod dependencies;
mod drift;
mod gitops;
mod health;
mod hostname;
mod monitoring;
mod namespace;
mod other_helm;
mod pods;
mod profile;
mod release;
mod remedy;
mod spec;
mod tls;
mod trial;
mod upgrade;
mod values;

use clientapp_crd::ClientApp;
use e2e::charts;
use e2e::lab::{Lab, Tenant, hostname};
use e2e::scenario::{admin_secret, names, secret, small, with};
use e2e::wait::until;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::events::v1::Event;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};

/// An admission policy for requests of these resources in the namespace, whose name it has. The caller waits until it is applied.
async fn admit_only(tenant: &Tenant, resources: Value, validation: Value) -> Api<ValidatingAdmissionPolicyBinding> {
    let place = &tenant.namespace;
    let policy = json!({
        "metadata": {"name": place},
        "spec": {"matchConstraints": {"resourceRules": [resources]}, "validations": [validation]},
    });
    let binding = json!({
        "metadata": {"name": place},
        "spec": {
            "policyName": place, "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place}}},
        },
    });
    let policies = Api::<ValidatingAdmissionPolicy>::all(tenant.client.clone());
    policies.create(&PostParams::default(), &serde_json::from_value(policy).unwrap()).await.unwrap();
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(tenant.client.clone());
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    bindings
}

/// A namespace with the app `acme`, Ready at revision 1. Its spec has these fields beside those of [`small`].
async fn installed(namespace: &str, more: Value) -> Tenant {
    let tenant = Lab::shared().await.tenant(namespace).await;
    tenant.create("acme", with(small(&tenant, "acme"), more)).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant
}

/// The number of helm's requests so far.
async fn helms(tenant: &Tenant) -> usize {
    tenant.requests().await.iter().filter(|request| request.starts_with("helm")).count()
}

/// And no password is ever told: neither the user's nor a generated one, in whatever goes right or wrong.
#[tokio::test]
async fn from_apply_to_helm_list() {
    let tenant = Lab::shared().await.tenant("main-job").await;
    let host = hostname(&tenant, "acme");
    tenant.create("acme", json!({"hostname": host, "ingressClassName": "traefik"})).await.unwrap();
    let canary = "canary-8f1c2d";
    admin_secret(&tenant, "my-admin", canary).await;
    let given = json!({
        "hostname": hostname(&tenant, "given"), "adminSecret": "my-admin", "postgres": {"provider": "standalone"},
    });
    tenant.create("given", given).await.unwrap();
    let status = tenant.ready("acme", 1).await;

    let release = status.release.unwrap();
    assert_eq!(
        (release.name.as_str(), release.namespace.as_str(), release.status.as_str()),
        ("acme", "main-job", "deployed")
    );
    assert_eq!((release.chart.as_deref(), release.chart_version.as_deref()), (Some("nextcloud"), Some("5.5.2")));
    assert!(release.app_version.unwrap().starts_with("29."));
    assert_eq!(status.url.unwrap(), format!("http://{host}"));
    assert_eq!(tenant.listed("acme").unwrap(), ("1".into(), "deployed".into(), "nextcloud-5.5.2".into()));

    let redis = secret(&tenant, "acme-redis-secret", "redis-password").await;
    assert!(redis.len() == 32 && redis.bytes().all(|c| c.is_ascii_alphanumeric()));

    let app = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap();
    let env = serde_json::to_string(&app.spec.unwrap().template.spec.unwrap().containers[0].env).unwrap();
    for part in ["acme-pg-pgbouncer.main-job.svc.cluster.local", "acme-pg-pguser-clientapp", "acme-admin-secret"] {
        assert!(env.contains(part), "{part} is not in {env}");
    }
    assert!(!env.contains("changeme") && !env.contains(&redis), "{env}");
    until("every claim is bound", async || {
        let claims = tenant.api::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap();
        claims.items.iter().all(|claim| claim.status.as_ref().unwrap().phase.as_deref() == Some("Bound"))
    })
    .await;

    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;
    assert_eq!(tenant.listed("acme").unwrap(), ("2".into(), "deployed".into(), "nextcloud-5.5.3".into()));

    // Failures could disclose secrets, since helm quotes its input.
    tenant.patch("acme", json!({"chartVersion": charts::MISSPELT})).await.unwrap();
    tenant.condition("acme", "Released", "False", "ChartInvalid").await;
    tenant.ready("given", 1).await;
    no_password_is_told(&tenant, canary).await;

    tenant.delete("given").await;
    tenant.delete("acme").await;
    assert_eq!(tenant.listed("acme"), None);
    // The database's claims are gone when their own controller releases them.
    until("no claim is left", async || names::<PersistentVolumeClaim>(&tenant).await.is_empty()).await;
}

/// Of the apps `acme` and `given`, whose administrator has this password.
async fn no_password_is_told(tenant: &Tenant, canary: &str) {
    let mut secrets = vec![canary.to_owned()];
    for (name, key) in [
        ("acme-admin-secret", "nextcloud-password"),
        ("acme-redis-secret", "redis-password"),
        ("given-redis-secret", "redis-password"),
        ("acme-pg-pguser-clientapp", "password"),
        ("given-pg-app", "password"),
    ] {
        secrets.push(secret(tenant, name, key).await);
    }
    let everything = ListParams::default();
    let mut places = vec![("the log", tenant.lab.operator_log())];
    let apps = tenant.api::<ClientApp>().list(&everything).await.unwrap().items;
    assert_eq!(apps.len(), 2);
    places.push(("the objects", serde_json::to_string(&apps).unwrap()));
    let events = tenant.api::<Event>().list(&everything).await.unwrap().items;
    assert!(!events.is_empty());
    places.push(("the events", serde_json::to_string(&events).unwrap()));
    for release in ["given", "acme"] {
        for what in ["values", "manifest", "hooks", "notes"] {
            let ran = tenant.helm(&["get", what, release]);
            assert!(ran.success, "{}", ran.stderr);
            places.push(("the release", ran.stdout));
        }
    }
    for (place, text) in &places {
        for secret in &secrets {
            assert!(!text.contains(secret.as_str()), "{secret} is in {place}");
        }
    }
}
