use serde_json::json;

use super::*;
use crate::{
    clientapp::{
        fixtures::{app, want, with},
        spec::credentials::placeholders,
    },
    crd::{CertificateIssuer, IssuerKind},
};

fn of(spec: &Value) -> Result<Desired, InvalidSpec> {
    desired(&app(spec), None, (&Sources::default(), &[]), &Config::for_tests())
}

#[test]
fn a_minimal_spec() {
    let (app, config) = (app(&json!({})), Config { base_values: json!({}), ..Config::for_tests() });
    let bare = desired(&app, None, (&Sources::default(), &placeholders(&app, &config)), &config).unwrap();
    insta::assert_snapshot!(serde_yaml::to_string(&bare.values.merged.0).unwrap());
    insta::assert_snapshot!(document(&bare));
    // The base values lie under it.
    let base = Config::for_tests().base_values;
    assert_eq!(want(&json!({})).values.merged.0, values::merge([&base, &bare.values.merged.0]));
    let hooks = &base["nextcloud"]["hooks"];
    assert!(hooks["pre-upgrade"].is_string() && hooks["pre-upgrade"] == hooks["before-starting"], "{hooks}");
}

fn document(desired: &Desired) -> String {
    let object = desired.database_object().unwrap();
    serde_yaml::to_string(&object.document(&object.targets(None).unwrap()).object).unwrap()
}

#[test]
fn a_standalone_database() {
    let postgres = json!({"provider": "standalone", "version": "17", "instances": 2});
    let desired = want(&json!({"postgres": postgres}));
    insta::assert_snapshot!(document(&desired));
    insta::assert_snapshot!(serde_yaml::to_string(&desired.values.merged.0["externalDatabase"]).unwrap());
}

#[test]
fn a_database_gets_what_production_asks_for() {
    let resources = json!({"requests": {"cpu": "500m"}, "limits": {"memory": "1Gi"}});
    let database = |postgres: Value| {
        let desired = want(&json!({"postgres": postgres}));
        let object = desired.database_object().unwrap();
        object.document(&object.targets(None).unwrap()).object["spec"].clone()
    };
    let percona = database(json!({"resources": resources}));
    assert_eq!(percona["instances"][0]["resources"], resources);
    let parameters = json!({"max_connections": "200"});
    let postgres =
        json!({"provider": "standalone", "resources": resources, "parameters": parameters, "tls": {"required": true}});
    let standalone = database(postgres);
    let classed = database(json!({"provider": "standalone", "storageClassName": "fast"}));
    assert_eq!(classed["storageClassName"], "fast");
    let spec = json!({"upgrade": {"backup": true}, "postgres": {"storageClassName": "fast"}});
    let percona = document(&want(&spec));
    assert_eq!(percona.matches("storageClassName: fast").count(), 2, "of the data and of the backups: {percona}");
    assert_eq!(standalone["tls"], json!({"required": true}));
    assert_eq!((&standalone["resources"], &standalone["parameters"]), (&resources, &parameters));
}

#[test]
fn refusals_name_the_field() {
    let external =
        |host: &str| json!({"postgres": {"provider": "external", "external": {"secretName": "s", "host": host}}});
    for host in ["db.example", "db.example:6432", "[::1]", "[::1]:6432", "10.0.0.1"] {
        assert!(of(&external(host)).is_ok(), "{host}");
    }
    let cluster = |more: Value| json!({"postgres": with(json!({"provider": "cloudnativepg", "version": "17"}), &more)});
    assert!(of(&cluster(json!({}))).is_ok());
    let old = of(&cluster(json!({"version": "13"}))).unwrap_err().to_string();
    assert!(old.contains("spec.postgres.version: the provider cloudnativepg has PostgreSQL 14 to 18"), "{old}");
    for (spec, field) in [
        (json!({"chartVersion": "latest"}), "spec.chartVersion"),
        (json!({"chartVersion": "^5"}), "spec.chartVersion"),
        (json!({"chartVersion": "5.5"}), "spec.chartVersion"),
        (json!({"chartVersion": "v5.5.2"}), "spec.chartVersion"),
        (json!({"image": "nextcloud"}), "spec.image"),
        (json!({"profile": "premium"}), "spec.profile"),
        (json!({"persistence": {"size": "8Gb"}}), "spec.persistence.size"),
        (json!({"persistence": {"size": "0"}}), "spec.persistence.size"),
        (json!({"postgres": {"storageSize": "10GB"}}), "spec.postgres.storageSize"),
        (json!({"postgres": {"version": "13"}}), "spec.postgres.version"),
        (json!({"postgres": {"resources": {"limits": {"cpu": "x"}}}}), "spec.postgres.resources"),
        (json!({"postgres": {"parameters": {"fsync": "off"}}}), "spec.postgres.parameters"),
        (json!({"postgres": {"provider": "standalone", "version": "13"}}), "spec.postgres.version"),
        (json!({"postgres": {"provider": "external"}}), "spec.postgres.external"),
        (external("db.example:70000"), "spec.postgres.external.host"),
        (external("[::1]:0"), "spec.postgres.external.host"),
        (external("db.example:x"), "spec.postgres.external.host"),
        (json!({"serviceAccountName": "Deployer"}), "spec.serviceAccountName"),
        (json!({"serviceAccountName": "other:deployer"}), "spec.serviceAccountName"),
        (json!({"upgrade": {"allow": "5.x"}}), "spec.upgrade.allow"),
        (json!({"upgrade": {"foreignLockTimeout": "soon"}}), "spec.upgrade.foreignLockTimeout"),
        (json!({"upgrade": {"foreignLockTimeout": "1m"}}), "spec.upgrade.foreignLockTimeout"),
        (json!({"upgrade": {"foreignLockTimeout": "-30m"}}), "spec.upgrade.foreignLockTimeout"),
        (json!({"upgrade": {"foreignLockTimeout": "721h"}}), "spec.upgrade.foreignLockTimeout"),
        (json!({"upgrade": {"backup": true}, "postgres": {"enabled": false}}), "spec.upgrade.backup"),
        (json!({"values": {"redis": {"enabled": false}}}), "spec.values"),
        (cluster(json!({"parameters": {"ssl": "off"}})), "spec.postgres.parameters"),
        (with(cluster(json!({})), &json!({"upgrade": {"backup": true}})), "spec.upgrade.backup"),
    ] {
        assert_eq!(of(&spec).map(|_| ()).map_err(|error| error.field), Err(field), "{spec}");
    }
}

#[test]
fn an_image_is_not_moved_to_another_registry() {
    let of = |image: &str, values: Value| {
        of(&json!({"image": image, "values": values})).map(|desired| desired.values.merged.0)
    };
    let global = |registry: &str| json!({"global": {"image": {"registry": registry}}});
    for (image, values, problem) in [
        (
            "r.example/a:1",
            global("mirror.example"),
            Some("global.image.registry of the values would replace it with mirror.example"),
        ),
        ("nextcloud:1", global("mirror.example"), Some("its registry is docker.io")),
        ("nextcloud:1", json!({"image": {"registry": "mirror.example"}}), Some("set spec.image instead")),
        ("mirror.example/a:1", global("mirror.example"), None),
        ("r.example/a:1", global(""), None),
        ("", global("mirror.example"), None),
        ("", json!({"image": {"registry": "mirror.example"}}), None),
    ] {
        let refused = of(image, values.clone()).map(drop).map_err(|error| error.problem);
        match problem {
            Some(problem) => assert!(refused.clone().unwrap_err().contains(problem), "{image} {values} {refused:?}"),
            None => assert_eq!(refused, Ok(()), "{image} {values}"),
        }
    }
    // A registry for all apps of a Profile is not for an image of one's own.
    let profile = json!({"helm": {"values": {"image": {"registry": "mirror.example"}}}});
    let profile = Ok(serde_json::from_value(profile).unwrap());
    let image = |spec: Value| with_profile(&profile, &spec).unwrap().values.merged.0["image"].clone();
    assert_eq!(image(json!({})), json!({"registry": "mirror.example"}));
    let own = json!({"registry": null, "repository": "r.example/a", "tag": "1"});
    assert_eq!(image(json!({"image": "r.example/a:1"})), own);
}

#[test]
fn mail_needs_nothing_of_a_generated_secret_that_it_lacks() {
    let mail = json!({"nextcloud": {
        "mail": {"enabled": true, "fromAddress": "a", "domain": "example.com", "smtp": {"host": "h", "password": "p"}},
        "extraEnv": [{"name": "MAIL_DOMAIN", "value": "own.example"}],
    }});
    let made = want(&json!({"values": mail}));
    let Values(values) = &made.values.merged;
    let variables = values["nextcloud"]["extraEnv"].as_array().unwrap();
    let of = |name: &str| {
        let found: Vec<_> = variables.iter().filter(|of| of["name"] == name).map(|of| &of["value"]).collect();
        (found.len(), found.first().map(|value| (*value).clone()))
    };
    assert_eq!(values["nextcloud"]["mail"]["enabled"], false);
    assert_eq!(of("SMTP_HOST"), (1, Some(json!("h"))));
    assert_eq!(of("SMTP_PASSWORD"), (1, Some(json!("p"))));
    assert_eq!(of("MAIL_DOMAIN"), (1, Some(json!("own.example"))));
    assert_eq!(of("PGSSLCERT").0, 1);
    assert_eq!((made.secrets.more_admin_keys, made.values.replaced), (vec![], vec![]));
    // The chart's own way, with a Secret of the user's, and without a server in the values.
    let own = want(&json!({"adminSecret": "mine", "values": mail}));
    let without = want(&json!({"values": {"nextcloud": {"mail": {"enabled": true}}}}));
    for made in [own, without] {
        assert_eq!(made.values.merged.0["nextcloud"]["mail"]["enabled"], true);
        assert_eq!(made.secrets.more_admin_keys, ["smtp-host", "smtp-username", "smtp-password"]);
    }
    let incomplete = json!({"values": {"nextcloud": {"mail": {"enabled": true, "smtp": {"host": "h"}}}}});
    assert_eq!(
        of_error(&incomplete),
        "spec.values: nextcloud.mail: set fromAddress and domain, the two halves of the sender's address"
    );
    let awaited = Sources::Pending(Hold::new(Reason::ValuesMissing, "there is none"));
    assert_eq!(with_values(&incomplete, &awaited).unwrap().values.awaits.unwrap().reason, Reason::ValuesMissing);
}

fn of_error(spec: &Value) -> String {
    of(spec).unwrap_err().to_string()
}

#[test]
fn a_new_name_has_room_for_what_the_chart_appends() {
    let of = |length: usize, status: Value| {
        let mut app = app(&json!({}));
        app.metadata.name = Some("a".repeat(length));
        app.status = Some(serde_json::from_value(status).unwrap());
        desired(&app, None, (&Sources::default(), &[]), &Config::for_tests()).map(drop)
    };
    let installed = json!({"installed": {"name": "nextcloud", "version": "5.5.2", "digest": "sha"}});
    for (length, as_new, as_installed) in [
        (1, true, true),
        (37, true, true),
        (38, false, true),
        (40, false, true),
        (41, false, true),
        (53, false, true),
        (54, false, false),
    ] {
        for (status, fits) in [(json!({}), as_new), (installed.clone(), as_installed)] {
            let refused = of(length, status).map_err(|error| error.to_string());
            let too_long = Err(format!("metadata.name: {NAME_TOO_LONG}"));
            assert_eq!(refused, if fits { Ok(()) } else { too_long }, "{length}");
        }
    }
    assert!(NAME_TOO_LONG.contains(&format!("at most {MAX_NAME} characters")));
    // A hash of ten characters, with its dash, after the longest name of a StatefulSet.
    assert_eq!(MAX_NAME + "-redis-replicas".len() + 11, 63);
    assert_eq!(MAX_NAME + "-nextcloud-cron".len(), 52);
}

#[test]
fn a_hostname_that_is_nearly_right_gets_a_suggestion() {
    let long = ["a", "b", "c", "d"].map(|letter| letter.repeat(63)).join(".");
    for (hostname, suggestion) in [
        ("Acme.Example.COM", Some("acme.example.com")),
        ("bücher.example", Some("xn--bcher-kva.example")),
        ("Bücher.example", Some("xn--bcher-kva.example")),
        ("例え.テスト", Some("xn--r8jz45g.xn--zckzah")),
        ("acme.example.com.", Some("acme.example.com")),
        (" acme.example.com", Some("acme.example.com")),
        ("*.example.com", None),
        ("a_b.example", None),
        ("https://acme.example.com/", None),
        ("acme..example", None),
        ("-a.example", None),
        (&long[..254], None),
        ("", None),
    ] {
        let InvalidSpec { field, problem, .. } = of(&json!({"hostname": hostname})).unwrap_err();
        assert_eq!(field, "spec.hostname", "{hostname}");
        assert!(problem.starts_with("must be a DNS name in lower case, such as acme.example.com"), "{problem}");
        assert_eq!(problem.split_once("; write ").map(|(_, written)| written), suggestion, "{hostname}");
    }
}

#[test]
fn the_digest_follows_what_helm_would_do_and_nothing_else() {
    let base = json!({"values": {"b": 1, "a": {"y": 1, "x": 2}}});
    let same = want(&base).target().digest.clone();
    for (change, equal) in [
        (json!({"suspend": true}), true),
        (json!({"deletionPolicy": "Retain"}), true),
        (json!({"serviceAccountName": "team"}), true),
        (json!({"values": {"a": {"x": 2, "y": 1}, "b": 1}}), true),
        (json!({"postgres": {"storageSize": "2Gi"}}), true),
        (json!({"postgres": {"adopt": true, "instances": 3}}), true),
        (json!({"postgres": {"provider": "standalone"}}), false),
        (json!({"hostname": "b.example"}), false),
        (json!({"chartVersion": "5.5.3"}), false),
        (json!({"values": {"b": 2, "a": {"y": 1, "x": 2}}}), false),
        (json!({"redis": {"enabled": false}}), false),
    ] {
        assert_eq!(want(&with(base.clone(), &change)).target().digest == same, equal, "{change}");
    }
}

fn layer(kind: &str, values: Value) -> Layer {
    Layer { origin: format!("{kind} more, key values.yaml"), values, is_secret: kind == "Secret" }
}

fn found(layers: &[Layer], salt: &str) -> Sources {
    let secret = layers.iter().filter(|layer| layer.is_secret).map(|layer| &layer.values);
    let hidden = Redactor::from_values(secret).unwrap();
    Sources::Resolved { layers: layers.to_vec().into(), salt: Salt(salt.into()), hidden }
}

fn with_values(spec: &Value, sources: &Sources) -> Result<Desired, InvalidSpec> {
    let (app, config) = (app(spec), Config::for_tests());
    desired(&app, None, (sources, &placeholders(&app, &config)), &config)
}

#[test]
fn credentials_are_awaited_and_then_part_of_the_digest() {
    let (app, config) = (app(&json!({})), Config::for_tests());
    let of = |credentials: &[Credentials]| desired(&app, None, (&Sources::default(), credentials), &config).unwrap();
    let all = placeholders(&app, &config);
    let known = of(&all);
    assert!(known.values.awaits.is_none());
    for left_out in 0..3 {
        let mut some = all.clone();
        let missing = some.remove(left_out);
        let hold = of(&some).values.awaits.unwrap();
        assert_eq!(
            (hold.reason, hold.message),
            (Reason::Pending, format!("Secret {} has not been read yet", missing.secret))
        );
        let mut changed = all.clone();
        changed[left_out].digest = "another".to_owned();
        assert_ne!(of(&changed).target().digest, known.target().digest, "{}", missing.secret);
        let redis = |desired: &Desired| desired.values.merged.0["redis"]["master"].clone();
        assert_eq!(redis(&of(&changed)) == redis(&known), missing.secret != "acme-redis-secret");
        changed[left_out] = Credentials { resource_version: "2".to_owned(), ..missing };
        assert_eq!(of(&changed).target().digest, known.target().digest);
    }
}

#[test]
fn values_from_elsewhere_lie_between_the_profile_and_the_spec() {
    let of = |values: Value| {
        [layer("Secret", json!({"cronjob": {"type": "of the first", "x": 1}})), layer("ConfigMap", values)]
    };
    let profile = Ok(premium());
    let spec = json!({"profile": "premium", "postgres": {"enabled": false}, "values": {"b": "of the spec"}});
    let more = json!({"a": "of the last", "b": "of the last", "cronjob": {"type": "of the last"}});
    let made = desired(&app(&spec), Some(&profile), (&found(&of(more), ""), &[]), &Config::for_tests()).unwrap();
    let Values(values) = &made.values.merged;
    assert_eq!(values["cronjob"], json!({"enabled": true, "type": "of the last", "x": 1}));
    assert_eq!((&values["a"], &values["b"]), (&json!("of the last"), &json!("of the spec")));
    assert_eq!(values["nextcloud"]["host"], "acme.example.com");
}

#[test]
fn values_from_elsewhere_undergo_the_checks_of_the_spec() {
    let half = || json!({"x": "x".repeat(150_000)});
    let wide = |key: &str| json!({key: "x".repeat(150_000)});
    let (none, secret) = (json!({}), |values: Value| vec![layer("Secret", values)]);
    const TOO_LARGE: &str = "merged with spec.values: values are 300015 bytes of JSON";
    for (spec, layers, problem) in [
        (
            &none,
            secret(json!({"nextcloud": {"host": "x"}})),
            "Secret more, key values.yaml: nextcloud.host is computed by the operator: set spec.hostname instead",
        ),
        (
            &none,
            vec![layer("ConfigMap", json!({"redis": "off"}))],
            "ConfigMap more, key values.yaml: redis must be a map",
        ),
        (
            &none,
            secret(json!({"externalDatabase": {"host": "x"}})),
            "Secret more, key values.yaml: externalDatabase is computed",
        ),
        // Covered by a later layer, but a mistake nevertheless.
        (
            &none,
            [secret(json!({"redis": {"enabled": true}})), vec![layer("ConfigMap", json!({"redis": {}}))]].concat(),
            "Secret more, key values.yaml: redis.enabled is computed",
        ),
        (
            &none,
            secret(json!({"a": 9_007_199_254_740_993_u64})),
            "Secret more, key values.yaml: a: the number would reach the chart changed",
        ),
        (&none, [secret(half()), secret(wide("y"))].concat(), TOO_LARGE),
        (&json!({"values": wide("y")}), secret(half()), TOO_LARGE),
    ] {
        let error = with_values(spec, &found(&layers, "")).unwrap_err();
        assert_eq!((error.reason, error.field), (Reason::ValuesInvalid, "spec.valuesFrom"), "{error}");
        assert!(error.problem.starts_with(problem), "{error}");
        assert!(!error.problem.contains("9007199254740993"), "{error}");
    }
    let own = json!({"postgres": {"enabled": false}});
    assert!(with_values(&own, &found(&[layer("Secret", json!({"externalDatabase": {"host": "x"}}))], "")).is_ok());
    assert!(with_values(&json!({}), &found(&[layer("Secret", half()), layer("ConfigMap", half())], "")).is_ok());
    let unfit = with_values(&json!({}), &Sources::Invalid("Secret more, key k: not YAML".to_owned())).unwrap_err();
    assert_eq!(unfit.to_string(), "spec.valuesFrom: Secret more, key k: not YAML");
}

#[test]
fn a_digest_does_not_help_to_guess_a_secret() {
    let of = |values: &Value, salt: &str| {
        let made = with_values(&json!({}), &found(&[layer("Secret", values.clone())], salt)).unwrap();
        (made.target().digest.clone(), made.values.merged)
    };
    let inline = |values: &Value| want(&json!({"values": values})).target().digest.clone();
    let pin = json!({"pin": "1234"});
    let (salted, Values(values)) = of(&pin, "salt");
    assert_eq!(salted, of(&pin, "salt").0);
    assert_ne!(salted, of(&json!({"pin": "4321"}), "salt").0);
    assert_ne!(salted, of(&pin, "another").0);
    // What a user can compute who knows everything but the salt.
    assert_ne!(salted, inline(&pin));
    // Without values from elsewhere, the digest is as it always was.
    assert_eq!(with_values(&json!({}), &found(&[], "salt")).unwrap().target().digest, want(&json!({})).target().digest);
    let awaited = Sources::Pending(Hold::new(Reason::ValuesMissing, "there is none"));
    let incomplete = with_values(&json!({}), &awaited).unwrap();
    assert_eq!(incomplete.values.awaits.as_ref().unwrap().reason, Reason::ValuesMissing);
    assert_ne!(incomplete.target().digest, want(&json!({})).target().digest);

    assert_eq!(values["pin"], "1234");
    let made = with_values(&json!({}), &found(&[layer("Secret", pin)], "salt")).unwrap();
    assert!(!format!("{made:?}").contains("1234"));
    assert_eq!(made.values.redactor.redact("pin 1234 is wrong"), "pin *** is wrong");
    let public = with_values(&json!({}), &found(&[layer("ConfigMap", json!({"pin": "1234"}))], "salt")).unwrap();
    assert_eq!(public.values.redactor.redact("pin 1234 is wrong"), "pin 1234 is wrong");
}

fn premium() -> ProfileSpec {
    serde_json::from_value(json!({
        "description": "d",
        "defaults": {
            "replicaCount": 2,
            "resources": {"requests": {"cpu": "200m"}},
            "persistence": {"size": "10Gi"},
            "apps": {"cronjob": {"enabled": true}},
        },
        "helm": {"values": {"phpClientHttpsFix": {"enabled": true}, "cronjob": {"type": "sidecar"}}},
    }))
    .unwrap()
}

fn with_profile(profile: &StoredProfile, more: &Value) -> Result<Desired, InvalidSpec> {
    let spec = with(json!({"profile": "premium", "postgres": {"enabled": false}}), more);
    desired(&app(&spec), Some(profile), (&Sources::default(), &[]), &Config::for_tests())
}

#[test]
fn a_profile_lies_over_the_base_values_and_under_the_spec() {
    let profile = Ok(premium());
    let values = |more: Value| with_profile(&profile, &more).unwrap().values.merged.0;
    let taken = values(json!({}));
    assert_eq!(taken["replicaCount"], 2);
    assert_eq!(taken["resources"], json!({"requests": {"cpu": "200m"}}));
    assert_eq!(taken["persistence"], json!({"enabled": true, "size": "10Gi"}));
    assert_eq!(taken["cronjob"], json!({"enabled": true, "type": "sidecar"}));
    assert_eq!(taken["phpClientHttpsFix"]["enabled"], true);
    assert_eq!(taken["nextcloud"]["extraEnv"][0]["name"], "PGSSLCERT");

    let over = values(json!({
        "replicas": 3,
        "persistence": {"size": "20Gi"},
        "values": {
            "resources": {"requests": {"cpu": "1"}},
            "cronjob": {"enabled": false},
            "redis": {"architecture": "replication"},
        },
    }));
    assert_eq!(over["replicaCount"], 3);
    assert_eq!(over["persistence"]["size"], "20Gi");
    assert_eq!(over["resources"], json!({"requests": {"cpu": "1"}}));
    assert_eq!(over["cronjob"], json!({"enabled": false, "type": "sidecar"}));
    assert_eq!((&over["redis"]["architecture"], &over["redis"]["enabled"]), (&json!("replication"), &json!(true)));
    assert_eq!(over["nextcloud"]["extraEnv"][0]["name"], "PGSSLCERT");
    assert_eq!(values(json!({"persistence": {"enabled": false}}))["persistence"], json!({"enabled": false}));
    let unsaid = with_profile(&Ok(ProfileSpec::default()), &json!({})).unwrap();
    assert_eq!(unsaid.values.merged.0["persistence"]["size"], "8Gi");
}

#[test]
fn tls_comes_from_the_spec_or_else_from_the_profile() {
    let secret = |name: &str, issuer: Option<(&str, IssuerKind)>| {
        let issuer = issuer.map(|(name, kind)| CertificateIssuer { name: name.to_owned(), kind });
        Some(TlsSource::Secret { name: name.to_owned(), issuer })
    };
    let ingress = json!({"ingressClassName": "traefik"});
    let issuer = json!({"issuer": {"name": "own"}});
    let cluster = json!({"issuer": {"name": "all", "kind": "ClusterIssuer"}});
    let (wildcard, elsewhere) = (json!({"secretName": "wildcard"}), json!({"terminatedElsewhere": true}));
    for (of_profile, of_spec, expected) in [
        (None, None, None),
        (None, Some(&issuer), secret("acme-tls", Some(("own", IssuerKind::Issuer)))),
        (None, Some(&cluster), secret("acme-tls", Some(("all", IssuerKind::ClusterIssuer)))),
        (Some(&cluster), None, secret("acme-tls", Some(("all", IssuerKind::ClusterIssuer)))),
        (Some(&cluster), Some(&wildcard), secret("wildcard", None)),
        (Some(&cluster), Some(&elsewhere), Some(TlsSource::Elsewhere)),
        (Some(&elsewhere), Some(&issuer), secret("acme-tls", Some(("own", IssuerKind::Issuer)))),
        (Some(&elsewhere), None, Some(TlsSource::Elsewhere)),
    ] {
        let defaults = of_profile.map_or_else(|| json!({}), |tls| json!({"tls": tls}));
        let profile: ProfileSpec = serde_json::from_value(json!({"defaults": defaults})).unwrap();
        let spec = of_spec.map_or_else(|| json!({}), |tls| json!({"tls": tls}));
        let found = with_profile(&Ok(profile.clone()), &with(ingress.clone(), &spec)).unwrap();
        assert_eq!(found.tls, expected, "{of_profile:?} {of_spec:?}");
        // There is nothing that a Profile's certificate could be for.
        if of_spec.is_none() {
            let found = with_profile(&Ok(profile), &spec).unwrap();
            assert_eq!(found.tls, expected.filter(|tls| *tls == TlsSource::Elsewhere), "{of_profile:?}");
        }
    }
    for tls in [
        json!({}),
        json!({"terminatedElsewhere": false}),
        json!({"secretName": "wildcard", "terminatedElsewhere": false}),
        json!({"secretName": "wildcard", "issuer": {"name": "own"}}),
        json!({"secretName": "wildcard", "terminatedElsewhere": true}),
    ] {
        let error = of(&with(ingress.clone(), &json!({"tls": tls}))).unwrap_err();
        assert_eq!((error.reason, error.field), (Reason::InvalidSpec, "spec.tls"), "{tls}");
        let profile: ProfileSpec = serde_json::from_value(json!({"defaults": {"tls": tls}})).unwrap();
        let error = with_profile(&Ok(profile), &json!({})).unwrap_err();
        assert_eq!((error.reason, error.field), (Reason::ProfileInvalid, "spec.profile"), "{tls}");
    }
    for tls in [issuer, wildcard] {
        let error = of(&json!({"tls": tls})).unwrap_err();
        assert!(error.to_string().contains("set ingressClassName"), "{error}");
    }
}

#[test]
fn a_database_is_closed_unless_its_profile_opens_namespaces() {
    for open in [false, true] {
        let profile: ProfileSpec = serde_json::from_value(json!({"namespace": {"open": open}})).unwrap();
        let desired = with_profile(&Ok(profile), &json!({"postgres": {"provider": "standalone"}})).unwrap();
        assert_eq!(desired.database_object().unwrap().isolated, !open);
    }
}

#[test]
fn a_changed_profile_changes_the_digest() {
    let digest = |profile: ProfileSpec| with_profile(&Ok(profile), &json!({})).unwrap().target().digest.clone();
    let described = ProfileSpec { description: "another".to_owned(), ..premium() };
    assert_eq!(digest(premium()), digest(described));
    let mut larger = premium();
    larger.defaults.persistence.size = Some("11Gi".to_owned());
    assert_ne!(digest(premium()), digest(larger));
}

#[test]
fn profiles_that_cannot_be_carried_out() {
    let refused = |spec: Value| {
        let profile: StoredProfile = Ok(serde_json::from_value(spec).unwrap());
        let error = with_profile(&profile, &json!({"postgres": {"enabled": true}})).unwrap_err();
        assert_eq!((error.reason, error.field), (Reason::ProfileInvalid, "spec.profile"));
        error.problem
    };
    for (spec, sentence) in [
        (
            json!({"helm": {"values": {"nextcloud": {"host": "x"}}}}),
            "helm.values: nextcloud.host is computed by the operator: set spec.hostname of each ClientApp instead",
        ),
        (
            json!({"helm": {"values": {"replicaCount": 2}}}),
            "helm.values: replicaCount is computed by the operator: set defaults.replicaCount instead",
        ),
        (
            json!({"helm": {"values": {"externalDatabase": {"enabled": false}}}}),
            "helm.values: externalDatabase is computed by the operator: set spec.postgres of each ClientApp instead",
        ),
        (
            json!({"defaults": {"apps": {"redis": {"enabled": false}}}}),
            "defaults.apps: redis.enabled is computed by the operator: set spec.redis.enabled of each ClientApp instead",
        ),
        (
            json!({"defaults": {"persistence": {"size": "10GB"}}}),
            "defaults.persistence.size: must be a quantity above zero such as 10Gi",
        ),
    ] {
        assert_eq!(refused(spec), format!("Profile premium is not valid: {sentence}"));
    }
    let error = with_profile(&Err("spec: no".to_owned()), &json!({})).unwrap_err();
    assert_eq!(error.to_string(), "spec.profile: Profile premium is not valid: it does not decode: spec: no");
    let missing = of(&json!({"profile": "gold"})).unwrap_err();
    assert_eq!(missing.reason, Reason::ProfileMissing);
    assert_eq!(missing.to_string(), "spec.profile: there is no Profile gold: create it, or name another");
}
