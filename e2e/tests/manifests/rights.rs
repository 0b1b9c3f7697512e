//! What the account may do, and what not: as the API server itself answers.

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
        // What is in them, before.
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
        ("delete", OURS, "postgreswriters", "ada"),
        ("create", OURS, "postgreswriters", ""),
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
        ("watch", "apiextensions.k8s.io", CRDS, ""),
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
        ("watch", "coordination.k8s.io", "leases", ""),
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
