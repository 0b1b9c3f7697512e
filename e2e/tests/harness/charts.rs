//! The test chart with the pinned helm: each version has the property that it is named for, and its values tree has the
//! pitfalls of the reference chart. Also, the values that any chart receives.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use clientapp_operator::clientapp::document;
use clientapp_operator::yaml;
use e2e::charts::{self, Content, VERSIONS};
use e2e::helm::{Helm, Ran};
use e2e::lab::Lab;
use e2e::operator;
use e2e::repository::Repository;
use e2e::shim::executable;
use e2e::wait::block_on;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use crate::tools;

/// A helm without a cluster, with cold caches.
struct Charts(Helm);

impl Charts {
    fn new() -> Self {
        Self(Helm::new(&tools().helm).unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.home().join(name)
    }

    fn run(&self, args: &[&str]) -> Ran {
        self.0.run(args).unwrap()
    }

    fn package(&self, version: &str) -> String {
        let path = charts::package(self.0.home(), version, Content::Genuine).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn template(&self, version: &str, release: &str, values: &Value) -> Ran {
        let file = self.path("values.json");
        std::fs::write(&file, values.to_string()).unwrap();
        let chart = self.package(version);
        self.run(&["template", release, &chart, "--namespace", "tenant", "--values", file.to_str().unwrap()])
    }

    /// The objects that the default version renders for a release named `shop`.
    fn objects(&self, values: &Value) -> Vec<Value> {
        let ran = self.template(charts::DEFAULT, "shop", values);
        assert!(ran.success, "{}", ran.stderr);
        parse(&ran.stdout)
    }
}

/// The values that the templates of a chart without defaults receive from a values file.
fn given(helm: &Charts, file: &str) -> Value {
    let chart = helm.path("given");
    std::fs::create_dir_all(chart.join("templates")).unwrap();
    std::fs::write(chart.join("Chart.yaml"), "{apiVersion: v2, name: given, version: 1.0.0}").unwrap();
    // As a string, since helm parses the rendered output.
    std::fs::write(chart.join("templates/given.yaml"), "given: {{ toJson .Values | b64enc }}").unwrap();
    let path = helm.path("given.values");
    std::fs::write(&path, file).unwrap();
    let ran = helm.run(&["template", "shop", chart.to_str().unwrap(), "--values", path.to_str().unwrap()]);
    assert!(ran.success, "{}\n{file}", ran.stderr);
    let encoded = parse(&ran.stdout)[0]["given"].as_str().unwrap().to_owned();
    serde_json::from_slice(&base64::prelude::BASE64_STANDARD.decode(encoded).unwrap()).unwrap()
}

/// Returns true if two trees are equal, where 1 equals 1.0.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let has = |(key, value): (&String, &Value)| other.get(key).is_some_and(|found| same(value, found));
            one.len() == other.len() && one.iter().all(has)
        }
        (one, other) => one == other,
    }
}

fn parse(manifests: &str) -> Vec<Value> {
    use serde::Deserialize;
    let documents = serde_yaml::Deserializer::from_str(manifests).map(|document| Value::deserialize(document).unwrap());
    documents.filter(|document| !document.is_null()).collect()
}

/// The values tree that an operator computes for the reference chart.
fn computed() -> Value {
    json!({
        "nextcloud": {
            "host": "shop.example.org",
            "existingSecret": {
                "enabled": true, "secretName": "shop-admin-secret",
                "usernameKey": "nextcloud-username", "passwordKey": "nextcloud-password",
            },
        },
        "ingress": {"enabled": true, "className": "traefik"},
        "redis": {
            "enabled": true,
            "architecture": "standalone",
            "auth": {
                "enabled": true,
                "existingSecret": "shop-redis-secret", "existingSecretPasswordKey": "redis-password",
            },
        },
        "internalDatabase": {"enabled": false},
        "externalDatabase": {
            "enabled": true, "type": "postgresql",
            "host": "shop-pg-pgbouncer.tenant.svc.cluster.local", "user": "clientapp", "database": "clientapp",
            "existingSecret": {
                "enabled": true, "secretName": "shop-pg-pguser-clientapp",
                "usernameKey": "user", "passwordKey": "password",
            },
        },
        "persistence": {"enabled": true, "size": "8Gi"},
    })
}

/// The computed tree with one value changed; a null removes it.
fn computed_but(pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let mut values = computed();
    let parent = values.pointer_mut(parent).unwrap().as_object_mut().unwrap();
    parent.remove(key);
    if !value.is_null() {
        parent.insert(key.to_owned(), value);
    }
    values
}

fn names(objects: &[Value]) -> Vec<String> {
    let name = |object: &Value| {
        format!("{}/{}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap())
    };
    let mut names: Vec<_> = objects.iter().map(name).collect();
    names.sort();
    names
}

fn object<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let found = objects.iter().find(|object| object["kind"] == kind && object["metadata"]["name"] == name);
    found.unwrap_or_else(|| panic!("no {kind}/{name} among {:?}", names(objects)))
}

/// The app's value for a variable: a text, or `secret:key`. None if the variable is absent.
fn env(objects: &[Value], name: &str) -> Option<String> {
    let deployment = object(objects, "Deployment", "shop-nextcloud");
    let variables = deployment.pointer("/spec/template/spec/containers/0/env").unwrap().as_array().unwrap();
    let variable = variables.iter().find(|variable| variable["name"] == name)?;
    let reference = &variable["valueFrom"]["secretKeyRef"];
    Some(match variable["value"].as_str() {
        Some(value) => value.to_owned(),
        None => format!("{}:{}", reference["name"].as_str().unwrap(), reference["key"].as_str().unwrap()),
    })
}

#[test]
#[ignore = "only a change of the test charts or of their repository can break it"]
fn every_version_is_what_it_is_named_for() {
    let helm = Charts::new();
    for version in VERSIONS {
        let ran = helm.template(version.chart, "shop", &computed());
        let complaint = match version.chart {
            charts::UNRENDERABLE => Some("this version refuses to render"),
            charts::UNSATISFIABLE => Some("missing property 'licenseKey'"),
            charts::WITHOUT_VALUES => Some("nil pointer evaluating"),
            _ => None,
        };
        assert_eq!(ran.success, complaint.is_none(), "{}: {}", version.chart, ran.stderr);
        assert!(complaint.is_none_or(|complaint| ran.stderr.contains(complaint)), "{}", ran.stderr);
        if ran.success {
            let objects = parse(&ran.stdout);
            let deployment = object(&objects, "Deployment", "shop-nextcloud");
            assert_eq!(deployment["metadata"]["labels"]["helm.sh/chart"], format!("nextcloud-{}", version.chart));
            let pod = deployment.pointer("/spec/template/spec").unwrap();
            let repository = if version.chart == charts::CURRENT { "docker.io/library/nextcloud" } else { "nextcloud" };
            assert_eq!(pod["containers"][0]["image"], format!("{repository}:{}-apache", version.app));
            assert_eq!(pod.get("nodeSelector").is_some(), version.chart == charts::NEVER_READY);
            assert_eq!(pod.get("nodeSelectr").is_some(), version.chart == charts::MISSPELT);
            let monitors = objects.iter().filter(|object| object["kind"] == "ServiceMonitor").count();
            assert_eq!(monitors, usize::from(version.chart == charts::UNKNOWN_KIND));
            let claim = objects.iter().find(|object| object["kind"] == "PersistentVolumeClaim").unwrap();
            let is_renamed = claim["metadata"]["name"] == "shop-nextcloud-files";
            assert_eq!(is_renamed, version.chart == charts::RENAMES_CLAIM);
            let hooks = objects.iter().filter(|object| object["kind"] == "Job").count();
            assert_eq!(hooks, usize::from(version.chart == charts::HOOK_FAILS));
        }
    }
}

#[test]
#[ignore = "only a change of the test charts or of their repository can break it"]
fn a_current_version_refuses_another_image_of_redis_unless_it_may_have_it() {
    let helm = Charts::new();
    let legacy = computed_but("/redis/image", json!({"repository": "bitnamilegacy/redis"}));
    let ran = helm.template(charts::CURRENT, "shop", &legacy);
    assert!(ran.stderr.contains("substituted for unrecognized ones"), "{}", ran.stderr);
    let mut allowed = legacy.clone();
    allowed["global"] = json!({"security": {"allowInsecureImages": true}});
    for (version, values) in [(charts::CURRENT, &allowed), (charts::DEFAULT, &allowed), (charts::DEFAULT, &legacy)] {
        let ran = helm.template(version, "shop", values);
        assert!(ran.success, "{}", ran.stderr);
    }
}

#[test]
#[ignore = "only a change of the test charts or of their repository can break it"]
fn good_versions_lint_strictly() {
    let helm = Charts::new();
    for version in [charts::DEFAULT, charts::PATCH, charts::MAJOR, charts::CURRENT] {
        let ran = helm.run(&["lint", "--strict", &helm.package(version)]);
        assert!(ran.success, "{}{}", ran.stdout, ran.stderr);
    }
}

#[test]
#[ignore = "only a change of the test charts or of their repository can break it"]
fn an_archive_is_the_same_bytes_every_time_and_a_tampered_one_is_not() {
    let genuine = charts::archive(charts::DEFAULT, Content::Genuine).unwrap();
    assert_eq!(genuine, charts::archive(charts::DEFAULT, Content::Genuine).unwrap());
    assert_ne!(genuine, charts::archive(charts::DEFAULT, Content::Tampered).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let tampered = charts::package(dir.path(), charts::DEFAULT, Content::Tampered).unwrap();
    let ran = Charts::new().run(&["template", "shop", tampered.to_str().unwrap()]);
    assert!(names(&parse(&ran.stdout)).contains(&"ConfigMap/shop-tampered".to_owned()));
}

#[test]
#[ignore = "only a change of the test charts or of their repository can break it"]
fn the_computed_values_render_every_kind() {
    let objects = Charts::new().objects(&computed());
    assert_eq!(
        names(&objects),
        [
            "ConfigMap/shop-nextcloud-config",
            "Deployment/shop-nextcloud",
            "Ingress/shop-nextcloud",
            "NetworkPolicy/shop-redis",
            "PersistentVolumeClaim/shop-nextcloud-nextcloud",
            "PodDisruptionBudget/shop-nextcloud",
            "PodDisruptionBudget/shop-redis-master",
            "Role/shop-nextcloud",
            "RoleBinding/shop-nextcloud",
            "Service/shop-nextcloud",
            "Service/shop-redis-headless",
            "Service/shop-redis-master",
            "ServiceAccount/shop-nextcloud",
            "StatefulSet/shop-redis-master",
        ]
    );
    for object in &objects {
        let labels = &object["metadata"]["labels"];
        assert_eq!(labels["app.kubernetes.io/instance"], "shop");
        assert_eq!(labels["app.kubernetes.io/managed-by"], "Helm");
        assert!(labels["app.kubernetes.io/name"].is_string() && labels["helm.sh/chart"].is_string());
    }
    let claim = object(&objects, "PersistentVolumeClaim", "shop-nextcloud-nextcloud");
    assert_eq!(claim["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "8Gi");
    let ingress = object(&objects, "Ingress", "shop-nextcloud");
    assert_eq!(ingress["spec"]["ingressClassName"], "traefik");
    assert_eq!(ingress["spec"]["rules"][0]["host"], "shop.example.org");
}

/// Returns what was rendered at a place: a field of the app's Deployment, or of another object, the number of objects of a kind, or else a
/// variable of the app. Null where there is none.
fn rendered(objects: &[Value], place: &str) -> Value {
    let (found, pointer) = match place.split_once(' ') {
        Some((other, pointer)) => (other, pointer),
        None if place.starts_with('/') => ("Deployment/shop-nextcloud", place),
        None => {
            return match place.strip_suffix("/*") {
                Some(kind) => json!(objects.iter().filter(|object| object["kind"] == kind).count()),
                None => json!(env(objects, place)),
            };
        }
    };
    let (kind, name) = found.split_once('/').unwrap();
    object(objects, kind, name).pointer(pointer).cloned().unwrap_or_default()
}

/// A change of the computed values, and what is [`rendered`] then.
const EFFECTS: &str = r#"
# As computed, but for one key.
/replicaCount = 2 | /spec/replicas = 2 | SQLITE_DATABASE = null | MYSQL_HOST = null
/replicaCount = 2 | POSTGRES_HOST = "shop-pg-pgbouncer.tenant.svc.cluster.local" | POSTGRES_DB = "clientapp"
/replicaCount = 2 | POSTGRES_USER = "shop-pg-pguser-clientapp:user" | POSTGRES_PASSWORD = "shop-pg-pguser-clientapp:password"
/replicaCount = 2 | NEXTCLOUD_ADMIN_USER = "shop-admin-secret:nextcloud-username"
/replicaCount = 2 | NEXTCLOUD_ADMIN_PASSWORD = "shop-admin-secret:nextcloud-password"
/replicaCount = 2 | NEXTCLOUD_TRUSTED_DOMAINS = "shop.example.org"
/replicaCount = 2 | REDIS_HOST = "shop-redis-master" | REDIS_HOST_PASSWORD = "shop-redis-secret:redis-password"
# The internal database beats everything.
/internalDatabase = null | SQLITE_DATABASE = "nextcloud" | POSTGRES_HOST = null
/internalDatabase/enabled = true | SQLITE_DATABASE = "nextcloud" | POSTGRES_HOST = null
# Redis' own policy, which admits every pod, is on unless told otherwise.
/replicaCount = 2 | NetworkPolicy/* = 1
/redis/networkPolicy = {"enabled": false} | NetworkPolicy/* = 0
# The external one is MySQL unless told, and its switch does not drive the environment.
/externalDatabase/type = null | MYSQL_HOST = "shop-pg-pgbouncer.tenant.svc.cluster.local" | POSTGRES_HOST = null
/externalDatabase/enabled = false | POSTGRES_PASSWORD = "shop-pg-pguser-clientapp:password"
# A Secret that no chart creates is referred to.
/nextcloud/existingSecret/secretName = null | NEXTCLOUD_ADMIN_PASSWORD = "shop-nextcloud:nextcloud-password" | Secret/* = 0
# Without the key, the app gets a literal.
/redis/auth/existingSecretPasswordKey = null | REDIS_HOST_PASSWORD = "changeme"
# Redis brings replicas unless told.
/redis/architecture = null | StatefulSet/shop-redis-replicas /spec/replicas = 3
/redis/architecture = null | StatefulSet/shop-redis-replicas /spec/volumeClaimTemplates/0/spec/resources/requests/storage = "8Gi"
# Persistence is off by default, and an existing claim is used.
/persistence = null | /spec/template/spec/volumes/0 = {"name": "nextcloud-main", "emptyDir": {}}
/persistence/existingClaim = "data" | /spec/template/spec/volumes/0/persistentVolumeClaim/claimName = "data"
/persistence/existingClaim = "data" | PersistentVolumeClaim/* = 0
/persistence/storageClass = "fast" | PersistentVolumeClaim/shop-nextcloud-nextcloud /spec/storageClassName = "fast"
/image = {"repository": "a.example.org/b", "tag": "1"} | /spec/template/spec/containers/0/image = "a.example.org/b:1"
/redis/image = {"repository": "other/redis"} | StatefulSet/shop-redis-master /spec/template/spec/containers/0/image = "docker.io/other/redis:7.2.5-debian-12-r0"
/startupProbe = {"enabled": true} | /spec/template/spec/containers/0/startupProbe/failureThreshold = 30
/resources = {"limits": {"cpu": "1"}} | /spec/template/spec/containers/0/resources/limits/cpu = "1"
/nextcloud/extraEnv = [{"name": "PGSSLCERT", "value": "/tmp/a.crt"}] | PGSSLCERT = "/tmp/a.crt"
"#;

#[test]
#[ignore = "only a change of the test charts or of their repository can break it"]
fn values_have_the_effects_and_pitfalls_of_the_reference_chart() {
    let helm = Charts::new();
    let mut all: BTreeMap<&str, Vec<Value>> = BTreeMap::new();
    let cell = |cell: &'static str| cell.split_once(" = ").unwrap();
    let parsed = |json: &str| serde_json::from_str::<Value>(json.trim()).unwrap();
    for row in EFFECTS.lines().filter(|row| !row.is_empty() && !row.starts_with('#')) {
        let (change, effects) = row.split_once(" | ").unwrap();
        let (key, value) = cell(change);
        let objects = all.entry(change).or_insert_with(|| helm.objects(&computed_but(key, parsed(value))));
        for (place, expected) in effects.split(" | ").map(cell) {
            assert_eq!(rendered(objects, place), parsed(expected), "{change}: {place}");
        }
    }
    // A misspelt key is silently ignored.
    assert_eq!(helm.objects(&computed_but("/persistense", json!({"size": "9Gi"}))), helm.objects(&computed()));
    // A null in place of a map fails to render.
    let mut values = computed();
    values["nextcloud"]["existingSecret"] = Value::Null;
    let ran = helm.template(charts::DEFAULT, "shop", &values);
    assert!(!ran.success && ran.stderr.contains("nil pointer evaluating interface {}"), "{}", ran.stderr);
}

#[test]
#[ignore = "only a change of the test charts or of their repository can break it"]
fn the_full_name_is_the_release_where_it_contains_the_chart() {
    let helm = Charts::new();
    for (release, name) in
        [("nextcloud", "nextcloud"), ("my-nextcloud-1", "my-nextcloud-1"), ("shop", "shop-nextcloud")]
    {
        let objects = parse(&helm.template(charts::DEFAULT, release, &computed()).stdout);
        object(&objects, "Deployment", name);
    }
}

/// Returns texts that YAML 1.1 reads as another type without quotes, and characters with special rules.
fn odd() -> Vec<&'static str> {
    let words = "NO no y N yes On off true False null Null ~ 1 0 -1 +1 1_000 0o14 0777 08 0x1F 0b11 1e3 1. .5 .inf .nan 12:30:45 \
                 2001-01-01 << = {{";
    let special = [
        "",
        "- a",
        "a: b",
        "# a",
        "\u{0}\u{1b}\u{7f}\u{85}\u{9f}",
        "\u{a0}\u{2028}\u{2029}\u{feff}\u{fffe}\u{ffff}",
        "\n---\n...\n",
        "{{ .Values }}",
        "\u{1f600}\u{10ffff} \\ \" ' \t",
    ];
    words.split(' ').chain(special).collect()
}

#[test]
fn values_reach_the_chart_as_they_are_written() {
    let mut written = Map::new();
    for (index, odd) in odd().into_iter().enumerate() {
        written.insert(format!("odd{index}"), json!([odd, {odd: odd}]));
        written.insert(odd.to_owned(), json!(odd));
    }
    // Not a merge key, which would let it set computed keys.
    written.insert("<<".to_owned(), json!({"nextcloud": {"host": "elsewhere.example.com"}}));
    written.insert("numbers".to_owned(), json!([0, 1_u64 << 53, -(1_i64 << 53), i64::MIN, 1.5, 1e300, 1e-7, 0.1]));
    written.insert("k".repeat(1022), json!({"empty": {}, "none": [], "null": null}));
    let app = json!({
        "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp",
        "metadata": {"name": "shop"}, "spec": {"hostname": "shop.example.com", "values": written},
    });
    let helm = Charts::new();
    let file = helm.path("app.json");
    std::fs::write(&file, document(&app)).unwrap();
    let mut render = std::process::Command::new(operator::binary().unwrap());
    let ran = Ran::from(render.args(["render", "-f"]).arg(file).output().unwrap());
    assert!(ran.success, "{}", ran.stderr);
    // The printed text, including the comment, is a valid file for helm.
    let given = given(&helm, &ran.stdout);
    for (key, value) in &written {
        assert!(same(value, &given[key]), "{key:?}: {value} became {}", given[key]);
    }
    assert_eq!(given["nextcloud"]["host"], "shop.example.com");
}

fn tree() -> impl Strategy<Value = Value> {
    let text =
        || prop_oneof![proptest::sample::select(odd()).prop_map(str::to_owned), any::<String>(), "[-+_.0-9eoxb:]{1,8}"];
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-(1_i64 << 53)..=1 << 53).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    scalar.prop_recursive(4, 32, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::btree_map(text(), inner, 0..6).prop_map(|map| Value::from(Map::from_iter(map))),
        ]
    })
}

proptest! {
    // Many trees for each run of helm.
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, max_shrink_iters: 60, ..ProptestConfig::default() })]

    #[test]
    fn any_tree_reaches_the_chart_as_it_is_written(trees in proptest::collection::vec(tree(), 100)) {
        let helm = Charts::new();
        let written = Value::from(Map::from_iter(trees.into_iter().enumerate().map(|(index, tree)| (format!("t{index}"), tree))));
        for file in [document(&written), yaml::print(&written).unwrap()] {
            let given = given(&helm, &file);
            for (key, value) in written.as_object().unwrap() {
                prop_assert!(same(value, &given[key]), "{value} became {} in {file}", given[key]);
            }
        }
    }
}

/// Text that looks like a number to one reader of the output does so to all.
#[test]
fn every_short_word_reaches_the_chart_as_it_is_written() {
    let mut words = vec![String::new()];
    let mut longest = words.clone();
    for _ in 0..4 {
        let longer = |word: &String| "-+_.0179eobxX".chars().map(|char| format!("{word}{char}")).collect::<Vec<_>>();
        longest = longest.iter().flat_map(longer).collect();
        words.extend_from_slice(&longest);
    }
    let given = given(&Charts::new(), &yaml::print(&json!({"words": words})).unwrap());
    let given = given["words"].as_array().unwrap();
    let differing: Vec<_> = words.iter().zip(given).filter(|(word, given)| given.as_str() != Some(word)).collect();
    assert!(given.len() == words.len() && differing.is_empty(), "{differing:?}");
}

#[test]
#[ignore = "only a change of the test chart breaks it: cargo e2e nightly"]
fn good_versions_become_ready_one_after_the_other() {
    let plane = &block_on(async || Lab::unattended().await).plane;
    let helm = Helm::for_cluster(&tools().helm, &plane.kubeconfig()).unwrap();
    std::fs::write(helm.home().join("values.json"), computed().to_string()).unwrap();
    for version in [charts::DEFAULT, charts::PATCH, charts::MAJOR, charts::CURRENT] {
        charts::package(helm.home(), version, Content::Genuine).unwrap();
        let chart = charts::file_name(version);
        let ran = helm.run(&["upgrade", "--install", "shop", &chart, "--values", "values.json", "--wait"]).unwrap();
        assert!(ran.success, "{}", ran.stderr);
    }
}

#[test]
#[ignore = "only a change of the test charts or of their repository can break it"]
fn the_repository_counts_requests() {
    let repository = Repository::start().unwrap();
    let helm = Charts::new();
    let pull = |version: &str| helm.run(&["pull", charts::NAME, "--repo", &repository.url(), "--version", version]);
    assert!(pull(charts::CURRENT).success);
    let archive = charts::archive(charts::CURRENT, Content::Genuine).unwrap();
    assert_eq!(std::fs::read(helm.path(&charts::file_name(charts::CURRENT))).unwrap(), archive);
    assert_eq!(repository.requests("/index.yaml"), 1);
    assert_eq!(repository.requests("/nextcloud-9.2.4.tgz"), 1);
    assert_eq!(repository.all_requests(), 2);
    let refused = pull("5.5.9");
    assert!(!refused.success && refused.stderr.contains("not found"), "{}", refused.stderr);
}

/// The base values' hook, with the directory of Nextcloud's configuration; `php` is PHP, with a stand-in for Nextcloud that records
/// its arguments and fails.
fn started(home: &Path, environment: &[(&str, &str)]) -> String {
    let values = include_str!("../../../helm-values/nextcloud.yaml");
    let values: Value = serde_yaml::from_str(values).unwrap();
    let hooks = &values["nextcloud"]["hooks"];
    assert_eq!(hooks["before-starting"], hooks["pre-upgrade"]);
    let hook = home.join("helm.sh");
    executable(&hook, hooks["before-starting"].as_str().unwrap(), 0o755).unwrap();
    let [php, asked] = ["php", "asked"].map(|name| home.join(name));
    let stand_in = "#!/bin/sh\n[ \"$1\" != -r ] || exec /usr/bin/php \"$@\"\necho \"$@\" >>\"${0%/*}/asked\"\nexit 1\n";
    executable(&php, stand_in, 0o755).unwrap();
    std::fs::write(&asked, "").unwrap();
    let ran = std::process::Command::new(&hook)
        .env_clear()
        .env("PATH", format!("{}:/usr/bin:/bin", home.display()))
        .env("NEXTCLOUD_CONFIG_DIR", home)
        .envs(environment.iter().copied())
        .current_dir("/")
        .output()
        .unwrap();
    assert!(ran.status.success(), "the app must start: {ran:?}");
    let domains = ran.stderr.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    assert!(domains.into_iter().all(|line| line.ends_with(b"could not be made a trusted domain")), "{ran:?}");
    let asked = std::fs::read_to_string(asked).unwrap();
    format!("{}{}", String::from_utf8_lossy(&ran.stdout), asked.replace("/var/www/html/occ config:system:set ", ""))
}

#[test]
fn a_new_hostname_takes_the_place_of_the_former_among_the_trusted_domains() {
    let home = tempfile::tempdir().unwrap();
    for (domains, expected) in [
        ("", ""),
        ("app.example.com", "trusted_domains 1 --value=app.example.com\n"),
        (
            "app.example.com *.tenant.svc",
            "trusted_domains 1 --value=app.example.com\ntrusted_domains 2 --value=*.tenant.svc\n",
        ),
    ] {
        assert_eq!(started(home.path(), &[("NEXTCLOUD_TRUSTED_DOMAINS", domains)]), expected);
    }
}

#[test]
fn the_present_database_takes_the_place_of_the_one_in_nextclouds_configuration() {
    let home = tempfile::tempdir().unwrap();
    let [config, former] = ["config.php", "config.php.former"].map(|name| home.path().join(name));
    let odd = r#"it's a "\ $CONFIG ?> password"#;
    let stored = |user: &str, [host, name, password]: [&str; 3]| {
        format!(
            "<?php\n$CONFIG = array (\n  'dbname' => '{name}',\n  'dbhost' => '{host}',\n  'trusted_domains' => \n  array (\n    0 => 'x',\n  ),\n  'dbuser' => '{user}',\n  'dbpassword' => '{password}',\n);\n"
        )
    };
    // What is in the file and in the environment: host, name and password.
    let present = ["acme-pg", "app", "secret"];
    for (what, user, before, environment, changed) in [
        ("the same", "clientapp", present, present, ""),
        ("a new password", "clientapp", present, ["acme-pg", "app", odd], "dbpassword"),
        ("another host", "clientapp", present, ["then-pg", "app", "secret"], "dbhost"),
        ("another name", "clientapp", present, ["acme-pg", "then", "secret"], "dbname"),
        ("another app's", "clientapp", present, ["then-pg:5433", "then", odd], "dbhost, dbname, dbpassword"),
        ("a user of Nextcloud's own", "oc_admin", present, ["then-pg", "then", odd], ""),
        ("nothing is known", "clientapp", present, ["", "", ""], ""),
        ("only the host is", "clientapp", present, ["then-pg", "", ""], "dbhost"),
    ] {
        let before = stored(user, before);
        executable(&config, &before, 0o640).unwrap();
        let file = || std::fs::metadata(&config).map(|file| (file.ino(), file.modified().unwrap())).unwrap();
        let untouched = file();
        let [host, name, password] = environment;
        let environment = [
            ("POSTGRES_USER", "clientapp"),
            ("POSTGRES_HOST", host),
            ("POSTGRES_DB", name),
            ("POSTGRES_PASSWORD", password),
        ];
        let said = started(home.path(), &environment);
        if changed.is_empty() {
            assert_eq!((said.as_str(), file(), former.exists()), ("", untouched, false), "{what}");
            assert_eq!(std::fs::read_to_string(&config).unwrap(), before, "{what}");
            continue;
        }
        assert_eq!(said, format!("written into config.php: {changed}\n"), "{what}");
        assert_eq!(std::fs::metadata(&config).unwrap().permissions().mode() & 0o777, 0o640, "{what}");
        assert_eq!(std::fs::read_to_string(&former).unwrap(), before, "{what}");
        std::fs::remove_file(&former).unwrap();
        let read = r#"include $argv[1]; echo implode("|", array_keys($CONFIG)), "\n", $CONFIG["dbhost"], "\n", $CONFIG["dbname"],
            "\n", $CONFIG["dbuser"], "\n", $CONFIG["dbpassword"], "\n", $CONFIG["trusted_domains"][0];"#;
        let read = std::process::Command::new("/usr/bin/php").args(["-r", read]).arg(&config).output().unwrap();
        let or = |new: &str, key: usize| if new.is_empty() { present[key].to_owned() } else { new.to_owned() };
        let expected = [or(host, 0), or(name, 1), user.to_owned(), or(password, 2), "x".to_owned()].join("\n");
        let keys = "dbname|dbhost|trusted_domains|dbuser|dbpassword";
        assert_eq!(String::from_utf8(read.stdout).unwrap(), format!("{keys}\n{expected}"), "{what}");
    }
    // Not installed yet.
    let environment = [("POSTGRES_USER", "clientapp"), ("POSTGRES_HOST", "then-pg"), ("POSTGRES_PASSWORD", "new")];
    std::fs::write(&config, "").unwrap();
    assert_eq!((started(home.path(), &environment), std::fs::read(&config).unwrap()), (String::new(), Vec::new()));
    std::fs::remove_file(&config).unwrap();
    assert_eq!((started(home.path(), &environment), config.exists()), (String::new(), false));
}
