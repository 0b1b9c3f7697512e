//! An API server that restarts, or stays away, in the middle of the work.

use super::*;

/// Helm's revisions of an app that were deployed at some time, and how many there are of any kind.
fn deployed(tenant: &Tenant, name: &str) -> (usize, usize) {
    let history = tenant.helm(&["history", name, "-o", "json"]);
    let revisions: Vec<Value> = serde_json::from_str(&history.stdout).expect("helm history prints JSON");
    let well = revisions.iter().filter(|found| ["deployed", "superseded"].contains(&found["status"].as_str().unwrap()));
    (well.count(), revisions.len())
}

/// How often the log tells of an interruption of a watch, by the resource: some are watched more than once.
fn interruptions(operator: &e2e::operator::Operator) -> BTreeMap<String, usize> {
    let mut lines = BTreeMap::new();
    for line in operator.log().lines().filter(|line| line.contains("watch interrupted")) {
        let line: Value = serde_json::from_str(line).expect("the log is JSON");
        *lines.entry(line["resource"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    lines
}

#[tokio::test]
async fn an_api_server_that_is_away_costs_no_revision_no_process_and_one_line_for_each_watch() {
    // A plane of its own, since all on it are disturbed.
    let lab = Lab::own().await;
    let tenant = lab.tenant("outage").await;
    let operator = leading(&lab.options()).await;
    installed(&tenant, "acme").await;

    // While an edit is under way.
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    lab.plane.restart_apiserver().unwrap();
    tenant
        .status("acme", "ready with the edit", |status| {
            has(status, "Ready", "True", "Ready") && status.observed_generation == Some(2)
        })
        .await;
    // A helm that was cut off has failed, and is run once more; what is deployed is not deployed again.
    let (well, all) = deployed(&tenant, "acme");
    assert!(well == 2 && all <= 3, "{well} of {all}");

    let first = interruptions(&operator);
    assert_eq!((first["secrets"], first["deployments"]), (1, 1), "{first:#?}");

    // For longer than its lease lasts.
    lab.plane.kill_apiserver().unwrap();
    until("the operator has noticed", async || operator.log().contains("the lease is lost").then_some(())).await;
    lab.plane.start_apiserver().unwrap();
    tenant.patch("acme", json!({"values": {"podAnnotations": {"a": "b"}}})).await.unwrap();
    tenant
        .status("acme", "ready with the next edit", |status| {
            has(status, "Ready", "True", "Ready") && status.observed_generation == Some(3)
        })
        .await;
    assert_eq!(deployed(&tenant, "acme").0, 3);

    let told = tenant.events("acme").await;
    assert!(told.iter().all(|(reason, _)| reason != "ReleaseDrifted"), "{told:#?}");
    let second = interruptions(&operator);
    assert!(
        second.iter().all(|(resource, lines)| *lines <= 2 * first.get(resource).unwrap_or(&0)),
        "{second:#?} {first:#?}"
    );
    // It is the same process.
    assert!(operator.stop().unwrap());
}
