//! `manifests/` is what a real API server accepts, grants what the operator and its helm use and nothing else, and agrees
//! with the program and the Dockerfile.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args as _, FromArgMatches as _};
use clientapp_operator::config::{RunArgs, helm_settings};
use clientapp_operator::crd::ClientApp;
use e2e::lab::{Lab, Tenant, hostname};
use e2e::operator::Operator;
use e2e::{charts, manifests};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use k8s_openapi::api::core::v1::{Container, PodSpec};
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role, RoleBinding};
use kube::api::{Api, ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::wait::{await_condition, conditions};
use kube::{Client, Config, ResourceExt as _};
use serde_json::{Value, json};

// What it is.

#[tokio::test]
async fn applied_again_nothing_changes_and_both_pods_are_ready() {
    let lab = Lab::shared().await;
    let apply = || manifests::apply(&lab.plane, &lab.tools, &manifests::directory()).unwrap();
    apply();
    let deployments = Api::<Deployment>::namespaced(lab.plane.client().await.unwrap(), manifests::NAMESPACE);
    let ready = await_condition(deployments.clone(), "clientapp-operator", conditions::is_deployment_completed());
    tokio::time::timeout(e2e::lab::PATIENCE, ready).await.expect("the pods become ready").unwrap();
    assert_eq!(deployments.get("clientapp-operator").await.unwrap().status.unwrap().ready_replicas, Some(2));

    let before = versions(lab, &manifests::directory());
    assert!(before.len() >= 13, "{before:?}");
    apply();
    assert_eq!(versions(lab, &manifests::directory()), before);
}

#[tokio::test]
async fn the_samples_become_instances() {
    let lab = Lab::shared().await;
    let apply = || manifests::apply(&lab.plane, &lab.tools, &manifests::samples()).unwrap();
    apply();
    let before = versions(lab, &manifests::samples());
    apply();
    assert_eq!(versions(lab, &manifests::samples()), before);

    let apps = Api::<ClientApp>::namespaced(lab.plane.client().await.unwrap(), "clientapp-samples");
    let names: Vec<_> = apps.list(&ListParams::default()).await.unwrap().iter().map(|app| app.name_any()).collect();
    assert_eq!(names, ["full", "minimal", "without-database"]);
    for name in names {
        let is_ready = |app: Option<&ClientApp>| {
            let status = app.and_then(|app| app.status.as_ref());
            status.is_some_and(|status| e2e::lab::has(status, "Ready", "True", "Ready"))
        };
        let ready = tokio::time::timeout(e2e::lab::PATIENCE, await_condition(apps.clone(), &name, is_ready)).await;
        ready.unwrap_or_else(|_| panic!("{name} is not Ready; {}", lab.operator_log())).unwrap();
    }
}

/// Of every object of a kustomization what only a change of its own changes: the generation, or else the version.
fn versions(lab: &Lab, directory: &Path) -> BTreeMap<String, String> {
    let arguments = ["get", "--output", "json", "--kustomize", directory.to_str().unwrap()];
    let list: Value = serde_json::from_str(&manifests::kubectl(&lab.plane, &lab.tools, &arguments).unwrap()).unwrap();
    let objects = list["items"].as_array().unwrap().iter().map(|object| {
        let metadata = &object["metadata"];
        let version = metadata.get("generation").unwrap_or(&metadata["resourceVersion"]);
        (format!("{} {}", object["kind"], metadata["name"]), format!("{} {version}", metadata["uid"]))
    });
    objects.collect()
}

// What it grants.

/// Verb, group, resource with subresource, name.
type Question<'a> = (&'a str, &'a str, &'a str, &'a str);

#[tokio::test]
async fn the_account_may_do_this_and_no_more() {
    let lab = Lab::shared().await;
    let reviews = Api::<SubjectAccessReview>::all(lab.plane.client().await.unwrap());
    const OURS: &str = "apps.bnerd-operator.local";
    const RBAC: &str = "rbac.authorization.k8s.io";
    const CRDS: &str = "customresourcedefinitions";
    let may: &[Question] = &[
        ("watch", OURS, "clientapps", ""),
        ("create", OURS, "clientapps", ""),
        ("delete", OURS, "clientapps", "acme"),
        ("patch", OURS, "clientapps/status", "acme"),
        ("watch", OURS, "profiles", ""),
        ("create", "", "namespaces", ""),
        ("delete", "", "namespaces", "acme"),
        ("create", "authentication.k8s.io", "tokenreviews", ""),
        ("create", "authorization.k8s.io", "subjectaccessreviews", ""),
        ("update", OURS, "clientapps/finalizers", "acme"),
        ("create", "", "secrets", ""),
        ("watch", "", "secrets", ""),
        ("watch", "apiextensions.k8s.io", CRDS, "perconapgclusters.pgv2.percona.com"),
        ("patch", "pgv2.percona.com", "perconapgclusters", "acme-pg"),
        ("delete", "", "persistentvolumeclaims", "acme"),
        ("patch", "apps", "statefulsets", "acme"),
        ("create", RBAC, "roles", ""),
        ("use", "extensions", "podsecuritypolicies", "privileged"),
    ];
    let may_not: &[Question] = &[
        ("*", "*", "*", ""),
        ("*", "", "secrets", ""),
        ("get", "", "nodes", ""),
        // Specs are the user's, and Profiles the administrator's.
        ("update", OURS, "clientapps", "acme"),
        ("deletecollection", OURS, "clientapps", ""),
        ("create", OURS, "profiles", ""),
        ("patch", OURS, "profiles", "premium"),
        ("patch", OURS, "clientapps/finalizers", "acme"),
        // Nobody's namespace becomes one that was made for an instance.
        ("update", "", "namespaces", "acme"),
        ("patch", "", "namespaces", "acme"),
        // Into pods nobody looks, nor makes them but through a workload.
        ("get", "", "pods", "acme"),
        ("create", "", "pods", ""),
        ("create", "", "pods/exec", "acme"),
        ("get", "", "pods/log", "acme"),
        ("deletecollection", "", "secrets", ""),
        ("delete", "", "persistentvolumes", "acme"),
        ("create", "", "serviceaccounts/token", "default"),
        ("list", "apiextensions.k8s.io", CRDS, ""),
        ("get", "apiextensions.k8s.io", CRDS, "clientapps.apps.bnerd-operator.local"),
        ("patch", "apiextensions.k8s.io", CRDS, "perconapgclusters.pgv2.percona.com"),
        // No way to more rights.
        ("escalate", RBAC, "roles", "acme"),
        ("bind", RBAC, "roles", "acme"),
        ("bind", RBAC, "clusterroles", "cluster-admin"),
        ("create", RBAC, "clusterroles", ""),
        ("create", RBAC, "clusterrolebindings", ""),
        ("impersonate", "", "users", "admin"),
        ("use", "extensions", "podsecuritypolicies", "other"),
        // The Lease is in the operator's namespace only; the tenant's is asked about here.
        ("get", "coordination.k8s.io", "leases", "clientapp-operator"),
        ("create", "coordination.k8s.io", "leases", ""),
    ];
    let lease: &[Question] = &[
        ("get", "coordination.k8s.io", "leases", "clientapp-operator"),
        ("patch", "coordination.k8s.io", "leases", "clientapp-operator"),
        ("create", "coordination.k8s.io", "leases", ""),
    ];
    let no_other_lease: &[Question] = &[
        ("get", "coordination.k8s.io", "leases", "another"),
        ("list", "coordination.k8s.io", "leases", ""),
        ("delete", "coordination.k8s.io", "leases", "clientapp-operator"),
    ];
    for (namespace, questions, expected) in [
        ("tenant", may, true),
        ("tenant", may_not, false),
        (manifests::NAMESPACE, lease, true),
        (manifests::NAMESPACE, no_other_lease, false),
    ] {
        for question in questions {
            let answer = ask(&reviews, namespace, question).await;
            assert_eq!(answer.allowed, expected, "{question:?} in {namespace}: {answer:?}");
        }
    }
}

/// What `kubectl auth can-i --as` asks.
async fn ask(
    reviews: &Api<SubjectAccessReview>,
    namespace: &str,
    (verb, group, resource, name): &Question<'_>,
) -> SubjectAccessReviewStatus {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let some = |text: &str| Some(text.to_owned());
    let groups = ["system:serviceaccounts", "system:serviceaccounts:clientapp-operator", "system:authenticated"];
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(manifests::user()),
            groups: Some(groups.map(str::to_owned).to_vec()),
            resource_attributes: Some(ResourceAttributes {
                namespace: some(namespace),
                verb: some(verb),
                group: some(group),
                resource: some(resource),
                subresource: some(subresource),
                name: some(name),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    reviews.create(&PostParams::default(), &review).await.unwrap().status.unwrap()
}

#[tokio::test]
async fn the_account_can_grant_what_the_chart_grants_and_no_more() {
    let lab = Lab::shared().await;
    let kubeconfig = Kubeconfig::read_from(&lab.operator_kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    let client = Client::try_from(config).unwrap();
    let dry = PostParams { dry_run: true, ..PostParams::default() };

    let roles = Api::<Role>::namespaced(client.clone(), "default");
    let role = |rule: Value| -> Role {
        serde_json::from_value(json!({"metadata": {"name": "acme"}, "rules": [rule]})).unwrap()
    };
    let psp = json!({"apiGroups": ["extensions"], "resources": ["podsecuritypolicies"], "resourceNames": ["privileged"], "verbs": ["use"]});
    roles.create(&dry, &role(psp)).await.unwrap();
    let pods = json!({"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]});
    let refusal = roles.create(&dry, &role(pods)).await.unwrap_err().to_string();
    assert!(refusal.contains("attempting to grant RBAC permissions not currently held"), "{refusal}");

    let bindings = Api::<RoleBinding>::namespaced(client, "default");
    let admin = serde_json::from_value(json!({
        "metadata": {"name": "acme"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
        "subjects": [{"kind": "ServiceAccount", "name": "clientapp-operator", "namespace": "clientapp-operator"}],
    }));
    let refusal = bindings.create(&dry, &admin.unwrap()).await.unwrap_err().to_string();
    assert!(refusal.contains("attempting to grant RBAC permissions not currently held"), "{refusal}");
}

/// What no request of this test can show to be needed.
const UNSEEN: &[(&str, &str, &str, &str)] = &[
    ("update", "apps.bnerd-operator.local", "clientapps/finalizers", "asked by an admission plugin that is off here"),
    ("use", "extensions", "podsecuritypolicies", "asked when the reference chart's own Role is written"),
];

#[tokio::test]
async fn every_verb_that_is_granted_is_used_and_none_is_missing() {
    let lab = Lab::shared().await;
    let tenant = lab.tenant("rights").await;
    let host = |name: &str| hostname(&tenant, name);
    // A volume and a database that are deleted, and ones that are kept; a chart with a hook.
    tenant.create("brief", json!({"hostname": host("brief"), "ingressClassName": "traefik"})).await.unwrap();
    tenant.create("kept", json!({"hostname": host("kept"), "deletionPolicy": "Retain"})).await.unwrap();
    let hook = json!({"hostname": host("hook"), "chartVersion": charts::HOOK_FAILS, "postgres": {"enabled": false}});
    tenant.create("hook", hook).await.unwrap();
    tenant.ready("brief", 1).await;
    tenant.ready("kept", 1).await;
    tenant.condition("hook", "Released", "False", "UpgradeFailed").await;
    // An upgrade that takes objects away, and a slip that makes Ready come, go and come again: one event, counted up.
    tenant.patch("brief", json!({"ingressClassName": null, "redis": {"enabled": false}})).await.unwrap();
    tenant.ready("brief", 2).await;
    tenant.patch("brief", json!({"values": {"nextcloud": {"host": "elsewhere"}}})).await.unwrap();
    tenant.condition("brief", "Ready", "False", "InvalidSpec").await;
    tenant.patch("brief", json!({"values": null})).await.unwrap();
    tenant.ready("brief", 2).await;
    for name in ["brief", "kept", "hook"] {
        tenant.delete(name).await;
    }
    use_the_api(lab, &tenant).await;

    let (used, refused) = asked(lab);
    assert!(refused.is_empty(), "{refused:#?}");
    let granted = granted(&tenant.client).await;
    let unseen: BTreeSet<_> =
        UNSEEN.iter().map(|(verb, group, resource, _)| format!("{verb} {group}/{resource}")).collect();
    let superfluous: Vec<_> = granted.difference(&used).filter(|grant| !unseen.contains(*grant)).collect();
    assert!(superfluous.is_empty(), "granted and never used: {superfluous:#?}");
    let stale: Vec<_> = unseen.iter().filter(|grant| !granted.contains(*grant) || used.contains(*grant)).collect();
    assert!(stale.is_empty(), "not granted, or used after all: {stale:#?}");
}

/// An instance in a namespace of its own, made, watched and deleted through the API by somebody with a token.
async fn use_the_api(lab: &'static Lab, tenant: &Tenant) {
    // A standby serves it too, and this one asks who it is.
    let mut options = lab.options();
    options.arguments = ["--api-auth", "token"].map(str::to_owned).to_vec();
    let start = move || {
        let mut operator = Operator::start(&options).unwrap();
        let url = operator.api_url().unwrap();
        (operator, url)
    };
    let (operator, url) = tokio::task::spawn_blocking(start).await.unwrap();
    tenant.kubectl(&["create", "serviceaccount", "portal"]).unwrap();
    let account = format!("{}:portal", tenant.namespace);
    manifests::kubectl(
        &lab.plane,
        &lab.tools,
        &[
            "create",
            "clusterrolebinding",
            "portal",
            "--clusterrole",
            "clientapp-api-user",
            "--serviceaccount",
            &account,
        ],
    )
    .unwrap();
    manifests::kubectl(
        &lab.plane,
        &lab.tools,
        &["apply", "-f", &manifests::samples().join("profiles.yaml").display().to_string()],
    )
    .unwrap();
    let token = tenant.kubectl(&["create", "token", "portal", "--audience", "clientapp-operator"]).unwrap();
    let http = reqwest::Client::builder().timeout(e2e::lab::PATIENCE).build().unwrap();
    let ask =
        |method: reqwest::Method, path: &str| http.request(method, format!("{url}{path}")).bearer_auth(token.trim());
    let body = json!({
        "hostname": hostname(tenant, "made"), "name": "made-for-it", "profile": "basic", "postgres": {"enabled": false},
    });
    let post = || ask(reqwest::Method::POST, "/instances").json(&body).send();
    let deadline = tokio::time::Instant::now() + e2e::lab::PATIENCE;
    loop {
        let status = post().await.unwrap().status().as_u16();
        if status == 201 {
            break;
        }
        // The binding is new, and so is the operator.
        assert!(matches!(status, 403 | 503) && tokio::time::Instant::now() < deadline, "{status}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    // Another for the same name, which is taken; the hostname is not.
    let mut again = body.clone();
    again["hostname"] = json!(hostname(tenant, "other"));
    let taken = ask(reqwest::Method::POST, "/instances").json(&again).send().await.unwrap();
    assert_eq!(taken.status(), 409, "{:?}", taken.text().await);
    let progress =
        ask(reqwest::Method::GET, "/instances/made-for-it/events").send().await.unwrap().text().await.unwrap();
    assert!(progress.contains("event: ready"), "{progress}");
    let gone = ask(reqwest::Method::DELETE, "/instances/made-for-it?wait=120").send().await.unwrap();
    assert_eq!(gone.status(), 204);
    assert!(tokio::task::spawn_blocking(|| operator.stop()).await.unwrap().unwrap());
}

/// What the account's roles grant, each as `verb group/resource`.
async fn granted(client: &Client) -> BTreeSet<String> {
    let mut rules: Vec<PolicyRule> = Vec::new();
    for name in ["clientapp-operator", "clientapp-operator-chart", "clientapp-operator-api"] {
        rules.extend(Api::<ClusterRole>::all(client.clone()).get(name).await.unwrap().rules.unwrap());
    }
    let lease = Api::<Role>::namespaced(client.clone(), manifests::NAMESPACE).get("clientapp-operator-lease").await;
    rules.extend(lease.unwrap().rules.unwrap());
    let mut granted = BTreeSet::new();
    for rule in rules {
        for group in rule.api_groups.as_deref().unwrap() {
            for resource in rule.resources.as_deref().unwrap() {
                assert!(group != "*" && resource != "*", "{rule:?}");
                for verb in &rule.verbs {
                    assert!(!["*", "escalate", "bind", "impersonate"].contains(&verb.as_str()), "{rule:?}");
                    granted.insert(format!("{verb} {group}/{resource}"));
                }
            }
        }
    }
    granted
}

/// What the account has asked the API server and was not refused, and what it was, each as `verb group/resource`.
fn asked(lab: &Lab) -> (BTreeSet<String>, BTreeSet<String>) {
    let log = fs::read_to_string(lab.plane.audit_log().unwrap()).unwrap();
    let (mut used, mut refused) = (BTreeSet::new(), BTreeSet::new());
    // The last line may be half written.
    for event in log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let object = &event["objectRef"];
        // The test that tries to grant too much does it as a dry run.
        let dry = event["requestURI"].as_str().is_some_and(|uri| uri.contains("dryRun"));
        if event["user"]["username"] != manifests::user().as_str() || object.is_null() || dry {
            continue;
        }
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let subresource = object["subresource"].as_str().map(|name| format!("/{name}")).unwrap_or_default();
        let what = format!("{}/{}{subresource}", word(&object["apiGroup"]), word(&object["resource"]));
        let request = format!("{} {what}", word(&event["verb"]));
        if event["annotations"]["authorization.k8s.io/decision"] == "forbid" {
            refused.insert(request);
            continue;
        }
        used.insert(request);
        // An apply that makes an object needs that verb too.
        if event["verb"] == "patch" && event["responseStatus"]["code"] == 201 {
            used.insert(format!("create {what}"));
        }
    }
    (used, refused)
}

// What it agrees with.

#[test]
fn every_definition_is_in_the_kustomization() {
    let directory = root().join("crds");
    let kustomization: Value = parse(&directory.join("kustomization.yaml")).remove(0);
    let listed: BTreeSet<String> = serde_json::from_value(kustomization["resources"].clone()).unwrap();
    let files = fs::read_dir(&directory).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    assert_eq!(listed, files.filter(|file| file != "kustomization.yaml").collect());
}

#[test]
fn the_deployment_agrees_with_the_program() {
    let (_, operator) = deployment();
    assert_eq!(operator.image.unwrap(), format!("clientapp-operator:{}", env!("CARGO_PKG_VERSION")));
    assert_eq!(operator.args.unwrap(), ["run"]);

    // The environment, as the flags that it stands for.
    let command = RunArgs::augment_args(clap::Command::new("run"));
    let environment = operator.env.unwrap().into_iter().filter(|variable| variable.name != "RUST_LOG");
    let flags = environment.map(|variable| {
        let of_variable = |argument: &&clap::Arg| argument.get_env().is_some_and(|name| *name == *variable.name);
        let argument = command.get_arguments().find(of_variable);
        let argument = argument.unwrap_or_else(|| panic!("the operator knows no {}", variable.name));
        format!("--{}={}", argument.get_long().unwrap(), variable.value.unwrap())
    });
    let arguments: Vec<_> = ["run".to_owned()].into_iter().chain(flags).collect();
    let run = RunArgs::from_arg_matches(&command.clone().try_get_matches_from(arguments).unwrap()).unwrap();

    let [port] = operator.ports.unwrap().try_into().unwrap();
    assert_eq!(run.health_listen.port(), u16::try_from(port.container_port).unwrap());
    let mounts: Vec<_> = operator.volume_mounts.unwrap().into_iter().map(|mount| mount.mount_path).collect();
    assert!(mounts.contains(&run.chart_cache.unwrap().display().to_string()), "{mounts:?}");
}

#[test]
fn a_pod_has_time_to_end_its_helm() {
    let (pod, _) = deployment();
    let command = RunArgs::augment_args(clap::Command::new("run"));
    let run = RunArgs::from_arg_matches(&command.try_get_matches_from(["run"]).unwrap()).unwrap();
    let grace = helm_settings(&run).grace.as_secs();
    let seconds = pod.termination_grace_period_seconds.unwrap();
    assert!(seconds >= i64::try_from(grace).unwrap() + 10, "{seconds} s with helm's {grace} s");
}

/// The operator's pod and its only container.
fn deployment() -> (PodSpec, Container) {
    let deployment = parse(&manifests::directory().join("deployment.yaml")).remove(0);
    let deployment: Deployment = serde_json::from_value(deployment).unwrap();
    let pod = deployment.spec.unwrap().template.spec.unwrap();
    let [container] = <[Container; 1]>::try_from(pod.containers.clone()).unwrap();
    (pod, container)
}

#[test]
fn the_dockerfile_agrees_with_the_pins() {
    let dockerfile = fs::read_to_string(root().join("Dockerfile")).unwrap();
    let image = |name: &str| -> [u32; 3] {
        let tag = dockerfile
            .lines()
            .filter(|line| line.starts_with("FROM"))
            .find_map(|line| line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix(':')));
        let tag = tag.unwrap_or_else(|| panic!("no stage is from {name}"));
        numbers(tag.split('-').next().unwrap()).unwrap_or_else(|| panic!("{name}:{tag} is not one exact version"))
    };
    let directive = |file: &str, key: &str| -> [u32; 3] {
        let text = fs::read_to_string(root().join(file)).unwrap();
        let value = text.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim_matches([' ', '=', '"']);
        let padded = if value.matches('.').count() == 1 { format!("{value}.0") } else { value.to_owned() };
        numbers(&padded).unwrap()
    };
    assert!(image("rust") >= directive("Cargo.toml", "rust-version"), "the compiler is too old for Cargo.toml");
    // Of the same minor release: that is what the tests' helm is built with.
    let (golang, go) = (image("golang"), directive("e2e/tools/helm/go.mod", "go "));
    assert!(golang >= go && golang[..2] == go[..2], "golang {golang:?} for go {go:?}");

    // What is copied from the context exists and is let through.
    let ignore = fs::read_to_string(root().join(".dockerignore")).unwrap();
    let let_through: Vec<_> = ignore.lines().filter_map(|line| line.strip_prefix('!')).collect();
    for path in &let_through {
        assert!(root().join(path).exists(), ".dockerignore lets {path} through, which does not exist");
    }
    for line in dockerfile.lines().filter(|line| line.starts_with("COPY ") && !line.contains("--from=")) {
        let words: Vec<_> = line.split_whitespace().skip(1).collect();
        for source in words[..words.len() - 1].iter().filter(|source| **source != ".") {
            assert!(root().join(source).exists(), "{line}");
            assert!(let_through.iter().any(|path| source.starts_with(path)), "{line}: .dockerignore");
        }
    }
    // The pod's user, and nothing that a shell would be needed for.
    let (pod, _) = deployment();
    let user = pod.security_context.unwrap().run_as_user.unwrap();
    for line in
        [&format!("USER {user}:{user}"), "ENTRYPOINT [\"/clientapp-operator\"]", "CMD [\"run\"]", "FROM scratch"]
    {
        assert!(dockerfile.lines().any(|found| found == line), "the Dockerfile has no {line}");
    }
}

fn numbers(version: &str) -> Option<[u32; 3]> {
    let numbers: Option<Vec<u32>> = version.split('.').map(|number| number.parse().ok()).collect();
    numbers?.try_into().ok()
}

fn parse(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    let documents = serde_yaml::Deserializer::from_str(&text);
    documents.map(|document| serde::Deserialize::deserialize(document).unwrap()).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}
