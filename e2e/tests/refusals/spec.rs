//! Refusals by the operator, which no schema can express.

use super::*;

#[tokio::test]
async fn the_operator_refuses_what_the_schema_cannot() {
    let tenant = Lab::shared().await.tenant("refused-specs").await;
    let nested = |levels: usize| (0..levels).fold(json!(1), |inner, _| json!({"a": inner}));
    let text = |bytes: usize| json!({"text": "x".repeat(bytes)});
    let mut said = Vec::new();
    for (name, field, value, sentence) in [
        (
            "host",
            "values",
            json!({"nextcloud": {"host": "b.example.com"}}),
            "spec.values: nextcloud.host is computed by the operator: set spec.hostname instead",
        ),
        (
            "password",
            "values",
            json!({"nextcloud": {"password": "x"}}),
            "spec.values: nextcloud.password is computed by the operator: set spec.adminSecret instead",
        ),
        (
            "auth",
            "values",
            json!({"redis": {"auth": {"password": "x"}}}),
            "spec.values: redis.auth is computed by the operator: set spec.redis instead",
        ),
        (
            "sqlite",
            "values",
            json!({"internalDatabase": {"enabled": true}}),
            "spec.values: internalDatabase is computed by the operator: set spec.postgres instead",
        ),
        ("null", "values", json!({"redis": null}), "spec.values: redis must be a map"),
        ("nested", "values", nested(40), "spec.values: values nest deeper than 32 levels"),
        ("deep", "values", nested(1000), "spec.values.a.a.a.a: nests deeper than 128 levels"),
        ("large", "values", text(300 << 10), "spec.values: values are 307211 bytes of JSON; at most 262144 fit"),
        ("huge", "values", text(1_000_000), "spec.values: values are 1000011 bytes of JSON; at most 262144 fit"),
        (
            "older",
            "postgres",
            json!({"provider": "standalone", "version": "13"}),
            "spec.postgres.version: the provider standalone has PostgreSQL 14 to 18",
        ),
        (
            "port",
            "postgres",
            json!({"provider": "external", "external": {"secretName": "theirs", "host": "db.example.com:70000"}}),
            "spec.postgres.external.host: must end in a port from 1 to 65535",
        ),
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
    for name in names {
        delete(&tenant, &name).await;
    }
    until("everything created for it is garbage-collected", async || made(&tenant).is_empty().then_some(())).await;
}

#[tokio::test]
async fn a_missing_admin_secret_is_waited_for() {
    let tenant = Lab::shared().await.tenant("admin-secret").await;
    let spec =
        json!({"hostname": hostname(&tenant, "acme"), "adminSecret": "my-admin", "postgres": {"enabled": false}});
    tenant.create("acme", spec).await.unwrap();
    let sentence = tenant.condition("acme", "Ready", "False", "AdminSecretMissing").await;
    for part in ["Secret my-admin", "spec.adminSecret", "does not exist", "nextcloud-username", "nextcloud-password"] {
        assert!(sentence.contains(part), "{sentence}");
    }
    tenant.condition("acme", "Stalled", "True", "AdminSecretMissing").await;
    assert_eq!(tenant.listed("acme"), None);

    tenant.kubectl(&["create", "secret", "generic", "my-admin", "--from-literal=nextcloud-username=admin"]).unwrap();
    let sentence = tenant.condition("acme", "Ready", "False", "AdminSecretKeyMissing").await;
    assert!(sentence.contains("my-admin") && sentence.contains("no value under nextcloud-password"), "{sentence}");
    // An empty value counts as missing.
    let set = |password: &str| {
        let patch = json!({"stringData": {"nextcloud-password": password, "touched": "yes"}}).to_string();
        tenant.kubectl(&["patch", "secret", "my-admin", "--patch", &patch]).unwrap();
    };
    set("");
    tenant.condition("acme", "Ready", "False", "AdminSecretKeyMissing").await;
    set("correct horse");
    let status = tenant.ready("acme", 1).await;
    assert_eq!(status.admin_secret_name.as_deref(), Some("my-admin"));
}
