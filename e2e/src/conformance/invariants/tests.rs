use serde_json::{Value, json};

use super::*;

/// What a ClientApp asks for, whose spec has this beside its hostname.
fn asked(spec: Value) -> Asked {
    let mut app =
        json!({"metadata": {"name": "acme", "namespace": "tenant"}, "spec": {"hostname": "acme.example.com"}});
    for (key, value) in spec.as_object().into_iter().flatten() {
        app["spec"][key] = value.clone();
    }
    Asked::new(&app, &Value::Null, &[])
}

fn secret(name: &str, key: &str) -> Value {
    json!({"secretKeyRef": {"name": name, "key": key}})
}

/// A release that holds, as a chart would render it.
fn fine() -> Release {
    let redis = json!({"app.kubernetes.io/name": "redis"});
    let labels = json!({"app.kubernetes.io/name": "nextcloud", "app.kubernetes.io/component": "app"});
    Release {
        objects: vec![
            json!({"kind": "Deployment", "metadata": {"name": "acme-nextcloud", "labels": labels}, "spec": {
                "replicas": 1, "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": {
                    "initContainers": [{"name": "init-redis-session-ini", "image": "docker.io/library/nextcloud:34"}],
                    "containers": [{
                        "name": "nextcloud", "image": "docker.io/library/nextcloud:34", "ports": [{"name": "http", "containerPort": 80}],
                        "env": [
                            {"name": "POSTGRES_HOST", "value": "acme-pg-pgbouncer.tenant.svc.cluster.local"},
                            {"name": "POSTGRES_DB", "value": "clientapp"},
                            {"name": "POSTGRES_USER", "valueFrom": secret("acme-pg-pguser-clientapp", "user")},
                            {"name": "POSTGRES_PASSWORD", "valueFrom": secret("acme-pg-pguser-clientapp", "password")},
                            {"name": "REDIS_HOST", "value": "acme-redis-master"},
                            {"name": "REDIS_HOST_PORT", "value": "6379"},
                            {"name": "REDIS_HOST_PASSWORD", "valueFrom": secret("acme-redis-secret", "redis-password")},
                            {"name": "NEXTCLOUD_TRUSTED_DOMAINS", "value": "acme.example.com acme-nextcloud.tenant.svc.cluster.local"},
                            {"name": "PGSSLCERT", "value": "/tmp/postgresql.crt"},
                        ],
                        "readinessProbe": {"httpGet": {"httpHeaders": [{"name": "Host", "value": "acme.example.com"}]}},
                        "volumeMounts": [{"name": "nextcloud-main", "mountPath": "/var/www/html"}],
                    }],
                    "volumes": [
                        {"name": "nextcloud-main", "persistentVolumeClaim": {"claimName": "acme-nextcloud-nextcloud"}},
                        {"name": "hooks", "configMap": {"name": "acme-nextcloud-hooks", "items": [{"key": "before-starting.sh"}]}},
                    ],
                }},
            }}),
            json!({"kind": "ConfigMap", "metadata": {"name": "acme-nextcloud-hooks"}, "data": {"before-starting.sh": ""}}),
            json!({"kind": "PersistentVolumeClaim", "metadata": {
            "name": "acme-nextcloud-nextcloud", "annotations": {"helm.sh/resource-policy": "keep"},
        }, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "8Gi"}}}}),
            json!({"kind": "StatefulSet", "metadata": {"name": "acme-redis-master"}, "spec": {
                "replicas": 1, "serviceName": "acme-redis-headless", "selector": {"matchLabels": redis},
                "volumeClaimTemplates": [{"metadata": {"name": "redis-data"}}],
                "template": {"metadata": {"labels": redis}, "spec": {
                    "containers": [{
                        "name": "redis", "image": "docker.io/bitnamilegacy/redis:7", "ports": [{"name": "redis", "containerPort": 6379}],
                        "volumeMounts": [{"name": "redis-data", "mountPath": "/data"}],
                    }],
                    "volumes": [{"name": "password", "secret": {"secretName": "acme-redis-secret", "items": [{"key": "redis-password"}]}}],
                }},
            }}),
            json!({"kind": "Service", "metadata": {"name": "acme-nextcloud"}, "spec": {
                "selector": labels, "ports": [{"port": 8080, "targetPort": 80}],
            }}),
            json!({"kind": "Service", "metadata": {"name": "acme-redis-master"}, "spec": {
                "selector": redis, "ports": [{"port": 6379, "targetPort": "redis"}],
            }}),
        ],
    }
}

/// The paths to what the tables below change.
const POD: &str = "/0/spec/template/spec";
const CONTAINER: &str = "/0/spec/template/spec/containers/0";

/// The release with this at a path, from the index of an object on; a null removes it.
fn with(mut release: Release, path: &str, value: Value) -> Release {
    let mut objects = Value::Array(release.objects);
    let (parent, key) = path.rsplit_once('/').unwrap();
    match objects.pointer_mut(parent).unwrap_or_else(|| panic!("there is no {parent}")) {
        Value::Array(list) if key == "-" => list.push(value),
        Value::Array(list) if value.is_null() => drop(list.remove(key.parse().unwrap())),
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
        Value::Object(map) if value.is_null() => drop(map.remove(key)),
        Value::Object(map) => drop(map.insert(key.replace("~1", "/"), value)),
        scalar => panic!("{parent} is {scalar}"),
    }
    let Value::Array(list) = objects else { unreachable!() };
    release.objects = list;
    release
}

fn with_object(release: Release, object: Value) -> Release {
    with(release, "/-", object)
}

#[track_caller]
fn violated(invariant: Invariant, asked: &Asked, release: &Release, told: &[&str]) {
    let (plain, before) = (fine(), fine());
    assert_eq!(invariant(Case { asked, release, plain: &plain, before: Some(&before) }), told);
}

#[test]
fn a_release_that_holds() {
    for (_, invariant) in INVARIANTS {
        violated(*invariant, &asked(json!({})), &fine(), &[]);
    }
}

#[test]
fn parts_that_are_not_rendered() {
    let mail = json!({"values": {"nextcloud": {"mail": {"enabled": true}}}});
    for (spec, part) in [
        (json!({"values": {"hpa": {"enabled": true}}}), "hpa"),
        (json!({"values": {"cronjob": {"enabled": true}}}), "cronjob"),
        (json!({"values": {"cronjob": {"enabled": true, "type": "cronjob"}}}), "cronjob"),
        (json!({"values": {"metrics": {"enabled": true}}}), "metrics"),
        (mail, "nextcloud.mail"),
        (json!({"ingressClassName": "traefik"}), "an Ingress"),
        (json!({"values": {"httpRoute": {"enabled": true}}}), "httpRoute"),
    ] {
        let told = format!("{part} was switched on, and nothing is rendered for it");
        violated(parts, &asked(spec), &fine(), &[&told]);
    }
    let beside = with(
        fine(),
        &format!("{POD}/containers/-"),
        json!({"name": "nextcloud-cron", "image": "docker.io/library/nextcloud:34"}),
    );
    violated(parts, &asked(json!({"values": {"cronjob": {"enabled": true}}})), &beside, &[]);
}

#[test]
fn images_in_every_form() {
    let everywhere = |image: &str| {
        let app = with(fine(), &format!("{CONTAINER}/image"), json!(image));
        with(app, &format!("{POD}/initContainers/0/image"), json!(image))
    };
    let digest = format!("registry.example.com/nextcloud@sha256:{}", "0".repeat(64));
    for (wanted, rendered, holds) in [
        ("registry.example.com:5000/nextcloud:34", "registry.example.com:5000/nextcloud:34", true),
        ("registry.example.com/nextcloud:34", "docker.io/registry.example.com/nextcloud:34", false),
        ("nextcloud:34", "docker.io/nextcloud:34", true),
        ("nextcloud:34", "docker.io/library/nextcloud:34", true),
        ("platform/nextcloud:34", "docker.io/platform/nextcloud:34", true),
        ("platform/nextcloud:34", "docker.io/library/platform/nextcloud:34", false),
        ("localhost:5000/nextcloud:34", "docker.io/localhost:5000/nextcloud:34", false),
        ("localhost/nextcloud:34", "localhost/nextcloud:34", true),
        (digest.as_str(), digest.as_str(), true),
        ("nextcloud:34", "nextcloud:35", false),
    ] {
        let (asked, release) = (asked(json!({"image": wanted})), everywhere(rendered));
        let (init, app) = (
            "Deployment acme-nextcloud, container init-redis-session-ini",
            "Deployment acme-nextcloud, container nextcloud",
        );
        let told = [init, app].map(|at| format!("{at} runs {rendered}, not {wanted}"));
        let told: Vec<_> = told.iter().filter(|_| !holds).map(String::as_str).collect();
        violated(images, &asked, &release, &told);
    }
}

#[test]
fn images_of_all_other_containers_stay() {
    let app = asked(json!({"image": "registry.example.com/nextcloud:34"}));
    let own = with(fine(), &format!("{CONTAINER}/image"), json!("registry.example.com/nextcloud:34"));
    // The container that prepares Redis' session runs as the app.
    let forgotten = "Deployment acme-nextcloud, container init-redis-session-ini runs docker.io/library/nextcloud:34, not registry.example.com/nextcloud:34";
    violated(images, &app, &own, &[forgotten]);
    let other = with(fine(), "/3/spec/template/spec/containers/0/image", json!("docker.io/bitnamilegacy/redis:8"));
    violated(
        images,
        &asked(json!({})),
        &other,
        &[
            "StatefulSet acme-redis-master, container redis runs docker.io/bitnamilegacy/redis:8, not docker.io/bitnamilegacy/redis:7",
        ],
    );
    let job = json!({"kind": "CronJob", "metadata": {"name": "acme-nextcloud-cron"}, "spec": {"jobTemplate": {"spec": {"template": {
        "spec": {"containers": [{"name": "nextcloud-cron", "image": "docker.io/library/nextcloud:33"}]},
    }}}}});
    violated(
        images,
        &asked(json!({})),
        &with_object(fine(), job),
        &[
            "CronJob acme-nextcloud-cron, container nextcloud-cron runs docker.io/library/nextcloud:33, not docker.io/library/nextcloud:34",
        ],
    );
    let metrics = json!({"kind": "Deployment", "metadata": {"name": "acme-nextcloud-metrics"}, "spec": {"template": {
        "spec": {"containers": [{"name": "metrics-exporter", "image": "docker.io/bitnami/exporter:1"}]},
    }}});
    violated(
        images,
        &asked(json!({})),
        &with_object(fine(), metrics),
        &[
            "Deployment acme-nextcloud-metrics, container metrics-exporter runs docker.io/bitnami/exporter:1, which was withdrawn from its registry",
        ],
    );
}

#[test]
fn what_a_pod_reads_exists() {
    let reads = |from: Value| with(fine(), &format!("{CONTAINER}/env/-"), json!({"name": "X", "valueFrom": from}));
    let volume = |volume: Value| with(fine(), &format!("{POD}/volumes/-"), volume);
    let app = "Deployment acme-nextcloud";
    for (release, told) in [
        (reads(secret("acme-admin-secret", "nextcloud-password")), None),
        (
            reads(secret("acme-admin-secret", "smtp-host")),
            Some("reads Secret acme-admin-secret, key smtp-host: that key is not in it"),
        ),
        (reads(secret("acme-db", "password")), Some("reads Secret acme-db, key password: there is none")),
        (reads(json!({"secretKeyRef": {"name": "acme-db", "key": "password", "optional": true}})), None),
        (
            reads(json!({"configMapKeyRef": {"name": "acme-nextcloud-hooks", "key": "x"}})),
            Some("reads ConfigMap acme-nextcloud-hooks, key x: that key is not in it"),
        ),
        (
            with(fine(), &format!("{CONTAINER}/envFrom"), json!([{"secretRef": {"name": "mine"}}])),
            Some("reads Secret mine: there is none"),
        ),
        (
            volume(json!({"name": "v", "secret": {"secretName": "acme-redis-secret", "items": [{"key": "x"}]}})),
            Some("reads Secret acme-redis-secret, key x: that key is not in it"),
        ),
        (
            volume(json!({"name": "v", "projected": {"sources": [{"secret": {"name": "mine"}}]}})),
            Some("reads Secret mine: there is none"),
        ),
        (volume(json!({"name": "v", "configMap": {"name": "gone"}})), Some("reads ConfigMap gone: there is none")),
        (
            volume(json!({"name": "v", "persistentVolumeClaim": {"claimName": "gone"}})),
            Some("mounts PersistentVolumeClaim gone: there is none"),
        ),
        (
            with(fine(), &format!("{POD}/imagePullSecrets"), json!([{"name": "pull"}])),
            Some("reads Secret pull: there is none"),
        ),
        (
            with(fine(), &format!("{POD}/serviceAccountName"), json!("gone")),
            Some("runs as ServiceAccount gone: there is none"),
        ),
        (
            with(fine(), &format!("{CONTAINER}/volumeMounts/-"), json!({"name": "gone"})),
            Some("mounts the volume gone: it has none"),
        ),
    ] {
        let told: Vec<_> = told.iter().map(|told| format!("{app} {told}")).collect();
        violated(references, &asked(json!({})), &release, &told.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let of_release = with_object(
        reads(secret("acme-db", "password")),
        json!({"kind": "Secret", "metadata": {"name": "acme-db"}, "stringData": {"password": "x"}}),
    );
    violated(references, &asked(json!({})), &of_release, &[]);
}

#[test]
fn replicas_are_the_specs_or_the_autoscalers() {
    let scaler = json!({"kind": "HorizontalPodAutoscaler", "metadata": {"name": "acme-nextcloud"}, "spec": {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "acme-nextcloud"},
    }});
    let three = asked(json!({"replicas": 3}));
    violated(replicas, &three, &fine(), &["Deployment acme-nextcloud has 1 replicas, not 3"]);
    violated(replicas, &three, &with(fine(), "/0/spec/replicas", json!(3)), &[]);
    let scaled = asked(json!({"values": {"hpa": {"enabled": true}}}));
    let both = with_object(fine(), scaler);
    violated(replicas, &scaled, &both, &["Deployment acme-nextcloud has 1 replicas, though an autoscaler owns them"]);
    let owned = with(both, "/0/spec/replicas", Value::Null);
    violated(replicas, &scaled, &owned, &[]);
    let elsewhere = with(owned, "/6/spec/scaleTargetRef/name", json!("other"));
    violated(
        replicas,
        &scaled,
        &elsewhere,
        &[
            r#"the autoscaler targets [{"apiVersion":"apps/v1","kind":"Deployment","name":"other"}], not Deployment acme-nextcloud"#,
        ],
    );
    violated(
        replicas,
        &asked(json!({"redis": {"enabled": false}})),
        &fine(),
        &[r#"StatefulSets are ["1 of acme-redis-master"]: Redis is one pod if it is asked for"#],
    );
    let nodes = with(fine(), "/3/spec/replicas", json!(3));
    violated(
        replicas,
        &asked(json!({})),
        &nodes,
        &[r#"StatefulSets are ["3 of acme-redis-master"]: Redis is one pod if it is asked for"#],
    );
}

#[test]
fn the_environment_of_the_database() {
    let at = "Deployment acme-nextcloud, container nextcloud";
    let env = |index: usize, entry: Value| with(fine(), &format!("{CONTAINER}/env/{index}"), entry);
    for (release, told) in [
        (env(8, Value::Null), format!("{at} has no PGSSLCERT")),
        (
            env(0, json!({"name": "POSTGRES_HOST", "value": "localhost"})),
            format!(
                "{at} has POSTGRES_HOST {{\"value\":\"localhost\"}}, not Value(\"acme-pg-pgbouncer.tenant.svc.cluster.local\")"
            ),
        ),
        (
            env(3, json!({"name": "POSTGRES_PASSWORD", "value": "changeme"})),
            format!(
                "{at} has POSTGRES_PASSWORD {{\"value\":\"changeme\"}}, not Secret(\"acme-pg-pguser-clientapp\", \"password\")"
            ),
        ),
        (
            with(fine(), &format!("{CONTAINER}/env/-"), json!({"name": "SQLITE_DATABASE", "value": "x"})),
            format!("{at} has SQLITE_DATABASE"),
        ),
    ] {
        violated(database, &asked(json!({})), &release, &[&told]);
    }
    let own = asked(json!({"values": {"nextcloud": {"extraEnv": [{"name": "PGSSLCERT", "value": "/mine"}]}}}));
    violated(database, &own, &env(8, json!({"name": "PGSSLCERT", "value": "/mine"})), &[]);
    let standalone = asked(json!({"postgres": {"provider": "standalone"}}));
    let found =
        |release: Release| database(Case { asked: &standalone, release: &release, plain: &fine(), before: None }).len();
    assert_eq!(found(fine()), 3, "host, user and password are another provider's");
    let external = Asked::new(
        &json!({"metadata": {"name": "acme"}, "spec": {"postgres": {"provider": "external", "external": {"secretName": "mine", "host": "db:6432"}}}}),
        &Value::Null,
        &[("mine", &["dbname", "user", "password"])],
    );
    assert_eq!(external.database.host, Source::Value("db:6432".to_owned()));
    assert_eq!(external.database.name, Source::Secret("mine".to_owned(), "dbname".to_owned()));
    assert!(!external.secrets["mine"].contains("host"), "{:?}", external.secrets);
}

#[test]
fn the_environment_of_redis() {
    let at = "Deployment acme-nextcloud, container nextcloud";
    let env = |index: usize, entry: Value| with(fine(), &format!("{CONTAINER}/env/{index}"), entry);
    for (release, told) in [
        (
            env(4, json!({"name": "REDIS_HOST", "value": "redis-shop-redis-master"})),
            format!("{at} looks for Redis at \"redis-shop-redis-master\", which is no Service of the release"),
        ),
        (
            env(5, json!({"name": "REDIS_HOST_PORT", "value": "6380"})),
            format!("{at} looks for Redis at port \"6380\" of Service acme-redis-master"),
        ),
        (
            env(6, json!({"name": "REDIS_HOST_PASSWORD", "value": "changeme"})),
            format!(
                "{at} has REDIS_HOST_PASSWORD {{\"value\":\"changeme\"}}, not Secret(\"acme-redis-secret\", \"redis-password\")"
            ),
        ),
        (
            with(fine(), "/3/spec/template/spec/volumes/0", Value::Null),
            "StatefulSet acme-redis-master does not read key redis-password of Secret acme-redis-secret".to_owned(),
        ),
    ] {
        violated(redis, &asked(json!({})), &release, &[&told]);
    }
    let off = asked(json!({"redis": {"enabled": false}}));
    violated(redis, &off, &fine(), &[&format!("{at} has REDIS_HOST"), &format!("{at} has REDIS_HOST_PASSWORD")]);
}

#[test]
fn the_hostname_and_no_other() {
    let at = "Deployment acme-nextcloud, container nextcloud";
    let domains = with(fine(), &format!("{CONTAINER}/env/7/value"), json!("acme.example.com.evil"));
    violated(
        host,
        &asked(json!({})),
        &domains,
        &[&format!("{at} trusts \"acme.example.com.evil\", not acme.example.com")],
    );
    let probe = with(fine(), &format!("{CONTAINER}/readinessProbe/httpGet/httpHeaders/0/value"), json!("other"));
    violated(host, &asked(json!({})), &probe, &[&format!("{at}: readinessProbe asks for host \"other\"")]);
    let ingress = |host: &str, class: Value| {
        with_object(
            fine(),
            json!({"kind": "Ingress", "metadata": {"name": "acme-nextcloud"}, "spec": {"ingressClassName": class, "rules": [{"host": host}]}}),
        )
    };
    let app = asked(json!({"ingressClassName": "traefik"}));
    violated(host, &app, &ingress("acme.example.com", json!("traefik")), &[]);
    violated(host, &app, &ingress("other", json!("traefik")), &["a route leads from host \"other\""]);
    violated(
        host,
        &app,
        &ingress("acme.example.com", json!("nginx")),
        &["Ingress acme-nextcloud has class Some(\"nginx\"), not Some(\"traefik\")"],
    );
    let route = |spec: Value| {
        with_object(fine(), json!({"kind": "HTTPRoute", "metadata": {"name": "acme-nextcloud"}, "spec": spec}))
    };
    violated(host, &app, &route(json!({"hostnames": ["acme.example.com"]})), &[]);
    violated(host, &app, &route(json!({})), &["HTTPRoute acme-nextcloud has no hostname: it takes every host"]);
}

#[test]
fn services_and_routes_lead_somewhere() {
    let port = with(fine(), "/4/spec/ports/0/targetPort", json!("web"));
    violated(
        services,
        &asked(json!({})),
        &port,
        &["Service acme-nextcloud leads to port \"web\" of Deployment acme-nextcloud, which has none"],
    );
    let wide = with(fine(), "/4/spec/selector", json!({}));
    violated(
        services,
        &asked(json!({})),
        &wide,
        &[
            r#"Service acme-nextcloud selects ["Deployment acme-nextcloud", "StatefulSet acme-redis-master"], not one workload"#,
        ],
    );
    let narrow = with(fine(), "/4/spec/selector", json!({"x": "y"}));
    violated(services, &asked(json!({})), &narrow, &["Service acme-nextcloud selects [], not one workload"]);
    let route = |port: u16| {
        let ingress = json!({"kind": "Ingress", "metadata": {"name": "i"}, "spec": {"rules": [{"http": {"paths": [
            {"backend": {"service": {"name": "acme-nextcloud", "port": {"number": port}}}},
        ]}}]}});
        let route = json!({"kind": "HTTPRoute", "metadata": {"name": "r"}, "spec": {"rules": [{"backendRefs": [{"name": "acme-nextcloud", "port": port}]}]}});
        with_object(with_object(fine(), ingress), route)
    };
    violated(services, &asked(json!({})), &route(8080), &[]);
    let told = "a route leads to Service \"acme-nextcloud\", port 80: there is none";
    violated(services, &asked(json!({})), &route(80), &[told, told]);
}

#[test]
fn names_and_labels_fit() {
    let named = |kind: &str, length: usize| {
        with_object(fine(), json!({"kind": kind, "metadata": {"name": "n".repeat(length)}}))
    };
    for (kind, greatest) in [("StatefulSet", 52), ("CronJob", 52), ("Service", 63), ("Job", 63), ("Deployment", 253)] {
        violated(lengths, &asked(json!({})), &named(kind, greatest), &[]);
        let told = format!(
            "{kind} {} has {} characters, at most {greatest} are valid",
            "n".repeat(greatest + 1),
            greatest + 1
        );
        violated(lengths, &asked(json!({})), &named(kind, greatest + 1), &[&told]);
    }
    let long = "l".repeat(64);
    let value = with(fine(), "/0/metadata/labels/x", json!(long));
    violated(
        lengths,
        &asked(json!({})),
        &value,
        &[&format!("Deployment, the label x: {long} has 64 characters, at most 63 are valid")],
    );
    let key = with(fine(), &format!("/0/spec/template/metadata/labels/{long}-client"), json!("true"));
    violated(
        lengths,
        &asked(json!({})),
        &key,
        &[&format!("Deployment, the key of a label, {long}-client has 71 characters, at most 63 are valid")],
    );
    let prefixed = with(fine(), &format!("/0/metadata/labels/{}~1x", "p".repeat(100)), json!("true"));
    violated(lengths, &asked(json!({})), &prefixed, &[]);
    let port = with(fine(), &format!("{CONTAINER}/ports/0/name"), json!("p".repeat(16)));
    violated(lengths, &asked(json!({})), &port, &["port pppppppppppppppp has 16 characters, at most 15 are valid"]);
}

#[test]
fn nothing_is_there_twice() {
    let at = "Deployment acme-nextcloud";
    let pod = |list: &str, item: Value| with(fine(), &format!("{POD}/{list}/-"), item);
    let container = |list: &str, item: Value| with(fine(), &format!("{CONTAINER}/{list}/-"), item);
    for (release, told) in [
        (with_object(fine(), fine().objects[1].clone()), "ConfigMap acme-nextcloud-hooks is rendered twice".to_owned()),
        (
            container("env", json!({"name": "PGSSLCERT", "value": "/x"})),
            format!("{at}, container nextcloud has env \"PGSSLCERT\" twice"),
        ),
        (container("ports", json!({"containerPort": 80})), format!("{at}, container nextcloud has ports 80 twice")),
        (pod("volumes", json!({"name": "hooks"})), format!("{at} has a volume or container \"hooks\" twice")),
        (
            pod("containers", json!({"name": "nextcloud"})),
            format!("{at} has a volume or container \"nextcloud\" twice"),
        ),
    ] {
        violated(unique, &asked(json!({})), &release, &[&told]);
    }
}

#[test]
fn claims_stay() {
    let renamed = with(fine(), "/2/metadata/name", json!("acme-nextcloud-data"));
    let renamed =
        with(renamed, &format!("{POD}/volumes/0/persistentVolumeClaim/claimName"), json!("acme-nextcloud-data"));
    violated(
        claims,
        &asked(json!({})),
        &renamed,
        &[
            "the claim acme-nextcloud-nextcloud of the version before is gone",
            "the claim acme-nextcloud-data is new, beside those of the version before",
        ],
    );
    let of_set = with(fine(), "/3/spec/volumeClaimTemplates/0/metadata/name", json!("data"));
    violated(
        claims,
        &asked(json!({})),
        &of_set,
        &[
            "the claim redis-data-acme-redis-master-0 of the version before is gone",
            "the claim data-acme-redis-master-0 is new, beside those of the version before",
        ],
    );
    let app = asked(json!({"persistence": {"size": "20Gi"}}));
    violated(claims, &app, &fine(), &["PersistentVolumeClaim acme-nextcloud-nextcloud requests \"8Gi\", not 20Gi"]);
    let app = asked(json!({"persistence": {"storageClassName": "fast"}}));
    violated(
        claims,
        &app,
        &fine(),
        &["PersistentVolumeClaim acme-nextcloud-nextcloud has class None, not Some(\"fast\")"],
    );
    violated(claims, &app, &with(fine(), "/2/spec/storageClassName", json!("fast")), &[]);
    let lost = with(fine(), "/2/metadata/annotations", json!({}));
    violated(
        claims,
        &asked(json!({})),
        &lost,
        &["PersistentVolumeClaim acme-nextcloud-nextcloud goes with the release"],
    );
    let without = with(fine(), &format!("{POD}/volumes/0"), json!({"name": "nextcloud-main", "emptyDir": {}}));
    violated(
        claims,
        &asked(json!({})),
        &without,
        &[
            "the app mounts the claims [], not one",
            "Deployment acme-nextcloud no longer has folder \"\" of the claim acme-nextcloud-nextcloud at /var/www/html",
        ],
    );
}

#[test]
fn folders_of_claims_stay_where_they_are() {
    let mount = format!("{CONTAINER}/volumeMounts/0");
    for moved in [
        json!({"name": "nextcloud-main", "mountPath": "/var/www/html", "subPath": "html"}),
        json!({"name": "nextcloud-main", "mountPath": "/srv"}),
        json!({"name": "hooks", "mountPath": "/var/www/html"}),
    ] {
        violated(
            claims,
            &asked(json!({})),
            &with(fine(), &mount, moved),
            &[
                "Deployment acme-nextcloud no longer has folder \"\" of the claim acme-nextcloud-nextcloud at /var/www/html",
            ],
        );
    }
    let of_set = with(fine(), "/3/spec/template/spec/containers/0/volumeMounts/0/subPath", json!("dump"));
    violated(
        claims,
        &asked(json!({})),
        &of_set,
        &["StatefulSet acme-redis-master no longer has folder \"\" of the claim redis-data at /data"],
    );
    // One more is no loss, nor is a container of another name.
    let more = json!([{"name": "nextcloud-main", "mountPath": "/var/www/html"}, {"name": "nextcloud-main", "mountPath": "/srv"}]);
    violated(claims, &asked(json!({})), &with(fine(), &format!("{CONTAINER}/volumeMounts"), more), &[]);
    violated(claims, &asked(json!({})), &with(fine(), &format!("{CONTAINER}/name"), json!("app")), &[]);
}

#[test]
fn fields_that_cannot_change() {
    let selector = with(fine(), "/0/spec/selector/matchLabels", json!({"a": "b"}));
    violated(
        immutable,
        &asked(json!({})),
        &selector,
        &[
            r#"Deployment acme-nextcloud: /spec/selector was {"matchLabels":{"app.kubernetes.io/component":"app","app.kubernetes.io/name":"nextcloud"}}, and is {"matchLabels":{"a":"b"}}"#,
        ],
    );
    let service = with(fine(), "/3/spec/serviceName", json!("other"));
    violated(
        immutable,
        &asked(json!({})),
        &service,
        &[r#"StatefulSet acme-redis-master: /spec/serviceName was "acme-redis-headless", and is "other""#],
    );
    // An object of another name is another object, and replicas may change.
    violated(immutable, &asked(json!({})), &with(fine(), "/3/metadata/name", json!("other")), &[]);
    violated(immutable, &asked(json!({})), &with(fine(), "/0/spec/replicas", json!(3)), &[]);
}
