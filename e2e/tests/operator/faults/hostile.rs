//! What a tenant writes to keep the operator from its work for all others.

use std::io::{Read as _, Write as _};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use clientapp_operator::crd::ClientApp;
use e2e::lab::Apart;
use e2e::scenario::{operated, small, with};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::PostParams;
use serde_json::{Value, json};

use super::installed;

/// A revision as Helm stores it, with another number and manifest.
fn forged(stored: &Secret, number: i64, manifest: &str) -> Secret {
    let packed = BASE64_STANDARD.decode(&stored.data.as_ref().unwrap()["release"].0).unwrap();
    let mut text = String::new();
    GzDecoder::new(&packed[..]).read_to_string(&mut text).unwrap();
    let mut release: Value = serde_json::from_str(&text).unwrap();
    release["version"] = number.into();
    release["manifest"] = manifest.into();
    let mut packed = GzEncoder::new(Vec::new(), Compression::best());
    packed.write_all(release.to_string().as_bytes()).unwrap();
    let mut forged = stored.clone();
    let packed = BASE64_STANDARD.encode(packed.finish().unwrap());
    forged.data = Some([("release".to_owned(), ByteString(packed.into_bytes()))].into());
    let mut labels = stored.metadata.labels.clone().unwrap();
    labels.insert("version".to_owned(), number.to_string());
    forged.metadata = serde_json::from_value(json!({
        "name": format!("sh.helm.release.v1.acme.v{number}"), "labels": labels,
    }))
    .unwrap();
    forged
}

/// libyaml would take an hour for the one, and some seconds for the other, each time.
#[tokio::test]
async fn what_takes_long_to_read_is_not_read() {
    let (Apart { tenant, proxy: _proxy, .. }, mut operator) = operated("hostile-text", &[]).await;
    installed(&tenant, "acme").await;
    let secrets = tenant.api::<Secret>();
    let stored = secrets.get("sh.helm.release.v1.acme.v1").await.unwrap();
    let deep = format!("a: {}{}", "[".repeat(1_500_000), "]".repeat(1_500_000));
    secrets.create(&PostParams::default(), &forged(&stored, 2, &deep)).await.unwrap();
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

    tenant.create("other", small(&tenant, "other")).await.unwrap();
    tenant.ready("other", 1).await;
    assert!(!operator.log().contains("the lease is lost"), "{}", operator.log());
    assert!(operator.stop().unwrap());
}
