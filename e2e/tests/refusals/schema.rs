//! Refusals by the API server, at once.

use super::*;

#[tokio::test]
async fn the_api_server_refuses_a_wrong_field_at_once() {
    const HOSTNAME: &str = "must be a DNS name in lower case, such as acme.example.com";
    const VERSION: &str = "must be one exact version such as 5.5.2: no range, no 'latest', no leading 'v'";
    const SIZE: &str = "must be a quantity above zero such as";
    const IMAGE: &str = "must be repository:tag or repository@sha256:<64 hex digits>";
    const NEEDED: &str = "external must be set if the provider is external";
    let tenant = Lab::shared().await.tenant("wrong-fields").await;
    let host = |hostname: &str| json!({"hostname": hostname});
    let size = |block: &str, field: &str, size: &str| with(block, json!({field: size}));

    const ACCOUNT: &str = "must be the name of a ServiceAccount";
    const ONE_OF_TLS: &str = "must have exactly one of issuer, secretName and terminatedElsewhere";
    let tls = |tls: Value| {
        let mut spec = with("tls", tls);
        spec["ingressClassName"] = json!("traefik");
        spec
    };
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
        (with("serviceAccountName", json!("")), "spec.serviceAccountName", "at least 1 chars long"),
        (
            with("serviceAccountName", json!("a".repeat(254))),
            "spec.serviceAccountName",
            "may not be more than 253 bytes",
        ),
        (with("deletionPolicy", json!("Keep")), "spec.deletionPolicy", "supported values: \"Delete\", \"Retain\""),
        (
            with("postgres", json!({"provider": "mysql"})),
            "spec.postgres.provider",
            "supported values: \"percona\", \"standalone\", \"external\"",
        ),
        (with("postgres", json!({"provider": "external"})), "spec.postgres.external", NEEDED),
        (with("postgres", json!({"external": {"secretName": "theirs"}})), "spec.postgres.external", NEEDED),
        (
            with("postgres", json!({"provider": "external", "external": {}})),
            "spec.postgres.external.secretName",
            "Required value",
        ),
        (
            with(
                "postgres",
                json!({"provider": "external", "external": {"secretName": "a", "host": "db.example.com/x"}}),
            ),
            "spec.postgres.external.host",
            "must be a DNS name or an address, followed by :port if the port is not 5432",
        ),
        (
            with("postgres", json!({"parameters": {"max_connections": "9"}})),
            "spec.postgres.parameters",
            "parameters are for the provider standalone",
        ),
        (
            with("postgres", json!({"provider": "standalone", "parameters": {"fsync": "off"}})),
            "spec.postgres.parameters",
            "cannot be set here: data could be lost, or its damage hidden",
        ),
        (
            with("postgres", json!({"provider": "external", "external": {"secretName": "a"}, "resources": {}})),
            "spec.postgres.resources",
            "not for an external one",
        ),
        (
            with("postgres", json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}})),
            "spec.postgres.resources.requests",
            "a request must not be above its limit",
        ),
        (with("postgres", json!({"adopt": "yes"})), "spec.postgres.adopt", "must be of type boolean"),
        (with("upgrade", json!({"backup": "yes"})), "spec.upgrade.backup", "must be of type boolean"),
        (with("upgrade", json!({"allow": true})), "spec.upgrade.allow", "must be of type string"),
        (with("postgres", json!({"version": 15})), "spec.postgres.version", "must be of type string"),
        (with("postgres", json!({"version": "12"})), "spec.postgres.version", "from \"13\" to \"18\""),
        (with("postgres", json!({"version": "15.3"})), "spec.postgres.version", "may not be more than 2 bytes"),
        (with("postgres", json!({"instances": 0})), "spec.postgres.instances", "should be greater than or equal to 1"),
        (values_from(json!({"kind": "Pod"})), "spec.valuesFrom[0].kind", "supported values: \"Secret\", \"ConfigMap\""),
        (values_from(json!({"name": null})), "spec.valuesFrom[0].name", "Required value"),
        (values_from(json!({"name": "../x"})), "spec.valuesFrom[0].name", "should match"),
        (values_from(json!({"name": "kube-system/x"})), "spec.valuesFrom[0].name", "should match"),
        (values_from(json!({"namespace": "kube-system"})), "spec.valuesFrom[0].namespace", "unknown field"),
        (values_from(json!({"valuesKey": "a/b"})), "spec.valuesFrom[0].valuesKey", "must be a key of a Secret"),
        (values_from(json!({"valuesKey": ""})), "spec.valuesFrom[0].valuesKey", "at least 1 chars long"),
        (values_from(json!({"targetPath": "a..b"})), "spec.valuesFrom[0].targetPath", "must be keys separated by '.'"),
        (
            values_from(json!({"targetPath": "a[0].b"})),
            "spec.valuesFrom[0].targetPath",
            "must be keys separated by '.'",
        ),
        (
            with("valuesFrom", json!(vec![json!({"kind": "Secret", "name": "a"}); 17])),
            "spec.valuesFrom",
            "must have at most 16 items",
        ),
        (tls(json!({})), "spec.tls", ONE_OF_TLS),
        (tls(json!({"issuer": {"name": "own"}, "secretName": "wildcard"})), "spec.tls", ONE_OF_TLS),
        (tls(json!({"issuer": {"name": "own"}, "terminatedElsewhere": true})), "spec.tls", ONE_OF_TLS),
        (tls(json!({"issuer": {"name": "own", "kind": "Other"}})), "spec.tls.issuer.kind", "supported values"),
        (tls(json!({"issuer": {"kind": "Issuer"}})), "spec.tls.issuer.name", "Required value"),
        (tls(json!({"terminatedElsewhere": false})), "spec.tls.terminatedElsewhere", "can only be true"),
        (tls(json!({"secretName": "a/b"})), "spec.tls.secretName", "should match"),
        (with("tls", json!({"secretName": "wildcard"})), "spec.tls", "set ingressClassName as well"),
        (with("ingressClas", json!("traefik")), "spec.ingressClas", "unknown field"),
        (with("postgres", json!({"storage": "1Gi"})), "spec.postgres.storage", "unknown field"),
        (with("persistence", json!({"storageClass": "fast"})), "spec.persistence.storageClass", "unknown field"),
    ];
    rows.extend(of_percona());
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
        "Nextcloud:30",
        "registry.example.com/Platform/nextcloud:30",
        "registry.example.com:/nextcloud:30",
        "https://registry.example.com/nextcloud:30",
        "registry.example.com//nextcloud:30",
        "a..b:30",
    ] {
        rows.push((with("image", json!(wrong)), "spec.image", IMAGE));
    }
    for wrong in ["Team", "team_a", "-team", "team-", "a..b", "other:team", "a\nb"] {
        rows.push((with("serviceAccountName", json!(wrong)), "spec.serviceAccountName", ACCOUNT));
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

/// Backups of PerconaPGClusters.
fn of_percona() -> Vec<(Value, &'static str, &'static str)> {
    const PERCONA: &str = "spec.postgres.percona";
    const ONE: &str = "set exactly one of s3, gcs and azure";
    let of = |options: Value| with("postgres", json!({"percona": options}));
    let gcs = |more: Value| {
        let mut repository = json!({"gcs": {"bucket": "b"}, "secretName": "s"});
        repository.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        repository
    };
    let repository = |more: Value| of(json!({"repository": gcs(more)}));
    let s3 = |field: &str, wrong: &str| {
        let mut s3 = json!({"bucket": "b", "endpoint": "e", "region": "r"});
        s3[field] = json!(wrong);
        of(json!({"repository": {"s3": s3, "secretName": "s"}}))
    };
    let source = |source: Value| of(json!({"dataSource": source}));
    let schedule = |field: &str, text: &str| of(json!({"schedules": {field: text}}));
    let path = "must be a directory such as /shop/orders";
    vec![
        (
            with("postgres", json!({"provider": "standalone", "percona": {"keep": 1}})),
            PERCONA,
            "percona is for the provider percona",
        ),
        (of(json!({"keep": 0})), "spec.postgres.percona.keep", "should be greater than or equal to 1"),
        (of(json!({"repository": {"secretName": "s"}})), "spec.postgres.percona.repository", ONE),
        (repository(json!({"azure": {"container": "c"}})), "spec.postgres.percona.repository", ONE),
        (of(json!({"repository": {"gcs": {"bucket": "b"}}})), "repository.secretName", "Required value"),
        (repository(json!({"path": "relative"})), "repository.path", path),
        (repository(json!({"path": "/a/../b"})), "repository.path", path),
        (repository(json!({"path": "/a\nrepo1-path=/b"})), "repository.path", path),
        (s3("bucket", "a b"), "repository.s3.bucket", "must be the name of a bucket"),
        (s3("endpoint", "s3.example.com/x"), "repository.s3.endpoint", "must be a DNS name or an address"),
        (s3("region", "a\nb"), "repository.s3.region", "must be the name of a region"),
        (of(json!({"schedules": {}})), "percona.schedules", "set full: only a newer full backup"),
        (schedule("incremental", "@hourly"), "percona.schedules", "set full: only a newer full backup"),
        (schedule("full", "daily"), "schedules.full", "must be five fields in cron's notation"),
        (schedule("differential", "@often"), "schedules.differential", "must be five fields in cron's notation"),
        (schedule("incremental", "* * *"), "schedules.incremental", "must be five fields in cron's notation"),
        (source(json!({})), "percona.dataSource", "set either cluster or repository"),
        (
            source(json!({"cluster": "a", "repository": gcs(json!({"path": "/a"}))})),
            "percona.dataSource",
            "set either cluster or repository",
        ),
        (source(json!({"repository": gcs(json!({}))})), "dataSource.repository.path", "set the path of the backups"),
        (
            source(json!({"cluster": "a", "backup": "20260131-030000F", "time": "2026-01-31T12:00:00Z"})),
            "percona.dataSource",
            "set either backup or time",
        ),
        // Percona passes it to a shell.
        (source(json!({"cluster": "a", "backup": "$(id)"})), "dataSource.backup", "must be the label of a backup"),
        (source(json!({"cluster": "a", "time": "yesterday"})), "dataSource.time", "must be of type date-time"),
        (source(json!({"cluster": "A b"})), "dataSource.cluster", "must be the name of a PerconaPGCluster"),
        (
            with("postgres", json!({"adopt": true, "percona": {"dataSource": {"cluster": "a"}}})),
            "spec.postgres.percona.dataSource",
            "adopt keeps the old one: choose",
        ),
        (
            of(json!({
                "repository": gcs(json!({"path": "/a"})), "dataSource": {"repository": gcs(json!({"path": "/b"}))},
            })),
            "percona.repository.path",
            "must not write into the repository that it is created from",
        ),
        (
            of(json!({"repository": gcs(json!({"path": "/a"})), "dataSource": {"cluster": "a-pg"}})),
            "percona.repository.path",
            "must not write into the repository that it is created from",
        ),
    ]
}

/// One entry of valuesFrom, with these fields changed.
fn values_from(more: Value) -> Value {
    let mut reference = json!({"kind": "Secret", "name": "a"});
    reference.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    with("valuesFrom", json!([reference]))
}

/// Backups stay in place, and so does their location in the spec.
#[tokio::test]
async fn the_api_server_refuses_a_change_that_would_lose_backups() {
    const STAYS: &str = "repository cannot be removed: the backups in it";
    const MOVES: &str = "the bucket, or container, and the path are immutable";
    const NEW: &str = "dataSource is only for a new database";
    let tenant = Lab::shared().await.tenant("wrong-repositories").await;
    let s3 = json!({"bucket": "b", "endpoint": "e", "region": "r"});
    let percona = json!({"repository": {"s3": s3, "secretName": "s"}, "dataSource": {"cluster": "old-pg"}});
    let spec = json!({"hostname": hostname(&tenant, "acme"), "suspend": true, "postgres": {"percona": percona}});
    tenant.create("acme", spec).await.unwrap();
    let plain = json!({"hostname": hostname(&tenant, "plain"), "suspend": true});
    tenant.create("plain", plain).await.unwrap();
    let percona = |options: Value| json!({"postgres": {"percona": options}});
    let repository = |change: Value| percona(json!({"repository": change}));
    let mut said = Vec::new();
    for (name, change, sentence) in [
        ("acme", json!({"postgres": {"percona": null}}), STAYS),
        ("acme", json!({"postgres": null}), STAYS),
        ("acme", repository(json!(null)), STAYS),
        ("acme", repository(json!({"s3": {"bucket": "another"}})), MOVES),
        ("acme", repository(json!({"s3": null, "gcs": {"bucket": "b"}})), MOVES),
        ("acme", repository(json!({"path": "/a"})), MOVES),
        ("acme", percona(json!({"dataSource": {"backup": "20260131-030000F"}})), NEW),
        ("plain", percona(json!({"dataSource": {"cluster": "old-pg"}})), NEW),
        // The same location under another name, and with other credentials.
        ("acme", repository(json!({"s3": {"endpoint": "f", "region": "q"}, "secretName": "t"})), "accepted"),
        ("acme", percona(json!({"schedules": {"full": "@daily"}, "keep": 3})), "accepted"),
        ("acme", percona(json!({"schedules": null, "keep": null})), "accepted"),
        ("acme", percona(json!({"dataSource": null})), "accepted"),
        ("acme", percona(json!({"dataSource": {"cluster": "old-pg"}})), NEW),
        ("plain", repository(json!({"gcs": {"bucket": "b"}, "secretName": "s", "path": "/a"})), "accepted"),
        ("plain", repository(json!({"path": null})), MOVES),
    ] {
        let answer = refusal(tenant.patch(name, change.clone()).await);
        said.push((change.to_string(), answer, vec![sentence.to_owned()]));
    }
    assert_all(said);
}

#[tokio::test]
async fn the_api_server_refuses_a_wrong_name_at_once() {
    const LABEL: &str = "must be a DNS label: lower-case letters, digits and '-', beginning with a letter";
    let tenant = Lab::shared().await.tenant("wrong-names").await;
    let mut said = Vec::new();
    for (name, sentence) in [
        ("a".repeat(38).as_str(), "the name can have at most 37 characters"),
        ("a".repeat(40).as_str(), "the name can have at most 37 characters"),
        ("a".repeat(41).as_str(), "the name can have at most 37 characters"),
        ("a".repeat(53).as_str(), "the name can have at most 37 characters"),
        ("a".repeat(54).as_str(), "the name can have at most 37 characters"),
        ("acme.example", LABEL),
        ("7acme", LABEL),
        ("Acme", "lower case alphanumeric characters"),
        ("-acme", "lower case alphanumeric characters"),
    ] {
        let answer = refusal(tenant.create(name, json!({"hostname": "a.example.com"})).await);
        said.push((name.to_owned(), answer, vec![sentence.to_owned()]));
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
        (size("1Gi"), "spec.persistence.size", "size can only grow and cannot be removed: a volume never shrinks"),
        (size("2047Mi"), "spec.persistence.size", "size can only grow"),
        (size("2G"), "spec.persistence.size", "size can only grow"),
        (storage("512Mi"), "spec.postgres.storageSize", "storageSize can only grow: a volume never shrinks"),
        (json!({"postgres": {"provider": "standalone"}}), "spec.postgres.provider", "provider is immutable"),
        // A removed field falls back to its default, which may be smaller one day.
        (json!({"persistence": {"size": null}}), "spec.persistence.size", "size can only grow"),
        (json!({"persistence": null}), "spec.persistence.size", "size can only grow"),
        // The same in other units, and larger.
        (size("2048Mi"), "", "accepted"),
        (size("9Gi"), "", "accepted"),
        (json!({"persistence": null}), "spec.persistence.size", "size can only grow"),
        (storage("1024Mi"), "", "accepted"),
        (storage("1.5Gi"), "", "accepted"),
        (json!({"postgres": null}), "spec.postgres.storageSize", "storageSize can only grow"),
    ] {
        let answer = refusal(tenant.patch("acme", change.clone()).await);
        said.push((change.to_string(), answer, vec![field.to_owned(), sentence.to_owned()]));
    }
    // Without a size the volume has 8Gi, or the Profile's size.
    let silent = json!({"hostname": hostname(&tenant, "silent"), "suspend": true});
    tenant.create("silent", silent).await.unwrap();
    for (change, field, sentence) in [
        (size("7Gi"), "spec.persistence.size", "size can only grow"),
        (json!({"persistence": null}), "", "accepted"),
        (size("8192Mi"), "", "accepted"),
        (size("8Gi"), "", "accepted"),
        (size("8191Mi"), "spec.persistence.size", "size can only grow"),
    ] {
        let answer = refusal(tenant.patch("silent", change.clone()).await);
        said.push((format!("silent: {change}"), answer, vec![field.to_owned(), sentence.to_owned()]));
    }
    assert_all(said);
}

#[tokio::test]
async fn what_is_left_out_has_its_documented_default() {
    let tenant = Lab::shared().await.tenant("defaults").await;
    let whole = json!({
        "approval": "Automatic", "test": {"enabled": false, "timeout": "5m"},
        "chartVersion": "5.5.2", "image": "", "suspend": false, "deletionPolicy": "Delete", "drift": "Repair",
        "redis": {"enabled": true},
        "postgres": {
            "enabled": true, "provider": "percona", "version": "15", "storageSize": "1Gi", "instances": 1, "adopt": false,
        },
        "upgrade": {"backup": false, "onFailure": "Retry", "retries": 2, "timeout": "15m"},
        // The Profile sets enabled and size, unless the spec does.
        "persistence": {"storageClassName": ""},
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
    assert!(table.lines().all(|line| line.trim_end().len() <= 80), "{table}");
    let wide = tenant.kubectl(&["get", "ca", "-o", "wide"]).unwrap();
    let header = ["NAME", "READY", "REVISION", "VERSION", "HOSTNAME", "REASON", "AGE"];
    let cells = ["acme", "False", &host, "Suspended"];
    for (table, header, cells) in [
        (table, header.to_vec(), cells.to_vec()),
        (
            wide,
            [&header[..], &["PINNED", "STATUS"]].concat(),
            [&cells[..], &["5.5.2", "spec.suspend is true"]].concat(),
        ),
    ] {
        let mut lines = table.lines();
        assert_eq!(lines.next().unwrap().split_whitespace().collect::<Vec<_>>(), header);
        let row = lines.next().unwrap();
        for cell in cells {
            assert!(row.contains(cell), "{cell} is not in {row}");
        }
    }

    for (field, part) in [
        ("clientapp", "one tenant's complete, isolated instance"),
        ("clientapp.spec.hostname", "DNS name that the app is served under"),
        ("ca.spec.postgres.storageSize", "can only grow"),
        ("ca.status.conditions", "`Ready` summarizes"),
    ] {
        let explained = tenant.kubectl(&["explain", field]).unwrap();
        assert!(explained.contains(part), "{field}: {explained}");
    }
}
