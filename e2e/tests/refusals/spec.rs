//! Refusals by the operator, which no schema can express.

use super::*;

#[tokio::test]
async fn the_operator_refuses_what_the_schema_cannot() {
    let tenant = Lab::shared().await.tenant("refused-specs").await;
    let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!({"a": inner}));
    let text = |bytes: usize| json!({"text": "x".repeat(bytes)});
    let mut said = Vec::new();
    let external =
        json!({"provider": "external", "external": {"secretName": "theirs", "host": "db.example.com:70000"}});
    let twice = json!({"nextcloud": {"extraEnv": [{"name": "TZ", "value": "UTC"}, {"name": "TZ", "value": "CET"}]}});
    let computed = |field: &str, instead: &str| {
        format!("spec.values: {field} is computed by the operator: set spec.{instead} instead")
    };
    let too_large = |bytes: usize| format!("spec.values: values are {bytes} bytes of JSON; at most 262144 fit");
    for (name, field, value, sentence) in [
        ("host", "values", json!({"nextcloud": {"host": "b.example.com"}}), &*computed("nextcloud.host", "hostname")),
        ("password", "values", json!({"nextcloud": {"password": "x"}}), &computed("nextcloud.password", "adminSecret")),
        ("auth", "values", json!({"redis": {"auth": {"password": "x"}}}), &computed("redis.auth", "redis")),
        ("sqlite", "values", json!({"internalDatabase": {"enabled": true}}), &computed("internalDatabase", "postgres")),
        ("null", "values", json!({"redis": null}), "spec.values: redis must be a map"),
        ("twice", "values", twice, "spec.values: nextcloud.extraEnv has TZ twice: remove one of them"),
        ("nested", "values", nested(40), "spec.values: values nest deeper than 32 levels"),
        ("deep", "values", nested(1000), "spec.values.a.a.a.a: nests deeper than 128 levels"),
        ("large", "values", text(300 << 10), &too_large(307_211)),
        ("huge", "values", text(1_000_000), &too_large(1_000_011)),
        (
            "older",
            "postgres",
            json!({"provider": "standalone", "version": "13"}),
            "spec.postgres.version: the provider standalone has PostgreSQL 14 to 18",
        ),
        ("port", "postgres", external, "spec.postgres.external.host: must end in a port from 1 to 65535"),
        ("allow", "upgrade", json!({"allow": "5.x"}), "spec.upgrade.allow: must be one exact version"),
        ("old", "postgres", json!({"version": "13"}), "spec.postgres.version: Percona"),
    ] {
        let spec = json!({"hostname": hostname(&tenant, name), field: value});
        tenant.create(name, spec).await.unwrap();
        said.push((name.to_owned(), invalid(&tenant, name).await, vec![sentence.to_owned()]));
    }
    let names: Vec<_> = said.iter().map(|(name, ..)| name.clone()).collect();
    assert_all(said);

    assert_eq!(made(&tenant), Vec::<String>::new());
    let requests = tenant.requests().await;
    let harmless = [
        "operator patch clientapps/",
        "operator patch clientapps/status",
        "operator create events/",
        "operator patch events/",
    ];
    assert!(requests.iter().all(|request| harmless.contains(&request.as_str())), "{requests:?}");

    // Refused fields are corrected or removed.
    tenant.patch("host", json!({"values": null, "postgres": {"enabled": false}})).await.unwrap();
    tenant.ready("host", 1).await;
    delete(&tenant, &names.iter().map(String::as_str).collect::<Vec<_>>());
    until("everything created for it is garbage-collected", async || made(&tenant).is_empty().then_some(())).await;
}
