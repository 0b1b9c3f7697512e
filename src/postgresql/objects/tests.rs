use std::{collections::BTreeMap, sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::{networking::v1::NetworkPolicySpec, policy::v1::PodDisruptionBudgetSpec};
use rustls::{
    client::{WebPkiServerVerifier, danger::ServerCertVerifier as _},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject as _},
};
use serde_json::{Value, json};

use super::*;
use crate::{
    crd::label,
    platform::operator_image::{OperatorImage, StoreProxy},
    postgresql::{
        desired::tests::{acme, drilled},
        observed::{Detail, Kind, ObjectView, Ownership, SetView, UserRequest},
    },
};

fn full() -> Desired {
    acme(json!({
        "defaultUser": "shop", "name": "orders", "port": 5433, "storageSize": "2Gi", "storageClassName": "fast",
        "version": "16", "replicas": 3, "backup": {"schedule": "0 3 * * *", "keep": 3, "size": "4Gi", "onDelete": true, "drill": "@weekly"},
        "restore": {"from": "20260131T030000Z-x7k2p", "claim": "old-backup"},
    }))
}

fn with(replication: &str) -> Mounted<'_> {
    Mounted { replication, certificate: None, replaced: None }
}

/// All objects that are made from documents.
fn everything(desired: &Desired) -> Vec<Object> {
    let backup = desired.backup.as_ref().unwrap();
    let mut found = all(desired, &ObservedPostgresql::default(), with("uid-2"));
    found.extend([
        backup::last_dump(desired, backup, "2026-01-01T00:00:00Z"),
        backup::dump(desired, backup, "before-30"),
        backup::due(desired, backup, Timestamp::UNIX_EPOCH),
    ]);
    found.extend(drill::due(desired, backup, Timestamp::UNIX_EPOCH));
    found.extend([initialize::claim(desired), initialize::job(desired, "uid-3", true)]);
    found
}

/// The digest of the primary's StatefulSet.
fn primary(spec: Value, observed: &ObservedPostgresql, replication: &str) -> String {
    let found = all(&acme(spec), observed, with(replication));
    found.into_iter().find(|object| object.id.0 == Kind::StatefulSet).unwrap().digest
}

#[test]
fn documents() {
    let mut documents: Vec<_> = everything(&full()).into_iter().map(|object| object.document).collect();
    // The scripts have files of their own.
    for text in documents[1]["data"].as_object_mut().unwrap().values_mut() {
        *text = json!("…");
    }
    insta::assert_yaml_snapshot!(documents);
}

/// Dumps that are uploaded, with all settings of the store.
fn uploaded() -> Desired {
    let spec = crate::postgresql::desired::tests::stored(json!({
        "prefix": "prod", "region": "eu-central-1", "caSecret": {"name": "ca"}, "keep": {"daily": 7, "monthly": 12},
        "passwordSecret": {"name": "restic"},
    }));
    Desired { operator_image: Some(OperatorImage::named("operator:1")), ..acme(spec) }
}

#[test]
fn the_job_that_uploads() {
    let desired = uploaded();
    let job = backup::dump(&desired, desired.backup.as_ref().unwrap(), "now");
    insta::assert_yaml_snapshot!(job.document["spec"]);
    // Without its own image, the operator still takes dumps.
    let unknown = Desired { operator_image: None, ..desired };
    let job = backup::dump(&unknown, unknown.backup.as_ref().unwrap(), "now");
    let pod = &job.document["spec"]["template"]["spec"];
    assert_eq!((&pod["containers"][0]["name"], &pod["initContainers"]), (&json!("dump"), &Value::Null));
}

/// With them, a quota for cpu and memory admits every Job. A pod that runs what users of the database wrote has no account of theirs.
#[test]
fn settings_of_jobs() {
    let small = json!({"limits": {"cpu": "1", "memory": "1Gi"}});
    let large = json!({"limits": {"cpu": "4", "memory": "8Gi"}});
    let proxy = StoreProxy { url: "http://proxy:3128".parse().ok(), except: ".svc".parse().ok() };
    let image = OperatorImage { name: "operator:1".to_owned(), proxy };
    for (servers, in_server) in [(None, &small), (Some(&large), &large)] {
        let mut spec = drilled(json!({}));
        spec["backup"]["jobs"] = json!({"resources": small, "timeout": "24h", "serviceAccountName": "puller"});
        spec["restore"] = json!({"from": "20260131T030000Z-x7k2p", "store": {
            "endpoint": "https://s3.example.com", "bucket": "dumps", "path": "a/b", "credentialsSecret": {"name": "s3"},
        }});
        spec["restoreRequest"] = json!({"request": "back", "dump": spec["restore"]});
        if let Some(servers) = servers {
            spec["resources"] = servers.clone();
        }
        let desired = Desired { operator_image: Some(Arc::new(image.clone())), ..acme(spec) };
        let backup = desired.backup.as_ref().unwrap();
        let (puller, day) = (json!("puller"), json!(86400));
        for (job, account, deadline) in [
            (backup::dump(&desired, backup, "now"), &puller, &day),
            (backup::due(&desired, backup, Timestamp::UNIX_EPOCH), &puller, &day),
            (backup::last_dump(&desired, backup, "deletion"), &puller, &day),
            (drill::due(&desired, backup, Timestamp::UNIX_EPOCH).unwrap(), &Value::Null, &day),
            (initialize::job(&desired, "uid-9", true), &Value::Null, &Value::Null),
            (initialize::restore(&desired, desired.restore_request.as_ref().unwrap()), &Value::Null, &Value::Null),
        ] {
            let (name, job) = (&job.id.1, &job.document["spec"]);
            let pod = &job["template"]["spec"];
            assert_eq!((&pod["serviceAccountName"], &job["activeDeadlineSeconds"]), (account, deadline), "{name}");
            assert_eq!(pod["automountServiceAccountToken"], false, "{name}");
            for container in pod["initContainers"].as_array().into_iter().chain(pod["containers"].as_array()).flatten()
            {
                let is_server = container["name"] == "initialize";
                assert_eq!(&container["resources"], if is_server { in_server } else { &small }, "{name}: {container}");
                let is_ours = container["image"] == "operator:1";
                assert_eq!(container["env"].to_string().contains("http://proxy:3128"), is_ours, "{name}: {container}");
            }
        }
        // Not those of the servers.
        let primary = servers::primary(&desired, &BTreeMap::new(), with("r"), None);
        let pod = &primary.document["spec"]["template"]["spec"];
        assert_eq!(&pod["containers"][0]["resources"], servers.unwrap_or(&Value::Null));
    }
}

#[test]
fn the_job_that_restores_from_a_bucket() {
    let store = json!({
        "endpoint": "https://s3.example.com", "bucket": "dumps", "path": "prod/shop/orders", "credentialsSecret": {"name": "s3"},
        "caSecret": {"name": "ca"}, "identitySecret": {"name": "age"}, "size": "9Gi",
    });
    let from = "20260131T030000Z-x7k2p";
    let desired = acme(json!({"restore": {"from": from, "store": store}}));
    let desired = Desired { operator_image: Some(OperatorImage::named("operator:1")), ..desired };
    let job = initialize::job(&desired, "uid-9", true);
    insta::assert_yaml_snapshot!(job.document["spec"]);
}

/// The container that restores, which runs code of the dumped server's users, gets nothing of what the one that fetches needs.
#[test]
fn a_drill_from_the_bucket() {
    let spec = drilled(json!({"size": "9Gi"}));
    let desired = Desired { operator_image: Some(OperatorImage::named("operator:1")), ..acme(spec.clone()) };
    let job = drill::due(&desired, desired.backup.as_ref().unwrap(), Timestamp::UNIX_EPOCH).unwrap().document;
    let job = &job["spec"];
    let pod = &job["template"]["spec"];
    let fetch = &pod["initContainers"][0];
    let variable = |name: &str| {
        let mut variables = fetch["env"].as_array().unwrap().iter();
        variables.find(|variable| variable["name"] == name).map(|variable| variable["value"].clone())
    };
    assert_eq!((&fetch["image"], &fetch["args"]), (&json!("operator:1"), &json!(["store", "fetch"])));
    for (name, value) in [
        ("STORE_PREFIX", "prod/ns/acme"),
        ("STORE_DUMP", "latest"),
        ("STORE_PASSWORD_FILE", "/password/password"),
        ("STORE_CA_FILE", "/ca/ca.crt"),
    ] {
        assert_eq!(variable(name), Some(json!(value)), "{name}");
    }
    let main = &pod["containers"][0];
    assert!(!main["env"].to_string().contains("secretKeyRef"), "{main}");
    let mounts = main["volumeMounts"].as_array().unwrap().iter().map(|mount| mount["name"].as_str().unwrap());
    assert_eq!(mounts.collect::<Vec<_>>(), ["data", "scripts", "tmp", "dumps"]);
    // Nothing of the volume with the dumps: the bucket alone is put to the test.
    assert!(!pod.to_string().contains("persistentVolumeClaim"), "{pod}");
    let volume = |pod: &Value, name: &str| {
        pod["volumes"].as_array().unwrap().iter().find(|volume| volume["name"] == name).unwrap().clone()
    };
    let size = |pod: &Value| {
        volume(pod, "dumps")["ephemeral"]["volumeClaimTemplate"]["spec"]["resources"]["requests"]["storage"].clone()
    };
    assert_eq!(size(pod), "9Gi");
    // The kubelet does not wait for a Secret that is missing: the container says so.
    assert_eq!(volume(pod, "password")["secret"]["optional"], true);
    assert_eq!(job["backoffLimit"], 0);
    assert_eq!(job["podFailurePolicy"]["rules"], json!(bucket::failure_rules("fetch")));

    let plain = Desired { operator_image: desired.operator_image.clone(), ..acme(drilled(json!({}))) };
    let job = drill::due(&plain, plain.backup.as_ref().unwrap(), Timestamp::UNIX_EPOCH).unwrap().document;
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(size(pod), "1Gi");
    // Without its own image, the operator makes no drill that would prove something else.
    let unknown = acme(spec);
    assert_eq!(drill::due(&unknown, unknown.backup.as_ref().unwrap(), Timestamp::UNIX_EPOCH), None);
}

/// A drill runs code of the dumped server's users.
#[test]
fn a_drill_gets_no_password() {
    let desired = acme(json!({"backup": {"schedule": "@daily", "drill": "@weekly"}}));
    let job =
        drill::due(&desired, desired.backup.as_ref().unwrap(), Timestamp::UNIX_EPOCH).unwrap().document.to_string();
    assert!(!job.contains("secret") && !job.contains("PASSWORD"), "{job}");
}

#[test]
fn which_objects_there_are() {
    let first = "ConfigMap acme-witness, ConfigMap acme-scripts, Service acme-headless, Service acme";
    let server = "StatefulSet acme";
    let standbys = "Service acme-ro, StatefulSet acme-standby";
    let policy = "NetworkPolicy acme-access";
    let dumps = "PersistentVolumeClaim acme-backup";
    let bucket = json!({
        "endpoint": "https://s3.example.com", "bucket": "dumps", "path": "prod/shop/orders", "credentialsSecret": {"name": "s3"},
    });
    let mut drill_and_restore = drilled(json!({}));
    drill_and_restore["restore"] = json!({"claim": "old-backup"});
    // The roles of the pods that reach nothing, if there are any; the pods of drills from a bucket reach that, but nothing reaches them.
    for (spec, objects, sealed) in [
        (json!({}), vec![server], None),
        (json!({"replicas": 2}), vec![server, standbys], None),
        (json!({"replicas": 3}), vec![server, "PodDisruptionBudget acme-standby", standbys], None),
        (json!({"networkPolicy": {}}), vec![policy, server], None),
        (json!({"networkPolicy": {"enabled": false, "from": [{"podSelector": {}}]}}), vec![server], None),
        (json!({"backup": {"schedule": "@daily"}}), vec![server, dumps], None),
        (
            json!({"backup": {"schedule": "@daily", "drill": "@weekly"}}),
            vec!["NetworkPolicy acme-sealed", server, dumps],
            Some(json!(["drill"])),
        ),
        (
            json!({"restore": {"claim": "old-backup"}}),
            vec!["NetworkPolicy acme-sealed", server],
            Some(json!(["initialize"])),
        ),
        // The pod that restores fetches the dump itself.
        (json!({"restore": {"store": bucket}}), vec![server], None),
        (drilled(json!({})), vec!["NetworkPolicy acme-drill", server, dumps], None),
        (
            drill_and_restore,
            vec!["NetworkPolicy acme-sealed", "NetworkPolicy acme-drill", server, dumps],
            Some(json!(["initialize"])),
        ),
    ] {
        let desired = Desired { operator_image: Some(OperatorImage::named("operator:1")), ..acme(spec.clone()) };
        let found = all(&desired, &ObservedPostgresql::default(), with("r"));
        let ids: Vec<_> = found.iter().map(|object| format!("{} {}", object.id.0, object.id.1)).collect();
        assert_eq!(ids.join(", "), format!("{first}, {}", objects.join(", ")), "{spec}");
        let spec_of =
            |name: &str| found.iter().find(|object| object.id.1 == name).map(|object| &object.document["spec"]);
        let roles = spec_of("acme-sealed").map(|policy| policy["podSelector"]["matchExpressions"][0]["values"].clone());
        assert_eq!(roles, sealed, "{spec}");
    }
    // No peer at all is not the same as every peer.
    let alone = policies::network_policy(&acme(json!({"networkPolicy": {}}))).unwrap();
    assert_eq!(alone.document["spec"]["ingress"], json!([{"from": [{"podSelector": {}}]}]));
    let closed = json!({
        "podSelector": {"matchLabels": {label::POSTGRESQL: "acme", label::ROLE: "drill"}},
        "policyTypes": ["Ingress"],
    });
    assert_eq!(policies::drill(&acme(drilled(json!({})))).unwrap().document["spec"], closed);
}

/// Most of the settings for pods and their surroundings.
fn production() -> Desired {
    acme(json!({
        "replicas": 3,
        "resources": {"requests": {"cpu": "500m", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        "scheduling": {
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"key": "databases", "operator": "Exists", "effect": "NoSchedule"}],
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["a", "b"]}]},
                ]}},
                "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                    {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "shop"}}},
                ]},
            },
        },
        "parameters": {"max_connections": "200", "log_line_prefix": "%m '$(PGDATA)' \"$HOME\" $$ "},
        "networkPolicy": {"from": [
            {"namespaceSelector": {"matchLabels": {"team": "reports"}, "matchExpressions": []}},
            {"ipBlock": {"cidr": "10.0.0.0/8", "except": []}},
        ]},
        "backup": {"schedule": "@daily", "onDelete": true, "drill": "@weekly"},
    }))
}

/// Shows what each pod has in addition to a plain one, and the objects other than pods.
#[test]
fn documents_of_production() {
    let picked = everything(&production()).into_iter().filter_map(|Object { id: (kind, name), document, .. }| {
        let spec = &document["spec"];
        let template = [&spec["jobTemplate"]["spec"], spec].into_iter().map(|spec| &spec["template"]["spec"]);
        let shown = match template.into_iter().find(|pod| pod.is_object()) {
            Some(pod) => {
                let container = &pod["containers"][0];
                let of_pod = ["nodeSelector", "tolerations", "affinity"].map(|field| (field, &pod[field]));
                let shown = of_pod.into_iter().chain(["args", "resources"].map(|field| (field, &container[field])));
                shown.filter(|(_, value)| !value.is_null()).map(|(field, value)| (field, value.clone())).collect()
            }
            None if matches!(kind, Kind::PodDisruptionBudget | Kind::NetworkPolicy) => spec.clone(),
            None => return None,
        };
        Some(json!({format!("{kind} {name}"): shown}))
    });
    insta::assert_yaml_snapshot!(picked.collect::<Vec<_>>());
}

/// Returns what Kubernetes makes of an argument: `$$` is `$`, and `$(NAME)` a variable of the container.
fn expanded(argument: &str) -> String {
    assert!(!argument.replace("$$", "").contains("$("), "a variable would be put into {argument}");
    argument.replace("$$", "$")
}

#[test]
fn each_setting_is_one_argument() {
    for value in ["200", "a b", "$(PGDATA)", "$$(PGDATA)", "$$$(PGDATA)", "$", "'; -c fsync=off", "\"x\" \\ `id`", ""] {
        let desired = acme(json!({"parameters": {"log_line_prefix": value, "work_mem": "4MB"}}));
        let set = servers::primary(&desired, &ObservedPostgresql::default().objects, with("r"), None);
        let arguments = &set.document["spec"]["template"]["spec"]["containers"][0]["args"];
        let arguments: Vec<String> = serde_json::from_value(arguments.clone()).unwrap();
        let arguments: Vec<_> = arguments.iter().map(|argument| expanded(argument)).collect();
        assert_eq!(arguments, ["-c", &format!("log_line_prefix={value}"), "-c", "work_mem=4MB"]);
    }
}

/// An upgrade of the operator restarts no primary: settings that the spec does not have are not in its pod.
#[test]
fn absent_settings_do_not_change_the_primary() {
    let digest = |spec: Value| primary(spec, &ObservedPostgresql::default(), "uid-2");
    let plain = servers::primary(&acme(json!({})), &ObservedPostgresql::default().objects, with("r"), None);
    let pod = &plain.document["spec"]["template"]["spec"];
    for field in ["nodeSelector", "tolerations", "affinity"] {
        assert_eq!(pod[field], Value::Null, "{field}");
    }
    for field in ["args", "resources"] {
        assert_eq!(pod["containers"][0][field], Value::Null, "{field}");
    }
    for nothing in [
        json!({"resources": {}, "scheduling": {}, "parameters": {}}),
        json!({"resources": {"requests": {}}, "scheduling": {"affinity": {}}, "networkPolicy": {"enabled": false}}),
        json!({"networkPolicy": {}, "replicas": 9}),
        json!({"backup": {"schedule": "@daily", "drill": "@weekly"}}),
    ] {
        assert_eq!(digest(nothing.clone()), digest(json!({})), "{nothing}");
    }
    assert_ne!(digest(json!({"parameters": {"work_mem": "4MB"}})), digest(json!({})));
}

/// Policies are compared with the API server's copy.
#[test]
fn restored_specs_are_written_as_stored() {
    let mut compared = Vec::new();
    for desired in [production(), acme(drilled(json!({})))] {
        for Object { id: (kind, name), document, .. } in everything(&desired) {
            let written = document["spec"].clone();
            let stored = match kind {
                Kind::NetworkPolicy => json!(serde_json::from_value::<NetworkPolicySpec>(written.clone()).unwrap()),
                Kind::PodDisruptionBudget => {
                    json!(serde_json::from_value::<PodDisruptionBudgetSpec>(written.clone()).unwrap())
                }
                _ => continue,
            };
            assert_eq!(stored, written);
            compared.push(name);
        }
    }
    assert_eq!(compared, ["acme-access", "acme-sealed", "acme-standby", "acme-drill"]);
}

#[test]
fn the_users_anti_affinity_replaces_the_default() {
    let own = json!({"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "zone", "labelSelector": {"matchLabels": {"role": "db"}}},
    ]});
    let desired = acme(json!({"replicas": 2, "scheduling": {"affinity": {"podAntiAffinity": own}}}));
    let found = ObservedPostgresql::default().objects;
    for set in [servers::primary(&desired, &found, with("r"), None), servers::standby(&desired, &found, with("r"))] {
        assert_eq!(set.document["spec"]["template"]["spec"]["affinity"], json!({"podAntiAffinity": own}));
    }
    // With this rule, a Job beside the servers might find no node.
    let dump = backup::dump(
        &acme(json!({"backup": {"request": "a"}, "scheduling": {"affinity": {"podAntiAffinity": own}}})),
        &full().backup.unwrap(),
        "a",
    );
    assert_eq!(dump.document["spec"]["template"]["spec"]["affinity"], Value::Null);
}

#[test]
fn volume_templates_never_change() {
    let mut observed = ObservedPostgresql::default();
    let storage = Some("1Gi".to_owned());
    let detail =
        Detail::StatefulSet(SetView { replicas: 1, storage, is_rolled: true, requested: UserRequest::default() });
    let view = ObjectView { owner: Ownership::Ours, uid: "u".to_owned(), digest: None, deleting: false, detail };
    observed.objects.insert((Kind::StatefulSet, "acme".to_owned()), view);
    let larger = primary(json!({"storageSize": "5Gi"}), &observed, "uid-2");
    assert_eq!(larger, primary(json!({"storageSize": "1Gi"}), &ObservedPostgresql::default(), "uid-2"));
}

#[test]
fn only_a_new_replication_password_restarts_servers() {
    let set = |spec: Value, replication: &str| primary(spec, &ObservedPostgresql::default(), replication);
    assert_eq!(set(json!({}), "a"), set(json!({"port": 5433, "replicas": 3}), "a"));
    assert_ne!(set(json!({}), "a"), set(json!({}), "b"));
}

/// The garbage collector deletes only objects with an owner: it must not delete servers before the last dump, or when a client
/// removes the finalizer.
#[test]
fn only_the_witness_has_an_owner() {
    let desired = full();
    for object in everything(&desired) {
        let owned = !object.document["metadata"]["ownerReferences"].is_null();
        assert_eq!(owned, object.id.1 == "acme-witness", "{:?}", object.id);
    }
    for secret in
        [secrets::credentials(&desired, "x"), secrets::client(&desired, "x", None), secrets::replication(&desired)]
    {
        assert_eq!(secret.metadata.owner_references, None);
    }
}

#[test]
fn a_closed_primary_has_another_digest() {
    let set = |closed| servers::primary(&full(), &ObservedPostgresql::default().objects, with("r"), closed);
    let (open, closed) = (set(None), set(Some("2026-01-01T00:00:00Z")));
    assert_ne!(open.digest, closed.digest);
    let file =
        |object: &Object| object.document["spec"]["template"]["spec"]["containers"][0]["env"][1]["value"].clone();
    assert_eq!((file(&open), file(&closed)), (json!("/scripts/pg_hba.conf"), json!("/scripts/closed.conf")));
}

#[test]
fn no_password_is_in_any_document() {
    let desired = acme(json!({"password": "canary", "replicas": 2, "backup": {"schedule": "@daily"}}));
    let found = all(&desired, &ObservedPostgresql::default(), with("uid-2"));
    assert!(found.iter().all(|object| !object.document.to_string().contains("canary")));
}

#[test]
fn secrets() {
    let desired = full();
    let kept = secrets::credentials(&desired, "p@ss");
    assert_eq!(kept.immutable, Some(true));
    let client = secrets::client(&desired, "p@ss", None);
    let data = client.data.unwrap();
    let text = |key: &str| String::from_utf8(data[key].0.clone()).unwrap();
    assert_eq!(text("uri"), "postgresql://shop:p%40ss@acme.ns.svc:5433/orders");
    assert_eq!((text("host"), text("password")), ("acme.ns.svc".to_owned(), "p@ss".to_owned()));
    assert_ne!(secrets::replication(&desired).data, secrets::replication(&desired).data);
}

/// Shows what the servers get besides: the certificate, and standbys what they verify the primary's with.
#[test]
fn servers_with_a_certificate() {
    let pods = |required: bool| {
        let desired = acme(json!({"replicas": 2, "tls": {"required": required}}));
        let mounted = Mounted { replication: "r", certificate: Some("c"), replaced: None };
        let sets = [
            servers::primary(&desired, &BTreeMap::new(), mounted, None),
            servers::standby(&desired, &BTreeMap::new(), mounted),
        ];
        sets.map(|set| set.document["spec"]["template"].clone())
    };
    insta::assert_yaml_snapshot!(pods(true));
    for pod in pods(false) {
        let env = pod["spec"]["containers"][0]["env"].to_string();
        assert!(env.contains("/scripts/pg_hba.conf") && !env.contains("tls.conf"), "{env}");
    }
}

#[test]
fn the_certificate_covers_every_server_name() {
    let desired = acme(json!({"tls": {}}));
    let secret = secrets::certificate(&desired).unwrap();
    assert_eq!((secret.immutable, secret.type_.as_deref()), (Some(true), Some("kubernetes.io/tls")));
    let data = secret.data.unwrap();
    let certificates = |key: &str| CertificateDer::pem_slice_iter(&data[key].0).collect::<Result<Vec<_>, _>>().unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificates(secrets::AUTHORITY).remove(0)).unwrap();
    let ring = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiServerVerifier::builder_with_provider(roots.into(), ring).build().unwrap();
    let server = certificates(secrets::CERTIFICATE).remove(0);
    let verifies = |host: &str| {
        let host = ServerName::try_from(host.to_owned()).unwrap();
        verifier
            .verify_server_cert(
                &server,
                &[],
                &host,
                &[],
                UnixTime::since_unix_epoch(Duration::from_secs(1_800_000_000)),
            )
            .is_ok()
    };
    for host in [
        "acme",
        "acme.ns",
        "acme.ns.svc",
        "acme.ns.svc.cluster.local",
        "acme-ro.ns.svc",
        "acme-0.acme-headless",
        "acme-standby-1.acme-headless.ns.svc",
        "localhost",
    ] {
        assert!(verifies(host), "{host}");
    }
    for host in ["acme.other.svc", "other", "acme-ro.other", "acme-0.acme-headless.other.svc"] {
        assert!(!verifies(host), "{host}");
    }
    let client = secrets::client(&desired, "x", Some(&data[secrets::AUTHORITY].0)).data.unwrap();
    assert_eq!(client[secrets::AUTHORITY], data[secrets::AUTHORITY]);
    assert!(client["uri"].0.ends_with(b"/app?sslmode=require") && !client.contains_key(secrets::KEY));
    assert_ne!(secrets::certificate(&desired).unwrap().data.unwrap()[secrets::KEY], data[secrets::KEY]);
}
