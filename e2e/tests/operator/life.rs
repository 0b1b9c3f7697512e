//! The life of operators: at rest, restarted, killed, in pairs; and the sources of charts and of Percona.
//!
//! Scenarios here start and stop operators at will, so each has its own, restricted to its namespace.

use clientapp_crd::{ClientApp, Profile};
use e2e::charts::{self, Content};
use e2e::lab::{Apart, Lab, Tenant, has, hostname, leading};
use e2e::operator::{Operator, Options};
use e2e::percona::Percona;
use e2e::proxy::{Fault as Refusal, Proxy, Rule};
use e2e::registry::Registry;
use e2e::repository::{Fault, Repository};
use e2e::scenario::{nothing_is_left, small};
use e2e::shim::{Shim, executable};
use e2e::wait::until;
use http::StatusCode;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt as _};
use nix::sys::signal::{Signal, kill};
use serde_json::{Value, json};
use std::time::Duration;

/// A namespace with its own operators.
async fn apart(namespace: &str) -> Apart {
    Lab::unattended().await.apart(namespace).await
}

/// An app whose hook fits on no node: helm waits for it until the test lets it run.
fn slow(tenant: &Tenant, name: &str) -> Value {
    json!({
        "hostname": hostname(tenant, name),
        "chartVersion": charts::HOOK_FAILS, "values": {"hookSeconds": 3600},
    })
}

/// Waits until helm waits for the hook of this app, and returns the uid of its Job. `before` is the uid of the last
/// run.
async fn next_hook(tenant: &Tenant, app: &str, before: &str) -> String {
    let waiting = |job: Option<&Job>| {
        let job = job.filter(|job| job.status.as_ref().is_some_and(|status| status.active > Some(0)))?;
        job.uid().filter(|uid| uid != before)
    };
    tenant.wait_for(&format!("{app}-nextcloud-prepare"), "waiting", waiting).await
}

/// The statuses of the revisions that lock the release, from Helm's storage.
async fn pending(tenant: &Tenant, release: &str) -> Vec<String> {
    let revisions = ListParams::default().labels(&format!("owner=helm,name={release}"));
    let secrets = tenant.api::<Secret>().list_metadata(&revisions).await.unwrap();
    let statuses = secrets.iter().map(|secret| secret.labels()["status"].clone());
    statuses.filter(|status| status.starts_with("pending-")).collect()
}

/// Waits until there are more than this many events about an app, and the last one has the message of its status.
async fn all_told(tenant: &Tenant, name: &str, more_than: usize) -> Vec<(String, String)> {
    let ready = tenant.condition(name, "Ready", "True", "Ready").await;
    until("there is one more event", async || {
        let events = tenant.events_with(name, "Ready", &ready).await;
        (events.len() > more_than).then_some(events)
    })
    .await
}

async fn busy(tenant: &Tenant) {
    tenant.create("busy", json!({"hostname": hostname(tenant, "busy"), "suspend": true})).await.unwrap();
    tenant.condition("busy", "Ready", "False", "Suspended").await;
}

/// The number of reconciles that the operator has finished.
fn reconciles(operator: &mut Operator) -> f64 {
    operator.counted("clientapp_operator_reconcile_seconds_count").unwrap()
}

async fn version(tenant: &Tenant, name: &str) -> Option<String> {
    tenant.api::<ClientApp>().get(name).await.unwrap().resource_version()
}

async fn passwords(tenant: &Tenant, app: &str) -> Vec<Vec<u8>> {
    let mut passwords = Vec::new();
    for (name, key) in [
        (format!("{app}-admin-secret"), "nextcloud-password"),
        (format!("{app}-redis-secret"), "redis-password"),
        (format!("{app}-pg-pguser-clientapp"), "password"),
    ] {
        passwords.push(tenant.api::<Secret>().get(&name).await.unwrap().data.unwrap()[key].0.clone());
    }
    passwords
}

#[tokio::test]
async fn at_rest_an_app_costs_nothing() {
    let Apart { tenant, proxy: _proxy, options } = apart("at-rest").await;
    let charts = tempfile::tempdir().unwrap();
    let shim = Shim::around(&tenant.lab.tools.helm).unwrap();
    let repository = Repository::start().unwrap();
    let options = Options { chart_repository: repository.url(), ..options };
    let warm = Options { helm: shim.path(), chart_cache: Some(charts.path().to_owned()), ..options };
    let mut operator = leading(&warm).await;
    let apps = ["one", "two", "three"];
    for name in apps {
        tenant.create(name, json!({"hostname": hostname(&tenant, name)})).await.unwrap();
    }
    for name in apps {
        tenant.ready(name, 1).await;
    }
    let mut told = Vec::new();
    for name in apps {
        told.push(all_told(&tenant, name, 0).await);
    }
    let since = |before: Vec<String>, after: Vec<String>| after[before.len()..].to_vec();
    let runs = shim.runs();
    let upgrades: Vec<_> = runs.iter().filter(|run| run.arguments.starts_with("upgrade")).collect();
    assert_eq!(upgrades.len(), apps.len(), "{runs:?}");
    assert!(upgrades.iter().all(|run| run.arguments.contains("--disable-openapi-validation")), "{runs:?}");

    // Metadata that does not concern the operator.
    let before = tenant.requests().await;
    for name in apps {
        let seen = reconciles(&mut operator);
        tenant.kubectl(&["label", "clientapp", name, "team=blue"]).unwrap();
        tenant.kubectl(&["annotate", "clientapp", name, "note=hello"]).unwrap();
        until("both edits are seen", async || reconciles(&mut operator) > seen).await;
    }
    assert_eq!(since(before, tenant.requests().await), [""; 0]);
    assert_eq!(shim.runs(), runs);

    // Another client edits the status: the operator reports the same again, and does nothing else.
    let said = tenant.api::<ClientApp>().get("one").await.unwrap().status.unwrap();
    let before = tenant.requests().await;
    let patch = Patch::Merge(json!({"status": {"url": "https://elsewhere.example.com", "conditions": []}}));
    tenant.api::<ClientApp>().patch_status("one", &PatchParams::default(), &patch).await.unwrap();
    tenant.status("one", "repaired", |status| status.url == said.url && has(status, "Ready", "True", "Ready")).await;
    let repaired = tenant.api::<ClientApp>().get("one").await.unwrap().status.unwrap();
    assert_eq!(repaired.release, said.release);
    // To a reconcile that finds no condition, the app has just become Ready.
    told[0] = all_told(&tenant, "one", told[0].len()).await;
    let requests = since(before, tenant.requests().await);
    assert_eq!(
        requests.iter().filter(|request| *request == "operator patch clientapps/status").count(),
        1,
        "{requests:?}"
    );
    assert!(!requests.iter().any(|request| request.starts_with("helm")), "{requests:?}");
    assert_eq!(shim.runs(), runs);

    // A restart, with the same charts, and without any while the repository is down.
    repository.set(Fault::Refused).unwrap();
    for (cache, options) in [("warm", warm.clone()), ("cold", Options { chart_cache: None, ..warm })] {
        let versions =
            async || [version(&tenant, "one").await, version(&tenant, "two").await, version(&tenant, "three").await];
        let stored = versions().await;
        let before = tenant.requests().await;
        assert!(operator.stop().unwrap());
        operator = leading(&options).await;
        // A new operator needs to look up only one thing that its watches do not show: the keys of Percona's Secrets.
        until("every Secret is read", async || tenant.requests().await.len() >= before.len() + apps.len()).await;
        until("every app is reconciled", async || reconciles(&mut operator) >= 3.0).await;
        assert_eq!(since(before, tenant.requests().await), ["operator get secrets/"; 3]);
        assert_eq!(versions().await, stored);
        assert_eq!(shim.runs(), runs);

        let before = tenant.requests().await;
        let seen = reconciles(&mut operator);
        tenant.kubectl(&["annotate", "clientapps", "--all", "--overwrite", &format!("cache={cache}")]).unwrap();
        until("every app is reconciled again", async || reconciles(&mut operator) >= seen + 3.0).await;
        assert_eq!(since(before, tenant.requests().await), [""; 0]);
    }
    repository.set(Fault::None).unwrap();
    for (name, told) in apps.into_iter().zip(told) {
        assert_eq!(tenant.listed(name).unwrap().0, "1");
        assert_eq!(tenant.events(name).await, told);
    }
    assert!(operator.stop().unwrap());
}

#[tokio::test]
async fn one_leads_and_the_other_goes_on_without_repeating_anything() {
    let Apart { tenant, proxy: _proxy, options } = apart("two-operators").await;
    let shim = Shim::around(&tenant.lab.tools.helm).unwrap();
    let options = Options { helm: shim.path(), ..options };
    let first = leading(&options).await;
    let mut second = Operator::start(&options).unwrap();
    second.wait_for_log("waiting for the lease").unwrap();
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.ready("acme", 1).await;
    let runs = shim.runs();
    assert!(!second.log().contains("\"leading\""));

    assert!(first.stop().unwrap());
    second.wait_for_log("\"leading\"").unwrap();
    until("the app is reconciled", async || reconciles(&mut second) >= 1.0).await;
    assert_eq!(shim.runs(), runs);
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;
    let holder = lease_holder(&tenant, &options).await;
    assert!(holder.contains(&format!(".{}.", second.pid())), "{holder}");
    assert!(second.stop().unwrap());
}

fn leases(tenant: &Tenant, options: &Options) -> Api<Lease> {
    Api::namespaced(tenant.client.clone(), &options.lease_namespace)
}

async fn lease_holder(tenant: &Tenant, options: &Options) -> String {
    leases(tenant, options).get("clientapp-operator").await.unwrap().spec.unwrap().holder_identity.unwrap()
}

/// Waits until the second operator leads, and checks meanwhile that the first does not lead as well. Until then there is
/// always something to write: each change of the suspended app `busy` is reported in its status.
async fn taken_over(tenant: &Tenant, first: &mut Operator, second: &mut Operator) {
    let mut changes = 0;
    until("the second leads, and the first no longer does", async || {
        changes += 1;
        let changed = json!({"spec": {"values": {"changes": changes}}});
        tenant.api::<ClientApp>().patch("busy", &PatchParams::default(), &Patch::Merge(changed)).await.unwrap();
        // In this order: if the second already leads while the first still does, both are seen leading.
        let second = leads(second);
        assert!(!(second && leads(first)), "two operators lead");
        second
    })
    .await;
}

fn leads(operator: &mut Operator) -> bool {
    operator.counted("clientapp_operator_leader").unwrap() > 0.0
}

#[tokio::test]
async fn a_leader_that_cannot_renew_its_lease_ends_with_its_helm_before_another_leads() {
    let Apart { tenant, proxy, options } = apart("not-renewed").await;
    let shim = Shim::around(&tenant.lab.tools.helm).unwrap();
    let unharmed = Proxy::confined(&tenant.lab.operator_kubeconfig, &tenant.namespace).unwrap();
    let options = Options { helm: shim.path(), ..options };
    let direct = Options { kubeconfig: unharmed.kubeconfig(), ..options.clone() };
    let mut first = leading(&options).await;
    busy(&tenant).await;
    tenant.create("acme", slow(&tenant, "acme")).await.unwrap();
    let hook = next_hook(&tenant, "acme", "").await;
    let helm = shim.runs().pop().unwrap();
    assert!(leads(&mut first) && helm.alive());
    let mut second = Operator::start(&direct).unwrap();
    second.wait_for_log("waiting for the lease").unwrap();

    proxy.set([Rule::new("*", "leases", Refusal::Answer(StatusCode::SERVICE_UNAVAILABLE))]);
    taken_over(&tenant, &mut first, &mut second).await;
    assert!(!helm.alive(), "helm ends before another leads");
    first.wait_for_log("the lease is lost").unwrap();
    // A running hook is not started again before it has ended.
    tenant.let_job_run(&hook).await;
    let hook = next_hook(&tenant, "acme", &hook).await;
    tenant.let_job_run(&hook).await;
    tenant.ready("acme", 2).await;

    // The other way round: it stands by again, and its own requests hang once it leads.
    proxy.set([]);
    first.wait_for_log("requests for the Lease succeed again").unwrap();
    assert!(second.stop().unwrap());
    until("the first leads again", async || leads(&mut first)).await;
    tenant.create("between", small(&tenant, "between")).await.unwrap();
    tenant.ready("between", 1).await;
    let mut second = Operator::start(&direct).unwrap();
    second.wait_for_log("waiting for the lease").unwrap();
    proxy.set([Rule::new("*", "leases", Refusal::Hang)]);
    taken_over(&tenant, &mut first, &mut second).await;
    // The hanging requests arrive, and do not affect the new leader.
    proxy.set([]);
    let holder = lease_holder(&tenant, &options).await;
    assert!(holder.contains(&format!(".{}.", second.pid())), "{holder}");
    tenant.create("other", small(&tenant, "other")).await.unwrap();
    tenant.ready("other", 1).await;
    assert!(!leads(&mut first) && first.stop().unwrap());
    assert!(leads(&mut second) && second.stop().unwrap());
    let [first, second] = [proxy.name(), unharmed.name()];
    assert_eq!(tenant.writers().await, [first, second, first, second], "each leader writes alone");
}

/// Answers that are late, but not too late, cost nothing; those that are later than the term end it.
#[tokio::test]
async fn a_leader_whose_lease_is_renewed_late() {
    let Apart { tenant, proxy, options } = apart("renewed-late").await;
    let unharmed = Proxy::confined(&tenant.lab.operator_kubeconfig, &tenant.namespace).unwrap();
    let mut first = leading(&options).await;
    busy(&tenant).await;
    let mut second = Operator::start(&Options { kubeconfig: unharmed.kubeconfig(), ..options }).unwrap();
    second.wait_for_log("waiting for the lease").unwrap();
    let late = |by: u64| proxy.set([Rule::new("*", "leases", Refusal::Late(Duration::from_millis(by)))]);
    late(1000);
    // Longer than a term.
    proxy.met_more_than(proxy.met() + 6).await;
    assert!(leads(&mut first) && !first.log().contains("the lease is lost"), "{}", first.log());
    late(6000);
    taken_over(&tenant, &mut first, &mut second).await;
    first.wait_for_log("the lease is lost").unwrap();
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.ready("acme", 1).await;
    proxy.set([]);
    assert!(leads(&mut second) && !leads(&mut first));
    assert!(first.stop().unwrap() && second.stop().unwrap());
    assert_eq!(tenant.writers().await, [proxy.name(), unharmed.name()], "each leader writes alone");
}

#[tokio::test]
async fn a_leader_that_was_frozen_wakes_up_without_the_lead() {
    let Apart { tenant, proxy, options } = apart("woken").await;
    let mut first = leading(&options).await;
    busy(&tenant).await;
    let another = Proxy::confined(&tenant.lab.operator_kubeconfig, &tenant.namespace).unwrap();
    let mut second = Operator::start(&Options { kubeconfig: another.kubeconfig(), ..options.clone() }).unwrap();
    // It is stopped between a change and its report.
    proxy.set([Rule::new("patch", "clientapps/status", Refusal::Hang)]);
    let met = proxy.met();
    tenant.kubectl(&["patch", "clientapp", "busy", "--type=merge", "-p", r#"{"spec": {"values": {"a": 1}}}"#]).unwrap();
    proxy.met_more_than(met).await;
    first.signal(Signal::SIGSTOP);
    until("the second leads", async || leads(&mut second)).await;
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.ready("acme", 1).await;
    first.signal(Signal::SIGCONT);
    assert!(!leads(&mut first));
    first.wait_for_log("the lease is lost").unwrap();
    assert_eq!(tenant.writers().await, [proxy.name(), another.name()], "the first writes nothing any more");
    proxy.set([]);
    assert!(second.stop().unwrap());
    until("the first leads again", async || leads(&mut first)).await;
    assert!(first.stop().unwrap());
}

#[tokio::test]
async fn a_lease_that_is_deleted_ends_the_lead_before_there_is_another() {
    let Apart { tenant, proxy: _proxy, options } = apart("lease-deleted").await;
    let mut first = leading(&options).await;
    let mut second = Operator::start(&options).unwrap();
    second.wait_for_log("waiting for the lease").unwrap();
    leases(&tenant, &options).delete("clientapp-operator", &DeleteParams::default()).await.unwrap();
    first.wait_for_log("it was deleted").unwrap();
    until("one leads again", async || {
        let second = leads(&mut second);
        let first = leads(&mut first);
        assert!(!(first && second), "two operators lead");
        first || second
    })
    .await;
    assert!(second.stop().unwrap());
    assert!(first.stop().unwrap());
}

/// Two operators with different Leases: neither respects the other's helm, since each takes a pending revision with an
/// operator's stamp for one that a dead helm has left, and goes on. So two helms may be at work at once, and no
/// overlap is asserted. Helm's own lock, the name of a revision's Secret, lets only one of them make each revision, and
/// nothing with data or a password is made twice.
#[tokio::test]
async fn two_operators_that_both_lead_make_everything_once() {
    let Apart { tenant, proxy: _proxy, options } = apart("both-lead").await;
    let shim = Shim::around(&tenant.lab.tools.helm).unwrap();
    let options = Options { helm: shim.path(), ..options };
    let lease_namespace = apart("both-lead-too").await.options.lease_namespace;
    let mut first = leading(&options).await;
    let mut second = leading(&Options { lease_namespace, ..options }).await;
    let ends_ready = async |generation: Option<i64>| {
        until("no helm is at work, and the app is Ready", async || {
            let status = tenant.api::<ClientApp>().get("acme").await.unwrap().status.unwrap_or_default();
            let ready = status.observed_generation == generation && has(&status, "Ready", "True", "Ready");
            if ready && shim.runs().iter().all(|run| !run.alive()) { Ok(()) } else { Err(format!("{status:#?}")) }
        })
        .await;
        assert_eq!(tenant.listed("acme").unwrap().1, "deployed");
    };
    let data = async || {
        let claims = tenant.api::<PersistentVolumeClaim>().list(&ListParams::default()).await.unwrap();
        let claims: Vec<_> = claims.iter().map(|claim| (claim.name_any(), claim.uid())).collect();
        (claims, passwords(&tenant, "acme").await)
    };
    tenant.create("acme", json!({"hostname": hostname(&tenant, "acme")})).await.unwrap();
    ends_ready(Some(1)).await;
    let before = data().await;
    assert!(before.0.len() >= 3, "the app, Redis and the database have a volume each: {:?}", before.0);
    let edited = tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    ends_ready(edited.metadata.generation).await;
    assert!(data().await == before, "each volume is the same, and each password");
    let (newest, _, chart) = tenant.listed("acme").unwrap();
    assert_eq!(chart, "nextcloud-5.5.3");
    let requests = tenant.requests().await;
    // helm creates only revisions, and applies the objects of a chart.
    let made = requests.iter().filter(|asked| *asked == "helm create secrets/").count();
    assert_eq!(made.to_string(), newest, "each revision was made once: {requests:#?}");
    let destroys =
        ["operator delete secrets/", "operator delete persistentvolumeclaims/", "helm delete persistentvolumeclaims/"];
    assert_eq!(requests.iter().find(|asked| destroys.contains(&asked.as_str())), None);
    assert!(leads(&mut first) && leads(&mut second));

    tenant.delete("acme").await;
    nothing_is_left(&tenant).await;
    assert!(first.stop().unwrap() && second.stop().unwrap());
}

#[tokio::test]
async fn after_sigkill_in_the_middle_of_an_installation_the_successor_unlocks_and_goes_on() {
    let Apart { tenant, proxy: _proxy, options } = apart("sigkill-install").await;
    let shim = Shim::around(&tenant.lab.tools.helm).unwrap();
    let options = Options { helm: shim.path(), ..options };
    let operator = leading(&options).await;
    tenant.create("acme", slow(&tenant, "acme")).await.unwrap();
    let hook = next_hook(&tenant, "acme", "").await;
    let before = passwords(&tenant, "acme").await;
    killed(operator, &shim).await;
    assert_eq!(pending(&tenant, "acme").await, ["pending-install"]);

    let operator = leading(&options).await;
    tenant.let_job_run(&hook).await;
    let hook = next_hook(&tenant, "acme", &hook).await;
    assert_eq!(statuses(&tenant, "acme"), ["failed", "pending-upgrade"]);
    tenant.let_job_run(&hook).await;
    tenant.ready("acme", 2).await;
    assert_eq!(passwords(&tenant, "acme").await, before);
    assert!(operator.stop().unwrap());
    assert!(shim.runs().iter().all(|run| !run.alive()));
}

#[tokio::test]
async fn after_sigkill_in_the_middle_of_an_upgrade_and_again_of_the_successors() {
    let Apart { tenant, proxy: _proxy, options } = apart("sigkill-upgrade").await;
    let shim = Shim::around(&tenant.lab.tools.helm).unwrap();
    let options = Options { helm: shim.path(), ..options };
    let mut operator = leading(&options).await;
    tenant.create("acme", slow(&tenant, "acme")).await.unwrap();
    let mut hook = next_hook(&tenant, "acme", "").await;
    tenant.let_job_run(&hook).await;
    tenant.ready("acme", 1).await;
    let before = passwords(&tenant, "acme").await;

    tenant.patch("acme", json!({"replicas": 2})).await.unwrap();
    for _ in 0..2 {
        hook = next_hook(&tenant, "acme", &hook).await;
        killed(operator, &shim).await;
        assert_eq!(pending(&tenant, "acme").await, ["pending-upgrade"]);
        operator = leading(&options).await;
        tenant.let_job_run(&hook).await;
    }
    hook = next_hook(&tenant, "acme", &hook).await;
    tenant.let_job_run(&hook).await;
    tenant.ready("acme", 4).await;
    // Helm keeps the last of the failed revisions.
    assert_eq!(statuses(&tenant, "acme"), ["superseded", "failed", "deployed"]);
    assert_eq!(passwords(&tenant, "acme").await, before);
    assert!(operator.stop().unwrap());
    assert!(shim.runs().iter().all(|run| !run.alive()));
}

/// Kills the operator, and with it its running helm.
async fn killed(operator: Operator, shim: &Shim) {
    let helm = shim.runs().pop().unwrap();
    assert!(helm.arguments.starts_with("upgrade") && helm.alive(), "{helm:?}");
    operator.kill().unwrap();
    until("helm dies with its operator", async || !helm.alive()).await;
}

#[tokio::test]
async fn after_sigterm_helm_records_a_failure_and_the_successor_goes_on() {
    let Apart { tenant, proxy: _proxy, options } = apart("sigterm").await;
    let shim = Shim::around(&tenant.lab.tools.helm).unwrap();
    let options = Options { helm: shim.path(), ..options };
    let first = leading(&options).await;
    let mut second = Operator::start(&options).unwrap();
    tenant.create("acme", slow(&tenant, "acme")).await.unwrap();
    let hook = next_hook(&tenant, "acme", "").await;
    let before = passwords(&tenant, "acme").await;
    let helm = shim.runs().pop().unwrap();
    assert!(first.stop().unwrap());
    assert!(!helm.alive(), "helm ends before its operator does");
    // The successor may already be working.
    assert_eq!(statuses(&tenant, "acme")[0], "failed", "helm records that it was stopped");

    second.wait_for_log("\"leading\"").unwrap();
    let hook = next_hook(&tenant, "acme", &hook).await;
    tenant.let_job_run(&hook).await;
    tenant.ready("acme", 2).await;
    assert_eq!(passwords(&tenant, "acme").await, before);
    assert!(second.stop().unwrap());
}

/// As in a container: the operator is the first process of a PID namespace. Signals do nothing by default there, and with it the
/// kernel kills all others.
#[tokio::test]
async fn the_first_process_of_a_pid_namespace_ends_and_is_killed_like_any_other() {
    let Apart { tenant, proxy: _proxy, options } = apart("first-process").await;
    let directory = tempfile::tempdir().unwrap();
    let binary = directory.path().join("operator");
    let unshare = "unshare --map-root-user --pid --fork --kill-child";
    let script = format!("#!/bin/sh\nexec {unshare} -- {} \"$@\"\n", e2e::operator::binary().unwrap().display());
    executable(&binary, &script, 0o755).unwrap();
    let options = Options { binary: Some(binary), ..options };

    let mut operator = leading(&options).await;
    tenant.create("acme", slow(&tenant, "acme")).await.unwrap();
    let hook = next_hook(&tenant, "acme", "").await;
    let before = passwords(&tenant, "acme").await;
    // unshare passes on no signal.
    let [inner] = operator.children()[..] else { panic!("unshare has one child") };
    kill(inner, Signal::SIGTERM).unwrap();
    assert!(operator.wait().unwrap(), "{}", operator.log());
    assert_eq!(statuses(&tenant, "acme"), ["failed"]);

    let operator = leading(&options).await;
    let hook = next_hook(&tenant, "acme", &hook).await;
    let [inner] = operator.children()[..] else { panic!("unshare has one child") };
    operator.kill().unwrap();
    until("the namespace's processes are gone", async || kill(inner, None).is_err()).await;
    assert_eq!(pending(&tenant, "acme").await, ["pending-upgrade"]);

    let mut operator = leading(&options).await;
    tenant.let_job_run(&hook).await;
    let hook = next_hook(&tenant, "acme", &hook).await;
    tenant.let_job_run(&hook).await;
    tenant.ready("acme", 3).await;
    assert_eq!(passwords(&tenant, "acme").await, before);
    let [inner] = operator.children()[..] else { panic!("unshare has one child") };
    kill(inner, Signal::SIGTERM).unwrap();
    assert!(operator.wait().unwrap());
}

/// A helm that takes five seconds to end after SIGTERM.
#[tokio::test]
async fn after_sigterm_the_lease_is_released_when_helm_has_ended() {
    let Apart { tenant, proxy: _proxy, options } = apart("released-last").await;
    let directory = tempfile::tempdir().unwrap();
    let [helm, waits] = ["helm", "waits"].map(|name| directory.path().join(name));
    let script = format!(
        "#!/bin/sh\ncase \"$1\" in upgrade)\ntrap 'sleep 5; exit 1' TERM\n: >{}\n\
         while :; do sleep 1; done\nesac\nexec {} \"$@\"\n",
        waits.display(),
        tenant.lab.tools.helm.display()
    );
    executable(&helm, &script, 0o755).unwrap();
    let shim = Shim::around(&helm).unwrap();
    let options = Options { helm: shim.path(), ..options };
    let mut first = leading(&options).await;
    let mut second = Operator::start(&options).unwrap();
    second.wait_for_log("waiting for the lease").unwrap();
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    until("helm is at work", async || waits.exists()).await;
    let runs = shim.runs();
    let helm = runs.iter().find(|run| run.arguments.starts_with("upgrade")).unwrap();
    first.signal(Signal::SIGTERM);
    until("the second leads", async || {
        // In this order: if the second already leads while helm is still alive, both are seen.
        let second = leads(&mut second);
        assert!(!(second && helm.alive()), "another leads before helm has ended");
        second
    })
    .await;
    // It has released the Lease.
    first.wait_for_log("\"stopped\"").unwrap();
    assert!(first.stop().unwrap());
}

#[tokio::test]
async fn a_changed_profile_reaches_its_instances_at_the_pace_of_max_concurrent() {
    let Apart { tenant, proxy: _proxy, options } = apart("paced").await;
    let shim = Shim::around(&tenant.lab.tools.helm).unwrap();
    let mut options = Options { helm: shim.path(), ..options };
    options.arguments = ["--max-concurrent", "2"].map(str::to_owned).to_vec();
    let _operator = leading(&options).await;
    let upgrades = || shim.runs().into_iter().filter(|run| run.arguments.starts_with("upgrade")).collect::<Vec<_>>();
    let running = || upgrades().iter().filter(|run| run.alive()).count();

    let profiles = Api::<Profile>::all(tenant.client.clone());
    // With a hook that fits on no node: helm waits for it until the test lets it run.
    let seconds = |seconds: u32| json!({"helm": {"values": {"hookSeconds": seconds}}});
    let profile = serde_json::from_value(json!({"metadata": {"name": "paced"}, "spec": seconds(3600)})).unwrap();
    profiles.create(&PostParams::default(), &profile).await.unwrap();
    let names = ["one", "two", "three"];
    for name in names {
        let mut spec = small(&tenant, name);
        spec["profile"] = json!("paced");
        spec["chartVersion"] = json!(charts::HOOK_FAILS);
        tenant.create(name, spec).await.unwrap();
    }
    for revision in [1, 2] {
        let so_far = 3 * (revision - 1);
        for done in 0..3 {
            // Two at a time, until there is only one left.
            let started = so_far + (done + 2).min(3);
            until("as many helms as may run are waiting for their hooks", async || {
                upgrades().len() == started && running() == started - so_far - done
            })
            .await;
            if done == 0 {
                // A queued app says so, and helm finds everything ready when its turn comes.
                for name in names {
                    tenant.condition(name, "Reconciling", "True", "Upgrading").await;
                    tenant.kubectl(&["get", "secret", &format!("{name}-admin-secret")]).unwrap();
                }
            }
            let hooks = until("each helm waits for its hook", async || {
                let jobs = tenant.api::<Job>().list(&ListParams::default()).await.unwrap();
                let active = |job: &&Job| job.status.as_ref().is_some_and(|status| status.active > Some(0));
                let active: Vec<_> = jobs.iter().filter(active).filter_map(|job| job.uid()).collect();
                (active.len() == started - so_far - done).then_some(active)
            })
            .await;
            assert_eq!((upgrades().len(), running()), (started, hooks.len()), "{:?}", upgrades());
            tenant.let_job_run(&hooks[0]).await;
        }
        for name in names {
            tenant.ready(name, i64::try_from(revision).unwrap()).await;
        }
        if revision == 1 {
            let patch = Patch::Merge(json!({"spec": seconds(3601)}));
            profiles.patch("paced", &PatchParams::default(), &patch).await.unwrap();
        }
    }
    assert_eq!(upgrades().len(), 6, "{:?}", upgrades());
}

#[tokio::test]
async fn charts_come_from_a_registry_or_a_directory_as_well() {
    let Apart { tenant, proxy: _proxy, options } = apart("chart-sources").await;
    let registry = Registry::start().unwrap();
    registry.push_all(&tenant.lab.tools.helm).unwrap();
    let directory = tempfile::tempdir().unwrap();
    charts::package_all(directory.path()).unwrap();
    for (name, source) in [("registry", registry.repository()), ("directory", directory.path().display().to_string())] {
        let operator = leading(&Options { chart_repository: source, ..options.clone() }).await;
        tenant.create(name, small(&tenant, name)).await.unwrap();
        let release = tenant.ready(name, 1).await.release.unwrap();
        let genuine = charts::digest(&charts::archive(charts::DEFAULT, Content::Genuine).unwrap());
        assert_eq!(release.chart_digest, Some(genuine));
        assert_eq!(release.app_version.as_deref(), Some("29.0.4"));
        tenant.patch(name, json!({"chartVersion": charts::PATCH})).await.unwrap();
        tenant.ready(name, 2).await;
        tenant.patch(name, json!({"chartVersion": "5.5.99"})).await.unwrap();
        let told = tenant.condition(name, "Released", "False", "ChartInvalid").await;
        assert!(told.contains("5.5.99"), "{told}");
        assert_eq!(tenant.listed(name).unwrap(), ("2".into(), "deployed".into(), "nextcloud-5.5.3".into()));
        tenant.delete(name).await;
        assert!(operator.stop().unwrap());
    }
}

#[tokio::test]
async fn percona_is_missed_without_polling_and_picked_up_when_it_comes() {
    // A plane of its own, without Percona.
    let lab = Lab::own().await;
    let tenant = lab.tenant("no-percona").await;
    let mut operator = leading(&lab.options()).await;
    tenant.create("acme", json!({"hostname": hostname(&tenant, "acme")})).await.unwrap();
    tenant.create("other", small(&tenant, "other")).await.unwrap();
    let told = tenant.condition("acme", "Ready", "False", "DependencyMissing").await;
    assert!(told.contains("install the Percona Operator for PostgreSQL"), "{told}");
    tenant.condition("acme", "Stalled", "True", "DependencyMissing").await;
    // Apps that need no database are unaffected.
    tenant.ready("other", 1).await;

    // The reconcile sends no request about the kind, not even a watch, which would be refused repeatedly.
    let seen = reconciles(&mut operator);
    tenant.kubectl(&["annotate", "clientapp", "acme", "note=hello"]).unwrap();
    until("it is reconciled", async || reconciles(&mut operator) > seen).await;
    tenant.requests().await;
    let log = std::fs::read_to_string(lab.plane.audit_log().unwrap()).unwrap();
    let asked = log.lines().filter(|line| line.contains("perconapgclusters") && line.contains(&e2e::manifests::user()));
    let asked: Vec<_> = asked.filter(|line| !line.contains("customresourcedefinitions")).collect();
    assert!(asked.is_empty(), "{asked:#?}");
    let requests = tenant.requests().await;
    assert!(requests.iter().all(|request| !request.contains("sh.helm.release.v1.acme")));
    assert!(tenant.listed("acme").is_none());

    Percona::define(&tenant.client).await.unwrap();
    let percona = Percona::start(&lab.plane).await.unwrap();
    tenant.ready("acme", 1).await;

    // And removed again: the status reports it, and nothing happens to the running app.
    Percona::undefine(&tenant.client).await.unwrap();
    tenant.condition("acme", "PostgresReady", "False", "DependencyMissing").await;
    assert_eq!(tenant.listed("acme").unwrap().0, "1");
    drop(percona);
    tenant.delete("acme").await;
    assert!(operator.stop().unwrap());
}

/// The statuses of all kept revisions, oldest first.
fn statuses(tenant: &Tenant, release: &str) -> Vec<String> {
    let ran = tenant.helm(&["history", release, "-o", "json"]);
    assert!(ran.success, "{}", ran.stderr);
    let revisions: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    revisions.iter().map(|revision| revision["status"].as_str().unwrap().to_owned()).collect()
}
