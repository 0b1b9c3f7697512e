//! helm acts as a ServiceAccount of the app's namespace: a chart can do no more than that account.

use clientapp_crd::DEPLOYER;
use clientapp_crd::{ClientApp, conditions};
use e2e::charts;
use e2e::lab::{Lab, TIMEOUT, Tenant};
use e2e::manifests;
use e2e::scenario::{names, nothing_is_left, small, with};
use e2e::wait::until;
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{Api, DeleteParams, PostParams};
use kube::runtime::wait::{await_condition, conditions as is};
use kube::{Client, ResourceExt as _};
use serde_json::{Value, json};

use super::{admit_only, installed};

/// A user whose only right is to write ClientApps in the tenant's namespace.
async fn user(tenant: &Tenant, name: &str) -> Client {
    let verbs = "--verb=create,get,patch";
    tenant.kubectl(&["create", "role", name, verbs, "--resource=clientapps.apps.bnerd-operator.local"]).unwrap();
    tenant.kubectl(&["create", "rolebinding", name, "--role", name, "--user", name]).unwrap();
    tenant.until_may(name, ["create", "clientapps.apps.bnerd-operator.local"], true).await;
    let mut config = tenant.lab.plane.config().await.unwrap();
    config.auth_info.impersonate = Some(name.to_owned());
    Client::try_from(config).unwrap()
}

/// The accounts, except the one that every namespace gets sooner or later.
async fn accounts(tenant: &Tenant) -> Vec<String> {
    names::<ServiceAccount>(tenant).await.into_iter().filter(|name| name != "default").collect()
}

/// A spec with these objects rendered by the chart as templates.
fn rendering(tenant: &Tenant, name: &str, objects: Value) -> Value {
    with(small(tenant, name), json!({"values": {"extraManifests": objects}}))
}

#[tokio::test]
async fn a_user_of_one_namespace_gets_nowhere_else() {
    let lab = Lab::shared().await;
    let (tenant, victim) = (lab.tenant("boundary").await, lab.tenant("boundary-victim").await);
    victim.kubectl(&["create", "secret", "generic", "treasure", "--from-literal=password=canary"]).unwrap();
    let mallory = user(&tenant, "mallory").await;
    let refused = Api::<Secret>::namespaced(mallory.clone(), "boundary-victim").get("treasure").await.unwrap_err();
    assert!(refused.to_string().contains("cannot get resource \"secrets\""), "{refused}");

    const RBAC: &str = "rbac.authorization.k8s.io/v1";
    let object = |version: &str, kind: &str, metadata: &str, more: &str| {
        format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{{metadata}}}\n{more}")
    };
    let to = |role: &str| {
        let group = "apiGroup: rbac.authorization.k8s.io";
        format!(
            "roleRef: {{{group}, kind: ClusterRole, name: {role}}}\nsubjects: [{{{group}, kind: User, name: mallory}}]"
        )
    };
    const EXEC: &str = "rules: [{apiGroups: [''], resources: [pods/exec], verbs: [create]}]";
    const EVERYTHING: &str = "rules: [{apiGroups: ['*'], resources: ['*'], verbs: ['*']}]";
    let stolen =
        |lookup: &str| object("v1", "ConfigMap", "name: stolen", &format!("data: {{it: '{{{{ {lookup} }}}}'}}"));
    let there = |namespace: &str| object("v1", "ConfigMap", &format!("name: planted, namespace: {namespace}"), "");
    let cannot = |verb: &str, resource: &str| format!("cannot {verb} resource \"{resource}\"");
    let grants = || "attempting to grant RBAC permissions not currently held".to_owned();
    let of_victim = "in the namespace \"boundary-victim\"";
    let of_system = "in the namespace \"kube-system\"";
    let of_all = "at the cluster scope";
    let planted = |kind: &str, more: &str| object(RBAC, kind, "name: planted", more);
    let in_system = object(RBAC, "RoleBinding", "name: planted, namespace: kube-system", &to("admin"));
    let treasure = stolen("(lookup \"v1\" \"Secret\" \"boundary-victim\" \"treasure\").data");
    let attempts = [
        ("secret", treasure, cannot("get", "secrets"), of_victim),
        ("secrets", stolen("(lookup \"v1\" \"Secret\" \"\" \"\").items"), cannot("list", "secrets"), of_all),
        ("system", in_system, cannot("get", "rolebindings"), of_system),
        ("role", planted("ClusterRole", EVERYTHING), cannot("get", "clusterroles"), of_all),
        ("binding", planted("ClusterRoleBinding", &to("cluster-admin")), cannot("get", "clusterrolebindings"), of_all),
        ("elsewhere", there("boundary-victim"), cannot("get", "configmaps"), of_victim),
        ("namespace", object("v1", "Namespace", "name: planted", ""), cannot("get", "namespaces"), "planted"),
        ("more", planted("Role", EVERYTHING), grants(), ""),
        ("exec", planted("Role", EXEC), grants(), ""),
        ("admin", planted("RoleBinding", &to("cluster-admin")), grants(), ""),
    ];
    let apps = Api::<ClientApp>::namespaced(mallory, "boundary");
    let create = async |name: &str, objects: Value| {
        let spec = rendering(&tenant, name, objects);
        let app = serde_json::from_value(json!({"metadata": {"name": name}, "spec": spec})).unwrap();
        apps.create(&PostParams::default(), &app).await.unwrap();
    };
    // Objects that the chart renders are created, if the account has the right; and what the reference chart grants may be granted.
    let own = stolen("(lookup \"v1\" \"ConfigMap\" \"boundary\" \"kube-root-ca.crt\").kind");
    let use_policy = "rules: [{apiGroups: [extensions], resources: [podsecuritypolicies], resourceNames: [privileged], verbs: [use]}]";
    create("fair", json!([there("boundary"), own, object(RBAC, "Role", "name: granted", use_policy)])).await;
    for (name, object, ..) in &attempts {
        create(name, json!([object])).await;
    }
    tenant.ready("fair", 1).await;
    for (name, _, refused, place) in &attempts {
        // Not the first refusal: the account may be so new that even its own rights are not effective yet.
        let parts = [refused.as_str(), place, "system:serviceaccount:boundary:clientapp-deployer"];
        let sentence = tenant.condition_with(name, ("Released", "AccessDenied"), &parts).await;
        assert!(!sentence.contains("canary") && !sentence.contains("Y2FuYXJ5"), "{sentence}");
    }

    assert_eq!(names::<ConfigMap>(&victim).await, ["kube-root-ca.crt"]);
    let bound = [names::<Role>(&tenant).await, names::<RoleBinding>(&tenant).await].concat();
    assert!(bound.contains(&"mallory".to_owned()) && !bound.contains(&"planted".to_owned()), "{bound:?}");
    let client = &tenant.client;
    assert!(Api::<ClusterRole>::all(client.clone()).get_opt("planted").await.unwrap().is_none());
    assert!(Api::<ClusterRoleBinding>::all(client.clone()).get_opt("planted").await.unwrap().is_none());
    assert!(Api::<Namespace>::all(client.clone()).get_opt("planted").await.unwrap().is_none());
    let system = Api::<RoleBinding>::namespaced(client.clone(), "kube-system");
    assert!(system.get_opt("planted").await.unwrap().is_none());
    let read = tenant.api::<ConfigMap>().get("stolen").await.unwrap();
    assert_eq!(read.data.unwrap()["it"], "ConfigMap", "only its own objects were deleted");
}

/// In a namespace that enforces the level `baseline`, as those created by the HTTP API do.
#[tokio::test]
async fn a_pod_of_a_release_gets_neither_the_node_nor_the_operators_account() {
    let tenant = Lab::shared().await.tenant("boundary-pods").await;
    tenant.kubectl(&["label", "namespace", "boundary-pods", "pod-security.kubernetes.io/enforce=baseline"]).unwrap();
    let app = |spec: Value| {
        let (labels, metadata) = (json!({"app": "planted"}), json!({"name": "planted"}));
        let pod = with(json!({"containers": [{"name": "x", "image": "x"}]}), spec);
        let template = json!({"metadata": {"labels": labels}, "spec": pod});
        let spec = json!({"selector": {"matchLabels": labels}, "template": template});
        json!([{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}])
    };
    let host = json!({"volumes": [{"name": "host", "hostPath": {"path": "/"}}]});
    let account = json!({"serviceAccountName": manifests::SERVICE_ACCOUNT});
    let attempts = [
        ("host", host, "violates PodSecurity \"baseline:latest\": hostPath volumes"),
        ("account", account, "serviceaccount \"clientapp-operator\" not found"),
    ];
    for (name, spec, words) in attempts {
        tenant.create(name, rendering(&tenant, name, app(spec))).await.unwrap();
        tenant.condition_with(name, ("Ready", "NotReady"), &["Deployment planted", words]).await;
        let pods = names::<Pod>(&tenant).await;
        assert!(pods.iter().all(|pod| !pod.starts_with("planted")), "{pods:?}");
        tenant.delete(name).await;
    }
}

/// The number of the operator's requests of this kind in the namespace.
async fn asked(tenant: &Tenant, what: &str) -> usize {
    tenant.requests().await.iter().filter(|asked| *asked == what).count()
}

#[tokio::test]
async fn what_is_removed_by_hand_is_put_back_and_told_of() {
    let tenant = installed("account-removed", json!({})).await;
    let account = tenant.api::<ServiceAccount>().get(DEPLOYER).await.unwrap();
    assert_eq!(account.automount_service_account_token, Some(false));
    // One of each for the namespace, and none for an upgrade or another app.
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.ready("acme", 2).await;
    tenant.create("other", small(&tenant, "other")).await.unwrap();
    tenant.ready("other", 1).await;
    tenant.delete("other").await;
    let made = async || {
        (
            asked(&tenant, "operator create serviceaccounts/").await,
            asked(&tenant, "operator create rolebindings/").await,
        )
    };
    assert_eq!(made().await, (1, 1));
    assert!(tenant.events("acme").await.iter().all(|(reason, _)| reason != "DeployerReplaced"));

    tenant.replaced::<RoleBinding>(DEPLOYER).await;
    let told = |kind: &str| {
        format!("{kind} {DEPLOYER}, which helm needs in namespace account-removed, was missing and is recreated")
    };
    tenant.events_with("acme", "DeployerReplaced", &told("RoleBinding")).await;
    tenant.replaced::<ServiceAccount>(DEPLOYER).await;
    tenant.events_with("acme", "DeployerReplaced", &told("ServiceAccount")).await;
    assert_eq!(made().await, (2, 2));
    tenant.ready("acme", 2).await;
    tenant
        .patch("acme", json!({"chartVersion": charts::DEFAULT, "upgrade": {"allow": charts::DEFAULT}}))
        .await
        .unwrap();
    tenant.ready("acme", 3).await;

    // A deletion needs it, too: while the app is suspended it is not recreated.
    tenant.patch("acme", json!({"suspend": true})).await.unwrap();
    tenant.condition("acme", "Reconciling", "False", "Suspended").await;
    tenant.api::<RoleBinding>().delete(DEPLOYER, &DeleteParams::default()).await.unwrap();
    tenant.api::<ServiceAccount>().delete(DEPLOYER, &DeleteParams::default()).await.unwrap();
    tenant.api::<ClientApp>().delete("acme", &DeleteParams::default()).await.unwrap();
    tenant.patch("acme", json!({"suspend": false})).await.unwrap();
    tenant.gone("acme").await;
    nothing_is_left(&tenant).await;
    assert_eq!(made().await, (3, 3));
}

/// The account is deleted before its app, and can no longer be recreated.
#[tokio::test]
async fn a_namespace_is_deleted_with_an_app_in_it() {
    let tenant = installed("account-terminating", json!({})).await;
    tenant.patch("acme", json!({"suspend": true})).await.unwrap();
    tenant.condition("acme", "Reconciling", "False", "Suspended").await;
    let namespaces = Api::<Namespace>::all(tenant.client.clone());
    let uid = namespaces.get(&tenant.namespace).await.unwrap().uid().unwrap();
    namespaces.delete(&tenant.namespace, &DeleteParams::default()).await.unwrap();
    let gone = |found: Option<&RoleBinding>| found.is_none().then_some(());
    tenant.wait_for(DEPLOYER, "gone with its namespace", gone).await;
    tenant.patch("acme", json!({"suspend": false})).await.unwrap();
    tenant.gone("acme").await;
    let gone = await_condition(namespaces, &tenant.namespace, is::is_deleted(&uid));
    tokio::time::timeout(TIMEOUT, gone).await.expect("the namespace is deleted").unwrap();
}

/// An admission policy that keeps ServiceAccounts of this name out of the namespace.
async fn forbid(tenant: &Tenant, name: &str) -> Api<ValidatingAdmissionPolicyBinding> {
    let accounts = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["serviceaccounts"],
    });
    let others = json!({"expression": format!("object.metadata.name != '{name}'"), "message": "no robots in here"});
    let bindings = admit_only(tenant, accounts, others).await;
    until_admitted(tenant, name, false).await;
    bindings
}

/// Waits until the API server applies the policy, or no longer applies it.
async fn until_admitted(tenant: &Tenant, name: &str, admitted: bool) {
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let account = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    let accounts = tenant.api::<ServiceAccount>();
    let is = async || accounts.create(&dry, &account).await.is_ok() == admitted;
    until(&format!("ServiceAccount {name} is admitted: {admitted}"), is).await;
}

#[tokio::test]
async fn a_namespace_whose_owner_forbids_the_account_or_has_a_binding_of_its_name() {
    let tenant = Lab::shared().await.tenant("account-taken").await;
    let policy = forbid(&tenant, DEPLOYER).await;
    tenant.create("acme", with(small(&tenant, "acme"), json!({"redis": {"enabled": true}}))).await.unwrap();
    let words = ["create ServiceAccount account-taken/clientapp-deployer", "no robots in here"];
    tenant.held("acme", "Refused", &words).await;
    tenant.condition("acme", "Stalled", "True", "Refused").await;
    // Nothing is half done.
    let made = [names::<Secret>(&tenant).await, names::<RoleBinding>(&tenant).await, accounts(&tenant).await];
    assert_eq!(made.concat(), Vec::<String>::new());

    let account = format!("{}:{DEPLOYER}", tenant.namespace);
    let binding = ["create", "rolebinding", DEPLOYER, "--clusterrole", "view", "--serviceaccount", &account];
    tenant.kubectl(&binding).unwrap();
    let before = tenant.api::<RoleBinding>().get(DEPLOYER).await.unwrap();
    policy.delete("account-taken", &DeleteParams::default()).await.unwrap();
    until_admitted(&tenant, DEPLOYER, true).await;
    // A change is handled at once.
    tenant.patch("acme", json!({"deletionPolicy": "Retain"})).await.unwrap();
    let words = ["RoleBinding clientapp-deployer", "kubectl delete rolebinding clientapp-deployer -n account-taken"];
    tenant.condition_with("acme", ("Released", "DeployerNotOurs"), &words).await;
    tenant.condition("acme", "Stalled", "True", "DeployerNotOurs").await;
    assert_eq!(tenant.api::<RoleBinding>().get(DEPLOYER).await.unwrap(), before);
    assert_eq!(accounts(&tenant).await, Vec::<String>::new());
    tenant.api::<RoleBinding>().delete(DEPLOYER, &DeleteParams::default()).await.unwrap();
    tenant.ready("acme", 1).await;

    // Edited while the app is at rest, the binding counts as another client's as well, which is reported when helm has to run.
    let eve = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"});
    let add = json!([{"op": "add", "path": "/subjects/-", "value": eve}]).to_string();
    tenant.kubectl(&["patch", "rolebinding", DEPLOYER, "--type=json", "--patch", &add]).unwrap();
    tenant.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    tenant.condition("acme", "Released", "False", "DeployerNotOurs").await;
    // The app continues to serve.
    assert_eq!(tenant.listed("acme").unwrap().0, "1");
}

/// Lets the operator impersonate one of the tenant's accounts, as in `manifests/README.md`.
pub(super) async fn permit(tenant: &Tenant, account: &str) {
    let operator = format!("{}:{}", manifests::NAMESPACE, manifests::SERVICE_ACCOUNT);
    let role = ["--verb", "impersonate", "--resource", "serviceaccounts", "--resource-name", account];
    tenant.kubectl(&[&["create", "role", "clientapp-operator"][..], &role].concat()).unwrap();
    let binding = ["create", "rolebinding", "clientapp-operator", "--role", "clientapp-operator", "--serviceaccount"];
    tenant.kubectl(&[&binding[..], &[&operator]].concat()).unwrap();
    let account = format!("serviceaccounts/{account}");
    tenant.until_may(&manifests::user(), ["impersonate", &account], true).await;
}

#[tokio::test]
async fn an_account_that_the_spec_names() {
    let lab = Lab::shared().await;
    let spec = |tenant: &Tenant| with(small(tenant, "acme"), json!({"serviceAccountName": "team"}));
    let refused = async |tenant: &Tenant, parts: &[&str]| {
        tenant.create("acme", spec(tenant)).await.unwrap();
        let sentence = tenant.condition("acme", "Released", "False", "AccessDenied").await;
        for part in parts {
            assert!(sentence.contains(part), "{part} is not in {sentence}");
        }
        tenant.condition("acme", "Stalled", "True", "AccessDenied").await;
        // Nothing is created for it.
        assert!(!names::<ServiceAccount>(tenant).await.contains(&DEPLOYER.to_owned()));
    };

    let any = lab.tenant("account-any").await;
    any.kubectl(&["create", "serviceaccount", "team"]).unwrap();
    refused(
        &any,
        &["the operator may not impersonate ServiceAccount team in namespace account-any", "clientapp-operator"],
    )
    .await;

    let absent = lab.tenant("account-absent").await;
    permit(&absent, "team").await;
    refused(&absent, &["system:serviceaccount:account-absent:team", "cannot list resource \"secrets\""]).await;

    let less = lab.tenant("account-less").await;
    permit(&less, "team").await;
    less.kubectl(&["create", "serviceaccount", "team"]).unwrap();
    less.kubectl(&["create", "role", "team", "--verb=*", "--resource=secrets,configmaps,services"]).unwrap();
    less.kubectl(&["create", "rolebinding", "team", "--role=team", "--serviceaccount=account-less:team"]).unwrap();
    less.until_may("system:serviceaccount:account-less:team", ["list", "secrets"], true).await;
    refused(&less, &["system:serviceaccount:account-less:team", "cannot get resource \"", "account-less"]).await;
    assert_eq!(names::<Deployment>(&less).await, Vec::<String>::new());

    let enough = lab.tenant("account-enough").await;
    permit(&enough, "team").await;
    enough.kubectl(&["create", "serviceaccount", "team"]).unwrap();
    let role = ["--clusterrole", DEPLOYER, "--serviceaccount=account-enough:team"];
    enough.kubectl(&[&["create", "rolebinding", "team"][..], &role].concat()).unwrap();
    enough.create("acme", spec(&enough)).await.unwrap();
    enough.ready("acme", 1).await;
    enough.patch("acme", json!({"chartVersion": charts::PATCH})).await.unwrap();
    let status = enough.ready("acme", 2).await;
    assert!(conditions::find(&status.conditions, "Stalled").is_some_and(|stalled| stalled.status == "False"));
    enough.delete("acme").await;
    assert_eq!(accounts(&enough).await, ["team"]);
    // The garbage collector takes a little longer.
    until("no Secret is left", async || names::<Secret>(&enough).await.is_empty()).await;
}
