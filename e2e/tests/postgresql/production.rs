//! Production settings: resources, nodes, parameters, budgets and policies; and the cost of a mistake.

use clientapp_crd::annotation;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use super::*;

/// A pod's arguments, once it differs from before and no pod of the old revision is left.
async fn arguments(tenant: &Tenant, name: &str, before: Option<&String>, wanted: &[&str]) -> String {
    let fits = |pod: Option<&Pod>| {
        let pod = pod.filter(|pod| pod.metadata.deletion_timestamp.is_none() && pod.uid().as_ref() != before)?;
        let arguments = pod.spec.as_ref()?.containers[0].args.clone().unwrap_or_default();
        (arguments == wanted).then(|| pod.uid().unwrap())
    };
    tenant.wait_for(name, &format!("with the arguments {wanted:?}"), fits).await
}

#[tokio::test]
async fn a_setting_with_which_no_server_starts_is_said_and_corrected() {
    let tenant = tenant("pg-settings").await;
    make(&tenant, "db", json!({"replicas": 3})).await;
    let uid = async |pod: &str| tenant.api::<Pod>().get(pod).await.unwrap().uid();
    let (primary, standby) = (uid("db-0").await, uid("db-standby-1").await);

    patch(&tenant, "db", json!({"parameters": {"max_connections": "lots"}})).await.unwrap();
    let wrong = ["-c", "max_connections=lots"];
    let primary = arguments(&tenant, "db-0", primary.as_ref(), &wrong).await;
    let standby = arguments(&tenant, "db-standby-1", standby.as_ref(), &wrong).await;
    let words = "2026-01-01 00:00:00.000 UTC [1] FATAL:  invalid value for parameter \"max_connections\": \"lots\"\n";
    for pod in ["db-0", "db-standby-1"] {
        crash(&tenant, pod, 1, words).await;
    }
    let message = held(&tenant, "db", "ServerFails", &[]).await;
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
    crash(&tenant, "db-0", 1, words).await;
    held(&tenant, "db", "ServerFails", &[]).await;
    patch(&tenant, "db", json!({"parameters": null})).await.unwrap();
    arguments(&tenant, "db-0", Some(&broken), &[]).await;
    up(&tenant, "db").await;
}

#[tokio::test]
async fn more_than_any_node_has_is_said_and_corrected() {
    let tenant = tenant("pg-resources").await;
    let too_much = json!({"resources": {"requests": {"cpu": "100k"}}});
    // Before there is a database, and once there is one.
    create(&tenant, "db", with(json!({"replicas": 2}), too_much.clone())).await.unwrap();
    says(&tenant, "db", "too large for each node", |ready| ready.message.contains("Insufficient cpu")).await;
    let asked = json!({"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"memory": "1Gi"}});
    patch(&tenant, "db", json!({"resources": asked})).await.unwrap();
    up(&tenant, "db").await;
    for pod in ["db-0", "db-standby-0"] {
        let pod = tenant.api::<Pod>().get(pod).await.unwrap();
        assert_eq!(json!(pod.spec.unwrap().containers[0].resources), asked);
    }
    patch(&tenant, "db", too_much).await.unwrap();
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
    let tenant = tenant("pg-nodes").await;
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
    let backup = json!({"request": "one"});
    make(&tenant, "db", json!({"replicas": 2, "scheduling": scheduling, "backup": backup})).await;
    let mut on = Vec::new();
    for pod in ["db-0", "db-standby-0"] {
        on.push(tenant.api::<Pod>().get(pod).await.unwrap().spec.unwrap().node_name.unwrap());
    }
    on.sort();
    assert_eq!(on, ["pg-nodes-a", "pg-nodes-b"]);
    // A dump runs where its database may run.
    dumps::dump(&tenant, "one", DumpState::Succeeded).await;
    remove(&tenant, "db").await;
    for name in ["pg-nodes-a", "pg-nodes-b"] {
        nodes.delete(name, &DeleteParams::default()).await.unwrap();
    }
}

#[tokio::test]
async fn budget_and_policy_come_back_as_they_were_and_go_with_what_they_are_for() {
    let tenant = tenant("pg-policies").await;
    let peers = json!([
        {"namespaceSelector": {"matchLabels": {"team": "reports"}}, "podSelector": {"matchLabels": {}}},
        {"ipBlock": {"cidr": "10.0.0.0/8", "except": []}},
    ]);
    make(&tenant, "db", json!({"replicas": 3, "networkPolicy": {"from": peers}})).await;
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
    create(&other, "db", json!({"passwordSecret": {"name": "mine"}})).await.unwrap();
    held(&other, "db", "PasswordSecretMissing", &[]).await;
    other.kubectl(&["create", "secret", "generic", "mine", "--from-literal=other=x"]).unwrap();
    held(&other, "db", "PasswordSecretKeyMissing", &[]).await;
    let after = tenant.requests().await;
    assert_eq!(before.len(), after.len(), "{:?}", &after[before.len()..]);

    patch(&tenant, "db", json!({"replicas": 2, "networkPolicy": {"enabled": false}})).await.unwrap();
    gone::<PodDisruptionBudget>(&tenant, "db-standby").await;
    gone::<NetworkPolicy>(&tenant, "db-access").await;
    patch(&tenant, "db", json!({"replicas": 3, "networkPolicy": {"enabled": true}})).await.unwrap();
    up(&tenant, "db").await;
    assert_eq!(tenant.api::<NetworkPolicy>().get("db-access").await.unwrap().spec, policy);
    remove(&tenant, "db").await;
    gone::<PodDisruptionBudget>(&tenant, "db-standby").await;
    gone::<NetworkPolicy>(&tenant, "db-access").await;
}

#[tokio::test]
async fn connections_are_encrypted_with_a_certificate_that_can_be_replaced() {
    let tenant = tenant("pg-tls").await;
    make(&tenant, "db", json!({"replicas": 2})).await;
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
    let authority = secret(&tenant, "db-server-tls").await.remove("ca.crt").unwrap();
    told(&tenant, "db-app", "ca.crt", &authority).await;
    let client = secret(&tenant, "db-app").await;
    assert!(client["uri"].ends_with("?sslmode=require") && !client.contains_key("tls.key"), "{:?}", client.keys());

    delete::<Secret>(&tenant, "db-server-tls").await;
    let again = |found: Option<&Secret>| found?.uid().filter(|uid| *uid != first);
    let second = tenant.wait_for("db-server-tls", "made again", again).await;
    with(Some(second)).await;
    let another = secret(&tenant, "db-server-tls").await.remove("ca.crt").unwrap();
    assert_ne!(another, authority);
    told(&tenant, "db-app", "ca.crt", &another).await;
    settled(&tenant, "db").await;

    patch(&tenant, "db", json!({"tls": null})).await.unwrap();
    with(None).await;
    remove(&tenant, "db").await;
    assert_eq!(names::<Secret>(&tenant).await, Vec::<String>::new(), "it goes with its Postgresql");
}

#[tokio::test]
async fn another_version_of_the_operator_restarts_one_database_after_the_other() {
    let Apart { tenant, options, proxy: _proxy } = apart("pg-turns").await;
    let operator = leading(&options).await;
    let names = ["one", "two", "three", "four"];
    for name in names.into_iter().chain(["forger"]) {
        create(&tenant, name, json!({})).await.unwrap();
    }
    for name in names.into_iter().chain(["forger"]) {
        up(&tenant, name).await;
    }
    stop(operator).await;
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
    // Nor does one that is up to date, of which a tenant says that it has the turn, with the mark of an earlier version.
    let mark = Patch::Merge(json!({"metadata": {"annotations": {"apps.bnerd-operator.local/turn": "true"}}}));
    sets.patch("forger", &PatchParams::default(), &mark).await.unwrap();
    delete::<Pod>(&tenant, "forger-0").await;
    gone::<Pod>(&tenant, "forger-0").await;
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
    let down = async |name: &'static str| {
        let is_down = |status: &PostgresqlStatus| {
            status.rollout.as_ref().is_some_and(|rollout| rollout.stateful_sets == [name])
                && has(status, "Ready", "False", "Provisioning")
        };
        status(&tenant, name, "down, in its turn", is_down).await;
    };
    down(first).await;
    let others: Vec<_> = names.into_iter().filter(|name| *name != first).collect();
    for name in others.iter().copied() {
        waits(name, first).await;
    }
    // Nor does another operator let the next begin.
    stop(operator).await;
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
    let others: Vec<_> = others.into_iter().filter(|name| *name != second).collect();
    for name in others.iter().copied() {
        waits(name, second).await;
    }
    assert!(tenant.uid::<Postgresql>(first).await.is_some(), "its volume is held");
    hold(json!(null)).await;
    gone::<Postgresql>(&tenant, first).await;
    // A cluster admin goes on without the second.
    down(second).await;
    let end = Patch::Merge(json!({"status": {"rollout": null}}));
    tenant.api::<Postgresql>().patch_status(second, &PatchParams::default(), &end).await.unwrap();
    let third = changed(&others[..]).await;
    let fourth = others.into_iter().find(|name| *name != third).unwrap();
    waits(fourth, third).await;
    // Once the third is back, the fourth follows.
    tenant.api::<ResourceQuota>().delete("none", &DeleteParams::default()).await.unwrap();
    for name in [second, third, fourth, "forger"] {
        changed(&[name][..]).await;
        status(&tenant, name, "up, and its turn is over", |status| is_settled(status) && status.rollout.is_none())
            .await;
    }
    drop(operator);
}
