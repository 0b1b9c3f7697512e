//! An API server that restarts, or stays away, in the middle of the work.

use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::Api;

use super::*;

/// The number of an app's revisions that were ever deployed, and of all its revisions.
fn deployed(tenant: &Tenant, name: &str) -> (usize, usize) {
    let history = tenant.helm(&["history", name, "-o", "json"]);
    let revisions: Vec<Value> = serde_json::from_str(&history.stdout).expect("helm history prints JSON");
    let well = revisions.iter().filter(|found| ["deployed", "superseded"].contains(&found["status"].as_str().unwrap()));
    (well.count(), revisions.len())
}

/// The number of logged watch interruptions by resource, since some resources have several watches.
fn interruptions(operator: &e2e::operator::Operator) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    for line in operator.log().lines().filter(|line| line.contains("watch interrupted")) {
        let line: Value = serde_json::from_str(line).expect("the log is JSON");
        *lines.entry(line["resource"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    lines
}

/// On a plane of their own, one after the other, since each disturbs everything on it.
#[tokio::test]
async fn an_api_server_that_is_away_and_an_aggregated_api_that_is_down() {
    let (lab, _ends) = Lab::own().await;
    an_outage_costs_no_revision_no_process_and_one_line_for_each_watch(lab).await;
    an_api_of_nobody_keeps_no_app_from_its_life(lab).await;
}

async fn an_outage_costs_no_revision_no_process_and_one_line_for_each_watch(lab: &'static Lab) {
    let tenant = lab.tenant("outage").await;
    let operator = leading(&lab.options()).await;
    installed(&tenant, "acme").await;

    // While an edit is in progress.
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    lab.plane.restart_apiserver().unwrap();
    let ready_with = async |generation: i64| {
        let ready = |status: &ClientAppStatus| {
            has(status, "Ready", "True", "Ready") && status.observed_generation == Some(generation)
        };
        tenant.status("acme", "ready with the edit", ready).await;
    };
    ready_with(2).await;
    // An interrupted helm has failed and runs once more; a deployed revision is not deployed again.
    let (well, all) = deployed(&tenant, "acme");
    assert!(well == 2 && all <= 3, "{well} of {all}");

    let first = interruptions(&operator);
    assert_eq!((first["secrets"], first["deployments"]), (1, 1), "{first:#?}");

    // Longer than its Lease lasts.
    lab.plane.kill_apiserver().unwrap();
    until("the operator has noticed", async || operator.log().contains("the lease is lost").then_some(())).await;
    lab.plane.start_apiserver().unwrap();
    tenant.patch("acme", json!({"values": {"podAnnotations": {"a": "b"}}})).await.unwrap();
    ready_with(3).await;
    assert_eq!(deployed(&tenant, "acme").0, 3);

    is_not_told(&tenant, "acme", "ReleaseDrifted").await;
    // Of the first, short outage a watch may have noticed nothing. No resource has more watches than these.
    let second = interruptions(&operator);
    let watches = |resource: &str| match resource {
        "secrets" | "deployments" | "ingresses" | "rolebindings" => 1,
        // Of databases, and of archives.
        "pods" => 2,
        // Of Percona's databases, and of CloudNativePG's.
        "endpointslices" => 2,
        // One for each kind that a cluster may lack.
        "customresourcedefinitions" => 8,
        _ => 6,
    };
    assert!(
        second.iter().all(|(resource, lines)| *lines <= watches(resource) + first.get(resource).unwrap_or(&0)),
        "{second:#?} {first:#?}"
    );
    // It is the same process.
    assert!(operator.stop().unwrap());
}

/// An API server of an extension that nobody runs any more: every discovery of the cluster lacks its group, and no namespace can be
/// deleted.
async fn an_api_of_nobody_keeps_no_app_from_its_life(lab: &'static Lab) {
    let tenant = lab.tenant("aggregated").await;
    let services = Api::<APIService>::all(tenant.client.clone());
    let service = json!({
        "metadata": {"name": "v1.gone.example.com"},
        "spec": {
            "group": "gone.example.com", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 15,
            "insecureSkipTLSVerify": true, "service": {"name": "gone", "namespace": "default"},
        },
    });
    services.create(&PostParams::default(), &serde_json::from_value(service).unwrap()).await.unwrap();
    until("the API is known to be down", async || {
        let status = services.get("v1.gone.example.com").await.unwrap().status.unwrap_or_default();
        status.conditions.iter().flatten().any(|condition| condition.status == "False")
    })
    .await;
    let operator = leading(&lab.options()).await;
    installed(&tenant, "acme").await;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;
    tenant.delete("acme").await;
    assert!(operator.stop().unwrap());
}
