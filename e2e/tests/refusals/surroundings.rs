//! What the operator needs from its environment: helm, rights, space.

use std::io::ErrorKind;
use std::process::Command;

use clientapp_crd::DEPLOYER;
use e2e::manifests;
use e2e::operator::binary;
use e2e::shim::executable;
use k8s_openapi::api::core::v1::{ResourceQuota, ServiceAccount};
use nix::unistd::Uid;

use super::*;

#[tokio::test]
async fn without_a_usable_helm_nothing_is_touched() {
    let Apart { tenant, proxy: _proxy, options } = Lab::unattended().await.apart("no-helm").await;
    tenant.create("acme", small(&tenant, "acme", charts::DEFAULT)).await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let helm = dir.path().join("helm");
    let options = Options { helm: helm.clone(), ..options };
    let mut operator = Operator::start(&options).unwrap();
    let url = operator.health_url().unwrap();
    let answers = async |path: &str, code: u16, words: &str| {
        until(&format!("{path} answers {code}: {words}"), async || {
            let answer = reqwest::get(format!("{url}{path}")).await.unwrap();
            let (status, body) = (answer.status().as_u16(), answer.text().await.unwrap());
            if status == code && body.contains(words) { Ok(()) } else { Err(format!("it answers {status}: {body}")) }
        })
        .await;
    };
    const MISSING: &str = "HelmUnavailable: helm is missing: there is no executable at ";
    answers("/readyz", 503, MISSING).await;
    answers("/healthz", 200, "").await;
    assert!(operator.log().contains("HelmUnavailable"), "{}", operator.log());
    let app = raw(&tenant).get("acme").await.unwrap();
    assert_eq!((app.metadata.finalizers, app.data.get("status")), (None, None));

    // helm appears, in a version that the operator does not know, and the waiting operator continues by itself.
    let real = tenant.lab.tools.helm.display();
    let newer = format!("#!/bin/sh\nif [ \"$1\" = version ]; then echo v5.0.0; else exec '{real}' \"$@\"; fi\n");
    executable(&helm, &newer, 0o755).unwrap();
    answers("/readyz", 200, "ok").await;
    let warned = |line: &str| line.contains("WARN") && line.contains("helm 5.0.0 is newer than this operator knows");
    assert!(operator.log().lines().any(warned), "{}", operator.log());
    tenant.ready("acme", 1).await;

    // If it vanishes under a running operator, /readyz and the status say so, and recover when it returns.
    std::fs::remove_file(&helm).unwrap();
    answers("/readyz", 503, MISSING).await;
    tenant.patch("acme", json!({"replicas": 2})).await.unwrap();
    tenant.condition_with("acme", ("Released", "HelmUnavailable"), &[helm.to_str().unwrap()]).await;
    std::os::unix::fs::symlink(&tenant.lab.tools.helm, &helm).unwrap();
    answers("/readyz", 200, "ok").await;
    time_passes(&tenant, "acme").await;
    tenant.ready("acme", 2).await;
}

/// Removes a verb for a resource from the operator's ClusterRoles, and returns the original roles.
async fn without_right(lab: &Lab, resource: &str, verb: &str) -> Vec<ClusterRole> {
    let api: Api<ClusterRole> = Api::all(lab.plane.client().await.unwrap());
    let ours = ListParams::default().labels("app.kubernetes.io/part-of=clientapp-operator");
    let mut had = Vec::new();
    for role in api.list(&ours).await.unwrap() {
        let mut less = role.clone();
        // The API's right to list everything in a namespace includes this one.
        let about = |rule: &&mut PolicyRule| {
            rule.resources.iter().flatten().any(|name| [resource, "*"].contains(&name.as_str()))
        };
        for rule in less.rules.iter_mut().flatten().filter(about) {
            rule.verbs.retain(|granted| granted != verb);
        }
        less.rules.as_mut().unwrap().retain(|rule| !rule.verbs.is_empty());
        if role != less {
            set_role(lab, &less).await;
            had.push(role);
        }
    }
    assert!(!had.is_empty(), "no role has {verb} {resource}");
    had
}

async fn give_back(lab: &Lab, roles: &[ClusterRole]) {
    for role in roles {
        set_role(lab, role).await;
    }
}

/// Sets the rules of a ClusterRole, and waits until the API server applies them.
async fn set_role(lab: &Lab, role: &ClusterRole) {
    let api: Api<ClusterRole> = Api::all(lab.plane.client().await.unwrap());
    let patch = Patch::Merge(json!({"rules": role.rules}));
    api.patch(role.metadata.name.as_deref().unwrap(), &PatchParams::default(), &patch).await.unwrap();
}

#[tokio::test]
async fn a_right_that_is_missing_is_named() {
    let (lab, _turn) = rough().await;
    let tenant = lab.tenant("no-rights").await;
    tenant.create("bystander", small(&tenant, "bystander", charts::DEFAULT)).await.unwrap();
    tenant.ready("bystander", 1).await;
    // A refusal for a new account is not final.
    let account = tenant.api::<ServiceAccount>().get(DEPLOYER).await.unwrap().metadata.creation_timestamp.unwrap();
    let is_settled = || Timestamp::now().duration_since(account.0) > SignedDuration::from_secs(7);
    until("the account is no longer new", async || is_settled()).await;
    let with_redis = |name: &str| {
        let mut spec = small(&tenant, name, charts::DEFAULT);
        spec["redis"] = json!({"enabled": true});
        spec
    };

    // A right that helm needs for the chart.
    let roles = without_right(lab, "networkpolicies", "patch").await;
    let deployer = format!("system:serviceaccount:{}:{DEPLOYER}", tenant.namespace);
    let policies = ["patch", "networkpolicies.networking.k8s.io"];
    tenant.until_may(&deployer, policies, false).await;
    let mut with_policy = with_redis("chart");
    with_policy["values"]["redis"]["networkPolicy"]["enabled"] = json!(true);
    tenant.create("chart", with_policy).await.unwrap();
    let words = ["cannot patch resource \"networkpolicies\"", "system:serviceaccount:no-rights:clientapp-deployer"];
    tenant.condition_with("chart", ("Released", "AccessDenied"), &words).await;
    tenant.condition("chart", "Stalled", "True", "AccessDenied").await;
    time_stands_still(&tenant, "chart").await;
    tenant.create("meanwhile", small(&tenant, "meanwhile", charts::DEFAULT)).await.unwrap();
    tenant.ready("meanwhile", 1).await;
    give_back(lab, &roles).await;
    tenant.until_may(&deployer, policies, true).await;
    time_passes(&tenant, "chart").await;
    tenant.ready("chart", 2).await;

    // A right without which the operator cannot see databases: only apps that need one wait for it.
    let roles = without_right(lab, "postgresqls", "list").await;
    tenant.until_may(&manifests::user(), ["list", "postgresqls.apps.bnerd-operator.local"], false).await;
    restart(lab).await;
    let mut spec = small(&tenant, "database", charts::DEFAULT);
    spec["postgres"] = json!({"provider": "standalone"});
    tenant.create("database", spec).await.unwrap();
    let words = ["Postgresql database-pg", "cannot list resource \"postgresqls\""];
    tenant.condition_with("database", ("PostgresReady", "AccessDenied"), &words).await;
    tenant.create("without", small(&tenant, "without", charts::DEFAULT)).await.unwrap();
    tenant.ready("without", 1).await;
    give_back(lab, &roles).await;
    tenant.ready("database", 1).await;

    // A right that the operator needs itself.
    let roles = without_right(lab, "secrets", "create").await;
    tenant.until_may(&manifests::user(), ["create", "secrets"], false).await;
    tenant.create("secret", with_redis("secret")).await.unwrap();
    let words = ["create Secret no-rights/secret-", "cannot create resource \"secrets\"", "no-rights"];
    tenant.held("secret", "AccessDenied", &words).await;
    tenant.condition("secret", "Stalled", "True", "AccessDenied").await;
    let status = nudge(&tenant, "bystander", "Retain").await;
    assert!(has(&status, "Ready", "True", "Ready"), "{status:#?}");
    give_back(lab, &roles).await;
    tenant.until_may(&manifests::user(), ["create", "secrets"], true).await;
    tenant.patch("secret", json!({"deletionPolicy": "Retain"})).await.unwrap();
    tenant.ready("secret", 1).await;
}

/// Each stands in the way of another step, from the first Secret to the pods.
#[tokio::test]
async fn a_quota_that_is_exceeded_is_named_until_it_is_raised() {
    let tenant = Lab::shared().await.tenant("quota-raised").await;
    tenant.quota("few", json!({"hard": {"count/secrets": "0"}})).await;
    let limit = async |hard: Value| {
        let patch = Patch::Merge(json!({"spec": {"hard": hard}}));
        tenant.api::<ResourceQuota>().patch("few", &PatchParams::default(), &patch).await.unwrap();
        let counts = |quota: Option<&ResourceQuota>| {
            let quota = quota?;
            (quota.status.as_ref()?.hard == quota.spec.as_ref()?.hard).then_some(())
        };
        tenant.wait_for("few", "counted", counts).await;
    };
    tenant.create("acme", small(&tenant, "acme", charts::DEFAULT)).await.unwrap();
    const FEW: &str = "exceeded quota: few";
    tenant.condition_with("acme", ("Ready", "QuotaExceeded"), &["create Secret quota-raised/acme-", FEW]).await;
    limit(json!({"count/secrets": null, "pods": "0"})).await;
    tenant.patch("acme", json!({"deletionPolicy": "Retain"})).await.unwrap();
    tenant.condition_with("acme", ("WorkloadsReady", "NotReady"), &["Deployment acme-nextcloud", FEW]).await;
    limit(json!({"pods": null, "services": "1"})).await;
    tenant.ready("acme", 1).await;
    // Redis has two Services of its own.
    tenant.patch("acme", json!({"redis": {"enabled": true}, "deletionPolicy": "Delete"})).await.unwrap();
    tenant.condition_with("acme", ("Released", "UpgradeFailed"), &["services \"acme-redis", FEW]).await;
    time_stands_still(&tenant, "acme").await;
    limit(json!({"services": "9"})).await;
    time_passes(&tenant, "acme").await;
    // One revision has failed, and no more.
    tenant.ready("acme", 3).await;
    // Deletion needs nothing else.
    limit(json!({"count/secrets": "0", "pods": "0", "services": "0"})).await;
    tenant.delete("acme").await;
}

/// The chart cache and the temporary files have a small file system each, which only the operator's process sees.
#[tokio::test]
async fn a_file_system_that_is_full_is_told_and_tried_again() {
    let (Apart { tenant, proxy: _proxy, options }, _repository) = with_repository("no-space").await;
    let home = tempfile::tempdir().unwrap();
    let [cache, temporary] = ["cache", "temporary"].map(|name| home.path().join(name));
    let mut mount = String::new();
    for directory in [&cache, &temporary] {
        std::fs::create_dir(directory).unwrap();
        mount += &format!("mount -t tmpfs -o size=4m,mode=700 tmpfs {} && ", directory.display());
    }
    let namespaces = if Uid::effective().is_root() { "--mount" } else { "--user --map-root-user --mount" };
    let run = format!("{mount}exec {} \"$@\"", binary().unwrap().display());
    let binary = home.path().join("operator");
    executable(&binary, &format!("#!/bin/sh\nexec unshare {namespaces} -- sh -c '{run}' sh \"$@\"\n"), 0o755).unwrap();
    let (chart_cache, of_its_own) = (Some(cache.clone()), Some(temporary.clone()));
    let operator = leading(&Options { binary: Some(binary), chart_cache, temporary: of_its_own, ..options }).await;

    let mut spec = small(&tenant, "acme", charts::DEFAULT);
    spec["suspend"] = json!(true);
    tenant.create("acme", spec).await.unwrap();
    tenant.condition("acme", "Ready", "False", "Suspended").await;
    let steps = [
        (
            &cache,
            json!({"suspend": false}),
            "ChartUnavailable",
            ["cannot use the chart cache at ", "No space left on device"],
        ),
        (
            &temporary,
            json!({"chartVersion": charts::PATCH}),
            "ChartUnavailable",
            ["cannot pull chart nextcloud 5.5.3", "no space left on device"],
        ),
        (
            &temporary,
            json!({"replicas": 2}),
            "HelmUnavailable",
            ["cannot prepare helm upgrade", "No space left on device"],
        ),
    ];
    for (revision, (full, change, reason, words)) in (1..).zip(steps) {
        let ballast = format!("/proc/{}/root{}/ballast", operator.pid(), full.display());
        let written = std::fs::write(&ballast, vec![0; 5 << 20]);
        assert_eq!(written.unwrap_err().kind(), ErrorKind::StorageFull);
        tenant.patch("acme", change).await.unwrap();
        tenant.condition_with("acme", ("Released", reason), &words).await;
        std::fs::remove_file(&ballast).unwrap();
        time_passes(&tenant, "acme").await;
        tenant.ready("acme", revision).await;
    }
    // It is the same process.
    assert!(operator.stop().unwrap());
}

/// How many files an operator may have open. It keeps those that it has.
fn limit_files(operator: &Operator, most: u32) {
    let (pid, most) = (operator.pid().to_string(), format!("--nofile={most}:"));
    assert!(Command::new("prlimit").args(["--pid", &pid, &most]).status().unwrap().success());
}

#[tokio::test]
async fn an_operator_that_may_open_no_file_goes_on_when_it_may() {
    let Apart { tenant, proxy: _proxy, options } = Lab::unattended().await.apart("no-descriptors").await;
    let operator = leading(&options).await;
    tenant.create("acme", small(&tenant, "acme", charts::DEFAULT)).await.unwrap();
    tenant.ready("acme", 1).await;
    limit_files(&operator, 0);
    tenant.create("other", small(&tenant, "other", charts::DEFAULT)).await.unwrap();
    tenant.patch("acme", json!({"replicas": 2})).await.unwrap();
    for name in ["acme", "other"] {
        let says = |status: &ClientAppStatus| {
            status.conditions.iter().any(|condition| condition.message.contains("Too many open files"))
        };
        tenant.status(name, "told of it", says).await;
    }
    limit_files(&operator, 1024);
    tenant.ready("acme", 2).await;
    tenant.ready("other", 1).await;
    // It is the same process.
    assert!(operator.stop().unwrap());
}
