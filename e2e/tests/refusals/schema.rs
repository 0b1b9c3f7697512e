//! Refusals by the API server, at once.

use e2e::scenario::with;
use e2e::tools;
use kube::api::PostParams;

use super::*;

/// A spec that is refused, the field that the answer names, and what it says about it.
type Row = (Value, String, &'static str);

/// A spec with a hostname and a value at a path, such as `postgres.version`.
fn at(path: &str, value: Value) -> Value {
    let field = path.rsplit('.').fold(value, |inner, name| json!({name: inner}));
    with(json!({"hostname": "a.example.com"}), field)
}

/// One value at a path, which the answer names.
fn one(path: &str, value: Value, sentence: &'static str) -> Row {
    (at(path, value), format!("spec.{path}"), sentence)
}

/// Several texts at the same path.
fn each(path: &str, texts: &[&str], sentence: &'static str) -> Vec<Row> {
    texts.iter().map(|text| one(path, json!(text), sentence)).collect()
}

#[tokio::test]
async fn the_api_server_refuses_a_wrong_field_at_once() {
    let tenant = Lab::shared().await.tenant("wrong-fields").await;
    let mut rows: Vec<Row> = vec![
        (json!({}), "spec.hostname".to_owned(), "Required value"),
        one("hostname", json!(null), "Required value"),
        one("hostname", json!(7), "must be of type string"),
        one("hostname", json!(format!("{}.examples", ["a"; 123].join("."))), "may not be more than 253 bytes"),
        one("chartVersion", json!(5.5), "must be of type string"),
        one("chartVersion", json!(format!("1.0.0-{}", "a".repeat(58))), "may not be more than 63 bytes"),
        one("values", json!("redis: off"), "must be of type object"),
        one("values", json!(["a"]), "must be of type object"),
        one("redis", json!(false), "must be of type object"),
        one("redis.enabled", json!("no"), "must be of type boolean"),
        one("suspend", json!("yes"), "must be of type boolean"),
        one("replicas", json!(-1), "should be greater than or equal to 0"),
        one("replicas", json!(101), "should be less than or equal to 100"),
        one("replicas", json!("2"), "must be of type integer"),
        one("replicas", json!(1.5), "must be of type integer"),
        one("adminSecret", json!(""), "at least 1 chars long"),
        one("ingressClassName", json!(""), "at least 1 chars long"),
        one("serviceAccountName", json!(""), "at least 1 chars long"),
        one("serviceAccountName", json!("a".repeat(254)), "may not be more than 253 bytes"),
        one("deletionPolicy", json!("Keep"), "supported values: \"Delete\", \"Retain\""),
        one("drift", json!("Undo"), "supported values: \"Repair\""),
        one("driftIgnore", ignored("spec.replicas"), "must be JSON pointers such as /spec/replicas"),
        one("driftIgnore", ignored("/metadata/name"), "of metadata, only labels and annotations"),
        one("dependsOn", json!([{"kind": "Bucket", "name": "x"}]), "apiVersion must be set if the kind is neither"),
        one("dependsOn", json!([{"name": "No"}]), "spec.dependsOn[0].name"),
        one(
            "postgres.provider",
            json!("mysql"),
            "supported values: \"percona\", \"standalone\", \"cloudnativepg\", \"external\"",
        ),
        one("postgres.adopt", json!("yes"), "must be of type boolean"),
        one("postgres.version", json!(15), "must be of type string"),
        one("postgres.version", json!("12"), "from \"13\" to \"18\""),
        one("postgres.version", json!("15.3"), "may not be more than 2 bytes"),
        one("postgres.instances", json!(0), "should be greater than or equal to 1"),
        one("postgres.parameters", json!({"max_connections": "9"}), "parameters are for the providers standalone"),
        one("upgrade.backup", json!("yes"), "must be of type boolean"),
        one("upgrade.allow", json!(true), "must be of type string"),
        one("upgrade.timeout", json!("soon"), "must be a duration such as 15m"),
        one("valuesFrom", json!(vec![reference(json!({})); 17]), "must have at most 16 items"),
        one("tls", json!({"secretName": "wildcard"}), "set ingressClassName as well"),
        one("ingressClas", json!("traefik"), "unknown field"),
        one("postgres.storage", json!("1Gi"), "unknown field"),
        one("persistence.storageClass", json!("fast"), "unknown field"),
    ];
    let backed_up = json!({
        "hostname": "acme.example.com", "postgres": {"provider": "cloudnativepg"}, "upgrade": {"backup": true},
    });
    rows.push((backed_up, "spec.upgrade.backup".to_owned(), "needs a bucket with postgres.provider cloudnativepg"));
    rows.extend(of_texts());
    rows.extend(of_databases());
    rows.extend(of_percona());
    rows.extend(of_tls());
    rows.extend(of_values_from());

    let oldest = tools::is_oldest().unwrap();
    let mut said = Vec::new();
    for (index, (spec, field, sentence)) in rows.into_iter().enumerate() {
        let answer = refusal(tenant.create(&format!("row-{index}"), spec.clone()).await);
        let sentence = if oldest { of_the_oldest(sentence) } else { sentence.to_owned() };
        said.push((spec.to_string(), answer, vec![field, sentence]));
    }
    assert_all(said);
    let stored = raw(&tenant).list(&ListParams::default()).await.unwrap();
    assert_eq!(stored.items.len(), 0);
}

/// Returns a sentence of the newest API server in the words of the oldest.
fn of_the_oldest(sentence: &str) -> String {
    match sentence.strip_prefix("may not be more than ") {
        Some(length) => format!("may not be longer than {}", length.trim_end_matches(" bytes")),
        None => sentence.to_owned(),
    }
}

fn ignored(path: &str) -> Value {
    json!([{"kind": "Deployment", "paths": [path]}])
}

/// Texts that are no hostname, version, size, image or account.
fn of_texts() -> Vec<Row> {
    const HOSTNAME: &str = "must be a DNS name in lower case, such as acme.example.com";
    const VERSION: &str = "must be one exact version such as 5.5.2: no range, no 'latest', no leading 'v'";
    const SIZE: &str = "must be a quantity above zero such as";
    const IMAGE: &str = "must be repository:tag or repository@sha256:<64 hex digits>";
    const ACCOUNT: &str = "must be the name of a ServiceAccount";
    let hostnames = "Acme.example.com a_b.example.com a.example.com. *.example.com -a.example.com a-.example.com \
                     a..example.com .example.com https://a.example.com a.example.com:80 ä.example.com";
    let long = format!("{}.example.com", "a".repeat(64));
    let hostnames: Vec<&str> = hostnames.split(' ').chain(["", "a b.example.com", &long]).collect();
    let versions = [
        "", "latest", "^5", "~5.5.2", ">=5.5.2", "5", "5.5", "5.5.x", "v5.5.2", "5.5.2 ", " 5.5.2", "5.5.2\n",
        "05.5.2", "5.5.2.1",
    ];
    let sizes = ["", "8Gb", "8GiB", "8 Gi", "0", "0Gi", "-1Gi", "Gi", "lots"];
    let images = "nextcloud registry.example.com:5000/nextcloud nextcloud: :30 nextcloud@sha256:abc Nextcloud:30 \
                  registry.example.com/Platform/nextcloud:30 registry.example.com:/nextcloud:30 \
                  https://registry.example.com/nextcloud:30 registry.example.com//nextcloud:30 a..b:30";
    let images: Vec<&str> = images.split(' ').chain(["next cloud:30", "nextcloud:30 --privileged"]).collect();
    let accounts = ["Team", "team_a", "-team", "team-", "a..b", "other:team", "a\nb"];
    [
        each("hostname", &hostnames, HOSTNAME),
        each("chartVersion", &versions, VERSION),
        each("persistence.size", &sizes, SIZE),
        each("postgres.storageSize", &sizes, SIZE),
        each("image", &images, IMAGE),
        each("serviceAccountName", &accounts, ACCOUNT),
    ]
    .concat()
}

/// Combinations in `spec.postgres`; the answer names a field in it.
fn of_databases() -> Vec<Row> {
    const NEEDED: &str = "external must be set if the provider is external";
    const HOST: &str = "must be a DNS name or an address, followed by :port if the port is not 5432";
    let external = |external: Value| json!({"provider": "external", "external": external});
    let source = |source: Value| json!({"provider": "cloudnativepg", "cloudnativepg": {"dataSource": source}});
    let named = |name: Value| json!({"provider": "cloudnativepg", "cloudnativepg": {"cluster": name}});
    let cluster = |backup: Value, store: Value| {
        let bucket = json!({"endpoint": "https://s3", "bucket": "backups", "credentialsSecret": {"name": "s3"}});
        let whole = with(json!({"schedule": "@daily", "store": with(bucket, store)}), backup);
        json!({"provider": "cloudnativepg", "backup": whole})
    };
    let rows = [
        (json!({"provider": "external"}), "external", NEEDED),
        (json!({"external": {"secretName": "theirs"}}), "external", NEEDED),
        (external(json!({})), "external.secretName", "Required value"),
        (external(json!({"secretName": "a", "host": "db.example.com/x"})), "external.host", HOST),
        (with(external(json!({"secretName": "a"})), json!({"resources": {}})), "resources", "not for an external one"),
        (
            with(external(json!({"secretName": "a"})), json!({"storageClassName": "fast"})),
            "storageClassName",
            "not for an external one",
        ),
        (
            json!({"provider": "standalone", "parameters": {"fsync": "off"}}),
            "parameters",
            "cannot be set here: data could be lost, or its damage hidden",
        ),
        (
            json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}),
            "resources.requests",
            "a request must not be above its limit",
        ),
        (json!({"provider": "standalone", "percona": {"keep": 1}}), "percona", "percona is for the provider percona"),
        (
            json!({"provider": "cloudnativepg", "percona": {"keep": 1}}),
            "percona",
            "percona is for the provider percona",
        ),
        (
            json!({"provider": "cloudnativepg", "tls": {}}),
            "tls",
            "clusters of percona and cloudnativepg always support TLS",
        ),
        (json!({"backup": {"schedule": "@daily"}}), "backup", "for percona, use percona.schedules"),
        (
            cluster(json!({"store": null}), json!({})),
            "backup.store",
            "store is required with the provider cloudnativepg",
        ),
        (cluster(json!({"drill": "@weekly"}), json!({})), "backup", "has only schedule and store"),
        (cluster(json!({"keep": 3}), json!({})), "backup", "has only schedule and store"),
        (
            cluster(json!({}), json!({"passwordSecret": {"name": "restic"}})),
            "backup.store.passwordSecret",
            "the plugin leaves encryption to the bucket",
        ),
        (cluster(json!({}), json!({"keep": {"last": 3}})), "backup.store.keep", "set exactly one of daily, weekly"),
        (
            cluster(json!({}), json!({"keep": {"daily": 7, "weekly": 4}})),
            "backup.store.keep",
            "set exactly one of daily, weekly",
        ),
        (
            json!({"provider": "cloudnativepg", "restore": {"claim": "a"}}),
            "restore",
            "for cloudnativepg, cloudnativepg.dataSource",
        ),
        (
            json!({"cloudnativepg": {"dataSource": {"serverName": "a", "objectStore": "b"}}}),
            "cloudnativepg",
            "cloudnativepg is for the provider cloudnativepg",
        ),
        (
            source(json!({"serverName": "a"})),
            "cloudnativepg.dataSource.objectStore",
            "objectStore is required without postgres.backup",
        ),
        (
            source(json!({"serverName": "../b", "objectStore": "c"})),
            "cloudnativepg.dataSource.serverName",
            "must be the serverName of a Cluster",
        ),
        (
            source(json!({"serverName": "a", "objectStore": "c", "backup": "latest"})),
            "cloudnativepg.dataSource.backup",
            "must be the ID of a backup",
        ),
        (
            source(json!({
                "serverName": "a", "objectStore": "c", "backup": "20260131T030000", "time": "2026-01-31T12:00:00Z",
            })),
            "cloudnativepg.dataSource",
            "set either backup or time",
        ),
        (named(json!("acme.pg")), "cloudnativepg.cluster", "must be a DNS label that begins with a letter"),
        (named(json!("2-acme-pg")), "cloudnativepg.cluster", "must be a DNS label that begins with a letter"),
        (named(json!("a".repeat(51))), "cloudnativepg.cluster", "may not be more than 50"),
        (
            json!({"provider": "standalone", "cloudnativepg": {"cluster": "acme-pg"}}),
            "cloudnativepg",
            "cloudnativepg is for the provider cloudnativepg",
        ),
        (
            json!({"adopt": true, "percona": {"dataSource": {"cluster": "a"}}}),
            "percona.dataSource",
            "adopt keeps the old one: choose",
        ),
    ];
    rows.map(|(postgres, field, sentence)| (at("postgres", postgres), format!("spec.postgres.{field}"), sentence))
        .into()
}

/// Backups of PerconaPGClusters: a block of `spec.postgres.percona`; the answer names a field in it.
fn of_percona() -> Vec<Row> {
    const ONE: &str = "set exactly one of s3, gcs and azure";
    const PATH: &str = "must be a directory such as /shop/orders";
    const FULL: &str = "set full: only a newer full backup";
    const CRON: &str = "must be five fields in cron's notation";
    const SOURCE: &str = "set either cluster or repository";
    const INTO_SOURCE: &str = "must not write into the repository that it is created from";
    let gcs = |more: Value| with(json!({"gcs": {"bucket": "b"}, "secretName": "s"}), more);
    let s3 = |field: &str, wrong: &str| {
        let s3 = with(json!({"bucket": "b", "endpoint": "e", "region": "r"}), json!({field: wrong}));
        json!({"s3": s3, "secretName": "s"})
    };
    let copy_into = |source: Value| json!({"repository": gcs(json!({"path": "/a"})), "dataSource": source});
    let rows = [
        ("keep", json!(0), "keep", "should be greater than or equal to 1"),
        ("repository", json!({"secretName": "s"}), "repository", ONE),
        ("repository", gcs(json!({"azure": {"container": "c"}})), "repository", ONE),
        ("repository", json!({"gcs": {"bucket": "b"}}), "repository.secretName", "Required value"),
        ("repository", gcs(json!({"path": "relative"})), "repository.path", PATH),
        ("repository", gcs(json!({"path": "/a/../b"})), "repository.path", PATH),
        ("repository", gcs(json!({"path": "/a\nrepo1-path=/b"})), "repository.path", PATH),
        ("repository", s3("bucket", "a b"), "repository.s3.bucket", "must be the name of a bucket"),
        (
            "repository",
            s3("endpoint", "s3.example.com/x"),
            "repository.s3.endpoint",
            "must be a DNS name or an address",
        ),
        ("repository", s3("region", "a\nb"), "repository.s3.region", "must be the name of a region"),
        ("schedules", json!({}), "schedules", FULL),
        ("schedules", json!({"incremental": "@hourly"}), "schedules", FULL),
        ("schedules", json!({"full": "daily"}), "schedules.full", CRON),
        ("schedules", json!({"differential": "@often"}), "schedules.differential", CRON),
        ("schedules", json!({"incremental": "* * *"}), "schedules.incremental", CRON),
        ("dataSource", json!({}), "dataSource", SOURCE),
        ("dataSource", json!({"cluster": "a", "repository": gcs(json!({"path": "/a"}))}), "dataSource", SOURCE),
        (
            "dataSource",
            json!({"repository": gcs(json!({}))}),
            "dataSource.repository.path",
            "set the path of the backups",
        ),
        (
            "dataSource",
            json!({"cluster": "a", "backup": "20260131-030000F", "time": "2026-01-31T12:00:00Z"}),
            "dataSource",
            "set either backup or time",
        ),
        // Percona passes it to a shell.
        (
            "dataSource",
            json!({"cluster": "a", "backup": "$(id)"}),
            "dataSource.backup",
            "must be the label of a backup",
        ),
        ("dataSource", json!({"cluster": "a", "time": "yesterday"}), "dataSource.time", "must be of type date-time"),
        ("dataSource", json!({"cluster": "A b"}), "dataSource.cluster", "must be the name of a PerconaPGCluster"),
    ];
    let both = [json!({"repository": gcs(json!({"path": "/b"}))}), json!({"cluster": "a-pg"})].map(copy_into);
    let both = both.map(|percona| {
        let field = "spec.postgres.percona.repository.path".to_owned();
        (at("postgres.percona", percona), field, INTO_SOURCE)
    });
    let rows = rows.map(|(block, value, field, sentence)| {
        (at(&format!("postgres.percona.{block}"), value), format!("spec.postgres.percona.{field}"), sentence)
    });
    rows.into_iter().chain(both).collect()
}

/// The answer names a field in `spec.tls`, or that itself.
fn of_tls() -> Vec<Row> {
    const ONE: &str = "must have exactly one of issuer, secretName and terminatedElsewhere";
    let own = json!({"name": "own"});
    let rows = [
        (json!({}), "", ONE),
        (json!({"issuer": own, "secretName": "wildcard"}), "", ONE),
        (json!({"issuer": own, "terminatedElsewhere": true}), "", ONE),
        (json!({"issuer": {"name": "own", "kind": "Other"}}), ".issuer.kind", "supported values"),
        (json!({"issuer": {"kind": "Issuer"}}), ".issuer.name", "Required value"),
        (json!({"terminatedElsewhere": false}), ".terminatedElsewhere", "can only be true"),
        (json!({"secretName": "a/b"}), ".secretName", "should match"),
    ];
    let spec = |tls: Value| with(at("tls", tls), json!({"ingressClassName": "traefik"}));
    rows.map(|(tls, field, sentence)| (spec(tls), format!("spec.tls{field}"), sentence)).into()
}

/// An entry of `spec.valuesFrom`, with these fields changed.
fn reference(change: Value) -> Value {
    with(json!({"kind": "Secret", "name": "a"}), change)
}

fn of_values_from() -> Vec<Row> {
    let rows = [
        ("kind", json!("Pod"), "supported values: \"Secret\", \"ConfigMap\""),
        ("name", json!(null), "Required value"),
        ("name", json!("../x"), "should match"),
        ("name", json!("kube-system/x"), "should match"),
        ("namespace", json!("kube-system"), "unknown field"),
        ("valuesKey", json!("a/b"), "must be a key of a Secret"),
        ("valuesKey", json!(""), "at least 1 chars long"),
        ("targetPath", json!("a..b"), "must be keys separated by '.'"),
        ("targetPath", json!("a[0].b"), "must be keys separated by '.'"),
    ];
    let spec = |change: Value| at("valuesFrom", json!([reference(change)]));
    rows.map(|(field, value, sentence)| (spec(json!({field: value})), format!("spec.valuesFrom[0].{field}"), sentence))
        .into()
}

/// Patches ClientApps row by row: name, change, and the parts of the answer.
async fn assert_changes<const N: usize>(tenant: &Tenant, rows: [(&str, Value, &[&str]); N]) {
    let mut said = Vec::new();
    for (name, change, parts) in rows {
        let answer = refusal(tenant.patch(name, change.clone()).await);
        said.push((format!("{name}: {change}"), answer, parts.iter().map(|part| (*part).to_owned()).collect()));
    }
    assert_all(said);
}

const ACCEPTED: &[&str] = &["it was accepted"];

/// Backups stay in place, and so does their location in the spec.
#[tokio::test]
async fn the_api_server_refuses_a_change_that_would_lose_backups() {
    const STAYS: &[&str] = &["repository cannot be removed: the backups in it"];
    const MOVES: &[&str] = &["the bucket, or container, and the path are immutable"];
    const NEW: &[&str] = &["dataSource is only for a new database"];
    let tenant = Lab::shared().await.tenant("wrong-repositories").await;
    let s3 = json!({"bucket": "b", "endpoint": "e", "region": "r"});
    let percona = json!({"repository": {"s3": s3, "secretName": "s"}, "dataSource": {"cluster": "old-pg"}});
    for (name, postgres) in [("acme", json!({"percona": percona})), ("plain", json!({}))] {
        let spec = json!({"hostname": hostname(&tenant, name), "suspend": true, "postgres": postgres});
        tenant.create(name, spec).await.unwrap();
    }
    let percona = |options: Value| json!({"postgres": {"percona": options}});
    let repository = |change: Value| percona(json!({"repository": change}));
    let rows = [
        ("acme", json!({"postgres": {"percona": null}}), STAYS),
        ("acme", json!({"postgres": null}), STAYS),
        ("acme", repository(json!(null)), STAYS),
        ("acme", repository(json!({"s3": {"bucket": "another"}})), MOVES),
        ("acme", repository(json!({"s3": null, "gcs": {"bucket": "b"}})), MOVES),
        ("acme", repository(json!({"path": "/a"})), MOVES),
        ("acme", percona(json!({"dataSource": {"backup": "20260131-030000F"}})), NEW),
        ("plain", percona(json!({"dataSource": {"cluster": "old-pg"}})), NEW),
        // The same location under another name, and with other credentials.
        ("acme", repository(json!({"s3": {"endpoint": "f", "region": "q"}, "secretName": "t"})), ACCEPTED),
        ("acme", percona(json!({"schedules": {"full": "@daily"}, "keep": 3})), ACCEPTED),
        ("acme", percona(json!({"schedules": null, "keep": null})), ACCEPTED),
        ("acme", percona(json!({"dataSource": null})), ACCEPTED),
        ("acme", percona(json!({"dataSource": {"cluster": "old-pg"}})), NEW),
        ("plain", repository(json!({"gcs": {"bucket": "b"}, "secretName": "s", "path": "/a"})), ACCEPTED),
        ("plain", repository(json!({"path": null})), MOVES),
    ];
    assert_changes(&tenant, rows).await;
}

#[tokio::test]
async fn the_api_server_refuses_a_wrong_name_at_once() {
    const LABEL: &str = "must be a DNS label: lower-case letters, digits and '-', beginning with a letter";
    let tenant = Lab::shared().await.tenant("wrong-names").await;
    let mut said = Vec::new();
    let long = [38, 40, 41, 53, 54].map(|length| ("a".repeat(length), "the name can have at most 37 characters"));
    let wrong = [
        ("acme.example", LABEL),
        ("7acme", LABEL),
        ("Acme", "lower case alphanumeric characters"),
        ("-acme", "lower case alphanumeric characters"),
    ];
    for (name, sentence) in long.into_iter().chain(wrong.map(|(name, sentence)| (name.to_owned(), sentence))) {
        let answer = refusal(tenant.create(&name, json!({"hostname": "a.example.com"})).await);
        said.push((name, answer, vec![sentence.to_owned()]));
    }
    assert_all(said);
    // The shortest and the longest allowed name are accepted.
    for length in [1, 37] {
        let name = "a".repeat(length);
        let spec = json!({"hostname": hostname(&tenant, &format!("of-{length}")), "suspend": true});
        tenant.create(&name, spec).await.unwrap();
    }
}

#[tokio::test]
async fn the_api_server_refuses_a_change_that_would_lose_data() {
    const GROWS: &[&str] =
        &["spec.persistence.size", "size can only grow and cannot be removed: a volume never shrinks"];
    const STORAGE: &[&str] = &["spec.postgres.storageSize", "storageSize can only grow: a volume never shrinks"];
    const CLASS: &[&str] =
        &["spec.postgres.storageClassName", "storageClassName is immutable, because data is not moved"];
    let tenant = Lab::shared().await.tenant("wrong-changes").await;
    for (name, more) in [
        ("acme", json!({"persistence": {"size": "2Gi"}, "postgres": {"storageSize": "1Gi"}})),
        ("fast", json!({"postgres": {"storageClassName": "fast"}})),
        // Without a size the volume has 8Gi, or the Profile's size.
        ("silent", json!({})),
    ] {
        let spec = json!({"hostname": hostname(&tenant, name), "suspend": true});
        tenant.create(name, with(spec, more)).await.unwrap();
    }
    let size = |size: &str| json!({"persistence": {"size": size}});
    let storage = |size: &str| json!({"postgres": {"storageSize": size}});
    let class = |class: Value| json!({"postgres": {"storageClassName": class}});
    let rows = [
        ("acme", size("1Gi"), GROWS),
        ("acme", size("2047Mi"), GROWS),
        ("acme", size("2G"), GROWS),
        ("acme", storage("512Mi"), STORAGE),
        ("acme", json!({"postgres": {"provider": "standalone"}}), &["spec.postgres.provider", "provider is immutable"]),
        // A removed field falls back to its default, which may be smaller one day.
        ("acme", json!({"persistence": {"size": null}}), GROWS),
        ("acme", json!({"persistence": null}), GROWS),
        // The same in other units, and larger.
        ("acme", size("2048Mi"), ACCEPTED),
        ("acme", size("9Gi"), ACCEPTED),
        ("acme", json!({"persistence": null}), GROWS),
        ("acme", storage("1024Mi"), ACCEPTED),
        ("acme", storage("1.5Gi"), ACCEPTED),
        ("acme", json!({"postgres": null}), STORAGE),
        ("acme", class(json!("fast")), CLASS),
        ("fast", class(json!("slow")), CLASS),
        ("fast", class(Value::Null), CLASS),
        ("fast", class(json!("fast")), ACCEPTED),
        ("silent", size("7Gi"), &["spec.persistence.size", "size can only grow: without one the volume has 8Gi"]),
        ("silent", json!({"persistence": null}), ACCEPTED),
        ("silent", size("8192Mi"), ACCEPTED),
        ("silent", size("8Gi"), ACCEPTED),
        ("silent", size("8191Mi"), GROWS),
    ];
    assert_changes(&tenant, rows).await;
}

#[tokio::test]
async fn what_is_left_out_has_its_documented_default() {
    let tenant = Lab::shared().await.tenant("defaults").await;
    let whole = json!({
        "approval": "Automatic", "test": {"enabled": false, "timeout": "5m"},
        "image": "", "suspend": false, "deletionPolicy": "Delete", "drift": "Repair",
        "redis": {"enabled": true},
        "postgres": {
            "enabled": true, "provider": "percona", "version": "15", "storageSize": "1Gi", "instances": 1, "adopt": false,
        },
        "upgrade": {"backup": false, "onFailure": "Retry", "retries": 2, "timeout": "15m"},
        // The Profile sets enabled and size, unless the spec does.
        "persistence": {"storageClassName": ""},
    });
    // Nothing is to be made for them.
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    for (name, given) in [
        ("nothing", json!({})),
        ("version", json!({"postgres": {"version": "18"}})),
        ("disabled", json!({"postgres": {"enabled": false}, "redis": {"enabled": false}})),
        ("size", json!({"persistence": {"size": "20Gi"}})),
        ("empty", json!({"redis": {}, "postgres": {}, "persistence": {}, "values": {}})),
    ] {
        let spec = with(given, json!({"hostname": hostname(&tenant, name)}));
        let kind = ApiResource::erase::<ClientApp>(&());
        let app = DynamicObject::new(name, &kind).data(json!({"spec": spec}));
        let stored = raw(&tenant).create(&dry, &app).await.unwrap();
        let mut expected = whole.clone();
        for (field, value) in spec.as_object().unwrap() {
            match value.as_object() {
                Some(block) if field != "values" => {
                    expected[field].as_object_mut().unwrap().extend(block.clone());
                }
                _ => expected[field] = value.clone(),
            }
        }
        assert_eq!(stored.data["spec"], expected, "{name}");
    }
}

#[tokio::test]
async fn kubectl_shows_columns_and_misspelt_fields() {
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
    write(json!({"hostname": host, "suspend": true, "chartVersion": "5.5.2"}));
    assert_eq!(
        tenant.kubectl(&["apply", "-f", path]).unwrap().trim(),
        "clientapp.apps.bnerd-operator.local/acme created"
    );
    tenant.condition("acme", "Reconciling", "False", "Suspended").await;
    let host = host.as_str();
    for (arguments, columns, cells) in [
        (
            &["get", "ca"][..],
            "NAME READY REVISION VERSION HOSTNAME REASON AGE",
            &["acme", "False", host, "Suspended"][..],
        ),
        (
            &["get", "ca", "-o", "wide"],
            "NAME READY REVISION VERSION HOSTNAME REASON AGE PINNED STATUS",
            &["acme", "False", host, "Suspended", "5.5.2", "spec.suspend is true"],
        ),
    ] {
        let table = tenant.kubectl(arguments).unwrap();
        let (header, row) = table.trim_end().split_once('\n').unwrap();
        assert_eq!(header.split_whitespace().collect::<Vec<_>>().join(" "), columns);
        assert!(cells.iter().all(|cell| row.contains(cell)), "{cells:?} are not in {row}");
        assert!(arguments.len() > 2 || table.lines().all(|line| line.trim_end().len() <= 80), "{table}");
    }
}
