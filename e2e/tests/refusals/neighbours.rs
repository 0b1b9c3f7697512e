//! Other operators, which a cluster may lack: Percona, and cert-manager with its real controllers.

use clientapp_crd::cloudnativepg::CloudNativePgCluster;
use e2e::cert_manager::CertManager;
use e2e::percona::Percona;
use e2e::scenario::{names, with};
use e2e::{cloudnativepg, manifests};
use k8s_openapi::api::networking::v1::Ingress;
use kube::ResourceExt as _;
use kube::api::DeleteParams;

use super::*;

#[tokio::test]
async fn percona_is_missed_without_polling_and_picked_up_when_it_comes() {
    let (lab, _turn) = rough().await;
    let tenant = lab.tenant("no-percona").await;
    let log = || std::fs::read_to_string(lab.plane.audit_log().unwrap()).unwrap();
    let before = log().len();
    tenant.create("acme", json!({"hostname": hostname(&tenant, "acme")})).await.unwrap();
    tenant.create("other", small(&tenant, "other", charts::DEFAULT)).await.unwrap();
    tenant.held("acme", "DependencyMissing", &["install the Percona Operator for PostgreSQL"]).await;
    tenant.condition("acme", "Stalled", "True", "DependencyMissing").await;
    // Apps that need no database are unaffected.
    tenant.ready("other", 1).await;

    // The reconcile sends no request about the kind, not even a watch, which would be refused repeatedly.
    nudge(&tenant, "acme", "Retain").await;
    nudge(&tenant, "acme", "Delete").await;
    tenant.requests().await;
    let log = log().split_off(before);
    let asked = log.lines().filter(|line| line.contains("perconapgclusters") && line.contains(&manifests::user()));
    let asked: Vec<_> = asked.filter(|line| !line.contains("customresourcedefinitions")).collect();
    assert!(asked.is_empty(), "{asked:#?}");
    assert!(tenant.listed("acme").is_none());

    Percona::define(&tenant.client).await.unwrap();
    let percona = Percona::start(&lab.plane).await.unwrap();
    tenant.ready("acme", 1).await;

    // And removed again: the status reports it, and nothing happens to the running app.
    Percona::undefine(&tenant.client).await.unwrap();
    tenant.condition("acme", "PostgresReady", "False", "DependencyMissing").await;
    assert_eq!(tenant.listed("acme").unwrap().0, "1");
    drop(percona);
    tenant.delete("acme").await;
}

#[tokio::test]
async fn the_plugin_for_backups_is_missed_before_a_cluster_is_made() {
    let (lab, _turn) = rough().await;
    let tenant = lab.tenant("no-plugin").await;
    cloudnativepg::define(&tenant.client).await.unwrap();
    let store = json!({"endpoint": "https://s3", "bucket": "backups", "credentialsSecret": {"name": "s3"}});
    let backup = json!({"schedule": "@daily", "store": store});
    let postgres = json!({"provider": "cloudnativepg", "version": "17", "backup": backup});
    let spec = json!({"hostname": hostname(&tenant, "acme"), "postgres": postgres});
    tenant.create("acme", spec).await.unwrap();
    let words = ["this cluster has no kind ObjectStore", "plugin barman-cloud", "neither created nor changed"];
    tenant.held("acme", "DependencyMissing", &words).await;
    assert_eq!(names::<CloudNativePgCluster>(&tenant).await, [""; 0]);
    cloudnativepg::define_plugin(&tenant.client).await.unwrap();
    let archives = |found: Option<&CloudNativePgCluster>| found?.archive();
    assert_eq!(tenant.wait_for("acme-pg", "with the plugin", archives).await.store, "acme-pg");
    tenant.delete("acme").await;
}

#[tokio::test]
async fn cert_manager_issues_a_certificate_for_each_app() {
    let (lab, _turn) = rough().await;
    let cert_manager = CertManager::start(&lab.plane).await.unwrap();
    let tenant = lab.tenant("tls-issued").await;
    let tls = json!({"ingressClassName": "traefik", "tls": {"issuer": {"name": "own"}}});
    tenant.create("acme", with(small(&tenant, "acme", charts::DEFAULT), tls)).await.unwrap();
    // The issuer does not exist yet.
    let host = hostname(&tenant, "acme");
    let describe = "`kubectl describe certificate,certificaterequest -n tls-issued`";
    tenant.held("acme", "CertificatePending", &["Secret acme-tls", &host, describe]).await;
    let waiting = tenant.status("acme", "served without TLS", |status| status.url.is_some()).await;
    assert_eq!(waiting.url, Some(format!("http://{host}")));
    assert!(
        has(&waiting, "WorkloadsReady", "True", "Ready")
            && has(&waiting, "CertificateReady", "False", "CertificatePending")
    );
    until("the command in the message says why", async || {
        let said = tenant.kubectl(&["describe", "certificate,certificaterequest"]).unwrap();
        if said.contains("\"own\" not found") { Ok(()) } else { Err(said) }
    })
    .await;

    let issuer = json!({
        "apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": {"name": "own"}, "spec": {"selfSigned": {}},
    });
    let path = format!("/apis/cert-manager.io/v1/namespaces/{}/issuers", tenant.namespace);
    let request = http::Request::post(path).header(http::header::CONTENT_TYPE, "application/json");
    tenant.client.request::<Value>(request.body(issuer.to_string().into_bytes()).unwrap()).await.unwrap();
    let status = tenant.ready("acme", 1).await;
    assert_eq!((status.url, status.tls_secret_name), (Some(format!("https://{host}")), Some("acme-tls".to_owned())));
    let told = tenant.condition("acme", "CertificateReady", "True", "CertificateValid").await;
    assert!(told.starts_with("the certificate in Secret acme-tls is valid until 2"), "{told}");
    let told = tenant.condition("acme", "Ready", "True", "Ready").await;
    assert!(told.ends_with(&format!("serving https://{host}")), "{told}");
    let ingress = tenant.api::<Ingress>().get("acme-nextcloud").await.unwrap();
    assert_eq!(ingress.metadata.annotations.unwrap()["cert-manager.io/issuer"], "own");

    // Deleted by hand, it is issued again, without another revision.
    tenant.replaced::<Secret>("acme-tls").await;
    tenant.ready("acme", 1).await;

    // Percona would let it issue the certificates of its clusters.
    tenant.delete("acme").await;
    drop(cert_manager);
    let definitions = Api::<CustomResourceDefinition>::all(tenant.client.clone());
    for definition in definitions.list(&ListParams::default()).await.unwrap() {
        if definition.spec.group.ends_with("cert-manager.io") {
            definitions.delete(&definition.name_any(), &DeleteParams::default()).await.unwrap();
        }
    }
}
