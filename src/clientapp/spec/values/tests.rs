use super::*;

fn made() -> DatabaseAddress {
    DatabaseAddress {
        host: From::Value("acme-pg-pgbouncer.tenants.svc.cluster.local".to_owned()),
        name: From::Value("clientapp".to_owned()),
        user: Some("clientapp".to_owned()),
        secret: "acme-pg-pguser-clientapp".to_owned(),
        user_key: "user".to_owned(),
        password_key: "password".to_owned(),
    }
}

fn external() -> DatabaseAddress {
    DatabaseAddress {
        host: From::Key("address".to_owned()),
        name: From::Key("db".to_owned()),
        user: None,
        secret: "theirs".to_owned(),
        user_key: "login".to_owned(),
        password_key: "secret".to_owned(),
    }
}

fn full(database: &DatabaseAddress) -> Inputs<'_> {
    Inputs {
        name: "acme",
        hostname: "acme.example.com",
        admin_secret: "acme-admin-secret",
        ingress_class: Some("traefik"),
        tls: None,
        redis_secret: Some("acme-redis-secret"),
        database: Some(database),
        persistence: Some(("8Gi", "")),
        image: None,
        replicas: None,
        trusted_domains: &[],
        mail: None,
        credentials: Some("all"),
        redis_credentials: Some("redis"),
    }
}

#[test]
fn the_tree_of_a_full_instance() {
    insta::assert_snapshot!(serde_yaml::to_string(&computed(&full(&made()))).unwrap());
}

/// Reserved with a database.
fn reserved(tls: Option<&TlsSource>) -> Reserved<'_> {
    Reserved { with_database: true, with_image: true, tls }
}

fn issued(kind: IssuerKind) -> TlsSource {
    TlsSource::Secret { name: "acme-tls".to_owned(), issuer: Some(CertificateIssuer { name: "own".to_owned(), kind }) }
}

#[test]
fn the_keys_of_tls() {
    let database = made();
    let tree = |tls: &TlsSource| computed(&Inputs { tls: Some(tls), ..full(&database) });
    assert_eq!(of_tls(None), json!({}));
    for (tls, annotations, secret) in [
        (issued(IssuerKind::Issuer), json!({"cert-manager.io/issuer": "own"}), json!("acme-tls")),
        (issued(IssuerKind::ClusterIssuer), json!({"cert-manager.io/cluster-issuer": "own"}), json!("acme-tls")),
        (TlsSource::Secret { name: "wildcard".to_owned(), issuer: None }, Value::Null, json!("wildcard")),
        (TlsSource::Elsewhere, Value::Null, Value::Null),
    ] {
        let tree = tree(&tls);
        let ingress = &tree["ingress"];
        assert_eq!((&ingress["annotations"], &ingress["tls"][0]["secretName"]), (&annotations, &secret), "{tls:?}");
        let hosts = if secret.is_null() { Value::Null } else { json!(["acme.example.com"]) };
        assert_eq!((&ingress["tls"][0]["hosts"], &ingress["className"]), (&hosts, &json!("traefik")), "{tls:?}");
        let of_tls = of_tls(Some(&tls));
        assert_eq!(of_tls, json!({"phpClientHttpsFix": {"enabled": true, "protocol": "https"}}), "{tls:?}");
    }
}

#[test]
fn only_with_tls_its_keys_are_reserved() {
    let (by_issuer, by_user) =
        (issued(IssuerKind::Issuer), TlsSource::Secret { name: "wildcard".to_owned(), issuer: None });
    let cases: [(&str, Value, [bool; 4]); 6] = [
        // Without TLS, with it elsewhere, with the user's Secret, with an issuer.
        ("", json!({"phpClientHttpsFix": {"enabled": false}}), [false; 4]),
        ("ingress.tls", json!({"ingress": {"tls": [{"secretName": "x"}]}}), [false, false, true, true]),
        (
            r"ingress.annotations.cert-manager\.io/issuer",
            json!({"ingress": {"annotations": {"cert-manager.io/issuer": "x"}}}),
            [false, false, false, true],
        ),
        (
            r"ingress.annotations.cert-manager\.io/cluster-issuer",
            json!({"ingress": {"annotations": {"cert-manager.io/cluster-issuer": "x"}}}),
            [false, false, false, true],
        ),
        ("", json!({"ingress": {"annotations": {"a.example.com/b": "c"}}}), [false; 4]),
        ("", json!({"ingress": {"annotations": null}}), [false; 4]),
    ];
    for (path, values, expected) in cases {
        for (tls, is_refused) in
            [None, Some(&TlsSource::Elsewhere), Some(&by_user), Some(&by_issuer)].into_iter().zip(expected)
        {
            let found = check_user_values(values.as_object().unwrap(), reserved(tls));
            let refusal = format!("{path} is computed by the operator: set spec.tls instead");
            assert_eq!(found, if is_refused { Err(refusal) } else { Ok(()) }, "{values} {tls:?}");
        }
    }
    let values = json!({"ingress": {"tls": []}});
    let of_profile = check_profile_values(values.as_object().unwrap(), reserved(Some(&by_user))).unwrap_err();
    assert_eq!(of_profile, "ingress.tls is computed by the operator: set defaults.tls instead");
}

#[test]
fn the_tree_of_a_bare_instance() {
    let database = made();
    let bare = Inputs {
        ingress_class: None,
        redis_secret: None,
        database: None,
        persistence: None,
        image: Image::parse("registry.example:5000/team/app:30.0.1"),
        replicas: Some(2),
        credentials: None,
        redis_credentials: None,
        ..full(&database)
    };
    insta::assert_snapshot!(serde_yaml::to_string(&computed(&bare)).unwrap());
}

#[test]
fn the_tree_of_a_database_that_exists_already() {
    insta::assert_snapshot!(serde_yaml::to_string(&external_database(&external())).unwrap());
    let named = DatabaseAddress { host: From::Value("db.example:6432".to_owned()), ..external() };
    let values = external_database(&named);
    assert_eq!((&values["host"], values["existingSecret"].get("hostKey")), (&json!("db.example:6432"), None));
}

#[test]
fn an_app_finds_its_redis_whatever_its_name() {
    let database = made();
    for (name, fullname) in [("acme", Value::Null), ("my-redis-app", json!("my-redis-app-redis"))] {
        let of = |redis_secret| computed(&Inputs { name, redis_secret, ..full(&database) })["redis"].clone();
        assert_eq!(of(Some("secret"))["fullnameOverride"], fullname);
        assert_eq!(of(None)["fullnameOverride"], Value::Null);
    }
}

#[test]
fn every_computed_key_is_reserved() {
    let (made, external) = (made(), external());
    let all =
        Inputs { image: Image::parse("a:b"), replicas: Some(1), persistence: Some(("1Gi", "fast")), ..full(&made) };
    let tls = issued(IssuerKind::ClusterIssuer);
    let all = Inputs { tls: Some(&tls), ..all };
    let mut open = vec![(String::new(), computed(&all)), (String::new(), computed(&full(&external)))];
    while let Some((path, value)) = open.pop() {
        match value {
            Value::Object(map) => open.extend(map.into_iter().map(|(key, value)| {
                let key = key.replace('.', r"\.");
                (if path.is_empty() { key } else { format!("{path}.{key}") }, value)
            })),
            _ => {
                let mut user = Value::Null;
                for key in keys(&path).into_iter().rev() {
                    user = json!({key: user});
                }
                let refusal = check_user_values(user.as_object().unwrap(), reserved(Some(&tls))).expect_err(&path);
                let field = if path.contains("checksum/") { "another annotation" } else { "spec." };
                assert!(refusal.contains(field), "{path}: {refusal}");
            }
        }
    }
}

#[test]
fn an_earlier_revision_gets_the_present_credentials() {
    let database = made();
    let of = |credentials, redis_credentials| computed(&Inputs { credentials, redis_credentials, ..full(&database) });
    let [then, now] = [of(Some("a"), Some("b")), of(Some("c"), Some("d"))];
    assert_eq!(with_credentials_of(then, &now), now);
    let without = of(None, None);
    assert_eq!(with_credentials_of(without.clone(), &now), without);
    assert_eq!(with_credentials_of(now.clone(), &without), now);
}

#[test]
fn user_values() {
    let deep = (0..40).fold(json!(1), |inner, _| json!({"a": inner}));
    let computed = |path: &str, field: &str| format!("{path} is computed by the operator: set {field} instead");
    let of_others = |path: &str| {
        format!(
            "{path} is reserved: with it, the release would name or use another release's objects in its namespace; leave it out"
        )
    };
    let no_map = "redis must be a map: the operator computes redis.enabled in it";
    for (values, refusal) in [
        (json!({"nextcloud": {"host": "x"}}), &*computed("nextcloud.host", "spec.hostname")),
        (json!({"redis": {"auth": {"password": "x"}}}), &computed("redis.auth", "spec.redis")),
        (json!({"redis": "off"}), no_map),
        (json!({"redis": null}), no_map),
        (json!({"externalDatabase": {"host": "x"}}), &computed("externalDatabase", "spec.postgres")),
        (json!({"image": {"registry": "mirror.example"}}), &computed("image.registry", "spec.image")),
        (
            json!({"nextcloud": {"extraEnv": [{"name": "A", "value": "a"}, {"name": "A", "value": "b"}]}}),
            "nextcloud.extraEnv has A twice: remove one of them",
        ),
        (json!({"nextcloud": {"extraEnv": [{"value": "a"}]}}), "nextcloud.extraEnv has an entry without a name"),
        (
            json!({"nextcloud": {"extraEnv": {"A": "a"}}}),
            "nextcloud.extraEnv must be a list: entries of the base values are added to it",
        ),
        (
            json!({"big": "x".repeat(300_000)}),
            "values are 300010 bytes of JSON; at most 262144 fit beside the chart in Helm's release Secret",
        ),
        (deep, "values nest deeper than 32 levels"),
        (json!({"fullnameOverride": "other"}), &of_others("fullnameOverride")),
        (json!({"redis": {"namespaceOverride": "other"}}), &of_others("redis.namespaceOverride")),
        (json!({"a": [1, {"existingClaim": "other"}]}), &of_others("a[].existingClaim")),
        (json!({"persistence": {"existingClaim": {"name": "x"}}}), &of_others("persistence.existingClaim")),
        (
            json!({"a": {"b": [1, 9_007_199_254_740_993_u64]}}),
            "a.b[1]: the number would reach the chart changed, since helm reads numbers as 64-bit floats: write it as a text, in quotes",
        ),
        (
            json!({"a": i64::MAX}),
            "a: the number would reach the chart changed, since helm reads numbers as 64-bit floats: write it as a text, in quotes",
        ),
        (
            json!({"a": {"k".repeat(1023): 1}}),
            &format!("a.{}… has a key of 1023 characters, which helm cannot read", "k".repeat(58)),
        ),
    ] {
        let result = check_user_values(values.as_object().unwrap(), reserved(None));
        assert_eq!(result.unwrap_err(), refusal, "{:.80}", values.to_string());
    }
    let numbers = json!([1_u64 << 53, i64::MIN, 1e300, 0.1, 9_007_199_254_740_994_u64]);
    for (values, with_database) in [
        (json!({"nextcloud": {"extraEnv": [{"name": "A", "value": "b"}]}}), true),
        (json!({"redis": {"architecture": "replication", "fullnameOverride": "", "existingClaim": null}}), true),
        (json!({"a": numbers, "k".repeat(1022): 1}), true),
        (json!({"externalDatabase": {"host": "x"}}), false),
        (json!({"image": {"registry": "mirror.example"}}), true),
    ] {
        let reserved = Reserved { with_database, with_image: false, tls: None };
        assert_eq!(check_user_values(values.as_object().unwrap(), reserved), Ok(()));
    }
}

#[test]
fn required_list_entries_are_kept() {
    let entry = |name: &str, value: &str| json!({"name": name, "value": value});
    let env = |entries: &[Value]| json!({"nextcloud": {"extraEnv": entries}});
    let base = env(&[entry("PGSSLCERT", "/tmp/none"), entry("A", "base")]);
    for (layers, expected) in [
        (vec![env(&[])], vec![entry("PGSSLCERT", "/tmp/none"), entry("A", "base")]),
        (vec![json!({"nextcloud": {"extraEnv": null}})], vec![entry("PGSSLCERT", "/tmp/none"), entry("A", "base")]),
        (
            vec![env(&[entry("B", "profile"), entry("A", "profile")]), env(&[entry("C", "$(B)"), entry("B", "spec")])],
            vec![entry("PGSSLCERT", "/tmp/none"), entry("A", "profile"), entry("B", "spec"), entry("C", "$(B)")],
        ),
        (
            vec![env(&[json!({"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}})])],
            vec![
                entry("PGSSLCERT", "/tmp/none"),
                json!({"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}),
            ],
        ),
        // What comes from Secrets, as it is rendered.
        (
            vec![env(&[entry("***", "***"), entry("***", "***")])],
            vec![entry("PGSSLCERT", "/tmp/none"), entry("A", "base"), entry("***", "***"), entry("***", "***")],
        ),
    ] {
        for layer in &layers {
            assert_eq!(check_user_values(layer.as_object().unwrap(), reserved(None)), Ok(()));
        }
        let merged = merge([&base].into_iter().chain(&layers));
        assert_eq!(merged["nextcloud"]["extraEnv"], json!(expected), "{layers:?}");
    }
    // Other lists are Helm's.
    let volumes = |name: &str| json!({"nextcloud": {"extraVolumes": [{"name": name}]}});
    assert_eq!(merge([&volumes("a"), &volumes("b")]), volumes("b"));
}

#[test]
fn replaced_values_are_named() {
    let base = json!({"nextcloud": {
        "extraEnv": [{"name": "PGSSLCERT", "value": "a"}], "hooks": {"before-starting": "x", "pre-upgrade": "y"},
    }});
    for (over, expected) in [
        (json!({}), vec![]),
        (json!({"nextcloud": {"extraEnv": [{"name": "A", "value": "b"}], "hooks": {"post-upgrade": "z"}}}), vec![]),
        (
            json!({"nextcloud": {"extraEnv": [{"name": "PGSSLCERT", "value": "b"}]}}),
            vec!["PGSSLCERT in nextcloud.extraEnv"],
        ),
        (
            json!({"nextcloud": {"hooks": {"before-starting": "z", "pre-upgrade": null}}}),
            vec!["nextcloud.hooks.before-starting", "nextcloud.hooks.pre-upgrade"],
        ),
        (json!({"nextcloud": {"hooks": null}}), vec!["nextcloud.hooks.before-starting", "nextcloud.hooks.pre-upgrade"]),
    ] {
        let expected: Vec<_> = expected.into_iter().map(replaces).collect();
        assert_eq!(replaced(&base, &merge([&base, &over])), expected, "{over}");
    }
    assert_eq!(replaced(&json!({}), &base), Vec::<String>::new());
}

#[test]
fn domains_that_are_named_are_trusted_besides_those_that_the_app_needs() {
    let of = |name: &str, domains: Value, metrics: bool| {
        let values = json!({"nextcloud": {"trustedDomains": domains}, "metrics": {"enabled": metrics}});
        json!(trusted_domains(&values, &Key::new("tenants", name), "nextcloud", "acme.example.com"))
    };
    assert_eq!(of("acme", json!([]), true), json!([]));
    assert_eq!(of("acme", Value::Null, false), json!([]));
    assert_eq!(of("acme", json!(["b.example"]), false), json!(["acme.example.com", "b.example"]));
    let service = "acme-nextcloud.tenants.svc.cluster.local";
    assert_eq!(
        of("acme", json!(["b.example", "acme.example.com", service]), true),
        json!(["acme.example.com", service, "b.example"])
    );
    let service = "my-nextcloud.tenants.svc.cluster.local";
    assert_eq!(of("my-nextcloud", json!(["b"]), true), json!(["acme.example.com", service, "b"]));
}

#[test]
fn mail_of_the_values_is_what_the_image_reads() {
    let values = |more: Value| {
        let sender = json!({"nextcloud": {"mail": {"enabled": true, "fromAddress": "cloud", "domain": "example.com"}}});
        merge([&sender, &json!({"nextcloud": more})])
    };
    let server =
        json!({"host": "smtp.example.com", "port": 587, "secure": "tls", "name": "cloud", "password": "secret"});
    let of = |more: Value| {
        let variables = mail(&values(more)).unwrap()?;
        let pairs =
            variables.iter().map(|of| format!("{}={}", of["name"].as_str().unwrap(), of["value"].as_str().unwrap()));
        Some(pairs.collect::<Vec<_>>())
    };
    let sender = ["MAIL_FROM_ADDRESS=cloud", "MAIL_DOMAIN=example.com"];
    let with_password = ["SMTP_SECURE=tls", "SMTP_PORT=587", "SMTP_AUTHTYPE=LOGIN", "SMTP_HOST=smtp.example.com"];
    let login = ["SMTP_NAME=cloud", "SMTP_PASSWORD=secret"];
    assert_eq!(of(json!({"mail": {"smtp": server}})).unwrap(), [&sender[..], &with_password, &login].concat());
    let own = json!([{"name": "SMTP_PASSWORD", "valueFrom": {"secretKeyRef": {"name": "smtp", "key": "password"}}}]);
    let from_secret = json!({"mail": {"smtp": server}, "extraEnv": own});
    assert_eq!(of(from_secret).unwrap(), [&sender[..], &with_password, &login[..1]].concat());
    let plain = ["SMTP_SECURE=ssl", "SMTP_PORT=465", "SMTP_AUTHTYPE=LOGIN", "SMTP_HOST=h"];
    assert_eq!(of(json!({"mail": {"smtp": {"host": "h"}}})).unwrap(), [&sender[..], &plain].concat());
    // As the chart reads it.
    assert_eq!(of(json!({})), None);
    assert_eq!(of(json!({"mail": {"enabled": false, "smtp": {"host": "h"}}})), None);
    for missing in ["fromAddress", "domain"] {
        let refused = mail(&values(json!({"mail": {missing: null, "smtp": {"host": "h"}}}))).unwrap_err();
        assert!(refused.contains("set fromAddress and domain"), "{refused}");
    }
    let mail_keys = ["smtp-host", "smtp-username", "smtp-password"];
    for (values, keys) in [
        (json!({}), vec![]),
        (json!({"nextcloud": {"mail": {"enabled": true}}}), mail_keys.to_vec()),
        (json!({"nextcloud": {"mail": {"enabled": false}}, "metrics": {"enabled": true}}), vec![]),
        (json!({"metrics": {"enabled": false, "token": "x"}}), vec![]),
        (json!({"metrics": {"enabled": true, "token": "x"}}), vec!["nextcloud-token"]),
    ] {
        assert_eq!(more_admin_keys(&values), keys, "{values}");
    }
}

#[test]
fn layers_merge_like_helms() {
    let merged = merge([
        &json!({"a": {"x": 1, "y": 1}, "list": [1, 2], "gone": 1}),
        &json!({"a": {"y": 2}, "list": [3], "gone": null}),
        &json!({"a": {"z": 3}}),
    ]);
    assert_eq!(merged, json!({"a": {"x": 1, "y": 2, "z": 3}, "list": [3], "gone": null}));
}

#[test]
fn images() {
    let hex = "0123456789abcdef".repeat(4);
    let digest = |name: &str| format!("{name}@sha256:{hex}");
    for (image, repository) in [
        ("nextcloud:30", Some("nextcloud")),
        ("nextcloud:30.0.1-Apache_2", Some("nextcloud")),
        ("library/nextcloud:30", Some("library/nextcloud")),
        ("r.example:5000/a/b:1", Some("r.example:5000/a/b")),
        ("registry:5000/b:1", Some("registry:5000/b")),
        ("localhost/a__b-c--d.e:1", Some("localhost/a__b-c--d.e")),
        (&digest("a/b"), Some("a/b@sha256")),
        (&digest("nextcloud"), Some("nextcloud@sha256")),
        (&digest("localhost:5000/b:1"), Some("localhost:5000/b:1@sha256")),
        ("r.example:5000/a/b", None),
        ("nextcloud", None),
        (":30", None),
        ("nextcloud:", None),
        ("Nextcloud:30", None),
        ("R.example/nextcloud:30", None),
        ("r.example/Team/nextcloud:30", None),
        ("r.example//nextcloud:30", None),
        ("r.example:/nextcloud:30", None),
        ("/nextcloud:30", None),
        ("a/b/:30", None),
        ("a..b:30", None),
        ("https://r.example/a:1", None),
        ("a b:1", None),
        ("nextcloud:-1", None),
        ("a/b@sha256:abc", None),
        (&digest("a").to_uppercase(), None),
        (&format!("a:1@md5:{hex}"), None),
        (&format!("a:{}", "1".repeat(129)), None),
    ] {
        let found = Image::parse(image);
        assert_eq!(found.as_ref().map(|image| &*image.repository), repository, "{image}");
        // The chart joins them.
        let joined = found.map(|Image { repository, tag }| format!("{repository}:{tag}"));
        assert!(joined.is_none_or(|joined| joined == image), "{image}");
    }
}

#[test]
fn zero_replicas_set_the_charts_autoscaler_aside() {
    for (values, expected) in [
        (json!({"replicaCount": 0, "hpa": {"enabled": true, "maxPods": 3}}), json!(false)),
        (json!({"replicaCount": 0, "hpa": {"maxPods": 3}}), Value::Null),
        (json!({"replicaCount": 0}), Value::Null),
        (json!({"replicaCount": 1, "hpa": {"enabled": true}}), json!(true)),
        (json!({"hpa": {"enabled": true}}), json!(true)),
    ] {
        assert_eq!(without_autoscaler(values.clone())["hpa"]["enabled"], expected, "{values}");
    }
}
