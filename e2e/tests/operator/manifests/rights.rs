//! The rights of the account, as the API server answers.

use clientapp_crd::DEPLOYER;
use e2e::lab::Lab;
use e2e::manifests;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kube::api::{Api, PostParams};

const OURS: &str = "apps.bnerd-operator.local";
const RBAC: &str = "rbac.authorization.k8s.io";
const CRDS: &str = "apiextensions.k8s.io";

/// Verbs, group, resource with subresource, name.
type Questions<'a> = &'a [(&'a str, &'a str, &'a str, &'a str)];

/// Lists what the operator may not do in a namespace of users. What it may, it does in the module `used`.
const MAY_NOT: Questions<'_> = &[
    ("*", "*", "*", ""),
    ("*", "", "secrets", ""),
    ("get", "", "nodes", ""),
    // Users write specs, and administrators write Profiles.
    ("update", OURS, "clientapps", "acme"),
    ("deletecollection", OURS, "clientapps", ""),
    ("create", OURS, "profiles", ""),
    ("patch", OURS, "profiles", "premium"),
    ("create", OURS, "postgreswriters", ""),
    ("delete", OURS, "postgreswriters", "ada"),
    ("patch", OURS, "clientapps/finalizers", "acme"),
    // Another user's namespace cannot be marked as created for an instance.
    ("update patch", "", "namespaces", "acme"),
    // The account cannot read pods, nor create them except through a workload.
    ("get create", "", "pods", "acme"),
    ("create", "", "pods/exec", "acme"),
    ("get", "", "pods/log", "acme"),
    ("deletecollection", "", "secrets", ""),
    ("delete", "", "persistentvolumes", "acme"),
    ("create", "", "serviceaccounts/token", "default"),
    ("watch", CRDS, "customresourcedefinitions", ""),
    ("get", CRDS, "customresourcedefinitions", "profiles.apps.bnerd-operator.local"),
    ("patch delete", CRDS, "customresourcedefinitions", "clientapps.apps.bnerd-operator.local"),
    ("patch", CRDS, "customresourcedefinitions", "perconapgclusters.pgv2.percona.com"),
    ("patch", CRDS, "customresourcedefinitions", "clusters.postgresql.cnpg.io"),
    // No rights on a chart's objects, except for kinds that Postgresqls consist of as well.
    ("get patch", "apps", "deployments", "acme"),
    ("create", "networking.k8s.io", "ingresses", ""),
    ("patch", "autoscaling", "horizontalpodautoscalers", "acme"),
    ("create delete escalate bind", RBAC, "roles", "acme"),
    // Existing accounts and bindings stay unchanged.
    ("patch delete", RBAC, "rolebindings", DEPLOYER),
    ("watch", RBAC, "rolebindings", ""),
    ("patch delete", "", "serviceaccounts", DEPLOYER),
    ("watch", "", "serviceaccounts", ""),
    // No way to more rights.
    ("bind", RBAC, "clusterroles", "cluster-admin"),
    ("create", RBAC, "clusterroles", ""),
    ("create", RBAC, "clusterrolebindings", ""),
    ("bind", RBAC, "roles", DEPLOYER),
    ("impersonate", "", "users", "admin"),
    ("impersonate", "", "groups", "system:masters"),
    ("impersonate", "", "serviceaccounts", "default"),
    ("use", "extensions", "podsecuritypolicies", "privileged"),
    // The Lease is in the operator's namespace only.
    ("get create", "coordination.k8s.io", "leases", "clientapp-operator"),
];

/// The rights of helm, in the namespace of the account.
const DEPLOYER_MAY: Questions<'_> = &[
    ("list", "", "secrets", ""),
    ("patch", "apps", "deployments", "acme"),
    ("create", "networking.k8s.io", "ingresses", ""),
    ("create", RBAC, "roles", ""),
    ("delete", "", "persistentvolumeclaims", "acme"),
    // Through a workload it can run pods anyway.
    ("create", "", "pods", ""),
    ("use", "extensions", "podsecuritypolicies", "privileged"),
];
const DEPLOYER_MAY_NOT: Questions<'_> = &[
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
const NO_OTHER_LEASE: Questions<'_> = &[
    ("get", "coordination.k8s.io", "leases", "another"),
    ("watch", "coordination.k8s.io", "leases", ""),
    ("delete", "coordination.k8s.io", "leases", "clientapp-operator"),
];

#[tokio::test]
async fn the_account_may_do_this_and_no_more() {
    let lab = Lab::shared().await;
    let reviews = Api::<SubjectAccessReview>::all(lab.plane.client().await.unwrap());
    let tenant = bound(lab, "tenant").await;
    let operator = manifests::user();
    for (user, namespace, questions, expected) in [
        (&operator, "tenant", MAY_NOT, false),
        (&operator, manifests::NAMESPACE, NO_OTHER_LEASE, false),
        (&tenant, "tenant", DEPLOYER_MAY, true),
        (&tenant, "tenant", DEPLOYER_MAY_NOT, false),
        // No rights elsewhere, nor on cluster-scoped objects.
        (&tenant, "default", DEPLOYER_MAY, false),
        (&tenant, "", DEPLOYER_MAY, false),
    ] {
        for (verbs, group, resource, name) in questions {
            for verb in verbs.split(' ') {
                let answer = ask(&reviews, user, namespace, [verb, group, resource, name]).await;
                let question = format!("{verb} {group}/{resource} {name} in {namespace}");
                assert_eq!(answer.allowed, expected, "{user}: {question}: {answer:?}");
            }
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
    [verb, group, resource, name]: [&str; 4],
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

/// A user who restores into a new app creates a ClientApp by the hand of the operator.
#[tokio::test]
async fn a_restore_into_another_app_needs_the_right_to_create_it() {
    let lab = Lab::shared().await;
    let tenant = lab.tenant("restores-into").await;
    let restores = "clientapprestores.apps.bnerd-operator.local";
    tenant.kubectl(&["create", "role", "restorer", "--verb", "create", "--resource", restores]).unwrap();
    tenant.kubectl(&["create", "rolebinding", "restorer", "--role", "restorer", "--user", "restorer"]).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let written = |name: &str, more: serde_json::Value| {
        let mut spec = serde_json::json!({"of": {"name": "acme"}, "database": {}});
        spec.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let restore = serde_json::json!({
            "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientAppRestore",
            "metadata": {"name": name}, "spec": spec,
        });
        let path = directory.path().join(name);
        std::fs::write(&path, restore.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let create = |path: &str| tenant.kubectl(&["create", "--as", "restorer", "--dry-run=server", "-f", path]);
    let into = serde_json::json!({"into": {"name": "then", "hostname": "then.example.com"}});
    let (same, other) = (written("same", serde_json::json!({})), written("other", into));
    // The API server takes a moment to enforce a policy.
    e2e::wait::until("the policy is enforced", async || match create(&other) {
        Ok(made) => Err(made),
        Err(error) => Ok(error.to_string()),
    })
    .await
    .contains("spec.into creates a ClientApp, and you may not create clientapps")
    .then_some(())
    .expect("the policy refuses it");
    create(&same).unwrap();
    let apps = "clientapps.apps.bnerd-operator.local";
    tenant.kubectl(&["create", "role", "creator", "--verb", "create", "--resource", apps]).unwrap();
    tenant.kubectl(&["create", "rolebinding", "creator", "--role", "creator", "--user", "restorer"]).unwrap();
    e2e::wait::until("the right is known", async || create(&other).map_err(|error| error.to_string())).await;
}
