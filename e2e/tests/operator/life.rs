//! The life of operators: at rest, restarted, killed, in pairs; and the sources of charts and of Percona.
//!
//! Scenarios here start and stop operators at will, so each has its own, restricted to its namespace.

use clientapp_crd::{ClientApp, Profile, conditions};
use e2e::charts::{self, Content};
use e2e::lab::{Apart, Lab, Tenant, has, hostname, leading};
use e2e::operator::{Operator, Options};
use e2e::proxy::{Fault as Refusal, Proxy, Rule};
use e2e::registry::Registry;
use e2e::repository::{Fault, Repository};
use e2e::scenario::{nothing_is_left, secret, small, with};
use e2e::shim::{Run, Shim, executable};
use e2e::wait::{until, until_closely};
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
        "hostname": hostname(tenant, name), "postgres": {"provider": "standalone"},
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

/// The number of reconciles that the operator has finished.
fn reconciles(operator: &mut Operator) -> f64 {
    operator.counted("clientapp_operator_reconcile_seconds_count").unwrap()
}

async fn version(tenant: &Tenant, name: &str) -> Option<String> {
    tenant.api::<ClientApp>().get(name).await.unwrap().resource_version()
}

/// The generated passwords of the app `acme`, whose database has this Secret.
async fn passwords(tenant: &Tenant, database: &str) -> [String; 3] {
    [
        secret(tenant, "acme-admin-secret", "nextcloud-password").await,
        secret(tenant, "acme-redis-secret", "redis-password").await,
        secret(tenant, database, "password").await,
    ]
}

/// The Secret of the database of a [`slow`] app.
const DATABASE: &str = "acme-pg-app";

#[tokio::test]
async fn at_rest_an_app_costs_nothing_and_a_successor_repeats_nothing() {
    let Apart { tenant, proxy: _proxy, options } = apart("at-rest").await;
    let charts = tempfile::tempdir().unwrap();
    let shim = Shim::around(&tenant.lab.tools.helm).unwrap();
    let repository = Repository::start().unwrap();
    let options = Options { chart_repository: repository.url(), ..options };
    let warm = Options { helm: shim.path(), chart_cache: Some(charts.path().to_owned()), ..options };
    let mut operator = leading(&warm).await;
    let apps = ["one", "two"];
    tenant.create("one", json!({"hostname": hostname(&tenant, "one")})).await.unwrap();
    tenant.create("two", small(&tenant, "two")).await.unwrap();
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

    // The next operator takes over, with the same charts, and without any while the repository is down.
    repository.set(Fault::Refused).unwrap();
    for (cache, options) in [("warm", warm.clone()), ("cold", Options { chart_cache: None, ..warm.clone() })] {
        let versions = async || [version(&tenant, "one").await, version(&tenant, "two").await];
        let stored = versions().await;
        let before = tenant.requests().await;
        let mut next = Operator::start(&options).unwrap();
        next.wait_for_log("waiting for the lease").unwrap();
        assert!(!next.log().contains("\"leading\""));
        assert!(operator.stop().unwrap());
        next.wait_for_log("\"leading\"").unwrap();
        operator = next;
        // A new operator needs to look up only one thing that its watches do not show: the keys of Percona's Secret.
        until("it is read", async || tenant.requests().await.len() > before.len()).await;
        until("every app is reconciled", async || reconciles(&mut operator) >= 2.0).await;
        assert_eq!(since(before, tenant.requests().await), ["operator get secrets/"]);
        assert_eq!(versions().await, stored);
        assert_eq!(shim.runs(), runs);

        let before = tenant.requests().await;
        let seen = reconciles(&mut operator);
        tenant.kubectl(&["annotate", "clientapps", "--all", "--overwrite", &format!("cache={cache}")]).unwrap();
        until("every app is reconciled again", async || reconciles(&mut operator) >= seen + 2.0).await;
        assert_eq!(since(before, tenant.requests().await), [""; 0]);
    }
    repository.set(Fault::None).unwrap();
    for (name, told) in apps.into_iter().zip(told) {
        assert_eq!(tenant.listed(name).unwrap().0, "1");
        assert_eq!(tenant.events(name).await, told);
    }
    // The successor goes on where it matters.
    tenant.patch("one", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("one", 2).await;
    let holder = lease_holder(&tenant, &warm).await;
    assert!(holder.contains(&format!(".{}.", operator.pid())), "{holder}");
    assert!(operator.stop().unwrap());
}

async fn lease_holder(tenant: &Tenant, options: &Options) -> String {
    let leases = Api::<Lease>::namespaced(tenant.client.clone(), &options.lease_namespace);
    leases.get("clientapp-operator").await.unwrap().spec.unwrap().holder_identity.unwrap()
}

/// A leader, an operator that waits for the Lease, and the proxies between them and the API server.
struct Pair {
    tenant: Tenant,
    options: Options,
    first: Operator,
    second: Operator,
    proxies: [Proxy; 2],
}

impl Pair {
    /// A suspended app `busy` gives the leader something to write at any time.
    async fn start(namespace: &str, helm: &Shim) -> Pair {
        let Apart { tenant, proxy, options } = apart(namespace).await;
        let other = Proxy::confined(&tenant.lab.operator_kubeconfig, &tenant.namespace).unwrap();
        let options = Options { helm: helm.path(), ..options };
        let first = leading(&options).await;
        tenant.create("busy", json!({"hostname": hostname(&tenant, "busy"), "suspend": true})).await.unwrap();
        tenant.condition("busy", "Ready", "False", "Suspended").await;
        let second = Self::standby(&options, &other);
        Pair { tenant, options, first, second, proxies: [proxy, other] }
    }

    fn standby(options: &Options, proxy: &Proxy) -> Operator {
        let mut standby = Operator::start(&Options { kubeconfig: proxy.kubeconfig(), ..options.clone() }).unwrap();
        standby.wait_for_log("waiting for the lease").unwrap();
        standby
    }

    /// How often the first has lost the Lease.
    fn losses(&self) -> usize {
        self.first.log().matches("the lease is lost").count()
    }

    /// Waits until the second leads and the first has noticed, and checks that both never lead. Until then there is always something
    /// to write: each change of the app `busy` is reported in its status. By then this helm of the first has ended. The second goes on.
    async fn taken_over(&mut self, app: &str, helm: Option<&Run>) {
        let (losses, mut looks) = (self.losses(), 0);
        until_closely("the second leads, and the first no longer does", async || {
            // Each report is several requests, and a look takes none.
            if looks % 4 == 0 {
                self.tenant.patch("busy", json!({"values": {"looks": looks}})).await.unwrap();
            }
            looks += 1;
            // In this order: if the second already leads while the first still does, both are seen leading.
            let second = leads(&mut self.second);
            assert!(!(second && leads(&mut self.first)), "two operators lead");
            assert!(!(second && helm.is_some_and(Run::alive)), "helm ends before another leads");
            second
        })
        .await;
        until("the first has lost the Lease", async || self.losses() > losses).await;
        let holder = lease_holder(&self.tenant, &self.options).await;
        assert!(holder.contains(&format!(".{}.", self.second.pid())), "{holder}");
        self.tenant.create(app, small(&self.tenant, app)).await.unwrap();
        self.tenant.ready(app, 1).await;
        assert!(!leads(&mut self.first) && leads(&mut self.second));
    }

    /// Replaces the second by another that waits, when the first leads again, and has written something.
    async fn handed_back(&mut self) {
        self.proxies[0].set([]);
        self.second.signal(Signal::SIGTERM);
        assert!(self.second.wait().unwrap());
        until("the first leads again", async || leads(&mut self.first)).await;
        let changed = self.tenant.patch("busy", json!({"values": {"looks": "back"}})).await.unwrap();
        let seen = changed.metadata.generation;
        self.tenant.status("busy", "reported", |status| status.observed_generation == seen).await;
        self.second = Self::standby(&self.options, &self.proxies[1]);
    }
}

fn leads(operator: &mut Operator) -> bool {
    operator.counted("clientapp_operator_leader").unwrap() > 0.0
}

#[tokio::test]
async fn a_leader_without_its_lease_ends_its_helm_and_writes_nothing_and_may_lead_again() {
    let shim = Shim::around(&Lab::unattended().await.tools.helm).unwrap();
    let mut pair = Pair::start("leases", &shim).await;
    pair.tenant.create("acme", slow(&pair.tenant, "acme")).await.unwrap();
    let hook = next_hook(&pair.tenant, "acme", "").await;
    let helm = shim.runs().pop().unwrap();
    assert!(leads(&mut pair.first) && helm.alive());
    let leases = |fault: Refusal| [Rule::new("*", "leases", fault)];

    // It cannot renew its Lease.
    pair.proxies[0].set(leases(Refusal::Answer(StatusCode::SERVICE_UNAVAILABLE)));
    pair.taken_over("unavailable", Some(&helm)).await;
    // A running hook is not started again before it has ended.
    pair.tenant.let_job_run(&hook).await;
    let hook = next_hook(&pair.tenant, "acme", &hook).await;
    pair.tenant.let_job_run(&hook).await;
    pair.tenant.ready("acme", 2).await;
    pair.proxies[0].set([]);
    pair.first.wait_for_log("requests for the Lease succeed again").unwrap();
    pair.handed_back().await;

    // Its requests hang. They arrive in the end, and do not affect the new leader.
    pair.proxies[0].set(leases(Refusal::Hang));
    pair.taken_over("hung", None).await;
    pair.proxies[0].set([]);
    pair.tenant.patch("hung", json!({"chartVersion": charts::PATCH})).await.unwrap();
    pair.tenant.ready("hung", 2).await;
    assert!(!leads(&mut pair.first) && leads(&mut pair.second));
    pair.handed_back().await;

    // Answers that are late, but not too late, cost nothing, for longer than a term; those that are later than the term end it.
    let losses = pair.losses();
    pair.proxies[0].set(leases(Refusal::Late(Duration::from_secs(1))));
    pair.proxies[0].met_more_than(pair.proxies[0].met() + 6).await;
    assert!(leads(&mut pair.first) && pair.losses() == losses, "{}", pair.first.log());
    pair.proxies[0].set(leases(Refusal::Late(Duration::from_secs(6))));
    pair.taken_over("late", None).await;
    pair.handed_back().await;

    // It is frozen between a change and its report, and wakes up without the lead.
    let losses = pair.losses();
    pair.proxies[0].set([Rule::new("patch", "clientapps/status", Refusal::Hang)]);
    let met = pair.proxies[0].met();
    pair.tenant.patch("busy", json!({"values": {"looks": "unreported"}})).await.unwrap();
    pair.proxies[0].met_more_than(met).await;
    pair.first.signal(Signal::SIGSTOP);
    until("the second leads", async || leads(&mut pair.second)).await;
    pair.tenant.create("frozen", small(&pair.tenant, "frozen")).await.unwrap();
    pair.tenant.ready("frozen", 1).await;
    pair.first.signal(Signal::SIGCONT);
    assert!(!leads(&mut pair.first));
    until("the first has lost the Lease", async || pair.losses() > losses).await;
    let in_turn: Vec<_> = pair.proxies.iter().map(Proxy::name).cycle().take(8).collect();
    assert_eq!(pair.tenant.writers().await, in_turn, "each leader writes alone");
    pair.handed_back().await;

    // Its Lease is deleted, and it stops leading before there is another leader.
    let leases = Api::<Lease>::namespaced(pair.tenant.client.clone(), &pair.options.lease_namespace);
    leases.delete("clientapp-operator", &DeleteParams::default()).await.unwrap();
    pair.first.wait_for_log("it was deleted").unwrap();
    until("one leads again", async || {
        let second = leads(&mut pair.second);
        let first = leads(&mut pair.first);
        assert!(!(first && second), "two operators lead");
        first || second
    })
    .await;
    assert!(pair.second.stop().unwrap() && pair.first.stop().unwrap());
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
        (claims, passwords(&tenant, "acme-pg-pguser-clientapp").await)
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
async fn after_sigkill_and_sigterm_in_the_middle_of_helm_the_successor_unlocks_and_goes_on() {
    let Apart { tenant, proxy: _proxy, options } = apart("interrupted").await;
    let shim = Shim::around(&tenant.lab.tools.helm).unwrap();
    let options = Options { helm: shim.path(), ..options };
    let operator = leading(&options).await;
    tenant.create("acme", slow(&tenant, "acme")).await.unwrap();
    let hook = next_hook(&tenant, "acme", "").await;
    let before = passwords(&tenant, DATABASE).await;
    killed(operator, &shim).await;
    assert_eq!(pending(&tenant, "acme").await, ["pending-install"]);

    // The successor is killed as well.
    let operator = leading(&options).await;
    tenant.let_job_run(&hook).await;
    let hook = next_hook(&tenant, "acme", &hook).await;
    assert_eq!(history(&tenant, "acme"), revisions(&[(1, "failed"), (2, "pending-upgrade")]));
    killed(operator, &shim).await;
    assert_eq!(pending(&tenant, "acme").await, ["pending-upgrade"]);

    // The next one is asked to stop while another waits.
    let operator = leading(&options).await;
    let mut next = Operator::start(&options).unwrap();
    tenant.let_job_run(&hook).await;
    let hook = next_hook(&tenant, "acme", &hook).await;
    let helm = shim.runs().pop().unwrap();
    assert!(operator.stop().unwrap());
    assert!(!helm.alive(), "helm ends before its operator does");
    // The successor may already be working.
    let recorded = history(&tenant, "acme");
    assert!(recorded.contains(&(3, "failed".to_owned())), "helm records that it was stopped: {recorded:?}");
    next.wait_for_log("\"leading\"").unwrap();
    let hook = next_hook(&tenant, "acme", &hook).await;
    tenant.let_job_run(&hook).await;
    tenant.ready("acme", 4).await;

    // An app that is Ready.
    tenant.patch("acme", json!({"replicas": 2})).await.unwrap();
    let hook = next_hook(&tenant, "acme", &hook).await;
    killed(next, &shim).await;
    assert_eq!(pending(&tenant, "acme").await, ["pending-upgrade"]);
    let operator = leading(&options).await;
    tenant.let_job_run(&hook).await;
    let hook = next_hook(&tenant, "acme", &hook).await;
    tenant.let_job_run(&hook).await;
    tenant.ready("acme", 6).await;
    assert_eq!(history(&tenant, "acme"), revisions(&[(4, "superseded"), (5, "failed"), (6, "deployed")]));
    assert_eq!(passwords(&tenant, DATABASE).await, before);
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
    let before = passwords(&tenant, DATABASE).await;
    // unshare passes on no signal.
    let [inner] = operator.children()[..] else { panic!("unshare has one child") };
    kill(inner, Signal::SIGTERM).unwrap();
    assert!(operator.wait().unwrap(), "{}", operator.log());
    assert_eq!(history(&tenant, "acme"), revisions(&[(1, "failed")]));

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
    assert_eq!(passwords(&tenant, DATABASE).await, before);
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
    let name = &tenant.namespace;
    let at_once = json!({"rollout": {"waves": ["100%"]}});
    let profile = serde_json::from_value(json!({"metadata": {"name": name}, "spec": at_once})).unwrap();
    profiles.create(&PostParams::default(), &profile).await.unwrap();
    let names = ["one", "two", "three"];
    for name in names {
        tenant.create(name, with(small(&tenant, name), json!({"profile": tenant.namespace}))).await.unwrap();
    }
    for name in names {
        tenant.ready(name, 1).await;
    }
    // With a hook that fits on no node: helm waits for it until the test lets it run.
    let hook = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {
        "name": "{{ .Release.Name }}-hook", "annotations": {"helm.sh/hook": "pre-upgrade"},
    }, "spec": {"template": {"spec": {
        "restartPolicy": "Never", "containers": [{"name": "x", "image": "x"}], "nodeSelector": {"no": "node"},
    }}}});
    let changed = Patch::Merge(json!({"spec": {"helm": {"values": {"extraManifests": [hook]}}}}));
    profiles.patch(&tenant.namespace, &PatchParams::default(), &changed).await.unwrap();
    for done in 0..3 {
        // Two at a time, until there is only one left.
        let (started, left) = ((done + 2).min(3), (3 - done).min(2));
        let hooks = until("as many helms as may run wait for their hooks", async || {
            let jobs = tenant.api::<Job>().list(&ListParams::default()).await.unwrap();
            let active = |job: &&Job| job.status.as_ref().is_some_and(|status| status.active > Some(0));
            let active: Vec<_> = jobs.iter().filter(active).filter_map(|job| job.uid()).collect();
            let late = upgrades().iter().filter(|run| run.arguments.contains(" late ")).count();
            (active.len() == left && upgrades().len() == 3 + started + late).then_some(active)
        })
        .await;
        assert!(running() <= 2, "{:?}", upgrades());
        if done == 0 {
            // A queued app says so, also a new one, and helm finds everything ready when its turn comes.
            tenant.create("late", small(&tenant, "late")).await.unwrap();
            for name in ["one", "two", "three", "late"] {
                tenant.condition(name, "Reconciling", "True", "Upgrading").await;
            }
            tenant.kubectl(&["get", "secret", "late-admin-secret"]).unwrap();
        }
        tenant.let_job_run(&hooks[0]).await;
    }
    for name in names {
        tenant.ready(name, 2).await;
    }
    tenant.ready("late", 1).await;
    assert_eq!(upgrades().len(), 7, "{:?}", upgrades());
}

#[tokio::test]
async fn charts_come_from_a_registry_or_a_directory_as_well() {
    let Apart { tenant, proxy: _proxy, options } = apart("chart-sources").await;
    let registry = Registry::start().unwrap();
    let directory = tempfile::tempdir().unwrap();
    for version in [charts::DEFAULT, charts::PATCH] {
        let archive = charts::package(directory.path(), version, Content::Genuine).unwrap();
        registry.push(&tenant.lab.tools.helm, &archive).unwrap();
    }
    for (name, source) in [("registry", registry.repository()), ("directory", directory.path().display().to_string())] {
        let operator = leading(&Options { chart_repository: source, ..options.clone() }).await;
        tenant.create(name, small(&tenant, name)).await.unwrap();
        let release = tenant.ready(name, 1).await.release.unwrap();
        let genuine = e2e::digest::sha256(charts::archive(charts::DEFAULT, Content::Genuine).unwrap());
        assert_eq!(release.chart_digest, Some(genuine));
        assert_eq!(release.app_version.as_deref(), Some("29.0.4"));
        tenant.patch(name, json!({"chartVersion": charts::PATCH})).await.unwrap();
        tenant.ready(name, 2).await;
        tenant.patch(name, json!({"chartVersion": "5.5.99"})).await.unwrap();
        tenant.condition_with(name, ("Released", "ChartInvalid"), &["5.5.99"]).await;
        assert_eq!(tenant.listed(name).unwrap(), ("2".into(), "deployed".into(), "nextcloud-5.5.3".into()));
        tenant.delete(name).await;
        assert!(operator.stop().unwrap());
    }
}

/// Number and status of each kept revision, oldest first.
fn history(tenant: &Tenant, release: &str) -> Vec<(i64, String)> {
    let ran = tenant.helm(&["history", release, "-o", "json"]);
    assert!(ran.success, "{}", ran.stderr);
    let kept: Vec<Value> = serde_json::from_str(&ran.stdout).unwrap();
    let revision = |of: &Value| (of["revision"].as_i64().unwrap(), of["status"].as_str().unwrap().to_owned());
    kept.iter().map(revision).collect()
}

fn revisions(expected: &[(i64, &str)]) -> Vec<(i64, String)> {
    expected.iter().map(|(number, status)| (*number, (*status).to_owned())).collect()
}

/// A release without a Profile follows the base values of another operator at once; those of a Profile wait for their turn.
#[tokio::test]
async fn an_operator_with_other_base_values_changes_the_releases_of_a_profile_in_waves() {
    let Apart { tenant, proxy: _proxy, options } = apart("other-values").await;
    let profiles = Api::<Profile>::all(tenant.client.clone());
    let class = &tenant.namespace;
    let profile = json!({"metadata": {"name": class}, "spec": {"rollout": {"paused": true, "soak": "168h"}}});
    profiles.create(&PostParams::default(), &serde_json::from_value(profile).unwrap()).await.unwrap();
    for name in ["one", "two"] {
        tenant.create(name, with(small(&tenant, name), json!({"profile": class}))).await.unwrap();
    }
    tenant.create("free", small(&tenant, "free")).await.unwrap();
    let first = leading(&options).await;
    for name in ["one", "two", "free"] {
        tenant.ready(name, 1).await;
    }
    assert!(tokio::task::spawn_blocking(|| first.stop()).await.unwrap().unwrap());

    let values = include_str!("../../../helm-values/nextcloud.yaml");
    let mut values: Value = serde_yaml::from_str(values).unwrap();
    values["podAnnotations"] = json!({"of": "another operator"});
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("values.yaml");
    std::fs::write(&file, values.to_string()).unwrap();
    let arguments = vec!["--base-values".to_owned(), file.display().to_string()];
    let _second = leading(&Options { arguments, ..options }).await;
    let told = async |part: &str| {
        until("the Profile says so", async || {
            let found = profiles.get(class).await.unwrap().status.unwrap_or_default();
            let ready = conditions::find(&found.conditions, "Ready").map(|ready| ready.message.clone());
            if ready.as_ref().is_some_and(|message| message.contains(part)) {
                Ok(())
            } else {
                Err(format!("{ready:?}"))
            }
        })
        .await;
    };
    let revisions = || ["one", "two", "free"].map(|name| tenant.listed(name).unwrap().0);
    tenant.ready("free", 2).await;
    told("revision 2 has reached 0 of 2 ClientApps, wave 1 of 2: spec.rollout.paused is true").await;
    // A user's change is installed with the values that the app has.
    tenant.patch("two", json!({"values": {"podLabels": {"a": "b"}}})).await.unwrap();
    tenant.ready("two", 2).await;
    assert_eq!(revisions(), ["1", "2", "2"]);
    let annotation = |name: &str| {
        let path = "jsonpath={.spec.template.metadata.annotations.of}";
        tenant.kubectl(&["get", "deployment", &format!("{name}-nextcloud"), "-o", path]).unwrap()
    };
    assert_eq!([annotation("two"), annotation("free")], ["", "another operator"]);

    let going = Patch::Merge(json!({"spec": {"rollout": {"paused": false}}}));
    profiles.patch(class, &PatchParams::default(), &going).await.unwrap();
    tenant.ready("one", 2).await;
    told("revision 2 has reached 1 of 2 ClientApps, wave 1 of 2: the next wave begins at ").await;
    assert_eq!(revisions(), ["2", "2", "2"]);
    assert_eq!([annotation("one"), annotation("two")], ["another operator", ""]);
}
