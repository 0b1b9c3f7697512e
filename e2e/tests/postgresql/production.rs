//! Production settings: resources, nodes, parameters, budgets and policies; which are refused, and the cost of a
//! mistake.

use clientapp_crd::{annotation, parameters};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use e2e::lab::leading;
use e2e::scenario::operated;

use super::*;

#[tokio::test]
async fn what_cannot_be_is_refused_at_once() {
    let tenant = Lab::shared().await.tenant("pg-production-refused").await;
    let resources = |requests: Value, limits: Value| json!({"resources": {"requests": requests, "limits": limits}});
    for (spec, words) in [
        (resources(json!({"cpu": "much"}), json!({})), "must be quantities such as 200m or 512Mi"),
        (resources(json!({}), json!({"memory": "-1Gi"})), "must be quantities such as 200m or 512Mi"),
        (resources(json!({"memory": "1Gi"}), json!({"memory": "1G"})), "a request must not be above its limit"),
        (json!({"resources": {"claims": []}}), "unknown field \"spec.resources.claims\""),
        (json!({"scheduling": {"nodeSelector": {"disk": 1}}}), "spec.scheduling.nodeSelector.disk"),
        (
            json!({"scheduling": {"tolerations": [{"keys": "x"}]}}),
            "unknown field \"spec.scheduling.tolerations[0].keys\"",
        ),
        (json!({"scheduling": {"affinity": {"podAffinities": {}}}}), "unknown field"),
        (json!({"networkPolicy": {"from": [{}]}}), "must have a podSelector, a namespaceSelector or an ipBlock each"),
        (
            json!({"networkPolicy": {"from": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]}}),
            "ipBlock cannot be combined",
        ),
    ] {
        let message = strictly(&tenant, "db", &spec).expect_err("it is refused").to_string();
        assert!(message.contains(words), "{spec}: {message}");
    }
    // The API server and the operator refuse the same, in the same words.
    for (name, value) in [
        ("Work_mem", "1"),
        ("a=b", "1"),
        ("a\nb", "1"),
        (&"a".repeat(64), "1"),
        ("work_mem", "4MB\n-c fsync=off"),
        ("listen_addresses", "*"),
        ("hba_file", "/tmp/open"),
        ("unix_socket_directories", ""),
        ("archive_command", "curl example.com"),
        ("restore_command", "x"),
        ("ssl_passphrase_command", "x"),
        ("primary_conninfo", ""),
        ("hot_standby", "off"),
        ("max_wal_senders", "0"),
        ("synchronous_standby_names", "*"),
        ("allow_alter_system", "off"),
        ("fsync", "off"),
        ("full_page_writes", "off"),
        ("ignore_checksum_failure", "on"),
        ("ssl", "on"),
        ("password_encryption", "md5"),
        ("session_preload_libraries", "x"),
        ("archive_library", "x"),
        ("wal_level", "minimal"),
        ("max_replication_slots", "9"),
        ("shared_preload_libraries", "pg_stat_statements,evil"),
    ] {
        let settings = [(name.to_owned(), value.to_owned())].into();
        let problem = parameters::problem(&settings).unwrap_or_else(|| panic!("the operator accepts {name}"));
        let problem = problem.rsplit(": ").next().unwrap();
        let message = refused(create(&tenant, "db", json!({"parameters": settings})).await).await;
        assert!(message.contains("spec.parameters") && message.contains(problem), "{name}: {problem}; {message}");
    }
    let many: BTreeMap<_, _> = (0..129).map(|n| (format!("a{n}.b"), "1")).collect();
    refused(create(&tenant, "db", json!({"parameters": many})).await).await;
    let message =
        refused(create(&tenant, "db", json!({"parameters": {"work_mem": "4MB", "fsync": "off", "ssl": "on"}})).await)
            .await;
    assert!(message.contains("data could be lost") && message.contains("controls access to the server"), "{message}");
    assert_eq!(names::<StatefulSet>(&tenant).await, Vec::<String>::new());
}

/// As `kubectl create` does it, which reports unknown fields.
fn strictly(tenant: &Tenant, name: &str, spec: &Value) -> anyhow::Result<String> {
    let kind = ApiResource::erase::<Postgresql>(&());
    let object = json!({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"name": name}, "spec": spec});
    let file = tempfile::NamedTempFile::new()?;
    fs::write(file.path(), object.to_string())?;
    tenant.kubectl(&["create", "-f", file.path().to_str().unwrap()])
}

/// A pod's arguments, once it differs from before and no pod of the old revision is left.
async fn arguments(tenant: &Tenant, name: &str, before: Option<&String>, wanted: &[&str]) -> String {
    let fits = |pod: Option<&Pod>| {
        let pod = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none() && pod.uid().as_ref() != before)?;
        let arguments = pod.spec.as_ref()?.containers[0].args.clone().unwrap_or_default();
        (arguments == wanted).then(|| pod.uid().unwrap())
    };
    tenant.wait_for(name, &format!("with the arguments {wanted:?}"), fits).await
}

/// Makes a server exit as PostgreSQL does with an invalid setting.
async fn fails_to_start(tenant: &Tenant, pod: &str, words: &str) {
    let runs = |pod: Option<&Pod>| (pod?.status.as_ref()?.phase.as_deref() == Some("Running")).then_some(());
    tenant.wait_for(pod, "running", runs).await;
    let container = json!({
        "name": "postgres", "image": "x", "imageID": "", "ready": false, "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}},
        "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": words}},
    });
    let status = json!({"status": {
        "conditions": [{"type": "Ready", "status": "False"}], "containerStatuses": [container],
    }});
    tenant.api::<Pod>().patch_status(pod, &PatchParams::default(), &Patch::Strategic(status)).await.unwrap();
}

#[tokio::test]
async fn a_setting_with_which_no_server_starts_is_said_and_corrected() {
    let tenant = Lab::shared().await.tenant("pg-settings").await;
    create(&tenant, "db", json!({"replicas": 3})).await.unwrap();
    up(&tenant, "db").await;
    let uid = async |pod: &str| tenant.api::<Pod>().get(pod).await.unwrap().uid();
    let (primary, standby) = (uid("db-0").await, uid("db-standby-1").await);

    patch(&tenant, "db", json!({"parameters": {"max_connections": "lots"}})).await.unwrap();
    let wrong = ["-c", "max_connections=lots"];
    let primary = arguments(&tenant, "db-0", primary.as_ref(), &wrong).await;
    let standby = arguments(&tenant, "db-standby-1", standby.as_ref(), &wrong).await;
    let words = "2026-01-01 00:00:00.000 UTC [1] FATAL:  invalid value for parameter \"max_connections\": \"lots\"\n";
    for pod in ["db-0", "db-standby-1"] {
        fails_to_start(&tenant, pod, words).await;
    }
    let message = held(&tenant, "db", "ServerFails").await;
    let sentence =
        "pod db-0: it has ended with exit code 1: FATAL: invalid value for parameter \"max_connections\": \"lots\"";
    assert_eq!(message, sentence);
    tenant.events_with("db", "ServerFails", sentence).await;

    // Neither is ready, and their StatefulSets replace them all the same.
    patch(&tenant, "db", json!({"parameters": {"max_connections": "50"}})).await.unwrap();
    arguments(&tenant, "db-0", Some(&primary), &["-c", "max_connections=50"]).await;
    arguments(&tenant, "db-standby-1", Some(&standby), &["-c", "max_connections=50"]).await;
    up(&tenant, "db").await;

    // Back to the former value, whose revision is already known.
    let before = arguments(&tenant, "db-0", None, &["-c", "max_connections=50"]).await;
    patch(&tenant, "db", json!({"parameters": {"max_connections": "lots"}})).await.unwrap();
    let broken = arguments(&tenant, "db-0", Some(&before), &wrong).await;
    fails_to_start(&tenant, "db-0", words).await;
    held(&tenant, "db", "ServerFails").await;
    patch(&tenant, "db", json!({"parameters": null})).await.unwrap();
    arguments(&tenant, "db-0", Some(&broken), &[]).await;
    up(&tenant, "db").await;
}

#[tokio::test]
async fn more_than_any_node_has_is_said_and_corrected() {
    let tenant = Lab::shared().await.tenant("pg-resources").await;
    let asked = json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}});
    create(&tenant, "db", json!({"resources": asked, "replicas": 2})).await.unwrap();
    up(&tenant, "db").await;
    for pod in ["db-0", "db-standby-0"] {
        let pod = tenant.api::<Pod>().get(pod).await.unwrap();
        assert_eq!(json!(pod.spec.unwrap().containers[0].resources), asked);
    }
    let nowhere = |pod: Option<&Pod>| {
        let conditions = pod?.status.as_ref()?.conditions.as_ref()?;
        conditions.iter().any(|condition| condition.reason.as_deref() == Some("Unschedulable")).then_some(())
    };
    patch(&tenant, "db", json!({"resources": {"requests": {"cpu": "100k"}}})).await.unwrap();
    tenant.wait_for("db-0", "without a node", nowhere).await;
    // The watch of pods shows it a little later than the API server.
    says(&tenant, "db", "told why", |ready| {
        let words = ready.message.starts_with("pod db-0: ") && ready.message.contains("Insufficient cpu");
        ready.status == "False" && ready.reason == "NotReady" && words
    })
    .await;
    patch(&tenant, "db", json!({"resources": {"requests": {"cpu": "1"}}})).await.unwrap();
    up(&tenant, "db").await;
}

#[tokio::test]
async fn a_standby_is_on_another_node_if_there_is_one() {
    let lab = Lab::shared().await;
    let tenant = lab.tenant("pg-nodes").await;
    // Two nodes for this database alone.
    let nodes = Api::<Node>::all(tenant.client.clone());
    for name in ["pg-nodes-a", "pg-nodes-b"] {
        let node = json!({
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "pool": "pg-nodes"}},
            "spec": {"taints": [{"key": "databases", "effect": "NoSchedule"}]},
        });
        nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    }
    until("both nodes take pods", async || {
        let ours = nodes.list(&ListParams::default().labels("pool=pg-nodes")).await.unwrap().items;
        ours.iter().all(|node| {
            let ready = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let tainted = node.spec.iter().flat_map(|spec| spec.taints.iter().flatten()).count();
            tainted == 1 && ready.filter(|found| found.type_ == "Ready").any(|found| found.status == "True")
        })
    })
    .await;
    let scheduling = json!({
        "nodeSelector": {"pool": "pg-nodes"},
        "tolerations": [{"key": "databases", "operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "Exists"}]},
        ]}}},
    });
    let dumps = json!({"request": "one"});
    create(&tenant, "db", json!({"replicas": 2, "scheduling": scheduling, "backup": dumps})).await.unwrap();
    up(&tenant, "db").await;
    let mut on = Vec::new();
    for pod in ["db-0", "db-standby-0"] {
        on.push(tenant.api::<Pod>().get(pod).await.unwrap().spec.unwrap().node_name.unwrap());
    }
    on.sort();
    assert_eq!(on, ["pg-nodes-a", "pg-nodes-b"]);
    // A dump runs where its database may run.
    dump(&tenant, "one", DumpState::Succeeded).await;
    delete::<Postgresql>(&tenant, "db").await;
    gone::<Postgresql>(&tenant, "db").await;
    for name in ["pg-nodes-a", "pg-nodes-b"] {
        nodes.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

#[tokio::test]
async fn budget_and_policy_come_back_as_they_were_and_go_with_what_they_are_for() {
    let tenant = Lab::shared().await.tenant("pg-policies").await;
    let peers = json!([
        {"namespaceSelector": {"matchLabels": {"team": "reports"}}, "podSelector": {"matchLabels": {}}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": []}},
    ]);
    create(&tenant, "db", json!({"replicas": 3, "networkPolicy": {"from": peers}})).await.unwrap();
    up(&tenant, "db").await;
    let budget = tenant.api::<PodDisruptionBudget>().get("db-standby").await.unwrap().spec;
    let policy = tenant.api::<NetworkPolicy>().get("db-access").await.unwrap().spec;
    let rules = policy.clone().unwrap().ingress.unwrap();
    assert_eq!(json!(rules[0]), json!({"from": [{"podSelector": {}}]}));
    assert_eq!((rules.len(), json!(rules[1].ports)), (2, json!([{"port": 5432, "protocol": "TCP"}])));

    tenant.replaced::<PodDisruptionBudget>("db-standby").await;
    tenant.replaced::<NetworkPolicy>("db-access").await;
    // The second edit of each adds a field, which in a budget contradicts the operator's.
    for edit in [json!({"ingress": [{}], "policyTypes": ["Ingress"]}), json!({"egress": [{}]})] {
        let edit = Patch::Merge(json!({"spec": edit}));
        tenant.api::<NetworkPolicy>().patch("db-access", &PatchParams::default(), &edit).await.unwrap();
        let as_it_was = |found: Option<&NetworkPolicy>| (found?.spec == policy).then_some(());
        tenant.wait_for("db-access", "as it was", as_it_was).await;
    }
    for edit in [json!({"maxUnavailable": 2}), json!({"maxUnavailable": null, "minAvailable": 2})] {
        let edit = Patch::Merge(json!({"spec": edit}));
        tenant.api::<PodDisruptionBudget>().patch("db-standby", &PatchParams::default(), &edit).await.unwrap();
        let as_it_was = |found: Option<&PodDisruptionBudget>| (found?.spec == budget).then_some(());
        tenant.wait_for("db-standby", "as it was", as_it_was).await;
    }
    looked_at_again(&tenant, "db", 5433).await;

    // The stored objects are as applied: nothing is applied again.
    let before = tenant.requests().await;
    tenant.kubectl(&["annotate", "db", "db", "note=hello"]).unwrap();
    let other = tenant.lab.tenant("pg-policies-other").await;
    create(&other, "db", json!({})).await.unwrap();
    up(&other, "db").await;
    let after = tenant.requests().await;
    assert_eq!(before.len(), after.len(), "{:?}", &after[before.len()..]);
    assert_eq!(names::<NetworkPolicy>(&other).await, Vec::<String>::new(), "nothing is closed without a request");

    patch(&tenant, "db", json!({"replicas": 2, "networkPolicy": {"enabled": false}})).await.unwrap();
    gone::<PodDisruptionBudget>(&tenant, "db-standby").await;
    gone::<NetworkPolicy>(&tenant, "db-access").await;
    patch(&tenant, "db", json!({"replicas": 3, "networkPolicy": {"enabled": true}})).await.unwrap();
    up(&tenant, "db").await;
    assert_eq!(tenant.api::<NetworkPolicy>().get("db-access").await.unwrap().spec, policy);
    delete::<Postgresql>(&tenant, "db").await;
    gone::<Postgresql>(&tenant, "db").await;
    gone::<PodDisruptionBudget>(&tenant, "db-standby").await;
    gone::<NetworkPolicy>(&tenant, "db-access").await;
}

#[tokio::test]
async fn connections_are_encrypted_with_a_certificate_that_can_be_replaced() {
    let tenant = Lab::shared().await.tenant("pg-tls").await;
    create(&tenant, "db", json!({"replicas": 2})).await.unwrap();
    up(&tenant, "db").await;
    assert!(!secret(&tenant, "db-app").await.contains_key("ca.crt"));
    patch(&tenant, "db", json!({"tls": {"required": true}})).await.unwrap();
    let with = async |certificate: Option<String>| {
        for pod in ["db-0", "db-standby-0"] {
            let fits = |pod: Option<&Pod>| {
                let pod = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none())?;
                let has = pod.annotations().get("apps.bnerd-operator.local/certificate-secret");
                (has == certificate.as_ref()).then(|| pod.spec.clone().unwrap().containers.remove(0))
            };
            let container = tenant.wait_for(pod, "with the certificate", fits).await;
            let words = format!("{:?}", container.args.unwrap_or_default());
            assert_eq!(words.contains("ssl_key_file=/tls/tls.key"), certificate.is_some(), "{words}");
        }
        up(&tenant, "db").await;
    };
    let made = |found: Option<&Secret>| found?.uid();
    let first = tenant.wait_for("db-server-tls", "made", made).await;
    with(Some(first.clone())).await;
    let told = |authority: String| {
        move |found: Option<&Secret>| (text(found?, "ca.crt").as_ref() == Some(&authority)).then_some(())
    };
    let authority = secret(&tenant, "db-server-tls").await.remove("ca.crt").unwrap();
    tenant.wait_for("db-app", "with the authority", told(authority.clone())).await;
    let client = secret(&tenant, "db-app").await;
    assert!(client["uri"].ends_with("?sslmode=require") && !client.contains_key("tls.key"), "{:?}", client.keys());

    delete::<Secret>(&tenant, "db-server-tls").await;
    let again = |found: Option<&Secret>| found?.uid().filter(|uid| *uid != first);
    let second = tenant.wait_for("db-server-tls", "made again", again).await;
    with(Some(second)).await;
    let another = secret(&tenant, "db-server-tls").await.remove("ca.crt").unwrap();
    assert_ne!(another, authority);
    tenant.wait_for("db-app", "with the new authority", told(another)).await;
    settled(&tenant, "db").await;

    patch(&tenant, "db", json!({"tls": null})).await.unwrap();
    with(None).await;
    delete::<Postgresql>(&tenant, "db").await;
    gone::<Postgresql>(&tenant, "db").await;
    assert_eq!(names::<Secret>(&tenant).await, Vec::<String>::new(), "it goes with its Postgresql");
}

#[tokio::test]
async fn another_version_of_the_operator_restarts_one_database_after_the_other() {
    let (Apart { tenant, options, proxy: _proxy }, operator) = operated("pg-turns", &[]).await;
    let names = ["one", "two", "three"];
    for name in names {
        create(&tenant, name, json!({})).await.unwrap();
    }
    for name in names {
        up(&tenant, name).await;
    }
    tokio::task::spawn_blocking(move || operator.stop()).await.unwrap().unwrap();
    // As an earlier version of the operator would have left them: with another image.
    let sets = tenant.api::<StatefulSet>();
    let image =
        |set: &StatefulSet| set.spec.as_ref().unwrap().template.spec.as_ref().unwrap().containers[0].image.clone();
    let newest = image(&sets.get("one").await.unwrap());
    for name in names {
        let container = sets.get(name).await.unwrap().spec.unwrap().template.spec.unwrap().containers[0].name.clone();
        let former = json!({
            "metadata": {"annotations": {annotation::SPEC_DIGEST: "former"}},
            "spec": {"template": {"spec": {"containers": [{"name": container, "image": "example.com/former:1"}]}}},
        });
        sets.patch(name, &PatchParams::default(), &Patch::Strategic(former)).await.unwrap();
    }
    let serves = |pod: Option<&Pod>| {
        let pod = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none())?;
        let former = pod.spec.as_ref()?.containers[0].image.as_deref() == Some("example.com/former:1");
        let ready =
            pod.status.as_ref()?.conditions.iter().flatten().any(|is| is.type_ == "Ready" && is.status == "True");
        (former && ready).then_some(())
    };
    for name in names {
        tenant.wait_for(&format!("{name}-0"), "with the former image", serves).await;
    }
    // The first that restarts does not come back.
    tenant.quota("none", json!({"hard": {"pods": "0"}})).await;
    let operator = leading(&options).await;
    let changed = async |names: &[&'static str]| {
        until("one of them is changed", async || {
            for name in names {
                if image(&sets.get(name).await.unwrap()) == newest {
                    return Some(*name);
                }
            }
            None
        })
        .await
    };
    // Serves as before, and names the one that has the turn.
    let waits = async |name: &str, of: &str| {
        let turn = format!("it is the turn of Postgresql {}/{of}", tenant.namespace);
        let says = |status: &PostgresqlStatus| {
            conditions::find(&status.conditions, "Reconciling").is_some_and(|it| it.message.ends_with(&turn))
        };
        status(&tenant, name, &turn, |status| {
            has(status, "Ready", "True", "Ready") && has(status, "Reconciling", "True", "AwaitingTurn") && says(status)
        })
        .await;
        assert_ne!(image(&sets.get(name).await.unwrap()), newest, "{name} waits for {of}");
    };
    let first = changed(&names[..]).await;
    status(&tenant, first, "down", |status| has(status, "Ready", "False", "Provisioning")).await;
    let others: Vec<_> = names.into_iter().filter(|name| *name != first).collect();
    for name in others.iter().copied() {
        waits(name, first).await;
    }
    // Nor does another operator let the next begin.
    tokio::task::spawn_blocking(move || operator.stop()).await.unwrap().unwrap();
    let operator = leading(&options).await;
    for name in others.iter().copied() {
        // The second one comes from a pass after all that the first pass did.
        tenant.replaced::<Service>(name).await;
        tenant.replaced::<Service>(name).await;
        waits(name, first).await;
    }
    // One that is being deleted keeps no other waiting, however long its deletion takes.
    let hold = async |finalizers: Value| {
        let held = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        let claims = tenant.api::<PersistentVolumeClaim>();
        claims.patch(&format!("data-{first}-0"), &PatchParams::default(), &held).await.unwrap();
    };
    hold(json!(["example.com/held"])).await;
    delete::<Postgresql>(&tenant, first).await;
    let second = changed(&others[..]).await;
    let third = others.into_iter().find(|name| *name != second).unwrap();
    waits(third, second).await;
    assert!(tenant.uid::<Postgresql>(first).await.is_some(), "its volume is held");
    hold(json!(null)).await;
    gone::<Postgresql>(&tenant, first).await;
    // Once the second is back, the third follows.
    tenant.api::<ResourceQuota>().delete("none", &DeleteParams::default()).await.unwrap();
    for name in [second, third] {
        changed(&[name][..]).await;
        up(&tenant, name).await;
    }
    drop(operator);
}
