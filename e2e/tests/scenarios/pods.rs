//! Why pods do not run, where only an event says so; and StatefulSets that wait for a pod of a former revision.

use clientapp_crd::percona::PerconaPGCluster;
use e2e::charts;
use e2e::lab::{Lab, Tenant, hostname};
use e2e::scenario::{small, with};
use e2e::wait::until;
use k8s_openapi::api::core::v1::{Event, Pod, ResourceQuota};
use kube::ResourceExt as _;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use super::installed;

const REDIS: &str = "acme-redis-master-0";

/// Lets the namespace have no pods but those that it has.
async fn no_more_pods(tenant: &Tenant, most: u8) {
    tenant.quota("small", json!({"hard": {"pods": most.to_string()}})).await;
}

async fn as_many_pods_as_you_like(tenant: &Tenant) {
    tenant.api::<ResourceQuota>().delete("small", &DeleteParams::default()).await.unwrap();
}

/// A Postgresql has a Job at first, and a StatefulSet later.
#[tokio::test]
async fn a_database_whose_pods_are_refused_says_so() {
    let tenant = Lab::shared().await.tenant("refused-database").await;
    no_more_pods(&tenant, 0).await;
    let spec = with(small(&tenant, "acme"), json!({"postgres": {"provider": "standalone"}}));
    tenant.create("acme", spec).await.unwrap();
    let words = ["Postgresql acme-pg: waiting for Job acme-pg-init-", "exceeded quota: small"];
    tenant.condition_with("acme", ("PostgresReady", "Provisioning"), &words).await;
    as_many_pods_as_you_like(&tenant).await;
    tenant.ready("acme", 1).await;
    no_more_pods(&tenant, 1).await;
    tenant.kubectl(&["delete", "pod", "acme-pg-0"]).unwrap();
    let words = ["Postgresql acme-pg: waiting for pod acme-pg-0; ", "exceeded quota: small"];
    tenant.condition_with("acme", ("PostgresReady", "Provisioning"), &words).await;
    as_many_pods_as_you_like(&tenant).await;
    tenant.ready("acme", 1).await;
}

/// An event as client-go's recorder writes it, in Percona's name or in a tenant's.
async fn warn(tenant: &Tenant, name: &str, (api_version, regarding): (&str, &str), (reason, message): (&str, &str)) {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let event: Event = serde_json::from_value(json!({
        "metadata": {"name": name}, "type": "Warning", "reason": reason, "message": message, "count": 1,
        "involvedObject": {
            "apiVersion": api_version, "kind": "PostgresCluster", "name": regarding, "namespace": tenant.namespace,
            "uid": "11111111-2222-3333-4444-555555555555",
        },
        "source": {"component": "postgrescluster-controller"}, "reportingComponent": "postgrescluster-controller",
        "firstTimestamp": now, "lastTimestamp": now,
    }))
    .unwrap();
    tenant.api::<Event>().create(&PostParams::default(), &event).await.unwrap();
}

/// Percona's own conditions do not say so: the cluster stays `initializing`.
#[tokio::test]
async fn what_percona_warns_of_is_in_the_condition() {
    let tenant = Lab::shared().await.tenant("warned").await;
    // No cluster becomes ready without pods, whichever Percona it is.
    no_more_pods(&tenant, 0).await;
    let spec = json!({"hostname": hostname(&tenant, "acme"), "redis": {"enabled": false}});
    tenant.create("acme", spec).await.unwrap();
    let waits = "PerconaPGCluster acme-pg is initializing";
    tenant.condition_with("acme", ("PostgresReady", "Provisioning"), &[waits]).await;
    let missing = ("MissingRequiredImage", "Missing image(s): [crunchy-pgbackrest]");
    let [old, new] = ["postgres-operator.crunchydata.com/v1beta1", "upstream.pgv2.percona.com/v1beta1"];
    warn(&tenant, "of-another", (new, "another"), ("Unrelated", "it is another cluster's")).await;
    warn(&tenant, "warned", (new, "acme-pg"), missing).await;
    let words = [waits, "; its operator warns: MissingRequiredImage: Missing image(s): [crunchy-pgbackrest]"];
    let told = tenant.condition_with("acme", ("PostgresReady", "Provisioning"), &words).await;
    assert!(!told.contains("Unrelated"), "{told}");
    // A tenant can write any number of any length, and nothing follows but a line of text.
    let cluster = tenant.uid::<PerconaPGCluster>("acme-pg").await;
    for n in 0..100 {
        let long = format!("line {n}\n").repeat(1000);
        warn(&tenant, &format!("forged-{n}"), (old, "acme-pg"), ("Delete", &long)).await;
    }
    let words = [waits, "; its operator warns: Delete: line "];
    let told = tenant.condition_with("acme", ("PostgresReady", "Provisioning"), &words).await;
    assert!(told.len() < 1000 && !told.contains('\n') && told.contains("MissingRequiredImage"), "{told}");
    assert_eq!(tenant.uid::<PerconaPGCluster>("acme-pg").await, cluster);
    as_many_pods_as_you_like(&tenant).await;
    let status = tenant.ready("acme", 1).await;
    assert!(status.conditions.iter().all(|condition| !condition.message.contains("warns")), "{status:#?}");
}

/// A StatefulSet never replaces a pod of a former revision that is not ready, however its template is corrected.
#[tokio::test]
async fn a_stateful_set_says_why_it_waits_and_a_corrected_spec_brings_it_back() {
    let tenant = installed("stuck-pod", json!({"redis": {"enabled": true}})).await;
    let waits = async |words: &[&str]| {
        let words = [&["StatefulSet acme-redis-master: "], words].concat();
        tenant.condition_with("acme", ("WorkloadsReady", "NotReady"), &words).await
    };
    no_more_pods(&tenant, 1).await;
    tenant.kubectl(&["delete", "pod", REDIS]).unwrap();
    waits(&["0 of 1 replicas are up to date: ", REDIS, "exceeded quota: small"]).await;
    as_many_pods_as_you_like(&tenant).await;
    tenant.ready("acme", 1).await;

    let too_much = json!({"redis": {"master": {"resources": {"requests": {"cpu": "10000"}}}}});
    tenant.patch("acme", json!({"values": too_much})).await.unwrap();
    const NOWHERE: &[&str] = &["pod acme-redis-master-0 is not scheduled"];
    waits(NOWHERE).await;
    let stuck = tenant.uid::<Pod>(REDIS).await.unwrap();
    // Nothing is deleted as long as the spec asks for it.
    let told = waits(NOWHERE).await;
    assert!(!told.contains("former revision"), "{told}");
    tenant.patch("acme", json!({"values": null})).await.unwrap();
    tenant.ready("acme", 3).await;
    assert_ne!(tenant.uid::<Pod>(REDIS).await.unwrap(), stuck);
    // As the account of the namespace, which may do so.
    let asked = async |what: &str| tenant.requests().await.iter().filter(|request| request.ends_with(what)).count();
    assert_eq!(asked("delete pods/").await, 1);

    // What a user has set a StatefulSet to do is left to the user; the message says how.
    let set = |patch: Value| {
        tenant.kubectl(&["patch", "statefulset/acme-redis-master", "--type=merge", "-p", &patch.to_string()]).unwrap()
    };
    set(json!({"spec": {
        "updateStrategy": {"type": "OnDelete", "rollingUpdate": null},
        "template": {"spec": {"nodeSelector": {"clientapp.test/no-such-node": "true"}}},
    }}));
    tenant.kubectl(&["delete", "pod", REDIS]).unwrap();
    waits(NOWHERE).await;
    let stuck = tenant.uid::<Pod>(REDIS).await.unwrap();
    set(json!({"spec": {"template": {"spec": {"nodeSelector": null}}}}));
    let before = asked("list pods/").await;
    until("its pods have been looked at again", async || asked("list pods/").await > before + 1).await;
    let pod = tenant.api::<Pod>().get(REDIS).await.unwrap();
    assert_eq!((pod.uid(), pod.metadata.deletion_timestamp), (Some(stuck), None));
    tenant.kubectl(&["delete", "pod", REDIS]).unwrap();
    tenant.ready("acme", 3).await;
}

/// helm says nothing while it waits for a hook.
#[tokio::test]
async fn a_hook_whose_pods_are_refused_says_so() {
    let tenant = Lab::shared().await.tenant("refused-hook").await;
    no_more_pods(&tenant, 0).await;
    let spec =
        with(small(&tenant, "acme"), json!({"chartVersion": charts::HOOK_FAILS, "values": {"hookSeconds": 120}}));
    tenant.create("acme", spec).await.unwrap();
    let words = ["revision 1 of release acme", "; Job acme-nextcloud-prepare: ", "exceeded quota: small"];
    tenant.condition_with("acme", ("Ready", "Upgrading"), &words).await;
    tenant.delete("acme").await;
}
