//! The rights of the account, as the API server answers.

use clientapp_crd::DEPLOYER;
use e2e::lab::Lab;
use e2e::manifests;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};

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
        ("patch", OURS, "postgresqls/status", "db"),
        ("patch", OURS, "postgreswriters", "ada"),
        ("create", "", "namespaces", ""),
        ("delete", "", "namespaces", "acme"),
        // Their contents, before they are deleted.
        ("list", "snapshot.storage.k8s.io", "volumesnapshots", ""),
        ("create", "authentication.k8s.io", "tokenreviews", ""),
        ("create", "authorization.k8s.io", "subjectaccessreviews", ""),
        ("update", OURS, "clientapps/finalizers", "acme"),
        ("create", "", "secrets", ""),
        ("watch", "", "secrets", ""),
        ("watch", "apiextensions.k8s.io", CRDS, "perconapgclusters.pgv2.percona.com"),
        ("patch", "pgv2.percona.com", "perconapgclusters", "acme-pg"),
        ("create", "pgv2.percona.com", "perconapgbackups", ""),
        ("create", OURS, "postgresqls", ""),
        ("delete", "", "persistentvolumeclaims", "acme"),
        ("patch", "apps", "statefulsets", "acme"),
        ("patch", "policy", "poddisruptionbudgets", "acme-standby"),
        ("delete", "networking.k8s.io", "networkpolicies", "acme"),
        ("watch", "", "serviceaccounts", DEPLOYER),
        ("create", "", "serviceaccounts", ""),
        ("impersonate", "", "serviceaccounts", DEPLOYER),
        ("watch", RBAC, "rolebindings", DEPLOYER),
        ("create", RBAC, "rolebindings", ""),
        ("bind", RBAC, "clusterroles", DEPLOYER),
    ];
    let may_not: &[Question] = &[
        ("*", "*", "*", ""),
        ("*", "", "secrets", ""),
        ("get", "", "nodes", ""),
        // Users write specs, and administrators write Profiles.
        ("update", OURS, "clientapps", "acme"),
        ("deletecollection", OURS, "clientapps", ""),
        ("create", OURS, "profiles", ""),
        ("delete", OURS, "postgreswriters", "ada"),
        ("create", OURS, "postgreswriters", ""),
        ("patch", OURS, "profiles", "premium"),
        ("patch", OURS, "clientapps/finalizers", "acme"),
        // Another user's namespace cannot be marked as created for an instance.
        ("update", "", "namespaces", "acme"),
        ("patch", "", "namespaces", "acme"),
        // The account cannot read pods, nor create them except through a workload.
        ("get", "", "pods", "acme"),
        ("create", "", "pods", ""),
        ("create", "", "pods/exec", "acme"),
        ("get", "", "pods/log", "acme"),
        ("deletecollection", "", "secrets", ""),
        ("delete", "", "persistentvolumes", "acme"),
        ("create", "", "serviceaccounts/token", "default"),
        ("watch", "apiextensions.k8s.io", CRDS, ""),
        ("get", "apiextensions.k8s.io", CRDS, "clientapps.apps.bnerd-operator.local"),
        ("patch", "apiextensions.k8s.io", CRDS, "perconapgclusters.pgv2.percona.com"),
        // No rights on a chart's objects, except for kinds that Postgresqls consist of as well.
        ("patch", "apps", "deployments", "acme"),
        ("get", "apps", "deployments", "acme"),
        ("create", "networking.k8s.io", "ingresses", ""),
        ("patch", "autoscaling", "horizontalpodautoscalers", "acme"),
        ("create", RBAC, "roles", ""),
        ("delete", RBAC, "roles", "acme"),
        // Existing accounts and bindings stay unchanged.
        ("patch", RBAC, "rolebindings", DEPLOYER),
        ("delete", RBAC, "rolebindings", DEPLOYER),
        ("watch", RBAC, "rolebindings", ""),
        ("patch", "", "serviceaccounts", DEPLOYER),
        ("delete", "", "serviceaccounts", DEPLOYER),
        ("watch", "", "serviceaccounts", ""),
        // No way to more rights.
        ("escalate", RBAC, "roles", "acme"),
        ("bind", RBAC, "roles", "acme"),
        ("bind", RBAC, "clusterroles", "cluster-admin"),
        ("create", RBAC, "clusterroles", ""),
        ("create", RBAC, "clusterrolebindings", ""),
        ("bind", RBAC, "roles", DEPLOYER),
        ("impersonate", "", "users", "admin"),
        ("impersonate", "", "groups", "system:masters"),
        ("impersonate", "", "serviceaccounts", "default"),
        ("use", "extensions", "podsecuritypolicies", "privileged"),
        // The Lease is in the operator's namespace only; these questions are about the tenant's.
        ("get", "coordination.k8s.io", "leases", "clientapp-operator"),
        ("create", "coordination.k8s.io", "leases", ""),
    ];
    // The rights of helm, in the namespace of the account.
    let deployer: &[Question] = &[
        ("list", "", "secrets", ""),
        ("patch", "apps", "deployments", "acme"),
        ("create", "networking.k8s.io", "ingresses", ""),
        ("create", RBAC, "roles", ""),
        ("delete", "", "persistentvolumeclaims", "acme"),
        // Through a workload it can run pods anyway.
        ("create", "", "pods", ""),
        ("use", "extensions", "podsecuritypolicies", "privileged"),
    ];
    let no_deployer: &[Question] = &[
        ("*", "*", "*", ""),
        ("*", "", "secrets", ""),
        ("create", "", "pods/exec", "acme"),
        ("get", "", "pods/log", "acme"),
        ("get", "", "nodes", ""),
        ("patch", "", "namespaces", "tenant"),
        ("get", OURS, "clientapps", "acme"),
        ("patch", OURS, "postgresqls", "acme"),
        ("create", "", "serviceaccounts/token", "default"),
        ("escalate", RBAC, "roles", "acme"),
        ("bind", RBAC, "clusterroles", DEPLOYER),
        ("create", RBAC, "clusterroles", ""),
        ("create", RBAC, "clusterrolebindings", ""),
        ("impersonate", "", "serviceaccounts", DEPLOYER),
        ("use", "extensions", "podsecuritypolicies", "other"),
    ];
    let lease: &[Question] = &[
        ("get", "coordination.k8s.io", "leases", "clientapp-operator"),
        ("patch", "coordination.k8s.io", "leases", "clientapp-operator"),
        ("create", "coordination.k8s.io", "leases", ""),
    ];
    let no_other_lease: &[Question] = &[
        ("get", "coordination.k8s.io", "leases", "another"),
        ("watch", "coordination.k8s.io", "leases", ""),
        ("delete", "coordination.k8s.io", "leases", "clientapp-operator"),
    ];
    let tenant = bound(lab, "tenant").await;
    let operator = manifests::user();
    for (user, namespace, questions, expected) in [
        (&operator, "tenant", may, true),
        (&operator, "tenant", may_not, false),
        (&operator, manifests::NAMESPACE, lease, true),
        (&operator, manifests::NAMESPACE, no_other_lease, false),
        (&tenant, "tenant", deployer, true),
        (&tenant, "tenant", no_deployer, false),
        // No rights elsewhere, nor on cluster-scoped objects.
        (&tenant, "default", deployer, false),
        (&tenant, "", deployer, false),
    ] {
        for question in questions {
            let answer = ask(&reviews, user, namespace, question).await;
            assert_eq!(answer.allowed, expected, "{user}: {question:?} in {namespace}: {answer:?}");
        }
    }
}

/// Binds the ClusterRole as the operator does, in a new namespace, and returns the account's user name.
async fn bound(lab: &'static Lab, namespace: &str) -> String {
    let tenant = lab.tenant(namespace).await;
    let account = format!("{namespace}:{DEPLOYER}");
    let binding = ["create", "rolebinding", DEPLOYER, "--clusterrole", DEPLOYER, "--serviceaccount", &account];
    tenant.kubectl(&binding).unwrap();
    let user = format!("system:serviceaccount:{account}");
    tenant.until_may(&user, ["create", "roles.rbac.authorization.k8s.io"], true).await;
    user
}

/// As in `kubectl auth can-i --as`.
async fn ask(
    reviews: &Api<SubjectAccessReview>,
    user: &str,
    namespace: &str,
    (verb, group, resource, name): &Question<'_>,
) -> SubjectAccessReviewStatus {
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let some = |text: &str| Some(text.to_owned());
    let place = user.split(':').nth(2).unwrap();
    let groups = ["system:serviceaccounts", &format!("system:serviceaccounts:{place}"), "system:authenticated"];
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: some(user),
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
async fn helm_can_grant_what_the_chart_grants_and_no_more() {
    let lab = Lab::shared().await;
    let mut kubeconfig = Kubeconfig::read_from(&lab.operator_kubeconfig).unwrap();
    let user = bound(lab, "grants").await;
    kubeconfig.auth_infos[0].auth_info.as_mut().unwrap().impersonate = Some(user);
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    let client = Client::try_from(config).unwrap();
    let dry = PostParams { dry_run: true, ..PostParams::default() };

    let roles = Api::<Role>::namespaced(client.clone(), "grants");
    let role = |rule: Value| -> Role {
        serde_json::from_value(json!({"metadata": {"name": "acme"}, "rules": [rule]})).unwrap()
    };
    let psp = json!({"apiGroups": ["extensions"], "resources": ["podsecuritypolicies"], "resourceNames": ["privileged"], "verbs": ["use"]});
    roles.create(&dry, &role(psp)).await.unwrap();
    let exec = json!({"apiGroups": [""], "resources": ["pods/exec"], "verbs": ["create"]});
    let refusal = roles.create(&dry, &role(exec)).await.unwrap_err().to_string();
    assert!(refusal.contains("attempting to grant RBAC permissions not currently held"), "{refusal}");

    let bindings = Api::<RoleBinding>::namespaced(client, "grants");
    let admin = serde_json::from_value(json!({
        "metadata": {"name": "acme"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
        "subjects": [{"kind": "ServiceAccount", "name": DEPLOYER, "namespace": "grants"}],
    }));
    let refusal = bindings.create(&dry, &admin.unwrap()).await.unwrap_err().to_string();
    assert!(refusal.contains("attempting to grant RBAC permissions not currently held"), "{refusal}");
}
