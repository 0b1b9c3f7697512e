//! Charts that cannot be installed.

use std::net::TcpListener;

use futures::future::join_all;

use super::*;

/// A chart version that cannot work, the reason in Released, whether it stalls the app, and helm's own words.
const BROKEN: [(&str, &str, &str, bool, &str); 6] = [
    ("hook", charts::HOOK_FAILS, "UpgradeFailed", false, "-nextcloud-prepare not ready. status: Failed"),
    ("absent", "9.9.9", "ChartInvalid", true, "chart \"nextcloud\" version \"9.9.9\" not found in http://127.0.0.1"),
    ("render", charts::UNRENDERABLE, "ChartInvalid", true, "refuses.yaml:1:4): this version refuses to render"),
    ("schema", charts::UNSATISFIABLE, "ChartInvalid", true, "missing property 'licenseKey'"),
    (
        "misspelt",
        charts::MISSPELT,
        "ChartInvalid",
        true,
        ".spec.template.spec.nodeSelectr: field not declared in schema",
    ),
    (
        "kind",
        charts::UNKNOWN_KIND,
        "ChartInvalid",
        true,
        "no matches for kind \"ServiceMonitor\" in version \"monitoring.coreos.com/v1\"",
    ),
];

/// The failure is reported, counted once, and not retried before its time.
async fn failed(tenant: &Tenant, name: &str, version: &str, reason: &str, stalled: bool, words: &str) {
    let status = tenant
        .status(name, &format!("failed with {version}"), |status| {
            has(status, "Released", "False", reason) && has(status, "Ready", "False", reason)
        })
        .await;
    let sentence = &find(&status.conditions, "Released").unwrap().message;
    assert!(sentence.contains(words), "{name}: {words} is not in {sentence}");
    assert!(
        has(&status, "Stalled", if stalled { "True" } else { "False" }, if stalled { reason } else { "NotStalled" }),
        "{status:#?}"
    );
    let attempt = status.last_attempt.unwrap();
    assert_eq!(
        (attempt.failures, attempt.reason.as_deref(), attempt.message.as_ref()),
        (1, Some(reason), Some(sentence))
    );
    assert!(attempt.retry_at.as_ref().unwrap().0 > attempt.started_at.0, "{attempt:?}");

    let before = revisions(tenant, name).await;
    for policy in ["Retain", "Delete"] {
        let status = nudge(tenant, name, policy).await;
        let latest = status.last_attempt.unwrap();
        // A failing hook is retried soon, and the machine may be slow.
        if reason != "UpgradeFailed" {
            assert_eq!(latest, attempt, "{name}");
            assert_eq!(revisions(tenant, name).await, before, "{name}");
        }
    }
}

/// An installation and an upgrade, each told once and put right at once by a version that works.
#[tokio::test]
async fn an_upgrade_that_fails_leaves_the_app_serving() {
    let tenant = &Lab::shared().await.tenant("failed-charts").await;
    // All at once, since a hook that fails is tried again in less than a minute.
    join_all(BROKEN.map(|(name, version, reason, stalled, words)| async move {
        tenant.create(name, small(tenant, name, version)).await.unwrap();
        failed(tenant, name, version, reason, stalled, words).await;
        assert_eq!(installed(tenant, name).await.last_attempt.unwrap().failures, 0);

        let deployments = tenant.api::<Deployment>();
        let before = deployments.get(&format!("{name}-nextcloud")).await.unwrap();
        tenant.patch(name, json!({"chartVersion": version})).await.unwrap();
        failed(tenant, name, version, reason, stalled, words).await;
        let after = deployments.get(&format!("{name}-nextcloud")).await.unwrap();
        assert_eq!(before.spec.unwrap().template, after.spec.unwrap().template, "{name}");
        assert_eq!(after.status.unwrap().available_replicas, Some(1), "{name}");
        let status = tenant.api::<ClientApp>().get(name).await.unwrap().status.unwrap();
        assert!(has(&status, "WorkloadsReady", "True", "Ready"), "{status:#?}");
        // The installed version has not changed.
        assert_eq!(status.release.unwrap().chart_version.as_deref(), Some(charts::DEFAULT), "{name}");
        installed(tenant, name).await;
    }))
    .await;
}

/// Asks for a version that works, and waits until it serves.
async fn installed(tenant: &Tenant, name: &str) -> ClientAppStatus {
    tenant.patch(name, json!({"chartVersion": charts::DEFAULT})).await.unwrap();
    let status = tenant.status(name, "Ready", |status| has(status, "Ready", "True", "Ready")).await;
    assert_eq!(status.release.as_ref().unwrap().chart_version.as_deref(), Some(charts::DEFAULT), "{name}");
    status
}

#[tokio::test]
async fn an_upgrade_that_never_gets_ready_leaves_the_old_pods_serving() {
    let tenant = Lab::shared().await.tenant("never-ready").await;
    let mut spec = small(&tenant, "acme", charts::DEFAULT);
    spec["values"] = json!({"nextcloud": {"strategy": {"type": "RollingUpdate"}}});
    tenant.create("acme", spec).await.unwrap();
    tenant.ready("acme", 1).await;
    tenant.patch("acme", json!({"chartVersion": charts::NEVER_READY})).await.unwrap();
    let status = tenant
        .status("acme", "waiting for its workloads at revision 2", |status| {
            let revised = status.release.as_ref().is_some_and(|release| release.revision == 2);
            revised && has(status, "WorkloadsReady", "False", "NotReady") && has(status, "Ready", "False", "NotReady")
        })
        .await;
    let sentence = &find(&status.conditions, "Ready").unwrap().message;
    assert!(sentence.contains("Deployment acme-nextcloud"), "{sentence}");
    assert!(has(&status, "Released", "True", "Deployed"), "{status:#?}");
    let deployment = tenant.api::<Deployment>().get("acme-nextcloud").await.unwrap();
    assert_eq!(deployment.status.unwrap().available_replicas, Some(1));

    // It is unknown whether data was migrated, so the way back has to be requested.
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.condition("acme", "Released", "False", "DowngradeRefused").await;
    tenant.patch("acme", json!({"upgrade": {"allow": charts::PATCH}})).await.unwrap();
    tenant.ready("acme", 3).await;
}

#[tokio::test]
async fn a_repository_that_fails_is_told_and_tried_again() {
    let (Apart { tenant, proxy: _proxy, options }, repository) = with_repository("bad-repository").await;
    let [genuine, tampered] = [Content::Genuine, Content::Tampered]
        .map(|content| e2e::digest::sha256(charts::archive(charts::DEFAULT, content).unwrap()));
    let differs = format!("its archive has sha256 {tampered}, but the index of the chart repository lists {genuine}");
    let operator = leading(&options).await;
    // Nothing is cached before the end: no fetch succeeds, and those whose index is correct come last.
    let faults = [
        ("refused", Fault::Refused, "ChartUnavailable", false, "connection refused"),
        ("unavailable", Fault::Unavailable, "ChartUnavailable", false, "503 Service Unavailable"),
        ("html", Fault::Html, "ChartUnavailable", false, "is not a valid chart repository"),
        // The limit of helm's memory ends it.
        ("endless", Fault::Endless, "ChartInvalid", true, "out of memory"),
        ("missing", Fault::Missing, "ChartInvalid", true, "404 Not Found"),
        ("html-archives", Fault::HtmlArchives, "ChartInvalid", true, "5.5.2"),
        ("tampered", Fault::Tampered, "ChartInvalid", true, differs.as_str()),
    ];
    for (name, fault, reason, stalled, words) in faults {
        repository.set(fault).unwrap();
        tenant.create(name, small(&tenant, name, charts::DEFAULT)).await.unwrap();
        tenant.condition_with(name, ("Released", reason), &[words]).await;
        let state = if stalled { ("True", reason) } else { ("False", "NotStalled") };
        let status = tenant.status(name, "stalled or not", |status| has(status, "Stalled", state.0, state.1)).await;
        assert!(has(&status, "Ready", "False", reason), "{status:#?}");
        assert_eq!(tenant.listed(name), None);
        let asked = repository.all_requests();
        assert_eq!(nudge(&tenant, name, "Retain").await.last_attempt, status.last_attempt, "{name}");
        assert_eq!(repository.all_requests(), asked, "{name}");
        // It is not tried again meanwhile.
        tenant.patch(name, json!({"suspend": true})).await.unwrap();
        tenant.condition(name, "Reconciling", "False", "Suspended").await;
    }
    repository.set(Fault::None).unwrap();
    for (name, ..) in faults {
        time_passes(&tenant, name).await;
        tenant.patch(name, json!({"suspend": false})).await.unwrap();
        tenant.ready(name, 1).await;
        assert!(tenant.kubectl(&["get", "configmap", &format!("{name}-tampered")]).is_err());
    }
    assert!(operator.stop().unwrap());
}

#[tokio::test]
async fn a_slow_repository_holds_up_no_other_app() {
    let (Apart { tenant, proxy: _proxy, options }, repository) = with_repository("slow-repository").await;
    let arguments = vec!["--max-concurrent".into(), "1".into()];
    let _operator = leading(&Options { arguments, ..options }).await;
    let warm = async |name: &str| {
        tenant.create(name, small(&tenant, name, charts::DEFAULT)).await.unwrap();
        tenant.ready(name, 1).await;
    };
    // Nor does an app that never becomes ready: helm does not wait for it.
    tenant.create("never", small(&tenant, "never", charts::NEVER_READY)).await.unwrap();
    tenant.condition_with("never", ("WorkloadsReady", "NotReady"), &["Deployment never-nextcloud"]).await;
    warm("first").await;

    for (fault, slow, doomed) in [(Fault::Slow, "slow", "doomed"), (Fault::Trickle, "trickling", "doomed-too")] {
        repository.set(fault).unwrap();
        for name in [slow, doomed] {
            tenant.create(name, small(&tenant, name, charts::MAJOR)).await.unwrap();
            let sentence = tenant.condition(name, "Ready", "False", "FetchingChart").await;
            assert_eq!(sentence, "fetching chart nextcloud 6.0.0");
        }
        // A cached chart is installed meanwhile, although only one helm may run at a time.
        warm(&format!("beside-{slow}")).await;
        tenant.delete(&format!("beside-{slow}")).await;
        // Nor is an app held up that no longer needs it.
        tenant.delete(doomed).await;
        tenant.patch(slow, json!({"chartVersion": charts::DEFAULT})).await.unwrap();
        tenant.ready(slow, 1).await;
    }
}

#[tokio::test]
async fn a_version_that_was_published_anew_is_not_installed() {
    let (Apart { tenant, proxy: _proxy, options }, repository) = with_repository("republished").await;
    let operator = leading(&options).await;
    for name in ["acme", "quiet"] {
        tenant.create(name, small(&tenant, name, charts::DEFAULT)).await.unwrap();
        tenant.ready(name, 1).await;
    }
    let genuine = e2e::digest::sha256(charts::archive(charts::DEFAULT, Content::Genuine).unwrap());
    let tampered = e2e::digest::sha256(charts::archive(charts::DEFAULT, Content::Tampered).unwrap());

    repository.set(Fault::Republished).unwrap();
    assert!(operator.stop().unwrap());
    let _operator = leading(&options).await;
    tenant.patch("acme", json!({"replicas": 2})).await.unwrap();
    let words = [&genuine, &tampered, "nothing is installed", "publish the change under a new version"];
    tenant.condition_with("acme", ("Released", "ChartDigestChanged"), &words).await;
    tenant.condition("acme", "Stalled", "True", "ChartDigestChanged").await;
    for (name, ready) in [("acme", "False"), ("quiet", "True")] {
        let status = nudge(&tenant, name, "Retain").await;
        assert_eq!(find(&status.conditions, "Ready").unwrap().status, ready, "{name}");
        assert!(has(&status, "WorkloadsReady", "True", "Ready"), "{status:#?}");
        assert_eq!(
            (revisions(&tenant, name).await, status.release.unwrap().chart_digest.as_ref()),
            (1, Some(&genuine))
        );
    }
    assert!(tenant.kubectl(&["get", "configmap", "acme-tampered"]).is_err());

    // Once the cause is fixed, it is installed: the operator leaves nothing to clean up.
    repository.set(Fault::None).unwrap();
    time_passes(&tenant, "acme").await;
    tenant.ready("acme", 2).await;
}

/// helm follows it, as it has to for the releases of GitHub: what it leads to is the version, or is refused.
#[tokio::test]
async fn a_chart_behind_a_redirect_is_the_version_or_is_refused() {
    let (Apart { tenant, proxy: _proxy, options }, repository) = with_repository("redirected").await;
    let elsewhere = Repository::start().unwrap();
    repository.set(Fault::Redirect(elsewhere.address())).unwrap();
    let _operator = leading(&options).await;
    tenant.create("acme", small(&tenant, "acme", charts::DEFAULT)).await.unwrap();
    let release = tenant.ready("acme", 1).await.release.unwrap();
    let genuine = e2e::digest::sha256(charts::archive(charts::DEFAULT, Content::Genuine).unwrap());
    assert_eq!((release.chart_digest, elsewhere.requests("/nextcloud-5.5.2.tgz")), (Some(genuine), 1));

    for (name, version, fault, reason) in [
        ("page", charts::PATCH, Fault::Html, "ChartInvalid"),
        ("away", charts::MAJOR, Fault::Refused, "ChartUnavailable"),
        ("round", charts::MAJOR, Fault::Redirect(elsewhere.address()), "ChartUnavailable"),
    ] {
        elsewhere.set(fault).unwrap();
        tenant.create(name, small(&tenant, name, version)).await.unwrap();
        tenant.condition(name, "Released", "False", reason).await;
        assert_eq!(tenant.listed(name), None);
    }
    let status = nudge(&tenant, "acme", "Retain").await;
    assert!(has(&status, "Ready", "True", "Ready"), "{status:#?}");
}

/// The publisher of a chart must not be able to send requests from the operator's pod, nor to keep it busy.
#[tokio::test]
async fn a_hostile_chart_reaches_nothing_and_holds_up_no_other_app() {
    // For this address Go asks its proxy, as for every address but 127.0.0.1, and it leads to this machine.
    let elsewhere = TcpListener::bind(("0.0.0.0", 0)).unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let url = format!("http://{}/schema.json", elsewhere.local_addr().unwrap());
    let schema = json!({"$schema": "http://json-schema.org/draft-07/schema#", "allOf": [{"$ref": url}]}).to_string();
    let line = "x".repeat(1000);
    let endless =
        format!("{{{{ range until 100000 }}}}{{{{ range until 100000 }}}}#{line}\n{{{{ end }}}}{{{{ end }}}}");
    let hostile = [
        ("schema", charts::PATCH, "values.schema.json", schema, "/schema.json"),
        ("template", charts::MAJOR, "templates/endless.yaml", endless, "out of memory"),
    ];
    let directory = tempfile::tempdir().unwrap();
    charts::package_all(directory.path()).unwrap();
    for (_, version, path, text, _) in &hostile {
        let archive = charts::archive_with(version, Content::Genuine, &[(path, text)]).unwrap();
        std::fs::write(directory.path().join(charts::file_name(version)), archive).unwrap();
    }
    let Apart { tenant, proxy: _proxy, options } = Lab::unattended().await.apart("hostile-charts").await;
    let options = Options { chart_repository: directory.path().display().to_string(), ..options };
    let _operator = leading(&options).await;
    for (name, version, ..) in &hostile {
        tenant.create(name, small(&tenant, name, version)).await.unwrap();
    }
    tenant.create("other", small(&tenant, "other", charts::DEFAULT)).await.unwrap();
    tenant.ready("other", 1).await;
    for (name, _, _, _, words) in &hostile {
        tenant.condition_with(name, ("Released", "ChartInvalid"), &[words]).await;
        tenant.condition(name, "Stalled", "True", "ChartInvalid").await;
        assert_eq!(tenant.listed(name), None);
    }
    assert_eq!(elsewhere.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}
