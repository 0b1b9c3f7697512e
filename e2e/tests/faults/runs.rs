//! Faults and changes while helm runs or is about to run.

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Instant;

use e2e::helm::Helm;
use e2e::scenario::{helm3, names};
use e2e::shim::executable;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Patch, PatchParams};

use super::*;

/// However often a spec changes while helm upgrades: helm upgrades once more, to the last one; and that is no way around the gate.
#[tokio::test]
async fn twenty_edits_while_helm_upgrades_are_two_upgrades_at_most() {
    let Apart { tenant, proxy, options } = Lab::unattended().await.apart("many-edits").await;
    let shim = Shim::around(&tenant.lab.tools.helm).unwrap();
    let _operator = leading(&Options { helm: shim.path(), ..options }).await;
    installed(&tenant, "acme").await;
    let upgrades = || shim.runs().iter().filter(|run| run.arguments.starts_with("upgrade")).count();
    let edit = async |number: u32| {
        let edited = json!({"values": {"podAnnotations": {"edit": number.to_string()}}});
        tenant.patch("acme", edited).await.unwrap().metadata.generation
    };
    let met = proxy.met();
    proxy.set([Rule::new("*", "services", Fault::Hang)]);
    edit(0).await;
    proxy.met_more_than(met).await;
    let mut generation = None;
    for number in 1..=20 {
        generation = edit(number).await;
    }
    let before = upgrades();
    proxy.set([]);
    let ready =
        |status: &ClientAppStatus| status.observed_generation == generation && has(status, "Ready", "True", "Ready");
    tenant.status("acme", "ready with the last edit", ready).await;
    assert!((1..=2).contains(&(upgrades() - before)), "{:?}", shim.runs());
    let deployment = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap();
    assert_eq!(deployment.spec.unwrap().template.metadata.unwrap().annotations.unwrap()["edit"], "20");
    assert_eq!(shim.overlaps(), Vec::<String>::new());

    // The operator knows the installed chart even if the spec asks for another by then: it does not downgrade.
    let revision = tenant.listed("acme").unwrap().0.parse::<i64>().unwrap();
    let met = proxy.met();
    proxy.set([Rule::new("*", "services", Fault::Hang)]);
    tenant.patch("acme", json!({"chartVersion": charts::MAJOR})).await.unwrap();
    proxy.met_more_than(met).await;
    tenant.patch("acme", json!({"chartVersion": charts::DEFAULT})).await.unwrap();
    proxy.set([]);
    tenant.condition("acme", "Ready", "False", "DowngradeRefused").await;
    assert_eq!(tenant.listed("acme").unwrap().0, (revision + 1).to_string());
}

/// An operator that is killed again and again must not make the same apps wait each time.
#[tokio::test]
async fn a_killed_operator_goes_on_with_the_app_that_has_waited_longest() {
    let (Apart { tenant, proxy, options }, operator) = operated("turns", &["--max-concurrent", "1"]).await;
    installed(&tenant, "warm").await;
    let busy = || {
        let met = proxy.met();
        proxy.set(["create", "patch"].map(|verb| Rule::new(verb, "services", Fault::Hang)));
        met
    };
    let met = busy();
    tenant.create("holder", small(&tenant, "holder")).await.unwrap();
    proxy.met_more_than(met).await;
    // The first of the list have waited for the shortest time.
    let names = ["e", "d", "c", "b", "a"];
    for name in names {
        tenant.create(name, small(&tenant, name)).await.unwrap();
        let attempt = |status: &ClientAppStatus| status.last_attempt.as_ref().map(|attempt| attempt.started_at.0);
        let status = tenant.status(name, "it waits", |status| attempt(status).is_some()).await;
        let since = attempt(&status).unwrap().as_second();
        until("the next second begins", async || (Timestamp::now().as_second() > since).then_some(())).await;
    }
    operator.kill().unwrap();
    let met = busy();
    let mut operator = leading(&options).await;
    proxy.met_more_than(met).await;
    tenant.create("last", small(&tenant, "last")).await.unwrap();
    // One has the slot.
    until("all others wait", async || {
        let waiting = operator.counted("clientapp_operator_helm_queue_depth").unwrap();
        if waiting == 6.0 { Ok(()) } else { Err(waiting) }
    })
    .await;
    proxy.set([]);
    let mut turns = Vec::new();
    for name in names.into_iter().chain(["last"]) {
        tenant.ready(name, 1).await;
        let revision = tenant.api::<Secret>().get(&format!("sh.helm.release.v1.{name}.v1")).await.unwrap();
        turns.push((revision.metadata.resource_version.unwrap().parse::<u64>().unwrap(), name));
    }
    let waited = turns.iter().map(|(_, name)| *name).collect::<Vec<_>>();
    turns.sort_unstable();
    // The slot was free for the app that asked first.
    let first = turns[0].1;
    let expected = waited.into_iter().filter(|name| *name != first).collect::<Vec<_>>();
    let turns = turns.into_iter().map(|(_, name)| name).filter(|name| *name != first).collect::<Vec<_>>();
    assert_eq!(turns, expected, "after {first}");
}

/// A helm that first executes these commands if it is to upgrade.
fn upgrading(directory: &Path, helm: &Path, first: &str) -> PathBuf {
    let path = directory.join("helm");
    let script = format!("#!/bin/sh\ncase \"$1\" in upgrade)\n{first}\nesac\nexec {} \"$@\"\n", helm.display());
    executable(&path, &script, 0o755).unwrap();
    path
}

/// A helm that ignores SIGTERM, with a descendant that has left its process group, knows the run's password and never stops writing.
#[tokio::test]
async fn a_helm_that_is_deaf_and_writes_on_reaches_nothing_once_its_run_is_over() {
    let Apart { tenant, proxy: _proxy, options } = Lab::unattended().await.apart("deaf").await;
    let directory = tempfile::tempdir().unwrap();
    let said = directory.path().join("said");
    // It ends with the test, which removes the directory.
    let deaf = format!(
        "cp \"$KUBECONFIG\" {directory}/kubeconfig
        setsid sh -c 'trap \"\" TERM; n=0
            while [ -e {directory}/kubeconfig ]; do
                n=$((n + 1))
                {kubectl} --kubeconfig {directory}/kubeconfig -n deaf create configmap written-$n >>{said} 2>&1
            done' >/dev/null 2>&1 </dev/null &
        trap '' TERM; while :; do sleep 1000; done",
        directory = directory.path().display(),
        kubectl = tenant.lab.tools.kubectl.display(),
        said = said.display(),
    );
    let helm = upgrading(directory.path(), &tenant.lab.tools.helm, &deaf);
    let _operator = leading(&Options { helm, ..options }).await;
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    tenant.wait_for("written-3", "written", |found: Option<&ConfigMap>| found.map(|_| ())).await;
    tenant.patch("acme", json!({"suspend": true})).await.unwrap();
    tenant.condition("acme", "Reconciling", "False", "Suspended").await;
    let written = names::<ConfigMap>(&tenant).await;
    let tried = || std::fs::read_to_string(&said).unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
    let before = tried().len();
    until("it has tried again and again", async || tried().len() > before + 5).await;
    let last = tried().pop().unwrap();
    assert!(last.contains("this is not a helm run of the operator"), "{last}");
    assert_eq!(names::<ConfigMap>(&tenant).await, written);
}

/// A killed helm leaves its lock, and its attempt counts as failed: the next one waits for its time.
#[tokio::test]
async fn a_helm_that_is_killed_each_time_is_not_run_over_and_over() {
    let Apart { tenant, proxy, options } = Lab::unattended().await.apart("killed").await;
    let directory = tempfile::tempdir().unwrap();
    let runs = directory.path().join("runs");
    let dies = format!("echo run >>{}\n(exec >/dev/null 2>&1; sleep 2; kill -9 $$) &", runs.display());
    let helm = upgrading(directory.path(), &tenant.lab.tools.helm, &dies);
    let _operator = leading(&Options { helm, ..options }).await;
    // Its Service is still on its way when it is killed; the run is over once that is answered.
    let late = Fault::Late(Duration::from_secs(4));
    proxy.set(["create", "patch", "update"].map(|verb| Rule::new(verb, "services", late)));
    let began = Instant::now();
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    let failures = |status: &ClientAppStatus| {
        let attempt = status.last_attempt.as_ref();
        let waits = attempt.is_some_and(|attempt| attempt.failures >= 2 && attempt.retry_at.is_some());
        waits && conditions::find(&status.conditions, "Ready").is_some_and(|ready| ready.reason != "Upgrading")
    };
    tenant.status("acme", "waiting after two failures", failures).await;
    let count = std::fs::read_to_string(&runs).unwrap().lines().count();
    // After the first failure about ten seconds have to pass; without the wait there would be a run every two.
    let at_most = 2 + usize::try_from(began.elapsed().as_secs()).unwrap() / 6;
    assert!((2..=at_most).contains(&count), "{count} runs, and not {at_most}");
}

/// An answer that an object is gone may be wrong, and is verified before it is believed.
#[tokio::test]
async fn an_app_that_is_wrongly_told_to_be_gone_goes_on() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("not-found", &[]).await;
    let not_found = |resource| {
        proxy.set([Rule::new("patch", resource, Fault::Answer(StatusCode::NOT_FOUND))]);
        proxy.met()
    };
    // At first the finalizer is not added.
    let met = not_found("clientapps");
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    proxy.met_more_than(met).await;
    proxy.set([]);
    tenant.ready("acme", 1).await;

    let met = not_found("clientapps/status");
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    proxy.met_more_than(met).await;
    proxy.set([]);
    tenant.ready("acme", 2).await;
    let told = tenant.events("acme").await;
    assert!(told.iter().all(|(_, note)| !note.contains("is deleted")), "{told:#?}");

    // Nor removed.
    let met = not_found("clientapps");
    delete(&tenant, "acme").await;
    proxy.met_more_than(met).await;
    proxy.set([]);
    tenant.gone("acme").await;
}

/// Neither credentials that a late watch does not show are lost, nor is what helm wrote taken for another client's work, also if the spec
/// changes while helm installs. There is no further revision.
#[tokio::test]
async fn a_secret_that_the_watch_does_not_show_yet_is_not_lost() {
    let (Apart { tenant, proxy, .. }, _operator) = operated("late-secret", &[]).await;
    let late = Rule::new("watch", "secrets", Fault::Late(Duration::from_secs(12)));
    let [create, patch] = ["create", "patch"].map(|verb| Rule::new(verb, "services", Fault::Hang));
    proxy.set([late.clone(), create, patch]);
    tenant.create("acme", small(&tenant, "acme")).await.unwrap();
    let made = |found: Option<&Secret>| found.map(|_| ());
    tenant.wait_for("acme-redis-secret", "made", made).await;
    // The next reconcile comes before the watch event.
    tenant.patch("acme", json!({"values": {"podAnnotations": {"a": "b"}}})).await.unwrap();
    tenant.wait_for("sh.helm.release.v1.acme.v1", "begun", made).await;
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    proxy.set([late]);
    let upgraded = |status: &ClientAppStatus| {
        assert!(!has(status, "Stalled", "True", "AdminSecretLost"), "{status:#?}");
        let release = status.release.as_ref();
        release.is_some_and(|release| release.status == "deployed" && release.revision == 2)
    };
    tenant.status("acme", "upgraded", upgraded).await;
    tenant.ready("acme", 2).await;
    for (value, revision) in [("c", 3), ("d", 4)] {
        tenant.patch("acme", json!({"values": {"podAnnotations": {"a": value}}})).await.unwrap();
        tenant.ready("acme", revision).await;
        proxy.set([]);
    }
    assert_eq!(tenant.listed("acme").unwrap().0, "4");
    is_not_told(&tenant, "acme", "ReleaseDrifted").await;
}

#[tokio::test]
async fn a_hook_that_runs_is_not_begun_anew_by_the_next_leader() {
    let (Apart { tenant, proxy: _proxy, options }, frozen) = operated("hook-of-a-frozen-leader", &[]).await;
    // It runs until the test ends it.
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "migration", "annotations": {"helm.sh/hook": "pre-install,pre-upgrade"}},
        "spec": {"suspend": true, "template": {"spec": {
            "restartPolicy": "Never", "containers": [{"name": "x", "image": "x"}],
        }}},
    });
    let spec = with(small(&tenant, "acme"), json!({"values": {"extraManifests": [job]}}));
    tenant.create("acme", spec).await.unwrap();
    let made = |found: Option<&Job>| found.and_then(|job| job.uid());
    let begun = tenant.wait_for("migration", "made", made).await;
    frozen.signal(Signal::SIGSTOP);
    let direct = Proxy::confined(&tenant.lab.operator_kubeconfig, &tenant.namespace).unwrap();
    let _successor = leading(&Options { kubeconfig: direct.kubeconfig(), ..options }).await;
    let told = tenant.condition("acme", "Released", "Unknown", "ExternalOperationInProgress").await;
    assert!(told.contains("Job migration, a hook of the chart, is still running"), "{told}");
    assert_eq!(tenant.api::<Job>().get("migration").await.unwrap().uid().unwrap(), begun);

    let run = Patch::Merge(json!({"spec": {"suspend": false}}));
    tenant.api::<Job>().patch("migration", &PatchParams::default(), &run).await.unwrap();
    // No helm saw its end, so the next helm replaces it.
    let again = |found: Option<&Job>| found.and_then(|job| job.uid()).filter(|uid| *uid != begun);
    tenant.wait_for("migration", "recreated", again).await;
    tenant.api::<Job>().patch("migration", &PatchParams::default(), &run).await.unwrap();
    tenant.ready("acme", 2).await;
    frozen.signal(Signal::SIGCONT);
}

/// Another Helm client that upgrades an app and waits for pods that never run; with its home, and the revision that is its lock.
async fn upgraded_by_another(tenant: &Tenant, helm: &Path, name: &str) -> (Helm, Child, Secret) {
    let home = Helm::for_cluster(helm, &tenant.lab.plane.kubeconfig()).unwrap();
    let repository = tenant.lab.repository.url();
    let version = ["--repo", &repository, "--version", charts::NEVER_READY, "--namespace", &tenant.namespace];
    let upgrade = [&["upgrade", name, "nextcloud", "--reuse-values", "--wait", "--timeout", "10m"][..], &version];
    let helm = home.spawn(&upgrade.concat()).unwrap();
    let pending = |found: Option<&Secret>| {
        found.filter(|found| found.labels().get("status").is_some_and(|status| status == "pending-upgrade")).cloned()
    };
    let lock = tenant.wait_for(&format!("sh.helm.release.v1.{name}.v2"), "pending", pending).await;
    (home, helm, lock)
}

/// The cluster admin's helm, of this version or of version 3, is killed while it upgrades the release.
#[tokio::test]
async fn another_helm_clients_lock_is_taken_over_when_it_is_as_old_as_the_spec_says() {
    let (Apart { tenant, proxy: _proxy, .. }, _operator) = operated("foreign-lock", &[]).await;
    for (name, helm) in [("helm4", tenant.lab.tools.helm.clone()), ("helm3", helm3().await)] {
        installed(&tenant, name).await;
        let (_home, mut helm, mut lock) = upgraded_by_another(&tenant, &helm, name).await;
        helm.kill().unwrap();
        helm.wait().unwrap();
        tenant.condition(name, "Released", "Unknown", "ExternalOperationInProgress").await;

        let made = lock.metadata.creation_timestamp.as_mut().unwrap();
        made.0 -= jiff::SignedDuration::from_mins(31);
        lock.metadata.resource_version = None;
        lock.metadata.managed_fields = None;
        let object = with(serde_json::to_value(&lock).unwrap(), json!({"apiVersion": "v1", "kind": "Secret"}));
        let key = format!("secrets/{}/{}", tenant.namespace, lock.name_any());
        tenant.lab.plane.put(&key, &object).await.unwrap();
        // By default it is respected for ever.
        for upgrade in [json!({}), json!({"foreignLockTimeout": "1h"})] {
            let app = tenant.patch(name, json!({"upgrade": upgrade, "replicas": 2})).await.unwrap();
            let held = |status: &ClientAppStatus| {
                assert!(!has(status, "Released", "True", "Deployed"), "{name}: {status:#?}");
                status.observed_generation == app.metadata.generation
                    && has(status, "Released", "Unknown", "ExternalOperationInProgress")
            };
            tenant.status(name, "held", held).await;
        }
        tenant.patch(name, json!({"upgrade": {"foreignLockTimeout": "30m"}})).await.unwrap();
        tenant.ready(name, 3).await;
    }
}

#[tokio::test]
async fn a_deletion_waits_for_another_helm_client_that_is_at_work() {
    let (Apart { tenant, proxy: _proxy, .. }, _operator) = operated("foreign-work", &[]).await;
    installed(&tenant, "acme").await;
    let serves = tenant.uid::<Deployment>("acme-nextcloud").await.unwrap();
    let (_home, mut helm, _lock) = upgraded_by_another(&tenant, &tenant.lab.tools.helm, "acme").await;
    let before = tenant.requests().await.len();
    delete(&tenant, "acme").await;
    let words = ["revision 2 of release acme is pending-upgrade, by another Helm client", "foreignLockTimeout"];
    tenant.held("acme", "ExternalOperationInProgress", &words).await;
    // The hold is the end of a pass, and this begins another.
    let generation = tenant.patch("acme", json!({"replicas": 2})).await.unwrap().metadata.generation;
    let again = |status: &ClientAppStatus| {
        let ready = conditions::find(&status.conditions, "Ready");
        ready.is_some_and(|ready| {
            ready.reason == "ExternalOperationInProgress" && ready.observed_generation == generation
        })
    };
    tenant.status("acme", "held again", again).await;
    assert!(helm.try_wait().unwrap().is_none(), "helm is at work");
    assert_eq!(tenant.uid::<Deployment>("acme-nextcloud").await.unwrap(), serves);
    let requests = tenant.requests().await.split_off(before);
    assert!(!requests.iter().any(|asked| asked.contains(" delete ") || asked.starts_with("helm")), "{requests:?}");

    // It records that it was stopped.
    kill(Pid::from_raw(helm.id().cast_signed()), Signal::SIGTERM).unwrap();
    helm.wait().unwrap();
    tenant.gone("acme").await;
    nothing_is_left(&tenant).await;
}
