//! Every bad input is a clear refusal that names the field, and nothing is half done: by the API server at once, or by
//! the operator in a condition.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use clientapp_operator::crd::conditions::find;
use clientapp_operator::crd::{ClientApp, ClientAppStatus};
use e2e::charts::{self, Content};
use e2e::lab::{Lab, PATIENCE, Tenant, has, hostname, kubectl};
use e2e::operator::{Operator, Options};
use e2e::repository::Fault;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::rbac::v1::ClusterRole;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::{CustomResourceExt as _, Resource as _};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::MutexGuard;

/// A spec with a hostname and one more field.
fn with(field: &str, value: Value) -> Value {
    json!({"hostname": "a.example.com", field: value})
}

/// The API server's answer.
fn refusal<T>(result: kube::Result<T>) -> String {
    match result {
        Err(kube::Error::Api(status)) => status.message.clone(),
        Err(error) => panic!("the API server did not answer: {error}"),
        Ok(_) => "it was accepted".to_owned(),
    }
}

/// What does not say all that it should, for the end of a table.
fn assert_all(rows: impl IntoIterator<Item = (String, String, Vec<String>)>) {
    let silent: Vec<_> = rows
        .into_iter()
        .filter(|(_, said, parts)| !parts.iter().all(|part| said.contains(part)))
        .map(|(input, said, parts)| format!("{input:.120}\n  said: {said:.1000}\n  should say: {parts:?}"))
        .collect();
    assert!(silent.is_empty(), "{} rows:\n{}", silent.len(), silent.join("\n"));
}

/// ClientApps as they are stored, whatever they look like.
fn raw(tenant: &Tenant) -> Api<DynamicObject> {
    Api::namespaced_with(tenant.client.clone(), &tenant.namespace, &ApiResource::erase::<ClientApp>(&()))
}

#[tokio::test]
async fn the_api_server_refuses_a_wrong_field_at_once() {
    const HOSTNAME: &str = "must be a DNS name in lower case, such as acme.example.com";
    const VERSION: &str = "must be one exact version such as 5.5.2: no range, no 'latest', no leading 'v'";
    const SIZE: &str = "must be a quantity above zero such as";
    const IMAGE: &str = "must be repository:tag or repository@sha256:<64 hex digits>";
    let tenant = Lab::shared().await.tenant("wrong-fields").await;
    let host = |hostname: &str| json!({"hostname": hostname});
    let size = |block: &str, field: &str, size: &str| with(block, json!({field: size}));

    let mut rows: Vec<(Value, &str, &str)> = vec![
        (json!({}), "spec.hostname", "Required value"),
        (json!({"hostname": null}), "spec.hostname", "Required value"),
        (json!({"hostname": 7}), "spec.hostname", "must be of type string"),
        (host(&format!("{}.examples", ["a"; 123].join("."))), "spec.hostname", "may not be more than 253 bytes"),
        (with("chartVersion", json!(5.5)), "spec.chartVersion", "must be of type string"),
        (
            with("chartVersion", json!(format!("1.0.0-{}", "a".repeat(58)))),
            "spec.chartVersion",
            "may not be more than 63 bytes",
        ),
        (with("values", json!("redis: off")), "spec.values", "must be of type object"),
        (with("values", json!(["a"])), "spec.values", "must be of type object"),
        (with("redis", json!(false)), "spec.redis", "must be of type object"),
        (with("redis", json!({"enabled": "no"})), "spec.redis.enabled", "must be of type boolean"),
        (with("suspend", json!("yes")), "spec.suspend", "must be of type boolean"),
        (with("replicas", json!(-1)), "spec.replicas", "should be greater than or equal to 0"),
        (with("replicas", json!(101)), "spec.replicas", "should be less than or equal to 100"),
        (with("replicas", json!("2")), "spec.replicas", "must be of type integer"),
        (with("replicas", json!(1.5)), "spec.replicas", "must be of type integer"),
        (with("adminSecret", json!("")), "spec.adminSecret", "at least 1 chars long"),
        (with("ingressClassName", json!("")), "spec.ingressClassName", "at least 1 chars long"),
        (with("deletionPolicy", json!("Keep")), "spec.deletionPolicy", "supported values: \"Delete\", \"Retain\""),
        (
            with("postgres", json!({"provider": "mysql"})),
            "spec.postgres.provider",
            "supported values: \"percona\", \"standalone\", \"external\"",
        ),
        (with("postgres", json!({"version": 15})), "spec.postgres.version", "must be of type string"),
        (with("postgres", json!({"version": "12"})), "spec.postgres.version", "from \"13\" to \"18\""),
        (with("postgres", json!({"version": "15.3"})), "spec.postgres.version", "may not be more than 2 bytes"),
        (with("postgres", json!({"instances": 0})), "spec.postgres.instances", "should be greater than or equal to 1"),
        (with("ingressClas", json!("traefik")), "spec.ingressClas", "unknown field"),
        (with("postgres", json!({"storage": "1Gi"})), "spec.postgres.storage", "unknown field"),
        (with("persistence", json!({"storageClass": "fast"})), "spec.persistence.storageClass", "unknown field"),
    ];
    for wrong in [
        "",
        "Acme.example.com",
        "a_b.example.com",
        "a.example.com.",
        "*.example.com",
        "-a.example.com",
        "a-.example.com",
        "a..example.com",
        ".example.com",
        "a b.example.com",
        "https://a.example.com",
        "a.example.com:80",
        "ä.example.com",
    ] {
        rows.push((host(wrong), "spec.hostname", HOSTNAME));
    }
    rows.push((host(&format!("{}.example.com", "a".repeat(64))), "spec.hostname", HOSTNAME));
    for wrong in [
        "", "latest", "^5", "~5.5.2", ">=5.5.2", "5", "5.5", "5.5.x", "v5.5.2", "5.5.2 ", " 5.5.2", "5.5.2\n",
        "05.5.2", "5.5.2.1",
    ] {
        rows.push((with("chartVersion", json!(wrong)), "spec.chartVersion", VERSION));
    }
    for wrong in ["", "8Gb", "8GiB", "8 Gi", "0", "0Gi", "-1Gi", "Gi", "lots"] {
        rows.push((size("persistence", "size", wrong), "spec.persistence.size", SIZE));
        rows.push((size("postgres", "storageSize", wrong), "spec.postgres.storageSize", SIZE));
    }
    for wrong in [
        "nextcloud",
        "registry.example.com:5000/nextcloud",
        "nextcloud:",
        ":30",
        "nextcloud@sha256:abc",
        "next cloud:30",
        "nextcloud:30 --privileged",
    ] {
        rows.push((with("image", json!(wrong)), "spec.image", IMAGE));
    }

    let mut said = Vec::new();
    for (index, (spec, field, sentence)) in rows.into_iter().enumerate() {
        let answer = refusal(tenant.create(&format!("row-{index}"), spec.clone()).await);
        said.push((spec.to_string(), answer, vec![field.to_owned(), sentence.to_owned()]));
    }
    assert_all(said);
    let stored = raw(&tenant).list(&ListParams::default()).await.unwrap();
    assert_eq!(stored.items.len(), 0);
}

#[tokio::test]
async fn the_api_server_refuses_a_wrong_name_at_once() {
    const LABEL: &str = "must be a DNS label: lower-case letters, digits and '-', beginning with a letter";
    let tenant = Lab::shared().await.tenant("wrong-names").await;
    let mut said = Vec::new();
    for (name, sentence) in [
        ("a".repeat(54).as_str(), "can have at most 53 characters"),
        ("acme.example", LABEL),
        ("7acme", LABEL),
        ("Acme", "lower case alphanumeric characters"),
        ("-acme", "lower case alphanumeric characters"),
    ] {
        let answer = refusal(tenant.create(name, json!({"hostname": "a.example.com"})).await);
        said.push((name.to_owned(), answer, vec![sentence.to_owned()]));
    }
    assert_all(said);
    // The longest name there may be is not refused.
    tenant.create(&"a".repeat(53), json!({"hostname": hostname(&tenant, "long"), "suspend": true})).await.unwrap();
}

#[tokio::test]
async fn the_api_server_refuses_a_change_that_would_lose_data() {
    let tenant = Lab::shared().await.tenant("wrong-changes").await;
    let spec = json!({
        "hostname": hostname(&tenant, "acme"), "suspend": true,
        "persistence": {"size": "2Gi"}, "postgres": {"storageSize": "1Gi"},
    });
    tenant.create("acme", spec).await.unwrap();
    let size = |size: &str| json!({"persistence": {"size": size}});
    let storage = |size: &str| json!({"postgres": {"storageSize": size}});
    let mut said = Vec::new();
    for (change, field, sentence) in [
        (size("1Gi"), "spec.persistence.size", "size can only grow: a volume never shrinks"),
        (size("2047Mi"), "spec.persistence.size", "size can only grow"),
        (size("2G"), "spec.persistence.size", "size can only grow"),
        (storage("512Mi"), "spec.postgres.storageSize", "storageSize can only grow: a volume never shrinks"),
        (json!({"postgres": {"provider": "standalone"}}), "spec.postgres.provider", "provider is immutable"),
        // What is taken away falls back to its default, which may be less.
        (json!({"persistence": {"size": null}}), "", "accepted"),
        (size("7Gi"), "spec.persistence.size", "size can only grow"),
        (json!({"persistence": null}), "", "accepted"),
        // The same in other units, and more.
        (size("8192Mi"), "", "accepted"),
        (size("9Gi"), "", "accepted"),
        (json!({"persistence": null}), "spec.persistence.size", "size can only grow"),
        (storage("1024Mi"), "", "accepted"),
        (storage("1.5Gi"), "", "accepted"),
        (json!({"postgres": null}), "spec.postgres.storageSize", "storageSize can only grow"),
    ] {
        let answer = refusal(tenant.patch("acme", change.clone()).await);
        said.push((change.to_string(), answer, vec![field.to_owned(), sentence.to_owned()]));
    }
    assert_all(said);
}

#[tokio::test]
async fn what_is_left_out_has_its_documented_default() {
    let tenant = Lab::shared().await.tenant("defaults").await;
    let whole = json!({
        "chartVersion": "5.5.2", "image": "", "suspend": false, "deletionPolicy": "Delete",
        "redis": {"enabled": true},
        "postgres": {"enabled": true, "provider": "percona", "version": "15", "storageSize": "1Gi", "instances": 1},
        "persistence": {"enabled": true, "size": "8Gi", "storageClassName": ""},
    });
    for (name, given) in [
        ("nothing", json!({})),
        ("version", json!({"postgres": {"version": "18"}})),
        ("disabled", json!({"postgres": {"enabled": false}, "redis": {"enabled": false}})),
        ("size", json!({"persistence": {"size": "20Gi"}})),
        ("empty", json!({"redis": {}, "postgres": {}, "persistence": {}, "values": {}})),
    ] {
        let mut spec = given.clone();
        spec["hostname"] = json!(hostname(&tenant, name));
        tenant.create(name, spec.clone()).await.unwrap();
        let mut expected = whole.clone();
        for (field, value) in spec.as_object().unwrap() {
            match value.as_object() {
                Some(block) if field != "values" => {
                    expected[field].as_object_mut().unwrap().extend(block.clone());
                }
                _ => expected[field] = value.clone(),
            }
        }
        assert_eq!(raw(&tenant).get(name).await.unwrap().data["spec"], expected, "{name}");
    }
}

#[tokio::test]
async fn kubectl_shows_fields_columns_and_misspelt_fields() {
    let tenant = Lab::shared().await.tenant("kubectl").await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    let manifest = |spec: Value| json!({"apiVersion": ClientApp::api_version(&()), "kind": "ClientApp", "metadata": {"name": "acme"}, "spec": spec});
    let write = |spec: Value| std::fs::write(path, manifest(spec).to_string()).unwrap();

    let host = hostname(&tenant, "acme");
    write(json!({"hostname": host, "ingressClas": "traefik", "postgres": {"sise": "1Gi"}}));
    let refused = tenant.kubectl(&["apply", "-f", path]).unwrap_err().to_string();
    for field in ["unknown field \"spec.ingressClas\"", "unknown field \"spec.postgres.sise\""] {
        assert!(refused.contains(field), "{refused}");
    }
    write(json!({"hostname": "Acme"}));
    let refused = tenant.kubectl(&["apply", "-f", path]).unwrap_err().to_string();
    assert!(refused.contains("spec.hostname") && refused.contains("must be a DNS name in lower case"), "{refused}");

    write(json!({"hostname": host, "suspend": true}));
    assert_eq!(
        tenant.kubectl(&["apply", "-f", path]).unwrap().trim(),
        "clientapp.apps.bnerd-operator.local/acme created"
    );
    tenant.condition("acme", "Reconciling", "False", "Suspended").await;
    let table = tenant.kubectl(&["get", "ca"]).unwrap();
    let mut lines =
        table.lines().map(|line| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect::<Vec<_>>());
    assert_eq!(lines.next().unwrap(), ["NAME", "READY", "REVISION", "CHART VERSION", "HOSTNAME", "STATUS", "AGE"]);
    let row = lines.next().unwrap().join(" ");
    for cell in ["acme", "False", "5.5.2", &host, "spec.suspend is true"] {
        assert!(row.contains(cell), "{cell} is not in {row}");
    }

    for (field, part) in [
        ("clientapp", "one tenant's complete, isolated instance"),
        ("clientapp.spec.hostname", "The DNS name the instance is served under"),
        ("ca.spec.postgres.storageSize", "Only grows"),
        ("ca.status.conditions", "`Ready` sums up"),
    ] {
        let explained = tenant.kubectl(&["explain", field]).unwrap();
        assert!(explained.contains(part), "{field}: {explained}");
    }
}

#[test]
fn every_field_is_described() {
    fn walk(path: &str, schema: &Value, undescribed: &mut Vec<String>) -> usize {
        let mut count = 0;
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            if property["description"].as_str().is_none_or(|description| description.trim().is_empty()) {
                undescribed.push(path.clone());
            }
            count += 1 + walk(&path, property, undescribed) + walk(&path, &property["items"], undescribed);
        }
        count
    }
    let mut undescribed = Vec::new();
    let crd = serde_json::to_value(ClientApp::crd()).unwrap();
    let fields = walk("clientapp", &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"], &mut undescribed);
    assert!(fields > 40, "only {fields} fields were found");
    assert_eq!(undescribed, Vec::<String>::new());
}

/// Waits until a ClientApp's status is as the check wants it, whatever its spec is.
async fn seen(tenant: &Tenant, name: &str, what: &str, check: impl Fn(&ClientAppStatus) -> bool) -> ClientAppStatus {
    /// Of what nests deeper than serde_json reads, this is all that can be read.
    #[derive(Deserialize)]
    struct Seen {
        status: Option<ClientAppStatus>,
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let request = http::Request::get(format!("{}/{name}", ClientApp::url_path(&(), Some(&tenant.namespace))));
        let text = tenant.client.request_text(request.body(Vec::new()).unwrap()).await.unwrap();
        let Seen { status } = serde_json::from_str(&text).unwrap();
        if let Some(status) = status.filter(&check) {
            return status;
        }
        let log = || tenant.lab.operator_log();
        assert!(
            Instant::now() < deadline,
            "{name} was not {what}; it was {text:.4000}\nthe operator's log:\n{}",
            log()
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until a ClientApp is refused as [`InvalidSpec`], and returns the sentence.
///
/// [`InvalidSpec`]: clientapp_operator::clientapp::desired::InvalidSpec
async fn invalid(tenant: &Tenant, name: &str) -> String {
    let what = format!("InvalidSpec of {name}");
    let status = seen(tenant, name, &what, |status| {
        has(status, "Stalled", "True", "InvalidSpec")
            && has(status, "Ready", "False", "InvalidSpec")
            && has(status, "Reconciling", "False", "InvalidSpec")
    });
    find(&status.await.conditions, "Ready").unwrap().message.clone()
}

/// Deletes a ClientApp, whatever its spec is, and waits until it is gone.
async fn delete(tenant: &Tenant, name: &str) {
    tenant.kubectl(&["delete", "clientapp", name]).unwrap();
}

/// What is in the namespace that is not there from the beginning.
fn made(tenant: &Tenant) -> Vec<String> {
    let mut kinds = "secrets,configmaps,services,deployments,statefulsets,persistentvolumeclaims".to_owned();
    if tenant.lab.percona.is_some() {
        kinds.push_str(",perconapgclusters");
    }
    let list = tenant.kubectl(&["get", &kinds, "--output", "name"]).unwrap();
    list.lines().filter(|name| !name.contains("kube-root-ca.crt")).map(str::to_owned).collect()
}

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
        ("profile", "profile", json!("premium"), "spec.profile: names the Profile \"premium\""),
        (
            "standalone",
            "postgres",
            json!({"provider": "standalone"}),
            "spec.postgres.provider: this operator serves the provider percona only",
        ),
        (
            "external",
            "postgres",
            json!({"provider": "external"}),
            "spec.postgres.provider: this operator serves the provider percona only",
        ),
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

    // What was refused is put right in place, or taken away.
    tenant.patch("host", json!({"values": null, "postgres": {"enabled": false}})).await.unwrap();
    tenant.ready("host", 1).await;
    for name in names {
        delete(&tenant, &name).await;
    }
    until("the collection of what was made", async || made(&tenant).is_empty().then_some(())).await;
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
    // An empty value is none.
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

/// Changes the spec in a way that helm has no part in, and waits until the operator has seen it: whatever it does of
/// its own accord, it has done or would do now.
async fn nudge(tenant: &Tenant, name: &str, deletion_policy: &str) -> ClientAppStatus {
    let app = tenant.patch(name, json!({"deletionPolicy": deletion_policy})).await.unwrap();
    let generation = app.metadata.generation;
    tenant.status(name, "nudged", |status| status.observed_generation >= generation).await
}

/// Sets the clock of a retry forward, and leaves the rest to the operator.
async fn time_passes(tenant: &Tenant, name: &str) {
    let patch = Patch::Merge(json!({"status": {"lastAttempt": {"retryAt": "2000-01-01T00:00:00Z"}}}));
    tenant.api::<ClientApp>().patch_status(name, &PatchParams::default(), &patch).await.unwrap();
}

fn revisions(tenant: &Tenant, release: &str) -> usize {
    let ran = tenant.helm(&["history", release, "--output", "json"]);
    serde_json::from_str::<Vec<Value>>(&ran.stdout).map_or(0, |history| history.len())
}

/// A chart version that cannot work, the reason in Released, whether that stalls the app, and helm's own words.
const BROKEN: [(&str, &str, &str, bool, &str); 6] = [
    ("absent", "9.9.9", "ChartInvalid", true, "chart \"nextcloud\" version \"9.9.9\" not found in http://127.0.0.1"),
    ("render", charts::UNRENDERABLE, "ChartInvalid", true, "refuses.yaml:1:4): this version refuses to render"),
    ("schema", charts::UNSATISFIABLE, "ChartInvalid", true, "missing property 'licenseKey'"),
    ("hook", charts::HOOK_FAILS, "UpgradeFailed", false, "-nextcloud-prepare not ready. status: Failed"),
    (
        "misspelt",
        charts::MISSPELT,
        "ChartInvalid",
        true,
        ".spec.template.spec.nodeSelectr: field not declared in schema",
    ),
    (
        "kind",
        charts::UNKNOWN_KIND,
        "ChartInvalid",
        true,
        "no matches for kind \"ServiceMonitor\" in version \"monitoring.coreos.com/v1\"",
    ),
];

fn small(tenant: &Tenant, name: &str, version: &str) -> Value {
    json!({
        "hostname": hostname(tenant, name), "chartVersion": version,
        "postgres": {"enabled": false}, "redis": {"enabled": false}, "persistence": {"enabled": false},
    })
}

/// The failure is told, counted once, and not tried again before its time.
async fn failed(tenant: &Tenant, name: &str, version: &str, reason: &str, stalled: bool, words: &str) {
    let status = tenant
        .status(name, &format!("failed with {version}"), |status| {
            has(status, "Released", "False", reason) && has(status, "Ready", "False", reason)
        })
        .await;
    let sentence = &find(&status.conditions, "Released").unwrap().message;
    assert!(sentence.contains(words), "{name}: {words} is not in {sentence}");
    assert!(
        has(&status, "Stalled", if stalled { "True" } else { "False" }, if stalled { reason } else { "NotStalled" }),
        "{status:#?}"
    );
    let attempt = status.last_attempt.unwrap();
    assert_eq!(
        (attempt.failures, attempt.reason.as_deref(), attempt.message.as_ref()),
        (1, Some(reason), Some(sentence))
    );
    assert!(attempt.retry_at.as_ref().unwrap().0 > attempt.started_at.0, "{attempt:?}");

    let before = revisions(tenant, name);
    for policy in ["Retain", "Delete"] {
        let status = nudge(tenant, name, policy).await;
        let latest = status.last_attempt.unwrap();
        // A hook that fails is tried again soon, and the machine may be slow.
        if reason != "UpgradeFailed" {
            assert_eq!(latest, attempt, "{name}");
            assert_eq!(revisions(tenant, name), before, "{name}");
        }
    }
}

#[tokio::test]
async fn a_first_installation_that_fails_is_told_once_and_put_right_at_once() {
    let tenant = Lab::shared().await.tenant("first-failures").await;
    for (name, version, ..) in BROKEN {
        tenant.create(name, small(&tenant, name, version)).await.unwrap();
    }
    for (name, version, reason, stalled, words) in BROKEN {
        failed(&tenant, name, version, reason, stalled, words).await;
    }
    for (name, ..) in BROKEN {
        tenant.patch(name, json!({"chartVersion": charts::PATCH})).await.unwrap();
    }
    for (name, ..) in BROKEN {
        let status = tenant.status(name, "Ready", |status| has(status, "Ready", "True", "Ready")).await;
        assert_eq!(status.release.unwrap().chart_version.as_deref(), Some(charts::PATCH));
        assert_eq!(status.last_attempt.unwrap().failures, 0);
    }
}

#[tokio::test]
async fn an_upgrade_that_fails_leaves_the_app_serving() {
    let tenant = Lab::shared().await.tenant("failed-upgrades").await;
    for (name, ..) in BROKEN {
        tenant.create(name, small(&tenant, name, charts::DEFAULT)).await.unwrap();
    }
    for (name, version, reason, stalled, words) in BROKEN {
        tenant.ready(name, 1).await;
        let deployments = tenant.api::<Deployment>();
        let before = deployments.get(&format!("{name}-nextcloud")).await.unwrap();
        tenant.patch(name, json!({"chartVersion": version})).await.unwrap();
        failed(&tenant, name, version, reason, stalled, words).await;

        let after = deployments.get(&format!("{name}-nextcloud")).await.unwrap();
        assert_eq!(before.spec.unwrap().template, after.spec.unwrap().template, "{name}");
        assert_eq!(after.status.unwrap().available_replicas, Some(1), "{name}");
        let status = tenant.api::<ClientApp>().get(name).await.unwrap().status.unwrap();
        assert!(has(&status, "WorkloadsReady", "True", "Ready"), "{status:#?}");
        // What is installed is still what was installed.
        assert_eq!(status.release.unwrap().chart_version.as_deref(), Some(charts::DEFAULT), "{name}");
    }
    for (name, ..) in BROKEN {
        tenant.patch(name, json!({"chartVersion": charts::DEFAULT})).await.unwrap();
        tenant.status(name, "Ready", |status| has(status, "Ready", "True", "Ready")).await;
    }
}

#[tokio::test]
async fn an_upgrade_that_never_gets_ready_leaves_the_old_pods_serving() {
    let tenant = Lab::shared().await.tenant("never-ready").await;
    let mut spec = small(&tenant, "acme", charts::DEFAULT);
    spec["values"] = json!({"nextcloud": {"strategy": {"type": "RollingUpdate"}}});
    tenant.create("acme", spec).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.patch("acme", json!({"chartVersion": charts::NEVER_READY})).await.unwrap();
    let status = tenant
        .status("acme", "waiting for its workloads at revision 2", |status| {
            let revised = status.release.as_ref().is_some_and(|release| release.revision == 2);
            revised && has(status, "WorkloadsReady", "False", "NotReady") && has(status, "Ready", "False", "NotReady")
        })
        .await;
    let sentence = &find(&status.conditions, "Ready").unwrap().message;
    assert!(sentence.contains("Deployment acme-nextcloud"), "{sentence}");
    assert!(has(&status, "Released", "True", "Deployed"), "{status:#?}");
    let deployment = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap();
    assert_eq!(deployment.status.unwrap().available_replicas, Some(1));

    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 3).await;
}

/// A lab in which things are broken on purpose, for one test at a time. Its operator starts with a cold chart cache.
async fn rough(adapt: impl FnOnce(&mut Options)) -> (&'static Lab, MutexGuard<'static, ()>) {
    static ROUGH: OnceLock<Lab> = OnceLock::new();
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let turn = TURN.lock().await;
    let start = || ROUGH.get_or_init(|| Lab::start(false).expect("the lab starts"));
    let lab = tokio::task::spawn_blocking(start).await.expect("the lab starts");
    lab.repository.set(Fault::None).unwrap();
    let mut options = lab.options();
    adapt(&mut options);
    restart(lab, options).await;
    (lab, turn)
}

async fn restart(lab: &'static Lab, options: Options) {
    tokio::task::spawn_blocking(move || lab.start_operator(&options).expect("the operator starts")).await.unwrap();
}

/// Asks for a path of the operator's own server, and returns the answer's first line and its end.
fn get(url: &str, path: &str) -> std::io::Result<(String, String)> {
    let address = url.trim_start_matches("http://");
    let mut connection = TcpStream::connect(address)?;
    write!(connection, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    Ok((head.lines().next().unwrap_or_default().to_owned(), body.trim_end().to_owned()))
}

fn script(path: &Path, text: &str, mode: u32) {
    // In one step, and never open for writing under its own name: such a file cannot be executed.
    let made = path.with_extension("new");
    std::fs::write(&made, text).unwrap();
    std::fs::set_permissions(&made, std::fs::Permissions::from_mode(mode)).unwrap();
    std::fs::rename(made, path).unwrap();
}

#[tokio::test]
async fn without_a_usable_helm_nothing_is_touched() {
    let (lab, _turn) = rough(|_| {}).await;
    // The operator that runs would do the work.
    tokio::task::spawn_blocking(|| *lab.operator() = None).await.unwrap();
    let tenant = lab.tenant("no-helm").await;
    tenant.create("acme", small(&tenant, "acme", charts::DEFAULT)).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let helm = dir.path().join("helm");
    let options = Options { helm: helm.clone(), ..lab.options() };
    let wait_for = |operator: &mut Operator, code: &str, words: &str| {
        let url = operator.health_url().unwrap();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (status, body) = get(&url, "/readyz").unwrap();
            if status.contains(code) && body.contains(words) {
                return;
            }
            assert!(Instant::now() < deadline, "/readyz answers {status}: {body}, not {code}: {words}");
            std::thread::sleep(Duration::from_millis(50));
        }
    };
    let mut last = None;
    for (text, mode, words) in [
        (Some("#!/bin/sh\necho v4.3.1\n"), 0o644, "HelmUnavailable: helm cannot be executed: "),
        (Some("not a program"), 0o755, "is not helm: asked for its version, it said"),
        (Some("#!/bin/sh\necho v3.18.6\n"), 0o755, "HelmUnavailable: helm 3.18.6 is too old: at least 4.0.0 is needed"),
        (Some("#!/bin/sh\necho welcome\n"), 0o755, "is not helm: asked for its version, it said \"welcome\""),
        (
            Some("#!/bin/sh\necho 'Error: no' >&2; exit 1\n"),
            0o755,
            "is not helm: asked for its version, it said \"no\"",
        ),
        (None, 0, "HelmUnavailable: helm is missing: there is no executable at "),
    ] {
        match text {
            Some(text) => script(&helm, text, mode),
            None => std::fs::remove_file(&helm).unwrap(),
        }
        let mut operator = Operator::start(&options).unwrap();
        wait_for(&mut operator, "503", words);
        assert!(get(&operator.health_url().unwrap(), "/healthz").unwrap().0.contains("200"));
        assert!(operator.log().contains("HelmUnavailable"), "{}", operator.log());
        last = Some(operator);
    }
    let app = raw(&tenant).get("acme").await.unwrap();
    assert_eq!((app.metadata.finalizers, app.data.get("status")), (None, None));

    // helm appears, and the operator that waits for it goes on by itself.
    std::os::unix::fs::symlink(&lab.tools.helm, &helm).unwrap();
    let mut operator = last.unwrap();
    wait_for(&mut operator, "200", "ok");
    *lab.operator() = Some(operator);
    tenant.ready("acme", 1).await;

    // And when it vanishes under a running operator, that is said, and healed by its return.
    std::fs::remove_file(&helm).unwrap();
    tenant.patch("acme", json!({"replicas": 2})).await.unwrap();
    let sentence = tenant.condition("acme", "Released", "False", "HelmUnavailable").await;
    assert!(sentence.contains(helm.to_str().unwrap()), "{sentence}");
    std::os::unix::fs::symlink(&lab.tools.helm, &helm).unwrap();
    time_passes(&tenant, "acme").await;
    tenant.ready("acme", 2).await;
}

#[tokio::test]
async fn a_repository_that_fails_is_told_and_tried_again() {
    let (lab, _turn) = rough(|_| {}).await;
    let tenant = lab.tenant("bad-repository").await;
    for (name, fault, reason, stalled, words) in [
        ("refused", Fault::Refused, "ChartUnavailable", false, "connection refused"),
        ("unavailable", Fault::Unavailable, "ChartUnavailable", false, "503 Service Unavailable"),
        ("html", Fault::Html, "ChartUnavailable", false, "is not a valid chart repository"),
        ("missing", Fault::Missing, "ChartInvalid", true, "404 Not Found"),
        ("html-archives", Fault::HtmlArchives, "ChartInvalid", true, "5.5.2"),
    ] {
        lab.repository.set(fault).unwrap();
        // Each with a cold cache.
        restart(lab, lab.options()).await;
        tenant.create(name, small(&tenant, name, charts::DEFAULT)).await.unwrap();
        let sentence = tenant.condition(name, "Released", "False", reason).await;
        assert!(sentence.contains(words), "{name}: {sentence}");
        let state = if stalled { ("True", reason) } else { ("False", "NotStalled") };
        let status = tenant.status(name, "stalled or not", |status| has(status, "Stalled", state.0, state.1)).await;
        assert!(has(&status, "Ready", "False", reason), "{status:#?}");
        assert_eq!(status.last_attempt.as_ref().unwrap().failures, 1, "{name}");
        assert_eq!(tenant.listed(name), None);
        let asked = lab.repository.all_requests();
        assert_eq!(nudge(&tenant, name, "Retain").await.last_attempt, status.last_attempt, "{name}");
        assert_eq!(lab.repository.all_requests(), asked, "{name}");

        lab.repository.set(Fault::None).unwrap();
        time_passes(&tenant, name).await;
        tenant.ready(name, 1).await;
    }
}

#[tokio::test]
async fn a_slow_repository_holds_up_nobody_else() {
    let (lab, _turn) = rough(|options| options.arguments = vec!["--max-concurrent".into(), "1".into()]).await;
    let tenant = lab.tenant("slow-repository").await;
    tenant.create("first", small(&tenant, "first", charts::DEFAULT)).await.unwrap();
    tenant.ready("first", 1).await;

    lab.repository.set(Fault::Slow).unwrap();
    for name in ["slow", "doomed"] {
        tenant.create(name, small(&tenant, name, charts::MAJOR)).await.unwrap();
        let sentence = tenant.condition(name, "Ready", "False", "FetchingChart").await;
        assert_eq!(sentence, "fetching chart nextcloud 6.0.0");
    }
    // What is in the cache is installed meanwhile, though only one helm may work at a time.
    tenant.create("other", small(&tenant, "other", charts::DEFAULT)).await.unwrap();
    tenant.ready("other", 1).await;
    tenant.delete("first").await;
    // Nor is anybody held up who does not want it any more.
    tenant.delete("doomed").await;
    tenant.patch("slow", json!({"chartVersion": charts::DEFAULT})).await.unwrap();
    tenant.ready("slow", 1).await;
}

#[tokio::test]
async fn a_version_that_was_published_anew_is_not_installed() {
    let (lab, _turn) = rough(|_| {}).await;
    let tenant = lab.tenant("republished").await;
    for name in ["acme", "quiet"] {
        tenant.create(name, small(&tenant, name, charts::DEFAULT)).await.unwrap();
        tenant.ready(name, 1).await;
    }
    let genuine = charts::digest(&charts::archive(charts::DEFAULT, Content::Genuine).unwrap());
    let tampered = charts::digest(&charts::archive(charts::DEFAULT, Content::Tampered).unwrap());

    lab.repository.set(Fault::Republished).unwrap();
    restart(lab, lab.options()).await;
    tenant.patch("acme", json!({"replicas": 2})).await.unwrap();
    let sentence = tenant.condition("acme", "Released", "False", "ChartDigestChanged").await;
    for part in [&genuine, &tampered, "nothing is installed", "publish the change under a new version"] {
        assert!(sentence.contains(part), "{part} is not in {sentence}");
    }
    tenant.condition("acme", "Stalled", "True", "ChartDigestChanged").await;
    for (name, ready) in [("acme", "False"), ("quiet", "True")] {
        let status = nudge(&tenant, name, "Retain").await;
        assert_eq!(find(&status.conditions, "Ready").unwrap().status, ready, "{name}");
        assert!(has(&status, "WorkloadsReady", "True", "Ready"), "{status:#?}");
        assert_eq!((revisions(&tenant, name), status.release.unwrap().chart_digest.as_ref()), (1, Some(&genuine)));
    }
    assert!(tenant.kubectl(&["get", "configmap", "acme-tampered"]).is_err());

    // Put right where it was broken, it is installed: nobody has to clean up after the operator.
    lab.repository.set(Fault::None).unwrap();
    time_passes(&tenant, "acme").await;
    tenant.ready("acme", 2).await;
}

/// Takes a rule's verb for a resource away from one of the operator's ClusterRoles, and returns the role as it was.
async fn without_right(lab: &Lab, role: &str, resource: &str, verb: &str) -> ClusterRole {
    let api: Api<ClusterRole> = Api::all(lab.plane.client().await.unwrap());
    let role = api.get(role).await.unwrap();
    let mut less = role.clone();
    for rule in
        less.rules.iter_mut().flatten().filter(|rule| rule.resources.iter().flatten().any(|name| name == resource))
    {
        rule.verbs.retain(|granted| granted != verb);
    }
    less.rules.as_mut().unwrap().retain(|rule| !rule.verbs.is_empty());
    assert_ne!(role, less);
    set_role(lab, &less).await;
    role
}

/// Sets the rules of a ClusterRole, and waits until the API server goes by them.
async fn set_role(lab: &Lab, role: &ClusterRole) {
    let api: Api<ClusterRole> = Api::all(lab.plane.client().await.unwrap());
    let patch = Patch::Merge(json!({"rules": role.rules}));
    api.patch(role.metadata.name.as_deref().unwrap(), &PatchParams::default(), &patch).await.unwrap();
}

/// Waits until the operator's account may do this, or may not.
async fn until_allowed(lab: &'static Lab, verb: &str, resource: &str, namespace: &str, allowed: bool) {
    let deadline = Instant::now() + PATIENCE;
    let arguments = ["auth", "can-i", verb, resource];
    let can = || kubectl(&lab.tools.kubectl, &lab.operator_kubeconfig, Some(namespace), &arguments).is_ok();
    while can() != allowed {
        assert!(Instant::now() < deadline, "{verb} {resource} is never {allowed}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_right_that_is_missing_is_named() {
    let (lab, _turn) = rough(|_| {}).await;
    let tenant = lab.tenant("no-rights").await;
    tenant.create("bystander", small(&tenant, "bystander", charts::DEFAULT)).await.unwrap();
    tenant.ready("bystander", 1).await;
    let with_redis = |name: &str| {
        let mut spec = small(&tenant, name, charts::DEFAULT);
        spec["redis"] = json!({"enabled": true});
        spec
    };

    // A right that helm needs for the chart.
    let role = without_right(lab, "clientapp-operator-chart", "networkpolicies", "patch").await;
    until_allowed(lab, "patch", "networkpolicies.networking.k8s.io", &tenant.namespace, false).await;
    tenant.create("chart", with_redis("chart")).await.unwrap();
    let sentence = tenant.condition("chart", "Released", "False", "AccessDenied").await;
    for part in ["cannot patch resource \"networkpolicies\"", "clientapp-operator", "no-rights"] {
        assert!(sentence.contains(part), "{sentence}");
    }
    tenant.condition("chart", "Stalled", "True", "AccessDenied").await;
    tenant.create("meanwhile", small(&tenant, "meanwhile", charts::DEFAULT)).await.unwrap();
    tenant.ready("meanwhile", 1).await;
    set_role(lab, &role).await;
    until_allowed(lab, "patch", "networkpolicies.networking.k8s.io", &tenant.namespace, true).await;
    time_passes(&tenant, "chart").await;
    tenant.ready("chart", 2).await;

    // A right that the operator needs itself.
    let role = without_right(lab, "clientapp-operator", "secrets", "create").await;
    until_allowed(lab, "create", "secrets", &tenant.namespace, false).await;
    tenant.create("secret", with_redis("secret")).await.unwrap();
    let sentence = tenant.condition("secret", "Ready", "False", "AccessDenied").await;
    for part in ["create Secret no-rights/secret-", "cannot create resource \"secrets\"", "no-rights"] {
        assert!(sentence.contains(part), "{sentence}");
    }
    tenant.condition("secret", "Stalled", "True", "AccessDenied").await;
    let status = nudge(&tenant, "bystander", "Retain").await;
    assert!(has(&status, "Ready", "True", "Ready"), "{status:#?}");
    set_role(lab, &role).await;
    until_allowed(lab, "create", "secrets", &tenant.namespace, true).await;
    tenant.patch("secret", json!({"deletionPolicy": "Retain"})).await.unwrap();
    tenant.ready("secret", 1).await;
}

#[tokio::test]
async fn a_quota_that_is_used_up_is_named() {
    let lab = Lab::shared().await;
    for (namespace, hard, condition, reason, parts) in [
        (
            "quota-secrets",
            "count/secrets=0",
            "Ready",
            "QuotaExceeded",
            &["create Secret quota-secrets/acme-", "exceeded quota: few"][..],
        ),
        (
            "quota-services",
            "services=0",
            "Released",
            "UpgradeFailed",
            &["services \"acme-nextcloud\"", "exceeded quota: few"],
        ),
        ("quota-pods", "pods=0", "WorkloadsReady", "NotReady", &["Deployment acme-nextcloud", "exceeded quota: few"]),
    ] {
        let tenant = lab.tenant(namespace).await;
        tenant.kubectl(&["create", "quota", "few", &format!("--hard={hard}")]).unwrap();
        tenant.kubectl(&["wait", "resourcequota/few", "--for=jsonpath={.status.hard}", "--timeout=120s"]).unwrap();
        tenant.create("acme", small(&tenant, "acme", charts::DEFAULT)).await.unwrap();
        let status = tenant
            .status("acme", "refused by the quota", |status| {
                let message = find(&status.conditions, condition).map(|condition| condition.message.as_str());
                has(status, condition, "False", reason)
                    && message.is_some_and(|said| parts.iter().all(|part| said.contains(part)))
            })
            .await;
        assert_eq!(find(&status.conditions, "Ready").unwrap().status, "False");
        // Deletion needs no more than there is.
        tenant.delete("acme").await;
    }
}

/// Tries until it has worked.
async fn until<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(done) = attempt().await {
            return done;
        }
        assert!(Instant::now() < deadline, "{what} never happens");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_stored_object_that_does_not_decode_is_told_and_can_be_deleted() {
    let (lab, _turn) = rough(|_| {}).await;
    let tenant = lab.tenant("undecodable").await;
    let definitions: Api<CustomResourceDefinition> = Api::all(tenant.client.clone());
    let strict = serde_json::to_value(ClientApp::crd()).unwrap();
    let mut loose = strict.clone();
    loose["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
        json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let define = async |definition: &Value| {
        let patch = Patch::Merge(json!({"spec": {"versions": definition["spec"]["versions"]}}));
        definitions.patch(&ClientApp::crd().metadata.name.unwrap(), &PatchParams::default(), &patch).await.unwrap();
    };

    tenant.create("turned", small(&tenant, "turned", charts::DEFAULT)).await.unwrap();
    tenant.ready("turned", 1).await;
    define(&loose).await;
    for (name, spec) in [
        ("number", json!({"hostname": 7})),
        ("word", json!({"hostname": "word.example.com", "suspend": "yes"})),
        ("list", json!({"hostname": "list.example.com", "redis": ["on"]})),
        ("nothing", json!({})),
    ] {
        until("the loose schema", async || tenant.create(name, spec.clone()).await.ok()).await;
    }
    let patch = Patch::Merge(json!({"spec": {"suspend": "yes"}}));
    raw(&tenant).patch("turned", &PatchParams::default(), &patch).await.unwrap();
    define(&strict).await;
    until("the strict schema", async || {
        // It is refused for something else until then.
        let refused = refusal(tenant.create("never", json!({"hostname": 8, "suspend": "no"})).await);
        refused.contains("must be of type string").then_some(())
    })
    .await;

    for (name, words) in [
        ("word", "the stored object does not decode: spec.suspend: invalid type: string \"yes\", expected a boolean"),
        ("turned", "spec.suspend: invalid type: string \"yes\", expected a boolean"),
        ("list", "spec.redis[0]: invalid type: string \"on\", expected a boolean"),
        ("nothing", "spec: missing field `hostname`"),
    ] {
        let sentence = invalid(&tenant, name).await;
        assert!(sentence.contains(words), "{name}: {sentence}");
    }
    // To this one the API server lets nobody write a status, since it cannot evaluate the rule for the field.
    let words = "the stored object does not decode: spec.hostname: invalid type: integer `7`, expected a string";
    tenant.events_with("number", "InvalidSpec", words).await;
    // The others go on, also when an operator starts with the bad ones there already.
    restart(lab, lab.options()).await;
    tenant.create("good", small(&tenant, "good", charts::DEFAULT)).await.unwrap();
    tenant.ready("good", 1).await;
    let others = |name: &String| !name.contains("good") && !name.contains("turned");
    assert_eq!(made(&tenant).into_iter().filter(others).collect::<Vec<_>>(), Vec::<String>::new());

    // Each is put right, or deleted.
    for name in ["number", "word"] {
        let mut repaired = small(&tenant, name, charts::DEFAULT);
        repaired["suspend"] = json!(false);
        raw(&tenant).patch(name, &PatchParams::default(), &Patch::Merge(json!({"spec": repaired}))).await.unwrap();
        tenant.ready(name, 1).await;
    }
    for name in ["list", "nothing", "turned", "number", "word", "good"] {
        delete(&tenant, name).await;
    }
    assert_eq!(tenant.listed("turned"), None);
}
