//! What a tenant writes to keep the operator from its work for all others.

use e2e::scenario::forge;
use k8s_openapi::api::core::v1::ConfigMap;

use super::*;

/// libyaml would take an hour for the one, and some seconds for the other, each time.
#[tokio::test]
async fn what_takes_long_to_read_is_not_read() {
    let (Apart { tenant, proxy: _proxy, .. }, mut operator) = operated("hostile-text", &[]).await;
    installed(&tenant, "acme").await;
    // While the other tests of this binary begin, the API server may take longer than a Lease lasts.
    let before = operator.log().len();
    let deep = format!("a: {}{}", "[".repeat(1_500_000), "]".repeat(1_500_000));
    forge(&tenant, "acme", "acme", |revision| revision["manifest"] = deep.into()).await;
    operator.wait_for_log("what revision 2 consists of is not known: its manifest: not YAML").unwrap();

    let tags = (0..18_000).map(|number| format!("%TAG !{number:x}! t\n")).collect::<String>() + "---\na: 1\n";
    let values = json!({"metadata": {"name": "tags"}, "data": {"values.yaml": tags}});
    let values = serde_json::from_value(values).unwrap();
    tenant.api::<ConfigMap>().create(&PostParams::default(), &values).await.unwrap();
    let from = json!({"valuesFrom": [{"kind": "ConfigMap", "name": "tags"}]});
    for number in 0..20 {
        let name = format!("hog-{number}");
        tenant.create(&name, with(small(&tenant, &name), from.clone())).await.unwrap();
    }
    let is_told = |app: Option<&ClientApp>| {
        let conditions = &app?.status.as_ref()?.conditions;
        conditions.iter().any(|condition| condition.message.contains("directives for tags")).then_some(())
    };
    tenant.wait_for("hog-19", "told of the directives", is_told).await;

    installed(&tenant, "other").await;
    assert!(!operator.log()[before..].contains("the lease is lost"), "{}", operator.log());
    assert!(operator.stop().unwrap());
}
