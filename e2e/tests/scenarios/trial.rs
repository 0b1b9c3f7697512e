//! Helm's tests, with `spec.test`: Ready waits for them, and what fails is named.

use clientapp_crd::{ClientAppStatus, annotation};
use e2e::lab::{Lab, Tenant};
use e2e::scenario::{is_put_back, names, nothing_is_left, small, with};
use e2e::wait::until;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

/// A test of the chart: a pod that ends in this way, or never.
fn check(name: &str, ends: Option<&str>) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "annotations": {"helm.sh/hook": "test", "clientapp.test/ends": ends.unwrap_or("never")}},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "check", "image": "curl", "command": ["false"]}]},
    })
}

fn tests(checks: &[Value]) -> Value {
    json!({"extraManifests": checks})
}

fn enabled(tenant: &Tenant, values: Value) -> Value {
    in_time(tenant, "2m", values)
}

fn in_time(tenant: &Tenant, timeout: &str, values: Value) -> Value {
    with(small(tenant, "acme"), json!({"test": {"enabled": true, "timeout": timeout}, "values": values}))
}

#[tokio::test]
async fn ready_waits_for_tests_and_says_which_has_failed() {
    let tenant = Lab::shared().await.tenant("trial").await;
    let good = || check("acme-good", Some("Succeeded"));
    tenant.create("acme", enabled(&tenant, tests(&[good(), check("acme-bad", Some("Failed"))]))).await.unwrap();
    let words = [
        "revision 1: 1 of 2 tests failed: Pod acme-bad: container check of pod acme-bad ends with exit code 7",
        "kubectl logs -n trial acme-bad -c check",
    ];
    let status = tenant.status("acme", "tested once", |status| status.test.is_some()).await;
    tenant.held("acme", "TestFailed", &words).await;
    tenant.event("acme", "TestFailed", "exit code 7").await;
    assert_eq!(tenant.listed("acme").unwrap().0, "1", "a test makes no revision");
    let tested = status.test.unwrap();
    assert!(!tested.passed && tested.failures == 1 && status.last_ready.is_none(), "{tested:?}");

    // At once, as `kubectl clientapp retry` asks for it.
    let mark = format!("{}={}", annotation::RETRY, annotation::retest(&tested));
    tenant.kubectl(&["annotate", "--overwrite", "clientapp", "acme", &mark]).unwrap();
    let again = |status: &ClientAppStatus| status.test.as_ref().is_some_and(|now| now.failures > tested.failures);
    tenant.status("acme", "tested again", again).await;

    tenant.patch("acme", json!({"values": tests(&[good()])})).await.unwrap();
    let status = tenant.ready("acme", 2).await;
    assert_eq!(status.test.unwrap().message, "its test has passed");
    tenant.condition("acme", "Tested", "True", "TestsPassed").await;

    // A later revision that fails them is rolled back, and what is there then is not tested again.
    let bad = json!({
        "values": tests(&[good(), check("acme-bad", Some("Failed"))]),
        "upgrade": {"onFailure": "Rollback", "retries": 0},
    });
    tenant.patch("acme", bad).await.unwrap();
    let words = ["revision 3 of release acme has failed: 1 of 2 tests failed", "rolled back to what revision 2 was"];
    tenant.held("acme", "RolledBack", &words).await;
    let untested = |status: &ClientAppStatus| status.conditions.iter().all(|condition| condition.type_ != "Tested");
    tenant.status("acme", "not said to be tested again", untested).await;
    assert_eq!(tenant.listed("acme").unwrap().0, "4");
    tenant.patch("acme", json!({"values": tests(&[good()]), "upgrade": null})).await.unwrap();
    tenant.ready("acme", 4).await;
    tenant.condition("acme", "Tested", "True", "TestsPassed").await;

    // Nothing is tested any more, and the tests go with the release.
    tenant.patch("acme", json!({"test": null})).await.unwrap();
    let none = |status: &ClientAppStatus| {
        status.test.is_none() && status.conditions.iter().all(|condition| condition.type_ != "Tested")
    };
    tenant.status("acme", "without tests", none).await;
    assert!(tenant.uid::<Pod>("acme-good").await.is_some(), "Helm leaves it");
    tenant.delete("acme").await;
    // Even those of former revisions go with the app; the Deployment's own are the garbage collector's.
    until("no pod is left", async || names::<Pod>(&tenant).await.is_empty()).await;
}

#[tokio::test]
async fn a_test_that_hangs_fails_and_neither_a_change_nor_a_deletion_waits_for_it() {
    let tenant = Lab::shared().await.tenant("trial-hangs").await;
    tenant.create("acme", in_time(&tenant, "10s", tests(&[check("acme-hangs", None)]))).await.unwrap();
    tenant.held("acme", "TestFailed", &["revision 1: 1 of 1 tests failed: Pod acme-hangs"]).await;

    // A test that takes long is stopped for a change of the spec.
    let long = json!({"test": {"enabled": true, "timeout": "1h"}, "values": tests(&[check("acme-long", None)])});
    tenant.patch("acme", long.clone()).await.unwrap();
    tenant.condition("acme", "Tested", "False", "Testing").await;
    let runs = |pod: Option<&Pod>| (pod?.status.as_ref()?.phase.as_deref()? == "Running").then_some(());
    tenant.wait_for("acme-long", "running", runs).await;
    is_put_back(&tenant, "acme-nextcloud").await;
    assert!(tenant.uid::<Pod>("acme-long").await.is_some(), "the test goes on");
    tenant.patch("acme", json!({"values": tests(&[check("acme-short", Some("Succeeded"))])})).await.unwrap();
    tenant.ready("acme", 3).await;

    // Nor does a deletion.
    tenant.patch("acme", long).await.unwrap();
    tenant.condition("acme", "Tested", "False", "Testing").await;
    tenant.wait_for("acme-long", "running", runs).await;
    // Not a hook, though it has the name of one.
    let mine = json!({"metadata": {"name": "mine"}, "spec": {"containers": [{"name": "a", "image": "b"}]}});
    tenant.api::<Pod>().create(&PostParams::default(), &serde_json::from_value(mine).unwrap()).await.unwrap();
    tenant.delete("acme").await;
    assert!(tenant.uid::<Pod>("mine").await.is_some());
    tenant.api::<Pod>().delete("mine", &DeleteParams::default()).await.unwrap();
    nothing_is_left(&tenant).await;
}
