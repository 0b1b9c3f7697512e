//! The story of two tenants on a node, step by step: what their apps' status says is compared with what is there.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use clientapp_crd::cloudnativepg::CloudNativePgPooler;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Client;
use kube::api::Api;
use serde_json::{Value, json};

use super::files::ADDRESS;
use super::inside::{Node, client};
use super::steps::Steps;
use super::tenant::Tenant;
use super::{Options, Part, backups, barman_cloud, database, mistakes, network, operator, policies, storage};
use crate::background::Background;
use crate::charts::{DEFAULT, MAJOR, PATCH};
use crate::front::Front;
use crate::progress::Progress;
use crate::repository::Repository;
use crate::tools::Extra;
use crate::wait::within;

/// No step takes this long, on whatever machine.
pub(super) const LONG: Duration = Duration::from_secs(600);

/// What is around the node while this lives: the charts, at the address that `kustomization.yaml` names, a bucket, and enforced
/// NetworkPolicies.
pub(super) struct Surroundings {
    _front: Front,
    _repository: Repository,
    _policies: Background,
}

impl Surroundings {
    /// Serves all versions of the test chart by https, with a certificate of the node's authority, and the rest.
    pub(super) fn start(node: &Node) -> Result<Self> {
        let repository = Repository::start()?;
        let behind: SocketAddr = repository.url().trim_start_matches("http://").parse()?;
        let front = Front::start_at(format!("{ADDRESS}:8443").parse()?, behind, &node.authority)?;
        storage::serve(node)?;
        policies::install()?;
        let policies = Background::spawn("policies", || async {
            match client().await {
                Ok(client) => policies::enforce(client).await,
                Err(error) => eprintln!("network policies: {error:#}"),
            }
        })?;
        Ok(Self { _front: front, _repository: repository, _policies: policies })
    }
}

/// Applies CloudNativePG's own manifest, and waits until its operator is ready.
async fn install_cloudnativepg(node: &Node, client: &Client) -> Result<String> {
    let mut objects = Extra::CloudNativePg.manifest(&Progress::hidden())?;
    for object in objects.iter_mut().filter(|object| object["kind"] == "Deployment") {
        object["spec"]["template"]["spec"]["containers"][0]["imagePullPolicy"] = json!("IfNotPresent");
    }
    node.apply(&objects.iter().map(|object| format!("---\n{object}\n")).collect::<String>())?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "cnpg-system");
    within(LONG, "CloudNativePG's operator is ready", async || {
        let status = deployments.get_status("cnpg-controller-manager").await.ok()?.status?;
        (status.ready_replicas == Some(1)).then_some(())
    })
    .await?;
    Ok("it is ready".to_owned())
}

/// Runs the steps of these parts, each of which needs no other; without any, all.
pub(super) async fn run(node: &Node, steps: &mut Steps, options: &Options) -> Result<()> {
    let client = client().await?;
    let _surroundings = Surroundings::start(node)?;
    operator::prepare(node, &client).await?;
    let has = |part| options.only.is_empty() || options.only.contains(&part);
    if options.release {
        steps.step("a release, without a registry", async || operator::install_release(node, &client).await).await?;
    }
    steps.step("the operator's Deployment", async || operator::install(node, &client).await).await?;
    if has(Part::Standalone) {
        let tenant = Tenant { node, client: client.clone(), namespace: "tenant-acme", app: "acme", restricted: true };
        standalone(&tenant, steps).await?;
    }
    if has(Part::Bucket) {
        let tenant = Tenant { node, client: client.clone(), namespace: "tenant-docs", app: "docs", restricted: true };
        backups::run(&tenant, steps).await?;
    }
    if has(Part::Network) {
        network::run(node, &client, steps).await?;
    }
    if has(Part::Database) {
        database::run(node, &client, steps).await?;
    }
    if has(Part::Mistakes) {
        let tenant = Tenant { node, client: client.clone(), namespace: "tenant-wrong", app: "wrong", restricted: true };
        mistakes::run(&tenant, steps).await?;
    }
    if has(Part::CloudNativePg) || has(Part::BarmanCloud) {
        steps.step("CloudNativePG's operator", async || install_cloudnativepg(node, &client).await).await?;
    }
    if has(Part::CloudNativePg) {
        let tenant =
            Tenant { node, client: client.clone(), namespace: "tenant-orders", app: "orders", restricted: true };
        with_cloudnativepg(&tenant, steps).await?;
    }
    if has(Part::BarmanCloud) {
        let tenant = Tenant { node, client: client.clone(), namespace: "tenant-shop", app: "shop", restricted: true };
        barman_cloud::run(&tenant, steps).await?;
    }
    steps.step("memory of the operator's pods", async || operator::memory(&client).await).await
}

async fn standalone(acme: &Tenant<'_>, steps: &mut Steps) -> Result<()> {
    let postgres = json!({"provider": "standalone", "storageSize": "1Gi"});
    steps
        .step("an app with provider standalone, where Pod Security is `restricted`", async || {
            acme.create(DEFAULT, postgres).await
        })
        .await?;
    steps
        .step("rows and files are written", async || {
            acme.write("first")?;
            acme.says("notes", json!(["first"])).await?;
            acme.says("files", json!(["first"])).await
        })
        .await?;
    steps
        .step("chartVersion upgraded, with a backup before it", async || {
            let said = acme.change(json!({"chartVersion": PATCH, "upgrade": {"backup": true}})).await?;
            acme.says("versionstring", json!("29.0.5")).await?;
            acme.says("notes", json!(["first"])).await?;
            Ok(said)
        })
        .await?;
    steps.step("backed up", async || acme.back_up("before", json!(["Database"])).await).await?;
    steps
        .step("restored", async || {
            acme.write("second")?;
            let said = acme.restore("back", "before").await?;
            acme.ready().await?;
            acme.says("notes", json!(["first"])).await?;
            Ok(said)
        })
        .await?;
    steps
        .step("hostname changed", async || {
            let said = acme.change(json!({"hostname": "cloud.example.com"})).await?;
            let domains = acme.page().await?["domains"].to_string();
            ensure!(domains.contains("cloud.example.com"), "the app trusts {domains}");
            Ok(said)
        })
        .await?;
    steps
        .step("the password of Redis changed", async || {
            let revision = acme.revision().await?;
            acme.change_redis_password().await?;
            acme.helm_runs_after(revision).await?;
            acme.follow("it is noticed", |ready| ready.status != "True").await?;
            let said = acme.ready().await?;
            acme.says("notes", json!(["first"])).await?;
            Ok(said)
        })
        .await?;
    steps
        .step("the leader's pod killed while helm runs", async || {
            let revision = acme.revision().await?;
            acme.patch(json!({"chartVersion": MAJOR})).await?;
            acme.helm_runs_after(revision).await?;
            operator::kill_leading_pod(&acme.client).await?;
            let said = acme.ready().await?;
            acme.says("versionstring", json!("30.0.0")).await?;
            let further = acme.revision().await? - revision;
            Ok(format!("{said} {further} revisions"))
        })
        .await?;
    steps
        .step("the leader's container killed with its helm, as with cgroup v2", async || {
            acme.patch(json!({"hostname": "files.example.com"})).await?;
            operator::kill_leading_container(&acme.client).await?;
            let said = acme.ready().await?;
            acme.says("notes", json!(["first"])).await?;
            Ok(said)
        })
        .await?;
    steps
        .step("the database's pod killed", async || {
            acme.kill("acme-pg-0").await?;
            acme.recovers().await
        })
        .await?;
    steps
        .step("the kubelet killed and started again", async || {
            acme.node.restart("kubelet")?;
            acme.kill("acme-pg-0").await?;
            acme.recovers().await
        })
        .await?;
    steps
        .step("the app's pod evicted", async || {
            acme.evict().await?;
            acme.recovers().await
        })
        .await?;
    steps
        .step("an image that does not exist", async || {
            acme.patch(json!({"image": "nextcloud:nowhere"})).await?;
            let said = acme.follow("the image is named", |ready| ready.message.contains("nextcloud:nowhere")).await?;
            acme.change(json!({"image": null})).await?;
            Ok(said)
        })
        .await?;
    steps
        .step("an app that needs more memory than it may have", async || {
            acme.patch(json!({"values": {"resources": {"limits": {"memory": "6Mi"}}}})).await?;
            let said = acme.follow("memory is named", |ready| ready.message.contains("memory")).await?;
            acme.change(json!({"values": {"resources": null}})).await?;
            Ok(said)
        })
        .await?;
    steps
        .step("the database without a network, and back", async || {
            let noticed = async || acme.follow("it is noticed", |ready| ready.status != "True").await;
            let said = acme.without_network("acme-pg-0", noticed).await?;
            acme.ready().await?;
            acme.says("notes", json!(["first"])).await?;
            Ok(said)
        })
        .await?;
    ends(acme, MAJOR, "standalone", steps).await
}

async fn with_cloudnativepg(orders: &Tenant<'_>, steps: &mut Steps) -> Result<()> {
    let postgres = json!({"provider": "cloudnativepg", "storageSize": "1Gi"});
    steps.step("an app with provider cloudnativepg", async || orders.create(DEFAULT, postgres).await).await?;
    steps
        .step("rows and files are written", async || {
            orders.write("first")?;
            orders.says("notes", json!(["first"])).await
        })
        .await?;
    steps
        .step("the primary's pod killed", async || {
            orders.kill("orders-pg-1").await?;
            orders.recovers().await
        })
        .await?;
    steps
        .step("a Pooler between the app and its primary", async || {
            let said =
                pooled(orders, json!({"poolMode": "transaction", "parameters": {"max_client_conn": "50"}})).await?;
            connects_to(orders, "orders-pg-pooler")?;
            Ok(said)
        })
        .await?;
    steps
        .step("a parameter that PgBouncer does not have, and back", async || {
            orders.patch(json!({"postgres": {"cloudnativepg": {"pooler": {"parameters": {"nonsense": "1"}}}}})).await?;
            let said = orders.follow("the parameter is named", |ready| ready.message.contains("nonsense")).await?;
            pooled(orders, json!({"parameters": {"nonsense": null}})).await?;
            Ok(said)
        })
        .await?;
    steps
        .step("the Pooler taken away", async || {
            let said = pooled(orders, json!(null)).await?;
            connects_to(orders, "orders-pg-rw")?;
            within(LONG, "the Pooler is gone", async || {
                orders.api::<CloudNativePgPooler>().get_opt("orders-pg-pooler").await.is_ok_and(|found| found.is_none())
            })
            .await?;
            Ok(said)
        })
        .await?;
    ends(orders, DEFAULT, "cloudnativepg", steps).await
}

/// Changes the Pooler, and waits until the app has its rows through it.
async fn pooled(tenant: &Tenant<'_>, pooler: Value) -> Result<String> {
    let said = tenant.change(json!({"postgres": {"cloudnativepg": {"pooler": pooler}}})).await?;
    tenant.says("notes", json!(["first"])).await?;
    Ok(said)
}

/// Fails unless the app has this Service in its configuration.
fn connects_to(tenant: &Tenant<'_>, service: &str) -> Result<()> {
    let configuration = tenant.exec(&["grep", "dbhost", "/var/www/html/config/config.php"])?;
    ensure!(configuration.contains(&format!("'{service}.{}.svc", tenant.namespace)), "{configuration}");
    Ok(())
}

/// Deletes an app twice: first its data stay, and the next app of this name continues with them; then nothing is left.
async fn ends(tenant: &Tenant<'_>, chart: &str, provider: &str, steps: &mut Steps) -> Result<()> {
    steps
        .step("deleted with policy Retain, and created again", async || {
            tenant.change(json!({"deletionPolicy": "Retain"})).await?;
            let kept = tenant.volumes().await?;
            tenant.delete().await?;
            let postgres = json!({"provider": provider, "storageSize": "1Gi", "adopt": true});
            let said = tenant.create_app(chart, postgres).await?;
            tenant.says("notes", json!(["first"])).await?;
            ensure!(tenant.volumes().await? == kept, "the volumes are others");
            Ok(said)
        })
        .await?;
    steps
        .step("deleted", async || {
            tenant.delete().await?;
            tenant.volumes_are_gone().await
        })
        .await
}
