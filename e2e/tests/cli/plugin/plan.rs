//! `plan` and `approve`: what helm would change is shown before it runs, and runs when a user has approved it.

use e2e::scenario::{is_put_back, small, with};

use super::*;

/// The flags with which helm and charts are found here.
async fn plan(tenant: &Tenant, arguments: &[&str]) -> Answer {
    let (helm, charts) = (tenant.lab.tools.helm.display().to_string(), tenant.lab.repository.url());
    let flags = ["--helm", &helm, "--chart-repository", &charts];
    typed(tenant, &[&["plan"], arguments, &flags].concat()).await
}

fn approved(status: &ClientAppStatus) -> Option<String> {
    status.plan.as_ref().map(|plan| plan.digest.clone())
}

#[tokio::test]
async fn what_is_approved_is_what_runs() {
    let tenant = Lab::shared().await.tenant("plugin-plan").await;
    let host = hostname(&tenant, "acme");
    let small = json!({
        "hostname": host, "approval": "Manual",
        "postgres": {"enabled": false}, "redis": {"enabled": false}, "persistence": {"enabled": false},
    });
    tenant.create("acme", small).await.unwrap();
    let waits = tenant.status("acme", "a plan", |status| status.plan.is_some()).await;
    let install = approved(&waits).unwrap();
    let command = format!("kubectl clientapp approve acme {install} -n plugin-plan");
    tenant.held("acme", "AwaitingApproval", &["waits for approval", &command]).await;
    // What waits may have changed since the user has looked.
    typed(&tenant, &["approve", "acme"]).await.failed(2, &command);
    assert!(tenant.listed("acme").is_none(), "nothing is installed");
    let shown = plan(&tenant, &["acme"]).await;
    assert!(shown.stderr.contains("it waits for approval"), "{shown:#?}");
    shown.prints(&["+ Deployment acme-nextcloud\n", " 0 to change, 0 to remove"]);

    typed(&tenant, &["approve", "acme", &install, "--wait"]).await.done();
    assert_eq!(tenant.listed("acme").unwrap().0, "1");
    plan(&tenant, &["acme"]).await.prints(&["Plan: nextcloud 5.5.2: 0 to add, 0 to change, 0 to remove"]);
    typed(&tenant, &["approve", "acme", &install]).await.done();

    // A change waits; one that overtakes it is another plan.
    let waits = async |replicas: i32, but: Option<String>| {
        tenant.patch("acme", json!({"replicas": replicas})).await.unwrap();
        let another = |status: &ClientAppStatus| status.plan.is_some() && approved(status) != but;
        approved(&tenant.status("acme", "another plan", another).await).unwrap()
    };
    let first = waits(2, None).await;
    let shown = plan(&tenant, &["acme"]).await.done();
    assert!(
        shown.contains("~ Deployment acme-nextcloud\n") && shown.contains("-  replicas: 1\n  +  replicas: 2"),
        "{shown}"
    );
    // Meanwhile, what is deployed is kept.
    is_put_back(&tenant, "acme-nextcloud").await;
    assert_eq!(tenant.listed("acme").unwrap().0, "1");
    let second = waits(3, Some(first.clone())).await;
    typed(&tenant, &["approve", "acme", &first])
        .await
        .failed(1, &format!("plan {second} of chart version 5.5.2 waits now"));
    tenant.patch("acme", json!({"approved": first})).await.unwrap();
    tenant.held("acme", "AwaitingApproval", &["what was approved before is another plan"]).await;
    assert_eq!(tenant.listed("acme").unwrap().0, "1");
    typed(&tenant, &["approve", "acme", &second, "--wait"]).await.done();
    assert_eq!(tenant.listed("acme").unwrap().0, "2");

    // What another client undoes is installed again as it was approved.
    assert!(tenant.helm(&["uninstall", "acme"]).success);
    tenant.ready("acme", 1).await;

    // Without a word of the operator: another version, another spec, and one that would be refused.
    plan(&tenant, &["acme", charts::PATCH]).await.prints(&[&format!("Plan: nextcloud 5.5.2 -> {}: ", charts::PATCH)]);
    let file = tempfile::NamedTempFile::new().unwrap();
    let other = |name: &str, spec: Value| {
        let object = json!({
            "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp", "metadata": {"name": name}, "spec": spec,
        });
        fs::write(file.path(), object.to_string()).unwrap();
    };
    let path = file.path().to_str().unwrap();
    other("beta", json!({"hostname": "beta.example.com", "postgres": {"enabled": false}}));
    plan(&tenant, &["acme", "-f", path]).await.failed(1, "it has another ClientApp than acme");
    plan(&tenant, &["beta", "-f", path]).await.prints(&["+ StatefulSet beta-redis-master\n"]);
    other("beta", json!({"hostname": "beta.example.com", "chartVersio": "1"}));
    plan(&tenant, &["beta", "-f", path]).await.failed(1, "unknown field spec.chartVersio");
    let elsewhere = json!({
        "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp",
        "metadata": {"name": "beta", "namespace": "elsewhere"}, "spec": {"hostname": "beta.example.com"},
    });
    fs::write(file.path(), elsewhere.to_string()).unwrap();
    plan(&tenant, &["beta", "-f", path])
        .await
        .failed(1, "the namespace from the file \"elsewhere\" does not match the namespace \"plugin-plan\"");
    plan(&tenant, &["gamma"]).await.failed(5, "there is no ClientApp gamma");
    plan(&tenant, &["acme", "7.7.7"]).await.failed(1, "7.7.7");
    assert_eq!(tenant.listed("acme").unwrap().0, "1", "a plan changes nothing");
}

/// Before a Profile is changed: what helm would change for an app that has it.
#[tokio::test]
async fn a_profile_is_planned_before_it_is_applied() {
    let tenant = Lab::shared().await.tenant("plugin-plan-profile").await;
    let profile = |name: &str, spec: Value| {
        let object = json!({
            "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "Profile", "metadata": {"name": name}, "spec": spec,
        });
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), object.to_string()).unwrap();
        file
    };
    let tier = |tier: &str| json!({"helm": {"values": {"podAnnotations": {"tier": tier}}}});
    let of = |file: &tempfile::NamedTempFile| file.path().to_str().unwrap().to_owned();
    let stored = profile("planned", tier("basic"));
    tenant.kubectl(&["create", "-f", &of(&stored)]).unwrap();
    let spec = |name| with(small(&tenant, name), json!({"profile": "planned"}));
    tenant.create("acme", spec("acme")).await.unwrap();
    tenant.ready("acme", 1).await;
    plan(&tenant, &["acme", "--profile", &of(&stored)]).await.prints(&["0 to add, 0 to change, 0 to remove"]);

    let changed = profile("planned", tier("gold"));
    let shown = plan(&tenant, &["acme", "--profile", &of(&changed)]).await.done();
    for part in ["~ Deployment acme-nextcloud\n", "tier: basic\n", "tier: gold\n", "0 to add, 1 to change, 0 to remove"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let other = profile("other", json!({}));
    let refused = "it has another Profile than planned, which ClientApp acme has";
    plan(&tenant, &["acme", "--profile", &of(&other)]).await.failed(1, refused);
    let typed = profile("planned", json!({"valeus": {}}));
    plan(&tenant, &["acme", "--profile", &of(&typed)]).await.failed(1, "unknown field spec.valeus");
    tenant.create("plain", with(small(&tenant, "plain"), json!({"suspend": true}))).await.unwrap();
    plan(&tenant, &["plain", "--profile", &of(&stored)]).await.failed(1, "ClientApp plain has no Profile");
    assert_eq!(tenant.listed("acme").unwrap().0, "1", "a plan changes nothing");
    tenant.delete("acme").await;
    tenant.kubectl(&["delete", "profile", "planned"]).unwrap();
}

#[tokio::test]
async fn a_plan_shows_no_secret_and_needs_few_rights() {
    let tenant = Lab::shared().await.tenant("plugin-plan-secret").await;
    let canary = "canary-in-a-secret";
    tenant.kubectl(&["create", "secret", "generic", "mail", &format!("--from-literal=password={canary}")]).unwrap();
    let reference =
        json!([{"kind": "Secret", "name": "mail", "valuesKey": "password", "targetPath": "nextcloud.motto"}]);
    let of = json!({"of": "{{ .Values.nextcloud.motto }}"});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mail"}, "data": of});
    let own = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "own"}, "stringData": of});
    let small = json!({
        "hostname": hostname(&tenant, "acme"), "valuesFrom": reference,
        "postgres": {"enabled": false}, "redis": {"enabled": false}, "persistence": {"enabled": false},
        "values": {"extraManifests": [map, own]},
    });
    tenant.create("acme", small).await.unwrap();
    tenant.ready("acme", 1).await;
    let new = "another-canary-in-it";
    let patch = json!({"spec": {"suspend": true}});
    tenant.api::<ClientApp>().patch("acme", &PatchParams::default(), &Patch::Merge(patch)).await.unwrap();
    let changed = json!({"stringData": {"password": new}});
    tenant.api::<Secret>().patch("mail", &PatchParams::default(), &Patch::Merge(changed)).await.unwrap();
    let shown = plan(&tenant, &["acme"]).await;
    let all = format!("{}{}", shown.stdout, shown.stderr);
    assert!(!all.contains(canary) && !all.contains(new), "{all}");
    assert!(shown.done().contains("~ ConfigMap mail\n"), "{all}");

    // What was installed is hidden from a plan without values from Secrets as well. Its hooks are named.
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {"name": "prepare", "annotations": {"helm.sh/hook": "pre-upgrade"}},
        "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "x", "image": "x"}]}}},
    });
    let without = json!({
        "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp", "metadata": {"name": "acme"},
        "spec": {
            "hostname": hostname(&tenant, "acme"),
            "postgres": {"enabled": false}, "redis": {"enabled": false}, "persistence": {"enabled": false},
            "values": {"nextcloud": {"motto": "shown-in-plain"}, "extraManifests": [map, own, job]},
        },
    });
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), without.to_string()).unwrap();
    let shown = plan(&tenant, &["acme", "-f", file.path().to_str().unwrap()]).await;
    let all = format!("{}{}", shown.stdout, shown.stderr);
    assert!(!all.contains(canary) && all.contains("-  of: '***'\n  +  of: shown-in-plain\n"), "{all}");
    assert!(shown.done().contains("\nHooks that run: Job prepare (pre-upgrade)\n"), "{all}");

    let little = little_user(&tenant).await;
    let helm = tenant.lab.tools.helm.display().to_string();
    let line = ["plan", "acme", "--helm", &helm, "--chart-repository", &tenant.lab.repository.url()];
    typed_as(&tenant, little, &line).await.failed(1, "cannot get resource \"secrets\"");
}
